//! Units beside the CPU: what of a stage's dense products they take.
//!
//! A matrix is shared row by row. The shares are those with which both are done at the same time, a closed form; memory that is
//! shared is the third bound. One unit takes part in a stage, the one with which it is shortest, and none where handing over
//! takes longer than it saves.

use plans::device::{Device, UnitRates};
use plans::plan::UnitShare;
use plans::terms::Work;

/// Parts into which a stage's products may be divided.
const PARTS: f64 = 64.0;

/// How the dense products of a stage are shared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shared {
    /// Which of the device's units takes a part; 0, the CPU, where none does.
    unit: usize,
    /// The part that it takes.
    share: f64,
    /// Bytes/s of weights that both move together; infinite where each has memory of its own.
    bytes_per_second: f64,
}

/// Dense products as the CPU alone would do them.
#[derive(Debug, Clone, Copy)]
pub struct Products<'a> {
    /// How the weights are stored.
    pub format: &'a str,
    /// Tokens that meet the weights together.
    pub tokens: f64,
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes of weights.
    pub bytes: f64,
    /// Number of matrices.
    pub matrices: f64,
    /// Bytes of vectors in and out.
    pub vector_bytes: f64,
    /// All weights of the stage, which a unit with memory of its own must hold its part of.
    pub held_bytes: f64,
    /// Whether the weights are others each time, which a unit with memory of its own must be given first.
    pub copied: bool,
    /// Seconds of the CPU alone.
    pub seconds: f64,
}

impl Shared {
    /// The CPU alone.
    pub const CPU: Self = Self { unit: 0, share: 0.0, bytes_per_second: f64::INFINITY };

    /// The shares with which these products are done soonest.
    pub fn soonest(device: &Device, products: &Products<'_>) -> Self {
        let mut best = (products.seconds, Self::CPU);
        for (unit, rates) in device.units.iter().enumerate() {
            // one that the engine computes on is decided apart: `gpu`
            let Some(rates) = rates.rates.as_ref().filter(|rates| rates.adapter.is_none()) else { continue };
            let shared = Self::with(unit, rates, products);
            let seconds = shared.seconds(rates, products);
            if seconds < best.0 {
                best = (seconds, shared);
            }
        }
        best.1
    }

    /// With this unit: `(1 - s) t_cpu = s t_unit + t_dispatch`, rounded down to whole parts.
    fn with(unit: usize, rates: &UnitRates, p: &Products<'_>) -> Self {
        if !rates.formats.iter().any(|format| format == p.format) {
            return Self::CPU;
        }
        let balanced = (p.seconds - dispatched(rates, p)) / (p.seconds + whole(rates, p));
        let most = rates.own_memory.map_or(1.0, |memory| memory.bytes as f64 / p.held_bytes.max(1.0));
        let share = (balanced.min(most).max(0.0) * PARTS).floor() / PARTS;
        if share == 0.0 {
            return Self::CPU;
        }
        let bytes_per_second = rates.shared_stream_bytes_per_second.unwrap_or(f64::INFINITY);
        Self { unit, share, bytes_per_second }
    }

    /// Until both are done.
    fn seconds(&self, rates: &UnitRates, p: &Products<'_>) -> f64 {
        if self.share == 0.0 {
            return p.seconds;
        }
        let of_unit = self.share * whole(rates, p) + dispatched(rates, p);
        ((1.0 - self.share) * p.seconds).max(of_unit).max(p.bytes / self.bytes_per_second)
    }

    /// The CPU's part of dense work that moves so many bytes; memory moves for as long as both of them need.
    pub fn left(&self, work: Work, bytes: f64) -> Work {
        let left = 1.0 - self.share;
        Work {
            compute_seconds: left * work.compute_seconds,
            stream_seconds: self.memory_seconds(work.stream_seconds, bytes),
            ..work
        }
    }

    /// Of seconds in which the CPU would compute alone, those that are left to it.
    pub fn compute_seconds(&self, alone: f64) -> f64 {
        (1.0 - self.share) * alone
    }

    /// Of seconds in which the CPU would move so many bytes alone, those in which both do.
    pub fn memory_seconds(&self, alone: f64, bytes: f64) -> f64 {
        ((1.0 - self.share) * alone).max(bytes / self.bytes_per_second)
    }

    /// Bytes/s of weights in order at best, where the CPU alone moves so many.
    pub fn stream_most(&self, alone: f64) -> f64 {
        if self.share > 0.0 && self.bytes_per_second.is_finite() {
            self.bytes_per_second.max(alone)
        } else {
            alone
        }
    }

    /// Shares of the CPU and of the unit beside it, as a plan has them.
    pub fn shares(&self, device: &Device) -> Vec<UnitShare> {
        let share =
            |unit: usize, share_fraction| UnitShare { unit: device.units[unit].name.clone(), share_fraction };
        let mut shares = vec![share(0, 1.0 - self.share)];
        if self.share > 0.0 {
            shares.push(share(self.unit, self.share));
        }
        shares
    }
}

/// Seconds of a unit for all of the products.
fn whole(rates: &UnitRates, p: &Products<'_>) -> f64 {
    let copied = rates.own_memory.filter(|_| p.copied).map_or(0.0, |m| p.bytes / m.copy_bytes_per_second);
    (p.flops / flops_per_second(rates, p.tokens)).max(p.bytes / rates.stream_bytes_per_second) + copied
}

/// Seconds of handing over, and of getting results back.
fn dispatched(rates: &UnitRates, p: &Products<'_>) -> f64 {
    let copied = rates.own_memory.map_or(0.0, |memory| p.vector_bytes / memory.copy_bytes_per_second);
    p.matrices * rates.dispatch_seconds + copied
}

/// FLOP/s with so many tokens together: between two measured numbers on a straight line in logarithms, beyond them as at the
/// nearest.
pub(super) fn flops_per_second(rates: &UnitRates, tokens: f64) -> f64 {
    let (at, flops) = (&rates.tokens, &rates.flops_per_second);
    let next = at.partition_point(|&measured| f64::from(measured) <= tokens);
    if next == 0 || next == at.len() {
        return flops[next.saturating_sub(1)];
    }
    let [below, above] = [at[next - 1], at[next]].map(f64::from);
    flops[next - 1] * (flops[next] / flops[next - 1]).powf((tokens / below).ln() / (above / below).ln())
}

#[cfg(test)]
mod tests;
