//! Perplexity of a text under the plan, every token through decode, beside the dense one.

use serde::Serialize;
use terminal::progress::Unit;
use terminal::{Progress, Rows};

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
pub(super) fn score(session: &mut Session<'_>, text: &str, name: &str, json: bool) -> Result<(), Failure> {
    if session.context() < 2 {
        return Err(failure("a score needs a context of two tokens at least; plan with a larger --context"));
    }
    let tokens = session.tokenizer().encode(text, false);
    let first = session.tokenizer().bos().filter(|_| session.tokenizer().adds_bos());
    let windows: Vec<Vec<u32>> = tokens
        .chunks(session.context() - usize::from(first.is_some()))
        .map(|chunk| first.into_iter().chain(chunk.iter().copied()).collect())
        .collect();
    let count: usize = windows.iter().map(|window: &Vec<u32>| window.len().saturating_sub(1)).sum();
    if count == 0 {
        return Err(failure(format!("{name} has too few tokens to be scored; give a longer text")));
    }
    let bar = Progress::on_stderr(false).bar(2 * count as u64, "tokens scored", Unit::Steps);
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
    drop(bar);
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
    report::print(text_of(&score, session.plan.expected.perplexity_change_fraction))
}

fn text_of(score: &Score, promised: f64) -> Rows {
    let mut rows = Rows::new();
    let mut row = |name: &str, value: String| rows.row([name.to_owned(), value]);
    row("tokens scored", score.tokens.to_string());
    row("perplexity, this plan", format!("{:.4}", score.perplexity_plan));
    row("perplexity, dense", format!("{:.4}", score.perplexity_dense));
    row("change", format!("{:+.3} %", score.perplexity_change_fraction * 100.0));
    row("change by the profile", format!("{:+.3} %", promised * 100.0));
    row("read from flash", plans::size::show(score.bytes_read));
    row("found in memory", format!("{:.2} %", score.hit_fraction * 100.0));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn a_score_is_a_table() {
        let score = Score {
            tokens: 1234,
            perplexity_plan: 4.12345,
            perplexity_dense: 4.12,
            perplexity_change_fraction: 0.000_84,
            bytes_read: 5 << 20,
            hit_fraction: 0.8815,
        };
        expect![[r#"
            tokens scored              1234
            perplexity, this plan    4.1235
            perplexity, dense        4.1200
            change                 +0.084 %
            change by the profile  +0.100 %
            read from flash         5.0 MiB
            found in memory         88.15 %
        "#]]
        .assert_eq(&format!("{}\n", text_of(&score, 0.001)));
    }
}
