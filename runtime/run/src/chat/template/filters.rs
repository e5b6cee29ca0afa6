//! The functions and filters of Jinja that Hugging Face's templates expect, as transformers sets them up.
//!
//! Lines of blocks alone leave no trace. There are `raise_exception`, `strftime_now`, a `tojson` that escapes nothing for HTML, and the
//! methods of Python's strings, lists and dictionaries.

use std::sync::Arc;

use jiff::Zoned;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize as _;
use serde_json::Value as Json;
use serde_json::ser::{Formatter, Serializer};

use super::super::guard::StandIns;
use super::{Raised, TemplateError};

/// The name of the template in its environment.
pub(super) const NAME: &str = "template";
/// Bytes of a step's work.
const FUEL_BYTES: u64 = 64;

/// The functions and filters that Hugging Face's templates expect.
pub(super) fn environment(source: &str, now: Zoned) -> Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_filter("string", to_text);
    environment.add_filter("indent", indent);
    // as in Python: `none` is not iterable, and its length is an error
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: &Value| {
        value.is_undefined() || matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    environment.add_function("raise_exception", |words: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, words.clone()).with_source(Raised(words)))
    });
    environment.add_function("strftime_now", move |format: String| {
        jiff::fmt::strtime::format(&format, &now)
            .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
    });
    // as Jinja's own reader does
    let lines = source.replace("\r\n", "\n").replace('\r', "\n");
    environment.add_template_owned(NAME, without_generation_marks(&lines))?;
    Ok(environment)
}

/// Adds the filter `tojson`. Stand-ins in texts are written as themselves, and sorted and escaped as the characters that they stand for.
pub(super) fn add_json(environment: &mut Environment<'static>, stand_ins: &Arc<StandIns>) {
    let stand_ins = Arc::clone(stand_ins);
    environment.add_filter("tojson", move |state: &State<'_, '_>, value: &Value, options: Kwargs| {
        to_json(state, value, &options, &stand_ins)
    });
}

/// `{% generation %}` marks what transformers trains on and says nothing here; `{% if true %}` is a block that says nothing.
pub(super) fn without_generation_marks(source: &str) -> String {
    let (mut text, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(start) = rest.find("{%") {
        let inside = start + 2;
        let end = rest[inside..].find("%}").map_or(rest.len(), |end| inside + end);
        let word = rest[inside..end].trim_matches(|c: char| c.is_whitespace() || "+-".contains(c));
        text.push_str(&rest[..start]);
        let mark = &rest[start..end];
        match word {
            "generation" => text.push_str(&mark.replace(word, "if true")),
            "endgeneration" => text.push_str(&mark.replace(word, "endif")),
            _ => text.push_str(mark),
        }
        rest = &rest[end..];
    }
    text + rest
}

/// Takes the work of a text from what there may be.
fn pay(state: &State<'_, '_>, text: &str) -> Result<(), Error> {
    state.consume_fuel(text.len() as u64 / FUEL_BYTES)
}

/// As Python's `str` writes it.
fn to_text(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    let text = match (value.kind(), serde_json::to_value(value)) {
        (ValueKind::Map | ValueKind::Seq, Ok(json)) => python(&json),
        _ => value.to_string(),
    };
    pay(state, &text).map(|()| text)
}

/// The ends of lines that Python's `splitlines` knows; `\r\n` is one.
const LINE_ENDS: [char; 10] =
    ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];

/// Jinja's `indent(width=4, first=false, blank=false)`. Unlike minijinja's it keeps a line's end at the end of the text.
fn indent(state: &State<'_, '_>, text: String, options: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let options = options.into_values();
    let (width, first, blank, options): (Option<Value>, Option<bool>, Option<bool>, Kwargs) =
        from_args(&options)?;
    let width = width.or(options.get("width")?).unwrap_or_else(|| Value::from(4));
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let indent = match (width.as_str(), usize::try_from(width.clone())) {
        (Some(indent), _) => indent.to_owned(),
        (None, width) => " ".repeat(width?.min(INDENT_MAX)),
    };
    let text = text.replace("\r\n", "\n");
    let indented = |(at, line): (usize, &str)| {
        let is_indented = if at == 0 { first } else { blank || !line.is_empty() };
        format!("{}{line}", if is_indented { indent.as_str() } else { "" })
    };
    let lines: Vec<String> = text.split(LINE_ENDS).enumerate().map(indented).collect();
    let text = lines.join("\n");
    pay(state, &text).map(|()| text)
}

/// As `json.dumps` writes it with the options of transformers' `tojson`.
fn to_json(
    state: &State<'_, '_>,
    value: &Value,
    options: &Kwargs,
    stand_ins: &StandIns,
) -> Result<String, Error> {
    let wrong = |what: String| Error::new(ErrorKind::InvalidOperation, format!("tojson: {what}"));
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }, ": "),
        Some([item, key]) => (item.as_str(), key.as_str()),
        Some(others) => return Err(wrong(format!("separators has {} texts; it has 2", others.len()))),
    };
    let indent = indent.map(|spaces| spaces.min(INDENT_MAX));
    let layout = Layout { item, key, indent, ascii: ascii == Some(true), stand_ins, level: 0, filled: false };
    let mut json = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut json, layout);
    let written = if sort_keys == Some(true) {
        serde_json::to_value(value).and_then(|value| sorted(value, stand_ins).serialize(&mut serializer))
    } else {
        value.serialize(&mut serializer)
    };
    let unwritable =
        |error: &dyn std::fmt::Display| Error::new(ErrorKind::BadSerialization, error.to_string());
    written.map_err(|error| unwritable(&error))?;
    let json = String::from_utf8(json).map_err(|error| unwritable(&error))?;
    pay(state, &json).map(|()| json)
}

/// Spaces of an indent, at most.
const INDENT_MAX: usize = 16;

/// A value whose objects have their keys in order.
fn sorted(value: Json, stand_ins: &StandIns) -> Json {
    match value {
        Json::Array(values) => values.into_iter().map(|value| sorted(value, stand_ins)).collect(),
        Json::Object(values) => {
            let mut pairs: Vec<(String, Json)> = values.into_iter().collect();
            pairs.sort_by_cached_key(|(key, _)| stand_ins.put_back(key).0);
            pairs.into_iter().map(|(key, value)| (key, sorted(value, stand_ins))).collect()
        }
        value => value,
    }
}

/// An object as `json.dumps` writes it.
pub(super) fn dumped(object: &serde_json::Map<String, Json>) -> String {
    let mut json = Vec::new();
    let stand_ins = StandIns::default();
    let layout = Layout {
        item: ", ",
        key: ": ",
        indent: None,
        ascii: false,
        stand_ins: &stand_ins,
        level: 0,
        filled: false,
    };
    let written = object.serialize(&mut Serializer::with_formatter(&mut json, layout));
    debug_assert!(written.is_ok(), "an object of JSON is JSON");
    String::from_utf8_lossy(&json).into_owned()
}

/// A value as Python shows it, with the quotes that it takes.
pub(super) fn python(value: &Json) -> String {
    let all = |texts: Vec<String>| texts.join(", ");
    match value {
        Json::Null => "None".to_owned(),
        Json::Bool(true) => "True".to_owned(),
        Json::Bool(false) => "False".to_owned(),
        Json::Number(number) => number.to_string(),
        Json::String(text) => {
            let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
            let mut shown = String::from(quote);
            for c in text.chars() {
                match c {
                    '\n' => shown.push_str("\\n"),
                    '\r' => shown.push_str("\\r"),
                    '\t' => shown.push_str("\\t"),
                    '\\' => shown.push_str("\\\\"),
                    c if c == quote => shown.extend(['\\', c]),
                    c if c.is_ascii_control() => {
                        shown.extend(['\\', 'x'].into_iter().chain(format!("{:02x}", c as u32).chars()));
                    }
                    c => shown.push(c),
                }
            }
            shown.push(quote);
            shown
        }
        Json::Array(values) => format!("[{}]", all(values.iter().map(python).collect())),
        Json::Object(values) => {
            let pair = |(key, value): (&String, &Json)| {
                format!("{}: {}", python(&Json::from(key.as_str())), python(value))
            };
            format!("{{{}}}", all(values.iter().map(pair).collect()))
        }
    }
}

/// JSON in the layout of Python's `json.dumps`.
struct Layout<'l> {
    /// Texts between two items, and between a key and its value.
    item: &'l str,
    key: &'l str,
    /// Spaces of a level, where each item has a line of its own.
    indent: Option<usize>,
    /// Whether characters beyond ASCII are escaped.
    ascii: bool,
    stand_ins: &'l StandIns,
    level: usize,
    /// Whether the list or object at hand has an item.
    filled: bool,
}

type Written = std::io::Result<()>;

impl Layout<'_> {
    fn line<W: ?Sized + std::io::Write>(&self, out: &mut W) -> Written {
        let Some(indent) = self.indent else { return Ok(()) };
        write!(out, "\n{:1$}", "", indent * self.level)
    }

    fn begin<W: ?Sized + std::io::Write>(&mut self, out: &mut W, mark: &[u8]) -> Written {
        (self.level, self.filled) = (self.level + 1, false);
        out.write_all(mark)
    }

    fn end<W: ?Sized + std::io::Write>(&mut self, out: &mut W, mark: &[u8]) -> Written {
        self.level -= 1;
        if self.filled {
            self.line(out)?;
        }
        out.write_all(mark)
    }

    fn next<W: ?Sized + std::io::Write>(&self, out: &mut W, first: bool) -> Written {
        if !first {
            out.write_all(self.item.as_bytes())?;
        }
        self.line(out)
    }
}

impl Formatter for Layout<'_> {
    fn begin_array<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> Written {
        self.begin(out, b"[")
    }

    fn end_array<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> Written {
        self.end(out, b"]")
    }

    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W, first: bool) -> Written {
        self.next(out, first)
    }

    fn end_array_value<W: ?Sized + std::io::Write>(&mut self, _: &mut W) -> Written {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> Written {
        self.begin(out, b"{")
    }

    fn end_object<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> Written {
        self.end(out, b"}")
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, out: &mut W, first: bool) -> Written {
        self.next(out, first)
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> Written {
        out.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + std::io::Write>(&mut self, _: &mut W) -> Written {
        self.filled = true;
        Ok(())
    }

    fn write_string_fragment<W: ?Sized + std::io::Write>(&mut self, out: &mut W, text: &str) -> Written {
        if !self.ascii {
            return out.write_all(text.as_bytes());
        }
        for c in text.chars() {
            let meant = self.stand_ins.original(c).unwrap_or(c);
            if meant.is_ascii() && meant != '\u{7f}' {
                write!(out, "{c}")?;
            } else {
                meant.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(out, "\\u{unit:04x}"))?;
            }
        }
        Ok(())
    }
}
