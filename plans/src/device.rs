//! `device.toml`: the rates of a machine, measured with the runtime's own kernels and reads.

pub(crate) mod check;

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Backend;
use crate::check::{At, Checked};
use crate::file::Contract;

/// Values of the rows that kernels are timed with.
pub const LONG_ROW_VALUES: u32 = 4096;
/// Values of the short rows, as small models have them.
pub const SHORT_ROW_VALUES: u32 = 256;
/// Bytes of the random reads that are in flight while a profile measures their interference.
pub const INTERFERENCE_BLOCK_BYTES: u64 = 16 << 10;
/// Random reads that are in flight while a profile measures their interference.
pub const INTERFERENCE_DEPTH: u32 = 8;

/// A measured machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// A short name for people and for the folder of committed plans, e.g. `oneplus-12`.
    pub name: String,
    /// BLAKE3 of `identity`'s canonical text: what a plan is bound to.
    pub fingerprint: String,
    /// All that stays the same as long as it is the same machine.
    pub identity: Identity,
    /// How the figures came to be.
    pub provenance: Provenance,
    /// Memory that programs can take.
    pub capacity: Capacity,
    /// Reading memory.
    pub memory: Memory,
    /// Reading flash.
    pub storage: Storage,
    /// Core classes, fastest first.
    pub cores: Vec<CoreClass>,
    /// The runtime's kernels by format and thread count.
    pub kernels: Vec<KernelSpeed>,
    /// Compute units; the CPU is the first.
    pub units: Vec<Unit>,
}

/// The parts of a machine's identity. Not its kernel, its name or its free space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// CPU model as the system names it.
    pub cpu: String,
    /// `count x clock_mhz` of each core class, e.g. `2 x 2600 MHz`.
    pub core_classes: Vec<String>,
    /// Instruction sets that the runtime has kernels for, reference first, best last.
    pub instruction_sets: Vec<String>,
    /// RAM, rounded to whole GiB.
    pub ram_gib: u64,
    /// Model or name, and size, of the block device that holds the container.
    pub storage: String,
}

/// How the figures came to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Name and version of the program that wrote the file.
    pub tool: String,
    /// `measured`, `published` for a profile built from somebody's published figures, or `assumed` for one made up.
    pub origin: String,
    /// Sources, and each figure that is assumed rather than measured or published, one sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl Provenance {
    /// Beginning of the note that other work disturbed the measurement.
    pub const DISTURBED: &str = "other work took";

    /// The notes that other work disturbed the measurement, each with the command that measures again into `folder`.
    pub fn disturbed(&self, folder: &Path) -> impl Iterator<Item = String> {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let notes = self.notes.iter().filter(|note| note.starts_with(Self::DISTURBED));
        notes.map(move |note| {
            let fact = note.split(';').next().unwrap_or_default();
            format!("{fact}; when it is quiet, measure again: `profile --out {}`", folder.display())
        })
    }
}

/// Memory that programs can take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacity {
    /// RAM in bytes.
    pub ram_bytes: u64,
    /// The smallest memory limit of the control groups up the tree; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_limit_bytes: Option<u64>,
    /// Bytes that the process may lock; absent: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lockable_bytes: Option<u64>,
    /// Bytes that the system and other processes keep: never planned for.
    pub system_reserve_bytes: u64,
    /// The `run` process before it takes its regions: program, libraries, stacks, heap. Measured.
    pub process_bytes: u64,
    /// One more thread: stack and kernel structures that become resident. Measured.
    pub thread_bytes: u64,
}

impl Capacity {
    /// The most that a plan may take on this machine.
    pub fn plannable_bytes(&self) -> u64 {
        let ram = self.ram_bytes.saturating_sub(self.system_reserve_bytes);
        self.cgroup_limit_bytes.map_or(ram, |limit| ram.min(limit))
    }
}

/// Memory bandwidth by number of threads, index 0 = one thread, over the cores fastest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Reading a large buffer in order.
    pub stream_bytes_per_second: Vec<f64>,
    /// Reading rows of `gather_row_bytes` at random places, as sparse decode does.
    pub gather_bytes_per_second: Vec<f64>,
    /// Bytes of the rows that `gather_bytes_per_second` was measured with.
    pub gather_row_bytes: u64,
    /// Taking memory from the system, which clears it, as the engine does at its start (absent: as reading in order by one
    /// thread).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fresh_bytes_per_second: Option<f64>,
    /// Largest spread of the samples over thread counts, sequential and scattered: distance of the quartiles over the median (absent:
    /// not measured).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread_fraction: Option<f64>,
}

/// Reading flash.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// The file system's kind, e.g. `ext4`.
    pub file_system: String,
    /// Whether direct I/O works there (tried, not requested).
    pub direct: bool,
    /// Time that the issuing core is not idle for one read through `pread`, interrupts included.
    pub cpu_seconds_per_read: f64,
    /// The core with the fastest reads.
    pub best_core: u32,
    /// Share of compute speed lost while reads through `pread` are in flight, measured.
    pub interference_fraction: f64,
    /// By number of threads: extra seconds of a step after a wait for reads, because the threads went to sleep (absent: none).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_seconds: Option<Vec<f64>>,
    /// Share of the reads in flight through `pread`, without the last, that complete together with the last (absent: 0). It is 0 where
    /// reads complete one after another, and 1 where all complete at once, as on disks of some virtual machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_together_fraction: Option<f64>,
    /// Bytes just read whose checksum one thread verifies in a second (absent: the rate of sequential memory).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_bytes_per_second: Option<f64>,
    /// Absent: `io-uring` is refused there or was not tried, and a plan must not use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_uring: Option<ReadCost>,
    /// Points of the read surface, from `storage.csv`.
    pub reads: Vec<ReadSpeed>,
}

/// The cost of reads to the threads that compute.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadCost {
    /// CPU time of the issuing core for one read through this back end, interrupts included. The table is absent where the system
    /// refuses the back end, or nobody tried it.
    pub cpu_seconds_per_read: f64,
    /// Share of compute speed lost while reads through this back end are in flight, measured.
    pub interference_fraction: f64,
    /// Share of the reads in flight, the last excluded, that complete together with the last (absent: 0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_together_fraction: Option<f64>,
}

/// One point of the read surface.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadSpeed {
    /// `pread`: positioned reads, `depth` threads; `io-uring`: asynchronous reads by one thread.
    pub backend: Backend,
    /// Direct (page cache bypassed, and proven to be) or buffered.
    pub direct: bool,
    /// `random` or `sequential`.
    pub pattern: String,
    /// Bytes of one read.
    pub block_bytes: u64,
    /// Reads in flight.
    pub depth: u32,
    /// The part of the file over which the reads are spread.
    pub span_bytes: u64,
    /// Reads completed in a second, median.
    pub reads_per_second: f64,
    /// Distance of the quartiles of the windows, over their median (absent: not measured).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread_fraction: Option<f64>,
}

/// Cores of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreClass {
    /// `big`, `mid`, `little`, or `core` where all are the same.
    pub name: String,
    /// Core ids.
    pub ids: Vec<u32>,
    /// Relative capacity as the system gives it, 1024 for the fastest.
    pub capacity: u32,
    /// Highest clock.
    pub clock_mhz: u32,
    /// `f_k`: FLOP/s of one core of the class in the runtime's dot product, weights in cache.
    pub flops_per_second: f64,
}

/// One of the runtime's kernels, timed; weights in blocks meet vectors rounded to 8 bits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelSpeed {
    /// Storage format of the weights, e.g. `F16`.
    pub format: String,
    /// Instruction set, e.g. `avx512`.
    pub instruction_set: String,
    /// By number of threads: FLOP/s of `dot` with the weights in cache.
    pub flops_per_second: Vec<f64>,
    /// By number of threads: weight bytes/s of a dense matrix-vector product from memory.
    pub dense_bytes_per_second: Vec<f64>,
    /// By number of threads: weight bytes/s of scattered gate and up rows from memory, one gate in eight and one up in sixteen. Where `sparse_down_bytes_per_second` is absent (older profiles): gate, up and down of one neuron in eight.
    pub sparse_bytes_per_second: Vec<f64>,
    /// By number of threads: weight bytes/s of scattered down rows from memory, 16 added to a sum at a time (absent: as
    /// `sparse_bytes_per_second`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sparse_down_bytes_per_second: Option<Vec<f64>>,
    /// By number of threads: seconds that down rows of 4096 values take beyond their bytes, for each sum (absent: none).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sparse_down_group_seconds: Option<Vec<f64>>,
    /// By number of threads: FLOP/s of a prompt's feed-forward block, 128 vectors at once, no value zero. Down is transposed where
    /// these kernels do so (absent: as `flops_per_second`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_flops_per_second: Option<Vec<f64>>,
    /// By number of threads: FLOP/s of a prompt's feed-forward block, 16 vectors at once, no value zero. It prices the weights of a
    /// chunk (absent: the time of 16 vectors).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_few_flops_per_second: Option<Vec<f64>>,
    /// By number of threads: FLOP/s of a prompt's feed-forward block where one value in eight is not zero and down skips the others.
    /// Operations with zeros count (absent: as `prompt_flops_per_second`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_sparse_flops_per_second: Option<Vec<f64>>,
    /// By number of threads: FLOP/s of one token's attention to keys and values in this format, four queries to a key
    /// (absent: as `flops_per_second`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_flops_per_second: Option<Vec<f64>>,
    /// By number of threads: seconds of a matrix row of 256 values from memory, all threads busy (absent: 1/16 of a row of 4096 values).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_dense_row_seconds: Option<Vec<f64>>,
    /// By number of threads: seconds of a scattered gate or up row of 256 values from memory (absent: 1/16 of a row of 4096 values).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_dot_row_seconds: Option<Vec<f64>>,
    /// By number of threads: seconds to add a scattered down row of 256 values to a sum (absent: 1/16 of a row of 4096 values).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_add_row_seconds: Option<Vec<f64>>,
    /// By number of threads: time of a step beyond its bytes: starting and joining workers, and waiting for the first rows.
    pub dispatch_seconds: Vec<f64>,
    /// Largest spread of the samples of matrix-vector products over thread counts, dense and sparse: distance of the quartiles over the
    /// median (absent: not measured).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread_fraction: Option<f64>,
}

/// A compute unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unit {
    /// `cpu`, which comes first, `npu` or `gpu`.
    pub name: String,
    /// Rates of a unit beside the CPU; absent: the CPU, whose rates stand in `kernels`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<UnitRates>,
}

/// Rates of a unit beside the CPU: products of matrices with the vectors of some tokens, dense.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitRates {
    /// Name, driver and subgroup size of the adapter for `run`; absent: a unit by published figures, which plans may have and `run`
    /// refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Storage formats of the weights that the unit multiplies.
    pub formats: Vec<String>,
    /// Tokens that pass a matrix together, rising from 1.
    pub tokens: Vec<u32>,
    /// FLOP/s of products with each number of `tokens`.
    pub flops_per_second: Vec<f64>,
    /// Weights that the unit moves from memory while the CPU is idle.
    pub stream_bytes_per_second: f64,
    /// Weights that the unit and all cores move together; absent: the unit has memory of its own, and nothing is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_stream_bytes_per_second: Option<f64>,
    /// Seconds from handing a matrix over until the CPU has the result, beyond the products.
    pub dispatch_seconds: f64,
    /// Bytes of a process that its driver takes, without buffers; absent: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub process_bytes: u64,
    /// Memory of the unit's own; absent: it computes from the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_memory: Option<OwnMemory>,
}

/// The memory of a unit that does not compute from the machine's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnMemory {
    /// Bytes of the unit's own memory.
    pub bytes: u64,
    /// Copies from the machine's memory to the unit's, and back.
    pub copy_bytes_per_second: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Unit {
    /// The CPU.
    pub fn cpu() -> Self {
        Self { name: crate::check::UNITS[0].to_owned(), rates: None }
    }
}

impl Storage {
    /// The cost of reads through a back end; `None` if it may not be used.
    pub fn read_cost(&self, backend: Backend) -> Option<ReadCost> {
        match backend {
            Backend::Pread => Some(self.pread_cost()),
            Backend::IoUring => self.io_uring,
        }
    }

    /// The cost of reads through `pread`, which may always be used.
    pub fn pread_cost(&self) -> ReadCost {
        let Self { cpu_seconds_per_read, interference_fraction, completed_together_fraction, .. } = *self;
        ReadCost { cpu_seconds_per_read, interference_fraction, completed_together_fraction }
    }
}

impl Device {
    /// The fingerprint that belongs to `identity`.
    pub fn fingerprint_of(identity: &Identity) -> String {
        let text = toml::to_string(identity).unwrap_or_default();
        blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
    }

    /// [`Self::spread_fractions`] in words, `kernels 3.1 %, reads 5.0 %`; `None` where the profile has none.
    pub fn spreads_told(&self) -> Option<String> {
        let all = self.spread_fractions();
        let told: Vec<_> =
            all.iter().map(|(name, spread)| format!("{name} {:.1} %", spread * 100.0)).collect();
        (!told.is_empty()).then(|| told.join(", "))
    }

    /// Spread of the samples of kernels, memory and reads: the median of the stored ones. Kinds without any are left out.
    pub fn spread_fractions(&self) -> Vec<(&'static str, f64)> {
        let kernels = self.kernels.iter().filter_map(|kernel| kernel.spread_fraction);
        let reads = self.storage.reads.iter().filter_map(|read| read.spread_fraction);
        let of = |name, mut all: Vec<f64>| {
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).map(|&middle| (name, middle))
        };
        let memory = self.memory.spread_fraction.into_iter().collect();
        [of("kernels", kernels.collect()), of("memory", memory), of("reads", reads.collect())]
            .into_iter()
            .flatten()
            .collect()
    }

    /// All core ids, fastest class first.
    pub fn core_ids(&self) -> Vec<u32> {
        self.cores.iter().flat_map(|class| class.ids.iter().copied()).collect()
    }
}

impl Contract for Device {
    const KIND: &'static str = "device.toml";
    const COMMAND: &'static str = "profile";
    const MARK: &'static str = "identity";
    const COMMENTS: &'static [(&'static str, &'static str)] = &[
        ("[identity]", "What makes it the same machine; the fingerprint is a hash of these."),
        ("[provenance]", "How the figures came to be."),
        ("[capacity]", "What a plan may take."),
        ("[memory]", "Memory bandwidth; index 0 is one thread."),
        ("[storage]", "Flash; the whole surface is in storage.csv."),
        ("[[cores]]", "Core classes, fastest first."),
        ("[[kernels]]", "The runtime's own kernels; index 0 is one thread."),
    ];
    const HAS_CHECKSUM: bool = true;

    fn check_at(&self, at: &At<'_>) -> Checked {
        check::check(self, at)
    }

    fn decode(file: toml::Deserializer<'_>) -> Result<Self, toml::de::Error> {
        Self::deserialize(file)
    }

    fn encode(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}
