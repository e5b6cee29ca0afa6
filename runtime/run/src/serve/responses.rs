//! `OpenAI`'s responses: what clients send, and how an answer is written for them. The latest conversations are stored, so that a
//! request may go on with one.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::chat::conversation::{Call, Message, Role};
use super::super::reasoning::Channel;
use super::super::steering::Steering;
use super::answer::{Event, Form, Head, Heard, Whole};
use super::keys::{self, Fields, Keys, Notes, Served};
use super::request::{AnswerRequest, Ask, Refusal, arguments_of, text_of};
use super::store::Store;
use super::tools::{Function, Tools};
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
pub(super) fn response(body: &[u8], served: &Served<'_>) -> Result<AnswerRequest, Refusal> {
    let notes = Notes::default();
    let mut keys = Keys::read(body, &keys::RESPONSES, &notes)?;
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
    if let Some(id) = keys.take::<String>("previous_response_id")? {
        let stored = served.stored.map(|stored| stored.get(&id)).transpose();
        let stored = stored.map_err(|short| short.refusal("the conversation of `previous_response_id`"))?;
        let stored = stored.flatten().ok_or_else(|| {
            let message = "`previous_response_id` names a response that is not kept here, or not any more; send the conversation whole";
            Refusal {
                code: Some("previous_response_not_found"),
                param: Some("previous_response_id".to_owned()),
                ..Refusal::of(404, "invalid_request_error", message)
            }
        })?;
        repeated["previous_response_id"] = Value::from(id);
        // instructions are not taken over
        messages.extend(stored.into_iter().filter(|message| message.role != Role::System));
    }
    let stores = keys.take("store")?.unwrap_or(true);
    match keys.take("input")? {
        None => return Err(Refusal::invalid(Some("input"), "`input` is missing: what is to be answered?")),
        Some(Input::Text(text)) => messages.push(Message::new(Role::User, text)),
        Some(Input::Items(items)) => {
            let mut thought = None;
            items.into_iter().try_for_each(|item| add(item, &mut thought, &mut messages, &notes))?;
            tell_thought(&mut thought, &mut messages);
        }
    }
    if !messages.iter().any(|message| message.role != Role::System) {
        return Err(Refusal::invalid(Some("input"), "`input` is empty: what is to be answered?"));
    }
    keys.rename("max_output_tokens", "max_tokens")?;
    let mut options = keys.options()?;
    Keys::some_tokens(&options, "max_output_tokens")?;
    options.schema = schema_of(&mut keys)?;
    let tools = tools(&mut keys)?;
    let steering = steering_of(&mut keys)?;
    let (stream, _) = keys.stream()?;
    keys.finish()?;
    Ok(AnswerRequest {
        options,
        tools,
        steering,
        stream,
        usage: true,
        stores,
        repeated,
        ignored: notes.names(),
        ..AnswerRequest::of(Ask::Conversation(messages.into()))
    })
}

/// How much the model reasons.
fn steering_of(keys: &mut Keys<'_>) -> Result<Steering, Refusal> {
    let mut steering = Steering::default();
    let wrong = |key: &str, message: String| Refusal::invalid(Some(key), format!("`{key}`: {message}"));
    if let Some(mut reasoning) = keys.fields("reasoning")? {
        if let Some(effort) = reasoning.take::<String>("effort")? {
            steering.set_effort(&effort).map_err(|message| wrong("reasoning", message))?;
        }
        reasoning.finish()?;
    }
    if let Some(variables) = keys.take("chat_template_kwargs")? {
        steering.set_variables(variables).map_err(|message| wrong("chat_template_kwargs", message))?;
    }
    Ok(steering)
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

fn text(content: Option<Value>, notes: &Notes) -> Result<String, Refusal> {
    let kinds = ["input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal"];
    text_of(content, "input", &kinds, notes)
}

/// Tells reasoning after which no message of the model's came as one of its own.
fn tell_thought(thought: &mut Option<String>, messages: &mut Vec<Message>) {
    if let Some(reasoning) = thought.take() {
        messages.push(Message { reasoning: Some(reasoning), ..Message::new(Role::Assistant, "") });
    }
}

/// Calls of tools that a server of `OpenAI`'s has run.
const HOSTED_CALLS: [&str; 4] =
    ["web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"];

/// One item; what the model thought belongs to its message or call that comes next, and calls to the message before.
fn add(
    item: Value,
    thought: &mut Option<String>,
    messages: &mut Vec<Message>,
    notes: &Notes,
) -> Result<(), Refusal> {
    let kind = item.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
    let mut item = Fields::new(item, "input", format!("an item of type `{kind}`"), notes)?;
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
            if role != Role::Assistant {
                tell_thought(thought, messages);
            }
            let content = text(item.take("content")?, notes)?;
            messages.push(Message { reasoning: thought.take(), ..Message::new(role, content) });
        }
        "reasoning" => {
            let content = text(item.take("content")?, notes)?;
            let summary = text(item.take("summary")?, notes)?;
            // a summary stands for what the client was not told
            let more = if content.is_empty() { summary } else { content };
            if !more.is_empty() {
                *thought = Some(thought.take().map_or_else(|| more.clone(), |before| before + "\n" + &more));
            }
        }
        "function_call" => {
            let (name, namespace): (String, Option<String>) = (item.must("name")?, item.take("namespace")?);
            let call = Call {
                id: item.must("call_id")?,
                name: namespaced(namespace.as_deref(), &name),
                arguments: arguments_of(&item.take::<String>("arguments")?.unwrap_or_default(), "input")?,
            };
            match messages.last_mut().filter(|last| last.role == Role::Assistant && thought.is_none()) {
                Some(message) => message.calls.push(call),
                None => messages.push(Message {
                    reasoning: thought.take(),
                    calls: vec![call],
                    ..Message::new(Role::Assistant, "")
                }),
            }
        }
        "function_call_output" => {
            tell_thought(thought, messages);
            let answers = Some(item.must("call_id")?);
            let output = text(item.take("output")?, notes)?;
            messages.push(Message { answers, ..Message::new(Role::Tool, output) });
        }
        kind if HOSTED_CALLS.contains(&kind) => {
            notes.add(format!("input.{kind}"));
            return Ok(());
        }
        kind => {
            return Err(wrong(format!("an item of type `{kind}` is not implemented here; leave it away")));
        }
    }
    item.finish()
}

/// Schema that the answer must keep, if there is one.
fn schema_of(keys: &mut Keys<'_>) -> Result<Option<Value>, Refusal> {
    let Some(mut text) = keys.fields("text")? else { return Ok(None) };
    let format: Option<Value> = text.take("format")?;
    text.finish()?;
    let Some(format) = format else { return Ok(None) };
    let mut format = Fields::new(format, "text", "`text.format`", keys.notes)?;
    let (kind, schema): (String, Option<Value>) = (format.must("type")?, format.take("schema")?);
    // a name is for people, and a schema is enforced either way
    format.without_effect(&["name", "description", "strict"]);
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

/// Tools that a server of `OpenAI`'s runs. This server has none, so the model never sees them.
const HOSTED: [&str; 7] = [
    "web_search",
    "web_search_preview",
    "file_search",
    "code_interpreter",
    "image_generation",
    "mcp",
    "tool_search",
];

fn tools(keys: &mut Keys<'_>) -> Result<Option<Tools>, Refusal> {
    let notes = keys.notes;
    let function = |mut tool: Fields<'_>| match tool.must::<String>("type")?.as_str() {
        "function" => Ok(vec![Function::read(tool)?]),
        "namespace" => {
            let namespace: String = tool.must("name")?;
            let tools: Vec<Value> = tool.must("tools")?;
            tool.finish()?;
            let function = |tool: Value| {
                let mut tool = Fields::new(tool, "tools", "a tool of a namespace", notes)?;
                match tool.must::<String>("type")?.as_str() {
                    "function" => {
                        let function = Function::read(tool)?;
                        Ok(Function { name: namespaced(Some(&namespace), &function.name), ..function })
                    }
                    kind => Err(not_a_function(kind)),
                }
            };
            tools.into_iter().map(function).collect()
        }
        kind if HOSTED.contains(&kind) => {
            notes.add(format!("tools.{kind}"));
            Ok(Vec::new())
        }
        kind => Err(not_a_function(kind)),
    };
    Tools::of_keys(keys, function, |choice| choice.must("name"))
}

fn not_a_function(kind: &str) -> Refusal {
    let message = format!("a tool of type `{kind}` is not implemented here: function and namespace are");
    Refusal::invalid(Some("tools"), message)
}

/// Between a namespace and the name of a function in it, as the model sees them.
const IN_NAMESPACE: &str = "__";

/// A function's name as the model sees it.
fn namespaced(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}{IN_NAMESPACE}{name}"))
}

/// How an answer is written.
#[derive(Debug)]
pub(super) struct Responses {
    head: Head,
    repeated: Value,
    /// Namespaces of tools.
    namespaces: Vec<String>,
    /// Items that are whole, and the one that is not.
    output: Vec<Value>,
    open: Option<(Channel, String)>,
    cut: bool,
    events: u64,
    /// The conversation, which the store gets with the answer, if it is kept.
    keeps: Option<(Arc<Store>, Arc<[Message]>)>,
}

fn used(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": { "cached_tokens": usage.cached, "cache_write_tokens": 0 },
        "output_tokens": usage.answer,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning },
        "total_tokens": usage.prompt + usage.answer,
    })
}

impl Responses {
    pub(super) fn new(head: Head, request: &AnswerRequest, store: &Arc<Store>) -> Self {
        let keeps = match &request.ask {
            Ask::Conversation(messages) if request.stores => Some((Arc::clone(store), Arc::clone(messages))),
            _ => None,
        };
        let repeated = request.repeated.clone();
        let tools = repeated["tools"].as_array().into_iter().flatten();
        let namespaces = tools
            .filter(|tool| tool["type"] == "namespace")
            .filter_map(|tool| tool["name"].as_str().map(str::to_owned))
            .collect();
        Self { head, repeated, namespaces, output: Vec::new(), open: None, cut: false, events: 0, keeps }
    }

    /// Keeps the conversation with its answer.
    fn keep(&mut self) {
        let Some((store, messages)) = self.keeps.take() else { return };
        let (mut thought, mut answer, notes) = (None, Vec::new(), Notes::default());
        // items of an answer are valid items of a request
        let read =
            self.output.iter().try_for_each(|item| add(item.clone(), &mut thought, &mut answer, &notes));
        tell_thought(&mut thought, &mut answer);
        if read.is_ok() {
            store.put(&self.head.id, &messages, answer);
        }
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
        let inside = |namespace: &String| {
            let name = call.name.strip_prefix(namespace.as_str())?.strip_prefix(IN_NAMESPACE)?;
            Some((namespace.clone(), name.to_owned()))
        };
        let (namespace, name) = match self.namespaces.iter().find_map(inside) {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, call.name.clone()),
        };
        let item = |arguments: &str, status: &str| {
            let mut item = json!({
                "id": id, "type": "function_call", "call_id": call.id, "name": name, "arguments": arguments,
                "status": status,
            });
            if let Some(namespace) = &namespace {
                item["namespace"] = Value::from(namespace.as_str());
            }
            item
        };
        let added = json!({ "output_index": index, "item": item("", "in_progress") });
        events.push(self.event("response.output_item.added", added));
        let delta = json!({ "item_id": id, "output_index": index, "delta": arguments });
        events.push(self.event("response.function_call_arguments.delta", delta));
        let done = json!({ "item_id": id, "output_index": index, "arguments": arguments, "name": name });
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
                self.keep();
                let response = self.response(self.status(), &used(usage));
                let name = if self.cut { "response.incomplete" } else { "response.completed" };
                events.push(self.event(name, json!({ "response": response })));
            }
            Told::Failed(why) => {
                let error = json!({ "code": why.kind, "message": why.message, "param": why.param });
                events.push(self.event("error", error));
            }
            Told::Vector(_) | Told::Said(_) => {}
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
        self.keep();
        self.response(self.status(), &used(whole.usage)).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::Shares;
    use super::super::store::Lookup;
    use super::super::tools::ToolChoice;
    use super::*;

    fn read(body: &Value) -> Result<AnswerRequest, Refusal> {
        response(body.to_string().as_bytes(), &Served { model: "m", strict: true, stored: None })
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
            (Some(5), ToolChoice::Required)
        );
        assert_eq!(request.repeated["instructions"], "Be short.");
    }

    #[test]
    fn what_the_model_thought_stays_where_it_was_and_nothing_of_it_is_lost() {
        let thought = |text: &str| json!({ "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": text }] });
        let request = read(&json!({ "input": [
            { "role": "user", "content": "Hi" }, thought("a"), thought("b"), { "role": "assistant", "content": "c" }, thought("d"),
            { "type": "function_call", "call_id": "1", "name": "f", "arguments": "" },
            { "type": "function_call_output", "call_id": "1", "output": "e" },
            thought("g"), { "role": "user", "content": "h" }, thought("i"),
        ] }))
        .unwrap();
        let Ask::Conversation(messages) = request.ask else { panic!("no conversation") };
        let told: Vec<_> = messages
            .iter()
            .map(|m| (m.role.name(), m.content.as_str(), m.reasoning.as_deref(), m.calls.len()))
            .collect();
        assert_eq!(
            told,
            [
                ("user", "Hi", None, 0),
                ("assistant", "c", Some("a\nb"), 0),
                ("assistant", "", Some("d"), 1),
                ("tool", "e", None, 0),
                ("assistant", "", Some("g"), 0),
                ("user", "h", None, 0),
                ("assistant", "", Some("i"), 0),
            ]
        );
    }

    #[test]
    fn a_conversation_goes_on_with_a_response_that_is_kept() {
        let store = Arc::new(Store::new(Arc::new(Shares::of(2 << 20).unwrap())));
        let ask = |body: Value| {
            let lookup = Lookup::new(&store);
            let served = Served { model: "m", strict: true, stored: Some(&lookup) };
            let request = response(body.to_string().as_bytes(), &served).unwrap();
            (request, lookup.charge())
        };
        let answered = |id: &str, request: &AnswerRequest| {
            let head = Head { id: id.to_owned(), created: 0, model: "m".to_owned() };
            let choices =
                vec![Heard { content: "b".to_owned(), reasoning: "t".to_owned(), ..Heard::default() }];
            Responses::new(head, request, &store).whole(Whole { choices, ..Whole::default() })
        };
        answered("r1", &ask(json!({ "input": "a", "instructions": "old" })).0);
        answered("r2", &ask(json!({ "input": "c", "store": false })).0);
        assert_eq!(Lookup::new(&store).get("r2"), Ok(None));
        let (next, charge) =
            ask(json!({ "input": "d", "instructions": "new", "previous_response_id": "r1" }));
        assert!(charge.is_some(), "the copy is charged");
        let Ask::Conversation(messages) = &next.ask else { panic!("no conversation") };
        let told: Vec<_> =
            messages.iter().map(|m| (m.role.name(), m.content.as_str(), m.reasoning.as_deref())).collect();
        assert_eq!(
            told,
            [
                ("system", "new", None),
                ("user", "a", None),
                ("assistant", "b", Some("t")),
                ("user", "d", None)
            ]
        );
    }

    /// As Codex asks every time.
    #[test]
    fn tools_in_namespaces_are_functions_and_hosted_ones_are_left_out() {
        let request = read(&json!({
            "input": "Hi", "include": ["reasoning.encrypted_content"], "client_metadata": {}, "store": false,
            "reasoning": { "effort": "medium", "summary": "auto" }, "text": { "verbosity": "low" },
            "tools": [
                { "type": "web_search", "external_web_access": false },
                { "type": "namespace", "name": "mcp", "description": "d", "tools": [{ "type": "function", "name": "look", "parameters": {} }] },
            ],
        }))
        .unwrap();
        assert_eq!(request.tools.as_ref().unwrap().callable[0].name, "mcp__look");
        let ignored = [
            "client_metadata",
            "include",
            "reasoning.summary",
            "text.verbosity",
            "tools.description",
            "tools.web_search",
        ];
        assert_eq!(request.ignored, ignored);
        let head = Head { id: "1".to_owned(), created: 0, model: "m".to_owned() };
        let call =
            Call { id: "c".to_owned(), name: "mcp__look".to_owned(), arguments: serde_json::Map::new() };
        let store = Arc::new(Store::new(Arc::new(Shares::of(2 << 20).unwrap())));
        let events = Responses::new(head, &request, &store).events(Told::Call { choice: 0, call });
        let item = events.iter().find(|event| event.name == Some("response.output_item.done")).unwrap();
        let item: Value = serde_json::from_str(&item.data).unwrap();
        assert_eq!((&item["item"]["name"], &item["item"]["namespace"]), (&json!("look"), &json!("mcp")));
    }

    #[test]
    fn what_is_not_done_is_refused_by_name() {
        for (extra, words) in [
            (json!({ "input": null }), "`input` is missing"),
            (json!({ "input": [] }), "`input` is empty"),
            (
                json!({ "previous_response_id": "r" }),
                "`previous_response_id` names a response that is not kept",
            ),
            (json!({ "reasoning": { "effort": "much" } }), "the effort is `much`"),
            (json!({ "background": true }), "`background` is not implemented"),
            (json!({ "max_tokens": 3 }), "`max_tokens` is not implemented"),
            (json!({ "tools": [{ "type": "custom", "name": "f" }] }), "type `custom` is not implemented"),
            (json!({ "text": { "format": { "type": "grammar" } } }), "`text.format` of type `grammar`"),
            (json!({ "input": [{ "type": "item_reference", "id": "1" }] }), "type `item_reference`"),
            (json!({ "input": [{ "type": "function_call", "name": "f" }] }), "has no `call_id`"),
            (json!({ "input": ["a"] }), "is no object"),
            (json!({ "tools": [{ "name": "f" }] }), "a tool has no `type`"),
            (
                json!({ "tool_choice": { "type": "function", "name": "f", "colour": 1 } }),
                "`colour` of the choice is",
            ),
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
