//! A quick look, before the measurement, at how the model predicts text.
//!
//! Finite weights can still be wrong: misread scales, exchanged layers, a factor lost in a converter. A short window of the held-out text
//! shows it in one pass, instead of after minutes or hours. `profile --instant` also takes from it how many neurons fire.

use std::path::Path;

use anyhow::bail;
use flashplan::internals::model::source::SourceModel;
use kernels::Activation;
use plans::model::PERPLEXITY_MAX;

use super::batch::{Expert, Layer, Stream, said};
use super::observe::active;
use crate::{Context, Stopped};

/// Tokens of the check: enough for a mean, and few enough that reading the weights takes most of the time.
const TOKENS: usize = 32;

/// Figures of a few tokens.
pub(super) struct Glance {
    pub(super) perplexity: f64,
    /// By layer.
    pub(super) fired: Vec<Fired>,
}

/// Counts of (token, neuron) pairs in a layer.
#[derive(Clone, Copy, Default)]
pub(super) struct Fired {
    /// Neurons of the visited experts.
    pub(super) routed: u64,
    /// Truly active, see [`active`].
    pub(super) truly: u64,
    /// Neurons that fire, see `Activation::fires`.
    pub(super) gate: u64,
}

impl Fired {
    fn count(&mut self, seen: &Expert<'_>, activation: Activation) {
        let pairs = || seen.gate.iter().zip(seen.up);
        self.routed += seen.gate.len() as u64;
        self.truly += pairs().filter(|&(&gate, &up)| active(activation, gate, up)).count() as u64;
        self.gate += pairs().filter(|&(&gate, _)| activation.fires(gate)).count() as u64;
    }
}

/// Runs the source over the first tokens of the first window with a prediction.
///
/// # Errors
/// [`Stopped`].
pub(super) fn glance(
    context: &Context,
    source: &SourceModel<'_>,
    windows: &[Vec<u32>],
) -> Result<Glance, Stopped> {
    let mut fired = vec![Fired::default(); source.config().layers()];
    let Some(window) = windows.iter().find(|window| window.len() > 1) else {
        return Ok(Glance { perplexity: 1.0, fired });
    };
    let window = &window[..window.len().min(TOKENS)];
    let config = source.config();
    let mut go_on = || context.stopped();
    let mut stream = Stream::new(source, &[window]);
    let bar = context.bar(config.layers() as u64, "layers, to see that it predicts text");
    for (layer, fired) in fired.iter_mut().enumerate() {
        let weights = Layer::new(source, layer);
        weights.attention(&mut stream, &mut go_on)?;
        let listener = &mut |seen: Expert<'_>| {
            fired.count(&seen, config.activation());
            seen.activate(config.activation());
        };
        weights.feed_forward(&mut stream, listener, &mut go_on)?;
        bar.inc(1);
    }
    drop(bar);
    let losses = said(source, &stream, &[window], false, &mut go_on)?.losses;
    let perplexity = (losses.iter().sum::<f64>() / (window.len() - 1) as f64).exp();
    Ok(Glance { perplexity, fired })
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
