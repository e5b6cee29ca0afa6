//! The tools of a request: what the model is told of, and the grammar of a call that must be.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::calls::Format;
use super::request::{Fields, Keys, Refusal};
use super::{forced, typed};

/// Tools of a request, and bytes of a name, at most.
const TOOLS_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 64;

/// Which calls an answer has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ToolChoice {
    /// Those that the model wants.
    Auto,
    /// One, of any tool.
    Required,
    /// One, of this tool.
    Named(String),
}

impl ToolChoice {
    /// Of a word of `OpenAI`'s; `None` where nothing may be called.
    fn of_word(word: &str) -> Result<Option<Self>, Refusal> {
        match word {
            "none" => Ok(None),
            "auto" => Ok(Some(Self::Auto)),
            "required" => Ok(Some(Self::Required)),
            word => Err(Self::unknown(word)),
        }
    }

    /// Of what is no choice.
    fn unknown(choice: &str) -> Refusal {
        let message = format!("`tool_choice` is `{choice}`; it is none, auto, required or a function");
        Refusal::invalid(Some("tool_choice"), message)
    }
}

/// The tools of a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tools {
    pub(super) all: Arc<[Function]>,
    pub(super) choice: ToolChoice,
    /// Whether there may be several calls.
    pub(super) parallel: bool,
}

/// A tool.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) description: Option<String>,
    pub(super) parameters: Option<Map<String, Value>>,
    pub(super) strict: Option<bool>,
}

impl Tools {
    /// Of the keys `tools`, `tool_choice` and `parallel_tool_calls` of `OpenAI`'s endpoints; `None` where nothing may be called. The
    /// endpoints differ in how they write a tool, and the name in a choice of one.
    pub(super) fn of_keys(
        keys: &mut Keys,
        function: impl Fn(Value) -> Result<Function, Refusal>,
        name: impl FnOnce(&mut Fields) -> Result<String, Refusal>,
    ) -> Result<Option<Self>, Refusal> {
        let tools: Vec<Value> = keys.take("tools")?.unwrap_or_default();
        let choice: Option<Value> = keys.take("tool_choice")?;
        let parallel = keys.take("parallel_tool_calls")?.unwrap_or(true);
        let all: Vec<Function> = tools.into_iter().map(function).collect::<Result<_, _>>()?;
        let choice = match choice {
            None => Some(ToolChoice::Auto),
            Some(Value::String(word)) => ToolChoice::of_word(&word)?,
            Some(choice) => {
                let mut choice = Fields::new(choice, "tool_choice", "the choice")?;
                match choice.must::<String>("type")?.as_str() {
                    "function" => {}
                    kind => return Err(ToolChoice::unknown(kind)),
                }
                let name = name(&mut choice)?;
                choice.finish()?;
                Some(ToolChoice::Named(name))
            }
        };
        choice.map_or(Ok(None), |choice| Self::new(all, choice, parallel))
    }

    /// Tools with names that can be told apart, of which the choice is one; `None` where there are none.
    pub(super) fn new(all: Vec<Function>, choice: ToolChoice, parallel: bool) -> Result<Option<Self>, Refusal> {
        let wrong = |message: String| Err(Refusal::invalid(Some("tools"), message));
        if all.is_empty() {
            let message = "`tool_choice` without `tools` cannot be; name them";
            return if choice == ToolChoice::Auto {
                Ok(None)
            } else {
                Err(Refusal::invalid(Some("tool_choice"), message))
            };
        }
        if all.len() > TOOLS_MAX {
            return wrong(format!("`tools` has {} tools, and {TOOLS_MAX} are the most", all.len()));
        }
        for (i, Function { name, strict, .. }) in all.iter().enumerate() {
            let plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
            if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(plain) {
                return wrong(format!(
                    "a tool is called `{name}`; names have 1 to {NAME_BYTES_MAX} letters, digits, `_` and `-`"
                ));
            }
            if all[..i].iter().any(|other| other.name == *name) {
                return wrong(format!("two tools are called `{name}`; name each once"));
            }
            if *strict == Some(true) && choice == ToolChoice::Auto {
                return wrong(
                    "`strict` is implemented only where `tool_choice` is `required` or names a function; leave it away".to_owned(),
                );
            }
        }
        if let ToolChoice::Named(name) = &choice
            && !all.iter().any(|tool| tool.name == *name)
        {
            return wrong(format!("`tool_choice` names `{name}`, and there is no such tool"));
        }
        Ok(Some(Self { all: all.into(), choice, parallel }))
    }

    /// Descriptions of the tools, as templates take them.
    pub(super) fn described(&self) -> Vec<Value> {
        let described = |tool: &Function| {
            let parameters = tool.schema();
            let description = tool.description.clone().unwrap_or_default();
            let function = json!({ "name": tool.name, "description": description, "parameters": parameters });
            json!({ "type": "function", "function": function })
        };
        self.all.iter().map(described).collect()
    }

    /// Where there must be a call: of which tool, if it is known, and the grammar of it after the format's prefix.
    ///
    /// # Errors
    /// A sentence, if it cannot be enforced.
    pub(super) fn forced(&self, format: Format) -> Result<Option<(Option<String>, String)>, String> {
        let asked: Vec<&Function> = match &self.choice {
            ToolChoice::Auto => return Ok(None),
            ToolChoice::Required => self.all.iter().collect(),
            ToolChoice::Named(name) => self.all.iter().filter(|tool| tool.name == *name).collect(),
        };
        let name = if asked.len() == 1 { Some(asked[0].name.clone()) } else { None };
        Ok(Some((name, forced::grammar(format, &asked)?)))
    }
}

impl Function {
    /// A function as `OpenAI`'s clients write it.
    pub(super) fn read(mut fields: Fields) -> Result<Self, Refusal> {
        let function = Self {
            name: fields.must("name")?,
            description: fields.take("description")?,
            parameters: fields.take("parameters")?,
            strict: fields.take("strict")?,
        };
        fields.finish()?;
        Ok(function)
    }

    /// The schema of its arguments.
    pub(super) fn schema(&self) -> Map<String, Value> {
        self.parameters.clone().unwrap_or_else(nothing)
    }

    /// The value of an argument that is written as bare text.
    pub(super) fn value(&self, name: &str, text: &str) -> Value {
        match &self.parameters {
            Some(parameters) => typed::value(text, name, parameters),
            None => typed::value(text, name, &Map::new()),
        }
    }
}

/// The parameters of a tool that takes none.
fn nothing() -> Map<String, Value> {
    Map::from_iter([
        ("type".to_owned(), json!("object")),
        ("properties".to_owned(), json!({})),
        ("additionalProperties".to_owned(), json!(false)),
    ])
}
