//! Perplexity of a text under the plan, every token through decode, beside the dense one.

use std::io::Write as _;
use std::path::Path;

use serde::Serialize;

use super::cli::read_text;
use super::report;
use super::session::Session;
use super::{Failure, failure};
use flashplan::internals::reference::negative_log_likelihood;

#[derive(Serialize)]
struct Score {
    tokens: usize,
    perplexity_plan: f64,
    perplexity_dense: f64,
    perplexity_change_fraction: f64,
    bytes_read: u64,
    hit_fraction: f64,
}

/// Scores a text, cut into windows of the plan's context; the first token of each is given, not predicted.
pub(super) fn score(session: &mut Session<'_>, path: &Path, json: bool) -> Result<(), Failure> {
    if session.context() < 2 {
        return Err(failure("a score needs a context of two tokens at least; plan with a larger --context"));
    }
    let text = read_text(path)?;
    let tokens = session.tokenizer().encode(&text, false);
    let first = session.tokenizer().bos().filter(|_| session.tokenizer().adds_bos());
    let windows: Vec<Vec<u32>> = tokens
        .chunks(session.context() - usize::from(first.is_some()))
        .map(|chunk| first.into_iter().chain(chunk.iter().copied()).collect())
        .collect();
    let count: usize = windows.iter().map(|window: &Vec<u32>| window.len().saturating_sub(1)).sum();
    if count == 0 {
        return Err(failure(format!("{} has too few tokens to be scored", path.display())));
    }
    let bar = indicatif::ProgressBar::new(2 * count as u64).with_message("tokens scored");
    let (mut plan, mut dense) = (0.0, 0.0);
    let before = session.counters();
    let mut dense_bytes = 0;
    for window in &windows {
        session.reset();
        for pair in window.windows(2) {
            plan += negative_log_likelihood(session.decode(pair[0])?, pair[1]);
            bar.inc(1);
        }
        let mut each = |position: usize, logits: &[f32]| {
            if let Some(&next) = window.get(position + 1) {
                dense += negative_log_likelihood(logits, next);
                bar.inc(1);
            }
        };
        session.steps.clear();
        let decoded = session.counters().read_bytes;
        session.prefill_each(window, &mut each)?;
        dense_bytes += session.counters().read_bytes - decoded;
    }
    bar.finish_and_clear();
    let counters = session.counters().since(&before);
    let perplexity = |sum: f64| (sum / count as f64).exp();
    let score = Score {
        tokens: count,
        perplexity_plan: perplexity(plan),
        perplexity_dense: perplexity(dense),
        perplexity_change_fraction: perplexity(plan) / perplexity(dense) - 1.0,
        bytes_read: counters.read_bytes - dense_bytes,
        hit_fraction: counters.hit_fraction(),
    };
    if json {
        return report::print_json(&score);
    }
    let text = format!(
        "tokens scored         {:>12}\n\
         perplexity, plan      {:>12.4}\n\
         perplexity, dense     {:>12.4}\n\
         change                {:>+11.3} %   (the profile says {:+.3} %)\n\
         read from flash       {:>12} bytes\n\
         found in memory       {:>11.2} %\n",
        score.tokens,
        score.perplexity_plan,
        score.perplexity_dense,
        score.perplexity_change_fraction * 100.0,
        session.plan.expected.perplexity_change_fraction * 100.0,
        score.bytes_read,
        score.hit_fraction * 100.0,
    );
    std::io::stdout().write_all(text.as_bytes()).map_err(failure)
}
