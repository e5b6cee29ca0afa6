//! The table of decisions: everything that a configuration chooses, in one place.
//!
//! `--explain` prints each row with its runner-up: the best configuration that differs in this decision alone.

use std::collections::BTreeSet;

use plans::Backend;
use plans::layout::Phases;
use plans::plan::Objective;
use plans::size::show;

use crate::cost::reads::ReadChoice;
use crate::pricing::Pricing;
use crate::space::Configuration;

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Decision {
    /// Name in explanations.
    pub name: &'static str,
    /// Key in `plan.toml`.
    pub key: &'static str,
    /// The option that a configuration takes.
    option: fn(&Pricing<'_>, Configuration) -> String,
}

/// All decisions, the most important first.
pub const DECISIONS: [Decision; 14] = [
    row("quality level", "quality.level", |pricing, config| pricing.level(config).name.clone()),
    row("cache policy", "cache.policy", |pricing, config| pricing.policy(config).name().to_owned()),
    row("compute cores", "decode.compute_cores", |pricing, config| list(&pricing.choice(config).0.cores)),
    row("reading", "decode.io_cores", reading),
    row("embedding", "read.embedding_rows", |pricing, config| {
        if pricing.embedding_rows(config) { "rows are read" } else { "resident" }.to_owned()
    }),
    row("back end", "read.backend", |pricing, config| read(pricing, config).backend.name().to_owned()),
    row("reads in flight", "read.depth", |pricing, config| read(pricing, config).depth.to_string()),
    row("buffers", "read.buffers", |pricing, config| read(pricing, config).buffers.to_string()),
    row("size of a buffer", "read.buffer_bytes", |pricing, config| show(read(pricing, config).buffer_bytes)),
    row("gap read over", "read.gap_bytes", |pricing, config| show(read(pricing, config).gap_bytes)),
    row("prefetched reads", "read.look_ahead", |pricing, config| {
        read(pricing, config).look_ahead.to_string()
    }),
    row("reads of a neuron", "read.phases", |pricing, config| {
        match read(pricing, config).phases {
            Phases::Whole => "one",
            Phases::TwoPhase => "two",
            Phases::Rows => "row by row",
        }
        .to_owned()
    }),
    row("prompt, tokens", "prefill.chunk_tokens", |pricing, config| pricing.prompt(config).chunk.to_string()),
    row("prompt, cores", "prefill.compute_cores", |pricing, config| list(&pricing.prompt(config).cores)),
];

const fn row(
    name: &'static str,
    key: &'static str,
    option: fn(&Pricing<'_>, Configuration) -> String,
) -> Decision {
    Decision { name, key, option }
}

fn read(pricing: &Pricing<'_>, config: Configuration) -> ReadChoice {
    pricing.choice(config).1.choice
}

fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn reading(pricing: &Pricing<'_>, config: Configuration) -> String {
    let (compute, read) = pricing.choice(config);
    match read.choice.backend {
        Backend::IoUring => "by the deciding thread".to_owned(),
        Backend::Pread if compute.shared => "by threads on the compute cores".to_owned(),
        Backend::Pread => format!("by threads on {}", list(&compute.io_cores)),
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
    let choices = |config: Configuration| DECISIONS.map(|decision| (decision.option)(pricing, config));
    let own = choices(config);
    let mut others = DECISIONS.map(|_| BTreeSet::new());
    for other in pricing.configurations(config.prompt).chain(pricing.prompts_of(config)) {
        let mut differing = (0..own.len()).filter(|&at| own[at] != (DECISIONS[at].option)(pricing, other));
        let (Some(at), None) = (differing.next(), differing.next()) else { continue };
        others[at].extend(pricing.objective_least(other, regions).map(|bound| (bound, other, false)));
    }
    let rows = DECISIONS.iter().zip(own).zip(others);
    rows.map(|((decision, choice), others)| Taken {
        name: decision.name,
        option: choice,
        runner_up: lowest(pricing, others, regions)
            .map(|(bound, other)| ((decision.option)(pricing, other), bound)),
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
