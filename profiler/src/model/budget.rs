//! The amount of text for a profile, and the time and space that it takes.
//!
//! Reading text is matrix products. A short sample of one, on this machine with this model's weights, prices all of it. Small models read
//! all text, large ones as much as time allows. The choice depends on processor time, in coarse steps, so two runs on one machine choose
//! the same amount. The announced time is wall-clock time.

use std::io::Write as _;
use std::time::{Duration, Instant};

use flashplan::internals::container::requantised_down;
use flashplan::internals::model::config::{Config, Mixer};
use flashplan::internals::model::source::{Down, SourceModel};
use kernels::Format;
use kernels::Matrix;
use plans::PAGE_BYTES;
use plans::layout::BundleLayout;
use plans::model::LevelKind;
use serde::{Deserialize, Serialize};

use super::batch::{shared_width, times};
use super::evaluate::streams;
use super::layers::kv_formats;
use super::level::Menu;
use super::matrix::Use;
use super::text::WINDOW_TOKENS_MAX;
use crate::{Context, ProfileError};

/// Base time of a profile. With the time for each billion weights, a 7B model takes 20 minutes and a 47B model 60.
const BASE_SECONDS: f64 = 780.0;
const SECONDS_PER_WEIGHT: f64 = 60e-9;
/// Share of time and text with `--quick`.
const QUICK_SHARE: f64 = 1.0 / 6.0;
/// Shares of the time of tokens: reading the calibration text, training, measuring the levels.
const READING_SHARE: f64 = 0.3;
const TRAINING_SHARE: f64 = 0.2;
const MEASURING_SHARE: f64 = 0.45;
/// Share of the time for measuring the loss of keys and values in blocks.
const KV_SHARE: f64 = 0.05;
/// Share of the time for generating more text, for models that finish their text early.
const WRITING_SHARE: f64 = 0.15;
/// Minimum tokens of a cut text.
const TOKENS_MIN: usize = 256;
/// Training tokens of a predictor. The model generates what the calibration text lacks, ...
const TRAINING_TOKENS: usize = 16_000;
/// ... up to this multiple of the text.
///
/// At equal recall, four times a text of 13,000 tokens requested 1 % fewer neurons, four times a text of 2,000 tokens 20 % fewer.
const WRITTEN_SHARE: f64 = 3.0;
/// Share of a product's rate that remains with attention, norms, transposing and selecting around it, measured at 7B.
const WITH_THE_REST: f64 = 0.8;
/// Generated pieces of text that also measure levels, ...
pub const OWN_PIECES: usize = 8;
/// ... each with at least and at most this many tokens.
const OWN_TOKENS: [usize; 2] = [64, 256];
/// Cost of a generated token, in tokens that are read together.
const WRITTEN_COST: f64 = 8.0;
/// Minimum and maximum training passes over the calibration samples.
const EPOCHS: [usize; 2] = [2, 30];
/// Requested neurons of a layer and level in the traces of the cache curves, ...
const TRACE_REQUESTED: usize = 400_000;
/// ... and the share of the time that the traces may take. A neuron takes 40 caches of each policy at about 12 ns.
const TRACE_SHARE: f64 = 0.08;
const TRACE_SECONDS: f64 = 1.5e-6;
/// Bytes of the finished part of a layer and level, most of them the tokens' misses.
const LEVEL_BYTES: u64 = 256 << 10;
/// Cost of a training minibatch over its products alone: it also reads and writes parameters and their moments.
const STEP_COST: f64 = 1.4;

/// The amount of work in each part of a profile. It is kept with the finished parts, so that a restart does the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Maximum tokens of the calibration text.
    pub calibration_tokens: usize,
    /// Tokens that the model generates.
    pub written_tokens: usize,
    /// Tokens of each of the [`OWN_PIECES`] that measure levels; 0 without time for it, or where every level requests every neuron.
    pub own_tokens: usize,
    /// Maximum tokens of the held-out text.
    pub held_out_tokens: usize,
    /// Tokens of the held-out text that measure formats of keys and values.
    pub kv_tokens: usize,
    /// Passes of training.
    pub epochs: usize,
    /// Traced requests of a layer and level, in neurons.
    pub trace_requested: usize,
    /// Whether the texts were cut for time.
    pub cut: bool,
}

/// The machine's speed in multiplications per second.
#[derive(Debug, Clone, Copy)]
pub struct Speed {
    /// Multiply-adds in products of this model's matrices with a batch of tokens, with all processors free.
    products: f64,
    /// Wall-clock time over processor time: above 1 where other programs run.
    crowd: f64,
    /// Seconds to quantise one expert's down again.
    requantising: f64,
    /// Bytes written to storage.
    written_bytes: f64,
}

impl Speed {
    /// Samples each for a total of two seconds.
    ///
    /// # Errors
    /// When the storage cannot be written to.
    pub fn sample(
        context: &Context,
        source: &SourceModel<'_>,
        down: Option<Format>,
    ) -> Result<Self, ProfileError> {
        let gate = source.ffn_gate(0, 0);
        let rows = gate.rows.min(4096);
        let part = Matrix { rows, bytes: &gate.bytes[..rows * gate.format.row_bytes(gate.columns)], ..gate };
        let x = vec![0.5; 512 * gate.columns];
        // the first product does not count: it reads the weights from the disk
        drop(times(part, None, &x, Use::Transposed));
        let threads = rayon::current_num_threads() as f64;
        let (start, cpu_start, mut count) = (Instant::now(), cpu_seconds(), 0);
        while start.elapsed() < Duration::from_millis(700) {
            drop(times(part, None, &x, Use::Transposed));
            count += 1;
        }
        let (wall, cpu) = (start.elapsed().as_secs_f64(), (cpu_seconds() - cpu_start) / threads);
        let products = WITH_THE_REST * (count * rows * x.len()) as f64 / cpu.max(wall / 64.0);
        let crowd = (wall / cpu.max(wall / 64.0)).max(1.0);
        let start = Instant::now();
        drop(down.map(|down| requantised_down(source, 0, 0, down)));
        let requantising = start.elapsed().as_secs_f64();
        let io = |source| ProfileError::Io { action: "write into", path: context.storage.clone(), source };
        let mut file = tempfile::tempfile_in(&context.storage).map_err(io)?;
        let block = vec![1; 4 << 20];
        let start = Instant::now();
        let mut bytes = 0;
        while bytes < 64 << 20 && start.elapsed() < Duration::from_millis(300) {
            file.write_all(&block).map_err(io)?;
            bytes += block.len();
        }
        file.sync_all().map_err(io)?;
        let written_bytes = bytes as f64 / start.elapsed().as_secs_f64();
        Ok(Self { products, crowd, requantising, written_bytes })
    }
}

/// Processor time of this process, all threads.
fn cpu_seconds() -> f64 {
    platform::process::cpu_time().as_secs_f64()
}

/// Time and space that a profile will take.
#[derive(Debug, Clone)]
pub struct Estimate {
    /// Each part of the work, and its seconds.
    pub stages: Vec<(String, f64)>,
    /// Bytes of the container, in the storage folder.
    pub container_bytes: u64,
    /// Bytes of finished parts, in the output folder until the end.
    pub work_bytes: u64,
}

impl Estimate {
    /// Seconds of all stages.
    pub fn seconds(&self) -> f64 {
        self.stages.iter().map(|(_, seconds)| seconds).sum()
    }
}

/// Multiplications of a token in each part of the work.
struct Costs {
    /// Multiplications of one token.
    token: f64,
    /// Multiplications of a token in a level with a low-rank predictor.
    predicted_token: f64,
    /// Multiplications of a token in a training pass.
    trained_token: f64,
    /// Streams of held-out text: all, and the ones with a low-rank predictor.
    streams: [f64; 2],
    /// Seconds of the work that does not depend on tokens.
    fixed: f64,
}

impl Costs {
    fn new(source: &SourceModel<'_>, menu: &Menu, speed: Speed) -> Self {
        let c = source.config();
        let token = work_per_token(c);
        let predictor =
            (c.layers() * c.experts_used() * menu.rank(c, 0, 0) * (c.width + c.ffn_width())) as f64;
        let low_rank = menu.levels.iter().filter(|level| level.kind == LevelKind::LowRank).count() as f64;
        let source_too = f64::from(u8::from(menu.differs(source)));
        // once to measure, once to write
        let requantising = 2.0 * source_too * speed.requantising * (c.layers() * c.experts()) as f64;
        let writing = container_bytes(source, menu) as f64 / speed.written_bytes;
        Self {
            token,
            predicted_token: token + predictor,
            // also for predictors in the file, which may be useless
            trained_token: if menu.predicts { STEP_COST * 3.0 * predictor } else { 0.0 },
            streams: [streams(menu).len() as f64 + source_too, low_rank],
            fixed: requantising + writing,
        }
    }

    fn held_out_token(&self) -> f64 {
        let [all, predicted] = self.streams;
        (all - predicted) * self.token + predicted * self.predicted_token
    }
}

impl Job {
    /// The job that fits the time, for texts with these numbers of tokens.
    pub fn new(
        context: &Context,
        source: &SourceModel<'_>,
        menu: &Menu,
        speed: Speed,
        calibration_tokens: usize,
        held_out_tokens: usize,
    ) -> Self {
        let c = source.config();
        let costs = Costs::new(source, menu, speed);
        let share = if context.quick { QUICK_SHARE } else { 1.0 };
        let time = share * (BASE_SECONDS + SECONDS_PER_WEIGHT * weights(c));
        let left = (time - costs.fixed).max(0.2 * time);
        let affordable = |part: f64, cost: f64| (part * left * speed.products / cost) as usize;
        let wanted = |tokens: usize| ((tokens as f64 * share) as usize).max(TOKENS_MIN);
        let fit = |tokens: usize, affordable: usize| {
            if affordable >= wanted(tokens) { wanted(tokens) } else { coarse(affordable).max(TOKENS_MIN) }
        };
        let reading = affordable(READING_SHARE, costs.token);
        let calibration = fit(calibration_tokens, reading);
        let held_out = fit(held_out_tokens, affordable(MEASURING_SHARE, costs.held_out_token()));
        let kv_formats = kv_formats(c).len() as f64;
        let kv_tokens = coarse(affordable(KV_SHARE, kv_formats.max(1.0) * costs.token));
        let cut = calibration < wanted(calibration_tokens) || held_out < wanted(held_out_tokens);
        let written = if menu.trains() && calibration == wanted(calibration_tokens) {
            let missing = (TRAINING_TOKENS / if context.quick { 2 } else { 1 }).saturating_sub(calibration);
            let affordable = coarse(affordable(WRITING_SHARE, WRITTEN_COST * costs.token));
            missing.min((WRITTEN_SHARE * calibration as f64) as usize).min(affordable)
        } else {
            0
        };
        let longest = c.context.min(WINDOW_TOKENS_MAX);
        let own = affordable(WRITING_SHARE, (WRITTEN_COST + costs.streams[0]) * costs.token) / OWN_PIECES;
        let own = own.min(OWN_TOKENS[1]).min(longest);
        let own_tokens = if menu.has_thresholds() && own >= OWN_TOKENS[0] { own } else { 0 };
        let rows = (calibration + written) as f64;
        let epochs = affordable(TRAINING_SHARE, costs.trained_token.max(1.0) * rows);
        let traces =
            (c.layers() * menu.levels.len()) as f64 * TRACE_SECONDS / rayon::current_num_threads() as f64;
        Self {
            calibration_tokens: calibration,
            written_tokens: written,
            own_tokens,
            held_out_tokens: held_out,
            kv_tokens: kv_tokens.max(TOKENS_MIN).min(held_out),
            epochs: epochs.clamp(EPOCHS[0], if context.quick { EPOCHS[1] / 2 } else { EPOCHS[1] }),
            trace_requested: ((TRACE_REQUESTED as f64 * share) as usize)
                .min(coarse((TRACE_SHARE * left / traces) as usize)),
            cut,
        }
    }

    /// Upper bound of the job's time and space: training may end earlier.
    pub fn estimate(&self, source: &SourceModel<'_>, menu: &Menu, speed: Speed) -> Estimate {
        let c = source.config();
        let costs = Costs::new(source, menu, speed);
        let seconds = |multiplications: f64| speed.crowd * multiplications / speed.products;
        let rows = (self.calibration_tokens + self.written_tokens) as f64;
        let own = (OWN_PIECES * self.own_tokens) as f64;
        let writing = (self.written_tokens as f64 + own) * WRITTEN_COST;
        let mut stages = vec![(
            format!("reading {} tokens", self.calibration_tokens + self.written_tokens),
            seconds((rows + writing) * costs.token),
        )];
        if menu.trains() {
            let passes = self.epochs;
            let work = rows * passes as f64 * costs.trained_token;
            stages.push((format!("training predictors in {passes} passes"), seconds(work)));
        }
        let traces =
            (c.layers() * menu.levels.len() * self.trace_requested) as f64 * TRACE_SECONDS * speed.crowd;
        stages.push((
            format!("measuring {} levels on {} tokens", menu.levels.len(), self.held_out_tokens),
            seconds((self.held_out_tokens as f64 + own) * costs.held_out_token())
                + traces / rayon::current_num_threads() as f64,
        ));
        let formats = kv_formats(c).len();
        if formats > 0 {
            stages.push((
                format!("measuring {formats} formats of keys and values on {} tokens", self.kv_tokens),
                seconds((formats * self.kv_tokens) as f64 * costs.token),
            ));
        }
        let writing = if menu.index { "indexing the model's file" } else { "writing the container" };
        stages.push((writing.to_owned(), costs.fixed));
        // the held-out text, and at most as many rows of the layer before
        let streams = rows
            + 2.0 * (self.held_out_tokens as f64 + own) * costs.streams[0]
            + (formats * self.kv_tokens) as f64;
        Estimate {
            stages,
            container_bytes: container_bytes(source, menu),
            // two states: the new one is complete before the old one goes
            work_bytes: predictor_bytes(c, menu)
                + 2 * 4 * (c.width + shared_width(c)) as u64 * streams as u64
                + (c.layers() * menu.levels.len()) as u64 * LEVEL_BYTES
                + (16 << 20),
        }
    }
}

/// The next lower number of 1, 1.5, 2, 3, 4, 6, 8, ...
fn coarse(tokens: usize) -> usize {
    let power = 1 << tokens.max(1).ilog2();
    if tokens >= power + power / 2 { power + power / 2 } else { power }
}

/// Multiplications of one token.
fn work_per_token(c: &Config) -> f64 {
    let of_mixer = |mixer: &Mixer| c.width * (mixer.projected_values(c.width) + mixer.mixed_values(c.width));
    let mixers: usize = c.blocks.iter().filter_map(|block| block.mixer.as_ref()).map(of_mixer).sum();
    let experts = 3 * c.width * c.ffn_width() * c.experts_used();
    (mixers + c.layers() * experts + c.width * c.vocabulary) as f64
}

fn weights(c: &Config) -> f64 {
    work_per_token(c) + (c.layers() * 3 * c.width * c.ffn_width() * (c.experts() - c.experts_used())) as f64
}

/// Bytes of the predictors in the container and in the finished parts.
fn predictor_bytes(c: &Config, menu: &Menu) -> u64 {
    let mut bytes = 0;
    for (layer, expert) in
        (0..c.layers()).flat_map(|layer| (0..c.experts()).map(move |expert| (layer, expert)))
    {
        let rank = menu.rank(c, layer, expert);
        bytes += rank * menu.format.row_bytes(c.width) + c.ffn_width() * menu.format.row_bytes(rank);
        bytes += c.ffn_width() * (c.width.div_ceil(64) * 8 + 4 * menu.levels.len());
    }
    let thresholds = 4 * c.layers() * c.experts() * c.ffn_width() * menu.levels.len();
    match (menu.predicts, menu.cuts_gates) {
        (true, _) => bytes as u64,
        (false, true) => thresholds as u64,
        (false, false) => 0,
    }
}

/// Bytes of the container, without its tokenizer.
pub(super) fn container_bytes(source: &SourceModel<'_>, menu: &Menu) -> u64 {
    let c = source.config();
    if menu.index {
        let parts = (0..c.blocks.len()).flat_map(|block| c.parts(block));
        let plain = parts.filter(|part| part.role.is_plain()).map(|part| part.rows * part.columns);
        let rows = source.row_table().map_or(0, |rows| 4 * rows.rows);
        return (4 * plain.sum::<usize>() + rows + 64 * c.experts() * c.layers()) as u64 + (16 << 20);
    }
    let (neurons, gated) = ((c.experts() * c.ffn_width()) as u64, c.activation().is_gated());
    let row = |w: Matrix<'_>| w.format.row_bytes(c.width) as u64;
    let bundles = (0..c.layers()).map(|layer| {
        let (Down::Columns(down) | Down::Rows(down)) = source.ffn_down(layer, 0);
        let piece = (c.width * down.format.block_bytes()).div_ceil(down.format.block_values());
        let down_bytes = menu.down.map_or(piece, |down| down.row_bytes(c.width)) as u64;
        let gate_bytes = row(source.ffn_gate(layer, 0));
        let up_bytes = if gated { row(source.ffn_up(layer, 0)) } else { 0 };
        BundleLayout::in_slices(gate_bytes, up_bytes, down_bytes, menu.slice_neurons as u64)
    });
    let feed_forward: usize = (0..c.layers())
        .flat_map(|layer| (0..c.experts()).map(move |expert| (layer, expert)))
        .map(|(layer, expert)| {
            let (Down::Columns(down) | Down::Rows(down)) = source.ffn_down(layer, expert);
            down.bytes.len()
                + source.ffn_gate(layer, expert).bytes.len()
                + if gated { source.ffn_up(layer, expert).bytes.len() } else { 0 }
        })
        .sum();
    let fixed = source.gguf().file_bytes().saturating_sub(feed_forward) as u64;
    bundles.map(|bundle| neurons * (bundle.stride_bytes + 8)).sum::<u64>()
        + fixed
        + predictor_bytes(c, menu)
        + c.layers() as u64 * PAGE_BYTES
        + (16 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_counts_are_few() {
        assert_eq!([1, 2, 3, 4, 1023, 1024, 1535, 1536].map(coarse), [1, 2, 3, 4, 768, 1024, 1024, 1536]);
        assert_eq!(coarse(0), 1);
    }
}
