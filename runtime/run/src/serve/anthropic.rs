//! Anthropic's messages: what clients send, and how an answer is written for them.

use serde_json::{Value, json};

use super::super::chat::conversation::{Call, Message, Role};
use super::super::reasoning::Channel;
use super::super::steering::Steering;
use super::answer::{Event, Form, Head, Heard, Whole};
use super::keys::{self, Fields, Keys, Notes, Served};
use super::request::{AnswerRequest, Ask, Options, Refusal};
use super::tools::{Function, ToolChoice, Tools};
use super::{Told, Usage};

/// A request to `/v1/messages`.
pub(super) fn messages(body: &[u8], served: &Served<'_>) -> Result<AnswerRequest, Refusal> {
    let notes = Notes::default();
    let mut keys = Keys::read(body, &keys::MESSAGES, &notes)?;
    let request = conversation(&mut keys, served)?;
    if request.options.max_tokens.is_none() {
        return Err(Refusal::invalid(
            Some("max_tokens"),
            "`max_tokens` is missing; Anthropic's clients must set it",
        ));
    }
    let (stream, _) = keys.stream()?;
    keys.finish()?;
    Ok(AnswerRequest { stream, usage: true, ignored: notes.names(), ..request })
}

/// The conversation of a request, with all that changes its prompt or its answer.
pub(super) fn conversation(keys: &mut Keys<'_>, served: &Served<'_>) -> Result<AnswerRequest, Refusal> {
    keys.model(served)?;
    let said: Vec<Value> = keys.take("messages")?.unwrap_or_default();
    let system: Option<Value> = keys.take("system")?;
    let mut messages = Vec::new();
    if let Some(system) = system {
        messages.push(Message::new(Role::System, text(system, keys.notes)?));
    }
    for said in said {
        add(said, &mut messages, keys.notes)?;
    }
    let wrong = |message: &str| Refusal::invalid(Some("messages"), message);
    let prefill = match messages.last() {
        None | Some(Message { role: Role::System, .. }) => {
            return Err(wrong("`messages` is empty: what is to be answered?"));
        }
        Some(Message { role: Role::Assistant, calls, .. }) if !calls.is_empty() => {
            return Err(wrong("the last message calls tools; send what came of the calls after it"));
        }
        // an answer that the assistant has begun
        Some(Message { role: Role::Assistant, .. }) => messages.pop().map(|message| message.content),
        Some(Message { role: Role::User | Role::Tool, .. }) => None,
    };
    keys.rename("stop_sequences", "stop")?;
    let mut options = keys.options()?;
    Keys::some_tokens(&options, "max_tokens")?;
    let tools = tools(keys)?;
    let steering = steering_of(keys, &mut options)?;
    Ok(AnswerRequest {
        options,
        tools,
        steering,
        prefill,
        ..AnswerRequest::of(Ask::Conversation(messages.into()))
    })
}

/// Reads `thinking`, which clients of other makers send to chats, too. Anthropic's must set a budget.
pub(super) fn thinking(
    keys: &mut Keys<'_>,
    steering: &mut Steering,
    with_budget: bool,
) -> Result<(), Refusal> {
    let Some(mut thinking) = keys.fields("thinking")? else { return Ok(()) };
    match thinking.must::<String>("type")?.as_str() {
        "enabled" => {
            let budget = if with_budget {
                Some(thinking.must("budget_tokens")?)
            } else {
                thinking.take("budget_tokens")?
            };
            match budget {
                Some(0) => {
                    return Err(Refusal::invalid(Some("thinking"), "`budget_tokens` is 0; it is 1 or more"));
                }
                Some(tokens) => steering.set_budget(tokens),
                None => steering.enabled = Some(true),
            }
        }
        "adaptive" => {}
        "disabled" => steering.enabled = Some(false),
        kind => {
            let message = format!("`thinking` is `{kind}`; it is enabled, adaptive or disabled");
            return Err(Refusal::invalid(Some("thinking"), message));
        }
    }
    thinking.finish()
}

/// How much the model reasons, and the schema of its answer, which Anthropic says beside it.
fn steering_of(keys: &mut Keys<'_>, options: &mut Options) -> Result<Steering, Refusal> {
    let mut steering = Steering::default();
    thinking(keys, &mut steering, true)?;
    let wrong = |key: &str, message: String| Refusal::invalid(Some(key), format!("`{key}`: {message}"));
    let mut format = keys.fields("output_format")?;
    if let Some(mut output) = keys.fields("output_config")? {
        if let Some(effort) = output.take::<String>("effort")? {
            let enabled = steering.enabled;
            steering.set_effort(&effort).map_err(|message| wrong("output_config", message))?;
            // an effort is for tokens of any kind; whether it reasons is said by `thinking`
            steering.enabled = enabled;
        }
        if let Some(inner) = output.take("format")? {
            format = Some(Fields::new(inner, "output_config", "`format`", keys.notes)?);
        }
        output.finish()?;
    }
    if let Some(mut format) = format {
        match format.must::<String>("type")?.as_str() {
            "json_schema" => options.schema = Some(format.must("schema")?),
            kind => {
                let message = format!("a format of type `{kind}` is not implemented here: json_schema is");
                return Err(Refusal::invalid(Some("output_config"), message));
            }
        }
        format.finish()?;
    }
    if let Some(variables) = keys.take("chat_template_kwargs")? {
        steering.set_variables(variables).map_err(|message| wrong("chat_template_kwargs", message))?;
    }
    Ok(steering)
}

/// A part of a message.
enum Block {
    Text(String),
    Thinking(String),
    Call(Call),
    Result {
        id: String,
        content: String,
    },
    /// One that says nothing here.
    Nothing,
}

fn not_here(kind: &str) -> Refusal {
    Refusal::invalid(Some("messages"), format!("content of type `{kind}` is not implemented here: text is"))
}

/// The parts of a content.
fn blocks(content: Value, notes: &Notes) -> Result<Vec<Block>, Refusal> {
    match content {
        Value::String(text) => Ok(vec![Block::Text(text)]),
        Value::Array(blocks) => blocks.into_iter().map(|each| block(each, notes)).collect(),
        _ => Err(Refusal::invalid(Some("messages"), "a content is neither a text nor a list of blocks")),
    }
}

/// A part of a content.
fn block(block: Value, notes: &Notes) -> Result<Block, Refusal> {
    let kind = block.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut block = Fields::new(block, "messages", format!("a block of type `{kind}`"), notes)?;
    // clients send answers back with these
    block.without_effect(&["type", "citations", "signature", "caller"]);
    let read = match kind.as_str() {
        "text" => Block::Text(block.must("text")?),
        "thinking" => Block::Thinking(block.must("thinking")?),
        // another server's, and encrypted
        "redacted_thinking" => Block::Nothing,
        "tool_use" => Block::Call(Call {
            id: block.must("id")?,
            name: block.must("name")?,
            arguments: block.must("input")?,
        }),
        "tool_result" => {
            let content = block.take("content")?.map_or(Ok(String::new()), |content| text(content, notes))?;
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
fn text(content: Value, notes: &Notes) -> Result<String, Refusal> {
    let text = |block| match block {
        Block::Text(text) => Ok(text),
        Block::Nothing => Ok(String::new()),
        Block::Thinking(_) => Err(not_here("thinking")),
        Block::Call(_) => Err(not_here("tool_use")),
        Block::Result { .. } => Err(not_here("tool_result")),
    };
    blocks(content, notes)?.into_iter().map(text).collect()
}

/// One message; what tools have answered becomes messages of their own before it.
fn add(said: Value, messages: &mut Vec<Message>, notes: &Notes) -> Result<(), Refusal> {
    let mut said = Fields::new(said, "messages", "a message", notes)?;
    let role = match said.must::<String>("role")?.as_str() {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" => Role::System,
        other => {
            let message = format!(
                "role `{other}` is not implemented here: user and assistant are, and `system` beside"
            );
            return Err(Refusal::invalid(Some("messages"), message));
        }
    };
    let mut message = Message::new(role, "");
    let mut says = false;
    let content = said.must("content")?;
    said.finish()?;
    for block in blocks(content, notes)? {
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
            (Block::Nothing, _) => {}
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

/// Tools that Anthropic's own servers run. This server has none, so the model never sees them.
const HOSTED: [&str; 5] = ["web_search_", "web_fetch_", "code_execution_", "tool_search_", "mcp_toolset"];

fn tools(keys: &mut Keys<'_>) -> Result<Option<Tools>, Refusal> {
    let tools: Vec<Value> = keys.take("tools")?.unwrap_or_default();
    let mut functions = Vec::new();
    for tool in tools {
        let mut tool = Fields::new(tool, "tools", "a tool", keys.notes)?;
        match tool.take::<String>("type")?.as_deref() {
            None | Some("custom") => {}
            Some(kind) if HOSTED.iter().any(|hosted| kind.starts_with(hosted)) => {
                keys.notes.add(format!("tools.{kind}"));
                continue;
            }
            Some(kind) => {
                return Err(Refusal::invalid(
                    Some("tools"),
                    format!(
                        "a tool of type `{kind}` is not implemented here: those with an `input_schema` are"
                    ),
                ));
            }
        }
        functions.push(Function {
            name: tool.must("name")?,
            description: tool.take("description")?,
            parameters: tool.take("input_schema")?,
            strict: tool.take("strict")?.unwrap_or(false),
        });
        tool.finish()?;
    }
    let Some(mut choice) = keys.fields("tool_choice")? else {
        return Tools::new(functions, ToolChoice::Auto, None, true);
    };
    let parallel = !choice.take("disable_parallel_tool_use")?.unwrap_or(false);
    let (kind, name): (String, Option<String>) = (choice.must("type")?, choice.take("name")?);
    choice.finish_all()?;
    let (choice, allowed) = match (kind.as_str(), name) {
        ("none", None) => return Ok(None),
        ("auto", None) => (ToolChoice::Auto, None),
        ("any", None) => (ToolChoice::Required, None),
        ("tool", Some(name)) => (ToolChoice::Required, Some([name])),
        (kind, _) => {
            let message =
                format!("`tool_choice` is `{kind}`; it is none, auto, any, or tool with its `name`");
            return Err(Refusal::invalid(Some("tool_choice"), message));
        }
    };
    Tools::new(functions, choice, allowed.as_ref().map(<[String; 1]>::as_slice), parallel)
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
    /// Blocks begun so far, and the kind of the open block, if one is open.
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
            Told::Begins { prompt, .. } => {
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
            Told::Vector(_) | Told::Said(_) => {}
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
        messages(body.to_string().as_bytes(), &Served { model: "m", strict: true, stored: None })
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
        assert_eq!(request.ignored, ["messages.cache_control", "metadata"]);
        assert_eq!((request.options.max_tokens, request.options.stop), (Some(5), vec!["x".to_owned()]));
    }

    #[test]
    fn thinking_prefills_and_hosted_tools_are_taken_as_they_are_meant() {
        let request = read(&json!({
            "max_tokens": 5,
            "messages": [{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }],
            "thinking": { "type": "enabled", "budget_tokens": 1024 },
            "context_management": { "edits": [] },
            "output_config": { "effort": "high", "format": { "type": "json_schema", "schema": { "const": 7 } } },
            "tools": [{ "type": "web_search_20250305", "name": "web_search" }, { "name": "f", "strict": true }],
        }))
        .unwrap();
        assert_eq!((request.prefill.as_deref(), request.steering.budget), (Some("b"), Some(1024)));
        assert_eq!(request.steering.effort.as_deref(), Some("high"));
        assert_eq!(request.options.schema, Some(json!({ "const": 7 })));
        assert!(request.tools.unwrap().callable[0].strict);
        assert_eq!(request.ignored, ["context_management", "tools.web_search_20250305"]);
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
            (json!({ "thinking": { "type": "enabled" } }), "has no `budget_tokens`"),
            (json!({ "thinking": { "type": "much" } }), "`thinking` is `much`"),
            (json!({ "stop": "x" }), "`stop` is not implemented"),
            (json!({ "n": 2 }), "`n` is not implemented"),
            (json!({ "tools": [{ "type": "bash_20250124", "name": "bash" }] }), "type `bash_20250124`"),
            (json!({ "tool_choice": { "type": "tool" } }), "`tool_choice` is `tool`"),
            (json!({ "container": "c" }), "`container` is not implemented"),
            (json!({ "messages": [{ "role": "user", "content": [{ "type": "text" }] }] }), "has no `text`"),
            (
                json!({ "messages": [{ "role": "user", "content": 7 }] }),
                "neither a text nor a list of blocks",
            ),
        ] {
            let said = with(extra.clone());
            assert!(said.contains(words), "{extra}: {said}");
        }
        let told = refusal(&Refusal::broken("x"));
        assert_eq!(told, json!({ "type": "error", "error": { "type": "api_error", "message": "x" } }));
    }
}
