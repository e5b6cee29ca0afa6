//! Predictors that come with a model, which are measured and not trained again.
//!
//! `PowerInfer`'s files have `blk.N.fc1.weight` and `blk.N.fc2.weight` (`blk.N.fc1.E.weight` with experts). Their input is the residual
//! before the norm; ours is after it, `x = w * r / |r|`. Dividing the columns of `fc1` by `w` gives the same logits up to each token's
//! factor `|r|`. With a threshold of zero the factor changes no decision.

use flashplan::internals::model::config::Config;
use flashplan::internals::model::gguf::TensorInfo;
use flashplan::internals::model::source::SourceModel;
use kernels::dequantise;

use super::train::Trained;

/// The predictors of a file.
#[derive(Debug, Clone)]
pub struct Shipped {
    /// Hidden sizes, `[layer][expert]`.
    pub ranks: Vec<Vec<usize>>,
    /// Whether the file's threshold is zero, which allows its own decisions.
    pub own_threshold: bool,
}

/// A remark on ignored parts of a file and on its assumed activation, if there are any.
pub fn remark(source: &SourceModel<'_>) -> Option<String> {
    let c = source.config();
    let activation = c.activation().name();
    let of = |start: &str| source.gguf().tensors().iter().find(|tensor| tensor.name.contains(start));
    if c.activation().always_fires() {
        let sparse = of(".fc1.").or_else(|| of(".ffn_down_t."))?;
        return Some(format!(
            "the file has `{}`, as models with ReLU have, and was taken for {activation}, in which no neuron rests: predictors are \
             left out, and all neurons computed. If it is a model with ReLU, say so with --activation relu or drelu",
            sparse.name
        ));
    }
    let pairs = (0..c.layers()).flat_map(|layer| (0..c.experts()).map(move |expert| names(c, layer, expert)));
    let missing = pairs.flatten().find(|name| source.gguf().tensor(name).is_none())?;
    of(".fc1.").or_else(|| of(".fc2."))?;
    Some(format!(
        "the file's predictors are incomplete, `{missing}` is missing: they are left out, and others are trained"
    ))
}

/// The predictors of the file; `None` unless every expert of every layer has one.
///
/// # Errors
/// Predictors of another shape.
pub fn shipped(source: &SourceModel<'_>) -> anyhow::Result<Option<Shipped>> {
    let c = source.config();
    let mut ranks = Vec::new();
    for layer in 0..c.layers() {
        let mut of_layer = Vec::new();
        for expert in 0..c.experts() {
            let [first, second] = names(c, layer, expert);
            let (Some(tensor), Some(_)) = (source.gguf().tensor(&first), source.gguf().tensor(&second))
            else {
                return Ok(None);
            };
            let rank = usize::try_from(tensor.dims[1])?;
            let rank_max = 4 * c.width.max(4096);
            anyhow::ensure!(
                (1..=rank_max).contains(&rank),
                "tensor `{first}` has rank {rank}, outside 1 to {rank_max}; convert the model again",
            );
            checked(source, &first, rank, c.width)?;
            checked(source, &second, c.ffn_width(), rank)?;
            of_layer.push(rank);
        }
        ranks.push(of_layer);
    }
    let threshold = source.gguf().number("powerinfer.sparse_threshold")?.unwrap_or(0.0);
    Ok(Some(Shipped { ranks, own_threshold: threshold == 0.0 }))
}

impl Shipped {
    /// The predictor of an expert, as a trained one without bias.
    ///
    /// # Errors
    /// When its storage is of an unknown format.
    pub fn predictor(
        &self,
        source: &SourceModel<'_>,
        layer: usize,
        expert: usize,
    ) -> anyhow::Result<Trained> {
        let c = source.config();
        let rank = self.ranks[layer][expert];
        let [first, second] = names(c, layer, expert);
        let mut fc1 = matrix(source, &first, rank, c.width)?;
        let fc2 = matrix(source, &second, c.ffn_width(), rank)?;
        let mut norm = vec![0.0; c.width];
        if let Some(weight) = source.part(c.block_of(layer), c.network().input_norm()) {
            dequantise(weight.format, weight.bytes, &mut norm);
            fold(&mut fc1, &norm);
        }
        Ok(Trained { rank, fc1, fc2, bias: vec![0.0; c.ffn_width()], validation_loss: f64::NAN })
    }
}

fn names(c: &Config, layer: usize, expert: usize) -> [String; 2] {
    ["fc1", "fc2"].map(|which| match c.experts() {
        1 => format!("blk.{layer}.{which}.weight"),
        _ => format!("blk.{layer}.{which}.{expert}.weight"),
    })
}

/// A tensor that must have this shape.
fn checked<'a>(
    source: &'a SourceModel<'_>,
    name: &str,
    rows: usize,
    columns: usize,
) -> anyhow::Result<&'a TensorInfo> {
    let Some(tensor) = source.gguf().tensor(name) else {
        anyhow::bail!("tensor `{name}` is missing: the model's predictors are incomplete, convert it again");
    };
    anyhow::ensure!(
        tensor.dims == [columns as u64, rows as u64, 1, 1],
        "tensor `{name}` has dimensions {:?} where the model implies {:?}; convert the model again",
        tensor.dims,
        [columns, rows]
    );
    Ok(tensor)
}

/// The values of a tensor that must have this shape.
fn matrix(source: &SourceModel<'_>, name: &str, rows: usize, columns: usize) -> anyhow::Result<Vec<f32>> {
    let tensor = checked(source, name, rows, columns)?;
    let mut values = vec![0.0; rows * columns];
    dequantise(tensor.format()?, source.gguf().tensor_bytes(tensor), &mut values);
    Ok(values)
}

/// Divides the columns by the norm's weights; a column with weight zero has no input.
fn fold(fc1: &mut [f32], norm: &[f32]) {
    for row in fc1.chunks_mut(norm.len()) {
        for (value, &weight) in row.iter_mut().zip(norm) {
            *value = if weight == 0.0 { 0.0 } else { *value / weight };
        }
    }
}

#[cfg(test)]
mod tests {
    use kernels::rms_norm;

    use super::super::train::logits;
    use flashplan::internals::predictor::Hidden;

    use super::*;

    #[test]
    fn a_folded_predictor_decides_on_the_normed_input_as_on_the_residual() {
        let (width, rank, neurons) = (8, 4, 16);
        let values = |count: usize, k: usize| -> Vec<f32> {
            (0..count).map(|i| ((i * k + 3) % 17) as f32 - 8.0).collect()
        };
        let (fc1, fc2, residual) =
            (values(rank * width, 5), values(neurons * rank, 7), values(3 * width, 11));
        let norm: Vec<f32> = (0..width).map(|i| 0.5 + i as f32).collect();
        let mut folded = fc1.clone();
        fold(&mut folded, &norm);
        let mut normed = vec![0.0; residual.len()];
        for (x, out) in residual.chunks(width).zip(normed.chunks_mut(width)) {
            rms_norm(x, &norm, 1e-6, out);
        }
        let decisions = |fc1: &[f32], x: &[f32]| -> Vec<bool> {
            logits(width, rank, neurons, fc1, &fc2, Hidden::Relu, x)
                .iter()
                .map(|&logit| logit > 1e-3)
                .collect()
        };
        let before = decisions(&fc1, &residual);
        assert_eq!(before, decisions(&folded, &normed));
        assert!(before.contains(&true) && before.contains(&false), "both occur");
    }
}
