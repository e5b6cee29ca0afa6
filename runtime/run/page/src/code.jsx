// A block of code with its language and a button that copies it.

import { useMemo } from "preact/hooks";
import { CopyButton } from "./buttons.jsx";
import { highlight } from "./highlight.jsx";

export function CodeBlock({ language, code }) {
  const coloured = useMemo(() => highlight(code, language.toLowerCase()), [code, language]);
  return (
    <div class="code">
      <div class="code-head">
        <span>{language || "text"}</span>
        <CopyButton text={code} what="code" />
      </div>
      <pre tabIndex={0} role="region" aria-label={`Code, ${language || "text"}`}>
        <code>{coloured}</code>
      </pre>
    </div>
  );
}
