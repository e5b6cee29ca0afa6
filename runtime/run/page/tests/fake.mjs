// A server that speaks as `run --serve` does, and whose answers a test scripts.

import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";

const served = name => readFileSync(new URL(`../../src/serve/${name}`, import.meta.url));
const STAGES = ["attention", "routing", "prediction", "neurons", "reads", "other"];

export class Fake {
  /** Bodies of requests for answers, in order. */
  requests = [];
  /** Paths of all requests. */
  paths = [];
  key = null;
  /** What an answer yields: texts, `{ thought }`, numbers of milliseconds to wait, or an error to break off with. Replaced by tests. */
  script = async function* () {
    yield "An answer.";
  };
  tokens = 0;
  seconds = 0;

  async listen() {
    this.server = createServer((request, response) => this.handle(request, response).catch(error => response.destroy(error)));
    this.server.listen(0, "127.0.0.1");
    await once(this.server, "listening");
    this.address = `http://127.0.0.1:${this.server.address().port}`;
    return this;
  }

  close() {
    this.server.closeAllConnections();
    this.server.close();
  }

  async handle(request, response) {
    const path = new URL(request.url, this.address).pathname;
    this.paths.push(path);
    if (path === "/") {
      response.writeHead(200, { "Content-Type": "text/html; charset=utf-8", "Content-Encoding": "gzip", "Content-Security-Policy": served("page.csp") });
      return response.end(served("page.html.gz"));
    }
    if (this.key && request.headers.authorization !== `Bearer ${this.key}`) return refuse(response, 401, "the key is missing or wrong");
    if (path === "/v1/models") return json(response, 200, { object: "list", data: [{ id: this.model ?? "Qwen3-30B-A3B-Q4_K_M" }] });
    if (path === "/metrics") return response.end(this.metrics());
    if (path !== "/v1/chat/completions") return refuse(response, 404, `there is no ${path}`);
    const chunks = await request.toArray();
    const body = JSON.parse(Buffer.concat(chunks));
    this.requests.push(body);
    await this.answer(body, response);
  }

  async answer(body, response) {
    const send = event => response.write(`data: ${JSON.stringify(event)}\n\n`);
    const choice = (delta, finish_reason = null) => send({ choices: [{ index: 0, delta, finish_reason }], object: "chat.completion.chunk" });
    let tokens = 0;
    let finish = "stop";
    for await (const piece of this.script(body)) {
      if (response.destroyed) return;
      if (piece.status) return refuse(response, piece.status, piece.message);
      if (typeof piece === "number") {
        await sleep(piece);
        continue;
      }
      if (!response.headersSent) {
        response.writeHead(200, { "Content-Type": "text/event-stream" });
        choice({ role: "assistant", content: "" });
      }
      if (piece.error) return send({ error: { message: piece.error } });
      if (piece.hangUp) return response.destroy();
      if (piece.finish) finish = piece.finish;
      else if (piece.thought) choice({ reasoning_content: piece.thought });
      else if (piece !== "") choice({ content: piece });
      tokens += 1;
      this.tokens += 1;
      this.seconds += 0.04;
    }
    choice({}, finish);
    send({ choices: [], usage: { prompt_tokens: 120, completion_tokens: tokens, prompt_tokens_details: { cached_tokens: 80 } } });
    response.end("data: [DONE]\n\n");
  }

  metrics() {
    const values = {
      decoded_tokens_total: this.tokens,
      decode_seconds_total: this.seconds,
      neurons_requested_total: 1000 * this.tokens,
      neurons_missing_total: 31 * this.tokens,
      memory_peak_bytes: 2.41 * 2 ** 30,
      memory_limit_bytes: 2600 * 2 ** 20,
      planned_tokens_per_second: 24.6,
      planned_hit_fraction: 0.964,
      context_tokens: 4096,
      queue_requests: 0,
    };
    const shares = [0.2, 0.04, 0.06, 0.42, 0.24, 0.04];
    const stages = STAGES.map((name, index) => `flashplan_stage_seconds_total{stage="${name}"} ${this.seconds * shares[index]}`);
    return [...Object.entries(values).map(([name, value]) => `# HELP flashplan_${name} .\nflashplan_${name} ${value}`), ...stages].join("\n");
  }
}

function json(response, status, value) {
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(JSON.stringify(value));
}

const refuse = (response, status, message) => json(response, status, { error: { message, type: "invalid_request_error", param: null, code: status } });
