//! Anthropic's messages: what clients send, and how an answer is written for them.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::chat::conversation::{Call, Message, Role};
use super::super::reasoning::Channel;
use super::answer::{Event, Form, Head, Heard, Whole};
use super::request::{Ask, Fields, Keys, Refusal, AnswerRequest};
use super::tools::{ToolChoice, Function, Tools};
use super::{Told, Usage};

/// A request to `/v1/messages`.
pub(super) fn messages(body: &[u8], served: &str) -> Result<AnswerRequest, Refusal> {
    let mut keys = Keys::read(body)?;
    keys.model(served)?;
    let said: Vec<Said> = keys.take("messages")?.unwrap_or_default();
    let system: Option<Value> = keys.take("system")?;
    let mut messages = Vec::new();
    if let Some(system) = system {
        messages.push(Message::new(Role::System, text(system)?));
    }
    for said in said {
        add(said, &mut messages)?;
    }
    let wrong = |message: &str| Refusal::invalid(Some("messages"), message);
    match messages.last().map(|message| message.role) {
        None | Some(Role::System) => return Err(wrong("`messages` is empty: what is to be answered?")),
        Some(Role::Assistant) => {
            return Err(wrong(
                "an answer that the assistant has begun is not implemented here; end with the user's message",
            ));
        }
        Some(Role::User | Role::Tool) => {}
    }
    keys.rename("stop_sequences", "stop")?;
    let options = keys.options()?;
    if options.max_tokens.is_none() {
        return Err(Refusal::invalid(
            Some("max_tokens"),
            "`max_tokens` is missing; Anthropic's clients must set it",
        ));
    }
    if options.choices > 1 {
        return Err(Refusal::invalid(Some("n"), "`n` is not implemented here; leave it away"));
    }
    let tools = tools(&mut keys)?;
    if let Some(thinking) = keys.take("thinking")? {
        let mut thinking = Fields::new(thinking, "thinking", "`thinking`")?;
        if thinking.must::<String>("type")? != "disabled" {
            let message = "`thinking` is not implemented here: a model reasons or not as its template says; leave it away";
            return Err(Refusal::invalid(Some("thinking"), message));
        }
        thinking.finish()?;
    }
    let (stream, _) = keys.stream()?;
    keys.finish()?;
    Ok(AnswerRequest {
        ask: Ask::Conversation(messages),
        options,
        tools,
        stream,
        usage: true,
        repeated: Value::Null,
    })
}

/// One message as clients write it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    role: String,
    content: Value,
}

/// A part of a message.
enum Block {
    Text(String),
    Thinking(String),
    Call(Call),
    Result { id: String, content: String },
}

fn not_here(kind: &str) -> Refusal {
    Refusal::invalid(Some("messages"), format!("content of type `{kind}` is not implemented here: text is"))
}

/// The parts of a content.
fn blocks(content: Value) -> Result<Vec<Block>, Refusal> {
    match content {
        Value::String(text) => Ok(vec![Block::Text(text)]),
        Value::Array(blocks) => blocks.into_iter().map(block).collect(),
        _ => Err(Refusal::invalid(Some("messages"), "a content is neither a text nor a list of blocks")),
    }
}

/// A part of a content; marks of what is to be cached (`cache_control`) change nothing, for all is.
fn block(block: Value) -> Result<Block, Refusal> {
    let kind = block.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut block = Fields::new(block, "messages", format!("a block of type `{kind}`"))?;
    block.without_effect(&["type", "cache_control"]);
    let read = match kind.as_str() {
        "text" => {
            block.empty("citations");
            Block::Text(block.must("text")?)
        }
        "thinking" => {
            // whose hand it is in is nobody's question here
            block.without_effect(&["signature"]);
            Block::Thinking(block.must("thinking")?)
        }
        "tool_use" => Block::Call(Call {
            id: block.must("id")?,
            name: block.must("name")?,
            arguments: block.must("input")?,
        }),
        "tool_result" => {
            let content = block.take("content")?.map_or(Ok(String::new()), text)?;
            let failed = block.take("is_error")?.unwrap_or(false);
            let content = if failed { format!("error: {content}") } else { content };
            Block::Result { id: block.must("tool_use_id")?, content }
        }
        kind => return Err(not_here(kind)),
    };
    block.finish()?;
    Ok(read)
}

/// Text alone.
fn text(content: Value) -> Result<String, Refusal> {
    let text = |block| match block {
        Block::Text(text) => Ok(text),
        Block::Thinking(_) => Err(not_here("thinking")),
        Block::Call(_) => Err(not_here("tool_use")),
        Block::Result { .. } => Err(not_here("tool_result")),
    };
    blocks(content)?.into_iter().map(text).collect()
}

/// One message; what tools have answered becomes messages of their own before it.
fn add(said: Said, messages: &mut Vec<Message>) -> Result<(), Refusal> {
    let role = match said.role.as_str() {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        other => {
            let message = format!(
                "role `{other}` is not implemented here: user and assistant are, and `system` beside"
            );
            return Err(Refusal::invalid(Some("messages"), message));
        }
    };
    let mut message = Message::new(role, "");
    let mut says = false;
    for block in blocks(said.content)? {
        match (block, role) {
            (Block::Text(text), _) => {
                message.content += &text;
                says = true;
            }
            (Block::Thinking(thinking), Role::Assistant) => {
                *message.reasoning.get_or_insert_default() += &thinking;
                says = true;
            }
            (Block::Call(call), Role::Assistant) => {
                message.calls.push(call);
                says = true;
            }
            (Block::Result { id, content }, Role::User) => {
                messages.push(Message { answers: Some(id), ..Message::new(Role::Tool, content) });
            }
            (Block::Thinking(_), _) => return Err(not_here("thinking")),
            (Block::Call(_), _) => return Err(not_here("tool_use")),
            (Block::Result { .. }, _) => return Err(not_here("tool_result")),
        }
    }
    if says {
        messages.push(message);
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tool {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    name: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    input_schema: Option<Map<String, Value>>,
    #[serde(default, rename = "cache_control")]
    _cache_control: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolChoice {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    disable_parallel_tool_use: bool,
}

fn tools(keys: &mut Keys) -> Result<Option<Tools>, Refusal> {
    let tools: Vec<Tool> = keys.take("tools")?.unwrap_or_default();
    let choice: Option<ToolChoice> = keys.take("tool_choice")?;
    let function = |tool: Tool| match tool.kind.as_deref() {
        None | Some("custom") => Ok(Function {
            name: tool.name,
            description: tool.description,
            parameters: tool.input_schema,
            strict: None,
        }),
        Some(kind) => Err(Refusal::invalid(
            Some("tools"),
            format!("a tool of type `{kind}` is not implemented here: those with an `input_schema` are"),
        )),
    };
    let functions: Vec<Function> = tools.into_iter().map(function).collect::<Result<_, _>>()?;
    let parallel = !choice.as_ref().is_some_and(|choice| choice.disable_parallel_tool_use);
    let choice = match choice.map(|choice| (choice.kind, choice.name)) {
        None => ToolChoice::Auto,
        Some((kind, name)) => match (kind.as_str(), name) {
            ("none", None) => return Ok(None),
            ("auto", None) => ToolChoice::Auto,
            ("any", None) => ToolChoice::Required,
            ("tool", Some(name)) => ToolChoice::Named(name),
            (kind, _) => {
                let message =
                    format!("`tool_choice` is `{kind}`; it is none, auto, any, or tool with its `name`");
                return Err(Refusal::invalid(Some("tool_choice"), message));
            }
        },
    };
    Tools::new(functions, choice, parallel)
}

/// A refusal as Anthropic writes it.
pub(super) fn refusal(refusal: &Refusal) -> Value {
    let kind = match (refusal.status, refusal.kind) {
        (413, _) => "request_too_large",
        (_, "server_error") => "api_error",
        (_, kind) => kind,
    };
    json!({ "type": "error", "error": { "type": kind, "message": refusal.message } })
}

/// How an answer is written.
#[derive(Debug)]
pub(super) struct Anthropic {
    head: Head,
    /// Blocks that have begun, and of which kind the last one is, if it has not ended.
    blocks: usize,
    open: Option<Channel>,
    called: bool,
    reason: (&'static str, Option<String>),
}

fn used(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.answer,
    })
}

/// Why an answer ended, and the text that ended it.
fn reason(cut: bool, called: bool, stop: Option<String>) -> (&'static str, Option<String>) {
    match (cut, called, stop) {
        (true, ..) => ("max_tokens", None),
        (_, _, Some(stop)) => ("stop_sequence", Some(stop)),
        (_, true, _) => ("tool_use", None),
        _ => ("end_turn", None),
    }
}

fn event(name: &'static str, mut data: Value) -> Event {
    data["type"] = Value::from(name);
    Event { name: Some(name), data: data.to_string() }
}

impl Anthropic {
    pub(super) fn new(head: Head) -> Self {
        Self { head, blocks: 0, open: None, called: false, reason: ("end_turn", None) }
    }

    fn message(&self, content: &Value, (reason, stop): (Option<&str>, Option<&str>), usage: &Value) -> Value {
        json!({
            "id": self.head.id, "type": "message", "role": "assistant", "model": self.head.model, "content": content,
            "stop_reason": reason, "stop_sequence": stop, "usage": usage,
        })
    }

    /// Ends the block that has begun.
    fn close(&mut self, events: &mut Vec<Event>) {
        if self.open.take().is_some() {
            events.push(event("content_block_stop", json!({ "index": self.blocks - 1 })));
        }
    }

    fn begin(&mut self, part: Channel, block: &Value, events: &mut Vec<Event>) {
        self.close(events);
        events.push(event("content_block_start", json!({ "index": self.blocks, "content_block": block })));
        (self.blocks, self.open) = (self.blocks + 1, Some(part));
    }

    fn delta(&self, delta: &Value) -> Event {
        event("content_block_delta", json!({ "index": self.blocks - 1, "delta": delta }))
    }
}

impl Form for Anthropic {
    fn events(&mut self, told: Told) -> Vec<Event> {
        let mut events = Vec::new();
        match told {
            Told::Begins { prompt } => {
                let usage = used(&Usage { prompt, ..Usage::default() });
                let message = self.message(&json!([]), (None, None), &usage);
                events.push(event("message_start", json!({ "message": message })));
            }
            Told::Text { part, text, .. } => {
                let thinks = part == Channel::Reasoning;
                if self.open != Some(part) {
                    let block = if thinks {
                        json!({ "type": "thinking", "thinking": "", "signature": "" })
                    } else {
                        json!({ "type": "text", "text": "" })
                    };
                    self.begin(part, &block, &mut events);
                }
                events.push(self.delta(&if thinks {
                    json!({ "type": "thinking_delta", "thinking": text })
                } else {
                    json!({ "type": "text_delta", "text": text })
                }));
            }
            Told::Call { call, .. } => {
                self.called = true;
                let block = json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": {} });
                self.begin(Channel::Call, &block, &mut events);
                let input = Value::Object(call.arguments).to_string();
                events.push(self.delta(&json!({ "type": "input_json_delta", "partial_json": input })));
                self.close(&mut events);
            }
            Told::Choice { cut, stop, .. } => {
                self.close(&mut events);
                self.reason = reason(cut, self.called, stop);
            }
            Told::Ended(usage) => {
                let delta = json!({ "stop_reason": self.reason.0, "stop_sequence": self.reason.1 });
                events.push(event("message_delta", json!({ "delta": delta, "usage": used(&usage) })));
                events.push(event("message_stop", json!({})));
            }
            Told::Failed(why) => events.push(event("error", refusal(&why))),
            Told::Vector(_) => {}
        }
        events
    }

    fn whole(&mut self, mut whole: Whole) -> String {
        let Heard { content, reasoning, calls, cut, stop, .. } = whole.choices.pop().unwrap_or_default();
        let mut blocks = Vec::new();
        if !reasoning.is_empty() {
            blocks.push(json!({ "type": "thinking", "thinking": reasoning, "signature": "" }));
        }
        if !content.is_empty() || calls.is_empty() {
            blocks.push(json!({ "type": "text", "text": content }));
        }
        let called = !calls.is_empty();
        let block = |call: Call| json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments });
        blocks.extend(calls.into_iter().map(block));
        let (reason, stop) = reason(cut, called, stop);
        self.message(&Value::from(blocks), (Some(reason), stop.as_deref()), &used(&whole.usage)).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<AnswerRequest, Refusal> {
        messages(body.to_string().as_bytes(), "m")
    }

    #[test]
    fn a_conversation_with_tools_is_read_as_its_messages() {
        let request = read(&json!({
            "model": "m", "max_tokens": 5, "stop_sequences": ["x"], "temperature": 0.5, "metadata": { "user_id": "u" },
            "system": [{ "type": "text", "text": "Be short.", "cache_control": { "type": "ephemeral" } }],
            "messages": [
                { "role": "user", "content": "Hi" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "look", "signature": "s" },
                    { "type": "text", "text": "I look." },
                    { "type": "tool_use", "id": "1", "name": "f", "input": { "a": 1 } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "1", "content": [{ "type": "text", "text": "no" }], "is_error": true },
                    { "type": "text", "text": "And?" },
                ] },
            ],
            "tools": [{ "name": "f", "description": "d", "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
        }))
        .unwrap();
        let Ask::Conversation(messages) = &request.ask else { panic!("{request:?}") };
        let roles: Vec<&str> = messages.iter().map(|message| message.role.name()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "user"]);
        assert_eq!(messages[2].reasoning.as_deref(), Some("look"));
        assert_eq!((messages[2].content.as_str(), messages[2].calls[0].name.as_str()), ("I look.", "f"));
        assert_eq!((messages[3].content.as_str(), messages[3].answers.as_deref()), ("error: no", Some("1")));
        let tools = request.tools.unwrap();
        assert_eq!((tools.choice, tools.parallel), (ToolChoice::Required, false));
        assert_eq!((request.options.max_tokens, request.options.stop), (Some(5), vec!["x".to_owned()]));
    }

    #[test]
    fn what_is_not_done_is_refused_by_name() {
        let with = |extra: Value| {
            let mut body = json!({ "max_tokens": 5, "messages": [{ "role": "user", "content": "Hi" }] });
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            read(&body).expect_err("it is refused").message
        };
        for (extra, words) in [
            (json!({ "max_tokens": null }), "`max_tokens` is missing"),
            (json!({ "messages": [] }), "`messages` is empty"),
            (
                json!({ "messages": [{ "role": "user", "content": [{ "type": "image", "source": {} }] }] }),
                "type `image`",
            ),
            (
                json!({ "messages": [{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }] }),
                "has begun",
            ),
            (
                json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } }),
                "`thinking` is not implemented",
            ),
            (json!({ "stop": "x" }), "`stop` is unknown"),
            (json!({ "n": 2 }), "`n` is not implemented"),
            (json!({ "tools": [{ "type": "bash_20250124", "name": "bash" }] }), "type `bash_20250124`"),
            (json!({ "tool_choice": { "type": "tool" } }), "`tool_choice` is `tool`"),
            (json!({ "container": "c" }), "`container` is unknown"),
            (json!({ "service_tier": "priority" }), "`service_tier` is not implemented"),
            (
                json!({ "thinking": { "type": "disabled", "budget_tokens": 9 } }),
                "`budget_tokens` of `thinking`",
            ),
            (
                json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "a", "colour": 1 }] }] }),
                "`colour` of a block of type `text`",
            ),
            (
                json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "a", "citations": [1] }] }] }),
                "`citations` of a block",
            ),
            (json!({ "messages": [{ "role": "user", "content": [{ "type": "text" }] }] }), "has no `text`"),
            (
                json!({ "messages": [{ "role": "user", "content": 7 }] }),
                "neither a text nor a list of blocks",
            ),
            (
                json!({ "messages": [{ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "1", "content": [
                    { "type": "text", "text": "a", "colour": 1 }] }] }] }),
                "`colour` of a block of type `text`",
            ),
            (
                json!({ "messages": [{ "role": "assistant", "content": [
                    { "type": "tool_use", "id": "1", "name": "f", "input": {}, "caller": {} }] }] }),
                "`caller` of a block of type `tool_use`",
            ),
        ] {
            let said = with(extra.clone());
            assert!(said.contains(words), "{extra}: {said}");
        }
        let told = refusal(&Refusal::broken("x"));
        assert_eq!(told, json!({ "type": "error", "error": { "type": "api_error", "message": "x" } }));
    }
}
