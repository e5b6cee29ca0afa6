// The input: text and text files. Drafts are saved, and a refused message returns here.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { send, stop } from "./answers.js";
import { IconButton } from "./buttons.jsx";
import { draftId, write } from "./conversations.js";
import { Icon } from "./icons.jsx";
import { setIn } from "./store.js";

/** Whether the keyboard is on the screen: Enter then begins a line, and only a touch focuses the input. */
const isTouched = () => matchMedia("(hover: none) and (pointer: coarse)").matches;

const EMPTY = { text: "", files: [] };
/** Longer files would fit into no context. */
const FILE_BYTES_MAX = 4 << 20;

export function Composer({ state, conversation, area }) {
  const draft = state.drafts[draftId(conversation)] ?? EMPTY;
  const answering = state.answering[conversation.id];
  const notice = state.notices[conversation.id];
  const isOver = useDrops(files => attach(files));
  const picker = useRef();
  const canSend = !answering && (draft.text.trim() || draft.files.length);

  const warn = text => setIn("notices", conversation.id, text);
  const submit = event => {
    event?.preventDefault();
    if (!canSend) return;
    send(draft.text.trim(), draft.files);
    if (!isTouched()) area.current.focus();
  };
  const pressed = event => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !isTouched()) {
      event.preventDefault();
      submit();
    } else if (event.key === "ArrowUp" && !draft.text) {
      const edits = document.querySelectorAll("[data-edit]:enabled");
      if (edits.length) event.preventDefault();
      edits[edits.length - 1]?.click();
    }
  };
  const attach = async files => {
    const read = await Promise.all([...files].map(textOf)).catch(error => warn(error.message));
    if (read) write({ text: draft.text, files: [...draft.files, ...read] }, draftId(conversation));
    area.current.focus();
  };
  const pasted = event => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    attach(event.clipboardData.files);
  };

  useEffect(() => {
    if (!isTouched()) area.current.focus();
  }, [conversation.id]);
  useLayoutEffect(() => {
    area.current.style.height = "auto";
    area.current.style.height = `${area.current.scrollHeight}px`;
  }, [draft.text, conversation.id]);

  return (
    <form class={isOver ? "composer over" : "composer"} onSubmit={submit}>
      {notice && (
        <div class="notice" role="alert">
          <span>{notice}</span>
          <IconButton icon="close" name="Dismiss" onClick={() => (warn(undefined), area.current.focus())} />
        </div>
      )}
      <div class="box">
        {draft.files.length > 0 && (
          <ul class="attached" aria-label="Attached files">
            {draft.files.map((file, index) => (
              <li key={index}>
                <span>{file.name}</span>
                <IconButton icon="close" name={`Remove ${file.name}`} onClick={() => write({ ...draft, files: draft.files.filter(other => other !== file) }, draftId(conversation))} />
              </li>
            ))}
          </ul>
        )}
        <textarea
          ref={area}
          rows={1}
          aria-label="Message"
          placeholder={`Message ${state.model || "the model"}`}
          value={draft.text}
          onInput={event => write({ ...draft, text: event.target.value }, draftId(conversation))}
          onKeyDown={pressed}
          onPaste={pasted}
        />
        <div class="bar">
          <IconButton icon="attach" name="Attach text files" onClick={() => picker.current.click()} />
          <input ref={picker} type="file" multiple hidden aria-label="Text files" onChange={event => (attach(event.target.files), (event.target.value = ""))} />
          {/* two elements: a click that stops must not become one that sends */}
          {answering ? (
            <button key="stop" type="button" class="send" aria-label="Stop" title="Stop (Esc)" onClick={() => (stop(conversation.id), isTouched() || area.current.focus())}>
              <Icon name="stop" />
            </button>
          ) : (
            <button key="send" type="submit" class="send" aria-label="Send" title="Send (Enter)" disabled={!canSend}>
              <Icon name="send" />
            </button>
          )}
        </div>
      </div>
    </form>
  );
}

/** Takes files dropped anywhere on the page, which the browser would open instead. Returns whether a file hovers over it. */
function useDrops(take) {
  const [isOver, setOver] = useState(false);
  const taker = useRef();
  taker.current = take;
  useEffect(() => {
    const hasFiles = event => event.dataTransfer?.types.includes("Files");
    const over = event => hasFiles(event) && (event.preventDefault(), setOver(true));
    const left = event => event.relatedTarget === null && setOver(false);
    const dropped = event => hasFiles(event) && (event.preventDefault(), setOver(false), taker.current(event.dataTransfer.files));
    const listeners = { dragover: over, dragleave: left, drop: dropped };
    for (const [name, listener] of Object.entries(listeners)) addEventListener(name, listener);
    return () => Object.entries(listeners).forEach(([name, listener]) => removeEventListener(name, listener));
  }, []);
  return isOver;
}

/** Reads a file as text. Throws an error for the user if it is none. */
async function textOf(file) {
  if (file.size > FILE_BYTES_MAX) throw new Error(`${file.name} is longer than 4 MiB; attach a part of it.`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new Error("zero bytes");
    return { name: file.name, text };
  } catch {
    throw new Error(`${file.name} is no text in UTF-8; attach text files.`);
  }
}
