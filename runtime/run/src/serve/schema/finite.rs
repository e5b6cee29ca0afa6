//! Definitions that have no finite value: each value would have to contain another.

use serde_json::Value;

/// The definition of a reference that a rewritten schema has.
fn referred(schema: &Value) -> Option<usize> {
    schema.get("$ref")?.as_str()?.strip_prefix("#/$defs/r")?.parse().ok()
}

/// The schema and its definitions, without values that never end: an optional property of such values cannot occur.
///
/// # Errors
/// A sentence with the reference, if the schema itself has no finite value.
pub(super) fn without_endless(
    root: Value,
    definitions: Vec<(String, Value)>,
) -> Result<(Value, Vec<Value>), String> {
    let mut ends = vec![false; definitions.len()];
    // each round finds the definitions whose values end in those found before
    loop {
        let now: Vec<bool> = definitions.iter().map(|(_, schema)| has_end(schema, &ends)).collect();
        if now == ends {
            break;
        }
        ends = now;
    }
    if !has_end(&root, &ends) {
        let endless = definitions.iter().zip(&ends).find(|(_, ends)| !**ends);
        let at = endless.map_or_else(String::new, |((pointer, _), _)| format!(" `{pointer}`"));
        return Err(format!(
            "the schema has no finite value: `$ref`{at} always requires itself; make it optional"
        ));
    }
    let cut = |schema: Value| cut(schema, &ends);
    Ok((cut(root), definitions.into_iter().map(|(_, schema)| cut(schema)).collect()))
}

/// Whether a schema has a finite value, where some definitions have one.
fn has_end(schema: &Value, ends: &[bool]) -> bool {
    let Value::Object(keys) = schema else { return *schema != Value::Bool(false) };
    if let Some(at) = referred(schema) {
        return ends.get(at).is_some_and(|ends| *ends);
    }
    if let Some(Value::Array(schemas)) = keys.get("anyOf") {
        return schemas.iter().any(|schema| has_end(schema, ends));
    }
    let may_be = |kind: &str| match keys.get("type") {
        None => true,
        Some(Value::Array(kinds)) => kinds.iter().any(|it| it == kind),
        Some(it) => it == kind,
    };
    // a value of another type needs neither
    if keys.get("type").is_none()
        || ["null", "boolean", "number", "integer", "string"].into_iter().any(may_be)
    {
        return true;
    }
    let property = |name: &Value| {
        let named = name.as_str().and_then(|name| keys.get("properties")?.get(name));
        named.or_else(|| keys.get("additionalProperties"))
    };
    let required = keys.get("required").and_then(Value::as_array).into_iter().flatten();
    let object = || required.filter_map(property).all(|schema| has_end(schema, ends));
    let least = keys.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
    let first = keys.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let items = (least > first.len()).then(|| keys.get("items")).flatten();
    let list = || first.iter().take(least).chain(items).all(|schema| has_end(schema, ends));
    may_be("array") && list() || may_be("object") && object()
}

/// A schema with `false` for each reference to an endless definition.
fn cut(schema: Value, ends: &[bool]) -> Value {
    if referred(&schema).is_some_and(|at| !ends[at]) {
        return Value::Bool(false);
    }
    match schema {
        Value::Object(keys) => keys
            .into_iter()
            .map(|(key, value)| match key.as_str() {
                // values, and no schemas
                "enum" | "const" => (key, value),
                _ => (key, cut(value, ends)),
            })
            .collect(),
        Value::Array(values) => values.into_iter().map(|value| cut(value, ends)).collect(),
        value => value,
    }
}
