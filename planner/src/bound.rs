//! Which ways can be the best: each is bounded from below, and those that a known plan beats are dismissed.
//!
//! The bound takes, for every layer, the lower hull of all it may cache; the known plan is what the exact split makes
//! of the most promising way. What is left goes to the solver, with the same hulls as its curves.

use plans::model::Level;
use plans::plan::Objective;
use plans::{Backend, Policy};

use crate::curve::{Curve, div_up};
use crate::layers::Cached;
use crate::request::Limits;
use crate::rules::{PAGE, regions_within};
use crate::split::{Exact, NEVER, split};
use crate::tables::{Bound, Mode, Price, Tables};
use crate::ways::{Compute, Read, Ways};

/// Ticks of the fastest token.
const TICKS: f64 = 524_288.0;
/// Steps to which time and memory are decided: a share of what is found without the solver.
const STEPS: i64 = 1024;
/// With more layers than these, one step of one of them is little, and a dynamic programme much.
const EXACT_LAYERS_MAX: usize = 12;
/// A split this close to the bound is not worth a dynamic programme: a step of the decision.
pub const GAP: f64 = 1.0 / STEPS as f64;
/// How far lines may lie below a curve, as a share of its fall.
const CLOSE: i64 = 2000;

/// One way, by places in the list of levels with their policies and in that entry's lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Index of the level with its policy.
    pub level: usize,
    /// Index of its cores.
    pub compute: usize,
    /// Index of its reads.
    pub read: usize,
}

/// Everything there is to choose, in ticks and pages.
#[derive(Debug)]
pub struct Field<'a> {
    ways: &'a [Ways<'a>],
    /// Seconds of a tick.
    pub tick_seconds: f64,
    /// The most pages that the regions may add up to.
    pages: i64,
    time_max: Option<i64>,
    goal: Objective,
}

impl<'a> Field<'a> {
    /// Under these limits.
    pub fn new(ways: &'a [Ways<'a>], limits: &Limits) -> Self {
        let least = |ways: &Ways<'_>| {
            let all = ways.computes.iter().map(|compute| ways.seconds_least(compute));
            all.fold(f64::MAX, f64::min)
        };
        let tick_seconds = ways.iter().map(least).fold(f64::MAX, f64::min) / TICKS;
        Self {
            ways,
            tick_seconds,
            pages: regions_within(limits.memory_bytes),
            time_max: limits.speed_min.map(|speed| (1.0 / speed / tick_seconds) as i64),
            goal: limits.objective,
        }
    }

    /// What is to be made best.
    pub fn goal(&self) -> Objective {
        self.goal
    }

    /// The quality level of a way.
    pub fn level(&self, way: Way) -> &'a Level {
        self.ways[way.level].level
    }

    /// Who leaves its cache.
    pub fn policy(&self, way: Way) -> Policy {
        self.ways[way.level].policy
    }

    /// Its cores and its reads.
    pub fn choice(&self, way: Way) -> (&'a Compute, &'a Read<'a>) {
        let ways = &self.ways[way.level];
        (&ways.computes[way.compute], &ways.reads[way.read])
    }

    /// What a layer may cache at its level.
    pub fn cached(&self, way: Way, layer: usize) -> &'a [Cached] {
        &self.ways[way.level].cached[layer]
    }

    /// All ways: `level x cores x reads`.
    pub fn all(&self) -> impl Iterator<Item = Way> + '_ {
        self.ways.iter().enumerate().flat_map(|(level, ways)| {
            let reads = 0..ways.reads.len();
            (0..ways.computes.len())
                .flat_map(move |compute| reads.clone().map(move |read| Way { level, compute, read }))
        })
    }

    /// Whether anything of a level fits into memory.
    pub fn fits(&self, level: usize) -> bool {
        self.all().any(|way| way.level == level && self.pages(way) <= self.pages)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.ways.iter().map(|ways| ways.computes.len() * ways.reads.len()).sum()
    }

    fn ticks(&self, seconds: f64) -> i64 {
        (seconds / self.tick_seconds).ceil() as i64
    }

    /// Per layer: bytes and ticks of each way of caching.
    pub fn options(&self, way: Way) -> Vec<Vec<(i64, i64)>> {
        let (compute, read) = self.choice(way);
        let ways = &self.ways[way.level];
        let layer = |(cached, seconds): (&Vec<Cached>, Vec<f64>)| {
            cached.iter().zip(seconds).map(|(cached, seconds)| (cached.bytes, self.ticks(seconds))).collect()
        };
        ways.cached.iter().zip(ways.layer_seconds(compute, read)).map(layer).collect()
    }

    /// Bytes that the limits leave for neurons.
    pub fn bytes_most(&self, way: Way) -> i64 {
        (self.pages - self.pages(way)) * PAGE
    }

    /// Ticks that nothing overlaps.
    pub fn serial(&self, way: Way) -> i64 {
        self.ticks(self.choice(way).0.serial)
    }

    /// Cores in use, for computing and for reading.
    fn cores(&self, way: Way) -> i64 {
        let (compute, read) = self.choice(way);
        let reading = read.choice.backend == Backend::Pread && !compute.shared;
        (compute.cores.len() + if reading { compute.io_cores.len() } else { 0 }) as i64
    }

    /// Pages besides the neurons.
    fn pages(&self, way: Way) -> i64 {
        let (compute, read) = self.choice(way);
        self.ways[way.level].base + compute.pages + read.pages
    }

    /// The least that the objective could come to; `None` if the way cannot keep the limits.
    fn bound(&self, way: Way, options: &[Vec<(i64, i64)>]) -> Option<i64> {
        let curve = curve(options);
        let (serial, pages) = (self.serial(way), self.pages(way));
        let bytes = self.bytes_most(way);
        match self.goal {
            Objective::Speed => curve.at(bytes).map(|ticks| serial + ticks),
            Objective::Memory => {
                let least =
                    self.time_max.map_or(Some(curve.corners[0].0), |most| curve.reaching(most - serial))?;
                (least <= bytes).then(|| pages + div_up(least, PAGE))
            }
        }
    }

    /// What the exact split makes of a way.
    fn split(&self, way: Way, options: &[Vec<(i64, i64)>]) -> Option<Price> {
        let (serial, pages) = (self.serial(way), self.pages(way));
        let at = |bytes: i64| {
            let chosen = split(options, bytes)?;
            let sum = |of: &dyn Fn((i64, i64)) -> i64| {
                chosen.iter().zip(options).map(|(&i, o)| of(o[i])).sum::<i64>()
            };
            Some(Price {
                time: serial + sum(&|option| option.1),
                memory: pages + div_up(sum(&|option| option.0), PAGE),
                cores: self.cores(way),
            })
        };
        let most = self.bytes_most(way);
        let best = at(most)?;
        match (self.goal, self.time_max) {
            (Objective::Speed, _) => Some(best),
            (Objective::Memory, None) => at(options.iter().map(|options| options[0].0).sum()),
            (Objective::Memory, Some(slowest)) => {
                if best.time > slowest {
                    return None;
                }
                let (mut low, mut high, mut least) = (-1, most, best);
                while high - low > PAGE * 4 {
                    let middle = low + (high - low) / 2;
                    match at(middle).filter(|price| price.time <= slowest) {
                        Some(price) => (high, least) = (middle, price),
                        None => low = middle,
                    }
                }
                Some(least)
            }
        }
    }

    /// Closes the gap between a way's bound and the split by dynamic programming, where there is one.
    fn closed(
        &self,
        way: Way,
        options: &[Vec<(i64, i64)>],
        bound: i64,
        split: Option<Price>,
    ) -> (i64, Option<Price>) {
        let Some(price) = split else { return (bound, None) };
        let key = self.key(&price);
        if options.len() > EXACT_LAYERS_MAX || (key - bound) as f64 <= GAP * key as f64 {
            return (bound, split);
        }
        let (serial, pages) = (self.serial(way), self.pages(way));
        let most = match self.goal {
            Objective::Speed => self.bytes_most(way),
            Objective::Memory => (price.memory - pages) * PAGE,
        };
        let largest = options.iter().map(|options| options[options.len() - 1].0).sum();
        let Some(exact) = Exact::new(options, most.min(largest)) else { return (bound, split) };
        let slowest = self.time_max.map(|most| most - serial);
        let (least, wanted) = match self.goal {
            Objective::Speed => (serial + exact.least(), None),
            Objective::Memory => (pages + exact.bytes_least(slowest.unwrap_or(NEVER)) / PAGE, slowest),
        };
        let (ticks, bytes) = exact.found(wanted);
        let found = Price { time: serial + ticks, memory: pages + div_up(bytes, PAGE), ..price };
        let better = self.key(&found) < key && self.time_max.is_none_or(|most| found.time <= most);
        (bound.max(least), Some(if better { found } else { price }))
    }

    /// What is to be made small.
    fn key(&self, price: &Price) -> i64 {
        if self.goal == Objective::Speed { price.time } else { price.memory }
    }

    /// The ways that may be the best, each with its bound, and the best price known without the solver; `None` if no
    /// way keeps the limits.
    pub fn survivors(&self) -> Option<(Vec<(Way, i64)>, Price)> {
        let mut bounded: Vec<(i64, Way)> = self
            .all()
            .filter(|&way| self.choice(way).0.allowed)
            .filter_map(|way| Some((self.quick_bound(way)?, way)))
            .collect();
        bounded.sort_by_key(|(bound, _)| *bound);
        let mut best: Option<Price> = None;
        let mut survivors = Vec::new();
        for (quick, way) in bounded {
            let beaten =
                |bound: i64, best: &Option<Price>| best.as_ref().is_some_and(|best| bound > self.key(best));
            if beaten(quick, &best) {
                break;
            }
            let options = self.options(way);
            let bound = self.bound(way, &options).filter(|&bound| !beaten(bound, &best));
            let Some(bound) = bound else { continue };
            let (bound, price) = self.closed(way, &options, bound, self.split(way, &options));
            survivors.push((way, bound));
            if let Some(price) = price
                && best.as_ref().is_none_or(|best| self.key(&price) < self.key(best))
            {
                best = Some(price);
            }
        }
        let best = best?;
        survivors.retain(|(_, bound)| *bound <= self.key(&best));
        survivors.sort_by_key(|(way, _)| (way.level, way.compute, way.read));
        Some((survivors, best))
    }

    /// A bound from totals alone: computing without misses, or reading the fewest that can be missing.
    fn quick_bound(&self, way: Way) -> Option<i64> {
        let ways = &self.ways[way.level];
        let (compute, read) = self.choice(way);
        let pages = self.pages(way);
        let bytes = self.bytes_most(way);
        let seconds = |bytes: i64| {
            let reading = ways.least.seconds(&read.least, bytes)?;
            Some(ways.seconds_least(compute).max(ways.seconds_apart(compute, read) + reading))
        };
        let fastest = seconds(bytes)?;
        match (self.goal, self.time_max) {
            (Objective::Speed, _) => Some(self.ticks(fastest)),
            (Objective::Memory, None) => Some(pages + div_up(ways.least.bytes(), PAGE)),
            (Objective::Memory, Some(most)) => {
                let most = most as f64 * self.tick_seconds;
                let reading = most - ways.seconds_apart(compute, read);
                let bytes = ways.least.bytes_within(&read.least, reading)?;
                (fastest <= most).then(|| pages + bytes.div_euclid(PAGE))
            }
        }
    }

    /// The solver's problem over these ways, each with its bound.
    pub fn tables(&self, ways: &[(Way, i64)], limits: &Limits, best: &Price) -> Tables {
        let mode = |&(way, bound): &(Way, i64)| {
            let (compute, _) = self.choice(way);
            Mode {
                serial: self.serial(way),
                pages: self.pages(way),
                cores: self.cores(way),
                allowed: compute.allowed,
                least: if self.goal == Objective::Speed { (bound, 0) } else { (0, bound) },
                layers: bound_of(&curve(&self.options(way)).in_units(PAGE)),
            }
        };
        // neurons do not fill whole pages: what they take is rounded up once
        Tables {
            modes: ways.iter().map(mode).collect(),
            user_pages: limits.user_memory_bytes.map(|bytes| regions_within(bytes) + 1),
            machine_pages: regions_within(limits.machine_bytes) + 1,
            time_max: self.time_max,
            time_step: (best.time / STEPS).max(1),
            memory_step: (best.memory / STEPS).max(1),
        }
    }
}

/// The least time of all layers together, against bytes.
fn curve(options: &[Vec<(i64, i64)>]) -> Curve {
    let curves: Vec<Curve> = options.iter().map(|options| Curve::over(options)).collect();
    Curve::sum(curves.iter())
}

fn bound_of(curve: &Curve) -> Bound {
    let (first, last) = (curve.corners[0], curve.corners[curve.corners.len() - 1]);
    Bound {
        least: first.0,
        most: last.0,
        floor: last.1,
        lines: curve.lines(((first.1 - last.1) / CLOSE).max(1)),
    }
}
