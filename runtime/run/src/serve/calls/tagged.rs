//! Formats with a tag for the function and a tag for each of its parameters. Values are bare text: the tool's schema gives their types.
//!
//! ```text
//! Qwen3-Coder, Qwen3.5,   <tool_call>\n<function=f>\n<parameter=k>\nvalue\n</parameter>\n</function>\n</tool_call>
//!   Nemotron 3, StepFun
//! Seed-OSS                <seed:tool_call>\n<function=f>\n<parameter=k>value</parameter>\n</function>\n</seed:tool_call>
//! MiniMax M2              <minimax:tool_call>\n<invoke name="f">\n<parameter name="k">value</parameter>\n</invoke>\n</minimax:tool_call>
//! Muse                    <atem:function_calls>\n<atem:invoke name="f">\n<atem:parameter name="k">value</atem:parameter>\n...
//! DeepSeek V3.2, V4       <|DSML|function_calls>\n<|DSML|invoke name="f">\n<|DSML|parameter name="k" string="true">value</|DSML|parameter>\n...
//! MiniCPM5                <function name="f"><param name="k">value</param></function>
//! Kimi K3                 <|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="k" type="string"<|sep|>value...
//! ```

use serde_json::{Map, Value};

use super::super::super::chat::conversation::Call;
use super::super::tools::Function;
use super::cursor::{Cursor, Stop};
use super::known::Known;
use super::{Apart, Format, Mark, Opening, Section, Shape, Text};

/// Tags of a format.
struct Tags {
    /// Text before a function's name, after it, and at the end of the function.
    function: (&'static str, &'static str, &'static str),
    /// Text before a parameter's name, after it, and at the end of its value.
    parameter: (&'static str, &'static str, &'static str),
    /// Text that ends the attributes after a name, where there are any.
    attributes: Option<&'static str>,
    /// Whether a value stands in lines of its own.
    lines: bool,
}

const CODER: Tags = Tags {
    function: ("<function=", ">", "</function>"),
    parameter: ("<parameter=", ">", "</parameter>"),
    attributes: None,
    lines: true,
};
const SEED: Tags = Tags { lines: false, ..CODER };
const MINIMAX: Tags = Tags {
    function: ("<invoke name=\"", "\"", "</invoke>"),
    parameter: ("<parameter name=\"", "\"", "</parameter>"),
    attributes: Some(">"),
    lines: false,
};
const MUSE: Tags = Tags {
    function: ("<atem:invoke name=\"", "\"", "</atem:invoke>"),
    parameter: ("<atem:parameter name=\"", "\"", "</atem:parameter>"),
    attributes: Some(">"),
    lines: false,
};
const DSML: Tags = Tags {
    function: ("<\u{ff5c}DSML\u{ff5c}invoke name=\"", "\"", "</\u{ff5c}DSML\u{ff5c}invoke>"),
    parameter: ("<\u{ff5c}DSML\u{ff5c}parameter name=\"", "\"", "</\u{ff5c}DSML\u{ff5c}parameter>"),
    attributes: Some(">"),
    lines: false,
};
const MINICPM: Tags = Tags {
    function: ("<function name=\"", "\"", "</function>"),
    parameter: ("<param name=\"", "\"", "</param>"),
    attributes: Some(">"),
    lines: false,
};
const KIMI: Tags = Tags {
    function: ("<|open|>call tool=\"", "\"", "<|close|>call<|sep|>"),
    parameter: ("<|open|>argument key=\"", "\"", "<|close|>argument<|sep|>"),
    attributes: Some("<|sep|>"),
    lines: false,
};

pub(super) const QWEN_CODER: Format = Format {
    name: "Qwen3-Coder",
    taught: |has| has("<tool_call>") && has("<function=") && has("<parameter="),
    openings: &[
        Opening {
            mark: Mark::Text("<tool_call>"),
            read: |tools, text| tagged(tools, text, &CODER, "</tool_call>"),
        },
        Opening {
            mark: Mark::Text("<function="),
            read: |tools, text| alone(tools, text, &CODER, "</tool_call>"),
        },
    ],
    marks: &["<tool_call>", "</tool_call>"],
    section: Section {
        first: "\n",
        between: "\n</tool_call>\n<tool_call>\n",
        last: "\n</tool_call>",
        call: |name| {
            Shape::Apart(Apart {
                before: format!("<function={name}>\n"),
                key: ("<parameter=", [">\n"; 2]),
                after_value: |_| "\n</parameter>\n".to_owned(),
                between: "",
                after: "</function>",
                text: Text::Bare,
            })
        },
    },
};
pub(super) const SEED_OSS: Format = Format {
    name: "Seed-OSS",
    taught: |has| has("<seed:tool_call>"),
    openings: &[Opening {
        mark: Mark::Text("<seed:tool_call>"),
        read: |tools, text| tagged(tools, text, &SEED, "</seed:tool_call>"),
    }],
    marks: &["<seed:tool_call>", "</seed:tool_call>"],
    section: Section {
        first: "\n",
        between: "\n</seed:tool_call>\n<seed:tool_call>\n",
        last: "\n</seed:tool_call>",
        call: |name| {
            Shape::Apart(Apart {
                before: format!("<function={name}>\n"),
                key: ("<parameter=", [">"; 2]),
                after_value: |_| "</parameter>\n".to_owned(),
                between: "",
                after: "</function>",
                text: Text::Bare,
            })
        },
    },
};
pub(super) const MINIMAX_M2: Format = Format {
    name: "MiniMax M2",
    taught: |has| has("<minimax:tool_call>") && has("<invoke name=\""),
    openings: &[Opening {
        mark: Mark::Text("<minimax:tool_call>"),
        read: |tools, text| tagged(tools, text, &MINIMAX, "</minimax:tool_call>"),
    }],
    marks: &["<minimax:tool_call>", "</minimax:tool_call>"],
    section: Section {
        first: "\n",
        between: "\n",
        last: "\n</minimax:tool_call>",
        call: |name| {
            Shape::Apart(Apart {
                before: format!("<invoke name=\"{name}\">\n"),
                key: ("<parameter name=\"", ["\">"; 2]),
                after_value: |_| "</parameter>\n".to_owned(),
                between: "",
                after: "</invoke>",
                text: Text::Bare,
            })
        },
    },
};
pub(super) const MUSE_GLIMMER: Format = Format {
    name: "Muse",
    taught: |has| has("<atem:function_calls>"),
    openings: &[Opening {
        mark: Mark::Text("<atem:function_calls>"),
        read: |tools, text| tagged(tools, text, &MUSE, "</atem:function_calls>"),
    }],
    marks: &[],
    section: Section {
        first: "\n",
        between: "\n",
        last: "\n</atem:function_calls>",
        call: |name| {
            Shape::Apart(Apart {
                before: format!("<atem:invoke name=\"{name}\">\n"),
                key: ("<atem:parameter name=\"", ["\">"; 2]),
                after_value: |_| "</atem:parameter>\n".to_owned(),
                between: "",
                after: "</atem:invoke>",
                text: Text::Bare,
            })
        },
    },
};
/// The shape of a call in `DeepSeek`'s markup.
fn dsml(name: &str) -> Shape {
    Shape::Apart(Apart {
        before: format!("<\u{ff5c}DSML\u{ff5c}invoke name=\"{name}\">\n"),
        key: ("<\u{ff5c}DSML\u{ff5c}parameter name=\"", ["\" string=\"true\">", "\" string=\"false\">"]),
        after_value: |_| "</\u{ff5c}DSML\u{ff5c}parameter>\n".to_owned(),
        between: "",
        after: "</\u{ff5c}DSML\u{ff5c}invoke>",
        text: Text::Bare,
    })
}
pub(super) const DEEPSEEK_32: Format = Format {
    name: "DeepSeek 3.2",
    taught: |has| has("DSML") && has("function_calls"),
    openings: &[Opening {
        mark: Mark::Text("<\u{ff5c}DSML\u{ff5c}function_calls>"),
        read: |tools, text| tagged(tools, text, &DSML, "</\u{ff5c}DSML\u{ff5c}function_calls>"),
    }],
    marks: &["\u{ff5c}DSML\u{ff5c}"],
    section: Section {
        first: "\n",
        between: "\n",
        last: "\n</\u{ff5c}DSML\u{ff5c}function_calls>",
        call: dsml,
    },
};
pub(super) const DEEPSEEK_4: Format = Format {
    name: "DeepSeek 4",
    taught: |has| has("DSML") && has("tool_calls>"),
    openings: &[Opening {
        mark: Mark::Text("<\u{ff5c}DSML\u{ff5c}tool_calls>"),
        read: |tools, text| tagged(tools, text, &DSML, "</\u{ff5c}DSML\u{ff5c}tool_calls>"),
    }],
    marks: &["\u{ff5c}DSML\u{ff5c}"],
    section: Section { first: "\n", between: "\n", last: "\n</\u{ff5c}DSML\u{ff5c}tool_calls>", call: dsml },
};
pub(super) const MINICPM_5: Format = Format {
    name: "MiniCPM5",
    taught: |has| has("<function name=\"") && has("<param name=\""),
    openings: &[Opening {
        mark: Mark::Text("<function name=\""),
        read: |tools, text| alone(tools, text, &MINICPM, ""),
    }],
    marks: &["<function", "</function>", "<param", "</param>"],
    section: Section {
        first: "",
        between: "\n<function name=\"",
        last: "",
        call: |name| {
            Shape::Apart(Apart {
                before: format!("{name}\">"),
                key: ("<param name=\"", ["\">"; 2]),
                after_value: |_| "</param>".to_owned(),
                between: "",
                after: "</function>",
                text: Text::Bare,
            })
        },
    },
};
pub(super) const KIMI_K3: Format = Format {
    name: "Kimi K3",
    taught: |has| has("<|open|>") && has("<|sep|>"),
    openings: &[Opening {
        mark: Mark::Text("<|open|>tools<|sep|>"),
        read: |tools, text| tagged(tools, text, &KIMI, "<|close|>tools<|sep|>"),
    }],
    marks: &["<|open|>", "<|close|>", "<|sep|>"],
    section: Section {
        first: "",
        between: "",
        last: "<|close|>tools<|sep|>",
        call: |name| {
            Shape::Apart(Apart {
                before: format!("<|open|>call tool=\"{name}\" index=\"1\"<|sep|>"),
                key: ("<|open|>argument key=\"", ["\" type=\"string\"<|sep|>", "\" type=\"object\"<|sep|>"]),
                after_value: |_| "<|close|>argument<|sep|>".to_owned(),
                between: "",
                after: "<|close|>call<|sep|>",
                text: Text::Bare,
            })
        },
    },
};

/// Functions up to what ends them all.
fn tagged(tools: Known<'_>, text: &mut Cursor<'_>, tags: &Tags, close: &str) -> Result<Vec<Call>, Stop> {
    let mut calls = Vec::new();
    loop {
        text.space();
        if text.may(close)? || !calls.is_empty() && text.ends()? {
            return Ok(calls);
        }
        text.mark(tags.function.0)?;
        calls.push(function(tools, text, tags)?);
    }
}

/// A function without what stands around it, but perhaps for the end of that.
fn alone(tools: Known<'_>, text: &mut Cursor<'_>, tags: &Tags, stray: &str) -> Result<Vec<Call>, Stop> {
    let call = function(tools, text, tags)?;
    let mut after = *text;
    after.space();
    if !stray.is_empty() && after.may(stray)? {
        *text = after;
    }
    Ok(vec![call])
}

/// A function, from its name on.
fn function(tools: Known<'_>, text: &mut Cursor<'_>, tags: &Tags) -> Result<Call, Stop> {
    let name = text.until(tags.function.1)?;
    if let Some(end) = tags.attributes {
        text.until(end)?;
    }
    let tool = tools.tool(name)?;
    let mut arguments = Map::new();
    loop {
        text.space();
        if !text.may(tags.parameter.0)? {
            text.close(tags.function.2)?;
            return tools.call(&tool.name, arguments);
        }
        let key = text.until(tags.parameter.1)?.trim();
        let attributes = tags.attributes.map(|end| text.until(end)).transpose()?.unwrap_or_default();
        let written = text.until_before(tags.parameter.2, &[tags.parameter.0, tags.function.2])?;
        arguments.insert(key.to_owned(), value(tool, key, attributes, written, tags.lines));
    }
}

/// A parameter's value.
fn value(tool: &Function, key: &str, attributes: &str, written: &str, lines: bool) -> Value {
    if let Some(text) = written.strip_prefix("<![CDATA[").and_then(|text| text.strip_suffix("]]>")) {
        return Value::from(text);
    }
    // the markup names the type, whatever the schema says
    if attributes.contains("\"true\"") || attributes.contains("type=\"string\"") {
        return Value::from(written);
    }
    // the line breaks around a value are no part of it
    let own = written.strip_prefix('\n').filter(|_| lines);
    let text = own.map_or(written, |text| text.strip_suffix('\n').unwrap_or(text));
    tool.value(key, text)
}
