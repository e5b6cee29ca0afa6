// The server's interface: OpenAI's chat completions, the model's name, and Prometheus' metrics.

import { events } from "./events.js";

/** The server's refusal in its own words, or a failure to reach it. */
export class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const KEY = "flashplan.key";
let key = sessionStorage.getItem(KEY) ?? "";

/** The key of `--api-key-file`; the browser forgets it with the tab. */
export function useKey(given) {
  key = given;
  sessionStorage.setItem(KEY, key);
}

async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The server does not answer. Is `run --serve` still running?");
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => null);
  throw new Refusal(said?.error?.message ?? `The server answered with status ${response.status}.`, response.status);
}

export async function modelName() {
  const models = await (await ask("v1/models")).json();
  return models.data[0].id;
}

/** Metrics by name, without their common prefix; seconds by stage are in `stages`. */
export async function metrics() {
  const text = await (await ask("metrics")).text();
  const all = { stages: {} };
  for (const line of text.split("\n")) {
    const [, name, stage, value] = /^flashplan_(\w+?)(?:\{stage="([\w-]+)"\})? (\S+)$/.exec(line) ?? [];
    if (stage) all.stages[stage] = Number(value);
    else if (name) all[name] = Number(value);
  }
  return all;
}

/**
 * Asks for an answer. The promise resolves when the server has begun it; the value yields its pieces:
 * `{ text }`, `{ thought }`, `{ finish }` with OpenAI's reason, and at the end `{ usage }`.
 */
export async function complete(messages, options, signal) {
  const body = JSON.stringify({ messages, ...options, stream: true, stream_options: { include_usage: true } });
  const response = await ask("v1/chat/completions", { method: "POST", headers: { "Content-Type": "application/json" }, body, signal });
  return pieces(response.body);
}

async function* pieces(body) {
  const broken = new Refusal("The connection to the server broke off.");
  try {
    for await (const data of events(body)) {
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Refusal(event.error.message);
      const choice = event.choices[0];
      if (choice?.delta.reasoning_content) yield { thought: choice.delta.reasoning_content };
      if (choice?.delta.content) yield { text: choice.delta.content };
      if (choice?.finish_reason) yield { finish: choice.finish_reason };
      if (event.usage) yield { usage: event.usage };
    }
  } catch (error) {
    throw error instanceof Refusal || error.name === "AbortError" ? error : broken;
  }
  throw broken;
}
