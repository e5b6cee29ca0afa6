//! Text that the model generates, sampled from its own probabilities.
//!
//! **For training predictors.** A predictor has more weights than a short text has tokens. The model continues pieces of the calibration
//! text, which gives its neurons inputs as in use. Frequencies and thresholds come from real text only.
//!
//! **For bounding losses.** A model trained on one kind of text predicts all others badly, so leaving neurons out hardly shows there. On its
//! own kind it loses several times as much. Text generated from nothing is of its own kind. The levels are measured on it, too, and the
//! larger bound holds.

use flashplan::internals::model::source::SourceModel;
use flashplan::internals::reference::Reference;
use kernels::{best, softmax};
use rayon::prelude::*;

use super::train::Random;
use crate::{Context, Stopped};

/// Tokens of real text at the beginning of a piece, which are not collected twice.
pub const PROMPT_TOKENS: usize = 16;

/// Generated pieces of about `tokens` tokens in all, each after [`PROMPT_TOKENS`] of the text, or fewer in a short window.
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
    let starts = (0..pieces).map(|piece| {
        let window = &windows[piece % windows.len()];
        // another place of the window in each round
        let start = (piece / windows.len() * 3 + 1) * PROMPT_TOKENS % window.len().max(1);
        window[start..(start + PROMPT_TOKENS).min(window.len())].to_vec()
    });
    continued(context, source, starts.collect(), longest, 0, "writing text to train on")
}

/// Pieces of `tokens` tokens, generated from the first token of the windows.
///
/// They differ from [`written`] ones: nothing is measured on text that trained it.
///
/// # Errors
/// [`Stopped`].
pub fn own(
    context: &Context,
    source: &SourceModel<'_>,
    windows: &[Vec<u32>],
    pieces: usize,
    tokens: usize,
) -> Result<Vec<Vec<u32>>, Stopped> {
    let first = |piece: usize| vec![windows[piece % windows.len()][0]];
    let starts = (0..pieces).map(first).collect();
    continued(context, source, starts, tokens, 1 << 32, "writing text to measure on")
}

/// Continuations of these beginnings, each up to `tokens` tokens.
fn continued(
    context: &Context,
    source: &SourceModel<'_>,
    starts: Vec<Vec<u32>>,
    tokens: usize,
    seed: u64,
    what: &'static str,
) -> Result<Vec<Vec<u32>>, Stopped> {
    let bar = context.bar((starts.len() * tokens) as u64, what);
    let written = (starts.into_par_iter().enumerate())
        .map(|(piece, mut text)| {
            let mut reference = Reference::new(source, best());
            let mut random = Random(seed + piece as u64);
            for i in 0..tokens.saturating_sub(1) {
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

/// Samples a token; `logits` become the probabilities.
fn drawn(logits: &mut [f32], random: &mut Random) -> u32 {
    softmax(logits);
    let mut left = random.uniform();
    for (token, p) in logits.iter().enumerate() {
        left -= p;
        if left < 0.0 {
            return token as u32;
        }
    }
    // by rounding the probabilities can add up to slightly less than one
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
