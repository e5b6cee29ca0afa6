// Parts of the page that need no browser.

import assert from "node:assert/strict";
import { test } from "node:test";
import { events } from "../src/events.js";
import { checked, options } from "../src/sampling.js";
import { parse } from "../src/tex.js";
import { fromJson, toJson, toMarkdown } from "../src/transfer.js";
import * as tree from "../src/tree.js";

/** A conversation of `words`, said in turn, with its nodes. */
function conversation(...words) {
  let said = tree.newConversation({});
  const nodes = [];
  for (const [index, text] of words.entries()) {
    const node = index % 2 ? { ...tree.answerNode(said.leaf), text, end: "done" } : tree.userNode(said.leaf, text);
    said = tree.add(said, { ...node, at: index });
    nodes.push(node.id);
  }
  return [said, nodes];
}

const texts = said => tree.path(said).map(({ text }) => text);

test("an edited message is a branch, and each branch is shown to its newest end", () => {
  const [said, [first, answer]] = conversation("a", "b", "c", "d");
  const edited = tree.add(said, { ...tree.userNode(answer, "e"), at: 9 });
  assert.deepEqual(texts(edited), ["a", "b", "e"]);
  assert.deepEqual(texts(said), ["a", "b", "c", "d"]);
  const [old] = tree.siblings(edited, answer);
  assert.deepEqual(texts(tree.show(edited, old.id)), ["a", "b", "c", "d"]);
  assert.deepEqual(texts(tree.branch(edited, answer)), ["a", "b"]);
  assert.notEqual(tree.branch(edited, answer).id, edited.id);
  assert.equal(tree.path(edited, first).length, 1);
});

test("no message is lost when two versions of a conversation become one", () => {
  const [said, [, answer]] = conversation("a", "b");
  const here = { ...tree.add(said, tree.userNode(answer, "here")), changed: 1 };
  const there = { ...tree.add(said, tree.userNode(answer, "there")), changed: 2, title: "newer" };
  for (const merged of [tree.merge(here, there), tree.merge(there, here)]) {
    assert.deepEqual(tree.siblings(merged, answer).map(({ text }) => text).sort(), ["here", "there"]);
    assert.equal(merged.title, "newer");
    assert.equal(merged.leaf, there.leaf);
  }
});

test("an answer in progress is never newer than its end", () => {
  const [said, [, answer]] = conversation("a", "b");
  const running = { ...tree.change(said, answer, { end: "answering", text: "" }), changed: said.changed + 1 };
  assert.equal(tree.merge(said, running).nodes[answer].text, "b");
  assert.equal(tree.settled(running).nodes[answer].end, "stopped");
});

test("a request has the system prompt, the path, and attachments in fences that their text cannot close", () => {
  const [said, [, , last]] = conversation("a", "b", "c");
  const file = { name: "a.md", text: "```\nx\n```" };
  const messages = tree.messages({ ...tree.change(said, last, { files: [file] }), settings: { system: " Be brief. " } });
  assert.deepEqual(messages.map(({ role }) => role), ["system", "user", "assistant", "user"]);
  assert.equal(messages[0].content, "Be brief.");
  assert.equal(messages[3].content, "a.md:\n````\n```\nx\n```\n````\n\nc");
});

test("settings are known numbers, and nothing else", () => {
  assert.deepEqual(options({ temperature: 0, top_k: undefined, system: "x", seed: NaN }), { temperature: 0 });
  assert.deepEqual(checked({ temperature: "1", system: 3, model: "x" }), {});
});

test("exported conversations come back as they were", () => {
  const [said, [, answer]] = conversation("a", "b");
  const whole = tree.change(said, answer, { figures: { speed: 3 }, thought: "hm" });
  assert.deepEqual(fromJson(toJson([whole])), [whole]);
  assert.match(toMarkdown(whole), /^# a\n\n## You\n\na\n\n## Model\n\nb\n$/);
});

test("a file that is none of ours is refused by name, and nothing else of it is taken", () => {
  const [said, [first, answer]] = conversation("a", "b");
  const refused = (change, message) => {
    const file = JSON.parse(toJson([said]));
    change(file, file.conversations[0]);
    assert.throws(() => fromJson(JSON.stringify(file)), message);
  };
  assert.throws(() => fromJson("{"), /no JSON/);
  assert.throws(() => fromJson("[]"), /not exported/);
  assert.throws(() => fromJson("null"), /not exported/);
  refused(file => (file.version = 9), /version 9/);
  refused((_, said) => (said.nodes[answer].text = { toString: 1 }), /a message is no text/);
  refused((_, said) => (said.nodes[first].parent = answer), /circle/);
  refused((_, said) => (said.nodes[answer].parent = "0".repeat(24)), /missing/);
  refused((_, said) => (said.nodes.constructor = said.nodes[first]), /no name of a message/);
  refused((_, said) => (said.nodes[first].role = "system"), /neither/);
  const file = JSON.parse(toJson([said]));
  Object.assign(file.conversations[0].nodes[first], { more: 1, __proto__: { x: 1 } });
  assert.deepEqual(fromJson(JSON.stringify(file)), [said]);
});

/** Events of bytes that come in pieces of a length. */
async function eventsOf(text, length) {
  const bytes = new TextEncoder().encode(text);
  const body = new ReadableStream({
    start(controller) {
      for (let at = 0; at < bytes.length; at += length) controller.enqueue(bytes.slice(at, at + length));
      controller.close();
    },
  });
  return Array.fromAsync ? Array.fromAsync(events(body)) : collected(events(body));
}

async function collected(all) {
  const list = [];
  for await (const one of all) list.push(one);
  return list;
}

test("events are read however their bytes are split", async () => {
  const text = ": alive\n\ndata: {\"a\":\"é🙂\"}\n\nevent: x\ndata: one\ndata:two\n\ndata: [DONE]\n\ndata: unfinished";
  for (const length of [1, 2, 3, 7, 1000]) assert.deepEqual(await eventsOf(text, length), ['{"a":"é🙂"}', "one\ntwo", "[DONE]"]);
});

/** A tree of MathML on one line. */
const flat = node => (typeof node === "string" ? node : `${node.tag}(${node.children.map(flat).join(" ")})`);

test("TeX becomes MathML", () => {
  const made = tex => flat(parse(tex));
  assert.equal(made("\\frac12"), "mfrac(mn(1) mn(2))");
  assert.equal(made("x_1^2"), "msubsup(mi(x) mn(1) mn(2))");
  assert.equal(made("\\sum_{i=1}^n"), "munderover(mo(∑) mrow(mi(i) mo(=) mn(1)) mi(n))");
  assert.equal(made("\\sqrt[3]{\\alpha}"), "mroot(mi(α) mn(3))");
  assert.equal(made("f'"), "msup(mi(f) mo(′))");
  assert.equal(made("\\mathbb{R}^n"), "msup(mi(ℝ) mi(n))");
  assert.equal(made("\\text{if } x"), "mrow(mtext(if\u00a0) mi(x))");
  assert.equal(made("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"), "mrow(mo(() mtable(mtr(mtd(mn(1)) mtd(mn(2))) mtr(mtd(mn(3)) mtd(mn(4)))) mo()))");
  assert.equal(made("\\left\\langle x \\right."), "mrow(mo(⟨) mi(x) mrow())");
});

test("no TeX makes an element that is not MathML, or takes the parser down", () => {
  const tags = new Set("mrow mi mn mo mtext mspace mfrac msup msub msubsup munder mover munderover msqrt mroot mtable mtr mtd".split(" "));
  const check = node => typeof node === "string" || (assert.ok(tags.has(node.tag), node.tag), node.children.forEach(check));
  const pieces = ["\\constructor", "\\__proto__", "\\left\\constructor", "\\begin{constructor}", "\\begin{script}", "\\end{x}", "{", "}", "\\", "^", "_", "&", "\\\\", "\\frac", "\\sqrt[", "\\text{<img>}", "1", "x", "'"];
  for (const a of pieces) for (const b of pieces) for (const c of pieces) check(parse(a + b + c));
  assert.equal(parse("{".repeat(5000)), null);
  assert.equal(parse("\\frac".repeat(5000)), null);
});
