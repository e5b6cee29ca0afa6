//! The table of decisions: everything that a configuration chooses, in one place.
//!
//! `--explain` prints each row with its runner-up: the best configuration that differs in this decision alone.

use std::collections::BTreeSet;
use std::fmt;

use plans::Backend;
use plans::layout::Phases;
use plans::plan::Objective;
use plans::size::show;

use crate::cost::reads::ReadChoice;
use crate::pricing::Pricing;
use crate::space::Configuration;

/// The option that a configuration takes in one decision.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Choice<'a> {
    Name(&'a str),
    Number(u32),
    Bytes(u64),
    Cores(&'a [u32]),
    ThreadsOn(&'a [u32]),
}

impl fmt::Display for Choice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        match *self {
            Self::Name(name) => f.write_str(name),
            Self::Number(number) => write!(f, "{number}"),
            Self::Bytes(bytes) => f.write_str(&show(bytes)),
            Self::Cores(ids) => f.write_str(&list(ids)),
            Self::ThreadsOn(ids) => write!(f, "by threads on {}", list(ids)),
        }
    }
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Decision {
    /// Name in explanations.
    pub name: &'static str,
    /// Key in `plan.toml`.
    pub key: &'static str,
    choice: for<'a> fn(&'a Pricing<'a>, Configuration) -> Choice<'a>,
}

/// All decisions, the most important first.
pub const DECISIONS: [Decision; 14] = [
    row("quality level", "quality.level", |pricing, config| Choice::Name(&pricing.level(config).name)),
    row("cache policy", "cache.policy", |pricing, config| Choice::Name(pricing.policy(config).name())),
    row("compute cores", "decode.compute_cores", |pricing, config| {
        Choice::Cores(&pricing.choice(config).0.cores)
    }),
    row("reading", "decode.io_cores", reading),
    row("embedding", "read.embedding_rows", |pricing, config| {
        Choice::Name(if pricing.embedding_rows(config) { "rows are read" } else { "resident" })
    }),
    row("back end", "read.backend", |pricing, config| Choice::Name(read(pricing, config).backend.name())),
    row("reads in flight", "read.depth", |pricing, config| Choice::Number(read(pricing, config).depth)),
    row("buffers", "read.buffers", |pricing, config| Choice::Number(read(pricing, config).buffers)),
    row("size of a buffer", "read.buffer_bytes", |pricing, config| {
        Choice::Bytes(read(pricing, config).buffer_bytes)
    }),
    row("gap read over", "read.gap_bytes", |pricing, config| Choice::Bytes(read(pricing, config).gap_bytes)),
    row("prefetched reads", "read.look_ahead", |pricing, config| {
        Choice::Number(read(pricing, config).look_ahead)
    }),
    row("reads of a neuron", "read.phases", |pricing, config| {
        Choice::Name(match read(pricing, config).phases {
            Phases::Whole => "one",
            Phases::TwoPhase => "two",
            Phases::Rows => "row by row",
        })
    }),
    row("prompt, tokens", "prefill.chunk_tokens", |pricing, config| {
        Choice::Number(pricing.prompt(config).chunk)
    }),
    row("prompt, cores", "prefill.compute_cores", |pricing, config| {
        Choice::Cores(&pricing.prompt(config).cores)
    }),
];

const fn row(
    name: &'static str,
    key: &'static str,
    choice: for<'a> fn(&'a Pricing<'a>, Configuration) -> Choice<'a>,
) -> Decision {
    Decision { name, key, choice }
}

fn read(pricing: &Pricing<'_>, config: Configuration) -> ReadChoice {
    pricing.choice(config).1.choice
}

fn reading<'a>(pricing: &'a Pricing<'a>, config: Configuration) -> Choice<'a> {
    let (compute, read) = pricing.choice(config);
    match read.choice.backend {
        Backend::IoUring => Choice::Name("by the deciding thread"),
        Backend::Pread if compute.shared => Choice::Name("by threads on the compute cores"),
        Backend::Pread => Choice::ThreadsOn(&compute.io_cores),
    }
}

/// A decision of a plan, with the best alternative.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Name of the decision.
    pub name: &'static str,
    /// The option taken.
    pub option: String,
    /// The best other option if no other decision changes, and a lower bound of its objective: ticks of a token, or bytes of the
    /// regions where memory is made least. `None` where no other option keeps the limits.
    pub runner_up: Option<(String, i64)>,
}

/// The decisions of a configuration within so many bytes of regions, with their runners-up.
pub fn taken(pricing: &Pricing<'_>, config: Configuration, regions: i64) -> Vec<Taken> {
    let choices = |config: Configuration| DECISIONS.map(|decision| (decision.choice)(pricing, config));
    let own = choices(config);
    let mut others = DECISIONS.map(|_| BTreeSet::new());
    for other in pricing.configurations(config.prompt).chain(pricing.prompts_of(config)) {
        let mut differing = (0..own.len()).filter(|&at| own[at] != (DECISIONS[at].choice)(pricing, other));
        let (Some(at), None) = (differing.next(), differing.next()) else { continue };
        others[at].extend(pricing.objective_least(other, regions).map(|bound| (bound, other, false)));
    }
    let rows = DECISIONS.iter().zip(own).zip(others);
    rows.map(|((decision, choice), others)| Taken {
        name: decision.name,
        option: choice.to_string(),
        runner_up: lowest(pricing, others, regions)
            .map(|(bound, other)| ((decision.choice)(pricing, other).to_string(), bound)),
    })
    .collect()
}

/// The configuration with the lowest bound, once that is the bound of its own split; `None` where the limits leave none.
fn lowest(
    pricing: &Pricing<'_>,
    mut others: BTreeSet<(i64, Configuration, bool)>,
    regions: i64,
) -> Option<(i64, Configuration)> {
    loop {
        let (bound, other, of_split) = others.pop_first()?;
        if of_split || pricing.question.limits.objective == Objective::Memory {
            return Some((bound, other));
        }
        others.extend(pricing.split_least(other, regions).map(|least| (least.max(bound), other, true)));
    }
}
