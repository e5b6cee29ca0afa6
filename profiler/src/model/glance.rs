//! A quick check, before the measurement, that the model predicts text.
//!
//! Finite weights can still be wrong: misread scales, exchanged layers, a factor lost in a converter. A short window of the held-out text
//! shows it in one pass, instead of after minutes or hours.

use std::path::Path;

use anyhow::bail;
use flashplan::internals::model::source::SourceModel;
use plans::model::PERPLEXITY_MAX;

use super::batch::{Layer, Stream, said};
use crate::{Context, Stopped};

/// Tokens of the check: enough for a mean, and few enough that reading the weights takes most of the time.
const TOKENS: usize = 32;

/// Perplexity of the source over the first tokens of the first window with a prediction.
///
/// # Errors
/// [`Stopped`].
pub(super) fn perplexity(
    context: &Context,
    source: &SourceModel<'_>,
    windows: &[Vec<u32>],
) -> Result<f64, Stopped> {
    let Some(window) = windows.iter().find(|window| window.len() > 1) else { return Ok(1.0) };
    let window = &window[..window.len().min(TOKENS)];
    let config = source.config();
    let mut go_on = || context.stopped();
    let mut stream = Stream::new(source, &[window]);
    let bar = context.bar(config.layers() as u64, "layers, to see that it predicts text");
    for layer in 0..config.layers() {
        let weights = Layer::new(source, layer);
        weights.attention(&mut stream, &mut go_on)?;
        weights.feed_forward(&mut stream, &mut |seen| seen.activate(config.activation()), &mut go_on)?;
        bar.inc(1);
    }
    drop(bar);
    let losses = said(source, &stream, &[window], false, &mut go_on)?.losses;
    Ok((losses.iter().sum::<f64>() / (window.len() - 1) as f64).exp())
}

/// Refuses a model that does not predict text, by its dense perplexity.
///
/// # Errors
/// A perplexity that is NaN, or above the maximum of `model.toml`.
pub(super) fn check(path: &Path, perplexity: f64) -> anyhow::Result<()> {
    let what = match perplexity {
        found if found <= PERPLEXITY_MAX => return Ok(()),
        found if found.is_nan() => "what it computes is not a number".to_owned(),
        found if found.is_infinite() => "its perplexity is infinite".to_owned(),
        found => format!("its perplexity is {found:.1e}, above {PERPLEXITY_MAX:.0e}"),
    };
    bail!(
        "{} does not predict its held-out text: {what}. Its weights are damaged, or of another model than its keys describe: convert \
         or download it again",
        path.display()
    )
}
