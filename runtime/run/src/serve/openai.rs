//! `OpenAI`'s chat completions and completions: what clients send, and how an answer is written for them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::super::chat::conversation::{Call, Message, Role};
use super::super::reasoning::Channel;
use super::super::steering::Steering;
use super::answer::{Event, Form, Head, Whole};
use super::keys::{self, Fields, Keys, Notes, OFF, Served};
use super::likelihood::{Characters, Likelihood, lossy};
use super::request::{AnswerRequest, Ask, Refusal, arguments_of, inputs, text_of};
use super::tools::{Function, Tools};
use super::{Told, Usage, anthropic, schema};

/// Prompts of a request, at most.
const PROMPTS_MAX: usize = 256;

/// A request to `/v1/chat/completions`.
pub(super) fn chat(body: &[u8], served: &Served<'_>) -> Result<AnswerRequest, Refusal> {
    let notes = Notes::default();
    let mut keys = Keys::read(body, &keys::CHAT, &notes)?;
    keys.model(served)?;
    let said: Vec<Value> = keys.take("messages")?.ok_or_else(|| {
        Refusal::invalid(Some("messages"), "`messages` is missing: what is to be answered?")
    })?;
    if said.is_empty() {
        return Err(Refusal::invalid(Some("messages"), "`messages` is empty: what is to be answered?"));
    }
    let messages = said.into_iter().map(|said| message(said, &notes)).collect::<Result<_, _>>()?;
    let mut options = keys.options()?;
    Keys::some_tokens(&options, "max_tokens")?;
    let (asked, top) =
        (keys.take("logprobs")?.unwrap_or(false), keys.likelihoods("top_logprobs")?.unwrap_or(0));
    if top > 0 && !asked {
        let message = "`top_logprobs` without `logprobs` says nothing; set that to true";
        return Err(Refusal::invalid(Some("top_logprobs"), message));
    }
    options.likelihoods = asked.then_some(top);
    options.schema = schema_of(&mut keys)?;
    let tools = tools_of(&mut keys)?;
    let steering = steering_of(&mut keys)?;
    let (stream, usage) = keys.stream()?;
    keys.finish()?;
    let ask = Ask::Conversation(messages);
    Ok(AnswerRequest {
        options,
        tools,
        steering,
        stream,
        usage,
        ignored: notes.names(),
        ..AnswerRequest::of(ask)
    })
}

/// How much the model reasons, in the words of several servers; the most exact one counts.
fn steering_of(keys: &mut Keys<'_>) -> Result<Steering, Refusal> {
    let mut steering = Steering::default();
    anthropic::thinking(keys, &mut steering, false)?;
    if let Some(enabled) = keys.take("enable_thinking")? {
        steering.enabled = Some(enabled);
    }
    let wrong = |key: &str, message: String| Refusal::invalid(Some(key), format!("`{key}`: {message}"));
    if let Some(effort) = keys.take::<String>("reasoning_effort")? {
        steering.set_effort(&effort).map_err(|message| wrong("reasoning_effort", message))?;
    }
    if let Some(mut reasoning) = keys.fields("reasoning")? {
        if let Some(enabled) = reasoning.take("enabled")? {
            steering.enabled = Some(enabled);
        }
        if let Some(effort) = reasoning.take::<String>("effort")? {
            steering.set_effort(&effort).map_err(|message| wrong("reasoning", message))?;
        }
        if let Some(tokens) = reasoning.take("max_tokens")? {
            steering.set_budget(tokens);
        }
        reasoning.refuse(&[("exclude", OFF)])?;
        reasoning.finish()?;
    }
    if let Some(tokens) = keys.take("thinking_budget")? {
        steering.set_budget(tokens);
    }
    if let Some(variables) = keys.take("chat_template_kwargs")? {
        steering.set_variables(variables).map_err(|message| wrong("chat_template_kwargs", message))?;
    }
    Ok(steering)
}

/// The tools that the model may call; none where it may not.
fn tools_of(keys: &mut Keys<'_>) -> Result<Option<Tools>, Refusal> {
    Tools::of_keys(keys, tool, |choice| {
        let mut function = choice.inner("function", "its function")?;
        let name = function.must("name")?;
        function.finish_all()?;
        Ok(name)
    })
}

fn tool(mut tool: Fields<'_>) -> Result<Option<Function>, Refusal> {
    match tool.must::<String>("type")?.as_str() {
        "function" => {}
        kind => {
            let message =
                format!("a tool of type `{kind}` is not implemented here: function is, with its `function`");
            return Err(Refusal::invalid(Some("tools"), message));
        }
    }
    let function = Function::read(tool.inner("function", "a tool's function")?)?;
    tool.finish()?;
    Ok(Some(function))
}

/// The schema that `response_format` asks for.
fn schema_of(keys: &mut Keys<'_>) -> Result<Option<Value>, Refusal> {
    let Some(mut format) = keys.fields("response_format")? else { return Ok(None) };
    let kind: String = format.must("type")?;
    let schema = match kind.as_str() {
        "text" => None,
        "json_object" => Some(format.take("schema")?.unwrap_or_else(schema::any_object)),
        "json_schema" => {
            let mut schema = format.inner("json_schema", "the format")?;
            // a name is for people, and a schema is enforced either way
            schema.without_effect(&["name", "description", "strict"]);
            let enforced = schema.must("schema")?;
            schema.finish()?;
            Some(enforced)
        }
        kind => {
            let message = format!(
                "`response_format` of type `{kind}` is not implemented here: text, json_object and json_schema with its `json_schema` are"
            );
            return Err(Refusal::invalid(Some("response_format"), message));
        }
    };
    format.finish()?;
    Ok(schema)
}

/// A message.
fn message(said: Value, notes: &Notes) -> Result<Message, Refusal> {
    let mut said = Fields::new(said, "messages", "a message", notes)?;
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
    let content = text_of(said.take("content")?, "messages", &["text", "refusal"], notes)?;
    let wrong = |message: &str| Refusal::invalid(Some("messages"), message);
    let answers: Option<String> = said.take("tool_call_id")?;
    if (role == Role::Tool) != answers.is_some() {
        return Err(wrong("`tool_call_id` belongs to each message of the role tool, and to no other"));
    }
    let calls: Vec<Value> = said.take("tool_calls")?.unwrap_or_default();
    let calls: Vec<Call> = calls.into_iter().map(|called| call(called, notes)).collect::<Result<_, _>>()?;
    if !calls.is_empty() && role != Role::Assistant {
        return Err(wrong("`tool_calls` belong to messages of the role assistant"));
    }
    // as different servers call it
    let reasoning: Option<String> = match said.take("reasoning_content")? {
        None => said.take("reasoning")?,
        given => given,
    };
    let reasoning = reasoning.filter(|reasoning| !reasoning.is_empty());
    said.without_effect(&["annotations", "reasoning"]);
    said.finish()?;
    Ok(Message { reasoning, calls, answers, ..Message::new(role, content) })
}

/// A call of a tool as clients write it.
fn call(called: Value, notes: &Notes) -> Result<Call, Refusal> {
    let mut called = Fields::new(called, "messages", "a call", notes)?;
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
    let mut function = called.inner("function", "a call's function")?;
    called.finish()?;
    let name = function.must("name")?;
    let arguments = arguments_of(&function.must::<String>("arguments")?, "messages")?;
    function.finish()?;
    Ok(Call { id, name, arguments })
}

/// A request to `/v1/completions`.
pub(super) fn completion(body: &[u8], served: &Served<'_>) -> Result<AnswerRequest, Refusal> {
    let notes = Notes::default();
    let mut keys = Keys::read(body, &keys::COMPLETIONS, &notes)?;
    keys.model(served)?;
    let missing = || Refusal::invalid(Some("prompt"), "`prompt` is missing: what is to go on?");
    let prompts = inputs(keys.take("prompt")?.ok_or_else(missing)?, "prompt", PROMPTS_MAX)?;
    let mut options = keys.options()?;
    options.echo = keys.take("echo")?.unwrap_or(false);
    // chat completions have it so
    keys.forget("logprobs", &Value::Bool(false));
    options.likelihoods = keys.likelihoods("logprobs")?;
    options.schema = schema_of(&mut keys)?;
    let (stream, usage) = keys.stream()?;
    keys.finish()?;
    let ask = Ask::Prompts(prompts);
    Ok(AnswerRequest { options, stream, usage, ignored: notes.names(), ..AnswerRequest::of(ask) })
}

/// The form of an answer: chat or completion, and its state for each choice.
#[derive(Debug)]
pub(super) struct OpenAi {
    head: Head,
    chat: bool,
    /// Whether a stream ends with what was used.
    usage: bool,
    /// Whether likelihoods are reported, and the characters before each token of each choice.
    likelihoods: bool,
    offsets: Vec<Characters>,
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
    logprob: f64,
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
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: Vec<Option<BTreeMap<String, f64>>>,
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
        "completion_tokens_details": { "reasoning_tokens": usage.reasoning },
    })
}

impl OpenAi {
    /// An answer to such a request.
    pub(super) fn new(head: Head, chat: bool, request: &AnswerRequest) -> Self {
        let prompts = if let Ask::Prompts(prompts) = &request.ask { prompts.len() } else { 1 };
        let choices = prompts * request.options.choices.max(1);
        let likelihoods = request.options.likelihoods.is_some();
        let (offsets, calls) = (vec![Characters::default(); choices], vec![0; choices]);
        Self { head, chat, usage: request.usage, likelihoods, offsets, calls }
    }

    fn object<C: Serialize>(&self, object: &'static str, choices: Vec<C>, usage: Option<Value>) -> String {
        let Head { id, created, model } = &self.head;
        let object = Object { id, object, created: *created, model, choices, usage };
        // strings and numbers are always JSON
        serde_json::to_string(&object).unwrap_or_default()
    }

    fn chat_likelihoods<'a>(&self, likelihoods: &'a [Likelihood]) -> Option<ChatLikelihoods<'a>> {
        let one = |token: &'a [u8], logprob: f64, top| ChatLikelihood {
            token: lossy(token),
            logprob,
            bytes: token,
            top_logprobs: top,
        };
        let content = likelihoods.iter().map(|told| {
            let top = told.top.iter().map(|(token, logprob)| one(token, *logprob, None)).collect();
            one(&told.token, told.logprob.unwrap_or_default(), Some(top))
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
        for Likelihood { token: bytes, logprob, top } in likelihoods {
            let token = lossy(bytes);
            all.text_offset.push(self.offsets[choice].then(bytes));
            // among tokens with the same text the chosen one counts, and then the likeliest
            let mut told = BTreeMap::new();
            if let Some(logprob) = logprob.filter(|_| !top.is_empty()) {
                told.insert(token.clone(), logprob);
            }
            for (token, logprob) in top {
                told.entry(lossy(token)).or_insert(*logprob);
            }
            all.tokens.push(token);
            all.token_logprobs.push(*logprob);
            all.top_logprobs.push(logprob.map(|_| told));
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
            Told::Begins { .. } | Told::Vector(_) | Told::Said(_) => Vec::new(),
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
mod tests;
