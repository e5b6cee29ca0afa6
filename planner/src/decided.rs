//! Everything that a plan decides, as the cost model and the memory arithmetic take it.

use plans::Policy;
use plans::memory::Choices;
use plans::model::Level;

use crate::cost::Decision;
use crate::cost::reads::ReadChoice;
use crate::question::Limits;
use crate::rules::Prompt;

/// Everything that is decided, before it is written down as a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Decided {
    /// Compute cores.
    pub cores: Vec<u32>,
    /// Cores of the reading threads.
    pub io_cores: Vec<u32>,
    /// Whether the reading threads have the compute cores.
    pub shared: bool,
    /// Neurons in memory that a thread takes together.
    pub cluster: u64,
    /// How flash is read.
    pub read: ReadChoice,
    /// Pinned neurons per layer.
    pub hot: Vec<u32>,
    /// Slots per layer.
    pub cold: Vec<u32>,
    /// Cache policy: who leaves a slot.
    pub policy: Policy,
    /// Neurons that come and go together.
    pub slice_neurons: u64,
    /// How prompts pass.
    pub prompt: Prompt,
    /// Whether rows of the token embedding are read.
    pub embedding_rows: bool,
}

impl Decided {
    /// For pricing.
    pub fn decision<'a>(&'a self, level: &'a Level) -> Decision<'a> {
        Decision {
            level,
            cores: &self.cores,
            shared: self.shared,
            cluster: self.cluster,
            read: self.read,
            embedding_rows: self.embedding_rows,
            hot: &self.hot,
            cold: &self.cold,
            policy: self.policy,
        }
    }

    /// For the memory arithmetic.
    pub fn choices<'a>(&'a self, limits: &Limits, level: &Level) -> Choices<'a> {
        Choices {
            kind: level.kind,
            level_resident_bytes: level.resident_bytes,
            hot_neurons: &self.hot,
            cold_slots: &self.cold,
            policy: self.policy,
            slice_neurons: self.slice_neurons,
            context_tokens: u64::from(limits.context),
            sequences: u64::from(limits.sequences),
            kv: limits.kv,
            draft_tokens: u64::from(limits.draft_tokens),
            compute_threads: self.cores.len().max(self.prompt.cores.len()) as u64,
            backend: self.read.backend,
            depth: u64::from(self.read.depth),
            cluster_neurons: u64::from(self.prompt.cluster),
            chunk_tokens: u64::from(self.prompt.chunk),
            buffers: u64::from(self.read.buffers),
            buffer_bytes: self.read.buffer_bytes,
            embedding_rows: self.embedding_rows,
            unit_bytes: limits.gpu.map_or(0, |gpu| gpu.process_bytes),
            reserve_bytes: limits.reserve_bytes,
        }
    }
}
