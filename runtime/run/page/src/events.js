// Server-sent events of a response's body.

/** The data of each event, in order. Comments, which keep the connection alive, are left out. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const whole = (held + value).split(/\r?\n\r?\n/);
      held = whole.pop();
      for (const event of whole) {
        const data = event.split(/\r?\n/).filter(line => line.startsWith("data:"));
        if (data.length) yield data.map(line => line.slice(5).replace(/^ /, "")).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
