// The state of the page, in one object that is replaced at each change.

import { useEffect, useState } from "preact/hooks";

let state = {
  /** Conversations by id. Empty ones are not saved. */
  conversations: {},
  /** The id of the open conversation. */
  open: null,
  /** Drafts by `draftId`: { text, files }. */
  drafts: {},
  /** Why the last message of a conversation was not sent, by conversation. */
  notices: {},
  /** Requests in progress by conversation: { node, phase, since }; the phase is "waiting", "reading" or "writing". */
  answering: {},
  /** Times of an answer's pieces and its share of the metrics, by message: { times, stages, hits }. */
  traces: {},
  /** Settings of new conversations. */
  defaults: {},
  model: "",
  metrics: null,
  /** Why saving failed, if it did. */
  problem: "",
  /** Whether the server needs a key. */
  locked: false,
  /** The last deleted conversation, while it can be restored. */
  deleted: null,
  /** "settings" or "shortcuts". */
  dialog: null,
  /** A sentence for screen readers. */
  announced: "",
};

const listeners = new Set();

export const get = () => state;

export function set(fields) {
  state = { ...state, ...fields };
  for (const listener of listeners) listener(state);
}

/** Sets or, with `undefined`, removes one entry of a map of the state. */
export function setIn(map, key, value) {
  const { [key]: _, ...others } = state[map];
  set({ [map]: value === undefined ? others : { ...others, [key]: value } });
}

/** The state; the component is drawn again at each change. */
export function useStore() {
  const [seen, see] = useState(state);
  useEffect(() => {
    listeners.add(see);
    see(state);
    return () => listeners.delete(see);
  }, []);
  return seen;
}
