//! Values as models write them outside JSON: in Python's words, or with quotes that are a token of their own.
//!
//! ```text
//! Python   'it is', "so", True, None, [1, 2.5], {'a': 1}
//! Gemma    <|"|>it is "so"<|"|>, true, [1,2.5], {a:1}
//! ```
//!
//! JSON is read, too. Nothing is evaluated: what is no such value is none.

use serde_json::{Map, Number, Value};

/// Gemma's quotes.
pub(super) const QUOTES: &str = "<|\"|>";
/// How deep a value may be.
const DEPTH_MAX: usize = 64;
/// Characters that may follow a value, after spaces.
const FOLLOWS: [char; 5] = [',', ')', ']', '}', ':'];

/// Reads values from the beginning of a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { rest: text }
    }

    /// Whether nothing is left but spaces.
    pub(super) fn is_done(&self) -> bool {
        self.rest.trim_start().is_empty()
    }

    /// Takes a mark after spaces, if it is there.
    pub(super) fn take(&mut self, mark: &str) -> bool {
        match self.rest.trim_start().strip_prefix(mark) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// A name without quotes.
    pub(super) fn name(&mut self) -> Option<&'t str> {
        let text = self.rest.trim_start();
        let ends = |c: char| !(c.is_alphanumeric() || "_-.$".contains(c));
        let (name, rest) = text.split_at(text.find(ends).unwrap_or(text.len()));
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    /// The whole text as a value.
    pub(super) fn whole(mut self) -> Option<Value> {
        let value = self.value(0)?;
        self.is_done().then_some(value)
    }

    /// Names with values up to a mark that ends them; a repeated name is refused.
    pub(super) fn fields(&mut self, between: &str, end: &str) -> Option<Map<String, Value>> {
        self.fields_at(between, end, 0)
    }

    fn fields_at(&mut self, between: &str, end: &str, depth: usize) -> Option<Map<String, Value>> {
        let mut fields = Map::new();
        while !self.take(end) {
            let key = match self.quoted() {
                Some(key) => key,
                None => self.name()?.to_owned(),
            };
            if !self.take(between) {
                return None;
            }
            let value = self.value(depth + 1)?;
            if fields.insert(key, value).is_some() {
                return None;
            }
            if !self.take(",") && !self.rest.trim_start().starts_with(end) {
                return None;
            }
        }
        Some(fields)
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > DEPTH_MAX {
            return None;
        }
        if let Some(text) = self.quoted() {
            return Some(Value::String(text));
        }
        for (begin, end) in [("[", "]"), ("(", ")")] {
            if self.take(begin) {
                let mut items = Vec::new();
                while !self.take(end) {
                    items.push(self.value(depth + 1)?);
                    if !self.take(",") && !self.rest.trim_start().starts_with(end) {
                        return None;
                    }
                }
                return Some(Value::Array(items));
            }
        }
        if self.take("{") {
            return self.fields_at(":", "}", depth).map(Value::Object);
        }
        let text = self.rest.trim_start();
        let (word, rest) = text.split_at(text.find(FOLLOWS).unwrap_or(text.len()));
        self.rest = rest;
        match word.trim_end() {
            "true" | "True" => Some(Value::Bool(true)),
            "false" | "False" => Some(Value::Bool(false)),
            "null" | "None" => Some(Value::Null),
            number => number.parse::<Number>().ok().map(Value::Number),
        }
    }

    /// A text in quotes; nothing is taken if there is none.
    fn quoted(&mut self) -> Option<String> {
        let text = self.rest.trim_start();
        if let Some(said) = text.strip_prefix(QUOTES) {
            let (said, rest) = said.split_once(QUOTES)?;
            self.rest = rest;
            return Some(said.to_owned());
        }
        let quote = text.chars().next().filter(|&c| c == '"' || c == '\'')?;
        let (said, rest) = unescaped(&text[1..], quote)?;
        self.rest = rest;
        Some(said)
    }
}

/// A value as Python writes it, with its texts in JSON's quotes.
pub(super) fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(_) | Value::String(_) => value.to_string(),
        Value::Array(items) => format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let field =
                |(key, value): (&String, &Value)| format!("{}: {}", Value::from(key.as_str()), python(value));
            format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
        }
    }
}

/// The text up to its closing quote, and what comes after it. Templates show models texts whose own quotes are not escaped: a quote
/// ends the text where what may follow a value comes next.
fn unescaped(text: &str, quote: char) -> Option<(String, &str)> {
    let (mut said, mut letters) = (String::new(), text.char_indices());
    while let Some((at, c)) = letters.next() {
        if c == quote {
            let rest = &text[at + 1..];
            let next = rest.trim_start().chars().next();
            if next.is_none_or(|next| FOLLOWS.contains(&next)) {
                return Some((said, rest));
            }
        }
        if c != '\\' {
            said.push(c);
            continue;
        }
        let (at, escaped) = letters.next()?;
        match escaped {
            'n' => said.push('\n'),
            't' => said.push('\t'),
            'r' => said.push('\r'),
            'b' => said.push('\u{8}'),
            'f' => said.push('\u{c}'),
            '\\' | '\'' | '"' | '/' => said.push(escaped),
            'u' | 'x' => {
                let digits = if escaped == 'u' { 4 } else { 2 };
                let unit = |from: usize| {
                    let digits = text.get(from..from + digits)?;
                    digits
                        .bytes()
                        .all(|b| b.is_ascii_hexdigit())
                        .then(|| u16::from_str_radix(digits, 16).ok())?
                };
                let first = unit(at + 1)?;
                // a character outside the first plane is written as two
                let second = (text.get(at + 1 + digits..)?.starts_with("\\u")).then(|| unit(at + 3 + digits));
                let pair = second.flatten().filter(|_| (0xd800..0xdc00).contains(&first));
                let units: Vec<u16> = [first].into_iter().chain(pair).collect();
                said.push_str(&String::from_utf16_lossy(&units));
                let taken = digits + if pair.is_some() { 2 + digits } else { 0 };
                letters.nth(taken - 1)?;
            }
            // as Python leaves it
            other => said.extend(['\\', other]),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_python_and_gemma_write_is_read() {
        for (text, value) in [
            ("'it''", json!("it'")),
            ("'it's'", json!("it's")),
            (r#""say \"so\"\n""#, json!("say \"so\"\n")),
            (r"'\u00e9\x41\ud83e\udd80\d'", json!("\u{e9}A\u{1f980}\\d")),
            ("True", json!(true)),
            (" None ", json!(null)),
            ("[1, -2.5, 'a', (3,), [],]", json!([1, -2.5, "a", [3], []])),
            ("{'a': {'b': False}, \"c\": 1e3}", json!({ "a": { "b": false }, "c": 1e3 })),
            ("<|\"|>say \"so\", or 'no'<|\"|>", json!("say \"so\", or 'no'")),
            ("{a:[1,<|\"|>x<|\"|>],b-c:true}", json!({ "a": [1, "x"], "b-c": true })),
        ] {
            assert_eq!(Reader::new(text).whole(), Some(value), "{text}");
        }
    }

    #[test]
    fn what_is_no_value_is_none() {
        let deep = "[".repeat(100) + &"]".repeat(100);
        for text in [
            "",
            "'a",
            "[1",
            "{a}",
            "{a:1 b:2}",
            "{a:1,a:2}",
            "f(1)",
            "1 2",
            "[1 2]",
            "nan",
            "<|\"|>a",
            "'\\u12'",
            &deep,
        ] {
            assert_eq!(Reader::new(text).whole(), None, "{text}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z_]{1,4}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn json_and_python_are_read_as_the_value_that_was_written(value in value()) {
            let text = value.to_string();
            prop_assert_eq!(Reader::new(&text).whole(), Some(value.clone()));
            prop_assert_eq!(Reader::new(&python(&value)).whole(), Some(value));
        }

        #[test]
        fn nothing_breaks_it(text in "[\\[\\]{}(),:'\"\\\\ux0-9a-f<|> \u{e9}]{0,40}") {
            let _any = Reader::new(&text).whole();
        }
    }
}
