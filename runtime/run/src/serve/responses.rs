//! `OpenAI`'s responses: what clients send, and how an answer is written for them. Nothing is stored: a conversation is sent whole.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::chat::conversation::{Call, Message, Role};
use super::super::reasoning::Channel;
use super::answer::{Event, Form, Head, Heard, Whole};
use super::request::{Ask, Fields, Keys, Refusal, AnswerRequest, arguments_of, text_of};
use super::tools::{ToolChoice, Function, Tools};
use super::{Told, Usage, schema};

/// Keys of its request that a response repeats.
const REPEATED: [&str; 8] = [
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "temperature",
    "tool_choice",
    "tools",
    "top_p",
];

/// A request to `/v1/responses`.
pub(super) fn response(body: &[u8], served: &str) -> Result<AnswerRequest, Refusal> {
    let mut keys = Keys::read(body)?;
    keys.model(served)?;
    let mut repeated =
        json!({ "parallel_tool_calls": true, "tool_choice": "auto", "tools": [], "metadata": {} });
    for key in REPEATED {
        if let Some(value) = keys.get(key) {
            repeated[key] = value.clone();
        }
    }
    let mut messages = Vec::new();
    if let Some(instructions) = keys.take::<String>("instructions")? {
        messages.push(Message::new(Role::System, instructions));
    }
    match keys.take("input")? {
        None => return Err(Refusal::invalid(Some("input"), "`input` is missing: what is to be answered?")),
        Some(Input::Text(text)) => messages.push(Message::new(Role::User, text)),
        Some(Input::Items(items)) => {
            let mut thought = None;
            items.into_iter().try_for_each(|item| add(item, &mut thought, &mut messages))?;
            if thought.is_some() {
                return Err(wrong(
                    "an item of type `reasoning` at the end is not implemented here; leave it away",
                ));
            }
        }
    }
    if !messages.iter().any(|message| message.role != Role::System) {
        return Err(Refusal::invalid(Some("input"), "`input` is empty: what is to be answered?"));
    }
    keys.rename("max_output_tokens", "max_tokens")?;
    let mut options = keys.options()?;
    if options.choices > 1 {
        return Err(Refusal::invalid(Some("n"), "`n` is not implemented here; leave it away"));
    }
    options.schema = keys.take("text")?.map_or(Ok(None), schema_of)?;
    let tools = tools(&mut keys)?;
    if tools.is_some() && options.schema.is_some() {
        let message = "`text.format` beside `tools` is not implemented here; leave one away";
        return Err(Refusal::invalid(Some("text"), message));
    }
    let (stream, _) = keys.stream()?;
    keys.finish()?;
    Ok(AnswerRequest { ask: Ask::Conversation(messages), options, tools, stream, usage: true, repeated })
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Text(String),
    Items(Vec<Value>),
}

fn wrong(message: impl Into<String>) -> Refusal {
    Refusal::invalid(Some("input"), message)
}

fn text(content: Option<Value>) -> Result<String, Refusal> {
    let kinds = ["input_text", "output_text", "text", "reasoning_text", "summary_text"];
    text_of(content, "input", &kinds)
}

/// One item; what the model thought belongs to the message that comes next, and calls to the one before.
fn add(item: Value, thought: &mut Option<String>, messages: &mut Vec<Message>) -> Result<(), Refusal> {
    let kind = item.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
    let mut item = Fields::new(item, "input", format!("an item of type `{kind}`"))?;
    // which it had where it came from
    item.without_effect(&["type", "id", "status"]);
    match kind.as_str() {
        "message" => {
            let role = match item.take::<String>("role")?.unwrap_or_default().as_str() {
                "system" | "developer" => Role::System,
                "user" => Role::User,
                "assistant" => Role::Assistant,
                other => {
                    return Err(wrong(format!(
                        "role `{other}` is not implemented here: system, user and assistant are"
                    )));
                }
            };
            let reasoning = if role == Role::Assistant { thought.take() } else { None };
            messages.push(Message { reasoning, ..Message::new(role, text(item.take("content")?)?) });
        }
        "reasoning" => {
            item.empty("summary");
            *thought = Some(text(item.take("content")?)?).filter(|text| !text.is_empty());
        }
        "function_call" => {
            let call = Call {
                id: item.must("call_id")?,
                name: item.must("name")?,
                arguments: arguments_of(&item.take::<String>("arguments")?.unwrap_or_default(), "input")?,
            };
            match messages.last_mut().filter(|message| message.role == Role::Assistant) {
                Some(message) => message.calls.push(call),
                None => messages.push(Message {
                    reasoning: thought.take(),
                    calls: vec![call],
                    ..Message::new(Role::Assistant, "")
                }),
            }
        }
        "function_call_output" => {
            let answers = Some(item.must("call_id")?);
            messages.push(Message { answers, ..Message::new(Role::Tool, text(item.take("output")?)?) });
        }
        kind => {
            return Err(wrong(format!("an item of type `{kind}` is not implemented here; leave it away")));
        }
    }
    item.finish()
}

/// Schema that the answer must keep, if there is one.
fn schema_of(text: Value) -> Result<Option<Value>, Refusal> {
    let mut text = Fields::new(text, "text", "`text`")?;
    let format: Option<Value> = text.take("format")?;
    text.finish()?;
    let Some(format) = format else { return Ok(None) };
    let mut format = Fields::new(format, "text", "`text.format`")?;
    let (kind, schema): (String, Option<Value>) = (format.must("type")?, format.take("schema")?);
    // a name is for people, and a schema is enforced either way
    if schema.is_some() {
        format.without_effect(&["name", "description", "strict"]);
    }
    let schema = match (kind.as_str(), schema) {
        ("text", None) => None,
        ("json_object", None) => Some(schema::any_object()),
        ("json_schema", Some(schema)) => Some(schema),
        (kind, _) => {
            let message = format!(
                "`text.format` of type `{kind}` is not implemented here: text, json_object and json_schema with its `schema` are"
            );
            return Err(Refusal::invalid(Some("text"), message));
        }
    };
    format.finish()?;
    Ok(schema)
}

fn tools(keys: &mut Keys) -> Result<Option<Tools>, Refusal> {
    let function = |tool: Value| {
        let mut tool = Fields::new(tool, "tools", "a tool")?;
        match tool.must::<String>("type")?.as_str() {
            "function" => Function::read(tool),
            kind => Err(Refusal::invalid(
                Some("tools"),
                format!("a tool of type `{kind}` is not implemented here: function is"),
            )),
        }
    };
    Tools::of_keys(keys, function, |choice| choice.must("name"))
}

/// How an answer is written.
#[derive(Debug)]
pub(super) struct Responses {
    head: Head,
    repeated: Value,
    /// Items that are whole, and the one that is not.
    output: Vec<Value>,
    open: Option<(Channel, String)>,
    cut: bool,
    events: u64,
}

fn used(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": { "cached_tokens": usage.cached, "cache_write_tokens": 0 },
        "output_tokens": usage.answer,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": usage.prompt + usage.answer,
    })
}

impl Responses {
    pub(super) fn new(head: Head, request: &AnswerRequest) -> Self {
        let repeated = request.repeated.clone();
        Self { head, repeated, output: Vec::new(), open: None, cut: false, events: 0 }
    }

    /// The response as far as it is.
    fn response(&self, status: &str, usage: &Value) -> Value {
        let mut response = self.repeated.clone();
        let why = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        let own = json!({
            "id": self.head.id, "object": "response", "created_at": self.head.created, "model": self.head.model,
            "status": status, "error": null, "incomplete_details": why, "output": self.output, "usage": usage,
        });
        if let (Some(all), Value::Object(own)) = (response.as_object_mut(), own) {
            all.extend(own);
        }
        response
    }

    fn status(&self) -> &'static str {
        if self.cut { "incomplete" } else { "completed" }
    }

    fn event(&mut self, name: &'static str, mut data: Value) -> Event {
        (data["type"], data["sequence_number"]) = (Value::from(name), Value::from(self.events));
        self.events += 1;
        Event { name: Some(name), data: data.to_string() }
    }

    /// The number of the item that comes next.
    fn item_id(&self, kind: &str) -> String {
        format!("{kind}_{}_{}", self.head.id, self.output.len())
    }

    fn item(&self, part: Channel, text: &str, status: &str) -> Value {
        let parts =
            if text.is_empty() && status == "in_progress" { json!([]) } else { json!([content(part, text)]) };
        if part == Channel::Reasoning {
            json!({ "id": self.item_id("rs"), "type": "reasoning", "summary": [], "content": parts, "status": status })
        } else {
            json!({ "id": self.item_id("msg"), "type": "message", "role": "assistant", "content": parts, "status": status })
        }
    }

    /// Where in the answer a text stands.
    fn place(&self, part: Channel) -> Value {
        let kind = if part == Channel::Reasoning { "rs" } else { "msg" };
        json!({ "item_id": self.item_id(kind), "output_index": self.output.len(), "content_index": 0 })
    }

    /// Ends the item that has begun.
    fn close(&mut self, events: &mut Vec<Event>) {
        let Some((part, text)) = self.open.take() else { return };
        let (mut done, mut ended) = (self.place(part), self.place(part));
        done["text"] = Value::from(text.as_str());
        ended["part"] = content(part, &text);
        if part == Channel::Reasoning {
            events.push(self.event("response.reasoning_text.done", done));
        } else {
            done["logprobs"] = json!([]);
            events.push(self.event("response.output_text.done", done));
        }
        events.push(self.event("response.content_part.done", ended));
        let item = self.item(part, &text, "completed");
        events.push(
            self.event(
                "response.output_item.done",
                json!({ "output_index": self.output.len(), "item": item }),
            ),
        );
        self.output.push(item);
    }

    fn text(&mut self, part: Channel, text: &str, events: &mut Vec<Event>) {
        if self.open.as_ref().is_none_or(|(open, _)| *open != part) {
            self.close(events);
            let item = self.item(part, "", "in_progress");
            let added = json!({ "output_index": self.output.len(), "item": item });
            events.push(self.event("response.output_item.added", added));
            let mut begun = self.place(part);
            begun["part"] = content(part, "");
            events.push(self.event("response.content_part.added", begun));
            self.open = Some((part, String::new()));
        }
        let mut delta = self.place(part);
        delta["delta"] = Value::from(text);
        if part == Channel::Reasoning {
            events.push(self.event("response.reasoning_text.delta", delta));
        } else {
            delta["logprobs"] = json!([]);
            events.push(self.event("response.output_text.delta", delta));
        }
        if let Some((_, all)) = &mut self.open {
            all.push_str(text);
        }
    }

    fn call(&mut self, call: Call, events: &mut Vec<Event>) {
        self.close(events);
        let arguments = Value::Object(call.arguments).to_string();
        let (id, index) = (self.item_id("fc"), self.output.len());
        let item = |arguments: &str, status: &str| {
            json!({
                "id": id, "type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments,
                "status": status,
            })
        };
        let added = json!({ "output_index": index, "item": item("", "in_progress") });
        events.push(self.event("response.output_item.added", added));
        let delta = json!({ "item_id": id, "output_index": index, "delta": arguments });
        events.push(self.event("response.function_call_arguments.delta", delta));
        let done = json!({ "item_id": id, "output_index": index, "arguments": arguments, "name": call.name });
        events.push(self.event("response.function_call_arguments.done", done));
        let whole = item(&arguments, "completed");
        events.push(self.event("response.output_item.done", json!({ "output_index": index, "item": whole })));
        self.output.push(whole);
    }
}

/// The content of an item.
fn content(part: Channel, text: &str) -> Value {
    if part == Channel::Reasoning {
        json!({ "type": "reasoning_text", "text": text })
    } else {
        json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
    }
}

impl Form for Responses {
    fn events(&mut self, told: Told) -> Vec<Event> {
        let mut events = Vec::new();
        match told {
            Told::Begins { .. } => {
                for name in ["response.created", "response.in_progress"] {
                    let response = self.response("in_progress", &Value::Null);
                    events.push(self.event(name, json!({ "response": response })));
                }
            }
            Told::Text { part, text, .. } => self.text(part, &text, &mut events),
            Told::Call { call, .. } => self.call(call, &mut events),
            Told::Choice { cut, .. } => {
                self.close(&mut events);
                self.cut = cut;
            }
            Told::Ended(usage) => {
                let response = self.response(self.status(), &used(usage));
                let name = if self.cut { "response.incomplete" } else { "response.completed" };
                events.push(self.event(name, json!({ "response": response })));
            }
            Told::Failed(why) => {
                let error = json!({ "code": why.kind, "message": why.message, "param": why.param });
                events.push(self.event("error", error));
            }
            Told::Vector(_) => {}
        }
        events
    }

    fn whole(&mut self, mut whole: Whole) -> String {
        let Heard { content, reasoning, calls, cut, .. } = whole.choices.pop().unwrap_or_default();
        self.cut = cut;
        // the items of a stream, of which nothing is told on the way
        let mut events = Vec::new();
        for (part, text) in [(Channel::Reasoning, reasoning), (Channel::Answer, content)] {
            if !text.is_empty() {
                self.text(part, &text, &mut events);
            }
        }
        calls.into_iter().for_each(|call| self.call(call, &mut events));
        self.close(&mut events);
        self.response(self.status(), &used(whole.usage)).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<AnswerRequest, Refusal> {
        response(body.to_string().as_bytes(), "m")
    }

    #[test]
    fn a_conversation_with_tools_is_read_as_its_messages() {
        let request = read(&json!({
            "model": "m", "instructions": "Be short.", "max_output_tokens": 5, "store": false, "truncation": "disabled",
            "input": [
                { "role": "user", "content": [{ "type": "input_text", "text": "Hi" }] },
                { "type": "reasoning", "id": "1", "summary": [], "content": [{ "type": "reasoning_text", "text": "look" }] },
                { "type": "message", "id": "2", "role": "assistant", "content": [{ "type": "output_text", "text": "I look." }] },
                { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a\": 1}" },
                { "type": "function_call_output", "call_id": "c", "output": "no" },
            ],
            "tools": [{ "type": "function", "name": "f", "parameters": { "type": "object" }, "strict": false }],
            "tool_choice": { "type": "function", "name": "f" },
        }))
        .unwrap();
        let Ask::Conversation(messages) = &request.ask else { panic!("{request:?}") };
        let roles: Vec<&str> = messages.iter().map(|message| message.role.name()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool"]);
        assert_eq!((messages[2].reasoning.as_deref(), messages[2].calls.len()), (Some("look"), 1));
        assert_eq!((messages[3].content.as_str(), messages[3].answers.as_deref()), ("no", Some("c")));
        assert_eq!(
            (request.options.max_tokens, request.tools.unwrap().choice),
            (Some(5), ToolChoice::Named("f".to_owned()))
        );
        assert_eq!(request.repeated["instructions"], "Be short.");
    }

    #[test]
    fn what_is_not_done_is_refused_by_name() {
        for (extra, words) in [
            (json!({ "input": null }), "`input` is missing"),
            (json!({ "input": [] }), "`input` is empty"),
            (json!({ "previous_response_id": "r" }), "`previous_response_id` is not implemented"),
            (json!({ "reasoning": { "effort": "low" } }), "`reasoning` is not implemented"),
            (json!({ "background": true }), "`background` is not implemented"),
            (json!({ "max_tokens": 3 }), "`max_tokens` is unknown"),
            (json!({ "tools": [{ "type": "web_search" }] }), "type `web_search` is not implemented"),
            (json!({ "text": { "format": { "type": "grammar" } } }), "`text.format` of type `grammar`"),
            (json!({ "input": [{ "type": "item_reference", "id": "1" }] }), "type `item_reference`"),
            (
                json!({ "input": [{ "role": "user", "content": "Hi", "name": "ann" }] }),
                "`name` of an item of type `message` is not implemented",
            ),
            (
                json!({ "input": [{ "role": "user", "content": [{ "type": "input_text", "text": "Hi", "colour": 1 }] }] }),
                "`colour` of a part of the content is not implemented",
            ),
            (
                json!({ "input": [{ "type": "function_call", "call_id": "c", "name": "f", "arguments": "", "namespace": "n" }] }),
                "`namespace` of an item of type `function_call`",
            ),
            (json!({ "input": [{ "type": "function_call", "name": "f" }] }), "has no `call_id`"),
            (
                json!({ "input": [{ "type": "reasoning", "summary": [{ "type": "summary_text", "text": "so" }] }] }),
                "`summary` of an item of type `reasoning`",
            ),
            (
                json!({ "input": [{ "type": "reasoning", "summary": [], "encrypted_content": "x" }] }),
                "`encrypted_content` of an item",
            ),
            (json!({ "input": ["a"] }), "is no object"),
            (json!({ "tools": [{ "type": "function", "name": "f", "colour": 1 }] }), "`colour` of a tool is"),
            (json!({ "tools": [{ "name": "f" }] }), "a tool has no `type`"),
            (
                json!({ "tool_choice": { "type": "function", "name": "f", "colour": 1 } }),
                "`colour` of the choice is",
            ),
            (json!({ "text": { "verbosity": "low" } }), "`verbosity` of `text` is"),
            (
                json!({ "text": { "format": { "type": "json_schema", "schema": {}, "colour": 1 } } }),
                "`colour` of `text.format` is",
            ),
            (json!({ "store": true }), "`store` is not implemented"),
            (json!({ "service_tier": "priority" }), "`service_tier` is not implemented"),
            (
                json!({ "input": [{ "role": "user", "content": [{ "type": "input_image" }] }] }),
                "type `input_image`",
            ),
        ] {
            let mut body = json!({ "input": "Hi" });
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let said = read(&body).expect_err("it is refused").message;
            assert!(said.contains(words), "{extra}: {said}");
        }
    }
}
