//! Perplexity of a text under the plan, every token through decode, and the dense perplexity of the source file.
//!
//! The plan runs the container, whose down rows may have been quantised once more than the source's. The container computed dense is
//! therefore not the reference for losses. With `--source`, the reference implementation reads the text with the source file. Without it,
//! the container's loss is taken from the profile.

use std::path::Path;

use flashplan::internals::container::Container;
use flashplan::internals::engine::container;
use flashplan::internals::model::source::SourceModel;
use flashplan::internals::reference::{Reference, negative_log_likelihood};
use flashplan::{StopHandle, Tokenizer};
use serde::Serialize;
use terminal::progress::Unit;
use terminal::{Progress, Rows};

use super::input::Pieces;
use super::report;
use super::session::RunningPlan;
use super::{Failure, failure};

#[derive(Serialize)]
struct Score {
    tokens: usize,
    perplexity_plan: f64,
    /// Perplexity of the container computed dense.
    perplexity_container: f64,
    /// Perplexity of the source file. Unknown without `--source` in a plan that does not give the container's loss.
    perplexity_dense: Option<f64>,
    /// Whether the source file has read this text.
    source_read: bool,
    /// Against the source file; where that is unknown, against the container.
    perplexity_change_fraction: f64,
    bytes_read: u64,
    hit_fraction: f64,
}

/// Scores a text, cut into windows of the plan's context; the first token of each is given, not predicted.
pub(super) fn score(
    session: &mut RunningPlan<'_>,
    text: Pieces,
    source: Option<&Path>,
    json: bool,
    stop: &StopHandle,
) -> Result<(), Failure> {
    if session.context() < 2 {
        return Err(failure("a score needs a context of two tokens at least; plan with a larger --context"));
    }
    let name = text.name().to_owned();
    let source = source.map(|path| opened(path, session)).transpose()?;
    let passes = if source.is_some() { 3 } else { 2 };
    let mut windows = Windows::new(text, session.tokenizer(), session.context());
    let bar = Progress::on_stderr(false).bar(1, "tokens scored", Unit::Steps);
    let (mut plan, mut container, mut dense) = (0.0, 0.0, 0.0);
    let mut count = 0;
    let before = session.counters();
    let mut dense_bytes = 0;
    while let Some(window) = windows.next(stop)? {
        bar.set_length(passes * windows.expected());
        count += window.len() - 1;
        session.reset()?;
        for pair in window.windows(2) {
            plan += negative_log_likelihood(session.decode(pair[0])?, pair[1]);
            bar.inc(1);
        }
        let mut each = |position: usize, logits: &[f32]| {
            if let Some(&next) = window.get(position + 1) {
                container += negative_log_likelihood(logits, next);
                bar.inc(1);
            }
        };
        session.steps.clear();
        let decoded = session.counters().read_bytes;
        session.prefill_each(&window, &mut each)?;
        dense_bytes += session.counters().read_bytes - decoded;
        let Some(source) = &source else { continue };
        let mut reference = Reference::new(source, kernels::best()).with_context(session.context());
        for pair in window.windows(2) {
            if stop.is_stopped() {
                return Err(Failure::Stopped);
            }
            dense += negative_log_likelihood(&reference.step(pair[0], &mut ()), pair[1]);
            bar.inc(1);
        }
    }
    if count == 0 {
        return Err(failure(format!("{name} has too few tokens to be scored; give a longer text")));
    }
    let counters = session.counters().since(&before);
    drop(bar);
    let perplexity = |sum: f64| (sum / count as f64).exp();
    let (plan, container) = (perplexity(plan), perplexity(container));
    let lost = session.plan.expected.container_perplexity_change_fraction;
    let dense = match (&source, lost) {
        (Some(_), _) => Some(perplexity(dense)),
        (None, lost) => lost.map(|lost| container / (1.0 + lost)),
    };
    let score = Score {
        tokens: count,
        perplexity_plan: plan,
        perplexity_container: container,
        perplexity_dense: dense,
        source_read: source.is_some(),
        perplexity_change_fraction: plan / dense.unwrap_or(container) - 1.0,
        bytes_read: counters.read_bytes - dense_bytes,
        hit_fraction: counters.hit_fraction(),
    };
    if json {
        return report::print_json(&score);
    }
    let expected = &session.plan.expected;
    let promised = (expected.perplexity_change_fraction, expected.perplexity_change_fraction_upper);
    report::print(text_of(&score, promised))
}

/// A text in windows of tokens, with at most one piece in memory. Pieces end with lines; the tokens at a boundary may differ from the
/// tokens of the whole text.
struct Windows<'t> {
    /// `None` while it is read elsewhere, and at its end.
    text: Option<Pieces>,
    tokenizer: &'t Tokenizer,
    /// Tokens of a window, and the one that each begins with, if the model has such a token.
    length: usize,
    first: Option<u32>,
    tokens: Vec<u32>,
    /// Bytes of the whole text, if known; the next field counts the bytes read and their tokens.
    bytes: Option<u64>,
    read: (u64, u64),
}

impl<'t> Windows<'t> {
    fn new(text: Pieces, tokenizer: &'t Tokenizer, context: usize) -> Self {
        let first = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let (length, bytes) = (context - usize::from(first.is_some()), text.bytes());
        Self { text: Some(text), tokenizer, length, first, tokens: Vec::new(), bytes, read: (0, 0) }
    }

    /// The next window of two tokens or more. It ends as soon as the user wants to: a pipe may never say anything.
    fn next(&mut self, stop: &StopHandle) -> Result<Option<Vec<u32>>, Failure> {
        while self.tokens.len() < self.length
            && let Some(mut text) = self.text.take()
        {
            let work = move || (text.next(), text);
            let (piece, text) = terminal::interrupt::heeding(|| stop.is_stopped(), work)?;
            let Some(piece) = piece? else { break };
            self.text = Some(text);
            let tokens = match self.read {
                (0, _) => self.tokenizer.encode(&piece, false),
                _ => self.tokenizer.encode_rest(&piece),
            };
            self.read = (self.read.0 + piece.len() as u64, self.read.1 + tokens.len() as u64);
            self.tokens.extend(tokens);
        }
        let rest = self.tokens.split_off(self.tokens.len().min(self.length));
        let window = std::mem::replace(&mut self.tokens, rest);
        let window: Vec<u32> = self.first.into_iter().chain(window).collect();
        Ok((window.len() > 1).then_some(window))
    }

    /// Tokens that the whole text may have, by those read so far.
    fn expected(&self) -> u64 {
        let (bytes, tokens) = self.read;
        let all = self.bytes.unwrap_or(bytes).max(bytes);
        (tokens as f64 * all as f64 / bytes.max(1) as f64) as u64
    }
}

/// The source of the plan's model, and no other.
fn opened(path: &Path, session: &RunningPlan<'_>) -> Result<SourceModel<'static>, Failure> {
    let source = confirmed(path, &session.plan.target.model_fingerprint)?;
    // which `profile --activation` may have chosen
    let opened = container(session.model);
    let folder = opened.weights_path().parent();
    let container = Container::open_with(&opened.path, folder).map_err(failure)?;
    Ok(source.with_activation(container.directory.config.activation()))
}

/// The file, if it has this fingerprint.
fn confirmed(path: &Path, fingerprint: &str) -> Result<SourceModel<'static>, Failure> {
    let source = SourceModel::open(path).map_err(|error| failure(error.of_file(path)))?;
    let mut hasher = blake3::Hasher::new();
    source.gguf().files().for_each(|(_, _, file)| {
        hasher.update(file);
    });
    let found = hasher.finalize().to_hex();
    if found.as_str() != fingerprint {
        return Err(failure(format!(
            "{} is not the file that this plan's model was profiled from: its BLAKE3 is {found}, and the plan has \
             {fingerprint}; give --source that file, or leave it out",
            path.display()
        )));
    }
    Ok(source)
}

fn text_of(score: &Score, (promised, upper): (f64, Option<f64>)) -> Rows {
    let percent = |fraction: f64| format!("{:+.3} %", fraction * 100.0);
    let mut rows = Rows::new();
    let mut row = |name: &str, value: String| rows.row([name.to_owned(), value]);
    row("tokens scored", score.tokens.to_string());
    row("perplexity, this plan", format!("{:.4}", score.perplexity_plan));
    row("perplexity, the container dense", format!("{:.4}", score.perplexity_container));
    let (source, against) = match (score.perplexity_dense, score.source_read) {
        (None, _) => ("unknown; give --source".to_owned(), "change against the container"),
        (Some(dense), true) => (format!("{dense:.4}"), "change against the source"),
        (Some(dense), false) => (format!("{dense:.4} by the profile"), "change against the source"),
    };
    row("perplexity, the source file dense", source);
    row(against, percent(score.perplexity_change_fraction));
    row("change by the profile", percent(promised));
    if let Some(upper) = upper {
        row("at most, with 95 % confidence", percent(upper));
    }
    row("read from flash", plans::size::show(score.bytes_read));
    row(plans::names::FOUND, format!("{:.2} %", score.hit_fraction * 100.0));
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
            perplexity_container: 4.12,
            perplexity_dense: Some(4.11),
            source_read: true,
            perplexity_change_fraction: 4.12345 / 4.11 - 1.0,
            bytes_read: 5 << 20,
            hit_fraction: 0.8815,
        };
        expect![[r#"
            tokens scored                          1234
            perplexity, this plan                4.1235
            perplexity, the container dense      4.1200
            perplexity, the source file dense    4.1100
            change against the source          +0.327 %
            change by the profile              +0.100 %
            at most, with 95 % confidence      +0.420 %
            read from flash                     5.0 MiB
            cache hit rate                      88.15 %
        "#]]
        .assert_eq(&format!("{}\n", text_of(&score, (0.001, Some(0.0042)))));
        let unread = Score { source_read: false, ..score };
        let said = text_of(&unread, (0.001, None)).to_string();
        assert!(said.contains("4.1100 by the profile") && !said.contains("at most"), "{said}");
        let older = Score { perplexity_dense: None, perplexity_change_fraction: 0.000_84, ..unread };
        let said = text_of(&older, (0.001, None)).to_string();
        assert!(
            said.contains("unknown; give --source") && said.contains("change against the container"),
            "{said}"
        );
    }

    #[test]
    fn another_file_than_the_source_is_refused() {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models/oxide-moe.gguf");
        let said = confirmed(Path::new(model), "another").expect_err("another").to_string();
        assert!(said.contains("is not the file that this plan's model was profiled from"), "{said}");
    }
}
