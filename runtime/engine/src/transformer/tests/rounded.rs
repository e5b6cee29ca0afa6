//! Vectors of 8 bits, against a model that rounds as the plan says and reads the container's own rows.
//!
//! [`Rounding`] computes token by token from the container's bytes. It decodes blocks itself and sums
//! products in double precision. It shares no kernel with the engine, only the steps between matrices and the
//! router's choice, which have their own tests.
//!
//! *Two tolerances.* If both round to the same numbers, only the order of sums differs, by `2^-24` for each
//! of up to 128 terms. Logits then agree to [`SAME`]. A value near the middle between two steps may round
//! differently here and there. A value is off by about `1e-7` of its size, at most 127 steps. That happens to
//! one value in 100,000, and a token rounds 1,000 to 2,000. After such a flip, one value is off by a step,
//! and may flip others.
//!
//! Each token therefore also stands once at the start of a sequence, where no other token's flip reaches it.
//! In every case [`SAME_TOKENS`] of them have no flip, which no other rule of rounding achieves. Of tokens in
//! one sequence, as many have none over all cases.
//!
//! Any rounding changes a logit by no more than all roundings together. A step is `m / 127`, with `m` the
//! largest of 32 values, about three times their root mean square. An error spread evenly over a step has a
//! mean square of `m / 127 / sqrt(12)`: 0.7 % of the vector, and of a product with it. A logit has passed
//! four rounded vectors in each of two layers, and one in the head, with independent errors.
//! So its error is `0.7 % * sqrt(2 * 4 + 1)` = 2 % of the logits' root mean square. The largest of 480 numbers
//! is three times that: [`ROUNDED`].

use std::collections::BTreeMap;

use kernels::{Kernels, rms_norm, softmax};

use super::super::vectors::add;
use super::*;
use crate::container::Directory;
use crate::model::config::Latent;
use crate::moe;

/// Tolerance for logits rounded to the same numbers, relative to their root mean square.
const SAME: f32 = 3e-5;
/// The smallest share of tokens with the same logits.
const SAME_TOKENS: f32 = 0.75;
/// Tolerance for logits rounded differently or not at all, relative to their root mean square.
const ROUNDED: f32 = 0.06;
/// [`ROUNDED`] for latent attention, with three more rounded vectors a layer: `0.7 % * sqrt(2 * 7 + 1)` is
/// 2.7 %, times three.
const ROUNDED_LATENT: f32 = 0.08;

/// Values of a block.
const BLOCK: usize = 32;
/// Neighbours by rank that share a sum, in layers of 96 to 384 neurons.
const RUN: usize = 32;
/// Active neurons of a run that are rounded together.
const TOGETHER: usize = 16;

/// Values as the nearest integers up to `most` under one scale, and that scale.
fn steps(values: &[f32], most: f32) -> (Vec<i32>, f32) {
    let largest = compare::largest(values);
    if largest == 0.0 {
        return (vec![0; values.len()], 0.0);
    }
    let inverse = most / largest;
    let whole = values.iter().map(|value| (value * inverse).round_ties_even() as i32);
    (whole.collect(), largest / most)
}

/// A rounded vector, 32 values under one scale.
fn rounded(x: &[f32]) -> Vec<f32> {
    let block = |block: &[f32]| {
        let (whole, scale) = steps(block, 127.0);
        whole.into_iter().map(move |q| q as f32 * scale)
    };
    x.chunks(BLOCK).flat_map(block).collect()
}

/// A stored row of `Q4_0` or `Q8_0`: scales of blocks, steps of values.
#[derive(Debug, Clone)]
struct Blocks {
    scales: Vec<f32>,
    steps: Vec<i32>,
}

impl Blocks {
    /// Decodes blocks, or four of them in a piece with their scales in front.
    fn new(format: Format, row: &[u8]) -> Self {
        let (mut scales, mut steps) = (Vec::new(), Vec::new());
        let (per_piece, bytes) = match format {
            Format::Q4_0X4 => (4, 16),
            Format::Q4_0 => (1, 16),
            _ => (1, 32),
        };
        for piece in row.chunks_exact((2 + bytes) * per_piece) {
            let (of_scales, of_steps) = piece.split_at(2 * per_piece);
            for (scale, values) in of_scales.chunks_exact(2).zip(of_steps.chunks_exact(bytes)) {
                scales.push(half::f16::from_le_bytes([scale[0], scale[1]]).to_f32());
                if format == Format::Q8_0 {
                    steps.extend(values.iter().map(|byte| i32::from(byte.cast_signed())));
                } else {
                    steps.extend(values.iter().map(|byte| i32::from(byte & 15) - 8));
                    steps.extend(values.iter().map(|byte| i32::from(byte >> 4) - 8));
                }
            }
        }
        Self { scales, steps }
    }

    fn value(&self, column: usize) -> f32 {
        self.scales[column / BLOCK] * self.steps[column] as f32
    }

    fn values(&self) -> Vec<f32> {
        (0..self.steps.len()).map(|column| self.value(column)).collect()
    }
}

/// Which rule of rounding is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// No rounding.
    Nothing,
    /// As in decode.
    Decode,
    /// As in prefill.
    Prompt,
}

/// A neuron of the container.
struct Neuron {
    expert: usize,
    gate: Vec<f32>,
    up: Vec<f32>,
    down: Blocks,
    /// The neuron's column of its piece of down.
    column: Vec<f32>,
}

/// A neuron of a container with pieces of down.
fn of_piece(d: &Directory, bytes: &[u8], layer: usize, rank: usize, expert: usize) -> Neuron {
    let (stored, slice) = (d.stored(layer), d.bundle.slice_neurons as usize);
    let (first, at) = (rank / slice, rank % slice);
    let span = stored.bundle.slice_span(first as u64, Part::Whole);
    let bytes = &bytes[(d.layer_offsets[layer] + span.offset) as usize..][..span.bytes as usize];
    let [gate, up] = [stored.bundle.gate_bytes, stored.bundle.up_bytes].map(|bytes| bytes as usize);
    let inputs = &bytes[at * (gate + up)..][..gate + up];
    let piece = bytes[slice * (gate + up)..].chunks_exact(stored.down_format.row_bytes(slice));
    let column = |row: &[u8]| Blocks::new(stored.down_format, row).value(at);
    Neuron {
        expert,
        gate: Blocks::new(stored.gate_format, &inputs[..gate]).values(),
        up: Blocks::new(stored.up_format, &inputs[gate..]).values(),
        down: Blocks { scales: Vec::new(), steps: Vec::new() },
        column: piece.take(d.config.width).map(column).collect(),
    }
}

/// A model from its container's bytes, `Q4_0` or `Q8_0` throughout.
pub(super) struct Rounding<'a> {
    container: &'a Container,
    what: What,
    /// Whether prefill multiplies by a transposed down.
    transposes: bool,
    /// Rows of each matrix in blocks, by name.
    matrices: BTreeMap<String, Vec<Vec<f32>>>,
    /// Rows of each float matrix, by name.
    floats: BTreeMap<String, Vec<Vec<f32>>>,
    /// `[layer][rank]`.
    neurons: Vec<Vec<Neuron>>,
    /// By layer, a row for each position.
    keys: Vec<Vec<Vec<f32>>>,
    values: Vec<Vec<Vec<f32>>>,
}

impl<'a> Rounding<'a> {
    fn new(container: &'a Container, kernels: &dyn Kernels, what: What) -> Self {
        let (d, bytes) = (&container.directory, std::fs::read(&container.path).unwrap());
        let c = &d.config;
        let (mut matrices, mut floats) = (BTreeMap::new(), BTreeMap::new());
        for tensor in &d.tensors {
            let start = (d.fixed.offset + tensor.offset) as usize;
            let rows = bytes[start..].chunks_exact(tensor.format.row_bytes(tensor.columns)).take(tensor.rows);
            if tensor.format == Format::F32 {
                let number = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
                let row = |row: &[u8]| row.as_chunks().0.iter().map(number).collect();
                floats.insert(tensor.name.clone(), rows.map(row).collect());
            } else {
                let row = |row: &[u8]| Blocks::new(tensor.format, row).values();
                matrices.insert(tensor.name.clone(), rows.map(row).collect());
            }
        }
        let count = container.neurons();
        let table = |layer: usize, rank: usize| {
            let at = d.tables.offset as usize + 4 * (3 * layer * count + rank);
            u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
        };
        let neuron = |layer: usize, rank: usize| {
            let stored = d.stored(layer);
            if !d.down_transposed {
                return of_piece(d, &bytes, layer, rank, table(layer, rank) / c.ffn_width());
            }
            let span = stored.bundle.span(rank as u64, Part::Whole);
            let bundle = &bytes[(d.layer_offsets[layer] + span.offset) as usize..][..span.bytes as usize];
            let (gate, rest) = bundle.split_at(stored.bundle.gate_bytes as usize);
            let (up, down) = rest.split_at(stored.bundle.up_bytes as usize);
            Neuron {
                expert: table(layer, rank) / c.ffn_width(),
                gate: Blocks::new(stored.gate_format, gate).values(),
                up: Blocks::new(stored.up_format, up).values(),
                down: Blocks::new(stored.down_format, down),
                column: Vec::new(),
            }
        };
        Self {
            what,
            transposes: d.architecture().transposes_down() && kernels.down().transposes(d.down_format),
            matrices,
            floats,
            neurons: (0..c.layers()).map(|l| (0..count).map(|rank| neuron(l, rank)).collect()).collect(),
            keys: vec![Vec::new(); c.layers()],
            values: vec![Vec::new(); c.layers()],
            container,
        }
    }

    /// The input of products with blocks.
    fn input(&self, x: &[f32]) -> Vec<f32> {
        if self.what == What::Nothing { x.to_vec() } else { rounded(x) }
    }

    fn times(&self, name: &str, x: &[f32]) -> Vec<f32> {
        let x = self.input(x);
        self.matrices[name].iter().map(|row| dot(row, &x)).collect()
    }

    fn norm(&self, name: &str, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        rms_norm(x, &self.floats[name][0], self.container.directory.config.norm_epsilon, &mut out);
        out
    }

    /// Computes the logits after one more token.
    fn step(&mut self, token: u32) -> Vec<f32> {
        let c = &self.container.directory.config;
        let mut x = self.matrices["token_embd.weight"][token as usize].clone();
        for layer in 0..c.layers() {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            let normed = self.norm(&name("attn_norm"), &x);
            let attended = self.attention(layer, &normed);
            add(&mut x, &self.times(&name("attn_output"), &attended), 1.0);
            let normed = self.norm(&name("ffn_norm"), &x);
            add(&mut x, &self.feed_forward(layer, &normed), 1.0);
        }
        let normed = self.norm("output_norm.weight", &x);
        let own = self.matrices.contains_key("output.weight");
        self.times(if own { "output.weight" } else { "token_embd.weight" }, &normed)
    }

    fn attention(&mut self, layer: usize, x: &[f32]) -> Vec<f32> {
        let c = &self.container.directory.config;
        if let Some(latent) = c.attention(layer).latent {
            return self.latent_attention(layer, latent, x);
        }
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let [mut query, mut key, value] =
            ["attn_q", "attn_k", "attn_v"].map(|part| self.times(&name(part), x));
        let (a, rotary) = (c.attention(layer), Rotary::new(&c.ropes[0], 32));
        let mut rotation = vec![Rotation::default(); rotary.pairs()];
        rotary.fill(self.keys[layer].len(), &mut rotation);
        rotary.rotate(&mut query, a.head_width, &rotation);
        rotary.rotate(&mut key, a.head_width, &rotation);
        self.keys[layer].push(key);
        self.values[layer].push(value);
        let head = |head: usize| {
            let query = &query[head * a.head_width..][..a.head_width];
            let own = head / (a.heads / a.kv_heads) * a.head_width..;
            let score = |key: &Vec<f32>| dot(query, &key[own.clone()]) / (a.head_width as f32).sqrt();
            let mut scores: Vec<f32> = self.keys[layer].iter().map(score).collect();
            softmax(&mut scores);
            let column = |i: usize| {
                let values: Vec<f32> = self.values[layer].iter().map(|v| v[own.start + i]).collect();
                dot(&scores, &values)
            };
            (0..a.head_width).map(column).collect::<Vec<f32>>()
        };
        (0..a.heads).flat_map(head).collect()
    }

    /// Latent attention, with each head's vector rounded before its own matrix.
    fn latent_attention(&mut self, layer: usize, latent: Latent, x: &[f32]) -> Vec<f32> {
        let c = &self.container.directory.config;
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let (a, Latent { rank, plain, value, .. }) = (c.attention(layer), latent);
        let low = self.norm(&name("attn_q_a_norm"), &self.times(&name("attn_q_a"), x));
        let query = self.times(&name("attn_q_b"), &low);
        let down = self.times(&name("attn_kv_a_mqa"), x);
        let rotary = Rotary::new(&c.ropes[0], 32);
        let mut rotation = vec![Rotation::default(); rotary.pairs()];
        rotary.fill(self.keys[layer].len(), &mut rotation);
        let rotated = |values: &[f32]| {
            let mut values = values.to_vec();
            rotary.rotate(&mut values, latent.rotated, &rotation);
            values
        };
        let kept = [self.norm(&name("attn_kv_a_norm"), &down[..rank]), rotated(&down[rank..])].concat();
        self.keys[layer].push(kept);
        let of_head = |part: &str, head: usize, x: &[f32]| -> Vec<f32> {
            let (all, x) = (&self.matrices[&name(part)], self.input(x));
            let count = all.len() / a.heads;
            all[head * count..][..count].iter().map(|row| dot(row, &x)).collect()
        };
        let head = |head: usize| {
            let query = &query[head * latent.query_width()..][..latent.query_width()];
            let query = [of_head("attn_k_b", head, &query[..plain]), rotated(&query[plain..])].concat();
            let mut scores: Vec<f32> =
                self.keys[layer].iter().map(|kept| dot(&query, kept) * a.scale).collect();
            softmax(&mut scores);
            let read = |i: usize| {
                let values: Vec<f32> = self.keys[layer].iter().map(|kept| kept[i]).collect();
                dot(&scores, &values)
            };
            let values = of_head("attn_v_b", head, &(0..rank).map(read).collect::<Vec<f32>>());
            assert_eq!(values.len(), value, "a head's values");
            values
        };
        (0..a.heads).flat_map(head).collect()
    }

    fn feed_forward(&self, layer: usize, x: &[f32]) -> Vec<f32> {
        let c = &self.container.directory.config;
        let mut weights = vec![0.0; c.experts()];
        match self.floats.get(&format!("blk.{layer}.ffn_gate_inp.weight")) {
            None => weights[0] = 1.0,
            Some(router) => {
                let mut logits: Vec<f32> = router.iter().map(|row| dot(row, x)).collect();
                let described = c.network().router.as_ref().unwrap();
                moe::route(&mut logits, described, None).into_iter().for_each(|(e, w)| weights[e] = w);
            }
        }
        let (x, neurons) = (self.input(x), &self.neurons[layer]);
        let value = |neuron: &Neuron| match weights[neuron.expert] {
            0.0 => 0.0,
            weight => weight * c.activation().apply(dot(&neuron.gate, &x), dot(&neuron.up, &x)),
        };
        let values: Vec<f32> = neurons.iter().map(value).collect();
        let d = &self.container.directory;
        if !d.down_transposed {
            let values = self.input(&values);
            let terms = |i: usize| {
                neurons.iter().zip(&values).map(move |(n, v)| f64::from(*v) * f64::from(n.column[i]))
            };
            return (0..c.width).map(|i| terms(i).sum::<f64>() as f32).collect();
        }
        let interleaved = d.down_format == Format::Q4_0X4;
        match self.what {
            What::Decode if interleaved => self.factors_rounded(neurons, &values),
            What::Prompt if self.transposes => self.transposed(neurons, &values),
            _ => (0..c.width)
                .map(|i| {
                    let terms = neurons.iter().zip(&values);
                    terms.map(|(n, v)| f64::from(*v) * f64::from(n.down.value(i))).sum::<f64>() as f32
                })
                .collect(),
        }
    }

    /// Decode: rounds factor times scale of sixteen active neighbours to 8 bits, block by block.
    fn factors_rounded(&self, neurons: &[Neuron], values: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0_f64; self.container.directory.config.width];
        for (neurons, values) in neurons.chunks(RUN).zip(values.chunks(RUN)) {
            let active: Vec<_> = neurons.iter().zip(values).filter(|(_, value)| **value != 0.0).collect();
            for group in active.chunks(TOGETHER) {
                for (block, out) in out.chunks_mut(BLOCK).enumerate() {
                    let factors: Vec<f32> = group.iter().map(|(n, v)| *v * n.down.scales[block]).collect();
                    let (whole, scale) = steps(&factors, 127.0);
                    for (i, out) in out.iter_mut().enumerate() {
                        let products =
                            group.iter().zip(&whole).map(|((n, _), q)| q * n.down.steps[block * BLOCK + i]);
                        *out += f64::from(scale) * f64::from(products.sum::<i32>());
                    }
                }
            }
        }
        out.into_iter().map(|sum| sum as f32).collect()
    }

    /// A prompt whose neurons all fire: rounds 32 values under one scale, and a column's 32 weights to six
    /// bits.
    fn transposed(&self, neurons: &[Neuron], values: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0_f64; self.container.directory.config.width];
        for (neurons, values) in neurons.chunks(BLOCK).zip(values.chunks(BLOCK)) {
            let (factors, of_factors) = steps(values, 127.0);
            for (i, out) in out.iter_mut().enumerate() {
                let column: Vec<f32> = neurons.iter().map(|neuron| neuron.down.value(i)).collect();
                let (weights, of_weights) = steps(&column, 31.0);
                let whole: i32 = factors.iter().zip(&weights).map(|(a, b)| a * b).sum();
                *out += f64::from(of_factors) * f64::from(of_weights) * f64::from(whole);
            }
        }
        out.into_iter().map(|sum| sum as f32).collect()
    }

    /// The logits after each token of one sequence.
    pub(super) fn logits(container: &'a Container, kernels: &dyn Kernels, what: What) -> Vec<Vec<f32>> {
        let mut model = Self::new(container, kernels, what);
        TOKENS.iter().map(|&token| model.step(token)).collect()
    }

    /// The logits after each token, each at the start of a sequence.
    fn logits_alone(container: &'a Container, kernels: &dyn Kernels, what: What) -> Vec<Vec<f32>> {
        let mut model = Self::new(container, kernels, what);
        let mut alone = |token| {
            model.keys.iter_mut().chain(&mut model.values).for_each(Vec::clear);
            model.step(token)
        };
        TOKENS.into_iter().map(&mut alone).collect()
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
}

fn root_mean_square(rows: &[Vec<f32>]) -> f32 {
    let (squares, count) =
        rows.iter().flatten().fold((0.0, 0.0_f32), |(sum, count), x| (sum + x * x, count + 1.0));
    (squares / count).sqrt()
}

/// The difference of each token's logits, relative to the root mean square of all.
fn off(found: &[Vec<f32>], expected: &[Vec<f32>]) -> Vec<f32> {
    let size = root_mean_square(expected);
    assert_eq!(found.len(), expected.len(), "a row a token");
    found.iter().zip(expected).map(|(a, b)| largest_difference(a, b) / size).collect()
}

/// Models: family, experts, format, width, and neurons of a slice with pieces of down (0 without). They cover
/// interleaved nibbles, nibbles whose rows are not whole groups of four, and bytes. Neurons can be zero in
/// `bamboo`, and never are in `llama`.
const MODELS: [(&str, usize, Format, usize, usize); 12] = [
    ("bamboo", 1, Format::Q4_0, 128, 0),
    ("bamboo", 4, Format::Q4_0, 128, 0),
    ("bamboo", 1, Format::Q4_0, 64, 0),
    ("bamboo", 1, Format::Q8_0, 64, 0),
    ("llama", 1, Format::Q4_0, 128, 0),
    ("llama", 4, Format::Q4_0, 128, 0),
    ("llama", 1, Format::Q8_0, 64, 0),
    ("llama", 1, Format::Q4_0, 128, 32),
    ("llama", 4, Format::Q4_0, 64, 96),
    ("llama", 4, Format::Q8_0, 64, 32),
    ("deepseek2", 1, Format::Q8_0, 64, 0),
    ("deepseek2", 4, Format::Q4_0, 64, 0),
];

/// The logits after each token: of one sequence, and at the start of sequences.
fn found(container: &Container, plan: &Plan, what: What) -> [Vec<Vec<f32>>; 2] {
    let (mut engine, rows) = (start(container, plan), rows(&TOKENS));
    let mut step = |row: Token| match what {
        What::Prompt => engine.prefill(&[row], None).unwrap().to_vec(),
        _ => engine.decode(&[row]).unwrap().to_vec(),
    };
    let alone = rows.iter().map(|row| step(Token { position: 0, ..*row })).collect();
    let mut sequence = Vec::new();
    if what == What::Prompt {
        engine.prefill(&rows, Some(&mut |_, logits| sequence.push(logits.to_vec()))).unwrap();
    } else {
        sequence.extend(rows.into_iter().map(step));
    }
    [sequence, alone]
}

#[test]
fn vectors_of_eight_bits_meet_the_containers_own_rows_as_the_plan_says() {
    let (mut tokens, mut same) = (0, 0);
    let count_same = |off: &[f32]| off.iter().filter(|&&off| off < SAME).count();
    for (family, experts, format, width, slice) in MODELS {
        let bytes = model_of(family, experts, format, width);
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let container = match slice {
            0 => container(folder.path(), &source),
            _ => container_in_pieces(folder.path(), &source, slice),
        };
        let most = if family == "deepseek2" { ROUNDED_LATENT } else { ROUNDED };
        let interleaved = slice == 0 && container.directory.down_format == Format::Q4_0X4;
        for kernels in kernels_of_all_sets() {
            let plain = Rounding::logits(&container, kernels, What::Nothing);
            let [decode_rounds, prompt_rounds] = [What::Decode, What::Prompt].map(|what| {
                [Rounding::logits, Rounding::logits_alone].map(|logits| logits(&container, kernels, what))
            });
            let name = format!("{family} {experts} {format} {width} {slice} {}", kernels.instruction_set());
            // where prefill rounds more than decode, neither passes for the other
            let apart = off(&decode_rounds[1], &prompt_rounds[1]);
            let alike = count_same(&apart) as f32;
            assert_eq!(alike < 0.5 * SAME_TOKENS * apart.len() as f32, interleaved, "{name}: {apart:?}");

            let levels: &[&str] = if family == "bamboo" { &["dense", "exact-gate"] } else { &["dense"] };
            for level in levels {
                let knobs = match slice as u32 {
                    0 => Knobs { hot: 20, cold: 40, buffers: 8, ..Knobs::default() },
                    // a mixture has four experts of one slice
                    slice => {
                        let buffer_bytes = container.directory.bundle.read_bytes_max();
                        let cold = if experts == 1 { 0 } else { slice };
                        Knobs { hot: slice, cold, buffers: 8, buffer_bytes, ..Knobs::default() }
                    }
                };
                let mut plan = plan(&container, level, &knobs);
                "q8".clone_into(&mut plan.quality.activations);
                kernels.instruction_set().name().clone_into(&mut plan.quality.instruction_set);
                for (what, expected) in [(What::Decode, &decode_rounds), (What::Prompt, &prompt_rounds)] {
                    let name = format!("{name} {level} {what:?}");
                    let [sequence, alone] = found(&container, &plan, what);
                    let off_plain = off(&sequence, &plain);
                    let rounds = |off: &f32| (10.0 * SAME..most).contains(off);
                    assert!(off_plain.iter().all(rounds), "{name}: {off_plain:?}");
                    let [sequence, alone] =
                        [(sequence, &expected[0]), (alone, &expected[1])].map(|(a, b)| off(&a, b));
                    assert!(sequence.iter().chain(&alone).all(|&off| off < most), "{name}: {sequence:?}");
                    let least = SAME_TOKENS * alone.len() as f32;
                    assert!(count_same(&alone) as f32 >= least, "{name}: {alone:?}");
                    (tokens, same) = (tokens + sequence.len(), same + count_same(&sequence));
                }
            }
        }
    }
    assert!(same as f32 >= SAME_TOKENS * tokens as f32, "{same} of {tokens} tokens are rounded the same way");
}
