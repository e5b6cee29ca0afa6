//! Texts of models in every format, split anywhere.

mod texts;

use proptest::prelude::*;
use serde_json::json;

use self::texts::TEXTS;
use super::super::super::chat::conversation::Role;
use super::*;

fn tools() -> Arc<[Function]> {
    let parameters = json!({
        "type": "object",
        "properties": {
            "a": { "type": "integer" }, "b": { "type": "string" }, "c": { "type": "array" },
            "d": { "type": "boolean" },
        },
    });
    let parameters = parameters.as_object().cloned();
    let tool = |name: &str| Function {
        name: name.to_owned(),
        description: None,
        parameters: parameters.clone(),
        strict: false,
    };
    [tool("f"), tool("g")].into()
}

/// Text in one piece, and calls as `name(arguments)`.
fn read(format: &'static Format, is_forced: bool, pieces: &[&str]) -> Vec<String> {
    let mut calls = Calls::new(format, tools(), is_forced);
    let mut all: Vec<String> = Vec::new();
    let mut text = true;
    let mut add = |piece: Piece| match piece {
        Piece::Text(more) if text && !all.is_empty() => all.last_mut().unwrap().push_str(&more),
        Piece::Text(more) => {
            all.push(more);
            text = true;
        }
        Piece::Call(call) => {
            all.push(format!("{}({})", call.name, Value::Object(call.arguments)));
            text = false;
        }
    };
    let part = if format.is_apart() && !is_forced { Channel::Call } else { Channel::Answer };
    for piece in pieces {
        calls.read(part, piece).into_iter().for_each(&mut add);
    }
    calls.finish().into_iter().for_each(add);
    all
}

proptest! {
    #[test]
    fn calls_are_told_from_text_however_it_comes(cuts in prop::collection::vec(1_usize..9, 1..40)) {
        for &(format, text, expected) in TEXTS {
            let (mut pieces, mut rest, mut cuts) = (Vec::new(), text, cuts.iter().cycle());
            while !rest.is_empty() {
                let cut = rest.char_indices().nth(*cuts.next().unwrap()).map_or(rest.len(), |(at, _)| at);
                let (piece, other) = rest.split_at(cut);
                pieces.push(piece);
                rest = other;
            }
            prop_assert_eq!(read(format, false, &pieces), expected);
        }
    }

    #[test]
    fn nothing_of_a_text_is_lost(
        format in 0_usize..FORMATS.len(),
        words in prop::collection::vec(
            prop::sample::select(vec![
                "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>", "\n", "f", "g", "(",
                ")", "[", "]", "{", "}", "a", "=", ":", "1", ",", "<|\"|>", "'", "<arg_key>", "</arg_key>", "<arg_value>",
                "</arg_value>", "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_call>", "<tool_call|>", "call:", "[TOOL_CALLS]",
                "[ARGS]", "{}", " ", "\"", "\\", "<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}>", "<\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>", "<\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>", "<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}>", "<\u{ff5c}tool\u{2581}sep\u{ff5c}>", "function",
                "```json", "```", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>", "functions.", ":0", "<minimax:tool_call>", "</minimax:tool_call>",
                "<invoke name=\"", "</invoke>", "<parameter name=\"", "\">", "Action:", "<|START_ACTION|>", "<|END_ACTION|>", "\"tool_name\"", "\"f\"",
            ]),
            0..24,
        ),
    ) {
        let format = FORMATS[format];
        prop_assume!(!format.is_apart());
        let text = words.concat();
        let found = read(format, false, &words);
        if !found.iter().any(|piece| piece.starts_with("f({") || piece.starts_with("g({") || text.contains("all\n")) {
            let bare = |text: &str| text.split_whitespace().collect::<String>();
            prop_assert_eq!(bare(&found.concat()), bare(&text));
        }
    }
}

#[test]
fn a_section_without_calls_is_text() {
    for (format, text) in [
        (
            &named::DEEPSEEK_FENCED,
            "<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}><\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>",
        ),
        (&named::KIMI_K2, "<|tool_calls_section_begin|><|tool_calls_section_end|>"),
        (&json::MISTRAL, "[TOOL_CALLS][]"),
    ] {
        assert_eq!(read(format, false, &[text]).concat(), text, "{}", format.name);
    }
}

/// The prompt's opening is not said, and the text after it is whole, wherever its characters begin.
#[test]
fn a_forced_call_that_is_none_is_text_to_the_last_character() {
    for format in FORMATS.iter().filter(|format| !format.is_apart()) {
        for said in [
            "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}}",
            "\u{1f980}; \u{1f980}}",
            ">",
        ] {
            let whole: String = read(format, true, &[said]).concat();
            assert_eq!(whole, said, "{}", format.name);
        }
    }
}

#[test]
fn a_call_that_the_prompt_has_begun_is_the_whole_answer() {
    for (format, text) in [
        (&json::HERMES, "\n{\"name\": \"g\", \"arguments\": {\"a\": 2}}\n</tool_call>"),
        (&llama::LLAMA, "g\", \"parameters\": {\"a\": 2}}"),
        (&json::MISTRAL, "[{\"name\": \"g\", \"arguments\": {\"a\": 2}}]"),
        (&named::NAMED, "g[ARGS]{\"a\": 2}"),
        (&harmony::HARMONY, "g <|constrain|>json<|message|>{\"a\": 2}"),
        (&tagged::QWEN_CODER, "\n<function=g>\n<parameter=a>\n2\n</parameter>\n</function>\n</tool_call>"),
        (&glm::GLM, "g<arg_key>a</arg_key><arg_value>2</arg_value></tool_call>"),
        (&python::LFM2, "[g(a=2)]<|tool_call_end|>"),
        (&gemma::GEMMA_4, "call:g{a:2}<tool_call|>"),
        (
            &named::KIMI_K2,
            "<|tool_call_begin|>functions.g:0<|tool_call_argument_begin|>{\"a\": 2}<|tool_call_end|>",
        ),
    ] {
        let (first, second) = text.split_at(text.find(|c: char| !c.is_ascii()).unwrap_or(3));
        assert_eq!(read(format, true, &[first, second]), ["g({\"a\":2})"], "{format:?}");
        // one that was cut off is text
        assert_eq!(read(format, true, &[first]), [first], "{format:?}");
    }
}

/// Templates teach the model the calls that they write into a conversation.
#[test]
fn the_calls_that_templates_write_are_read_back() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/chat.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(golden).unwrap()).unwrap();
    let (told, tools) = (&golden["tools"], &golden["tools"]["tools"][0]["function"]);
    let tool = Function {
        name: tools["name"].as_str().unwrap().to_owned(),
        description: None,
        parameters: tools["parameters"].as_object().cloned(),
        strict: false,
    };
    let expected = &told["messages"][1]["tool_calls"][0]["function"];
    for (name, open, after) in [
        ("qwen3", "<tool_call>", "<|im_end|>"),
        ("granite4", "<tool_call>", "<|end_of_text|>"),
        ("nemo", "[TOOL_CALLS]", "</s>"),
        ("ministral3", "[TOOL_CALLS]", "</s>"),
        ("qwen3-coder", "<tool_call>", "<|im_end|>"),
        ("qwen35", "<tool_call>", "<|im_end|>"),
        ("nemotron3", "<tool_call>", "<|im_end|>"),
        ("glm47", "<tool_call>", "<|observation|>"),
        ("lfm25", "<|tool_call_start|>", "<|im_end|>"),
        ("gemma4", "<|tool_call>", "<|tool_response>"),
        (
            "deepseek-r1",
            "<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}>",
            "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
        ),
        (
            "deepseek-v31",
            "<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}>",
            "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
        ),
        ("kimi-k2", "<|tool_calls_section_begin|>", "<|im_end|>"),
        ("minimax-m2", "<minimax:tool_call>", "[e~["),
        ("command-r", "\nAction:", "<|START_OF_TURN_TOKEN|>"),
        ("command-r7b", "<|START_ACTION|>", "<|END_OF_TURN_TOKEN|>"),
    ] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/chat/tools");
        let format = Format::of(&std::fs::read_to_string(format!("{folder}/{name}.jinja")).unwrap()).unwrap();
        let text = told["templates"][name].as_str().unwrap();
        let written = &text[text.rfind(open).unwrap()..];
        let written = &written[..written.find(after).unwrap()];
        let mut calls = Calls::new(format, [tool.clone()].into(), false);
        let mut pieces = calls.read(Channel::Answer, written);
        pieces.extend(calls.finish());
        let [Piece::Call(call)] = &pieces[..] else { panic!("{name}: {pieces:?}") };
        assert_eq!(call.name, expected["name"], "{name}");
        assert_eq!(Value::Object(call.arguments.clone()), expected["arguments"], "{name}");
    }
}

#[test]
fn calls_are_written_as_they_are_read() {
    let arguments = json!({ "a": 1, "b": "it's \"so\"\n", "c": [true, null, { "x": 2.5 }] });
    let arguments = arguments.as_object().unwrap();
    let calls = ["f", "g"].map(|name| Call {
        id: String::new(),
        name: name.to_owned(),
        arguments: arguments.clone(),
    });
    for format in [&python::LFM2, &json::GRANITE, &json::HERMES] as [&Format; 3] {
        let written = format.written(&calls).unwrap().concat().concat();
        let expected = ["f", "g"].map(|name| format!("{name}({})", Value::Object(arguments.clone())));
        assert_eq!(read(format, false, &[&written]), expected, "{written}");
    }
    assert!(python::LFM2.written(&calls).unwrap()[0][1].contains("c=[True, None, {\"x\": 2.5}]"));
    assert_eq!(named::KIMI_K2.written(&calls), None);
}

#[test]
fn what_came_of_a_call_is_told_by_the_number_that_its_model_gave_it() {
    let call = |id: &str, name: &str| Call {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: serde_json::Map::new(),
    };
    let messages = [
        Message { calls: vec![call("x", "f"), call("y", "g")], ..Message::new(Role::Assistant, "") },
        Message { answers: Some("y".to_owned()), ..Message::new(Role::Tool, "1") },
        Message { answers: Some("z".to_owned()), ..Message::new(Role::Tool, "2") },
    ];
    let kimi = numbered(&named::KIMI_K2, &messages);
    let ids: Vec<&str> = kimi[0].calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!(ids, ["functions.f:0", "functions.g:1"]);
    assert_eq!(kimi[1].answers.as_deref(), Some("functions.g:1"));
    assert_eq!(kimi[2].answers.as_deref(), Some("z"), "nobody called it");
    let mistral = numbered(&json::MISTRAL, &messages);
    let ids: Vec<&str> = mistral[0].calls.iter().map(|call| call.id.as_str()).collect();
    assert!(ids.iter().all(|id| id.len() == ID) && ids[0] != ids[1], "{ids:?}");
    assert_eq!(mistral[1].answers.as_deref(), Some(ids[1]));
    assert_eq!(numbered(&json::HERMES, &messages), messages);
}

#[test]
fn a_template_has_the_format_that_it_teaches() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/chat");
    for (name, format) in [
        ("tools/qwen3", Some(&json::HERMES) as Option<&Format>),
        ("tools/granite4", Some(&json::HERMES)),
        ("tools/nemo", Some(&json::MISTRAL)),
        ("tools/ministral3", Some(&named::NAMED)),
        ("tools/llama3", Some(&llama::LLAMA)),
        ("tools/harmony", Some(&harmony::HARMONY)),
        ("tools/qwen3-coder", Some(&tagged::QWEN_CODER)),
        ("tools/qwen35", Some(&tagged::QWEN_CODER)),
        ("tools/nemotron3", Some(&tagged::QWEN_CODER)),
        ("tools/glm47", Some(&glm::GLM)),
        ("tools/lfm25", Some(&python::LFM2)),
        ("tools/gemma4", Some(&gemma::GEMMA_4)),
        ("tools/deepseek-r1", Some(&named::DEEPSEEK_FENCED)),
        ("tools/deepseek-v31", Some(&named::DEEPSEEK_BARE)),
        ("tools/kimi-k2", Some(&named::KIMI_K2)),
        ("tools/minimax-m2", Some(&tagged::MINIMAX_M2)),
        ("tools/command-r", Some(&json::ACTION)),
        ("tools/command-r7b", Some(&json::COMMAND)),
        ("tools/smollm3", Some(&json::HERMES)),
        ("chatml", None),
        ("gemma", None),
    ] {
        let source = std::fs::read_to_string(format!("{folder}/{name}.jinja")).unwrap();
        assert_eq!(Format::of(&source), format, "{name}");
    }
}

/// Cases of llama.cpp's own tests, which `fixtures/golden/calls.py` has read out of them, each with the format of its template.
#[derive(serde::Deserialize, serde::Serialize)]
struct Case {
    template: String,
    line: usize,
    #[serde(default)]
    format: Option<String>,
    input: String,
    prompt: String,
    tools: Vec<Told>,
    expected: Expected,
}

#[derive(serde::Deserialize, serde::Serialize)]
struct Told {
    name: String,
    parameters: Value,
}

#[derive(Debug, PartialEq, serde::Deserialize, serde::Serialize)]
struct Expected {
    content: String,
    reasoning: String,
    calls: Vec<(String, String)>,
}

/// Marks of a text that tokens are of their own for; everything else comes in pieces of so many characters.
fn tokens(text: &str, size: usize) -> Vec<(String, bool)> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mark = rest.starts_with("<|").then(|| rest.find('>').map(|at| at + 1)).flatten();
        let plain = |c: char| c.is_alphanumeric() || "<|>_:\"".contains(c);
        if let Some(end) = mark.filter(|&end| rest[..end].chars().all(plain)) {
            tokens.push((rest[..end].to_owned(), true));
            rest = &rest[end..];
            continue;
        }
        let next = rest.match_indices("<|").map(|(at, _)| at).find(|&at| at > 0).unwrap_or(rest.len());
        let end = rest.char_indices().nth(size).map_or(rest.len(), |(at, _)| at).min(next);
        tokens.push((rest[..end].to_owned(), false));
        rest = &rest[end..];
    }
    tokens
}

/// The pieces that a server would send for a text.
fn told(case: &Case, size: usize) -> Expected {
    let format = FORMATS.into_iter().find(|format| Some(format.name) == case.format.as_deref());
    let format = format.filter(|_| !case.tools.is_empty());
    let functions: Arc<[Function]> = (case.tools.iter())
        .map(|tool| Function {
            name: tool.name.clone(),
            description: None,
            parameters: tool.parameters.as_object().cloned(),
            strict: false,
        })
        .collect();
    let end = case.prompt.trim_end();
    let reasons = crate::reasoning::opened_by(end).is_some();
    let named = end.ends_with("<|start|>assistant");
    let parts = crate::reasoning::Parts::new(reasons).with_calls(format.is_some()).with_name(named);
    let mut parts = parts;
    let mut calls = format.map(|format| Calls::new(format, functions, false));
    let mut all = Expected { content: String::new(), reasoning: String::new(), calls: Vec::new() };
    let add = |piece: Piece, all: &mut Expected| match piece {
        Piece::Text(text) => all.content.push_str(&text),
        Piece::Call(call) => all.calls.push((call.name, Value::Object(call.arguments).to_string())),
    };
    let mut show = |part: Channel, text: &str| match (&mut calls, part) {
        (_, Channel::Reasoning) => all.reasoning.push_str(text),
        (Some(calls), part) => calls.read(part, text).into_iter().for_each(|piece| add(piece, &mut all)),
        (None, _) => all.content.push_str(text),
    };
    for (text, special) in tokens(&case.input, size) {
        let is_text = format.is_some_and(|format| format.marks.contains(&text.as_str()));
        if special && !is_text { parts.special(&text, &mut show) } else { parts.text(&text, &mut show) }
    }
    parts.finish(&mut show);
    if let Some(mut calls) = calls {
        calls.finish().into_iter().for_each(|piece| add(piece, &mut all));
    }
    all
}

/// An answer but for spaces at the ends and in JSON.
fn bare(answer: &Expected) -> (String, String, Vec<(String, Value)>) {
    let call = |(name, arguments): &(String, String)| {
        (name.clone(), serde_json::from_str(arguments).unwrap_or(Value::Null))
    };
    let calls = answer.calls.iter().map(call).collect();
    (answer.content.trim().to_owned(), answer.reasoning.trim().to_owned(), calls)
}

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/calls.json");

/// Reasons for differences from llama.cpp's answers.
const UNCLOSED: &str = "a call in reasoning that does not end is not made";
const FENCED: &str = "a block of code is not unwrapped: a schema is enforced without one";
const RECIPIENT: &str = "whom Functionary and Muse speak to is not told apart";
const PROMPT: &str = "what the prompt has of the reasoning is no part of the answer";
const NO_SUCH_TOOL: &str = "what is said to a tool that there is not is no answer, and is not lost";

/// Where answers differ from llama.cpp's, by template and line.
const OTHERWISE: &[(&str, usize, &str)] = &[
    ("Qwen3.5-4B", 2317, UNCLOSED),
    ("Qwen3.5-4B", 2334, UNCLOSED),
    ("deepseek-ai-DeepSeek-V4", 4353, UNCLOSED),
    ("inclusionai-ling-3.0-flash", 4666, UNCLOSED),
    ("inclusionai-ling-3.0-flash", 4683, UNCLOSED),
    ("inclusionai-ling-3.0-flash", 4748, UNCLOSED),
    ("Kimi-K2-Thinking", 5084, UNCLOSED),
    ("Kimi-K2-Thinking", 5103, UNCLOSED),
    ("mistralai-Ministral-3-14B-Reasoning-2512", 2648, FENCED),
    ("meta-llama-Llama-3.1-8B-Instruct", 6302, FENCED),
    ("meetkai-functionary-medium-v3.2", 5951, RECIPIENT),
    ("muse-glimmer", 6391, RECIPIENT),
    ("Apriel-1.6-15b-Thinker-fixed", 6211, PROMPT),
    ("Apriel-1.6-15b-Thinker-fixed", 6219, PROMPT),
    ("openai-gpt-oss-120b", 6547, NO_SUCH_TOOL),
    ("openai-gpt-oss-120b", 6556, NO_SUCH_TOOL),
];

#[test]
fn answers_are_told_apart_as_llama_cpp_expects() {
    let cases: Vec<Case> = serde_json::from_str(&std::fs::read_to_string(CASES).unwrap()).unwrap();
    let mut equal = 0;
    let mut different = Vec::new();
    for case in &cases {
        let found: Vec<Expected> = [usize::MAX, 1, 2, 3, 7].map(|size| told(case, size)).into();
        let same = found.iter().all(|found| bare(found) == bare(&case.expected));
        let listed =
            OTHERWISE.iter().any(|&(template, line, _)| template == case.template && line == case.line);
        equal += usize::from(same);
        if same == listed {
            let found = found.iter().find(|found| bare(found) != bare(&case.expected)).unwrap_or(&found[0]);
            different.push(format!(
                "{} {} ({:?}): {:?}\n  expected {:?}\n  found    {found:?}",
                case.template, case.line, case.format, case.input, case.expected
            ));
        }
    }
    assert!(different.is_empty(), "{equal} of {} equal\n{}", cases.len(), different.join("\n"));
    assert!(100 * equal >= 95 * cases.len(), "{equal} of {}", cases.len());
}

/// Gives the cases that `fixtures/golden/calls.py` has read the formats of their templates.
#[test]
#[ignore = "needs llama.cpp's source; see the make target golden-calls"]
fn the_cases_have_the_formats_of_their_templates() {
    let [cases, templates] = ["CASES", "TEMPLATES"].map(|name| std::env::var(name).unwrap());
    let mut cases: Vec<Case> = serde_json::from_str(&std::fs::read_to_string(cases).unwrap()).unwrap();
    for case in &mut cases {
        let source = std::fs::read_to_string(format!("{templates}/{}.jinja", case.template)).unwrap();
        case.format = Format::of(&source).map(|format| format.name.to_owned());
    }
    std::fs::write(CASES, serde_json::to_string_pretty(&cases).unwrap() + "\n").unwrap();
}
