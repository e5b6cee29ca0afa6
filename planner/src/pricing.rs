//! A space under limits: the price of every configuration in ticks, its memory in bytes, and its exact split.

use std::cell::RefCell;

use plans::model::Level;
use plans::{Backend, Policy};

use crate::candidate::Candidate;
use crate::cores::Compute;
use crate::cost::reads::LayerReads;
use crate::curve::Curve;
use crate::flash::Read;
use crate::layers::Cached;
use crate::options::Options;
use crate::presolve::Presolve;
use crate::prompts::PromptLimits;
use crate::question::{DIGITS, Question, least_printed_as};
use crate::relax::Relaxation;
use crate::room::Room;
use crate::rules::Prompt;
use crate::space::Configuration;
use crate::split::{Budget, Found, Item, NEVER, Wanted, split};

/// A space under limits, in ticks and bytes.
#[derive(Debug)]
pub struct Pricing<'a> {
    /// The device, the model and the limits.
    pub question: &'a Question<'a>,
    pub(crate) space: &'a Presolve<'a>,
    pub(crate) options: &'a [Options<'a>],
    pub(crate) prompts: &'a [Prompt],
    /// Seconds of a tick.
    pub tick_seconds: f64,
    /// Most ticks of a token.
    pub time_max: Option<i64>,
    /// The limits on prompts.
    pub limited: PromptLimits<'a>,
    /// A plan that keeps the limits and was found on the way.
    pub(crate) known: RefCell<Option<Candidate>>,
}

impl<'a> Pricing<'a> {
    /// Under these limits on memory and time.
    pub fn new(question: &'a Question<'a>, space: &'a Presolve<'a>) -> Self {
        let tick_seconds = space.tick_seconds;
        // ticks are rounded up, once for each layer and once for the rest
        let rounded = f64::from(question.model.architecture.layers) + 1.0;
        let slowest = |speed: f64| {
            let of_digits = 1.0 / least_printed_as(speed) / tick_seconds + rounded;
            of_digits.min(DIGITS / speed / tick_seconds) as i64
        };
        Self {
            question,
            space,
            options: &space.options,
            prompts: &space.prompts,
            tick_seconds,
            time_max: question.limits.speed_min.map(slowest),
            limited: PromptLimits::new(question, space),
            known: RefCell::default(),
        }
    }

    /// The quality level of a configuration.
    pub fn level(&self, config: Configuration) -> &'a Level {
        self.options[config.level].level
    }

    /// Cache policy of a configuration: who leaves a slot.
    pub fn policy(&self, config: Configuration) -> Policy {
        self.options[config.level].policy
    }

    /// Whether a configuration reads rows of the token embedding.
    pub fn embedding_rows(&self, config: Configuration) -> bool {
        self.choice(config).0.embedding_rows
    }

    /// Compute cores of a configuration, and how it reads.
    pub fn choice(&self, config: Configuration) -> (&'a Compute, &'a Read) {
        let options = &self.options[config.level];
        (&options.computes[config.compute], &options.reads[config.read])
    }

    /// Reads that differ from those of a configuration in nothing but their number in flight and their buffers.
    pub fn siblings(&self, config: Configuration) -> Vec<Configuration> {
        let key = |read: &Read| {
            let c = &read.choice;
            (c.backend, c.direct, c.gap_bytes, c.phases, c.look_ahead > 0)
        };
        let reads = &self.options[config.level].reads;
        let alike = |&read: &usize| key(&reads[read]) == key(&reads[config.read]);
        (0..reads.len()).filter(alike).map(|read| Configuration { read, ..config }).collect()
    }

    /// How prompts pass in a configuration.
    pub fn prompt(&self, config: Configuration) -> &'a Prompt {
        &self.prompts[config.prompt]
    }

    /// cachings of a layer at a configuration's level.
    pub fn cached(&self, config: Configuration, layer: usize) -> &'a [Cached] {
        &self.options[config.level].cached[layer]
    }

    /// Number of configurations.
    pub fn count(&self) -> usize {
        self.options.iter().map(|options| options.computes.len() * options.reads.len()).sum()
    }

    /// All configurations with one choice of prompts.
    pub fn configurations(&self, prompt: usize) -> impl Iterator<Item = Configuration> + '_ {
        let of_level = move |(level, options): (usize, &'a Options<'a>)| {
            let computes = 0..options.computes.len();
            let reads = 0..options.reads.len();
            computes.flat_map(move |compute| {
                reads.clone().map(move |read| Configuration { level, compute, read, prompt })
            })
        };
        self.options.iter().enumerate().flat_map(of_level)
    }

    /// A configuration with each choice of prompts.
    pub fn prompts_of(&self, config: Configuration) -> impl Iterator<Item = Configuration> + '_ {
        (0..self.prompts.len()).map(move |prompt| Configuration { prompt, ..config })
    }

    /// Ticks of so many seconds.
    pub fn ticks(&self, seconds: f64) -> i64 {
        self.space.ticks(seconds)
    }

    /// Ticks that nothing overlaps.
    pub fn serial(&self, config: Configuration) -> i64 {
        self.ticks(self.choice(config).0.serial)
    }

    /// Cores in use, for computing and for reading.
    pub fn cores(&self, config: Configuration) -> i64 {
        let (compute, read) = self.choice(config);
        let reading = read.choice.backend == Backend::Pread && !compute.shared;
        (compute.cores.len() + if reading { compute.io_cores.len() } else { 0 }) as i64
    }

    /// Bytes that a configuration leaves for neurons and a prompt's rows, of so many bytes of regions.
    pub fn room(&self, config: Configuration, regions: i64) -> Room {
        self.space.room(self.question.device, config, regions)
    }

    /// Seconds of a prompt.
    pub fn prompt_seconds(&self, candidate: &Candidate, tokens: u32) -> f64 {
        self.limited.price(candidate.config, tokens).seconds(&self.hot(candidate))
    }

    /// Pinned neurons of each layer.
    pub fn hot(&self, candidate: &Candidate) -> Vec<u32> {
        let layers = candidate.found.chosen.iter().enumerate();
        layers.map(|(layer, &item)| self.cached(candidate.config, layer)[item].hot).collect()
    }

    /// A lower bound on ticks; `None` where the limits cannot be kept.
    pub(crate) fn bound(&self, room: Room, pinned: i64, relaxation: &Relaxation) -> Option<i64> {
        let [all, beside] = room.budgets();
        // a curve's value is rounded up
        let ticks = relaxation.serial + relaxation.layers_least(all, pinned)? - 1;
        let kept = pinned <= beside && self.time_max.is_none_or(|most| ticks <= most);
        kept.then_some(ticks)
    }

    /// Ticks of a token that no split of a configuration can be below; `None` where the limits cannot be kept.
    pub fn bound_of(&self, config: Configuration, regions: i64) -> Option<i64> {
        let relaxation = self.space.relaxation(self.space.node_of(config));
        let own = relaxation.with_serial(self.serial(config) - 1);
        self.bound(self.room(config, regions), 0, &own)
    }

    /// Per layer the cachings that a split of at most `worst` ticks can use, and what all layers must keep within so
    /// many bytes; `None` where there is no such split.
    pub fn layers(
        &self,
        config: Configuration,
        regions: i64,
        worst: i64,
    ) -> Option<(Vec<Vec<Item>>, Budget)> {
        let (compute, read) = self.choice(config);
        let options = &self.options[config.level];
        let room = self.room(config, regions);
        let [all, beside] = room.budgets();
        if beside < 0 {
            return None;
        }
        let interference = options.interference(compute, read);
        let of_read = options.layer_reads(config.read);
        let price = |&(layer, _): &(usize, i64)| {
            let item = |(cached, (of, reads)): (usize, (&Cached, &LayerReads))| {
                let ticks = self.ticks(options.seconds_with(compute, read, &interference, layer, of, reads));
                Item { cached, need: of.need, ticks, prompts: [0, 0] }
            };
            let of_each = options.cached[layer].iter().zip(&*of_read[layer]);
            let mut items: Vec<Item> = of_each.enumerate().map(item).collect();
            items.sort_by_key(|item| (item.need.bytes(), item.ticks));
            items
        };
        let mut kinds: Vec<Vec<Item>> = options.kinds.iter().map(price).collect();
        let hulls: Vec<Curve> = kinds.iter().map(|items| hull(items)).collect();
        let curve = Curve::sum(hulls.iter().zip(options.counts()));
        let gap = worst - self.serial(config) - curve.at(all)? + 1;
        if gap < 0 {
            return None;
        }
        kinds.iter_mut().for_each(|items| keep_within(items, curve.price(all), gap));
        let mut items: Vec<Vec<Item>> = options.kind_of.iter().map(|&kind| kinds[kind].clone()).collect();
        let mut budget = Budget { room, prompts: [NEVER; 2], choices_max: self.limited.choices_max() };
        for (k, prompt) in self.limited.ticks(config).into_iter().enumerate() {
            budget.prompts[k] = prompt.most;
            for (items, ticks) in items.iter_mut().zip(&prompt.layers) {
                items.iter_mut().for_each(|item| item.prompts[k] = ticks[item.cached]);
            }
        }
        Some((items, budget))
    }

    /// A lower bound on the ticks of all splits of a configuration; `None` where none keeps the limits.
    pub fn split_least(&self, config: Configuration, regions: i64) -> Option<i64> {
        let worst = self.time_max.unwrap_or(NEVER);
        let (items, budget) = self.layers(config, regions, worst)?;
        let ticks = self.serial(config) + split(&items, &budget, None, Wanted::Bound)?.least;
        (ticks <= worst).then_some(ticks)
    }

    /// A split of a configuration that keeps the limits and takes at most `worst` ticks, and ticks that no split can be below.
    pub fn candidate(
        &self,
        config: Configuration,
        regions: i64,
        worst: i64,
        wanted: Wanted,
    ) -> (Option<Candidate>, i64) {
        let serial = self.serial(config);
        if !self.limited.may(config, regions) {
            return (None, worst + 1);
        }
        let Some((items, budget)) = self.layers(config, regions, worst) else { return (None, worst + 1) };
        let Some(split) = split(&items, &budget, Some(worst + 1 - serial), wanted) else {
            return (None, worst + 1);
        };
        let fastest = serial + split.fastest;
        let of_split = |mut found: Found| {
            for (chosen, items) in found.chosen.iter_mut().zip(&items) {
                *chosen = items[*chosen].cached;
            }
            let regions = regions - budget.room.bytes + budget.room.taken(found.need);
            Candidate { config, ticks: serial + found.ticks, fastest, regions, found }
        };
        (split.found.map(of_split).filter(|found| found.ticks <= worst), serial + split.least)
    }

    /// Whether it keeps the limits on time.
    pub fn keeps_times(&self, candidate: &Candidate) -> bool {
        self.time_max.is_none_or(|most| candidate.ticks <= most) && self.keeps_prompts(candidate)
    }

    /// Whether it keeps the limits on prompts.
    pub fn keeps_prompts(&self, candidate: &Candidate) -> bool {
        let mut limits = self.question.limits.prompts_max.iter();
        limits.all(|limit| self.prompt_seconds(candidate, limit.tokens) <= limit.seconds_allowed())
    }
}

/// The lower hull of items that rise in bytes.
fn hull(items: &[Item]) -> Curve {
    Curve::over(&items.iter().map(|item| (item.need.bytes(), item.ticks)).collect::<Vec<_>>())
}

/// Keeps the items that a split can use which takes at most `gap` ticks more than the relaxation: those whose reduced cost is no
/// greater, with a byte at this price.
fn keep_within(items: &mut Vec<Item>, price: f64, gap: i64) {
    let cost = |item: &Item| item.ticks as f64 + price * item.need.bytes() as f64;
    let least = items.iter().map(cost).fold(f64::INFINITY, f64::min);
    // a tick more, since curves are rounded
    items.retain(|item| cost(item) - least <= gap as f64 + 1.0);
}
