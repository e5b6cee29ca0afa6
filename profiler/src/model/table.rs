//! The measured model as `model.toml`, `neurons.csv` and `reuse.csv`.

use flashplan::internals::container::{Container, Written};
use flashplan::internals::model::config::Role;
use flashplan::internals::model::source::SourceModel;
use plans::check::{LOSS_MAX, LOSSLESS_MAX};
use plans::file::significant;
use plans::layout::BundleLayout;
use plans::model::{
    ContainerIdentity, DenseQuality, Drafts, KvLoss, LayerActivity, Level, LevelKind, LevelLayer, Model,
    ModelProvenance, Parts, ReuseAxes, WIDE_GAP_RANKS,
};
use plans::{KvFormat, Policy};

use super::evaluate::Figures;
use super::level::Menu;
use super::look_ahead::Prefetched;
use super::loss::{Loss, Window};
use super::missing::Missing;
use super::order::NeuronOrder;
use super::text::Windows;

/// Bytes in memory of directory and tokenizer for each byte of the directory's JSON: parsed strings, maps from text to token, merges.
///
/// It is an upper bound: a token of JSON `"ab",` becomes a string (24 bytes and its heap block) and an entry of a map.
const HEAP_BYTES_PER_JSON_BYTE: u64 = 6;

/// The axes of the miss-rate surfaces: sixteenths, finer where caches are small.
pub fn axes() -> ReuseAxes {
    ReuseAxes {
        cached_fraction: [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16].map(|n| f64::from(n) / 16.0).to_vec(),
        pinned_share_fraction: vec![0.0, 0.25, 0.5, 0.75, 1.0],
        wide_gap_ranks: Some(WIDE_GAP_RANKS),
    }
}

/// A level in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLevel {
    /// Bytes that it adds to the fixed region.
    pub resident_bytes: u64,
    /// Neurons of each layer that are always computed.
    pub always_on: Vec<u32>,
}

impl StoredLevel {
    /// The levels of a menu in a container.
    ///
    /// # Errors
    /// A level that is not in the container.
    pub fn all(menu: &Menu, container: &Container) -> anyhow::Result<Vec<Self>> {
        let of_level = |level: &super::level::Level| {
            let entry = container.level(&level.name).ok_or_else(|| {
                anyhow::anyhow!("the container has no level `{}`; profile the model again", level.name)
            })?;
            let resident_bytes = container.level_resident_bytes(entry);
            Ok(Self { resident_bytes, always_on: entry.always_on.clone() })
        };
        menu.levels.iter().map(of_level).collect()
    }
}

/// The results in `model.toml`.
#[derive(Debug)]
pub struct Findings<'a> {
    /// The model's name.
    pub name: &'a str,
    /// BLAKE3 of the source file.
    pub fingerprint: &'a str,
    /// The origin of the figures.
    pub provenance: ModelProvenance,
    /// The source.
    pub source: &'a SourceModel<'a>,
    /// The container's file name.
    pub container_file: String,
    /// The container as written.
    pub written: &'a Written,
    /// Each level as it is stored.
    pub stored: &'a [StoredLevel],
    /// The menu.
    pub menu: &'a Menu,
    /// Whether the container's rows are the source's bit for bit.
    pub exact: bool,
    /// The activations of `model.toml`.
    pub activations: &'static str,
    /// The held-out text.
    pub held_out: &'a Windows,
    /// Tokens of each generated piece.
    pub own: &'a [usize],
    /// Negative log likelihood of each held-out window, then of each generated piece, by the source computed dense, ...
    pub dense: &'a [f64],
    /// ... and by each level: `[level][window]`.
    pub losses: &'a [Vec<f64>],
    /// Negative log likelihood of some held-out windows by the dense level with keys and values in each format, ...
    pub kv: &'a [(KvFormat, Vec<f64>)],
    /// ... and the indices of these windows.
    pub kv_windows: &'a [usize],
    /// Drafts that the dense model accepts, on the held-out windows.
    pub drafts: Option<Drafts>,
    /// `[layer][level]`.
    pub figures: &'a [Vec<Figures>],
    /// Missing neurons of tokens at each level, all layers together.
    pub missing: &'a [Missing],
}

impl Findings<'_> {
    /// The contents of `model.toml`.
    ///
    /// # Errors
    /// A directory that JSON cannot hold.
    pub fn model(&self) -> anyhow::Result<Model> {
        let levels = (0..self.menu.levels.len()).map(|i| self.level(i)).collect::<anyhow::Result<_>>()?;
        Ok(Model {
            activations: self.activations.to_owned(),
            schema: plans::SCHEMA,
            name: self.name.to_owned(),
            fingerprint: self.fingerprint.to_owned(),
            provenance: self.provenance.clone(),
            architecture: self.written.directory.architecture(),
            parts: self.parts()?,
            container: ContainerIdentity {
                file: self.container_file.clone(),
                fingerprint: self.written.fingerprint.clone(),
                bytes: self.written.bytes + self.source_bytes(),
            },
            dense: DenseQuality { perplexity: significant(self.held_out.perplexity(self.dense)) },
            kv_formats: self.kv_losses(),
            drafts: self.drafts.clone(),
            reuse: axes(),
            layers: self.layers(),
            levels,
        })
    }

    /// Bytes of the model's own files, for an index.
    fn source_bytes(&self) -> u64 {
        let files = self.written.directory.source.iter().flat_map(|source| &source.files);
        files.map(|file| file.bytes).sum()
    }

    /// Activity of each layer, and its bundle where layers differ.
    fn layers(&self) -> Vec<LayerActivity> {
        let directory = &self.written.directory;
        let own = |layer: usize| directory.layers.get(layer).map(|stored| stored.bundle);
        let layers = self.figures.iter().enumerate();
        layers.map(|(layer, levels)| activity(&levels[0], own(layer))).collect()
    }

    fn parts(&self) -> anyhow::Result<Parts> {
        let s = self.source;
        let bytes = |m: kernels::Matrix<'_>| m.bytes.len() as u64;
        let attention = |block| {
            let parts = s.config().parts(block).into_iter().map(|part| part.role);
            let parts = parts.filter(|&role| role != Role::Router).filter_map(|role| s.part(block, role));
            parts.map(bytes).sum::<u64>()
        };
        let (layers, blocks) = (s.config().layers(), s.config().blocks.len());
        let embedding = bytes(s.token_embedding());
        let head = s.output().map(bytes);
        let json = serde_json::to_vec(&self.written.directory)?.len() as u64;
        let words = self.written.directory.tokenizer.words_bytes();
        Ok(Parts {
            embedding_bytes: embedding,
            head_bytes: head.unwrap_or(0),
            head_read_bytes: head.unwrap_or(embedding),
            // the mean over mixers, blocks outside of layers included
            attention_layer_bytes: (0..blocks).map(attention).sum::<u64>().div_ceil(layers.max(1) as u64),
            router_layer_bytes: (0..layers).filter_map(|l| s.router(l)).map(bytes).max().unwrap_or(0),
            fixed_bytes: self.written.directory.fixed.bytes,
            tokenizer_bytes: (HEAP_BYTES_PER_JSON_BYTE * json + words).next_multiple_of(plans::PAGE_BYTES),
            bundle: self.written.directory.mean_bundle(),
        })
    }

    fn level(&self, index: usize) -> anyhow::Result<Level> {
        let level = &self.menu.levels[index];
        let entry = &self.stored[index];
        let sum = |of: fn(&Figures) -> u64| self.figures.iter().map(|levels| of(&levels[index])).sum::<u64>();
        let (read, flops) = self.cost(index);
        let layers = (self.figures.iter().zip(&entry.always_on))
            .map(|(levels, &always_on_neurons)| {
                let figures = &levels[index];
                let misses = |policy| figures.misses.get(&policy).cloned().unwrap_or_default();
                LevelLayer {
                    active_predicted_fraction: share(figures.requested, figures.routed),
                    beta_fraction: share(figures.requested_gate, figures.requested),
                    predicted_neurons_mean: figures.requested_of_token[0],
                    predicted_neurons_p99: figures.requested_of_token[3],
                    always_on_neurons,
                    miss_fraction: misses(Policy::Lru),
                    clock_miss_fraction: misses(Policy::Clock),
                    frequency_miss_fraction: misses(Policy::Frequency),
                    runs_fraction: figures.runs.clone(),
                    runs_over_gaps_fraction: figures.runs_over_gaps[0].clone(),
                    runs_over_wide_gaps_fraction: figures.runs_over_gaps[1].clone(),
                }
            })
            .collect();
        let ahead = |of: fn(&Prefetched) -> u64| sum_of(self.figures, index, of);
        let both = ahead(|ahead| ahead.both);
        // a level that requests every neuron predicts nothing
        let guesses = level.kind != LevelKind::Dense || self.source.config().experts() > 1;
        let of_both = |whole: u64| match whole {
            // the model's own router does not predict a recording
            0 => self.provenance.routes.as_ref().map(|_| 0.0),
            _ => guesses.then(|| share(both, whole)),
        };
        let loss = self.loss(index);
        let upper = loss.upper.map(|upper| significant(upper.min(LOSS_MAX)));
        // no weight is changed and no neuron skipped; some models suffer from rounded vectors, and are not called lossless
        let same = (self.exact || self.menu.down.is_none())
            && matches!(level.kind, LevelKind::Dense | LevelKind::ExactGate);
        let lossless = same && upper.unwrap_or(loss.change).max(loss.change.abs()) <= LOSSLESS_MAX;
        let [missing_p50_over_mean, missing_p90_over_mean, missing_p99_over_mean] =
            self.missing[index].over_mean().unwrap_or_default().map(|caches| {
                let row = |row: &[f64]| row.iter().copied().map(thousandths).collect();
                caches.chunks(axes().cached_fraction.len()).map(row).collect()
            });
        let added: f64 = self.figures.iter().map(|levels| levels[index].added).sum();
        Ok(Level {
            name: level.name.clone(),
            kind: level.kind,
            lossless,
            resident_bytes: entry.resident_bytes,
            read_bytes_per_token: read,
            flops_per_token: flops,
            perplexity: significant(self.held_out.perplexity(&self.losses[index])),
            perplexity_change_fraction: significant(loss.change),
            perplexity_change_fraction_upper: upper,
            perplexity_change_fraction_of_texts: loss.of_texts.into_iter().map(significant).collect(),
            recall_fraction: share(sum(|f| f.requested_truly), sum(|f| f.truly)),
            added_fraction: Some(significant(added / sum(|f| f.adding).max(1) as f64)),
            precision_fraction: share(sum(|f| f.requested_truly), sum(|f| f.requested)),
            look_ahead_recall_fraction: of_both(ahead(|ahead| ahead.missing)),
            look_ahead_precision_fraction: of_both(ahead(|ahead| ahead.prefetched)),
            missing_p50_over_mean,
            missing_p90_over_mean,
            missing_p99_over_mean,
            layers,
        })
    }

    fn loss(&self, level: usize) -> Loss {
        let all: Vec<usize> = (0..self.held_out.tokens.len()).collect();
        let mut rises = self.losses[level].iter().zip(self.dense).map(|(level, dense)| level - dense);
        let loss = self.loss_over(&all, rises.by_ref().take(all.len()));
        let own = self.own.iter().zip(rises).enumerate();
        let own: Vec<Window> =
            own.map(|(text, (&tokens, rise))| Window { text, tokens: tokens - 1, rise }).collect();
        loss.bounded_by(&own)
    }

    /// The loss from the rises of these windows.
    fn loss_over(&self, windows: &[usize], rises: impl Iterator<Item = f64>) -> Loss {
        let predicted: Vec<usize> = self.held_out.predicted().collect();
        let of_window = |(&window, rise): (&usize, f64)| Window {
            text: self.held_out.text_of[window],
            tokens: predicted[window],
            rise,
        };
        Loss::of(&windows.iter().zip(rises).map(of_window).collect::<Vec<_>>())
    }

    /// Losses of keys and values in blocks, relative to the dense level; losses without a bound are left out.
    fn kv_losses(&self) -> Vec<KvLoss> {
        let dense = self.menu.levels.iter().position(|level| level.kind == LevelKind::Dense);
        let Some(dense) = dense.map(|dense| &self.losses[dense]) else { return Vec::new() };
        let of_format = |(format, losses): &(KvFormat, Vec<f64>)| {
            let rises = losses.iter().zip(self.kv_windows).map(|(loss, &window)| loss - dense[window]);
            let loss = self.loss_over(self.kv_windows, rises);
            Some(KvLoss {
                format: format.name().to_owned(),
                perplexity_change_fraction: significant(loss.change),
                perplexity_change_fraction_upper: significant(loss.upper?.min(LOSS_MAX)),
                perplexity_change_fraction_of_texts: loss.of_texts.into_iter().map(significant).collect(),
            })
        };
        self.kv.iter().filter_map(of_format).collect()
    }

    /// Bytes and operations of a token's selection.
    fn cost(&self, index: usize) -> (u64, u64) {
        let c = self.source.config();
        let level = &self.menu.levels[index];
        let (width, neurons) = (c.width as u64, c.ffn_width() as u64);
        let routed = (c.layers() * c.experts_used()) as u64;
        match level.kind {
            LevelKind::Dense => (0, 0),
            LevelKind::ExactGate | LevelKind::GateThreshold => {
                let thresholds =
                    if level.kind == LevelKind::GateThreshold { 4 * routed * neurons } else { 0 };
                let directory = &self.written.directory;
                let gate = |layer| directory.stored(layer).bundle.gate_bytes;
                let gates = (0..c.layers()).map(gate).sum::<u64>();
                (c.experts_used() as u64 * neurons * gates + thresholds, routed * neurons * 2 * width)
            }
            LevelKind::Sign => {
                let words = width.div_ceil(64);
                (routed * neurons * (words * 8 + 4), routed * neurons * words * 2)
            }
            LevelKind::LowRank => {
                // experts of a layer have similar ranks, and a token visits `experts_used` of them
                let set = Menu::set(level.kind).and_then(|set| self.written.directory.sets.get(set));
                let (mut bytes, mut flops) = (0, 0);
                if let Some(set) = set {
                    for rank in set.ranks.iter().flatten() {
                        let matrices = rank * set.format.row_bytes(c.width)
                            + c.ffn_width() * set.format.row_bytes(*rank);
                        bytes += matrices as u64 + 4 * neurons;
                        flops += 2 * *rank as u64 * (width + neurons);
                    }
                }
                (
                    bytes * routed / (c.layers() * c.experts()) as u64,
                    flops * routed / (c.layers() * c.experts()) as u64,
                )
            }
        }
    }
}

/// A count of prefetched neurons, summed over the layers of a level.
fn sum_of(figures: &[Vec<Figures>], level: usize, of: fn(&Prefetched) -> u64) -> u64 {
    figures.iter().map(|levels| of(&levels[level].ahead)).sum()
}

fn activity(figures: &Figures, bundle: Option<BundleLayout>) -> LayerActivity {
    let [mean, p50, p90, p99] = figures.truly_of_token;
    LayerActivity {
        active_true_fraction: share(figures.truly, figures.routed),
        active_gate_fraction: share(figures.gate, figures.routed),
        active_neurons_mean: mean,
        active_neurons_p50: p50,
        active_neurons_p90: p90,
        active_neurons_p99: p99,
        bundle,
    }
}

/// A value rounded to thousandths.
pub fn thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { significant(part as f64 / whole as f64) }
}

/// `neurons.csv`: each layer's order, and the activation frequency of each neuron on the calibration text.
///
/// With slices a line stands for `of_line` neurons: it has the first one's position, and their mean.
///
/// # Errors
/// The CSV writer's.
pub fn neurons_csv(orders: &[NeuronOrder], of_line: usize) -> anyhow::Result<Vec<u8>> {
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record(["layer", "position", "source_index", "active_true_fraction", "active_gate_fraction"])?;
    for (layer, order) in orders.iter().enumerate() {
        let [truly, gate]: [Vec<f64>; 2] =
            [order.frequency_true().collect(), order.frequency_gate().collect()];
        let means = |of: &[f64]| -> Vec<f64> {
            of.chunks(of_line).map(|of| of.iter().sum::<f64>() / of.len() as f64).collect()
        };
        let sources = order.sources.iter().step_by(of_line);
        for (line, ((source, truly), gate)) in sources.zip(means(&truly)).zip(means(&gate)).enumerate() {
            out.write_record([
                layer.to_string(),
                (line * of_line).to_string(),
                source.to_string(),
                significant(truly).to_string(),
                significant(gate).to_string(),
            ])?;
        }
    }
    Ok(out.into_inner().map_err(csv::IntoInnerError::into_error)?)
}

/// `reuse.csv`: the miss-rate surfaces, a line for each point.
///
/// # Errors
/// The CSV writer's.
pub fn reuse_csv(model: &Model) -> anyhow::Result<Vec<u8>> {
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record([
        "level",
        "policy",
        "layer",
        "pinned_share_fraction",
        "cached_fraction",
        "miss_fraction",
    ])?;
    for (level, policy) in model.levels.iter().flat_map(|level| level.policies().map(move |p| (level, p))) {
        for (layer, of_layer) in level.layers.iter().enumerate() {
            let surface = of_layer.misses(policy).unwrap_or_default();
            for (share, row) in model.reuse.pinned_share_fraction.iter().zip(surface) {
                for (cached, miss) in model.reuse.cached_fraction.iter().zip(row) {
                    let numbers = [layer as f64, *share, *cached, *miss].map(|n| n.to_string());
                    out.write_record([level.name.clone(), policy.to_string()].into_iter().chain(numbers))?;
                }
            }
        }
    }
    Ok(out.into_inner().map_err(csv::IntoInnerError::into_error)?)
}
