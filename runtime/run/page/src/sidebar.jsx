// The list of conversations, by day, with a search through titles and messages.

import { useEffect, useRef, useState } from "preact/hooks";
import { stop } from "./answers.js";
import { IconButton } from "./buttons.jsx";
import { exportAll, fresh, importFile, open, remove, rename, undelete } from "./conversations.js";
import { Icon } from "./icons.jsx";
import { set, setIn } from "./store.js";
import { titleOf } from "./tree.js";

const DAY_MS = 24 * 3600 * 1000;
const DAYS = ["Today", "Yesterday", "Last 7 days", "Older"];

function dayOf(time) {
  const days = Math.floor((new Date().setHours(24, 0, 0, 0) - time) / DAY_MS);
  return DAYS[days < 1 ? 0 : days < 2 ? 1 : days < 8 ? 2 : 3];
}

function matches(conversation, words) {
  if (!words.length) return true;
  const text = [titleOf(conversation), ...Object.values(conversation.nodes).map(node => node.text)].join("\n").toLowerCase();
  return words.every(word => text.includes(word));
}

export function Sidebar({ state, onChosen, onClose }) {
  const [sought, setSought] = useState("");
  const words = sought.toLowerCase().split(/\s+/).filter(Boolean);
  const found = Object.values(state.conversations)
    .filter(conversation => Object.keys(conversation.nodes).length && matches(conversation, words))
    .sort((a, b) => b.changed - a.changed);
  const ofDay = day => found.filter(({ changed }) => dayOf(changed) === day);

  return (
    <nav class="sidebar" aria-label="Conversations">
      <div class="sidebar-head">
        <span class="brand">flashplan</span>
        <IconButton icon="sidebar" name="Hide conversations" keys="Ctrl B" onClick={onClose} />
      </div>
      <button type="button" class="new" onClick={() => (fresh(), onChosen())} title="Ctrl Shift O">
        <Icon name="plus" /> New conversation
      </button>
      <label class="search">
        <Icon name="search" />
        <input type="search" id="search" placeholder="Search" aria-label="Search conversations" title="Ctrl K" value={sought} onInput={event => setSought(event.target.value)} />
      </label>
      <div class="list">
        {DAYS.filter(day => ofDay(day).length).map(day => (
          <section key={day} aria-label={day}>
            <h2>{day}</h2>
            <ul>
              {ofDay(day).map(conversation => (
                <Entry key={conversation.id} conversation={conversation} isShown={conversation.id === state.open} isAnswering={Boolean(state.answering[conversation.id])} onChosen={onChosen} />
              ))}
            </ul>
          </section>
        ))}
        {!found.length && <p class="none">{words.length ? "Nothing found." : "Your conversations will appear here. This browser keeps them; the server does not."}</p>}
      </div>
      {state.deleted && <Undo conversation={state.deleted} />}
      <Files conversation={state.open} hasAny={found.length > 0} />
    </nav>
  );
}

function Entry({ conversation, isShown, isAnswering, onChosen }) {
  const [name, setName] = useState(null);
  const { id } = conversation;
  const title = titleOf(conversation);
  if (name !== null) {
    const done = () => (name.trim() && rename(id, name), setName(null));
    const pressed = event => {
      if (event.key === "Escape") event.stopPropagation(), setName(null);
      if (event.key === "Enter") done();
    };
    return (
      <li>
        <input class="rename" aria-label="New title" autofocus ref={input => input?.focus()} value={name} onInput={event => setName(event.target.value)} onKeyDown={pressed} onBlur={done} />
      </li>
    );
  }
  return (
    <li class={isShown ? "entry shown" : "entry"}>
      <a href={`#${id}`} aria-current={isShown ? "page" : undefined} onClick={event => (event.preventDefault(), open(id), onChosen())}>
        {isAnswering && <span class="pulse" title="Answering" role="img" aria-label="Answering" />}
        {title}
      </a>
      <span class="entry-actions">
        <IconButton icon="edit" name={`Rename ${title}`} onClick={() => setName(title)} />
        <IconButton icon="trash" name={`Delete ${title}`} onClick={() => (stop(id), remove(id))} />
      </span>
    </li>
  );
}

function Undo({ conversation }) {
  useEffect(() => {
    const timer = setTimeout(() => set({ deleted: null }), 12_000);
    return () => clearTimeout(timer);
  }, [conversation.id]);
  return (
    <div class="undo">
      <span>Deleted “{titleOf(conversation)}”</span>
      <button type="button" onClick={undelete}>
        Undo
      </button>
    </div>
  );
}

function Files({ conversation, hasAny }) {
  const picker = useRef();
  const read = async file => {
    if (!file) return;
    await importFile(file).then(
      announced => set({ announced }),
      error => setIn("notices", conversation, `${file.name} was not imported. ${error.message}`),
    );
  };
  return (
    <div class="sidebar-foot">
      <button type="button" onClick={() => picker.current.click()}>
        Import
      </button>
      <input ref={picker} type="file" hidden accept=".json,application/json" aria-label="Conversations to import" onChange={event => (read(event.target.files[0]), (event.target.value = ""))} />
      <button type="button" disabled={!hasAny} onClick={exportAll}>
        Export all
      </button>
    </div>
  );
}
