//! The best simple rule, priced with the same cost model: what a plan must beat to be worth its solver.
//!
//! Fill by frequency: the same number of neurons of every layer pinned, as many as fit; all cores; the deepest
//! reads, none of them prefetched; each bundle by itself. Best: of the allowed levels and back ends, those that are
//! fastest that way. It is one of the ways that the search looks at, so that no plan is slower.

use plans::model::Level;
use plans::plan::{Feature, Plan, SimpleRule};
use plans::{Backend, Policy};

use crate::assemble::{self, Decided};
use crate::cost;
use crate::error::PlanError;
use crate::request::{DIGITS, Question};
use crate::room::{Need, Room, regions_within, with_page_tables};
use crate::rules::{self, Prompt};
use crate::space::Space;
use crate::verify::verify;
use crate::ways::{Compute, Read, Ways};

/// Reads in flight, unless somebody thinks about it.
const DEPTH_MAX: u32 = 32;
/// Buffers for each of them.
const BUFFERS_PER_READ: u32 = 4;

/// The simple rule with one back end at one level: its decisions and its price.
#[derive(Debug)]
pub struct Simple<'a> {
    /// Quality level.
    pub level: &'a Level,
    /// All that the rule decides.
    pub decided: Decided,
    /// Price of the rule, as plans have it.
    pub rule: SimpleRule,
}

/// The best simple rule, or `None` where not even it fits.
pub fn simple_rule(question: &Question<'_>, all: &[Ways<'_>]) -> Option<SimpleRule> {
    best(question, all).map(|simple| simple.rule)
}

/// The best simple rule with all that it decides, or `None` where not even it fits.
pub fn best<'a>(question: &Question<'_>, all: &[Ways<'a>]) -> Option<Simple<'a>> {
    all.iter()
        .flat_map(|ways| simply(question, ways))
        .max_by(|a, b| a.rule.decode_tokens_per_second.total_cmp(&b.rule.decode_tokens_per_second))
}

/// The plan of the best simple rule, to be run beside one that was planned; `None` where not even it fits.
///
/// # Errors
/// It is not what was priced.
pub fn plan(question: &Question<'_>) -> Result<Option<Plan>, PlanError> {
    let space = Space::new(question);
    let Some(Simple { level, decided, rule }) = best(question, &space.ways) else { return Ok(None) };
    let plan = assemble::plan(question, level, &decided, rule);
    // six digits are printed
    verify(question, &plan, &decided, DIGITS / rule.decode_tokens_per_second)?;
    Ok(Some(plan))
}

/// How many neurons of every layer the rule would pin, by back end.
pub fn pinned(question: &Question<'_>, ways: &Ways<'_>) -> Vec<u32> {
    let hot = |simple: Simple<'_>| simple.decided.hot.first().copied().unwrap_or(0);
    let mut pinned: Vec<u32> = simply(question, ways).into_iter().map(hot).collect();
    pinned.dedup();
    pinned
}

/// The rule at one level, by back end.
fn simply<'a>(question: &Question<'_>, ways: &Ways<'a>) -> Vec<Simple<'a>> {
    let allowed = ways.policy == Policy::Lru;
    let Some(prompt) = rules::prompts(question).into_iter().next().filter(|_| allowed) else {
        return Vec::new();
    };
    let computes = ways
        .computes
        .iter()
        .filter(|compute| compute.shared && compute.cores.len() == question.limits.cores.len());
    let deepest = |backend: Backend| {
        let depths = ways.reads.iter().map(|read| read.choice).filter(|read| read.backend == backend);
        depths.map(|read| read.depth).filter(|&depth| depth <= DEPTH_MAX).max()
    };
    let smallest = ways.reads.iter().map(|read| read.choice.buffer_bytes).min().unwrap_or(0);
    let parts = question.model.parts.bundle.reads_of_slice() as u32;
    let buffers = |depth: u32| (BUFFERS_PER_READ * depth).div_ceil(parts);
    let simple = |read: &&Read| {
        let c = &read.choice;
        let plain = c.gap_bytes == 0 && c.look_ahead == 0 && c.buffer_bytes == smallest;
        plain && Some(c.depth) == deepest(c.backend) && c.buffers == buffers(c.depth)
    };
    let reads = || ways.reads.iter().filter(simple);
    computes
        .flat_map(|compute| reads().map(move |read| (compute, read)))
        .filter_map(|(compute, read)| filled(question, ways, compute, read, &prompt))
        .collect()
}

fn filled<'a>(
    question: &Question<'_>,
    ways: &Ways<'a>,
    compute: &Compute,
    read: &Read,
    prompt: &Prompt,
) -> Option<Simple<'a>> {
    let Question { device, model, limits, .. } = question;
    let layers = ways.level.layers.len() as u64;
    let regions = regions_within(limits.memory_bytes);
    let room: Room = ways.room(device, regions, compute, read, prompt);
    let pins = limits.with(Feature::Cache) && limits.with(Feature::HotRegion);
    let slice = model.parts.bundle.slice_neurons as u32;
    let most = if pins { model.architecture.neurons() as u32 / slice } else { 0 };
    let slots_bytes: u64 = ways.slot_bytes.iter().sum();
    let need = |count: u32| Need { hot: (u64::from(count * slice) * slots_bytes) as i64, ..Need::default() };
    if !room.fits(need(0)) {
        return None;
    }
    let (mut fits, mut over) = (0, most + 1);
    while fits + 1 < over {
        let middle = fits + (over - fits) / 2;
        if room.fits(need(middle)) { fits = middle } else { over = middle }
    }
    let decided = Decided {
        cores: compute.cores.clone(),
        io_cores: match read.choice.backend {
            Backend::Pread => compute.io_cores.clone(),
            Backend::IoUring => Vec::new(),
        },
        shared: compute.shared,
        cluster: rules::cluster(ways.level),
        read: read.choice,
        hot: vec![fits * slice; layers as usize],
        cold: vec![0; layers as usize],
        policy: ways.policy,
        slice_neurons: u64::from(slice),
        prompt: prompt.clone(),
        embedding_rows: compute.embedding_rows,
    };
    let seconds = cost::decode(question, &decided.decision(ways.level)).mean_seconds(limits.context);
    let memory_peak_bytes = with_page_tables(regions - room.bytes + room.taken(need(fits))) as u64;
    let decode_tokens_per_second = plans::file::significant(1.0 / seconds);
    let rule = SimpleRule { decode_tokens_per_second, memory_peak_bytes };
    Some(Simple { level: ways.level, decided, rule })
}
