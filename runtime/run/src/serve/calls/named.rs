//! Formats whose calls are a name and an object of JSON, with marks around them.
//!
//! ```text
//! Mistral since 2025   [TOOL_CALLS]f[ARGS]{...}, one or more
//! DeepSeek V3, R1      <|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>f\n```json\n{...}\n```<|tool_call_end|>...<|tool_calls_end|>
//! DeepSeek V3.1        <|tool_calls_begin|><|tool_call_begin|>f<|tool_sep|>{...}<|tool_call_end|>...<|tool_calls_end|>
//! Kimi K2              <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|>...
//! Solar                <|tool_call:begin|>ID<|tool_call:name|>f<|tool_call:args|>{...}<|tool_call:end|>...
//! Functionary 3.1      <function=f>{...}</function>
//! Functionary 3.2      >>>f\n{...}
//! Apertus              <|tools_prefix|>[{"f": {...}}, ...]<|tools_suffix|>
//! ```
//!
//! `DeepSeek`'s marks have the bars and blanks of another alphabet. Its distilled models write Hermes' format, too.

use serde_json::{Map, Value};

use super::super::super::chat::conversation::Call;
use super::cursor::{Cursor, Stop};
use super::json::HERMES_OPENING;
use super::known::Known;
use super::{Format, Mark, Opening, Section, Shape, quoted};

const LIST: &str = "[TOOL_CALLS]";
const ARGUMENTS: &str = "[ARGS]";
const ID: &str = "[CALL_ID]";
const DEEPSEEK: (&str, &str) =
    ("<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}>", "<\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>");
const DEEPSEEK_CALL: (&str, &str) =
    ("<\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>", "<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}>");
const DEEPSEEK_NAME: &str = "<\u{ff5c}tool\u{2581}sep\u{ff5c}>";
const DEEPSEEK_MARKS: &[&str] =
    &[DEEPSEEK.0, DEEPSEEK.1, DEEPSEEK_CALL.0, DEEPSEEK_CALL.1, DEEPSEEK_NAME, "<tool_call>", "</tool_call>"];
const KIMI: (&str, &str) = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>");
const KIMI_CALL: (&str, &str) = ("<|tool_call_begin|>", "<|tool_call_end|>");
const KIMI_ARGUMENTS: &str = "<|tool_call_argument_begin|>";
const SOLAR: (&str, &str) = ("<|tool_call:begin|>", "<|tool_call:end|>");
const SOLAR_NAME: &str = "<|tool_call:name|>";
const SOLAR_ARGUMENTS: &str = "<|tool_call:args|>";
const APERTUS: (&str, &str) = ("<|tools_prefix|>", "<|tools_suffix|>");

pub(super) const NAMED: Format = Format {
    name: "Mistral with names",
    taught: |has| has(LIST) && has(ARGUMENTS),
    openings: &[Opening { mark: Mark::Text(LIST), read: named }],
    marks: &[LIST, ID, ARGUMENTS],
    section: Section {
        first: "",
        between: LIST,
        last: "",
        call: |name| Shape::Object { before: quoted(&format!("{name}{ARGUMENTS}")), after: "" },
    },
};
pub(super) const DEEPSEEK_FENCED: Format = Format {
    name: "DeepSeek",
    taught: |has| has(DEEPSEEK_CALL.0) && has("```json"),
    openings: &[
        Opening { mark: Mark::Text(DEEPSEEK.0), read: deepseek },
        Opening { mark: Mark::Text(DEEPSEEK_CALL.0), read: deepseek },
        HERMES_OPENING,
    ],
    marks: DEEPSEEK_MARKS,
    section: Section {
        first: DEEPSEEK_CALL.0,
        between: "<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}>\n<\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>",
        last: "<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}><\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>",
        call: |name| Shape::Object {
            before: quoted(&format!("function{DEEPSEEK_NAME}{name}\n```json\n")),
            after: "\n```",
        },
    },
};
pub(super) const DEEPSEEK_BARE: Format = Format {
    name: "DeepSeek 3.1",
    taught: |has| has(DEEPSEEK_CALL.0),
    openings: &[
        Opening { mark: Mark::Text(DEEPSEEK.0), read: deepseek },
        Opening { mark: Mark::Text(DEEPSEEK_CALL.0), read: deepseek },
    ],
    marks: DEEPSEEK_MARKS,
    section: Section {
        first: DEEPSEEK_CALL.0,
        between: "<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>",
        last: "<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}><\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>",
        call: |name| Shape::Object { before: quoted(&format!("{name}{DEEPSEEK_NAME}")), after: "" },
    },
};
pub(super) const KIMI_K2: Format = Format {
    name: "Kimi K2",
    taught: |has| has(KIMI_CALL.0) && has(KIMI_ARGUMENTS),
    openings: &[
        Opening { mark: Mark::Text(KIMI.0), read: kimi },
        Opening { mark: Mark::Text(KIMI_CALL.0), read: |tools, text| Ok(vec![kimi_call(tools, text)?]) },
    ],
    marks: &[KIMI.0, KIMI.1, KIMI_CALL.0, KIMI_CALL.1, KIMI_ARGUMENTS],
    section: Section {
        first: KIMI_CALL.0,
        between: "<|tool_call_end|><|tool_call_begin|>",
        last: "<|tool_call_end|><|tool_calls_section_end|>",
        call: |name| Shape::Object {
            before: format!(
                "{} /[0-9]{{1,3}}/ {}",
                quoted(&format!("functions.{name}:")),
                quoted(KIMI_ARGUMENTS)
            ),
            after: "",
        },
    },
};
pub(super) const SOLAR_OPEN: Format = Format {
    name: "Solar",
    taught: |has| has(SOLAR.0) && has(SOLAR_ARGUMENTS),
    openings: &[Opening { mark: Mark::Text(SOLAR.0), read: solar }],
    marks: &[SOLAR.0, SOLAR.1, SOLAR_NAME, SOLAR_ARGUMENTS],
    section: Section {
        first: "",
        between: "<|tool_call:end|><|tool_call:begin|>",
        last: SOLAR.1,
        call: |name| Shape::Object {
            before: format!(
                "/[a-z0-9_-]{{1,24}}/ {}",
                quoted(&format!("{SOLAR_NAME}{name}{SOLAR_ARGUMENTS}"))
            ),
            after: "",
        },
    },
};
pub(super) const FUNCTIONARY_31: Format = Format {
    name: "Functionary 3.1",
    taught: |has| has("<function=") && has("</function>") && !has("<parameter=") && !has("<tool_call>"),
    openings: &[Opening { mark: Mark::Text("<function="), read: functionary }],
    marks: &[],
    section: Section {
        first: "",
        between: "</function><function=",
        last: "</function>",
        call: |name| Shape::Object { before: quoted(&format!("{name}>")), after: "" },
    },
};
pub(super) const FUNCTIONARY_32: Format = Format {
    name: "Functionary 3.2",
    taught: |has| has(">>>all"),
    openings: &[
        Opening { mark: Mark::Text(">>>"), read: recipient },
        Opening { mark: Mark::Start, read: recipient },
    ],
    marks: &[],
    section: Section {
        first: "",
        between: ">>>",
        last: "",
        call: |name| Shape::Object { before: quoted(&format!("{name}\n")), after: "" },
    },
};
pub(super) const APERTUS_8B: Format = Format {
    name: "Apertus",
    taught: |has| has(APERTUS.0),
    openings: &[Opening { mark: Mark::Text(APERTUS.0), read: apertus }],
    marks: &[APERTUS.0, APERTUS.1],
    section: Section {
        first: "[",
        between: ", ",
        last: "]<|tools_suffix|>",
        call: |name| Shape::Object { before: quoted(&format!("{{\"{name}\": ")), after: "}" },
    },
};

/// Names, each with an object after it.
fn named(tools: Known<'_>, text: &mut Cursor<'_>) -> Result<Vec<Call>, Stop> {
    text.space();
    // as the older ones write it
    if text.rest().starts_with('[') {
        return tools.objects(text.json()?);
    }
    let name = text.until(ARGUMENTS)?;
    // a number of the call's own, which clients get another for
    let name = name.split_once(ID).map_or(name, |(name, _)| name);
    Ok(vec![tools.with_object(name, text)?])
}

/// Calls between marks, each a name with an object after it, in a block of code or not.
fn deepseek(tools: Known<'_>, text: &mut Cursor<'_>) -> Result<Vec<Call>, Stop> {
    let mut calls = Vec::new();
    loop {
        text.space();
        if text.may(DEEPSEEK.1)? || !calls.is_empty() && text.ends()? {
            return Ok(calls);
        }
        text.may(DEEPSEEK_CALL.0)?;
        let before = text.until(DEEPSEEK_NAME)?;
        let mut fenced = false;
        // a tool's kind, of which there is one
        let name = if before.trim() == "function" {
            fenced = true;
            text.until("\n")?
        } else {
            before
        };
        if fenced {
            text.may("```json")?;
        }
        calls.push(tools.with_object(name, text)?);
        text.space();
        if fenced {
            text.may("```")?;
        }
        text.close(DEEPSEEK_CALL.1)?;
    }
}

/// Calls of a section.
fn kimi(tools: Known<'_>, text: &mut Cursor<'_>) -> Result<Vec<Call>, Stop> {
    let mut calls = Vec::new();
    loop {
        text.space();
        if text.may(KIMI.1)? || !calls.is_empty() && text.ends()? {
            return Ok(calls);
        }
        text.mark(KIMI_CALL.0)?;
        calls.push(kimi_call(tools, text)?);
    }
}

/// A call's id, which contains the name, and an object.
fn kimi_call(tools: Known<'_>, text: &mut Cursor<'_>) -> Result<Call, Stop> {
    let number = text.until(KIMI_ARGUMENTS)?.trim();
    let name = number.strip_prefix("functions.").unwrap_or(number);
    let (name, _) = name.rsplit_once(':').ok_or(Stop::NoCall)?;
    let call = tools.with_object(name, text)?;
    text.close(KIMI_CALL.1)?;
    Ok(call)
}

fn solar(tools: Known<'_>, text: &mut Cursor<'_>) -> Result<Vec<Call>, Stop> {
    let (_, name) = (text.until(SOLAR_NAME)?, text.until(SOLAR_ARGUMENTS)?);
    let call = tools.with_object(name, text)?;
    text.close(SOLAR.1)?;
    Ok(vec![call])
}

fn functionary(tools: Known<'_>, text: &mut Cursor<'_>) -> Result<Vec<Call>, Stop> {
    let name = text.until(">")?;
    let call = tools.with_object(name, text)?;
    text.close("</function>")?;
    Ok(vec![call])
}

/// A tool's name in a line, and an object.
fn recipient(tools: Known<'_>, text: &mut Cursor<'_>) -> Result<Vec<Call>, Stop> {
    let name = text.name()?;
    text.mark("\n")?;
    Ok(vec![tools.with_object(name, text)?])
}

/// Objects with one key each, a name.
fn apertus(tools: Known<'_>, text: &mut Cursor<'_>) -> Result<Vec<Call>, Stop> {
    text.space();
    let all: Vec<Map<String, Value>> = text.json()?;
    text.close(APERTUS.1)?;
    let call = |(name, arguments): (String, Value)| match arguments {
        Value::Object(arguments) => tools.call(&name, arguments),
        _ => Err(Stop::NoCall),
    };
    all.into_iter().flatten().map(call).collect()
}
