//! More text to train predictors on: the model goes on writing where pieces of the calibration text end.
//!
//! A predictor has more weights than a short text has tokens. What the model writes itself, drawn from its own
//! probabilities, sends its neurons inputs like those they meet in use. Frequencies, thresholds and every reported
//! figure come from real text only.

use flashplan::internals::model::source::SourceModel;
use flashplan::internals::reference::Reference;
use kernels::{best, softmax};
use rayon::prelude::*;

use super::train::Random;
use crate::{Context, Stopped};

/// Tokens of real text that a piece begins with; they are not collected a second time.
pub const PROMPT_TOKENS: usize = 16;

/// Pieces of about `tokens` tokens in all that the model wrote, each after [`PROMPT_TOKENS`] of the text (or fewer, in
/// a short window).
///
/// # Errors
/// [`Stopped`].
pub fn written(
    context: &Context,
    source: &SourceModel<'_>,
    windows: &[Vec<u32>],
    tokens: usize,
) -> Result<Vec<Vec<u32>>, Stopped> {
    let longest = windows.iter().map(Vec::len).max().unwrap_or(0);
    let pieces = tokens.checked_div(longest.saturating_sub(PROMPT_TOKENS)).unwrap_or(0);
    let bar = context.bar((pieces * longest) as u64, "writing text to train on");
    let written = (0..pieces)
        .into_par_iter()
        .map(|piece| {
            let window = &windows[piece % windows.len()];
            // Another place of the window in each round.
            let start = (piece / windows.len() * 3 + 1) * PROMPT_TOKENS % window.len().max(1);
            let mut text = window[start..(start + PROMPT_TOKENS).min(window.len())].to_vec();
            let mut reference = Reference::new(source, best());
            let mut random = Random(piece as u64);
            for i in 0..longest - 1 {
                context.stopped()?;
                let mut logits = reference.step(text[i], &mut ());
                if i + 1 == text.len() {
                    text.push(drawn(&mut logits, &mut random));
                }
                bar.inc(1);
            }
            Ok(text)
        })
        .collect();
    drop(bar);
    written
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
