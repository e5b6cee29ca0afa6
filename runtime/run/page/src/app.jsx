// The page: conversations at the left, the open one in the middle, speed and memory at the right.

import { useEffect, useRef, useState } from "preact/hooks";
import { stop } from "./answers.js";
import { IconButton } from "./buttons.jsx";
import { Composer } from "./composer.jsx";
import { draftId, exportJson, exportMarkdown, fresh, write } from "./conversations.js";
import { Key, Settings, Shortcuts } from "./dialogs.jsx";
import { Figures } from "./figures.jsx";
import { Icon } from "./icons.jsx";
import { isOpen, keep } from "./preferences.js";
import { metrics, modelName, useKey } from "./server.js";
import { Sidebar } from "./sidebar.jsx";
import { get, set, useStore } from "./store.js";
import { Thread } from "./thread.jsx";
import { titleOf } from "./tree.js";

/** Below these widths a panel covers the conversation instead of standing beside it. */
const isNarrow = () => matchMedia("(max-width: 60rem)").matches;
const isMedium = () => matchMedia("(max-width: 72rem)").matches;

/** Fetches the model's name and the plan's figures. */
export async function greet() {
  try {
    set({ model: await modelName(), metrics: await metrics(), locked: false });
  } catch (error) {
    if (error.status === 401) set({ locked: true });
  }
}

/** A panel that folds. The choice is kept where the panel stands beside the conversation. */
function useFold(name, covers) {
  const [shown, setShown] = useState(() => !covers() && isOpen(name, true));
  const fold = shown => {
    setShown(shown);
    if (!covers()) keep(name, shown);
  };
  return [shown, fold];
}

export function App() {
  const state = useStore();
  const area = useRef();
  const [hasList, setList] = useFold("list", isNarrow);
  const [hasFigures, setFigures] = useFold("figures", isMedium);
  const conversation = state.conversations[state.open];
  const keys = useRef();
  keys.current = { hasList, hasFigures, setList, setFigures, area };
  useEffect(() => {
    const pressed = event => shortcut(event, keys.current);
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  useEffect(() => {
    document.title = conversation && Object.keys(conversation.nodes).length ? `${titleOf(conversation)} – flashplan` : "flashplan";
  }, [conversation]);
  if (!conversation) return null;

  const example = text => {
    write({ text, files: state.drafts[draftId(conversation)]?.files ?? [] });
    area.current.focus();
  };
  const close = () => set({ dialog: null });
  return (
    <div class={`app${hasList ? " with-list" : ""}${hasFigures ? " with-figures" : ""}`}>
      {hasList && <Sidebar state={state} onClose={() => setList(false)} onChosen={() => isNarrow() && setList(false)} />}
      <main>
        <header>
          {!hasList && <IconButton icon="menu" name="Show conversations" keys="Ctrl B" onClick={() => setList(true)} />}
          {!hasList && <IconButton icon="plus" name="New conversation" keys="Ctrl Shift O" onClick={fresh} />}
          <h1>{Object.keys(conversation.nodes).length ? titleOf(conversation) : "New conversation"}</h1>
          <More conversation={conversation} />
          <IconButton icon="settings" name="Settings" keys="Ctrl ," onClick={() => set({ dialog: "settings" })} />
          <IconButton icon="figures" name={hasFigures ? "Hide speed and memory" : "Show speed and memory"} keys="Ctrl ." aria-pressed={hasFigures} onClick={() => setFigures(!hasFigures)} />
        </header>
        {state.problem && (
          <p class="problem" role="alert">
            {state.problem}
          </p>
        )}
        <Thread state={state} conversation={conversation} onExample={example} />
        <Composer state={state} conversation={conversation} area={area} />
      </main>
      {hasFigures && <Figures state={state} conversation={conversation} onClose={() => setFigures(false)} />}
      {(hasList || hasFigures) && <div class="veil" onClick={() => (isNarrow() && setList(false), isMedium() && setFigures(false))} />}
      {state.dialog === "settings" && <Settings conversation={conversation} onClose={close} />}
      {state.dialog === "shortcuts" && <Shortcuts onClose={close} />}
      {state.locked && <Key onClose={() => set({ locked: false })} onKey={key => (useKey(key), greet())} />}
      <p class="unseen" role="status" aria-live="polite">
        {state.announced}
      </p>
    </div>
  );
}

/** A menu of rare actions. */
function More({ conversation }) {
  const menu = useRef();
  const hasMessages = Object.keys(conversation.nodes).length > 0;
  const choose = work => () => {
    menu.current.open = false;
    work();
  };
  useEffect(() => {
    const outside = event => menu.current.contains(event.target) || (menu.current.open = false);
    addEventListener("pointerdown", outside);
    return () => removeEventListener("pointerdown", outside);
  }, []);
  return (
    <details class="more" ref={menu}>
      <summary class="icon-button" aria-label="More" title="More">
        <Icon name="more" />
      </summary>
      <div class="menu">
        <button type="button" disabled={!hasMessages} onClick={choose(() => exportMarkdown(conversation))}>
          Export as Markdown
        </button>
        <button type="button" disabled={!hasMessages} onClick={choose(() => exportJson(conversation))}>
          Export as JSON
        </button>
        <button type="button" onClick={choose(() => set({ dialog: "shortcuts" }))}>
          Keyboard shortcuts
        </button>
      </div>
    </details>
  );
}

/** Global shortcuts. Escape closes a menu or a covering panel first, then stops the answer. */
function shortcut(event, { hasList, hasFigures, setList, setFigures, area }) {
  if (event.isComposing || document.querySelector("dialog[open]")) return;
  const command = event.ctrlKey || event.metaKey;
  const isWriting = /^(INPUT|TEXTAREA)$/.test(event.target.tagName);
  const key = event.key.toLowerCase();
  const does = work => {
    event.preventDefault();
    work();
  };
  if (event.key === "Escape") {
    const menu = document.querySelector("details.more[open]");
    if (menu) does(() => ((menu.open = false), menu.querySelector("summary").focus()));
    else if ((hasList && isNarrow()) || (hasFigures && isMedium())) does(() => (isNarrow() && setList(false), setFigures(false), area.current?.focus()));
    else if (get().answering[get().open]) does(() => (stop(get().open), area.current?.focus()));
    else area.current?.focus();
  } else if (command && event.shiftKey && key === "o") does(fresh);
  else if (command && key === "k") does(() => (setList(true), setTimeout(() => document.getElementById("search").focus())));
  else if (command && key === "b") does(() => setList(!hasList));
  else if (command && key === ".") does(() => setFigures(!hasFigures));
  else if (command && key === ",") does(() => set({ dialog: "settings" }));
  else if (!isWriting && !command && key === "/") does(() => area.current.focus());
  else if (!isWriting && !command && key === "?") does(() => set({ dialog: "shortcuts" }));
}
