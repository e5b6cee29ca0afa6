//! Values of a schema by themselves: bounds of numbers, formats of texts, and lists of a few values.

use serde_json::{Map, Number, Value, json};

use super::rewrite::resolve;

/// Whole numbers below this one have all of their digits in a double-precision number.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
/// Digits after the point that are enforced, and the least number above 0 that they write.
const DIGITS_MAX: usize = 17;
const LEAST: f64 = 1e-17;
/// Formats of texts that a grammar enforces.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Formats that any text has, and that any number has.
const ANY_TEXT: [&str; 3] = ["binary", "password", "textarea"];
const ANY_NUMBER: [&str; 3] = ["float", "double", "decimal"];
/// Formats of whole numbers, and their bounds. The ones of 64 bits are the last that a double-precision number has.
const WHOLE: [(&str, f64, f64); 4] = [
    ("int32", -2_147_483_648.0, 2_147_483_647.0),
    ("uint32", 0.0, 4_294_967_295.0),
    ("int64", -9_223_372_036_854_774_784.0, 9_223_372_036_854_774_784.0),
    ("uint64", 0.0, 9_223_372_036_854_774_784.0),
];
/// Values whose lists without repetition are all written out, at most: 65 lists.
const LISTED_MAX: usize = 4;
/// How far references are followed.
const DEPTH_MAX: usize = 8;

/// Whether a schema may have values of a type.
fn may_be(keys: &Map<String, Value>, kind: &str) -> bool {
    match keys.get("type") {
        None => true,
        Some(Value::Array(kinds)) => kinds.iter().any(|it| it == kind),
        Some(it) => it == kind,
    }
}

/// Keywords that count.
const COUNTS: [&str; 6] =
    ["minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength"];

/// Writes counts such as `2.0` as whole numbers: both are the same integer in JSON Schema.
pub(super) fn counts(keys: &mut Map<String, Value>) {
    for key in COUNTS {
        let count = keys.get(key).filter(|count| count.is_f64()).and_then(Value::as_f64);
        if let Some(count) = count.filter(|count| count.fract() == 0.0 && (0.0..WHOLE_MAX).contains(count)) {
            keys.insert(key.to_owned(), Value::from(count as u64));
        }
    }
}

/// Makes bounds of numbers hold to the last digit.
pub(super) fn bounds(keys: &mut Map<String, Value>, path: &str) -> Result<(), String> {
    let precise = |key: &str, number: &Number| {
        let value = number.as_f64().unwrap_or(f64::INFINITY);
        let digits = format!("{value}").split_once('.').map_or(0, |(_, digits)| digits.len());
        let is_exact = value.abs() < WHOLE_MAX && digits <= DIGITS_MAX;
        is_exact.then_some(()).ok_or_else(|| {
            format!("`{key}` at `{path}` of the schema is {number}, which has more digits than are enforced; leave it away")
        })
    };
    for key in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const"] {
        if let Some(Value::Number(number)) = keys.get(key) {
            precise(key, number)?;
        }
    }
    if let Some(Value::Array(values)) = keys.get("enum") {
        values.iter().filter_map(Value::as_number).try_for_each(|number| precise("enum", number))?;
    }
    // as draft 4 writes them
    for (exclusive, bound) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        match keys.get(exclusive) {
            Some(Value::Bool(true)) => {
                let bound = keys.remove(bound);
                keys.remove(exclusive);
                keys.extend(bound.map(|bound| (exclusive.to_owned(), bound)));
            }
            Some(Value::Bool(false)) => drop(keys.remove(exclusive)),
            _ => {}
        }
    }
    if !may_be(keys, "number") {
        return Ok(());
    }
    // the grammar takes a whole number that is excluded where the other bound has the same digits before the point
    let get = |keys: &Map<String, Value>, names: [&str; 2]| {
        names.into_iter().filter_map(|name| keys.get(name).and_then(Value::as_f64)).collect::<Vec<f64>>()
    };
    let is_near = |excluded: f64, others: Vec<f64>| {
        excluded.fract() == 0.0 && others.iter().any(|other| other.trunc() == excluded)
    };
    if let Some(excluded) = keys.get("exclusiveMinimum").and_then(Value::as_f64)
        && excluded >= 0.0
        && is_near(excluded, get(keys, ["maximum", "exclusiveMaximum"]))
    {
        replace(keys, ("exclusiveMinimum", "minimum"), excluded.next_up().max(LEAST), f64::max);
    }
    if let Some(excluded) = keys.get("exclusiveMaximum").and_then(Value::as_f64)
        && excluded <= 0.0
        && is_near(excluded, get(keys, ["minimum", "exclusiveMinimum"]))
    {
        replace(keys, ("exclusiveMaximum", "maximum"), excluded.next_down().min(-LEAST), f64::min);
    }
    Ok(())
}

/// Takes a bound that is allowed for one that is not.
fn replace(
    keys: &mut Map<String, Value>,
    (theirs, ours): (&str, &str),
    bound: f64,
    closer: fn(f64, f64) -> f64,
) {
    keys.remove(theirs);
    let bound = keys.get(ours).and_then(Value::as_f64).map_or(bound, |other| closer(bound, other));
    keys.insert(ours.to_owned(), json!(bound));
}

/// Rewrites `format`: one that any value has is dropped, one of whole numbers becomes bounds.
pub(super) fn format(keys: &mut Map<String, Value>, path: &str) -> Result<(), String> {
    let Some(format) = keys.get("format").and_then(Value::as_str).map(str::to_owned) else { return Ok(()) };
    let (text, number) = (may_be(keys, "string"), may_be(keys, "number") || may_be(keys, "integer"));
    if let Some((_, least, most)) =
        WHOLE.iter().find(|(name, ..)| *name == format).filter(|_| !text && number)
    {
        keys.remove("format");
        for (key, bound, closer) in
            [("minimum", least, f64::max as fn(f64, f64) -> f64), ("maximum", most, f64::min)]
        {
            let bound = keys.get(key).and_then(Value::as_f64).map_or(*bound, |other| closer(*bound, other));
            keys.insert(key.to_owned(), json!(bound));
        }
        return Ok(());
    }
    let is_any = ANY_TEXT.contains(&&*format) || ANY_NUMBER.contains(&&*format);
    if is_any || !text {
        keys.remove("format");
        return Ok(());
    }
    if FORMATS.contains(&&*format) {
        return Ok(());
    }
    Err(format!(
        "`format` at `{path}` of the schema is `{format}`, which is not implemented here: {} are",
        FORMATS.join(", ")
    ))
}

/// The values of a schema, if they are few.
#[derive(Debug, PartialEq)]
pub(super) enum Values {
    Few(Vec<Value>),
    Any,
}

impl Values {
    /// The values of a schema, through references.
    pub(super) fn of(schema: &Value, root: &Value, depth: usize) -> Self {
        let Value::Object(keys) = schema else { return Self::Any };
        if let Some(Value::String(to)) = keys.get("$ref") {
            return match resolve(root, to, "") {
                Ok(target) if depth < DEPTH_MAX => Self::of(target, root, depth + 1),
                _ => Self::Any,
            };
        }
        let values = match (keys.get("enum"), keys.get("const"), keys.get("type").and_then(Value::as_str)) {
            (Some(Value::Array(values)), ..) => values.clone(),
            (_, Some(value), _) => vec![value.clone()],
            (.., Some("boolean")) => vec![json!(true), json!(false)],
            (.., Some("null")) => vec![Value::Null],
            _ => return Self::Any,
        };
        let mut distinct: Vec<Value> = Vec::new();
        for value in values {
            if !distinct.iter().any(|other| same(other, &value)) {
                distinct.push(value);
            }
        }
        let other = |key: &str| !["enum", "const", "type"].contains(&key) && !super::NOTES.contains(&key);
        let is_few = distinct.len() <= LISTED_MAX && !keys.keys().any(|key| other(key));
        if is_few { Self::Few(distinct) } else { Self::Any }
    }
}

/// All lists of some of these values, each at most once.
pub(super) fn lists_of(values: &[Value]) -> Vec<Vec<Value>> {
    let mut lists = vec![Vec::new()];
    let mut at = 0;
    while at < lists.len() {
        for value in values {
            if !lists[at].contains(value) {
                let mut longer = lists[at].clone();
                longer.push(value.clone());
                lists.push(longer);
            }
        }
        at += 1;
    }
    lists
}

/// Whether two values are equal to JSON Schema, where 1 is 1.0.
pub(super) fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Value::Array(ones), Value::Array(others)) => {
            ones.len() == others.len() && ones.iter().zip(others).all(|(one, other)| same(one, other))
        }
        (Value::Object(ones), Value::Object(others)) => {
            ones.len() == others.len()
                && ones.iter().all(|(key, one)| others.get(key).is_some_and(|other| same(one, other)))
        }
        _ => one == other,
    }
}
