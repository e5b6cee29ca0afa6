//! What clients send and get: `OpenAI`'s chat completions and completions.
//!
//! An option that is not done is refused by name, an unknown one, too; one that asks for what is done anyway is not.

use plans::file::significant;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::chat::conversation::{Message, Role};

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The HTTP status.
    pub(super) status: u16,
    /// `invalid_request_error` and such.
    pub(super) kind: &'static str,
    /// The key at fault, if it is one.
    pub(super) param: Option<String>,
    /// A sentence with a remedy.
    pub(super) message: String,
}

impl Refusal {
    /// Of a request that asks for what cannot be.
    pub(super) fn invalid(param: Option<&str>, message: impl Into<String>) -> Self {
        let param = param.map(str::to_owned);
        Self { status: 400, kind: "invalid_request_error", param, message: message.into() }
    }

    /// With another status.
    pub(super) fn of(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, param: None, message: message.into() }
    }

    /// As `OpenAI` writes it.
    pub(super) fn json(&self) -> Value {
        json!({ "error": { "message": self.message, "type": self.kind, "param": self.param, "code": self.status } })
    }
}

/// What is to be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ask {
    /// A conversation, in the model's template.
    Conversation(Vec<Message>),
    /// A text to go on with.
    Text(String),
    /// The same as tokens.
    Tokens(Vec<u32>),
}

/// A request, checked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Request {
    pub(super) ask: Ask,
    pub(super) options: Options,
    /// Whether the answer is told as it comes.
    pub(super) stream: bool,
    /// Whether a stream ends with what was used.
    pub(super) usage: bool,
}

/// How to answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Options {
    pub(super) temperature: Option<f32>,
    pub(super) top_p: Option<f32>,
    pub(super) top_k: Option<usize>,
    pub(super) min_p: Option<f32>,
    pub(super) repeat_penalty: Option<f32>,
    pub(super) seed: Option<u64>,
    pub(super) stop: Vec<String>,
    pub(super) max_tokens: Option<usize>,
}

/// Stop texts, and bytes of each, at most.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 256;

/// Keys that change nothing here whatever they say.
const WITHOUT_EFFECT: [&str; 6] =
    ["user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier"];

/// Keys of what is not done, each with the value that asks for nothing.
fn neutral(key: &str, value: &Value) -> Option<bool> {
    let empty = |value: &Value| {
        value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
    };
    Some(match key {
        "n" | "best_of" => value.as_u64() == Some(1),
        "presence_penalty" | "frequency_penalty" => value.as_f64() == Some(0.0),
        "logit_bias" | "tools" | "functions" | "stop_token_ids" => empty(value),
        "logprobs" | "echo" | "parallel_tool_calls" => value.as_bool() == Some(false),
        "top_logprobs" => value.as_u64() == Some(0),
        "tool_choice" | "function_call" => matches!(value.as_str(), Some("none" | "auto")),
        "response_format" => value.get("type").and_then(Value::as_str) == Some("text"),
        "modalities" => *value == json!(["text"]),
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
    #[serde(default, rename = "include_obfuscation")]
    _include_obfuscation: Option<bool>,
}

/// One message as clients write it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    role: String,
    #[serde(default)]
    content: Option<Content>,
    #[serde(default)]
    reasoning_content: Option<String>,
    #[serde(default, rename = "name")]
    _name: Option<String>,
    #[serde(default, rename = "refusal")]
    _refusal: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Piece>),
}

#[derive(Deserialize)]
struct Piece {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
}

/// The keys of a request, taken one by one: those that are left in the end are unknown.
struct Keys(Map<String, Value>);

impl Keys {
    fn read(body: &[u8]) -> Result<Self, Refusal> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(mut keys)) => {
                keys.retain(|_, value| !value.is_null());
                Ok(Self(keys))
            }
            Ok(_) => Err(Refusal::invalid(None, "the body is no JSON object")),
            Err(error) => Err(Refusal::invalid(None, format!("the body is no JSON: {error}"))),
        }
    }

    fn take<T: for<'de> Deserialize<'de>>(&mut self, key: &str) -> Result<Option<T>, Refusal> {
        let Some(value) = self.0.remove(key) else { return Ok(None) };
        serde_json::from_value(value)
            .map(Some)
            .map_err(|error| Refusal::invalid(Some(key), format!("`{key}`: {error}")))
    }

    /// The model that is meant, which there must be.
    fn model(&mut self, served: &str) -> Result<(), Refusal> {
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

    fn options(&mut self) -> Result<Options, Refusal> {
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
        let max = match self.take::<usize>("max_completion_tokens")? {
            None => self.take("max_tokens")?,
            given => {
                self.0.remove("max_tokens");
                given
            }
        };
        if max == Some(0) {
            return Err(Refusal::invalid(Some("max_tokens"), "`max_tokens` is 0; it is 1 or more"));
        }
        Ok(Options {
            temperature: number("temperature", temperature, 0.0..=2.0)?,
            top_p: number("top_p", top_p, 0.0..=1.0)?,
            top_k: self.take("top_k")?,
            min_p: number("min_p", min_p, 0.0..=1.0)?,
            repeat_penalty: number("repeat_penalty", repeat, 0.1..=10.0)?,
            seed: self.take("seed")?,
            stop,
            max_tokens: max,
        })
    }

    fn stream(&mut self) -> Result<(bool, bool), Refusal> {
        let stream = self.take("stream")?.unwrap_or(false);
        let options: Option<StreamOptions> = self.take("stream_options")?;
        if options.is_some() && !stream {
            return Err(Refusal::invalid(
                Some("stream_options"),
                "`stream_options` without `stream` says nothing; leave it away",
            ));
        }
        Ok((stream, options.is_some_and(|options| options.include_usage)))
    }

    /// Refuses what is left: what is not done, and what nobody knows.
    fn finish(self) -> Result<(), Refusal> {
        for (key, value) in &self.0 {
            if WITHOUT_EFFECT.contains(&key.as_str()) {
                continue;
            }
            return Err(match neutral(key, value) {
                Some(true) => continue,
                Some(false) => {
                    Refusal::invalid(Some(key), format!("`{key}` is not implemented here; leave it away"))
                }
                None => Refusal::invalid(Some(key), format!("`{key}` is unknown; leave it away")),
            });
        }
        Ok(())
    }
}

/// A request to `/v1/chat/completions`.
pub(super) fn chat(body: &[u8], served: &str) -> Result<Request, Refusal> {
    let mut keys = Keys::read(body)?;
    keys.model(served)?;
    let said: Vec<Said> = keys.take("messages")?.ok_or_else(|| {
        Refusal::invalid(Some("messages"), "`messages` is missing: what is to be answered?")
    })?;
    if said.is_empty() {
        return Err(Refusal::invalid(Some("messages"), "`messages` is empty: what is to be answered?"));
    }
    let messages = said.into_iter().map(message).collect::<Result<_, _>>()?;
    let options = keys.options()?;
    let (stream, usage) = keys.stream()?;
    keys.finish()?;
    Ok(Request { ask: Ask::Conversation(messages), options, stream, usage })
}

fn message(said: Said) -> Result<Message, Refusal> {
    let role = match said.role.as_str() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        other => {
            return Err(Refusal::invalid(
                Some("messages"),
                format!("role `{other}` is not implemented here: system, user and assistant are"),
            ));
        }
    };
    let content = match said.content {
        None => String::new(),
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => {
            let text = |part: Piece| match (part.kind.as_str(), part.text) {
                ("text", Some(text)) => Ok(text),
                (kind, _) => Err(Refusal::invalid(
                    Some("messages"),
                    format!("content of type `{kind}` is not implemented here: text is"),
                )),
            };
            parts.into_iter().map(text).collect::<Result<String, _>>()?
        }
    };
    Ok(Message { reasoning: said.reasoning_content, ..Message::new(role, content) })
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TextPrompt {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
}

/// A request to `/v1/completions`.
pub(super) fn completion(body: &[u8], served: &str) -> Result<Request, Refusal> {
    let mut keys = Keys::read(body)?;
    keys.model(served)?;
    let ask = match keys.take("prompt")? {
        None => return Err(Refusal::invalid(Some("prompt"), "`prompt` is missing: what is to go on?")),
        Some(TextPrompt::Text(text)) => Ask::Text(text),
        Some(TextPrompt::Texts(texts)) => match <[String; 1]>::try_from(texts) {
            Ok([text]) => Ask::Text(text),
            Err(texts) => {
                let message = format!("`prompt` has {} texts, and one at a time is answered", texts.len());
                return Err(Refusal::invalid(Some("prompt"), message));
            }
        },
        Some(TextPrompt::Tokens(tokens)) => Ask::Tokens(tokens),
    };
    let options = keys.options()?;
    let (stream, usage) = keys.stream()?;
    keys.finish()?;
    Ok(Request { ask, options, stream, usage })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &Value) -> String {
        let refusal = chat(body.to_string().as_bytes(), "m").expect_err("it is refused");
        assert_eq!(refusal.json()["error"]["message"], refusal.message.as_str());
        refusal.message
    }

    fn asks(extra: Value) -> Value {
        let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "Hi" }] });
        let (Some(body_keys), Value::Object(extra)) = (body.as_object_mut(), extra) else {
            panic!("objects")
        };
        body_keys.extend(extra);
        body
    }

    #[test]
    fn a_request_as_clients_write_it_is_read() {
        let body = json!({
            "model": "m",
            "messages": [
                { "role": "developer", "content": "Be short." },
                { "role": "user", "content": [{ "type": "text", "text": "Hi" }, { "type": "text", "text": "!" }] },
                { "role": "assistant", "content": "Hello", "reasoning_content": "greet" },
                { "role": "user", "content": "Again", "name": "ann" },
            ],
            "temperature": 0.5, "top_p": 1, "top_k": 3, "min_p": 0.0, "seed": 7, "stop": "x", "max_tokens": 5,
            "stream": true, "stream_options": { "include_usage": true },
            "n": 1, "presence_penalty": 0, "logit_bias": {}, "tools": [], "response_format": { "type": "text" },
            "user": "someone", "logprobs": null,
        });
        let request = chat(body.to_string().as_bytes(), "m").unwrap();
        let Ask::Conversation(messages) = &request.ask else { panic!("{request:?}") };
        assert_eq!(messages[1], Message::new(Role::User, "Hi!"));
        assert_eq!(messages[2].reasoning.as_deref(), Some("greet"));
        assert!(request.stream && request.usage);
        let options = request.options;
        assert_eq!((options.temperature, options.seed, options.max_tokens), (Some(0.5), Some(7), Some(5)));
        assert_eq!(options.stop, ["x"]);
    }

    #[test]
    fn what_is_not_done_is_refused_by_name() {
        for (extra, words) in [
            (json!({ "n": 2 }), "`n` is not implemented"),
            (json!({ "tools": [{}] }), "`tools` is not implemented"),
            (json!({ "response_format": { "type": "json_object" } }), "`response_format` is not implemented"),
            (json!({ "logprobs": true }), "`logprobs` is not implemented"),
            (json!({ "presence_penalty": 0.1 }), "`presence_penalty` is not implemented"),
            (json!({ "temprature": 1 }), "`temprature` is unknown"),
            (json!({ "temperature": -1 }), "`temperature` is -1; it is 0 to 2"),
            (json!({ "temperature": "hot" }), "`temperature`: invalid type"),
            (json!({ "max_tokens": 0 }), "`max_tokens` is 0"),
            (json!({ "stop": [""] }), "`stop` has up to 16 texts"),
            (json!({ "stream_options": {} }), "without `stream` says nothing"),
            (json!({ "model": "gpt" }), "there is no model `gpt` here; name `m`"),
            (json!({ "messages": [] }), "`messages` is empty"),
            (json!({ "messages": [{ "role": "tool", "content": "" }] }), "role `tool` is not implemented"),
            (
                json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }] }),
                "content of type `image_url` is not implemented",
            ),
        ] {
            let said = refused(&asks(extra.clone()));
            assert!(said.contains(words), "{extra}: {said}");
        }
        for body in ["", "[]", "{", "{\"messages\":1}"] {
            assert!(chat(body.as_bytes(), "m").is_err(), "{body}");
        }
    }

    #[test]
    fn a_prompt_is_one_text_or_tokens() {
        let read = |prompt: Value| completion(json!({ "prompt": prompt }).to_string().as_bytes(), "m");
        assert_eq!(read(json!("a")).unwrap().ask, Ask::Text("a".to_owned()));
        assert_eq!(read(json!(["a"])).unwrap().ask, Ask::Text("a".to_owned()));
        assert_eq!(read(json!([1, 2])).unwrap().ask, Ask::Tokens(vec![1, 2]));
        assert!(read(json!(["a", "b"])).unwrap_err().message.contains("one at a time"));
        assert!(read(json!([-1])).is_err());
    }
}
