//! Recall and precision of look-ahead, a layer's prediction of the next layer's reads.
//!
//! While a layer computes, the engine takes the current residual stream as the next layer's input, before this layer's feed-forward
//! network adds to it. The level selects from that input, and the engine prefetches the missing neurons. This module does the same with
//! tokens of the held-out text, whose true selection is known, and a cache like a run's.
//!
//! ```text
//! recall    = prefetched and requested / missing and requested
//! precision = prefetched and requested / prefetched
//! ```
//!
//! Both consider only the most used of the missing neurons ([`plans::engine::PREFETCH_ONE_IN`]). The engine also prefetches the surest first
//! and stops without time or buffers. So its precision is higher with few reads, and the planner prices the recall that it has time for.

use flashplan::internals::cache::{LayerCache, Place};
use plans::Policy;
use serde::{Deserialize, Serialize};

use super::batch::Stream;
use super::evaluate::EARLY;

/// Measured tokens of each window.
const TOKENS: usize = 128;
/// Share of a layer in the cache. [`PINNED_SHARE`] of it is pinned.
const CACHED_FRACTION: f64 = 0.5;
const PINNED_SHARE: f64 = 0.5;

/// Neurons of a layer and level, over tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prefetched {
    /// Requested, and not in memory.
    pub missing: u64,
    /// Prefetched.
    pub prefetched: u64,
    /// Missing and prefetched.
    pub both: u64,
}

/// The measured tokens of a stream, by row: the first of each window after the early ones.
pub fn tokens(windows: &[usize]) -> Vec<usize> {
    let mut start = 0;
    let of_window = |&tokens: &usize| {
        let first = start + EARLY.min(tokens / 2);
        start += tokens;
        first..start.min(first + TOKENS)
    };
    windows.iter().flat_map(of_window).collect()
}

/// Rows of the chosen tokens, from each of the concatenated streams.
pub fn rows(stream: &Stream, tokens: &[usize], of_stream: usize, width: usize) -> Vec<f32> {
    let rows = |stream: &'_ [f32]| -> Vec<f32> {
        tokens.iter().flat_map(|token| &stream[token * width..][..width]).copied().collect()
    };
    stream.x.chunks_exact(of_stream.max(1) * width).flat_map(rows).collect()
}

/// Replays tokens, and counts missing and prefetched neurons.
///
/// `requested` and `guessed` have ascending ranks, `experts` each expert's ascending ranks; one in `one_in` is considered. Slices
/// count by number, and all of them are considered.
pub fn replayed(
    requested: &[Vec<u32>],
    guessed: &[Vec<u32>],
    experts: &[Vec<u32>],
    one_in: usize,
) -> Prefetched {
    let neurons: usize = experts.iter().map(Vec::len).sum();
    let cached = (CACHED_FRACTION * neurons as f64) as u32;
    let pinned = (PINNED_SHARE * f64::from(cached)) as u32;
    let slots = cached - pinned;
    let mut expert_of = vec![0; neurons];
    for (expert, ranks) in experts.iter().enumerate() {
        ranks.iter().for_each(|&rank| expert_of[rank as usize] = expert);
    }
    // a warm cache
    let mut cache = LayerCache::new(Policy::Lru, neurons as u32, pinned, slots);
    (pinned..cached).rev().for_each(|rank| {
        cache.insert(rank, 0);
    });
    let (mut sum, mut places) = (Prefetched::default(), Vec::new());
    for ((requested, guessed), stamp) in requested.iter().zip(guessed).zip(1..) {
        let mut ends: Vec<Option<u32>> = vec![None; experts.len()];
        let mut prefetched = guessed.clone();
        prefetched.retain(|&rank| {
            let expert = expert_of[rank as usize];
            let end = ends[expert].get_or_insert_with(|| considered(&cache, &experts[expert], one_in));
            rank < *end && cache.is_missing(rank)
        });
        places.resize(requested.len(), Place::Missing);
        cache.look_up(requested, stamp, &mut places);
        let missing: Vec<u32> = (requested.iter().zip(&places))
            .filter(|(_, place)| **place == Place::Missing)
            .map(|(&rank, _)| rank)
            .collect();
        sum.missing += missing.len() as u64;
        sum.prefetched += prefetched.len() as u64;
        sum.both += missing.iter().filter(|rank| prefetched.binary_search(rank).is_ok()).count() as u64;
        missing.into_iter().for_each(|rank| {
            cache.insert(rank, stamp);
        });
    }
    sum
}

/// The first rank of an expert that is not considered, because enough neurons before it are missing.
fn considered(cache: &LayerCache, ranks: &[u32], one_in: usize) -> u32 {
    let missing = ranks.iter().filter(|&&rank| cache.is_missing(rank));
    missing.copied().nth(ranks.len() / one_in).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use plans::engine::PREFETCH_ONE_IN;

    use super::*;

    #[test]
    fn tokens_are_the_first_of_each_window_but_for_the_early_ones() {
        let found = tokens(&[200, 6, 40]);
        let expected: Vec<usize> = (16..144).chain(203..206).chain(222..246).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_cached_counts_for_nothing_and_what_is_guessed_once_too_much_lowers_precision() {
        // 6 of 24 neurons are pinned, 6 to 11 are in slots; the first 8 of the 12 missing ones are considered
        let experts = [(0..24).collect::<Vec<u32>>()];
        let of = |requested: &[u32], guessed: &[u32]| {
            let Prefetched { missing, prefetched, both } =
                replayed(&[requested.to_vec()], &[guessed.to_vec()], &experts, PREFETCH_ONE_IN);
            [missing, prefetched, both]
        };
        assert_eq!(of(&[0, 7, 11], &[0, 7, 11]), [0, 0, 0], "all in memory");
        assert_eq!(of(&[0, 12, 13, 19], &[0, 12, 13, 19]), [3, 3, 3], "all found");
        assert_eq!(of(&[12, 20, 23], &[12, 20, 23]), [3, 1, 1], "too rare to be considered");
        assert_eq!(of(&[12, 13], &[13, 14, 15]), [2, 3, 1], "half found, a third right");
        assert_eq!(of(&[], &[12]), [0, 1, 0], "nothing requested");
        // the second token finds the first one's misses in memory
        let twice = replayed(&[vec![12], vec![12]], &[vec![12], vec![12]], &experts, PREFETCH_ONE_IN);
        assert_eq!(twice, Prefetched { missing: 1, prefetched: 1, both: 1 });
    }

    #[test]
    fn each_experts_most_used_are_considered() {
        // two experts in turn: 12 of 24 are missing, 6 of each, and 4 of each are considered
        let experts = [0, 1].map(|expert| (0..12).map(|i| 2 * i + expert).collect::<Vec<u32>>());
        let all: Vec<u32> = (0..24).collect();
        let found =
            |one_in| replayed(std::slice::from_ref(&all), std::slice::from_ref(&all), &experts, one_in);
        assert_eq!(found(PREFETCH_ONE_IN), Prefetched { missing: 12, prefetched: 8, both: 8 });
        assert_eq!(found(1), Prefetched { missing: 12, prefetched: 12, both: 12 });
    }
}
