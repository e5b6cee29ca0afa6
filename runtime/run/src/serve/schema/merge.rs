//! Schemas that hold together as one.

use serde_json::{Map, Value, json};

use super::rewrite::refused;
use super::values::same;

/// Keywords whose larger or smaller value holds.
const LARGER: [&str; 5] = ["minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"];
const SMALLER: [&str; 5] = ["maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"];
/// Keywords of an object's properties.
const PROPERTIES: [&str; 3] = ["properties", "patternProperties", "additionalProperties"];

/// One schema that has the values of both; `None` if there are none. Neither has keywords that hold alone.
///
/// # Errors
/// A sentence with the keyword and the path, where both have it and no keyword has the values of both.
pub(super) fn merged(
    one: Map<String, Value>,
    other: Map<String, Value>,
    path: &str,
) -> Result<Option<Map<String, Value>>, String> {
    if one.is_empty() || other.is_empty() {
        return Ok(Some(if one.is_empty() { other } else { one }));
    }
    let has = |keys: &Map<String, Value>, names: &[&str]| names.iter().any(|name| keys.contains_key(*name));
    let patterns = ["patternProperties"];
    if has(&one, &patterns) && has(&other, &PROPERTIES) || has(&other, &patterns) && has(&one, &PROPERTIES) {
        return Err(refused("patternProperties", path));
    }
    // a list of schemas for the first items
    let lists = |keys: &Map<String, Value>| {
        keys.contains_key("prefixItems") || matches!(keys.get("items"), Some(Value::Array(_)))
    };
    let items = ["items", "prefixItems", "additionalItems"];
    if lists(&one) && has(&other, &items) || lists(&other) && has(&one, &items) {
        return Err(refused("prefixItems", path));
    }
    let mut all = Map::new();
    if let Some(properties) = properties(&one, &other) {
        all.insert("properties".to_owned(), Value::Object(properties));
    }
    if has(&one, &["enum", "const"]) && has(&other, &["enum", "const"]) {
        let (these, those) = (listed(&one), listed(&other));
        let common: Vec<Value> =
            these.into_iter().filter(|this| those.iter().any(|that| same(this, that))).collect();
        if common.is_empty() {
            return Ok(None);
        }
        all.insert("enum".to_owned(), Value::from(common));
    }
    for (key, value) in one.iter().chain(&other) {
        if all.contains_key(key) || key == "const" && all.contains_key("enum") {
            continue;
        }
        let (Some(this), Some(that)) = (one.get(key), other.get(key)) else {
            all.insert(key.clone(), value.clone());
            continue;
        };
        let value = match key.as_str() {
            "type" => match types(this, that) {
                Some(kinds) => kinds,
                None => return Ok(None),
            },
            "required" => required(this, that),
            "additionalProperties" | "items" | "additionalItems" => both(this, that),
            "uniqueItems" => json!(this == &json!(true) || that == &json!(true)),
            name if LARGER.contains(&name) || SMALLER.contains(&name) => {
                let (Some(a), Some(b)) = (this.as_f64(), that.as_f64()) else {
                    return Err(refused(key, path));
                };
                if (a >= b) == LARGER.contains(&name) { this.clone() } else { that.clone() }
            }
            _ if same(this, that) => this.clone(),
            _ => return Err(refused(key, path)),
        };
        all.insert(key.clone(), value);
    }
    Ok(Some(all))
}

/// Properties of both. One that a schema does not name is one of its additional ones.
fn properties(one: &Map<String, Value>, other: &Map<String, Value>) -> Option<Map<String, Value>> {
    let named = |keys: &Map<String, Value>| keys.get("properties").and_then(Value::as_object).cloned();
    let (these, those) = (named(one), named(other));
    if these.is_none() && those.is_none() {
        return None;
    }
    let (these, those) = (these.unwrap_or_default(), those.unwrap_or_default());
    let any = Value::Bool(true);
    let of = |keys: &Map<String, Value>, named: &Map<String, Value>, name: &str| {
        named.get(name).or_else(|| keys.get("additionalProperties")).unwrap_or(&any).clone()
    };
    let names = these.keys().chain(those.keys().filter(|name| !these.contains_key(*name)));
    Some(names.map(|name| (name.clone(), both(&of(one, &these, name), &of(other, &those, name)))).collect())
}

/// A schema that has the values of both. Its parts are merged when it is rewritten.
fn both(one: &Value, other: &Value) -> Value {
    match (one, other) {
        (Value::Bool(true), schema) | (schema, Value::Bool(true)) => schema.clone(),
        (Value::Bool(false), _) | (_, Value::Bool(false)) => Value::Bool(false),
        _ if one == other => one.clone(),
        _ => json!({ "allOf": [one, other] }),
    }
}

fn listed(keys: &Map<String, Value>) -> Vec<Value> {
    match (keys.get("enum"), keys.get("const")) {
        (Some(Value::Array(values)), None) => values.clone(),
        (Some(Value::Array(values)), Some(value)) => {
            values.iter().filter(|other| same(other, value)).cloned().collect()
        }
        (_, value) => value.into_iter().cloned().collect(),
    }
}

/// Names of types that both have; `None` if there are none.
fn types(one: &Value, other: &Value) -> Option<Value> {
    let names = |kinds: &Value| -> Vec<String> {
        let one = std::slice::from_ref(kinds);
        let all = kinds.as_array().map_or(one, Vec::as_slice);
        all.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
    };
    let (these, those) = (names(one), names(other));
    let has = |names: &[String], name: &str| names.iter().any(|it| it == name);
    let in_both = |name: &&str| {
        let within = |names: &[String]| has(names, name) || *name == "integer" && has(names, "number");
        within(&these) && within(&those)
    };
    let kinds = ["null", "boolean", "number", "integer", "string", "array", "object"];
    let mut common: Vec<&str> = kinds.into_iter().filter(in_both).collect();
    // a whole number is a number
    if common.contains(&"number") {
        common.retain(|name| *name != "integer");
    }
    match common[..] {
        [] => None,
        [one] => Some(json!(one)),
        _ => Some(json!(common)),
    }
}

fn required(one: &Value, other: &Value) -> Value {
    let mut all = one.as_array().cloned().unwrap_or_default();
    all.extend(
        other
            .as_array()
            .into_iter()
            .flatten()
            .filter(|name| !one.as_array().is_some_and(|these| these.contains(name)))
            .cloned(),
    );
    Value::from(all)
}
