//! Calls of tools in an answer, in the format that the model's template teaches it.
//!
//! ```text
//! Hermes, Qwen, Granite 4,  <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>, one or more, perhaps after text
//!   SmolLM3
//! Granite 3                 <|tool_call|>[{"name": "f", "arguments": {...}}, ...]
//! Nemotron 2                <TOOLCALL>[{"name": "f", "arguments": {...}}, ...]</TOOLCALL>
//! Mistral                   [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]
//! Mistral since 2025        [TOOL_CALLS]f[ARGS]{...}, one or more
//! Llama 3                   {"name": "f", "parameters": {...}} and nothing else
//! harmony                   a message to functions.f, which `reasoning` tells from others
//! Qwen3-Coder, Qwen3.5,     <tool_call>\n<function=f>\n<parameter=k>\nvalue\n</parameter>\n</function>\n</tool_call>
//!   Nemotron 3
//! GLM                       <tool_call>f<arg_key>k</arg_key><arg_value>value</arg_value></tool_call>
//! LFM2                      <|tool_call_start|>[f(k="value", n=1)]<|tool_call_end|>
//! Gemma 4                   <|tool_call>call:f{k:<|"|>value<|"|>,n:1}<tool_call|>
//! DeepSeek V3, R1           <|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>f\n```json\n{...}\n```<|tool_call_end|>...<|tool_calls_end|>
//! DeepSeek V3.1             <|tool_calls_begin|><|tool_call_begin|>f<|tool_sep|>{...}<|tool_call_end|>...<|tool_calls_end|>
//! Kimi K2                   <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|>...
//! MiniMax M2                <minimax:tool_call>\n<invoke name="f">\n<parameter name="k">value</parameter>\n</invoke>\n</minimax:tool_call>
//! Command R                 Action:\n```json\n[{"tool_name": "f", "parameters": {...}}, ...]```
//! Command R7B, A            <|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {...}}, ...]<|END_ACTION|>
//! ```
//!
//! `DeepSeek`'s marks have the bars and blanks of another alphabet. Where arguments are bare text, the tool's schema says what they are (`typed`). What is no call of a tool that there is stays
//! text, so that nothing of an answer is lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::super::chat::conversation::{Call, Message};
use super::super::reasoning::Channel;
use super::literal::{self, QUOTES, Reader};
use super::stops::beginning;
use super::tools::Function;

/// How a model writes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Hermes,
    Granite,
    Nemotron,
    Mistral,
    /// Mistral's with a name before the arguments.
    Named,
    Llama,
    Harmony,
    /// A tag for the function and for each of its parameters.
    Parameters,
    Glm,
    /// As Python calls functions.
    Python,
    Gemma,
    /// With the arguments in a block of code.
    DeepSeek,
    /// Those since V3.1, without one.
    DeepSeekBare,
    Kimi,
    MiniMax,
    /// Command R's: a list in a block of code.
    Action,
    /// That of Command R7B and after it.
    Command,
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const LIST: &str = "[TOOL_CALLS]";
const ID: &str = "[CALL_ID]";
const ARGUMENTS: &str = "[ARGS]";
const PYTHON: &str = "<|python_tag|>";
const KEY: (&str, &str) = ("<arg_key>", "</arg_key>");
const VALUE: (&str, &str) = ("<arg_value>", "</arg_value>");
const FUNCTION: (&str, &str) = ("<function=", "</function>");
const PARAMETER: (&str, &str) = ("<parameter=", "</parameter>");
const INVOKE: (&str, &str) = ("<invoke name=\"", "</invoke>");
const NAMED: (&str, &str) = ("<parameter name=\"", "</parameter>");
const DEEPSEEK: (&str, &str) =
    ("<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}>", "<\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>");
const DEEPSEEK_CALL: (&str, &str) =
    ("<\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>", "<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}>");
pub(super) const DEEPSEEK_NAME: &str = "<\u{ff5c}tool\u{2581}sep\u{ff5c}>";
const KIMI: (&str, &str) = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>");
const KIMI_CALL: (&str, &str) = ("<|tool_call_begin|>", "<|tool_call_end|>");
pub(super) const KIMI_ARGUMENTS: &str = "<|tool_call_argument_begin|>";
const MINIMAX: (&str, &str) = ("<minimax:tool_call>", "</minimax:tool_call>");
const ACTION: &str = "Action:\n```json";
const COMMAND: (&str, &str) = ("<|START_ACTION|>", "<|END_ACTION|>");
/// The two ends of a block of code.
const BLOCK: (&str, &str) = ("```json", "```");

impl Format {
    /// That of a template, if it is one of these.
    pub(super) fn of(template: &str) -> Option<Self> {
        let has = |text: &str| template.contains(text);
        let format = if has(DEEPSEEK_CALL.0) {
            if has(BLOCK.0) { Self::DeepSeek } else { Self::DeepSeekBare }
        } else if has(KIMI_CALL.0) && has(KIMI_ARGUMENTS) {
            Self::Kimi
        } else if has(MINIMAX.0) && has(INVOKE.0) {
            Self::MiniMax
        } else if has(COMMAND.0) && has("tool_name") {
            Self::Command
        } else if has("Action:") && has(BLOCK.0) && has("\"tool_name\"") {
            Self::Action
        } else if has(OPEN) {
            // more than one of them may stand between the same tags
            match () {
                () if has(FUNCTION.0) && has(PARAMETER.0) => Self::Parameters,
                () if has(KEY.0) && has(VALUE.0) => Self::Glm,
                () if has("arguments") && !has(FUNCTION.0) && !has("<invoke") => Self::Hermes,
                () => return None,
            }
        } else if has("<|tool_call>call:") {
            Self::Gemma
        } else if has("<|tool_call_start|>")
            || has("List of tools: [")
            || has("List of tools: <|tool_list_start|>[")
        {
            Self::Python
        } else if has("<TOOLCALL>") {
            Self::Nemotron
        } else if has("<|tool_call|>") && has("JSON list") {
            Self::Granite
        } else if has(LIST) {
            if has(ARGUMENTS) { Self::Named } else { Self::Mistral }
        } else if has("<|channel|>") && has("functions.") {
            Self::Harmony
        } else if has("<|start_header_id|>") && has("\"parameters\"") {
            Self::Llama
        } else {
            return None;
        };
        Some(format)
    }

    /// What stands before a call in a text that may have others, and after it.
    fn tags(self) -> Option<(&'static str, Option<&'static str>)> {
        Some(match self {
            Self::Hermes | Self::Parameters | Self::Glm => (OPEN, Some(CLOSE)),
            Self::Nemotron => ("<TOOLCALL>", Some("</TOOLCALL>")),
            Self::Python => ("<|tool_call_start|>", Some("<|tool_call_end|>")),
            Self::Gemma => ("<|tool_call>", Some("<tool_call|>")),
            Self::Granite => ("<|tool_call|>", None),
            Self::Mistral | Self::Named => (LIST, None),
            Self::DeepSeek | Self::DeepSeekBare => (DEEPSEEK.0, Some(DEEPSEEK.1)),
            Self::Kimi => (KIMI.0, Some(KIMI.1)),
            Self::MiniMax => (MINIMAX.0, Some(MINIMAX.1)),
            Self::Action => (ACTION, None),
            Self::Command => (COMMAND.0, Some(COMMAND.1)),
            Self::Llama | Self::Harmony => return None,
        })
    }

    /// Tokens that steer the model and are part of a call's text.
    pub(super) fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::Parameters => &[OPEN, CLOSE],
            Self::Nemotron => &["<TOOLCALL>", "</TOOLCALL>"],
            Self::Granite => &["<|tool_call|>"],
            Self::Mistral => &[LIST],
            Self::Named => &[LIST, ID, ARGUMENTS],
            Self::Llama => &[PYTHON],
            Self::Harmony | Self::Action => &[],
            Self::Glm => &[OPEN, CLOSE, KEY.0, KEY.1, VALUE.0, VALUE.1],
            Self::Python => &["<|tool_call_start|>", "<|tool_call_end|>"],
            Self::Gemma => &["<|tool_call>", "<tool_call|>", QUOTES],
            Self::DeepSeek | Self::DeepSeekBare => {
                &[DEEPSEEK.0, DEEPSEEK.1, DEEPSEEK_CALL.0, DEEPSEEK_CALL.1, DEEPSEEK_NAME]
            }
            Self::Kimi => &[KIMI.0, KIMI.1, KIMI_CALL.0, KIMI_CALL.1, KIMI_ARGUMENTS],
            Self::MiniMax => &[MINIMAX.0, MINIMAX.1],
            Self::Command => &[COMMAND.0, COMMAND.1],
        }
    }

    /// Those of them that a call has inside.
    pub(super) fn inner_marks(self) -> &'static [&'static str] {
        match self {
            Self::Named => &[ARGUMENTS],
            Self::Glm => &[CLOSE, KEY.0, KEY.1, VALUE.0, VALUE.1],
            Self::Gemma => &[QUOTES],
            Self::DeepSeekBare => &[DEEPSEEK_NAME],
            Self::Kimi => &[KIMI_ARGUMENTS],
            _ => &[],
        }
    }

    /// Text that stands before a call of `name`, or before the arguments in harmony.
    pub(super) fn prefix(self, name: &str) -> String {
        match self {
            Self::Hermes | Self::Parameters => format!("{OPEN}\n"),
            Self::Glm => OPEN.to_owned(),
            Self::Mistral => format!("{LIST}["),
            Self::Granite => "<|tool_call|>[".to_owned(),
            Self::Nemotron => "<TOOLCALL>[".to_owned(),
            Self::Named => LIST.to_owned(),
            Self::Python => "<|tool_call_start|>[".to_owned(),
            Self::Gemma => "<|tool_call>".to_owned(),
            Self::DeepSeek => format!("{}{}function{DEEPSEEK_NAME}", DEEPSEEK.0, DEEPSEEK_CALL.0),
            Self::DeepSeekBare => format!("{}{}", DEEPSEEK.0, DEEPSEEK_CALL.0),
            Self::Kimi => format!("{}{}", KIMI.0, KIMI_CALL.0),
            Self::MiniMax => format!("{}\n", MINIMAX.0),
            Self::Action => format!("{ACTION}\n[\n    "),
            Self::Command => format!("{}[\n    ", COMMAND.0),
            Self::Llama => String::new(),
            Self::Harmony => {
                format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>")
            }
        }
    }

    /// Calls as the model has written them, for a template that knows of none: each time a mark, text, and a mark.
    pub(super) fn written(self, calls: &[Call]) -> Option<Vec<[String; 3]>> {
        let (open, close) = self.tags()?;
        let between = |text: String| [open.to_owned(), text, close.unwrap_or_default().to_owned()];
        let object = |call: &Call| {
            let arguments = Value::Object(call.arguments.clone());
            format!("{{\"name\": {}, \"arguments\": {arguments}}}", Value::from(call.name.as_str()))
        };
        let list = |write: &dyn Fn(&Call) -> String| {
            vec![between(format!("[{}]", calls.iter().map(write).collect::<Vec<_>>().join(", ")))]
        };
        Some(match self {
            Self::Python => list(&|call| {
                let argument =
                    |(name, value): (&String, &Value)| format!("{name}={}", literal::python(value));
                let arguments: Vec<String> = call.arguments.iter().map(argument).collect();
                format!("{}({})", call.name, arguments.join(", "))
            }),
            Self::Granite => list(&object),
            Self::Hermes => calls.iter().map(|call| between(format!("\n{}\n", object(call)))).collect(),
            _ => return None,
        })
    }

    /// The number of a call by which a template tells the model what came of it, where that has a form: the model has written it.
    pub(super) fn number(self, name: &str, index: usize) -> Option<String> {
        (self == Self::Kimi).then(|| format!("functions.{name}:{index}"))
    }

    /// The text that ends a model's reasoning, before it calls a tool.
    pub(super) fn after_reasoning(self) -> &'static str {
        match self {
            Self::Mistral | Self::Named => "[/THINK]",
            Self::Glm => "</think>",
            Self::Command => "<|END_THINKING|>",
            _ => "\n</think>\n\n",
        }
    }

    /// The keys of the name and the arguments, where a call is an object.
    pub(super) fn keys(self) -> (&'static str, &'static str) {
        match self {
            Self::Llama => ("name", "parameters"),
            Self::Action | Self::Command => ("tool_name", "parameters"),
            _ => ("name", "arguments"),
        }
    }
}

/// A conversation whose calls have the numbers that a format knows them by, where it has a form for these.
pub(super) fn numbered(format: Format, messages: &[Message]) -> Vec<Message> {
    let mut messages = messages.to_vec();
    let mut known = BTreeMap::new();
    for (index, call) in messages.iter_mut().flat_map(|message| message.calls.iter_mut().enumerate()) {
        if let Some(number) = format.number(&call.name, index) {
            known.insert(std::mem::replace(&mut call.id, number.clone()), number);
        }
    }
    for answers in messages.iter_mut().filter_map(|message| message.answers.as_mut()) {
        if let Some(number) = known.get(answers) {
            answers.clone_from(number);
        }
    }
    messages
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Piece {
    Text(String),
    Call(Call),
}

/// Tells text and calls apart as they come.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    format: Format,
    /// The tools that there are.
    tools: Arc<[Function]>,
    /// The call that the answer is, from its beginning; in harmony only the arguments of the one named.
    forced: Option<String>,
    held: String,
    /// Whether what is held belongs to a call.
    inside: bool,
    /// Whether text or a call has come.
    begun: bool,
}

impl Calls {
    pub(super) fn new(format: Format, tools: Arc<[Function]>, forced: Option<String>) -> Self {
        let inside = forced.is_some() || format == Format::Harmony;
        Self { format, tools, forced, held: String::new(), inside, begun: false }
    }

    /// Pieces that can be told now that a text has come.
    pub(super) fn read(&mut self, part: Channel, text: &str) -> Vec<Piece> {
        // harmony's calls come apart from text
        if part == Channel::Answer && self.format == Format::Harmony && self.forced.is_none() {
            return vec![Piece::Text(text.to_owned())];
        }
        self.push(text)
    }

    fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        match (self.format, self.format.tags()) {
            _ if self.forced.is_some() => {}
            (_, Some((open, close))) => while self.step(open, close, &mut pieces) {},
            (Format::Llama, None) if !self.inside => {
                let held = self.held.trim_start();
                let call = held.starts_with('{') || held.starts_with(PYTHON);
                let may_be = !self.begun && PYTHON.starts_with(held);
                self.inside = !self.begun && call;
                if !(self.inside || may_be) {
                    self.text(self.held.len(), &mut pieces);
                }
            }
            _ => {}
        }
        pieces
    }

    /// Pieces that were held back, when nothing more comes.
    pub(super) fn finish(&mut self) -> Vec<Piece> {
        let held = std::mem::take(&mut self.held);
        if !self.inside {
            return if held.is_empty() || self.begun && held.trim().is_empty() {
                Vec::new()
            } else {
                vec![Piece::Text(held)]
            };
        }
        match (&self.forced, self.format) {
            (Some(name), Format::Harmony) => return vec![self.message(name, &held)],
            (None, Format::Harmony) => match held.split_once('\n') {
                Some((name, arguments)) => return vec![self.message(name, arguments)],
                None => return Vec::new(),
            },
            _ => {}
        }
        match self.calls(&held) {
            Some(calls) if !calls.is_empty() => calls.into_iter().map(Piece::Call).collect(),
            _ => vec![Piece::Text(held)],
        }
    }

    /// One step through text between tags; whether there may be another.
    fn step(&mut self, open: &str, close: Option<&str>, pieces: &mut Vec<Piece>) -> bool {
        if !self.inside {
            let Some(at) = self.held.find(open) else {
                // spaces may stand before a call, and are none of the text then
                let kept = beginning(&self.held, open);
                let said = self.held[..self.held.len() - kept].trim_end().len();
                self.text(said, pieces);
                return false;
            };
            let call = self.held.split_off(at);
            self.text(self.held.trim_end().len(), pieces);
            (self.held, self.inside) = (call, true);
        }
        let Some((end, close)) = close.and_then(|close| Some((self.held.find(close)?, close))) else {
            return false;
        };
        let rest = self.held.split_off(end + close.len());
        pieces.extend(self.finish());
        (self.held, self.inside, self.begun) = (rest, false, true);
        true
    }

    /// The first so many bytes of what is held are text.
    fn text(&mut self, bytes: usize, pieces: &mut Vec<Piece>) {
        if bytes > 0 {
            let rest = self.held.split_off(bytes);
            pieces.push(Piece::Text(std::mem::replace(&mut self.held, rest)));
            self.begun = true;
        }
    }

    /// The calls of a text that has nothing else; `None` if it is no such text.
    fn calls(&self, text: &str) -> Option<Vec<Call>> {
        let (open, close) = self.format.tags().unwrap_or((PYTHON, None));
        let text = text.trim();
        let body = text.strip_prefix(open).unwrap_or(text);
        let body = close.and_then(|close| body.strip_suffix(close)).unwrap_or(body).trim();
        match self.format {
            Format::Named => self.named(body),
            Format::Parameters => self.parameters(body),
            Format::Glm => self.glm(body).map(|call| vec![call]),
            Format::Python => self.python(body),
            Format::Gemma => self.gemma(body).map(|call| vec![call]),
            Format::DeepSeek => self.deepseek(body, BLOCK.0),
            Format::DeepSeekBare => self.deepseek(body, DEEPSEEK_NAME),
            Format::Kimi => self.kimi(body),
            Format::MiniMax => self.invoked(body),
            Format::Action => {
                let (list, rest) = first(body)?;
                matches!(rest.trim(), "" | "```").then(|| self.objects(list))?
            }
            Format::Hermes
            | Format::Granite
            | Format::Nemotron
            | Format::Mistral
            | Format::Llama
            | Format::Command
            | Format::Harmony => self.objects(serde_json::from_str(body).ok()?),
        }
    }

    /// One object or a list of them, each with a name and arguments.
    fn objects(&self, calls: Value) -> Option<Vec<Call>> {
        match calls {
            Value::Array(calls) => calls.into_iter().map(|call| self.object(call)).collect(),
            call => Some(vec![self.object(call)?]),
        }
    }

    /// The tool of a name, if there is one.
    fn tool(&self, name: &str) -> Option<&Function> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    fn call(&self, name: &str, arguments: Map<String, Value>) -> Option<Call> {
        self.tool(name).map(|tool| Call { id: String::new(), name: tool.name.clone(), arguments })
    }

    /// A message to a tool.
    fn message(&self, name: &str, arguments: &str) -> Piece {
        let call = serde_json::from_str(arguments.trim()).ok().and_then(|parsed| self.call(name, parsed));
        call.map_or_else(|| Piece::Text(arguments.to_owned()), Piece::Call)
    }

    /// An object with a name and arguments.
    fn object(&self, call: Value) -> Option<Call> {
        let Value::Object(mut call) = call else { return None };
        let (name, arguments) = self.format.keys();
        let arguments = match call.remove(arguments) {
            Some(Value::Object(arguments)) => arguments,
            None => Map::new(),
            Some(_) => return None,
        };
        self.call(call.get(name)?.as_str()?, arguments)
    }

    /// Names, each with an object after it.
    fn named(&self, body: &str) -> Option<Vec<Call>> {
        let (mut calls, mut rest) = (Vec::new(), body);
        while !rest.is_empty() {
            let (name, after) = rest.split_once(ARGUMENTS)?;
            // a number of the call's own, which clients get another for
            let name = name.split_once(ID).map_or(name, |(name, _)| name).trim();
            let (arguments, after) = first(after)?;
            calls.push(self.call(name, arguments)?);
            rest = after.trim_start();
            rest = rest.strip_prefix(LIST).unwrap_or(rest);
        }
        Some(calls)
    }

    /// Names between marks, each with an object after the mark that ends it, in a block of code or not.
    fn deepseek(&self, body: &str, after_name: &str) -> Option<Vec<Call>> {
        let (mut calls, mut rest) = (Vec::new(), body);
        while !rest.is_empty() {
            rest = rest.strip_prefix(DEEPSEEK_CALL.0).unwrap_or(rest);
            if after_name == BLOCK.0 {
                // a tool's kind, of which there is one
                rest =
                    rest.strip_prefix("function").and_then(|r| r.strip_prefix(DEEPSEEK_NAME)).unwrap_or(rest);
            }
            let (name, after) = rest.split_once(after_name)?;
            let (arguments, after) = first(after)?;
            calls.push(self.call(name.trim(), arguments)?);
            rest = after.trim_start();
            rest = rest.strip_prefix(BLOCK.1).unwrap_or(rest).trim_start();
            rest = rest.strip_prefix(DEEPSEEK_CALL.1).unwrap_or(rest).trim_start();
        }
        Some(calls)
    }

    /// Numbers in which the names stand, each with an object after it.
    fn kimi(&self, body: &str) -> Option<Vec<Call>> {
        let (mut calls, mut rest) = (Vec::new(), body);
        while !rest.is_empty() {
            rest = rest.strip_prefix(KIMI_CALL.0).unwrap_or(rest);
            let (number, after) = rest.split_once(KIMI_ARGUMENTS)?;
            let name = number.trim().strip_prefix("functions.")?.rsplit_once(':')?.0;
            let (arguments, after) = first(after)?;
            calls.push(self.call(name, arguments)?);
            rest = after.trim_start();
            rest = rest.strip_prefix(KIMI_CALL.1).unwrap_or(rest).trim_start();
        }
        Some(calls)
    }

    /// Functions, each with its parameters in tags.
    fn parameters(&self, body: &str) -> Option<Vec<Call>> {
        self.tagged(body, (FUNCTION, ">"), (PARAMETER, ">"))
    }

    /// The same with names in quotes.
    fn invoked(&self, body: &str) -> Option<Vec<Call>> {
        self.tagged(body, (INVOKE, "\">"), (NAMED, "\">"))
    }

    /// Functions and parameters in tags, each with what ends its name.
    fn tagged(
        &self,
        body: &str,
        (function, named): ((&str, &str), &str),
        (parameter, keyed): ((&str, &str), &str),
    ) -> Option<Vec<Call>> {
        let (mut calls, mut rest) = (Vec::new(), body);
        while !rest.is_empty() {
            let (name, after) = rest.strip_prefix(function.0)?.split_once(named)?;
            let (tool, mut arguments) = (self.tool(name.trim())?, Map::new());
            rest = after.trim_start();
            while let Some(after) = rest.strip_prefix(parameter.0) {
                let (key, after) = after.split_once(keyed)?;
                // a value may have the tag that ends it, if something else comes after that
                let ends = |&(at, tag): &(usize, &str)| {
                    let next = after[at + tag.len()..].trim_start();
                    next.starts_with(parameter.0) || next.starts_with(function.1)
                };
                let (end, tag) = after.match_indices(parameter.1).find(ends)?;
                let value = after[..end].strip_prefix('\n').unwrap_or(&after[..end]);
                let value = value.strip_suffix('\n').unwrap_or(value);
                arguments.insert(key.trim().to_owned(), tool.value(key.trim(), value));
                rest = after[end + tag.len()..].trim_start();
            }
            rest = rest.strip_prefix(function.1)?.trim_start();
            calls.push(self.call(&tool.name, arguments)?);
        }
        Some(calls)
    }

    /// A name, and keys and values in tags.
    fn glm(&self, body: &str) -> Option<Call> {
        let (name, mut rest) = body.split_at(body.find(KEY.0).unwrap_or(body.len()));
        let (tool, mut arguments) = (self.tool(name.trim())?, Map::new());
        while !rest.is_empty() {
            let (key, after) = rest.strip_prefix(KEY.0)?.split_once(KEY.1)?;
            let after = after.trim_start().strip_prefix(VALUE.0)?;
            let ends = |&(at, tag): &(usize, &str)| {
                let next = after[at + tag.len()..].trim_start();
                next.is_empty() || next.starts_with(KEY.0)
            };
            let (end, tag) = after.match_indices(VALUE.1).find(ends)?;
            arguments.insert(key.trim().to_owned(), tool.value(key.trim(), &after[..end]));
            rest = after[end + tag.len()..].trim_start();
        }
        self.call(&tool.name, arguments)
    }

    /// Calls in Python, in a list or not.
    fn python(&self, body: &str) -> Option<Vec<Call>> {
        let mut reader = Reader::new(body);
        let listed = reader.take("[");
        let mut calls = Vec::new();
        loop {
            let name = reader.name()?;
            if !reader.take("(") {
                return None;
            }
            let arguments = reader.fields("=", ")")?;
            calls.push(self.call(name, arguments)?);
            let more = reader.take(",");
            if listed && reader.take("]") || !more {
                return reader.is_done().then_some(calls);
            }
        }
    }

    /// A call with an object of Gemma's.
    fn gemma(&self, body: &str) -> Option<Call> {
        let mut reader = Reader::new(body.strip_prefix("call:")?);
        let name = reader.name()?;
        if !reader.take("{") {
            return None;
        }
        let arguments = reader.fields(":", "}")?;
        reader.is_done().then(|| self.call(name, arguments))?
    }
}

/// The JSON that a text begins with, and what comes after it.
fn first<T: DeserializeOwned>(text: &str) -> Option<(T, &str)> {
    let mut read = serde_json::Deserializer::from_str(text).into_iter();
    let value = read.next()?.ok()?;
    Some((value, &text[read.byte_offset()..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::super::chat::conversation::Role;
    use super::*;

    fn tools() -> Arc<[Function]> {
        let parameters = json!({
            "type": "object",
            "properties": {
                "a": { "type": "integer" }, "b": { "type": "string" }, "c": { "type": "array" },
                "d": { "type": "boolean" },
            },
        });
        let parameters = parameters.as_object().cloned();
        let tool = |name: &str| Function {
            name: name.to_owned(),
            description: None,
            parameters: parameters.clone(),
            strict: None,
        };
        [tool("f"), tool("g")].into()
    }

    /// Text in one piece, and calls as `name(arguments)`.
    fn read(format: Format, forced: Option<&str>, pieces: &[&str]) -> Vec<String> {
        let mut calls = Calls::new(format, tools(), forced.map(str::to_owned));
        let mut all: Vec<String> = Vec::new();
        let mut text = true;
        let mut add = |piece: Piece| match piece {
            Piece::Text(more) if text && !all.is_empty() => all.last_mut().unwrap().push_str(&more),
            Piece::Text(more) => {
                all.push(more);
                text = true;
            }
            Piece::Call(call) => {
                all.push(format!("{}({})", call.name, Value::Object(call.arguments)));
                text = false;
            }
        };
        for piece in pieces {
            calls.push(piece).into_iter().for_each(&mut add);
        }
        calls.finish().into_iter().for_each(add);
        all
    }

    const TEXTS: [(Format, &str, &[&str]); 57] = [
        (
            Format::Hermes,
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
            &["f({\"a\":1})"],
        ),
        (
            Format::Hermes,
            "I look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {\"b\": \"</x>\"}}\n</tool_call>\n",
            &["I look.", "f({})", "g({\"b\":\"</x>\"})"],
        ),
        (Format::Hermes, "a < b <tool", &["a < b <tool"]),
        (
            Format::Hermes,
            "<tool_call>\n{\"name\": \"h\", \"arguments\": {}}\n</tool_call>",
            &["<tool_call>\n{\"name\": \"h\", \"arguments\": {}}\n</tool_call>"],
        ),
        (
            Format::Hermes,
            "<tool_call>\n{\"name\": \"f\", \"argum",
            &["<tool_call>\n{\"name\": \"f\", \"argum"],
        ),
        (
            Format::Mistral,
            "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": [1]}}, {\"name\": \"g\", \"arguments\": {}}]",
            &["f({\"a\":[1]})", "g({})"],
        ),
        (Format::Mistral, "see [1] and [TOOL", &["see [1] and [TOOL"]),
        (
            Format::Granite,
            "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
            &["f({\"a\":1})", "g({})"],
        ),
        (
            Format::Nemotron,
            "So: <TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]</TOOLCALL>",
            &["So:", "f({\"a\":1})"],
        ),
        (Format::Nemotron, "<TOOLCALL>[{\"name\"]</TOOLCALL>", &["<TOOLCALL>[{\"name\"]</TOOLCALL>"]),
        (Format::Named, "[TOOL_CALLS]f[ARGS]{\"a\": 1}", &["f({\"a\":1})"]),
        (
            Format::Named,
            "I look.[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{\"b\": \"[TOOL_CALLS]\"}[TOOL_CALLS]g[ARGS]{}",
            &["I look.", "f({\"b\":\"[TOOL_CALLS]\"})", "g({})"],
        ),
        (Format::Named, "[TOOL_CALLS]f[ARGS]{\"a\": ", &["[TOOL_CALLS]f[ARGS]{\"a\": "]),
        (Format::Named, "[TOOL_CALLS]h[ARGS]{}", &["[TOOL_CALLS]h[ARGS]{}"]),
        (Format::Named, "[TOOL_CALLS]f[ARGS][1]", &["[TOOL_CALLS]f[ARGS][1]"]),
        (Format::Llama, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", &["f({\"a\":1})"]),
        (Format::Llama, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", &["f({})"]),
        (Format::Llama, "{\"is\": \"an object\"}", &["{\"is\": \"an object\"}"]),
        (
            Format::Llama,
            "Look: {\"name\": \"f\", \"parameters\": {}}",
            &["Look: {\"name\": \"f\", \"parameters\": {}}"],
        ),
        (Format::Harmony, "f\n{\"a\": 1}", &["f({\"a\":1})"]),
        (
            Format::Parameters,
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n1\n</parameter>\n<parameter=c>\n[1, \"x\"]\n</parameter>\n<parameter=d>\nTrue\n</parameter>\n</function>\n</tool_call>",
            &["f({\"a\":1,\"b\":\"1\",\"c\":[1,\"x\"],\"d\":true})"],
        ),
        (
            Format::Parameters,
            "I look.\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n<parameter=b>\n\n if x:\n  </parameter> is text\n\n</parameter>\n</function>\n</tool_call>",
            &["I look.", "f({})", "g({\"b\":\"\\n if x:\\n  </parameter> is text\\n\"})"],
        ),
        (
            Format::Parameters,
            "<tool_call>\n<function=f>\n<parameter=b>\none line</parameter>\n</function>\n<function=g>\n</function>\n</tool_call>",
            &["f({\"b\":\"one line\"})", "g({})"],
        ),
        (
            Format::Parameters,
            "<tool_call>\n<function=h>\n</function>\n</tool_call>",
            &["<tool_call>\n<function=h>\n</function>\n</tool_call>"],
        ),
        (
            Format::Parameters,
            "<tool_call>\n<function=f>\n<parameter=a>\n1",
            &["<tool_call>\n<function=f>\n<parameter=a>\n1"],
        ),
        (
            Format::Glm,
            "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key><arg_value>1 < 2 </arg_value><arg_key>c</arg_key><arg_value>[1]</arg_value></tool_call>",
            &["f({\"a\":1,\"b\":\"1 < 2 \",\"c\":[1]})"],
        ),
        (
            Format::Glm,
            "So.\n<tool_call>f\n<arg_key>b</arg_key>\n<arg_value>x</arg_value>y</arg_value>\n</tool_call>\n<tool_call>g</tool_call>",
            &["So.", "f({\"b\":\"x</arg_value>y\"})", "g({})"],
        ),
        (
            Format::Glm,
            "<tool_call>f<arg_key>b</arg_key></tool_call>",
            &["<tool_call>f<arg_key>b</arg_key></tool_call>"],
        ),
        (Format::Glm, "<tool_call>h</tool_call>", &["<tool_call>h</tool_call>"]),
        (
            Format::Python,
            "<|tool_call_start|>[f(a=1, b='it's', c=[1, \"x\"], d=True), g()]<|tool_call_end|>I look.",
            &["f({\"a\":1,\"b\":\"it's\",\"c\":[1,\"x\"],\"d\":true})", "g({})", "I look."],
        ),
        (Format::Python, "<|tool_call_start|>f(b=\"x)\")<|tool_call_end|>", &["f({\"b\":\"x)\"})"]),
        (
            Format::Python,
            "<|tool_call_start|>[f(1)]<|tool_call_end|>",
            &["<|tool_call_start|>[f(1)]<|tool_call_end|>"],
        ),
        (
            Format::Python,
            "<|tool_call_start|>[h(a=1)]<|tool_call_end|>",
            &["<|tool_call_start|>[h(a=1)]<|tool_call_end|>"],
        ),
        (
            Format::Python,
            "<|tool_call_start|>[f(a=__import__('os'))]<|tool_call_end|>",
            &["<|tool_call_start|>[f(a=__import__('os'))]<|tool_call_end|>"],
        ),
        (
            Format::Gemma,
            "<|tool_call>call:f{a:1,b:<|\"|>it's \"so\", {x}<|\"|>,c:[1,<|\"|>x<|\"|>],d:true}<tool_call|>",
            &["f({\"a\":1,\"b\":\"it's \\\"so\\\", {x}\",\"c\":[1,\"x\"],\"d\":true})"],
        ),
        (
            Format::Gemma,
            "I look.\n<|tool_call>call:f{}<tool_call|><|tool_call>call:g{c:[{x:null}]}<tool_call|>",
            &["I look.", "f({})", "g({\"c\":[{\"x\":null}]})"],
        ),
        (Format::Gemma, "<|tool_call>call:h{}<tool_call|>", &["<|tool_call>call:h{}<tool_call|>"]),
        (Format::Gemma, "<|tool_call>call:f{a:1", &["<|tool_call>call:f{a:1"]),
        (Format::Gemma, "a <|tool", &["a <|tool"]),
        (
            Format::DeepSeek,
            "<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>function<\u{ff5c}tool\u{2581}sep\u{ff5c}>f\n```json\n{\"a\": 1}\n```<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}><\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>",
            &["f({\"a\":1})"],
        ),
        (
            Format::DeepSeek,
            "I look.\n<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>function<\u{ff5c}tool\u{2581}sep\u{ff5c}>f\n```json\n{\"b\": \"``` is text\"}```<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}>\n<\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>function<\u{ff5c}tool\u{2581}sep\u{ff5c}>g\n```json\n{}\n```<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}><\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>",
            &["I look.", "f({\"b\":\"``` is text\"})", "g({})"],
        ),
        (
            Format::DeepSeek,
            "<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>function<\u{ff5c}tool\u{2581}sep\u{ff5c}>h\n```json\n{}\n```<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}><\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>",
            &[
                "<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>function<\u{ff5c}tool\u{2581}sep\u{ff5c}>h\n```json\n{}\n```<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}><\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>",
            ],
        ),
        (Format::DeepSeek, "a <\u{ff5c}tool", &["a <\u{ff5c}tool"]),
        (
            Format::DeepSeekBare,
            "So:<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>f<\u{ff5c}tool\u{2581}sep\u{ff5c}>{\"a\": 1}<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>g<\u{ff5c}tool\u{2581}sep\u{ff5c}>{}<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}><\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>",
            &["So:", "f({\"a\":1})", "g({})"],
        ),
        (
            Format::DeepSeekBare,
            "<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>f<\u{ff5c}tool\u{2581}sep\u{ff5c}>{\"a\"",
            &[
                "<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>f<\u{ff5c}tool\u{2581}sep\u{ff5c}>{\"a\"",
            ],
        ),
        (
            Format::Kimi,
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_calls_section_end|>",
            &["f({\"a\":1})"],
        ),
        (
            Format::Kimi,
            "I look. <|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{\"b\": \"<|tool_call_end|>\"}<|tool_call_end|><|tool_call_begin|>functions.g:4<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
            &["I look.", "f({\"b\":\"<|tool_call_end|>\"})", "g({})"],
        ),
        (
            Format::Kimi,
            "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
            &[
                "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
            ],
        ),
        (
            Format::MiniMax,
            "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">1</parameter>\n<parameter name=\"b\">1</parameter>\n<parameter name=\"c\">[1, \"x\"]</parameter>\n<parameter name=\"d\">true</parameter>\n</invoke>\n</minimax:tool_call>",
            &["f({\"a\":1,\"b\":\"1\",\"c\":[1,\"x\"],\"d\":true})"],
        ),
        (
            Format::MiniMax,
            "I look.\n<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>\n<invoke name=\"g\">\n<parameter name=\"b\">a </parameter> \"b\"</parameter>\n</invoke>\n</minimax:tool_call>",
            &["I look.", "f({})", "g({\"b\":\"a </parameter> \\\"b\\\"\"})"],
        ),
        (
            Format::MiniMax,
            "<minimax:tool_call>\n<invoke name=\"h\">\n</invoke>\n</minimax:tool_call>",
            &["<minimax:tool_call>\n<invoke name=\"h\">\n</invoke>\n</minimax:tool_call>"],
        ),
        (
            Format::Action,
            "Action:\n```json\n[\n    {\n        \"tool_name\": \"f\",\n        \"parameters\": {\"b\": \"```\"}\n    },\n    {\"tool_name\": \"g\", \"parameters\": {}}\n]```\n",
            &["f({\"b\":\"```\"})", "g({})"],
        ),
        (Format::Action, "So.\nAction:\n```json\n[{\"tool_name\": \"f\"}]\n```", &["So.", "f({})"]),
        (
            Format::Action,
            "Action:\n```json\n[{\"tool_name\": \"directly-answer\", \"parameters\": {}}]```",
            &["Action:\n```json\n[{\"tool_name\": \"directly-answer\", \"parameters\": {}}]```"],
        ),
        (Format::Action, "Action: none.", &["Action: none."]),
        (
            Format::Command,
            "I look.<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"a\": 1}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
            &["I look.", "f({\"a\":1})", "g({})"],
        ),
        (
            Format::Command,
            "<|START_ACTION|>[{\"tool_name\": \"f\", \"parameters\": [1]}]<|END_ACTION|>",
            &["<|START_ACTION|>[{\"tool_name\": \"f\", \"parameters\": [1]}]<|END_ACTION|>"],
        ),
    ];

    proptest! {
        #[test]
        fn calls_are_told_from_text_however_it_comes(cuts in prop::collection::vec(1_usize..9, 1..40)) {
            for (format, text, expected) in TEXTS {
                let (mut pieces, mut rest, mut cuts) = (Vec::new(), text, cuts.iter().cycle());
                while !rest.is_empty() {
                    let cut = rest.char_indices().nth(*cuts.next().unwrap()).map_or(rest.len(), |(at, _)| at);
                    let (piece, other) = rest.split_at(cut);
                    pieces.push(piece);
                    rest = other;
                }
                prop_assert_eq!(read(format, None, &pieces), expected);
            }
        }

        #[test]
        fn nothing_of_a_text_is_lost(
            format in 0_usize..15,
            words in prop::collection::vec(
                prop::sample::select(vec![
                    "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>", "\n", "f", "g", "(",
                    ")", "[", "]", "{", "}", "a", "=", ":", "1", ",", "<|\"|>", "'", "<arg_key>", "</arg_key>", "<arg_value>",
                    "</arg_value>", "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_call>", "<tool_call|>", "call:", "[TOOL_CALLS]",
                    "[ARGS]", "{}", " ", "\"", "\\", DEEPSEEK.0, DEEPSEEK.1, DEEPSEEK_CALL.0, DEEPSEEK_CALL.1, DEEPSEEK_NAME, "function",
                    "```json", "```", KIMI.0, KIMI.1, KIMI_CALL.0, KIMI_CALL.1, KIMI_ARGUMENTS, "functions.", ":0", MINIMAX.0, MINIMAX.1,
                    "<invoke name=\"", "</invoke>", "<parameter name=\"", "\">", "Action:", COMMAND.0, COMMAND.1, "\"tool_name\"", "\"f\"",
                ]),
                0..24,
            ),
        ) {
            let formats = [
                Format::Hermes, Format::Granite, Format::Nemotron, Format::Mistral, Format::Named, Format::Parameters, Format::Glm,
                Format::Python, Format::Gemma, Format::DeepSeek, Format::DeepSeekBare, Format::Kimi, Format::MiniMax, Format::Action,
                Format::Command,
            ];
            let format = formats[format];
            let text = words.concat();
            let found = read(format, None, &words);
            if !found.iter().any(|piece| piece.starts_with("f({") || piece.starts_with("g({")) {
                let bare = |text: &str| text.split_whitespace().collect::<String>();
                prop_assert_eq!(bare(&found.concat()), bare(&text));
            }
        }
    }

    #[test]
    fn a_forced_call_is_the_whole_answer() {
        for (format, name, text, call) in [
            (Format::Hermes, "f", "{\"name\": \"f\", \"arguments\": {}}", "f({})"),
            (Format::Llama, "g", "{\"name\": \"g\", \"parameters\": {\"x\": 2}}", "g({\"x\":2})"),
            (Format::Mistral, "f", "{\"name\": \"f\", \"arguments\": {}}", "f({})"),
            (Format::Granite, "f", "{\"name\": \"f\", \"arguments\": {}}", "f({})"),
            (Format::Nemotron, "f", "{\"name\": \"f\", \"arguments\": {}}", "f({})"),
            (Format::Named, "g", "g[ARGS]{\"x\": 2}", "g({\"x\":2})"),
            (Format::Harmony, "g", "{\"x\": 2}", "g({\"x\":2})"),
            (
                Format::Parameters,
                "g",
                "<function=g>\n<parameter=a>\n2\n</parameter>\n</function>",
                "g({\"a\":2})",
            ),
            (Format::Glm, "g", "g<arg_key>a</arg_key><arg_value>2</arg_value></tool_call>", "g({\"a\":2})"),
            (Format::Python, "g", "g(a=2)", "g({\"a\":2})"),
            (Format::Gemma, "g", "call:g{a:2}", "g({\"a\":2})"),
            (Format::DeepSeek, "g", "g\n```json\n{\"a\": 2}", "g({\"a\":2})"),
            (Format::DeepSeekBare, "g", "g<\u{ff5c}tool\u{2581}sep\u{ff5c}>{\"a\": 2}", "g({\"a\":2})"),
            (Format::Kimi, "g", "functions.g:0<|tool_call_argument_begin|>{\"a\": 2}", "g({\"a\":2})"),
            (
                Format::MiniMax,
                "g",
                "<invoke name=\"g\">\n<parameter name=\"a\">2</parameter>\n</invoke>",
                "g({\"a\":2})",
            ),
            (Format::Action, "g", "{\"tool_name\": \"g\", \"parameters\": {\"a\": 2}}", "g({\"a\":2})"),
            (
                Format::Command,
                "g",
                "{\"tool_call_id\": \"0\", \"tool_name\": \"g\", \"parameters\": {\"a\": 2}}",
                "g({\"a\":2})",
            ),
        ] {
            let (first, second) = text.split_at(text.find(|c: char| !c.is_ascii()).unwrap_or(3));
            assert_eq!(read(format, Some(name), &[first, second]), [call], "{format:?}");
            // one that was cut off is text
            assert_eq!(read(format, Some(name), &[first]), [first], "{format:?}");
        }
        let call = Calls::new(Format::Hermes, tools(), None).object(json!({ "name": "f", "arguments": "x" }));
        assert_eq!(call, None, "arguments are an object");
    }

    /// What the templates of models write into a conversation is what they teach the model to write.
    #[test]
    fn the_calls_that_templates_write_are_read_back() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/chat.json");
        let golden: Value = serde_json::from_str(&std::fs::read_to_string(golden).unwrap()).unwrap();
        let (told, tools) = (&golden["tools"], &golden["tools"]["tools"][0]["function"]);
        let tool = Function {
            name: tools["name"].as_str().unwrap().to_owned(),
            description: None,
            parameters: tools["parameters"].as_object().cloned(),
            strict: None,
        };
        let expected = &told["messages"][1]["tool_calls"][0]["function"];
        for (name, open, after) in [
            ("qwen3", "<tool_call>", "<|im_end|>"),
            ("granite4", "<tool_call>", "<|end_of_text|>"),
            ("nemo", "[TOOL_CALLS]", "</s>"),
            ("ministral3", "[TOOL_CALLS]", "</s>"),
            ("qwen3-coder", "<tool_call>", "<|im_end|>"),
            ("qwen35", "<tool_call>", "<|im_end|>"),
            ("nemotron3", "<tool_call>", "<|im_end|>"),
            ("glm47", "<tool_call>", "<|observation|>"),
            ("lfm25", "<|tool_call_start|>", "<|im_end|>"),
            ("gemma4", "<|tool_call>", "<|tool_response>"),
            ("deepseek-r1", DEEPSEEK.0, "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>"),
            ("deepseek-v31", DEEPSEEK.0, "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>"),
            ("kimi-k2", KIMI.0, "<|im_end|>"),
            ("minimax-m2", "<minimax:tool_call>", "[e~["),
            ("command-r", "\nAction:", "<|START_OF_TURN_TOKEN|>"),
            ("command-r7b", "<|START_ACTION|>", "<|END_OF_TURN_TOKEN|>"),
        ] {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/chat/tools");
            let format =
                Format::of(&std::fs::read_to_string(format!("{folder}/{name}.jinja")).unwrap()).unwrap();
            let text = told["templates"][name].as_str().unwrap();
            let written = &text[text.rfind(open).unwrap()..];
            let written = &written[..written.find(after).unwrap()];
            let mut calls = Calls::new(format, [tool.clone()].into(), None);
            let mut pieces = calls.push(written);
            pieces.extend(calls.finish());
            let [Piece::Call(call)] = &pieces[..] else { panic!("{name}: {pieces:?}") };
            assert_eq!(call.name, expected["name"], "{name}");
            assert_eq!(Value::Object(call.arguments.clone()), expected["arguments"], "{name}");
        }
    }

    #[test]
    fn calls_are_written_as_they_are_read() {
        let arguments = json!({ "a": 1, "b": "it's \"so\"\n", "c": [true, null, { "x": 2.5 }] });
        let arguments = arguments.as_object().unwrap();
        let calls = ["f", "g"].map(|name| Call {
            id: String::new(),
            name: name.to_owned(),
            arguments: arguments.clone(),
        });
        for format in [Format::Python, Format::Granite, Format::Hermes] {
            let written = format.written(&calls).unwrap().concat().concat();
            let expected = ["f", "g"].map(|name| format!("{name}({})", Value::Object(arguments.clone())));
            assert_eq!(read(format, None, &[&written]), expected, "{written}");
        }
        assert!(Format::Python.written(&calls).unwrap()[0][1].contains("c=[True, None, {\"x\": 2.5}]"));
        assert_eq!(Format::Kimi.written(&calls), None);
        assert_eq!(Format::Kimi.number("f", 2), Some("functions.f:2".to_owned()));
    }

    #[test]
    fn what_came_of_a_call_is_told_by_the_number_that_its_model_gave_it() {
        let call =
            |id: &str, name: &str| Call { id: id.to_owned(), name: name.to_owned(), arguments: Map::new() };
        let messages = [
            Message { calls: vec![call("x", "f"), call("y", "g")], ..Message::new(Role::Assistant, "") },
            Message { answers: Some("y".to_owned()), ..Message::new(Role::Tool, "1") },
            Message { answers: Some("z".to_owned()), ..Message::new(Role::Tool, "2") },
        ];
        let kimi = numbered(Format::Kimi, &messages);
        let ids: Vec<&str> = kimi[0].calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!(ids, ["functions.f:0", "functions.g:1"]);
        assert_eq!(kimi[1].answers.as_deref(), Some("functions.g:1"));
        assert_eq!(kimi[2].answers.as_deref(), Some("z"), "nobody called it");
        assert_eq!(numbered(Format::Hermes, &messages), messages);
    }

    #[test]
    fn a_template_has_the_format_that_it_teaches() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/chat");
        for (name, format) in [
            ("tools/qwen3", Some(Format::Hermes)),
            ("tools/granite4", Some(Format::Hermes)),
            ("tools/nemo", Some(Format::Mistral)),
            ("tools/ministral3", Some(Format::Named)),
            ("tools/llama3", Some(Format::Llama)),
            ("tools/harmony", Some(Format::Harmony)),
            ("tools/qwen3-coder", Some(Format::Parameters)),
            ("tools/qwen35", Some(Format::Parameters)),
            ("tools/nemotron3", Some(Format::Parameters)),
            ("tools/glm47", Some(Format::Glm)),
            ("tools/lfm25", Some(Format::Python)),
            ("tools/gemma4", Some(Format::Gemma)),
            ("tools/deepseek-r1", Some(Format::DeepSeek)),
            ("tools/deepseek-v31", Some(Format::DeepSeekBare)),
            ("tools/kimi-k2", Some(Format::Kimi)),
            ("tools/minimax-m2", Some(Format::MiniMax)),
            ("tools/command-r", Some(Format::Action)),
            ("tools/command-r7b", Some(Format::Command)),
            ("tools/smollm3", Some(Format::Hermes)),
            ("chatml", None),
            ("gemma", None),
        ] {
            let source = std::fs::read_to_string(format!("{folder}/{name}.jinja")).unwrap();
            assert_eq!(Format::of(&source), format, "{name}");
        }
    }
}
