//! A request from any interface, and the reasons to refuse one.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::chat::TOKEN_BYTES_MAX;
use super::super::chat::conversation::Message;
use super::super::steering::Steering;
use super::keys::{Fields, Notes};
use super::questions::Question;
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
    /// The reason as a word for programs.
    pub(super) code: Option<&'static str>,
    /// Whether that key is the client's own: no log has it.
    pub(super) is_unknown: bool,
    /// A sentence with a remedy.
    pub(super) message: String,
}

impl Refusal {
    /// The refusal of an invalid request: status 400.
    pub(super) fn invalid(param: Option<&str>, message: impl Into<String>) -> Self {
        let param = param.map(|param| cut(param.to_owned()));
        Self { param, ..Self::of(400, "invalid_request_error", message) }
    }

    /// A refusal with this status.
    pub(super) fn of(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, param: None, code: None, is_unknown: false, message: cut(message.into()) }
    }

    /// The refusal of a prompt that is longer than the context. Clients recognise it by its first words.
    pub(super) fn too_long(param: &str, tokens: usize, context: usize) -> Self {
        let message = format!(
            "This model's maximum context length is {context} tokens, and the prompt has {tokens}: prompt is too long: {tokens} tokens > {context} maximum; say it shorter, or plan with a larger --context"
        );
        Self { code: Some("context_length_exceeded"), ..Self::invalid(Some(param), message) }
    }

    /// The refusal of a request whose answer broke off: status 500.
    pub(super) fn broken(why: impl Into<String>) -> Self {
        Self::of(500, "server_error", why)
    }

    /// Whether the same request may be answered once others are.
    pub(super) fn is_overload(&self) -> bool {
        self.status == 503
    }

    /// The refusal as `OpenAI` writes it.
    pub(super) fn json(&self) -> Value {
        json!({ "error": { "message": self.message, "type": self.kind, "param": self.param, "code": self.code } })
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
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ask {
    /// A conversation, in the model's template.
    Conversation(Arc<[Message]>),
    /// Texts or tokens, one or more; the model continues each.
    Prompts(Vec<Input>),
    /// A question that needs no answer of the model.
    Question(Question),
    /// Texts that become a vector each, of so many numbers if that was said.
    Embeddings { inputs: Vec<Input>, dimensions: Option<usize> },
}

/// A text, or its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    Text(String),
    Tokens(Vec<u32>),
}

/// Texts or lists of tokens, one or several, as `OpenAI` writes them.
pub(super) fn inputs(value: Value, param: &str, most: usize) -> Result<Vec<Input>, Refusal> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Inputs {
        Text(String),
        Texts(Vec<String>),
        Tokens(Vec<u32>),
        TokenLists(Vec<Vec<u32>>),
    }
    let refused = |message: String| Refusal::invalid(Some(param), message);
    let inputs: Vec<Input> = match serde_json::from_value(value) {
        Ok(Inputs::Text(text)) => vec![Input::Text(text)],
        Ok(Inputs::Texts(texts)) => texts.into_iter().map(Input::Text).collect(),
        Ok(Inputs::Tokens(tokens)) => vec![Input::Tokens(tokens)],
        Ok(Inputs::TokenLists(lists)) => lists.into_iter().map(Input::Tokens).collect(),
        Err(_) => {
            return Err(refused(format!(
                "`{param}` is a text, a list of texts, a list of tokens, or a list of such lists"
            )));
        }
    };
    if !(1..=most).contains(&inputs.len()) {
        return Err(refused(format!("`{param}` has {} texts; it has 1 to {most}", inputs.len())));
    }
    Ok(inputs)
}

impl Input {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Tokens(tokens) => tokens.is_empty(),
        }
    }
}

/// Text of a message's content, in one or in parts of these kinds; other ones are refused by name.
pub(super) fn text_of(
    content: Option<Value>,
    param: &'static str,
    kinds: &[&str],
    notes: &Notes,
) -> Result<String, Refusal> {
    let part = |part: Value| {
        let mut part = Fields::new(part, param, "a part of the content", notes)?;
        let kind: String = part.must("type")?;
        if !kinds.contains(&&*kind) {
            let message = format!("content of type `{kind}` is not implemented here: text is");
            return Err(Refusal::invalid(Some(param), message));
        }
        let text = part.must(if kind == "refusal" { "refusal" } else { "text" })?;
        // answers have them, and clients send those back
        part.without_effect(&["annotations", "logprobs"]);
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
    let object = serde_json::from_str(if text.trim().is_empty() { "{}" } else { text });
    object.map_err(|_| Refusal::invalid(Some(param), "the `arguments` of a call are no JSON object"))
}

/// A request, checked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AnswerRequest {
    pub(super) ask: Ask,
    pub(super) options: Options,
    /// Tools that the model may call.
    pub(super) tools: Option<Tools>,
    /// How much it reasons.
    pub(super) steering: Steering,
    /// The beginning of an answer, which the model continues.
    pub(super) prefill: Option<String>,
    /// Whether the answer is streamed.
    pub(super) stream: bool,
    /// Whether a stream ends with what was used.
    pub(super) usage: bool,
    /// Whether another request may go on with this one.
    pub(super) stores: bool,
    /// Keys of the request that the answer repeats.
    pub(super) repeated: Value,
    /// Keys that the client sent and that change nothing.
    pub(super) ignored: Vec<String>,
}

impl AnswerRequest {
    /// A request with nothing but its input.
    pub(super) fn of(ask: Ask) -> Self {
        Self {
            ask,
            options: Options::default(),
            tools: None,
            steering: Steering::default(),
            prefill: None,
            stream: false,
            usage: false,
            stores: false,
            repeated: Value::Null,
            ignored: Vec::new(),
        }
    }
}

impl AnswerRequest {
    /// Refuses what is far too long for a context of so many tokens, which needs no tokenizer and should wait in no queue.
    pub(super) fn fits(&self, context: usize) -> Result<(), Refusal> {
        let most = context.saturating_mul(TOKEN_BYTES_MAX);
        let refused = |found: String| {
            let message = format!(
                "{found}, and the plan's context has room for {context} tokens with the answer; say it shorter, or plan with a larger --context"
            );
            Err(Refusal { code: Some("context_length_exceeded"), ..Refusal::invalid(None, message) })
        };
        let length = |input: &Input| match input {
            Input::Text(text) => text.len(),
            Input::Tokens(_) => 0, // counted one by one
        };
        let text = match &self.ask {
            Ask::Prompts(inputs) => {
                let tokens = inputs.iter().map(|input| match input {
                    Input::Tokens(tokens) => tokens.len(),
                    Input::Text(_) => 0,
                });
                if let Some(tokens) = tokens.max().filter(|&tokens| tokens >= context) {
                    return Err(Refusal::too_long("prompt", tokens, context));
                }
                inputs.iter().map(length).max().unwrap_or(0)
            }
            Ask::Conversation(messages) => messages.iter().map(|message| message.content.len()).sum(),
            Ask::Embeddings { inputs, .. } => inputs.iter().map(length).max().unwrap_or(0),
            Ask::Question(Question::Prompt(request) | Question::Count(request)) => {
                return request.fits(context);
            }
            Ask::Question(Question::Tokens { text, .. }) => text.len(),
            Ask::Question(Question::Text(_)) => 0,
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
    /// Whether to report log probabilities, and for how many of the likeliest tokens at each position.
    pub(super) likelihoods: Option<usize>,
    /// Whether the answer begins with the prompt.
    pub(super) echo: bool,
    /// Answers to the same prompt; 0 is 1.
    pub(super) choices: usize,
    /// The schema of what the answer must be.
    pub(super) schema: Option<Value>,
    pub(super) seed: Option<u64>,
    pub(super) stop: Vec<String>,
    pub(super) max_tokens: Option<usize>,
}
