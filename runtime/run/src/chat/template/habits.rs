//! The forms of messages that a template takes. Templates do not say them, so each is found by trying.
//!
//! A template that joins arguments to other text fails on an object. One that takes content as a list of parts writes nothing of a text.
//! Some take one call in a message, and harmony's refuses a message that has words, reasoning and a call.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};

use super::super::conversation::{Call, Message, Role};
use super::{Scene, Template, TemplateError};

/// The forms of messages that a template takes; by default the usual ones.
#[derive(Debug, Default)]
pub(super) struct Habits {
    /// Whether it joins the arguments of a call to other text, as `DeepSeek`'s templates do. They are a text, then.
    pub(super) joins_arguments: bool,
    /// Roles whose content is a list of parts.
    pub(super) parts: Vec<Role>,
    /// Roles whose content it leaves out in either form.
    silent: Vec<Role>,
    /// Whether a message has one call: several become messages of their own, each with its result.
    one_call: bool,
    /// Whether a message with a call has reasoning or words, and not both: the words become part of the reasoning.
    joins_words: bool,
}

/// Between reasoning and the words that join it.
const GAP: &str = "\n\n";
/// Words that no template has.
const GREETING: &str = "Hello, flashplan greets";
const WORDS: &str = "flashplan asks this";
const THOUGHT: &str = "flashplan thinks that";
const TOOLS: [&str; 2] = ["flashplan_first", "flashplan_second"];

impl Habits {
    /// Messages in the forms that the template takes.
    pub(super) fn apply<'m>(&self, messages: &'m [Message]) -> Cow<'m, [Message]> {
        let splits = |message: &Message| self.one_call && message.calls.len() > 1;
        let joins = |message: &Message| {
            self.joins_words
                && !message.calls.is_empty()
                && message.reasoning.is_some()
                && !message.content.is_empty()
        };
        if !messages.iter().any(|message| splits(message) || joins(message)) {
            return Cow::Borrowed(messages);
        }
        let mut applied: Vec<Message> = Vec::with_capacity(messages.len());
        let mut rest = messages;
        while let Some((message, after)) = rest.split_first() {
            rest = after;
            let mut message = message.clone();
            if joins(&message) {
                let words = std::mem::take(&mut message.content);
                message.reasoning = message.reasoning.map(|thought| thought + GAP + &words);
            }
            if !splits(&message) {
                applied.push(message);
                continue;
            }
            let results = rest.iter().take_while(|message| message.role == Role::Tool).count();
            let (results, after) = rest.split_at(results);
            rest = after;
            let calls = std::mem::take(&mut message.calls);
            let of_call =
                |result: &Message| calls.iter().position(|c| Some(&c.id) == result.answers.as_ref());
            for (at, call) in calls.iter().enumerate() {
                // words and reasoning are the first one's
                let first = std::mem::replace(&mut message, Message::new(Role::Assistant, ""));
                applied.push(Message { calls: vec![call.clone()], ..first });
                applied.extend(results.iter().filter(|result| of_call(result) == Some(at)).cloned());
            }
            applied.extend(results.iter().filter(|result| of_call(result).is_none()).cloned());
        }
        Cow::Owned(applied)
    }
}

fn call(at: usize) -> Call {
    let arguments = Map::from_iter([("a".to_owned(), Json::from(1))]);
    Call { id: format!("a1b2c3d4{at}"), name: TOOLS[at].to_owned(), arguments }
}

fn result(at: usize) -> Message {
    Message { answers: Some(call(at).id), ..Message::new(Role::Tool, "1") }
}

impl Template {
    /// Finds the forms of messages that the template takes.
    ///
    /// # Errors
    /// If it fails on a greeting, or leaves the greeting out.
    pub(super) fn learn(&mut self) -> Result<(), TemplateError> {
        let greeting = [Message::new(Role::User, GREETING)];
        let says = |template: &Self, messages: &[Message], words: &str| {
            template.render(Scene::of(messages, true)).map(|(text, _)| text.contains(words))
        };
        let as_text = says(self, &greeting, GREETING);
        if as_text != Ok(true) {
            self.habits.parts = vec![Role::User];
            if says(self, &greeting, GREETING) != Ok(true) {
                return Err(as_text.err().unwrap_or(TemplateError::Silent { role: Role::User.name() }));
            }
        }
        let [user] = greeting;
        let called = |calls: Vec<Call>| Message { calls, ..Message::new(Role::Assistant, "") };
        if self.source.contains("tool_calls") {
            let messages = [user.clone(), called(vec![call(0)])];
            let fails = |template: &Self| template.render(Scene::of(&messages, false)).is_err();
            if fails(self) {
                self.habits.joins_arguments = true;
                // a template that fails in both forms is refused at the first call
                self.habits.joins_arguments = !fails(self);
            }
        }
        let said = |role| Message::new(role, WORDS);
        for (role, messages) in [
            (Role::System, vec![said(Role::System), user.clone()]),
            (Role::Assistant, vec![user.clone(), said(Role::Assistant), user.clone()]),
            (
                Role::Tool,
                vec![user.clone(), called(vec![call(0)]), Message { content: WORDS.to_owned(), ..result(0) }],
            ),
        ] {
            // a role that the template refuses by itself is refused in its words
            let Ok(false) = says(self, &messages, WORDS) else { continue };
            self.habits.parts.push(role);
            if says(self, &messages, WORDS) != Ok(true) {
                self.habits.parts.pop();
                self.habits.silent.push(role);
            }
        }
        let several = [user.clone(), called(vec![call(0), call(1)]), result(0), result(1)];
        let names = |template: &Self| TOOLS.iter().all(|name| says(template, &several, name) == Ok(true));
        if !names(self) {
            self.habits.one_call = true;
            self.habits.one_call = names(self);
        }
        let reasoning = Some(THOUGHT.to_owned());
        let both = Message { reasoning, content: WORDS.to_owned(), ..called(vec![call(0)]) };
        let both = [user, both, result(0)];
        let fails = |template: &Self| template.render(Scene::of(&both, true)).is_err();
        if fails(self) {
            self.habits.joins_words = true;
            self.habits.joins_words = !fails(self);
        }
        Ok(())
    }

    /// Refuses messages that the template leaves out.
    ///
    /// # Errors
    /// The role of the first such message.
    pub(super) fn hears(&self, messages: &[Message]) -> Result<(), TemplateError> {
        let left_out = |message: &&Message| {
            !message.content.trim().is_empty() && self.habits.silent.contains(&message.role)
        };
        match messages.iter().find(left_out) {
            Some(message) => Err(TemplateError::Silent { role: message.role.name() }),
            None => Ok(()),
        }
    }
}
