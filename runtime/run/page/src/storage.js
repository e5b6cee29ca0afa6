// IndexedDB: conversations, drafts, and the settings of new conversations.

import { merge } from "./tree.js";

const STORES = ["conversations", "drafts", "settings"];
let database, opened;

const promised = request =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

function open() {
  database ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("flashplan", 1);
    request.onupgradeneeded = () => STORES.forEach(store => request.result.createObjectStore(store, { keyPath: "id" }));
    request.onsuccess = () => resolve((opened = request.result));
    request.onerror = () => reject(request.error);
  });
  return database;
}

/** Runs a transaction on a store, and resolves when the browser has committed it. */
async function within(store, mode, work) {
  const transaction = (await open()).transaction(store, mode);
  const written = new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error ?? new Error("the browser gave up writing"));
  });
  written.catch(() => {});
  const result = await work(transaction.objectStore(store));
  if (mode === "readwrite") await written;
  return result;
}

export const all = store => within(store, "readonly", objects => promised(objects.getAll()));
export const get = (store, id) => within(store, "readonly", objects => promised(objects.get(id)));
export const put = (store, object) => within(store, "readwrite", objects => promised(objects.put(object)));
export const remove = (store, id) => within(store, "readwrite", objects => promised(objects.delete(id)));

/**
 * Saves a conversation and returns it merged with the version that another tab has saved. Both keep all messages except
 * the `dropped` ones. A conversation without messages is deleted.
 */
export function saveConversation(conversation, dropped) {
  return within("conversations", "readwrite", async objects => {
    const kept = await promised(objects.get(conversation.id));
    const merged = kept ? merge(kept, conversation) : conversation;
    const nodes = Object.entries(merged.nodes).filter(([id]) => !dropped.includes(id));
    const rest = { ...merged, nodes: Object.fromEntries(nodes) };
    await promised(nodes.length ? objects.put(rest) : objects.delete(rest.id));
    return rest;
  });
}

/** Saves an object without waiting, while the page closes. */
export function putNow(store, object) {
  const transaction = opened?.transaction(store, "readwrite");
  transaction?.objectStore(store).put(object);
  transaction?.commit();
}

const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("flashplan") : null;

/** Tells other tabs that a conversation was saved or deleted. */
export const tell = id => channel?.postMessage(id);

/** Calls back when another tab has saved or deleted a conversation. */
export const hear = heard => channel?.addEventListener("message", event => heard(event.data));
