//! How fast several sequences are together, beside what the plan expects of them.

use std::time::Duration;

use serde::Serialize;
use terminal::Rows;

use super::super::Failure;
use super::super::session::RunningPlan;

/// Speed of some sequences that decode together, a token each.
#[derive(Debug, Serialize)]
pub(super) struct OfSequences {
    sequences: usize,
    decode_tokens_per_second: f64,
    decode_tokens_per_second_predicted: f64,
    bytes_read_per_token: f64,
}

/// Measures one, two, four and eight sequences, and all. Each begins elsewhere in the stream, and the cache is empty before.
pub(super) fn run(
    session: &mut RunningPlan<'_>,
    stream: &[u32],
    tokens_in: usize,
) -> Result<Vec<OfSequences>, Failure> {
    let Some(planned) = &session.plan.together else { return Ok(Vec::new()) };
    let predicted = &planned.decode_tokens_per_second;
    let mut numbers: Vec<usize> =
        [1, 2, 4, 8].into_iter().filter(|&number| number < predicted.len()).collect();
    numbers.push(predicted.len());
    let starts: Vec<usize> = (0..predicted.len()).map(|at| at * stream.len() / predicted.len()).collect();
    let token = |sequence: usize, position: usize| stream[(starts[sequence] + position) % stream.len()];
    let mut found = Vec::new();
    for sequences in numbers {
        session.clear_cache();
        for sequence in 0..sequences {
            let prompt: Vec<u32> = (0..tokens_in).map(|position| token(sequence, position)).collect();
            session.forget(sequence, 0)?;
            session.read(sequence, &prompt)?;
        }
        let (mut time, mut bytes, mut tokens) = (Duration::ZERO, 0, 0);
        for position in tokens_in..stream.len() {
            let rows: Vec<(usize, u32)> =
                (0..sequences).map(|sequence| (sequence, token(sequence, position))).collect();
            let (of_step, counters) = session.decode_each(&rows)?;
            (time, bytes, tokens) = (time + of_step, bytes + counters.read_bytes, tokens + sequences);
        }
        found.push(OfSequences {
            sequences,
            decode_tokens_per_second: tokens as f64 / time.as_secs_f64(),
            decode_tokens_per_second_predicted: predicted[sequences - 1],
            bytes_read_per_token: bytes as f64 / tokens as f64,
        });
    }
    Ok(found)
}

/// The speeds as a table.
pub(super) fn text(found: &[OfSequences]) -> String {
    let mut rows = Rows::headed(&["together", "tok/s", "planned", "over one", "planned", "MiB read a token"]);
    for of in found {
        let over_one =
            |of: fn(&OfSequences) -> f64, this: &OfSequences| format!("{:.2}", of(this) / of(&found[0]));
        rows.row([
            of.sequences.to_string(),
            format!("{:.1}", of.decode_tokens_per_second),
            format!("{:.1}", of.decode_tokens_per_second_predicted),
            over_one(|of| of.decode_tokens_per_second, of),
            over_one(|of| of.decode_tokens_per_second_predicted, of),
            format!("{:.3}", of.bytes_read_per_token / (1 << 20) as f64),
        ]);
    }
    rows.to_string()
}
