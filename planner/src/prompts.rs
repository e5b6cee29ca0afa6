//! Limits on prompts: which configurations can keep them, and the ticks of a limited prompt in each layer.
//!
//! Pinned neurons make prompts faster and take memory beside the slots. So each configuration has a least number of bytes that
//! are pinned, without which no split keeps the limits.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::cost::PromptPrice;
use crate::curve::Curve;
use crate::question::{PromptLimit, Question};
use crate::rules::Prompt;
use crate::space::{Configuration, Space};
use crate::split::{CHOICES_MAX, NEVER};

/// Parts of the time of a prompt that is limited.
const PROMPT_TICKS: f64 = (1u64 << 40) as f64;
/// Ticks of prompts that are kept, at most: 16 MiB.
const PROMPT_TICKS_KEPT: usize = (16 << 20) / size_of::<i64>();

/// Partial choices of a split that are looked at where prompts are limited: more find hardly anything better, and take twice as long.
const LIMITED_CHOICES_MAX: usize = CHOICES_MAX >> 1;

/// A level, the price of a prompt, and its place among the limits.
type LimitedPrompt = (usize, *const PromptPrice, usize);

/// The ticks of a limited prompt.
#[derive(Debug)]
pub(crate) struct PromptTicks {
    /// Most of all layers.
    pub(crate) most: i64,
    /// Per layer those with each of its cachings.
    pub(crate) layers: Vec<Vec<i64>>,
}

/// Prompts that can keep the limits, the least memory first, each with the fewest bytes of pinned neurons with which it does.
pub(crate) type Prompts = Rc<[(usize, i64)]>;

/// The limits on prompts in a space, and what is known of them.
#[derive(Debug)]
pub struct PromptLimits<'a> {
    question: &'a Question<'a>,
    space: &'a Space<'a>,
    /// By level, reads and whether rows of the token embedding are read: [`Self::useful`].
    useful: RefCell<HashMap<(usize, usize, bool), Prompts>>,
    ticks: RefCell<HashMap<LimitedPrompt, Rc<PromptTicks>>>,
}

impl<'a> PromptLimits<'a> {
    /// Of a question, in its space.
    pub fn new(question: &'a Question<'a>, space: &'a Space<'a>) -> Self {
        let (useful, ticks) = (RefCell::default(), RefCell::default());
        Self { question, space, useful, ticks }
    }

    /// Whether no prompt is limited.
    pub fn is_empty(&self) -> bool {
        self.question.limits.prompts_max.is_empty()
    }

    /// Partial choices of a split that are looked at, at most.
    pub(crate) fn choices_max(&self) -> usize {
        if self.is_empty() { CHOICES_MAX } else { LIMITED_CHOICES_MAX }
    }

    /// The price of a prompt.
    pub fn price(&self, config: Configuration, tokens: u32) -> Rc<PromptPrice> {
        let of_decoding = (config.level, config.read, self.rows(config));
        self.space.prompt_price(self.question, of_decoding, config.prompt, tokens)
    }

    /// Whether rows of the token embedding are read.
    fn rows(&self, config: Configuration) -> bool {
        self.space.options[config.level].computes[config.compute].embedding_rows
    }

    /// One configuration of each kind that limits on prompts can tell apart: the one that leaves most memory. Each has the bytes that it
    /// leaves for pinned neurons, the most first.
    ///
    /// How long a prompt takes depends on the level, on parts of the reads, on the rows of the embedding and on the prompt's own
    /// choices. So where a token may take any time, these decide for all configurations.
    pub(crate) fn roomiest(&self, regions: i64) -> Vec<(i64, Configuration)> {
        let mut found = Vec::new();
        for (level, options) in self.space.options.iter().enumerate() {
            let mut reads: HashMap<usize, usize> = HashMap::new();
            for (read, of) in options.reads.iter().enumerate() {
                let least = reads.entry(self.space.prompts_as(level, read)).or_insert(read);
                if of.bytes < options.reads[*least].bytes {
                    *least = read;
                }
            }
            for rows in [false, true] {
                let computes =
                    (0..options.computes.len()).filter(|&c| options.computes[c].embedding_rows == rows);
                let Some(compute) = computes.min_by_key(|&c| options.computes[c].cores.len()) else {
                    continue;
                };
                for &read in reads.values() {
                    let all = (0..self.space.prompts.len()).map(|prompt| Configuration {
                        level,
                        compute,
                        read,
                        prompt,
                    });
                    found.extend(all.map(|config| {
                        (self.space.room(self.question.device, config, regions).budgets()[1], config)
                    }));
                }
            }
        }
        found.retain(|&(beside, _)| beside >= 0);
        found.sort_unstable_by(|a, b| b.cmp(a));
        found
    }

    /// Seconds that no plan within so many bytes of regions can be below with a prompt, however slowly it decodes.
    pub fn seconds_least(&self, tokens: u32, regions: i64) -> Option<f64> {
        let least = |(beside, config): (i64, Configuration)| {
            let price = self.price(config, tokens);
            let ticks = self.curve(config.level, &price).at(beside).unwrap_or(0);
            price.once + (ticks - 1) as f64 * self.space.tick_seconds
        };
        self.roomiest(regions).into_iter().map(least).min_by(f64::total_cmp)
    }

    /// A lower bound on a prompt's seconds in the layers, in ticks, against bytes of pinned neurons.
    ///
    /// A layer's seconds fall by its reading. Its last reads are no faster than the first, so that no share of it lies below the line from
    /// nothing to all.
    fn curve(&self, level: usize, price: &PromptPrice) -> Curve {
        let all = self.question.model.architecture.neurons() as u32;
        let of_layer = |(layer, &neuron_bytes): (usize, &u64)| {
            let at = |hot: u32| {
                (
                    i64::from(hot) * neuron_bytes as i64,
                    (price.layer(layer, hot) / self.space.tick_seconds) as i64,
                )
            };
            Curve::over(&[at(0), at(all)])
        };
        let layers: Vec<Curve> =
            self.space.options[level].slot_bytes.iter().enumerate().map(of_layer).collect();
        Curve::sum(layers.iter().map(|layer| (layer, 1)))
    }

    /// A lower bound on the pinned bytes of a prompt that takes at most so many seconds; `None` where all are not enough.
    fn bytes_least(&self, level: usize, price: &PromptPrice, seconds: f64) -> Option<i64> {
        let ticks = self.space.ticks(seconds - price.once).min(NEVER);
        self.curve(level, price).reaching(ticks + 1).map(|bytes| (bytes - 1).max(0))
    }

    /// [`Self::bytes_least`] of a configuration for each limit.
    pub(crate) fn pinned_least(&self, config: Configuration) -> Vec<Option<i64>> {
        let least = |limit: &PromptLimit| {
            self.bytes_least(config.level, &self.price(config, limit.tokens), limit.seconds_allowed())
        };
        self.question.limits.prompts_max.iter().map(least).collect()
    }

    /// The prompts worth looking at with a choice of reads, and for each the fewest bytes of pinned neurons with which it keeps
    /// the limits. One that keeps them with none leaves no reason for those that take more memory; without limits that is the
    /// smallest.
    pub(crate) fn useful(&self, level: usize, read: usize, embedding_rows: bool) -> Prompts {
        let read = self.space.prompts_as(level, read);
        let known = self.useful.borrow().get(&(level, read, embedding_rows)).cloned();
        known.unwrap_or_else(|| {
            let none = vec![0; self.space.options[level].slot_bytes.len()];
            let limits = &self.question.limits.prompts_max;
            let prices = |prompt: usize| {
                let of_decoding = (level, read, embedding_rows);
                let price = |limit: &PromptLimit| {
                    self.space.prompt_price(self.question, of_decoding, prompt, limit.tokens)
                };
                limits.iter().map(|limit| (price(limit), limit.seconds_allowed())).collect::<Vec<_>>()
            };
            // those that keep the limits with nothing pinned
            let mut keeping: Vec<&Prompt> = Vec::new();
            let mut useful = Vec::new();
            for (place, prompt) in self.space.prompts.iter().enumerate() {
                let no_better = |other: &&Prompt| {
                    other.rows_bytes <= prompt.rows_bytes && other.cores.len() <= prompt.cores.len()
                };
                if keeping.iter().any(no_better) {
                    continue;
                }
                let prices = prices(place);
                let pinned = prices.iter().map(|(price, most)| self.bytes_least(level, price, *most));
                if let Some(pinned) = pinned.reduce(|a, b| Some(a?.max(b?))).unwrap_or(Some(0)) {
                    useful.push((place, pinned));
                }
                if prices.iter().all(|(price, most)| price.seconds(&none) <= *most) {
                    keeping.push(prompt);
                }
            }
            let useful: Prompts = useful.into();
            self.useful.borrow_mut().insert((level, read, embedding_rows), Rc::clone(&useful));
            useful
        })
    }

    /// Whether prompts can be as fast as they must within so many bytes of regions.
    pub(crate) fn may(&self, config: Configuration, regions: i64) -> bool {
        let beside = self.space.room(self.question.device, config, regions).budgets()[1];
        self.pinned_least(config).into_iter().all(|pinned| pinned.is_some_and(|pinned| pinned <= beside))
    }

    /// The ticks of each limited prompt, which many configurations share.
    pub(crate) fn ticks(&self, config: Configuration) -> Vec<Rc<PromptTicks>> {
        let options = &self.space.options[config.level];
        let of_limit = |(k, limit): (usize, &PromptLimit)| {
            let price = self.price(config, limit.tokens);
            let mut known = self.ticks.borrow_mut();
            let key = (config.level, Rc::as_ptr(&price), k);
            if let Some(ticks) = known.get(&key) {
                return Rc::clone(ticks);
            }
            let most = limit.seconds_allowed();
            let tick = most / PROMPT_TICKS;
            let mut reads = HashMap::new();
            let mut ticks = |layer: usize, hot: u32| {
                let read = *reads.entry(hot).or_insert_with(|| price.read_seconds(hot));
                (price.layer_with(layer, read) / tick).min(NEVER as f64 / 64.0).ceil() as i64
            };
            let layers: Vec<Vec<i64>> = options
                .cached
                .iter()
                .enumerate()
                .map(|(layer, cached)| cached.iter().map(|cached| ticks(layer, cached.hot)).collect())
                .collect();
            let of_config = PromptTicks { most: ((most - price.once) / tick).floor() as i64, layers };
            let of_config = Rc::new(of_config);
            if (known.len() + 1) * options.cached.iter().map(Vec::len).sum::<usize>() > PROMPT_TICKS_KEPT {
                known.clear();
            }
            known.insert(key, Rc::clone(&of_config));
            of_config
        };
        self.question.limits.prompts_max.iter().enumerate().map(of_limit).collect()
    }
}
