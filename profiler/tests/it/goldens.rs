//! Which goldens go the whole way, from `profile` over `plan` to `run`, in `chain.rs`.

/// Models of `fixtures/models`.
pub(crate) const FIXTURES_IN_CHAIN: [&str; 2] = ["oxide-dense", "oxide-moe"];

/// Models of `fixtures/golden/architectures` with a recurrent state.
pub(crate) const RECURRENT: [&str; 8] = [
    "qwen4exp",
    "qwen4exp-sparse",
    "lfm2",
    "lfm2moe",
    "qwen35",
    "qwen35moe",
    "nemotron_h_moe",
    "kimi-linear",
];

/// Models of `fixtures/golden/architectures` of other pieces.
pub(crate) const OTHERS: [&str; 5] = ["deepseek2", "gemma3n", "gemma4-e2b", "gemma4moe", "smallthinker"];

/// Models of `fixtures/golden/architectures` of the architectures that are not among those: by two plans each.
pub(crate) const BY_TWO_PLANS: [&str; 12] = [
    "ministral3",
    "qwen2",
    "qwen3",
    "qwen3moe",
    "olmoe",
    "phi3",
    "gemma3",
    "granite",
    "granitemoe",
    "gpt-oss",
    "bamboo",
    "nemotron_h",
];
