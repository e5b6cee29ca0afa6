// The messages, in a view that follows a growing answer until the user scrolls up.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Icon } from "./icons.jsx";
import { Message } from "./message.jsx";
import { path, siblings } from "./tree.js";

/** Pixels from the end within which the view counts as at the end. */
const NEAR = 32;

const EXAMPLES = [
  ["Explain", "Explain how a hash map works, with a small example."],
  ["Write code", "Write a function in Rust that reverses the words of a sentence."],
  ["Compare", "Compare SSDs and hard disks in a table."],
];

export function Thread({ state, conversation, onExample }) {
  const view = useRef();
  const follows = useRef(true);
  const [isAway, setAway] = useState(false);
  const answering = state.answering[conversation.id];

  const toEnd = () => {
    follows.current = true;
    setAway(false);
    view.current.scrollTop = view.current.scrollHeight;
  };
  // a newly opened conversation and a new message start at the end
  useLayoutEffect(toEnd, [conversation.id, answering?.node]);
  useLayoutEffect(() => {
    if (follows.current) view.current.scrollTop = view.current.scrollHeight;
  });
  useEffect(() => {
    const { style } = document.documentElement;
    const observer = new ResizeObserver(() => {
      // the input, a notice or an on-screen keyboard has changed the height
      if (follows.current) toEnd();
      // the input aligns with the messages beside the scroll bar
      style.setProperty("--bar", `${(view.current.offsetWidth - view.current.clientWidth) / 2}px`);
    });
    observer.observe(view.current);
    return () => observer.disconnect();
  }, []);

  const last = useRef({});
  const scrolled = () => {
    const { scrollTop, scrollHeight, clientHeight } = view.current;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR;
    // shorter contents and a taller view scroll up, too; otherwise only the user does
    const isPushed = scrollHeight < last.current.scrollHeight || clientHeight > last.current.clientHeight;
    if (isAtEnd) follows.current = true;
    else if (!isPushed && scrollTop < last.current.scrollTop) follows.current = false;
    last.current = { scrollTop, scrollHeight, clientHeight };
    setAway(!isAtEnd && !follows.current);
  };

  const messages = path(conversation);
  return (
    <div class="thread-frame">
      <div class="thread" ref={view} onScroll={scrolled} tabIndex={-1}>
        {messages.length ? (
          <div class="messages">
            {messages.map(node => (
              <Message
                key={node.id}
                node={node}
                versions={siblings(conversation, node.parent).map(({ id }) => id)}
                phase={answering?.node === node.id ? answering.phase : undefined}
                since={answering?.since}
                isBusy={Boolean(answering)}
              />
            ))}
          </div>
        ) : (
          <Welcome model={state.model} onExample={onExample} />
        )}
      </div>
      {isAway && (
        <button type="button" class="to-end" onClick={toEnd}>
          <Icon name="down" /> {answering ? "Follow the answer" : "To the end"}
        </button>
      )}
    </div>
  );
}

const Welcome = ({ model, onExample }) => (
  <div class="welcome">
    <h2>{model || "flashplan"}</h2>
    <p>What you write goes to this server alone, and only this browser keeps it.</p>
    <div class="examples">
      {EXAMPLES.map(([name, text]) => (
        <button type="button" key={name} onClick={() => onExample(text)}>
          <strong>{name}</strong>
          <span>{text}</span>
        </button>
      ))}
    </div>
  </div>
);
