//! The time of a token by stage, from a clock that is read between the stages of a layer, and the bytes that a token
//! must take through memory, however fast it is.

use std::time::{Duration, Instant};

/// A stage of a token, as one thread after another lives through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Norms, projections, keys and values, attention's sums.
    Attention,
    /// Router and predictor of the layer, and the look-up of who is in memory.
    Select,
    /// Predictor of the next layer, and starting its prefetch reads.
    LookAhead,
    /// Gate and up of neurons in memory.
    GateUp,
    /// Gate and up of neurons that had to be read, and the wait for them.
    Demand,
    /// Down.
    Down,
    /// Copying what was read into the cache.
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

    /// Adds what `other` has, too.
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

/// The clock.
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
    /// Begins a token: what has passed since the last belongs to no stage.
    pub(crate) fn begin(&mut self) {
        self.last = Instant::now();
    }

    /// Adds the time since the last reading to `stage`.
    pub(crate) fn end(&mut self, stage: Stage) {
        let now = Instant::now();
        self.times.0[stage as usize] += now - self.last;
        self.last = now;
    }

    /// Totals since start.
    pub(crate) fn times(&self) -> StageTimes {
        self.times
    }
}

/// Bytes that tokens take through memory at least: each once a token, copies, activations and the look-ahead left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Attention's matrices, norms, routers and the head: equal for every token.
    pub weights: u64,
    /// Predictors, or gate rows, by which neurons were selected.
    pub selection: u64,
    /// Keys and values of the positions so far.
    pub kv: u64,
    /// Rows of neurons: gate of those requested, unless selection has read it, up where it fires, down where it is active.
    pub rows: u64,
}

impl Traffic {
    /// Every number of both.
    pub(crate) fn with(&self, other: &Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            weights: of(self.weights, other.weights),
            selection: of(self.selection, other.selection),
            kv: of(self.kv, other.kv),
            rows: of(self.rows, other.rows),
        }
    }

    /// Bytes that are read in order; rows of neurons are read here and there.
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
