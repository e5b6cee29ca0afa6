// Settings of a conversation: system prompt and sampling. The server chooses where a field is empty.

export const FIELDS = [
  { key: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, hint: "0 takes the likeliest token" },
  { key: "top_p", label: "Top P", min: 0, max: 1, step: 0.01, hint: "keeps the likeliest tokens up to this sum of probabilities" },
  { key: "top_k", label: "Top K", min: 0, step: 1, hint: "keeps this many tokens; 0 keeps all" },
  { key: "min_p", label: "Min P", min: 0, max: 1, step: 0.01, hint: "drops tokens below this share of the best one" },
  { key: "repeat_penalty", label: "Repeat penalty", min: 0.1, max: 10, step: 0.05, hint: "above 1 avoids recent tokens" },
  { key: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, hint: "above 0 avoids tokens of the answer" },
  { key: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, hint: "the same, for each time they occur" },
  { key: "seed", label: "Seed", min: 0, step: 1, hint: "repeats an answer to the same prompt" },
  { key: "max_tokens", label: "Max tokens", min: 1, step: 1, hint: "longest answer, in tokens" },
];

/** The settings' part of a request. */
export function options(settings) {
  const given = FIELDS.filter(({ key }) => Number.isFinite(settings[key])).map(({ key }) => [key, settings[key]]);
  return Object.fromEntries(given);
}

/** Settings from elsewhere: known fields with values of the right type, and nothing else. */
export function checked(settings) {
  const given = options(settings ?? {});
  return typeof settings?.system === "string" ? { system: settings.system, ...given } : given;
}
