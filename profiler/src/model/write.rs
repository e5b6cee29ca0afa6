//! More text to train predictors on: the model goes on writing where pieces of the calibration text end.
//!
//! A predictor has more weights than a short text has tokens. What the model writes itself, drawn from its own
//! probabilities, sends its neurons inputs like those they meet in use. Frequencies, thresholds and every reported
//! figure come from real text only.

use rayon::prelude::*;
use runtime::kernels::{best, softmax};
use runtime::model::source::SourceModel;
use runtime::reference::Reference;

use super::observe::Collector;
use super::train::Random;
use crate::{Context, Stopped};

/// Tokens of real text that a piece begins with; they are not collected a second time.
const PROMPT_TOKENS: usize = 16;

/// What the networks were given while the model wrote about `tokens` tokens.
///
/// # Errors
/// [`Stopped`].
pub fn written(
    context: &Context,
    source: &SourceModel<'_>,
    windows: &[Vec<u32>],
    tokens: usize,
) -> Result<Collector, Stopped> {
    let longest = windows.iter().map(Vec::len).max().unwrap_or(0);
    let pieces = tokens.checked_div(longest.saturating_sub(PROMPT_TOKENS)).unwrap_or(0);
    let bar = context.bar((pieces * longest) as u64, "writing text to train on");
    let collected: Vec<Collector> = (0..pieces)
        .into_par_iter()
        .map(|piece| {
            let window = &windows[piece % windows.len()];
            // Another place of the window in each round.
            let start = (piece / windows.len() * 3 + 1) * PROMPT_TOKENS % window.len().max(1);
            let prompt = &window[start..(start + PROMPT_TOKENS).min(window.len())];
            let mut collector = Collector::new(source.config(), false);
            let mut reference = Reference::new(source, best());
            let mut random = Random(piece as u64);
            let mut logits = Vec::new();
            for i in 0..longest {
                context.stopped()?;
                logits = match prompt.get(i) {
                    Some(&token) => reference.step(token, &mut ()),
                    None => reference.step(drawn(&mut logits, &mut random), &mut collector),
                };
                bar.inc(1);
            }
            collector.tokens = longest - prompt.len();
            Ok(collector)
        })
        .collect::<Result<_, Stopped>>()?;
    bar.finish_and_clear();
    let mut all = Collector::new(source.config(), false);
    collected.into_iter().for_each(|one| all.append(one));
    Ok(all)
}

/// A token by its probability; `logits` become the probabilities.
fn drawn(logits: &mut [f32], random: &mut Random) -> u32 {
    softmax(logits);
    let mut left = random.uniform();
    for (token, p) in logits.iter().enumerate() {
        left -= p;
        if left < 0.0 {
            return token as u32;
        }
    }
    // Rounding: the probabilities add up to a little less than one.
    logits.len() as u32 - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_drawn_as_often_as_their_probability_says() {
        let mut random = Random(1);
        let mut counts = [0; 3];
        for _ in 0..3000 {
            let mut logits = [0.0, 2f32.ln(), f32::NEG_INFINITY];
            counts[drawn(&mut logits, &mut random) as usize] += 1;
        }
        assert!((950..1050).contains(&counts[0]) && counts[2] == 0, "{counts:?}");
    }
}
