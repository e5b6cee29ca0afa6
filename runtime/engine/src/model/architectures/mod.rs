//! Readers: one small file for each architecture, which knows its keys and tensor names and makes its
//! description.
//!
//! A reader requests its values from [`Keys`]. `Keys` notes missing, mistyped or unsupported values and
//! returns usable ones, so that a reader has no error paths and all problems are reported together.
//! Unrequested keys must be known to change nothing.

mod keys;
mod mixture;
mod shapes;

mod deepseek2;
mod dots1;
mod ernie4_5;
mod exaone4;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm4moe;
mod gpt_oss;
mod granite;
mod kimi_linear;
mod lfm2;
mod llama;
mod mellum;
mod minimax_m2;
mod nemotron_h;
mod olmo2;
mod olmoe;
mod phi3;
mod qwen;
mod qwen35;
mod qwen4exp;
mod smallthinker;

use super::config::{Config, ConfigError, Role};
use super::gguf::Gguf;
use keys::Keys;

/// A reader: turns a file's keys into a description.
type Read = fn(&Keys<'_>) -> (Config, Names);

/// The readers by architecture, as named in GGUF.
const READERS: [(&str, Read); 47] = [
    ("llama", llama::read),
    ("bamboo", llama::read_bamboo),
    ("mistral3", llama::read_mistral3),
    ("internlm2", llama::read_internlm2),
    ("arcee", llama::read_arcee),
    ("smollm3", llama::read_smollm3),
    ("qwen2", qwen::read_qwen2),
    ("qwen2moe", qwen::read_qwen2moe),
    ("qwen2vl", qwen::read_qwen2vl),
    ("qwen3", qwen::read_qwen3),
    ("qwen3moe", qwen::read_qwen3moe),
    ("qwen3vl", qwen::read_qwen3vl),
    ("qwen3vlmoe", qwen::read_qwen3vl),
    ("qwen3next", qwen35::read_next),
    ("qwen35", qwen35::read_dense),
    ("qwen35moe", qwen35::read_experts),
    ("qwen4exp", qwen4exp::read),
    ("seed_oss", qwen::read_seed_oss),
    ("olmo2", olmo2::read),
    ("olmoe", olmoe::read),
    ("phi3", phi3::read),
    ("gemma2", gemma2::read),
    ("gemma3", gemma3::read),
    ("gemma3n", gemma3n::read),
    ("gemma4", gemma4::read),
    ("granite", granite::read_dense),
    ("granitemoe", granite::read_experts),
    ("granitehybrid", granite::read_hybrid),
    ("lfm2", lfm2::read_dense),
    ("lfm2moe", lfm2::read_experts),
    ("nemotron_h", nemotron_h::read),
    ("nemotron_h_moe", nemotron_h::read),
    ("smallthinker", smallthinker::read),
    ("deepseek2", deepseek2::read),
    ("glm4moe", glm4moe::read),
    ("minimax-m2", minimax_m2::read),
    ("kimi-linear", kimi_linear::read_kimi),
    ("bailingmoe3", kimi_linear::read_bailingmoe3),
    ("bailingmoe2", dots1::read_bailingmoe2),
    ("dots1", dots1::read_dots1),
    ("hy_v3", dots1::read_hy_v3),
    ("ernie4_5", ernie4_5::read),
    ("ernie4_5-moe", ernie4_5::read),
    ("exaone4", exaone4::read_dense),
    ("exaone-moe", exaone4::read_experts),
    ("mellum", mellum::read),
    ("gpt-oss", gpt_oss::read),
];

/// The GGUF names of the supported architectures.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    READERS.into_iter().map(|(name, _)| name)
}

/// The supported architectures, as a list for a message.
pub(super) fn names() -> String {
    let names = READERS.map(|(name, _)| name);
    let (last, others) = (names[names.len() - 1], &names[..names.len() - 1]);
    format!("{} or {last}", others.join(", "))
}

/// Names of tensors where a file's differ from [`Role::name`].
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    /// Other names, after `blk.N.`.
    others: Vec<(Role, &'static str)>,
    /// The tensor with gate and up stacked, after `blk.N.`.
    pub(super) gate_up: Option<&'static str>,
    /// Whether the experts' down may have a row for each neuron, as its shape shows.
    pub(super) down_rows: bool,
    /// The norm before the head, if that is not `output_norm.weight`.
    pub(super) output_norm: Option<&'static str>,
    /// Tensors that files may have and the model does not use, such as keys of blocks that read another's.
    pub(super) unused: Vec<String>,
    /// Layers after the last that are no part of the model itself, such as layers that predict further
    /// tokens.
    pub(super) left_out: usize,
}

impl Names {
    /// The name of a role, after `blk.N.`.
    pub(super) fn of(&self, role: Role) -> &'static str {
        self.others.iter().find(|(other, _)| *other == role).map_or(role.name(), |(_, name)| name)
    }
}

/// The description of a file's model and the names of its tensors.
///
/// # Errors
/// All problems with the keys.
pub(super) fn read(gguf: &Gguf<'_>) -> Result<(Config, Names), Vec<ConfigError>> {
    if let Some(problem) = no_model(gguf) {
        return Err(vec![problem]);
    }
    let architecture = match architecture(gguf) {
        Ok(architecture) => architecture,
        Err(error) => return Err(vec![error]),
    };
    let Some((_, read)) = READERS.iter().find(|(name, _)| *name == architecture) else {
        return Err(vec![ConfigError::Architecture { found: architecture.to_owned() }]);
    };
    let keys = Keys::new(gguf, architecture);
    let (config, names) = read(&keys);
    let mut problems = keys.finish();
    if problems.is_empty() {
        problems = config.problems();
    }
    if problems.is_empty() { Ok((config, names)) } else { Err(problems) }
}

/// The problem of a file that is no text model.
fn no_model(gguf: &Gguf<'_>) -> Option<ConfigError> {
    let text = |key: &str| gguf.text(key).ok().flatten().unwrap_or_default();
    let (kind, architecture) = (text("general.type"), text("general.architecture"));
    let (what, remedy) = match (kind, architecture) {
        ("adapter", _) => (
            "an adapter (LoRA), which changes a model",
            "merge both into one file with llama.cpp's `llama-export-lora`, and give that",
        ),
        ("mmproj", _) | (_, "clip") => (
            "the part of a model that sees or hears",
            "give the file of its text, which is published beside it",
        ),
        ("imatrix", _) => ("statistics for quantising a model", "give the model's own file"),
        ("vocab", _) => ("a vocabulary without weights", "give the model's own file"),
        (_, name) if is_encoder(name) => (
            "a model that makes embeddings and writes no text",
            "give a model that writes; embeddings come from those with `pooling_type`",
        ),
        _ => return None,
    };
    Some(ConfigError::NoModel { what, remedy })
}

/// Whether an architecture's models see a whole text at once and generate none.
fn is_encoder(architecture: &str) -> bool {
    let names = ["bert", "t5encoder", "gemma-embedding", "llama-embed"];
    architecture.ends_with("-bert")
        || architecture.contains("-bert-")
        || architecture == "eurobert"
        || names.contains(&architecture)
}

fn architecture<'g>(gguf: &'g Gguf<'_>) -> Result<&'g str, ConfigError> {
    Ok(keys::required("general.architecture", gguf.text("general.architecture")?)?)
}
