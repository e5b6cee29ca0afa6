//! Tables of the keys of each endpoint.

/// Keys that an endpoint does, and keys that it refuses beside [`REFUSED`].
#[derive(Debug)]
pub(in super::super) struct Endpoint {
    done: &'static [&'static [&'static str]],
    pub(super) refused: &'static [(&'static str, Neutral)],
}

impl Endpoint {
    /// All keys that it does.
    pub(super) fn done(&self) -> impl Iterator<Item = &'static str> {
        self.done.iter().copied().flatten().copied()
    }

    /// Whether its answers are drawn token by token.
    pub(super) fn draws(&self) -> bool {
        self.does("temperature") || self.does("options")
    }

    /// Whether it does a key.
    pub(super) fn does(&self, key: &str) -> bool {
        self.done().any(|done| done == key)
    }
}

/// JSON values that make a refused key harmless: they ask for nothing.
pub(in super::super) type Neutral = &'static [&'static str];

/// Keys of sampling and of an answer's length, which all endpoints with answers do.
pub(super) const SAMPLING: &[&str] = &[
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repeat_penalty",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "stream",
    "stream_options",
];
/// Keys that steer reasoning.
const REASONING: &[&str] =
    &["reasoning_effort", "reasoning", "enable_thinking", "thinking_budget", "chat_template_kwargs"];
const TOOLS: &[&str] = &["tools", "tool_choice", "parallel_tool_calls"];
pub(super) const LENGTH: &[&str] = &["max_tokens", "stop"];
/// The one value of `n` where an answer has one choice.
const ONE: Neutral = &["1"];

/// `/v1/chat/completions`.
pub(in super::super) const CHAT: Endpoint = Endpoint {
    done: &[
        SAMPLING,
        LENGTH,
        REASONING,
        TOOLS,
        &[
            "messages",
            "max_completion_tokens",
            "n",
            "logprobs",
            "top_logprobs",
            "response_format",
            "thinking",
        ],
    ],
    refused: &[("functions", OFF), ("function_call", &["\"none\"", "\"auto\""])],
};
/// `/v1/completions`.
pub(in super::super) const COMPLETIONS: Endpoint = Endpoint {
    done: &[
        SAMPLING,
        LENGTH,
        &["prompt", "max_completion_tokens", "n", "logprobs", "echo", "response_format"],
    ],
    refused: &[("suffix", OFF)],
};
/// `/v1/responses`.
pub(in super::super) const RESPONSES: Endpoint = Endpoint {
    done: &[
        SAMPLING,
        TOOLS,
        &["input", "instructions", "max_output_tokens", "text", "reasoning", "chat_template_kwargs"],
        &["previous_response_id", "store", "stop"],
    ],
    refused: &[("n", ONE), ("background", OFF), ("conversation", OFF), ("max_tool_calls", OFF)],
};
/// `/v1/messages`.
pub(in super::super) const MESSAGES: Endpoint = Endpoint {
    done: &[
        SAMPLING,
        &["messages", "system", "max_tokens", "stop_sequences", "tools", "tool_choice", "thinking"],
        &["output_config", "output_format", "chat_template_kwargs"],
    ],
    refused: &[("n", ONE), ("mcp_servers", OFF), ("container", OFF)],
};
/// `/v1/embeddings`.
pub(in super::super) const EMBEDDINGS: Endpoint =
    Endpoint { done: &[&["model", "input", "encoding_format", "dimensions"]], refused: &[("stream", OFF)] };
/// Ollama's `/api/chat`.
pub(in super::super) const OLLAMA_CHAT: Endpoint =
    Endpoint { done: &[OLLAMA, &["messages", "tools"]], refused: &[("n", ONE)] };
/// Ollama's `/api/generate`.
pub(in super::super) const OLLAMA_GENERATE: Endpoint = Endpoint {
    done: &[OLLAMA, &["prompt", "system", "raw"]],
    refused: &[("n", ONE), ("suffix", OFF), ("template", OFF), ("images", OFF), ("context", OFF)],
};
const OLLAMA: &[&str] = &["model", "format", "options", "stream", "think"];
/// `/tokenize`, in llama.cpp's words or vLLM's.
pub(in super::super) const TOKENIZE: Endpoint = Endpoint {
    done: &[&["model", "content", "prompt", "add_special", "parse_special", "with_pieces"]],
    refused: &[],
};
/// `/detokenize`.
pub(in super::super) const DETOKENIZE: Endpoint = Endpoint { done: &[&["model", "tokens"]], refused: &[] };

pub(super) const ENDPOINTS: [&Endpoint; 9] = [
    &CHAT,
    &COMPLETIONS,
    &RESPONSES,
    &MESSAGES,
    &EMBEDDINGS,
    &OLLAMA_CHAT,
    &OLLAMA_GENERATE,
    &TOKENIZE,
    &DETOKENIZE,
];

/// Values that turn a key off.
pub(in super::super) const OFF: Neutral = &["false", "0", "\"\"", "[]", "{}"];

/// Values that ask for nothing, of keys that another endpoint does: a key that is not here has none but [`EMPTY`].
pub(super) const NEUTRAL_ELSEWHERE: &[(&str, Neutral)] = &[
    ("add_special", OFF),
    ("echo", OFF),
    ("encoding_format", &["\"float\""]),
    ("logprobs", OFF),
    ("n", ONE),
    ("parallel_tool_calls", &["true"]),
    ("parse_special", &["true"]),
    ("raw", OFF),
    // conversations are stored for `/v1/responses` alone, so the key says nothing elsewhere
    ("store", &["true", "false"]),
    ("stream", OFF),
    ("tool_choice", &["\"auto\"", "\"none\""]),
    ("top_logprobs", OFF),
    ("with_pieces", OFF),
];
pub(super) const EMPTY: Neutral = &["\"\"", "[]", "{}"];

/// Keys that change nothing of an answer: the server caches every prompt, and has one queue for all users.
pub(super) const HARMLESS: &[&str] = &[
    "anthropic_version",
    "betas",
    "cache_control",
    "cache_prompt",
    "client_metadata",
    "context_management",
    "id_slot",
    "include",
    "inference_geo",
    "keep_alive",
    "metadata",
    "prediction",
    "priority",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "provider",
    "request_id",
    "return_progress",
    "return_tokens",
    "safety_identifier",
    "service_tier",
    "speed",
    "timings_per_token",
    "truncation",
    "usage",
    "user",
    "verbosity",
];

/// Keys of servers and clients that would change an answer, at any endpoint.
pub(super) const REFUSED: &[(&str, Neutral)] = &[
    ("add_generation_prompt", &["true"]),
    ("add_special_tokens", &["true"]),
    ("allowed_token_ids", OFF),
    ("audio", OFF),
    ("bad_words", OFF),
    ("best_of", &["1"]),
    ("chat_template", OFF),
    ("continue_final_message", OFF),
    ("documents", OFF),
    ("dry_multiplier", OFF),
    ("dynatemp_range", OFF),
    ("grammar", OFF),
    ("guided_choice", OFF),
    ("guided_grammar", OFF),
    ("guided_json", OFF),
    ("guided_regex", OFF),
    ("ignore_eos", OFF),
    ("image_data", OFF),
    ("include_stop_str_in_output", OFF),
    ("json_schema", OFF),
    ("length_penalty", &["1", "1.0"]),
    ("logits_processors", OFF),
    ("lora", OFF),
    ("min_tokens", OFF),
    ("mirostat", OFF),
    ("modalities", &["[\"text\"]"]),
    ("plugins", OFF),
    ("prompt_logprobs", OFF),
    ("reasoning_format", &["\"auto\"", "\"deepseek\""]),
    ("samplers", OFF),
    ("skip_special_tokens", &["true"]),
    ("stop_token_ids", OFF),
    ("structured_outputs", OFF),
    ("tfs_z", &["1", "1.0"]),
    ("top_n_sigma", &["-1", "-1.0", "0", "0.0"]),
    ("transforms", OFF),
    ("truncate_prompt_tokens", OFF),
    ("typical_p", &["1", "1.0"]),
    ("use_beam_search", OFF),
    ("web_search_options", &[]),
    ("xtc_probability", OFF),
];

/// Keys inside messages, tools and formats that would change an answer, wherever they stand.
pub(super) const REFUSED_INSIDE: &[(&str, Neutral)] =
    &[("audio", OFF), ("custom", OFF), ("function_call", OFF), ("partial", OFF), ("prefix", OFF)];

/// Whether a key's name may stand in the log: a client's own words may not.
pub(in super::super) fn is_known(key: &str) -> bool {
    let mut refused = ENDPOINTS.iter().flat_map(|endpoint| endpoint.refused).chain(REFUSED);
    HARMLESS.contains(&key) || is_done(key) || refused.any(|(known, _)| *known == key)
}

/// Whether any endpoint does a key.
pub(super) fn is_done(key: &str) -> bool {
    ENDPOINTS.iter().any(|endpoint| endpoint.does(key))
}
