// A conversation is a tree of messages: editing a message or asking again adds a branch. One path from the root to `leaf` is shown.
//
//   conversation  { id, title, created, changed, settings, nodes: { id: node }, leaf }
//   node          { id, parent, role, at, text, thought, files, end, error, figures }
//
// `role` is "user" or "assistant"; `files` are a user's attachments; `end` of an answer is "answering", "done", "stopped", "cut" or "failed".
// Nothing here changes its arguments: each function returns a new conversation.

/** A random id; `crypto.randomUUID` exists only on encrypted pages. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), byte => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(settings) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, changed: now, settings, nodes: {}, leaf: null };
}

export function userNode(parent, text, files = []) {
  return { id: newId(), parent, role: "user", at: Date.now(), text, files };
}

export function answerNode(parent) {
  return { id: newId(), parent, role: "assistant", at: Date.now(), text: "", thought: "", end: "answering" };
}

/** The conversation with one more message, which is shown. */
export function add(conversation, node) {
  return { ...conversation, nodes: { ...conversation.nodes, [node.id]: node }, leaf: node.id, changed: Date.now() };
}

/** The conversation with some fields of one message replaced. */
export function change(conversation, id, fields) {
  const node = { ...conversation.nodes[id], ...fields };
  return { ...conversation, nodes: { ...conversation.nodes, [id]: node } };
}

/** The messages from the first one to `leaf`. */
export function path(conversation, leaf = conversation.leaf) {
  const nodes = [];
  for (let node = conversation.nodes[leaf]; node; node = conversation.nodes[node.parent]) nodes.unshift(node);
  return nodes;
}

const byTime = (a, b) => a.at - b.at || (a.id < b.id ? -1 : 1);

/** The messages that have the same parent, oldest first. */
export function siblings(conversation, parent) {
  return Object.values(conversation.nodes).filter(node => node.parent === parent).sort(byTime);
}

/** The conversation with the path that leads through a message to its newest end. */
export function show(conversation, id) {
  for (let below; (below = siblings(conversation, id).at(-1)); ) id = below.id;
  return { ...conversation, leaf: id, changed: Date.now() };
}

/** A conversation of its own with the messages up to one of another conversation. */
export function branch(conversation, id) {
  const nodes = Object.fromEntries(path(conversation, id).map(node => [node.id, node]));
  return { ...newConversation(conversation.settings), title: titleOf(conversation), nodes, leaf: id };
}

/** The title, or the first words of the conversation. */
export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = siblings(conversation, null)[0];
  const words = (first?.text.trim() || first?.files?.[0]?.name || "").replace(/\s+/g, " ");
  return words.length > 60 ? words.slice(0, 59).trimEnd() + "…" : words || "New conversation";
}

/** Merges two versions of a conversation: all messages of both; title, settings and path of the newer one. */
export function merge(a, b) {
  const [older, newer] = a.changed <= b.changed ? [a, b] : [b, a];
  const nodes = { ...older.nodes };
  for (const [id, node] of Object.entries(newer.nodes)) {
    // an answer in progress is never newer than its end
    if (!nodes[id] || nodes[id].end === "answering" || node.end !== "answering") nodes[id] = node;
  }
  return { ...newer, nodes };
}

/** The conversation after a reload: an answer that was in progress has stopped. */
export function settled(conversation) {
  const nodes = Object.values(conversation.nodes).filter(node => node.end === "answering");
  return nodes.reduce((settled, node) => change(settled, node.id, { end: "stopped" }), conversation);
}

/** A message's text with its attachments before it, each in a fence that its own text cannot close. */
export function spoken(node) {
  const files = (node.files ?? []).map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map(run => run.length));
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}\n\n`;
  });
  return files.join("") + node.text;
}

/** The messages of a request for the answer after a node; reasoning stays out, as templates expect. */
export function messages(conversation, leaf = conversation.leaf) {
  const system = conversation.settings.system?.trim();
  const said = path(conversation, leaf)
    .filter(node => node.role === "user" || node.text)
    .map(node => ({ role: node.role, content: spoken(node) }));
  return system ? [{ role: "system", content: system }, ...said] : said;
}
