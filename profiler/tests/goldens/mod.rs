//! Which goldens go the whole way, from `profile` over `plan` to `run`, in `chain.rs`.

/// Models of `fixtures/models`.
pub(crate) const FIXTURES_IN_CHAIN: [&str; 2] = ["oxide-dense", "oxide-moe"];

/// Models of `fixtures/golden/architectures` with a recurrent state.
pub(crate) const RECURRENT: [&str; 7] =
    ["lfm2", "lfm2moe", "qwen35", "qwen35moe", "qwen3next", "nemotron_h_moe", "granitehybrid"];

/// Models of `fixtures/golden/architectures` of other pieces.
pub(crate) const OTHERS: [&str; 4] = ["deepseek2", "deepseek3", "gemma4moe", "smallthinker"];

/// Models of `fixtures/golden/architectures` of the architectures that are not among those: by two plans each.
pub(crate) const BY_TWO_PLANS: [&str; 15] = [
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
    "arcee",
    "glm4moe",
    "gemma2",
];

/// Models whose pieces those above have, too: by two plans each, in `make chain-all`.
pub(crate) const OF_THE_SAME_PIECES: [&str; 20] = [
    "minimax-m2",
    "bailingmoe2",
    "dots1",
    "ernie4_5",
    "ernie4_5-moe",
    "exaone4",
    "exaone-moe",
    "hy_v3",
    "seed_oss",
    "olmo2",
    "olmo3",
    "smollm3",
    "internlm2",
    "qwen2moe",
    "granitehybrid-dense",
    "qwen2vl",
    "qwen3vl",
    "qwen3vlmoe",
    "mellum",
    "deepseek2-softmax",
];
