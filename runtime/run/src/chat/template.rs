//! The model's own template: the messages of a conversation as the tokens that the model was trained on.
//!
//! Templates are Jinja, as `apply_chat_template` of Hugging Face's transformers runs them: lines of blocks alone leave no trace,
//! there are `raise_exception`, `strftime_now` and a `tojson` that escapes nothing for HTML, and the methods of Python's
//! strings, lists and dictionaries. A template is somebody else's program: what it may do is counted, which bounds its time
//! and its memory. What people say is guarded (`guard`).

use std::collections::HashSet;
use std::error::Error as _;
use std::ops::Range;

use flashplan::Tokenizer;
use jiff::Zoned;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize as _;
use serde_json::{Value as Json, json};

use super::conversation::{Call, Message, Role};
use super::guard::{Guard, StandIns};
use crate::reasoning::{self, Tags};
use crate::steering::Steering;

/// The longest template; templates of current models have up to 20 KB.
pub(crate) const SOURCE_BYTES_MAX: usize = 64 << 10;
/// Most work of rendering, in steps or [`FUEL_BYTES`] each: of the template by itself, for each message, and for each byte that it
/// holds. Hugging Face's longest need a tenth of it.
const FUEL: u64 = 40_000;
const FUEL_PER_MESSAGE: u64 = 2_000;
const FUEL_PER_BYTE: u64 = 1;
/// Bytes of a step's work.
const FUEL_BYTES: u64 = 64;
/// All that there is: bytes of a long context are looked at dozens of times.
const FUEL_MAX: u64 = 1 << 20;
/// Bytes of the text that it makes, at most: so many times what is said and the template itself, and so many for each message. The tokens
/// of a text take a hundred times its memory while they are found.
const TEXT_TIMES: usize = 8;
const TEXT_BYTES_PER_MESSAGE: usize = 128;
/// Bytes of stack for each unit of that work. A template may nest lists without end, and code that walks or frees such a list recurses once
/// per level.
const STACK_BYTES_PER_FUEL: usize = 1 << 10;
/// The name under which the environment has it.
const NAME: &str = "template";
/// Variables that tell a template whether the model reasons, and how much.
const SWITCHES: [&str; 3] = ["enable_thinking", "thinking", "reasoning_effort"];
const EFFORTS: [&str; 3] = ["reasoning_effort", "thinking_effort", "reasoning_strength"];

/// Why there are no tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TemplateError {
    /// Neither the model nor the user has one.
    #[error(
        "{model} has no chat template: name one with --template FILE (Jinja), or let it go on with a text by --prompt; a container made before templates were kept has none, and `profile --model` makes it again"
    )]
    None {
        /// The model.
        model: String,
    },
    /// More than any model's.
    #[error(
        "the chat template has {bytes} bytes, and {SOURCE_BYTES_MAX} is the most; name another with --template FILE"
    )]
    Large {
        /// Length of the template.
        bytes: usize,
    },
    /// Words of the template itself about the conversation.
    #[error("the chat template refuses: {0}")]
    Refused(String),
    /// More work than there can be.
    #[error(
        "the chat template does more than a conversation needs and was stopped; name another with --template FILE"
    )]
    Endless,
    /// It says nothing of a tool.
    #[error(
        "the chat template does not tell the model of `tools`; leave them away, or name a template that does with --template FILE"
    )]
    NoTools,
    /// It says nothing of calls that were made.
    #[error(
        "the chat template does not tell the model of `tool_calls`; leave them away, or name a template that does with --template FILE"
    )]
    NoCalls,
    /// It cannot be read, or fails.
    #[error("the chat template has an error: {0}; name another with --template FILE")]
    Wrong(String),
}

/// A template's own words, below an [`Error`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl From<Error> for TemplateError {
    fn from(error: Error) -> Self {
        let raised = error.source().and_then(|source| source.downcast_ref::<Raised>());
        match (raised, error.kind()) {
            (Some(raised), _) => Self::Refused(raised.0.clone()),
            (None, ErrorKind::OutOfFuel) => Self::Endless,
            (None, _) => Self::Wrong(error.to_string()),
        }
    }
}

/// A template, read.
#[derive(Debug)]
pub(crate) struct Template {
    environment: Environment<'static>,
    source: String,
    guard: Guard,
    bos: String,
    eos: String,
    /// Variables that it looks at.
    reads: HashSet<String>,
    /// Whether it takes a call's arguments as they are; some put the text of them together with others, as `DeepSeek`'s.
    takes_objects: bool,
}

/// Calls, each time as a mark of the model's, text, and a mark, where that can be written.
pub(crate) type Written<'w> = dyn Fn(&[Call]) -> Option<Vec<[String; 3]>> + 'w;

/// A conversation as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// Whether the model goes on in the middle of its reasoning.
    pub(crate) reasons: bool,
    /// Whether it ends with the name of who speaks, behind which the answer may go on.
    pub(crate) named: bool,
    /// The tags between which this model reasons, if the template has any.
    pub(crate) tags: Option<Tags>,
    /// Options without effect: the template cannot pass them to the model.
    pub(crate) unread: Vec<String>,
}

/// A conversation, and the other inputs of a template.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'s> {
    pub(crate) messages: &'s [Message],
    /// As `OpenAI` describes them: each one the template must tell the model of.
    pub(crate) tools: &'s [Json],
    /// Writes calls that the template cannot write: they become part of the model's message.
    pub(crate) written: &'s Written<'s>,
    pub(crate) steering: Option<&'s Steering>,
    /// Whether the model is to answer.
    pub(crate) answer: bool,
}

impl<'s> Scene<'s> {
    /// Messages alone.
    pub(crate) fn of(messages: &'s [Message], answer: bool) -> Self {
        Self { messages, tools: &[], written: &|_| None, steering: None, answer }
    }
}

impl Template {
    /// A model's template, tried on a greeting: one that cannot do that can do nothing. Its time is now: a conversation that told
    /// another every minute would be read anew every time.
    pub(crate) fn new(source: &str, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        Self::at(source, tokenizer, Zoned::now())
    }

    fn at(source: &str, tokenizer: &Tokenizer, now: Zoned) -> Result<Self, TemplateError> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(TemplateError::Large { bytes: source.len() });
        }
        let name = |token: Option<u32>| token.and_then(|token| tokenizer.special(token)).unwrap_or_default();
        let mut template = Self {
            environment: environment(source, now)?,
            source: source.to_owned(),
            guard: Guard::new(tokenizer),
            bos: name(tokenizer.bos()).to_owned(),
            eos: name(tokenizer.eos()).to_owned(),
            reads: HashSet::new(),
            takes_objects: true,
        };
        template.reads = template.environment.get_template(NAME)?.undeclared_variables(false);
        template.render(Scene::of(&[Message::new(Role::User, "Hello")], true))?;
        if template.source.contains("tool_calls") {
            let arguments = [("a".to_owned(), Json::from(1))].into_iter().collect();
            let call = Call { id: "a1b2c3d4e".to_owned(), name: "f".to_owned(), arguments };
            let called = Message { calls: vec![call], ..Message::new(Role::Assistant, "") };
            let messages = [Message::new(Role::User, "Hello"), called];
            let mut fails = |takes_objects| {
                template.takes_objects = takes_objects;
                template.render(Scene::of(&messages, false)).is_err()
            };
            // what fails in both ways is told when somebody calls
            template.takes_objects = !fails(true) || fails(false);
        }
        Ok(template)
    }

    /// The template itself.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// The prompt. As in llama.cpp, a model that expects a beginning token gets it where the template has none.
    pub(crate) fn prompt(&self, tokenizer: &Tokenizer, scene: Scene<'_>) -> Result<Prompt, TemplateError> {
        let (text, said) = self.render(scene)?;
        if !scene.tools.is_empty() {
            // who speaks may name a tool that the template does not; one that fails without tools has need of them
            let without = self.render(Scene { tools: &[], ..scene }).unwrap_or_default().0;
            let told = |tool: &Json| {
                let name = tool["function"]["name"].as_str().unwrap_or_default();
                text.matches(name).count() > without.matches(name).count()
            };
            if !scene.tools.iter().all(told) {
                return Err(TemplateError::NoTools);
            }
        }
        let mut tokens = tokenizer.encode_rendered(&text, &said);
        if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos())
            && tokens.first() != Some(&bos)
        {
            tokens.insert(0, bos);
        }
        let end = text.trim_end();
        let touched = said.last().is_some_and(|said| said.end >= end.len());
        let opened = reasoning::opened_by(end).filter(|_| scene.answer && !touched);
        let tags = opened.or_else(|| reasoning::taught_by(&self.source));
        let mut reasons = opened.is_some();
        let off = scene.steering.is_some_and(|steering| steering.enabled == Some(false));
        if let Some((open, close)) = tags.filter(|_| off && scene.answer) {
            // a template that does not know how: the reasoning is over before it begins
            let over = match (reasons, self.reads_any(&SWITCHES)) {
                (true, _) => format!("\n{close}\n\n"),
                (false, true) => String::new(),
                (false, false) => format!("{open}\n\n{close}\n\n"),
            };
            tokens.extend(tokenizer.encode_rendered(&over, &[]));
            reasons = false;
        }
        let unread = scene.steering.map(|steering| self.unread(steering)).unwrap_or_default();
        let named = end.ends_with("<|start|>assistant");
        Ok(Prompt { tokens, reasons, named, tags, unread })
    }

    /// A wish as the model knows it: harmony's have three efforts.
    fn known(&self, name: &str, value: &Json) -> Json {
        if name != EFFORTS[0] || !self.source.contains("<|channel|>analysis") {
            return value.clone();
        }
        Json::from(match value.as_str() {
            Some("none" | "minimal") => "low",
            Some("xhigh" | "max") => "high",
            _ => return value.clone(),
        })
    }

    fn reads_any(&self, names: &[&str]) -> bool {
        names.iter().any(|&name| self.reads.contains(name))
    }

    /// Wishes that the template does not look at. A bound on the tokens, and no reasoning at all, are enforced without it.
    fn unread(&self, steering: &Steering) -> Vec<String> {
        let effort = steering.effort.as_ref().filter(|_| !self.reads_any(&EFFORTS));
        let variables = steering.variables.keys().filter(|name| !self.reads.contains(*name));
        let variables = variables.map(|name| format!("chat_template_kwargs.{name}"));
        effort.map(|_| "reasoning_effort".to_owned()).into_iter().chain(variables).collect()
    }

    /// The text, and the bytes of it that no special token may touch.
    fn render(&self, scene: Scene<'_>) -> Result<(String, Vec<Range<usize>>), TemplateError> {
        let Scene { messages, tools, written, steering, answer } = scene;
        let steering = steering.map(Steering::told).unwrap_or_default();
        let knows_calls = self.source.contains("tool_calls");
        let as_text = |message: &Message| match &message.calls[..] {
            calls if knows_calls || calls.is_empty() => Ok(None),
            calls => written(calls).map(Some).ok_or(TemplateError::NoCalls),
        };
        let as_text: Vec<Option<Vec<[String; 3]>>> =
            messages.iter().map(as_text).collect::<Result<_, _>>()?;
        let objects: Vec<String> = (tools.iter().map(Json::to_string))
            .chain(
                messages
                    .iter()
                    .flat_map(|m| &m.calls)
                    .map(|call| Json::Object(call.arguments.clone()).to_string()),
            )
            .chain(as_text.iter().flatten().flatten().map(|[_, text, _]| text.clone()))
            .chain(steering.values().map(Json::to_string))
            .collect();
        let said = || {
            let texts = messages.iter().flat_map(|m| [Some(&m.content), m.reasoning.as_ref()]).flatten();
            texts.chain(&objects)
        };
        let stand_ins = self.guard.stand_ins(said().map(String::as_str).chain([self.source.as_str()]));
        let guarded = |value: &Json| Value::from(Serde(guarded(value, &stand_ins)));
        let value = |(message, as_text): (&Message, &Option<Vec<[String; 3]>>)| -> Value {
            let mut content = stand_ins.put(&message.content);
            for [before, text, after] in as_text.iter().flatten() {
                content.extend([before.as_str(), &stand_ins.put(text), after]);
            }
            let mut pairs =
                vec![("role", Value::from(message.role.name())), ("content", Value::from(content))];
            if let Some(reasoning) = &message.reasoning {
                // as Qwen's templates call it, and as OpenAI's do
                let reasoning = Value::from(stand_ins.put(reasoning));
                pairs.extend([("reasoning_content", reasoning.clone()), ("thinking", reasoning)]);
            }
            if !message.calls.is_empty() {
                let call = |call: &Call| {
                    let Call { id, name, arguments } = call;
                    let arguments = if self.takes_objects {
                        Json::Object(arguments.clone())
                    } else {
                        Json::String(spaced(arguments))
                    };
                    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
                };
                pairs.push(("tool_calls", guarded(&message.calls.iter().map(call).collect())));
            }
            if let Some(id) = &message.answers {
                pairs.push(("tool_call_id", Value::from(stand_ins.put(id))));
                let called = messages.iter().flat_map(|m| &m.calls).find(|call| call.id == *id);
                pairs.extend(called.map(|call| ("name", Value::from(stand_ins.put(&call.name)))));
            }
            Value::from_pairs(pairs)
        };
        let told = if tools.is_empty() { Value::from(()) } else { tools.iter().map(guarded).collect() };
        let steered = steering.iter().map(|(name, value)| (name.as_str(), guarded(&self.known(name, value))));
        let documents = std::iter::once(("documents", Value::from(())));
        let context = Value::from_pairs(documents.chain(steered).chain([
            ("messages", messages.iter().zip(&as_text).map(value).collect()),
            ("add_generation_prompt", Value::from(answer)),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
            ("tools", told.clone()),
            // as SmolLM3's clients name them
            ("xml_tools", told),
        ]));
        let bytes: usize = said().map(String::len).sum();
        let fuel = FUEL + FUEL_PER_MESSAGE * messages.len() as u64 + FUEL_PER_BYTE * bytes as u64;
        let fuel = fuel.min(FUEL_MAX);
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let render = || environment.get_template(NAME)?.render(context);
        let rendered = on_a_stack(STACK_BYTES_PER_FUEL * fuel as usize, render)??;
        let most = TEXT_TIMES * (bytes + self.source.len()) + TEXT_BYTES_PER_MESSAGE * messages.len();
        if rendered.len() > most {
            return Err(TemplateError::Endless);
        }
        Ok(stand_ins.put_back(&rendered))
    }
}

/// Runs `work` on a stack of `bytes`; only the used part takes memory.
fn on_a_stack<T: Send>(bytes: usize, work: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(bytes).spawn_scoped(scope, work);
        let thread =
            thread.map_err(|error| TemplateError::Wrong(format!("no thread to render it on: {error}")))?;
        thread.join().map_err(|panic| std::panic::resume_unwind(panic))
    })
}

/// A copy of a value with stand-ins in every text.
fn guarded(value: &Json, stand_ins: &StandIns) -> Json {
    match value {
        Json::String(text) => Json::String(stand_ins.put(text)),
        Json::Array(values) => values.iter().map(|value| guarded(value, stand_ins)).collect(),
        Json::Object(values) => {
            values.iter().map(|(key, value)| (stand_ins.put(key), guarded(value, stand_ins))).collect()
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => value.clone(),
    }
}

/// The functions and filters that Hugging Face's templates expect.
fn environment(source: &str, now: Zoned) -> Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", to_text);
    // as Python has it: nothing is in `none`, and whoever asks for its length errs
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: &Value| {
        value.is_undefined() || matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    environment.add_function("raise_exception", |words: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, words.clone()).with_source(Raised(words)))
    });
    environment.add_function("strftime_now", move |format: String| {
        jiff::fmt::strtime::format(&format, &now)
            .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
    });
    // as Jinja's own reader does
    let lines = source.replace("\r\n", "\n").replace('\r', "\n");
    environment.add_template_owned(NAME, without_generation_marks(&lines))?;
    Ok(environment)
}

/// `{% generation %}` marks what transformers trains on and says nothing here; `{% if true %}` is a block that says nothing.
fn without_generation_marks(source: &str) -> String {
    let (mut text, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(start) = rest.find("{%") {
        let inside = start + 2;
        let end = rest[inside..].find("%}").map_or(rest.len(), |end| inside + end);
        let word = rest[inside..end].trim_matches(|c: char| c.is_whitespace() || "+-".contains(c));
        text.push_str(&rest[..start]);
        let mark = &rest[start..end];
        match word {
            "generation" => text.push_str(&mark.replace(word, "if true")),
            "endgeneration" => text.push_str(&mark.replace(word, "endif")),
            _ => text.push_str(mark),
        }
        rest = &rest[end..];
    }
    text + rest
}

/// Takes the work of a text from what there may be.
fn pay(state: &State<'_, '_>, text: &str) -> Result<(), Error> {
    state.consume_fuel(text.len() as u64 / FUEL_BYTES)
}

/// As Python's `str` writes it.
fn to_text(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    let text = match (value.kind(), serde_json::to_value(value)) {
        (ValueKind::Map | ValueKind::Seq, Ok(json)) => python(&json),
        _ => value.to_string(),
    };
    pay(state, &text).map(|()| text)
}

/// As `json.dumps(value, ensure_ascii=False)` writes it.
fn to_json(state: &State<'_, '_>, value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    if options.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: ensure_ascii is not implemented"));
    }
    options.assert_all_used()?;
    let mut json = Vec::new();
    let written = match indent {
        Some(indent) => {
            let spaces = " ".repeat(indent.min(16));
            let pretty = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut json, pretty))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut json, Spaced)),
    };
    let wrong = |error: &dyn std::fmt::Display| Error::new(ErrorKind::BadSerialization, error.to_string());
    written.map_err(|error| wrong(&error))?;
    let json = String::from_utf8(json).map_err(|error| wrong(&error))?;
    pay(state, &json).map(|()| json)
}

/// An object with Python's spaces.
fn spaced(object: &serde_json::Map<String, Json>) -> String {
    let mut json = Vec::new();
    let written = object.serialize(&mut serde_json::Serializer::with_formatter(&mut json, Spaced));
    debug_assert!(written.is_ok(), "an object of JSON is JSON");
    String::from_utf8_lossy(&json).into_owned()
}

/// A value as Python shows it, with the quotes that it takes.
fn python(value: &Json) -> String {
    let all = |texts: Vec<String>| texts.join(", ");
    match value {
        Json::Null => "None".to_owned(),
        Json::Bool(true) => "True".to_owned(),
        Json::Bool(false) => "False".to_owned(),
        Json::Number(number) => number.to_string(),
        Json::String(text) => {
            let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
            let mut shown = String::from(quote);
            for c in text.chars() {
                match c {
                    '\n' => shown.push_str("\\n"),
                    '\r' => shown.push_str("\\r"),
                    '\t' => shown.push_str("\\t"),
                    '\\' => shown.push_str("\\\\"),
                    c if c == quote => shown.extend(['\\', c]),
                    c if c.is_ascii_control() => {
                        shown.extend(['\\', 'x'].into_iter().chain(format!("{:02x}", c as u32).chars()));
                    }
                    c => shown.push(c),
                }
            }
            shown.push(quote);
            shown
        }
        Json::Array(values) => format!("[{}]", all(values.iter().map(python).collect())),
        Json::Object(values) => {
            let pair = |(key, value): (&String, &Json)| {
                format!("{}: {}", python(&Json::from(key.as_str())), python(value))
            };
            format!("{{{}}}", all(values.iter().map(pair).collect()))
        }
    }
}

/// Python's spaces after commas and colons.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}

#[cfg(test)]
mod tests;
