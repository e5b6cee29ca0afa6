//! What is asked, whoever's words it is asked in, and why it may be refused.
//!
//! An option that is not done is refused by name, an unknown one, too; one that asks for what is done anyway is not.

use std::collections::BTreeMap;

use plans::file::significant;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::chat::TOKEN_BYTES_MAX;
use super::super::chat::conversation::Message;
use super::tools::Tools;

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The HTTP status.
    pub(super) status: u16,
    /// `invalid_request_error` and such.
    pub(super) kind: &'static str,
    /// The key at fault, if it is one.
    pub(super) param: Option<String>,
    /// Whether that key is the client's own: no log has it.
    pub(super) is_unknown: bool,
    /// A sentence with a remedy.
    pub(super) message: String,
}

impl Refusal {
    /// Of a request that asks for what cannot be.
    pub(super) fn invalid(param: Option<&str>, message: impl Into<String>) -> Self {
        let param = param.map(|param| cut(param.to_owned()));
        Self { param, ..Self::of(400, "invalid_request_error", message) }
    }

    /// With another status.
    pub(super) fn of(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, param: None, is_unknown: false, message: cut(message.into()) }
    }

    /// Of one whose answer broke off.
    pub(super) fn broken(why: impl Into<String>) -> Self {
        Self::of(500, "server_error", why)
    }

    /// The refusal as `OpenAI` writes it.
    pub(super) fn json(&self) -> Value {
        json!({ "error": { "message": self.message, "type": self.kind, "param": self.param, "code": self.status } })
    }
}

/// Bytes of a refusal's message, at most: it may repeat what a client has sent.
const MESSAGE_BYTES_MAX: usize = 2 << 10;

/// A text that is no longer than that.
fn cut(mut text: String) -> String {
    if text.len() > MESSAGE_BYTES_MAX {
        text.truncate(text.floor_char_boundary(MESSAGE_BYTES_MAX));
        text.push_str("...");
        text.shrink_to_fit();
    }
    text
}

/// The input that is to be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ask {
    /// A conversation, in the model's template.
    Conversation(Vec<Message>),
    /// A text to go on with.
    Text(String),
    /// Tokens to go on with.
    Tokens(Vec<u32>),
    /// Texts that become a vector each, of so many numbers if that was said.
    Embeddings { inputs: Vec<Input>, dimensions: Option<usize> },
}

/// A text that becomes a vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    Text(String),
    Tokens(Vec<u32>),
}

impl Input {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Tokens(tokens) => tokens.is_empty(),
        }
    }
}

/// Keys of an object inside a request, taken one by one: those that are left in the end are refused by name. A key that is null
/// says nothing.
pub(super) struct Fields {
    keys: Map<String, Value>,
    /// The key of the request that it belongs to, and what it is.
    param: &'static str,
    of: String,
}

impl Fields {
    pub(super) fn new(value: Value, param: &'static str, of: impl Into<String>) -> Result<Self, Refusal> {
        let of = of.into();
        let Value::Object(mut keys) = value else {
            return Err(Refusal::invalid(Some(param), format!("`{param}`: {of} is no object")));
        };
        keys.retain(|_, value| !value.is_null());
        Ok(Self { keys, param, of })
    }

    pub(super) fn take<T: for<'de> Deserialize<'de>>(&mut self, key: &str) -> Result<Option<T>, Refusal> {
        let Some(value) = self.keys.remove(key) else { return Ok(None) };
        serde_json::from_value(value).map(Some).map_err(|error| {
            Refusal::invalid(Some(self.param), format!("`{}`: `{key}` of {}: {error}", self.param, self.of))
        })
    }

    /// The value of a key that there must be.
    pub(super) fn must<T: for<'de> Deserialize<'de>>(&mut self, key: &str) -> Result<T, Refusal> {
        let missing =
            || Refusal::invalid(Some(self.param), format!("`{}`: {} has no `{key}`", self.param, self.of));
        let missing = missing();
        self.take(key)?.ok_or(missing)
    }

    /// Leaves away keys that change nothing here whatever they say.
    pub(super) fn without_effect(&mut self, keys: &[&str]) {
        keys.iter().for_each(|&key| drop(self.keys.remove(key)));
    }

    /// Leaves away a key that says nothing when it is empty.
    pub(super) fn empty(&mut self, key: &str) {
        if self.keys.get(key).is_some_and(is_empty) {
            self.keys.remove(key);
        }
    }

    /// Refuses what is left.
    pub(super) fn finish(self) -> Result<(), Refusal> {
        match self.keys.keys().next() {
            None => Ok(()),
            Some(key) => {
                let message = format!("`{key}` of {} is not implemented here; leave it away", self.of);
                Err(Refusal::invalid(Some(self.param), message))
            }
        }
    }
}

/// Whether a value is a list or an object without anything in it.
fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

/// Text of a message's content, in one or in parts of these kinds; other ones are refused by name. What is to be kept is not asked:
/// all is.
pub(super) fn text_of(
    content: Option<Value>,
    param: &'static str,
    kinds: &[&str],
) -> Result<String, Refusal> {
    let part = |part: Value| {
        let mut part = Fields::new(part, param, "a part of the content")?;
        let kind: String = part.must("type")?;
        if !kinds.contains(&&*kind) {
            let message = format!("content of type `{kind}` is not implemented here: text is");
            return Err(Refusal::invalid(Some(param), message));
        }
        let text = part.must("text")?;
        part.without_effect(&["cache_control"]);
        ["annotations", "logprobs"].iter().for_each(|key| part.empty(key));
        part.finish()?;
        Ok(text)
    };
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => {
            parts.into_iter().map(part).collect::<Result<Vec<String>, _>>().map(|all| all.concat())
        }
        Some(_) => Err(Refusal::invalid(
            Some(param),
            format!("`{param}`: the content is neither a text nor a list of parts"),
        )),
    }
}

/// The arguments of a call, which `OpenAI`'s clients write as a text, perhaps an empty one.
pub(super) fn arguments_of(text: &str, param: &str) -> Result<Map<String, Value>, Refusal> {
    let object = serde_json::from_str(if text.is_empty() { "{}" } else { text });
    object.map_err(|_| Refusal::invalid(Some(param), "the `arguments` of a call are no JSON object"))
}

/// A request, checked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AnswerRequest {
    pub(super) ask: Ask,
    pub(super) options: Options,
    /// Tools that the model may call.
    pub(super) tools: Option<Tools>,
    /// Whether the answer is told as it comes.
    pub(super) stream: bool,
    /// Whether a stream ends with what was used.
    pub(super) usage: bool,
    /// Keys of the request that the answer repeats.
    pub(super) repeated: Value,
}

impl AnswerRequest {
    /// Refuses what is far too long for a context of so many tokens, which needs no tokenizer and should wait in no queue.
    pub(super) fn fits(&self, context: usize) -> Result<(), Refusal> {
        let most = context.saturating_mul(TOKEN_BYTES_MAX);
        let refused = |found: String| {
            let message = format!(
                "{found}, and the plan's context has room for {context} tokens with the answer; say it shorter, or plan with a larger --context"
            );
            Err(Refusal::invalid(None, message))
        };
        let text = match &self.ask {
            Ask::Tokens(tokens) if tokens.len() >= context => {
                return refused(format!("the prompt has {} tokens", tokens.len()));
            }
            Ask::Tokens(_) => 0,
            Ask::Text(text) => text.len(),
            Ask::Conversation(messages) => messages.iter().map(|message| message.content.len()).sum(),
            Ask::Embeddings { inputs, .. } => {
                let length = |input: &Input| match input {
                    Input::Text(text) => text.len(),
                    Input::Tokens(_) => 0, // counted one by one
                };
                inputs.iter().map(length).max().unwrap_or(0)
            }
        };
        if text > most { refused(format!("the text has {text} bytes")) } else { Ok(()) }
    }
}

/// How to answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Options {
    pub(super) temperature: Option<f32>,
    pub(super) top_p: Option<f32>,
    pub(super) top_k: Option<usize>,
    pub(super) min_p: Option<f32>,
    pub(super) repeat_penalty: Option<f32>,
    pub(super) presence_penalty: Option<f32>,
    pub(super) frequency_penalty: Option<f32>,
    pub(super) logit_bias: Vec<(u32, f32)>,
    /// Whether the likelihoods of tokens are told, and those of so many others in each one's place.
    pub(super) likelihoods: Option<usize>,
    /// Answers to the same prompt; 0 is 1.
    pub(super) choices: usize,
    /// The schema of what the answer must be.
    pub(super) schema: Option<Value>,
    pub(super) seed: Option<u64>,
    pub(super) stop: Vec<String>,
    pub(super) max_tokens: Option<usize>,
}

/// Stop texts, and bytes of each, at most.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 256;
/// Answers to one prompt, and likelihoods told beside each token's, at most.
const CHOICES_MAX: usize = 16;
const LIKELIHOODS_MAX: usize = 20;

/// Keys that change nothing here whatever they say.
const WITHOUT_EFFECT: [&str; 5] =
    ["user", "metadata", "prompt_cache_key", "safety_identifier", "cache_control"];

/// Keys of what is not done, each with the value that asks for nothing.
fn neutral(key: &str, value: &Value) -> Option<bool> {
    Some(match key {
        // nothing is stored, and all wait in the same queue
        "store" => value.as_bool() == Some(false),
        "service_tier" => matches!(value.as_str(), Some("auto" | "default" | "standard_only")),
        "best_of" => value.as_u64() == Some(1),
        "tools" | "functions" | "stop_token_ids" => is_empty(value),
        "echo" => value.as_bool() == Some(false),
        "top_logprobs" => value.as_u64() == Some(0),
        "tool_choice" | "function_call" => matches!(value.as_str(), Some("none" | "auto")),
        "response_format" => value.get("type").and_then(Value::as_str) == Some("text"),
        "modalities" => *value == json!(["text"]),
        "truncation" => value.as_str() == Some("disabled"),
        "background" => value.as_bool() == Some(false),
        "include" => is_empty(value),
        "previous_response_id" | "conversation" | "prompt" | "reasoning" | "max_tool_calls" => false,
        "suffix" | "audio" | "prediction" | "reasoning_effort" | "verbosity" | "web_search_options" => false,
        _ => return None,
    })
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
    #[serde(default)]
    include_obfuscation: bool,
}

/// The keys of a request, taken one by one: those that are left in the end are unknown.
pub(super) struct Keys(Map<String, Value>);

impl Keys {
    pub(super) fn read(body: &[u8]) -> Result<Self, Refusal> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(mut keys)) => {
                keys.retain(|_, value| !value.is_null());
                Ok(Self(keys))
            }
            Ok(_) => Err(Refusal::invalid(None, "the body is no JSON object")),
            Err(error) => Err(Refusal::invalid(None, format!("the body is no JSON: {error}"))),
        }
    }

    pub(super) fn take<T: for<'de> Deserialize<'de>>(&mut self, key: &str) -> Result<Option<T>, Refusal> {
        let Some(value) = self.0.remove(key) else { return Ok(None) };
        serde_json::from_value(value)
            .map(Some)
            .map_err(|error| Refusal::invalid(Some(key), format!("`{key}`: {error}")))
    }

    /// Value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// Takes another interface's name of a key for the one that is meant, which it has not.
    pub(super) fn rename(&mut self, theirs: &str, ours: &str) -> Result<(), Refusal> {
        if self.0.contains_key(ours) {
            return Err(Refusal::invalid(Some(ours), format!("`{ours}` is unknown; leave it away")));
        }
        let value = self.0.remove(theirs);
        self.0.extend(value.map(|value| (ours.to_owned(), value)));
        Ok(())
    }

    /// The model that is meant, which there must be.
    pub(super) fn model(&mut self, served: &str) -> Result<(), Refusal> {
        match self.take::<String>("model")? {
            Some(model) if model != served => {
                let message = format!("there is no model `{model}` here; name `{served}`, or none");
                Err(Refusal {
                    param: Some("model".to_owned()),
                    ..Refusal::of(404, "not_found_error", message)
                })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn options(&mut self) -> Result<Options, Refusal> {
        let number = |key: &str, value: Option<f64>, range: std::ops::RangeInclusive<f64>| match value {
            Some(value) if !range.contains(&value) => Err(Refusal::invalid(
                Some(key),
                format!("`{key}` is {value}; it is {} to {}", range.start(), range.end()),
            )),
            value => Ok(value.map(|value| significant(value) as f32)),
        };
        let temperature = self.take("temperature")?;
        let (top_p, min_p) = (self.take("top_p")?, self.take("min_p")?);
        let repeat: Option<f64> = match self.take("repeat_penalty")? {
            None => self.take("repetition_penalty")?,
            given => given,
        };
        let stop = match self.take::<OneOrMany>("stop")? {
            None => Vec::new(),
            Some(OneOrMany::One(text)) => vec![text],
            Some(OneOrMany::Many(texts)) => texts,
        };
        if stop.len() > STOPS_MAX || stop.iter().any(|text| text.is_empty() || text.len() > STOP_BYTES_MAX) {
            return Err(Refusal::invalid(
                Some("stop"),
                format!("`stop` has up to {STOPS_MAX} texts of 1 to {STOP_BYTES_MAX} bytes"),
            ));
        }
        let (max, older): (Option<usize>, Option<usize>) =
            (self.take("max_completion_tokens")?, self.take("max_tokens")?);
        if max.is_some() && older.is_some() && max != older {
            let message = "`max_tokens` and `max_completion_tokens` differ; leave `max_tokens` away";
            return Err(Refusal::invalid(Some("max_tokens"), message));
        }
        let max = max.or(older);
        if max == Some(0) {
            return Err(Refusal::invalid(Some("max_tokens"), "`max_tokens` is 0; it is 1 or more"));
        }
        let (presence, frequency) = (self.take("presence_penalty")?, self.take("frequency_penalty")?);
        let choices = self.take("n")?.unwrap_or(1);
        if !(1..=CHOICES_MAX).contains(&choices) {
            return Err(Refusal::invalid(Some("n"), format!("`n` is {choices}; it is 1 to {CHOICES_MAX}")));
        }
        Ok(Options {
            temperature: number("temperature", temperature, 0.0..=2.0)?,
            top_p: number("top_p", top_p, 0.0..=1.0)?,
            top_k: self.take("top_k")?,
            min_p: number("min_p", min_p, 0.0..=1.0)?,
            repeat_penalty: number("repeat_penalty", repeat, 0.1..=10.0)?,
            presence_penalty: number("presence_penalty", presence, -2.0..=2.0)?,
            frequency_penalty: number("frequency_penalty", frequency, -2.0..=2.0)?,
            logit_bias: self.logit_bias()?,
            likelihoods: None,
            choices,
            schema: None,
            seed: self.take("seed")?,
            stop,
            max_tokens: max,
        })
    }

    /// Tokens by number, each with what is added to its logit.
    fn logit_bias(&mut self) -> Result<Vec<(u32, f32)>, Refusal> {
        let biases: BTreeMap<String, f64> = self.take("logit_bias")?.unwrap_or_default();
        let wrong = |message: String| Refusal::invalid(Some("logit_bias"), message);
        let bias = |(token, bias): (String, f64)| {
            let number = token.parse().map_err(|_| {
                wrong(format!(
                    "`logit_bias` has `{token}`, which is no token's number; `run --tokenize` tells them"
                ))
            })?;
            if !(-100.0..=100.0).contains(&bias) {
                return Err(wrong(format!("`logit_bias` of {token} is {bias}; it is -100 to 100")));
            }
            Ok((number, bias as f32))
        };
        biases.into_iter().map(bias).collect()
    }

    /// How many likelihoods are told beside a token's own.
    pub(super) fn likelihoods(&mut self, key: &str) -> Result<Option<usize>, Refusal> {
        match self.take::<usize>(key)? {
            Some(top) if top > LIKELIHOODS_MAX => {
                Err(Refusal::invalid(Some(key), format!("`{key}` is {top}; it is 0 to {LIKELIHOODS_MAX}")))
            }
            top => Ok(top),
        }
    }

    pub(super) fn stream(&mut self) -> Result<(bool, bool), Refusal> {
        let stream = self.take("stream")?.unwrap_or(false);
        let options: Option<StreamOptions> = self.take("stream_options")?;
        if options.is_some() && !stream {
            return Err(Refusal::invalid(
                Some("stream_options"),
                "`stream_options` without `stream` says nothing; leave it away",
            ));
        }
        if options.as_ref().is_some_and(|options| options.include_obfuscation) {
            let message = "`include_obfuscation` of `stream_options` is not implemented here; leave it away";
            return Err(Refusal::invalid(Some("stream_options"), message));
        }
        Ok((stream, options.is_some_and(|options| options.include_usage)))
    }

    /// Refuses what is left: what is not done, and what nobody knows.
    pub(super) fn finish(self) -> Result<(), Refusal> {
        for (key, value) in &self.0 {
            if WITHOUT_EFFECT.contains(&key.as_str()) {
                continue;
            }
            return Err(match neutral(key, value) {
                Some(true) => continue,
                Some(false) => {
                    Refusal::invalid(Some(key), format!("`{key}` is not implemented here; leave it away"))
                }
                None => Refusal {
                    is_unknown: true,
                    ..Refusal::invalid(Some(key), format!("`{key}` is unknown; leave it away"))
                },
            });
        }
        Ok(())
    }
}
