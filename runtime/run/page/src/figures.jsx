// Speed and memory beside the plan, for the last answer of the conversation that is shown.

import { useEffect } from "preact/hooks";
import { TRACE_MAX } from "./answers.js";
import { IconButton } from "./buttons.jsx";
import { metrics } from "./server.js";
import { get, set } from "./store.js";
import { path } from "./tree.js";

/** Milliseconds between two looks at the server's metrics. */
const POLL_MS = 2000;

const MIB = 2 ** 20;
const size = bytes => (bytes < 1024 * MIB ? `${(bytes / MIB).toFixed(1)} MiB` : `${(bytes / MIB / 1024).toFixed(2)} GiB`);
const tokens = count => `${count} token${count === 1 ? "" : "s"}`;
const percent = fraction => `${(100 * fraction).toFixed(1)} %`;
const duration = seconds => (seconds < 1 ? `${(1000 * seconds).toFixed(0)} ms` : `${seconds.toFixed(1)} s`);

export function Figures({ state, conversation, onClose }) {
  useEffect(() => {
    // without the key each request would be refused
    const look = () => !document.hidden && get().model && metrics().then(metrics => set({ metrics }), () => {});
    look();
    const timer = setInterval(look, POLL_MS);
    return () => clearInterval(timer);
  }, []);

  const answer = path(conversation).findLast(node => node.role === "assistant");
  const answering = state.answering[conversation.id];
  const figures = answering?.figures ?? answer?.figures;
  const trace = state.traces[answer?.id];
  const m = state.metrics;
  return (
    <aside class="figures" aria-label="Speed and memory">
      <div class="figures-head">
        <h2>Speed and memory</h2>
        <IconButton icon="close" name="Hide speed and memory" keys="Ctrl ." onClick={onClose} />
      </div>
      {m && (
        <>
          <Speed figures={figures} planned={m.planned_tokens_per_second} isLive={Boolean(answering)} />
          {trace?.times?.length > 1 && <Strip times={trace.times} planned={1000 / m.planned_tokens_per_second} />}
          <Tokens figures={figures} context={m.context_tokens} />
          <Meter name="Memory" value={m.memory_peak_bytes} limit={m.memory_limit_bytes} show={size} note="peak so far, of the plan's limit" />
          {trace?.hits !== undefined && <Hits measured={trace.hits} planned={m.planned_hit_fraction} />}
          {trace?.stages && <Stages stages={trace.stages} />}
          {m.queue_requests > 0 && <p class="waits">{m.queue_requests} waiting for an answer</p>}
        </>
      )}
    </aside>
  );
}

function Speed({ figures, planned, isLive }) {
  const speed = figures?.speed;
  return (
    <section>
      <h3>{speed === undefined ? "Planned speed" : isLive ? "This answer, so far" : "This answer"}</h3>
      <p class="big">
        {(speed ?? planned).toFixed(1)} <small>tok/s</small>
      </p>
      {speed !== undefined && <p class="beside">planned {planned.toFixed(1)} tok/s</p>}
    </section>
  );
}

/** A bar for each piece of the answer: how long it took, with a line for the planned time of a token. */
function Strip({ times, planned }) {
  const sorted = [...times].sort((a, b) => a - b);
  // a single slow piece does not flatten all others
  const top = Math.max(2 * planned, 1.2 * sorted[Math.floor(0.95 * (sorted.length - 1))]);
  const median = sorted[Math.floor(sorted.length / 2)];
  const y = time => 40 * (1 - Math.min(1, time / top));
  const path = times.map((time, index) => `M${TRACE_MAX - times.length + index + 0.5} 40V${y(time).toFixed(1)}`).join("");
  return (
    <section>
      <h3>Time of each token</h3>
      <svg class="strip" viewBox={`0 0 ${TRACE_MAX} 40`} preserveAspectRatio="none" role="img" aria-label={`Time of each token: median ${median.toFixed(0)} milliseconds, planned ${planned.toFixed(0)}`}>
        <path class="times" d={path} />
        <path class="planned" d={`M0 ${y(planned).toFixed(1)}H${TRACE_MAX}`} />
      </svg>
      <p class="beside">
        median {median.toFixed(median < 10 ? 1 : 0)} ms <span class="key">planned {planned.toFixed(planned < 10 ? 1 : 0)} ms</span>
      </p>
    </section>
  );
}

function Tokens({ figures, context }) {
  if (!figures) return null;
  // the last token of an answer is never read, and takes no room
  const used = Math.min((figures.prompt ?? 0) + figures.tokens, context);
  return (
    <section>
      <dl>
        {figures.first !== undefined && (
          <>
            <dt>First token after</dt>
            <dd>{duration(figures.first)}</dd>
          </>
        )}
        <dt>Answer</dt>
        <dd>{tokens(figures.tokens)}</dd>
        {figures.prompt !== undefined && (
          <>
            <dt>Prompt</dt>
            <dd>{tokens(figures.prompt)}</dd>
            <dt>Cached</dt>
            <dd>{tokens(figures.cached ?? 0)}</dd>
          </>
        )}
      </dl>
      {context > 0 && figures.prompt !== undefined && <Meter name="Context, in tokens" value={used} limit={context} show={String} />}
    </section>
  );
}

function Meter({ name, value, limit, show, note }) {
  const text = `${show(value)} of ${show(limit)}`;
  return (
    <section>
      <h3>{name}</h3>
      <p class="beside">
        <strong>{show(value)}</strong> of {show(limit)}
      </p>
      <div class="meter" role="meter" aria-label={name} aria-valuemin={0} aria-valuemax={limit} aria-valuenow={value} aria-valuetext={text}>
        <div style={{ width: `${Math.min(100, (100 * value) / limit)}%` }} />
      </div>
      {note && <p class="beside">{note}</p>}
    </section>
  );
}

const Hits = ({ measured, planned }) => (
  <section>
    <h3>Cache hit rate</h3>
    <p class="beside">
      <strong>{percent(measured)}</strong> planned {percent(planned)}
    </p>
  </section>
);

/** Where a token's time went, as the server counted it. */
function Stages({ stages }) {
  const sum = stages.reduce((sum, [, time]) => sum + time, 0);
  return (
    <section>
      <h3>Where a token's time goes</h3>
      <div class="stack" aria-hidden="true">
        {stages.map(([name, time], index) => (
          <div key={name} class={`hue-${index % 9}`} style={{ flexGrow: time / sum }} title={name} />
        ))}
      </div>
      <table>
        <tbody>
          {stages.map(([name, time], index) => (
            <tr key={name}>
              <th scope="row">
                <span class={`swatch hue-${index % 9}`} />
                {name.replaceAll("_", " ")}
              </th>
              <td>{time.toFixed(2)} ms</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
