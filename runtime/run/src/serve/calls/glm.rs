//! GLM's calls, and the calls of models that learned from it: a name, and tags for keys and values.
//!
//! ```text
//! GLM, Spark, Ling   <tool_call>f<arg_key>k</arg_key><arg_value>value</arg_value></tool_call>, with lines between them or not
//! Hy3                <tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>k</arg_key>\n<arg_value>value</arg_value>\n</tool_call>\n</tool_calls>
//! ```
//!
//! Hy3's tags have `:opensource` before their ends.

use serde_json::Map;

use super::super::super::chat::conversation::Call;
use super::cursor::{Cursor, Stop};
use super::known::Known;
use super::{Apart, Format, Mark, Opening, Section, Shape, Text};

/// Tags of a format.
struct Tags {
    key: (&'static str, &'static str),
    value: (&'static str, &'static str),
    /// Text after the name, perhaps empty.
    named: &'static str,
    close: &'static str,
}

const TAGS: Tags = Tags {
    key: ("<arg_key>", "</arg_key>"),
    value: ("<arg_value>", "</arg_value>"),
    named: "",
    close: "</tool_call>",
};
const HY: Tags = Tags {
    key: ("<arg_key:opensource>", "</arg_key:opensource>"),
    value: ("<arg_value:opensource>", "</arg_value:opensource>"),
    named: "<tool_sep:opensource>",
    close: "</tool_call:opensource>",
};

pub(super) const GLM: Format = Format {
    name: "GLM",
    taught: |has| has("<tool_call>") && has("<arg_key>") && has("<arg_value>"),
    openings: &[Opening {
        mark: Mark::Text("<tool_call>"),
        read: |tools, text| Ok(vec![call(tools, text, &TAGS)?]),
    }],
    marks: &["<tool_call>", "</tool_call>", TAGS.key.0, TAGS.key.1, TAGS.value.0, TAGS.value.1],
    section: Section {
        first: "",
        between: "<tool_call>",
        last: "",
        call: |name| {
            Shape::Apart(Apart {
                before: name.to_owned(),
                key: ("<arg_key>", ["</arg_key><arg_value>"; 2]),
                after_value: |_| "</arg_value>".to_owned(),
                between: "",
                after: "</tool_call>",
                text: Text::Bare,
            })
        },
    },
};
pub(super) const HY3: Format = Format {
    name: "Hy3",
    taught: |has| has("<tool_call{}>") && has(":opensource"),
    openings: &[Opening { mark: Mark::Text("<tool_calls:opensource>"), read: hy }],
    marks: &[
        "<tool_calls:opensource>",
        "</tool_calls:opensource>",
        "<tool_call:opensource>",
        HY.close,
        HY.named,
        HY.key.0,
        HY.key.1,
        HY.value.0,
        HY.value.1,
    ],
    section: Section {
        first: "\n<tool_call:opensource>",
        between: "\n<tool_call:opensource>",
        last: "\n</tool_calls:opensource>",
        call: |name| {
            Shape::Apart(Apart {
                before: format!("{name}<tool_sep:opensource>\n"),
                key: ("<arg_key:opensource>", ["</arg_key:opensource>\n<arg_value:opensource>"; 2]),
                after_value: |_| "</arg_value:opensource>\n".to_owned(),
                between: "",
                after: "</tool_call:opensource>",
                text: Text::Bare,
            })
        },
    },
};

/// A call up to what ends it.
fn call(tools: Known<'_>, text: &mut Cursor<'_>, tags: &Tags) -> Result<Call, Stop> {
    text.space();
    let name = text.name()?;
    text.may(tags.named)?;
    let (tool, mut arguments) = (tools.tool(name)?, Map::new());
    loop {
        text.space();
        if !text.may(tags.key.0)? {
            text.close(tags.close)?;
            return tools.call(&tool.name, arguments);
        }
        let key = text.until(tags.key.1)?.trim();
        text.space();
        text.mark(tags.value.0)?;
        let value = text.until_before(tags.value.1, &[tags.key.0, tags.close])?;
        arguments.insert(key.to_owned(), tool.value(key, value));
    }
}

/// Calls of Hy3's section.
fn hy(tools: Known<'_>, text: &mut Cursor<'_>) -> Result<Vec<Call>, Stop> {
    let mut calls = Vec::new();
    loop {
        text.space();
        if text.may("</tool_calls:opensource>")? || !calls.is_empty() && text.ends()? {
            return Ok(calls);
        }
        text.mark("<tool_call:opensource>")?;
        calls.push(call(tools, text, &HY)?);
    }
}
