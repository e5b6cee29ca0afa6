//! The tools of a request: the tools described to the model, and the tools it may call.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::keys::{Fields, Keys};
use super::request::Refusal;
use super::typed;

/// Tools of a request, and bytes of a name, at most.
const TOOLS_MAX: usize = 512;
const NAME_BYTES_MAX: usize = 128;

/// Which calls an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolChoice {
    /// Any calls, or none: the model decides.
    Auto,
    /// One, of any tool that it may call.
    Required,
}

impl ToolChoice {
    /// Parses a word of `OpenAI`'s; `None` where nothing may be called.
    fn of_word(word: &str) -> Result<Option<Self>, Refusal> {
        match word {
            "none" => Ok(None),
            "auto" => Ok(Some(Self::Auto)),
            "required" => Ok(Some(Self::Required)),
            word => Err(Self::unknown(word)),
        }
    }

    /// The refusal of an unknown choice.
    fn unknown(choice: &str) -> Refusal {
        let message =
            format!("`tool_choice` is `{choice}`; it is none, auto, required, a function, or allowed_tools");
        Refusal::invalid(Some("tool_choice"), message)
    }
}

/// The tools of a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tools {
    /// Tools described to the model.
    all: Vec<Function>,
    /// Tools that the model may call.
    pub(super) callable: Arc<[Function]>,
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
    /// Whether its arguments must be as the parameters say.
    pub(super) strict: bool,
}

impl Tools {
    /// Reads the keys `tools`, `tool_choice` and `parallel_tool_calls` of `OpenAI`'s endpoints; `None` where nothing may be called.
    /// `function` reads an entry of `tools`, which may hold several tools or none. `name` reads the name in a choice of one tool.
    pub(super) fn of_keys<F: IntoIterator<Item = Function>>(
        keys: &mut Keys<'_>,
        function: impl Fn(Fields<'_>) -> Result<F, Refusal>,
        name: impl Fn(&mut Fields<'_>) -> Result<String, Refusal>,
    ) -> Result<Option<Self>, Refusal> {
        let tools: Vec<Value> = keys.take("tools")?.unwrap_or_default();
        let choice: Option<Value> = keys.take("tool_choice")?;
        let parallel = keys.take("parallel_tool_calls")?.unwrap_or(true);
        let mut all = Vec::new();
        for tool in tools {
            all.extend(function(Fields::new(tool, "tools", "a tool", keys.notes)?)?);
        }
        let (choice, allowed) = match choice {
            None => (Some(ToolChoice::Auto), None),
            Some(Value::String(word)) => (ToolChoice::of_word(&word)?, None),
            Some(choice) => {
                let mut choice = Fields::new(choice, "tool_choice", "the choice", keys.notes)?;
                match choice.must::<String>("type")?.as_str() {
                    "function" => {
                        let name = name(&mut choice)?;
                        choice.finish_all()?;
                        (Some(ToolChoice::Required), Some(vec![name]))
                    }
                    "allowed_tools" => {
                        // chat completions have them one level deeper
                        let mut allowed = match choice.take::<Value>("allowed_tools")? {
                            Some(inner) => {
                                choice.finish_all()?;
                                Fields::new(inner, "tool_choice", "`allowed_tools`", keys.notes)?
                            }
                            None => choice,
                        };
                        let mode = ToolChoice::of_word(&allowed.must::<String>("mode")?)?;
                        let tools: Vec<Value> = allowed.must("tools")?;
                        allowed.finish_all()?;
                        let named = |tool: Value| {
                            let mut tool = Fields::new(tool, "tool_choice", "an allowed tool", keys.notes)?;
                            match tool.must::<String>("type")?.as_str() {
                                "function" => name(&mut tool),
                                kind => Err(ToolChoice::unknown(kind)),
                            }
                        };
                        (mode, Some(tools.into_iter().map(named).collect::<Result<_, _>>()?))
                    }
                    kind => return Err(ToolChoice::unknown(kind)),
                }
            }
        };
        choice.map_or(Ok(None), |choice| Self::new(all, choice, allowed.as_deref(), parallel))
    }

    /// Checks that the tools' names are valid and unique, and limits calls to the `allowed` tools. `None` without tools.
    pub(super) fn new(
        all: Vec<Function>,
        choice: ToolChoice,
        allowed: Option<&[String]>,
        parallel: bool,
    ) -> Result<Option<Self>, Refusal> {
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
        for (i, Function { name, .. }) in all.iter().enumerate() {
            let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
            if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(plain) {
                return wrong(format!(
                    "a tool is called `{name}`; names have 1 to {NAME_BYTES_MAX} letters, digits, `_`, `-` and `.`"
                ));
            }
            if all[..i].iter().any(|other| other.name == *name) {
                return wrong(format!("two tools are called `{name}`; name each once"));
            }
        }
        if let Some(name) =
            allowed.into_iter().flatten().find(|name| !all.iter().any(|tool| tool.name == **name))
        {
            return wrong(format!("`tool_choice` names `{name}`, and there is no such tool"));
        }
        let may = |tool: &&Function| allowed.is_none_or(|names| names.contains(&tool.name));
        let callable = all.iter().filter(may).cloned().collect();
        Ok(Some(Self { all, callable, choice, parallel }))
    }

    /// Whether the answer is a call.
    pub(super) fn must_call(&self) -> bool {
        self.choice == ToolChoice::Required
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
}

impl Function {
    /// A function as `OpenAI`'s clients write it.
    pub(super) fn read(mut fields: Fields<'_>) -> Result<Self, Refusal> {
        let function = Self {
            name: fields.must("name")?,
            description: fields.take("description")?,
            parameters: fields.take("parameters")?,
            strict: fields.take("strict")?.unwrap_or(false),
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
