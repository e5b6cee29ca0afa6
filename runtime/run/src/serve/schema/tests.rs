//! Schemas that are enforced, whose values are checked by a second reading of JSON Schema, and schemas that are refused by name.

use serde_json::json;

use super::super::grammar::Grammar;
use super::super::grammar::tests::{takes, tokenizer, written};
use super::*;

fn of(schema: &Value) -> Result<Grammar, String> {
    Grammar::new(format!("start: {}", grammar(schema)?), &[])
}

/// Checks texts that a schema takes, and texts that it does not, in the form of answers.
#[track_caller]
fn check(schema: &Value, takes_these: &[&str], none_of_these: &[&str]) {
    let grammar = of(schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
    for text in takes_these {
        assert!(takes(&grammar, text), "{schema} takes {text}");
    }
    for text in none_of_these {
        assert!(!takes(&grammar, text), "{schema} does not take {text}");
    }
}

#[test]
fn keywords_that_llguidance_lacks_are_rewritten() {
    let record = json!({ "type": "object", "propertyNames": { "type": "string" }, "additionalProperties": { "type": "integer" } });
    check(&record, &["{}", "{\"a\": 1}"], &["{\"a\": \"b\"}"]);
    let named = json!({ "type": "object", "propertyNames": { "enum": ["a", "b"] }, "additionalProperties": { "type": "integer" } });
    check(&named, &["{}", "{\"a\": 1, \"b\": 2}"], &["{\"c\": 1}", "{\"a\": \"x\"}"]);
    let pattern = json!({ "type": "object", "propertyNames": { "pattern": "^x-" }, "additionalProperties": { "type": "integer" } });
    check(&pattern, &["{\"x-a\": 1}"], &["{\"a\": 1}", "{\"x-a\": \"b\"}"]);
    let short = json!({ "type": "object", "propertyNames": { "maxLength": 2 } });
    check(&short, &["{\"ab\": 1}"], &["{\"abc\": 1}"]);
    let unique =
        json!({ "type": "array", "items": { "enum": ["a", "b", "c"] }, "uniqueItems": true, "minItems": 1 });
    check(&unique, &["[\"c\"]", "[\"b\", \"a\"]"], &["[]", "[\"a\", \"a\"]", "[\"d\"]"]);
    let one = json!({ "type": "array", "items": { "type": "string" }, "uniqueItems": true, "maxItems": 1 });
    check(&one, &["[]", "[\"x\"]"], &["[\"x\", \"y\"]"]);
    // a whole number, however it is written
    let two = json!({ "type": "array", "items": { "type": "null" }, "maxItems": 2.0 });
    check(&two, &["[]", "[null, null]"], &["[null, null, null]"]);
    let all = json!({ "allOf": [
        { "type": "object", "properties": { "a": { "type": "integer", "minimum": 1 } }, "required": ["a"] },
        { "$ref": "#/$defs/b" },
    ], "$defs": { "b": { "properties": { "a": { "maximum": 3 }, "b": { "const": 1 } }, "required": ["b"], "additionalProperties": false } } });
    check(
        &all,
        &["{\"a\": 1, \"b\": 1}"],
        &["{\"a\": 4, \"b\": 1}", "{\"a\": 1}", "{\"a\": 1, \"b\": 1, \"c\": 1}"],
    );
    let beside = json!({ "type": "object", "properties": { "a": { "type": "null" }, "b": { "type": "null" } }, "additionalProperties": false,
        "anyOf": [{ "required": ["a"] }, { "required": ["b"] }] });
    check(&beside, &["{\"a\": null}", "{\"b\": null}", "{\"a\": null, \"b\": null}"], &["{}"]);
    let file = json!({ "type": "string", "format": "binary" });
    check(&file, &["\"a\""], &["1"]);
    check(&json!({ "type": "integer", "format": "int32" }), &["2147483647"], &["2147483648"]);
    let one_of = json!({ "oneOf": [{ "$ref": "#/$defs/cat" }, { "$ref": "#/$defs/dog" }], "discriminator": { "propertyName": "kind" }, "$defs": {
        "cat": { "type": "object", "properties": { "kind": { "const": "cat" } }, "required": ["kind"], "additionalProperties": false },
        "dog": { "type": "object", "properties": { "kind": { "const": "dog" }, "of": { "$ref": "#" } }, "required": ["kind"], "additionalProperties": false },
    } });
    check(
        &one_of,
        &["{\"kind\": \"cat\"}", "{\"kind\": \"dog\", \"of\": {\"kind\": \"cat\"}}"],
        &["{\"kind\": \"bird\"}"],
    );
    let closed = json!({ "type": "object", "properties": { "a": true }, "unevaluatedProperties": false });
    check(&closed, &["{\"a\": [1]}"], &["{\"b\": 1}"]);
    let escaped = json!({ "$ref": "#/$defs/a~1b", "$defs": { "a/b": { "const": 1 } } });
    check(&escaped, &["1"], &["2"]);
}

#[test]
fn texts_of_a_format_are_all_of_it() {
    for (format, takes_these, none_of_these) in [
        (
            "date",
            &["2024-02-29", "2000-02-29", "2023-12-31"][..],
            &["2023-02-29", "1900-02-29", "2023-04-31"][..],
        ),
        ("time", &["23:59:59Z", "00:00:00.5+01:30"], &["23:59:60Z", "24:00:00Z", "12:00:00"]),
        ("date-time", &["2024-02-29T12:00:00Z"], &["2023-02-29T12:00:00Z", "2024-02-29 12:00:00Z"]),
        ("hostname", &["a-b.example", "a"], &["-a", "a--b", "a..b", "xn--x"]),
    ] {
        let quote = |texts: &[&str]| texts.iter().map(|text| format!("\"{text}\"")).collect::<Vec<_>>();
        let (these, others) = (quote(takes_these), quote(none_of_these));
        let these: Vec<&str> = these.iter().map(String::as_str).collect();
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        check(&json!({ "type": "string", "format": format }), &these, &others);
    }
    let both = json!({ "type": "string", "format": "date", "pattern": "^2" });
    assert!(grammar(&both).unwrap_err().contains("`format` beside `pattern`"));
    check(&json!({ "type": "string", "pattern": "^\\S$" }), &["\"a\""], &["\"\u{feff}\"", "\" \""]);
}

#[test]
fn a_schema_may_refer_to_itself_where_its_values_end() {
    let tree =
        json!({ "type": "object", "properties": { "next": { "$ref": "#" } }, "additionalProperties": false });
    check(&tree, &["{}", "{\"next\": {\"next\": {}}}"], &["{\"next\": 1}"]);
    let endless = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/a" } }, "additionalProperties": false,
        "$defs": { "a": { "type": "object", "properties": { "a": { "$ref": "#/$defs/a" } }, "required": ["a"] } } });
    check(&endless, &["{}"], &["{\"a\": {}}"]);
    let twice = json!({ "$ref": "#/$defs/a", "type": "string", "$defs": { "a": { "$ref": "#/$defs/a", "maxLength": 1 } } });
    check(&twice, &["\"a\""], &["\"ab\"", "1"]);
}

#[test]
fn bounds_hold_to_the_last_digit() {
    let texts = [
        "-2",
        "-1.5",
        "-1.0000000000000002",
        "-1",
        "-1.0",
        "-0.9",
        "-0.5",
        "-0.05",
        "-0",
        "-0.0",
        "0",
        "0.0",
        "0.00",
        "0.000000001",
        "0.05",
        "0.4",
        "0.5",
        "0.50",
        "0.500001",
        "0.9",
        "0.99",
        "1",
        "1.0",
        "1.000001",
        "1.4",
        "1.5",
        "1.50",
        "1.6",
        "2",
        "2.0",
        "9",
        "9.9",
        "10",
        "10.0",
        "10.1",
        "11",
        "99",
        "100",
    ];
    let bounds = [-10.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 10.0];
    let mut kept = 0;
    for (low, low_key) in bounds.iter().flat_map(|low| [(low, "minimum"), (low, "exclusiveMinimum")]) {
        for (high, high_key) in bounds
            .iter()
            .flat_map(|high| [(Some(high), "maximum"), (Some(high), "exclusiveMaximum"), (None, "")])
        {
            for kind in ["number", "integer"] {
                let mut schema = json!({ "type": kind, low_key: low });
                if let Some(high) = high {
                    schema[high_key] = json!(high);
                }
                let Ok(grammar) = of(&schema) else { continue };
                for text in texts.iter().filter(|text| takes(&grammar, text)) {
                    let value: f64 = text.parse().unwrap();
                    let above = if low_key == "minimum" { value >= *low } else { value > *low };
                    let below =
                        high.is_none_or(
                            |high| if high_key == "maximum" { value <= *high } else { value < *high },
                        );
                    assert!(
                        above && below && (kind == "number" || value.fract() == 0.0),
                        "{schema} takes {text}"
                    );
                    kept += 1;
                }
            }
        }
    }
    assert!(kept > 2000, "{kept}");
    check(
        &json!({ "type": "number", "exclusiveMinimum": 0 }),
        &["0.5", "3", "12.25"],
        &["0", "0.0", "-0", "-1"],
    );
    check(
        &json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 0.5 }),
        &["0.01", "0.5"],
        &["0", "0.0", "0.51"],
    );
    check(
        &json!({ "type": "number", "exclusiveMinimum": 1, "maximum": 1.5 }),
        &["1.01", "1.5"],
        &["1", "1.0", "1.51"],
    );
    check(
        &json!({ "type": "number", "minimum": -0.5, "exclusiveMaximum": 0 }),
        &["-0.5", "-0.01"],
        &["0", "-0", "-0.0"],
    );
    check(&json!({ "type": "number", "minimum": 1, "exclusiveMinimum": true }), &["1.5", "2"], &["1", "1.0"]);
}

#[test]
fn a_keyword_that_is_not_enforced_is_refused_by_its_name_and_path() {
    let any = json!({ "anyOf": [{ "type": "string" }, { "type": "null" }] });
    let required = |at: usize| json!({ "required": [format!("k{at}")] });
    let one_of_many = json!({ "anyOf": (0..20).map(required).collect::<Vec<_>>() });
    for (schema, words) in [
        (json!([]), "no object"),
        (json!({ "properties": { "a": { "not": {} } } }), "`not` at `#/properties/a`"),
        (
            json!({ "items": { "type": "array", "items": { "type": "string" }, "uniqueItems": true } }),
            "`uniqueItems` at `#/items`",
        ),
        (json!({ "$defs": { "a": { "if": {} } }, "$ref": "#/$defs/a" }), "`if` at `#/$defs/a`"),
        (
            json!({ "properties": { "a": { "type": "string", "format": "regex" } } }),
            "`format` at `#/properties/a` of the schema is `regex`",
        ),
        (
            json!({ "type": "object", "properties": { "a": {} }, "propertyNames": { "pattern": "a" } }),
            "`propertyNames` at `#`",
        ),
        (json!({ "allOf": [{ "pattern": "a" }, { "pattern": "b" }] }), "`pattern` at `#`"),
        (json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] }), "`oneOf` at `#`"),
        (json!({ "type": "integer", "minimum": 9_007_199_254_740_993_u64 }), "`minimum` at `#`"),
        (json!({ "$ref": "#" }), "`#` always requires itself"),
        (
            json!({ "type": "object", "properties": { "a": { "$ref": "#" } }, "required": ["a"] }),
            "`#` always requires itself",
        ),
        (
            json!({ "$ref": "https://example.com/a" }),
            "`$ref` at `#` of the schema is `https://example.com/a`",
        ),
        (
            json!({ "properties": { "a": { "$ref": "#/$defs/b" } } }),
            "`$ref` at `#/properties/a` names `#/$defs/b`",
        ),
        (json!({ "allOf": [{ "type": "string" }, { "type": "null" }] }), "no value satisfies"),
        (json!({ "$defs": { "a": { "x-guidance": {} } }, "$ref": "#/$defs/a" }), "`x-guidance`"),
        (json!({ "enum": ["a".repeat(20_000)] }), "16384 is the most"),
        (json!({ "allOf": vec![one_of_many; 8] }), "multiplies beyond"),
    ] {
        let error = grammar(&schema).unwrap_err();
        assert!(error.contains(words), "{schema}: {error}");
    }
    let mut deep = json!({ "type": "string" });
    for _ in 0..40 {
        deep = json!({ "type": "array", "items": deep });
    }
    assert!(grammar(&deep).unwrap_err().contains("deeper than 32"));
    let fine =
        json!({ "$defs": { "a": any }, "properties": { "b": { "$ref": "#/$defs/a", "description": "x" } } });
    assert!(grammar(&fine).unwrap().contains("%json"));
}

/// Schemas that would multiply are refused or rewritten in bounded time.
#[test]
fn a_schema_that_multiplies_takes_no_time() {
    let choices = |count: usize| json!({ "anyOf": (0..count).map(|at| json!({ "required": [format!("k{at}")] })).collect::<Vec<_>>() });
    let mut nested = json!({ "const": 1 });
    for _ in 0..20 {
        nested = json!({ "allOf": [{ "properties": { "a": nested } }, { "properties": { "a": nested } }], "type": "object" });
        if nested.to_string().len() > 8000 {
            break;
        }
    }
    let trees = json!({ "allOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/b" }], "$defs": {
        "a": { "type": "object", "properties": { "l": { "$ref": "#/$defs/a" }, "r": { "$ref": "#/$defs/a" } } },
        "b": { "type": "object", "properties": { "l": { "$ref": "#/$defs/b" }, "r": { "$ref": "#/$defs/b" } } },
    } });
    let one_of = json!({ "oneOf": (0..200).map(|at| json!({ "const": at })).collect::<Vec<_>>() });
    for schema in [json!({ "allOf": vec![choices(40); 10] }), nested, trees, one_of] {
        let clock = std::time::Instant::now();
        let made = of(&schema);
        assert!(clock.elapsed().as_secs() < 10, "{:?} {}", clock.elapsed(), made.err().unwrap_or_default());
    }
}

/// Random answers keep the schema, as the keywords' own definitions say.
#[test]
fn answers_keep_rewritten_schemas() {
    let tokenizer = tokenizer();
    let schema = json!({ "allOf": [
        { "type": "object", "required": ["set", "share"], "properties": {
            "set": { "type": "array", "items": { "enum": [1, 2, 3] }, "uniqueItems": true, "minItems": 1 },
            "share": { "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1 },
        } },
        { "properties": { "names": { "type": "object", "propertyNames": { "enum": ["x", "y"] }, "additionalProperties": { "type": "boolean" } } } },
    ], "unevaluatedProperties": true, "additionalProperties": true });
    let grammar = of(&schema).unwrap();
    let mut ended = 0;
    for seed in 0..40 {
        let Some((answer, _)) = written(&grammar, &tokenizer, seed, false) else { continue };
        let Ok(value) = serde_json::from_str::<Value>(&answer) else { continue };
        let set = value["set"].as_array().unwrap();
        assert!(!set.is_empty() && (0..set.len()).all(|at| !set[..at].contains(&set[at])), "{answer}");
        let share = value["share"].as_f64().unwrap();
        assert!(share > 0.0 && share < 1.0, "{answer}");
        ended += 1;
    }
    assert!(ended > 5, "{ended}");
}

/// A text in the form that answers have.
fn spaced(value: &Value) -> String {
    match value {
        Value::Array(values) => format!("[{}]", values.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        Value::Object(values) => {
            let pair =
                |(key, value): (&String, &Value)| format!("{}: {}", Value::from(key.as_str()), spaced(value));
            format!("{{{}}}", values.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
        value => value.to_string(),
    }
}

/// JSON Schema's own tests: no schema that is enforced takes a value that violates it. Prints what is enforced, by file.
#[test]
#[ignore = "needs the folder tests/draft2020-12 of JSON-Schema-Test-Suite, which SUITE names"]
fn no_value_of_the_test_suite_violates_an_enforced_schema() {
    let folder = std::env::var("SUITE").expect("SUITE");
    let mut files: Vec<_> = ["", "optional", "optional/format"]
        .iter()
        .filter_map(|part| std::fs::read_dir(format!("{folder}/{part}")).ok())
        .flatten()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "json"))
        .collect();
    files.sort();
    let (mut all, mut violations) = ([0; 4], Vec::new());
    for path in files {
        let name = path.strip_prefix(&folder).unwrap().display().to_string();
        let groups: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let mut counts = [0; 4];
        for group in groups.as_array().unwrap() {
            let schema = &group["schema"];
            let grammar = match of(schema) {
                Ok(grammar) => grammar,
                Err(why) => {
                    counts[1] += 1;
                    println!("  {name}: {}: {why}", group["description"]);
                    continue;
                }
            };
            counts[0] += 1;
            for test in group["tests"].as_array().unwrap() {
                let text = spaced(&test["data"]);
                match (takes(&grammar, &text), test["valid"].as_bool().unwrap()) {
                    (true, false) => {
                        violations.push(format!("{name}: {}: {schema} takes {text}", group["description"]));
                    }
                    (false, true) => counts[3] += 1,
                    (true, true) => counts[2] += 1,
                    (false, false) => {}
                }
            }
        }
        println!(
            "{name}: {} enforced, {} refused; {} valid values can be written, {} cannot",
            counts[0], counts[1], counts[2], counts[3]
        );
        (0..4).for_each(|at| all[at] += counts[at]);
    }
    println!("all: {all:?}");
    assert!(violations.is_empty(), "{} violations\n{}", violations.len(), violations.join("\n"));
}
