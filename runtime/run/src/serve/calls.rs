//! Calls of tools in an answer, in the format that the model's template teaches it.
//!
//! ```text
//! Hermes, Qwen   <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>, one or more, perhaps after text
//! Mistral        [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]
//! Llama 3        {"name": "f", "parameters": {...}} and nothing else
//! harmony        a message to functions.f, which `reasoning` tells from others
//! ```
//!
//! What is no call of a tool that there is stays text, so that nothing of an answer is lost.

use serde_json::{Map, Value};

use super::super::chat::conversation::Call;
use super::super::reasoning::Part;
use super::stops::beginning;

/// How a model writes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Hermes,
    Mistral,
    Llama,
    Harmony,
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const LIST: &str = "[TOOL_CALLS]";
const PYTHON: &str = "<|python_tag|>";

impl Format {
    /// That of a template, if it is one of these.
    pub(super) fn of(template: &str) -> Option<Self> {
        let has = |text: &str| template.contains(text);
        if has(OPEN) {
            // others write names and arguments between tags of their own
            return (has("arguments") && !has("<function=") && !has("<arg_key>")).then_some(Self::Hermes);
        }
        if has(LIST) {
            return (!has("[ARGS]") && !has("[CALL_ID]")).then_some(Self::Mistral);
        }
        if has("<|channel|>") && has("functions.") {
            return Some(Self::Harmony);
        }
        (has("<|start_header_id|>") && has("\"parameters\"")).then_some(Self::Llama)
    }

    /// Tokens that steer the model and are part of a call's text.
    pub(super) fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &[OPEN, CLOSE],
            Self::Mistral => &[LIST],
            Self::Llama => &[PYTHON],
            Self::Harmony => &[],
        }
    }

    /// Text that stands before a call's object, or before the arguments of `name` in harmony.
    pub(super) fn prefix(self, name: &str) -> String {
        match self {
            Self::Hermes => format!("{OPEN}\n"),
            Self::Mistral => format!("{LIST}["),
            Self::Llama => String::new(),
            Self::Harmony => {
                format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>")
            }
        }
    }

    /// The key of the arguments.
    pub(super) fn arguments(self) -> &'static str {
        if self == Self::Llama { "parameters" } else { "arguments" }
    }
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
    names: Vec<String>,
    /// The call that the answer is, from its beginning; in harmony only the arguments of the one named.
    forced: Option<String>,
    held: String,
    /// Whether what is held belongs to a call.
    inside: bool,
    /// Whether text or a call has come.
    begun: bool,
}

impl Calls {
    pub(super) fn new(format: Format, names: Vec<String>, forced: Option<String>) -> Self {
        let inside = forced.is_some() || format == Format::Harmony;
        Self { format, names, forced, held: String::new(), inside, begun: false }
    }

    /// Pieces that can be told now that a text has come.
    pub(super) fn read(&mut self, part: Part, text: &str) -> Vec<Piece> {
        // harmony's calls come apart from text
        if part == Part::Answer && self.format == Format::Harmony && self.forced.is_none() {
            return vec![Piece::Text(text.to_owned())];
        }
        self.push(text)
    }

    fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        match self.format {
            _ if self.inside && self.format != Format::Hermes || self.forced.is_some() => {}
            Format::Hermes => while self.step(&mut pieces) {},
            Format::Mistral => {
                if let Some(at) = self.held.find(LIST) {
                    let call = self.held.split_off(at);
                    self.text(at, &mut pieces);
                    (self.held, self.inside) = (call, true);
                } else {
                    self.text(self.held.len() - beginning(&self.held, LIST), &mut pieces);
                }
            }
            Format::Llama => {
                let held = self.held.trim_start();
                let call = held.starts_with('{') || held.starts_with(PYTHON);
                let may_be = !self.begun && PYTHON.starts_with(held);
                self.inside = !self.begun && call;
                if !(self.inside || may_be) {
                    self.text(self.held.len(), &mut pieces);
                }
            }
            Format::Harmony => {}
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
        let body = match (&self.forced, self.format) {
            (Some(name), Format::Harmony) => return vec![self.named(name, &held)],
            (None, Format::Harmony) => match held.split_once('\n') {
                Some((name, arguments)) => return vec![self.named(name, arguments)],
                None => return Vec::new(),
            },
            (Some(_), _) => held.as_str(),
            (None, Format::Hermes) => held.trim_start_matches(OPEN).trim_end_matches(CLOSE),
            (None, Format::Mistral) => held.trim_start_matches(LIST),
            (None, Format::Llama) => held.trim_start().trim_start_matches(PYTHON),
        };
        let calls = match serde_json::from_str(body.trim()) {
            Ok(Value::Array(calls)) => calls.into_iter().map(|call| self.call(call)).collect(),
            Ok(call) => self.call(call).map(|call| vec![call]),
            Err(_) => None,
        };
        match calls {
            Some(calls) if !calls.is_empty() => calls.into_iter().map(Piece::Call).collect(),
            _ => vec![Piece::Text(held)],
        }
    }

    /// One step through text between tags; whether there may be another.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> bool {
        if !self.inside {
            let Some(at) = self.held.find(OPEN) else {
                // spaces may stand before a call, and are none of the text then
                let kept = beginning(&self.held, OPEN);
                let said = self.held[..self.held.len() - kept].trim_end().len();
                self.text(said, pieces);
                return false;
            };
            let call = self.held.split_off(at);
            self.text(self.held.trim_end().len(), pieces);
            (self.held, self.inside) = (call, true);
        }
        let Some(end) = self.held.find(CLOSE) else { return false };
        let rest = self.held.split_off(end + CLOSE.len());
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

    fn named(&self, name: &str, arguments: &str) -> Piece {
        match serde_json::from_str(arguments.trim()) {
            Ok(arguments) if self.names.iter().any(|known| known == name) => {
                Piece::Call(Call { id: String::new(), name: name.to_owned(), arguments })
            }
            _ => Piece::Text(arguments.to_owned()),
        }
    }

    /// A call of a tool that there is.
    fn call(&self, call: Value) -> Option<Call> {
        let Value::Object(mut call) = call else { return None };
        let name = call
            .get("name")?
            .as_str()
            .filter(|name| self.names.iter().any(|known| known == name))?
            .to_owned();
        let arguments = match call.remove(self.format.arguments()) {
            Some(Value::Object(arguments)) => arguments,
            None => Map::new(),
            Some(_) => return None,
        };
        Some(Call { id: String::new(), name, arguments })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Text in one piece, and calls as `name(arguments)`.
    fn read(format: Format, forced: Option<&str>, pieces: &[&str]) -> Vec<String> {
        let names = vec!["f".to_owned(), "g".to_owned()];
        let mut calls = Calls::new(format, names, forced.map(str::to_owned));
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

    const TEXTS: [(Format, &str, &[&str]); 12] = [
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
        (Format::Llama, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", &["f({\"a\":1})"]),
        (Format::Llama, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", &["f({})"]),
        (Format::Llama, "{\"is\": \"an object\"}", &["{\"is\": \"an object\"}"]),
        (
            Format::Llama,
            "Look: {\"name\": \"f\", \"parameters\": {}}",
            &["Look: {\"name\": \"f\", \"parameters\": {}}"],
        ),
        (Format::Harmony, "f\n{\"a\": 1}", &["f({\"a\":1})"]),
    ];

    proptest! {
        #[test]
        fn calls_are_told_from_text_however_it_comes(cuts in prop::collection::vec(1_usize..9, 1..40)) {
            for (format, text, expected) in TEXTS {
                let (mut pieces, mut rest, mut cuts) = (Vec::new(), text, cuts.iter().cycle());
                while !rest.is_empty() {
                    let (piece, other) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                    pieces.push(piece);
                    rest = other;
                }
                prop_assert_eq!(read(format, None, &pieces), expected);
            }
        }
    }

    #[test]
    fn a_forced_call_is_the_whole_answer() {
        assert_eq!(read(Format::Hermes, Some("f"), &["{\"name\": \"f\", ", "\"arguments\": {}}"]), ["f({})"]);
        assert_eq!(
            read(Format::Llama, Some("g"), &["{\"name\": \"g\", \"parameters\": {\"x\": 2}}"]),
            ["g({\"x\":2})"]
        );
        assert_eq!(read(Format::Harmony, Some("g"), &["{\"x\"", ": 2}"]), ["g({\"x\":2})"]);
        assert_eq!(
            read(Format::Mistral, Some("g"), &["{\"name\": \"g\", \"argu"]),
            ["{\"name\": \"g\", \"argu"]
        );
        let call = Calls::new(Format::Hermes, vec!["f".to_owned()], None)
            .call(json!({ "name": "f", "arguments": "x" }));
        assert_eq!(call, None, "arguments are an object");
    }
}
