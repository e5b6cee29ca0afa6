//! Speed of the kernels relative to this machine's memory bandwidth, measured in one run.
//!
//! ```text
//! check every kernel's answer against the scalar reference
//! every round:  read the buffer in order (the ceiling), then take one step of every kernel
//! at the end:   median and 95th percentile of each, and the median of its ratio to the ceiling of its round
//! ```
//!
//! Other programs and the machine's state move all figures of a round together; the ratios are stable.
//!
//! Usage: `bench_kernels [instruction set] [seconds] [part of names]`. Defaults: the best set of this
//! processor, 30 seconds, every step.
#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use std::array;
use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use flashplan::internals::arena::{Align, Arena};
use flashplan::internals::pool::{Pool, part};
use kernels::Format;
use kernels::{
    self, ADDED, Form, Input, InstructionSet, Kernels, Matrix, Packed, Rounded, Row, TRANSPOSED_COLUMNS,
    pack, pack_transposed, sum_words,
};
use platform::affinity::CoreSet;

/// Bytes of weights: far beyond every cache.
const BUFFER_BYTES: usize = 1 << 30;
/// Bytes of one step: a fraction of a millisecond, often undisturbed by other programs.
const STEP_BYTES: usize = 8 << 20;
/// Values of a row: the width of a model of 7 billion weights.
const COLUMNS: usize = 4096;
/// One row or neuron in this many is active.
const ACTIVE_ONE_IN: usize = 10;
/// Vectors of a prompt.
const VECTORS: usize = 128;
/// Rows of a matrix in a product with a prompt.
const PRODUCT_ROWS: usize = 96;
/// Rows multiplied together, as in the engine.
const BATCH: usize = 24;
/// Rows added transposed together, as in the engine when memory is short.
const TRANSPOSED_ROWS: usize = 384;
/// The least rows of a thread, as in the engine.
const ROWS: usize = 16;
/// Formats of models.
fn formats() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|format| !matches!(format, Format::F32 | Format::BF16))
}

/// Formats for vectors of 8 bits.
fn blocks() -> impl Iterator<Item = Format> {
    formats().filter(|format| format.has_blocks())
}

/// The work of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// Reads in order: the ceiling.
    Read,
    /// Reads one row in ten, of this many bytes.
    ReadRows(usize),
    /// Multiplies one row by a vector repeatedly: the limit of arithmetic.
    Cached(Format, Form),
    /// Adds [`ADDED`] rows to a vector repeatedly, likewise.
    CachedSums(Format, Form),
    /// Multiplies a matrix by a vector.
    Dense(Format, Form),
    /// Adds rows in order to a vector, [`ADDED`] at a time.
    Sums(Format, Form),
    /// Multiplies one row in ten by a vector.
    Rows(Format, Form),
    /// Computes one bundle in ten: multiplies gate and up by a vector, adds down to a vector, [`ADDED`] at a
    /// time.
    Bundles(Format, Form),
    /// Multiplies a matrix by a prompt's vectors.
    Products(Format, Form),
    /// Adds a prompt's neurons to its vectors.
    AddProducts(Format, Form),
}

impl Step {
    fn name(self) -> String {
        match self {
            Self::Read => "read in order".to_owned(),
            Self::ReadRows(bytes) => format!("read one row in ten of {bytes} bytes"),
            Self::Cached(format, form) => format!("{format:<7} dot, in cache, {form:?}"),
            Self::CachedSums(format, form) => format!("{format:<7} axpy, rows in cache, {form:?}"),
            Self::Dense(format, form) => format!("{format:<7} dot, rows in order, {form:?}"),
            Self::Sums(format, form) => format!("{format:<7} axpy, rows in order, {form:?}"),
            Self::Rows(format, form) => format!("{format:<7} dot, one row in ten, {form:?}"),
            Self::Bundles(format, form) => format!("{format:<7} dot, dot, axpy, one bundle in ten, {form:?}"),
            Self::Products(format, form) => format!("{format:<7} products with {VECTORS} vectors, {form:?}"),
            Self::AddProducts(format, form) => {
                format!("{format:<7} products added to {VECTORS} vectors, {form:?}")
            }
        }
    }
}

/// Bytes and operations of a step.
#[derive(Clone, Copy, Debug)]
struct StepCost {
    bytes: usize,
    flops: usize,
}

/// A step, its number of threads, and its rates of bytes and operations per second, one a round.
#[derive(Debug)]
struct Case {
    step: Step,
    threads: usize,
    bytes: Vec<f64>,
    flops: Vec<f64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let kernels = match arguments.next() {
        None => kernels::best(),
        Some(name) => {
            let set: InstructionSet = name.parse()?;
            kernels::by_name(set).ok_or_else(|| format!("{set} is not on this processor"))?
        }
    };
    let time = Duration::from_secs_f64(arguments.next().map_or(Ok(30.0), |text| text.parse())?);

    let wanted = arguments.next().unwrap_or_default();

    let mut buffer = Arena::new(BUFFER_BYTES as u64)?.take::<u8>(BUFFER_BYTES, Align::Page)?;
    fill(&mut buffer);
    for format in formats() {
        check(kernels, format, &buffer);
        check_products(kernels, format, Form::F32, &buffer);
        if format.has_blocks() {
            check_products(kernels, format, Form::Q8, &buffer);
        }
        if kernels::rounds_factors(Form::Q8, format) {
            check_sums(kernels, format, &buffer);
        }
        if kernels.down().transposes(format) {
            check_transposed(kernels, format, &buffer);
        }
    }
    // as in the engine, vectors start on a cache line; otherwise half of the loads would touch two
    let mut x = Arena::new(4 * COLUMNS as u64)?.take::<f32>(COLUMNS, Align::Line)?;
    x.fill(0.5);
    let values: Vec<f32> = (0..VECTORS * COLUMNS).map(|i| (i % 23) as f32 / 23.0 - 0.5).collect();
    let mut vectors = Arena::new((8 * VECTORS * COLUMNS) as u64)?;
    let mut packed = |form: Form| -> Result<_, Box<dyn Error>> {
        let mut words = vectors.take::<f32>(VECTORS * form.vector_words(COLUMNS), Align::Line)?;
        pack(form, COLUMNS, &values, &mut words);
        Ok(words)
    };
    let (exact, rounded) = (packed(Form::F32)?, packed(Form::Q8)?);
    let mut words =
        Arena::new(4 * Rounded::words(COLUMNS) as u64)?.take::<f32>(Rounded::words(COLUMNS), Align::Line)?;
    let inputs = [Input::plain(&x), Input::new(&x, true, &mut words)];
    let vectors: [&[f32]; 2] = [&exact, &rounded];
    let active = active(STEP_BYTES * ACTIVE_ONE_IN / Format::Q4_0.row_bytes(COLUMNS));
    let mut bench =
        Bench { kernels, buffer: &buffer, inputs, vectors, active: &active, out: Vec::new(), next: 0 };

    let cores: Vec<u32> = CoreSet::current()?.cores().into_iter().take(2).collect();
    let pools = (1..=cores.len()).map(|n| Pool::new(&cores[..n])).collect::<Result<Vec<_>, _>>()?;
    let bundle = 3 * Format::Q4_0.row_bytes(COLUMNS);
    let steps: Vec<Step> = [Step::Read, Step::ReadRows(bundle / 3), Step::ReadRows(bundle)]
        .into_iter()
        .chain(formats().flat_map(|f| {
            [
                Step::Cached(f, Form::F32),
                Step::CachedSums(f, Form::F32),
                Step::Dense(f, Form::F32),
                Step::Sums(f, Form::F32),
                Step::Rows(f, Form::F32),
                Step::Bundles(f, Form::F32),
            ]
        }))
        .chain(blocks().flat_map(|f| {
            [
                Step::Cached(f, Form::Q8),
                Step::CachedSums(f, Form::Q8),
                Step::Dense(f, Form::Q8),
                Step::Sums(f, Form::Q8),
                Step::Rows(f, Form::Q8),
                Step::Bundles(f, Form::Q8),
            ]
        }))
        .chain(formats().map(|f| Step::Products(f, Form::F32)))
        .chain(blocks().map(|f| Step::Products(f, Form::Q8)))
        .chain(formats().map(|f| Step::AddProducts(f, Form::F32)))
        .chain(blocks().filter(|&f| kernels.down().transposes(f)).map(|f| Step::AddProducts(f, Form::Q8)))
        .filter(|step| matches!(step, Step::Read | Step::ReadRows(_)) || step.name().contains(&wanted))
        .collect();
    let mut cases: Vec<Case> = (1..=cores.len())
        .flat_map(|threads| steps.iter().map(move |&step| (step, threads)))
        .map(|(step, threads)| Case { step, threads, bytes: Vec::new(), flops: Vec::new() })
        .collect();

    let end = Instant::now() + time;
    while Instant::now() < end {
        for case in &mut cases {
            let pool = &pools[case.threads - 1];
            pool.run(|_| ()); // awake: the first of two threads' steps does not pay for that
            let start = Instant::now();
            let work = bench.step(case.step, pool);
            let seconds = start.elapsed().as_secs_f64();
            case.bytes.push(work.bytes as f64 / seconds);
            case.flops.push(work.flops as f64 / seconds);
        }
    }
    print(kernels, &cases);
    Ok(())
}

fn print(kernels: &dyn Kernels, cases: &[Case]) {
    println!("{}, {} rounds, medians", kernels.instruction_set(), cases[0].bytes.len());
    println!("{:<44} threads  GB/s (best)   GFLOP/s (best)  of the ceiling", "");
    for case in cases {
        let ceiling = cases.iter().find(|other| other.step == Step::Read && other.threads == case.threads);
        let ratios =
            case.bytes.iter().zip(&ceiling.unwrap_or(case).bytes).map(|(rate, ceiling)| rate / ceiling);
        println!(
            "{:<44} {:>7} {:>6.1} {:>6.1} {:>8.1} {:>7.1} {:>13.1} %",
            case.step.name(),
            case.threads,
            quantile(case.bytes.clone(), 0.5) / 1e9,
            quantile(case.bytes.clone(), 0.95) / 1e9,
            quantile(case.flops.clone(), 0.5) / 1e9,
            quantile(case.flops.clone(), 0.95) / 1e9,
            quantile(ratios.collect(), 0.5) * 100.0,
        );
    }
}

/// The inputs of every step.
struct Bench<'a> {
    kernels: &'a dyn Kernels,
    buffer: &'a [u8],
    /// A vector unrounded and rounded.
    inputs: [Input<'a>; 2],
    /// A prompt's vectors in both forms.
    vectors: [&'a [f32]; 2],
    /// Active indices, computed before anything is timed.
    active: &'a [usize],
    out: Vec<f32>,
    /// Start of the next step; every step continues after the last.
    next: usize,
}

impl Bench<'_> {
    fn step(&mut self, step: Step, pool: &Pool) -> StepCost {
        let span = match step {
            Step::Cached(..) | Step::CachedSums(..) | Step::Products(..) | Step::AddProducts(..) => {
                STEP_BYTES / 8
            }
            Step::Read | Step::Dense(..) | Step::Sums(..) => STEP_BYTES,
            Step::ReadRows(_) | Step::Rows(..) | Step::Bundles(..) => STEP_BYTES * ACTIVE_ONE_IN,
        };
        if self.next + span > self.buffer.len() {
            self.next = 0;
        }
        let weights = &self.buffer[self.next..][..span];
        self.next += span;
        match step {
            Step::Read => read(self.kernels, weights, pool),
            Step::ReadRows(bytes) => read_rows(self.kernels, weights, bytes, self.active, pool),
            Step::Cached(format, form) => self.cached(format, form, weights, pool),
            Step::CachedSums(format, form) => self.cached_sums(format, form, weights, pool),
            Step::Dense(format, form) => self.dense(format, form, weights, pool),
            Step::Sums(format, form) => self.sums(format, form, weights, pool),
            Step::Rows(format, form) => self.rows(format, form, weights, pool),
            Step::Bundles(format, form) => self.bundles(format, form, weights, pool),
            Step::Products(format, form) => self.products(format, form, weights, pool),
            Step::AddProducts(format, Form::F32) => self.add_products(format, weights, pool),
            Step::AddProducts(format, Form::Q8) => self.add_transposed(format, weights, pool),
        }
    }

    fn cached(&mut self, format: Format, form: Form, weights: &[u8], pool: &Pool) -> StepCost {
        const TIMES: usize = 1024;
        let bytes = format.row_bytes(COLUMNS);
        let (kernels, x) = (self.kernels, self.inputs[usize::from(form == Form::Q8)]);
        let row = Row::new(format, &weights[..bytes]);
        pool.run(|_| {
            for _ in 0..TIMES {
                black_box(x.dot(kernels, black_box(row)));
            }
        });
        let times = TIMES * pool.threads();
        StepCost { bytes: times * bytes, flops: 2 * times * COLUMNS }
    }

    fn cached_sums(&mut self, format: Format, form: Form, weights: &[u8], pool: &Pool) -> StepCost {
        const TIMES: usize = 64;
        let (bytes, kernels) = (format.row_bytes(COLUMNS), self.kernels);
        self.out.resize(pool.threads() * sum_words(COLUMNS), 0.0);
        self.out.fill(0.0);
        pool.split_rows(&mut self.out, sum_words(COLUMNS), |_, sum| {
            let rows: [_; ADDED] = array::from_fn(|k| Row::new(format, &weights[k * bytes..][..bytes]));
            for _ in 0..TIMES {
                kernels.down().add_rows(form, &[1e-3; ADDED], &black_box(rows), sum);
            }
        });
        black_box(&mut self.out);
        let times = ADDED * TIMES * pool.threads();
        StepCost { bytes: times * bytes, flops: 2 * times * COLUMNS }
    }

    fn dense(&mut self, format: Format, form: Form, weights: &[u8], pool: &Pool) -> StepCost {
        let rows = weights.len() / format.row_bytes(COLUMNS);
        let bytes = rows * format.row_bytes(COLUMNS);
        let matrix = Matrix { format, rows, columns: COLUMNS, bytes: &weights[..bytes] };
        let (kernels, x) = (self.kernels, self.inputs[usize::from(form == Form::Q8)]);
        self.out.resize(rows, 0.0);
        pool.split_mut(&mut self.out, ROWS, |start, out| {
            x.rows(kernels, matrix, start, out);
        });
        black_box(&mut self.out);
        StepCost { bytes, flops: 2 * rows * COLUMNS }
    }

    fn sums(&mut self, format: Format, form: Form, weights: &[u8], pool: &Pool) -> StepCost {
        let row_bytes = format.row_bytes(COLUMNS);
        let groups = weights.len() / (ADDED * row_bytes);
        let (kernels, threads) = (self.kernels, pool.threads());
        self.out.resize(threads * sum_words(COLUMNS), 0.0);
        self.out.fill(0.0);
        pool.split_rows(&mut self.out, sum_words(COLUMNS), |worker, sum| {
            for group in part(groups, 1, worker, threads) {
                let row = |k: usize| {
                    let bytes = |at: usize| &weights[at.min(groups * ADDED - 1) * row_bytes..][..row_bytes];
                    Row::new(format, bytes(group * ADDED + k)).before(bytes((group + 1) * ADDED + k))
                };
                let rows: [_; ADDED] = array::from_fn(row);
                kernels.down().add_rows(form, &[1e-3; ADDED], &rows, sum);
            }
        });
        black_box(&mut self.out);
        let count = ADDED * groups;
        StepCost { bytes: count * row_bytes, flops: 2 * count * COLUMNS }
    }

    fn rows(&mut self, format: Format, form: Form, weights: &[u8], pool: &Pool) -> StepCost {
        let row_bytes = format.row_bytes(COLUMNS);
        let active = first(self.active, weights.len() / row_bytes);
        let (kernels, x) = (self.kernels, self.inputs[usize::from(form == Form::Q8)]);
        self.out.resize(active.len(), 0.0);
        pool.split_mut(&mut self.out, ROWS, |start, out| {
            let bytes = |at: usize| &weights[at * row_bytes..][..row_bytes];
            for (i, out) in (start..).zip(out) {
                let next = bytes(active[(i + 1).min(active.len() - 1)]);
                *out = x.dot(kernels, Row::new(format, bytes(active[i])).before(next));
            }
        });
        black_box(&mut self.out);
        StepCost { bytes: active.len() * row_bytes, flops: 2 * active.len() * COLUMNS }
    }

    fn bundles(&mut self, format: Format, form: Form, weights: &[u8], pool: &Pool) -> StepCost {
        let row_bytes = format.row_bytes(COLUMNS);
        let active = first(self.active, weights.len() / (3 * row_bytes));
        let (groups, _) = active.as_chunks::<ADDED>();
        let (kernels, threads) = (self.kernels, pool.threads());
        let x = self.inputs[usize::from(form == Form::Q8)];
        self.out.resize(threads * sum_words(COLUMNS), 0.0);
        self.out.fill(0.0);
        pool.split_rows(&mut self.out, sum_words(COLUMNS), |worker, sum| {
            let own = &groups[part(groups.len(), 1, worker, threads)];
            let neurons = own.as_flattened();
            // as in the engine: prefetch the next neuron's gate and up, and the next group's downs
            let row = |part: usize, at: usize, ahead: usize| {
                let bytes = |at: usize| {
                    &weights[(neurons[at.min(neurons.len() - 1)] * 3 + part) * row_bytes..][..row_bytes]
                };
                Row::new(format, bytes(at)).before(bytes(at + ahead))
            };
            for first in (0..neurons.len()).step_by(ADDED) {
                let values: [f32; ADDED] = array::from_fn(|k| {
                    let dot = |part: usize| x.dot(kernels, row(part, first + k, 1));
                    (dot(0) * dot(1)).clamp(-1e-3, 1e-3)
                });
                let downs: [_; ADDED] = array::from_fn(|k| row(2, first + k, ADDED));
                kernels.down().add_rows(form, &values, &downs, sum);
            }
        });
        black_box(&mut self.out);
        let count = ADDED * groups.len();
        StepCost { bytes: 3 * count * row_bytes, flops: 6 * count * COLUMNS }
    }
}

impl Bench<'_> {
    fn products(&mut self, format: Format, form: Form, weights: &[u8], pool: &Pool) -> StepCost {
        let row_bytes = format.row_bytes(COLUMNS);
        let rows = PRODUCT_ROWS;
        let x = Packed::new(form, COLUMNS, VECTORS, self.vectors[usize::from(form == Form::Q8)]);
        let kernels = self.kernels;
        self.out.resize(rows * VECTORS, 0.0);
        pool.split_rows(&mut self.out, VECTORS, |first, out| {
            for (i, out) in out.chunks_mut(BATCH * VECTORS).enumerate() {
                let mut batch = [Row::new(format, &[]); BATCH];
                let count = out.len() / VECTORS;
                for (row, at) in batch[..count].iter_mut().zip(first + i * BATCH..) {
                    *row = Row::new(format, &weights[at * row_bytes..][..row_bytes]);
                }
                kernels.products(&batch[..count], x, out);
            }
        });
        black_box(&mut self.out);
        StepCost { bytes: rows * row_bytes, flops: 2 * rows * COLUMNS * VECTORS }
    }

    fn add_products(&mut self, format: Format, weights: &[u8], pool: &Pool) -> StepCost {
        let row_bytes = format.row_bytes(COLUMNS);
        let rows = PRODUCT_ROWS;
        let w: Vec<Row<'_>> =
            weights.chunks_exact(row_bytes).take(rows).map(|b| Row::new(format, b)).collect();
        let (kernels, a) = (self.kernels, vec![0.5; rows * VECTORS]);
        self.out.resize(VECTORS * COLUMNS, 0.0);
        self.out.fill(0.0);
        pool.split_rows(&mut self.out, COLUMNS, |first, out| {
            kernels.add_products(&a, VECTORS, first..first + out.len() / COLUMNS, &w, out);
        });
        black_box(&mut self.out);
        StepCost { bytes: rows * row_bytes, flops: 2 * rows * COLUMNS * VECTORS }
    }
}

impl Bench<'_> {
    fn add_transposed(&mut self, format: Format, weights: &[u8], pool: &Pool) -> StepCost {
        let (kernels, row_bytes, rows) = (self.kernels, format.row_bytes(COLUMNS), TRANSPOSED_ROWS);
        let w: Vec<Row<'_>> =
            weights.chunks_exact(row_bytes).take(rows).map(|b| Row::new(format, b)).collect();
        let x = Packed::new(Form::Q8, rows, VECTORS, self.vectors[1]);
        self.out.resize(VECTORS * COLUMNS, 0.0);
        self.out.fill(0.0);
        pool.split_mut(&mut self.out, TRANSPOSED_COLUMNS * VECTORS, |start, out| {
            kernels.down().add_transposed(&w, start / VECTORS, x, out);
        });
        black_box(&mut self.out);
        StepCost { bytes: rows * row_bytes, flops: 2 * rows * COLUMNS * VECTORS }
    }
}

/// Reads every byte, shared by threads: an upper bound for all products with weights.
fn read(kernels: &dyn Kernels, weights: &[u8], pool: &Pool) -> StepCost {
    let threads = pool.threads();
    pool.run(|worker| {
        let own = part(weights.len(), 4096, worker, threads);
        black_box(kernels.read(Row::in_order(Format::F32, weights, own.start, own.len())));
    });
    StepCost { bytes: weights.len(), flops: 0 }
}

/// Reads the rows of a list, prefetching each while the one before is read.
fn read_rows(
    kernels: &dyn Kernels,
    weights: &[u8],
    row_bytes: usize,
    active: &[usize],
    pool: &Pool,
) -> StepCost {
    let (active, threads) = (first(active, weights.len() / row_bytes), pool.threads());
    pool.run(|worker| {
        let own = &active[part(active.len(), 1, worker, threads)];
        let bytes = |at: usize| &weights[own[at.min(own.len() - 1)] * row_bytes..][..row_bytes];
        for i in 0..own.len() {
            black_box(kernels.read(Row::new(Format::F32, bytes(i)).before(bytes(i + 1))));
        }
    });
    StepCost { bytes: active.len() * row_bytes, flops: 0 }
}

/// The part of a list below `count`.
fn first(active: &[usize], count: usize) -> &[usize] {
    &active[..active.partition_point(|&at| at < count)]
}

/// About one index in [`ACTIVE_ONE_IN`], ascending, with uneven gaps.
fn active(count: usize) -> Vec<usize> {
    let mut random = 1_u64;
    let mut gap = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        1 + (random >> 40) as usize % (2 * ACTIVE_ONE_IN - 1)
    };
    let mut at = 0;
    std::iter::from_fn(|| {
        at += gap();
        Some(at)
    })
    .take_while(|&at| at < count)
    .collect()
}

/// Fills bytes with finite weights in every format: no exponent of two or four bytes reaches its upper half.
fn fill(buffer: &mut [u8]) {
    let mut state = 7_u64;
    for word in bytemuck::cast_slice_mut::<u8, u64>(buffer) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *word = (state ^ (state >> 29)) & 0xbfbf_bfbf_bfbf_bfbf | 0x0404_0404_0404_0404;
    }
}

/// Compares a few rows with the reference before anything is timed.
fn check(kernels: &dyn Kernels, format: Format, buffer: &[u8]) {
    let scalar = kernels::by_name(InstructionSet::Scalar).unwrap_or(kernels);
    let row_bytes = format.row_bytes(COLUMNS);
    let x: Vec<f32> = (0..COLUMNS).map(|i| (i % 13) as f32 / 13.0 - 0.5).collect();
    for at in 0..64 {
        let row = Row::new(format, &buffer[at * row_bytes..][..row_bytes]);
        let mut values = vec![0.0; COLUMNS];
        kernels::dequantise(format, row.bytes, &mut values);
        let magnitude: f32 = values.iter().zip(&x).map(|(w, x)| (w * x).abs()).sum();
        let (got, expected) = (kernels.dot(row, &x), scalar.dot(row, &x));
        // both add 4096 terms; a rounding is at most 2^-24 of the sum of magnitudes
        let tolerance = magnitude * COLUMNS as f32 * f32::EPSILON;
        assert!((got - expected).abs() <= tolerance, "{format} dot: {got}, the reference says {expected}");

        let (mut got, mut expected) = (x.clone(), x.clone());
        kernels.axpy(0.3, row, &mut got);
        scalar.axpy(0.3, row, &mut expected);
        for i in 0..COLUMNS {
            let tolerance = 2.0 * f32::EPSILON * (x[i].abs() + values[i].abs());
            let (got, expected) = (got[i], expected[i]);
            assert!(
                (got - expected).abs() <= tolerance,
                "{format} axpy: {got}, the reference says {expected}"
            );
        }
    }
}

/// Compares sums of rows by rounded factors with the reference: several rows, an odd number, and the most at
/// a time.
fn check_sums(kernels: &dyn Kernels, format: Format, buffer: &[u8]) {
    let scalar = kernels::by_name(InstructionSet::Scalar).unwrap_or(kernels);
    let row_bytes = format.row_bytes(COLUMNS);
    let factors: [f32; ADDED] = array::from_fn(|k| (k * 7 % ADDED) as f32 / 8.0 - 0.9);
    for count in [2, 7, ADDED] {
        let w: Vec<Row<'_>> =
            buffer.chunks_exact(row_bytes).take(count).map(|bytes| Row::new(format, bytes)).collect();
        let sums = |kernels: &dyn Kernels| {
            let mut y = vec![0.5; COLUMNS];
            kernels.down().add_rounded(&factors[..count], &w, &mut y);
            y
        };
        for (got, expected) in sums(kernels).into_iter().zip(sums(scalar)) {
            // integers are exact; one product and one sum are rounded, together or separately
            let tolerance = 4.0 * f32::EPSILON * (0.5 + got.abs());
            assert!(
                (got - expected).abs() <= tolerance,
                "{format} sums: {got}, the reference says {expected}"
            );
        }
    }
}

/// Compares products of some rows with the reference.
fn check_products(kernels: &dyn Kernels, format: Format, form: Form, buffer: &[u8]) {
    const COUNT: usize = 37;
    let scalar = kernels::by_name(InstructionSet::Scalar).unwrap_or(kernels);
    let row_bytes = format.row_bytes(COLUMNS);
    let w: Vec<Row<'_>> = buffer.chunks_exact(row_bytes).take(13).map(|b| Row::new(format, b)).collect();
    let vectors: Vec<f32> = (0..COUNT * COLUMNS).map(|i| (i % 23) as f32 / 23.0 - 0.5).collect();
    let mut words = vec![0.0; COUNT * form.vector_words(COLUMNS)];
    pack(form, COLUMNS, &vectors, &mut words);
    let products = |kernels: &dyn Kernels| {
        let mut out = vec![0.0; w.len() * COUNT];
        kernels.products(&w, Packed::new(form, COLUMNS, COUNT, &words), &mut out);
        out
    };
    for (at, row) in w.iter().enumerate() {
        let mut values = vec![0.0; COLUMNS];
        kernels::dequantise(format, row.bytes, &mut values);
        let tolerance = values.iter().map(|w| w.abs()).sum::<f32>() * COLUMNS as f32 * f32::EPSILON;
        let (got, expected) = (products(kernels), products(scalar));
        for i in at * COUNT..(at + 1) * COUNT {
            let (got, expected) = (got[i], expected[i]);
            assert!(
                (got - expected).abs() <= tolerance,
                "{format} {form:?} products: {got}, the reference says {expected}"
            );
        }
    }
}

/// Compares the products of transposed rows with the scalar reference.
fn check_transposed(kernels: &dyn Kernels, format: Format, buffer: &[u8]) {
    const COUNT: usize = 37;
    let scalar = kernels::by_name(InstructionSet::Scalar).unwrap_or(kernels);
    let row_bytes = format.row_bytes(COLUMNS);
    let w: Vec<Row<'_>> = buffer.chunks_exact(row_bytes).take(64).map(|b| Row::new(format, b)).collect();
    let values: Vec<f32> = (0..w.len() * COUNT).map(|i| (i % 23) as f32 / 23.0 - 0.5).collect();
    let mut words = vec![0.0; COUNT * Form::Q8.vector_words(w.len())];
    pack_transposed(Form::Q8, &values, COUNT, 0, &mut words);
    let x = Packed::new(Form::Q8, w.len(), COUNT, &words);
    let sums = |kernels: &dyn Kernels| {
        let mut out = vec![0.0; TRANSPOSED_COLUMNS * COUNT];
        kernels.down().add_transposed(&w, 0, x, &mut out);
        out
    };
    let mut magnitudes = vec![0.0; COLUMNS];
    for row in &w {
        let mut values = vec![0.0; COLUMNS];
        kernels::dequantise(format, row.bytes, &mut values);
        magnitudes.iter_mut().zip(values).for_each(|(all, value)| *all += value.abs());
    }
    for (i, (got, expected)) in sums(kernels).into_iter().zip(sums(scalar)).enumerate() {
        // integers are exact; two of them are added
        let tolerance = 8.0 * magnitudes[i / COUNT] * f32::EPSILON;
        assert!(
            (got - expected).abs() <= tolerance,
            "{format} transposed: {got}, the reference says {expected}"
        );
    }
}

/// The value that this share of all values does not exceed.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() as f64 * share) as usize]
}
