//! What there is to choose on a device for a model, and the least that it can take, known as far as somebody asked.
//!
//! A way is a quality level with a policy, cores, a way of reading, and how prompts pass. There are some hundred thousand of
//! them; their curves of ticks against bytes are made when they are first needed, and most never are.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use plans::model::Level;
use plans::{Backend, Device, Policy};
use rayon::prelude::{IntoParallelIterator as _, ParallelIterator as _};

use crate::bands::{self, Priced};
use crate::cost::{PromptChoice, PromptPrice};
use crate::curve::Curve;
use crate::reads::ReadChoice;
use crate::refined::Refined;
use crate::request::Question;
use crate::room::{Need, Room};
use crate::rules::{self, Prompt};
use crate::ways::{Bounded, ComputeGroup, Least, ReadGroup, Ways};

/// Ticks of the fastest token.
const TICKS: f64 = (1u64 << 30) as f64;

/// One way, by places in the list of levels with their policies, in that entry's lists, and in the list of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Way {
    /// Index of the level with its policy.
    pub level: usize,
    /// Index of the compute cores.
    pub compute: usize,
    /// Index of the reads.
    pub read: usize,
    /// Index of the prompt.
    pub prompt: usize,
}

/// Core sets from the first up to the second with a group of reads, at a level with a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// Index of the level with its policy.
    pub level: usize,
    /// Index of the group of reads.
    pub reads: usize,
    /// Core sets, and where they end.
    pub sets: (usize, usize),
}

/// Core sets from the first up to the second with one way of reading, at a level with a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sets {
    /// Index of the level with its policy.
    pub level: usize,
    /// Index of the reads.
    pub read: usize,
    /// Core sets, and where they end.
    pub sets: (usize, usize),
}

/// The ways to run a model on a device, unlimited: limits on memory and time come later.
#[derive(Debug)]
pub struct Space<'a> {
    /// Per level that may be taken, with every policy that it was measured with.
    pub ways: Vec<Ways<'a>>,
    /// How prompts may pass, the least memory first.
    pub prompts: Vec<Prompt>,
    /// Seconds of a tick.
    pub tick_seconds: f64,
    /// Per level: which reads and which cores are bounded together.
    pub groups: Vec<Groups>,
    curves: RefCell<HashMap<Sets, Known>>,
    curves_of_groups: RefCell<HashMap<Group, Rc<Curve>>>,
    /// By level and core sets: what they have in common.
    compute_groups: RefCell<HashMap<(usize, Range), Rc<ComputeGroup>>>,
    prompt_prices: RefCell<HashMap<PromptKey, Rc<PromptPrice>>>,
    work: Cell<Effort>,
}

/// What is known of a curve.
#[derive(Debug)]
struct Known {
    curve: Rc<Curve>,
    /// Where it is what pricing all ways of caching says.
    exact: Exact,
    /// What makes it better, once somebody asked.
    refined: Option<Refined>,
}

/// Bytes at which a curve is exact.
#[derive(Debug)]
enum Exact {
    Everywhere,
    At(Vec<i64>),
}

impl Exact {
    fn at(&self, bytes: i64) -> bool {
        match self {
            Self::Everywhere => true,
            Self::At(known) => known.contains(&bytes),
        }
    }
}

/// From the first up to the second.
type Range = (usize, usize);

/// The parts of a way to decode on which the price of a prompt depends: a few hundred prices are those of all ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PromptKey {
    backend: Backend,
    direct: bool,
    depth: u32,
    buffer_bytes: u64,
    embedding_rows: bool,
    prompt: usize,
    tokens: u32,
}

/// What a search has done, in numbers that depend on nothing but the request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    /// Curves of groups of ways.
    pub group_curves: usize,
    /// Curves of one way of reading with some sets of cores.
    pub curves: usize,
    /// Bands of these whose ways of caching were priced one by one.
    pub opened: usize,
    /// Ways that were priced layer by layer.
    pub priced: usize,
}

impl std::ops::AddAssign for Effort {
    fn add_assign(&mut self, more: Self) {
        self.group_curves += more.group_curves;
        self.curves += more.curves;
        self.opened += more.opened;
        self.priced += more.priced;
    }
}

/// Reads and cores of one level in groups of those that have so much in common that they are bounded together.
#[derive(Debug)]
pub struct Groups {
    /// Reads that differ in how many are in flight and in buffers.
    pub reads: Vec<Vec<usize>>,
    /// Cores that compute alike, fewest first: where reading threads are and what is resident may differ.
    pub sets: Vec<Vec<usize>>,
    /// The set that each of the cores is in.
    set_of: Vec<usize>,
}

impl Groups {
    fn of(ways: &Ways<'_>) -> Self {
        let sets = ways.compute_sets();
        let mut set_of = vec![0; ways.computes.len()];
        for (set, computes) in sets.iter().enumerate() {
            computes.iter().for_each(|&compute| set_of[compute] = set);
        }
        Self { reads: ways.read_groups(), sets, set_of }
    }
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
        let ways: Vec<Ways<'a>> =
            pairs.into_par_iter().map(|(level, policy)| Ways::new(question, level, policy)).collect();
        let least = |ways: &Ways<'_>| {
            let all = ways.computes.iter().map(|compute| ways.seconds_least(compute));
            all.fold(f64::MAX, f64::min)
        };
        Self {
            tick_seconds: ways.iter().map(least).fold(f64::MAX, f64::min) / TICKS,
            groups: ways.iter().map(Groups::of).collect(),
            ways,
            prompts: rules::prompts(question),
            curves: RefCell::default(),
            curves_of_groups: RefCell::default(),
            compute_groups: RefCell::default(),
            prompt_prices: RefCell::default(),
            work: Cell::default(),
        }
    }

    /// What has been done up to now.
    pub fn work(&self) -> Effort {
        self.work.get()
    }

    /// Counts what was done.
    pub fn count(&self, more: Effort) {
        let mut work = self.work.get();
        work += more;
        self.work.set(work);
    }

    /// Bytes that a way leaves for neurons and a prompt's rows, of so many bytes of regions.
    pub fn room(&self, device: &Device, way: Way, regions: i64) -> Room {
        let ways = &self.ways[way.level];
        let (compute, read) = (&ways.computes[way.compute], &ways.reads[way.read]);
        ways.room(device, regions, compute, read, &self.prompts[way.prompt])
    }

    /// Ticks of so many seconds, rounded up.
    pub fn ticks(&self, seconds: f64) -> i64 {
        (seconds / self.tick_seconds).ceil() as i64
    }

    /// The price of a prompt of so many tokens that passes in a way, for the question that the space was made for.
    pub fn prompt_price(
        &self,
        question: &Question<'_>,
        (level, read, embedding_rows): (usize, usize, bool),
        prompt: usize,
        tokens: u32,
    ) -> Rc<PromptPrice> {
        let read = &self.ways[level].reads[read];
        let ReadChoice { backend, direct, depth, buffer_bytes, .. } = read.choice;
        let key = PromptKey { backend, direct, depth, buffer_bytes, embedding_rows, prompt, tokens };
        let price = || {
            let Prompt { cores, chunk, .. } = &self.prompts[prompt];
            let choice = PromptChoice { reads: read.price(), embedding_rows, cores, chunk: *chunk };
            Rc::new(PromptPrice::new(question, &choice, tokens))
        };
        Rc::clone(self.prompt_prices.borrow_mut().entry(key).or_insert_with(price))
    }

    /// A curve that is nowhere above the least ticks of all layers against bytes, for a way of reading with any of some core
    /// sets: as it is known by now.
    pub fn curve(&self, at: Sets) -> Rc<Curve> {
        if let Some(known) = self.curves.borrow().get(&at) {
            return Rc::clone(&known.curve);
        }
        let curve = Rc::new(bands::curve_of_rising(&self.closed(at)));
        let known = Known { curve: Rc::clone(&curve), exact: Exact::At(Vec::new()), refined: None };
        self.curves.borrow_mut().insert(at, known);
        self.count(Effort { curves: 1, ..Effort::default() });
        curve
    }

    /// Per layer and band the fewest bytes and ticks, for a way of reading with any of some core sets.
    pub fn closed(&self, at: Sets) -> Priced {
        let ways = &self.ways[at.level];
        let (compute, reads) = (self.compute_group(at.level, at.sets), ways.read_group(&[at.read]));
        self.priced(ways, &compute, &reads, &ways.least_reads(&reads))
    }

    /// Makes [`Self::curve`] better where so many bytes are taken. Whether it became another; if not, it is there what pricing
    /// all ways of caching says.
    pub fn refine(&self, at: Sets, bytes: i64) -> bool {
        let mut all = self.curves.borrow_mut();
        let Some(known) = all.get_mut(&at).filter(|known| !known.exact.at(bytes)) else {
            return false;
        };
        let compute = self.compute_group(at.level, at.sets);
        let bounded = self.ways[at.level].bounded(&compute, at.read);
        let mut open = |layer, band| self.opened(&bounded, at.level, (layer, band));
        let refined = known.refined.get_or_insert_with(|| {
            let mut refined = Refined::new(&self.closed(at));
            if let Exact::At(before) = &known.exact {
                // it may have been settled
                before.iter().for_each(|&bytes| while refined.refine(bytes, &mut open) {});
            }
            refined
        });
        let better = refined.refine(bytes, &mut open);
        known.curve = Rc::clone(refined.curve());
        if let Exact::At(known) = &mut known.exact
            && !better
        {
            known.push(bytes);
        }
        better
    }

    /// Keeps of what made a curve better nothing but the curve.
    pub fn settle(&self, at: Sets) {
        if let Some(known) = self.curves.borrow_mut().get_mut(&at) {
            known.refined = None;
        }
    }

    /// The core set of a way with its reads.
    pub fn sets_of(&self, way: Way) -> Sets {
        let set = self.groups[way.level].set_of[way.compute];
        Sets { level: way.level, read: way.read, sets: (set, set + 1) }
    }

    /// The least ticks of all layers against bytes with a way, from all ways of caching.
    pub fn curve_of(&self, way: Way) -> Rc<Curve> {
        let at = self.sets_of(way);
        if let Some(Known { curve, exact: Exact::Everywhere, .. }) = self.curves.borrow().get(&at) {
            return Rc::clone(curve);
        }
        let compute = self.compute_group(at.level, at.sets);
        let bounded = self.ways[at.level].bounded(&compute, at.read);
        let mut refined = Refined::new(&self.closed(at));
        refined.open_all(|layer, band| self.opened(&bounded, at.level, (layer, band)));
        let curve = Rc::clone(refined.curve());
        let known = Known { curve: Rc::clone(&curve), exact: Exact::Everywhere, refined: None };
        let first = self.curves.borrow_mut().insert(at, known).is_none();
        self.count(Effort { curves: usize::from(first), ..Effort::default() });
        curve
    }

    /// Bytes and ticks of a band's ways of caching.
    fn opened(&self, bounded: &Bounded<'_>, level: usize, (layer, band): (usize, usize)) -> Vec<(i64, i64)> {
        let cached = self.ways[level].bands[layer][band].cached.clone();
        let mut priced = Vec::with_capacity(cached.len());
        // rounded down: a bound
        bounded.some(layer, cached, |way, seconds| {
            priced.push((way.need.bytes(), (seconds / self.tick_seconds) as i64));
        });
        self.count(Effort { opened: 1, ..Effort::default() });
        priced
    }

    /// Core sets from the first up to the second, as one that has the best of each.
    pub fn compute_group(&self, level: usize, sets: Range) -> Rc<ComputeGroup> {
        let group =
            || Rc::new(self.ways[level].compute_group(&self.groups[level].sets[sets.0..sets.1].concat()));
        Rc::clone(self.compute_groups.borrow_mut().entry((level, sets)).or_insert_with(group))
    }

    /// A curve that is nowhere above that of any way of a group.
    pub fn curve_of_group(&self, group: Group, compute: &ComputeGroup, reads: &ReadGroup<'_>) -> Rc<Curve> {
        if let Some(known) = self.curves_of_groups.borrow().get(&group) {
            return Rc::clone(known);
        }
        let ways = &self.ways[group.level];
        let least = ways.least_reads(reads);
        let curve = Rc::new(bands::curve(&self.priced(ways, compute, reads, &least)));
        self.curves_of_groups.borrow_mut().insert(group, Rc::clone(&curve));
        self.count(Effort { group_curves: 1, ..Effort::default() });
        curve
    }

    /// Per layer and band the fewest bytes and ticks.
    pub fn priced(
        &self,
        ways: &Ways<'_>,
        compute: &ComputeGroup,
        reads: &ReadGroup<'_>,
        least: &Least<'_>,
    ) -> Priced {
        let mut priced: Priced = least.iter().map(|bands| Vec::with_capacity(bands.len())).collect();
        // rounded down: a bound
        ways.least_seconds(compute, reads, least, |layer, band, seconds| {
            priced[layer].push((band.bytes, (seconds / self.tick_seconds) as i64));
        });
        priced
    }

    /// Bytes of the regions of the smallest plan that there is, at any speed.
    pub fn least_regions(question: &Question<'_>) -> Option<i64> {
        let prompts = rules::prompts(question);
        let smallest = |level: &Level| {
            let ways = Ways::bare(question, level, Policy::Lru);
            let reads = ways.reads.iter().min_by_key(|read| read.bytes)?;
            let room = |compute| ways.room(question.device, 0, compute, reads, &prompts[0]);
            ways.computes
                .iter()
                .map(|compute| room(compute).taken(Need::default()) - room(compute).bytes)
                .min()
        };
        rules::levels(question.model, &question.limits).into_iter().filter_map(smallest).min()
    }
}
