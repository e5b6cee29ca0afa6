// Dialogs: settings of a conversation, the server's key, keyboard shortcuts.

import { useEffect, useRef, useState } from "preact/hooks";
import { IconButton } from "./buttons.jsx";
import { configure } from "./conversations.js";
import { FIELDS } from "./sampling.js";
import { theme, useTheme } from "./preferences.js";

/** A modal dialog. The browser keeps the focus inside, closes it with Escape and gives the focus back. */
function Dialog({ name, onClose, children }) {
  const dialog = useRef();
  useEffect(() => {
    dialog.current.showModal();
  }, []);
  const clicked = event => event.target === dialog.current && dialog.current.close();
  return (
    <dialog ref={dialog} aria-label={name} onClose={onClose} onClick={clicked}>
      <div class="dialog-head">
        <h2>{name}</h2>
        <IconButton icon="close" name="Close" onClick={() => dialog.current.close()} />
      </div>
      {children}
    </dialog>
  );
}

const THEMES = { auto: "System", light: "Light", dark: "Dark" };

export function Settings({ conversation, onClose }) {
  const [settings, setSettings] = useState(conversation.settings);
  const [colours, setColours] = useState(theme());
  const [asDefaults, setAsDefaults] = useState(false);
  const change = (key, value) => setSettings({ ...settings, [key]: value });
  const submit = event => {
    event.preventDefault();
    configure(settings, asDefaults);
    event.target.closest("dialog").close();
  };
  return (
    <Dialog name="Settings" onClose={onClose}>
      <form onSubmit={submit}>
        <fieldset class="segments">
          <legend>Theme</legend>
          {Object.entries(THEMES).map(([value, name]) => (
            <label key={value}>
              <input type="radio" name="theme" checked={colours === value} onChange={() => (setColours(value), useTheme(value))} />
              {name}
            </label>
          ))}
        </fieldset>
        <h3>This conversation</h3>
        <p>An empty field leaves the choice to the server.</p>
        <label class="field wide">
          System prompt
          <textarea rows={4} placeholder="What the model should know or obey throughout" value={settings.system ?? ""} onInput={event => change("system", event.target.value)} />
        </label>
        <div class="fields">
          {FIELDS.map(({ key, label, hint, ...range }) => (
            <label class="field" key={key}>
              {label}
              <input
                type="number"
                placeholder="default"
                {...range}
                step={range.step === 1 ? 1 : "any"}
                value={settings[key] ?? ""}
                onInput={event => change(key, event.target.value === "" ? undefined : event.target.valueAsNumber)}
              />
              <small>{hint}</small>
            </label>
          ))}
        </div>
        <label class="check">
          <input type="checkbox" checked={asDefaults} onChange={event => setAsDefaults(event.target.checked)} /> Use for new conversations, too
        </label>
        <div class="dialog-foot">
          <button type="button" onClick={event => event.target.closest("dialog").close()}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Save
          </button>
        </div>
      </form>
    </Dialog>
  );
}

const SHORTCUTS = [
  ["Send", "Enter"],
  ["New line", "Shift Enter"],
  ["Stop the answer", "Esc"],
  ["Edit the last message", "↑ in an empty message"],
  ["New conversation", "Ctrl Shift O"],
  ["Search conversations", "Ctrl K"],
  ["Conversations", "Ctrl B"],
  ["Speed and memory", "Ctrl ."],
  ["Settings", "Ctrl ,"],
  ["Write a message", "/"],
  ["This list", "?"],
];

export const Shortcuts = ({ onClose }) => (
  <Dialog name="Keyboard shortcuts" onClose={onClose}>
    <table class="shortcuts">
      <tbody>
        {SHORTCUTS.map(([name, keys]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td>
              {/^(Ctrl|Shift) /.test(keys) ? keys.split(" ").map(key => <kbd key={key}>{key}</kbd>) : /^.$|^E/.test(keys) ? <kbd>{keys}</kbd> : keys}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  </Dialog>
);

export function Key({ onKey, onClose }) {
  const [key, setKey] = useState("");
  const submit = event => {
    event.preventDefault();
    event.target.closest("dialog").close();
    onKey(key.trim());
  };
  return (
    <Dialog name="This server needs a key" onClose={onClose}>
      <form onSubmit={submit}>
        <p>It is the first line of the file that <code>run --serve --api-key-file</code> names. This tab forgets it when you close it.</p>
        <label class="field wide">
          Key
          <input type="password" autocomplete="current-password" required value={key} onInput={event => setKey(event.target.value)} />
        </label>
        <div class="dialog-foot">
          <button type="submit" class="primary">
            Use this key
          </button>
        </div>
      </form>
    </Dialog>
  );
}
