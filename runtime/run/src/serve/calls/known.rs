//! The tools that an answer may call, for the readers of formats.

use serde_json::{Map, Value};

use super::super::super::chat::conversation::Call;
use super::super::tools::Function;
use super::cursor::{Cursor, Stop};

/// Keys of a call's arguments in an object: models mix them up.
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];
/// Keys of its name.
const NAME: [&str; 2] = ["name", "tool_name"];

/// Tools by their names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'t>(pub(super) &'t [Function]);

impl<'t> Known<'t> {
    /// The tool of a name.
    pub(super) fn tool(self, name: &str) -> Result<&'t Function, Stop> {
        self.0.iter().find(|tool| tool.name == name.trim()).ok_or(Stop::NoCall)
    }

    /// A call of a tool.
    pub(super) fn call(self, name: &str, arguments: Map<String, Value>) -> Result<Call, Stop> {
        let tool = self.tool(name)?;
        Ok(Call { id: String::new(), name: tool.name.clone(), arguments })
    }

    /// A call whose arguments come next as an object of JSON.
    pub(super) fn with_object(self, name: &str, text: &mut Cursor<'_>) -> Result<Call, Stop> {
        self.tool(name)?;
        text.space();
        let arguments = arguments(text.json()?)?;
        self.call(name, arguments)
    }

    /// A call that is an object with a name and arguments; one without arguments is none.
    pub(super) fn object(self, call: Value) -> Result<Call, Stop> {
        let Value::Object(mut call) = call else { return Err(Stop::NoCall) };
        if let Some(Value::Object(function)) = call.remove("function") {
            call = function;
        }
        let mut take = |keys: [&str; 2]| keys.iter().find_map(|key| call.remove(*key)).ok_or(Stop::NoCall);
        let (name, given) = (take(NAME)?, take(ARGUMENTS)?);
        self.call(name.as_str().ok_or(Stop::NoCall)?, arguments(given)?)
    }

    /// Calls that are one object, or a list of them.
    pub(super) fn objects(self, calls: Value) -> Result<Vec<Call>, Stop> {
        match calls {
            Value::Array(calls) if !calls.is_empty() => {
                calls.into_iter().map(|call| self.object(call)).collect()
            }
            call => Ok(vec![self.object(call)?]),
        }
    }
}

/// Arguments, which some models write as a text that has the object.
fn arguments(given: Value) -> Result<Map<String, Value>, Stop> {
    match given {
        Value::Object(arguments) => Ok(arguments),
        Value::String(text) => serde_json::from_str(&text).map_err(|_| Stop::NoCall),
        _ => Err(Stop::NoCall),
    }
}
