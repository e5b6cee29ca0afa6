//! `MiniMax` M3's calls: a tag for each parameter and for everything inside of it, each with a mark before it.
//!
//! ```text
//! ]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">]<]minimax[>[<k>value]<]minimax[>[</k>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>
//! ```
//!
//! An object is tags in a tag, and a list is tags called `item`.

use serde_json::{Map, Value};

use super::super::super::chat::conversation::Call;
use super::super::tools::Function;
use super::super::typed;
use super::cursor::{Cursor, Stop};
use super::known::Known;
use super::{Apart, Format, Mark, Opening, Section, Shape, Text};

const MARK: &str = "]<]minimax[>[";
const CALL: (&str, &str) = ("]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>");
const INVOKE: (&str, &str) = ("]<]minimax[>[<invoke name=\"", "]<]minimax[>[</invoke>");
/// How deep tags may be.
const DEPTH_MAX: usize = 16;

pub(super) const MINIMAX_M3: Format = Format {
    name: "MiniMax M3",
    taught: |has| has(MARK),
    openings: &[Opening { mark: Mark::Text(CALL.0), read }],
    marks: &[MARK],
    section: Section {
        first: "\n",
        between: "\n",
        last: "\n]<]minimax[>[</tool_call>",
        call: |name| {
            Shape::Apart(Apart {
                before: format!("{}{name}\">", INVOKE.0),
                key: ("]<]minimax[>[<", [">"; 2]),
                after_value: |key| format!("{MARK}</{key}>"),
                between: "",
                after: INVOKE.1,
                text: Text::Bare,
            })
        },
    },
};

fn read(tools: Known<'_>, text: &mut Cursor<'_>) -> Result<Vec<Call>, Stop> {
    let mut calls = Vec::new();
    loop {
        text.space();
        if text.may(CALL.1)? || !calls.is_empty() && text.ends()? {
            return Ok(calls);
        }
        text.mark(INVOKE.0)?;
        let tool = tools.tool(text.until("\">")?)?;
        // all up to its end is there before anything of it is read
        let body = text.until(INVOKE.1)?;
        let mut arguments = Map::new();
        let mut body = Cursor::new(body, true);
        while let Some((key, written)) = element(&mut body)? {
            let value = argument(tool, key, written);
            arguments.insert(key.to_owned(), value);
        }
        calls.push(tools.call(&tool.name, arguments)?);
    }
}

/// The next tag, and what stands in it; none at the end.
fn element<'t>(text: &mut Cursor<'t>) -> Result<Option<(&'t str, &'t str)>, Stop> {
    text.space();
    if text.rest().is_empty() {
        return Ok(None);
    }
    text.mark(MARK)?;
    text.mark("<")?;
    let name = text.until(">")?;
    // tags of the same name may stand inside
    let (open, close) = (format!("{MARK}<{name}>"), format!("{MARK}</{name}>"));
    let (rest, mut depth, mut at) = (text.rest(), 1, 0);
    while depth > 0 {
        let end = rest[at..].find(&close).ok_or(Stop::NoCall)? + at;
        depth += rest[at..end].matches(&open).count();
        depth -= 1;
        at = end + close.len();
    }
    text.skip(at);
    Ok(Some((name, &rest[..at - close.len()])))
}

/// A parameter's value: as its schema says, text may have tags, too.
fn argument(tool: &Function, key: &str, written: &str) -> Value {
    let nothing = Map::new();
    let parameters = tool.parameters.as_ref().unwrap_or(&nothing);
    if typed::takes_tags(key, parameters)
        && let Some(value) = nested(written, 0)
    {
        return value;
    }
    tool.value(key, written)
}

/// An object or a list of tags; none if there are no tags alone.
fn nested(written: &str, depth: usize) -> Option<Value> {
    if !written.trim_start().starts_with(MARK) || depth > DEPTH_MAX {
        return None;
    }
    let mut text = Cursor::new(written, true);
    let mut all = Vec::new();
    while let Some((name, inner)) = element(&mut text).ok()? {
        let value = nested(inner, depth + 1).unwrap_or_else(|| typed::guessed(inner));
        all.push((name.to_owned(), value));
    }
    if all.iter().all(|(name, _)| name == "item") {
        return Some(all.into_iter().map(|(_, value)| value).collect());
    }
    Some(Value::Object(all.into_iter().collect()))
}
