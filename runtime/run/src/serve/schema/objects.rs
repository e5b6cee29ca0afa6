//! Names of an object's properties.

use serde_json::{Map, Value, json};

use super::rewrite::refused;

/// Rewrites `propertyNames`: listed names become properties, and a pattern or lengths become the pattern of all properties.
pub(super) fn names(keys: &mut Map<String, Value>, path: &str) -> Result<(), String> {
    let Some(names) = keys.remove("propertyNames") else { return Ok(()) };
    let no = || Err(refused("propertyNames", path));
    let Value::Object(mut names) = names else { return no() };
    names.retain(|key, _| !super::NOTES.contains(&key.as_str()));
    if names.remove("type").is_some_and(|kind| kind != "string") || keys.get("type") != Some(&json!("object"))
    {
        return no();
    }
    let rest = keys.remove("additionalProperties").unwrap_or(Value::Bool(true));
    let properties = match keys.remove("properties") {
        None => Map::new(),
        Some(Value::Object(properties)) => properties,
        Some(_) => return no(),
    };
    let has_patterns = keys.contains_key("patternProperties");
    let mut put = |properties: Map<String, Value>, rest: Value| {
        keys.insert("properties".to_owned(), Value::Object(properties));
        keys.insert("additionalProperties".to_owned(), rest);
    };
    if names.is_empty() {
        put(properties, rest);
        return Ok(());
    }
    if has_patterns {
        return no();
    }
    let listed = match (names.remove("enum"), names.remove("const")) {
        (Some(Value::Array(values)), None) => Some(values),
        (None, Some(value)) => Some(vec![value]),
        (None, None) => None,
        _ => return no(),
    };
    if let Some(listed) = listed.filter(|_| names.is_empty()) {
        let of_name = |name: &Value| {
            let name = name.as_str()?;
            let schema = properties.get(name).unwrap_or(&rest);
            (*schema != Value::Bool(false)).then(|| (name.to_owned(), schema.clone()))
        };
        put(listed.iter().filter_map(of_name).collect(), Value::Bool(false));
        return Ok(());
    }
    let length = |key: &str| names.get(key).map(|length| length.as_u64().ok_or(()));
    let pattern = match (names.get("pattern"), length("minLength"), length("maxLength")) {
        (Some(Value::String(pattern)), None, None) if names.len() == 1 => pattern.clone(),
        (None, least, most) if least.is_some() || most.is_some() => {
            if names.keys().any(|key| !["minLength", "maxLength"].contains(&key.as_str())) {
                return no();
            }
            let (Ok(least), Ok(most)) = (least.unwrap_or(Ok(0)), most.transpose()) else { return no() };
            format!("^[\\s\\S]{{{least},{}}}$", most.map_or_else(String::new, |most| most.to_string()))
        }
        _ => return no(),
    };
    // whether a property has such a name is not known here
    if !properties.is_empty() {
        return no();
    }
    if rest != Value::Bool(false) {
        keys.insert("patternProperties".to_owned(), json!({ pattern: rest }));
    }
    keys.insert("additionalProperties".to_owned(), Value::Bool(false));
    Ok(())
}
