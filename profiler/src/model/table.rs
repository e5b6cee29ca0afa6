//! What was measured, as `model.toml`, `neurons.csv` and `reuse.csv`.

use plans::file::significant;
use plans::model::{
    ContainerIdentity, DenseQuality, LayerActivity, Level, LevelKind, LevelLayer, Model, ModelProvenance,
    Parts, ReuseAxes,
};
use rayon::prelude::*;
use runtime::container::{Container, PredictorSource, Written};
use runtime::model::source::SourceModel;

use super::evaluate::{LayerCounts, Measured, mean, quantile};
use super::level::Menu;
use super::order::Order;
use super::reuse;

/// Bytes in memory of the directory and the tokenizer, for each byte of the directory's JSON: the parsed strings, the
/// maps from text to token and the merges. An upper bound from counting their parts: a token of JSON `"ab",` becomes a
/// string (24 bytes and its heap block) and an entry of a map.
const HEAP_BYTES_PER_JSON_BYTE: u64 = 6;

/// The axes of the miss-rate surfaces: sixteenths, finer where caches are small.
pub fn axes() -> ReuseAxes {
    ReuseAxes {
        cached_fraction: [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16].map(|n| f64::from(n) / 16.0).to_vec(),
        pinned_share_fraction: vec![0.0, 0.25, 0.5, 0.75, 1.0],
    }
}

/// Every miss-rate surface: `[level][layer][share][cached]`.
pub fn surfaces(measured: &[Measured], neurons: usize, axes: &ReuseAxes) -> Vec<Vec<Vec<Vec<f64>>>> {
    let surface = |counts: &LayerCounts| {
        reuse::surface(&counts.trace, neurons, &axes.pinned_share_fraction, &axes.cached_fraction)
    };
    measured.iter().map(|level| level.layers.par_iter().map(surface).collect()).collect()
}

/// Everything that `model.toml` is made of.
#[derive(Debug)]
pub struct Findings<'a> {
    /// The model's name.
    pub name: &'a str,
    /// BLAKE3 of the source file.
    pub fingerprint: &'a str,
    /// How the figures came to be.
    pub provenance: ModelProvenance,
    /// The source.
    pub source: &'a SourceModel<'a>,
    /// The container's file name.
    pub container_file: String,
    /// The container as written.
    pub written: &'a Written,
    /// The container as opened again.
    pub container: &'a Container,
    /// The menu.
    pub menu: &'a Menu,
    /// For each level of the menu.
    pub measured: &'a [Measured],
    /// `[level][layer][share][cached]`.
    pub surfaces: &'a [Vec<Vec<Vec<f64>>>],
    /// Axes of the surfaces.
    pub axes: ReuseAxes,
}

impl Findings<'_> {
    /// The contract.
    ///
    /// # Errors
    /// When a level is not in the container.
    pub fn model(&self) -> anyhow::Result<Model> {
        let dense = &self.measured[0];
        let levels = (0..self.menu.levels.len()).map(|i| self.level(i)).collect::<anyhow::Result<_>>()?;
        Ok(Model {
            schema: plans::SCHEMA,
            name: self.name.to_owned(),
            fingerprint: self.fingerprint.to_owned(),
            provenance: self.provenance.clone(),
            architecture: self.written.directory.architecture(),
            parts: self.parts()?,
            container: ContainerIdentity {
                file: self.container_file.clone(),
                fingerprint: self.written.fingerprint.clone(),
                bytes: self.written.bytes,
            },
            dense: DenseQuality { perplexity: significant(dense.perplexity) },
            reuse: self.axes.clone(),
            layers: dense.layers.iter().map(activity).collect(),
            levels,
        })
    }

    fn parts(&self) -> anyhow::Result<Parts> {
        let s = self.source;
        let bytes = |m: runtime::kernels::Matrix<'_>| m.bytes.len() as u64;
        let attention = |layer| {
            [
                s.attention_norm(layer),
                s.query(layer),
                s.key(layer),
                s.value(layer),
                s.attention_output(layer),
                s.ffn_norm(layer),
            ]
            .map(bytes)
            .iter()
            .sum::<u64>()
        };
        let layers = s.config().layers;
        let embedding = bytes(s.token_embedding());
        let head = s.output().map(bytes);
        let json = serde_json::to_vec(&self.written.directory)?.len() as u64;
        Ok(Parts {
            embedding_bytes: embedding,
            head_bytes: head.unwrap_or(0),
            head_read_bytes: head.unwrap_or(embedding),
            attention_layer_bytes: (0..layers).map(attention).max().unwrap_or(0),
            router_layer_bytes: (0..layers).filter_map(|l| s.router(l)).map(bytes).max().unwrap_or(0),
            fixed_bytes: self.written.directory.fixed.bytes,
            tokenizer_bytes: (HEAP_BYTES_PER_JSON_BYTE * json).next_multiple_of(plans::PAGE_BYTES),
            bundle: self.written.directory.bundle,
        })
    }

    fn level(&self, index: usize) -> anyhow::Result<Level> {
        let (level, measured) = (&self.menu.levels[index], &self.measured[index]);
        let name = &level.source.name;
        let entry = (self.container.level(name))
            .ok_or_else(|| anyhow::anyhow!("the container has no level `{name}`; profile the model again"))?;
        let sum = |of: fn(&LayerCounts) -> u64| measured.layers.iter().map(of).sum::<u64>();
        let (read, flops) = self.cost(index);
        let layers = (measured.layers.iter().zip(&self.surfaces[index]).zip(&level.source.always_on))
            .map(|((counts, surface), &always_on_neurons)| LevelLayer {
                active_predicted_fraction: share(counts.asked, counts.routed),
                beta_fraction: share(counts.asked_gate, counts.asked),
                predicted_neurons_mean: significant(mean(&counts.asked_of_token)),
                predicted_neurons_p99: quantile(&counts.asked_of_token, 0.99),
                always_on_neurons,
                miss_fraction: surface
                    .iter()
                    .map(|row| row.iter().map(|&m| significant(m)).collect())
                    .collect(),
            })
            .collect();
        Ok(Level {
            name: name.clone(),
            kind: level.source.kind,
            lossless: level.lossless,
            resident_bytes: self.container.level_resident_bytes(entry),
            read_bytes_per_token: read,
            flops_per_token: flops,
            perplexity: significant(measured.perplexity),
            perplexity_change_fraction: significant(measured.perplexity / self.measured[0].perplexity - 1.0),
            recall_fraction: share(sum(|c| c.asked_truly), sum(|c| c.truly)),
            precision_fraction: share(sum(|c| c.asked_truly), sum(|c| c.asked)),
            layers,
        })
    }

    /// Bytes that one token reads to decide, and operations that deciding costs.
    fn cost(&self, index: usize) -> (u64, u64) {
        let c = self.source.config();
        let level = &self.menu.levels[index].source;
        let (width, neurons) = (c.width as u64, c.ffn_width as u64);
        let routed = (c.layers * c.experts_used) as u64;
        match level.kind {
            LevelKind::Dense => (0, 0),
            LevelKind::ExactGate => {
                (routed * neurons * self.written.directory.bundle.gate_bytes, routed * neurons * 2 * width)
            }
            LevelKind::Sign => {
                let words = width.div_ceil(64);
                (routed * neurons * (words * 8 + 4), routed * neurons * words * 2)
            }
            LevelKind::LowRank => {
                // Experts of a layer have like ranks; a token visits `experts_used` of them.
                let set = level.set.map(|set| &self.menu.sets[set].source);
                let (mut bytes, mut flops) = (0, 0);
                for predictor in set.iter().flat_map(|set| set.predictors.iter().flatten()) {
                    if let (PredictorSource::LowRank { rank, .. }, Some(set)) = (predictor, set) {
                        let matrices =
                            rank * set.format.row_bytes(c.width) + c.ffn_width * set.format.row_bytes(*rank);
                        bytes += matrices as u64 + 4 * neurons;
                        flops += 2 * *rank as u64 * (width + neurons);
                    }
                }
                (
                    bytes * routed / (c.layers * c.experts) as u64,
                    flops * routed / (c.layers * c.experts) as u64,
                )
            }
        }
    }
}

fn activity(counts: &LayerCounts) -> LayerActivity {
    LayerActivity {
        active_true_fraction: share(counts.truly, counts.routed),
        active_gate_fraction: share(counts.gate, counts.routed),
        active_neurons_mean: significant(mean(&counts.truly_of_token)),
        active_neurons_p50: quantile(&counts.truly_of_token, 0.5),
        active_neurons_p90: quantile(&counts.truly_of_token, 0.9),
        active_neurons_p99: quantile(&counts.truly_of_token, 0.99),
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { significant(part as f64 / whole as f64) }
}

/// `neurons.csv`: each layer's order, and how often each neuron fired on the calibration text.
///
/// # Errors
/// Those of the csv writer.
pub fn neurons_csv(orders: &[Order]) -> anyhow::Result<Vec<u8>> {
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record(["layer", "position", "source_index", "active_true_fraction", "active_gate_fraction"])?;
    for (layer, order) in orders.iter().enumerate() {
        for (position, source) in order.sources.iter().enumerate() {
            out.write_record([
                layer.to_string(),
                position.to_string(),
                source.to_string(),
                significant(order.frequency_true[position]).to_string(),
                significant(order.frequency_gate[position]).to_string(),
            ])?;
        }
    }
    Ok(out.into_inner().map_err(csv::IntoInnerError::into_error)?)
}

/// `reuse.csv`: the miss-rate surfaces, a line for each point.
///
/// # Errors
/// Those of the csv writer.
pub fn reuse_csv(model: &Model) -> anyhow::Result<Vec<u8>> {
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record(["level", "layer", "pinned_share_fraction", "cached_fraction", "miss_fraction"])?;
    for level in &model.levels {
        for (layer, of_layer) in level.layers.iter().enumerate() {
            for (share, row) in model.reuse.pinned_share_fraction.iter().zip(&of_layer.miss_fraction) {
                for (cached, miss) in model.reuse.cached_fraction.iter().zip(row) {
                    let numbers = [layer as f64, *share, *cached, *miss].map(|n| n.to_string());
                    out.write_record(std::iter::once(level.name.clone()).chain(numbers))?;
                }
            }
        }
    }
    Ok(out.into_inner().map_err(csv::IntoInnerError::into_error)?)
}
