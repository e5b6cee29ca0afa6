//! Rewrites a schema to one that `llguidance` compiles, with the same values or fewer.
//!
//! Annotations and unknown keywords are dropped. Schemas that hold together (`allOf`, keywords beside `$ref` or `anyOf`) become one, and
//! alternatives are multiplied out. References get definitions of their own. A keyword that cannot be enforced is refused by its name and
//! path. Steps and bytes are counted: a stranger's schema could multiply without end.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::disjoint::disjoint;
use super::finite::without_endless;
use super::values::{self, Values};
use super::{ALONE, merge, objects};

/// Levels of a schema, steps of its rewriting, and bytes of the result, at most.
const DEPTH_MAX: usize = 32;
const STEPS_MAX: usize = 4000;
const BYTES_MAX: usize = 64 << 10;
/// Keywords that restrict a value and are kept.
const KEPT: [&str; 23] = [
    "type",
    "const",
    "enum",
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "unevaluatedItems",
    "properties",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "unevaluatedProperties",
    "required",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "multipleOf",
];
const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
/// Keywords that restrict a value and are not enforced.
const REFUSED: [&str; 10] = [
    "not",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "contains",
    "$dynamicRef",
    "$recursiveRef",
    "x-guidance",
    "disallow",
];

/// The refusal of a keyword at a path.
pub(super) fn refused(key: &str, path: &str) -> String {
    format!("`{key}` at `{path}` of the schema is not implemented here; leave it away")
}

/// A schema that `llguidance` compiles.
///
/// # Errors
/// A sentence with the keyword and the path of what is not enforced, or the limit that the schema exceeds.
pub(super) fn rewritten(schema: &Value) -> Result<Map<String, Value>, String> {
    let mut rewriter =
        Rewriter { root: schema, names: BTreeMap::new(), pending: Vec::new(), steps: 0, bytes: 0 };
    let root = rewriter.schema(schema, "#", 0)?;
    let mut definitions = Vec::new();
    while definitions.len() < rewriter.pending.len() {
        let (pointer, target) = rewriter.pending[definitions.len()].clone();
        definitions.push((pointer.clone(), rewriter.schema(target, &pointer, 0)?));
    }
    if root == Value::Bool(false) {
        return Err("no value satisfies the schema; mend it".to_owned());
    }
    let (root, definitions) = without_endless(root, definitions)?;
    let mut root = match root {
        Value::Object(keys) => keys,
        _ => Map::new(),
    };
    if !definitions.is_empty() {
        let named = definitions.into_iter().enumerate().map(|(at, schema)| (format!("r{at}"), schema));
        root.insert("$defs".to_owned(), Value::Object(named.collect()));
    }
    Ok(root)
}

/// The part of a schema that a reference names.
pub(super) fn resolve<'r>(root: &'r Value, to: &str, path: &str) -> Result<&'r Value, String> {
    if to == "#" {
        return Ok(root);
    }
    let pointer = to.strip_prefix('#').filter(|pointer| pointer.starts_with('/') && !pointer.contains('%'));
    let pointer = pointer.ok_or_else(|| {
        format!(
            "`$ref` at `{path}` of the schema is `{to}`; a reference into the schema itself begins with `#/`"
        )
    })?;
    root.pointer(pointer)
        .ok_or_else(|| format!("`$ref` at `{path}` names `{to}`, which the schema does not have"))
}

struct Rewriter<'r> {
    root: &'r Value,
    /// Definitions by the references that name them, in order of appearance.
    names: BTreeMap<String, usize>,
    pending: Vec<(String, &'r Value)>,
    steps: usize,
    bytes: usize,
}

impl<'r> Rewriter<'r> {
    /// A schema at a path, rewritten.
    fn schema(&mut self, schema: &Value, path: &str, depth: usize) -> Result<Value, String> {
        self.steps += 1;
        if self.steps > STEPS_MAX || self.bytes > BYTES_MAX {
            return Err(format!(
                "the schema multiplies beyond {BYTES_MAX} bytes at `{path}`; write it with fewer alternatives"
            ));
        }
        if depth > DEPTH_MAX {
            return Err(format!(
                "the schema is deeper than {DEPTH_MAX} levels at `{path}`; write it flatter"
            ));
        }
        let keys = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(keys) => restricting(keys, path)?,
            _ => return Err(format!("the schema at `{path}` is no object; write one")),
        };
        let alone = keys.keys().next().filter(|_| keys.len() == 1);
        match (alone.map(String::as_str), keys.values().next()) {
            (Some("$ref"), Some(Value::String(to))) => self.reference(to, path),
            (Some(key @ ("anyOf" | "oneOf")), Some(Value::Array(schemas))) => {
                if key == "oneOf" {
                    self.exclude_each_other(schemas, path)?;
                }
                self.alternatives(schemas.iter().cloned(), &format!("{path}/{key}"), depth)
            }
            _ if keys.keys().any(|key| ALONE.contains(&key.as_str())) => self.together(keys, path, depth),
            _ => self.plain(keys, path, depth),
        }
    }

    fn reference(&mut self, to: &str, path: &str) -> Result<Value, String> {
        let target = resolve(self.root, to, path)?;
        let next = self.pending.len();
        let name = *self.names.entry(to.to_owned()).or_insert(next);
        if name == next {
            self.pending.push((to.to_owned(), target));
        }
        Ok(json!({ "$ref": format!("#/$defs/r{name}") }))
    }

    /// Alternatives as `anyOf`, each made when it is rewritten.
    fn alternatives(
        &mut self,
        schemas: impl Iterator<Item = Value>,
        path: &str,
        depth: usize,
    ) -> Result<Value, String> {
        let mut rewritten = Vec::new();
        for (at, schema) in schemas.enumerate() {
            match self.schema(&schema, &format!("{path}/{at}"), depth + 1)? {
                Value::Bool(false) => {}
                schema => rewritten.push(schema),
            }
        }
        Ok(match rewritten.len() {
            0 => Value::Bool(false),
            1 => rewritten.swap_remove(0),
            _ => json!({ "anyOf": rewritten }),
        })
    }

    /// Refuses schemas of `oneOf` that may hold for the same value.
    fn exclude_each_other(&self, schemas: &[Value], path: &str) -> Result<(), String> {
        let mut steps = STEPS_MAX;
        for (at, one) in schemas.iter().enumerate() {
            let mut may_hold = |other: &usize| !disjoint(one, &schemas[*other], self.root, &mut steps, 0);
            if let Some(other) = (at + 1..schemas.len()).find(&mut may_hold) {
                return Err(format!(
                    "`oneOf` at `{path}` of the schema is not implemented where several of its schemas may hold, as {at} and {other} may; use `anyOf`"
                ));
            }
        }
        Ok(())
    }

    /// Keywords beside `$ref`, `allOf`, `anyOf` or `oneOf`: all of them hold together.
    fn together(&mut self, keys: Map<String, Value>, path: &str, depth: usize) -> Result<Value, String> {
        let (mut held, mut choices) = (Map::new(), Vec::new());
        let mut work = vec![Value::Object(keys)];
        // a schema that holds twice says no more than once
        let mut seen = BTreeSet::new();
        while let Some(schema) = work.pop() {
            self.steps += 1;
            let mut keys = match schema {
                Value::Bool(true) => continue,
                Value::Bool(false) => return Ok(Value::Bool(false)),
                Value::Object(keys) => restricting(&keys, path)?,
                _ => return Err(format!("a schema at `{path}` is no object; write one")),
            };
            match keys.remove("$ref") {
                None => {}
                Some(Value::String(to)) => {
                    let target = resolve(self.root, &to, path)?;
                    work.extend(seen.insert(to).then(|| target.clone()));
                }
                Some(_) => return Err(format!("`$ref` at `{path}` of the schema is no text; mend it")),
            }
            match keys.remove("allOf") {
                None => {}
                Some(Value::Array(schemas)) => work.extend(schemas.into_iter().rev()),
                Some(_) => return Err(format!("`allOf` at `{path}` of the schema is no list; mend it")),
            }
            choices.extend(["anyOf", "oneOf"].into_iter().filter_map(|key| Some((key, keys.remove(key)?))));
            if let Some(key) =
                ["unevaluatedProperties", "unevaluatedItems"].iter().find(|key| keys.contains_key(**key))
            {
                return Err(refused(key, path));
            }
            match merge::merged(held, keys, path)? {
                Some(merged) => held = merged,
                None => return Ok(Value::Bool(false)),
            }
        }
        if choices.is_empty() {
            return self.plain(held, path, depth);
        }
        let (key, first) = choices.remove(0);
        let Value::Array(first) = first else {
            return Err(format!("`{key}` at `{path}` of the schema is no list; mend it"));
        };
        if key == "oneOf" {
            self.exclude_each_other(&first, path)?;
        }
        let rest: Vec<Value> = choices.into_iter().map(|(key, list)| json!({ key: list })).collect();
        let each = |alternative: Value| {
            let all: Vec<Value> =
                [Value::Object(held.clone()), alternative].into_iter().chain(rest.clone()).collect();
            json!({ "allOf": all })
        };
        self.alternatives(first.into_iter().map(each), &format!("{path}/{key}"), depth)
    }

    /// Keywords that hold by themselves.
    fn plain(&mut self, mut keys: Map<String, Value>, path: &str, depth: usize) -> Result<Value, String> {
        values::bounds(&mut keys, path)?;
        values::format(&mut keys, path)?;
        objects::names(&mut keys, path)?;
        for (unevaluated, other) in
            [("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")]
        {
            // nothing but the keywords beside it evaluates here
            if let Some(value) = keys.remove(unevaluated)
                && !keys.contains_key(other)
                && !matches!(keys.get("items"), Some(Value::Array(_)))
            {
                keys.insert(other.to_owned(), value);
            }
        }
        if let Some(listed) = self.unique(&mut keys, path)? {
            return Ok(listed);
        }
        for (key, value) in &mut keys {
            let path = format!("{path}/{key}");
            match (key.as_str(), &mut *value) {
                ("properties" | "patternProperties", Value::Object(schemas)) => {
                    for (name, schema) in schemas.iter_mut() {
                        *schema = self.schema(schema, &format!("{path}/{name}"), depth + 1)?;
                    }
                }
                ("prefixItems" | "items", Value::Array(schemas)) => {
                    for (at, schema) in schemas.iter_mut().enumerate() {
                        *schema = self.schema(schema, &format!("{path}/{at}"), depth + 1)?;
                    }
                }
                ("items" | "additionalItems" | "additionalProperties", schema) => {
                    *schema = self.schema(schema, &path, depth + 1)?;
                }
                _ => {}
            }
            let has_schemas =
                value.is_object() || value.is_array() && !matches!(key.as_str(), "enum" | "required");
            self.bytes += key.len() + if has_schemas { 8 } else { value.to_string().len() };
        }
        Ok(Value::Object(keys))
    }

    /// Rewrites `uniqueItems`: lists of a few values are listed themselves.
    fn unique(&self, keys: &mut Map<String, Value>, path: &str) -> Result<Option<Value>, String> {
        let Some(Value::Bool(true)) = keys.remove("uniqueItems") else { return Ok(None) };
        let length = |key: &str| keys.get(key).and_then(Value::as_u64);
        let most = length("maxItems").unwrap_or(u64::MAX);
        if most <= 1 {
            return Ok(None);
        }
        let others = ["prefixItems", "additionalItems", "enum", "const"];
        let values = keys.get("items").map_or(Values::Any, |items| Values::of(items, self.root, 0));
        let Values::Few(values) = values else { return Err(refused("uniqueItems", path)) };
        if keys.get("type") != Some(&json!("array")) || others.iter().any(|other| keys.contains_key(*other)) {
            return Err(refused("uniqueItems", path));
        }
        let least = length("minItems").unwrap_or(0);
        let lists = values::lists_of(&values)
            .into_iter()
            .filter(|list| (least..=most).contains(&(list.len() as u64)));
        let lists: Vec<Value> = lists.map(Value::from).collect();
        Ok(Some(if lists.is_empty() { Value::Bool(false) } else { json!({ "enum": lists }) }))
    }
}

/// The keywords of a schema that restrict its values.
fn restricting(keys: &Map<String, Value>, path: &str) -> Result<Map<String, Value>, String> {
    if let Some(key) = REFUSED.iter().find(|key| keys.contains_key(**key)) {
        return Err(refused(key, path));
    }
    if path != "#" && keys.contains_key("$id") {
        return Err(refused("$id", path));
    }
    let kept = |key: &str| KEPT.contains(&key) || BOUNDS.contains(&key) || ALONE.contains(&key);
    let says_nothing = |key: &str, value: &Value| {
        matches!((key, value), ("uniqueItems", Value::Bool(false)))
            || matches!(
                (key, value),
                ("unevaluatedProperties" | "unevaluatedItems" | "propertyNames", Value::Bool(true))
            )
    };
    let all = keys.iter().filter(|(key, value)| kept(key) && !says_nothing(key, value));
    let mut kept = all.map(|(key, value)| (key.clone(), value.clone())).collect();
    values::counts(&mut kept);
    Ok(kept)
}
