//! Takes one layer after another: observes it, orders its neurons, trains predictors, measures every level, keeps the results.

use std::sync::Arc;

use flashplan::internals::container::requantised_down;
use flashplan::internals::kv::stored_in;
use flashplan::internals::model::config::Config;
use flashplan::internals::model::source::SourceModel;
use flashplan::internals::recording::Recording;
use kernels::Format;
use plans::KvFormat;
use serde::{Deserialize, Serialize};

use super::Job;
use super::batch::{Layer, Stream, row_sizes, said};
use super::budget::OWN_PIECES;
use super::evaluate::{Figures, Listener, streams};
use super::gates::Gates;
use super::level::{Menu, Predictors};
use super::look_ahead;
use super::missing::Missing;
use super::observe::Samples;
use super::order::NeuronOrder;
use super::work::{FinishedParts, joined, numbers, pieces};
use super::write::{PROMPT_TOKENS, own, written};
use crate::{Context, Stopped};

/// A pass through the layers of a model.
#[derive(Debug, Clone, Copy)]
pub struct Sweep<'a> {
    /// Folders and the stop flag.
    pub context: &'a Context,
    /// The amount of work.
    pub job: &'a Job,
    /// The folder of finished parts.
    pub work: &'a FinishedParts,
    /// The model.
    pub source: &'a SourceModel<'a>,
    /// The levels.
    pub menu: &'a Menu,
    /// Recorded routing, in place of the model's own.
    pub recording: Option<&'a Recording>,
}

/// The results of all layers.
#[derive(Debug)]
pub struct Swept {
    /// The neuron order of each layer.
    pub orders: Vec<NeuronOrder>,
    /// `[layer][level]`.
    pub figures: Vec<Vec<Figures>>,
    /// Missing neurons of tokens at each level, all layers together.
    pub missing: Vec<Missing>,
    /// Negative log likelihood of the source computed dense, by held-out window and then by generated piece, without first tokens.
    pub dense: Vec<f64>,
    /// These likelihoods at each level, `[level][window]`.
    pub levels: Vec<Vec<f64>>,
    /// Tokens of each generated piece.
    pub own: Vec<usize>,
    /// These likelihoods of the dense level with keys and values in each format, by the `kv_windows` of [`Sweep::run`].
    pub kv: Vec<(KvFormat, Vec<f64>)>,
    /// The dense level's choice after each token of the held-out text, window after window.
    pub chosen: Vec<u32>,
}

/// The results of a layer besides its predictors.
#[derive(Debug, Serialize, Deserialize)]
struct Finished {
    order: NeuronOrder,
    /// The figures of each level.
    figures: Vec<Figures>,
}

/// The streams between two layers.
struct State {
    /// Finished layers.
    layers: usize,
    /// The source computed dense: calibration text, generated text, and the held-out text if the container's down rows differ from the
    /// source's.
    dense: Stream,
    /// The held-out text, once for each stream of levels.
    levels: Stream,
    /// Some of the held-out text, once for each format of keys and values.
    kv: Stream,
    /// Rows of `levels` before the last layer's feed-forward network, for the tokens of [`look_ahead`].
    ahead: Vec<f32>,
}

/// The part with the streams.
const STATE: &str = "streams";
/// The part with the text that the model generated to train on, ...
const WRITTEN: &str = "written";
/// ... and to measure on.
const OWN: &str = "own";

fn layer_part(layer: usize) -> String {
    format!("layer-{layer:04}")
}

fn finished(work: &FinishedParts, layer: usize) -> anyhow::Result<Option<Finished>> {
    Ok(work.load(&layer_part(layer))?.and_then(|json| serde_json::from_slice(&json).ok()))
}

impl Sweep<'_> {
    /// Number of layers that an earlier start has finished.
    ///
    /// # Errors
    /// Finished parts that cannot be read.
    pub fn done(&self) -> anyhow::Result<usize> {
        let Self { job, work, source, menu, .. } = *self;
        for (part, tokens) in [(WRITTEN, job.written_tokens), (OWN, job.own_tokens)] {
            if tokens > 0 && work.load(part)?.is_none() {
                return Ok(0);
            }
        }
        let kept = work.load(STATE)?;
        let Some([layers, ..]) = kept.as_deref().and_then(pieces).as_deref().map(|p| [p[0]]) else {
            return Ok(0);
        };
        let layers = layers.try_into().map_or(0, u64::from_le_bytes) as usize;
        for layer in 0..layers.min(source.config().layers()) {
            let experts = if menu.has_thresholds() { source.config().experts() } else { 0 };
            let whole = (0..experts).try_fold(true, |whole, expert| {
                menu.kept(work, layer, expert).map(|kept| whole && kept.is_some())
            })?;
            if !whole || finished(work, layer)?.is_none() {
                return Ok(0);
            }
        }
        Ok(layers)
    }

    /// Takes all texts through all layers; `kv_windows` are the held-out windows that measure formats of keys and values.
    ///
    /// # Errors
    /// [`Stopped`], and finished parts that cannot be written.
    pub fn run(
        &self,
        calibration: &[Vec<u32>],
        held_out: &[Vec<u32>],
        kv_windows: &[usize],
    ) -> anyhow::Result<Swept> {
        let Self { context, work, source, menu, .. } = *self;
        let config = source.config();
        let texts = Texts::new(self, calibration, held_out, kv_windows)?;
        let streams = streams(menu);
        let mut state = texts.state(source, streams.len());
        let layers = self.done()?;
        if layers > 0
            && let Some(kept) = work.load(STATE)?
        {
            state.restore(&kept);
        }
        let bar = context.bar(config.layers() as u64, "layers");
        bar.set_position(state.layers as u64);
        for layer in state.layers..config.layers() {
            let step = |what: &str| bar.set_message(format!("layer {layer}: {what}"));
            let (order, predictors) = self.observe(layer, &texts, &mut state, &step)?;
            step("measuring");
            let figures = self.measure(layer, &streams, (&order, &predictors), &texts, &mut state)?;
            let given = Finished { order, figures };
            work.save(&layer_part(layer), &[&serde_json::to_vec(&given)?])?;
            state.layers = layer + 1;
            state.save(work)?;
            bar.inc(1);
        }
        drop(bar);

        let (mut orders, mut figures, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for layer in 0..config.layers() {
            let Some(mut given) = finished(work, layer)? else {
                anyhow::bail!(
                    "what layer {layer} gave is damaged in {}; remove the folder",
                    work.folder().display()
                );
            };
            let of_layer: Vec<Missing> =
                given.figures.iter_mut().map(|level| std::mem::take(&mut level.missing)).collect();
            missing = match layer {
                0 => of_layer,
                _ => missing.into_iter().zip(&of_layer).map(|(all, of): (Missing, _)| all.and(of)).collect(),
            };
            orders.push(given.order);
            figures.push(given.figures);
        }
        let mut go_on = || context.stopped();
        let judged = &*texts.judged;
        let repeats = repeated(judged, streams.len());
        let of_levels = said(source, &state.levels, &repeats, true, &mut go_on)?;
        let of_streams: Vec<&[f64]> = of_levels.losses.chunks(judged.len()).collect();
        let stream_of = |level: usize| streams.iter().position(|levels| levels.contains(&level)).unwrap_or(0);
        let levels: Vec<Vec<f64>> =
            (0..menu.levels.len()).map(|level| of_streams[stream_of(level)].to_vec()).collect();
        let dense = if texts.source_too {
            let last = state.dense.last(judged.len(), config.width);
            said(source, &last, &repeated(judged, 1), false, &mut go_on)?.losses
        } else {
            levels[0].clone()
        };
        let formats = kv_formats(config);
        let of_formats = said(source, &state.kv, &texts.for_kv(formats.len()), true, &mut go_on)?.losses;
        let of_formats = of_formats.chunks(kv_windows.len().max(1)).map(<[f64]>::to_vec);
        let kv = formats.into_iter().map(|(format, _)| format).zip(of_formats).collect();
        let tokens = |windows: &[Vec<u32>]| windows.iter().map(Vec::len).sum::<usize>();
        let chosen = of_levels.chosen.chunks(tokens(judged)).nth(stream_of(0)).unwrap_or_default();
        let chosen = chosen[..tokens(texts.held_out).min(chosen.len())].to_vec();
        let own = lengths(&judged[texts.held_out.len()..]);
        Ok(Swept { orders, figures, missing, dense, levels, own, kv, chosen })
    }

    /// Takes the calibration text through a layer: the order of its neurons, and the predictors of its experts.
    fn observe(
        &self,
        layer: usize,
        texts: &Texts<'_>,
        state: &mut State,
        step: &dyn Fn(&str),
    ) -> anyhow::Result<(NeuronOrder, Vec<Predictors>)> {
        let Self { context, job, work, source, menu, .. } = *self;
        let config = source.config();
        let mut go_on = || context.stopped();
        step("reading");
        let weights = Layer::new(source, layer);
        weights.attention(&mut state.dense, &mut go_on)?;
        let mut samples = vec![Samples::new(config.width, config.ffn_width()); config.experts()];
        if menu.cuts_gates {
            let every = sampled_every(config, texts.real);
            let scale = config.blocks[config.block_of(layer)].residual_scale.abs();
            let length = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>().sqrt() / scale;
            let stream: Arc<[f32]> =
                state.dense.x.chunks_exact(config.width).take(texts.real).map(length).collect();
            samples
                .iter_mut()
                .for_each(|samples| samples.gates = Some(Gates::new(every, Arc::clone(&stream))));
        }
        let downs = |expert| row_sizes(source.ffn_down(layer, expert));
        let down_sizes: Vec<Vec<f32>> = (0..config.experts()).map(downs).collect();
        let mut hear = |seen: super::batch::Expert<'_>| {
            let sizes = &down_sizes[seen.expert];
            samples[seen.expert].hear(config.activation(), &seen, sizes, &texts.heard, texts.real);
            seen.activate(config.activation());
        };
        weights.feed_forward(&mut state.dense, &mut hear, &mut go_on)?;
        step(if menu.predicts { "training predictors" } else { "ordering" });
        let order = if menu.slice_neurons > 1 || menu.down.is_none() {
            NeuronOrder::by_expert(&samples, texts.real)
        } else {
            NeuronOrder::new(&samples, texts.real)
        };
        let mut predictors = Vec::new();
        if menu.has_thresholds() {
            for (expert, (samples, order)) in samples.iter().zip(order.experts()).enumerate() {
                predictors.push(menu.predictors(context, job, work, source, layer, expert, samples, &order)?);
            }
        }
        Ok((order, predictors))
    }

    /// Takes the held-out text through a layer, once for every stream of levels: each level's figures.
    fn measure(
        &self,
        layer: usize,
        streams: &[Vec<usize>],
        (order, predictors): (&NeuronOrder, &[Predictors]),
        texts: &Texts<'_>,
        state: &mut State,
    ) -> Result<Vec<Figures>, Stopped> {
        let Self { context, job, source, menu, recording, .. } = *self;
        let mut go_on = || context.stopped();
        let experts = order.experts();
        let neurons: Vec<Vec<u32>> =
            experts.iter().map(|expert| expert.iter().map(|&(_, neuron)| neuron).collect()).collect();
        let requantised = |down| {
            let experts = 0..source.config().experts();
            experts.map(|expert| requantised_down(source, layer, expert, down)).collect::<Option<Vec<_>>>()
        };
        let downs = menu.down.and_then(|down| Some((down, requantised(down)?)));
        let windows = lengths(texts.held_out);
        let tokens_judged = texts.judged.iter().map(Vec::len).sum();
        let mut listener = Listener::new(
            source,
            layer,
            menu,
            streams,
            order,
            &experts,
            predictors,
            &windows,
            tokens_judged,
            job.trace_requested,
        );
        let mut weights = Layer::new(source, layer);
        weights.neurons = Some(&neurons);
        weights.rounds = true;
        weights.down = downs.as_ref().map(|(format, downs)| (*format, &**downs));
        weights.rounds_down = menu.down.is_none();
        weights.attention(&mut state.levels, &mut go_on)?;
        if layer > 0 {
            listener.look_ahead(&weights, &state.ahead);
        }
        let (tokens, width) = (look_ahead::tokens(&windows), source.config().width);
        state.ahead = look_ahead::rows(&state.levels, &tokens, tokens_judged, width);
        weights.feed_forward(&mut state.levels, &mut |seen| listener.hear(seen), &mut go_on)?;
        let formats = kv_formats(source.config());
        let activation = source.config().activation();
        for (at, &(_, format)) in formats.iter().enumerate() {
            weights.kv = Some(format);
            let mut stream = state.kv.part(at, formats.len());
            weights.attention(&mut stream, &mut go_on)?;
            weights.feed_forward(&mut stream, &mut |seen| seen.activate(activation), &mut go_on)?;
            state.kv.put(at, &stream);
        }
        Ok(listener.figures(recording))
    }
}

/// Distance of the tokens whose gates are kept: a few hundred for each expert, fewer for many experts.
fn sampled_every(config: &Config, real: usize) -> usize {
    /// Maximum kept values of a layer.
    const KEPT_VALUES: usize = 4 << 20;
    /// Minimum and maximum kept tokens of an expert.
    const TOKENS: [usize; 2] = [64, 512];
    let of_expert = (KEPT_VALUES / (config.experts() * config.ffn_width())).clamp(TOKENS[0], TOKENS[1]);
    let seen = real * config.experts_used() / config.experts();
    (seen / of_expert).max(1)
}

/// Formats of keys and values whose loss is measured: formats in blocks that divide this model's heads.
pub fn kv_formats(config: &Config) -> Vec<(KvFormat, Format)> {
    let holds = |format: &KvFormat| config.attentions().all(|a| format.holds(a.head_width as u64));
    let fitting = [KvFormat::Q8_0, KvFormat::Q4_0].into_iter().filter(holds);
    fitting.map(|format| (format, stored_in(format))).collect()
}

fn lengths(windows: &[Vec<u32>]) -> Vec<usize> {
    windows.iter().map(Vec::len).collect()
}

fn repeated(windows: &[Vec<u32>], times: usize) -> Vec<&[u32]> {
    (0..times).flat_map(|_| windows.iter().map(Vec::as_slice)).collect()
}

/// The texts, and the observed tokens of the dense stream.
struct Texts<'a> {
    calibration: &'a [Vec<u32>],
    written: Vec<Vec<u32>>,
    held_out: &'a [Vec<u32>],
    /// The held-out windows, and then the generated pieces.
    judged: Vec<Vec<u32>>,
    /// The held-out windows that measure formats of keys and values.
    kv_windows: &'a [usize],
    /// Whether the source's loss is measured beside the container's.
    source_too: bool,
    /// Rows of real text.
    real: usize,
    /// Whether networks are observed, for each row of the dense stream.
    heard: Vec<bool>,
}

impl<'a> Texts<'a> {
    fn new(
        sweep: &Sweep<'_>,
        calibration: &'a [Vec<u32>],
        held_out: &'a [Vec<u32>],
        kv_windows: &'a [usize],
    ) -> anyhow::Result<Self> {
        let Sweep { context, job, work, source, menu, .. } = *sweep;
        let kept = |part: &str, tokens: usize, write: &dyn Fn() -> Result<Vec<Vec<u32>>, Stopped>| {
            let kept = work.load(part)?;
            if let Some(pieces) = kept.as_deref().and_then(pieces) {
                return Ok(pieces.into_iter().map(numbers).collect());
            }
            let texts = if tokens > 0 { write()? } else { return Ok(Vec::new()) };
            let parts: Vec<&[u8]> = texts.iter().map(|text| bytemuck::cast_slice(text)).collect();
            work.save(part, &[&joined(&parts)])?;
            anyhow::Ok(texts)
        };
        let written =
            kept(WRITTEN, job.written_tokens, &|| written(context, source, calibration, job.written_tokens))?;
        let own =
            kept(OWN, job.own_tokens, &|| own(context, source, calibration, OWN_PIECES, job.own_tokens))?;
        let judged = held_out.iter().cloned().chain(own).collect::<Vec<_>>();
        let source_too = menu.differs(source);
        let real: usize = calibration.iter().map(Vec::len).sum();
        let mut heard = vec![true; real];
        heard.extend(written.iter().flat_map(|text| (0..text.len()).map(|i| i >= PROMPT_TOKENS)));
        if source_too {
            heard.extend(judged.iter().flatten().map(|_| false));
        }
        Ok(Self { calibration, written, held_out, judged, kv_windows, source_too, real, heard })
    }

    /// The windows of several formats of keys and values.
    fn for_kv(&self, formats: usize) -> Vec<&[u32]> {
        let of_format = || self.kv_windows.iter().map(|&window| self.held_out[window].as_slice());
        (0..formats).flat_map(|_| of_format()).collect()
    }

    /// The embeddings.
    fn state(&self, source: &SourceModel<'_>, streams: usize) -> State {
        let mut dense = repeated(self.calibration, 1);
        dense.extend(repeated(&self.written, 1));
        dense.extend(repeated(&self.judged, usize::from(self.source_too)));
        State {
            layers: 0,
            dense: Stream::new(source, &dense),
            levels: Stream::new(source, &repeated(&self.judged, streams)),
            kv: Stream::new(source, &self.for_kv(kv_formats(source.config()).len())),
            ahead: vec![
                0.0;
                streams * look_ahead::tokens(&lengths(self.held_out)).len() * source.config().width
            ],
        }
    }
}

impl State {
    /// All that the next layer reads.
    fn values(&mut self) -> Vec<&mut Vec<f32>> {
        let Self { layers: _, dense, levels, kv, ahead } = self;
        let streams = [dense, levels, kv].into_iter().flat_map(Stream::values);
        streams.chain([ahead]).collect()
    }

    fn save(&mut self, work: &FinishedParts) -> anyhow::Result<()> {
        let layers = (self.layers as u64).to_le_bytes();
        let values = self.values().into_iter().map(|values| -> &[u8] { bytemuck::cast_slice(values) });
        // as `joined`, without a copy
        let pieces: Vec<&[u8]> = [&layers[..]].into_iter().chain(values).collect();
        let lengths: Vec<u64> = pieces.iter().map(|piece| piece.len() as u64).collect();
        let head = [&[lengths.len() as u64], &*lengths].concat();
        let parts: Vec<&[u8]> = [bytemuck::cast_slice(&head)].into_iter().chain(pieces).collect();
        work.save(STATE, &parts)
    }

    /// Replaces the streams by kept ones, unless these have another shape.
    fn restore(&mut self, kept: &[u8]) {
        let Some(pieces) = pieces(kept) else { return };
        let Some((layers, kept)) = pieces.split_first() else { return };
        let Ok(layers) = (*layers).try_into().map(u64::from_le_bytes) else { return };
        let own = self.values();
        if own.len() == kept.len() && own.iter().zip(kept).all(|(own, kept)| kept.len() == 4 * own.len()) {
            own.into_iter()
                .zip(kept)
                .for_each(|(own, kept)| bytemuck::cast_slice_mut(own).copy_from_slice(kept));
            self.layers = layers as usize;
        }
    }
}
