//! Calls of tools in an answer, in the format that the model's template teaches it.
//!
//! [`FORMATS`] is the table of all formats. A row says how to recognise a template that teaches the format, what begins its calls, and how
//! to read them. It also says how calls are written under a [`grammar`]. The files below have the rows, each with its family. Text is read
//! as it comes. A call of an unknown tool stays text, and so does a call in a block of code: no part of an answer is lost.

mod cursor;
mod fence;
mod gemma;
mod glm;
pub(super) mod grammar;
mod harmony;
mod json;
mod known;
mod llama;
mod minimax3;
mod named;
mod python;
mod tagged;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use self::cursor::{Cursor, Stop};
use self::fence::Fence;
use self::known::Known;
use super::super::chat::conversation::{Call, Message};
use super::super::reasoning::Channel;
use super::literal;
use super::stops::beginning;
use super::tools::Function;

/// Whether a template has a text.
type HasText<'a> = dyn Fn(&str) -> bool + 'a;

/// How a model writes calls.
pub(super) struct Format {
    /// As people call it.
    pub(super) name: &'static str,
    /// Whether a template teaches this format.
    taught: fn(&HasText<'_>) -> bool,
    /// Openings of calls: first the template's, then others that models write.
    openings: &'static [Opening],
    /// Tokens that steer the model and are part of a call's text.
    pub(super) marks: &'static [&'static str],
    /// How calls are written after the first opening.
    section: Section,
}

/// An opening of calls in a text, and a reader of the calls from there to the end of the last.
struct Opening {
    mark: Mark,
    read: fn(Known<'_>, &mut Cursor<'_>) -> Result<Vec<Call>, Stop>,
}

/// The form of an opening.
enum Mark {
    Text(&'static str),
    /// An object that begins as a call does, at the beginning of a line. It is part of what is read.
    Object,
    /// The beginning of the answer.
    Start,
}

/// How calls are written.
struct Section {
    /// Before the first, between two, and after the last.
    first: &'static str,
    between: &'static str,
    last: &'static str,
    /// A call of a tool of this name.
    call: fn(&str) -> Shape,
}

/// How a call is written.
enum Shape {
    /// Its arguments are an object, between a piece of a Lark grammar and a text.
    Object { before: String, after: &'static str },
    /// Each argument stands by itself.
    Apart(Apart),
}

/// How arguments are written that stand by themselves.
struct Apart {
    before: String,
    /// Text before a key, and after it: for a value that is text, and for any other value.
    key: (&'static str, [&'static str; 2]),
    /// Text that ends the value of a key, given the key.
    after_value: fn(&str) -> String,
    between: &'static str,
    after: &'static str,
    text: Text,
}

/// How a text is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Text {
    /// As it is: any value can be one.
    Bare,
    Quoted,
    Json,
}

/// A text as Lark writes it.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Every format. The first one that a template matches counts.
static FORMATS: [&Format; 34] = [
    &named::DEEPSEEK_FENCED,
    &named::DEEPSEEK_BARE,
    &tagged::DEEPSEEK_32,
    &tagged::DEEPSEEK_4,
    &named::KIMI_K2,
    &tagged::KIMI_K3,
    &named::SOLAR_OPEN,
    &named::APERTUS_8B,
    &minimax3::MINIMAX_M3,
    &tagged::MINIMAX_M2,
    &tagged::MUSE_GLIMMER,
    &tagged::SEED_OSS,
    &glm::HY3,
    &json::COMMAND,
    &json::ACTION,
    &tagged::QWEN_CODER,
    &glm::GLM,
    &json::APRIEL,
    &json::HERMES,
    &tagged::MINICPM_5,
    &gemma::GEMMA_4,
    &python::LFM2,
    &json::NEMOTRON,
    &json::GRANITE,
    &json::GIGACHAT,
    &json::GIGACHAT_31,
    &json::FIREFUNCTION,
    &named::FUNCTIONARY_32,
    &named::FUNCTIONARY_31,
    &named::NAMED,
    &json::MISTRAL,
    &json::MINIMAX_M1,
    &harmony::HARMONY,
    &llama::LLAMA,
];

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Format {
    /// The format that a template teaches, if it is known.
    pub(super) fn of(template: &str) -> Option<&'static Self> {
        FORMATS.into_iter().find(|format| (format.taught)(&|text| template.contains(text)))
    }

    /// Whether calls come as messages of their own, apart from text.
    pub(super) fn is_apart(&self) -> bool {
        self.openings.is_empty()
    }

    /// The end of a prompt that forces a call. A grammar of calls continues after it.
    pub(super) fn open(&self) -> &'static str {
        match self.openings.first().map(|opening| &opening.mark) {
            None => harmony::BEFORE_NAME,
            Some(Mark::Text(mark)) => mark,
            Some(Mark::Object) => "{\"name\": \"",
            Some(Mark::Start) => "",
        }
    }

    /// Calls as the model has written them, for a template that knows of none: each time a mark, text, and a mark.
    pub(super) fn written(&self, calls: &[Call]) -> Option<Vec<[String; 3]>> {
        let object = |call: &Call| {
            let arguments = Value::Object(call.arguments.clone());
            format!("{{\"name\": {}, \"arguments\": {arguments}}}", Value::from(call.name.as_str()))
        };
        let joined = |write: &dyn Fn(&Call) -> String| {
            format!("[{}]", calls.iter().map(write).collect::<Vec<_>>().join(", "))
        };
        if *self == json::HERMES {
            let between = |call: &Call| {
                ["<tool_call>".to_owned(), format!("\n{}\n", object(call)), "</tool_call>".to_owned()]
            };
            return Some(calls.iter().map(between).collect());
        }
        if *self == json::GRANITE {
            return Some(vec![["<|tool_call|>".to_owned(), joined(&object), String::new()]]);
        }
        if *self == python::LFM2 {
            let call = |call: &Call| {
                let argument =
                    |(name, value): (&String, &Value)| format!("{name}={}", literal::python(value));
                let arguments: Vec<String> = call.arguments.iter().map(argument).collect();
                format!("{}({})", call.name, arguments.join(", "))
            };
            return Some(vec![[
                "<|tool_call_start|>".to_owned(),
                joined(&call),
                "<|tool_call_end|>".to_owned(),
            ]]);
        }
        None
    }

    /// The id that a template needs for a call's result; `None` where the client's own id is accepted. Kimi K2 expects the id that the
    /// model writes; Mistral expects ids of a fixed length.
    fn number(&self, call: &Call, index: usize) -> Option<String> {
        if *self == named::KIMI_K2 {
            return Some(format!("functions.{}:{index}", call.name));
        }
        let fits = call.id.len() == ID && call.id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let mistral = *self == json::MISTRAL || *self == named::NAMED;
        (mistral && !fits).then(|| blake3::hash(call.id.as_bytes()).to_hex()[..ID].to_owned())
    }
}

/// Characters of a call's number: Mistral's templates take no other.
pub(super) const ID: usize = 9;

/// A conversation whose calls have the numbers that a format knows them by, where it has a form for these.
pub(super) fn numbered(format: &Format, messages: &[Message]) -> Vec<Message> {
    let mut messages = messages.to_vec();
    let mut known = BTreeMap::new();
    for (index, call) in messages.iter_mut().flat_map(|message| message.calls.iter_mut().enumerate()) {
        if let Some(number) = format.number(call, index) {
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
    format: &'static Format,
    /// The tools that may be called.
    tools: Arc<[Function]>,
    held: String,
    /// Where what is held has an opening, if it has one.
    opened: Option<Opened>,
    /// Whether the opening was the prompt's.
    is_forced: bool,
    fence: Fence,
    /// Whether text or a call has come.
    begun: bool,
}

/// An opening, with the spaces before it.
#[derive(Debug, Clone, Copy)]
struct Opened {
    /// Which of the format's it is.
    which: usize,
    /// Bytes of the spaces, and up to where the call is read from.
    from: usize,
    to: usize,
}

/// Texts without which nothing ends, so that nothing is read again before one comes.
const ENDS: [char; 9] = ['>', '}', ']', ')', '\n', '`', '|', ';', ' '];

impl Calls {
    /// Reads an answer in a format. `is_forced`: the prompt has begun a call already.
    pub(super) fn new(format: &'static Format, tools: Arc<[Function]>, is_forced: bool) -> Self {
        let held = if is_forced && !format.is_apart() { format.open() } else { "" };
        let to = if matches!(format.openings.first(), Some(Opening { mark: Mark::Object, .. })) {
            0
        } else {
            held.len()
        };
        let opened = (!held.is_empty()).then_some(Opened { which: 0, from: 0, to });
        Self {
            format,
            tools,
            held: held.to_owned(),
            opened,
            is_forced,
            fence: Fence::default(),
            begun: false,
        }
    }

    /// The text after the first opening, where a call has begun as templates write it.
    pub(super) fn opened(&self) -> Option<&str> {
        if self.format.is_apart() {
            return Some(self.held.as_str()).filter(|held| self.is_forced || !held.is_empty());
        }
        let opened = self.opened.filter(|opened| opened.which == 0)?;
        let open = self.format.open();
        self.held[opened.from..].strip_prefix(open).filter(|_| !open.is_empty() || self.is_forced)
    }

    /// Adds a piece of text, and returns the pieces that can be sent now.
    pub(super) fn read(&mut self, part: Channel, text: &str) -> Vec<Piece> {
        // harmony's calls come apart from text
        if self.format.is_apart() && part != Channel::Call && !self.is_forced {
            return vec![Piece::Text(text.to_owned())];
        }
        self.held.push_str(text);
        let mut pieces = Vec::new();
        if self.opened.is_none() || text.contains(ENDS) {
            self.go_on(false, &mut pieces);
        }
        pieces
    }

    /// Pieces that were held back, when nothing more comes.
    pub(super) fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.go_on(true, &mut pieces);
        let rest = std::mem::take(&mut self.held);
        let only_space_after_calls = self.begun && rest.trim().is_empty();
        if !rest.is_empty() && !only_space_after_calls {
            pieces.push(Piece::Text(rest));
        }
        pieces
    }

    /// Adds all pieces that can be sent now.
    fn go_on(&mut self, is_whole: bool, pieces: &mut Vec<Piece>) {
        if self.format.is_apart() {
            return self.message(is_whole, pieces);
        }
        loop {
            let Some(opened) = self.opened else {
                match self.find(is_whole) {
                    Found::At(opened, before) => {
                        self.say(before, pieces);
                        self.opened = Some(opened);
                        continue;
                    }
                    Found::NotBefore(_) if is_whole => return,
                    // spaces may stand before a call, and are none of the text then
                    Found::NotBefore(at) => return self.say(self.held[..at].trim_end().len(), pieces),
                }
            };
            let tools = Arc::clone(&self.tools);
            let mut text = Cursor::new(&self.held[opened.to..], is_whole);
            match (self.format.openings[opened.which].read)(Known(&tools), &mut text) {
                Ok(calls) if !calls.is_empty() => {
                    self.held = text.rest().to_owned();
                    pieces.extend(calls.into_iter().map(Piece::Call));
                    self.fence.read("\n");
                    (self.opened, self.begun, self.is_forced) = (None, true, false);
                }
                Err(Stop::More) => return,
                // a section without calls is text, too
                Ok(_) | Err(Stop::NoCall) => {
                    self.opened = None;
                    let mut to = opened.to;
                    if std::mem::take(&mut self.is_forced) {
                        // the opening is the prompt's, and no text of the answer
                        self.held.drain(opened.from..self.format.open().len());
                        to = opened.from;
                    }
                    // the opening is text, and the text after it may have another
                    let first = self.held[opened.from..].chars().next().map_or(0, char::len_utf8);
                    self.say(to.max(opened.from + first), pieces);
                    self.begun = true;
                }
            }
        }
    }

    /// A message to a tool, with the name in its first line.
    fn message(&mut self, is_whole: bool, pieces: &mut Vec<Piece>) {
        if self.held.is_empty() {
            return;
        }
        let tools = Arc::clone(&self.tools);
        match harmony::read(Known(&tools), &mut Cursor::new(&self.held, is_whole)) {
            Ok(calls) => {
                pieces.extend(calls.into_iter().map(Piece::Call));
                self.held.clear();
                self.is_forced = false;
            }
            Err(_) if is_whole => {
                let held = std::mem::take(&mut self.held);
                let arguments = held.split_once('\n').map_or(held.as_str(), |(_, arguments)| arguments);
                pieces.push(Piece::Text(arguments.to_owned()));
            }
            Err(_) => {}
        }
    }

    /// The next opening in what is held, and how much text stands before it and its spaces; or up to where there is none.
    fn find(&self, is_whole: bool) -> Found {
        let mut not_before = self.held.len();
        let mut first: Option<(usize, usize, usize)> = None;
        for (which, opening) in self.format.openings.iter().enumerate() {
            let (found, may_be) = match opening.mark {
                Mark::Text(mark) => {
                    let may_be = self.held.len() - beginning(&self.held, mark);
                    (self.shown_apart(mark), may_be)
                }
                Mark::Object => self.object(),
                Mark::Start if self.begun || self.held.is_empty() => (None, self.held.len()),
                Mark::Start => (Some((0, 0)), 0),
            };
            if !is_whole {
                not_before = not_before.min(may_be);
            }
            if let Some((at, to)) = found
                && first.is_none_or(|(before, ..)| at < before)
            {
                first = Some((at, to, which));
            }
        }
        // an opening that has not come whole may begin before one that has
        match first {
            Some((at, to, which)) if at <= not_before => {
                let before = self.held[..at].trim_end().len();
                Found::At(Opened { which, from: at - before, to: to - before }, before)
            }
            _ => Found::NotBefore(not_before),
        }
    }

    /// The first place of a mark that stands in no block of code, and its end.
    fn shown_apart(&self, mark: &str) -> Option<(usize, usize)> {
        let outside = |at: usize| {
            let mut fence = self.fence.clone();
            fence.read(&self.held[..at]);
            !fence.is_open()
        };
        let at = self.held.match_indices(mark).map(|(at, _)| at).find(|&at| outside(at))?;
        Some((at, at + mark.len()))
    }

    /// The first object that begins as a call does, and up to where there is none.
    fn object(&self) -> (Option<(usize, usize)>, usize) {
        let mut fence = self.fence.clone();
        let mut read = 0;
        for (at, _) in self.held.match_indices('{') {
            fence.read(&self.held[read..at]);
            read = at;
            if fence.is_open() || !fence.begins_line() {
                continue;
            }
            match llama::begins(&self.held[at..]) {
                Some(true) => return (Some((at, at)), at),
                Some(false) => {}
                None => return (None, at),
            }
        }
        (None, self.held.len())
    }

    /// The first so many bytes of what is held are text.
    fn say(&mut self, bytes: usize, pieces: &mut Vec<Piece>) {
        if bytes > 0 {
            let rest = self.held.split_off(bytes);
            let said = std::mem::replace(&mut self.held, rest);
            self.fence.read(&said);
            pieces.push(Piece::Text(said));
            self.begun = true;
        }
    }
}

/// Where the next call may be.
enum Found {
    /// An opening, behind so many bytes of text.
    At(Opened, usize),
    /// There is none before so many bytes.
    NotBefore(usize),
}

#[cfg(test)]
mod tests;
