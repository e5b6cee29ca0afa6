//! Recall and precision of look-ahead, counted by the engine and computed from the reference.
//!
//! A layer's expected input is `x / rms(x) * w`, with `x` the stream before the previous layer adds to it and
//! `w` the layer's own norm. The reference gives the previous layer's input, which is the same with that
//! layer's `w`. A plain list, most recent first, holds the neurons in memory.
//!
//! The engine counts reads, which may hold neighbours, and prefetches only while there is time. This test
//! counts single neurons without a time limit. The engine's recall is therefore lower. Its precision may be
//! higher, because it starts with the surest.

use std::collections::BTreeMap;

use plans::engine::{PREFETCH_ONE_IN, PREFETCHED_FRACTION, PREFETCHED_USED_FRACTION};

use super::*;
use crate::model::tokenizer::Tokenizer;
use crate::moe;
use crate::reference::Observer;
use kernels::Matrix;

/// Tokens of held-out text.
const TOKENS: usize = 60;
/// Largest difference of engine and reference: one counts reads, one neurons, and neighbours share a read.
const CLOSE: f64 = 0.1;
/// Largest gain in precision from starting with the surest.
const SUREST: f64 = 0.25;
/// Largest shortfall of recall and precision below the defaults of plans without a profile of them.
const ASSUMED_TOO_MUCH: f64 = 0.55;

/// The neurons requested, and the neurons that look-ahead would request: ranks by layer, for each token.
struct Requested<'a> {
    source: &'a SourceModel<'a>,
    /// `[layer][source index]`.
    ranks: Vec<Vec<u32>>,
    /// `[layer]` of the current token.
    requested: Vec<Vec<u32>>,
    guessed: Vec<Vec<u32>>,
}

impl Requested<'_> {
    fn norm(&self, layer: usize) -> Vec<f32> {
        let norm = self.source.part(layer, Role::FfnNorm).unwrap();
        let mut values = vec![0.0; norm.columns];
        dequantise(norm.format, norm.bytes, &mut values);
        values
    }

    fn rank(&self, layer: usize, expert: usize, neuron: usize) -> u32 {
        self.ranks[layer][expert * self.source.config().ffn_width() + neuron]
    }
}

fn times(w: Matrix<'_>, x: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; w.rows];
    best().rows(w, 0, x, &mut out);
    out
}

impl Observer for Requested<'_> {
    fn feed_forward(&mut self, layer: usize, expert: usize, input: &[f32], gate: &[f32], _: &[f32]) {
        let fires = |gate: &[f32]| -> Vec<usize> { (0..gate.len()).filter(|&i| gate[i] > 0.0).collect() };
        let requested = fires(gate).into_iter().map(|neuron| self.rank(layer, expert, neuron));
        let requested: Vec<u32> = requested.collect();
        self.requested[layer].extend(requested);
        let next = layer + 1;
        // once a layer in a mixture: every expert has the same input
        if next == self.ranks.len() || !self.guessed[next].is_empty() {
            return;
        }
        let weights = self.norm(layer).into_iter().zip(self.norm(next));
        let x: Vec<f32> = input.iter().zip(weights).map(|(x, (own, next))| x / own * next).collect();
        let described = self.source.config().network().router.as_ref();
        let routed = match self.source.router(next).zip(described) {
            None => vec![(0, 1.0)],
            Some((matrix, router)) => moe::route(&mut times(matrix, &x), router, None),
        };
        for (expert, _) in routed {
            let gates = times(self.source.ffn_gate(next, expert), &x);
            let guessed: Vec<u32> =
                fires(&gates).into_iter().map(|neuron| self.rank(next, expert, neuron)).collect();
            self.guessed[next].extend(guessed);
        }
    }
}

/// Numbers of neurons that are missing and requested, prefetched, or both.
#[derive(Debug, Default)]
struct Found {
    missing: f64,
    prefetched: f64,
    both: f64,
}

/// The neurons found with `slots` slots a layer.
fn found(source: &SourceModel<'_>, container: &Container, tokens: &[u32], slots: usize) -> Found {
    let c = source.config();
    let (count, d) = (container.neurons(), &container.directory);
    let bytes = std::fs::read(&container.path).unwrap();
    let index = |layer: usize, rank: usize| {
        let at = d.tables.offset as usize + 4 * (3 * layer * count + rank);
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
    };
    let ranks = (0..c.layers()).map(|layer| {
        let by_index: BTreeMap<usize, u32> =
            (0..count).map(|rank| (index(layer, rank), rank as u32)).collect();
        by_index.into_values().collect()
    });
    let none = vec![Vec::new(); c.layers()];
    let mut heard =
        Requested { source, ranks: ranks.collect(), requested: none.clone(), guessed: none.clone() };
    let (mut cached, mut found) = (none.clone(), Found::default());
    let mut reference = Reference::new(source, best());
    for &token in tokens {
        (heard.requested, heard.guessed) = (none.clone(), none.clone());
        reference.step(token, &mut heard);
        for layer in 0..c.layers() {
            let cached: &mut Vec<u32> = &mut cached[layer];
            let (requested, guessed) = (&mut heard.requested[layer], &heard.guessed[layer]);
            requested.sort_unstable();
            // the most used third of each expert's missing neurons
            let mut considered = Vec::new();
            for of_expert in heard.ranks[layer].chunks(c.ffn_width()) {
                let mut missing: Vec<u32> =
                    of_expert.iter().copied().filter(|rank| !cached.contains(rank)).collect();
                missing.sort_unstable();
                missing.truncate(c.ffn_width() / PREFETCH_ONE_IN);
                considered.extend(missing);
            }
            let prefetched: Vec<u32> =
                guessed.iter().copied().filter(|rank| considered.contains(rank)).collect();
            let missing: Vec<u32> = requested.iter().copied().filter(|rank| !cached.contains(rank)).collect();
            found.missing += missing.len() as f64;
            found.prefetched += prefetched.len() as f64;
            found.both += missing.iter().filter(|rank| prefetched.contains(rank)).count() as f64;
            cached.retain(|rank| !requested.contains(rank));
            cached.splice(0..0, requested.iter().copied());
            cached.truncate(slots);
        }
    }
    found
}

#[test]
fn recall_and_precision_of_the_look_ahead_are_those_of_the_reference() {
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiler/texts/held-out/prose.txt");
    let text = std::fs::read_to_string(text).unwrap();
    for model in ["oxide-dense", "oxide-moe"] {
        let path = format!("{}/../../fixtures/models/{model}.gguf", env!("CARGO_MANIFEST_DIR"));
        let source = SourceModel::open(&path).unwrap();
        let tokenizer = Tokenizer::new(source.tokenizer_data().unwrap()).unwrap();
        let tokens = &tokenizer.encode(&text, true)[..TOKENS];
        let folder = tempfile::tempdir().unwrap();
        let container = container(folder.path(), &source);
        let slots = container.neurons() / 2;
        let expected = found(&source, &container, tokens, slots);
        let knobs = Knobs {
            cold: slots as u32,
            buffers: 512,
            buffer_bytes: 8192,
            depth: 64,
            look_ahead: 64,
            context: TOKENS as u32,
            ..Knobs::default()
        };
        let mut engine = start(&container, &plan(&container, "exact-gate", &knobs));
        for row in rows(tokens) {
            engine.decode(&[row]).unwrap();
        }
        let counters = engine.counters();
        let used = counters.prefetch_reads_used as f64;
        let requested = (counters.reads - counters.prefetch_reads) as f64 + used;
        let (recall, precision) = (used / requested, used / counters.prefetch_reads as f64);
        let [recall_expected, precision_expected] =
            [expected.missing, expected.prefetched].map(|all| expected.both / all);
        for (assumed, measured) in
            [(PREFETCHED_FRACTION, recall_expected), (PREFETCHED_USED_FRACTION, precision_expected)]
        {
            let too_much = assumed - measured;
            assert!((0.0..ASSUMED_TOO_MUCH).contains(&too_much), "{model}: {measured}");
        }
        let name = format!("{model}: {recall} {precision}, expected {recall_expected} {precision_expected}");
        // sums in another order, and neurons of one token in another
        let missing = counters.missing as f64 / expected.missing;
        assert!((0.98..1.02).contains(&missing), "{name}: {missing} of the missing neurons");
        let [less, more] = [precision_expected - CLOSE, precision_expected + SUREST];
        assert!(precision > less && precision < more, "{name}");
        assert!(recall < recall_expected + CLOSE && recall > recall_expected / 2.0, "{name}");
    }
}

#[test]
fn experts_that_are_chosen_before_the_mixer_are_read_while_it_works() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/architectures/smallthinker.gguf");
    let source = SourceModel::open(path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    let knobs = Knobs { cold: 40, buffers: 512, buffer_bytes: 8192, depth: 256, ..Knobs::default() };
    let plan_of = |look_ahead| plan(&container, "dense", &Knobs { look_ahead, ..knobs.clone() });
    let mut without = start(&container, &plan_of(0));
    let expected = decode(&mut without).unwrap();
    let reads = without.counters().reads;
    let mut engine = start(&container, &plan_of(256));
    assert_eq!(decode(&mut engine).unwrap(), expected);
    let c = engine.counters();
    assert_eq!(c.missing, without.counters().missing);
    assert!(reads > 0 && c.prefetch_reads >= reads, "{reads} reads, {} prefetched", c.prefetch_reads);
    assert_eq!(c.reads, c.prefetch_reads, "nothing is left to be read when the layer begins");
}
