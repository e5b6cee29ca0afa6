//! Loops of the engine's own kernels over memory. `profile` times them, and the probe times them again; the
//! caller reads the clock.

use std::{array, iter};

use kernels::{Form, Format, Input, Kernels, Matrix, Rounded, Row};
use plans::device::LONG_ROW_VALUES;
use plans::engine::{ADDED, SUMS, sum_words};

use crate::pool::Pool;

/// Columns of cached rows: with its vector at most 16 KiB, half of a small first-level cache.
const CACHED_COLUMNS: usize = 2048;
/// Columns of matrices and bundles, as in a model of 7 billion weights.
pub const COLUMNS: usize = LONG_ROW_VALUES as usize;
/// Weights of one matrix, in every format: the work between two synchronisations of all threads. A projection of a model of 7 billion
/// weights has as many.
pub const MATRIX_VALUES: usize = COLUMNS * COLUMNS;
/// One neuron in about this many is requested.
const REQUESTED_ONE_IN: u64 = 8;
/// Neurons that a thread claims together.
const CLUSTER_NEURONS: usize = 32;
/// Weight bytes and columns of a small model's matrix, and the gap between two matrices.
const SMALL_BYTES: usize = 128 << 10;
const SMALL_COLUMNS: usize = 1024;
const SMALL_APART_BYTES: usize = 2 * SMALL_BYTES;

/// Calls `with` with a step of dot products over cached rows, which returns its FLOPs. Any number of threads
/// may call the step at once.
pub fn dots_in_cache<R>(
    kernels: &dyn Kernels,
    format: Format,
    with: impl FnOnce(&(dyn Fn() -> f64 + Sync)) -> R,
) -> R {
    const DOTS: usize = 32;
    let weights = vec![0x3c_u8; format.row_bytes(CACHED_COLUMNS)];
    let (x, mut words) = (vec![0.5_f32; CACHED_COLUMNS], vec![0.0; Rounded::words(CACHED_COLUMNS)]);
    let x = Input::new(&x, true, &mut words);
    with(&|| {
        let row = Row::new(format, std::hint::black_box(&weights));
        let sum: f32 = (0..DOTS).map(|_| std::hint::black_box(x).dot(kernels, row)).sum();
        std::hint::black_box(sum);
        (2 * CACHED_COLUMNS * DOTS) as f64
    })
}

/// A walk over consecutive matrices in a buffer larger than any cache.
#[derive(Debug)]
pub struct DenseWalk<'a> {
    kernels: &'a dyn Kernels,
    format: Format,
    buffer: &'a [u8],
    /// Bytes between two matrices.
    apart: usize,
    next: usize,
    x: Vec<f32>,
    words: Vec<f32>,
    out: Vec<f32>,
}

impl<'a> DenseWalk<'a> {
    /// A walk over matrices of [`MATRIX_VALUES`], without gaps.
    pub fn new(kernels: &'a dyn Kernels, format: Format, columns: usize, buffer: &'a [u8]) -> Self {
        Self::of(format.row_bytes(MATRIX_VALUES), columns, 0, kernels, format, buffer)
    }

    /// A walk over matrices as in a small model, with gaps, so that reading one prefetches nothing of the
    /// next.
    pub fn small(kernels: &'a dyn Kernels, format: Format, buffer: &'a [u8]) -> Self {
        Self::of(SMALL_BYTES, SMALL_COLUMNS, SMALL_APART_BYTES, kernels, format, buffer)
    }

    /// A walk over matrices of at most `bytes` bytes with rows of `columns` values, `apart` bytes apart.
    fn of(
        bytes: usize,
        columns: usize,
        apart: usize,
        kernels: &'a dyn Kernels,
        format: Format,
        buffer: &'a [u8],
    ) -> Self {
        let rows = bytes.min(buffer.len()) / format.row_bytes(columns);
        let (x, words) = (vec![0.5; columns], vec![0.0; Rounded::words(columns)]);
        Self { kernels, format, buffer, apart, next: 0, x, words, out: vec![0.0; rows] }
    }

    /// Rows of one matrix.
    pub fn rows(&self) -> usize {
        self.out.len()
    }

    /// Bytes of one matrix.
    pub fn bytes(&self) -> usize {
        self.out.len() * self.format.row_bytes(self.x.len())
    }

    /// Multiplies one matrix; returns its bytes.
    pub fn step(&mut self, pool: &Pool) -> f64 {
        let (rows, columns, bytes) = (self.out.len(), self.x.len(), self.bytes());
        if self.next + bytes > self.buffer.len() {
            self.next = 0;
        }
        let (kernels, format) = (self.kernels, self.format);
        let x = Input::new(&self.x, true, &mut self.words);
        let w = Matrix { format, rows, columns, bytes: &self.buffer[self.next..][..bytes] };
        pool.share_rows(&mut self.out, || (), |start, out| x.rows(kernels, w, start, out));
        self.next += bytes + self.apart;
        bytes as f64
    }
}

/// A token's sparse feed-forward network, repeated as the engine computes it: gates of all requested neurons,
/// ups and downs of the half whose gate fires.
#[derive(Debug)]
pub struct SparseWalk<'a> {
    kernels: &'a dyn Kernels,
    neurons: Neurons<'a>,
    x: Vec<f32>,
    words: Vec<f32>,
    values: Vec<f32>,
    /// Indices of firing neurons of a step, by sum.
    order: Vec<usize>,
    sums: Vec<f32>,
}

impl<'a> SparseWalk<'a> {
    /// Neurons with rows of `columns` values, all over `buffer`.
    pub fn new(kernels: &'a dyn Kernels, format: Format, columns: usize, buffer: &'a [u8]) -> Self {
        let neurons = Neurons::new(format, format.row_bytes(columns), buffer);
        let [x, words] = [columns, Rounded::words(columns)].map(|count| vec![0.5; count]);
        let [values, sums] = [neurons.step, SUMS * sum_words(columns)].map(|count| vec![0.0; count]);
        let order = vec![0; neurons.step];
        Self { kernels, neurons, x, words, values, order, sums }
    }

    /// Moves to the next step's neurons.
    pub fn go_on(&mut self) {
        self.neurons.go_on();
    }

    /// Computes gates and ups; threads share neurons. Returns the number of rows.
    pub fn gate_up(&mut self, pool: &Pool) -> f64 {
        let (kernels, neurons) = (self.kernels, &self.neurons);
        let x = Input::new(&self.x, true, &mut self.words);
        let all = |start: usize, values: &mut [f32]| {
            for (i, value) in (start..).zip(values) {
                // prefetch the next neuron's row while this one is computed
                let dot = |part| x.dot(kernels, neurons.row(i, part, i + 1));
                let gate = std::hint::black_box(dot(0));
                *value = if neurons.fires(i) { (gate * dot(1)).clamp(-1e-3, 1e-3) } else { gate };
            }
        };
        pool.share_mut(&mut self.values, CLUSTER_NEURONS, || (), all);
        let fire = (0..neurons.step).filter(|&index| neurons.fires(index)).count();
        (neurons.step + fire) as f64
    }

    /// Computes downs: adds `group` neighbours at a time to a sum; threads share the sums. Returns the number
    /// of rows.
    pub fn down(&mut self, pool: &Pool, group: usize) -> f64 {
        // nonzero factors, whatever the buffer holds
        const FACTORS: [f32; ADDED] = [1e-3; ADDED];
        let (kernels, neurons, words) = (self.kernels, &self.neurons, sum_words(self.x.len()));
        let group = group.clamp(1, ADDED);
        // by sum, as in the engine: count, then place
        let firing = || (0..neurons.step).filter(|&index| neurons.fires(index)).enumerate();
        let sum_of = |nth: usize| nth / group % SUMS;
        let mut starts = [0; SUMS + 1];
        firing().for_each(|(nth, _)| starts[sum_of(nth) + 1] += 1);
        for sum in 0..SUMS {
            starts[sum + 1] += starts[sum];
        }
        let mut ends = starts;
        for (nth, index) in firing() {
            let end = &mut ends[sum_of(nth)];
            self.order[*end] = index;
            *end += 1;
        }
        let order = &self.order[..starts[SUMS]];
        let add = |start: usize, sum: &mut [f32]| {
            let sum_number = start / words;
            let mut groups = order[starts[sum_number]..starts[sum_number + 1]].chunks(group).peekable();
            while let Some(group) = groups.next() {
                let next = groups.peek().unwrap_or(&group);
                let row = |k: usize| {
                    let at = |group: &[usize]| group[k.min(group.len() - 1)];
                    neurons.row(at(group), 2, at(next))
                };
                let rows: [_; ADDED] = array::from_fn(row);
                kernels.down().add_rows(Form::Q8, &FACTORS[..group.len()], &rows[..group.len()], sum);
            }
        };
        pool.share_mut(&mut self.sums, words, || (), add);
        order.len() as f64
    }
}

/// Scattered neurons in a buffer larger than any cache: gates and ups first, then downs.
#[derive(Debug)]
struct Neurons<'a> {
    format: Format,
    row_bytes: usize,
    buffer: &'a [u8],
    all: usize,
    /// Requested neurons, ascending.
    requested: Vec<usize>,
    /// First requested neuron of the step, and the number of neurons in it.
    first: usize,
    step: usize,
    /// Offset of all neurons; each pass through the buffer uses other ones.
    moved: usize,
}

impl<'a> Neurons<'a> {
    fn new(format: Format, row_bytes: usize, buffer: &'a [u8]) -> Self {
        let all = buffer.len() / (3 * row_bytes);
        let mut random = Random::new(1);
        let mut gap = |most: u64| random.below(most) as usize;
        let first = gap(REQUESTED_ONE_IN);
        let next = |at: &usize| Some(at + 1 + gap(2 * REQUESTED_ONE_IN - 1));
        let requested: Vec<usize> =
            iter::successors(Some(first), next).take_while(|&neuron| neuron < all).collect();
        // enough to make a layer's step worth synchronising for
        let step = (format.row_bytes(MATRIX_VALUES) / (3 * row_bytes)).min(requested.len());
        Self { format, row_bytes, buffer, all, requested, first: 0, step, moved: 0 }
    }

    /// Moves to the next step's neurons.
    fn go_on(&mut self) {
        self.first += self.step;
        if self.first + self.step > self.requested.len() {
            self.first = 0;
            self.moved = (self.moved + 1) % self.all;
        }
    }

    /// The `index`-th neuron of the step.
    fn neuron(&self, index: usize) -> usize {
        let at = self.requested[self.first + index.min(self.step - 1)] + self.moved;
        if at < self.all { at } else { at - self.all }
    }

    /// Whether the gate of the `index`-th neuron fires: half of all, without a pattern that a processor
    /// predicts.
    fn fires(&self, index: usize) -> bool {
        (self.neuron(index) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 0
    }

    /// The gate (0), up (1) or down (2) row of the `index`-th neuron; prefetches the same row of `next`.
    fn row(&self, index: usize, part: usize, next: usize) -> Row<'a> {
        let bytes = |index: usize| -> &'a [u8] {
            let neuron = self.neuron(index);
            let at = if part < 2 { 2 * neuron + part } else { 2 * self.all + neuron };
            &self.buffer[at * self.row_bytes..][..self.row_bytes]
        };
        Row::new(self.format, bytes(index)).before(bytes(next))
    }
}

/// Pseudo-random numbers (xorshift64*), equal in every run and good enough to scatter reads.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator with a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit`, which must not be zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        ((u128::from(value) * u128::from(limit)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_stay_below_their_limit_and_spread() {
        let mut random = Random::new(0);
        let mut seen = [0; 10];
        for _ in 0..10_000 {
            seen[random.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
    }

    #[test]
    fn steps_work_over_any_bytes_that_an_engine_holds() {
        let pool = Pool::new(&[0]).unwrap();
        // empty slots, weights, and NaN
        for byte in [0x00, 0x3c, 0xff] {
            let memory = vec![byte; 8 << 20];
            for format in Format::ALL {
                let mut dense = DenseWalk::new(kernels::best(), format, COLUMNS, &memory);
                assert!(dense.step(&pool) > 0.0, "{format} {byte}");
                let mut sparse = SparseWalk::new(kernels::best(), format, COLUMNS, &memory);
                sparse.go_on();
                assert!(sparse.gate_up(&pool) > 0.0 && sparse.down(&pool, 2) > 0.0, "{format} {byte}");
            }
        }
    }
}
