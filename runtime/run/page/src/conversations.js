// Actions on conversations: open, write, rename, delete, export, import. Each is saved at once.

import * as storage from "./storage.js";
import { get, set, setIn } from "./store.js";
import { download, fileName, fromJson, toJson, toMarkdown } from "./transfer.js";
import * as tree from "./tree.js";

/** Drafts of conversations without a message share a name, so that one outlives a reload. */
export const draftId = conversation => (Object.keys(conversation.nodes).length ? conversation.id : "new");

/** Milliseconds after the last key until a draft is saved. */
const WRITE_MS = 150;

export const current = () => get().conversations[get().open];

/** Replaces a conversation in the state. */
export const update = conversation => setIn("conversations", conversation.id, conversation);

const failed = error => set({ problem: `The browser does not keep this conversation (${error.message}). Export it before you close this tab.` });

let asked = false;

/** Asks the browser once to keep this site's data when its disk is full. */
function persist() {
  if (!asked) navigator.storage?.persist?.().catch(() => {});
  asked = true;
}

/** Saves a conversation: adds the messages of other tabs, removes the `dropped` ones. */
export async function save(id, dropped = []) {
  const conversation = get().conversations[id];
  if (!conversation) return;
  persist();
  try {
    const merged = await storage.saveConversation(conversation, dropped);
    const now = get().conversations[id];
    if (now) update({ ...tree.merge(merged, now), leaf: now.leaf });
    storage.tell(id);
    if (get().problem) set({ problem: "" });
  } catch (error) {
    failed(error);
  }
}

/** Loads everything that the browser has saved, and opens the conversation in the address. */
export async function load() {
  const found = await Promise.all(["conversations", "drafts", "settings"].map(storage.all)).catch(error => {
    failed(error);
    return [[], [], []];
  });
  const byId = list => Object.fromEntries(list.map(object => [object.id, object]));
  const [conversations, drafts, settings] = [found[0].map(tree.settled), ...found.slice(1)].map(byId);
  const defaults = settings.defaults?.settings ?? {};
  set({ conversations: { ...get().conversations, ...conversations }, drafts, defaults });
  navigateTo(location.hash);
}

/** Shows the conversation of an address `#id`, or a new one. */
export function navigateTo(hash) {
  const id = hash.slice(1);
  if (Object.hasOwn(get().conversations, id)) set({ open: id });
  else fresh();
}

export function open(id) {
  set({ open: id });
  history.pushState(null, "", `#${id}`);
}

/** Shows a conversation without messages. */
export function fresh() {
  const conversation = tree.newConversation(get().defaults);
  const kept = Object.entries(get().conversations).filter(([id, { nodes }]) => Object.keys(nodes).length || get().answering[id]);
  set({ conversations: { ...Object.fromEntries(kept), [conversation.id]: conversation }, open: conversation.id });
  if (location.hash) history.pushState(null, "", location.pathname);
}

/** Puts the open conversation's name into the address, once it has a message. */
export function address(id) {
  if (get().open === id) history.replaceState(null, "", `#${id}`);
}

/** Timers of drafts that are not saved yet. */
const writes = {};

/** Changes a draft, and saves it soon. */
export function write(draft, id = draftId(current())) {
  const isEmpty = !draft.text && !draft.files.length;
  setIn("drafts", id, isEmpty ? undefined : { id, ...draft });
  clearTimeout(writes[id]);
  writes[id] = setTimeout(() => keepDraft(id), WRITE_MS);
}

function keepDraft(id) {
  delete writes[id];
  const draft = get().drafts[id];
  (draft ? storage.put("drafts", draft) : storage.remove("drafts", id)).catch(failed);
}

/** Saves unsaved drafts and unfinished answers while the page closes. */
export function keepNow() {
  for (const id of Object.keys(writes)) storage.putNow("drafts", get().drafts[id] ?? { id, text: "", files: [] });
  for (const id of Object.keys(get().answering)) storage.putNow("conversations", get().conversations[id]);
}

export function rename(id, title) {
  update({ ...get().conversations[id], title: title.trim(), changed: Date.now() });
  save(id);
}

/** Shows another branch. */
export function show(node) {
  update(tree.show(current(), node));
  save(get().open);
}

/** Copies the messages up to one into a new conversation. */
export function branch(node) {
  const conversation = tree.branch(current(), node);
  update(conversation);
  open(conversation.id);
  save(conversation.id);
}

export function configure(settings, asDefaults) {
  update({ ...current(), settings, changed: Date.now() });
  if (Object.keys(current().nodes).length) save(get().open);
  if (asDefaults) {
    set({ defaults: settings });
    storage.put("settings", { id: "defaults", settings }).catch(failed);
  }
}

export async function remove(id) {
  const conversation = get().conversations[id];
  setIn("conversations", id, undefined);
  set({ deleted: conversation, announced: "Conversation deleted" });
  if (get().open === id) fresh();
  await storage.remove("conversations", id).catch(failed);
  storage.tell(id);
}

export function undelete() {
  const conversation = tree.settled(get().deleted);
  update(conversation);
  set({ deleted: null });
  open(conversation.id);
  save(conversation.id);
}

/** Follows another tab that has saved or deleted a conversation. */
export async function heard(id) {
  const kept = await storage.get("conversations", id).catch(failed);
  const ours = get().conversations[id];
  if (kept && ours) {
    const merged = tree.merge(kept, ours);
    update(get().answering[id] ? { ...merged, leaf: ours.leaf } : merged);
  } else if (kept) update(kept);
  else if (ours && !get().answering[id]) {
    setIn("conversations", id, undefined);
    if (get().open === id) fresh();
  }
}

const kept = () => Object.values(get().conversations).filter(({ nodes }) => Object.keys(nodes).length);

export function exportAll() {
  download(`flashplan-${new Date().toISOString().slice(0, 10)}.json`, "application/json", toJson(kept()));
}

export const exportJson = conversation => download(`${fileName(tree.titleOf(conversation))}.json`, "application/json", toJson([conversation]));
export const exportMarkdown = conversation => download(`${fileName(tree.titleOf(conversation))}.md`, "text/markdown", toMarkdown(conversation));

/** Adds the conversations of a file, and returns a sentence about it. */
export async function importFile(file) {
  const conversations = fromJson(await file.text());
  for (const conversation of conversations) {
    const ours = get().conversations[conversation.id];
    update(ours ? tree.merge(ours, conversation) : conversation);
    await save(conversation.id);
  }
  const newest = conversations.sort((a, b) => b.changed - a.changed)[0];
  if (newest) open(newest.id);
  return `${conversations.length} conversation${conversations.length === 1 ? "" : "s"} imported`;
}
