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
use crate::curve::{Curve, LeastTime, Line};
use crate::opened::Opened;
use crate::reads::{LeastReads, ReadChoice};
use crate::request::Question;
use crate::room::{Need, Room};
use crate::rules::{self, Prompt};
use crate::ways::{ComputeGroup, Least, ReadGroup, Ways};

/// Ticks of the fastest token.
const TICKS: f64 = (1u64 << 30) as f64;

/// Curves of ways of reading that are kept, at most: of some ten KiB each.
const CURVES_KEPT: usize = 1024;

/// One way, by places in the list of levels with their policies, in that entry's lists, and in the list of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Way {
    /// Index of the level with its policy.
    pub level: usize,
    /// Index of its cores.
    pub compute: usize,
    /// Index of its reads.
    pub read: usize,
    /// Index of its prompt.
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

/// What there is to choose on a device for a model; limits on memory and time come later.
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
    curves: RefCell<HashMap<Sets, Rc<RefCell<Bounded>>>>,
    groups_bounded: RefCell<HashMap<Group, Rc<GroupBounds>>>,
    /// By level and core sets: what they have in common.
    compute_groups: RefCell<HashMap<(usize, (usize, usize)), Rc<ComputeGroup>>>,
    /// By level and group of reads: per layer and band the least that reading takes.
    least_reads: RefCell<HashMap<(usize, usize), Rc<Least>>>,
    prompt_prices: RefCell<HashMap<PromptKey, Rc<PromptPrice>>>,
    work: Cell<Work>,
}

/// The least of a way of reading with any of some core sets, as far as bands are opened.
#[derive(Debug)]
struct Bounded {
    compute: Rc<ComputeGroup>,
    opened: Opened,
}

/// What no way of a group can be below.
#[derive(Debug)]
pub struct GroupBounds {
    /// Per layer and band: fewest bytes and ticks.
    bands: Priced,
    /// The least ticks of all layers against bytes.
    pub curve: Curve,
}

impl GroupBounds {
    /// The bands of each layer at the price that a byte has with so many of them, cheapest first.
    pub fn cheapest(&self, bytes: i64) -> Cheapest {
        let bytes_price = self.curve.price(bytes);
        let layer = |bands: &Vec<(i64, i64)>| {
            let cost = |&(bytes, ticks): &(i64, i64)| ticks as f64 + bytes_price * bytes as f64;
            let mut bands: Vec<(f64, usize)> =
                bands.iter().enumerate().map(|(place, band)| (cost(band), place)).collect();
            bands.sort_by(|a, b| a.0.total_cmp(&b.0));
            bands
        };
        Cheapest { bytes_price, bands: self.bands.iter().map(layer).collect() }
    }
}

/// Bands of a group at a price of bytes.
#[derive(Debug)]
pub struct Cheapest {
    bytes_price: f64,
    /// Per layer: what a band costs at least, and which it is, cheapest first.
    bands: Vec<Vec<(f64, usize)>>,
}

/// The least ticks of all layers against bytes, for a way of reading with any of some core sets: exact where it is asked for.
#[derive(Debug)]
pub struct Bounds<'s> {
    space: &'s Space<'s>,
    at: Sets,
    bounded: Rc<RefCell<Bounded>>,
}

impl Bounds<'_> {
    /// The bounds of bands, and of the bands that are opened at other prices.
    pub fn priced(&self, price: impl FnMut(usize, usize) -> Vec<(i64, i64)>) -> Opened {
        self.bounded.borrow().opened.priced(price)
    }

    /// Opens what matters at so many bytes, and says whether there was something.
    fn open(&self, bytes: i64) -> bool {
        let Self { space, at, bounded } = self;
        let Bounded { compute, opened } = &mut *bounded.borrow_mut();
        opened.around(bytes, |layer, band| {
            let mut priced = Vec::new();
            // rounded down: a bound
            space.ways[at.level].least_seconds_of_each(compute, at.read, (layer, band), |way, seconds| {
                priced.push((way.need.bytes(), (seconds / space.tick_seconds) as i64));
            });
            priced
        })
    }
}

impl LeastTime for Bounds<'_> {
    fn at(&self, x: i64) -> Option<i64> {
        self.open(x);
        self.bounded.borrow().opened.curve().at(x)
    }

    fn reaching(&self, y: i64) -> Option<i64> {
        loop {
            let x = self.bounded.borrow().opened.curve().reaching(y)?;
            if !self.open(x) {
                return Some(x);
            }
        }
    }

    fn fewest(&self) -> i64 {
        self.bounded.borrow().opened.curve().fewest()
    }
}

/// What the price of a prompt depends on, of a way to decode: a few hundred prices are those of all ways.
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

/// Work done, in numbers that depend on nothing but the request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Curves of groups of ways.
    pub group_curves: usize,
    /// Curves of one way of reading with some sets of cores.
    pub curves: usize,
    /// Ways that were priced layer by layer.
    pub priced: usize,
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, more: Self) {
        self.group_curves += more.group_curves;
        self.curves += more.curves;
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
            groups_bounded: RefCell::default(),
            compute_groups: RefCell::default(),
            least_reads: RefCell::default(),
            prompt_prices: RefCell::default(),
            work: Cell::default(),
        }
    }

    /// What was done so far.
    pub fn work(&self) -> Work {
        self.work.get()
    }

    /// Counts what was done.
    pub fn count(&self, more: Work) {
        let mut work = self.work.get();
        work += more;
        self.work.set(work);
    }

    /// What is left of so many bytes for a way's neurons.
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

    /// The least ticks of all layers against bytes, for a way of reading with any of some core sets.
    pub fn curve(&self, at: Sets) -> Bounds<'_> {
        let known = self.curves.borrow().get(&at).map(Rc::clone);
        let bounded = known.unwrap_or_else(|| {
            let ways = &self.ways[at.level];
            let compute = self.compute_group(at.level, at.sets);
            let least = ways.least_of_read(at.read);
            let bounds = self.priced(ways, &compute, &ways.read_group(&[at.read]), &least);
            let bounded = Rc::new(RefCell::new(Bounded { compute, opened: Opened::new(bounds) }));
            let mut curves = self.curves.borrow_mut();
            if curves.len() >= CURVES_KEPT {
                curves.clear();
            }
            curves.insert(at, Rc::clone(&bounded));
            self.count(Work { curves: 1, ..Work::default() });
            bounded
        });
        Bounds { space: self, at, bounded }
    }

    /// That of a way.
    pub fn curve_of(&self, way: Way) -> Bounds<'_> {
        let set = self.groups[way.level].set_of[way.compute];
        self.curve(Sets { level: way.level, read: way.read, sets: (set, set + 1) })
    }

    /// Core sets from the first up to the second, as one that has the best of each.
    pub fn compute_group(&self, level: usize, sets: (usize, usize)) -> Rc<ComputeGroup> {
        let group =
            || Rc::new(self.ways[level].compute_group(&self.groups[level].sets[sets.0..sets.1].concat()));
        Rc::clone(self.compute_groups.borrow_mut().entry((level, sets)).or_insert_with(group))
    }

    /// What no way of a group can be below.
    pub fn group_bounds(
        &self,
        group: Group,
        compute: &ComputeGroup,
        reads: &ReadGroup<'_>,
    ) -> Rc<GroupBounds> {
        if let Some(known) = self.groups_bounded.borrow().get(&group) {
            return Rc::clone(known);
        }
        let ways = &self.ways[group.level];
        let mut least = self.least_reads.borrow_mut();
        let least =
            least.entry((group.level, group.reads)).or_insert_with(|| Rc::new(ways.least_reads(reads)));
        let bands = self.priced(ways, compute, reads, least);
        let bounds = Rc::new(GroupBounds { curve: bands::curve(&bands), bands });
        self.groups_bounded.borrow_mut().insert(group, Rc::clone(&bounds));
        self.count(Work { group_curves: 1, ..Work::default() });
        bounds
    }

    /// A line below the curve of a way of reading with any of some core sets, which are of a group. Of its bands only those are
    /// priced that could be the cheapest, and with `each` so are their ways of caching, one by one.
    pub fn line(&self, at: Sets, of_group: &GroupBounds, cheapest: &Cheapest, each: bool) -> Line {
        let ways = &self.ways[at.level];
        let Cheapest { bytes_price: price, bands } = cheapest;
        let compute = self.compute_group(at.level, at.sets);
        let mut total = 0.0;
        // rounded down: a bound
        let cost = |seconds: f64, bytes: i64| (seconds / self.tick_seconds).floor() + price * bytes as f64;
        ways.least_seconds_of_bands(&compute, at.read, |layer, seconds_of| {
            let mut least = f64::INFINITY;
            for &(bound, band) in &bands[layer] {
                if bound >= least {
                    break;
                }
                let of_band = cost(seconds_of(band), ways.bands[layer][band].bytes);
                if !each {
                    least = least.min(of_band);
                } else if of_band < least {
                    ways.least_seconds_of_each(&compute, at.read, (layer, band), |way, seconds| {
                        least = least.min(cost(seconds, way.need.bytes()).max(of_band));
                    });
                }
            }
            total += least;
        });
        Line { total, price: *price, fewest: of_group.curve.corners[0].0 }
    }

    /// Per layer and band the fewest bytes and ticks.
    pub fn priced(
        &self,
        ways: &Ways<'_>,
        compute: &ComputeGroup,
        reads: &ReadGroup<'_>,
        least: &[Vec<LeastReads>],
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
