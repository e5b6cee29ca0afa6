//! Predictors that come with a model: measured, not trained again.
//!
//! `PowerInfer`'s files carry `blk.N.fc1.weight` and `blk.N.fc2.weight` (`blk.N.fc1.E.weight` with experts). Their input
//! is the residual before the norm; ours is after it, `x = w * r / |r|`. Dividing the columns of `fc1` by `w` gives the
//! same logits but for the factor `|r|` of each token, and with a threshold of zero that factor decides nothing.

use runtime::kernels::dequantise;
use runtime::model::source::SourceModel;

use super::train::Trained;

/// Predictors of a model, `[layer][expert]`.
#[derive(Debug)]
pub struct Shipped {
    /// As trained ones, without bias.
    pub predictors: Vec<Vec<Trained>>,
    /// Whether the file's threshold is zero, so that its own decisions can be made.
    pub own_threshold: bool,
}

/// The predictors that the file brings; nothing unless every expert of every layer has one.
///
/// # Errors
/// When they have the wrong shape or an unknown format.
pub fn shipped(source: &SourceModel<'_>) -> anyhow::Result<Option<Shipped>> {
    let c = source.config();
    let mut predictors = Vec::new();
    for layer in 0..c.layers {
        let mut norm = vec![0.0; c.width];
        dequantise(source.ffn_norm(layer).format, source.ffn_norm(layer).bytes, &mut norm);
        let mut experts = Vec::new();
        for expert in 0..c.experts {
            let name = |which: &str| match c.experts {
                1 => format!("blk.{layer}.{which}.weight"),
                _ => format!("blk.{layer}.{which}.{expert}.weight"),
            };
            let Some(first) = source.gguf().tensor(&name("fc1")) else { return Ok(None) };
            let rank = usize::try_from(first.dims[1])?;
            let rank_max = 4 * c.width.max(4096);
            anyhow::ensure!(
                (1..=rank_max).contains(&rank),
                "tensor `{}` has rank {rank}, outside 1 to {rank_max}; convert the model again",
                first.name
            );
            let mut fc1 = matrix(source, &name("fc1"), rank, c.width)?;
            let fc2 = matrix(source, &name("fc2"), c.ffn_width, rank)?;
            fold(&mut fc1, &norm);
            let bias = vec![0.0; c.ffn_width];
            experts.push(Trained { rank, fc1, fc2, bias, validation_loss: f64::NAN });
        }
        predictors.push(experts);
    }
    let threshold = source.gguf().number("powerinfer.sparse_threshold")?.unwrap_or(0.0);
    Ok(Some(Shipped { predictors, own_threshold: threshold == 0.0 }))
}

/// The values of a tensor that must have this shape.
fn matrix(source: &SourceModel<'_>, name: &str, rows: usize, columns: usize) -> anyhow::Result<Vec<f32>> {
    let gguf = source.gguf();
    let Some(tensor) = gguf.tensor(name) else {
        anyhow::bail!("tensor `{name}` is missing: the model's predictors are incomplete, convert it again");
    };
    anyhow::ensure!(
        tensor.dims == [columns as u64, rows as u64, 1, 1],
        "tensor `{name}` has dimensions {:?} where the model implies {:?}; convert the model again",
        tensor.dims,
        [columns, rows]
    );
    let mut values = vec![0.0; rows * columns];
    dequantise(tensor.format()?, gguf.tensor_bytes(tensor), &mut values);
    Ok(values)
}

/// Divides the columns by the norm's weights; a column whose weight is zero never sees anything.
fn fold(fc1: &mut [f32], norm: &[f32]) {
    for row in fc1.chunks_mut(norm.len()) {
        for (value, &weight) in row.iter_mut().zip(norm) {
            *value = if weight == 0.0 { 0.0 } else { *value / weight };
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime::kernels::rms_norm;

    use super::super::train::logits;
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
            logits(width, rank, neurons, fc1, &fc2, x).iter().map(|&logit| logit > 1e-3).collect()
        };
        let before = decisions(&fc1, &residual);
        assert_eq!(before, decisions(&folded, &normed));
        assert!(before.contains(&true) && before.contains(&false), "both occur");
    }
}
