//! How much a model reasons before it answers: what a user or a client asks for, and the variables that tell a template of it.

use serde_json::{Map, Value};

/// Degrees of effort, least first: what clients of several makers say.
pub(crate) const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Variables that a template has from the server alone.
const RESERVED: [&str; 5] = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];

/// A request about a model's reasoning. By default the template decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Steering {
    /// Whether the model reasons at all.
    pub(crate) enabled: Option<bool>,
    /// One of [`EFFORTS`] but `none`.
    pub(crate) effort: Option<String>,
    /// Tokens of reasoning, at most; 1 or more.
    pub(crate) budget: Option<usize>,
    /// More variables of the template.
    pub(crate) variables: Map<String, Value>,
}

impl Steering {
    /// Asks for a degree of effort.
    ///
    /// # Errors
    /// A sentence, if it is no such degree.
    pub(crate) fn set_effort(&mut self, effort: &str) -> Result<(), String> {
        if !EFFORTS.contains(&effort) {
            return Err(format!("the effort is `{effort}`; it is one of {}", EFFORTS.join(", ")));
        }
        self.enabled = Some(effort != EFFORTS[0]);
        self.effort = (effort != EFFORTS[0]).then(|| effort.to_owned());
        Ok(())
    }

    /// Bounds the tokens of reasoning; none at all turns it off.
    pub(crate) fn set_budget(&mut self, tokens: usize) {
        self.enabled = Some(tokens > 0);
        self.budget = (tokens > 0).then_some(tokens);
    }

    /// Sets variables of the template; some of them switch reasoning on or off.
    ///
    /// # Errors
    /// A sentence, if the server alone sets one of them.
    pub(crate) fn set_variables(&mut self, variables: Map<String, Value>) -> Result<(), String> {
        if let Some(name) = variables.keys().find(|name| RESERVED.contains(&name.as_str())) {
            return Err(format!("`{name}` is set by the server; leave it away"));
        }
        let said = |name: &str| variables.get(name).and_then(Value::as_bool);
        self.enabled = said("enable_thinking").or(said("thinking")).or(self.enabled);
        self.variables.extend(variables);
        Ok(())
    }

    /// All variables, under every name that a template may read.
    pub(crate) fn told(&self) -> Map<String, Value> {
        let mut told = Map::new();
        let mut tell = |names: &[&str], value: Value| {
            told.extend(names.iter().map(|&name| (name.to_owned(), value.clone())));
        };
        if let Some(enabled) = self.enabled {
            tell(&["enable_thinking", "thinking"], Value::from(enabled));
        }
        if self.enabled == Some(false) {
            tell(&["reasoning_effort"], Value::from(EFFORTS[0]));
        }
        if let Some(effort) = &self.effort {
            tell(
                &["reasoning_effort", "thinking_effort", "reasoning_strength"],
                Value::from(effort.as_str()),
            );
        }
        if let Some(budget) = self.budget {
            tell(&["thinking_budget"], Value::from(budget));
        }
        told.extend(self.variables.clone());
        told
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn efforts_budgets_and_variables_say_whether_a_model_reasons() {
        let mut steering = Steering::default();
        assert!(steering.told().is_empty());
        steering.set_effort("none").unwrap();
        assert_eq!(steering.told()["enable_thinking"], false);
        steering.set_effort("high").unwrap();
        assert_eq!((&steering.told()["reasoning_effort"], steering.enabled), (&json!("high"), Some(true)));
        assert!(steering.set_effort("much").unwrap_err().contains("none, minimal"));
        steering.set_budget(0);
        assert_eq!((steering.enabled, steering.budget), (Some(false), None));
        let variables = |value: Value| value.as_object().unwrap().clone();
        steering.set_variables(variables(json!({ "enable_thinking": true, "x": 1 }))).unwrap();
        assert_eq!((steering.enabled, &steering.told()["x"]), (Some(true), &json!(1)));
        assert!(steering.set_variables(variables(json!({ "messages": [] }))).is_err());
    }
}
