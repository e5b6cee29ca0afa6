//! Texts that models write in each format, and the text and calls in them.

use super::super::*;

pub(super) const TEXTS: &[(&Format, &str, &[&str])] = &[
    (
        &json::HERMES,
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
        &["f({\"a\":1})"],
    ),
    (
        &json::HERMES,
        "I look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {\"b\": \"</x>\"}}\n</tool_call>\n",
        &["I look.", "f({})", "g({\"b\":\"</x>\"})"],
    ),
    (&json::HERMES, "a < b <tool", &["a < b <tool"]),
    (
        &json::HERMES,
        "<tool_call>\n{\"name\": \"h\", \"arguments\": {}}\n</tool_call>",
        &["<tool_call>\n{\"name\": \"h\", \"arguments\": {}}\n</tool_call>"],
    ),
    (&json::HERMES, "<tool_call>\n{\"name\": \"f\", \"argum", &["<tool_call>\n{\"name\": \"f\", \"argum"]),
    (
        &json::MISTRAL,
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": [1]}}, {\"name\": \"g\", \"arguments\": {}}]",
        &["f({\"a\":[1]})", "g({})"],
    ),
    (&json::MISTRAL, "see [1] and [TOOL", &["see [1] and [TOOL"]),
    (
        &json::GRANITE,
        "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
        &["f({\"a\":1})", "g({})"],
    ),
    (
        &json::NEMOTRON,
        "So: <TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]</TOOLCALL>",
        &["So:", "f({\"a\":1})"],
    ),
    (&json::NEMOTRON, "<TOOLCALL>[{\"name\"]</TOOLCALL>", &["<TOOLCALL>[{\"name\"]</TOOLCALL>"]),
    (&named::NAMED, "[TOOL_CALLS]f[ARGS]{\"a\": 1}", &["f({\"a\":1})"]),
    (
        &named::NAMED,
        "I look.[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{\"b\": \"[TOOL_CALLS]\"}[TOOL_CALLS]g[ARGS]{}",
        &["I look.", "f({\"b\":\"[TOOL_CALLS]\"})", "g({})"],
    ),
    (&named::NAMED, "[TOOL_CALLS]f[ARGS]{\"a\": ", &["[TOOL_CALLS]f[ARGS]{\"a\": "]),
    (&named::NAMED, "[TOOL_CALLS]h[ARGS]{}", &["[TOOL_CALLS]h[ARGS]{}"]),
    (&named::NAMED, "[TOOL_CALLS]f[ARGS][1]", &["[TOOL_CALLS]f[ARGS][1]"]),
    (&llama::LLAMA, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", &["f({\"a\":1})"]),
    (&llama::LLAMA, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", &["f({})"]),
    (&llama::LLAMA, "{\"is\": \"an object\"}", &["{\"is\": \"an object\"}"]),
    (
        &llama::LLAMA,
        "Look: {\"name\": \"f\", \"parameters\": {}}",
        &["Look: {\"name\": \"f\", \"parameters\": {}}"],
    ),
    (&harmony::HARMONY, "f\n{\"a\": 1}", &["f({\"a\":1})"]),
    (
        &tagged::QWEN_CODER,
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n1\n</parameter>\n<parameter=c>\n[1, \"x\"]\n</parameter>\n<parameter=d>\nTrue\n</parameter>\n</function>\n</tool_call>",
        &["f({\"a\":1,\"b\":\"1\",\"c\":[1,\"x\"],\"d\":true})"],
    ),
    (
        &tagged::QWEN_CODER,
        "I look.\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n<parameter=b>\n\n if x:\n  </parameter> is text\n\n</parameter>\n</function>\n</tool_call>",
        &["I look.", "f({})", "g({\"b\":\"\\n if x:\\n  </parameter> is text\\n\"})"],
    ),
    (
        &tagged::QWEN_CODER,
        "<tool_call>\n<function=f>\n<parameter=b>\none line</parameter>\n</function>\n<function=g>\n</function>\n</tool_call>",
        &["f({\"b\":\"one line\"})", "g({})"],
    ),
    (
        &tagged::QWEN_CODER,
        "<tool_call>\n<function=h>\n</function>\n</tool_call>",
        &["<tool_call>\n<function=h>\n</function>\n</tool_call>"],
    ),
    (
        &tagged::QWEN_CODER,
        "<tool_call>\n<function=f>\n<parameter=a>\n1",
        &["<tool_call>\n<function=f>\n<parameter=a>\n1"],
    ),
    (
        &glm::GLM,
        "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key><arg_value>1 < 2 </arg_value><arg_key>c</arg_key><arg_value>[1]</arg_value></tool_call>",
        &["f({\"a\":1,\"b\":\"1 < 2 \",\"c\":[1]})"],
    ),
    (
        &glm::GLM,
        "So.\n<tool_call>f\n<arg_key>b</arg_key>\n<arg_value>x</arg_value>y</arg_value>\n</tool_call>\n<tool_call>g</tool_call>",
        &["So.", "f({\"b\":\"x</arg_value>y\"})", "g({})"],
    ),
    (
        &glm::GLM,
        "<tool_call>f<arg_key>b</arg_key></tool_call>",
        &["<tool_call>f<arg_key>b</arg_key></tool_call>"],
    ),
    (&glm::GLM, "<tool_call>h</tool_call>", &["<tool_call>h</tool_call>"]),
    (
        &python::LFM2,
        "<|tool_call_start|>[f(a=1, b='it's', c=[1, \"x\"], d=True), g()]<|tool_call_end|>I look.",
        &["f({\"a\":1,\"b\":\"it's\",\"c\":[1,\"x\"],\"d\":true})", "g({})", "I look."],
    ),
    (&python::LFM2, "<|tool_call_start|>f(b=\"x)\")<|tool_call_end|>", &["f({\"b\":\"x)\"})"]),
    (
        &python::LFM2,
        "<|tool_call_start|>[f(1)]<|tool_call_end|>",
        &["<|tool_call_start|>[f(1)]<|tool_call_end|>"],
    ),
    (
        &python::LFM2,
        "<|tool_call_start|>[h(a=1)]<|tool_call_end|>",
        &["<|tool_call_start|>[h(a=1)]<|tool_call_end|>"],
    ),
    (
        &python::LFM2,
        "<|tool_call_start|>[f(a=__import__('os'))]<|tool_call_end|>",
        &["<|tool_call_start|>[f(a=__import__('os'))]<|tool_call_end|>"],
    ),
    (
        &gemma::GEMMA_4,
        "<|tool_call>call:f{a:1,b:<|\"|>it's \"so\", {x}<|\"|>,c:[1,<|\"|>x<|\"|>],d:true}<tool_call|>",
        &["f({\"a\":1,\"b\":\"it's \\\"so\\\", {x}\",\"c\":[1,\"x\"],\"d\":true})"],
    ),
    (
        &gemma::GEMMA_4,
        "I look.\n<|tool_call>call:f{}<tool_call|><|tool_call>call:g{c:[{x:null}]}<tool_call|>",
        &["I look.", "f({})", "g({\"c\":[{\"x\":null}]})"],
    ),
    (&gemma::GEMMA_4, "<|tool_call>call:h{}<tool_call|>", &["<|tool_call>call:h{}<tool_call|>"]),
    (&gemma::GEMMA_4, "<|tool_call>call:f{a:1", &["<|tool_call>call:f{a:1"]),
    (&gemma::GEMMA_4, "a <|tool", &["a <|tool"]),
    (
        &named::DEEPSEEK_FENCED,
        "<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>function<\u{ff5c}tool\u{2581}sep\u{ff5c}>f\n```json\n{\"a\": 1}\n```<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}><\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>",
        &["f({\"a\":1})"],
    ),
    (
        &named::DEEPSEEK_FENCED,
        "I look.\n<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>function<\u{ff5c}tool\u{2581}sep\u{ff5c}>f\n```json\n{\"b\": \"``` is text\"}```<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}>\n<\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>function<\u{ff5c}tool\u{2581}sep\u{ff5c}>g\n```json\n{}\n```<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}><\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>",
        &["I look.", "f({\"b\":\"``` is text\"})", "g({})"],
    ),
    (
        &named::DEEPSEEK_FENCED,
        "<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>function<\u{ff5c}tool\u{2581}sep\u{ff5c}>h\n```json\n{}\n```<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}><\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>",
        &[
            "<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>function<\u{ff5c}tool\u{2581}sep\u{ff5c}>h\n```json\n{}\n```<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}><\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>",
        ],
    ),
    (&named::DEEPSEEK_FENCED, "a <\u{ff5c}tool", &["a <\u{ff5c}tool"]),
    (
        &named::DEEPSEEK_BARE,
        "So:<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>f<\u{ff5c}tool\u{2581}sep\u{ff5c}>{\"a\": 1}<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>g<\u{ff5c}tool\u{2581}sep\u{ff5c}>{}<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}><\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>",
        &["So:", "f({\"a\":1})", "g({})"],
    ),
    (
        &named::DEEPSEEK_BARE,
        "<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>f<\u{ff5c}tool\u{2581}sep\u{ff5c}>{\"a\"",
        &[
            "<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>f<\u{ff5c}tool\u{2581}sep\u{ff5c}>{\"a\"",
        ],
    ),
    (
        &named::KIMI_K2,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_calls_section_end|>",
        &["f({\"a\":1})"],
    ),
    (
        &named::KIMI_K2,
        "I look. <|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{\"b\": \"<|tool_call_end|>\"}<|tool_call_end|><|tool_call_begin|>functions.g:4<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        &["I look.", "f({\"b\":\"<|tool_call_end|>\"})", "g({})"],
    ),
    (
        &named::KIMI_K2,
        "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        &[
            "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        ],
    ),
    (
        &tagged::MINIMAX_M2,
        "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">1</parameter>\n<parameter name=\"b\">1</parameter>\n<parameter name=\"c\">[1, \"x\"]</parameter>\n<parameter name=\"d\">true</parameter>\n</invoke>\n</minimax:tool_call>",
        &["f({\"a\":1,\"b\":\"1\",\"c\":[1,\"x\"],\"d\":true})"],
    ),
    (
        &tagged::MINIMAX_M2,
        "I look.\n<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>\n<invoke name=\"g\">\n<parameter name=\"b\">a </parameter> \"b\"</parameter>\n</invoke>\n</minimax:tool_call>",
        &["I look.", "f({})", "g({\"b\":\"a </parameter> \\\"b\\\"\"})"],
    ),
    (
        &tagged::MINIMAX_M2,
        "<minimax:tool_call>\n<invoke name=\"h\">\n</invoke>\n</minimax:tool_call>",
        &["<minimax:tool_call>\n<invoke name=\"h\">\n</invoke>\n</minimax:tool_call>"],
    ),
    (
        &json::ACTION,
        "Action:\n```json\n[\n    {\n        \"tool_name\": \"f\",\n        \"parameters\": {\"b\": \"```\"}\n    },\n    {\"tool_name\": \"g\", \"parameters\": {}}\n]```\n",
        &["f({\"b\":\"```\"})", "g({})"],
    ),
    (
        &json::ACTION,
        "So.\nAction:\n```json\n[{\"tool_name\": \"f\", \"parameters\": {}}]\n```",
        &["So.", "f({})"],
    ),
    (
        &json::ACTION,
        "Action:\n```json\n[{\"tool_name\": \"directly-answer\", \"parameters\": {}}]```",
        &["Action:\n```json\n[{\"tool_name\": \"directly-answer\", \"parameters\": {}}]```"],
    ),
    (&json::ACTION, "Action: none.", &["Action: none."]),
    (
        &json::COMMAND,
        "I look.<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"a\": 1}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
        &["I look.", "f({\"a\":1})", "g({})"],
    ),
    (
        &json::COMMAND,
        "<|START_ACTION|>[{\"tool_name\": \"f\", \"parameters\": [1]}]<|END_ACTION|>",
        &["<|START_ACTION|>[{\"tool_name\": \"f\", \"parameters\": [1]}]<|END_ACTION|>"],
    ),
    // either key is right, and none is no call
    (&json::HERMES, "<tool_call>{\"name\":\"f\",\"parameters\":{\"a\":1}}</tool_call>", &["f({\"a\":1})"]),
    (&llama::LLAMA, "{\"name\":\"f\",\"arguments\":{\"a\":1}}", &["f({\"a\":1})"]),
    (&json::HERMES, "<tool_call>{\"name\":\"f\"}</tool_call>", &["<tool_call>{\"name\":\"f\"}</tool_call>"]),
    (&llama::LLAMA, "{\"name\": \"f\"}", &["{\"name\": \"f\"}"]),
    // a text may have the mark that ends a call
    (
        &json::HERMES,
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": \"</tool_call>\"}}\n</tool_call>",
        &["f({\"b\":\"</tool_call>\"})"],
    ),
    (
        &json::HERMES,
        "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
        &["f({\"a\":1})"],
    ),
    (
        &json::HERMES,
        "<tool_call>\n```json\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n```\n</tool_call>",
        &["f({\"a\":1})"],
    ),
    (
        &json::HERMES,
        "<tool_call>no</tool_call><tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
        &["<tool_call>no</tool_call>", "f({})"],
    ),
    (
        &llama::LLAMA,
        "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {\"a\": 2}}",
        &["f({})", "g({\"a\":2})"],
    ),
    (
        &llama::LLAMA,
        "I look.\n{\"name\": \"f\", \"parameters\": {}}\n{\"name\": \"g\", \"parameters\": {}}",
        &["I look.", "f({})", "g({})"],
    ),
    // what is shown in a block of code is not called
    (
        &json::HERMES,
        "So:\n```\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n```\nDone.",
        &["So:\n```\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n```\nDone."],
    ),
    (
        &llama::LLAMA,
        "```json\n{\"name\": \"f\", \"parameters\": {}}\n```\n{\"name\": \"g\", \"parameters\": {}}",
        &["```json\n{\"name\": \"f\", \"parameters\": {}}\n```", "g({})"],
    ),
    // without what should stand around it
    (
        &tagged::QWEN_CODER,
        "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        &["f({\"a\":1})"],
    ),
    (
        &named::KIMI_K2,
        "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        &["f({})"],
    ),
    (&named::DEEPSEEK_FENCED, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", &["f({})"]),
    // a value's own lines stay
    (
        &tagged::MINIMAX_M2,
        "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"b\">\na\n</parameter>\n</invoke>\n</minimax:tool_call>",
        &["f({\"b\":\"\\na\\n\"})"],
    ),
    (
        &tagged::QWEN_CODER,
        "<tool_call>\n<function=f>\n<parameter=b>a\n</parameter>\n</function>\n</tool_call>",
        &["f({\"b\":\"a\\n\"})"],
    ),
    (
        &named::SOLAR_OPEN,
        "<|tool_call:begin|>ab12<|tool_call:name|>f<|tool_call:args|>{\"a\": 1}<|tool_call:end|>",
        &["f({\"a\":1})"],
    ),
    (
        &glm::HY3,
        "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>a</arg_key:opensource>\n<arg_value:opensource>1</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
        &["f({\"a\":1})"],
    ),
    (
        &json::MINIMAX_M1,
        "<tool_calls>\n{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"g\", \"arguments\": {}}\n</tool_calls>",
        &["f({})", "g({})"],
    ),
];
