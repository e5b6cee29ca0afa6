//! Cache policies: which neuron is evicted when another needs a slot.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A cache policy. Each has a file of its own in the runtime's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Evicts the least recently used neuron; inserts every missing one.
    Lru,
    /// Evicts a neuron that was not used since a hand last passed it; inserts every missing one.
    Clock,
    /// Evicts the least frequently used neuron, older uses counting less, and only for one that is used more often.
    Frequency,
}

impl Policy {
    /// All policies; the planner takes the first of equally fast ones.
    pub const ALL: [Self; 3] = [Self::Lru, Self::Clock, Self::Frequency];

    /// Name of the policy in the files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Clock => "clock",
            Self::Frequency => "frequency",
        }
    }

    /// Whether every missing neuron gets a slot.
    ///
    /// A cache smaller than one token's requests is then useless: each token evicts what the token before it inserted.
    pub const fn inserts_all(self) -> bool {
        match self {
            Self::Lru | Self::Clock => true,
            Self::Frequency => false,
        }
    }

    /// Bytes of the tables of a layer's slots; `pinned` of its `neurons` have none.
    ///
    /// A slot has its neuron and the token that last used it, four bytes each. Each policy adds its own:
    ///
    /// | policy | bytes |
    /// |---|---|
    /// | `lru` | 8 a slot: its two neighbours in the order of use |
    /// | `clock` | 1 a slot: whether it was used again |
    /// | `frequency` | 8 a slot: its place in a heap; and 4 for the use count of each neuron that is not pinned |
    pub const fn tables_bytes(self, neurons: u64, pinned: u64, slots: u64) -> u64 {
        let of_policy = match self {
            Self::Lru => 8 * slots,
            Self::Clock => slots,
            Self::Frequency if slots == 0 => 0,
            Self::Frequency => 8 * slots + 4 * neurons.saturating_sub(pinned),
        };
        8 * slots + of_policy
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
