//! `OpenAI`'s chat completions and completions: what clients send, and how an answer is written for them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::chat::conversation::{Call, Message, Role};
use super::super::reasoning::Channel;
use super::answer::{Event, Form, Head, Whole};
use super::likelihood::{Likelihood, lossy};
use super::request::{Ask, Fields, Keys, Refusal, AnswerRequest, arguments_of, text_of};
use super::tools::{ToolChoice, Function, Tools};
use super::{Told, Usage, schema};

/// A request to `/v1/chat/completions`.
pub(super) fn chat(body: &[u8], served: &str) -> Result<AnswerRequest, Refusal> {
    let mut keys = Keys::read(body)?;
    keys.model(served)?;
    let said: Vec<Value> = keys.take("messages")?.ok_or_else(|| {
        Refusal::invalid(Some("messages"), "`messages` is missing: what is to be answered?")
    })?;
    if said.is_empty() {
        return Err(Refusal::invalid(Some("messages"), "`messages` is empty: what is to be answered?"));
    }
    let mut messages: Vec<Message> = Vec::with_capacity(said.len());
    for said in said {
        let said = message(said, &messages)?;
        messages.push(said);
    }
    let mut options = keys.options()?;
    let (asked, top) =
        (keys.take("logprobs")?.unwrap_or(false), keys.likelihoods("top_logprobs")?.unwrap_or(0));
    if top > 0 && !asked {
        let message = "`top_logprobs` without `logprobs` says nothing; set that to true";
        return Err(Refusal::invalid(Some("top_logprobs"), message));
    }
    options.likelihoods = asked.then_some(top);
    options.schema = keys.take("response_format")?.map_or(Ok(None), schema_of)?;
    let tools = tools_of(&mut keys)?;
    if tools.is_some() && options.schema.is_some() {
        let message = "`response_format` beside `tools` is not implemented here; leave one away";
        return Err(Refusal::invalid(Some("response_format"), message));
    }
    let (stream, usage) = keys.stream()?;
    keys.finish()?;
    Ok(AnswerRequest { ask: Ask::Conversation(messages), options, tools, stream, usage, repeated: Value::Null })
}

/// The tools that the model may call; none where it may not.
fn tools_of(keys: &mut Keys) -> Result<Option<Tools>, Refusal> {
    Tools::of_keys(keys, tool, |choice| {
        let mut function = Fields::new(choice.must("function")?, "tool_choice", "its function")?;
        let name = function.must("name")?;
        function.finish()?;
        Ok(name)
    })
}

fn tool(tool: Value) -> Result<Function, Refusal> {
    let mut tool = Fields::new(tool, "tools", "a tool")?;
    match tool.must::<String>("type")?.as_str() {
        "function" => {}
        kind => {
            let message =
                format!("a tool of type `{kind}` is not implemented here: function is, with its `function`");
            return Err(Refusal::invalid(Some("tools"), message));
        }
    }
    let function = Function::read(Fields::new(tool.must("function")?, "tools", "a tool's function")?)?;
    tool.finish()?;
    Ok(function)
}

/// Form that an answer must have.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResponseFormat {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    json_schema: Option<JsonSchema>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonSchema {
    #[serde(default, rename = "name")]
    _name: Option<String>,
    #[serde(default, rename = "description")]
    _description: Option<String>,
    // it is enforced either way
    #[serde(default, rename = "strict")]
    _strict: Option<bool>,
    schema: Value,
}

/// The schema that is asked for.
fn schema_of(format: ResponseFormat) -> Result<Option<Value>, Refusal> {
    match (format.kind.as_str(), format.json_schema) {
        ("text", None) => Ok(None),
        ("json_object", None) => Ok(Some(schema::any_object())),
        ("json_schema", Some(JsonSchema { schema, .. })) => Ok(Some(schema)),
        (kind, _) => {
            let message = format!(
                "`response_format` of type `{kind}` is not implemented here: text, json_object and json_schema with its `json_schema` are"
            );
            Err(Refusal::invalid(Some("response_format"), message))
        }
    }
}

/// A message, after others.
fn message(said: Value, before: &[Message]) -> Result<Message, Refusal> {
    let mut said = Fields::new(said, "messages", "a message")?;
    let role = match said.must::<String>("role")?.as_str() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        other => {
            return Err(Refusal::invalid(
                Some("messages"),
                format!("role `{other}` is not implemented here: system, user, assistant and tool are"),
            ));
        }
    };
    let content = text_of(said.take("content")?, "messages", &["text"])?;
    let wrong = |message: &str| Refusal::invalid(Some("messages"), message);
    let answers: Option<String> = said.take("tool_call_id")?;
    if (role == Role::Tool) != answers.is_some() {
        return Err(wrong("`tool_call_id` belongs to each message of the role tool, and to no other"));
    }
    if let Some(id) = &answers
        && let Some(name) = said.take::<String>("name")?
        && before.iter().flat_map(|message| &message.calls).any(|call| call.id == *id && call.name != name)
    {
        return Err(wrong("`name` of a message of the role tool is not that of the call that it answers"));
    }
    let calls: Vec<Value> = said.take("tool_calls")?.unwrap_or_default();
    let calls: Vec<Call> = calls.into_iter().map(call).collect::<Result<_, _>>()?;
    if !calls.is_empty() && role != Role::Assistant {
        return Err(wrong("`tool_calls` belong to messages of the role assistant"));
    }
    let reasoning = said.take("reasoning_content")?;
    said.empty("annotations");
    said.finish()?;
    Ok(Message { reasoning, calls, answers, ..Message::new(role, content) })
}

/// A call of a tool as clients tell of it.
fn call(called: Value) -> Result<Call, Refusal> {
    let mut called = Fields::new(called, "messages", "a call")?;
    match called.take::<String>("type")?.as_deref() {
        None | Some("function") => {}
        Some(kind) => {
            let message = format!("a call of type `{kind}` is not implemented here: function is");
            return Err(Refusal::invalid(Some("messages"), message));
        }
    }
    // where it stood in a stream
    called.without_effect(&["index"]);
    let id = called.must("id")?;
    let mut function = Fields::new(called.must("function")?, "messages", "a call's function")?;
    called.finish()?;
    let name = function.must("name")?;
    let arguments = arguments_of(&function.must::<String>("arguments")?, "messages")?;
    function.finish()?;
    Ok(Call { id, name, arguments })
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TextPrompt {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
}

/// A request to `/v1/completions`.
pub(super) fn completion(body: &[u8], served: &str) -> Result<AnswerRequest, Refusal> {
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
    let mut options = keys.options()?;
    options.likelihoods = keys.likelihoods("logprobs")?;
    let (stream, usage) = keys.stream()?;
    keys.finish()?;
    Ok(AnswerRequest { ask, options, tools: None, stream, usage, repeated: Value::Null })
}

/// How an answer is written: in which of the two forms, and what has been told of each choice.
#[derive(Debug)]
pub(super) struct OpenAi {
    head: Head,
    chat: bool,
    /// Whether a stream ends with what was used.
    usage: bool,
    /// Whether likelihoods are told, and characters of each choice's tokens of which they were.
    likelihoods: bool,
    offsets: Vec<usize>,
    /// Calls of each choice.
    calls: Vec<usize>,
}

/// Keys that all parts of an answer have.
#[derive(Serialize)]
struct Object<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<C>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
}

#[derive(Serialize)]
struct ChatChoice<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Value::is_null")]
    message: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    delta: Value,
    logprobs: Option<ChatLikelihoods<'a>>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct ChatLikelihoods<'a> {
    content: Vec<ChatLikelihood<'a>>,
}

#[derive(Serialize)]
struct ChatLikelihood<'a> {
    token: String,
    logprob: f32,
    bytes: &'a [u8],
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<Self>>,
}

#[derive(Serialize)]
struct TextChoice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<TextLikelihoods>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct TextLikelihoods {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<BTreeMap<String, f32>>,
    text_offset: Vec<usize>,
}

fn finish(cut: bool, calls: usize) -> &'static str {
    match (cut, calls) {
        (true, _) => "length",
        (false, 0) => "stop",
        (false, _) => "tool_calls",
    }
}

fn called(call: &Call) -> Value {
    let arguments = Value::Object(call.arguments.clone()).to_string();
    json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": arguments } })
}

fn used(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.answer,
        "total_tokens": usage.prompt + usage.answer,
        "prompt_tokens_details": { "cached_tokens": usage.cached },
    })
}

impl OpenAi {
    /// An answer to such a request.
    pub(super) fn new(head: Head, chat: bool, request: &AnswerRequest) -> Self {
        let choices = request.options.choices.max(1);
        let likelihoods = request.options.likelihoods.is_some();
        let (offsets, calls) = (vec![0; choices], vec![0; choices]);
        Self { head, chat, usage: request.usage, likelihoods, offsets, calls }
    }

    fn object<C: Serialize>(&self, object: &'static str, choices: Vec<C>, usage: Option<Value>) -> String {
        let Head { id, created, model } = &self.head;
        let object = Object { id, object, created: *created, model, choices, usage };
        // of strings and numbers alone
        serde_json::to_string(&object).unwrap_or_default()
    }

    fn chat_likelihoods<'a>(&self, likelihoods: &'a [Likelihood]) -> Option<ChatLikelihoods<'a>> {
        let one = |(token, logprob): &'a (Vec<u8>, f32), top| ChatLikelihood {
            token: lossy(token),
            logprob: *logprob,
            bytes: token,
            top_logprobs: top,
        };
        let content = likelihoods.iter().map(|told| {
            let top = told.top.iter().map(|other| one(other, None)).collect();
            one(&told.token, Some(top))
        });
        self.likelihoods.then(|| ChatLikelihoods { content: content.collect() })
    }

    fn text_likelihoods(&mut self, choice: usize, likelihoods: &[Likelihood]) -> Option<TextLikelihoods> {
        let mut all = TextLikelihoods {
            tokens: Vec::new(),
            token_logprobs: Vec::new(),
            top_logprobs: Vec::new(),
            text_offset: Vec::new(),
        };
        for Likelihood { token: (token, logprob), top } in likelihoods {
            let token = lossy(token);
            all.text_offset.push(self.offsets[choice]);
            self.offsets[choice] += token.chars().count();
            all.tokens.push(token);
            all.token_logprobs.push(*logprob);
            all.top_logprobs.push(top.iter().map(|(token, logprob)| (lossy(token), *logprob)).collect());
        }
        self.likelihoods.then_some(all)
    }

    /// A piece of a choice, or with a reason its end.
    fn piece(
        &mut self,
        index: usize,
        delta: Value,
        likelihoods: &[Likelihood],
        finish_reason: Option<&'static str>,
    ) -> Event {
        Event::of(if self.chat {
            let logprobs = if likelihoods.is_empty() { None } else { self.chat_likelihoods(likelihoods) };
            let choice = ChatChoice { index, message: Value::Null, delta, logprobs, finish_reason };
            self.object("chat.completion.chunk", vec![choice], None)
        } else {
            let logprobs =
                if likelihoods.is_empty() { None } else { self.text_likelihoods(index, likelihoods) };
            let text = delta["content"].as_str().unwrap_or_default();
            self.object("text_completion", vec![TextChoice { index, text, logprobs, finish_reason }], None)
        })
    }
}

impl Form for OpenAi {
    fn events(&mut self, told: Told) -> Vec<Event> {
        match told {
            Told::Begins { .. } if self.chat => (0..self.offsets.len())
                .map(|choice| self.piece(choice, json!({ "role": "assistant", "content": "" }), &[], None))
                .collect(),
            Told::Begins { .. } | Told::Vector(_) => Vec::new(),
            Told::Text { choice, part, text, likelihoods } => {
                let key = match part {
                    Channel::Answer | Channel::Call => "content",
                    Channel::Reasoning => "reasoning_content",
                };
                vec![self.piece(choice, json!({ key: text }), &likelihoods, None)]
            }
            Told::Call { choice, call } => {
                let mut told = called(&call);
                told["index"] = Value::from(self.calls[choice]);
                self.calls[choice] += 1;
                vec![self.piece(choice, json!({ "tool_calls": [told] }), &[], None)]
            }
            Told::Choice { choice, cut, .. } => {
                let reason = finish(cut, self.calls[choice]);
                vec![self.piece(choice, json!({}), &[], Some(reason))]
            }
            Told::Ended(usage) => {
                let object = if self.chat { "chat.completion.chunk" } else { "text_completion" };
                let usage =
                    self.usage.then(|| self.object::<TextChoice<'_>>(object, Vec::new(), Some(used(usage))));
                usage.into_iter().chain(["[DONE]".to_owned()]).map(Event::of).collect()
            }
            Told::Failed(refusal) => {
                vec![Event::of(refusal.json().to_string()), Event::of("[DONE]".to_owned())]
            }
        }
    }

    fn whole(&mut self, whole: Whole) -> String {
        let usage = Some(used(whole.usage));
        if !self.chat {
            let choices = whole.choices.iter().enumerate().map(|(index, heard)| TextChoice {
                index,
                text: &heard.content,
                logprobs: self.text_likelihoods(index, &heard.likelihoods),
                finish_reason: Some(finish(heard.cut, 0)),
            });
            let choices = choices.collect();
            return self.object("text_completion", choices, usage);
        }
        let mut choices = Vec::new();
        for (index, heard) in whole.choices.iter().enumerate() {
            let mut message = json!({ "role": "assistant", "content": heard.content });
            if !heard.reasoning.is_empty() {
                message["reasoning_content"] = Value::from(heard.reasoning.as_str());
            }
            let logprobs = self.chat_likelihoods(&heard.likelihoods);
            if !heard.calls.is_empty() {
                message["tool_calls"] = heard.calls.iter().map(called).collect();
                if heard.content.is_empty() {
                    message["content"] = Value::Null;
                }
            }
            let finish_reason = Some(finish(heard.cut, heard.calls.len()));
            choices.push(ChatChoice { index, message, delta: Value::Null, logprobs, finish_reason });
        }
        self.object("chat.completion", choices, usage)
    }
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
                { "role": "user", "content": "Again", "name": null },
                { "role": "assistant", "content": null, "refusal": null, "audio": null, "annotations": [], "tool_calls": [{
                    "id": "1", "type": "function", "index": 0, "function": { "name": "f", "arguments": "" } }] },
                { "role": "tool", "content": [{ "type": "text", "text": "no", "cache_control": { "type": "ephemeral" } }],
                    "tool_call_id": "1", "name": "f" },
            ],
            "temperature": 0.5, "top_p": 1, "top_k": 3, "min_p": 0.0, "seed": 7, "stop": "x", "max_tokens": 5,
            "stream": true, "stream_options": { "include_usage": true },
            "n": 2, "presence_penalty": 0.5, "frequency_penalty": -1, "logit_bias": { "17": -100 }, "tools": [],
            "response_format": { "type": "text" }, "user": "someone", "logprobs": true, "top_logprobs": 3,
            "store": false, "service_tier": "auto", "metadata": { "a": "b" }, "max_completion_tokens": 5,
        });
        let request = chat(body.to_string().as_bytes(), "m").unwrap();
        let Ask::Conversation(messages) = &request.ask else { panic!("{request:?}") };
        assert_eq!(messages[1], Message::new(Role::User, "Hi!"));
        assert_eq!(messages[2].reasoning.as_deref(), Some("greet"));
        assert!(request.stream && request.usage);
        let options = request.options;
        assert_eq!((options.temperature, options.seed, options.max_tokens), (Some(0.5), Some(7), Some(5)));
        assert_eq!((options.presence_penalty, options.frequency_penalty), (Some(0.5), Some(-1.0)));
        assert_eq!((options.choices, options.likelihoods), (2, Some(3)));
        assert_eq!((options.logit_bias, options.stop), (vec![(17, -100.0)], vec!["x".to_owned()]));
    }

    fn tool(function: Value) -> Value {
        json!({ "tools": [{ "type": "function", "function": function }] })
    }

    #[test]
    fn what_is_not_done_is_refused_by_name() {
        for (extra, words) in [
            (json!({ "n": 17 }), "`n` is 17; it is 1 to 16"),
            (json!({ "n": 0 }), "`n` is 0"),
            (json!({ "best_of": 2 }), "`best_of` is not implemented"),
            (json!({ "tools": [{}] }), "`tools`: a tool has no `type`"),
            (json!({ "tools": [{ "type": "retrieval" }] }), "a tool of type `retrieval` is not implemented"),
            (tool(json!({ "name": "a b" })), "a tool is called `a b`"),
            (tool(json!({ "name": "a", "strict": true })), "`strict` is implemented only where"),
            (json!({ "tool_choice": "required" }), "`tool_choice` without `tools`"),
            (json!({ "tool_choice": "maybe" }), "`tool_choice` is `maybe`"),
            (
                json!({ "response_format": { "type": "xml" } }),
                "`response_format` of type `xml` is not implemented",
            ),
            (json!({ "response_format": { "type": "json_schema" } }), "with its `json_schema`"),
            (
                json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "a" } } }),
                "missing field `schema`",
            ),
            (json!({ "logprobs": true, "top_logprobs": 21 }), "`top_logprobs` is 21; it is 0 to 20"),
            (json!({ "top_logprobs": 2 }), "`top_logprobs` without `logprobs` says nothing"),
            (json!({ "presence_penalty": 2.1 }), "`presence_penalty` is 2.1; it is -2 to 2"),
            (json!({ "logit_bias": { "the": 1 } }), "`logit_bias` has `the`, which is no token's number"),
            (json!({ "logit_bias": { "1": -101 } }), "`logit_bias` of 1 is -101; it is -100 to 100"),
            (json!({ "temprature": 1 }), "`temprature` is unknown"),
            (json!({ "temperature": -1 }), "`temperature` is -1; it is 0 to 2"),
            (json!({ "temperature": "hot" }), "`temperature`: invalid type"),
            (json!({ "max_tokens": 0 }), "`max_tokens` is 0"),
            (json!({ "stop": [""] }), "`stop` has up to 16 texts"),
            (json!({ "stream_options": {} }), "without `stream` says nothing"),
            (json!({ "model": "gpt" }), "there is no model `gpt` here; name `m`"),
            (json!({ "messages": [] }), "`messages` is empty"),
            (
                json!({ "messages": [{ "role": "function", "content": "" }] }),
                "role `function` is not implemented",
            ),
            (json!({ "messages": [{ "role": "tool", "content": "" }] }), "`tool_call_id` belongs"),
            (
                json!({ "messages": [{ "role": "assistant", "tool_calls": [{ "id": "1", "function": { "name": "f", "arguments": "[" } }] }] }),
                "the `arguments` of a call are no JSON object",
            ),
            (
                json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }] }),
                "content of type `image_url` is not implemented",
            ),
        ] {
            let said = refused(&asks(extra.clone()));
            assert!(said.contains(words), "{extra}: {said}");
        }
        let called = |call: Value| json!({ "messages": [{ "role": "assistant", "tool_calls": [call] }] });
        let function = json!({ "name": "f", "arguments": "{}" });
        let user = |message: Value| {
            let mut said = json!({ "role": "user", "content": "Hi" });
            said.as_object_mut().unwrap().extend(message.as_object().unwrap().clone());
            json!({ "messages": [said] })
        };
        let part = |part: Value| {
            let mut text = json!({ "type": "text", "text": "Hi" });
            text.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
            user(json!({ "content": [text] }))
        };
        // nothing inside of anything is passed over either
        for (extra, words) in [
            (user(json!({ "name": "ann" })), "`name` of a message is not implemented"),
            (user(json!({ "colour": "red" })), "`colour` of a message is not implemented"),
            (user(json!({ "refusal": "no" })), "`refusal` of a message is not implemented"),
            (user(json!({ "annotations": [1] })), "`annotations` of a message is not implemented"),
            (user(json!({ "content": 7 })), "the content is neither a text nor a list"),
            (user(json!({ "content": ["a"] })), "a part of the content is no object"),
            (part(json!({ "colour": "red" })), "`colour` of a part of the content is not implemented"),
            (part(json!({ "annotations": [1] })), "`annotations` of a part of the content"),
            (json!({ "messages": ["a"] }), "a message is no object"),
            (
                json!({ "messages": [
                    { "role": "assistant", "tool_calls": [{ "id": "1", "function": function }] },
                    { "role": "tool", "content": "", "tool_call_id": "1", "name": "g" },
                ] }),
                "`name` of a message of the role tool is not that of the call",
            ),
            (called(json!({ "id": "1", "function": function, "colour": 1 })), "`colour` of a call is"),
            (called(json!({ "id": "1", "type": "custom", "function": function })), "a call of type `custom`"),
            (called(json!({ "function": function })), "a call has no `id`"),
            (
                called(json!({ "id": "1", "function": { "name": "f", "arguments": "", "colour": 1 } })),
                "`colour` of a call's function",
            ),
            (
                json!({ "tools": [{ "type": "function", "function": { "name": "f" }, "colour": 1 }] }),
                "`colour` of a tool is",
            ),
            (tool(json!({ "name": "f", "colour": 1 })), "`colour` of a tool's function is"),
            (json!({ "tool_choice": { "type": "allowed_tools" } }), "`tool_choice` is `allowed_tools`"),
            (
                json!({ "tool_choice": { "type": "function", "function": { "name": "f", "colour": 1 } } }),
                "`colour` of its function is",
            ),
            (json!({ "store": true }), "`store` is not implemented"),
            (json!({ "service_tier": "flex" }), "`service_tier` is not implemented"),
            (json!({ "max_tokens": 3, "max_completion_tokens": 4 }), "`max_completion_tokens` differ"),
            (json!({ "max_tokens": "many", "max_completion_tokens": 4 }), "`max_tokens`: invalid type"),
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
