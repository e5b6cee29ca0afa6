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
mod tests {
    use super::*;
    use plans::device::OwnMemory;
    use proptest::prelude::*;

    /// A device of which nothing matters but its units.
    fn device(rates: UnitRates) -> Device {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../plans/oneplus-12/turbosparse-mixtral-47b/device.toml");
        let mut device = plans::file::read::<Device>(std::path::Path::new(path)).expect("a device").value;
        device.units = vec![
            plans::device::Unit::cpu(),
            plans::device::Unit { name: "npu".to_owned(), rates: Some(rates) },
        ];
        device
    }

    fn rates(flops: f64, stream: f64, dispatch: f64, own: Option<u64>) -> UnitRates {
        UnitRates {
            adapter: None,
            process_bytes: 0,
            formats: vec!["Q4_0".to_owned()],
            tokens: vec![1, 64],
            flops_per_second: vec![flops, 8.0 * flops],
            stream_bytes_per_second: stream,
            shared_stream_bytes_per_second: own.is_none().then_some(1.2 * stream),
            dispatch_seconds: dispatch,
            own_memory: own.map(|bytes| OwnMemory { bytes, copy_bytes_per_second: stream / 4.0 }),
        }
    }

    const PRODUCTS: Products<'_> = Products {
        format: "Q4_0",
        tokens: 8.0,
        flops: 1e9,
        bytes: 3e7,
        matrices: 4.0,
        vector_bytes: 1e6,
        held_bytes: 6e7,
        copied: true,
        seconds: 2e-3,
    };

    proptest! {
        #[test]
        fn no_other_share_is_sooner(
            flops in 1e10..1e13_f64, stream in 1e9..1e11_f64, dispatch in 1e-6..1e-3_f64,
            own in prop::option::of(1_u64 << 20..1 << 28), tokens in 1.0..200.0_f64,
        ) {
            let rates = rates(flops, stream, dispatch, own);
            let products = Products { tokens, ..PRODUCTS };
            let device = device(rates.clone());
            let found = Shared::soonest(&device, &products);
            let seconds = |share: f64| {
                Shared { unit: 1, share, bytes_per_second: rates.shared_stream_bytes_per_second.unwrap_or(f64::INFINITY) }
                    .seconds(&rates, &products)
            };
            let held = own.map_or(1.0, |bytes| bytes as f64 / products.held_bytes);
            let best = (0..=64).map(|k| f64::from(k) / 64.0).filter(|&s| s <= held).map(seconds).fold(f64::INFINITY, f64::min);
            // the balance is rounded down to a whole part
            let mine = found.seconds(&rates, &products);
            prop_assert!(mine <= best + products.seconds / PARTS, "{found:?}: {mine}, {best}");
            prop_assert!(mine <= products.seconds);
            let shares = found.shares(&device);
            prop_assert_eq!(shares.iter().map(|share| share.share_fraction).sum::<f64>(), 1.0);
        }
    }

    #[test]
    fn what_is_slow_to_hand_over_too_large_or_of_another_format_is_left_to_the_cpu() {
        let alone = |rates, products: &Products<'_>| Shared::soonest(&device(rates), products) == Shared::CPU;
        assert!(!alone(rates(1e12, 5e10, 1e-5, None), &PRODUCTS));
        assert!(alone(rates(1e12, 5e10, 1e-2, None), &PRODUCTS), "handing over takes longer than all of it");
        assert!(alone(rates(1e12, 5e10, 1e-5, Some(1 << 16)), &PRODUCTS), "it holds nothing of a layer");
        assert!(alone(rates(1e12, 5e10, 1e-5, None), &Products { format: "Q6_K", ..PRODUCTS }));
        let rates = rates(1e12, 5e10, 1e-5, None);
        assert_eq!([1.0, 64.0, 999.0].map(|tokens| flops_per_second(&rates, tokens)), [1e12, 8e12, 8e12]);
        let between = flops_per_second(&rates, 8.0);
        assert!(
            (between / (8_f64.sqrt() * 1e12) - 1.0).abs() < 1e-9,
            "half of the way in logarithms: {between}"
        );
    }
}
