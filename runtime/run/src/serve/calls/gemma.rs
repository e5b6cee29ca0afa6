//! Gemma 4's calls: an object whose keys have no quotes, and whose texts stand between marks.
//!
//! ```text
//! <|tool_call>call:f{k:<|"|>value<|"|>,n:1}<tool_call|>
//! ```

use super::super::super::chat::conversation::Call;
use super::super::literal::{QUOTES, Reader};
use super::cursor::{Cursor, Stop};
use super::known::Known;
use super::{Apart, Format, Mark, Opening, Section, Shape, Text};

const TAGS: (&str, &str) = ("<|tool_call>", "<tool_call|>");

pub(super) const GEMMA_4: Format = Format {
    name: "Gemma 4",
    taught: |has| has("<|tool_call>call:"),
    openings: &[Opening { mark: Mark::Text(TAGS.0), read }],
    marks: &[TAGS.0, TAGS.1, QUOTES],
    section: Section {
        first: "",
        between: "<tool_call|><|tool_call>",
        last: TAGS.1,
        call: |name| {
            Shape::Apart(Apart {
                before: format!("call:{name}{{"),
                key: ("", [":"; 2]),
                after_value: |_| String::new(),
                between: ",",
                after: "}",
                text: Text::Quoted,
            })
        },
    },
};

fn read(tools: Known<'_>, text: &mut Cursor<'_>) -> Result<Vec<Call>, Stop> {
    let rest = text.rest();
    // a value may have the mark that ends all
    for (at, close) in rest.match_indices(TAGS.1) {
        if let Some(call) = call(tools, &rest[..at]) {
            text.skip(at + close.len());
            return Ok(vec![call]);
        }
    }
    let call = call(tools, rest).filter(|_| text.missing() == Stop::NoCall);
    text.skip(if call.is_some() { rest.len() } else { 0 });
    call.map(|call| vec![call]).ok_or(text.missing())
}

fn call(tools: Known<'_>, body: &str) -> Option<Call> {
    let mut reader = Reader::new(body.trim().strip_prefix("call:")?);
    let name = reader.name()?;
    if !reader.take("{") {
        return None;
    }
    let arguments = reader.fields(":", "}")?;
    reader.is_done().then(|| tools.call(name, arguments).ok())?
}
