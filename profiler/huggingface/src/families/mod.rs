//! The architectures, as data: what their `config.json` says becomes which keys, and which tensors become which.
//!
//! A family's tensors are rules: the name behind `layers.N.`, the names in GGUF, and how the one becomes the other. What no rule
//! knows is refused by name, for weights that are left out give text that is wrong and looks plausible.

mod common;
mod tensors;

mod deepseek2;
mod ernie4_5;
mod exaone4;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod gpt_oss;
mod granite;
mod internlm2;
mod kimi_linear;
mod lfm2;
mod llama;
mod mellum;
mod mixtures;
mod nemotron_h;
mod olmo2;
mod olmoe;
mod phi3;
mod qwen;
mod qwen35;
mod qwen4exp;
mod smallthinker;

use std::path::Path;

use crate::config::Config;
use crate::error::{FolderError, Problems, quote};
use crate::index::Weights;
use crate::keys::Keys;
use crate::recipe::Recipe;

pub(crate) use tensors::{is_exact, keeps_format};

/// A tensor that is computed: its name, and its values.
type Computed = (&'static str, Vec<f32>);

/// An architecture.
#[derive(Debug)]
pub(crate) struct Family {
    /// The names of its classes in transformers.
    classes: &'static [&'static str],
    /// Whether a model of such a class is of this architecture, where one class is of several.
    fits: fn(&Config) -> Result<bool, FolderError>,
    /// Name of the architecture in GGUF.
    pub(crate) name: &'static str,
    /// Defaults of transformers.
    usual: Usual,
    /// Whole numbers that transformers takes where the file does not say them.
    defaults: &'static [(&'static str, u64)],
    /// Keys that have another name here, and the name that they usually have.
    aliases: &'static [(&'static str, &'static str)],
    /// The number of layers, where other keys say it and it may be missing.
    layers: fn(&Config) -> Option<u64>,
    /// The key of the norms' epsilon, and its name in GGUF.
    epsilon: (&'static str, &'static str),
    /// Writes the keys of the rotary embedding.
    rope: fn(&Self, &Config, &mut Keys) -> Result<(), FolderError>,
    /// Writes the family's own keys, besides the common ones.
    keys: fn(&Config, &mut Keys) -> Result<(), FolderError>,
    /// Writes keys whose values are in tensors.
    keys_of_tensors: fn(&Self, &Config, &Weights, &mut Keys) -> Result<(), FolderError>,
    /// Prefix of all names in the text part.
    body: &'static str,
    /// Tensors that are of no layer.
    outside: &'static [Rule],
    /// Tensors of a layer, besides the common ones.
    layer: &'static [&'static [Rule]],
    /// Divisors of rotary frequencies and the like, which are computed.
    computed: fn(&Config) -> Result<Vec<Computed>, FolderError>,
    /// Whether q and k are permuted: rotated values are neighbours in GGUF and half a head apart in the folder.
    permuted: bool,
    /// Whether divisors of rotary frequencies, as of Llama 3, are read.
    divided: bool,
    /// Whether a part of each head alone may be rotated, which its own keys say.
    partial: bool,
    /// Whether layers with a window may have a rotary embedding of their own.
    local_rope: bool,
    /// Whether the networks' width may be given for each layer.
    widths_of_layers: bool,
    /// Whether networks are no others with another function in them.
    own_activation: bool,
    /// The key of the networks' function.
    activation_key: &'static str,
    /// Whether there may be layers that guess further tokens, which the text does not need.
    guesses: bool,
    /// Whether a space is put before a text, where the architecture decides it.
    pub(crate) space_prefix: Option<bool>,
    /// Whether the key of a space before a text is written even if it says what is the default.
    pub(crate) tells_space_prefix: bool,
    /// Whether `special` alone decides if an added token of a SentencePiece model is a control token, and whether it replaces the model's.
    pub(crate) typed_tokens: bool,
    /// Whether text is joined by merges with its spaces as a letter.
    pub(crate) spaced: bool,
    /// The name of a pre-tokenizer, and the equivalent one of the architecture. The two differ in the token at the beginning of texts.
    pub(crate) alike: Option<(&'static str, &'static str)>,
    /// Tokens of a role by their text, where no file says it.
    pub(crate) roles: &'static [(&'static str, &'static str)],
}

/// The values of most architectures.
const PLAIN: Family = Family {
    classes: &[],
    fits: |_| Ok(true),
    name: "",
    usual: Usual { rope_theta: 10_000.0, norm_epsilon: 1e-6, tied: false, activation: "silu" },
    defaults: &[],
    aliases: &[],
    layers: |_| None,
    epsilon: ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    rope: common::rope,
    keys: |_, _| Ok(()),
    keys_of_tensors: |_, _, _, _| Ok(()),
    body: "model.",
    outside: OUTSIDE,
    layer: &[],
    computed: common::nothing,
    permuted: false,
    divided: false,
    partial: false,
    local_rope: false,
    widths_of_layers: false,
    own_activation: false,
    activation_key: "hidden_act",
    guesses: false,
    space_prefix: None,
    tells_space_prefix: false,
    typed_tokens: false,
    spaced: false,
    alike: None,
    roles: &[],
};

/// Defaults of transformers for absent keys.
#[derive(Debug)]
struct Usual {
    rope_theta: f64,
    norm_epsilon: f64,
    tied: bool,
    /// The activation, which GGUF has no key for.
    activation: &'static str,
}

/// The name and the form that a tensor of a layer has in GGUF.
#[derive(Debug)]
struct Rule {
    /// The name behind `layers.N.`; `*` stands for an expert's number.
    from: &'static str,
    /// The names behind `blk.N.`: one, or gate and up.
    to: &'static [&'static str],
    make: Make,
}

/// How a tensor becomes one of GGUF, or two.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Make {
    /// As it is.
    Same,
    /// As it is, or with its heads permuted where the family has it so.
    Query,
    /// Keys, as they are or with their heads permuted where the family has it so.
    Key,
    /// With 1 added to every value.
    PlusOne,
    /// One of the experts, or of other matrices, which lie in one tensor one after another.
    Expert,
    /// The first half of each matrix's rows, and the second.
    Halves,
    /// The even and the odd rows of each matrix, from a tensor that has them as columns.
    TransposedPairs,
    /// The rows of a tensor that has them as columns.
    Transposed,
    /// The even values of each row, and the odd ones.
    Pairs,
    /// The rows of a tensor that has them as columns, the first half and the second.
    TransposedHalves,
    /// Some of the rows of a table, which lie in one tensor that is of no layer, one after another.
    Shard,
    /// Integers, which become keys.
    Integers,
    /// Queries of an indexer, and the key behind them.
    Indexer,
    /// As it is, with rows of zeros for tokens that it lacks.
    Vocabulary,
    /// Queries, keys or values of a matrix that has them by groups of heads.
    FusedGroups,
    /// A delta net's queries, keys and values, or its gates, of a matrix that has them by key heads.
    MixedGroups,
    /// Rows of MXFP4, the even ones and the odd ones where there are two.
    Blocks,
    /// The scales of those.
    Scales,
    /// Nothing: the text does not need it.
    LeftOut,
    /// Without the dimension of one value between rows and columns.
    Squeezed,
    /// With two dimensions of one value: before the rows, and between rows and columns.
    Taps,
    /// A row for each value.
    Column,
    /// A decay's logarithm for each head.
    Decay,
    /// A row for each value, which is a decay's logarithm.
    DecayColumn,
    /// A row for each value, which is the logarithm of a bounded decay's slope.
    SlopeColumn,
    /// As it is, under the first name if it has a row for each channel, under the second if it has one for each
    /// head.
    Gates,
    /// A row for each group of the state space.
    Groups,
    /// For each head the rows of plain keys, transposed, and the rows of values.
    Latent,
    /// With the heads of the delta net's values in turns.
    ValueHeads,
    /// The decays' logarithms of those heads.
    DecayHeads,
    /// Queries, keys and, with their heads in turns, values of the delta net.
    MixedHeads,
    /// As columns with the heads of the delta net's values in turns.
    ValueColumns,
}

/// Tensors that are of no layer.
const OUTSIDE: &[Rule] = &[
    same("embed_tokens.weight", &["token_embd.weight"]),
    same("norm.weight", &["output_norm.weight"]),
    same("lm_head.weight", &["output.weight"]),
];

/// Tensors outside the layers, for models whose norms lack 1.
const OUTSIDE_PLUS_ONE: &[Rule] = &[
    same("embed_tokens.weight", &["token_embd.weight"]),
    plus_one("norm.weight", &["output_norm.weight"]),
    same("lm_head.weight", &["output.weight"]),
];

/// Tensors of every layer.
const LAYER: &[Rule] = &[
    same("input_layernorm.weight", &["attn_norm.weight"]),
    Rule { from: "self_attn.q_proj.weight", to: &["attn_q.weight"], make: Make::Query },
    Rule { from: "self_attn.q_proj.bias", to: &["attn_q.bias"], make: Make::Query },
    Rule { from: "self_attn.k_proj.weight", to: &["attn_k.weight"], make: Make::Key },
    Rule { from: "self_attn.k_proj.bias", to: &["attn_k.bias"], make: Make::Key },
    same("self_attn.v_proj.weight", &["attn_v.weight"]),
    same("self_attn.v_proj.bias", &["attn_v.bias"]),
    same("self_attn.o_proj.weight", &["attn_output.weight"]),
    same("self_attn.o_proj.bias", &["attn_output.bias"]),
    same("self_attn.q_norm.weight", &["attn_q_norm.weight"]),
    same("self_attn.k_norm.weight", &["attn_k_norm.weight"]),
    same("post_attention_layernorm.weight", &["ffn_norm.weight"]),
    same("mlp.gate_proj.weight", &["ffn_gate.weight"]),
    same("mlp.gate_proj.bias", &["ffn_gate.bias"]),
    same("mlp.up_proj.weight", &["ffn_up.weight"]),
    same("mlp.up_proj.bias", &["ffn_up.bias"]),
    same("mlp.down_proj.weight", &["ffn_down.weight"]),
    same("mlp.down_proj.bias", &["ffn_down.bias"]),
];

const fn same(from: &'static str, to: &'static [&'static str]) -> Rule {
    Rule { from, to, make: Make::Same }
}

const fn plus_one(from: &'static str, to: &'static [&'static str]) -> Rule {
    Rule { from, to, make: Make::PlusOne }
}

/// Experts as `mlp.experts.E`, or two tensors with all of them.
const EXPERTS: &[Rule] = &[
    same("mlp.gate.weight", &["ffn_gate_inp.weight"]),
    Rule { from: "mlp.experts.*.gate_proj.weight", to: &["ffn_gate_exps.weight"], make: Make::Expert },
    Rule { from: "mlp.experts.*.up_proj.weight", to: &["ffn_up_exps.weight"], make: Make::Expert },
    Rule { from: "mlp.experts.*.down_proj.weight", to: &["ffn_down_exps.weight"], make: Make::Expert },
    Rule {
        from: "mlp.experts.gate_up_proj",
        to: &["ffn_gate_exps.weight", "ffn_up_exps.weight"],
        make: Make::Halves,
    },
    same("mlp.experts.down_proj", &["ffn_down_exps.weight"]),
];

/// Every architecture that is read.
const FAMILIES: [&Family; 54] = [
    &llama::LLAMA,
    &llama::ARCEE,
    &llama::SMOLLM3,
    &internlm2::INTERNLM2,
    &llama::MISTRAL,
    &llama::MIXTRAL,
    &llama::MINISTRAL,
    &llama::MISTRAL3,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &qwen::QWEN3MOE,
    &qwen::QWEN2MOE,
    &qwen::QWEN2VL,
    &qwen::QWEN3VL,
    &qwen::QWEN3VLMOE,
    &qwen::SEED_OSS,
    &olmo2::OLMO2,
    &olmo2::OLMO3,
    &olmoe::OLMOE,
    &phi3::PHI3,
    &gemma2::GEMMA2,
    &gemma3::GEMMA3,
    &gemma3n::GEMMA3N,
    &granite::GRANITE,
    &granite::GRANITEMOE,
    &granite::GRANITEHYBRID_DENSE,
    &granite::GRANITEHYBRID,
    &gpt_oss::GPT_OSS,
    &qwen35::QWEN3NEXT,
    &qwen35::QWEN35,
    &qwen35::QWEN35MOE,
    &qwen4exp::QWEN4EXP,
    &lfm2::LFM2,
    &lfm2::LFM2MOE,
    &nemotron_h::NEMOTRON_H_MOE,
    &nemotron_h::NEMOTRON_H,
    &deepseek2::GLM4_MOE_LITE,
    &deepseek2::DEEPSEEK_V2,
    &deepseek2::DEEPSEEK_V3,
    &mixtures::GLM4MOE,
    &mixtures::MINIMAX_M2,
    &mixtures::BAILINGMOE2,
    &kimi_linear::KIMI_LINEAR,
    &kimi_linear::BAILINGMOE3,
    &mixtures::DOTS1,
    &mixtures::HY_V3,
    &ernie4_5::ERNIE4_5,
    &ernie4_5::ERNIE4_5_MOE,
    &exaone4::EXAONE4,
    &exaone4::EXAONE_MOE,
    &mellum::MELLUM,
    &gemma4::GEMMA4,
    &smallthinker::SMALLTHINKER,
    &llama::BAMBOO,
];

/// The names in GGUF of the architectures whose folders are read.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    FAMILIES.into_iter().map(|family| family.name)
}

/// The family of a model.
pub(crate) fn of(config: &Config) -> Result<&'static Family, FolderError> {
    let class = config.architecture()?;
    let of_class: Vec<_> = FAMILIES.into_iter().filter(|family| family.classes.contains(&class)).collect();
    for family in &of_class {
        if (family.fits)(config)? {
            return Ok(family);
        }
    }
    if !of_class.is_empty() {
        let kind = config.text("model_type")?.unwrap_or_default();
        let what = format!("architecture {} of type {}", quote(class), quote(kind));
        return Err(FolderError::unsupported(config.path(), what));
    }
    let mut known: Vec<_> = FAMILIES.iter().flat_map(|family| family.classes).copied().collect();
    known.dedup();
    Err(FolderError::Unsupported {
        path: config.path().to_owned(),
        what: format!("architecture {} (read are {})", quote(class), known.join(", ")),
        remedy: "give a model of one of these",
    })
}

/// The recipes of tensors of any names, types and shapes, of each family that a text names, or of every one, for fuzzing.
pub(crate) fn recipes_of_any(weights: &Weights, path: &Path, text: &str) {
    let keys = br#"{"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64, "max_position_embeddings": 64,
        "num_hidden_layers": 4, "num_nextn_predict_layers": 1, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "mamba_n_groups": 2, "n_groups": 2, "vocab_size": 300,
        "indexer_n_heads": 2, "indexer_head_dim": 16, "split_ngram_parts": 2, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "v_head_dim": 32}"#;
    let Ok(config) = Config::read(keys, path) else { return };
    let named = FAMILIES.map(|family| text.contains(&format!("\"{}\"", family.name)));
    for (family, is_named) in FAMILIES.into_iter().zip(named) {
        if is_named || !named.contains(&true) {
            drop(family.recipes(&config, weights, &mut Problems::default()));
        }
    }
}

/// Sentences on a model that its user should know.
pub(crate) fn remarks(
    family: Option<&Family>,
    config: &Config,
    weights: Option<&Weights>,
) -> Result<Vec<String>, FolderError> {
    let mut remarks = Vec::new();
    if ["vision_config", "audio_config"].into_iter().any(|key| config.value(key).is_some()) {
        remarks.push("of a model that sees pictures the part for text is taken, and nothing else".to_owned());
    }
    let is_guess = |name| family.is_some_and(|family| tensors::is_of_a_guess(family, config, name));
    if weights.is_some_and(|weights| weights.tensors().any(|(name, _)| is_guess(name))) {
        remarks.push("layers that guess further tokens are left out, which changes no text".to_owned());
    }
    let is_left_out = |name| family.is_some_and(|family| tensors::is_left_out(family, name));
    if weights.is_some_and(|weights| weights.tensors().any(|(name, _)| is_left_out(name))) {
        remarks.push("predictors of neurons are left out, which changes no text".to_owned());
    }
    Ok(remarks)
}

impl Family {
    /// Gives keys their usual names, and adds what transformers takes where the file does not say it.
    pub(crate) fn complete(&self, config: &mut Config) {
        self.aliases.iter().for_each(|&(own, usual)| config.rename(own, usual));
        self.defaults.iter().for_each(|&(key, value)| config.add(key, value));
        if let Some(layers) = (self.layers)(config) {
            config.add("num_hidden_layers", layers);
        }
    }

    /// The keys of the architecture.
    pub(crate) fn keys(&self, config: &Config) -> Result<Keys, FolderError> {
        let mut keys = Keys::default();
        keys.text("general.architecture", self.name);
        keys.text("general.type", "model");
        common::keys(self, config, &mut keys)?;
        (self.keys)(config, &mut keys)?;
        Ok(keys)
    }

    /// Adds the keys whose values are in tensors.
    pub(crate) fn add_keys_of(
        &self,
        config: &Config,
        weights: &Weights,
        keys: &mut Keys,
    ) -> Result<(), FolderError> {
        (self.keys_of_tensors)(self, config, weights, keys)
    }

    /// Recipes of every tensor of the GGUF file; problems are collected.
    pub(crate) fn recipes(&self, config: &Config, weights: &Weights, problems: &mut Problems) -> Vec<Recipe> {
        tensors::recipes(self, config, weights, problems)
    }

    /// The rule for a tensor that is of no layer.
    fn rule_outside(&self, name: &str) -> Option<(&'static Rule, Option<u64>)> {
        rule_among(self.outside, name)
    }

    /// The rule for a name behind `layers.N.`, and the expert's number where it has one.
    fn rule(&self, role: &str) -> Option<(&'static Rule, Option<u64>)> {
        self.layer.iter().copied().chain([LAYER]).find_map(|rules| rule_among(rules, role))
    }
}

/// The rule for a name, and the number that stands for `*` where it has one.
fn rule_among(rules: &'static [Rule], name: &str) -> Option<(&'static Rule, Option<u64>)> {
    rules.iter().find_map(|rule| match rule.from.split_once('*') {
        None => (rule.from == name).then_some((rule, None)),
        Some((before, after)) => {
            let number = name.strip_prefix(before)?.strip_suffix(after)?;
            Some((rule, Some(tensors::plain_number(number)?)))
        }
    })
}
