//! Who leaves the cache when a neuron needs a slot.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A way to decide who leaves; the runtime's cache has one file for each, which says how it decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Who was not used for longest; everybody is inserted.
    Lru,
    /// Who was not used since a hand passed last; everybody is inserted.
    Clock,
    /// Who is used least often, where older uses count less; inserted is who is used more often.
    Frequency,
}

impl Policy {
    /// All policies; of equals the planner takes the first.
    pub const ALL: [Self; 3] = [Self::Lru, Self::Clock, Self::Frequency];

    /// Name of the policy in the files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Clock => "clock",
            Self::Frequency => "frequency",
        }
    }

    /// Whether everybody who was missing gets a slot, so that a region smaller than what one token requests is of no use:
    /// each token would flush what the one before it left.
    pub const fn inserts_all(self) -> bool {
        match self {
            Self::Lru | Self::Clock => true,
            Self::Frequency => false,
        }
    }

    /// Bytes of the tables of a layer's slots, `pinned` of whose `neurons` take no part.
    ///
    /// Per slot its neuron and the token that last used it, four bytes each; and besides
    ///
    /// | policy | |
    /// |---|---|
    /// | `lru` | per slot its two neighbours in the order of use, four each |
    /// | `clock` | per slot one for whether it was used again |
    /// | `frequency` | per slot eight for its place in a heap; where there are slots, four for each neuron that is not pinned: how often it is used |
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
