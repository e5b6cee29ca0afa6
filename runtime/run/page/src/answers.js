// Requests for answers: send, stream, time and stop them. A refused message returns to the input.

import * as conversations from "./conversations.js";
import { options } from "./sampling.js";
import { complete, metrics } from "./server.js";
import { get, set, setIn } from "./store.js";
import * as tree from "./tree.js";

/** Milliseconds between two renderings of an answer, and between two saves. */
const DRAW_MS = 33;
const SAVE_MS = 1000;
/** Latest pieces of an answer that the strip shows. */
export const TRACE_MAX = 160;

const controllers = {};

/** Sends a message of the open conversation. */
export function send(text, files) {
  const conversation = conversations.current();
  const draft = conversations.draftId(conversation);
  const user = tree.userNode(conversation.leaf, text, files);
  conversations.write({ text: "", files: [] }, draft);
  return ask(conversation, user.id, user);
}

/** Sends an edited message as another branch. */
export function edit(id, text) {
  const conversation = conversations.current();
  const { parent, files } = conversation.nodes[id];
  const user = tree.userNode(parent, text, files);
  return ask(conversation, user.id, user);
}

/** Requests another answer, as another branch. */
export function regenerate(id) {
  const conversation = conversations.current();
  return ask(conversation, conversation.nodes[id].parent, null);
}

export const stop = id => controllers[id]?.abort();

async function ask(before, parent, user) {
  const { id } = before;
  if (get().answering[id]) return;
  const answer = tree.answerNode(parent);
  conversations.update(tree.add(user ? tree.add(before, user) : before, answer));
  conversations.address(id);
  setIn("notices", id, undefined);
  setIn("answering", id, { node: answer.id, phase: "waiting", since: Date.now() });
  set({ announced: "Message sent" });
  conversations.save(id);
  const controller = (controllers[id] = new AbortController());
  const counted = await metrics().catch(() => null);
  const progress = new Progress(id, answer.id);
  try {
    const conversation = get().conversations[id];
    const pieces = await complete(tree.messages(conversation, parent), options(conversation.settings), controller.signal);
    setIn("answering", id, { ...get().answering[id], phase: "reading" });
    for await (const piece of pieces) progress.take(piece);
    progress.end = progress.finish === "length" ? "cut" : "done";
  } catch (error) {
    progress.end = error.name === "AbortError" ? "stopped" : "failed";
    progress.error = error;
  }
  delete controllers[id];
  setIn("answering", id, undefined);
  if (progress.isEmpty() && progress.end !== "done" && progress.end !== "cut") refused(before, user, answer, progress.error);
  else finished(progress);
  await measure(progress, counted);
}

/** Returns a message without an answer to the input, with the reason above it. */
function refused(before, user, answer, error) {
  const { id } = before;
  const conversation = get().conversations[id];
  if (!conversation) return;
  const dropped = [answer.id, ...(user ? [user.id] : [])];
  const nodes = Object.entries(conversation.nodes).filter(([id]) => !dropped.includes(id));
  const leaf = dropped.includes(conversation.leaf) ? before.leaf : conversation.leaf;
  conversations.update({ ...conversation, nodes: Object.fromEntries(nodes), leaf });
  conversations.save(id, dropped);
  if (user) {
    const draft = conversations.draftId(get().conversations[id]);
    const { text, files } = get().drafts[draft] ?? { text: "", files: [] };
    const both = [user.text, text].filter(Boolean).join("\n\n");
    conversations.write({ text: both, files: [...user.files, ...files] }, draft);
  }
  const stopped = error.name === "AbortError";
  if (!stopped) setIn("notices", id, error.message);
  set({ locked: get().locked || error.status === 401, announced: stopped ? "Stopped" : "" });
}

function finished(progress) {
  progress.draw();
  if (!get().conversations[progress.id]) return;
  const { end } = progress;
  const fields = { end, figures: progress.figures(), ...(end === "failed" && { error: progress.error.message }) };
  conversations.update(tree.change(get().conversations[progress.id], progress.node, fields));
  conversations.save(progress.id);
  set({ announced: { done: "Answer complete", cut: "Answer cut off", stopped: "Stopped", failed: "The answer broke off" }[end] });
}

/** An answer while it streams. */
class Progress {
  text = "";
  thought = "";
  times = [];
  last = performance.now();
  sent = this.last;
  saved = -Infinity;

  constructor(id, node) {
    this.id = id;
    this.node = node;
  }

  isEmpty() {
    return !this.text && !this.thought;
  }

  take({ text, thought, finish, usage }) {
    if (finish) this.finish = finish;
    if (usage) this.usage = usage;
    if (!text && !thought) return;
    const now = performance.now();
    if (this.begun) this.times.push(now - this.last);
    this.begun ??= now;
    this.last = now;
    this.text += text ?? "";
    this.thought += thought ?? "";
    this.timer ??= setTimeout(() => this.draw(), DRAW_MS);
  }

  /** Publishes the text so far in the state. */
  draw() {
    clearTimeout(this.timer);
    this.timer = undefined;
    const { id, node, text, thought } = this;
    const conversation = get().conversations[id];
    if (!conversation) return stop(id);
    conversations.update(tree.change(conversation, node, { text, thought }));
    const answering = get().answering[id];
    if (answering) setIn("answering", id, { ...answering, phase: "writing", figures: this.figures() });
    setIn("traces", node, { ...get().traces[node], times: this.times.slice(-TRACE_MAX) });
    if (this.last - this.saved > SAVE_MS) {
      this.saved = this.last;
      conversations.save(id);
    }
  }

  /** Tokens, seconds and speed of this answer alone. The first token belongs to the prompt and does not count for the speed. */
  figures() {
    const pieces = this.isEmpty() ? 0 : this.times.length + 1;
    const tokens = this.usage?.completion_tokens ?? pieces;
    const seconds = this.begun ? (this.last - this.begun) / 1000 : 0;
    return {
      tokens,
      seconds,
      speed: tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : undefined,
      first: this.begun ? (this.begun - this.sent) / 1000 : undefined,
      prompt: this.usage?.prompt_tokens,
      cached: this.usage?.prompt_tokens_details?.cached_tokens,
    };
  }
}

/** Stage times and hit rate, from the server's counters before and after an answer. */
async function measure(progress, before) {
  // the server updates its metrics after it has sent the answer's end
  await new Promise(resolve => setTimeout(resolve, 200));
  const after = await metrics().catch(() => null);
  if (!after) return;
  set({ metrics: after });
  const since = name => after[name] - (before?.[name] ?? NaN);
  const tokens = since("decoded_tokens_total");
  if (!(tokens > 0)) return;
  const stages = Object.keys(after.stages).map(name => [name, (1000 * (after.stages[name] - before.stages[name])) / tokens]);
  const requested = since("neurons_requested_total");
  const hits = requested > 0 ? 1 - since("neurons_missing_total") / requested : undefined;
  setIn("traces", progress.node, { ...get().traces[progress.node], stages, hits });
}
