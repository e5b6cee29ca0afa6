//! Where a token's time goes: a clock that is read between the stages of a layer. And what it must take through memory,
//! however fast.

use std::time::{Duration, Instant};

/// A stage of a token, as one thread after another lives through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Norms, projections, keys and values, attention's sums.
    Attention,
    /// Router and predictor of the layer, and the look-up of who is in memory.
    Naming,
    /// The same of the layer after it, to read ahead.
    Foretelling,
    /// Gate and up of neurons in memory.
    Values,
    /// Gate and up of neurons that had to be read, and the wait for them.
    Landing,
    /// Down.
    Sums,
    /// Copying what was read into the cache.
    Admission,
    /// The last norm and the logits.
    Head,
}

impl Stage {
    /// In the order of a layer.
    pub const ALL: [Self; 8] = [
        Self::Attention,
        Self::Naming,
        Self::Foretelling,
        Self::Values,
        Self::Landing,
        Self::Sums,
        Self::Admission,
        Self::Head,
    ];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Naming => "naming",
            Self::Foretelling => "foretelling",
            Self::Values => "values",
            Self::Landing => "landing",
            Self::Sums => "sums",
            Self::Admission => "admission",
            Self::Head => "head",
        }
    }
}

/// Time by stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times([Duration; Stage::ALL.len()]);

impl Times {
    /// Of one stage.
    pub fn of(&self, stage: Stage) -> Duration {
        self.0[stage as usize]
    }

    /// Adds what `other` has, too.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(time, other)| *time += other);
    }

    /// What has passed since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|stage| self.0[stage].saturating_sub(earlier.0[stage])))
    }
}

/// The clock.
#[derive(Debug, Clone, Copy)]
pub struct Account {
    last: Instant,
    times: Times,
}

impl Default for Account {
    fn default() -> Self {
        Self { last: Instant::now(), times: Times::default() }
    }
}

impl Account {
    /// Begins a token: what has passed since the last belongs to no stage.
    pub fn begin(&mut self) {
        self.last = Instant::now();
    }

    /// What has passed since the last reading belongs to `stage`.
    pub fn end(&mut self, stage: Stage) {
        let now = Instant::now();
        self.times.0[stage as usize] += now - self.last;
        self.last = now;
    }

    /// Totals since start.
    pub fn times(&self) -> Times {
        self.times
    }
}

/// Bytes that tokens take through memory at least: each once a token, copies, activations and foretelling left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Attention's matrices, norms, routers and the head: the same for every token.
    pub weights: u64,
    /// Predictors, or gate rows, by which neurons were named.
    pub naming: u64,
    /// Keys and values of the positions so far.
    pub kv: u64,
    /// Rows of neurons: gate of those asked for, unless naming has read it, up where it fires, down where it is active.
    pub rows: u64,
}

impl Traffic {
    /// What is read in order; rows are read one here and one there.
    pub fn in_order(&self) -> u64 {
        self.weights + self.naming + self.kv
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_belongs_to_the_stage_that_ended() {
        let mut account = Account::default();
        account.begin();
        std::thread::sleep(Duration::from_millis(2));
        account.end(Stage::Sums);
        let before = account.times();
        account.end(Stage::Head);
        let since = account.times().since(&before);
        assert!(before.of(Stage::Sums) >= Duration::from_millis(2));
        assert_eq!((since.of(Stage::Sums), before.of(Stage::Head)), (Duration::ZERO, Duration::ZERO));
        assert_eq!(Stage::ALL.map(|stage| stage as usize), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
