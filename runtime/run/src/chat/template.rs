//! The model's own template: the messages of a conversation as the tokens that the model was trained on.
//!
//! Templates are Jinja, as `apply_chat_template` of Hugging Face's transformers runs them. `filters` has their functions. A template is a
//! stranger's program: its work is counted, which bounds its time and its memory. The forms of messages that it takes are found by trying
//! (`habits`). Messages are guarded (`guard`).

mod filters;
mod habits;

use std::collections::HashSet;
use std::error::Error as _;
use std::ops::Range;
use std::sync::Arc;

use flashplan::Tokenizer;
use jiff::Zoned;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::{Value as Json, json};

use self::filters::NAME;
use self::habits::Habits;
use super::conversation::{Call, Message, Role};
use super::guard::{Guard, StandIns};
use crate::reasoning::{self, Tags};
use crate::steering::Steering;

/// The longest template; templates of current models have up to 20 KB.
pub(crate) const SOURCE_BYTES_MAX: usize = 64 << 10;
/// Most work of rendering, in steps: of the template by itself, for each message, and for each byte of a message. Hugging Face's longest need a tenth of it.
const FUEL: u64 = 40_000;
const FUEL_PER_MESSAGE: u64 = 2_000;
const FUEL_PER_BYTE: u64 = 1;
/// All that there is: bytes of a long context are looked at dozens of times.
const FUEL_MAX: u64 = 1 << 20;
/// Bytes of the text that it makes, at most: so many times what is said and the template itself, and so many for each message. The tokens
/// of a text take a hundred times its memory while they are found.
const TEXT_TIMES: usize = 8;
const TEXT_BYTES_PER_MESSAGE: usize = 128;
/// Bytes of stack for each unit of that work. A template may nest lists without end, and code that walks or frees such a list recurses once
/// per level.
const STACK_BYTES_PER_FUEL: usize = 1 << 10;
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
    /// It leaves the words of a role out.
    #[error(
        "the chat template does not tell the model what a message of the role {role} says; name another with --template FILE"
    )]
    Silent {
        /// The role's name.
        role: &'static str,
    },
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
    /// Tags of the model's reasoning that it knows.
    tags: Vec<&'static str>,
    /// The forms of messages that it takes.
    habits: Habits,
}

/// Calls, each time as a mark of the model's, text, and a mark, where that can be written.
pub(crate) type Written<'w> = dyn Fn(&[Call]) -> Option<Vec<[String; 3]>> + 'w;

/// A conversation as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// Whether the model goes on in the middle of its reasoning.
    pub(crate) reasons: bool,
    /// Whether it ends with the name of the speaker, so that the answer may begin with a recipient.
    pub(crate) named: bool,
    /// The tags between which this model reasons, if the template has any.
    pub(crate) tags: Option<Tags>,
    /// Options that have no effect, or less than asked: the template cannot pass them to the model.
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
    /// A model's template, tried on short conversations. Its time is now: a conversation with a new time every minute would be prefilled
    /// again every time.
    ///
    /// # Errors
    /// If it fails on a greeting, or leaves the greeting out.
    pub(crate) fn new(source: &str, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        Self::at(source, tokenizer, Zoned::now())
    }

    fn at(source: &str, tokenizer: &Tokenizer, now: Zoned) -> Result<Self, TemplateError> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(TemplateError::Large { bytes: source.len() });
        }
        let name = |token: Option<u32>| token.and_then(|token| tokenizer.special(token)).unwrap_or_default();
        let mut template = Self {
            environment: filters::environment(source, now)?,
            source: source.to_owned(),
            guard: Guard::new(tokenizer),
            bos: name(tokenizer.bos()).to_owned(),
            eos: name(tokenizer.eos()).to_owned(),
            reads: HashSet::new(),
            tags: reasoning::tags_in(source),
            habits: Habits::default(),
        };
        template.reads = template.environment.get_template(NAME)?.undeclared_variables(false);
        template.learn()?;
        Ok(template)
    }

    /// The template itself.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// The prompt. As in llama.cpp, a model that expects a beginning token gets it where the template has none.
    pub(crate) fn prompt(&self, tokenizer: &Tokenizer, scene: Scene<'_>) -> Result<Prompt, TemplateError> {
        self.hears(scene.messages)?;
        let (text, said) = self.render(scene)?;
        if !scene.tools.is_empty() {
            // a message may name a tool; a template that fails without tools needs them
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
        let unread = scene.steering.map(|steering| self.unread(steering, tags)).unwrap_or_default();
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
        let named = end.ends_with("<|start|>assistant");
        Ok(Prompt { tokens, reasons, named, tags, unread })
    }

    /// The value of a variable as the model knows it: harmony's models have three efforts.
    fn known(&self, name: &str, value: &Json) -> Json {
        if name != EFFORTS[0] || !self.has_channels() {
            return value.clone();
        }
        Json::from(match value.as_str() {
            Some("none" | "minimal") => "low",
            Some("xhigh" | "max") => "high",
            _ => return value.clone(),
        })
    }

    /// Whether the model reasons in a channel of harmony's, which nothing turns off.
    fn has_channels(&self) -> bool {
        self.source.contains("<|channel|>analysis")
    }

    fn reads_any(&self, names: &[&str]) -> bool {
        names.iter().any(|&name| self.reads.contains(name))
    }

    /// Names of the wishes that are not met, or only in part. A bound on the tokens, and no reasoning at all, are enforced without the
    /// template where the model reasons between `tags`.
    fn unread(&self, steering: &Steering, tags: Option<Tags>) -> Vec<String> {
        let mut unread = Vec::new();
        let (told, reasons) = (steering.told(), tags.is_some() || self.has_channels());
        // a model that does not reason needs not be kept from it
        let is_met = match steering.enabled {
            None => true,
            Some(false) => !self.has_channels(),
            Some(true) => reasons || self.reads_any(&SWITCHES),
        };
        if !is_met || steering.budget.is_some() && !reasons {
            unread.push("reasoning".to_owned());
        }
        let changed = || told.get(EFFORTS[0]).is_some_and(|effort| self.known(EFFORTS[0], effort) != *effort);
        if steering.effort.is_some() && (!self.reads_any(&EFFORTS) || changed()) {
            unread.push("reasoning_effort".to_owned());
        }
        let variables = steering.variables.keys().filter(|name| !self.reads.contains(*name));
        unread.extend(variables.map(|name| format!("chat_template_kwargs.{name}")));
        unread
    }

    /// The text, and the bytes of it that no special token may touch.
    fn render(&self, scene: Scene<'_>) -> Result<(String, Vec<Range<usize>>), TemplateError> {
        let Scene { messages, tools, written, steering, answer } = scene;
        let messages = &*self.habits.apply(messages);
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
        let stand_ins = Arc::new(stand_ins);
        let guarded = |value: &Json| Value::from(Serde(guarded(value, &stand_ins)));
        let value = |(message, as_text): (&Message, &Option<Vec<[String; 3]>>)| -> Value {
            // a template looks for the tags of reasoning in the model's messages
            let tags = if message.role == Role::Assistant { &self.tags[..] } else { &[] };
            let mut content = stand_ins.put_around(&message.content, tags);
            for [before, text, after] in as_text.iter().flatten() {
                content.extend([before.as_str(), &stand_ins.put(text), after]);
            }
            let content = if self.habits.parts.contains(&message.role) {
                let part = Value::from_pairs([("type", Value::from("text")), ("text", Value::from(content))]);
                Value::from(vec![part])
            } else {
                Value::from(content)
            };
            let mut pairs = vec![("role", Value::from(message.role.name())), ("content", content)];
            if let Some(reasoning) = &message.reasoning {
                // as Qwen's templates call it, and as OpenAI's do
                let reasoning = Value::from(stand_ins.put(reasoning));
                pairs.extend([("reasoning_content", reasoning.clone()), ("thinking", reasoning)]);
            }
            if !message.calls.is_empty() {
                let call = |call: &Call| {
                    let Call { id, name, arguments } = call;
                    let arguments = if self.habits.joins_arguments {
                        Json::String(filters::dumped(arguments))
                    } else {
                        Json::Object(arguments.clone())
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
        filters::add_json(&mut environment, &stand_ins);
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

#[cfg(test)]
mod tests;
