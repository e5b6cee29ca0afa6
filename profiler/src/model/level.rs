//! The menu of quality levels: what each needs, and which neurons it asks for.

use plans::model::LevelKind;
use rayon::prelude::*;
use runtime::container::{LevelSource, PredictorSource, SetSource};
use runtime::format::Format;
use runtime::kernels::{Kernels, Matrix, dequantise, quantise};
use runtime::model::config::Config;
use runtime::model::source::SourceModel;
use runtime::predictor::{Predictor, sign_bits};

use super::import::Shipped;
use super::observe::Samples;
use super::order::Order;
use super::threshold::{logit_thresholds, sign_thresholds};
use super::train::{Effort, Trained, logits, train, validates};
use crate::Context;

/// Shares of the truly active neurons that the low-rank levels are set to find.
const RECALLS: [(f64, &str); 5] = [
    (0.80, "low-rank-80"),
    (0.90, "low-rank-90"),
    (0.95, "low-rank-95"),
    (0.97, "low-rank-97"),
    (0.99, "low-rank-99"),
];
/// The same for the sign level.
const SIGN_RECALL: f64 = 0.97;
/// Storage of low-rank predictors.
const PREDICTOR_FORMAT: Format = Format::F16;
/// Ranks are multiples of this.
const RANK_STEP: usize = 32;
/// Passes over the calibration samples that training takes at most, and without a gain until it ends.
const EPOCHS: usize = 30;
const PATIENCE: usize = 3;
/// Operations that training may take in all: about ten minutes of two cores. It bounds the passes for large models.
const TRAINING_WORK: f64 = 5e13;

/// A predictor set, as it goes into the container and as the runtime will hold it.
#[derive(Debug)]
pub struct Set {
    /// For the container.
    pub source: SetSource,
    /// `[layer][expert]`: `fc1` and `fc2` in [`PREDICTOR_FORMAT`]; empty for signs.
    bytes: Vec<Vec<[Vec<u8>; 2]>>,
}

/// A quality level before it is measured.
#[derive(Debug)]
pub struct Level {
    /// For the container.
    pub source: LevelSource,
    /// Whether the result is the dense one up to rounding.
    pub lossless: bool,
    /// `[layer][expert][neuron]`, of the sign level, in order of position.
    differences: Vec<Vec<Vec<i32>>>,
}

/// The menu and its predictor sets.
#[derive(Debug)]
pub struct Menu {
    /// Predictor sets.
    pub sets: Vec<Set>,
    /// Levels, dense first.
    pub levels: Vec<Level>,
}

impl Menu {
    /// The levels that need no predictor.
    pub fn new(config: &Config) -> Self {
        let level = |name: &str, kind, lossless| Level {
            source: LevelSource {
                name: name.to_owned(),
                kind,
                set: None,
                thresholds: None,
                always_on: vec![0; config.layers],
            },
            lossless,
            differences: Vec::new(),
        };
        let mut levels = vec![level("dense", LevelKind::Dense, true)];
        if !config.activation.fires(-1.0) {
            levels.push(level("exact-gate", LevelKind::ExactGate, true));
        }
        Self { sets: Vec::new(), levels }
    }

    /// Adds the sign level: sign bits of the gate rows, thresholds from the calibration samples.
    pub fn add_sign(&mut self, source: &SourceModel<'_>, samples: &[Vec<Samples>], orders: &[Order]) {
        let (predictors, differences): (Vec<_>, Vec<_>) = (samples.par_iter().zip(orders).enumerate())
            .map(|(layer, (experts, order))| {
                (experts.iter().zip(&order.experts).enumerate())
                    .map(|(expert, (samples, neurons))| {
                        sign_expert(source.ffn_gate(layer, expert), samples, neurons)
                    })
                    .unzip::<_, _, Vec<_>, Vec<_>>()
            })
            .unzip();
        let thresholds = (differences.iter())
            .map(|layer: &Vec<Vec<i32>>| {
                layer.iter().map(|expert| expert.iter().map(|&d| d as f32).collect()).collect()
            })
            .collect();
        let bytes = samples.iter().map(|layer| vec![Default::default(); layer.len()]).collect();
        self.levels.push(Level {
            source: LevelSource {
                name: "sign".to_owned(),
                kind: LevelKind::Sign,
                set: Some(self.sets.len()),
                thresholds: Some(thresholds),
                always_on: orders.iter().map(Order::hot).collect(),
            },
            lossless: false,
            differences,
        });
        let source =
            SetSource { name: "sign".to_owned(), kind: LevelKind::Sign, format: Format::F32, predictors };
        self.sets.push(Set { source, bytes });
    }

    /// Trains the low-rank set and adds its levels.
    ///
    /// # Errors
    /// [`crate::Stopped`].
    pub fn add_low_rank(
        &mut self,
        context: &Context,
        source: &SourceModel<'_>,
        samples: &[Vec<Samples>],
        orders: &[Order],
    ) -> anyhow::Result<()> {
        let config = source.config();
        let epochs = epochs(config, samples, context);
        let effort = Effort { rank: rank(config), epochs, patience: PATIENCE, seed: 0 };
        let experts: Vec<(usize, usize)> = (0..config.layers)
            .flat_map(|layer| (0..config.experts).map(move |expert| (layer, expert)))
            .collect();
        let bar = context.bar((experts.len() * effort.epochs) as u64, "training predictors");
        let made: Vec<Option<LowRank>> = experts
            .par_iter()
            .map(|&(layer, expert)| {
                let samples = &samples[layer][expert];
                let effort = Effort { seed: (layer * config.experts + expert) as u64, ..effort };
                let trained = train(samples, effort, &|_| {
                    bar.inc(1);
                    context.stopped().is_ok()
                })?;
                Some(LowRank::new(samples, &orders[layer].experts[expert], trained))
            })
            .collect();
        bar.finish_and_clear();
        context.stopped()?;
        let mut made = made.into_iter().flatten();
        let made = (0..config.layers).map(|_| made.by_ref().take(config.experts).collect()).collect();
        self.add_low_rank_set(config, orders, made);
        Ok(())
    }

    /// Adds the predictors that came with the model, with thresholds of ours and, if it is zero, their own.
    pub fn add_shipped(
        &mut self,
        config: &Config,
        samples: &[Vec<Samples>],
        orders: &[Order],
        shipped: Shipped,
    ) {
        let made: Vec<Vec<LowRank>> = (shipped.predictors.into_par_iter().enumerate())
            .map(|(layer, experts)| {
                (experts.into_iter().enumerate())
                    .map(|(expert, predictor)| {
                        let samples = &samples[layer][expert];
                        LowRank::new(samples, &orders[layer].experts[expert], predictor)
                    })
                    .collect()
            })
            .collect();
        if shipped.own_threshold {
            let zeros = |expert: &Vec<(u32, u32)>| vec![0.0; expert.len()];
            let thresholds = orders.iter().map(|order| order.experts.iter().map(zeros).collect()).collect();
            self.add_low_rank_level("low-rank-shipped", thresholds, orders);
        }
        self.add_low_rank_set(config, orders, made);
    }

    /// A level of the set that is about to be added.
    fn add_low_rank_level(&mut self, name: &str, thresholds: Vec<Vec<Vec<f32>>>, orders: &[Order]) {
        self.levels.push(Level {
            source: LevelSource {
                name: name.to_owned(),
                kind: LevelKind::LowRank,
                set: Some(self.sets.len()),
                thresholds: Some(thresholds),
                always_on: orders.iter().map(Order::hot).collect(),
            },
            lossless: false,
            differences: Vec::new(),
        });
    }

    /// Adds a set and its levels, the most careful first.
    fn add_low_rank_set(&mut self, config: &Config, orders: &[Order], mut made: Vec<Vec<LowRank>>) {
        for (index, (_, name)) in RECALLS.iter().enumerate().rev() {
            let thresholds = (made.iter_mut())
                .map(|layer| layer.iter_mut().map(|e| std::mem::take(&mut e.thresholds[index])).collect())
                .collect();
            self.add_low_rank_level(name, thresholds, orders);
        }
        let bytes =
            made.iter().map(|layer| layer.iter().map(|e| [e.fc1.clone(), e.fc2.clone()]).collect()).collect();
        let predictors = (made.into_iter())
            .map(|layer| layer.into_iter().map(|e| e.into_source(config.width)).collect())
            .collect();
        self.sets.push(Set {
            source: SetSource {
                name: "low-rank".to_owned(),
                kind: LevelKind::LowRank,
                format: PREDICTOR_FORMAT,
                predictors,
            },
            bytes,
        });
    }

    /// The predictor of an expert at a level; none for levels without predictors.
    fn predictor<'a>(
        &'a self,
        config: &Config,
        level: &'a Level,
        layer: usize,
        expert: usize,
    ) -> Option<Predictor<'a>> {
        let set = &self.sets[level.source.set?];
        match &set.source.predictors[layer][expert] {
            PredictorSource::Sign(signs) => {
                Some(Predictor::Sign { signs, differences_max: &level.differences[layer][expert] })
            }
            &PredictorSource::LowRank { rank, .. } => {
                let [fc1, fc2] = &set.bytes[layer][expert];
                let thresholds = &level.source.thresholds.as_ref()?[layer][expert];
                Some(Predictor::LowRank {
                    fc1: Matrix { format: PREDICTOR_FORMAT, rows: rank, columns: config.width, bytes: fc1 },
                    fc2: Matrix {
                        format: PREDICTOR_FORMAT,
                        rows: thresholds.len(),
                        columns: rank,
                        bytes: fc2,
                    },
                    thresholds,
                })
            }
        }
    }

    /// The neurons that a level asks for, as the runtime will: `selected: [ffn_width]`, all true at first.
    pub fn select(
        &self,
        kernels: &dyn Kernels,
        config: &Config,
        level: &Level,
        order: &Order,
        layer: usize,
        expert: usize,
        input: &[f32],
        gate: &[f32],
        selected: &mut [bool],
    ) {
        match level.source.kind {
            LevelKind::Dense => {}
            LevelKind::ExactGate => {
                for (selected, &gate) in selected.iter_mut().zip(gate) {
                    *selected = config.activation.fires(gate);
                }
            }
            LevelKind::Sign | LevelKind::LowRank => {
                let Some(predictor) = self.predictor(config, level, layer, expert) else { return };
                let mut hidden = vec![0.0; predictor.hidden()];
                predictor.hide(kernels, input, 0, &mut hidden);
                let mut signs = vec![0; input.len().div_ceil(64)];
                sign_bits(input, &mut signs);
                let mut scores = vec![0.0; predictor.neurons()];
                predictor.score(kernels, input, &hidden, &signs, 0, &mut scores);
                let always_on = level.source.always_on[layer];
                for (&(position, neuron), score) in order.experts[expert].iter().zip(scores) {
                    selected[neuron as usize] = position < always_on || score > 0.0;
                }
            }
        }
    }
}

/// The hidden size: a quarter of the width as published for the largest models, half for narrow ones, and never so
/// much that the predictor comes near the gate rows that it stands in for.
fn rank(config: &Config) -> usize {
    let (width, neurons) = (config.width, config.ffn_width);
    let by_width = if width >= 2048 { width / 4 } else { (width / 2).min(512) };
    let half_the_gate = width * neurons / (width + neurons) / 2;
    (by_width.min(half_the_gate) / RANK_STEP * RANK_STEP).max(RANK_STEP)
}

/// As many passes as the work allows: forward and backward, six operations for each weight and sample.
fn epochs(config: &Config, samples: &[Vec<Samples>], context: &Context) -> usize {
    let weights = rank(config) * (config.width + config.ffn_width);
    let rows: usize = samples.iter().flatten().map(Samples::rows).sum();
    let passes = TRAINING_WORK / (6.0 * weights as f64 * rows.max(1) as f64);
    if context.quick {
        ((passes / 6.0) as usize).clamp(2, EPOCHS / 2)
    } else {
        (passes as usize).clamp(2, EPOCHS)
    }
}

/// One expert's predictor, neurons in order of position.
struct LowRank {
    rank: usize,
    fc1: Vec<u8>,
    fc2: Vec<u8>,
    /// For each of [`RECALLS`], `[neurons]`.
    thresholds: Vec<Vec<f32>>,
}

impl LowRank {
    /// Stores and orders what was trained, and sets thresholds with the stored matrices.
    fn new(samples: &Samples, order: &[(u32, u32)], trained: Trained) -> Self {
        let (width, rank, neurons) = (samples.width, trained.rank, order.len());
        let (fc1, fc1_stored) = stored(&trained.fc1);
        let (_, fc2_stored) = stored(&trained.fc2);
        let logits = logits(width, rank, neurons, &fc1_stored, &fc2_stored, &samples.inputs);
        let thresholds = RECALLS.map(|(recall, _)| {
            let of_neuron = logit_thresholds(&logits, &samples.active, &trained.bias, recall, &|row| {
                validates(samples, row)
            });
            order.iter().map(|&(_, neuron)| of_neuron[neuron as usize]).collect()
        });
        let ordered: Vec<f32> = order
            .iter()
            .flat_map(|&(_, neuron)| &trained.fc2[neuron as usize * rank..][..rank])
            .copied()
            .collect();
        Self { rank, fc1, fc2: stored(&ordered).0, thresholds: thresholds.to_vec() }
    }

    fn into_source(self, width: usize) -> PredictorSource {
        let values = |bytes: &[u8], count: usize| {
            let mut values = vec![0.0; count];
            dequantise(PREDICTOR_FORMAT, bytes, &mut values);
            values
        };
        PredictorSource::LowRank {
            rank: self.rank,
            fc1: values(&self.fc1, self.rank * width),
            fc2: values(&self.fc2, self.thresholds_len() * self.rank),
        }
    }

    fn thresholds_len(&self) -> usize {
        self.fc2.len() / PREDICTOR_FORMAT.row_bytes(self.rank)
    }
}

/// Values in [`PREDICTOR_FORMAT`], and what they have become.
fn stored(values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut bytes = vec![0; PREDICTOR_FORMAT.row_bytes(values.len())];
    quantise(PREDICTOR_FORMAT, values, &mut bytes);
    let mut back = vec![0.0; values.len()];
    dequantise(PREDICTOR_FORMAT, &bytes, &mut back);
    (bytes, back)
}

/// Sign bits of an expert's gate rows in order of position, and their thresholds.
fn sign_expert(gate: Matrix<'_>, samples: &Samples, order: &[(u32, u32)]) -> (PredictorSource, Vec<i32>) {
    let words = gate.columns.div_ceil(64);
    let mut rows = vec![0; gate.rows * words];
    let mut values = vec![0.0; gate.columns];
    for (row, bits) in rows.chunks_mut(words).enumerate() {
        dequantise(gate.format, gate.row(row).bytes, &mut values);
        sign_bits(&values, bits);
    }
    let mut inputs = vec![0; samples.rows() * words];
    for (row, bits) in inputs.chunks_mut(words).enumerate() {
        sign_bits(samples.input(row), bits);
    }
    let differences = |token: usize, neuron: usize| -> u32 {
        let (x, row) = (&inputs[token * words..][..words], &rows[neuron * words..][..words]);
        x.iter().zip(row).map(|(a, b)| (a ^ b).count_ones()).sum()
    };
    let most = sign_thresholds(&samples.active, SIGN_RECALL, &differences);
    let ordered =
        order.iter().flat_map(|&(_, neuron)| &rows[neuron as usize * words..][..words]).copied().collect();
    (PredictorSource::Sign(ordered), order.iter().map(|&(_, neuron)| most[neuron as usize]).collect())
}
