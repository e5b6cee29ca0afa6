//! Ollama's chat and generation: requests as its clients send them, and answers as lines of JSON.

use std::time::Instant;

use serde_json::{Map, Value, json};

use super::super::chat::conversation::{Call, Message, Role};
use super::super::reasoning::Channel;
use super::super::steering::Steering;
use super::answer::{Event, Form, Head, Whole};
use super::keys::{Endpoint, Fields, Keys, Notes, Served};
use super::request::{AnswerRequest, Ask, Input, Options, Refusal};
use super::tools::{Function, ToolChoice, Tools};
use super::{Told, Usage, schema};

/// A request to `/api/chat`.
pub(super) fn chat(body: &[u8], served: &Served<'_>) -> Result<AnswerRequest, Refusal> {
    const KEYS: Endpoint =
        Endpoint::of(&["model", "messages", "tools", "format", "options", "stream", "think"]);
    let notes = Notes::default();
    let mut keys = Keys::read(body, &KEYS, &notes)?;
    let said: Vec<Value> = keys.take("messages")?.unwrap_or_default();
    if said.is_empty() {
        return Err(Refusal::invalid(Some("messages"), "`messages` is empty: what is to be answered?"));
    }
    let mut messages = Vec::with_capacity(said.len());
    for said in said {
        add(said, &mut messages, &notes)?;
    }
    let tools = tools(&mut keys)?;
    let request = AnswerRequest { tools, ..AnswerRequest::of(Ask::Conversation(messages)) };
    finish(keys, served, request).map(|request| AnswerRequest { ignored: notes.names(), ..request })
}

/// A request to `/api/generate`.
pub(super) fn generate(body: &[u8], served: &Served<'_>) -> Result<AnswerRequest, Refusal> {
    const KEYS: Endpoint =
        Endpoint::of(&["model", "prompt", "system", "raw", "format", "options", "stream", "think"]);
    let notes = Notes::default();
    let mut keys = Keys::read(body, &KEYS, &notes)?;
    let prompt: String = keys.take("prompt")?.unwrap_or_default();
    let system: Option<String> = keys.take("system")?;
    for refused in ["suffix", "template", "images", "context"] {
        if keys.get(refused).is_some_and(|value| *value != json!("") && *value != json!([])) {
            let message = format!("`{refused}` is not implemented here; leave it away");
            return Err(Refusal::invalid(Some(refused), message));
        }
    }
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
    given.refuse(&["mirostat", "typical_p", "tfs_z", "penalize_newline"])?;
    given.finish()?;
    // without an end but the model's own
    keys.forget("max_tokens", &json!(-2));
    keys.options()
}

/// A message; what a tool has answered belongs to the call before that has its name, or to the first that nothing answers yet.
fn add(said: Value, messages: &mut Vec<Message>, notes: &Notes) -> Result<(), Refusal> {
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
    said.refuse(&["images"])?;
    let content: String = said.take("content")?.unwrap_or_default();
    let reasoning: Option<String> = said.take("thinking")?.filter(|thought: &String| !thought.is_empty());
    let calls: Vec<Value> = said.take("tool_calls")?.unwrap_or_default();
    let first = messages.iter().map(|message| message.calls.len()).sum::<usize>();
    let call = |(index, call): (usize, Value)| {
        let mut call = Fields::new(call, "messages", "a call", notes)?;
        let mut function = call.inner("function", "a call's function")?;
        let id = call.take("id")?.unwrap_or_else(|| format!("call{:05}", first + index));
        function.without_effect(&["index"]);
        let arguments: Map<String, Value> = function.take("arguments")?.unwrap_or_default();
        Ok(Call { id, name: function.must("name")?, arguments })
    };
    let calls: Vec<Call> = calls.into_iter().enumerate().map(call).collect::<Result<_, Refusal>>()?;
    let (by_id, name): (Option<String>, Option<String>) =
        (said.take("tool_call_id")?, said.take("tool_name")?);
    let answers = if role == Role::Tool {
        let answered: Vec<&String> = messages.iter().filter_map(|message| message.answers.as_ref()).collect();
        let open = |call: &&Call| {
            !answered.contains(&&call.id) && name.as_ref().is_none_or(|name| *name == call.name)
        };
        let id = by_id.or_else(|| {
            let mut calls = messages.iter().flat_map(|message| &message.calls);
            calls.find(open).map(|call| call.id.clone())
        });
        Some(id.ok_or_else(|| {
            Refusal::invalid(Some("messages"), "a message of the role tool answers no call before it")
        })?)
    } else {
        None
    };
    said.finish()?;
    messages.push(Message { reasoning, calls, answers, ..Message::new(role, content) });
    Ok(())
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
        ] {
            let said = chat(wrong.to_string().as_bytes(), &SERVED).unwrap_err().message;
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn a_text_is_a_message_or_goes_on_as_it_is() {
        let ask = |body: Value| generate(body.to_string().as_bytes(), &SERVED).map(|request| request.ask);
        let system = Message::new(Role::System, "s");
        let user = Message::new(Role::User, "p");
        assert_eq!(ask(json!({ "prompt": "p", "system": "s" })), Ok(Ask::Conversation(vec![system, user])));
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
        let usage = Usage { prompt: 3, cached: 0, answer: 2 };
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
