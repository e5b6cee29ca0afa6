//! Everything the solver chooses among, priced in small integers.
//!
//! Speed is never a variable and nothing is divided: each small choice (cores and cluster, reads) is
//! enumerated here with its constants, computed by the plain cost functions and rounded up. Units are
//! as fine as a decision needs and no finer, because proofs take longer with longer numbers:
//!
//! | quantity | unit |
//! |---|---|
//! | time | a *tick*: 2^-19 of the fastest token that these cores could compute |
//! | memory | a page |
//! | cached neurons of a layer | a *quantum*: a 256th of the layer, or a bit more |
//! | missing neurons of a layer | a 2^-16 of those asked for |

use plans::plan::Objective;

/// Denominator of every rate below: a coefficient of `RATE` is one unit per unit.
pub const RATE: i64 = 1024;

/// One choice of compute cores and cluster size.
#[derive(Debug, Clone, PartialEq)]
pub struct ComputeMode {
    /// Compute cores, fastest first.
    pub cores: Vec<u32>,
    /// Cores of the reading threads.
    pub io_cores: Vec<u32>,
    /// Whether those are the same cores.
    pub shared: bool,
    /// Active neurons computed together.
    pub cluster: u64,
    /// Ticks that nothing overlaps, at the mean position of the measured run.
    pub serial: i64,
    /// Pages of threads and their activations.
    pub memory: i64,
    /// Cores in use, for computing and for reading.
    pub core_count: i64,
    /// Per group, one layer, in ticks: the feed-forward block, and one cluster of it.
    pub layers: Vec<(i64, i64)>,
    /// Whether the user's cores allow it.
    pub allowed: bool,
}

/// One choice of how flash is read.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadMode {
    /// Reads in flight.
    pub depth: u32,
    /// Past the page cache.
    pub direct: bool,
    /// Buffers that reads land in.
    pub buffers: u32,
    /// Bytes of one.
    pub buffer_bytes: u64,
    /// Missing neurons this close are read as one.
    pub gap_bytes: u64,
    /// Per group: reading what is missing, as a rate of ticks.
    pub missing: Vec<i64>,
    /// Per group: CPU time of that, as a rate of ticks.
    pub issue: Vec<i64>,
    /// Filling a quantum of slots, spread over the measured run, as a rate of ticks.
    pub fill: i64,
    /// Pages of buffers and reading threads.
    pub memory: i64,
}

/// A convex stretch of a group's miss curve at one pinned share.
#[derive(Debug, Clone, PartialEq)]
pub struct Stretch {
    /// Pinned share of the cached neurons, in thousandths.
    pub share_permille: i64,
    /// Corners: cached quanta of a layer, and what is missing then.
    pub corners: Vec<(i64, i64)>,
}

/// Layers that are decided alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Its layers.
    pub layers: Vec<usize>,
    /// What may be cached, and what is missing then.
    pub stretches: Vec<Stretch>,
}

/// A problem of choosing, in integers.
#[derive(Debug, Clone, PartialEq)]
pub struct Tables {
    /// Cores and cluster.
    pub compute: Vec<ComputeMode>,
    /// Reads.
    pub reads: Vec<ReadMode>,
    /// Like layers.
    pub groups: Vec<Group>,
    /// Neurons of a quantum.
    pub quantum: i64,
    /// Seconds of a tick.
    pub tick_seconds: f64,
    /// Pages that no choice changes, without keys and values.
    pub base: i64,
    /// Pages of the context's keys and values.
    pub kv: i64,
    /// Per group: pages of a cached quantum in each of its layers.
    pub cached_pages: Vec<i64>,
    /// Per group: the tables' pages for a quantum of slots in each of its layers, as a rate.
    pub slot_pages: Vec<i64>,
    /// Pages that the regions may add up to under the user's limit, page tables taken off.
    pub user_pages: Option<i64>,
    /// The same for the machine's.
    pub machine_pages: i64,
    /// Most ticks of a token.
    pub time_max: Option<i64>,
    /// Compute speed lost while reads are in flight, as a rate.
    pub interference: i64,
    /// Objectives are decided to this resolution, and memory to the other.
    pub time_step: i64,
    /// See `time_step`.
    pub memory_step: i64,
}

/// One point of the choice space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Index into `compute`.
    pub compute: usize,
    /// Index into `reads`.
    pub read: usize,
    /// Per group: index into its stretches, and cached quanta of a layer.
    pub groups: Vec<(usize, i64)>,
}

/// What a choice costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    /// Mean ticks of a token.
    pub time: i64,
    /// Pages of the regions, without page tables.
    pub memory: i64,
    /// Cores in use.
    pub cores: i64,
}

impl Stretch {
    /// What is missing at so many cached quanta, rounded up.
    pub fn missing(&self, cached: i64) -> i64 {
        let line = |pair: &[(i64, i64)]| {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            div_up((y1 - y0) * (cached - x0), x1 - x0) + y0
        };
        self.corners.windows(2).map(line).max().unwrap_or(0).max(0)
    }

    /// Fewest cached quanta that it covers.
    pub fn low(&self) -> i64 {
        self.corners[0].0
    }

    /// Most cached quanta that it covers.
    pub fn high(&self) -> i64 {
        self.corners[self.corners.len() - 1].0
    }

    /// Quanta of slots that change their neuron, rounded up.
    pub fn cold(&self, cached: i64) -> i64 {
        div_up((1000 - self.share_permille) * cached, 1000)
    }
}

/// Quotient rounded up; the divisor is above zero.
pub fn div_up(a: i64, b: i64) -> i64 {
    a.div_euclid(b) + i64::from(a.rem_euclid(b) != 0)
}

impl Tables {
    /// The price of a choice: the definition that the solver's constraints must agree with.
    pub fn price(&self, choice: &Choice) -> Price {
        let (mode, read) = (&self.compute[choice.compute], &self.reads[choice.read]);
        let mut time = mode.serial;
        let mut memory = self.base + self.kv + mode.memory + read.memory;
        let (mut fill, mut tables) = (0, 0);
        for (g, &(stretch, cached)) in choice.groups.iter().enumerate() {
            let (group, layers) = (&self.groups[g], self.groups[g].layers.len() as i64);
            let stretch = &group.stretches[stretch];
            let (missing, cold) = (stretch.missing(cached), stretch.cold(cached));
            let io = div_up(read.missing[g] * missing, RATE);
            let issue = div_up(read.issue[g] * missing, RATE);
            let (busy, drain) = mode.layers[g];
            let mut layer = (busy + div_up(self.interference * io, RATE)).max(io + drain);
            if mode.shared {
                layer = layer.max(busy + div_up(issue, mode.cores.len() as i64));
            } else {
                layer = layer.max(issue + drain);
            }
            time += layers * layer;
            memory += self.cached_pages[g] * cached;
            fill += layers * read.fill * cold;
            tables += self.slot_pages[g] * cold;
        }
        Price {
            time: time + div_up(fill, RATE),
            memory: memory + div_up(tables, RATE),
            cores: mode.core_count,
        }
    }

    /// Whether a choice keeps every limit.
    pub fn allows(&self, choice: &Choice) -> bool {
        let price = self.price(choice);
        self.compute[choice.compute].allowed
            && price.memory <= self.pages()
            && price.time <= self.time_max.unwrap_or(i64::MAX)
    }

    /// The smaller of the two memory limits.
    pub fn pages(&self) -> i64 {
        self.machine_pages.min(self.user_pages.unwrap_or(i64::MAX))
    }

    /// Leaves out cores that need more than so many ticks even with everything in memory.
    pub fn keep_faster_than(&mut self, ticks: i64) {
        let counts: Vec<i64> = self.groups.iter().map(|group| group.layers.len() as i64).collect();
        let least = |mode: &ComputeMode| {
            mode.serial + mode.layers.iter().zip(&counts).map(|((busy, _), n)| busy * n).sum::<i64>()
        };
        self.compute.retain(|mode| least(mode) <= ticks);
    }

    /// A good choice that keeps the limits, found without the solver: one share for all groups, the
    /// same part of each stretch, every core and read mode tried. What the solver has to beat.
    pub fn guess(&self, goal: Objective) -> Option<(Choice, Price)> {
        let mut best: Option<(Choice, Price)> = None;
        let most = self.groups.iter().map(|group| group.stretches.len()).max().unwrap_or(0);
        let key = |price: &Price| if goal == Objective::Speed { price.time } else { price.memory };
        for (compute, read) in
            (0..self.compute.len()).flat_map(|c| (0..self.reads.len()).map(move |r| (c, r)))
        {
            for s in 0..most {
                let at = |part: i64| {
                    let of = |group: &Group| {
                        let i = s.min(group.stretches.len() - 1);
                        let stretch = &group.stretches[i];
                        (i, stretch.low() + (stretch.high() - stretch.low()) * part / PARTS)
                    };
                    Choice { compute, read, groups: self.groups.iter().map(of).collect() }
                };
                let fits = last(|part| self.price(&at(part)).memory <= self.pages());
                let parts = match goal {
                    // More is never slower but for filling the slots, so that a few smaller parts are tried too.
                    Objective::Speed => [fits, fits * 3 / 4, fits / 2],
                    Objective::Memory => {
                        let slow = |part| self.price(&at(part)).time > self.time_max.unwrap_or(i64::MAX);
                        let least = last(slow) + 1;
                        [least, least, 0]
                    }
                };
                for part in parts.into_iter().filter(|part| (0..=fits).contains(part)) {
                    let choice = at(part);
                    let price = self.price(&choice);
                    if self.allows(&choice) && best.as_ref().is_none_or(|(_, b)| key(&price) < key(b)) {
                        best = Some((choice, price));
                    }
                }
            }
        }
        best
    }
}

/// Parts of a stretch that a guess tries.
const PARTS: i64 = 256;

/// The last part for which something holds that holds up to there; -1 if for none.
fn last(holds: impl Fn(i64) -> bool) -> i64 {
    let (mut low, mut high) = (-1, PARTS + 1);
    while low + 1 < high {
        let middle = (low + high) / 2;
        if holds(middle) { low = middle } else { high = middle }
    }
    low
}
