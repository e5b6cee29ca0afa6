//! Parts of a model's answer: reasoning, text for the user, and calls of tools.
//!
//! Some models put `<think>` and `</think>` around their reasoning before they answer; some begin inside it, because the template opens it.
//! Gemma 4's tags are `<|channel>thought` and `<channel|>`, Command R7B's are `<|START_THINKING|>` and `<|END_THINKING|>`. Models of
//! harmony's kind write channels: `<|channel|>analysis<|message|>`, then the reasoning, `<|end|>`, and `final` for the answer. Tags may be
//! tokens or text, and come in pieces.

/// Where a piece of text belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    /// Reasoning.
    Reasoning,
    /// Text for the user.
    Answer,
    /// A message to a tool, if these are separated: the name in a line, and the arguments.
    Call,
}

/// Where the next text of an answer would go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextText {
    /// To the user.
    Answer,
    /// To the user, if it does not open the reasoning.
    Beginning,
    /// Anywhere else: the model speaks to itself, or names a channel.
    Elsewhere,
}

/// Whether a token by itself begins what is not for the user.
pub(crate) fn opens(token: &str) -> bool {
    token == MARKS[0] || TAGS.iter().any(|&(first, _)| token.trim() == first)
}

/// The two ends of reasoning in text.
pub(crate) type Tags = (&'static str, &'static str);

/// All that are known.
const TAGS: [Tags; 11] = [
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
    // Kimi K3 closes its reasoning, or begins its response without
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<|open|>think<|sep|>", "<|open|>response<|sep|>"),
];

/// Marks in an answer that are no text of it, after tags of reasoning that begin with such a mark.
const FRAMES: [(&str, &[&str]); 2] = [
    ("<|channel>", &["<|channel>thought\n<channel|>", "<channel|>"]),
    ("<|open|>", &["<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"]),
];

/// The tags between which a text's end has begun to reason.
pub(crate) fn opened_by(text: &str) -> Option<Tags> {
    TAGS.into_iter().find(|(open, _)| text.ends_with(open))
}

/// The tags of reasoning that a template speaks of.
pub(crate) fn taught_by(template: &str) -> Option<Tags> {
    TAGS.into_iter().find(|(open, close)| template.contains(open) && template.contains(close))
}

/// The tags that a template's text has, opening or closing.
pub(crate) fn tags_in(template: &str) -> Vec<&'static str> {
    TAGS.into_iter().flat_map(|(open, close)| [open, close]).filter(|tag| template.contains(tag)).collect()
}

/// Text that ends harmony's reasoning and begins its answer.
const TO_FINAL: &str = "<|end|><|start|>assistant<|channel|>final<|message|>";

/// The token that the last of them begins with.
const CHANNEL: &str = "<|channel>";

/// Text before the name of a recipient in the header of a harmony message.
const RECIPIENT: &str = "to=";
/// Between two messages of the same part.
const GAP: &str = "\n\n";

/// Harmony's marks, which some files have as pieces of text.
const MARKS: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>"];

/// The longest header of a message.
const SPEAKER_BYTES_MAX: usize = 256;

/// Tells the parts of an answer apart as it comes.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    at: At,
    /// Text that may still begin a tag; a channel's name as it comes.
    held: String,
    /// Whether the part has begun: spaces before it are none of it.
    begun: bool,
    /// Whether calls of tools are separated, and the header of the current message: its author and recipient.
    calls: bool,
    speaks: String,
    /// Whether the prompt ends with the name of the speaker, so that the answer may begin with a recipient.
    named: bool,
    /// Whether the model has said something to itself, and to the user.
    spoke: [bool; 2],
    /// Marks in the answer that are no text of it.
    frames: &'static [&'static str],
}

/// The place in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Nothing has come yet; reasoning may.
    Beginning,
    /// Between the tags.
    Inside,
    /// In a channel of harmony's.
    Channel(Channel),
    /// In the name of a channel.
    Name,
    /// Between two messages: the header of the next, which is no text.
    Between,
    /// Reasoning is over, or there was none.
    Answer,
}

impl Parts {
    /// Parts of an answer that begins in its reasoning (`reasons`) or before it.
    pub(crate) fn new(reasons: bool) -> Self {
        let at = if reasons { At::Inside } else { At::Beginning };
        Self {
            at,
            held: String::new(),
            begun: false,
            calls: false,
            speaks: String::new(),
            named: false,
            spoke: [false; 2],
            frames: &[],
        }
    }

    /// Parts of an answer to a prompt that ends with the author's name, if `named`.
    pub(crate) fn with_name(self, named: bool) -> Self {
        Self { named, ..self }
    }

    /// Separates messages to tools, if `calls`.
    pub(crate) fn with_calls(self, calls: bool) -> Self {
        Self { calls, ..self }
    }

    /// Where the next text would go.
    pub(crate) fn place(&self) -> NextText {
        match self.at {
            At::Beginning => NextText::Beginning,
            At::Answer | At::Channel(Channel::Answer) => NextText::Answer,
            At::Inside | At::Channel(Channel::Reasoning | Channel::Call) | At::Name | At::Between => {
                NextText::Elsewhere
            }
        }
    }

    /// Whether the last text was reasoning, or opened it.
    pub(crate) fn is_reasoning(&self) -> bool {
        matches!(self.at, At::Inside | At::Channel(Channel::Reasoning))
    }

    /// Text that ends the current reasoning, if there is any. Reasoning between tags needs the model's `tags`.
    pub(crate) fn closing(&self, tags: Option<Tags>) -> Option<String> {
        match self.at {
            At::Inside => tags.map(|(_, close)| format!("\n{close}\n\n")),
            At::Channel(Channel::Reasoning) => Some(TO_FINAL.to_owned()),
            _ => None,
        }
    }

    /// Whether something of such a text would be for the user.
    pub(crate) fn would_answer(&self, text: &str) -> bool {
        let mut answers = false;
        self.clone().text(text, |part, _| answers |= part == Channel::Answer);
        answers
    }

    /// A token that steers the model, by its name.
    pub(crate) fn special(&mut self, name: &str, mut out: impl FnMut(Channel, &str)) {
        match name {
            "<|channel|>" => {
                self.speaks = std::mem::take(&mut self.held);
                self.go(At::Name);
            }
            "<|message|>" => {
                let channel = self.held.split_whitespace().next().unwrap_or_default();
                let thinks = self.at == At::Name && channel == "analysis";
                let header = std::mem::take(&mut self.speaks) + " " + &std::mem::take(&mut self.held);
                let to = header.split_whitespace().find_map(|word| word.strip_prefix(RECIPIENT));
                match (to, to.and_then(|to| to.strip_prefix("functions."))) {
                    (_, Some(tool)) if self.calls => {
                        self.go(At::Channel(Channel::Call));
                        out(Channel::Call, &format!("{tool}\n"));
                    }
                    // a message to an unknown tool
                    (_, Some(_)) | (Some("self" | "python" | "browser" | "container"), _) => {
                        self.go(At::Channel(Channel::Reasoning));
                    }
                    (Some(to), _) if to.contains('.') => self.go(At::Channel(Channel::Reasoning)),
                    _ if thinks => self.go(At::Channel(Channel::Reasoning)),
                    // a preamble is for the user
                    _ => self.go(At::Channel(Channel::Answer)),
                }
            }
            // Solar's messages
            "<|think|>" => self.go(At::Channel(Channel::Reasoning)),
            "<|content|>" | "<|tool_calls|>" => self.go(At::Channel(Channel::Answer)),
            "<|begin|>" => self.go(At::Between),
            "<|open|>" | "<|close|>"
                if !self.frames.is_empty() || matches!(self.at, At::Inside | At::Beginning) =>
            {
                self.text(name, out);
            }
            "<|sep|>" if self.held.contains("<|open|>") || self.held.contains("<|close|>") => {
                self.text(name, out);
            }
            // one is enough to begin the reasoning
            CHANNEL if self.at == At::Beginning && self.held.trim() == CHANNEL => {}
            "<|end|>" | "<|start|>" if matches!(self.at, At::Channel(_) | At::Name | At::Between) => {
                self.go(At::Between);
            }
            name if name == CHANNEL || TAGS.iter().any(|&(first, last)| name == first || name == last) => {
                self.text(name, out);
            }
            _ => self.release(&mut out),
        }
    }

    /// Text that a token completes.
    pub(crate) fn text(&mut self, text: &str, mut out: impl FnMut(Channel, &str)) {
        if MARKS.contains(&text) {
            return self.special(text, out);
        }
        self.held.push_str(text);
        loop {
            match self.at {
                At::Name => return,
                At::Between if self.held.len() > SPEAKER_BYTES_MAX => return self.held.clear(),
                At::Between => return,
                At::Channel(part) => return self.say_all(part, &mut out),
                At::Answer if self.frames.is_empty() => return self.say_all(Channel::Answer, &mut out),
                At::Answer => {
                    let frames = self.frames.iter().filter_map(|frame| Some((self.held.find(frame)?, frame)));
                    let Some((at, frame)) = frames.min() else {
                        let kept =
                            self.frames.iter().map(|frame| begun(&self.held, frame)).max().unwrap_or(0);
                        return self.say(Channel::Answer, self.held.len() - kept, &mut out);
                    };
                    self.say(Channel::Answer, at, &mut out);
                    self.held.drain(..frame.len());
                }
                At::Beginning => {
                    let held = self.held.trim_start();
                    if self.named && (held.starts_with(RECIPIENT) || RECIPIENT.starts_with(held)) {
                        if held.len() < RECIPIENT.len() {
                            return;
                        }
                        self.at = At::Between;
                        continue;
                    }
                    let begins = |tag: &str| tag.starts_with(held);
                    if let Some((first, _)) = TAGS.iter().find(|(first, _)| held.starts_with(first)) {
                        self.frames = frames_of(first);
                        self.held = held[first.len()..].to_owned();
                        self.go(At::Inside);
                    } else if let Some((first, last)) = TAGS.iter().find(|(_, last)| held.starts_with(last)) {
                        // nothing was thought
                        self.frames = frames_of(first);
                        self.held = held[last.len()..].to_owned();
                        self.go(At::Answer);
                    } else if TAGS.iter().any(|(first, last)| begins(first) || begins(last)) {
                        return;
                    } else {
                        self.go(At::Answer);
                    }
                }
                At::Inside => {
                    let ends =
                        TAGS.iter().filter_map(|(first, last)| Some((self.held.find(last)?, last, first)));
                    let Some((end, last, first)) = ends.min() else {
                        let kept = TAGS.map(|(_, last)| self.held.len() - tail(&self.held, last));
                        let kept = kept.into_iter().min().unwrap_or(0);
                        return self.say(Channel::Reasoning, kept, &mut out);
                    };
                    let trimmed = self.held[..end].trim_end().len();
                    self.say(Channel::Reasoning, trimmed, &mut out);
                    self.held.drain(..end - trimmed + last.len());
                    self.frames = frames_of(first);
                    self.go(At::Answer);
                }
            }
        }
    }

    /// The text still held back, at the end.
    pub(crate) fn finish(mut self, mut out: impl FnMut(Channel, &str)) {
        self.release(&mut out);
    }

    /// Releases the text that was held back: it was no tag.
    fn release(&mut self, out: &mut impl FnMut(Channel, &str)) {
        match self.at {
            At::Beginning | At::Answer => self.say_all(Channel::Answer, out),
            At::Inside => self.say_all(Channel::Reasoning, out),
            At::Channel(_) | At::Name | At::Between => {}
        }
    }

    fn go(&mut self, at: At) {
        (self.at, self.begun) = (at, false);
    }

    fn say_all(&mut self, part: Channel, out: &mut impl FnMut(Channel, &str)) {
        self.say(part, self.held.len(), out);
    }

    /// The first so many bytes of what is held.
    fn say(&mut self, part: Channel, bytes: usize, out: &mut impl FnMut(Channel, &str)) {
        let text = &self.held[..bytes];
        let text = if self.begun { text } else { text.trim_start() };
        if !text.is_empty() {
            let spoke = &mut self.spoke[usize::from(part == Channel::Answer)];
            if !self.begun && *spoke && part != Channel::Call {
                out(part, GAP);
            }
            *spoke |= part != Channel::Call;
            self.begun = true;
            out(part, text);
        }
        self.held.drain(..bytes);
    }
}

/// Marks in an answer whose reasoning has an opening tag.
fn frames_of(tag: &str) -> &'static [&'static str] {
    FRAMES.into_iter().find(|(mark, _)| tag.starts_with(mark)).map_or(&[], |(_, frames)| frames)
}

/// Bytes at the end of a text that may be the beginning of a tag.
fn begun(text: &str, tag: &str) -> usize {
    let begun = |bytes: &usize| text.ends_with(&tag[..*bytes]);
    (1..tag.len()).rev().filter(|&bytes| tag.is_char_boundary(bytes)).find(begun).unwrap_or(0)
}

/// Bytes at the end of a text that may be the beginning of a tag, and the spaces before them.
fn tail(text: &str, tag: &str) -> usize {
    let beginning = begun(text, tag);
    let before = &text[..text.len() - beginning];
    beginning + before.len() - before.trim_end().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of an answer whose tokens are texts, and special ones where they stand in `«»`.
    fn parts(reasons: bool, tokens: &[&str]) -> (String, String) {
        let (mut thought, mut said) = (String::new(), String::new());
        let mut out = |part, text: &str| match part {
            Channel::Reasoning | Channel::Call => thought.push_str(text),
            Channel::Answer => said.push_str(text),
        };
        let mut parts = Parts::new(reasons);
        for token in tokens {
            match token.strip_prefix('\u{ab}').and_then(|token| token.strip_suffix('\u{bb}')) {
                Some(name) => parts.special(name, &mut out),
                None => parts.text(token, &mut out),
            }
        }
        parts.finish(&mut out);
        (thought, said)
    }

    #[track_caller]
    fn check(reasons: bool, tokens: &[&str], thought: &str, said: &str) {
        assert_eq!(parts(reasons, tokens), (thought.to_owned(), said.to_owned()), "{tokens:?}");
    }

    #[test]
    fn tags_are_found_in_any_pieces_at_the_beginning_and_nowhere_else() {
        let whole = "\n<think>\nIs 1 < 2?\n\nYes </thin. \n</think>\n\nIt is: <think> is </think> text.";
        let (thought, said) = ("Is 1 < 2?\n\nYes </thin.", "It is: <think> is </think> text.");
        check(false, &[whole], thought, said);
        for size in 1..12 {
            let pieces: Vec<&str> =
                whole.as_bytes().chunks(size).map(|b| std::str::from_utf8(b).unwrap()).collect();
            check(false, &pieces, thought, said);
        }
        let special = ["\u{ab}<think>\u{bb}", "\n", "a", "\u{ab}</think>\u{bb}", "\n\n", "b", " ", "c"];
        check(false, &special, "a", "b c");
        check(false, &["[THI", "NK]a[/THINK]", "b"], "a", "b");
        let gemma = ["\u{ab}<|channel>\u{bb}", "thought", "\n", "a", "\n", "\u{ab}<channel|>\u{bb}", "b"];
        check(false, &gemma, "a", "b");
        check(false, &["\u{ab}<|channel>\u{bb}", "final", "b"], "", "<|channel>finalb");
        let [first, last, said] = ["<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>"]
            .map(|tag| format!("\u{ab}{tag}\u{bb}"));
        check(false, &[&first, "a", &last, &said, "b"], "a", "b");
        check(false, &[&said, "b"], "", "b");
    }

    #[test]
    fn an_answer_without_reasoning_is_all_answer_and_ends_with_what_was_held_back() {
        check(false, &[" \n", "<", "thin", "g>"], "", "<thing>");
        check(false, &["<thi"], "", "<thi");
        check(false, &["a", " ", "\n"], "", "a \n");
        check(false, &[], "", "");
        check(false, &["a", "\u{ab}<|tool|>\u{bb}", "b"], "", "ab");
    }

    #[test]
    fn it_is_known_before_whether_a_text_is_for_the_user() {
        let mut parts = Parts::new(true);
        assert_eq!((parts.place(), Parts::new(false).place()), (NextText::Elsewhere, NextText::Beginning));
        parts.text("I see </thi", |_, _| {});
        for (text, answers) in [("nk>", false), ("nk>\n\n", false), ("nk>\n4", true), ("4", false)] {
            assert_eq!(parts.would_answer(text), answers, "{text}");
        }
        parts.text("nk>", |_, _| {});
        assert_eq!(parts.place(), NextText::Answer);
        assert!(opens("<think>") && opens("<|channel|>") && !opens("<thin") && !opens("{"));
    }

    #[test]
    fn an_answer_may_begin_in_its_reasoning_and_end_there() {
        check(true, &["\nI see", "</thi", "nk>", "\n4"], "I see", "4");
        check(true, &["I see", " </thi"], "I see </thi", "");
    }

    #[test]
    fn a_message_to_a_tool_is_a_call_where_that_is_asked_for() {
        for header in ["commentary to=functions.look json", "commentary json"] {
            let speaker = if header.contains("to=") { "assistant" } else { "assistant to=functions.look" };
            for calls in [true, false] {
                let mut parts = Parts::new(false).with_calls(calls);
                let mut told = [String::new(), String::new(), String::new()];
                let mut out = |part: Channel, text: &str| told[part as usize].push_str(text);
                parts.special("<|channel|>", &mut out);
                parts.text("analysis", &mut out);
                parts.special("<|message|>", &mut out);
                parts.text("I look.", &mut out);
                parts.special("<|end|>", &mut out);
                parts.special("<|start|>", &mut out);
                parts.text(speaker, &mut out);
                parts.special("<|channel|>", &mut out);
                parts.text(header, &mut out);
                parts.special("<|message|>", &mut out);
                parts.text("{\"a\"", &mut out);
                parts.text(": 1}", &mut out);
                parts.finish(&mut out);
                let call = if calls { "look\n{\"a\": 1}" } else { "" };
                let reasoning = if calls { "I look." } else { "I look.\n\n{\"a\": 1}" };
                assert_eq!(told, [reasoning, "", call], "{header}");
            }
        }
    }

    #[test]
    fn channels_are_told_apart_by_their_names() {
        let tokens = [
            "\u{ab}<|channel|>\u{bb}",
            "anal",
            "ysis",
            "\u{ab}<|message|>\u{bb}",
            "Two and ",
            "two.",
            "\u{ab}<|end|>\u{bb}",
            "\u{ab}<|start|>\u{bb}",
            "assistant",
            "\u{ab}<|channel|>\u{bb}",
            "final",
            "\u{ab}<|message|>\u{bb}",
            "4",
            " <think>",
        ];
        check(false, &tokens, "Two and two.", "4 <think>");
        let marks = tokens.map(|token| token.trim_matches(['\u{ab}', '\u{bb}']));
        check(false, &marks, "Two and two.", "4 <think>");
        let bare = ["\u{ab}<|message|>\u{bb}", "4"];
        check(false, &bare, "", "4");
    }
}
