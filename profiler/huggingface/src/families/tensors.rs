//! The tensors of a folder as recipes of those of the GGUF file, by a family's rules.

use std::collections::BTreeMap;
use std::path::Path;

use kernels::Format;

use crate::config::Config;
use crate::error::{FolderError, Problems, quote};
use crate::index::Weights;
use crate::recipe::{BLOCK, Content, Recipe, Rows};
use crate::safetensors::{Kind, Tensor};

use super::common::is_of_pictures;
use super::{Family, Make};

/// Ends of names that are not weights.
const LEFT_OUT: [&str; 3] = [".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq"];

/// What a tensor of the folder becomes: a tensor of the GGUF file, or a part of so many, or an expert of one.
struct Becomes {
    make: Make,
    expert: Option<u64>,
    to: String,
    parts: (u64, u64),
}

/// A tensor of the folder.
#[derive(Clone, Copy)]
struct FolderTensor<'a> {
    name: &'a str,
    tensor: &'a Tensor,
    /// Its file.
    path: &'a Path,
}

impl FolderTensor<'_> {
    fn shaped(&self, fact: &str) -> FolderError {
        FolderError::damaged(
            self.path,
            format!("tensor {} has shape {:?}, {fact}", quote(self.name), self.tensor.shape),
        )
    }

    fn unknown(&self) -> FolderError {
        FolderError::unsupported(self.path, format!("tensor {}", quote(self.name)))
    }

    /// What it becomes, by its name.
    fn becomes(&self, family: &Family) -> Result<Vec<Becomes>, FolderError> {
        let norm = if family.norm_plus == 0.0 { Make::Same } else { Make::PlusOne };
        let whole =
            |make, to: &str| Ok(vec![Becomes { make, expert: None, to: to.to_owned(), parts: (0, 1) }]);
        match of_text(self.name) {
            "embed_tokens.weight" => whole(Make::Same, "token_embd.weight"),
            "norm.weight" => whole(norm, "output_norm.weight"),
            "lm_head.weight" => whole(Make::Same, "output.weight"),
            own => {
                let (layer, role) = layer_of(own).ok_or_else(|| self.unknown())?;
                let (rule, expert) = family.rule(role).ok_or_else(|| self.unknown())?;
                let parts = rule.to.len() as u64;
                let of = |(part, to): (u64, &&str)| {
                    let to = format!("blk.{layer}.{to}");
                    Becomes { make: rule.make, expert, to, parts: (part, parts) }
                };
                Ok((0..).zip(rule.to).map(of).collect())
            }
        }
    }

    /// The format that keeps its values as they are.
    fn format(&self) -> Result<Format, FolderError> {
        match self.tensor.kind {
            Kind::F32 => Ok(Format::F32),
            Kind::F16 => Ok(Format::F16),
            Kind::BF16 => Ok(Format::BF16),
            Kind::U8 | Kind::Other(_) => {
                let what = format!("type {} of tensor {}", quote(&self.tensor.kind_name), quote(self.name));
                Err(FolderError::unsupported(self.path, what))
            }
        }
    }
}

/// What every tensor of the GGUF file is made of, as far as nothing is wrong with it.
pub(super) fn recipes(
    family: &Family,
    config: &Config,
    weights: &Weights,
    problems: &mut Problems,
) -> Vec<Recipe> {
    let before = problems.count();
    let tied = problems.note(config.flag("tie_word_embeddings")).flatten().unwrap_or(family.usual.tied);
    let mut made = Vec::new();
    for (name, values) in problems.note((family.computed)(config)).unwrap_or_default() {
        if !values.iter().all(|&value| value.is_finite() && value > 0.0) {
            let fact = "the divisors of rotary frequencies that its keys give are not all above 0";
            problems.push(FolderError::damaged(config.path(), fact));
        }
        let (shape, content) = (vec![values.len() as u64], Content::Values(values));
        made.push(Recipe { name: name.to_owned(), shape, format: Format::F32, content });
    }
    let mut experts: BTreeMap<String, BTreeMap<u64, FolderTensor<'_>>> = BTreeMap::new();
    for (name, tensor) in weights.tensors() {
        let of_head = name == "lm_head.weight" || name.ends_with(".lm_head.weight");
        if LEFT_OUT.iter().any(|end| name.ends_with(end)) || is_of_pictures(name) || (tied && of_head) {
            continue;
        }
        let given = FolderTensor { name, tensor, path: weights.path_of(name).unwrap_or(config.path()) };
        for Becomes { make, expert, to, parts } in problems.note(given.becomes(family)).unwrap_or_default() {
            match (make, expert) {
                (Make::Scales, _) => {} // read with their blocks
                (Make::Expert, Some(expert)) => {
                    experts.entry(to).or_default().insert(expert, given);
                }
                _ => made.extend(problems.note(recipe(family, config, weights, given, make, &to, parts))),
            }
        }
    }
    for (to, experts) in experts {
        made.extend(problems.note(stacked(&to, &experts, config)));
    }
    let mut names: Vec<&str> = made.iter().map(|recipe| recipe.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let fact = format!("two tensors would become {}", quote(twice[0]));
        problems.push(FolderError::damaged(config.path(), fact));
    }
    // what is refused is not missing
    if !tied && problems.count() == before && names.binary_search(&"output.weight").is_err() {
        let fact = "the head is not the embedding (key `tie_word_embeddings`), and there is no tensor `lm_head.weight`";
        problems.push(FolderError::damaged(config.path(), fact));
    }
    made
}

/// A name without what stands before all of the text's part.
fn of_text(name: &str) -> &str {
    ["model.", "language_model.", "model."]
        .into_iter()
        .fold(name, |name, part| name.strip_prefix(part).unwrap_or(name))
}

/// A tensor of the GGUF file, of one of the folder: a part of so many.
fn recipe(
    family: &Family,
    config: &Config,
    weights: &Weights,
    given: FolderTensor<'_>,
    make: Make,
    to: &str,
    (part, parts): (u64, u64),
) -> Result<Recipe, FolderError> {
    let FolderTensor { name, tensor, .. } = given;
    let shape = tensor.shape.as_slice();
    if shape.is_empty() || shape.len() > 4 || shape.contains(&0) {
        return Err(given.shaped("which is none of a weight"));
    }
    if make == Make::Blocks {
        return blocks(weights, given, to, (part, parts));
    }
    // of these types the file has as many bytes as the shape says, so that no product of sizes overflows
    let own = given.format()?;
    let all = || Rows::all(name, tensor);
    let (made, rows) = match make {
        Make::Same | Make::PlusOne => (shape.to_vec(), all()),
        Make::Query | Make::Key if family.permuted => {
            let heads = config.size("num_attention_heads")?;
            let own = config.whole("num_key_value_heads")?.unwrap_or(heads);
            let permuted_heads = Some(if make == Make::Query { heads } else { own });
            let run = Rows::run(name, 0, shape[0], tensor.values() / shape[0]);
            (shape.to_vec(), Rows { permuted_heads, ..run })
        }
        Make::Query | Make::Key => (shape.to_vec(), all()),
        Make::Halves => {
            let [before @ .., rows, columns] = shape else { return Err(given.shaped("which has no rows")) };
            if !rows.is_multiple_of(parts) {
                return Err(given.shaped("whose rows have no halves"));
            }
            let (half, matrices) = (rows / parts, before.iter().product());
            let first = Rows::run(name, part * half * columns, half, *columns);
            let halves = Rows { matrices, matrix_step: rows * columns, ..first };
            ([before, &[half, *columns]].concat(), halves)
        }
        Make::Transposed | Make::TransposedPairs => {
            let [matrices, columns, rows] = *shape else {
                return Err(given.shaped("which is none of experts"));
            };
            if !rows.is_multiple_of(parts) {
                return Err(given.shaped("whose rows are no pairs"));
            }
            let first = Rows::run(name, part, rows / parts, columns);
            let steps =
                Rows { matrices, matrix_step: rows * columns, row_step: parts, column_step: rows, ..first };
            (vec![matrices, rows / parts, columns], steps)
        }
        Make::Pairs => {
            let [rows, columns] = *shape else {
                return Err(given.shaped("which is none of experts' biases"));
            };
            if !columns.is_multiple_of(parts) {
                return Err(given.shaped("whose values are no pairs"));
            }
            let run = Rows::run(name, part, rows, columns / parts);
            (vec![rows, columns / parts], Rows { row_step: columns, column_step: parts, ..run })
        }
        Make::Expert | Make::Blocks | Make::Scales => return Err(given.unknown()), // of several tensors
    };
    if !rows.fits(tensor.values()) {
        return Err(given.shaped("which does not fit its heads"));
    }
    let format = if is_exact(to, shape) { Format::F32 } else { own };
    let plus = if make == Make::PlusOne { family.norm_plus } else { 0.0 };
    Ok(Recipe {
        name: to.to_owned(),
        shape: made,
        format,
        content: Content::Rows { parts: vec![rows], plus },
    })
}

/// Whether a tensor is stored as single-precision numbers whatever the others are.
pub(crate) fn is_exact(name: &str, shape: &[u64]) -> bool {
    let ends = |end| name.ends_with(end);
    shape.len() < 2 || !ends(".weight") || ends("_norm.weight") || ends("ffn_gate_inp.weight")
}

/// All experts of a role as one tensor.
fn stacked(to: &str, experts: &BTreeMap<u64, FolderTensor<'_>>, config: &Config) -> Result<Recipe, FolderError> {
    let damaged =
        |fact: &str| FolderError::damaged(config.path(), format!("experts of {}: {fact}", quote(to)));
    let Some((_, first)) = experts.first_key_value() else { return Err(damaged("there are none")) };
    let format = first.format()?;
    let mut parts = Vec::with_capacity(experts.len());
    for (number, (expert, given)) in (0..).zip(experts) {
        if *expert != number {
            return Err(damaged(&format!("number {number} is missing")));
        }
        let shape = &given.tensor.shape;
        if *shape != first.tensor.shape || given.format()? != format || shape.len() != 2 || shape.contains(&0)
        {
            return Err(damaged("they differ in their shape or type"));
        }
        parts.push(Rows::all(given.name, given.tensor));
    }
    let shape = [&[parts.len() as u64], first.tensor.shape.as_slice()].concat();
    Ok(Recipe { name: to.to_owned(), shape, format, content: Content::Rows { parts, plus: 0.0 } })
}

/// A tensor of MXFP4, whose scales lie in another of the folder.
fn blocks(
    weights: &Weights,
    given: FolderTensor<'_>,
    to: &str,
    (first, step): (u64, u64),
) -> Result<Recipe, FolderError> {
    let FolderTensor { name, tensor, path } = given;
    let scales = name.strip_suffix("_blocks").map(|name| format!("{name}_scales")).unwrap_or_default();
    let ([experts, rows, columns, 16], Kind::U8) = (tensor.shape.as_slice(), tensor.kind) else {
        return Err(given.shaped("which is none of MXFP4"));
    };
    let fits = weights
        .tensor(&scales)
        .is_some_and(|scales| scales.kind == Kind::U8 && scales.shape == [*experts, *rows, *columns]);
    if !fits || !rows.is_multiple_of(step) {
        let fact = format!("tensor {} has no scales {} of its shape", quote(name), quote(&scales));
        return Err(FolderError::damaged(path, fact));
    }
    // no overflow: the tensor has 16 bytes for each 32 values
    let shape = vec![*experts, rows / step, columns * BLOCK as u64];
    let content = Content::Blocks { blocks: name.to_owned(), scales, first, step };
    Ok(Recipe { name: to.to_owned(), shape, format: Format::Mxfp4, content })
}

/// A layer's number and the rest of a name behind `layers.`.
fn layer_of(name: &str) -> Option<(u64, &str)> {
    let (layer, role) = name.strip_prefix("layers.")?.split_once('.')?;
    Some((plain_number(layer)?, role))
}

/// A number without a sign or leading zeros, of a few digits.
pub(super) fn plain_number(text: &str) -> Option<u64> {
    let plain = text == "0" || (!text.starts_with('0') && text.len() <= 5);
    if plain && text.bytes().all(|digit| digit.is_ascii_digit()) { text.parse().ok() } else { None }
}
