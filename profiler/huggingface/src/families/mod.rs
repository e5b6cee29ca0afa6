//! The architectures, as data: what their `config.json` says becomes which keys, and which tensors become which.
//!
//! A family's tensors are rules: the name behind `layers.N.`, the names in GGUF, and how the one becomes the other. What no rule
//! knows is refused by name, for weights that are left out give text that is wrong and looks plausible.

mod common;
mod gemma3;
mod gpt_oss;
mod granite;
mod llama;
mod olmoe;
mod phi3;
mod qwen;

use std::collections::BTreeMap;

use kernels::Format;

use crate::config::Config;
use crate::error::{FolderError, quote};
use crate::index::Weights;
use crate::keys::Keys;
use crate::recipe::{BLOCK, Content, Recipe, Rows};
use crate::safetensors::{Kind, Tensor};

/// An architecture.
#[derive(Debug)]
pub(crate) struct Family {
    /// The names of its classes in transformers.
    classes: &'static [&'static str],
    /// Its name in GGUF.
    pub(crate) name: &'static str,
    /// What transformers takes where the file does not say it.
    usual: Usual,
    /// Keys of its own, beside those that all have.
    keys: fn(&Config, &mut Keys) -> Result<(), FolderError>,
    /// Tensors of a layer, beside those that all have.
    layer: &'static [Rule],
    /// Divisors of rotary frequencies and the like, which are computed.
    computed: fn(&Config) -> Result<Vec<(&'static str, Vec<f32>)>, FolderError>,
    /// Whether q and k are turned: rotated values are neighbours in GGUF and half a head apart in the folder.
    turned: bool,
    /// What every norm of the final state lacks.
    norm_plus: f32,
    /// Whether a space is put before a text, where the architecture decides it.
    pub(crate) space_prefix: Option<bool>,
    /// Whole numbers that transformers takes where the file does not say them.
    defaults: &'static [(&'static str, u64)],
}

/// What transformers takes where the file does not say it.
#[derive(Debug)]
struct Usual {
    rope_theta: f64,
    norm_epsilon: f64,
    tied: bool,
    /// The activation, which GGUF has no key for.
    activation: &'static str,
}

/// What becomes of a tensor of a layer.
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
    /// As it is, or with its heads turned where the family has it so.
    Query,
    /// The same for keys.
    Key,
    /// With 1 added to every value.
    PlusOne,
    /// One of the experts, which lie in one tensor one after another.
    Expert,
    /// The first half of each matrix's rows, and the second.
    Halves,
    /// Of each matrix the even rows, and the odd ones, of a tensor that has them as columns.
    TransposedPairs,
    /// The rows of a tensor that has them as columns.
    Transposed,
    /// The even values of each row, and the odd ones.
    Pairs,
    /// Rows of MXFP4, the even ones and the odd ones where there are two.
    Blocks,
    /// The scales of those.
    Scales,
}

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
const FAMILIES: [&Family; 11] = [
    &llama::LLAMA,
    &llama::MINISTRAL,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &qwen::QWEN3MOE,
    &olmoe::OLMOE,
    &phi3::PHI3,
    &gemma3::GEMMA3,
    &granite::GRANITE,
    &granite::GRANITEMOE,
    &gpt_oss::GPT_OSS,
];

/// The family of a model.
pub(crate) fn of(config: &Config) -> Result<&'static Family, FolderError> {
    let class = config.architecture()?;
    let found = FAMILIES.into_iter().find(|family| family.classes.contains(&class));
    found.ok_or_else(|| {
        let known: Vec<_> = FAMILIES.iter().flat_map(|family| family.classes).copied().collect();
        FolderError::Unsupported {
            path: config.path().to_owned(),
            what: format!("architecture {} (read are {})", quote(class), known.join(", ")),
            remedy: "give a model of one of these",
        }
    })
}

/// Ends of names that are not weights.
const LEFT_OUT: [&str; 3] = [".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq"];

impl Family {
    /// Adds what transformers takes where the file does not say it.
    pub(crate) fn complete(&self, config: &mut Config) {
        self.defaults.iter().for_each(|&(key, value)| config.add(key, value));
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

    /// What every tensor of the GGUF file is made of.
    pub(crate) fn recipes(&self, config: &Config, weights: &Weights) -> Result<Vec<Recipe>, FolderError> {
        let tied = config.flag("tie_word_embeddings")?.unwrap_or(self.usual.tied);
        let mut made = Vec::new();
        for (name, values) in (self.computed)(config)? {
            let shape = vec![values.len() as u64];
            made.push(Recipe {
                name: name.to_owned(),
                shape,
                format: Format::F32,
                content: Content::Values(values),
            });
        }
        let mut experts: BTreeMap<String, BTreeMap<u64, &str>> = BTreeMap::new();
        for (name, tensor) in weights.tensors() {
            let path = || weights.path_of(name).unwrap_or(config.path());
            if LEFT_OUT.iter().any(|end| name.ends_with(end)) || (tied && name.ends_with("lm_head.weight")) {
                continue;
            }
            let inside = |name: &'_ str| -> Option<String> {
                let name = name.strip_prefix("model.").unwrap_or(name);
                let name = name.strip_prefix("language_model.").unwrap_or(name);
                Some(name.strip_prefix("model.").unwrap_or(name).to_owned())
            };
            if common::is_of_pictures(name) {
                continue;
            }
            let Some(own) = inside(name) else { continue };
            let unknown = || FolderError::unsupported(path(), format!("tensor {}", quote(name)));
            match own.as_str() {
                "embed_tokens.weight" => made.push(self.make(
                    Make::Same,
                    "token_embd.weight",
                    0,
                    1,
                    name,
                    tensor,
                    config,
                    weights,
                )?),
                "norm.weight" => {
                    let make = if self.norm_plus == 0.0 { Make::Same } else { Make::PlusOne };
                    made.push(self.make(make, "output_norm.weight", 0, 1, name, tensor, config, weights)?);
                }
                "lm_head.weight" => {
                    made.push(self.make(Make::Same, "output.weight", 0, 1, name, tensor, config, weights)?)
                }
                _ => {
                    let (layer, role) = layer_of(&own).ok_or_else(unknown)?;
                    let (rule, expert) = self.rule(role).ok_or_else(unknown)?;
                    for (part, to) in rule.to.iter().enumerate() {
                        let to = format!("blk.{layer}.{to}");
                        match (rule.make, expert) {
                            (Make::Scales, _) => {}
                            (Make::Expert, Some(expert)) => {
                                experts.entry(to).or_default().insert(expert, name);
                            }
                            (make, _) => made.push(self.make(
                                make,
                                &to,
                                part,
                                rule.to.len(),
                                name,
                                tensor,
                                config,
                                weights,
                            )?),
                        }
                    }
                }
            }
        }
        for (to, experts) in experts {
            made.push(stacked(&to, &experts, config, weights)?);
        }
        if !tied
            && weights.tensor("lm_head.weight").is_none()
            && !made.iter().any(|recipe| recipe.name == "output.weight")
        {
            return Err(FolderError::damaged(
                config.path(),
                "the head is not the embedding (key `tie_word_embeddings`), and there is no tensor `lm_head.weight`",
            ));
        }
        let mut names: Vec<&str> = made.iter().map(|recipe| recipe.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(FolderError::damaged(
                config.path(),
                format!("two tensors would become {}", quote(twice[0])),
            ));
        }
        Ok(made)
    }

    /// The rule for a name behind `layers.N.`, and the expert's number where it has one.
    fn rule(&self, role: &str) -> Option<(&'static Rule, Option<u64>)> {
        let own = self.layer.iter().chain(LAYER);
        own.into_iter().find_map(|rule| match rule.from.split_once('*') {
            None => (rule.from == role).then_some((rule, None)),
            Some((before, after)) => {
                let number = role.strip_prefix(before)?.strip_suffix(after)?;
                Some((rule, Some(plain_number(number)?)))
            }
        })
    }

    /// A tensor of the GGUF file, of one of the folder: the `part`-th of so many.
    #[expect(clippy::too_many_arguments, reason = "what a tensor is made of")]
    fn make(
        &self,
        make: Make,
        to: &str,
        part: usize,
        parts: usize,
        name: &str,
        tensor: &Tensor,
        config: &Config,
        weights: &Weights,
    ) -> Result<Recipe, FolderError> {
        let path = weights.path_of(name).unwrap_or(config.path());
        let shaped = |fact: &str| {
            FolderError::damaged(path, format!("tensor {} has shape {:?}, {fact}", quote(name), tensor.shape))
        };
        let shape = tensor.shape.as_slice();
        if shape.is_empty() || shape.len() > 4 || shape.contains(&0) {
            return Err(shaped("which is none of a weight"));
        }
        if make == Make::Blocks {
            return blocks(to, part as u64, parts as u64, name, tensor, config, weights);
        }
        let format = match tensor.kind {
            Kind::F32 => Format::F32,
            Kind::F16 => Format::F16,
            Kind::BF16 => Format::BF16,
            Kind::U8 | Kind::Other(_) => {
                return Err(FolderError::unsupported(
                    path,
                    format!("type {} of tensor {}", quote(&tensor.kind_name), quote(name)),
                ));
            }
        };
        let format = if is_exact(to, shape) { Format::F32 } else { format };
        let all = Rows::all(name, tensor);
        let (part, parts) = (part as u64, parts as u64);
        let (shape, rows) = match make {
            Make::Same | Make::PlusOne => (shape.to_vec(), vec![all]),
            Make::Query | Make::Key if self.turned => {
                let heads = config.size("num_attention_heads")?;
                let own = config.whole("num_key_value_heads")?.unwrap_or(heads);
                let turned_heads = Some(if make == Make::Query { heads } else { own });
                let rows = shape[0];
                let columns = tensor.values() / rows;
                (shape.to_vec(), vec![Rows { turned_heads, ..Rows::run(name, 0, rows, columns) }])
            }
            Make::Query | Make::Key => (shape.to_vec(), vec![all]),
            Make::Halves => {
                let [before @ .., rows, columns] = shape else { return Err(shaped("which has no rows")) };
                if !rows.is_multiple_of(parts) {
                    return Err(shaped("whose rows have no halves"));
                }
                let (half, matrices) = (rows / parts, before.iter().product::<u64>());
                let of_matrix =
                    |matrix| Rows::run(name, matrix * rows * columns + part * half * columns, half, *columns);
                ([before, &[half, *columns]].concat(), (0..matrices).map(of_matrix).collect())
            }
            Make::Transposed | Make::TransposedPairs => {
                let [matrices, columns, rows] = *shape else {
                    return Err(shaped("which is none of experts"));
                };
                if !rows.is_multiple_of(parts) {
                    return Err(shaped("whose rows are no pairs"));
                }
                let of_matrix = |matrix| Rows {
                    row_step: parts,
                    column_step: rows,
                    ..Rows::run(name, matrix * rows * columns + part, rows / parts, columns)
                };
                (vec![matrices, rows / parts, columns], (0..matrices).map(of_matrix).collect())
            }
            Make::Pairs => {
                let [rows, columns] = *shape else { return Err(shaped("which is none of experts' biases")) };
                if !columns.is_multiple_of(parts) {
                    return Err(shaped("whose values are no pairs"));
                }
                let own = Rows {
                    row_step: columns,
                    column_step: parts,
                    ..Rows::run(name, part, rows, columns / parts)
                };
                (vec![rows, columns / parts], vec![own])
            }
            Make::Expert | Make::Blocks | Make::Scales => {
                return Err(FolderError::unsupported(path, format!("tensor {}", quote(name))));
            }
        };
        if !rows.iter().all(|rows| rows.fits(tensor.values())) {
            return Err(shaped("which does not fit its heads"));
        }
        let plus = if make == Make::PlusOne { 1.0 } else { 0.0 };
        let made =
            Recipe { name: to.to_owned(), shape, format, content: Content::Rows { parts: rows, plus } };
        Ok(made)
    }
}

/// Whether a tensor is stored as single-precision numbers whatever the others are.
pub(crate) fn is_exact(name: &str, shape: &[u64]) -> bool {
    shape.len() < 2
        || !name.ends_with(".weight")
        || name.ends_with("_norm.weight")
        || name.ends_with("ffn_gate_inp.weight")
}

/// All experts of a role as one tensor.
fn stacked(
    to: &str,
    experts: &BTreeMap<u64, &str>,
    config: &Config,
    weights: &Weights,
) -> Result<Recipe, FolderError> {
    let damaged = |fact: String| FolderError::damaged(config.path(), fact);
    let mut shape = Vec::new();
    let mut format = Format::F32;
    let mut parts = Vec::new();
    for (number, (expert, name)) in (0..).zip(experts) {
        let Some(tensor) = weights.tensor(name) else { continue };
        if *expert != number {
            return Err(damaged(format!("expert {number} of {} is missing", quote(to))));
        }
        let own = match tensor.kind {
            Kind::F32 => Format::F32,
            Kind::F16 => Format::F16,
            Kind::BF16 => Format::BF16,
            Kind::U8 | Kind::Other(_) => {
                return Err(FolderError::unsupported(
                    config.path(),
                    format!("type {} of tensor {}", quote(&tensor.kind_name), quote(name)),
                ));
            }
        };
        if number == 0 {
            (shape, format) = (tensor.shape.clone(), own);
        }
        if shape != tensor.shape || format != own || shape.len() != 2 || shape.contains(&0) {
            return Err(damaged(format!("experts of {} differ in their shape or type", quote(to))));
        }
        parts.push(Rows::all(name, tensor));
    }
    shape.insert(0, parts.len() as u64);
    Ok(Recipe { name: to.to_owned(), shape, format, content: Content::Rows { parts, plus: 0.0 } })
}

/// A tensor of MXFP4, whose scales lie in another of the folder.
fn blocks(
    to: &str,
    first: u64,
    step: u64,
    name: &str,
    tensor: &Tensor,
    config: &Config,
    weights: &Weights,
) -> Result<Recipe, FolderError> {
    let path = weights.path_of(name).unwrap_or(config.path());
    let scales_name = name.strip_suffix("_blocks").map(|name| format!("{name}_scales")).unwrap_or_default();
    let scales = weights.tensor(&scales_name);
    let ([experts, rows, columns, 16], Kind::U8) = (tensor.shape.as_slice(), tensor.kind) else {
        return Err(FolderError::damaged(
            path,
            format!("tensor {} has shape {:?}, which is none of MXFP4", quote(name), tensor.shape),
        ));
    };
    let fits =
        scales.is_some_and(|scales| scales.kind == Kind::U8 && scales.shape == [*experts, *rows, *columns]);
    if !fits || !rows.is_multiple_of(step) {
        return Err(FolderError::damaged(
            path,
            format!("tensor {} has no scales {} of its shape", quote(name), quote(&scales_name)),
        ));
    }
    let Some(values) = columns.checked_mul(BLOCK as u64) else {
        return Err(FolderError::damaged(path, format!("tensor {} is too large", quote(name))));
    };
    let content = Content::Blocks { blocks: name.to_owned(), scales: scales_name, first, step };
    Ok(Recipe {
        name: to.to_owned(),
        shape: vec![*experts, rows / step, values],
        format: Format::Mxfp4,
        content,
    })
}

/// A layer's number and the rest of a name behind `layers.`.
fn layer_of(name: &str) -> Option<(u64, &str)> {
    let (layer, role) = name.strip_prefix("layers.")?.split_once('.')?;
    Some((plain_number(layer)?, role))
}

/// A number without a sign or leading zeros, of a few digits.
fn plain_number(text: &str) -> Option<u64> {
    let plain = text == "0" || (!text.starts_with('0') && text.len() <= 5);
    if plain && text.bytes().all(|digit| digit.is_ascii_digit()) { text.parse().ok() } else { None }
}
