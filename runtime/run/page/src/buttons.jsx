// Buttons.

import { useEffect, useState } from "preact/hooks";
import { Icon } from "./icons.jsx";
import { set } from "./store.js";

/** A button with an icon, and its name for screen readers. */
export const IconButton = ({ icon, name, keys, ...others }) => (
  <button type="button" class="icon-button" aria-label={name} title={keys ? `${name} (${keys})` : name} {...others}>
    <Icon name={icon} />
  </button>
);

/** Copies a text, and shows for a moment that it has. */
export function CopyButton({ text, what = "message" }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    const timer = copied && setTimeout(() => setCopied(false), 1500);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = async () => {
    const done = await toClipboard(text);
    setCopied(done);
    set({ announced: done ? "Copied" : "The browser does not let this page copy" });
  };
  return <IconButton icon={copied ? "check" : "copy"} name={copied ? "Copied" : `Copy ${what}`} onClick={copy} />;
}

async function toClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  // browsers hide the clipboard from unencrypted pages, and still allow this
  const area = document.createElement("textarea");
  const focused = document.activeElement;
  area.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return done;
}
