//! The choices on a device for a model: levels with policies, each with its core sets and choices of reads, and prompts.
//!
//! A configuration takes one of each. There are some hundred thousand of them; [`crate::relax`] bounds many at once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use plans::model::Level;
use plans::{Backend, Device, Policy};
use rayon::prelude::{IntoParallelIterator as _, ParallelIterator as _};

use crate::cost::reads::ReadChoice;
use crate::cost::{PromptChoice, PromptPrice};
use crate::flash::Read;
use crate::options::Options;
use crate::question::Question;
use crate::room::{Need, Room};
use crate::rules::{self, Prompt};
use crate::uniform;

/// Ticks of the fastest token.
const TICKS: f64 = (1u64 << 30) as f64;

/// One configuration, by places in the list of levels with their policies, in that entry's lists, and in the list of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Configuration {
    /// Index of the level with its policy.
    pub level: usize,
    /// Index of the compute cores.
    pub compute: usize,
    /// Index of the reads.
    pub read: usize,
    /// Index of the prompt.
    pub prompt: usize,
}

/// A node of the search: core sets of a level with a policy, combined with reads that differ in depth and buffers alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Node {
    /// Index of the level with its policy.
    pub level: usize,
    /// Index of the group of reads.
    pub group: usize,
    /// Reads of the group, from the first up to the second.
    pub reads: Range,
    /// Core sets, from the first up to the second.
    pub sets: Range,
}

/// From the first up to the second.
pub type Range = (usize, usize);

/// Core sets that are not halved before reads are.
const SETS_MIN: usize = 8;

impl Node {
    /// Whether the node has one choice of reads and one core set.
    pub fn is_single(&self) -> bool {
        size(self.reads) == 1 && size(self.sets) == 1
    }

    /// Both halves of a node that is not single.
    pub fn halves(self) -> [Self; 2] {
        let by_sets = size(self.reads) == 1 || size(self.sets) > SETS_MIN;
        let (first, end) = if by_sets { self.sets } else { self.reads };
        let middle = first + (end - first) / 2;
        [(first, middle), (middle, end)]
            .map(|half| if by_sets { Self { sets: half, ..self } } else { Self { reads: half, ..self } })
    }
}

fn size((first, end): Range) -> usize {
    end - first
}

/// The configurations to run a model on a device, unlimited: limits on memory and time come later.
#[derive(Debug)]
pub struct Space<'a> {
    /// Per level that may be taken, with every policy that it was measured with.
    pub options: Vec<Options<'a>>,
    /// How prompts may pass, the least memory first.
    pub prompts: Vec<Prompt>,
    /// Seconds of a tick.
    pub tick_seconds: f64,
    /// Per level: which reads and which cores are relaxed together.
    pub groups: Vec<Groups>,
    /// Whether prompts are limited, and relaxations have prices of pinned bytes.
    pub limits_prompts: bool,
    prompt_prices: RefCell<HashMap<PromptKey, Rc<PromptPrice>>>,
}

/// The parts of a configuration on which the price of a prompt depends: a few hundred prices are those of all configurations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PromptKey {
    reads: PromptReadsKey,
    embedding_rows: bool,
    prompt: usize,
    tokens: u32,
}

/// Of a choice of reads: back end, whether it is direct, reads in flight, and bytes of a buffer.
type PromptReadsKey = (Backend, bool, u32, u64);

/// All of a choice of reads that prompts can tell.
fn of_prompts(read: &Read) -> PromptReadsKey {
    let ReadChoice { backend, direct, depth, buffer_bytes, .. } = read.choice;
    (backend, direct, depth, buffer_bytes)
}

/// Reads and cores of one level in groups that are relaxed together.
#[derive(Debug)]
pub struct Groups {
    /// Reads that differ in how many are in flight and in buffers, fewest buffers first.
    pub reads: Vec<Vec<usize>>,
    /// Cores that compute alike, fewest first: where reading threads are and what is resident may differ.
    pub sets: Vec<Vec<usize>>,
    /// The group of each of the reads, and its place there.
    place_of: Vec<(usize, usize)>,
    /// The set of each of the cores.
    set_of: Vec<usize>,
    /// For each of the reads the first by which prompts take as long.
    prompts_as: Vec<usize>,
}

impl Groups {
    fn of(options: &Options<'_>) -> Self {
        let sets = options.compute_sets();
        let mut set_of = vec![0; options.computes.len()];
        for (set, computes) in sets.iter().enumerate() {
            computes.iter().for_each(|&compute| set_of[compute] = set);
        }
        let (reads, mut place_of) = (options.read_groups(), vec![(0, 0); options.reads.len()]);
        for (group, members) in reads.iter().enumerate() {
            members.iter().enumerate().for_each(|(place, &read)| place_of[read] = (group, place));
        }
        let mut firsts = HashMap::new();
        let reads_by_place = options.reads.iter().enumerate();
        let prompts_as =
            reads_by_place.map(|(read, of)| *firsts.entry(of_prompts(of)).or_insert(read)).collect();
        Self { reads, sets, place_of, set_of, prompts_as }
    }
}

/// All configurations at one level with one policy, with what may be cached.
pub fn options_of<'a>(question: &Question<'a>, level: &'a Level, policy: Policy) -> Options<'a> {
    let bare = Options::bare(question, level, policy);
    let pinned = uniform::pinned(question, &bare);
    bare.with_caching(question, &pinned)
}

impl<'a> Space<'a> {
    /// For all levels, cores and mechanisms that the limits allow.
    pub fn new(question: &Question<'a>) -> Self {
        Self::of(question, rules::levels(question.model, &question.limits))
    }

    /// For some levels.
    pub fn of(question: &Question<'a>, levels: Vec<&'a Level>) -> Self {
        let with_policies = |level: &'a Level| {
            rules::policies(question.model, &question.limits, level)
                .into_iter()
                .map(move |policy| (level, policy))
                .collect::<Vec<_>>()
        };
        let pairs: Vec<(&Level, Policy)> = levels.into_iter().flat_map(with_policies).collect();
        let options: Vec<Options<'a>> =
            pairs.into_par_iter().map(|(level, policy)| options_of(question, level, policy)).collect();
        let least = |options: &Options<'_>| {
            let all = options.computes.iter().map(|compute| options.seconds_least(compute));
            all.fold(f64::MAX, f64::min)
        };
        Self {
            tick_seconds: options.iter().map(least).reduce(f64::min).unwrap_or(1.0) / TICKS,
            groups: options.iter().map(Groups::of).collect(),
            options,
            prompts: rules::prompts(question),
            limits_prompts: !question.limits.prompts_max.is_empty(),
            prompt_prices: RefCell::default(),
        }
    }

    /// Bytes that a configuration leaves for neurons and a prompt's rows, of so many bytes of regions.
    pub fn room(&self, device: &Device, config: Configuration, regions: i64) -> Room {
        let options = &self.options[config.level];
        let (compute, read) = (&options.computes[config.compute], &options.reads[config.read]);
        options.room(device, regions, compute, read, &self.prompts[config.prompt])
    }

    /// Ticks of so many seconds, rounded up.
    pub fn ticks(&self, seconds: f64) -> i64 {
        (seconds / self.tick_seconds).ceil() as i64
    }

    /// The price of a prompt of so many tokens that passes in a configuration, for the question that the space was made for.
    pub fn prompt_price(
        &self,
        question: &Question<'_>,
        (level, read, embedding_rows): (usize, usize, bool),
        prompt: usize,
        tokens: u32,
    ) -> Rc<PromptPrice> {
        let read = &self.options[level].reads[read];
        let key = PromptKey { reads: of_prompts(read), embedding_rows, prompt, tokens };
        let price = || {
            let Prompt { cores, chunk, .. } = &self.prompts[prompt];
            let choice = PromptChoice { reads: read.price(), embedding_rows, cores, chunk: *chunk };
            Rc::new(PromptPrice::new(question, &choice, tokens))
        };
        Rc::clone(self.prompt_prices.borrow_mut().entry(key).or_insert_with(price))
    }

    /// The first of the reads by which prompts take as long as by this one.
    pub fn prompts_as(&self, level: usize, read: usize) -> usize {
        self.groups[level].prompts_as[read]
    }

    /// The nodes that hold all configurations.
    pub fn roots(&self) -> Vec<Node> {
        let of_level = |(level, groups): (usize, &Groups)| {
            let sets = (0, groups.sets.len());
            let root =
                |(group, reads): (usize, &Vec<usize>)| Node { level, group, reads: (0, reads.len()), sets };
            groups.reads.iter().enumerate().map(root).collect::<Vec<_>>()
        };
        self.groups.iter().enumerate().flat_map(of_level).collect()
    }

    /// The reads of a node.
    pub fn reads_of(&self, node: Node) -> &[usize] {
        &self.groups[node.level].reads[node.group][node.reads.0..node.reads.1]
    }

    /// The compute choices of a node.
    pub fn computes_of(&self, node: Node) -> Vec<usize> {
        self.groups[node.level].sets[node.sets.0..node.sets.1].concat()
    }

    /// The single node that holds a configuration.
    pub fn node_of(&self, config: Configuration) -> Node {
        let groups = &self.groups[config.level];
        let ((group, place), set) = (groups.place_of[config.read], groups.set_of[config.compute]);
        Node { level: config.level, group, reads: (place, place + 1), sets: (set, set + 1) }
    }

    /// Bytes of the regions of the smallest plan that there is, at any speed.
    pub fn least_regions(question: &Question<'_>) -> Option<i64> {
        let prompts = rules::prompts(question);
        let smallest = |level: &Level| {
            let options = Options::bare(question, level, Policy::Lru);
            let reads = options.reads.iter().min_by_key(|read| read.bytes)?;
            let room = |compute| options.room(question.device, 0, compute, reads, &prompts[0]);
            options
                .computes
                .iter()
                .map(|compute| room(compute).taken(Need::default()) - room(compute).bytes)
                .min()
        };
        rules::levels(question.model, &question.limits).into_iter().filter_map(smallest).min()
    }
}
