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
use crate::field::{Fastest, Goal};
use crate::reads::ReadChoice;
use crate::refined::Refined;
use crate::request::{PromptLimit, Question};
use crate::room::{Need, Room};
use crate::rules::{self, Prompt};
use crate::split::{CHOICES_MAX, NEVER};
use crate::ways::{Asked, Bounded, ComputeGroup, Read, Ways};

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

/// Some ways at a level with a policy: core sets from the first up to the second, with the reads of a group from the first up to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    /// Index of the level with its policy.
    pub level: usize,
    /// Index of the group of reads.
    pub group: usize,
    /// Reads of the group, by place, and where they end.
    pub reads: Range,
    /// Core sets, and where they end.
    pub sets: Range,
}

impl Part {
    /// How many ways of reading it has, and how many core sets.
    pub fn counts(&self) -> [usize; 2] {
        [self.reads, self.sets].map(|(first, end)| end - first)
    }

    /// Whether it is one way of reading with one core set.
    pub fn is_one(&self) -> bool {
        self.counts() == [1, 1]
    }
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
    /// [`crate::split::Budget::choices_max`].
    pub choices_max: usize,
    curves: RefCell<HashMap<Part, Known>>,
    /// By level and core sets: what they have in common.
    compute_groups: RefCell<HashMap<(usize, Range), Rc<ComputeGroup>>>,
    prompt_prices: RefCell<HashMap<PromptKey, Rc<PromptPrice>>>,
    fastest: RefCell<Vec<(SearchKey, Option<Fastest>)>>,
    work: Cell<Effort>,
}

/// What a search is for, within so many bytes of regions, ticks of a token, and limits on prompts: all that is left open in a space.
type SearchKey = (Goal, i64, (Option<i64>, Vec<PromptLimit>));

/// Ticks against bytes that no split is below: the highest of a curve and of lines.
#[derive(Debug, Clone)]
pub struct Bound {
    /// The curve.
    pub curve: Rc<Curve>,
    /// Ticks that a byte is worth, and with that price the least of what is taken, as ticks.
    lines: Vec<(f64, f64)>,
}

/// Into how many a band is cut before its ways of caching are priced one by one.
const PARTS: usize = 4;
/// What sums at prices may be off by, as a share.
const ROUNDING: f64 = 1e-9;

impl Bound {
    /// The least ticks with so many bytes, rounded up at most by one; `None` where they are too few for any split.
    pub fn at(&self, bytes: i64) -> Option<i64> {
        let of_line =
            |&(price, least): &(f64, f64)| (least * (1.0 - ROUNDING) - price * bytes as f64).floor() as i64;
        let ticks = self.curve.at(bytes)?;
        Some(self.lines.iter().map(of_line).fold(ticks, i64::max))
    }

    /// The fewest bytes that take at most so many ticks, rounded up at most by one; `None` if no bytes do.
    pub fn reaching(&self, ticks: i64) -> Option<i64> {
        let mut most = self.curve.reaching(ticks)?;
        for &(price, least) in &self.lines {
            let above = least * (1.0 - ROUNDING) - ticks as f64;
            if above > 0.0 {
                most = most.max(if price > 0.0 { (above / price).floor() as i64 } else { return None });
            }
        }
        Some(most)
    }
}

/// What is known of a curve.
#[derive(Debug)]
struct Known {
    bound: Bound,
    /// Where it is what pricing all ways of caching says, or as good as it is made for several ways.
    exact: Exact,
    /// What makes it better, once somebody asked.
    refined: Option<Refined>,
    /// Bytes at which there is a line.
    lined: Vec<i64>,
    /// The line that was made last.
    priced: Option<Line>,
    /// What is known of the bands of a part that this one is of.
    of_whole: Option<Rc<Priced>>,
}

/// Prices of the bands of a part, and the least of ticks and priced bytes of any way of caching.
#[derive(Debug)]
struct Line {
    /// As far as bands were opened, what was found in them.
    bands: Rc<Priced>,
    /// Bytes at which the price was taken.
    decided_at: i64,
    price: f64,
    /// Per kind of layer, and of all layers together.
    floors: Vec<f64>,
    least: f64,
    /// Whether all bands were opened on which the least depends.
    whole: bool,
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
pub type Range = (usize, usize);

/// The parts of a way to decode on which the price of a prompt depends: a few hundred prices are those of all ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PromptKey {
    reads: PromptReadsKey,
    embedding_rows: bool,
    prompt: usize,
    tokens: u32,
}

/// Of a way of reading: back end, whether it is direct, reads in flight, and bytes of a buffer.
type PromptReadsKey = (Backend, bool, u32, u64);

/// All of a way of reading that prompts can tell.
fn of_prompts(read: &Read) -> PromptReadsKey {
    let ReadChoice { backend, direct, depth, buffer_bytes, .. } = read.choice;
    (backend, direct, depth, buffer_bytes)
}

/// What a search has done, in numbers that depend on nothing but the request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    /// Curves of several ways of reading together.
    pub group_curves: usize,
    /// Curves of one way of reading with some sets of cores.
    pub curves: usize,
    /// Bands of these whose ways of caching were priced one by one.
    pub opened: usize,
    /// Ways that were priced layer by layer.
    pub priced: usize,
    /// Ways that were given up: where no plan was found, it is not known that none of their splits keeps the limits.
    pub undecided: usize,
}

impl std::ops::AddAssign for Effort {
    fn add_assign(&mut self, more: Self) {
        self.group_curves += more.group_curves;
        self.curves += more.curves;
        self.opened += more.opened;
        self.priced += more.priced;
        self.undecided += more.undecided;
    }
}

/// Reads and cores of one level in groups of those that have so much in common that they are bounded together.
#[derive(Debug)]
pub struct Groups {
    /// Reads that differ in how many are in flight and in buffers, fewest buffers first.
    pub reads: Vec<Vec<usize>>,
    /// Cores that compute alike, fewest first: where reading threads are and what is resident may differ.
    pub sets: Vec<Vec<usize>>,
    /// The group that each of the reads is in, and its place there.
    place_of: Vec<(usize, usize)>,
    /// The set that each of the cores is in.
    set_of: Vec<usize>,
    /// For each of the reads the first by which prompts take as long.
    prompts_as: Vec<usize>,
}

impl Groups {
    fn of(ways: &Ways<'_>) -> Self {
        let sets = ways.compute_sets();
        let mut set_of = vec![0; ways.computes.len()];
        for (set, computes) in sets.iter().enumerate() {
            computes.iter().for_each(|&compute| set_of[compute] = set);
        }
        let (reads, mut place_of) = (ways.read_groups(), vec![(0, 0); ways.reads.len()]);
        for (group, members) in reads.iter().enumerate() {
            members.iter().enumerate().for_each(|(place, &read)| place_of[read] = (group, place));
        }
        let mut firsts = HashMap::new();
        let reads_by_place = ways.reads.iter().enumerate();
        let prompts_as =
            reads_by_place.map(|(read, of)| *firsts.entry(of_prompts(of)).or_insert(read)).collect();
        Self { reads, sets, place_of, set_of, prompts_as }
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
            choices_max: CHOICES_MAX,
            curves: RefCell::default(),
            compute_groups: RefCell::default(),
            prompt_prices: RefCell::default(),
            fastest: RefCell::default(),
            work: Cell::default(),
        }
    }

    /// What `search` finds, or has found.
    pub fn found(&self, key: SearchKey, search: impl FnOnce() -> Option<Fastest>) -> Option<Fastest> {
        if let Some((_, known)) = self.fastest.borrow().iter().find(|(known, _)| *known == key) {
            return known.clone();
        }
        let found = search();
        self.fastest.borrow_mut().push((key, found.clone()));
        found
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
        let key = PromptKey { reads: of_prompts(read), embedding_rows, prompt, tokens };
        let price = || {
            let Prompt { cores, chunk, .. } = &self.prompts[prompt];
            let choice = PromptChoice { reads: read.price(), embedding_rows, cores, chunk: *chunk };
            Rc::new(PromptPrice::new(question, &choice, tokens))
        };
        Rc::clone(self.prompt_prices.borrow_mut().entry(key).or_insert_with(price))
    }

    /// The reads of a part.
    pub fn reads_of(&self, part: Part) -> &[usize] {
        &self.groups[part.level].reads[part.group][part.reads.0..part.reads.1]
    }

    /// A bound that is nowhere above the least ticks of all layers against bytes, for any way of a part: as it is known by now.
    pub fn bound(&self, part: Part) -> Bound {
        self.bound_in(part, None)
    }

    /// [`Self::bound`] of a part of another one, no way of which is below what has been found of that.
    pub fn bound_in(&self, part: Part, whole: Option<Part>) -> Bound {
        if let Some(known) = self.curves.borrow().get(&part) {
            return known.bound.clone();
        }
        let of_whole = whole.and_then(|whole| {
            let all = self.curves.borrow();
            all.get(&whole)?.priced.as_ref().map(|line| Rc::clone(&line.bands))
        });
        let closed = self.closed_in(part, of_whole.as_deref());
        let curve = Rc::new(bands::curve_of_rising(&closed, &self.ways[part.level].counts()));
        let bound = Bound { curve, lines: Vec::new() };
        let exact = Exact::At(Vec::new());
        let lined = Vec::new();
        let known = Known { bound: bound.clone(), exact, refined: None, lined, priced: None, of_whole };
        self.curves.borrow_mut().insert(part, known);
        self.count_curve(part);
        bound
    }

    /// [`Self::closed`] with what is known of a whole.
    fn closed_in(&self, part: Part, whole: Option<&Priced>) -> Priced {
        let mut closed = self.closed(part);
        for (band, of_whole) in closed.iter_mut().flatten().zip(whole.into_iter().flatten().flatten()) {
            band.1 = band.1.max(of_whole.1);
        }
        closed
    }

    fn count_curve(&self, part: Part) {
        let one = usize::from(part.counts()[0] == 1);
        self.count(Effort { curves: one, group_curves: 1 - one, ..Effort::default() });
    }

    /// Per kind of layer and band the fewest bytes and ticks, for any way of a part.
    pub fn closed(&self, part: Part) -> Priced {
        let ways = &self.ways[part.level];
        let compute = self.compute_group(part.level, part.sets);
        let reads = ways.read_group(self.reads_of(part));
        let least = ways.least_reads(&reads);
        let mut priced: Priced = least.iter().map(|bands| Vec::with_capacity(bands.len())).collect();
        // rounded down: a bound
        ways.least_seconds(&compute, &reads, &least, |kind, band, seconds| {
            priced[kind].push((band.bytes, (seconds / self.tick_seconds) as i64));
        });
        priced
    }

    /// Makes [`Self::bound`] better where so many bytes are taken. Whether it may be another; if not, it is there what pricing
    /// all ways of caching says, and of several ways what their least at one price says.
    ///
    /// First bands are opened where a byte has the price that the curve gives it, as far as the least of a layer depends on them: a line.
    /// The curve of a single way is then opened until it is exact. A line that is at `enough` ticks there is made no better.
    pub fn refine(&self, part: Part, bytes: i64, enough: i64) -> bool {
        let mut all = self.curves.borrow_mut();
        let Some(known) = all.get_mut(&part).filter(|known| !known.exact.at(bytes)) else {
            return false;
        };
        if bytes < known.bound.curve.corners[0].0 {
            return false;
        }
        if !known.lined.contains(&bytes) {
            let line = self.line(part, bytes, known, enough);
            known.bound.lines.push((line.price, line.least));
            if line.whole {
                known.lined.push(bytes);
                known.priced = Some(line);
            }
            return true;
        }
        let mut better = false;
        if part.is_one() {
            let compute = self.compute_group(part.level, part.sets);
            let bounded = self.ways[part.level].bounded(&compute, self.reads_of(part));
            let mut open = |kind, band| self.opened(&bounded, part.level, (kind, band));
            let refined = known.refined.get_or_insert_with(|| {
                let closed = self.closed_in(part, known.of_whole.as_deref());
                let mut refined = Refined::new(&closed, &self.ways[part.level].counts());
                if let Exact::At(before) = &known.exact {
                    // it may have been settled
                    before.iter().for_each(|&bytes| while refined.refine(bytes, &mut open) {});
                }
                refined
            });
            better = refined.refine(bytes, &mut open);
            known.bound.curve = Rc::clone(refined.curve());
        }
        if let Exact::At(known) = &mut known.exact
            && !better
        {
            known.push(bytes);
        }
        better
    }

    /// The least of each kind of layer where a byte has the price that the curve gives it; no more of it than says that so many bytes give
    /// more than `enough` ticks.
    fn line(&self, part: Part, bytes: i64, known: &Known, enough: i64) -> Line {
        let ways = &self.ways[part.level];
        let price = known.bound.curve.price(bytes);
        let mut all = self.closed_in(part, known.of_whole.as_deref());
        let compute = self.compute_group(part.level, part.sets);
        let bounded = ways.bounded(&compute, self.reads_of(part));
        let cost = |bytes: i64, ticks: i64| ticks as f64 + price * bytes as f64;
        let seconds = |seconds: f64| (seconds / self.tick_seconds) as i64;
        let lowest = |bands: &Vec<(i64, i64)>| {
            bands.iter().map(|&(bytes, ticks)| cost(bytes, ticks)).fold(f64::INFINITY, f64::min)
        };
        let mut floors: Vec<f64> = all.iter().map(lowest).collect();
        let sum = |floors: &[f64]| -> f64 {
            floors.iter().zip(&ways.kinds).map(|(floor, (_, count))| floor * *count as f64).sum()
        };
        let (mut whole, mut opened, mut order) = (true, 0, Vec::new());
        for (kind, bands) in all.iter_mut().enumerate() {
            if sum(&floors) * (1.0 - ROUNDING) - price * bytes as f64 > enough as f64 + 1.0 {
                whole = false;
                break;
            }
            let layer = ways.kinds[kind].0;
            let costs = bands.iter().map(|&(bytes, ticks)| cost(bytes, ticks));
            order.clear();
            order.extend(costs.zip(0..));
            order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
            let mut floor = f64::INFINITY;
            for &(least, band) in &order {
                if least >= floor {
                    break;
                }
                opened += 1;
                let cached = ways.bands[layer][band].cached.clone();
                let size = cached.len().div_ceil(PARTS);
                let mut fewest = i64::MAX;
                for start in cached.clone().step_by(size) {
                    let some = start..(start + size).min(cached.end);
                    let (bytes, of_some) = bounded.least(layer, some.clone());
                    // none of them takes less than was said of the band
                    if cost(bytes, seconds(of_some)).max(least) < floor {
                        bounded.some(layer, some, |way, of_way| {
                            let ticks = seconds(of_way);
                            floor = floor.min(cost(way.need.bytes(), ticks).max(least));
                            fewest = fewest.min(ticks);
                        });
                    } else {
                        fewest = fewest.min(seconds(of_some));
                    }
                }
                bands[band].1 = fewest.max(bands[band].1);
            }
            floors[kind] = floor;
        }
        self.count(Effort { opened, ..Effort::default() });
        Line { bands: Rc::new(all), decided_at: bytes, price, least: sum(&floors), floors, whole }
    }

    /// What is asked of reads in any split of a part's layers of at most so many ticks within so many bytes, with a byte's price
    /// at `decided_at` bytes: a way of caching that is too much with the least of all other layers is in none. Where ticks do not matter
    /// all are in some.
    pub fn asked_within(&self, part: Part, decided_at: i64, (ticks, bytes): (i64, i64)) -> Asked {
        let (ways, read) = (&self.ways[part.level], self.reads_of(part)[0]);
        if ticks >= NEVER / 2 {
            return ways.asked(read, |each| {
                for (kind, &(layer, _)) in ways.kinds.iter().enumerate() {
                    (0..ways.bands[layer].len()).for_each(|band| each(kind, band));
                }
            });
        }
        let mut all = self.curves.borrow_mut();
        let some = all.get_mut(&part).filter(|known| decided_at >= known.bound.curve.corners[0].0);
        let Some(known) = some else { return Asked::ANYTHING };
        let last = known.priced.take().filter(|line| line.decided_at == decided_at);
        let line = last.unwrap_or_else(|| self.line(part, decided_at, known, i64::MAX));
        let cost = |bytes: i64, ticks: i64| ticks as f64 + line.price * bytes as f64;
        let gap = cost(bytes, ticks) - line.least * (1.0 - ROUNDING);
        let asked = ways.asked(read, |each| {
            for (kind, (bands, floor)) in line.bands.iter().zip(&line.floors).enumerate() {
                for (band, _) in
                    bands.iter().enumerate().filter(|(_, band)| cost(band.0, band.1) - floor <= gap)
                {
                    each(kind, band);
                }
            }
        });
        known.priced = Some(line);
        asked
    }

    /// The first of the reads by which prompts take as long as by this one.
    pub fn prompts_as(&self, level: usize, read: usize) -> usize {
        self.groups[level].prompts_as[read]
    }

    /// Reads that differ from a way's in depth and buffers alone, and those.
    pub fn alike(&self, way: Way) -> &[usize] {
        let groups = &self.groups[way.level];
        &groups.reads[groups.place_of[way.read].0]
    }

    /// Whether each of the reads of a part has one that is as good in less memory where no more is asked of it.
    pub fn has_smaller(&self, part: Part, asked: Asked, limited: bool) -> bool {
        let (ways, alike) = (&self.ways[part.level], &self.groups[part.level].reads[part.group]);
        self.reads_of(part).iter().all(|&read| ways.has_smaller(read, alike, asked, limited))
    }

    /// Keeps of what made a curve better nothing but the curve.
    pub fn settle(&self, part: Part) {
        if let Some(known) = self.curves.borrow_mut().get_mut(&part) {
            (known.refined, known.priced, known.of_whole) = (None, None, None);
        }
    }

    /// The part that has a way's reads and its core set, and no others.
    pub fn part_of(&self, way: Way) -> Part {
        let groups = &self.groups[way.level];
        let ((group, place), set) = (groups.place_of[way.read], groups.set_of[way.compute]);
        Part { level: way.level, group, reads: (place, place + 1), sets: (set, set + 1) }
    }

    /// The least ticks of all layers against bytes with a way, from all ways of caching.
    pub fn curve_of(&self, way: Way) -> Rc<Curve> {
        let part = self.part_of(way);
        if let Some(Known { bound, exact: Exact::Everywhere, .. }) = self.curves.borrow().get(&part) {
            return Rc::clone(&bound.curve);
        }
        let compute = self.compute_group(part.level, part.sets);
        let bounded = self.ways[part.level].bounded(&compute, self.reads_of(part));
        let mut refined = Refined::new(&self.closed(part), &self.ways[part.level].counts());
        refined.open_all(|kind, band| self.opened(&bounded, part.level, (kind, band)));
        let curve = Rc::clone(refined.curve());
        let bound = Bound { curve: Rc::clone(&curve), lines: Vec::new() };
        let exact = Exact::Everywhere;
        let known = Known { bound, exact, refined: None, lined: Vec::new(), priced: None, of_whole: None };
        if self.curves.borrow_mut().insert(part, known).is_none() {
            self.count_curve(part);
        }
        curve
    }

    /// Bytes and ticks of a band's ways of caching.
    fn opened(&self, bounded: &Bounded<'_>, level: usize, (kind, band): (usize, usize)) -> Vec<(i64, i64)> {
        let (layer, _) = self.ways[level].kinds[kind];
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
