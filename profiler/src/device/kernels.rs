//! The runtime's kernels, by format, instruction set and thread count.

use std::array;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flashplan::internals::arena::{Align, Arena};
use flashplan::internals::attention::{Tiling, attend};
use flashplan::internals::kv::{At, KeyValues};
use flashplan::internals::machine::Machine;
use flashplan::internals::model::config::Attention;
use flashplan::internals::pool::Pool;
use flashplan::internals::products::{ROWS, Tile, VECTORS};
pub(super) use flashplan::internals::walks::{COLUMNS, DenseWalk};
use flashplan::internals::walks::{SparseWalk, dots_in_cache};
use kernels::Format;
use kernels::{self, Form, Kernels, Packed, Row, TRANSPOSED_COLUMNS, pack, pack_transposed};
use plans::device::{CoreClass, KernelSpeed, SHORT_ROW_VALUES};
use plans::engine::{ADDED, PROMPT_ACTIVE_ONE_IN, PROMPT_TOKENS, TRANSPOSED};
use plans::file::significant;

use super::load::undisturbed;
use super::measure::{
    Budget, Timing, fill_between, median, parallel_rates, rates, spread_fraction, thread_counts,
};
use crate::{Context, ProfileError};

/// Neurons of a step with transposed down rows: whole tiles and blocks, and enough for the engine's rate of passes over the sums.
const TRANSPOSED_NEURONS: usize = 8 * ROWS;
const _: () = assert!(PROMPT_TOKENS[0] <= VECTORS && PROMPT_TOKENS[1] <= VECTORS, "a tile holds them");
const _: () = assert!(TRANSPOSED_NEURONS.is_multiple_of(TRANSPOSED), "whole blocks");
/// Query heads of the measured attention. With the key heads and the head width below, it has the shape of many 7B models.
const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const HEAD_WIDTH: usize = 128;
/// Tokens of the attended context.
const ATTENDED: usize = 512;
/// Bytes of the attended keys and values, all layers.
pub(super) const ATTENDED_BYTES: u64 = 32 << 20;
/// Measurements of each kernel.
const MEASURES: usize = 13;
/// Names and units of the measurements.
const NAMES: [(&str, &str); MEASURES] = [
    ("dot_in_cache", "flop_per_second"),
    ("dense", "bytes_per_second"),
    ("sparse", "bytes_per_second"),
    ("dispatch", "seconds"),
    ("prompt", "flop_per_second"),
    ("prompt_few", "flop_per_second"),
    ("prompt_sparse", "flop_per_second"),
    ("attention", "flop_per_second"),
    ("short_dense_row", "seconds"),
    ("short_dot_row", "seconds"),
    ("short_add_row", "seconds"),
    ("sparse_down", "bytes_per_second"),
    ("sparse_down_group", "seconds"),
];
/// Indices of matrix-vector products among the measurements.
const DENSE: usize = 1;
const SPARSE: usize = 2;
/// Columns of short rows.
const SHORT_COLUMNS: usize = SHORT_ROW_VALUES as usize;
/// Minimum time of a step: a call.
const CALL_SECONDS: f64 = 1e-9;

/// The rows of `cores.csv`, the kernels of `device.toml`, and warnings.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) speeds: Vec<KernelSpeed>,
    pub(super) csv: String,
    pub(super) notes: Vec<String>,
}

/// Time of all windows.
pub(super) fn budget(quick: bool) -> Duration {
    if quick { Duration::from_millis(9_750) } else { Duration::from_secs(42) }
}

/// Formats that are timed with every instruction set. Others are timed with the fastest set only, and a plan for another set takes the
/// slowest timed rate.
const BY_ALL: [Format; 8] = [
    Format::F32,
    Format::F16,
    Format::BF16,
    Format::Q8_0,
    Format::Q6K,
    Format::Q4_0,
    Format::Q4_0X4,
    Format::Q4K,
];

/// The timed kernels and formats, by instruction set.
fn timed(sets: &[&'static dyn Kernels]) -> Vec<(&'static dyn Kernels, Format)> {
    let last = sets.len() - 1;
    let formats = |at: usize| if at == last { &Format::ALL[..] } else { &BY_ALL[..] };
    sets.iter()
        .enumerate()
        .flat_map(|(at, &set)| formats(at).iter().map(move |&format| (set, format)))
        .collect()
}

/// How often a kernel is timed: in a hurry, once unless most models need its format and instruction set.
fn rounds(context: &Context, (set, format): (&dyn Kernels, Format)) -> usize {
    let common = set.instruction_set() == kernels::best().instruction_set() && BY_ALL.contains(&format);
    match (context.quick, common) {
        // a build with assertions is slow, and its speeds are nobody's
        _ if cfg!(debug_assertions) => 1,
        (true, false) => 1,
        (true, true) => 3,
        (false, _) => 5,
    }
}

/// Times every kernel over `cores`, fastest first, with weights in `buffer`.
pub(super) fn measure(context: &Context, cores: &[u32], buffer: &[u8]) -> Result<Measured, ProfileError> {
    let mut sets = kernels::available();
    if context.quick && sets.len() > 2 {
        sets = vec![sets[0], sets[sets.len() - 1]];
    }
    let counts = thread_counts(cores.len());
    let timed = timed(&sets);
    let rounds: Vec<usize> = timed.iter().map(|&timed| rounds(context, timed)).collect();
    let points = rounds.iter().sum::<usize>() * counts.len();
    // in rounds, so that a busy moment disturbs all equally
    let mut budget = Budget::start(budget(context.quick), points * MEASURES, 1);
    let bar = context.bar(points as u64, "matrix kernels");

    // by kernel and number of threads
    let mut windows: Vec<Vec<[Vec<f64>; MEASURES]>> =
        vec![vec![Default::default(); counts.len()]; timed.len()];
    let mut csv = csv::Writer::from_writer(Vec::new());
    let mut rows = vec![
        ["instruction_set", "format", "threads", "measure", "unit", "repeat", "value"].map(str::to_owned),
    ];
    for round in 0..rounds.iter().copied().max().unwrap_or(0) {
        for (at, &threads) in counts.iter().enumerate() {
            let pool = Pool::new(&cores[..threads])?;
            let timed_now =
                timed.iter().zip(&rounds).zip(&mut windows).filter(|((_, rounds), _)| round < **rounds);
            for ((&(kernels, format), _), windows) in timed_now {
                let bench = Bench { context, pool: &pool, kernels, format };
                let timings = array::from_fn(|_| budget.next_point());
                // a single window is too short to show a disturbance
                let measured = undisturbed(context, || bench.all(timings, buffer))?;
                for (((measure, unit), values), windows) in NAMES.iter().zip(measured).zip(&mut windows[at]) {
                    for &value in &values {
                        rows.push([
                            kernels.instruction_set().to_string(),
                            format.to_string(),
                            threads.to_string(),
                            (*measure).to_owned(),
                            (*unit).to_owned(),
                            round.to_string(),
                            significant(value).to_string(),
                        ]);
                    }
                    windows.extend(values);
                }
                bar.inc(1);
            }
        }
    }
    drop(bar);
    for row in rows {
        write_row(&mut csv, &row)?;
    }
    let speeds = timed.iter().zip(&windows).zip(&rounds).map(|(((kernels, format), windows), &rounds)| {
        let fill = |which: usize| {
            let medians: Vec<f64> = windows.iter().map(|of| significant(median(&of[which]))).collect();
            fill_between(&counts, &medians).into_iter().map(significant).collect::<Vec<f64>>()
        };
        let products = windows.iter().flat_map(|of| [&of[DENSE], &of[SPARSE]]);
        let spread = products.map(|windows| spread_fraction(windows)).fold(0.0, f64::max);
        KernelSpeed {
            format: format.to_string(),
            instruction_set: kernels.instruction_set().to_string(),
            flops_per_second: fill(0),
            dense_bytes_per_second: fill(DENSE),
            sparse_bytes_per_second: fill(SPARSE),
            sparse_down_bytes_per_second: Some(fill(11)),
            sparse_down_group_seconds: Some(fill(12)),
            dispatch_seconds: fill(3),
            prompt_flops_per_second: Some(fill(4)),
            prompt_few_flops_per_second: Some(fill(5)),
            prompt_sparse_flops_per_second: Some(fill(6)),
            attention_flops_per_second: windows.iter().all(|of| !of[7].is_empty()).then(|| fill(7)),
            short_dense_row_seconds: Some(fill(8)),
            short_dot_row_seconds: Some(fill(9)),
            short_add_row_seconds: Some(fill(10)),
            spread_fraction: (rounds > 1).then(|| significant(spread)),
        }
    });
    let mut notes = Vec::new();
    if counts.len() < cores.len() {
        notes.push(format!("thread counts between {counts:?} are interpolated"));
    }
    Ok(Measured { speeds: speeds.collect(), csv: finish(csv)?, notes })
}

/// Times the dot product in cache on a core of every class.
pub(super) fn classes(context: &Context, machine: &Machine) -> Result<Vec<CoreClass>, ProfileError> {
    let window = Duration::from_millis(if context.quick { 20 } else { 100 });
    let mut measured = Vec::new();
    for class in machine.allowed_classes() {
        let ids: Vec<u32> = class.cores.iter().map(|core| core.id).collect();
        let pool = Pool::new(&ids[..1])?;
        let timing = Timing { window, repeats: 5 };
        let bench = Bench { context, pool: &pool, kernels: kernels::best(), format: Format::F16 };
        let rates = bench.cached(timing)?;
        measured.push(CoreClass {
            name: class.name,
            ids,
            capacity: class.capacity,
            clock_mhz: class.clock_mhz,
            flops_per_second: significant(median(&rates)),
        });
    }
    Ok(measured)
}

/// Kernels of one instruction set and format, run by all threads of a pool.
#[derive(Debug, Clone, Copy)]
struct Bench<'a> {
    context: &'a Context,
    pool: &'a Pool,
    kernels: &'a dyn Kernels,
    format: Format,
}

impl Bench<'_> {
    /// All measurements in the order of [`NAMES`]; empty where the format has none.
    fn all(&self, timings: [Timing; MEASURES], buffer: &[u8]) -> Result<[Vec<f64>; MEASURES], ProfileError> {
        let [cached, dense, dispatch, prompt, few, sparse_prompt, attention, rest @ ..] = timings;
        let [short_1, short_2, short_3, sparse_1, sparse_2, sparse_3] = rest;
        let dense = self.dense(dense, buffer)?;
        let dispatch = self.dispatch(dispatch, buffer, median(&dense))?;
        let [short_dense, short_dot, short_add] = self.short([short_1, short_2, short_3], buffer)?;
        let [sparse, down, down_group] = self.sparse([sparse_1, sparse_2, sparse_3], buffer)?;
        let [many, fewer] = PROMPT_TOKENS;
        Ok([
            self.cached(cached)?,
            dense,
            sparse,
            dispatch,
            self.prompt(prompt, buffer, (many, 1))?,
            self.prompt(few, buffer, (fewer, 1))?,
            self.prompt(sparse_prompt, buffer, (many, PROMPT_ACTIVE_ONE_IN))?,
            self.attention(attention)?,
            short_dense,
            short_dot,
            short_add,
            down,
            down_group,
        ])
    }

    /// FLOP/s of `dot`, each thread on a row of its own that stays in its cache.
    fn cached(&self, timing: Timing) -> Result<Vec<f64>, ProfileError> {
        let Self { context, pool, kernels, format } = *self;
        let rates = dots_in_cache(kernels, format, |step| parallel_rates(context, timing, pool, |_| step()));
        Ok(rates?)
    }

    /// FLOP/s of a prompt's feed-forward block: gate, up and down with many vectors.
    ///
    /// Each thread computes neurons of its own from memory. One value in `active_one_in` is not zero. If that is every value, down is
    /// multiplied as for a model whose neurons always fire.
    fn prompt(
        &self,
        timing: Timing,
        buffer: &[u8],
        (vectors, active_one_in): (usize, usize),
    ) -> Result<Vec<f64>, ProfileError> {
        let Self { context, pool, kernels, format } = *self;
        let transposed = active_one_in == 1 && kernels.down().transposes(format);
        let neurons = if transposed { TRANSPOSED_NEURONS } else { ROWS };
        let row_bytes = format.row_bytes(COLUMNS);
        let steps = buffer.len() / (3 * neurons * row_bytes);
        let form = if format.has_blocks() { Form::Q8 } else { Form::F32 };
        let mut packed = vec![0.0; form.vector_words(COLUMNS) * vectors];
        pack(form, COLUMNS, &vec![0.5; COLUMNS * vectors], &mut packed);
        let x = Packed::new(form, COLUMNS, vectors, &packed);
        let threads = pool.threads();
        let own = |worker| Mutex::new(PromptPart::new(worker, neurons, vectors));
        let parts: Vec<Mutex<PromptPart>> = (0..threads).map(own).collect();
        let step = |worker: usize| {
            let mut own = parts[worker].lock().unwrap_or_else(PoisonError::into_inner);
            let PromptPart { at, values, words, sums } = &mut *own;
            let bytes = &buffer[*at % steps * 3 * neurons * row_bytes..][..3 * neurons * row_bytes];
            *at += threads;
            let row = |index: usize| Row::new(format, &bytes[index * row_bytes..][..row_bytes]);
            let mut tile: Tile = [0.0; _];
            let up = &mut tile[..ROWS * vectors];
            for (first, values) in (0..).step_by(ROWS).zip(values.chunks_exact_mut(ROWS * vectors)) {
                let rows = |part: usize| -> [_; ROWS] { array::from_fn(|i| row(part * neurons + first + i)) };
                values.fill(0.0);
                up.fill(0.0);
                kernels.products(&rows(0), x, values);
                kernels.products(&rows(1), x, up);
                for (i, (gate, up)) in values.iter_mut().zip(&*up).enumerate() {
                    // a step that shares no factor with the vectors, so that none has them all
                    let active = (i * 5 / 3).is_multiple_of(active_one_in);
                    *gate = if active { (*gate * up).clamp(-1e-3, 1e-3) } else { 0.0 };
                }
            }
            let downs: Vec<Row<'_>> = (2 * neurons..3 * neurons).map(row).collect();
            if transposed {
                pack_transposed(Form::Q8, values, vectors, 0, words);
                let values = Packed::new(Form::Q8, neurons, vectors, words);
                for (start, sums) in
                    (0..).step_by(TRANSPOSED_COLUMNS).zip(sums.chunks_mut(TRANSPOSED_COLUMNS * vectors))
                {
                    kernels.down().add_transposed(&downs, start, values, sums);
                }
            } else {
                kernels.add_products(values, vectors, 0..vectors, &downs, sums);
            }
            (2 * 3 * neurons * COLUMNS * vectors) as f64
        };
        Ok(parallel_rates(context, timing, pool, step)?)
    }

    /// Weight bytes/s of matrix-vector products that walk through `buffer`.
    fn dense(&self, timing: Timing, buffer: &[u8]) -> Result<Vec<f64>, ProfileError> {
        let mut walk = DenseWalk::new(self.kernels, self.format, COLUMNS, buffer);
        Ok(rates(self.context, timing, || walk.step(self.pool))?)
    }

    /// FLOP/s of one token's attention, layer after layer; none in formats that keep no keys.
    fn attention(&self, timing: Timing) -> Result<Vec<f64>, ProfileError> {
        let Self { context, pool, kernels, format } = *self;
        if !matches!(format, Format::F16 | Format::F32 | Format::Q8_0 | Format::Q4_0) {
            return Ok(Vec::new());
        }
        let config = Attention::plain(HEADS, KV_HEADS, HEAD_WIDTH);
        let layers = ATTENDED_BYTES as usize / (2 * KV_HEADS * ATTENDED * format.row_bytes(HEAD_WIDTH));
        let mut region = Arena::new(ATTENDED_BYTES)?.take::<u8>(ATTENDED_BYTES as usize, Align::Page)?;
        region.fill(0x3c);
        let kv = KeyValues::new(region, format, vec![(KV_HEADS, HEAD_WIDTH); layers], ATTENDED);
        let projections = vec![0.01; config.query_width() + 2 * config.kv_width()];
        let (mut out, mut layer) = (vec![0.0; config.query_width()], 0);
        let rates = rates(context, timing, || {
            layer = (layer + 1) % layers;
            let (last, order) = ([At { sequence: 0, position: ATTENDED - 1 }], Tiling::OneByOne);
            attend(pool, kernels, &config, None, &kv, layer, &last, &projections, order, &mut out);
            (2 * 2 * HEADS * HEAD_WIDTH * ATTENDED) as f64
        })?;
        Ok(rates)
    }

    /// Seconds of a small matrix product beyond its bytes at the rate of large ones.
    ///
    /// They go to rounding the vector, starting all threads, the first rows, which nothing has prefetched, and joining.
    fn dispatch(&self, timing: Timing, buffer: &[u8], dense: f64) -> Result<Vec<f64>, ProfileError> {
        let mut walk = DenseWalk::small(self.kernels, self.format, buffer);
        let bytes = walk.bytes() as f64;
        let rates = rates(self.context, timing, || walk.step(self.pool))?;
        Ok(rates.into_iter().map(|rate| (bytes / rate - bytes / dense).max(CALL_SECONDS)).collect())
    }

    /// The sparse feed-forward step over scattered neurons.
    ///
    /// Returns weight bytes/s of gate and up, weight bytes/s of down in whole groups, and the extra seconds of a group, from small groups.
    fn sparse(&self, timings: [Timing; 3], buffer: &[u8]) -> Result<[Vec<f64>; 3], ProfileError> {
        /// Rows of a small group.
        const FEW: usize = 2;
        let Self { context, pool, kernels, format } = *self;
        let mut walk = SparseWalk::new(kernels, format, COLUMNS, buffer);
        let row_bytes = format.row_bytes(COLUMNS) as f64;
        let values = rates(context, timings[0], || {
            walk.go_on();
            walk.gate_up(pool) * row_bytes
        })?;
        let mut down = |timing, group| {
            rates(context, timing, || {
                walk.go_on();
                walk.down(pool, group)
            })
        };
        let (whole, few) = (down(timings[1], ADDED)?, down(timings[2], FEW)?);
        let groups_of_a_row = 1.0 / FEW as f64 - 1.0 / ADDED as f64;
        let group =
            few.iter().map(|few| ((1.0 / few - 1.0 / median(&whole)) / groups_of_a_row).max(CALL_SECONDS));
        let group: Vec<f64> = group.collect();
        // seconds of a row's bytes alone
        let row = |rate: &f64| row_bytes / (1.0 / rate - median(&group) / ADDED as f64).max(0.5 / rate);
        Ok([values, whole.iter().map(row).collect(), group])
    }

    /// Seconds of a short row: of a matrix, of scattered gate and up rows, and of down.
    fn short(&self, timings: [Timing; 3], buffer: &[u8]) -> Result<[Vec<f64>; 3], ProfileError> {
        let Self { context, pool, kernels, format } = *self;
        let seconds = |rates: Vec<f64>| rates.into_iter().map(f64::recip).collect();
        let mut dense = DenseWalk::new(kernels, format, SHORT_COLUMNS, buffer);
        let rows = dense.rows() as f64;
        let mut sparse = SparseWalk::new(kernels, format, SHORT_COLUMNS, buffer);
        Ok([
            seconds(rates(context, timings[0], || {
                dense.step(pool);
                rows
            })?),
            seconds(rates(context, timings[1], || {
                sparse.go_on();
                sparse.gate_up(pool)
            })?),
            seconds(rates(context, timings[2], || {
                sparse.go_on();
                sparse.down(pool, ADDED)
            })?),
        ])
    }
}

/// A thread's part of a prompt: its offset in the buffer, values `[neurons, vectors]`, the rounded values, and sums.
struct PromptPart {
    at: usize,
    values: Vec<f32>,
    words: Vec<f32>,
    sums: Vec<f32>,
}

impl PromptPart {
    fn new(at: usize, neurons: usize, vectors: usize) -> Self {
        let words = Form::Q8.vector_words(neurons.next_multiple_of(TRANSPOSED)) * vectors;
        let [values, words, sums] =
            [neurons * vectors, words, COLUMNS * vectors].map(|count| vec![0.0; count]);
        Self { at, values, words, sums }
    }
}

/// A row of a CSV file in memory.
pub(super) fn write_row<const N: usize>(
    csv: &mut csv::Writer<Vec<u8>>,
    row: &[String; N],
) -> Result<(), ProfileError> {
    csv.write_record(row).map_err(|error| csv_error(&error))
}

/// The text of a CSV file in memory.
pub(super) fn finish(csv: csv::Writer<Vec<u8>>) -> Result<String, ProfileError> {
    let bytes = csv.into_inner().map_err(|error| csv_error(&error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn csv_error(error: &dyn std::error::Error) -> ProfileError {
    ProfileError::Io {
        action: "make the text of",
        path: "a csv file".into(),
        source: std::io::Error::other(error.to_string()),
    }
}
