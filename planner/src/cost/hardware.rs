//! What a set of cores gives, from the measured tables of `device.toml`.
//!
//! Nothing here is fitted: rates are looked up, and between measured points they are interpolated.

use plans::KvFormat;
use plans::device::{Device, KernelSpeed, LONG_ROW_VALUES, SHORT_ROW_VALUES};
use plans::engine::{CHUNK_TOKENS_ASSUMED, PROMPT_TOKENS};
use plans::terms::Factors;

use crate::cost::units::Shared;

/// Rates that a set of compute cores sustains together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Threads, one a core.
    pub threads: usize,
    /// Speed of all these cores together over the slowest one's: see [`plans::overlap::uneven`].
    pub pace: f64,
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
    /// Bytes/s of comparing what has just been read with its checksum.
    pub check: f64,
    /// Bytes/s of reading memory in rows at random places.
    pub gather: f64,
    /// Seconds that a step of all threads takes beyond its bytes.
    pub dispatch: f64,
    /// Seconds that it takes longer where the threads have gone to sleep, waiting for reads.
    pub wake: f64,
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
/// Equation 9, `F = sum of n_k f_k`, *reconstructed*: threads claim pieces of the work, so the speeds of unlike cores add up.
/// The tables hold the `n` fastest cores; the rates of another set of `n` cores are scaled by the ratio of the sums.
pub fn rates(device: &Device, cores: &[u32], formats: Formats<'_>, isa: &str) -> Rates {
    let n = cores.len().max(1);
    let fastest = &device.core_ids()[..n];
    let scale = speed(device, cores) / speed(device, fastest);
    let one = speed(device, &cores[..1]) / speed(device, &fastest[..1]);
    let [weights, down] = [formats.weights.0, formats.down.0].map(|format| kernel(device, format, isa).0);
    let rate = |rates: &Option<Vec<f64>>| {
        rates.as_ref().map(|rates| of_threads(rates, n, weights.spread_fraction) * scale)
    };
    let rows = |kernel: &KernelSpeed,
                long: &[f64],
                short: &Option<Vec<f64>>,
                value_bytes: f64,
                (n, scale): (usize, f64)| {
        let seconds = short.as_ref().map(|seconds| seconds[n - 1] / scale);
        let long = of_threads(long, n, kernel.spread_fraction) * scale;
        RowRate::new(long, seconds, value_bytes * f64::from(SHORT_ROW_VALUES))
    };
    let product = |kernel: &KernelSpeed, value_bytes, threads| {
        rows(kernel, &kernel.dense_bytes_per_second, &kernel.short_dense_row_seconds, value_bytes, threads)
    };
    let dense = |threads| product(weights, formats.weights.1, threads);
    let long = down.sparse_down_bytes_per_second.as_ref().unwrap_or(&down.sparse_bytes_per_second);
    let added = |threads| rows(down, long, &down.short_add_row_seconds, formats.down.1, threads);
    let group = |(n, scale): (usize, f64)| {
        down.sparse_down_group_seconds.as_ref().map_or(0.0, |seconds| seconds[n - 1] / scale)
    };
    let (all, serial) = ((n, scale), (1, one));
    let flops = of_threads(&weights.flops_per_second, n, weights.spread_fraction) * scale;
    let prompt = rate(&weights.prompt_flops_per_second).unwrap_or(flops);
    let memory = |rates: &[f64]| of_threads(rates, n, device.memory.spread_fraction) * scale;
    let stream = memory(&device.memory.stream_bytes_per_second);
    Rates {
        threads: n,
        pace: pace(device, cores),
        flops,
        chunk_tokens: chunk_tokens(weights, n - 1),
        prompt_flops: (prompt, rate(&weights.prompt_sparse_flops_per_second).unwrap_or(prompt)),
        dense: dense(all),
        dense_serial: dense(serial),
        sparse: rows(
            weights,
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
        attention: attention(device, formats.kv, isa, n).map_or(flops, |attention| attention * scale),
        stream,
        stream_serial: device.memory.stream_bytes_per_second[0] * one,
        check: device.storage.check_bytes_per_second.map_or(stream, |rate| rate * n as f64 * scale),
        gather: memory(&device.memory.gather_bytes_per_second),
        dispatch: weights.dispatch_seconds[n - 1] / scale,
        wake: device.storage.wake_seconds.as_ref().map_or(0.0, |seconds| seconds[n - 1] / scale),
        shared: Shared::CPU,
    }
}

/// The rate of so many threads. Where it is below that of fewer by no more than its windows lay apart, a neighbour was busy, and it
/// is theirs.
fn of_threads(rates: &[f64], threads: usize, spread_fraction: Option<f64>) -> f64 {
    let own = rates[threads - 1];
    let most = rates[..threads].iter().fold(own, |most, &rate| most.max(rate));
    if own >= most * (1.0 - spread_fraction.unwrap_or(0.0)) { most } else { own }
}

/// FLOP/s of a token's attention by the `n` fastest cores. Where it was not measured in a format of blocks it is that in `F16`,
/// slowed as the dot product in cache is.
fn attention(device: &Device, kv: KvFormat, isa: &str, n: usize) -> Option<f64> {
    let of = |format: KvFormat| kernel(device, format.name(), isa);
    let at = |kernel: &KernelSpeed| {
        let rates = kernel.attention_flops_per_second.as_ref()?;
        Some(of_threads(rates, n, kernel.spread_fraction))
    };
    let (own, exact) = of(kv);
    if !kv.has_blocks() || exact && own.attention_flops_per_second.is_some() {
        return at(own);
    }
    let (half, _) = of(KvFormat::F16);
    let slower = own.flops_per_second[n - 1] / half.flops_per_second[n - 1];
    at(half).map(|rate| rate * slower.min(1.0))
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
    device.storage.wake_seconds.iter_mut().for_each(|seconds| scale(seconds, 1.0 / f.compute));
    scale(&mut device.memory.stream_bytes_per_second, f.stream);
    scale(&mut device.memory.gather_bytes_per_second, f.gather);
    device.memory.fresh_bytes_per_second.iter_mut().for_each(|rate| *rate *= f.stream);
    device.storage.check_bytes_per_second.iter_mut().for_each(|rate| *rate *= f.stream);
    for read in &mut device.storage.reads {
        read.reads_per_second *= if read.pattern == "sequential" { f.ordered_reads } else { f.random_reads };
    }
    device
}

/// `f_k` of each of these cores.
fn speeds<'a>(device: &'a Device, cores: &'a [u32]) -> impl Iterator<Item = f64> + 'a {
    let class = |core: &u32| device.cores.iter().find(|class| class.ids.contains(core));
    cores.iter().filter_map(class).map(|class| class.flops_per_second)
}

/// Sum of `f_k` over these cores.
fn speed(device: &Device, cores: &[u32]) -> f64 {
    speeds(device, cores).sum()
}

/// Speed of all these cores together over the slowest one's; the number of cores where all are alike.
pub fn pace(device: &Device, cores: &[u32]) -> f64 {
    let slowest = speeds(device, cores).fold(f64::INFINITY, f64::min);
    if speeds(device, cores).all(|speed| speed == slowest) {
        return cores.len().max(1) as f64;
    }
    speed(device, cores) / slowest
}

#[cfg(test)]
mod tests;
