//! LFM2's calls: as Python calls functions.
//!
//! ```text
//! <|tool_call_start|>[f(k="value", n=1)]<|tool_call_end|>
//! ```

use super::super::super::chat::conversation::Call;
use super::super::literal::Reader;
use super::cursor::{Cursor, Stop};
use super::known::Known;
use super::{Apart, Format, Mark, Opening, Section, Shape, Text};

const TAGS: (&str, &str) = ("<|tool_call_start|>", "<|tool_call_end|>");

pub(super) const LFM2: Format = Format {
    name: "LFM2",
    taught: |has| has(TAGS.0) || has("List of tools: [") || has("List of tools: <|tool_list_start|>["),
    openings: &[Opening { mark: Mark::Text(TAGS.0), read }],
    marks: &[TAGS.0, TAGS.1],
    section: Section {
        first: "[",
        between: ", ",
        last: "]<|tool_call_end|>",
        call: |name| {
            Shape::Apart(Apart {
                before: format!("{name}("),
                key: ("", ["="; 2]),
                after_value: |_| String::new(),
                between: ", ",
                after: ")",
                text: Text::Json,
            })
        },
    },
};

fn read(tools: Known<'_>, text: &mut Cursor<'_>) -> Result<Vec<Call>, Stop> {
    let rest = text.rest();
    // a value may have the mark that ends all
    for (at, close) in rest.match_indices(TAGS.1) {
        if let Some(calls) = calls(tools, &rest[..at]) {
            text.skip(at + close.len());
            return Ok(calls);
        }
    }
    let calls = calls(tools, rest).filter(|_| text.missing() == Stop::NoCall);
    text.skip(if calls.is_some() { rest.len() } else { 0 });
    calls.ok_or(text.missing())
}

/// Calls, in a list or not.
fn calls(tools: Known<'_>, body: &str) -> Option<Vec<Call>> {
    let mut reader = Reader::new(body);
    let listed = reader.take("[");
    let mut calls = Vec::new();
    loop {
        let name = reader.name()?;
        if !reader.take("(") {
            return None;
        }
        let arguments = reader.fields("=", ")")?;
        calls.push(tools.call(name, arguments).ok()?);
        let more = reader.take(",");
        if listed && reader.take("]") || !more {
            return reader.is_done().then_some(calls);
        }
    }
}
