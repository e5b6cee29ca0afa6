//! What a set of cores and a way of reading flash give, from the measured tables of `device.toml`.
//!
//! Nothing here is fitted: rates are looked up, and between measured points they are interpolated.

use plans::device::{Device, KernelSpeed, LONG_ROW_VALUES, ReadSpeed, SHORT_ROW_VALUES};
use plans::engine::{CHUNK_TOKENS_ASSUMED, PROMPT_TOKENS};
use plans::terms::Factors;
use plans::{Backend, KvFormat};

use crate::units::Shared;

/// Rates that a set of compute cores sustains together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Threads, one a core.
    pub threads: usize,
    /// Equation 9, `F`: FLOP/s of the dot product with the weights in cache.
    pub flops: f64,
    /// FLOP/s of a prompt's feed-forward block, many vectors at once: where no value is zero, and where one in eight is not.
    pub prompt_flops: (f64, f64),
    /// Tokens that are computed in the time that a chunk of a prompt takes beside its tokens.
    pub chunk_tokens: f64,
    /// A dense matrix-vector product from memory.
    pub dense: RowRate,
    /// A dense matrix-vector product from memory by one thread, for the serial steps.
    pub dense_serial: RowRate,
    /// Gathered rows of gate and up from memory.
    pub sparse: RowRate,
    /// Gathered rows of down from memory.
    pub sparse_down: RowRate,
    /// Gathered rows of down from memory, by one thread.
    pub sparse_down_serial: RowRate,
    /// Seconds that rows of [`LONG_ROW_VALUES`] added to a sum together take beyond their bytes: by all threads, and by one.
    pub sparse_down_group: (f64, f64),
    /// Whether gate and up were measured apart from down, as `run` measures them again.
    pub sparse_apart: bool,
    /// A product with a matrix of down's format from memory: pieces of down as the model's file has them.
    pub dense_down: RowRate,
    /// FLOP/s of a token's attention.
    pub attention: f64,
    /// Bytes/s of reading memory in order.
    pub stream: f64,
    /// Bytes/s of reading memory in order, by one thread.
    pub stream_serial: f64,
    /// Bytes/s of reading memory in rows at random places.
    pub gather: f64,
    /// Seconds that a step of all threads takes beyond its bytes.
    pub dispatch: f64,
    /// Share of a token's dense matrices that a unit beside the CPU takes.
    pub shared: Shared,
}

/// Rate of a kernel over weights in memory, by the length of their rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowRate {
    /// Bytes/s of rows of [`LONG_ROW_VALUES`] and more.
    bytes_per_second: f64,
    /// How many times as long a byte of a row of [`SHORT_ROW_VALUES`] takes.
    short: f64,
}

impl RowRate {
    /// Of what was measured: bytes/s of long rows, and seconds of a short one of so many bytes.
    fn new(bytes_per_second: f64, short_seconds: Option<f64>, short_bytes: f64) -> Self {
        let short = short_seconds.map_or(1.0, |seconds| seconds * bytes_per_second / short_bytes);
        Self { bytes_per_second, short: short.max(1.0) }
    }

    /// Bytes/s of long rows.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes_per_second
    }

    /// Seconds of so many bytes in rows of so many values: a straight line through both lengths, which is a time for each row
    /// and one for each byte.
    pub fn seconds(&self, bytes: f64, values: f64) -> f64 {
        let [short, long] = [SHORT_ROW_VALUES, LONG_ROW_VALUES].map(f64::from);
        let shorter = (1.0 / values.clamp(1.0, long) - 1.0 / long) / (1.0 / short - 1.0 / long);
        bytes / self.bytes_per_second * (1.0 + (self.short - 1.0) * shorter)
    }
}

/// The kernel of `format` at `instruction_set`, or the slowest that may stand for it.
///
/// The second value is false for a substitute. Slowest: a missing measurement never makes a plan look better.
pub fn kernel<'a>(device: &'a Device, format: &str, instruction_set: &str) -> (&'a KernelSpeed, bool) {
    let exact = |k: &&KernelSpeed| k.format == format && k.instruction_set == instruction_set;
    if let Some(found) = device.kernels.iter().find(exact) {
        return (found, true);
    }
    let slowness = |k: &&KernelSpeed| {
        let strange = k.instruction_set != instruction_set;
        (strange, ordered(k.sparse_bytes_per_second.last().copied().unwrap_or(0.0)))
    };
    (device.kernels.iter().min_by_key(slowness).unwrap_or(&device.kernels[0]), false)
}

/// A positive rate as an integer that sorts alike.
fn ordered(rate: f64) -> u64 {
    rate.max(0.0).to_bits()
}

/// Formats of what kernels meet, and bytes of a value in it.
#[derive(Debug, Clone, Copy)]
pub struct Formats<'a> {
    /// Of weights.
    pub weights: (&'a str, f64),
    /// Of down rows.
    pub down: (&'a str, f64),
    /// Of keys and values.
    pub kv: KvFormat,
}

/// The rates of these cores for weights, down rows, keys and values in such formats.
///
/// The tables hold the `n` fastest cores. Another set of `n` is scaled by what its cores are worth
/// (equation 9, *reconstructed*). Differs: work is split evenly, so the slowest core sets the pace
/// and `F` is `n * min f_k`, not the sum.
pub fn rates(device: &Device, cores: &[u32], formats: Formats<'_>, isa: &str) -> Rates {
    let n = cores.len().max(1);
    let fastest = &device.core_ids()[..n];
    let scale = slowest(device, cores) / slowest(device, fastest);
    let one = slowest(device, &cores[..1]) / slowest(device, &fastest[..1]);
    let rate = |rates: &Option<Vec<f64>>| rates.as_ref().map(|rates| rates[n - 1] * scale);
    let [weights, down] = [formats.weights.0, formats.down.0].map(|format| kernel(device, format, isa).0);
    let rows = |long: &[f64], short: &Option<Vec<f64>>, value_bytes: f64, (n, scale): (usize, f64)| {
        let seconds = short.as_ref().map(|seconds| seconds[n - 1] / scale);
        RowRate::new(long[n - 1] * scale, seconds, value_bytes * f64::from(SHORT_ROW_VALUES))
    };
    let product = |kernel: &KernelSpeed, value_bytes, threads| {
        rows(&kernel.dense_bytes_per_second, &kernel.short_dense_row_seconds, value_bytes, threads)
    };
    let dense = |threads| product(weights, formats.weights.1, threads);
    let long = down.sparse_down_bytes_per_second.as_ref().unwrap_or(&down.sparse_bytes_per_second);
    let added = |threads| rows(long, &down.short_add_row_seconds, formats.down.1, threads);
    let group = |(n, scale): (usize, f64)| {
        down.sparse_down_group_seconds.as_ref().map_or(0.0, |seconds| seconds[n - 1] / scale)
    };
    let (all, serial) = ((n, scale), (1, one));
    let prompt = rate(&weights.prompt_flops_per_second).unwrap_or(weights.flops_per_second[n - 1] * scale);
    Rates {
        threads: n,
        flops: weights.flops_per_second[n - 1] * scale,
        chunk_tokens: chunk_tokens(weights, n - 1),
        prompt_flops: (prompt, rate(&weights.prompt_sparse_flops_per_second).unwrap_or(prompt)),
        dense: dense(all),
        dense_serial: dense(serial),
        sparse: rows(
            &weights.sparse_bytes_per_second,
            &weights.short_dot_row_seconds,
            formats.weights.1,
            all,
        ),
        sparse_down: added(all),
        sparse_down_serial: added(serial),
        sparse_down_group: (group(all), group(serial)),
        sparse_apart: weights.sparse_down_bytes_per_second.is_some(),
        dense_down: product(down, formats.down.1, all),
        attention: attention(device, formats.kv, isa, n).unwrap_or(weights.flops_per_second[n - 1]) * scale,
        stream: device.memory.stream_bytes_per_second[n - 1] * scale,
        stream_serial: device.memory.stream_bytes_per_second[0] * one,
        gather: device.memory.gather_bytes_per_second[n - 1] * scale,
        dispatch: weights.dispatch_seconds[n - 1] / scale,
        shared: Shared::CPU,
    }
}

/// FLOP/s of a token's attention by the `n` fastest cores. Where it was not measured in a format of blocks it is that in `F16`,
/// slowed as the dot product in cache is.
fn attention(device: &Device, kv: KvFormat, isa: &str, n: usize) -> Option<f64> {
    let of = |format: KvFormat| kernel(device, format.name(), isa);
    let at = |rates: &Option<Vec<f64>>| rates.as_ref().map(|rates| rates[n - 1]);
    let (own, exact) = of(kv);
    if !kv.has_blocks() || exact && own.attention_flops_per_second.is_some() {
        return at(&own.attention_flops_per_second);
    }
    let (half, _) = of(KvFormat::F16);
    let slower = own.flops_per_second[n - 1] / half.flops_per_second[n - 1];
    at(&half.attention_flops_per_second).map(|rate| rate * slower.min(1.0))
}

/// Whether attention over keys and values in a format was measured.
pub fn knows_attention(device: &Device, kv: KvFormat, isa: &str) -> bool {
    let (kernel, exact) = kernel(device, kv.name(), isa);
    exact && kernel.attention_flops_per_second.is_some()
}

/// Tokens that are computed in the time that a chunk takes beside its tokens, from what chunks of two lengths take: on a
/// straight line through both, seconds with no token over seconds of one.
fn chunk_tokens(kernel: &KernelSpeed, at: usize) -> f64 {
    /// A chunk as dear as so many tokens is no chunk's cost: the shorter one was disturbed.
    const MOST: f64 = 1024.0;
    let (Some(many), Some(few)) = (&kernel.prompt_flops_per_second, &kernel.prompt_few_flops_per_second)
    else {
        return CHUNK_TOKENS_ASSUMED;
    };
    let [long, short] = PROMPT_TOKENS.map(|tokens| tokens as f64);
    let (of_long, of_short) = (long / many[at], short / few[at]);
    let token = (of_long - of_short) / (long - short);
    let chunk = of_short - short * token;
    if token <= 0.0 { MOST } else { (chunk / token).clamp(0.0, MOST) }
}

/// The device as it would have been measured if it were so many times as fast.
pub fn at(device: &Device, f: &Factors) -> Device {
    let mut device = device.clone();
    let scale = |rates: &mut Vec<f64>, times: f64| rates.iter_mut().for_each(|rate| *rate *= times);
    for kernel in &mut device.kernels {
        scale(&mut kernel.flops_per_second, f.compute);
        scale(&mut kernel.dense_bytes_per_second, f.stream);
        scale(&mut kernel.sparse_bytes_per_second, f.gather);
        kernel.sparse_down_bytes_per_second.iter_mut().for_each(|rates| scale(rates, f.gather));
        for rates in [
            &mut kernel.prompt_flops_per_second,
            &mut kernel.prompt_few_flops_per_second,
            &mut kernel.prompt_sparse_flops_per_second,
            &mut kernel.attention_flops_per_second,
        ] {
            rates.iter_mut().for_each(|rates| scale(rates, f.compute));
        }
        for (seconds, times) in [
            (&mut kernel.sparse_down_group_seconds, f.gather),
            (&mut kernel.short_dense_row_seconds, f.stream),
            (&mut kernel.short_dot_row_seconds, f.gather),
            (&mut kernel.short_add_row_seconds, f.gather),
        ] {
            seconds.iter_mut().for_each(|seconds| scale(seconds, 1.0 / times));
        }
        scale(&mut kernel.dispatch_seconds, 1.0 / f.compute);
    }
    scale(&mut device.memory.stream_bytes_per_second, f.stream);
    scale(&mut device.memory.gather_bytes_per_second, f.gather);
    device.memory.fresh_bytes_per_second.iter_mut().for_each(|rate| *rate *= f.stream);
    for read in &mut device.storage.reads {
        read.reads_per_second *= if read.pattern == "sequential" { f.ordered_reads } else { f.random_reads };
    }
    device
}

/// `f_k` of the slowest class among these cores.
fn slowest(device: &Device, cores: &[u32]) -> f64 {
    let of = |core: &u32| {
        device.cores.iter().find(|class| class.ids.contains(core)).map_or(f64::MAX, |c| c.flops_per_second)
    };
    cores.iter().map(of).fold(f64::MAX, f64::min)
}

/// Measured reads of one kind: for each depth, rising, reads a second over block sizes, all in logarithms.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadCurves(Vec<(f64, Vec<(f64, f64)>)>);

impl ReadCurves {
    /// Depths up to `depth`, at the nearest measured span at or above `span`; `None` where nothing like it was measured.
    pub fn new(
        device: &Device,
        backend: Backend,
        direct: bool,
        pattern: &str,
        depth: u32,
        span: u64,
    ) -> Option<Self> {
        let alike = |r: &&ReadSpeed| r.backend == backend && r.direct == direct && r.pattern == pattern;
        let points: Vec<&ReadSpeed> = device.storage.reads.iter().filter(alike).collect();
        let all = || points.iter().map(|r| r.depth);
        let most = all().filter(|&d| d <= depth).max().or_else(|| all().min())?;
        let mut depths: Vec<u32> = all().filter(|&d| d <= most).collect();
        depths.sort_unstable();
        depths.dedup();
        let curve = |&depth: &u32| {
            let points = || points.iter().filter(move |r| r.depth == depth);
            let spans = || points().map(|r| r.span_bytes);
            let span = spans().filter(|&s| s >= span).min().or_else(|| spans().max());
            let here = points().filter(|r| Some(r.span_bytes) == span);
            let mut curve: Vec<_> = here.map(|r| (r.block_bytes as f64, r.reads_per_second)).collect();
            curve.sort_by(|a, b| a.0.total_cmp(&b.0));
            (f64::from(depth), curve)
        };
        Some(Self::of(depths.iter().map(curve)))
    }

    /// Curves through a single measured point.
    pub fn of_one(read: &ReadSpeed) -> Self {
        Self::of(
            [(f64::from(read.depth), vec![(read.block_bytes as f64, read.reads_per_second)])].into_iter(),
        )
    }

    /// Reads a second over block sizes, for each depth.
    fn of(depths: impl Iterator<Item = (f64, Vec<(f64, f64)>)>) -> Self {
        let logarithms = |(depth, curve): (f64, Vec<(f64, f64)>)| {
            (depth.ln(), curve.into_iter().map(|(block, rate)| (block.ln(), rate.ln())).collect())
        };
        Self(depths.map(logarithms).collect())
    }

    /// Reads a second of `block` bytes with so many in flight.
    ///
    /// Between two measured blocks, and between two measured depths, the curve is a straight line in logarithms;
    /// below the smallest block a read costs what the smallest costs, above the largest it costs in proportion.
    pub fn reads_per_second(&self, block: f64, in_flight: f64) -> f64 {
        self.reads_per_second_of(block.ln(), in_flight)
    }

    /// [`Self::reads_per_second`] by the logarithm of a block's bytes.
    pub fn reads_per_second_of(&self, block_ln: f64, in_flight: f64) -> f64 {
        self.at(block_ln, in_flight.ln()).exp()
    }

    /// Logarithm of the reads a second, by the logarithms of a block's bytes and of the number in flight.
    fn at(&self, block: f64, in_flight: f64) -> f64 {
        // a handful of depths, and below of blocks: looked through in order, since plans are priced by millions of these
        let mut i = 1;
        while i < self.0.len() && self.0[i].0 <= in_flight {
            i += 1;
        }
        let (depth, curve) = &self.0[i - 1];
        let rate = on_curve(curve, block);
        match self.0.get(i) {
            Some((next, deeper)) if in_flight > *depth => {
                rate + (in_flight - depth) / (next - depth) * (on_curve(deeper, block) - rate)
            }
            _ => rate,
        }
    }

    /// The faster of two sets of curves everywhere.
    #[must_use]
    pub fn or_faster(&self, other: &Self) -> Self {
        let rising = |values: &mut dyn Iterator<Item = f64>| -> Vec<f64> {
            let mut values: Vec<f64> = values.collect();
            values.sort_by(f64::total_cmp);
            values.dedup();
            values
        };
        let both = || self.0.iter().chain(&other.0);
        let depths = rising(&mut both().map(|(depth, _)| *depth));
        let blocks = rising(&mut both().flat_map(|(_, curve)| curve.iter().map(|(block, _)| *block)));
        let at = |depth, block| self.at(block, depth).max(other.at(block, depth));
        let curve = |&depth: &f64| (depth, blocks.iter().map(|&block| (block, at(depth, block))).collect());
        Self(depths.iter().map(curve).collect())
    }

    /// The most reads a second of `block` bytes with any number in flight up to the deepest.
    pub fn reads_per_second_most(&self, block: f64) -> f64 {
        self.0.iter().map(|(_, curve)| on_curve(curve, block.ln())).fold(f64::NEG_INFINITY, f64::max).exp()
    }

    /// A surface that is nowhere below this one at any smaller depth or any larger block: what it says for the smallest
    /// block and the most reads in flight holds for all others.
    #[must_use]
    pub fn envelope(&self) -> Self {
        let mut blocks: Vec<f64> =
            self.0.iter().flat_map(|(_, curve)| curve.iter().map(|(block, _)| *block)).collect();
        blocks.sort_by(f64::total_cmp);
        blocks.dedup();
        let mut most = vec![f64::NEG_INFINITY; blocks.len()];
        let depth = |(depth, curve): &(f64, Vec<(f64, f64)>)| {
            let mut larger = f64::NEG_INFINITY;
            for (most, &block) in most.iter_mut().zip(&blocks).rev() {
                larger = larger.max(on_curve(curve, block));
                *most = most.max(larger);
            }
            (*depth, blocks.iter().copied().zip(most.iter().copied()).collect())
        };
        Self(self.0.iter().map(depth).collect())
    }
}

/// The value at `x`, on straight lines; all in logarithms, and `curve` rises in x and is not empty.
fn on_curve(curve: &[(f64, f64)], x: f64) -> f64 {
    let (first, last) = (curve[0], curve[curve.len() - 1]);
    if x <= first.0 {
        return first.1;
    }
    if x >= last.0 {
        return last.1 + last.0 - x;
    }
    let mut i = 1;
    while curve[i].0 <= x {
        i += 1;
    }
    let ((x0, y0), (x1, y1)) = (curve[i - 1], curve[i]);
    y0 + (x - x0) / (x1 - x0) * (y1 - y0)
}

/// The depths of random reads that were measured, rising.
pub fn depths(device: &Device, backend: Backend, direct: bool) -> Vec<u32> {
    let mut depths: Vec<u32> = device
        .storage
        .reads
        .iter()
        .filter(|r| r.backend == backend && r.direct == direct && r.pattern == "random")
        .map(|r| r.depth)
        .collect();
    depths.sort_unstable();
    depths.dedup();
    depths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_takes_what_was_measured_at_both_lengths_and_a_line_between() {
        // 2 bytes a value: 8192 bytes at 8 GB/s, and a short row of 512 bytes in a quarter of that time instead of a 16th
        let rate = RowRate::new(8.192e9, Some(0.25e-6), 512.0);
        let row = |values: f64| rate.seconds(2.0 * values, values) * 1e6;
        for (values, seconds) in [(4096.0, 1.0), (256.0, 0.25), (2176.0, 0.625), (8192.0, 2.0), (1.0, 0.2002)]
        {
            assert!((row(values) - seconds).abs() < 1e-4, "{values}: {} instead of {seconds}", row(values));
        }
        let unknown = RowRate::new(8.192e9, None, 512.0);
        assert_eq!(unknown.seconds(512.0, 256.0), 512.0 / 8.192e9);
    }

    #[test]
    fn a_chunk_costs_what_a_line_through_two_lengths_leaves_without_tokens() {
        let kernel = |few: Option<f64>| KernelSpeed {
            format: "Q4_0".to_owned(),
            instruction_set: "scalar".to_owned(),
            flops_per_second: vec![1.0],
            dense_bytes_per_second: vec![1.0],
            sparse_bytes_per_second: vec![1.0],
            sparse_down_bytes_per_second: None,
            sparse_down_group_seconds: None,
            // a token takes a second and a chunk twenty: 128 tokens in 148 seconds, 16 in 36
            prompt_flops_per_second: Some(vec![128.0 / 148.0]),
            prompt_few_flops_per_second: few.map(|few| vec![few]),
            prompt_sparse_flops_per_second: None,
            attention_flops_per_second: None,
            short_dense_row_seconds: None,
            short_dot_row_seconds: None,
            short_add_row_seconds: None,
            dispatch_seconds: vec![1.0],
        };
        assert!((chunk_tokens(&kernel(Some(16.0 / 36.0)), 0) - 20.0).abs() < 1e-9);
        assert_eq!(chunk_tokens(&kernel(None), 0), CHUNK_TOKENS_ASSUMED);
        // few tokens as fast as many: a chunk costs nothing; as long as many: disturbed, and bounded
        assert_eq!(chunk_tokens(&kernel(Some(128.0 / 148.0)), 0), 0.0);
        assert_eq!(chunk_tokens(&kernel(Some(16.0 / 148.0)), 0), 1024.0);
    }

    #[test]
    fn the_faster_of_two_is_neither_below_nor_above_both() {
        let curves = |depths: Vec<(f64, Vec<(f64, f64)>)>| ReadCurves::of(depths.into_iter());
        let shallow = curves(vec![(1.0, vec![(65536.0, 8_000.0), (1048576.0, 1_000.0)])]);
        let deep = curves(vec![
            (1.0, vec![(4096.0, 10_000.0), (65536.0, 7_000.0)]),
            (32.0, vec![(4096.0, 90_000.0), (65536.0, 25_000.0)]),
        ]);
        let both = shallow.or_faster(&deep);
        for (block, in_flight) in
            [(4096.0, 1.0), (65536.0, 1.0), (65536.0, 32.0), (1048576.0, 1.0), (2e6, 64.0)]
        {
            let (a, b) =
                (shallow.reads_per_second(block, in_flight), deep.reads_per_second(block, in_flight));
            let c = both.reads_per_second(block, in_flight);
            assert!((c - a.max(b)).abs() < 1e-6 * c, "{block} {in_flight}: {c} of {a} and {b}");
        }
    }

    #[test]
    fn a_curve_passes_through_its_points_and_is_monotone_between_them() {
        let points = [(4096.0, 60_000.0), (8192.0, 50_000.0), (65536.0, 20_000.0)];
        let curve = ReadCurves::of([(1.0, points.to_vec())].into_iter());
        let at = |block| curve.reads_per_second(block, 1.0);
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        for (x, y) in points {
            assert!(close(at(x), y), "at {x}");
        }
        assert!(at(16384.0) < 50_000.0 && at(16384.0) > 20_000.0);
        assert!(close(at(512.0), 60_000.0));
        assert!(close(at(131_072.0), 10_000.0), "bandwidth is constant beyond");
    }

    #[test]
    fn an_envelope_is_nowhere_below_fewer_reads_in_flight_or_larger_blocks() {
        let noisy = ReadCurves::of(
            [
                (1.0, vec![(4096.0, 9_000.0), (8192.0, 11_000.0), (65536.0, 4_000.0)]),
                (8.0, vec![(4096.0, 30_000.0), (65536.0, 20_000.0)]),
                (32.0, vec![(4096.0, 20_000.0), (65536.0, 25_000.0)]),
            ]
            .into_iter(),
        );
        let envelope = noisy.envelope();
        let (depths, blocks) = ([1.0, 3.0, 8.0, 20.0, 32.0, 64.0], [4096.0, 6000.0, 8192.0, 40_000.0, 1e6]);
        for (i, j) in (0..depths.len()).flat_map(|i| (0..blocks.len()).map(move |j| (i, j))) {
            let most = envelope.reads_per_second(blocks[j], depths[i]) * (1.0 + 1e-12);
            for (a, b) in (0..=i).flat_map(|a| (j..blocks.len()).map(move |b| (a, b))) {
                assert!(noisy.reads_per_second(blocks[b], depths[a]) <= most, "{i} {j} {a} {b}");
            }
        }
    }
}
