//! Everything the solver chooses among, priced in integers: nanoseconds, bytes, thousandths of a neuron.
//!
//! Speed is never a variable and nothing is divided: each small choice (cores and cluster, reads) is
//! enumerated here with its constants, computed by the plain cost functions and rounded up.

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
    /// What nothing overlaps, at the mean position of the measured run.
    pub serial_ns: i64,
    /// Threads and their activations.
    pub memory_bytes: i64,
    /// Cores in use, for computing and for reading.
    pub core_count: i64,
    /// Per group, one layer: the feed-forward block, and one cluster of it.
    pub layer_ns: Vec<(i64, i64)>,
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
    /// Reading one missing neuron, in picoseconds.
    pub missing_ps: i64,
    /// CPU time of that, in picoseconds.
    pub issue_ps: i64,
    /// Buffers and reading threads.
    pub memory_bytes: i64,
}

/// A convex stretch of a group's miss curve at one pinned share.
#[derive(Debug, Clone, PartialEq)]
pub struct Stretch {
    /// Pinned share of the cached neurons, in thousandths.
    pub share_permille: i64,
    /// Corners: cached neurons of a layer, and missing neurons per token in thousandths.
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
    /// Neurons are cached in multiples of this.
    pub quantum: i64,
    /// Memory that no choice changes, without keys and values.
    pub base_bytes: i64,
    /// Keys and values of the context.
    pub kv_bytes: i64,
    /// A cached neuron.
    pub neuron_bytes: i64,
    /// The tables' entry of a slot that changes its neuron.
    pub slot_bytes: i64,
    /// What the regions may add up to under the user's limit, page tables taken off.
    pub user_bytes: Option<i64>,
    /// The same for the machine's.
    pub machine_bytes: i64,
    /// Most time of a token.
    pub time_max_ns: Option<i64>,
    /// Compute speed lost while reads are in flight, in thousandths.
    pub interference_permille: i64,
    /// Tokens over which filling the cold region is spread.
    pub generated: i64,
    /// Objectives are decided to this resolution, and memory to the other.
    pub time_step_ns: i64,
    /// See `time_step_ns`.
    pub memory_step_bytes: i64,
}

/// One point of the choice space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Index into `compute`.
    pub compute: usize,
    /// Index into `reads`.
    pub read: usize,
    /// Per group: index into its stretches, and cached neurons of a layer.
    pub groups: Vec<(usize, i64)>,
}

/// What a choice costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    /// Mean time of a token.
    pub time_ns: i64,
    /// Sum of the regions, without page tables.
    pub memory_bytes: i64,
    /// Cores in use.
    pub cores: i64,
}

impl Stretch {
    /// Missing thousandths at so many cached neurons, rounded up.
    pub fn missing(&self, cached: i64) -> i64 {
        let line = |pair: &[(i64, i64)]| {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            div_up((y1 - y0) * (cached - x0), x1 - x0) + y0
        };
        self.corners.windows(2).map(line).max().unwrap_or(0).max(0)
    }

    /// Fewest cached neurons that it covers.
    pub fn low(&self) -> i64 {
        self.corners[0].0
    }

    /// Most cached neurons that it covers.
    pub fn high(&self) -> i64 {
        self.corners[self.corners.len() - 1].0
    }

    /// Slots that change their neuron.
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
        let mut time_ns = mode.serial_ns;
        let mut memory_bytes = self.base_bytes + self.kv_bytes + mode.memory_bytes + read.memory_bytes;
        let mut cold_total = 0;
        for (g, &(stretch, cached)) in choice.groups.iter().enumerate() {
            let (group, layers) = (&self.groups[g], self.groups[g].layers.len() as i64);
            let stretch = &group.stretches[stretch];
            let missing = stretch.missing(cached);
            let io = div_up(read.missing_ps * missing, 1_000_000);
            let issue = div_up(read.issue_ps * missing, 1_000_000);
            let (busy, drain) = mode.layer_ns[g];
            let mut layer = (busy + div_up(self.interference_permille * io, 1000)).max(io + drain);
            if mode.shared {
                layer = layer.max(busy + div_up(issue, mode.cores.len() as i64));
            } else {
                layer = layer.max(issue + drain);
            }
            time_ns += layers * layer;
            memory_bytes += layers * (self.neuron_bytes * cached + self.slot_bytes * stretch.cold(cached));
            cold_total += layers * stretch.cold(cached);
        }
        time_ns += div_up(read.missing_ps * cold_total, 1000 * self.generated);
        Price { time_ns, memory_bytes, cores: mode.core_count }
    }

    /// Whether a choice keeps every limit.
    pub fn allows(&self, choice: &Choice) -> bool {
        let price = self.price(choice);
        self.compute[choice.compute].allowed
            && price.memory_bytes <= self.machine_bytes.min(self.user_bytes.unwrap_or(i64::MAX))
            && price.time_ns <= self.time_max_ns.unwrap_or(i64::MAX)
    }
}
