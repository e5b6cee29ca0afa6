// One message: the user's, with an editor, or the model's, with its reasoning.

import { Component } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { edit, regenerate } from "./answers.js";
import { CopyButton, IconButton } from "./buttons.jsx";
import { branch, show } from "./conversations.js";
import { Markdown } from "./markdown.jsx";

/** Renders again only when the message or its versions change: long conversations stay cheap while an answer streams. */
export class Message extends Component {
  shouldComponentUpdate({ node, phase, isBusy, versions }) {
    const before = this.props;
    return node !== before.node || phase !== before.phase || isBusy !== before.isBusy || versions.join() !== before.versions.join();
  }

  render({ node, versions, phase, since, isBusy }) {
    const branches = versions.length > 1 && <Branches ids={versions} shown={node.id} />;
    return node.role === "user" ? <Said node={node} branches={branches} isBusy={isBusy} /> : <Answer node={node} branches={branches} phase={phase} since={since} isBusy={isBusy} />;
  }
}

function Said({ node, branches, isBusy }) {
  const [edited, setEdited] = useState(null);
  if (edited !== null) return <Editor text={edited} onInput={setEdited} onCancel={() => setEdited(null)} onSend={() => (setEdited(null), edit(node.id, edited))} />;
  return (
    <article class="said">
      <h2 class="unseen">You said</h2>
      {node.files.length > 0 && (
        <div class="files">
          {node.files.map(({ name, text }) => (
            <details class="file" key={name}>
              <summary>{name}</summary>
              <pre tabIndex={0}>{text}</pre>
            </details>
          ))}
        </div>
      )}
      {node.text && <div class="bubble">{node.text}</div>}
      <div class="actions">
        {branches}
        <CopyButton text={node.text} />
        <IconButton icon="edit" name="Edit message" data-edit disabled={isBusy} onClick={() => setEdited(node.text)} />
      </div>
    </article>
  );
}

function Editor({ text, onInput, onCancel, onSend }) {
  const area = useRef();
  useEffect(() => {
    area.current.focus();
    area.current.setSelectionRange(text.length, text.length);
  }, []);
  const pressed = event => {
    if (event.isComposing) return;
    if (event.key === "Escape") {
      event.stopPropagation();
      onCancel();
    } else if (event.key === "Enter" && !event.shiftKey && text.trim()) {
      event.preventDefault();
      onSend();
    }
  };
  return (
    <form class="editor" onSubmit={event => (event.preventDefault(), onSend())}>
      <textarea ref={area} aria-label="Edit message" value={text} onInput={event => onInput(event.target.value)} onKeyDown={pressed} rows={Math.min(12, text.split("\n").length + 1)} />
      <div>
        <button type="button" onClick={onCancel}>
          Cancel
        </button>
        <button type="submit" class="primary" disabled={!text.trim()}>
          Send
        </button>
      </div>
    </form>
  );
}

const ENDED = { stopped: "Stopped.", cut: "Cut off: the context or the longest answer is full." };

/** `phase` is set while the answer streams. */
function Answer({ node, branches, phase, since, isBusy }) {
  const isThinking = phase && !node.text;
  return (
    <article class="answer" aria-busy={Boolean(phase)}>
      <h2 class="unseen">The model said</h2>
      {node.thought && <Thought text={node.thought} isOpen={isThinking} />}
      {node.text && <Markdown text={node.text} />}
      {phase && phase !== "writing" && <Waiting phase={phase} since={since} />}
      {node.end === "done" && !node.text && <p class="ended">The model answered nothing.</p>}
      {ENDED[node.end] && <p class="ended">{ENDED[node.end]}</p>}
      {node.error && (
        <p class="error" role="alert">
          {node.error}
        </p>
      )}
      <div class={phase ? "actions held" : "actions"}>
        {branches}
        <CopyButton text={node.text} />
        <IconButton icon="regenerate" name="Regenerate" disabled={isBusy} onClick={() => regenerate(node.id)} />
        <IconButton icon="branch" name="Branch into a new conversation" disabled={isBusy} onClick={() => branch(node.id)} />
        {node.figures?.speed && (
          <span class="speed">
            {node.figures.tokens} tokens, {node.figures.speed.toFixed(1)} tok/s
          </span>
        )}
      </div>
    </article>
  );
}

/** Reasoning, open until the answer begins. */
function Thought({ text, isOpen }) {
  const [chosen, choose] = useState(null);
  const shown = chosen ?? Boolean(isOpen);
  return (
    <details class="thought" open={shown}>
      <summary onClick={event => (event.preventDefault(), choose(!shown))}>{isOpen ? "Reasoning…" : "Reasoning"}</summary>
      <Markdown text={text} />
    </details>
  );
}

const PHASES = { waiting: "Waiting for the server", reading: "Reading the prompt" };

function Waiting({ phase, since }) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  const seconds = Math.floor((now - since) / 1000);
  return (
    <p class="waiting">
      <span class="dots" aria-hidden="true">
        <i />
        <i />
        <i />
      </span>
      {PHASES[phase]}
      {seconds >= 2 && `, ${seconds} s`}
    </p>
  );
}

const Branches = ({ ids, shown }) => {
  const at = ids.indexOf(shown);
  return (
    <span class="branches" role="group" aria-label="Versions">
      <IconButton icon="left" name="Previous version" disabled={at === 0} onClick={() => show(ids[at - 1])} />
      <span>
        {at + 1} / {ids.length}
      </span>
      <IconButton icon="right" name="Next version" disabled={at === ids.length - 1} onClick={() => show(ids[at + 1])} />
    </span>
  );
};
