//! The best simple rule, priced with the same cost model: what a plan must beat to be worth its solver.
//!
//! Fill by frequency: the same number of neurons of every layer pinned, as many as fit; all cores; the deepest
//! reads, none of them prefetched; each bundle by itself; prompts with the least memory that keeps the limits on them. Best: of
//! the allowed levels and back ends, those that are fastest that way. It is one of the ways that the search looks at, so
//! that no plan is slower.

use plans::model::Level;
use plans::plan::{Feature, Plan, SimpleRule};
use plans::{Backend, Policy};

use crate::assemble::{self, Decided};
use crate::cost;
use crate::error::PlanError;
use crate::request::{DIGITS, Question};
use crate::room::{Need, Room, regions_within, with_page_tables};
use crate::rules::{self, Prompt};
use crate::space::{Configuration, Space};
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
    /// Which of the ways it is.
    pub way: Configuration,
    /// All that the rule decides.
    pub decided: Decided,
    /// Price of the rule, as plans have it.
    pub rule: SimpleRule,
}

/// The best simple rule with all that it decides, or `None` where not even it fits. The space was made for the question's
/// device, model, cores and context.
pub fn best<'a>(question: &Question<'_>, space: &Space<'a>) -> Option<Simple<'a>> {
    let of_level = |level: usize| {
        let pairs = pairs(question, &space.ways[level]);
        pairs.into_iter().filter_map(move |pair| priced(question, space, level, pair))
    };
    (0..space.ways.len())
        .flat_map(of_level)
        .max_by(|a, b| a.rule.decode_tokens_per_second.total_cmp(&b.rule.decode_tokens_per_second))
}

/// The plan of the best simple rule, to be run beside one that was planned; `None` where not even it fits.
///
/// # Errors
/// It is not what was priced.
pub fn plan(question: &Question<'_>) -> Result<Option<Plan>, PlanError> {
    let space = Space::new(question);
    let Some(Simple { level, decided, rule, .. }) = best(question, &space) else { return Ok(None) };
    let plan = assemble::plan(question, level, &decided, rule);
    // six digits are printed
    verify(question, &plan, &decided, DIGITS / rule.decode_tokens_per_second)?;
    Ok(Some(plan))
}

/// Neurons of every layer that the rule would pin, by back end and by how prompts pass: whatever limits these, the same plans are there
/// to choose among.
pub fn pinned(question: &Question<'_>, ways: &Ways<'_>) -> Vec<u32> {
    let prompts = rules::prompts(question);
    let most = |(compute, read): (usize, usize)| {
        let of = (&ways.computes[compute], &ways.reads[read]);
        prompts.iter().filter_map(move |prompt| pinned_most(question, ways, of, prompt))
    };
    let mut pinned: Vec<u32> = pairs(question, ways).into_iter().flat_map(most).collect();
    pinned.sort_unstable();
    pinned.dedup();
    pinned
}

/// Cores and reads of the rule at one level, by back end: indices.
fn pairs(question: &Question<'_>, ways: &Ways<'_>) -> Vec<(usize, usize)> {
    if ways.policy != Policy::Lru {
        return Vec::new();
    }
    let all = |compute: &Compute| compute.shared && compute.cores.len() == question.limits.cores.len();
    let deepest = |backend: Backend| {
        let depths = ways.reads.iter().map(|read| read.choice).filter(|read| read.backend == backend);
        depths.map(|read| read.depth).filter(|&depth| depth <= DEPTH_MAX).max()
    };
    let smallest = ways.reads.iter().map(|read| read.choice.buffer_bytes).min().unwrap_or(0);
    let parts = question.model.parts.bundle.reads_of_slice() as u32;
    let buffers = |depth: u32| (BUFFERS_PER_READ * depth).div_ceil(parts);
    let simple = |read: &Read| {
        let c = &read.choice;
        let plain = c.gap_bytes == 0 && c.look_ahead == 0 && c.buffer_bytes == smallest;
        plain && Some(c.depth) == deepest(c.backend) && c.buffers == buffers(c.depth)
    };
    let reads: Vec<usize> = (0..ways.reads.len()).filter(|&read| simple(&ways.reads[read])).collect();
    let computes = (0..ways.computes.len()).filter(|&compute| all(&ways.computes[compute]));
    computes.flat_map(|compute| reads.iter().map(move |&read| (compute, read))).collect()
}

/// Bytes of so many pinned neurons in every layer.
fn need(ways: &Ways<'_>, pinned: u32) -> Need {
    let neuron: u64 = ways.slot_bytes.iter().sum();
    Need { hot: (u64::from(pinned) * neuron) as i64, ..Need::default() }
}

/// What is left for them.
fn room(
    question: &Question<'_>,
    ways: &Ways<'_>,
    (compute, read): (&Compute, &Read),
    prompt: &Prompt,
) -> Room {
    let regions = regions_within(question.limits.memory_bytes);
    ways.room(question.device, regions, compute, read, prompt)
}

/// The most neurons of every layer that can be pinned; `None` where not even none can.
fn pinned_most(
    question: &Question<'_>,
    ways: &Ways<'_>,
    of: (&Compute, &Read),
    prompt: &Prompt,
) -> Option<u32> {
    let Question { model, limits, .. } = question;
    let room = room(question, ways, of, prompt);
    let pins = limits.with(Feature::Cache) && limits.with(Feature::HotRegion);
    let slice = model.parts.bundle.slice_neurons as u32;
    let most = if pins { model.architecture.neurons() as u32 / slice } else { 0 };
    let fits = |slices: u32| room.fits(need(ways, slices * slice));
    if !fits(0) {
        return None;
    }
    let (mut low, mut over) = (0, most + 1);
    while low + 1 < over {
        let middle = low + (over - low) / 2;
        if fits(middle) { low = middle } else { over = middle }
    }
    Some(low * slice)
}

/// The rule with such cores and reads, and the first prompt that keeps the limits; `None` where none does.
fn priced<'a>(
    question: &Question<'_>,
    space: &Space<'a>,
    level: usize,
    (compute, read): (usize, usize),
) -> Option<Simple<'a>> {
    let ways = &space.ways[level];
    let layers = ways.level.layers.len();
    let (of_compute, of_read) = (&ways.computes[compute], &ways.reads[read]);
    let of_decoding = (level, read, of_compute.embedding_rows);
    let (prompt, pinned) = space.prompts.iter().enumerate().find_map(|(place, prompt)| {
        let pinned = pinned_most(question, ways, (of_compute, of_read), prompt)?;
        let hot = vec![pinned; layers];
        let mut limits = question.limits.prompts_max.iter();
        let in_time = limits.all(|limit| {
            let price = space.prompt_price(question, of_decoding, place, limit.tokens);
            price.seconds(&hot) <= limit.seconds_allowed()
        });
        in_time.then_some((place, pinned))
    })?;
    let decided = Decided {
        cores: of_compute.cores.clone(),
        io_cores: match of_read.choice.backend {
            Backend::Pread => of_compute.io_cores.clone(),
            Backend::IoUring => Vec::new(),
        },
        shared: of_compute.shared,
        cluster: rules::cluster(ways.level),
        read: of_read.choice,
        hot: vec![pinned; layers],
        cold: vec![0; layers],
        policy: ways.policy,
        slice_neurons: question.model.parts.bundle.slice_neurons,
        prompt: space.prompts[prompt].clone(),
        embedding_rows: of_compute.embedding_rows,
    };
    let seconds = cost::decode(question, &decided.decision(ways.level)).mean_seconds(question.limits.context);
    let room = room(question, ways, (of_compute, of_read), &space.prompts[prompt]);
    let regions = regions_within(question.limits.memory_bytes) - room.bytes + room.taken(need(ways, pinned));
    let rule = SimpleRule {
        decode_tokens_per_second: plans::file::significant(1.0 / seconds),
        memory_peak_bytes: with_page_tables(regions) as u64,
    };
    Some(Simple { level: ways.level, way: Configuration { level, compute, read, prompt }, decided, rule })
}
