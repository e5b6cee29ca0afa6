//! Formats whose calls are objects of JSON with a name and arguments, each between marks of its own.
//!
//! ```text
//! Hermes, Qwen, Granite 4, SmolLM3  <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>, one or more
//! Granite 3                         <|tool_call|>[{"name": "f", "arguments": {...}}, ...]
//! Nemotron 2                        <TOOLCALL>[{"name": "f", "arguments": {...}}, ...]</TOOLCALL>
//! Mistral                           [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]
//! Apriel                            <tool_calls>[{"name": "f", "arguments": {...}}, ...]</tool_calls>
//! MiniMax M1                        <tool_calls>\n{"name": "f", "arguments": {...}}\n...</tool_calls>
//! Firefunction                      functools[{"name": "f", "arguments": {...}}, ...]
//! GigaChat 3                        function call<|role_sep|>\n{"name": "f", "arguments": {...}}
//! GigaChat 3.1                      <|function_call|>{"name": "f", "arguments": {...}}
//! Command R                         Action:\n```json\n[{"tool_name": "f", "parameters": {...}}, ...]```
//! Command R7B, A                    <|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {...}}, ...]<|END_ACTION|>
//! ```

use super::super::super::chat::conversation::Call;
use super::cursor::{Cursor, Stop};
use super::known::Known;
use super::{Format, Mark, Opening, Section, Shape, quoted};

const fn opening(
    mark: &'static str,
    read: fn(Known<'_>, &mut Cursor<'_>) -> Result<Vec<Call>, Stop>,
) -> Opening {
    Opening { mark: Mark::Text(mark), read }
}

pub(super) const HERMES_OPENING: Opening =
    opening("<tool_call>", |tools, text| list(tools, text, "</tool_call>"));
const HERMES_SECTION: Section =
    Section { first: "\n", between: "\n</tool_call>\n<tool_call>\n", last: "\n</tool_call>", call: object };
/// A list of objects.
const fn in_list(last: &'static str) -> Section {
    Section { first: "[", between: ", ", last, call: object }
}

pub(super) const HERMES: Format = Format {
    name: "Hermes",
    taught: |has| has("<tool_call>") && has("arguments") && !has("<function=") && !has("<invoke"),
    openings: &[HERMES_OPENING],
    marks: &["<tool_call>", "</tool_call>"],
    section: HERMES_SECTION,
};
pub(super) const GRANITE: Format = Format {
    name: "Granite",
    taught: |has| has("<|tool_call|>") && has("JSON list"),
    openings: &[opening("<|tool_call|>", |tools, text| list(tools, text, ""))],
    marks: &["<|tool_call|>"],
    section: in_list("]"),
};
pub(super) const NEMOTRON: Format = Format {
    name: "Nemotron 2",
    taught: |has| has("<TOOLCALL>"),
    openings: &[opening("<TOOLCALL>", |tools, text| list(tools, text, "</TOOLCALL>"))],
    marks: &["<TOOLCALL>", "</TOOLCALL>"],
    section: in_list("]</TOOLCALL>"),
};
pub(super) const MISTRAL: Format = Format {
    name: "Mistral",
    taught: |has| has("[TOOL_CALLS]"),
    openings: &[opening("[TOOL_CALLS]", |tools, text| list(tools, text, ""))],
    marks: &["[TOOL_CALLS]"],
    section: in_list("]"),
};
pub(super) const APRIEL: Format = Format {
    name: "Apriel",
    taught: |has| has("<tool_calls>["),
    openings: &[opening("<tool_calls>", |tools, text| list(tools, text, "</tool_calls>"))],
    marks: &["<tool_calls>", "</tool_calls>"],
    section: in_list("]</tool_calls>"),
};
pub(super) const MINIMAX_M1: Format = Format {
    name: "MiniMax M1",
    taught: |has| has("<tool_calls>\\n"),
    openings: &[opening("<tool_calls>", |tools, text| lines(tools, text, "</tool_calls>"))],
    marks: &["<tool_calls>", "</tool_calls>"],
    section: Section { first: "\n", between: "\n", last: "\n</tool_calls>", call: object },
};
pub(super) const FIREFUNCTION: Format = Format {
    name: "Firefunction",
    taught: |has| has("functools["),
    openings: &[opening("functools", |tools, text| list(tools, text, ""))],
    marks: &[],
    section: in_list("]"),
};
pub(super) const GIGACHAT: Format = Format {
    name: "GigaChat 3",
    taught: |has| has("'function call'") && has("<|role_sep|>"),
    openings: &[
        opening("<|message_sep|>\n\nfunction call<|role_sep|>\n", |tools, text| list(tools, text, "")),
        opening("function call<|role_sep|>", |tools, text| list(tools, text, "")),
    ],
    marks: &["<|message_sep|>", "<|role_sep|>"],
    section: Section { first: "", between: "", last: "", call: object },
};
pub(super) const GIGACHAT_31: Format = Format {
    name: "GigaChat 3.1",
    taught: |has| has("<|function_call|>"),
    openings: &[opening("<|function_call|>", |tools, text| list(tools, text, ""))],
    marks: &["<|function_call|>"],
    section: Section { first: "", between: "", last: "", call: object },
};
pub(super) const ACTION: Format = Format {
    name: "Command R",
    taught: |has| has("Action:") && has("```json") && has("\"tool_name\""),
    openings: &[opening("Action:\n```json", |tools, text| list(tools, text, "```"))],
    marks: &[],
    section: Section { first: "\n[\n    ", between: ",\n    ", last: "\n]```", call: tool_object },
};
pub(super) const COMMAND: Format = Format {
    name: "Command R7B",
    taught: |has| has("<|START_ACTION|>") && has("tool_name"),
    openings: &[opening("<|START_ACTION|>", |tools, text| list(tools, text, "<|END_ACTION|>"))],
    marks: &["<|START_ACTION|>", "<|END_ACTION|>"],
    section: Section {
        first: "[\n    ",
        between: ",\n    ",
        last: "\n]<|END_ACTION|>",
        call: numbered_object,
    },
};

/// One object or a list of them, perhaps in a block of code, up to what ends them.
fn list(tools: Known<'_>, text: &mut Cursor<'_>, close: &str) -> Result<Vec<Call>, Stop> {
    text.space();
    let fenced = close != "```" && text.may("```")?;
    if fenced {
        text.until("\n")?;
    }
    let calls = tools.objects(text.json()?)?;
    if fenced {
        text.close("```")?;
    }
    if !close.is_empty() {
        text.close(close)?;
    }
    Ok(calls)
}

/// Objects, each in a line of its own.
fn lines(tools: Known<'_>, text: &mut Cursor<'_>, close: &str) -> Result<Vec<Call>, Stop> {
    let mut calls = Vec::new();
    loop {
        calls.extend(tools.objects(text.json()?)?);
        text.space();
        if text.ends()? || text.may(close)? {
            return Ok(calls);
        }
    }
}

/// An object with its name and arguments.
pub(super) fn object(name: &str) -> Shape {
    Shape::Object { before: quoted(&format!("{{\"name\": \"{name}\", \"arguments\": ")), after: "}" }
}

fn tool_object(name: &str) -> Shape {
    Shape::Object { before: quoted(&format!("{{\"tool_name\": \"{name}\", \"parameters\": ")), after: "}" }
}

fn numbered_object(name: &str) -> Shape {
    let rest = quoted(&format!("\", \"tool_name\": \"{name}\", \"parameters\": "));
    let before = format!("{} /[0-9]{{1,3}}/ {rest}", quoted("{\"tool_call_id\": \""));
    Shape::Object { before, after: "}" }
}
