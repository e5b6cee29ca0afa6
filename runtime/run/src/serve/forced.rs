//! The grammar of a call that must be, in the format that the model's template teaches it.
//!
//! Where a format has objects, the schema of a tool's parameters is embedded whole. Where each argument stands by itself, it is a
//! text up to the mark that ends it, if its schema says that it is one, and JSON otherwise; what a schema says of all arguments
//! together, or of a text's form, is refused by name there.

use serde_json::{Map, Value, json};

use super::calls::Format;
use super::literal::QUOTES;
use super::schema::{self, NOTES};
use super::tools::Function;
use super::typed::referred;

/// The longest text whose length is enforced: each character is a state of the grammar's.
const LENGTH_MAX: u64 = 100;
/// How far references are followed.
const DEPTH_MAX: usize = 8;

/// A Lark grammar of a call of one of these tools, of which there is one, after the format's prefix.
///
/// # Errors
/// A sentence, if it cannot be enforced.
pub(super) fn grammar(format: Format, tools: &[&Function]) -> Result<String, String> {
    let mut rules = Rules::default();
    let call = |tool: &&Function| rules.call(format, tool);
    let calls: Vec<String> = tools.iter().map(call).collect::<Result<_, _>>()?;
    if format == Format::Harmony && calls.len() > 1 {
        return Err(
            "`required` of several tools is not implemented for this model's format; name one".to_owned()
        );
    }
    Ok(format!("start: {}{}", calls.join(" | "), rules.text))
}

/// How a format writes arguments that stand by themselves.
struct Written {
    before: String,
    key: (&'static str, &'static str),
    after_value: &'static str,
    between: &'static str,
    after: &'static str,
    /// How a text is written.
    text: Text,
}

/// How a format writes a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Text {
    /// As it is: any value can be one.
    Bare,
    Quoted,
    Json,
}

impl Written {
    fn of(format: Format, name: &str) -> Option<Self> {
        Some(match format {
            Format::Parameters => Self {
                before: format!("<function={name}>\n"),
                key: ("<parameter=", ">\n"),
                after_value: "\n</parameter>\n",
                between: "",
                after: "</function>",
                text: Text::Bare,
            },
            Format::Glm => Self {
                before: name.to_owned(),
                key: ("<arg_key>", "</arg_key><arg_value>"),
                after_value: "</arg_value>",
                between: "",
                after: "</tool_call>",
                text: Text::Bare,
            },
            Format::Python => Self {
                before: format!("{name}("),
                key: ("", "="),
                after_value: "",
                between: ", ",
                after: ")",
                text: Text::Json,
            },
            Format::Gemma => Self {
                before: format!("call:{name}{{"),
                key: ("", ":"),
                after_value: "",
                between: ",",
                after: "}",
                text: Text::Quoted,
            },
            Format::Hermes
            | Format::Granite
            | Format::Nemotron
            | Format::Mistral
            | Format::Named
            | Format::Llama
            | Format::Harmony => return None,
        })
    }

    /// The mark that ends a text.
    fn end(&self) -> &'static str {
        if self.text == Text::Quoted { QUOTES } else { self.after_value }
    }
}

/// Values that an argument may have.
#[derive(Debug, PartialEq)]
enum Kind {
    /// A text of any or of bounded length.
    Text(Option<(u64, Option<u64>)>),
    /// One of these texts.
    Words(Vec<String>),
    /// What a schema says, as JSON.
    Json(Value),
}

/// Rules of a grammar, each in a line.
#[derive(Default)]
struct Rules {
    text: String,
    count: usize,
}

/// A text as Lark writes it.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

impl Rules {
    /// Adds a rule; its name. `lazy` ones end as soon as they can.
    fn add(&mut self, rule: &str, lazy: bool) -> String {
        let name = format!("r{}", self.count);
        self.count += 1;
        self.text += &format!("\n{name}{}: {rule}", if lazy { "[lazy]" } else { "" });
        name
    }

    /// The rule of a call.
    fn call(&mut self, format: Format, tool: &Function) -> Result<String, String> {
        let parameters = tool.schema();
        if let Some(written) = Written::of(format, &tool.name) {
            return self.apart(&written, &parameters);
        }
        // what a call takes is an object, said or not
        let mut parameters = parameters;
        if !schema::ALONE.iter().any(|alone| parameters.contains_key(*alone)) {
            parameters.entry("type").or_insert_with(|| json!("object"));
        }
        let arguments = self.add(&schema::grammar(&Value::Object(parameters))?, false);
        let (before, after) = match format {
            Format::Harmony => return Ok(arguments),
            Format::Named => (format!("{}[ARGS]", tool.name), ""),
            _ => (format!("{{\"name\": \"{}\", \"{}\": ", tool.name, format.arguments()), "}"),
        };
        Ok(self.add(&format!("{} {arguments} {}", quoted(&before), quoted(after)), false))
    }

    /// The rule of a call whose arguments stand by themselves, in the order of its schema.
    fn apart(&mut self, written: &Written, parameters: &Map<String, Value>) -> Result<String, String> {
        let known = ["type", "properties", "required", "additionalProperties"];
        let other = |key: &&String| !known.contains(&key.as_str()) && !NOTES.contains(&key.as_str());
        if let Some(key) = parameters.keys().find(other) {
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
        let mut all: Vec<(&str, Value)> =
            properties.iter().map(|(name, schema)| (name.as_str(), schema.clone())).collect();
        all.extend(
            required.iter().filter(|name| !properties.contains_key(**name)).map(|name| (*name, json!({}))),
        );
        // from the last one: what may follow an argument, and what may come where there was none yet
        let mut more = self.add(&quoted(written.after), false);
        let mut first = more.clone();
        for (name, schema) in all.iter().rev() {
            let argument = self.argument(written, name, schema, parameters)?;
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
        written: &Written,
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
        let mut values = Vec::with_capacity(found.len());
        for kind in found {
            values.push(self.value(written, kind, parameters)?);
        }
        let (before, after) = written.key;
        let key = quoted(&format!("{before}{name}{after}"));
        Ok(self.add(&format!("{key} ({})", values.join(" | ")), false))
    }

    /// A value with the mark that ends it.
    fn value(
        &mut self,
        written: &Written,
        kind: Kind,
        parameters: &Map<String, Value>,
    ) -> Result<String, String> {
        let (quote, end) = (if written.text == Text::Quoted { QUOTES } else { "" }, written.end());
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
                format!("{json} {}", quoted(written.after_value))
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

    use super::super::calls::{Calls, Piece};
    use super::super::grammar::Grammar;
    use super::super::grammar::tests::{takes, tokenizer, written};
    use super::*;

    const FORMATS: [Format; 11] = [
        Format::Hermes,
        Format::Granite,
        Format::Nemotron,
        Format::Mistral,
        Format::Named,
        Format::Llama,
        Format::Harmony,
        Format::Parameters,
        Format::Glm,
        Format::Python,
        Format::Gemma,
    ];

    fn tool(name: &str, parameters: &Value) -> Function {
        Function {
            name: name.to_owned(),
            description: None,
            parameters: parameters.as_object().cloned(),
            strict: None,
        }
    }

    fn of(format: Format, tools: &[&Function]) -> Result<Grammar, String> {
        Grammar::new(grammar(format, tools)?, format.inner_marks())
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

    /// Whatever a model wants to write, in every format: one call of a tool that there is, with arguments that its schema allows.
    #[test]
    fn a_call_that_must_be_is_one_and_its_arguments_are_what_the_schema_says() {
        let tokenizer = tokenizer();
        let nothing = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        let (journey, now) = (journey(), tool("now", &nothing));
        for format in FORMATS {
            let asked = if format == Format::Harmony { vec![&journey] } else { vec![&journey, &now] };
            let grammar = of(format, &asked).unwrap_or_else(|error| panic!("{format:?}: {error}"));
            let tools: std::sync::Arc<[Function]> = asked.iter().map(|&tool| tool.clone()).collect();
            let mut journeys = 0;
            for seed in 0..24 {
                let (text, _) = written(&grammar, &tokenizer, seed, false).expect("it ends");
                let forced = Some("journey".to_owned());
                let mut calls = Calls::new(format, std::sync::Arc::clone(&tools), forced);
                assert_eq!(calls.read(super::super::super::reasoning::Channel::Answer, &text), []);
                let pieces = calls.finish();
                let [Piece::Call(call)] = &pieces[..] else { panic!("{format:?}: {text}: {pieces:?}") };
                let arguments = Value::Object(call.arguments.clone());
                if call.name == "now" {
                    continue;
                }
                journeys += 1;
                let told: Journey = serde_json::from_value(arguments.clone())
                    .unwrap_or_else(|error| panic!("{format:?}: {text}: {arguments}: {error}"));
                assert!(
                    (1..=9).contains(&told.city.chars().count()) && (1..=7).contains(&told.days),
                    "{arguments}"
                );
                // that each says whether `at` holds, its type asks
                assert!(told.stops.len() < 3, "{arguments}");
                assert!(matches!(told.unit, None | Some(Unit::C | Unit::F)));
                match told.note {
                    Some(Note::Text(text)) => assert!(text.chars().count() < 4, "{arguments}"),
                    Some(Note::Number(number)) => assert!((0..=9).contains(&number), "{arguments}"),
                    None | Some(Note::Nothing(())) => {}
                }
            }
            assert!(journeys > 2, "{format:?}");
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
        for (format, taken, refused) in [
            (
                Format::Parameters,
                &[
                    "<function=say>\n<parameter=text>\nif a < b:\n\n  </parameter> c\n</parameter>\n<parameter=times>\n3\n</parameter>\n</function>",
                    "<function=say>\n<parameter=text>\n\n</parameter>\n<parameter=to>\na\n</parameter>\n</function>",
                ][..],
                &[
                    "<function=say>\n</function>",
                    "<function=say>\n<parameter=text>\na\n</parameter>\n<parameter=times>\nx\n</parameter>\n</function>",
                    "<function=no>\n</function>",
                ][..],
            ),
            (
                Format::Glm,
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
                Format::Python,
                &["say(text=\"it's \\\"so\\\"\", times=3)", "say(text=\"\", to=\"a\")"],
                &["say()", "say(times=3)", "say(text=\"a\" times=3)", "say(text=a)", "say(text=\"a\",)"],
            ),
            (
                Format::Gemma,
                &[
                    "call:say{text:<|\"|>it's \"so\", {x}<|\"|>,times:3}",
                    "call:say{text:<|\"|><|\"|>,to:<|\"|>a<|\"|>}",
                ],
                &["call:say{}", "call:say{text:\"a\"}", "call:say{text:<|\"|>a<|\"|>,to:a}", "say{}"],
            ),
            (Format::Named, &["say[ARGS]{\"text\": \"a\"}"], &["say[ARGS]{}", "no[ARGS]{}"]),
            (
                Format::Hermes,
                &["{\"name\": \"say\", \"arguments\": {\"text\": \"a\"}}"],
                &["{\"name\": \"say\", \"arguments\": {}}"],
            ),
        ] {
            let grammar = of(format, &[&say]).unwrap();
            for text in taken {
                assert!(takes(&grammar, text), "{format:?}: {text}");
            }
            for text in refused {
                assert!(!takes(&grammar, text), "{format:?}: {text}");
            }
        }
    }

    #[test]
    fn arguments_are_an_object_whether_a_schema_says_so_or_not() {
        let bare = tool(
            "f",
            &json!({ "properties": { "a": { "type": "integer" } }, "additionalProperties": false }),
        );
        for format in [Format::Hermes, Format::Named] {
            let grammar = of(format, &[&bare]).unwrap();
            let call = |arguments: &str| match format {
                Format::Named => format!("f[ARGS]{arguments}"),
                _ => format!("{{\"name\": \"f\", \"arguments\": {arguments}}}"),
            };
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
            (with(json!({ "$ref": "#/$defs/none" })), "there is no `#/$defs/none`"),
            (with(json!({ "type": "object", "allOf": [{}, {}] })), "`type` beside `allOf`"),
            (json!({ "type": "object", "properties": { "a b": {} } }), "a parameter called `a b`"),
            (json!({ "type": "object", "anyOf": [{}] }), "`anyOf` of a tool's parameters"),
            (
                json!({ "$defs": { "a": { "$ref": "#/$defs/a" } }, "properties": { "a": { "$ref": "#/$defs/a" } } }),
                "goes deeper than 8",
            ),
        ] {
            let error = grammar(Format::Glm, &[&tool("f", &parameters)]).unwrap_err();
            assert!(error.contains(words), "{parameters}: {error}");
        }
        let nothing = json!({ "type": "object" });
        let (f, g) = (tool("f", &nothing), tool("g", &nothing));
        assert!(grammar(Format::Harmony, &[&f, &g]).unwrap_err().contains("`required` of several tools"));
    }
}
