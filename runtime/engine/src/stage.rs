//! Time of a token by stage, and a lower bound on the bytes that it moves through memory. A clock is read
//! between the stages of a layer.

use std::time::{Duration, Instant};

/// A stage of a token, in the order of execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Norms, projections, keys and values, attention.
    Attention,
    /// The layer's router and predictor, and the cache look-up.
    Select,
    /// The next layer's predictor, and the start of prefetch reads.
    LookAhead,
    /// Gate and up of neurons in memory.
    GateUp,
    /// Gate and up of neurons that were read, and the wait for them.
    Demand,
    /// Down.
    Down,
    /// Copies of read neurons into the cache.
    Insert,
    /// The last norm and the logits.
    Head,
}

impl Stage {
    /// All stages in the order of a layer.
    pub const ALL: [Self; 8] = [
        Self::Attention,
        Self::Select,
        Self::LookAhead,
        Self::GateUp,
        Self::Demand,
        Self::Down,
        Self::Insert,
        Self::Head,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Select => "select",
            Self::LookAhead => "look_ahead",
            Self::GateUp => "gate_up",
            Self::Demand => "demand",
            Self::Down => "down",
            Self::Insert => "insert",
            Self::Head => "head",
        }
    }
}

/// Time by stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageTimes([Duration; Stage::ALL.len()]);

impl StageTimes {
    /// The time of one stage.
    pub fn of(&self, stage: Stage) -> Duration {
        self.0[stage as usize]
    }

    /// Adds the times of `other`.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(time, other)| *time += other);
    }

    /// The time since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|stage| self.0[stage].saturating_sub(earlier.0[stage])))
    }
}

impl From<[Duration; Stage::ALL.len()]> for StageTimes {
    /// Times in the order of [`Stage::ALL`].
    fn from(times: [Duration; Stage::ALL.len()]) -> Self {
        Self(times)
    }
}

/// A clock that attributes time to stages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StageClock {
    last: Instant,
    times: StageTimes,
}

impl Default for StageClock {
    fn default() -> Self {
        Self { last: Instant::now(), times: StageTimes::default() }
    }
}

impl StageClock {
    /// Starts a token; the time since the last one belongs to no stage.
    pub(crate) fn begin(&mut self) {
        self.last = Instant::now();
    }

    /// Adds the time since the last reading to `stage`.
    pub(crate) fn end(&mut self, stage: Stage) {
        let now = Instant::now();
        self.times.0[stage as usize] += now - self.last;
        self.last = now;
    }

    /// Times since start.
    pub(crate) fn times(&self) -> StageTimes {
        self.times
    }
}

/// A lower bound on the bytes that tokens move through memory: each byte once a token, without copies,
/// activations and look-ahead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Attention's matrices, norms, routers and the head; equal for every token.
    pub weights: u64,
    /// Predictors or gate rows that select neurons.
    pub selection: u64,
    /// Keys and values of the positions so far.
    pub kv: u64,
    /// Rows of neurons: gates that selection did not read, ups of firing gates, downs of active neurons.
    pub rows: u64,
}

impl Traffic {
    /// Combines every number with the other's.
    pub(crate) fn with(&self, other: &Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            weights: of(self.weights, other.weights),
            selection: of(self.selection, other.selection),
            kv: of(self.kv, other.kv),
            rows: of(self.rows, other.rows),
        }
    }

    /// Bytes that are read sequentially, all but the rows of neurons.
    pub fn in_order(&self) -> u64 {
        self.weights + self.selection + self.kv
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_belongs_to_the_stage_that_ended() {
        let mut account = StageClock::default();
        account.begin();
        std::thread::sleep(Duration::from_millis(2));
        account.end(Stage::Down);
        let before = account.times();
        account.end(Stage::Head);
        let since = account.times().since(&before);
        assert!(before.of(Stage::Down) >= Duration::from_millis(2));
        assert_eq!((since.of(Stage::Down), before.of(Stage::Head)), (Duration::ZERO, Duration::ZERO));
        assert_eq!(Stage::ALL.map(|stage| stage as usize), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
