//! The table of decisions: everything that a configuration chooses, in one place.
//!
//! `--explain` prints each row with its runner-up: the best configuration that differs in this decision alone.

use plans::Backend;
use plans::layout::Phases;
use plans::size::show;

use crate::field::Field;
use crate::space::Configuration;

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Decision {
    /// Name in explanations.
    pub name: &'static str,
    /// Key in `plan.toml`.
    pub key: &'static str,
    /// The option that a configuration takes, in words.
    option: fn(&Field<'_>, Configuration) -> String,
}

/// All decisions, the most important first.
pub const DECISIONS: [Decision; 14] = [
    row("quality level", "quality.level", |field, way| field.level(way).name.clone()),
    row("cache policy", "cache.policy", |field, way| field.policy(way).to_string()),
    row("compute cores", "decode.compute_cores", |field, way| list(&field.choice(way).0.cores)),
    row("reading", "decode.io_cores", reading),
    row("embedding", "read.embedding_rows", |field, way| {
        if field.embedding_rows(way) { "rows are read".to_owned() } else { "resident".to_owned() }
    }),
    row("back end", "read.backend", |field, way| format!("{:?}", field.choice(way).1.choice.backend)),
    row("reads in flight", "read.depth", |field, way| field.choice(way).1.choice.depth.to_string()),
    row("buffers", "read.buffers", |field, way| field.choice(way).1.choice.buffers.to_string()),
    row("size of a buffer", "read.buffer_bytes", |field, way| show(field.choice(way).1.choice.buffer_bytes)),
    row("gap read over", "read.gap_bytes", |field, way| show(field.choice(way).1.choice.gap_bytes)),
    row("prefetched reads", "read.look_ahead", |field, way| {
        field.choice(way).1.choice.look_ahead.to_string()
    }),
    row("reads of a neuron", "read.phases", phases),
    row("prompt, tokens", "prefill.chunk_tokens", |field, way| field.prompt(way).chunk.to_string()),
    row("prompt, cores", "prefill.compute_cores", |field, way| list(&field.prompt(way).cores)),
];

const fn row(
    name: &'static str,
    key: &'static str,
    option: fn(&Field<'_>, Configuration) -> String,
) -> Decision {
    Decision { name, key, option }
}

fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn reading(field: &Field<'_>, way: Configuration) -> String {
    let (compute, read) = field.choice(way);
    match read.choice.backend {
        Backend::IoUring => "by the deciding thread".to_owned(),
        Backend::Pread if compute.shared => "by threads on the compute cores".to_owned(),
        Backend::Pread => format!("by threads on {}", list(&compute.io_cores)),
    }
}

fn phases(field: &Field<'_>, way: Configuration) -> String {
    match field.choice(way).1.choice.phases {
        Phases::Whole => "one".to_owned(),
        Phases::TwoPhase => "two".to_owned(),
        Phases::Rows => "row by row".to_owned(),
    }
}

/// A decision of a plan, with the best alternative.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Name of the decision.
    pub name: &'static str,
    /// The option taken.
    pub option: String,
    /// The best other option if nothing else changes, and ticks of a token that it cannot be below; `None` where there is none
    /// within the limits.
    pub runner_up: Option<(String, i64)>,
}

/// The decisions of a configuration within so many bytes of regions, with their runners-up.
pub fn taken(field: &Field<'_>, way: Configuration, regions: i64) -> Vec<Taken> {
    let options = |way: Configuration| DECISIONS.map(|decision| (decision.option)(field, way));
    let own = options(way);
    let mut runners_up: [Option<(i64, Configuration)>; DECISIONS.len()] = [None; DECISIONS.len()];
    for other in field.configurations(way.prompt).chain(field.prompts_of(way)) {
        let mut differing =
            own.iter().zip(options(other)).enumerate().filter(|(_, (own, other))| *own != other);
        let (Some((at, _)), None) = (differing.next(), differing.next()) else { continue };
        let Some(bound) = field.bound_of(other, regions) else { continue };
        if runners_up[at].is_none_or(|(least, _)| bound < least) {
            runners_up[at] = Some((bound, other));
        }
    }
    let rows = DECISIONS.iter().zip(own).zip(runners_up);
    rows.map(|((decision, option), runner_up)| Taken {
        name: decision.name,
        option,
        runner_up: runner_up.map(|(ticks, other)| ((decision.option)(field, other), ticks)),
    })
    .collect()
}
