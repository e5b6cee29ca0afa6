//! Whether two schemas can never hold for the same value.

use serde_json::{Map, Value};

use super::rewrite::resolve;
use super::values::same;

/// How far references and properties are followed.
const DEPTH_MAX: usize = 6;
const KINDS: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

/// Whether no value satisfies both schemas, as far as their types, constants and required properties show in so many steps.
pub(super) fn disjoint(one: &Value, other: &Value, root: &Value, steps: &mut usize, depth: usize) -> bool {
    let Some(left) = steps.checked_sub(1) else { return false };
    *steps = left;
    let (Some(one), Some(other)) = (resolved(one, root), resolved(other, root)) else { return false };
    let (one, other) = match (one, other) {
        (Value::Bool(false), _) | (_, Value::Bool(false)) => return true,
        (Value::Object(one), Value::Object(other)) if depth <= DEPTH_MAX => (one, other),
        _ => return false,
    };
    for (choices, schema) in [(one, other), (other, one)] {
        if let Some(Value::Array(schemas)) = choices.get("anyOf").or_else(|| choices.get("oneOf")) {
            let schema = Value::Object(schema.clone());
            return schemas.iter().all(|choice| disjoint(choice, &schema, root, steps, depth + 1));
        }
    }
    let (these, those) = (kinds(one), kinds(other));
    let common: Vec<&str> = these.into_iter().filter(|kind| those.contains(kind)).collect();
    if common.is_empty() {
        return true;
    }
    if let (Some(these), Some(those)) = (listed(one), listed(other))
        && !these.iter().any(|this| those.iter().any(|that| same(this, that)))
    {
        return true;
    }
    let mut excludes = |name: &str| match (property(one, name), property(other, name)) {
        (Some(Value::Bool(false)), _) | (_, Some(Value::Bool(false))) => true,
        (Some(one), Some(other)) => disjoint(one, other, root, steps, depth + 1),
        _ => false,
    };
    common == ["object"] && required(one).chain(required(other)).any(&mut excludes)
}

/// The schema of a property that an object has.
fn property<'k>(keys: &'k Map<String, Value>, name: &str) -> Option<&'k Value> {
    let named = keys.get("properties").and_then(|properties| properties.get(name));
    let no_patterns = !keys.contains_key("patternProperties");
    named.or_else(|| keys.get("additionalProperties").filter(|_| no_patterns))
}

/// A schema without the references that are all of it.
fn resolved<'r>(mut schema: &'r Value, root: &'r Value) -> Option<&'r Value> {
    for _ in 0..=DEPTH_MAX {
        match schema.get("$ref").and_then(Value::as_str) {
            None => return Some(schema),
            Some(to) => schema = resolve(root, to, "").ok()?,
        }
    }
    None
}

fn required(keys: &Map<String, Value>) -> impl Iterator<Item = &str> {
    keys.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn listed(keys: &Map<String, Value>) -> Option<&[Value]> {
    match (keys.get("const"), keys.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(Value::Array(values))) => Some(values),
        _ => None,
    }
}

/// Types that a schema's values may have; a whole number is a number.
fn kinds(keys: &Map<String, Value>) -> Vec<&'static str> {
    let number =
        |name: &str| KINDS.into_iter().find(|kind| *kind == if name == "integer" { "number" } else { name });
    let of_value = |value: &Value| {
        let name = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        number(name)
    };
    match (listed(keys), keys.get("type")) {
        (Some(values), _) => values.iter().filter_map(of_value).collect(),
        (None, Some(Value::String(name))) => number(name).into_iter().collect(),
        (None, Some(Value::Array(names))) => {
            names.iter().filter_map(Value::as_str).filter_map(number).collect()
        }
        _ => KINDS.to_vec(),
    }
}
