//! Before the first block and after the last: embeddings and the head.

use super::block::normalise;
use super::bounded;
use super::products::Products;
use super::streams::opened;
use crate::model::config::Streams;
use crate::model::source::SourceModel;
use kernels::dequantise;

/// The first block's input: `[tokens, width]`, and `[tokens, streams, width]` where there are several
/// residual streams.
pub fn entering(model: &SourceModel<'_>, products: impl Products, tokens: &[u32]) -> (Vec<f32>, Vec<f32>) {
    let x = embedded(model, products, tokens);
    let streams = model.config().streams.map(|streams| opened(model, products, streams, &x));
    (x, streams.unwrap_or_default())
}

/// The scaled embeddings of tokens: `[tokens, width]`.
pub(super) fn embedded(model: &SourceModel<'_>, products: impl Products, tokens: &[u32]) -> Vec<f32> {
    let (c, embedding) = (model.config(), model.token_embedding());
    let mut x = vec![0.0; tokens.len() * c.width];
    products.each_row(&mut x, c.width, |row, x| {
        dequantise(embedding.format, embedding.row(tokens[row] as usize).bytes, x);
        x.iter_mut().for_each(|x| *x *= c.embedding_scale);
    });
    x
}

/// The hidden states of the last block's output: the input of the head.
///
/// *Shapes*: `x` and the result: `[tokens, width]`.
pub fn hidden(model: &SourceModel<'_>, products: impl Products, mut x: Vec<f32>) -> Vec<f32> {
    let c = model.config();
    // gated streams were normalised before they were mixed
    if !c.streams.is_some_and(Streams::are_gated) {
        normalise(products, model.output_norm(), (c.width, c.norm_epsilon), &mut x);
    }
    x
}

/// The logits of hidden states: `[tokens, vocabulary]`.
pub fn logits(model: &SourceModel<'_>, products: impl Products, hidden: &[f32]) -> Vec<f32> {
    let (c, head) = (model.config(), model.output().unwrap_or(model.token_embedding()));
    let mut logits = products.times(head, hidden);
    products.each_row(&mut logits, head.rows, |_, logits| {
        logits.iter_mut().for_each(|logit| *logit = bounded(*logit * c.logit_scale, c.logit_softcap));
    });
    logits
}
