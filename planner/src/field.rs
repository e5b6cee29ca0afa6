//! Which ways can be the best: each is bounded from below, and those that a known plan beats are dismissed.
//!
//! A way is a quality level with a policy, cores, a way of reading, and how prompts pass. Its bound is Lagrange's dual of
//! splitting its memory over the layers; best first, the exact split closes what is left between bound and plan.

use std::collections::HashMap;
use std::ops::Range;

use plans::model::Level;
use plans::{Backend, Policy};
use rayon::prelude::{IndexedParallelIterator as _, IntoParallelIterator as _, ParallelIterator as _};

use crate::bands::{self, Band, Priced};
use crate::cost::{PromptChoice, PromptPrice};
use crate::curve::{Curve, div_up};
use crate::layers::Cached;
use crate::reads::LeastReads;
use crate::request::{DIGITS, Inputs, Limits};
use crate::room::{Need, Room};
use crate::rules::{self, Prompt};
use crate::split::{Budget, Found, Item, NEVER, Split, quick_split, split};
use crate::ways::{Compute, Read, Ways};

/// Ticks of the fastest token.
const TICKS: f64 = (1u64 << 30) as f64;
/// Parts of the time of a prompt that is limited.
const PROMPT_TICKS: f64 = (1u64 << 40) as f64;
/// Plans within such a part of the fastest are as fast, and of the smallest as small.
pub const ALIKE: i64 = 200;

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

/// What there is to choose on a device for a model; limits on memory and time come later.
#[derive(Debug)]
pub struct Space<'a> {
    /// Per level that may be taken, with every policy that it was measured with.
    pub ways: Vec<Ways<'a>>,
    /// How prompts may pass, the least memory first.
    pub prompts: Vec<Prompt>,
    /// Seconds of a tick.
    pub tick_seconds: f64,
    /// The least ticks of all layers against bytes, for each level, reads and cores.
    curves: Vec<WayCurve>,
}

/// Per layer and band the least that reading takes.
type Least<'a> = Vec<Vec<(&'a Band, LeastReads)>>;

/// A curve, and for whom it holds: those cores with those reads at that level.
#[derive(Debug, Clone)]
struct WayCurve {
    level: usize,
    read: usize,
    computes: Vec<usize>,
    curve: Curve,
}

impl<'a> Space<'a> {
    /// For all levels, cores and mechanisms that the limits allow.
    pub fn new(inputs: &'a Inputs, limits: &Limits) -> Self {
        Self::of(inputs, limits, rules::levels(inputs, limits))
    }

    /// For some levels.
    pub fn of(inputs: &'a Inputs, limits: &Limits, levels: Vec<&'a Level>) -> Self {
        let with_policies = |level: &'a Level| {
            rules::policies(inputs, limits, level)
                .into_iter()
                .map(move |policy| (level, policy))
                .collect::<Vec<_>>()
        };
        let pairs: Vec<(&Level, Policy)> = levels.into_iter().flat_map(with_policies).collect();
        let ways: Vec<Ways<'a>> =
            pairs.into_par_iter().map(|(level, policy)| Ways::new(inputs, limits, level, policy)).collect();
        let least = |ways: &Ways<'_>| {
            let all = ways.computes.iter().map(|compute| ways.seconds_least(compute));
            all.fold(f64::MAX, f64::min)
        };
        let tick_seconds = ways.iter().map(least).fold(f64::MAX, f64::min) / TICKS;
        let curved = |(level, ways): (usize, Ways<'a>)| {
            let curves = curves(&ways, level, tick_seconds);
            (ways, curves)
        };
        let curved: Vec<(Ways<'a>, Vec<WayCurve>)> = ways.into_par_iter().enumerate().map(curved).collect();
        let (ways, curves): (Vec<_>, Vec<_>) = curved.into_iter().unzip();
        Self { ways, prompts: rules::prompts(inputs, limits), tick_seconds, curves: curves.concat() }
    }
}

/// The curves of a level's ways.
fn curves(ways: &Ways<'_>, level: usize, tick_seconds: f64) -> Vec<WayCurve> {
    let mut sets: Vec<Vec<usize>> = Vec::new();
    for compute in 0..ways.computes.len() {
        let alike = |set: &&mut Vec<usize>| ways.computes[set[0]].cores == ways.computes[compute].cores;
        match sets.iter_mut().find(alike) {
            Some(set) => set.push(compute),
            None => sets.push(vec![compute]),
        }
    }
    let mut curves = Vec::new();
    let mut last: Option<(usize, Least<'_>)> = None;
    for read in 0..ways.reads.len() {
        let of_read = &ways.reads[read];
        // reads that differ in look-ahead alone follow each other
        let alike = |last: &&(usize, Least<'_>)| ways.differ_in_look_ahead(last.0, read);
        if last.as_ref().filter(alike).is_none() {
            let envelopes = ways.envelopes(of_read);
            last = Some((read, ways.least_reads(of_read, 0, &envelopes, |_, _| true)));
        }
        let Some((_, least)) = &last else { continue };
        for computes in &sets {
            let priced = priced(ways, &ways.computes[computes[0]], read, least, tick_seconds);
            let curve = bands::curve(&priced);
            curves.push(WayCurve { level, read, computes: computes.clone(), curve });
        }
    }
    curves
}

impl Space<'_> {
    /// Bytes of the regions of the smallest plan that there is, at any speed.
    pub fn least_regions(inputs: &Inputs, limits: &Limits) -> Option<i64> {
        let prompts = rules::prompts(inputs, limits);
        let smallest = |level: &Level| {
            let ways = Ways::bare(inputs, limits, level, Policy::Lru);
            let reads = ways.reads.iter().min_by_key(|read| read.bytes)?;
            let room = |compute| ways.room(&inputs.device, 0, compute, reads, &prompts[0]);
            ways.computes
                .iter()
                .map(|compute| room(compute).taken(Need::default()) - room(compute).bytes)
                .min()
        };
        rules::levels(inputs, limits).into_iter().filter_map(smallest).min()
    }
}

/// Per layer and band the fewest bytes and ticks.
fn priced(
    ways: &Ways<'_>,
    compute: &Compute,
    read: usize,
    least: &[Vec<(&Band, LeastReads)>],
    tick_seconds: f64,
) -> Priced {
    let mut priced: Priced = least.iter().map(|bands| Vec::with_capacity(bands.len())).collect();
    // rounded down: a bound
    ways.least_seconds(compute, &ways.reads[read], least, |layer, band, seconds| {
        priced[layer].push((band.bytes, (seconds / tick_seconds) as i64));
    });
    priced
}

/// A space under limits, in ticks and bytes.
#[derive(Debug)]
pub struct Field<'a> {
    inputs: &'a Inputs,
    limits: &'a Limits,
    space: &'a Space<'a>,
    ways: &'a [Ways<'a>],
    prompts: &'a [Prompt],
    /// Seconds of a tick.
    pub tick_seconds: f64,
    /// Most ticks of a token.
    pub time_max: Option<i64>,
}

/// A way with what the split makes of it.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The way.
    pub way: Way,
    /// Its best split.
    pub found: Found,
    /// Ticks of a token.
    pub ticks: i64,
    /// Bytes of the regions, without page tables.
    pub regions: i64,
}

/// What the search for the fastest plan comes to.
#[derive(Debug, Clone)]
pub struct Fastest {
    /// The fastest plan.
    pub best: Candidate,
    /// Ticks that no plan can be below.
    pub least: i64,
    /// Every way that may be as fast, with its bound.
    pub near: Vec<(i64, Way)>,
    /// Ways that were priced layer by layer.
    pub priced: usize,
}

impl<'a> Field<'a> {
    /// Under these limits on memory and time.
    pub fn new(inputs: &'a Inputs, limits: &'a Limits, space: &'a Space<'a>) -> Self {
        let tick_seconds = space.tick_seconds;
        Self {
            inputs,
            limits,
            space,
            ways: &space.ways,
            prompts: &space.prompts,
            tick_seconds,
            time_max: limits.speed_min.map(|speed| (DIGITS / speed / tick_seconds) as i64),
        }
    }

    /// The quality level of a way.
    pub fn level(&self, way: Way) -> &'a Level {
        self.ways[way.level].level
    }

    /// Who leaves its cache.
    pub fn policy(&self, way: Way) -> Policy {
        self.ways[way.level].policy
    }

    /// Whether it reads rows of the token embedding.
    pub fn embedding_rows(&self, way: Way) -> bool {
        self.choice(way).0.embedding_rows
    }

    /// Its cores and its reads.
    pub fn choice(&self, way: Way) -> (&'a Compute, &'a Read<'a>) {
        let ways = &self.ways[way.level];
        (&ways.computes[way.compute], &ways.reads[way.read])
    }

    /// Reads that differ from those of a way in nothing but their number in flight and their buffers.
    pub fn siblings(&self, way: Way) -> Vec<Way> {
        let key = |read: &Read<'_>| {
            let c = &read.choice;
            (c.backend, c.direct, c.gap_bytes, c.phases, c.look_ahead > 0)
        };
        let reads = &self.ways[way.level].reads;
        let alike = |&read: &usize| key(&reads[read]) == key(&reads[way.read]);
        (0..reads.len()).filter(alike).map(|read| Way { read, ..way }).collect()
    }

    /// How its prompts pass.
    pub fn prompt(&self, way: Way) -> &'a Prompt {
        &self.prompts[way.prompt]
    }

    /// What a layer may cache at its level.
    pub fn cached(&self, way: Way, layer: usize) -> &'a [Cached] {
        &self.ways[way.level].cached[layer]
    }

    /// How many ways to decode there are.
    pub fn count(&self) -> usize {
        self.ways.iter().map(|ways| ways.computes.len() * ways.reads.len()).sum()
    }

    /// Every way with what `bound` says of it and of the curve of its bands, in that order; with only the smallest of all
    /// prompts where no limit is on theirs, since no other makes a token faster.
    fn queue(&self, bound: impl Fn(Way, &Curve) -> Option<i64>) -> Vec<(i64, Way)> {
        let prompts = if self.limits.prompts_max.is_empty() { 1 } else { self.prompts.len() };
        let mut queue = Vec::new();
        for WayCurve { level, read, computes, curve } in &self.space.curves {
            for (&compute, prompt) in
                computes.iter().flat_map(|c| (0..prompts).map(move |prompt| (c, prompt)))
            {
                let way = Way { level: *level, compute, read: *read, prompt };
                queue.extend(bound(way, curve).map(|bound| (bound, way)));
            }
        }
        queue.sort_unstable();
        queue
    }

    /// Ticks of so many seconds.
    pub fn ticks(&self, seconds: f64) -> i64 {
        (seconds / self.tick_seconds).ceil() as i64
    }

    /// Ticks that nothing overlaps.
    pub fn serial(&self, way: Way) -> i64 {
        self.ticks(self.choice(way).0.serial)
    }

    /// Cores in use, for computing and for reading.
    pub fn cores(&self, way: Way) -> i64 {
        let (compute, read) = self.choice(way);
        let reading = read.choice.backend == Backend::Pread && !compute.shared;
        (compute.cores.len() + if reading { compute.io_cores.len() } else { 0 }) as i64
    }

    /// What is left of so many bytes for neurons.
    pub fn room(&self, way: Way, regions: i64) -> Room {
        let (compute, read) = self.choice(way);
        self.ways[way.level].room(&self.inputs.device, regions, compute, read, self.prompt(way))
    }

    /// The price of a prompt.
    pub fn prompt_price(&self, way: Way, tokens: u32) -> PromptPrice<'a> {
        let ((compute, read), prompt) = (self.choice(way), self.prompt(way));
        let choice = PromptChoice {
            reads: read.price(),
            shared: compute.shared,
            embedding_rows: self.embedding_rows(way),
            cores: &prompt.cores,
            chunk: prompt.chunk,
        };
        PromptPrice::new(self.inputs, self.limits, &choice, tokens)
    }

    /// A bound on the ticks of a way, from bands; `None` where it cannot keep the limits.
    fn bound(&self, way: Way, regions: i64, curve: &Curve) -> Option<i64> {
        let [all, beside] = self.room(way, regions).budgets();
        if beside < 0 {
            return None;
        }
        let ticks = self.serial(way) + curve.at(all)?;
        // a curve's value is rounded up
        self.time_max.is_none_or(|most| ticks - 1 <= most).then_some(ticks - 1)
    }

    /// What the bands say of the ticks of a way, without pricing them again.
    pub fn bound_known(&self, way: Way, regions: i64) -> Option<i64> {
        let key = (way.level, way.read);
        let first = self.space.curves.partition_point(|known| (known.level, known.read) < key);
        let mut alike =
            self.space.curves[first..].iter().take_while(|known| (known.level, known.read) == key);
        let known = alike.find(|known| known.computes.contains(&way.compute))?;
        self.bound(way, regions, &known.curve)
    }

    /// Whether prompts can be as fast as they must with so many bytes of pinned neurons, however those are shared.
    fn prompts_may(&self, way: Way, beside: i64) -> bool {
        self.limits.prompts_max.iter().all(|limit| {
            let price = self.prompt_price(way, limit.tokens);
            let smallest = self.ways[way.level].slot_bytes.iter().copied().min().unwrap_or(1);
            let pinned = beside / smallest.max(1) as i64;
            price.seconds_least(pinned as f64) <= limit.seconds_max * DIGITS
        })
    }

    /// Per layer the ways of caching that a split of at most `worst` ticks can use, and what all layers must keep within so
    /// many bytes; `None` where there is no such split, and with `smaller` also where other reads are as fast in less memory.
    pub fn layers(
        &self,
        way: Way,
        regions: i64,
        worst: i64,
        smaller: bool,
    ) -> Option<(Vec<Vec<Item>>, Budget)> {
        let (compute, read) = self.choice(way);
        let ways = &self.ways[way.level];
        let room = self.room(way, regions);
        let [all, beside] = room.budgets();
        if beside < 0 {
            return None;
        }
        let toll = ways.toll(compute, read);
        let envelopes = ways.envelopes(read);
        let gap = |curve: &Curve| {
            let gap = worst - self.serial(way) - curve.at(all)? + 1;
            (gap >= 0).then_some(gap)
        };
        // bands, and of those that may be of use their parts
        let whole = ways.least_reads(read, 0, &envelopes, |_, _| true);
        let prices = priced(ways, compute, way.read, &whole, self.tick_seconds);
        let curve = bands::curve(&prices);
        let useful = bands::within(&prices, &curve, all, gap(&curve)?);
        let starts = whole.iter().zip(&useful).map(|(bands, useful)| {
            let used = bands.iter().zip(useful).filter(|(_, useful)| **useful);
            used.map(|((band, _), _)| band.cached.clone()).collect::<Vec<_>>()
        });
        let starts: Vec<Vec<Range<usize>>> = starts.collect();
        let inside = |layer: usize, part: &Band| {
            let after = starts[layer].partition_point(|range| range.start <= part.cached.start);
            after > 0 && starts[layer][after - 1].contains(&part.cached.start)
        };
        let parts = ways.least_reads(read, 1, &envelopes, inside);
        let prices = priced(ways, compute, way.read, &parts, self.tick_seconds);
        let curve = bands::curve(&prices);
        let useful = bands::within(&prices, &curve, all, gap(&curve)?);
        let used = useful.iter().zip(&parts).flat_map(|(useful, parts)| useful.iter().zip(parts));
        let used: Vec<&LeastReads> =
            used.filter(|(useful, _)| **useful).map(|(_, (_, least))| least).collect();
        let reads = used.iter().map(|least| least.reads_most).fold(0.0, f64::max);
        if smaller && self.limits.prompts_max.is_empty() && ways.has_smaller(read, reads) {
            return None;
        }
        let item = |layer: usize, cached: usize| {
            let caching = &ways.cached[layer][cached];
            let ticks = self.ticks(ways.seconds(compute, read, &toll, layer, caching));
            Item { cached, need: caching.need, ticks, prompts: [0, 0] }
        };
        let mut items: Vec<Vec<Item>> = Vec::new();
        for (layer, (useful, parts)) in useful.iter().zip(&parts).enumerate() {
            let parts = parts.iter().zip(useful).filter(|(_, useful)| **useful);
            let cached = parts.flat_map(|((part, _), _)| part.cached.clone());
            let mut of_layer: Vec<Item> = cached.map(|cached| item(layer, cached)).collect();
            of_layer.sort_by_key(|item| (item.need.bytes(), item.ticks));
            items.push(of_layer);
        }
        let mut budget = Budget { room, prompts: [NEVER; 2] };
        for (k, limit) in self.limits.prompts_max.iter().enumerate() {
            let price = self.prompt_price(way, limit.tokens);
            let tick = limit.seconds_max * DIGITS / PROMPT_TICKS;
            budget.prompts[k] = ((limit.seconds_max * DIGITS - price.once) / tick).floor() as i64;
            for (layer, items) in items.iter_mut().enumerate() {
                let mut last = (u32::MAX, 0);
                for item in items {
                    let hot = ways.cached[layer][item.cached].hot;
                    if last.0 != hot {
                        let ticks = (price.layer(layer, hot) / tick).min(NEVER as f64 / 64.0);
                        last = (hot, ticks.ceil() as i64);
                    }
                    item.prompts[k] = last.1;
                }
            }
        }
        Some((items, budget))
    }

    /// The exact split of a way, if it keeps the limits and takes at most `worst` ticks; and ticks that no split of it can be
    /// below.
    pub fn candidate(&self, way: Way, regions: i64, worst: i64) -> (Option<Candidate>, i64) {
        let Some((items, budget)) = self.layers(way, regions, worst, false) else { return (None, worst + 1) };
        let serial = self.serial(way);
        let Some(split) = split(&items, &budget, Some(worst + 1 - serial)) else { return (None, worst + 1) };
        let found = self.of_split(way, regions, &items, &budget, &split);
        (found.filter(|found| found.ticks <= worst), serial + split.least)
    }

    fn of_split(
        &self,
        way: Way,
        regions: i64,
        items: &[Vec<Item>],
        budget: &Budget,
        split: &Split,
    ) -> Option<Candidate> {
        let mut found = split.found.clone()?;
        for (chosen, items) in found.chosen.iter_mut().zip(items) {
            *chosen = items[*chosen].cached;
        }
        let ticks = self.serial(way) + found.ticks;
        let regions = regions - budget.room.bytes + budget.room.taken(found.need);
        self.time_max.is_none_or(|most| ticks <= most).then_some(Candidate { way, found, ticks, regions })
    }

    /// The fastest plan within so many bytes, and every way that may be as fast; `None` where no way keeps the limits.
    /// With `any` the first plan that keeps them will do.
    pub fn fastest(&self, regions: i64, any: bool) -> Option<Fastest> {
        let most = self.time_max.unwrap_or(NEVER);
        let mut best: Option<Candidate> = None;
        let mut near: Vec<(i64, Way)> = Vec::new();
        let worst = |best: &Option<Candidate>| best.as_ref().map_or(most, |best| alike(best.ticks).min(most));
        let better = |found: Option<Candidate>, best: &mut Option<Candidate>| {
            if let Some(found) = found
                && best.as_ref().is_none_or(|best| found.ticks < best.ticks)
            {
                *best = Some(found);
            }
        };
        let mut priced = 0;
        let mut free: HashMap<Way, Vec<Room>> = HashMap::new();
        for (bound, way) in self.queue(|way, curve| self.bound(way, regions, curve)) {
            if bound > worst(&best) || any && best.is_some() {
                break;
            }
            let room = self.room(way, regions);
            let of_way = free.entry(Way { prompt: 0, ..way }).or_default();
            // where prompts cost a token nothing, those that take more memory do
            let beaten = of_way.iter().any(|free: &Room| free.bytes >= room.bytes && free.rows <= room.rows);
            if beaten || !self.prompts_may(way, room.budgets()[1]) {
                continue;
            }
            let Some((items, budget)) = self.layers(way, regions, worst(&best), true) else { continue };
            priced += 1;
            let Some(split) = quick_split(&items, &budget) else { continue };
            if split.prompts_free && split.found.is_some() {
                of_way.push(room);
            }
            let least = self.serial(way) + split.least;
            if least <= worst(&best) {
                near.push((least, way));
                better(self.of_split(way, regions, &items, &budget, &split), &mut best);
            }
        }
        near.sort_unstable();
        let mut least = NEVER;
        for (bound, way) in &mut near {
            let to_beat = best.as_ref().map_or(most + 1, |best| best.ticks);
            if *bound + *bound / (16 * ALIKE) < to_beat && !(any && best.is_some()) {
                let (found, proven) = self.candidate(*way, regions, to_beat - 1);
                *bound = proven.max(*bound);
                better(found, &mut best);
            }
            least = least.min(*bound);
        }
        let most = worst(&best);
        near.retain(|(bound, _)| *bound <= most);
        let best = best?;
        Some(Fastest { least: least.min(best.ticks), best, near, priced })
    }

    /// The fewest bytes of regions, at most `regions`, within which a plan keeps the other limits: what no plan can be below,
    /// and what one takes.
    pub fn smallest(&self, regions: i64) -> Option<(i64, i64)> {
        let (mut least, mut best) = (regions, None);
        for (bound, way) in self.queue(|way, curve| self.smallest_bound(way, regions, curve)) {
            let most = best.map_or(regions, |best: i64| best - 1);
            if bound > most {
                break;
            }
            if !self.prompts_may(way, self.room(way, most).budgets()[1]) {
                continue;
            }
            let Some((bound, found)) = self.smallest_of(way, bound, most) else { continue };
            least = least.min(bound);
            best = found.or(best);
        }
        best.map(|best| (least.min(best), best))
    }

    /// Bytes that a way cannot be below, and bytes up to `most` in which it is known to keep the limits; `None` where it
    /// cannot.
    fn smallest_of(&self, way: Way, bound: i64, most: i64) -> Option<(i64, Option<i64>)> {
        let serial = self.serial(way);
        // more ticks than any split takes
        let time = self.time_max.unwrap_or(NEVER / 2);
        let (items, budget) = self.layers(way, most, time, false)?;
        let within = |regions: i64, exact: bool| {
            let room = Room { bytes: budget.room.bytes - most + regions, ..budget.room };
            let budget = Budget { room, ..budget };
            let to_beat = time + 1 - serial;
            let split =
                if exact { split(&items, &budget, Some(to_beat)) } else { quick_split(&items, &budget) };
            let found = split?.found.filter(|found| found.ticks < to_beat)?;
            Some(regions - room.bytes + room.taken(found.need))
        };
        let Some(mut high) = within(most, false).or_else(|| within(most, true)) else {
            return Some((bound, None));
        };
        let mut low = bound - 1;
        while high - low > (high / (4 * ALIKE)).max(1) {
            let middle = low + (high - low) / 2;
            match within(middle, false).or_else(|| within(middle, high - low < high / 16)) {
                Some(taken) => high = taken.min(middle),
                None => low = middle,
            }
        }
        Some((bound, Some(high)))
    }

    /// A bound on a way's regions, from bands.
    fn smallest_bound(&self, way: Way, regions: i64, curve: &Curve) -> Option<i64> {
        let room = self.room(way, regions);
        let [all, beside] = room.budgets();
        if beside < 0 {
            return None;
        }
        let bytes = match self.time_max {
            None => curve.corners[0].0,
            Some(most) => curve.reaching(most + 1 - self.serial(way))? - 1,
        };
        (bytes <= all).then(|| regions - room.bytes + room.tables + bytes.max(room.rows))
    }
}

/// The most ticks that are as fast, or bytes that are as small.
pub fn alike(least: i64) -> i64 {
    least + div_up(least, ALIKE)
}
