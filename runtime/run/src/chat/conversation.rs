//! Messages of a conversation, and the file that keeps them.

use std::path::Path;

use plans::output_file::OutputKind;
use platform::page_cache;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::TOKEN_BYTES_MAX;
use crate::input::bounded_file;

/// The version of the file.
const SCHEMA: u32 = 1;
/// Bytes of a conversation's file besides its texts. The texts may take twice the bytes of a full context: reasoning is kept, too.
const FILE_BYTES: usize = 64 << 10;

/// A saved conversation as an output file. It is known by how [`Conversation::save`] begins it: requests to a server have the same keys.
const SAVED: OutputKind = OutputKind {
    name: "a saved conversation",
    is_one: |head| {
        let parts = ["{", "\"schema\"", ":", "1", ",", "\"model\"", ":"];
        let rest =
            parts.iter().try_fold(head, |rest, part| rest.trim_ascii_start().strip_prefix(part.as_bytes()));
        rest.is_some()
    },
};

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// The author of the model's task.
    System,
    User,
    /// The model.
    Assistant,
    /// A tool that the model called.
    #[serde(skip)]
    Tool,
}

impl Role {
    /// The name that templates know.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A message of a conversation, with its author.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Message {
    pub(crate) role: Role,
    pub(crate) content: String,
    /// Text that the model has said to itself before its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning: Option<String>,
    /// The tools that it called with this message.
    #[serde(skip)]
    pub(crate) calls: Vec<Call>,
    /// The call that a tool answers, by its number.
    #[serde(skip)]
    pub(crate) answers: Option<String>,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: Map<String, Value>,
}

impl Message {
    pub(crate) fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into(), reasoning: None, calls: Vec::new(), answers: None }
    }
}

/// A conversation: perhaps a system message, then user and assistant in turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conversation {
    schema: u32,
    /// The model that gave the answers.
    pub(crate) model: String,
    pub(crate) messages: Vec<Message>,
}

impl Conversation {
    /// An empty conversation.
    pub(crate) fn new(model: &str) -> Self {
        Self { schema: SCHEMA, model: model.to_owned(), messages: Vec::new() }
    }

    /// The conversation after one more message of the user's.
    pub(crate) fn with_said(mut self, content: &str) -> Self {
        self.messages.push(Message::new(Role::User, content));
        self
    }

    /// The system message.
    pub(crate) fn system(&self) -> Option<&str> {
        let first = self.messages.first().filter(|message| message.role == Role::System);
        first.map(|message| message.content.as_str())
    }

    /// The conversation with another system message, or none.
    pub(crate) fn with_system(&self, system: Option<&str>) -> Self {
        let said = self.messages.iter().filter(|message| message.role != Role::System).cloned();
        let messages = system.map(|text| Message::new(Role::System, text)).into_iter().chain(said).collect();
        Self { messages, ..Self::new(&self.model) }
    }

    /// An empty conversation with the same system message.
    pub(crate) fn anew(&self) -> Self {
        let messages = self.messages.iter().filter(|message| message.role == Role::System).cloned().collect();
        Self { messages, ..Self::new(&self.model) }
    }

    /// Turns that were answered.
    pub(crate) fn answers(&self) -> usize {
        self.messages.iter().filter(|message| message.role == Role::Assistant).count()
    }

    /// Writes the conversation, whole or not at all.
    pub(crate) fn save(&self, path: &Path) -> Result<(), String> {
        let json = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        plans::file::write_bytes(path, SAVED, format!("{json}\n").as_bytes())
            .map_err(|error| error.to_string())
    }

    /// Reads a conversation back and checks that it is one, which may fit into a context of so many tokens.
    pub(crate) fn load(path: &Path, context: usize) -> Result<Self, String> {
        let name = path.display();
        let most = context.saturating_mul(2 * TOKEN_BYTES_MAX).saturating_add(FILE_BYTES);
        let larger = || {
            format!(
                "{name} has more than {most} bytes, and the plan's context has room for {context} tokens; name another file, or plan with a larger --context"
            )
        };
        let read = page_cache::open(path).and_then(|file| bounded_file(&file, most));
        let read =
            read.map_err(|error| format!("cannot read {name}: {error}; name a file that /save wrote"))?;
        let text = read.ok_or_else(larger)?;
        let found: Self = serde_json::from_str(&text).map_err(|error| {
            format!("{name} is no saved conversation: {error}; name a file that /save wrote")
        })?;
        found.check().map_err(|problem| format!("{name}: {problem}; mend the file or name another"))?;
        Ok(found)
    }

    fn check(&self) -> Result<(), String> {
        if self.schema != SCHEMA {
            return Err(format!("it has schema {}, and this program reads {SCHEMA}", self.schema));
        }
        let turns = &self.messages[usize::from(self.system().is_some())..];
        let expected = [Role::User, Role::Assistant].into_iter().cycle();
        for (at, (message, role)) in turns.iter().zip(expected).enumerate() {
            if message.role != role {
                let (found, expected) = (message.role.name(), role.name());
                return Err(format!(
                    "message {} after the system's is the {found}'s, and it is the {expected}'s turn",
                    at + 1
                ));
            }
        }
        if turns.len() % 2 == 1 {
            return Err("its last message has no answer".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk() -> Conversation {
        let mut talk = Conversation::new("a-model").with_system(Some("Be kind."));
        talk.messages.push(Message::new(Role::User, "Hi \u{1f980}\n\"there\""));
        let reasoning = Some("They greet.".to_owned());
        talk.messages.push(Message { reasoning, ..Message::new(Role::Assistant, "Hello.") });
        talk
    }

    #[test]
    fn what_is_saved_is_loaded_and_the_system_message_stays_or_changes_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk.json");
        let talk = talk();
        talk.save(&path).unwrap();
        assert_eq!(Conversation::load(&path, 256).unwrap(), talk);
        assert_eq!((talk.system(), talk.answers()), (Some("Be kind."), 1));
        assert_eq!(talk.anew().messages, [Message::new(Role::System, "Be kind.")]);
        assert_eq!(talk.with_system(None).messages, talk.messages[1..]);
        assert_eq!(talk.with_system(Some("x")).messages[1..], talk.messages[1..]);
    }

    #[test]
    fn a_request_or_a_schema_is_not_replaced_and_an_older_conversation_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk.json");
        for text in [
            r#"{"model": "m", "messages": [], "response_format": {"json_schema": {"schema": {}}}}"#,
            r#"{"schema": {"type": "object"}, "model": "m", "messages": []}"#,
        ] {
            std::fs::write(&path, text).unwrap();
            assert!(talk().save(&path).unwrap_err().contains("is not a saved conversation"), "{text}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        std::fs::write(&path, r#"{"schema":1,"model":"m","messages":[]}"#).unwrap();
        talk().save(&path).unwrap();
        talk().save(&path).unwrap();
    }

    #[test]
    fn a_file_that_is_no_conversation_is_refused_with_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk.json");
        let refused = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Conversation::load(&path, 256).unwrap_err()
        };
        let with = |messages: &str| format!(r#"{{"schema": 1, "model": "m", "messages": [{messages}]}}"#);
        let said = |role: &str| format!(r#"{{"role": "{role}", "content": "x"}}"#);
        let [system, user, assistant] = ["system", "user", "assistant"].map(said);
        for (text, says) in [
            ("hello".to_owned(), "is no saved conversation: expected value"),
            (r#"{"schema": 2, "model": "m", "messages": []}"#.to_owned(), "it has schema 2"),
            (with(&said("tool")), "unknown variant `tool`"),
            (with(&user), "its last message has no answer"),
            (with(&format!("{assistant}, {user}")), "message 1 after the system's is the assistant's"),
            (with(&format!("{user}, {user}")), "message 2 after the system's is the user's"),
            (with(&format!("{user}, {assistant}, {system}")), "message 3 after the system's is the system's"),
            (with(r#"{"role": "user", "content": "x", "name": "y"}"#), "unknown field `name`"),
        ] {
            let error = refused(&text);
            assert!(error.contains(says) && error.contains("talk.json"), "{text}: {error}");
        }
        let long = with(&format!("{}{user}, {assistant}", " ".repeat(100_000)));
        std::fs::write(&path, long).unwrap();
        let error = Conversation::load(&path, 256).unwrap_err();
        assert!(error.contains("has more than 81920 bytes") && error.contains("--context"), "{error}");
        assert_eq!(Conversation::load(&path, 4096).unwrap().answers(), 1);
        assert!(Conversation::load(&folder.path().join("none"), 256).unwrap_err().contains("cannot read"));
        std::fs::write(&path, with(&format!("{system}, {user}, {assistant}"))).unwrap();
        assert_eq!(Conversation::load(&path, 256).unwrap().answers(), 1);
    }
}
