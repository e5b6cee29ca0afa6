//! Recipes of the GGUF file's tensors from a folder's tensors, by a family's rules.

use std::collections::BTreeMap;
use std::path::Path;

use kernels::Format;

use crate::config::Config;
use crate::error::{FolderError, Problems, quote};
use crate::index::Weights;
use crate::recipe::{BLOCK, Content, HeadOrder, Recipe, Rows, ValueChange};
use crate::safetensors::{Kind, Tensor};

use super::common::is_of_pictures;
use super::{Family, Make, Rule};

/// Ends of names that are not weights.
const LEFT_OUT: [&str; 3] = [".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq"];

/// Destination of a folder's tensor: a GGUF tensor, a part of one, or an expert of one.
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
        FolderError::convertible(self.path, format!("tensor {}", quote(self.name)))
    }

    /// Destinations of the tensor, by its name.
    fn becomes(&self, family: &Family) -> Result<Vec<Becomes>, FolderError> {
        let own = of_text(family, self.name);
        let of = |rule: &Rule, expert, before: &str| {
            let parts = rule.to.len() as u64;
            let becomes = |(part, to): (u64, &&str)| {
                let before = if rule.make == Make::Shard { "" } else { before };
                let to = format!("{before}{to}");
                Becomes { make: rule.make, expert, to, parts: (part, parts) }
            };
            (0..).zip(rule.to).map(becomes).collect()
        };
        if let Some((rule, number)) = family.rule_outside(own) {
            return Ok(of(rule, number, ""));
        }
        let (layer, role) = layer_of(own).ok_or_else(|| self.unknown())?;
        let (rule, expert) = family.rule(role).ok_or_else(|| self.unknown())?;
        Ok(of(rule, expert, &format!("blk.{layer}.")))
    }

    /// The format that keeps its values as they are.
    fn format(&self) -> Result<Format, FolderError> {
        match self.tensor.kind {
            Kind::F32 => Ok(Format::F32),
            Kind::F16 => Ok(Format::F16),
            Kind::BF16 => Ok(Format::BF16),
            Kind::U8 | Kind::Other(_) => {
                let what = format!("type {} of tensor {}", quote(&self.tensor.kind_name), quote(self.name));
                Err(FolderError::convertible(self.path, what))
            }
        }
    }
}

/// Recipes of every tensor of the GGUF file; problems are collected.
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
    let mut shards: BTreeMap<String, BTreeMap<u64, FolderTensor<'_>>> = BTreeMap::new();
    for (name, tensor) in weights.tensors() {
        let of_head = name == "lm_head.weight" || name.ends_with(".lm_head.weight");
        let is_left_out = LEFT_OUT.iter().any(|end| name.ends_with(end)) || is_of_pictures(name);
        if is_left_out || is_of_a_guess(family, config, name) || (tied && of_head) {
            continue;
        }
        let given = FolderTensor { name, tensor, path: weights.path_of(name).unwrap_or(config.path()) };
        for Becomes { make, expert, to, parts } in problems.note(given.becomes(family)).unwrap_or_default() {
            match (make, expert) {
                (Make::Scales | Make::Integers, _) => {} // read with their blocks, or into keys
                (Make::Gates, _) if (parts.0 == 1) != has_row_of_each_head(config, tensor) => {}
                (Make::Expert, Some(expert)) => {
                    experts.entry(to).or_default().insert(expert, given);
                }
                (Make::Shard, Some(shard)) => {
                    shards.entry(to).or_default().insert(shard, given);
                }
                _ => made.extend(problems.note(recipe(family, config, weights, given, make, &to, parts))),
            }
        }
    }
    for (to, experts) in experts {
        made.extend(problems.note(stacked(&to, &experts, config)));
    }
    for (to, shards) in shards {
        made.extend(problems.note(joined(&to, &shards, config)));
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
fn of_text<'n>(family: &Family, name: &'n str) -> &'n str {
    [family.body, "language_model.", family.body]
        .into_iter()
        .fold(name, |name, part| name.strip_prefix(part).unwrap_or(name))
}

/// Whether a tensor is of a layer that guesses further tokens: such layers have a name of their own, or come after the last.
pub(super) fn is_of_a_guess(family: &Family, config: &Config, name: &str) -> bool {
    let whole = |key| config.whole(key).ok().flatten().unwrap_or(0);
    let own = of_text(family, name);
    let beyond = |layer: u64| {
        let (layers, guesses) = (whole("num_hidden_layers"), whole("num_nextn_predict_layers"));
        (layers..layers.saturating_add(guesses)).contains(&layer)
    };
    family.guesses && (own.starts_with("mtp.") || layer_of(own).is_some_and(|(layer, _)| beyond(layer)))
}

/// Whether a matrix has a row for each head of attention.
fn has_row_of_each_head(config: &Config, tensor: &Tensor) -> bool {
    config.size("num_attention_heads").is_ok_and(|heads| tensor.shape.first() == Some(&heads))
}

/// Whether a family's rules leave a tensor out.
pub(super) fn is_left_out(family: &Family, name: &str) -> bool {
    let rule = layer_of(of_text(family, name)).and_then(|(_, role)| family.rule(role));
    rule.is_some_and(|(rule, _)| rule.make == Make::LeftOut)
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
    let one = |shape: Vec<u64>, rows: Rows| (shape, vec![rows]);
    let heads = |order: Option<HeadOrder>| order.ok_or_else(|| given.shaped("which does not fit its heads"));
    // of a bias, too, which has one value for each row
    let run = || Rows::run(name, 0, shape[0], tensor.values() / shape[0]);
    let mut zeros = 0;
    let (made, parts) = match make {
        Make::Vocabulary => {
            let [rows, columns] = *shape else { return Err(given.shaped("which has no rows")) };
            zeros = config.size("vocab_size")?.saturating_sub(rows);
            one(vec![rows + zeros, columns], all())
        }
        Make::Same | Make::PlusOne | Make::Decay | Make::Gates => one(shape.to_vec(), all()),
        Make::Query | Make::Key if family.permuted => {
            let of_queries = config.size("num_attention_heads")?;
            let of_keys = config.whole("num_key_value_heads")?.unwrap_or(of_queries);
            let count = if make == Make::Query { of_queries } else { of_keys };
            let row_order = Some(heads(HeadOrder::halves(shape[0], count))?);
            one(shape.to_vec(), Rows { row_order, ..run() })
        }
        Make::Query | Make::Key => one(shape.to_vec(), all()),
        Make::Halves => {
            let [before @ .., rows, columns] = shape else { return Err(given.shaped("which has no rows")) };
            if !rows.is_multiple_of(parts) {
                return Err(given.shaped("whose rows have no halves"));
            }
            let (half, matrices) = (rows / parts, before.iter().product());
            let first = Rows::run(name, part * half * columns, half, *columns);
            let halves = Rows { matrices, matrix_step: rows * columns, ..first };
            one([before, &[half, *columns]].concat(), halves)
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
            one(vec![matrices, rows / parts, columns], steps)
        }
        Make::TransposedHalves => {
            let [matrices, columns, rows] = *shape else {
                return Err(given.shaped("which is none of experts"));
            };
            if !rows.is_multiple_of(parts) {
                return Err(given.shaped("whose columns have no halves"));
            }
            let first = Rows::run(name, part * (rows / parts), rows / parts, columns);
            let steps =
                Rows { matrices, matrix_step: rows * columns, row_step: 1, column_step: rows, ..first };
            one(vec![matrices, rows / parts, columns], steps)
        }
        Make::FusedGroups => fused_groups(family, config, given, part)?,
        Make::MixedGroups => mixed_groups(config, given, part)?,
        Make::Pairs => {
            let [rows, columns] = *shape else {
                return Err(given.shaped("which is none of experts' biases"));
            };
            if !columns.is_multiple_of(parts) {
                return Err(given.shaped("whose values are no pairs"));
            }
            let run = Rows::run(name, part, rows, columns / parts);
            one(vec![rows, columns / parts], Rows { row_step: columns, column_step: parts, ..run })
        }
        Make::Squeezed => one(squeezed(given)?, all()),
        Make::Taps => {
            let shape = squeezed(given)?;
            one(vec![1, shape[0], 1, shape[1]], all())
        }
        Make::Column | Make::DecayColumn | Make::SlopeColumn => {
            let [rows] = *shape else { return Err(given.shaped("which is no list of values")) };
            one(vec![rows, 1], all())
        }
        Make::Groups => {
            let groups = config.whole_of(&["n_groups", "mamba_n_groups"])?.unwrap_or(0);
            let [values] = *shape else { return Err(given.shaped("which is no list of values")) };
            if groups == 0 || !values.is_multiple_of(groups) {
                return Err(given.shaped("which does not fit its groups"));
            }
            one(vec![groups, values / groups], all())
        }
        Make::Latent => latent(config, given, part)?,
        Make::Indexer => {
            let queries = config.size("indexer_n_heads")?.checked_mul(config.size("indexer_head_dim")?);
            let [rows, columns] = *shape else { return Err(given.shaped("which has no rows")) };
            let queries = queries.filter(|&queries| (1..rows).contains(&queries));
            let queries = queries.ok_or_else(|| given.shaped("which does not fit its heads"))?;
            let (first, count) = if part == 0 { (0, queries) } else { (queries, rows - queries) };
            one(vec![count, columns], Rows::run(name, first * columns, count, columns))
        }
        Make::ValueHeads | Make::DecayHeads => {
            let row_order = Some(heads(value_heads(config, shape[0])?)?);
            one(shape.to_vec(), Rows { row_order, ..run() })
        }
        Make::ValueColumns => {
            let [_, columns] = *shape else { return Err(given.shaped("which has no rows")) };
            let column_order = Some(heads(value_heads(config, columns)?)?);
            one(shape.to_vec(), Rows { column_order, ..all() })
        }
        Make::MixedHeads => {
            let shape = squeezed(given)?;
            let columns = tensor.values() / shape[0];
            let keys = config.size("linear_num_key_heads")?.checked_mul(config.size("linear_key_head_dim")?);
            let others =
                keys.and_then(|keys| keys.checked_mul(2)).filter(|&others| (1..shape[0]).contains(&others));
            let others = others.ok_or_else(|| given.shaped("which does not fit its heads"))?;
            let row_order = Some(heads(value_heads(config, shape[0] - others)?)?);
            let before = Rows::run(name, 0, others, columns);
            let after = Rows::run(name, others * columns, shape[0] - others, columns);
            (shape, vec![before, Rows { row_order, ..after }])
        }
        // of several tensors, or of none
        Make::Expert | Make::Shard | Make::Integers | Make::Blocks | Make::Scales | Make::LeftOut => {
            return Err(given.unknown());
        }
    };
    if !parts.iter().all(|rows| rows.fits(tensor.values())) {
        return Err(given.shaped("which does not fit its heads"));
    }
    let format = if is_exact(to, shape) { Format::F32 } else { own };
    let change = match make {
        Make::PlusOne => ValueChange::PlusOne,
        Make::Decay | Make::DecayColumn | Make::DecayHeads => ValueChange::MinusExp,
        Make::SlopeColumn => ValueChange::Exp,
        _ => ValueChange::None,
    };
    Ok(Recipe { name: to.to_owned(), shape: made, format, content: Content::Rows { parts, zeros, change } })
}

/// A shape without the dimension of one value between rows and columns, where there is one.
fn squeezed(given: FolderTensor<'_>) -> Result<Vec<u64>, FolderError> {
    match *given.tensor.shape {
        [rows, 1, columns] | [rows, columns] => Ok(vec![rows, columns]),
        _ => Err(given.shaped("which is none of a convolution of its own for each row")),
    }
}

/// The rows of queries, keys or values of a matrix that has them by groups of heads.
fn fused_groups(
    family: &Family,
    config: &Config,
    given: FolderTensor<'_>,
    part: u64,
) -> Result<(Vec<u64>, Vec<Rows>), FolderError> {
    let wrong = || given.shaped("which does not fit its heads");
    let heads = config.size("num_attention_heads")?;
    let groups = config.whole("num_key_value_heads")?.unwrap_or(heads);
    let [rows, columns] = *given.tensor.shape else { return Err(wrong()) };
    if groups == 0 || !heads.is_multiple_of(groups) {
        return Err(wrong());
    }
    let queries = heads / groups;
    let width = rows.checked_div(groups * (queries + 2)).filter(|&width| width > 0).ok_or_else(wrong)?;
    // no overflow: all of it is within the tensor
    let (first, of_group) = match part {
        0 => (0, queries),
        1 => (queries, 1),
        _ => (queries + 1, 1),
    };
    let row_order = match family.permuted && part < 2 {
        true => Some(HeadOrder::halves(of_group * width, of_group).ok_or_else(wrong)?),
        false => None,
    };
    let run = Rows::run(given.name, first * width * columns, of_group * width, columns);
    let matrix_step = (queries + 2) * width * columns;
    let rows = Rows { matrices: groups, matrix_step, row_order, ..run };
    Ok((vec![groups * of_group * width, columns], vec![rows]))
}

/// A delta net's queries, then its keys and values, or its gates, of a matrix that has them by key heads.
fn mixed_groups(
    config: &Config,
    given: FolderTensor<'_>,
    part: u64,
) -> Result<(Vec<u64>, Vec<Rows>), FolderError> {
    let (groups, heads) = (config.size("linear_num_key_heads")?, config.size("linear_num_value_heads")?);
    let (key, value) = (config.size("linear_key_head_dim")?, config.size("linear_value_head_dim")?);
    let wrong = || given.shaped("which does not fit its heads");
    let [rows, columns] = *given.tensor.shape else { return Err(wrong()) };
    if groups == 0 || !heads.is_multiple_of(groups) || key == 0 || value == 0 {
        return Err(wrong());
    }
    let values = (heads / groups).checked_mul(value).ok_or_else(wrong)?;
    let of_group = key.checked_add(values).and_then(|half| half.checked_mul(2)).ok_or_else(wrong)?;
    if of_group.checked_mul(groups) != Some(rows) {
        return Err(wrong());
    }
    // no overflow: all of it is within the tensor
    let of = |first: u64, count: u64| {
        let run = Rows::run(given.name, first * columns, count, columns);
        Rows { matrices: groups, matrix_step: of_group * columns, ..run }
    };
    if part == 0 {
        let parts = vec![of(0, key), of(key, key), of(2 * key, values)];
        return Ok((vec![groups * (2 * key + values), columns], parts));
    }
    Ok((vec![groups * values, columns], vec![of(2 * key + values, values)]))
}

/// The order of so many rows or columns of the delta net's values, by heads; `None`: they are no such heads.
fn value_heads(config: &Config, count: u64) -> Result<Option<HeadOrder>, FolderError> {
    let (groups, heads) = (config.size("linear_num_key_heads")?, config.size("linear_num_value_heads")?);
    Ok(HeadOrder::groups(count, groups, heads))
}

/// The rows of latent attention's second matrix for plain keys, transposed, or for values.
fn latent(config: &Config, given: FolderTensor<'_>, part: u64) -> Result<(Vec<u64>, Vec<Rows>), FolderError> {
    let heads = config.size("num_attention_heads")?;
    let (plain, value) = (config.size("qk_nope_head_dim")?, config.size("v_head_dim")?);
    let [rows, rank] = *given.tensor.shape else { return Err(given.shaped("which has no rows")) };
    let of_head = plain + value; // of 32 bits both
    if heads == 0 || plain == 0 || value == 0 || of_head.checked_mul(heads) != Some(rows) {
        return Err(given.shaped("which does not fit its heads"));
    }
    // no overflow: all of it is within the tensor
    let (matrices, matrix_step) = (heads, of_head * rank);
    if part == 0 {
        let run = Rows::run(given.name, 0, rank, plain);
        let keys = Rows { matrices, matrix_step, row_step: 1, column_step: rank, ..run };
        return Ok((vec![heads, rank, plain], vec![keys]));
    }
    let run = Rows::run(given.name, plain * rank, value, rank);
    Ok((vec![heads, value, rank], vec![Rows { matrices, matrix_step, ..run }]))
}

/// Whether a tensor is stored as single-precision numbers whatever the others are.
pub(crate) fn is_exact(name: &str, shape: &[u64]) -> bool {
    let ends = |end| name.ends_with(end);
    let small = [
        "_norm.weight",
        "ffn_gate_inp.weight",
        "ffn_gate_inp_shexp.weight",
        "conv1d.weight",
        "conv.conv.weight",
        "conv1d_q.weight",
        "conv1d_k.weight",
        "conv1d_v.weight",
        "altup_predict_coef.weight",
        "altup_correct_coef.weight",
    ];
    shape.len() < 2 || !ends(".weight") || (small.into_iter().any(ends) && !ends("ple_conv1d.weight"))
}

/// Whether a matrix keeps its format when the others are quantised: it is small, and all others depend on it.
pub(crate) fn keeps_format(name: &str) -> bool {
    ["altup_", "laurel_"].iter().any(|part| name.contains(part))
}

/// All experts of a role as one tensor.
fn stacked(
    to: &str,
    experts: &BTreeMap<u64, FolderTensor<'_>>,
    config: &Config,
) -> Result<Recipe, FolderError> {
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
    Ok(Recipe {
        name: to.to_owned(),
        shape,
        format,
        content: Content::Rows { parts, zeros: 0, change: ValueChange::None },
    })
}

/// All shards of a table as one tensor.
fn joined(
    to: &str,
    shards: &BTreeMap<u64, FolderTensor<'_>>,
    config: &Config,
) -> Result<Recipe, FolderError> {
    let damaged = |fact: &str| FolderError::damaged(config.path(), format!("parts of {}: {fact}", quote(to)));
    let Some((_, first)) = shards.first_key_value() else { return Err(damaged("there are none")) };
    let (format, columns) = (first.format()?, first.tensor.shape.last().copied().unwrap_or(0));
    let (mut parts, mut rows) = (Vec::with_capacity(shards.len()), 0_u64);
    let expected = config.size("split_ngram_parts")?;
    if shards.len() as u64 != expected || !shards.keys().copied().eq(0..expected) {
        return Err(damaged(&format!("there are {}, and not {expected}", shards.len())));
    }
    for given in shards.values() {
        let [count, width] = *given.tensor.shape else { return Err(given.shaped("which has no rows")) };
        if count == 0 || width == 0 || width != columns || given.format()? != format {
            return Err(damaged("they differ in their width or type"));
        }
        rows = rows.saturating_add(count);
        parts.push(Rows::all(given.name, given.tensor));
    }
    let content = Content::Rows { parts, zeros: 0, change: ValueChange::None };
    Ok(Recipe { name: to.to_owned(), shape: vec![rows, columns], format, content })
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
