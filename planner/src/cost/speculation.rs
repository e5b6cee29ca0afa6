//! What drafts give: tokens that the text's own past suggests, decoded together with the next one and kept as far as they are right.
//!
//! ```text
//! speed_k = (1 + kept_k) / ((1 - drafted_k / k) t_1 + drafted_k / k t_(k + 1))
//!
//! k           tokens of a draft, at most; a step without a draft has one row, and one with a draft is taken to have k + 1
//! drafted_k   tokens that are drafted for a step, kept_k those of them that are kept: the profile's, on held-out text
//! t_rows      a step of so many rows, `together.rs`
//! ```
//!
//! Rows of one text have more in common than `together` assumes of several texts: steps with drafts are priced too long rather than
//! too short. How much is kept depends on the text, and more than anything else does. So nobody gets drafts who has not asked for
//! them, and `auto` takes them only where the speed that is planned rises by more than plans are wrong.

use plans::engine::{DRAFT_TOKENS_MAX, ROWS_MAX};
use plans::file::significant;
use plans::model::Drafts;
use plans::plan::Speculation;

use crate::cost::together;
use crate::cost::{self, Decision};
use crate::question::Question;

/// How far a planned speed is off at the median, over the models and limits of `docs/benchmarks.md`.
pub const SPEED_ERROR_FRACTION: f64 = 0.2;

/// Figures of drafts of at most so many tokens; `None` where the profile has not measured what is kept of them.
pub fn priced(question: &Question<'_>, d: &Decision<'_>, draft_tokens: u32) -> Option<Speculation> {
    question.model.drafts.as_ref().filter(|_| draft_tokens > 0)?;
    priced_beside(question, d, draft_tokens, alone(question, d))
}

/// Seconds of a token without drafts.
fn alone(question: &Question<'_>, d: &Decision<'_>) -> f64 {
    cost::decode(question, d).mean_seconds(question.limits.context)
}

/// [`priced`] beside a step without a draft, which takes so many seconds.
fn priced_beside(
    question: &Question<'_>,
    d: &Decision<'_>,
    draft_tokens: u32,
    alone: f64,
) -> Option<Speculation> {
    let Drafts { drafted_tokens, kept_tokens } = question.model.drafts.as_ref()?;
    let at = (draft_tokens as usize).checked_sub(1)?;
    let (drafted, kept) = (*drafted_tokens.get(at)?, *kept_tokens.get(at)?);
    let rows = draft_tokens + 1;
    let step = f64::from(rows) / together::tokens_per_second(question, d, rows);
    let with_draft = drafted / f64::from(draft_tokens);
    Some(Speculation {
        draft_tokens,
        drafted_tokens_per_step: significant(drafted),
        tokens_per_step: significant(1.0 + kept),
        decode_tokens_per_second: significant(speed(kept, with_draft, [alone, step])),
    })
}

/// Tokens per second where so many are kept of a step's draft, such a share of the steps has one, and a step without and with one
/// takes so many seconds.
fn speed(kept: f64, with_draft: f64, [alone, step]: [f64; 2]) -> f64 {
    (1.0 + kept) / ((1.0 - with_draft) * alone + with_draft * step)
}

/// Figures of drafts of every length that there is room for.
pub fn all(question: &Question<'_>, d: &Decision<'_>) -> Vec<Speculation> {
    let most = (ROWS_MAX as u32 - question.limits.sequences).min(DRAFT_TOKENS_MAX as u32);
    if question.model.drafts.is_none() {
        return Vec::new();
    }
    let alone = alone(question, d);
    (1..=most).filter_map(|tokens| priced_beside(question, d, tokens, alone)).collect()
}

/// The fastest of some drafts, of equally fast ones the shortest, if it is faster than a speed without by more than plans are wrong.
pub fn pays(drafts: &[Speculation], without: f64) -> Option<Speculation> {
    let speed = |of: &Speculation| of.decode_tokens_per_second;
    let fastest =
        drafts.iter().copied().reduce(|best, of| if speed(&of) > speed(&best) { of } else { best })?;
    (speed(&fastest) > without * (1.0 + SPEED_ERROR_FRACTION)).then_some(fastest)
}

#[cfg(test)]
mod tests;
