// Conversations as files: JSON to move them between browsers, Markdown to read them elsewhere.

import { checked } from "./sampling.js";
import { path, spoken, titleOf } from "./tree.js";

const FORMAT = "flashplan conversations";
const VERSION = 1;

export const toJson = conversations => JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1);

/**
 * The conversations of a file: known fields only, each checked for its type.
 *
 * Throws an error whose message names the fault.
 */
export function fromJson(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This is no JSON file.");
  }
  if (file?.format !== FORMAT) throw new Error("This file was not exported by flashplan's page.");
  if (file.version !== VERSION) throw new Error(`This file has version ${file.version}; this page reads version ${VERSION}.`);
  if (!Array.isArray(file.conversations)) throw new Error("This file has no conversations.");
  return file.conversations.map(conversation);
}

const wrong = what => new Error(`This file is damaged: ${what}.`);

function string(value, what) {
  if (typeof value !== "string") throw wrong(`${what} is no text`);
  return value;
}

function number(value, what) {
  if (!Number.isFinite(value)) throw wrong(`${what} is no number`);
  return value;
}

/** Names are hexadecimal, so that none collides with a property of objects. */
function id(value, what) {
  if (!/^[0-9a-f]{24}$/.test(value)) throw wrong(`${what} is no name of a message`);
  return value;
}

function conversation(given) {
  const entries = Object.entries(given?.nodes ?? {}).map(([key, given]) => [id(key, "a key"), node(key, given)]);
  const nodes = Object.fromEntries(entries);
  for (const { id, parent } of Object.values(nodes)) {
    if (parent !== null && !nodes[parent]) throw wrong("a message answers one that is missing");
    const seen = new Set([id]);
    for (let above = parent; above !== null; above = nodes[above]?.parent ?? null) {
      if (seen.has(above)) throw wrong("messages answer each other in a circle");
      seen.add(above);
    }
  }
  const leaf = given.leaf === null ? null : id(given.leaf, "the last message");
  if (leaf !== null && !nodes[leaf]) throw wrong("its last message is missing");
  return {
    id: id(given.id, "a conversation's name"),
    title: string(given.title, "a title"),
    created: number(given.created, "a date"),
    changed: number(given.changed, "a date"),
    settings: checked(given.settings),
    nodes,
    leaf,
  };
}

const ENDS = ["done", "stopped", "cut", "failed"];
const FIGURES = ["prompt", "cached", "tokens", "first", "seconds", "speed"];

function node(key, given) {
  const base = {
    id: key,
    parent: given?.parent === null ? null : id(given?.parent, "a parent"),
    role: given.role,
    at: number(given.at, "a date"),
    text: string(given.text, "a message"),
  };
  if (given.role === "user") {
    const files = (Array.isArray(given.files) ? given.files : []).map(file => ({ name: string(file?.name, "a file's name"), text: string(file?.text, "a file") }));
    return { ...base, files };
  }
  if (given.role !== "assistant") throw wrong("a message is neither a user's nor an assistant's");
  const figures = FIGURES.filter(key => Number.isFinite(given.figures?.[key])).map(key => [key, given.figures[key]]);
  return {
    ...base,
    thought: string(given.thought ?? "", "reasoning"),
    end: ENDS.includes(given.end) ? given.end : "stopped",
    ...(typeof given.error === "string" && { error: given.error }),
    ...(figures.length && { figures: Object.fromEntries(figures) }),
  };
}

/** The open path as Markdown. */
export function toMarkdown(conversation) {
  const system = conversation.settings.system?.trim();
  const parts = path(conversation).map(node => `## ${node.role === "user" ? "You" : "Model"}\n\n${spoken(node).trim()}`);
  return [`# ${titleOf(conversation)}`, ...(system ? [`> ${system.replaceAll("\n", "\n> ")}`] : []), ...parts].join("\n\n") + "\n";
}

/** Lets the browser save a text as a file. */
export function download(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** A title as a file's name. */
export const fileName = title => title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation";
