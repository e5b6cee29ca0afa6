//! The grammar of calls, in the format that the model's template teaches it, from what begins them on.
//!
//! Where a format has objects, the schema of a tool's parameters is embedded whole. Where each argument stands by itself, a text extends to
//! its end mark, and any other value is JSON. There, constraints on all arguments together or on a text's form are refused by name.

use serde_json::{Map, Value, json};

use super::super::literal::QUOTES;
use super::super::schema::{self, NOTES};
use super::super::tools::Function;
use super::super::typed::referred;
use super::{Apart, Format, Shape, Text, harmony, quoted};

/// The longest text whose length is enforced: each character is a state of the grammar's.
const LENGTH_MAX: u64 = 100;
/// How far references are followed.
const DEPTH_MAX: usize = 8;

/// A Lark grammar of calls of these tools (at least one), after the opening of calls. `is_forced`: the prompt has the opening.
///
/// # Errors
/// A sentence, if it cannot be enforced.
pub(in super::super) fn of_calls(
    format: &Format,
    tools: &[Function],
    several: bool,
    is_forced: bool,
) -> Result<String, String> {
    let mut rules = Rules::default();
    let calls = rules.section(format, tools, several, is_forced)?;
    Ok(format!("start: {calls}{}", rules.text))
}

/// A Lark grammar of an answer that keeps a schema, or is calls.
///
/// # Errors
/// A sentence, if it cannot be enforced.
pub(in super::super) fn of_schema_or_calls(
    schema: &Value,
    format: &Format,
    tools: &[Function],
    several: bool,
) -> Result<String, String> {
    let mut rules = Rules::default();
    let answer = rules.add(&schema::grammar(schema)?, false);
    // harmony's calls are no part of the answer's text
    if format.is_apart() {
        return Ok(format!("start: {answer}{}", rules.text));
    }
    let calls = rules.section(format, tools, several, false)?;
    Ok(format!("start: {answer} | {} {calls}{}", quoted(format.open()), rules.text))
}

/// Values that an argument may have.
#[derive(Debug, PartialEq)]
enum Kind {
    /// A text of any or of bounded length.
    Text(Option<(u64, Option<u64>)>),
    /// One of these texts.
    Words(Vec<String>),
    /// JSON that keeps a schema.
    Json(Value),
}

/// Rules of a grammar, each in a line.
#[derive(Default)]
struct Rules {
    text: String,
    count: usize,
}

impl Rules {
    /// Adds a rule; its name. `lazy` ones end as soon as they can.
    fn add(&mut self, rule: &str, lazy: bool) -> String {
        let name = format!("r{}", self.count);
        self.count += 1;
        self.text += &format!("\n{name}{}: {rule}", if lazy { "[lazy]" } else { "" });
        name
    }

    /// Calls from the opening on.
    fn section(
        &mut self,
        format: &Format,
        tools: &[Function],
        several: bool,
        is_forced: bool,
    ) -> Result<String, String> {
        let section = &format.section;
        let mut calls = Vec::with_capacity(tools.len());
        for tool in tools {
            let shape = if is_forced && format.is_apart() {
                Shape::Object { before: quoted(&format!("{}{}", tool.name, harmony::AFTER_NAME)), after: "" }
            } else {
                (section.call)(&tool.name)
            };
            calls.push(self.call(&shape, tool)?);
        }
        let call = self.add(&calls.join(" | "), false);
        let more = if several && !section.between.is_empty() {
            format!("({} {call})*", quoted(section.between))
        } else {
            String::new()
        };
        Ok(format!("{} {call} {more} {}", quoted(section.first), quoted(section.last)))
    }

    /// The rule of a call.
    fn call(&mut self, shape: &Shape, tool: &Function) -> Result<String, String> {
        let parameters = tool.schema();
        let (before, after) = match shape {
            Shape::Apart(apart) => return self.apart(apart, &parameters, tool.strict),
            Shape::Object { before, after } => (before, after),
        };
        // arguments are an object, whether the schema says so or not
        let mut object = parameters;
        if !schema::ALONE.iter().any(|alone| object.contains_key(*alone)) {
            object.entry("type").or_insert_with(|| json!("object"));
        }
        let arguments = match schema::grammar(&Value::Object(object)) {
            // arguments of a tool that is not strict may be anything
            Err(_) if !tool.strict => schema::grammar(&schema::any_object())?,
            grammar => grammar?,
        };
        let arguments = self.add(&arguments, false);
        Ok(self.add(&format!("{before} {arguments} {}", quoted(after)), false))
    }

    /// The rule of a call whose arguments stand by themselves, in the order of its schema.
    fn apart(
        &mut self,
        written: &Apart,
        parameters: &Map<String, Value>,
        is_strict: bool,
    ) -> Result<String, String> {
        // keywords that hold together are one schema, so that each argument has its own
        let parameters = &match schema::rewritten(&Value::Object(parameters.clone())) {
            Err(_) if !is_strict => parameters.clone(),
            rewritten => rewritten?,
        };
        let known = ["type", "properties", "required", "additionalProperties"];
        let other = |key: &&String| !known.contains(&key.as_str()) && !NOTES.contains(&key.as_str());
        if let Some(key) = parameters.keys().find(other).filter(|_| is_strict) {
            return Err(format!(
                "`{key}` of a tool's parameters is not implemented for this model's format of calls; say it in `properties`"
            ));
        }
        let nothing = Map::new();
        let properties = parameters.get("properties").and_then(Value::as_object).unwrap_or(&nothing);
        let required: Vec<&str> = parameters
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let can_be = properties.iter().filter(|(_, schema)| **schema != Value::Bool(false));
        let mut all: Vec<(&str, Value)> =
            can_be.map(|(name, schema)| (name.as_str(), schema.clone())).collect();
        all.extend(
            required.iter().filter(|name| !properties.contains_key(**name)).map(|name| (*name, json!({}))),
        );
        // from the last one: what may follow an argument, and what may come where there was none yet
        let mut more = self.add(&quoted(written.after), false);
        let mut first = more.clone();
        for (name, schema) in all.iter().rev() {
            let argument = match self.argument(written, name, schema, parameters) {
                // an argument of a tool that is not strict may be anything
                Err(_) if !is_strict => self.argument(written, name, &json!({}), parameters)?,
                argument => argument?,
            };
            let must = required.contains(name);
            let between = quoted(written.between);
            let (with, without) = (format!("{between} {argument} {more}"), format!("{argument} {more}"));
            let either = |with: String, next: &str| if must { with } else { format!("{with} | {next}") };
            first = self.add(&either(without, &first), false);
            more = self.add(&either(with, &more), false);
        }
        Ok(self.add(&format!("{} {first}", quoted(&written.before)), false))
    }

    /// The rule of an argument.
    fn argument(
        &mut self,
        written: &Apart,
        name: &str,
        schema: &Value,
        parameters: &Map<String, Value>,
    ) -> Result<String, String> {
        let plain = |c: char| c.is_alphanumeric() || "_-.$".contains(c);
        if name.is_empty() || !name.chars().all(plain) {
            return Err(format!(
                "a parameter called `{name}` is not implemented for this model's format of calls; names have letters, digits and `_-.$`"
            ));
        }
        let mut found = Vec::new();
        if written.text == Text::Json {
            found.push(Kind::Json(schema.clone()));
        } else {
            kinds(schema, parameters, 0, &mut found)?;
        }
        // a bare text may be anything, and two ways to read one are one too many
        if written.text == Text::Bare && found.contains(&Kind::Text(None)) {
            found = vec![Kind::Text(None)];
        }
        let (before, after) = written.key;
        let mut values = Vec::with_capacity(found.len());
        for kind in found {
            let is_text = !matches!(kind, Kind::Json(_));
            let key = quoted(&format!("{before}{name}{}", after[usize::from(!is_text)]));
            let value = self.value(written, name, kind, parameters)?;
            values.push(format!("{key} ({value})"));
        }
        Ok(self.add(&values.join(" | "), false))
    }

    /// A value with the mark that ends it.
    fn value(
        &mut self,
        written: &Apart,
        name: &str,
        kind: Kind,
        parameters: &Map<String, Value>,
    ) -> Result<String, String> {
        let after_value = (written.after_value)(name);
        let is_quoted = written.text == Text::Quoted;
        let (quote, end) = if is_quoted { (QUOTES, QUOTES) } else { ("", after_value.as_str()) };
        Ok(match kind {
            Kind::Text(length) => {
                let letters = match length {
                    None => "/(?s:.*)/".to_owned(),
                    Some((least, most)) => {
                        let most = most.map_or(String::new(), |most| most.to_string());
                        format!("/(?s:.{{{least},{most}}})/")
                    }
                };
                let text = self.add(&format!("{letters} {}", quoted(end)), true);
                format!("{} {text}", quoted(quote))
            }
            Kind::Words(words) => {
                if let Some(word) = words.iter().find(|word| word.contains(end)) {
                    return Err(format!(
                        "`{word}` has the mark that ends a value in this model's format of calls"
                    ));
                }
                let words: Vec<String> =
                    words.iter().map(|word| quoted(&format!("{quote}{word}{end}"))).collect();
                words.join(" | ")
            }
            Kind::Json(value) => {
                let mut value = match value {
                    Value::Object(keys) => keys,
                    Value::Bool(true) => Map::new(),
                    _ => return Err("a parameter's schema is no object".to_owned()),
                };
                for definitions in ["$defs", "definitions"] {
                    if let Some(all) = parameters.get(definitions) {
                        value.insert(definitions.to_owned(), all.clone());
                    }
                }
                let json = self.add(&schema::grammar(&Value::Object(value))?, false);
                format!("{json} {}", quoted(&after_value))
            }
        })
    }
}

/// The values that a schema allows: texts, and the rest as JSON.
fn kinds(
    schema: &Value,
    root: &Map<String, Value>,
    depth: usize,
    found: &mut Vec<Kind>,
) -> Result<(), String> {
    let wrong = || format!("a parameter's schema goes deeper than {DEPTH_MAX} references");
    if depth > DEPTH_MAX {
        return Err(wrong());
    }
    let nothing = Map::new();
    let keys = match schema {
        Value::Object(keys) => keys,
        _ => &nothing,
    };
    let says: Vec<&String> =
        keys.keys().filter(|key| !NOTES.contains(&key.as_str()) && !key.starts_with("x-")).collect();
    let alone = (says.len() == 1).then(|| says[0].as_str());
    match (alone, alone.and_then(|key| keys.get(key))) {
        (None, _) if says.is_empty() => {
            found.extend([Kind::Text(None), Kind::Json(json!({}))]);
            return Ok(());
        }
        (Some("anyOf" | "oneOf" | "allOf"), Some(Value::Array(schemas)))
            if alone != Some("allOf") || schemas.len() == 1 =>
        {
            return schemas.iter().try_for_each(|schema| kinds(schema, root, depth + 1, found));
        }
        (Some("$ref"), Some(Value::String(to))) => {
            let to =
                referred(to, root).ok_or_else(|| format!("there is no `{to}` in a parameter's schema"))?;
            return kinds(to, root, depth + 1, found);
        }
        _ => {}
    }
    if let Some(key) = says.iter().find(|key| schema::ALONE.contains(&key.as_str())) {
        return Err(format!(
            "`{key}` beside other keywords in a parameter's schema is not implemented for this model's format of calls"
        ));
    }
    if let Some(Value::Array(types)) = keys.get("type") {
        return types.iter().try_for_each(|one| {
            let mut keys = keys.clone();
            keys.insert("type".to_owned(), one.clone());
            kinds(&Value::Object(keys), root, depth + 1, found)
        });
    }
    let listed: Option<Vec<&Value>> = match (keys.get("enum"), keys.get("const")) {
        (Some(Value::Array(values)), _) => Some(values.iter().collect()),
        (_, Some(value)) => Some(vec![value]),
        _ => None,
    };
    let is_text = keys.get("type").and_then(Value::as_str) == Some("string");
    if let Some(values) = listed {
        if says.iter().any(|key| !["type", "enum", "const"].contains(&key.as_str())) {
            return Err("keys beside `enum` in a parameter's schema are not implemented for this model's format of calls".to_owned());
        }
        let of_type = |value: &&&Value| match keys.get("type").and_then(Value::as_str) {
            Some("string") => value.is_string(),
            Some(_) => !value.is_string(),
            None => true,
        };
        let words: Vec<String> =
            values.iter().filter(of_type).filter_map(|value| value.as_str()).map(str::to_owned).collect();
        let others: Vec<&Value> =
            values.iter().filter(of_type).filter(|value| !value.is_string()).copied().collect();
        if !words.is_empty() {
            found.push(Kind::Words(words));
        }
        if !others.is_empty() {
            found.push(Kind::Json(json!({ "enum": others })));
        }
        return Ok(());
    }
    if !is_text {
        found.push(Kind::Json(schema.clone()));
        return Ok(());
    }
    let known = ["type", "minLength", "maxLength"];
    if let Some(key) = says.iter().find(|key| !known.contains(&key.as_str())) {
        return Err(format!(
            "`{key}` of a text is not implemented for this model's format of calls; leave it away"
        ));
    }
    let bound = |key: &str| keys.get(key).and_then(Value::as_u64);
    found.push(Kind::Text(match (bound("minLength"), bound("maxLength")) {
        (None | Some(0), None) => None,
        (least, most) if least.unwrap_or(0) > LENGTH_MAX || most.is_some_and(|most| most > LENGTH_MAX) => {
            return Err(format!(
                "lengths of a text over {LENGTH_MAX} are not implemented for this model's format of calls; leave them away"
            ));
        }
        (least, most) => Some((least.unwrap_or(0), most)),
    }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::super::super::grammar::Grammar;
    use super::super::super::grammar::tests::{takes, tokenizer, written};
    use super::super::{Calls, FORMATS, Piece, gemma, glm, json as objects, named, python, tagged};
    use super::*;
    use crate::reasoning::Channel;

    fn tool(name: &str, parameters: &Value) -> Function {
        Function {
            name: name.to_owned(),
            description: None,
            parameters: parameters.as_object().cloned(),
            strict: false,
        }
    }

    fn of(format: &Format, tools: &[Function]) -> Result<Grammar, String> {
        Grammar::new(of_calls(format, tools, true, true)?, format.marks)
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Journey {
        city: String,
        days: u8,
        unit: Option<Unit>,
        note: Option<Note>,
        stops: Vec<Stop>,
    }

    #[derive(Deserialize)]
    enum Unit {
        C,
        F,
    }

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Note {
        Text(String),
        Number(i64),
        Nothing(()),
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Stop {
        #[serde(rename = "at")]
        _at: bool,
    }

    fn journey() -> Function {
        let schema = json!({
            "type": "object",
            "properties": {
                "city": { "type": "string", "minLength": 1, "maxLength": 9, "description": "Its name" },
                "days": { "type": "integer", "minimum": 1, "maximum": 7 },
                "unit": { "$ref": "#/$defs/unit" },
                "note": { "anyOf": [
                    { "type": "string", "maxLength": 3 }, { "type": "integer", "minimum": 0, "maximum": 9 }, { "type": "null" },
                ] },
                "stops": { "type": "array", "items": { "$ref": "#/$defs/stop" }, "maxItems": 2 },
            },
            "required": ["city", "days", "stops"],
            "additionalProperties": false,
            "$defs": {
                "unit": { "type": "string", "enum": ["C", "F"] },
                "stop": {
                    "type": "object", "properties": { "at": { "type": "boolean" } }, "required": ["at"],
                    "additionalProperties": false,
                },
            },
        });
        tool("journey", &schema)
    }

    /// Whatever a model wants to write, in every format: calls of tools that there are, with arguments that their schemas allow.
    #[test]
    fn calls_are_ones_and_their_arguments_are_what_the_schemas_say() {
        in_every_format(6, 0);
    }

    /// Answers of so many seeds in each format, more than `least` of them calls with arguments.
    fn in_every_format(seeds: u64, least: usize) {
        let tokenizer = tokenizer();
        let nothing = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        let tools = [journey(), tool("now", &nothing)];
        for format in FORMATS {
            let grammar = of(format, &tools).unwrap_or_else(|error| panic!("{format:?}: {error}"));
            let mut journeys = 0;
            for seed in 0..seeds {
                let Some((text, _)) = written(&grammar, &tokenizer, seed, false) else { continue };
                let mut calls = Calls::new(format, tools.clone().into(), true);
                let mut pieces = calls.read(Channel::Answer, &text);
                pieces.extend(calls.finish());
                assert!(!pieces.is_empty(), "{format:?}: {text}");
                for piece in pieces {
                    let Piece::Call(call) = piece else { panic!("{format:?}: {text}: {piece:?}") };
                    if call.name == "now" {
                        continue;
                    }
                    journeys += 1;
                    let arguments = Value::Object(call.arguments.clone());
                    let told: Journey = serde_json::from_value(arguments.clone())
                        .unwrap_or_else(|error| panic!("{format:?}: {text}: {arguments}: {error}"));
                    assert!(
                        (1..=9).contains(&told.city.chars().count()) && (1..=7).contains(&told.days),
                        "{arguments}"
                    );
                    // the type of a stop requires `at`
                    assert!(told.stops.len() < 3, "{arguments}");
                    assert!(matches!(told.unit, None | Some(Unit::C | Unit::F)));
                    match told.note {
                        Some(Note::Text(text)) => assert!(text.chars().count() < 4, "{arguments}"),
                        Some(Note::Number(number)) => assert!((0..=9).contains(&number), "{arguments}"),
                        None | Some(Note::Nothing(())) => {}
                    }
                }
            }
            assert!(journeys > least, "{format:?}");
        }
    }

    mod slow {
        #[test]
        #[ignore = "minutes: make test-slow"]
        fn calls_of_more_seeds_are_ones_and_their_arguments_are_what_the_schemas_say() {
            super::in_every_format(16, 2);
        }
    }

    #[test]
    fn a_call_is_written_as_its_model_writes_it() {
        let say = tool(
            "say",
            &json!({
                "type": "object",
                "properties": { "text": { "type": "string" }, "times": { "type": "integer" }, "to": { "enum": ["a", 1] } },
                "required": ["text"],
            }),
        );
        let cases: [(&Format, &[&str], &[&str]); 12] = [
            (
                &tagged::QWEN_CODER,
                &[
                    "<function=say>\n<parameter=text>\nif a < b:\n\n  </parameter> c\n</parameter>\n<parameter=times>\n3\n</parameter>\n</function>",
                    "<function=say>\n<parameter=text>\n\n</parameter>\n<parameter=to>\na\n</parameter>\n</function>",
                ],
                &[
                    "<function=say>\n</function>",
                    "<function=say>\n<parameter=text>\na\n</parameter>\n<parameter=times>\nx\n</parameter>\n</function>",
                    "<function=no>\n</function>",
                ],
            ),
            (
                &glm::GLM,
                &[
                    "say<arg_key>text</arg_key><arg_value>1 < 2\n \"so\"</arg_value><arg_key>times</arg_key><arg_value>3</arg_value></tool_call>",
                    "say<arg_key>text</arg_key><arg_value></arg_value><arg_key>to</arg_key><arg_value>1</arg_value></tool_call>",
                ],
                &[
                    "say</tool_call>",
                    "say<arg_key>text</arg_key><arg_value>a</arg_value><arg_key>to</arg_key><arg_value>b</arg_value></tool_call>",
                ],
            ),
            (
                &python::LFM2,
                &["say(text=\"it's \\\"so\\\"\", times=3)", "say(text=\"\", to=\"a\")"],
                &["say()", "say(times=3)", "say(text=\"a\" times=3)", "say(text=a)", "say(text=\"a\",)"],
            ),
            (
                &gemma::GEMMA_4,
                &[
                    "call:say{text:<|\"|>it's \"so\", {x}<|\"|>,times:3}",
                    "call:say{text:<|\"|><|\"|>,to:<|\"|>a<|\"|>}",
                ],
                &["call:say{}", "call:say{text:\"a\"}", "call:say{text:<|\"|>a<|\"|>,to:a}", "say{}"],
            ),
            (
                &tagged::MINIMAX_M2,
                &[
                    "<invoke name=\"say\">\n<parameter name=\"text\">if a < b:\n  </parameter> c</parameter>\n<parameter name=\"times\">3</parameter>\n</invoke>",
                    "<invoke name=\"say\">\n<parameter name=\"text\"></parameter>\n<parameter name=\"to\">1</parameter>\n</invoke>",
                ],
                &[
                    "<invoke name=\"say\">\n</invoke>",
                    "<invoke name=\"say\">\n<parameter name=\"text\">a</parameter>\n<parameter name=\"times\">x</parameter>\n</invoke>",
                ],
            ),
            (
                &named::DEEPSEEK_FENCED,
                &["function<\u{ff5c}tool\u{2581}sep\u{ff5c}>say\n```json\n{\"text\": \"a\"}\n```"],
                &[
                    "function<\u{ff5c}tool\u{2581}sep\u{ff5c}>say\n```json\n{}\n```",
                    "say\n```json\n{\"text\": \"a\"}\n```",
                ],
            ),
            (
                &named::DEEPSEEK_BARE,
                &["say<\u{ff5c}tool\u{2581}sep\u{ff5c}>{\"text\": \"a\"}"],
                &["say<\u{ff5c}tool\u{2581}sep\u{ff5c}>{}", "say\n```json\n{\"text\": \"a\"}"],
            ),
            (
                &named::KIMI_K2,
                &["functions.say:0<|tool_call_argument_begin|>{\"text\": \"a\"}"],
                &[
                    "functions.say:0<|tool_call_argument_begin|>{}",
                    "say<|tool_call_argument_begin|>{\"text\": \"a\"}",
                ],
            ),
            (
                &objects::ACTION,
                &["{\"tool_name\": \"say\", \"parameters\": {\"text\": \"a\"}}"],
                &[
                    "{\"tool_name\": \"say\", \"parameters\": {}}",
                    "{\"name\": \"say\", \"arguments\": {\"text\": \"a\"}}",
                ],
            ),
            (
                &objects::COMMAND,
                &["{\"tool_call_id\": \"0\", \"tool_name\": \"say\", \"parameters\": {\"text\": \"a\"}}"],
                &["{\"tool_call_id\": \"0\", \"tool_name\": \"say\", \"parameters\": {}}"],
            ),
            (&named::NAMED, &["say[ARGS]{\"text\": \"a\"}"], &["say[ARGS]{}", "no[ARGS]{}"]),
            (
                &objects::HERMES,
                &["{\"name\": \"say\", \"arguments\": {\"text\": \"a\"}}"],
                &["{\"name\": \"say\", \"arguments\": {}}"],
            ),
        ];
        for (format, taken, refused) in cases {
            let grammar = of(format, std::slice::from_ref(&say)).unwrap();
            let whole = |text: &str| format!("{}{text}{}", format.section.first, format.section.last);
            for text in taken {
                assert!(takes(&grammar, &whole(text)), "{format:?}: {text}");
            }
            for text in refused {
                assert!(!takes(&grammar, &whole(text)), "{format:?}: {text}");
            }
        }
    }

    #[test]
    fn arguments_are_an_object_whether_a_schema_says_so_or_not() {
        let bare = tool(
            "f",
            &json!({ "properties": { "a": { "type": "integer" } }, "additionalProperties": false }),
        );
        let cases: [(&Format, &str, &str); 3] = [
            (&objects::HERMES, "\n{\"name\": \"f\", \"arguments\": ", "}\n</tool_call>"),
            (&named::NAMED, "f[ARGS]", ""),
            (
                &named::KIMI_K2,
                "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>",
                "<|tool_call_end|><|tool_calls_section_end|>",
            ),
        ];
        for (format, before, after) in cases {
            let grammar = of(format, std::slice::from_ref(&bare)).unwrap();
            let call = |arguments: &str| format!("{before}{arguments}{after}");
            assert!(takes(&grammar, &call("{\"a\": 1}")), "{format:?}");
            assert!(!takes(&grammar, &call("\"a\"")) && !takes(&grammar, &call("1")), "{format:?}");
        }
    }

    #[test]
    fn what_is_not_enforced_is_refused_by_name() {
        let with = |property: Value| json!({ "type": "object", "properties": { "a": property } });
        for (parameters, words) in [
            (with(json!({ "type": "string", "pattern": "^a$" })), "`pattern` of a text"),
            (with(json!({ "type": "string", "format": "date" })), "`format` of a text"),
            (with(json!({ "type": "string", "maxLength": 500 })), "lengths of a text over 100"),
            (with(json!({ "enum": ["a"], "minLength": 3 })), "keys beside `enum`"),
            (with(json!({ "enum": ["a</arg_value>b"] })), "has the mark that ends a value"),
            (with(json!({ "$ref": "#/$defs/none" })), "names `#/$defs/none`"),
            (with(json!({ "type": "object", "not": {} })), "`not` at `#/properties/a`"),
            (json!({ "type": "object", "properties": { "a b": {} } }), "a parameter called `a b`"),
            (
                json!({ "type": "object", "anyOf": [{ "required": ["a"] }, { "required": ["b"] }] }),
                "`anyOf` of a tool's parameters",
            ),
            (
                json!({ "$defs": { "a": { "$ref": "#/$defs/a" } }, "type": "object", "properties": { "a": { "$ref": "#/$defs/a" } }, "required": ["a"] }),
                "always requires itself",
            ),
        ] {
            let strict = Function { strict: true, ..tool("f", &parameters) };
            let error = of_calls(&glm::GLM, &[strict], true, true).unwrap_err();
            assert!(error.contains(words), "{parameters}: {error}");
        }
        // keywords that hold together are one text, which is written bare
        let together = with(json!({ "allOf": [{ "type": "string" }, { "maxLength": 2 }] }));
        let grammar = of(&glm::GLM, &[Function { strict: true, ..tool("f", &together) }]).unwrap();
        assert!(takes(&grammar, "f<arg_key>a</arg_key><arg_value>bc</arg_value></tool_call>"));
        assert!(!takes(&grammar, "f<arg_key>a</arg_key><arg_value>bcd</arg_value></tool_call>"));
        // an argument of a tool that is not strict may be anything
        let loose = tool("f", &with(json!({ "type": "string", "pattern": "^a$" })));
        let grammar = of(&glm::GLM, &[loose]).unwrap();
        assert!(takes(&grammar, "f<arg_key>a</arg_key><arg_value>b</arg_value></tool_call>"));
        assert!(!takes(&grammar, "g</tool_call>"));
    }

    #[test]
    fn several_calls_come_one_after_another_or_an_answer_that_keeps_a_schema() {
        let nothing = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        let tools = [tool("f", &nothing), tool("g", &nothing)];
        let call = |name: &str| format!("\n{{\"name\": \"{name}\", \"arguments\": {{}}}}\n</tool_call>");
        let two = format!("{}\n<tool_call>{}", call("f"), call("g"));
        let grammar = |lark: String| Grammar::new(lark, objects::HERMES.marks).unwrap();
        let several = grammar(of_calls(&objects::HERMES, &tools, true, true).unwrap());
        assert!(takes(&several, &two) && takes(&several, &call("f")));
        let one = grammar(of_calls(&objects::HERMES, &tools, false, true).unwrap());
        assert!(!takes(&one, &two) && takes(&one, &call("g")));
        let either = of_schema_or_calls(&json!({ "const": 7 }), &objects::HERMES, &tools, true).unwrap();
        let either = grammar(either);
        assert!(takes(&either, "7") && takes(&either, &format!("<tool_call>{two}")) && !takes(&either, "8"));
        // a model of harmony's kind names the tool in the head of its message
        let harmony = Grammar::new(of_calls(&harmony::HARMONY, &tools, true, true).unwrap(), &[]).unwrap();
        assert!(
            takes(&harmony, "g <|constrain|>json<|message|>{}")
                && !takes(&harmony, "h <|constrain|>json<|message|>{}")
        );
    }
}
