//! Ollama's chat and generation: requests as its clients send them, and answers as lines of JSON.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use serde_json::{Map, Value, json};

use super::super::chat::conversation::{Call, Message, Role};
use super::super::reasoning::Channel;
use super::super::steering::Steering;
use super::answer::{Event, Form, Head, Whole};
use super::keys::{self, Fields, Keys, Neutral, Notes, OFF, Served};
use super::request::{AnswerRequest, Ask, Input, Options, Refusal};
use super::tools::{Function, ToolChoice, Tools};
use super::{Told, Usage, schema};

/// A request to `/api/chat`.
pub(super) fn chat(body: &[u8], served: &Served<'_>) -> Result<AnswerRequest, Refusal> {
    let notes = Notes::default();
    let mut keys = Keys::read(body, &keys::OLLAMA_CHAT, &notes)?;
    let said: Vec<Value> = keys.take("messages")?.unwrap_or_default();
    if said.is_empty() {
        return Err(Refusal::invalid(Some("messages"), "`messages` is empty: what is to be answered?"));
    }
    let mut calls = CallsSoFar::default();
    let messages = said.into_iter().map(|said| message(said, &mut calls, &notes));
    let messages = messages.collect::<Result<_, _>>()?;
    let tools = tools(&mut keys)?;
    let request = AnswerRequest { tools, ..AnswerRequest::of(Ask::Conversation(messages)) };
    finish(keys, served, request).map(|request| AnswerRequest { ignored: notes.names(), ..request })
}

/// A request to `/api/generate`.
pub(super) fn generate(body: &[u8], served: &Served<'_>) -> Result<AnswerRequest, Refusal> {
    let notes = Notes::default();
    let mut keys = Keys::read(body, &keys::OLLAMA_GENERATE, &notes)?;
    let prompt: String = keys.take("prompt")?.unwrap_or_default();
    let system: Option<String> = keys.take("system")?;
    let ask = if keys.take("raw")?.unwrap_or(false) {
        Ask::Prompts(vec![Input::Text(prompt)])
    } else {
        let system = system.map(|system| Message::new(Role::System, system));
        Ask::Conversation(system.into_iter().chain([Message::new(Role::User, prompt)]).collect())
    };
    let request = finish(keys, served, AnswerRequest::of(ask))?;
    Ok(AnswerRequest { ignored: notes.names(), ..request })
}

/// The keys that both have.
fn finish(mut keys: Keys<'_>, served: &Served<'_>, request: AnswerRequest) -> Result<AnswerRequest, Refusal> {
    keys.model(served)?;
    let mut options = options(&mut keys)?;
    options.schema = match keys.take::<Value>("format")? {
        None => None,
        Some(Value::String(word)) if word == "json" => Some(schema::any_object()),
        Some(Value::String(word)) if word.is_empty() => None,
        Some(schema) => Some(schema),
    };
    let mut steering = Steering::default();
    match keys.take::<Value>("think")? {
        None => {}
        Some(Value::Bool(enabled)) => steering.enabled = Some(enabled),
        Some(Value::String(effort)) => steering
            .set_effort(&effort)
            .map_err(|message| Refusal::invalid(Some("think"), format!("`think`: {message}")))?,
        Some(_) => return Err(Refusal::invalid(Some("think"), "`think` is true, false or an effort")),
    }
    let stream = keys.take("stream")?.unwrap_or(true);
    keys.finish()?;
    Ok(AnswerRequest { options, steering, stream, usage: true, ..request })
}

/// Options that would change an answer, with their neutral values: Ollama's defaults, and what this server does.
const REFUSED: &[(&str, Neutral)] = &[
    ("mirostat", OFF),
    ("n", &["1"]),
    ("penalize_newline", &["true"]),
    ("repeat_last_n", &["64"]),
    ("tfs_z", &["1", "1.0"]),
    ("typical_p", &["1", "1.0"]),
];

/// Sampling, which Ollama has in an object of its own, by other names.
fn options(keys: &mut Keys<'_>) -> Result<Options, Refusal> {
    let Some(mut given) = keys.fields("options")? else { return keys.options() };
    for (theirs, ours) in
        [("num_predict", "max_tokens"), ("seed", "seed"), ("stop", "stop"), ("top_k", "top_k")]
    {
        keys.put(ours, given.take(theirs)?);
    }
    for key in ["temperature", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty"] {
        keys.put(key, given.take(key)?);
    }
    given.refuse(REFUSED)?;
    given.finish()?;
    // without an end but the model's own
    keys.forget("max_tokens", &json!(-2));
    keys.options()
}

/// The calls of a conversation, each with its number, and the calls without a result.
#[derive(Debug, Default)]
struct CallsSoFar {
    count: usize,
    open: BTreeMap<usize, Call>,
    by_id: HashMap<String, usize>,
    by_name: HashMap<String, BTreeSet<usize>>,
}

impl CallsSoFar {
    fn add(&mut self, call: &Call) {
        self.open.insert(self.count, call.clone());
        self.by_id.insert(call.id.clone(), self.count);
        self.by_name.entry(call.name.clone()).or_default().insert(self.count);
        self.count += 1;
    }

    /// Takes the first open call, or the first one of a tool. Returns its id.
    fn first(&mut self, name: Option<&str>) -> Option<String> {
        let number = match name {
            None => *self.open.first_key_value()?.0,
            Some(name) => *self.by_name.get(name)?.first()?,
        };
        self.close(number)
    }

    /// Takes the call of an id.
    fn of_id(&mut self, id: String) -> String {
        if let Some(&number) = self.by_id.get(&id) {
            self.close(number);
        }
        id
    }

    fn close(&mut self, number: usize) -> Option<String> {
        let call = self.open.remove(&number)?;
        if let Some(numbers) = self.by_name.get_mut(&call.name) {
            numbers.remove(&number);
        }
        Some(call.id)
    }
}

/// A message. The result of a tool belongs to the call of its id, or else to the first open call of the tool.
fn message(said: Value, so_far: &mut CallsSoFar, notes: &Notes) -> Result<Message, Refusal> {
    let mut said = Fields::new(said, "messages", "a message", notes)?;
    let role = match said.must::<String>("role")?.as_str() {
        "system" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        other => {
            let message =
                format!("role `{other}` is not implemented here: system, user, assistant and tool are");
            return Err(Refusal::invalid(Some("messages"), message));
        }
    };
    said.refuse(&[("images", OFF)])?;
    let content: String = said.take("content")?.unwrap_or_default();
    let reasoning: Option<String> = said.take("thinking")?.filter(|thought: &String| !thought.is_empty());
    let calls: Vec<Value> = said.take("tool_calls")?.unwrap_or_default();
    let call = |call: Value| {
        let mut call = Fields::new(call, "messages", "a call", notes)?;
        let mut function = call.inner("function", "a call's function")?;
        let id = call.take("id")?.unwrap_or_else(|| format!("call{:05}", so_far.count));
        call.without_effect(&["type", "index"]);
        call.finish()?;
        let arguments: Map<String, Value> = function.take("arguments")?.unwrap_or_default();
        let call = Call { id, name: function.must("name")?, arguments };
        function.without_effect(&["index"]);
        function.finish()?;
        so_far.add(&call);
        Ok(call)
    };
    let calls: Vec<Call> = calls.into_iter().map(call).collect::<Result<_, Refusal>>()?;
    let (by_id, name): (Option<String>, Option<String>) =
        (said.take("tool_call_id")?, said.take("tool_name")?);
    let answers = if role == Role::Tool {
        let call = by_id.map(|id| so_far.of_id(id)).or_else(|| so_far.first(name.as_deref()));
        Some(call.ok_or_else(|| {
            Refusal::invalid(Some("messages"), "a message of the role tool answers no call before it")
        })?)
    } else {
        None
    };
    said.finish()?;
    Ok(Message { reasoning, calls, answers, ..Message::new(role, content) })
}

fn tools(keys: &mut Keys<'_>) -> Result<Option<Tools>, Refusal> {
    let tools: Vec<Value> = keys.take("tools")?.unwrap_or_default();
    let function = |tool: Value| {
        let mut tool = Fields::new(tool, "tools", "a tool", keys.notes)?;
        let function = Function::read(tool.inner("function", "a tool's function")?)?;
        tool.without_effect(&["type"]);
        tool.finish()?;
        Ok(function)
    };
    let functions = tools.into_iter().map(function).collect::<Result<_, Refusal>>()?;
    Tools::new(functions, ToolChoice::Auto, None, true)
}

/// How an answer is written.
#[derive(Debug)]
pub(super) struct Ollama {
    head: Head,
    is_chat: bool,
    began: Instant,
    first: Option<Instant>,
    cut: bool,
}

impl Ollama {
    pub(super) fn new(head: Head, is_chat: bool) -> Self {
        Self { head, is_chat, began: Instant::now(), first: None, cut: false }
    }

    /// A line with some of the answer, or with all of it.
    fn line(&self, content: &str, thinking: &str, calls: &[Call], more: Value) -> String {
        let created = jiff::Timestamp::from_second(self.head.created as i64).unwrap_or_default();
        let mut line = json!({ "model": self.head.model, "created_at": created.to_string(), "done": false });
        if self.is_chat {
            let mut message = json!({ "role": "assistant", "content": content });
            if !thinking.is_empty() {
                message["thinking"] = Value::from(thinking);
            }
            if !calls.is_empty() {
                let call = |call: &Call| json!({ "id": call.id, "function": { "name": call.name, "arguments": call.arguments } });
                message["tool_calls"] = calls.iter().map(call).collect();
            }
            line["message"] = message;
        } else {
            line["response"] = Value::from(content);
            if !thinking.is_empty() {
                line["thinking"] = Value::from(thinking);
            }
        }
        if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
            line.extend(more);
        }
        line.to_string()
    }

    /// The keys that the last line has.
    fn done(&self, usage: Usage) -> Value {
        let (now, first) = (Instant::now(), self.first.unwrap_or(self.began));
        json!({
            "done": true, "done_reason": if self.cut { "length" } else { "stop" }, "total_duration": (now - self.began).as_nanos() as u64,
            "load_duration": 0, "prompt_eval_count": usage.prompt, "prompt_eval_duration": (first - self.began).as_nanos() as u64,
            "eval_count": usage.answer, "eval_duration": (now - first).as_nanos() as u64,
        })
    }
}

impl Form for Ollama {
    fn events(&mut self, told: Told) -> Vec<Event> {
        let line = match told {
            Told::Begins { .. } | Told::Vector(_) | Told::Said(_) => return Vec::new(),
            Told::Text { part: Channel::Reasoning, text, .. } => self.line("", &text, &[], json!({})),
            Told::Text { text, .. } => self.line(&text, "", &[], json!({})),
            Told::Call { call, .. } => self.line("", "", &[call], json!({})),
            Told::Choice { cut, .. } => {
                self.cut = cut;
                return Vec::new();
            }
            Told::Ended(usage) => self.line("", "", &[], self.done(usage)),
            Told::Failed(why) => refusal(&why).to_string(),
        };
        self.first.get_or_insert_with(Instant::now);
        vec![Event::of(line)]
    }

    fn whole(&mut self, mut whole: Whole) -> String {
        let heard = whole.choices.pop().unwrap_or_default();
        self.cut = heard.cut;
        self.line(&heard.content, &heard.reasoning, &heard.calls, self.done(whole.usage))
    }
}

/// A refusal as Ollama writes it.
pub(super) fn refusal(refusal: &Refusal) -> Value {
    json!({ "error": refusal.message })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVED: Served<'static> = Served { model: "m", strict: false, stored: None };

    #[test]
    fn a_conversation_with_tools_is_read_as_its_messages() {
        let asked = json!({
            "model": "llama3", "keep_alive": "5m", "think": "low", "format": "json",
            "options": { "temperature": 0.5, "num_predict": 7, "num_ctx": 4096, "seed": 3 },
            "messages": [
                { "role": "user", "content": "Hi" },
                { "role": "assistant", "content": "", "tool_calls": [{ "function": { "name": "f", "arguments": { "a": 1 } } }] },
                { "role": "tool", "content": "2", "tool_name": "f" },
            ],
            "tools": [{ "type": "function", "function": { "name": "f", "description": "d", "parameters": { "type": "object" } } }],
        });
        let request = chat(asked.to_string().as_bytes(), &SERVED).unwrap();
        let Ask::Conversation(messages) = &request.ask else { panic!("{request:?}") };
        assert_eq!(messages[2].answers.as_ref(), Some(&messages[1].calls[0].id));
        assert_eq!(request.options.max_tokens, Some(7));
        assert_eq!(
            (request.options.seed, request.options.schema.clone()),
            (Some(3), Some(schema::any_object()))
        );
        assert_eq!((request.steering.effort.as_deref(), request.stream), (Some("low"), true));
        assert_eq!(request.ignored, ["keep_alive", "model", "options.num_ctx"]);
        for (wrong, words) in [
            (json!({ "messages": [] }), "`messages` is empty"),
            (
                json!({ "messages": [{ "role": "user", "content": "a", "images": ["x"] }] }),
                "`images` of a message",
            ),
            (json!({ "messages": [{ "role": "tool", "content": "a" }] }), "answers no call"),
            (
                json!({ "messages": [{ "role": "user", "content": "a" }], "options": { "mirostat": 1 } }),
                "`mirostat` of",
            ),
            (json!({ "messages": [{ "role": "user", "content": "a" }], "options": { "n": 2 } }), "`n` of"),
            (json!({ "messages": [{ "role": "user", "content": "a" }], "n": 2 }), "`n` is not implemented"),
            (
                json!({ "messages": [{ "role": "assistant", "tool_calls": [{ "custom": {}, "function": { "name": "f", "audio": 1 } }] }] }),
                "`audio` of a call's function",
            ),
        ] {
            let said = chat(wrong.to_string().as_bytes(), &SERVED).unwrap_err().message;
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn values_that_ask_for_nothing_are_taken_as_nothing() {
        let body = json!({
            "messages": [{ "role": "user", "content": "a", "images": [] }], "format": "", "n": 1,
            "options": {
                "mirostat": 0, "typical_p": 1.0, "tfs_z": 1, "penalize_newline": true, "repeat_last_n": 64, "num_predict": -1, "seed": -1,
            },
        });
        let request = chat(body.to_string().as_bytes(), &SERVED).unwrap();
        assert_eq!((request.options.max_tokens, request.options.schema), (None, None));
        let generated = generate(
            json!({ "prompt": "a", "suffix": "", "template": "", "images": [], "context": [] })
                .to_string()
                .as_bytes(),
            &SERVED,
        );
        assert!(generated.is_ok(), "{generated:?}");
    }

    /// A result names a tool, an id, or nothing; each belongs to the first call that is still open.
    #[test]
    fn results_belong_to_their_calls_and_long_conversations_take_no_time() {
        let call = |name: &str| json!({ "function": { "name": name, "arguments": {} } });
        let result = |more: Value| {
            let mut message = json!({ "role": "tool", "content": "x" });
            message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            message
        };
        let answered = |messages: Vec<Value>| -> Vec<String> {
            let body = json!({ "messages": messages }).to_string();
            let Ask::Conversation(messages) = chat(body.as_bytes(), &SERVED).unwrap().ask else { panic!() };
            messages.iter().filter_map(|message| message.answers.clone()).collect()
        };
        let calls =
            json!({ "role": "assistant", "tool_calls": [call("f"), call("g"), call("f"), call("g")] });
        let few = vec![
            calls,
            result(json!({ "tool_name": "g" })),
            result(json!({ "tool_call_id": "call00002" })),
            result(json!({})),
            result(json!({ "tool_name": "g" })),
        ];
        assert_eq!(answered(few), ["call00001", "call00002", "call00000", "call00003"]);
        let clock = Instant::now();
        let many = (0..3000).map(|_| json!({ "role": "assistant", "tool_calls": [call("f")] }));
        let many: Vec<Value> = many.chain((0..3000).map(|_| result(json!({ "tool_name": "f" })))).collect();
        assert_eq!(answered(many).len(), 3000);
        assert!(clock.elapsed().as_secs() < 5, "{:?}", clock.elapsed());
    }

    #[test]
    fn a_text_is_a_message_or_goes_on_as_it_is() {
        let ask = |body: Value| generate(body.to_string().as_bytes(), &SERVED).map(|request| request.ask);
        let system = Message::new(Role::System, "s");
        let user = Message::new(Role::User, "p");
        assert_eq!(
            ask(json!({ "prompt": "p", "system": "s" })),
            Ok(Ask::Conversation([system, user].into()))
        );
        let raw = Ask::Prompts(vec![Input::Text("p".to_owned())]);
        assert_eq!(ask(json!({ "prompt": "p", "raw": true })), Ok(raw));
        assert!(ask(json!({ "prompt": "p", "suffix": "s" })).unwrap_err().message.contains("`suffix`"));
    }

    #[test]
    fn an_answer_is_lines_of_which_the_last_is_done() {
        let head = Head { id: "1".to_owned(), created: 0, model: "m".to_owned() };
        let mut form = Ollama::new(head, true);
        let text =
            |part, text: &str| Told::Text { choice: 0, part, text: text.to_owned(), likelihoods: Vec::new() };
        let call = Call { id: "c".to_owned(), name: "f".to_owned(), arguments: Map::new() };
        let usage = Usage { prompt: 3, cached: 0, answer: 2, reasoning: 0 };
        let lines: Vec<Value> = [
            Told::Begins { prompt: 3, ignored: Vec::new() },
            text(Channel::Reasoning, "t"),
            text(Channel::Answer, "a"),
            Told::Call { choice: 0, call },
            Told::Choice { choice: 0, cut: true, stop: None },
            Told::Ended(usage),
        ]
        .into_iter()
        .flat_map(|told| form.events(told))
        .map(|event| serde_json::from_str(&event.data).unwrap())
        .collect();
        let [thought, said, called, done] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!(
            (&thought["message"]["thinking"], &said["message"]["content"]),
            (&json!("t"), &json!("a"))
        );
        assert_eq!(called["message"]["tool_calls"][0]["function"]["name"], "f");
        assert_eq!(
            (&done["done"], &done["done_reason"], &done["eval_count"]),
            (&json!(true), &json!("length"), &json!(2))
        );
        assert_eq!(thought["created_at"], "1970-01-01T00:00:00Z");
    }
}
