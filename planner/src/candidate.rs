//! Candidates of the search, and its result.

use crate::curve::div_up;
use crate::space::Configuration;
use crate::split::Found;

/// Plans within such a part of the fastest are as fast, and of the smallest as small.
pub const TIE: i64 = 200;

/// A configuration with what the split makes of it.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The configuration.
    pub config: Configuration,
    /// Best split of the configuration's memory over the layers.
    pub found: Found,
    /// Ticks of a token.
    pub ticks: i64,
    /// Ticks with the configuration's fastest split.
    pub fastest: i64,
    /// Bytes of the regions, without page tables.
    pub regions: i64,
}

/// Result of the search for the fastest plan.
#[derive(Debug, Clone)]
pub struct Fastest {
    /// The fastest plan, or one that is as fast.
    pub best: Candidate,
    /// Ticks of the fastest plan: plans within a tie of it are as fast.
    pub standard: i64,
    /// Ticks that no plan can be below.
    pub least: i64,
    /// Configurations that may be as fast, with their bounds: the nearest at least.
    pub near: Vec<(i64, Configuration)>,
    /// Configurations that were priced layer by layer.
    pub priced: usize,
}

/// The most ticks that are as fast, or bytes that are as small.
pub fn tied(least: i64) -> i64 {
    least + div_up(least, TIE)
}
