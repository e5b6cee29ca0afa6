//! `learned.toml`: how a mixture's tokens used its experts, counted by `run` and added up over its runs.
//!
//! The file has counts only, no token and no order of tokens. `plan` derives the miss rate of an LRU cache of any size from them.
//! An expert's *stack distance* is the number of other experts visited more recently. It misses where that is at least the number of
//! slots (Mattson et al., 1970). The policy `frequency` has no such distance, so its misses are counted for some sizes.

mod check;

use serde::{Deserialize, Serialize};

use crate::check::{At, Checked};
use crate::file::Contract;

/// File name, beside `model.toml`.
pub const FILE: &str = "learned.toml";

/// Pinned prefixes of a layer's experts that distances are counted for: none, a quarter, a half and three quarters.
pub const PREFIXES: usize = 4;

/// Slots that misses of the policy `frequency` are counted for, in sixteenths of a layer's experts.
pub const SIZES: [usize; 10] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 14];

/// Fewest tokens that `plan` learns from.
///
/// A token visits at least two experts. From 512 visits the standard error of a layer's miss rate is at most 2 percentage points.
pub const TOKENS_MIN: u64 = 256;

/// Most tokens of the file. Beyond them all counts are halved, so recent runs weigh more.
pub const TOKENS_MAX: u64 = 1 << 16;

/// Counted visits of a mixture's experts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Learned {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// The counted model.
    pub learned: Counted,
    /// Counts of each layer.
    pub layers: Vec<LayerVisits>,
}

/// The counted model, and how much was counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// Name and version of the program that wrote the file.
    pub tool: String,
    /// The model's name, for people.
    pub model: String,
    /// The source model's fingerprint.
    pub model_fingerprint: String,
    /// The container's fingerprint, which fixes the order of experts.
    pub container_fingerprint: String,
    /// Counted tokens: decoded one at a time. Above 2^16 all counts are halved.
    pub tokens: u64,
}

/// Visits of a layer's experts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerVisits {
    /// Visits of each expert, in the container's order.
    pub visits: Vec<u64>,
    /// `distances[prefix][d]`: visits with `d` other experts visited more recently. Prefix `p` leaves out the first `p` quarters of
    /// the experts.
    pub distances: Vec<Vec<u64>>,
    /// Misses of the policy `frequency` in caches of 1, 2, 3, 4, 5, 6, 8, 10, 12 and 14 sixteenths of the experts, none pinned.
    pub frequency_misses: Vec<u64>,
}

/// The first expert that is not in a pinned prefix: 0 to [`PREFIXES`] quarters of `experts`.
pub const fn after_prefix(experts: usize, prefix: usize) -> usize {
    experts * prefix / PREFIXES
}

/// Slots of a size of [`SIZES`], rounded down.
pub const fn slots_of(experts: usize, sixteenths: usize) -> usize {
    experts * sixteenths / 16
}

impl LayerVisits {
    /// Adds the counts of another run.
    fn add(&mut self, other: &Self) {
        let add = |into: &mut Vec<u64>, from: &[u64]| into.iter_mut().zip(from).for_each(|(a, b)| *a += b);
        add(&mut self.visits, &other.visits);
        self.distances.iter_mut().zip(&other.distances).for_each(|(into, from)| add(into, from));
        add(&mut self.frequency_misses, &other.frequency_misses);
    }

    fn halve(&mut self) {
        let counts = self.visits.iter_mut().chain(self.distances.iter_mut().flatten());
        counts.chain(&mut self.frequency_misses).for_each(|count| *count /= 2);
    }
}

impl Learned {
    /// Whether both count the same container.
    pub fn is_of(&self, other: &Self) -> bool {
        let (one, two) = (&self.learned, &other.learned);
        one.model_fingerprint == two.model_fingerprint
            && one.container_fingerprint == two.container_fingerprint
            && self.layers.len() == other.layers.len()
            && self.layers.iter().zip(&other.layers).all(|(one, two)| one.visits.len() == two.visits.len())
    }

    /// Adds the counts of another run of the same container, and [bounds](Self::bound) the sum.
    pub fn add(&mut self, other: &Self) {
        self.learned.tokens += other.learned.tokens;
        self.layers.iter_mut().zip(&other.layers).for_each(|(into, from)| into.add(from));
        self.bound();
    }

    /// Halves all counts while they are of more than [`TOKENS_MAX`] tokens.
    pub fn bound(&mut self) {
        while self.learned.tokens > TOKENS_MAX {
            self.learned.tokens /= 2;
            self.layers.iter_mut().for_each(LayerVisits::halve);
        }
    }
}

impl Contract for Learned {
    const KIND: &'static str = FILE;
    const COMMAND: &'static str = "run";
    const MARK: &'static str = "learned";
    const COMMENTS: &'static [(&'static str, &'static str)] = &[
        ("[learned]", "The counted model. Delete this file to forget the counts."),
        ("[[layers]]", "Visits by expert, and by the experts visited more recently."),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(experts: usize, count: u64) -> LayerVisits {
        // every visit at distance 0 of its prefix, so that all sums agree
        let of_prefix = |prefix| {
            let left = experts - after_prefix(experts, prefix);
            let mut distances = vec![0; left];
            distances[0] = count * left as u64;
            distances
        };
        LayerVisits {
            visits: vec![count; experts],
            distances: (0..PREFIXES).map(of_prefix).collect(),
            frequency_misses: vec![count; SIZES.len()],
        }
    }

    fn learned(tokens: u64, count: u64) -> Learned {
        Learned {
            schema: crate::SCHEMA,
            learned: Counted {
                tool: "run 0".to_owned(),
                model: "small".to_owned(),
                model_fingerprint: "a".to_owned(),
                container_fingerprint: "b".to_owned(),
                tokens,
            },
            layers: vec![layer(6, count), layer(6, count + 1)],
        }
    }

    #[test]
    fn counts_of_two_runs_add_up_exactly() {
        let mut sum = learned(100, 7);
        sum.add(&learned(30, 4));
        assert_eq!(sum, Learned { layers: vec![layer(6, 11), layer(6, 13)], ..learned(130, 0) });
        sum.check().expect("a sum is valid");
    }

    #[test]
    fn counts_stay_bounded_and_valid_and_recent_ones_weigh_more() {
        let mut sum = learned(TOKENS_MAX, 1);
        for _ in 0..50 {
            sum.add(&learned(TOKENS_MAX - 1, TOKENS_MAX - 3));
            sum.check().expect("valid after halving");
            assert!(sum.learned.tokens <= TOKENS_MAX);
            assert!(sum.layers[0].visits[0] > TOKENS_MAX / 3, "{:?}", sum.layers[0]);
        }
        // a run of days
        sum.add(&learned(TOKENS_MAX << 20, TOKENS_MAX << 19));
        assert!(sum.learned.tokens <= TOKENS_MAX && sum.check().is_ok());
    }

    #[test]
    fn another_container_or_shape_is_not_added() {
        let one = learned(100, 7);
        assert!(one.is_of(&learned(5, 1)));
        let mut other = learned(5, 1);
        other.learned.container_fingerprint = "c".to_owned();
        assert!(!one.is_of(&other));
        let other = Learned { layers: vec![layer(6, 1), layer(5, 1)], ..learned(5, 1) };
        assert!(!one.is_of(&other));
        assert!(!one.is_of(&Learned { layers: vec![layer(6, 1)], ..learned(5, 1) }));
    }

    #[test]
    fn counts_that_contradict_each_other_are_refused() {
        let refused = |change: fn(&mut Learned)| {
            let mut one = learned(100, 7);
            change(&mut one);
            one.check().expect_err("it is refused").to_string()
        };
        for (change, key) in [
            ((|l| l.learned.tokens = 0) as fn(&mut Learned), "`learned.tokens` is 0"),
            (|l| l.learned.tokens = TOKENS_MAX + 1, "`learned.tokens` is 65537"),
            (|l| l.layers.clear(), "`layers` has no entry"),
            (|l| l.layers[1].visits[2] = 101, "`layers[1].visits[2]` is 101"),
            (|l| l.layers[0].visits.truncate(1), "`layers[0].visits` has 1 entries"),
            (|l| l.layers[0].visits.fill(0), "`layers[0].visits` has no visit"),
            (|l| drop(l.layers[0].distances.pop()), "`layers[0].distances` has 3 entries"),
            (|l| l.layers[0].distances[2].push(0), "`layers[0].distances[2]` has 4 entries"),
            (|l| l.layers[0].distances[1][0] += 50, "`layers[0].distances[1]` adds up to"),
            (|l| l.layers[0].frequency_misses[3] = 49, "`layers[0].frequency_misses[3]` is 49"),
            (|l| l.layers[0].frequency_misses.clear(), "`layers[0].frequency_misses` has 0 entries"),
        ] {
            let said = refused(change);
            assert!(said.contains(key), "{said}");
        }
    }
}
