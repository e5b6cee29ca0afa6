//! Speed, latency, reads and memory over a fixed stream of tokens, repeated from an empty cache.

mod together;

use std::path::Path;
use std::time::Duration;

use plans::plan::measured_run;
use serde::Serialize;

use super::current::Probes;
use super::figures::{self, Figures};
use super::report::{self, About};
use super::session::RunningPlan;
use super::{Failure, failure, tokens};
use flashplan::Tokenizer;
use flashplan::internals::fetch::Replay;
use flashplan::internals::recording::Recording;
use terminal::progress::Unit;
use terminal::{Progress, Rows};

/// The text of a benchmark that is given none; no profile has seen it.
const TEXT: &str = include_str!("bench.txt");
/// Times the stream is run.
const REPEATS: usize = 3;

#[derive(Serialize)]
struct Output {
    #[serde(flatten)]
    figures: Figures,
    repeats: usize,
    tokens_in: usize,
    tokens_out: usize,
    /// Least, middle, most of the repeats.
    decode_tokens_per_second_spread: [f64; 3],
    prefill_tokens_per_second_spread: [f64; 3],
    #[serde(flatten)]
    reads_alone: Option<ReadsAlone>,
    /// Several sequences, where the plan has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    together: Vec<together::OfSequences>,
}

/// A token's reads by themselves: the last of the run, done again right after it.
#[derive(Debug, PartialEq, Serialize)]
struct ReadsAlone {
    /// A mean token's, of the last repeat.
    reads_alone_seconds: f64,
    /// Time of a mean token of the last repeat, over its reads alone.
    measured_over_reads_alone: f64,
}

impl ReadsAlone {
    /// Figures of `tokens` decoded in `time` with so many `reads`.
    fn new(alone: Replay, tokens: usize, time: Duration, reads: u64) -> Self {
        let seconds = alone.time.as_secs_f64() / alone.reads as f64 * reads as f64;
        Self {
            reads_alone_seconds: seconds / tokens as f64,
            measured_over_reads_alone: time.as_secs_f64() / seconds,
        }
    }
}

/// Runs the stream, or the tokens given, as many as `--min-speed` is about: the first in, the others out, as given.
pub(super) fn bench(
    session: &mut RunningPlan<'_>,
    given: Option<Vec<u32>>,
    recording: Option<&Recording>,
    csv: Option<&Path>,
    json: bool,
) -> Result<(), Failure> {
    let stream = given.unwrap_or_else(|| stream(session.tokenizer(), session.context()));
    let (tokens_in, tokens_out) = match recording {
        None => measured_run(stream.len().min(session.context()) as u32),
        Some(recording) => follow(session, recording)?,
    };
    if tokens_in == 0 {
        return Err(failure(
            "a benchmark needs two tokens at least; give more, or plan with a larger --context",
        ));
    }
    let (prompt, rest) = stream[..(tokens_in + tokens_out) as usize].split_at(tokens_in as usize);
    let length = REPEATS * (prompt.len() + rest.len());
    let bar = Progress::on_stderr(false).bar(length as u64, "tokens", Unit::Steps);
    let (mut decode_speeds, mut prefill_speeds, mut hashes) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = (Duration::ZERO, 0);
    let mut probes = Probes::after(session.current.take());
    for _ in 0..REPEATS {
        session.clear_cache();
        let (before, first) = (session.prefilled.1, session.steps.len());
        session.prefill(prompt)?;
        session.record_reads();
        prefill_speeds.push(prompt.len() as f64 / (session.prefilled.1 - before).as_secs_f64());
        bar.inc(prompt.len() as u64);
        for &token in rest {
            if let Some(probes) = probes.as_mut().filter(|probes| probes.due()) {
                probes.push(session.probe());
            }
            session.decode(token)?;
            bar.inc(1);
        }
        let (time, counters) = figures::sums(&session.steps[first..]);
        last = (time, counters.reads);
        decode_speeds.push(rest.len() as f64 / time.as_secs_f64());
        hashes.push(session.logits_hash());
    }
    drop(bar);
    if hashes.iter().any(|hash| *hash != hashes[0]) {
        return Err(failure(
            "the same tokens gave different logits when repeated: this is a bug of the engine, please report it",
        ));
    }

    if let Some(mut probes) = probes {
        probes.push(session.probe());
        session.current = probes.mean();
    }
    let figures = figures::figures(session, REPEATS)?;
    let alone = session.replay_reads()?;
    let together = match recording {
        None => together::run(session, &stream[..(tokens_in + tokens_out) as usize], prompt.len())?,
        // the recording has one sequence
        Some(_) => Vec::new(),
    };
    let output = Output {
        figures,
        repeats: REPEATS,
        tokens_in: prompt.len(),
        tokens_out: rest.len(),
        decode_tokens_per_second_spread: spread(decode_speeds),
        prefill_tokens_per_second_spread: spread(prefill_speeds),
        reads_alone: alone.map(|alone| ReadsAlone::new(alone, rest.len(), last.0, last.1)),
        together,
    };
    if let Some(path) = csv {
        tokens::write(path, session)?;
    }
    if json {
        return report::print_json(&output);
    }
    let about = About::new(session.model.name(), session.plan, None);
    let details =
        csv.map(|_| format!("\n\n{}", report::details(&about, &output.figures))).unwrap_or_default();
    report::print(format_args!(
        "{}\n\n{}{details}",
        report::text(&about, &output.figures),
        spread_text(&output)
    ))
}

/// Tokens of a recording's prompt, and those generated after it.
fn follow(session: &RunningPlan<'_>, recording: &Recording) -> Result<(u32, u32), Failure> {
    let (prompt, tokens) = (recording.prompt, recording.routes.tokens());
    if tokens > session.context() {
        return Err(failure(format!(
            "the recording has {tokens} tokens, and the plan's context has room for {}; plan with --context {tokens}",
            session.context()
        )));
    }
    if let Some(remark) = recording.remark() {
        terminal::say(remark);
    }
    Ok((prompt as u32, (tokens - prompt) as u32))
}

/// How the repeats and the tokens differ.
fn spread_text(output: &Output) -> String {
    let mut speeds = Rows::headed(&["tok/s", "least", "middle", "most"]);
    for (name, tokens, values) in [
        ("decode", output.tokens_out, output.decode_tokens_per_second_spread),
        ("prefill", output.tokens_in, output.prefill_tokens_per_second_spread),
    ] {
        let [least, middle, most] = values.map(|speed| format!("{speed:.1}"));
        speeds.row([format!("{name}, {} times {tokens}", output.repeats), least, middle, most]);
    }
    let mut tokens = Rows::headed(&["a token", "mean", "P50", "P90", "P99"]);
    let f = &output.figures;
    for (name, of, scale) in [
        ("latency, ms", f.latency_seconds, 1e3),
        ("  now", f.latency_seconds_now, 1e3),
        ("  planned", f.latency_seconds_predicted, 1e3),
        ("missing, %", f.miss_fraction, 1e2),
        ("  planned", f.miss_fraction_predicted, 1e2),
    ] {
        let Some(of) = of else { continue };
        let [mean, p50, p90, p99] =
            [of.mean, of.p50, of.p90, of.p99].map(|value| format!("{:.3}", value * scale));
        tokens.row([name.to_owned(), mean, p50, p90, p99]);
    }
    let alone = output.reads_alone.as_ref().map_or_else(String::new, |alone| {
        format!(
            "\n\nThe reads of the last repeat, done again alone, took {:.2} ms a token; decoding took {:.2} times as long.",
            alone.reads_alone_seconds * 1e3,
            alone.measured_over_reads_alone
        )
    });
    let together = match &output.together[..] {
        [] => String::new(),
        found => format!("\n\n{}", together::text(found)),
    };
    format!("{speeds}\n\n{tokens}{alone}{together}")
}

/// Tokens of the text built in, which is about what texts are like: a conversation, code, a story, mathematics, in turns. It begins again
/// where it is too short.
fn stream(tokenizer: &Tokenizer, count: usize) -> Vec<u32> {
    tokenizer.encode(TEXT, true).into_iter().cycle().take(count).collect()
}

fn spread(mut speeds: Vec<f64>) -> [f64; 3] {
    speeds.sort_unstable_by(f64::total_cmp);
    [speeds[0], speeds[speeds.len() / 2], speeds[speeds.len() - 1]]
}

#[cfg(test)]
mod tests {
    use flashplan::internals::model::gguf::Gguf;
    use flashplan::internals::model::tokenizer::TokenizerData;

    use super::*;

    #[test]
    fn reads_alone_are_scaled_to_a_token() {
        let alone = Replay { reads: 1000, time: Duration::from_millis(20) };
        let of_token = ReadsAlone::new(alone, 4, Duration::from_millis(60), 2000);
        assert_eq!((of_token.reads_alone_seconds, of_token.measured_over_reads_alone), (0.01, 1.5));
    }

    #[test]
    fn the_text_is_longer_than_a_benchmark_and_begins_again_behind_its_end() {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models/oxide-dense.gguf");
        let bytes = std::fs::read(model).unwrap();
        let gguf = Gguf::parse(&bytes).unwrap();
        let tokenizer = TokenizerData::from_gguf(&gguf).unwrap().into_tokenizer().unwrap();
        let text = tokenizer.encode(TEXT, true);
        assert!(text.len() > 64 + 1024, "{} tokens", text.len());
        let stream = stream(&tokenizer, 2 * text.len());
        assert_eq!(stream, [&text[..], &text[..]].concat());
    }
}
