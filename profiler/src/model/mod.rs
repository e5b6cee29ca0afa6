//! Measures a model: activation statistics, predictors, quality levels and the container.
//!
//! It takes one layer at a time. So a model larger than memory needs little of it, and a killed profile resumes. The steps in order:
//!
//! 1. `fetch` downloads a model from Hugging Face's hub. `hub` converts a folder from there to a GGUF file. `taken` says what the profile
//!    assumes of the file, and why.
//! 2. `text` cuts calibration and held-out texts into windows of tokens, as many as `budget` finds time for. `write` has a small model
//!    generate more text to train on.
//! 3. `glance` checks that the model predicts text. `layers` then takes each layer through these steps:
//!    * `batch` computes the layer for the calibration text, and `observe` records active neurons.
//!    * `order` ranks neurons: hot ones first, co-active ones together.
//!    * `level` has the predictors of the quality levels, from `start` and `train` (or `import`) and `threshold`.
//!    * `evaluate` computes the layer for the held-out text, once for every level.
//!    * `reuse` turns requests into miss rates of caches of every size, `missing` into differences between tokens.
//!    * `work` keeps the layer's results on disk, and the streams for the next layer.
//! 4. `convert` writes the container. `consume` frees the model's bytes meanwhile, with `--consume-model`.
//! 5. `loss` compares each level with the dense model, and bounds the loss.
//! 6. `table` writes `model.toml` and its tables.
//!
//! `instant` has priors in place of steps 2, 3 and 5. `header` reads a file's header alone.

pub mod batch;
pub mod budget;
pub mod consume;
pub mod convert;
pub mod drafts;
pub mod evaluate;
pub mod fetch;
mod fingerprint;
pub mod gates;
mod glance;
pub mod header;
pub mod hub;
pub mod import;
pub mod instant;
pub mod layers;
pub mod level;
pub mod look_ahead;
pub mod loss;
pub mod matrix;
pub mod missing;
pub mod observe;
mod opened;
pub mod order;
mod pass;
pub mod reuse;
mod space;
pub mod start;
pub mod table;
pub mod taken;
pub mod text;
pub mod threshold;
pub mod train;
pub mod work;
pub mod write;

use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use flashplan::internals::container::{self, Container, Written};
use flashplan::internals::model::source::{Down, SourceModel};
use flashplan::internals::model::tokenizer::TokenizerData;
use flashplan::internals::recording::{Recording, Routing};
use kernels::Format;
use kernels::{self, Activation};
use plans::model::{KvLoss, ModelProvenance};

use crate::{Context, Stopped, folder, outputs};
use budget::Speed;
pub use budget::{Estimate, Job};
use consume::Consumption;
use convert::Conversion;
pub use fetch::Source;
use layers::Sweep;
use level::Menu;
pub use level::Weights;
use opened::{container_file, name_of, open};
pub use space::check;
use space::{check_space, disk, given_back_bytes, weights_of};
use table::StoredLevel;
use text::{Texts, Windows};
use work::FinishedParts;

/// The model to measure, and the options.
#[derive(Debug, Clone)]
pub struct ModelOptions {
    /// A GGUF file, or a folder with one. [`hub::open`] converts a folder from Hugging Face's hub.
    pub model: PathBuf,
    /// The calibration text, instead of the built-in one.
    pub text: Option<PathBuf>,
    /// Recorded routes, instead of the model's own routing.
    pub routes: Option<PathBuf>,
    /// The model's short name, instead of its file name.
    pub name: Option<String>,
    /// The format of quantised down rows in the container, instead of the source's.
    pub down: Option<Format>,
    /// Whether to add levels that skip neurons with a small gate, for a model whose neurons all fire.
    pub gate_levels: bool,
    /// The activation function, instead of the file's.
    pub activation: Option<Activation>,
    /// The place of the weights. `None`: whole experts stay in the model's own file, if it is on the measured disk and not consumed.
    /// All other weights go to a container.
    pub weights: Option<Weights>,
    /// Whether to delete the model's file while the container is written.
    pub consume: bool,
    /// Whether to replace the files of another model.
    pub replace: bool,
    /// Whether to calibrate nothing: the level `dense` alone, see [`instant`].
    pub instant: bool,
}

/// The measured model, for people.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The model's short name.
    pub name: String,
    /// Path of `model.toml`.
    pub model_toml: PathBuf,
    /// The flash container.
    pub container: PathBuf,
    /// Perplexity of the source file computed dense.
    pub perplexity_dense: f64,
    /// Quality levels.
    pub levels: Vec<LevelSummary>,
    /// Keys and values in blocks.
    pub kv_formats: Vec<KvLoss>,
}

/// A measured quality level.
#[derive(Debug, Clone)]
pub struct LevelSummary {
    /// Name of the level.
    pub name: String,
    /// Whether every active neuron is computed with the weights of the source file.
    pub lossless: bool,
    /// Change of perplexity as a fraction.
    pub change_fraction: f64,
    /// Upper bound of the change, with 95 % confidence.
    pub upper_fraction: Option<f64>,
    /// Mean share of active neurons.
    pub active_fraction: f64,
}

/// A prepared profile: everything is read and checked, nothing is written.
#[derive(Debug)]
pub struct Profile {
    context: Context,
    path: PathBuf,
    consume: bool,
    name: String,
    fingerprint: String,
    source: SourceModel<'static>,
    tokenizer_data: TokenizerData,
    texts: Texts,
    /// Calibration and held-out windows.
    windows: [Windows; 2],
    menu: Menu,
    recording: Option<Recording>,
    job: Job,
    work: FinishedParts,
    /// Time and space that the profile will take.
    pub estimate: Estimate,
    /// Layers that an earlier start has finished.
    pub layers_done: usize,
    /// Warnings for people.
    pub remarks: Vec<String>,
    /// Assumptions about the model, and why: its activation, router, pre-tokenizer and template.
    pub taken: Vec<String>,
}

impl Profile {
    /// Reads the model and the text, finds the finished parts of an earlier start, and checks the free space.
    ///
    /// # Errors
    /// Faults of the model's files, too little space, and [`Stopped`].
    pub fn prepare(context: &Context, options: &ModelOptions) -> anyhow::Result<Self> {
        let (path, source) = open(options)?;
        let tokenizer_data =
            source.tokenizer_data().map_err(|error| anyhow!("{}: {error}", path.display()))?;
        let name = name_of(options, &path)?;
        let mut remarks: Vec<String> = tokenizer_data.remark().into_iter().collect();
        remarks.extend(import::remark(&source));
        let taken = taken::told(&source, &tokenizer_data, options.activation);
        let tokenizer = tokenizer_data.clone().into_tokenizer()?;
        let texts = match &options.text {
            None => Texts::built_in(),
            Some(path) => Texts::from_file(path)?,
        };
        let elsewhere = disk(&path)? != disk(&context.storage)?;
        let weights = weights_of(options, elsewhere);
        let menu = Menu::new(&source, options.down, weights, options.gate_levels)?;
        check_in_place(context, options, &path, &menu, elsewhere)?;
        let recording = options.routes.as_deref().map(|path| recorded(path, &source, &menu)).transpose()?;
        remarks.extend(recording.as_ref().and_then(Recording::remark));
        let noted = consume::noted_fingerprint(&path, &source)?;
        match (&noted, options.consume) {
            (Some(_), false) => bail!(
                "{} has been consumed in part by an unfinished profile: the same command with --consume-model goes on \
                 with it, and nothing else can use it",
                path.display()
            ),
            (_, true) => consume::check(&path, &source)?,
            _ => {}
        }
        let fingerprint = match &noted {
            Some(fingerprint) => fingerprint.clone(),
            None => fingerprint::of(context, &source)?,
        };
        let container = context.storage.join(container_file(&name, menu.index));
        remarks.extend(replaced(context, options, &source, &container, &fingerprint)?);
        let [calibration, held_out] = [&texts.calibration, &texts.held_out].map(|texts| text::hash(texts));
        // bundles for other kernels have valid checksums, but rows in another order
        let stored = |format| kernels::best().stored(format, source.config().width);
        let of_layer = |layer| {
            let (Down::Columns(down) | Down::Rows(down)) = source.ffn_down(layer, 0);
            let [gate, up] = [source.ffn_gate(layer, 0), source.ffn_up(layer, 0)];
            [gate.format, up.format, menu.down.unwrap_or(down.format)]
        };
        let mut stored: Vec<_> =
            (0..source.config().layers()).map(|layer| of_layer(layer).map(stored)).collect();
        stored.dedup();
        let routes = recording.as_ref().map(|recording| &recording.hash);
        let key = format!(
            "{} {KEPT} {} {fingerprint} {calibration} {held_out} {name} {} {:?} {} {:?} {stored:?} {:?} {} {routes:?} {}",
            env!("CARGO_PKG_VERSION"),
            container::VERSION,
            context.quick,
            menu.down,
            context.storage.display(),
            menu.hidden,
            source.config().activation(),
            menu.slice_neurons,
            menu.cuts_gates
        );
        let work = FinishedParts::new(&context.out, key.as_bytes())?;
        let kept = work.load(JOB)?.and_then(|json| serde_json::from_slice::<Job>(&json).ok());
        let speed = Speed::sample(context, &source, menu.down)?;
        let job = kept.unwrap_or_else(|| {
            let count = |texts: &[String]| texts.iter().map(|t| tokenizer.encode(t, false).len()).sum();
            Job::new(context, &source, &menu, speed, count(&texts.calibration), count(&texts.held_out))
        });
        let cut = |texts: &[String], tokens| Windows::new(&tokenizer, texts, source.config().context, tokens);
        let windows =
            [cut(&texts.calibration, job.calibration_tokens), cut(&texts.held_out, job.held_out_tokens)];
        // a single window gives no bound of the loss
        if windows[0].tokens.is_empty() || windows[1].tokens.len() < 2 {
            bail!(
                "the text is too short to calibrate with and to hold some out; give --text a file of a few \
                 thousand words"
            );
        }
        let estimate = job.estimate(&source, &menu, speed);
        let given_back = if options.consume { given_back_bytes(context, &path, &source)? } else { 0 };
        check_space(context, &work, &estimate, given_back)?;
        context.stopped()?;
        let sweep = Sweep {
            context,
            job: &job,
            work: &work,
            source: &source,
            menu: &menu,
            recording: recording.as_ref(),
        };
        let layers_done = sweep.done()?;
        if noted.is_some() && layers_done < source.config().layers() {
            bail!(
                "{} has been consumed in part, and what its profile had finished is not in {}: name the folder of that \
                 profile with --out and the same other options, or get the model again and remove the note beside it",
                path.display(),
                context.out.display()
            );
        }
        let context = context.clone();
        Ok(Self {
            context,
            path,
            consume: options.consume,
            name,
            fingerprint,
            source,
            tokenizer_data,
            texts,
            windows,
            menu,
            recording,
            job,
            work,
            estimate,
            layers_done,
            remarks,
            taken,
        })
    }

    /// The sentence of [`Profile::taken`] on the activation, if no key of the file supports it: a wrong one computes garbage.
    pub fn assumed_activation(&self) -> Option<&str> {
        self.taken.first().map(String::as_str).filter(|sentence| sentence.contains(taken::UNSTATED))
    }

    /// Layers of the model.
    pub fn layers(&self) -> usize {
        self.source.config().layers()
    }

    /// Measures everything that is not finished, and writes `model.toml`, its CSV files and the container.
    ///
    /// # Errors
    /// Faults of the output files, and [`Stopped`], which keeps the finished parts.
    pub fn run(self) -> anyhow::Result<Summary> {
        let (folder, layers) = (self.work.folder().to_owned(), self.layers());
        self.finish().map_err(|error| {
            if error.downcast_ref::<Stopped>().is_none() || !folder.exists() {
                return error;
            }
            anyhow!(
                "stopped on request; what is finished of the {layers} layers is kept in {}, and the same command \
                 goes on from there",
                folder.display()
            )
        })
    }

    fn finish(self) -> anyhow::Result<Summary> {
        let Self { context, name, fingerprint, source, menu, recording, job, work, .. } = &self;
        context.stopped()?;
        let [calibration, held_out] = &self.windows;
        if self.layers_done == 0 {
            glance::check(&self.path, glance::glance(context, source, &held_out.tokens)?.perplexity)?;
        }
        work.save(JOB, &[&serde_json::to_vec(job)?])?;
        let sweep = Sweep { context, job, work, source, menu, recording: recording.as_ref() };
        let kv_windows = held_out.some(job.kv_tokens);
        let swept = sweep.run(&calibration.tokens, &held_out.tokens, &kv_windows)?;
        context.stopped()?;
        // before any byte of the model is deleted
        let finite = swept.dense.iter().all(|surprise| surprise.is_finite());
        glance::check(&self.path, if finite { held_out.perplexity(&swept.dense) } else { f64::NAN })?;

        let consumption =
            (self.consume).then(|| Consumption::begin(&self.path, source, fingerprint)).transpose()?;
        let container_file = container_file(name, menu.index);
        let container_path = context.storage.join(&container_file);
        let conversion = Conversion {
            name,
            fingerprint,
            source,
            tokenizer: &self.tokenizer_data,
            work,
            menu,
            orders: &swept.orders,
            sums: None,
            consumption: consumption.as_ref(),
        };
        let written = conversion.write(context, &container_path, self.estimate.container_bytes)?;
        let container = Container::open_with(&container_path, self.path.parent())?;
        let provenance = ModelProvenance {
            tool: format!("profile {}", env!("CARGO_PKG_VERSION")),
            origin: "measured".to_owned(),
            calibration_text: text::hash(&self.texts.calibration),
            calibration_tokens: calibration.count() as u64,
            held_out_text: text::hash(&self.texts.held_out),
            held_out_tokens: held_out.count() as u64,
            quick: context.quick,
            routes: recording.as_ref().map(|recording| recording.hash.clone()),
            notes: self.notes(&written)?,
        };
        let findings = table::Findings {
            name,
            fingerprint,
            provenance,
            source,
            container_file,
            written: &written,
            stored: &StoredLevel::all(menu, &container)?,
            menu,
            exact: !menu.differs(source),
            activations: menu.activations(source),
            held_out,
            own: &swept.own,
            dense: &swept.dense,
            losses: &swept.levels,
            kv: &swept.kv,
            kv_windows: &kv_windows,
            // a recurrent state cannot go back to a rejected token
            drafts: source
                .config()
                .recurrent()
                .is_none()
                .then(|| drafts::measured(&held_out.tokens, &swept.chosen))
                .flatten(),
            figures: &swept.figures,
            missing: &swept.missing,
        };
        let model = findings.model()?;
        let tables = [
            ("neurons.csv", outputs::NEURONS, table::neurons_csv(&swept.orders, menu.slice_neurons)?),
            ("reuse.csv", outputs::REUSE, table::reuse_csv(&model)?),
        ];
        for (name, kind, bytes) in tables {
            work.deliver(&context.out.join(name), kind, |path| plans::file::write_bytes(path, kind, &bytes))?;
        }
        let model_toml = context.out.join(MODEL);
        work.deliver(&model_toml, plans::file::kind::<plans::Model>(), |path| {
            plans::file::write(&model, path).map(|_| ())
        })?;
        let levels = levels_of(&model);
        consumption.map(Consumption::finish).transpose()?;
        self.work.remove()?;
        Ok(Summary {
            name: self.name,
            model_toml,
            container: container_path,
            perplexity_dense: model.dense.perplexity,
            levels,
            kv_formats: model.kv_formats,
        })
    }

    /// Networks whose predictors in the file were no better than chance, and were trained again.
    fn predictors_replaced(&self) -> anyhow::Result<usize> {
        let config = self.source.config();
        let mut replaced = 0;
        if self.menu.brings_predictors() {
            for network in 0..config.layers() * config.experts() {
                let (layer, expert) = (network / config.experts(), network % config.experts());
                let kept = self.menu.kept(&self.work, layer, expert)?;
                replaced += usize::from(kept.is_some_and(|kept| kept.replaces));
            }
        }
        Ok(replaced)
    }

    /// Notes for readers of `model.toml`.
    fn notes(&self, written: &Written) -> anyhow::Result<Vec<String>> {
        let mut notes = Vec::new();
        notes.extend(hub::note(self.source.gguf()));
        if self.job.cut {
            notes.push("The texts were cut to what this machine reads in the time of a profile.".to_owned());
        }
        if self.texts.held_out.len() == 1 {
            notes.push("One text was held out: the bounds of losses hold for texts like it.".to_owned());
        }
        if let Some(recording) = &self.recording {
            notes.push(format!(
                "Misses are of {} generated tokens of recorded routes, not of the held-out text; {}.",
                recording.routes.tokens() - recording.prompt,
                match recording.routes.are_known_ahead() {
                    true => "what is known a layer ahead is the recording's, too",
                    false => "nothing is known ahead",
                }
            ));
        }
        if self.menu.has_thresholds() {
            notes.push(match self.job.own_tokens {
                0 => "There was no time to measure levels on what the model writes itself: their bounds hold for text like what was held \
                      out."
                    .to_owned(),
                tokens => format!(
                    "Bounds of losses hold for what the model writes itself, too: {} pieces of {tokens} tokens.",
                    budget::OWN_PIECES
                ),
            });
        }
        let replaced = self.predictors_replaced()?;
        if replaced > 0 {
            notes.push(format!(
                "The file's predictors of {replaced} of {} networks tell no more than chance: others were trained in their place.",
                self.layers() * self.source.config().experts()
            ));
        }
        if self.menu.trains() || replaced > 0 {
            notes.push(format!(
                "Predictors were trained in at most {} passes; {} of their tokens the model wrote itself.",
                self.job.epochs, self.job.written_tokens
            ));
        }
        let (Down::Columns(down) | Down::Rows(down)) = self.source.ffn_down(0, 0);
        if self.menu.requantises(&self.source) {
            notes.push(format!(
                "Down is {} in the source, blocked along the neurons, and {} in the container, blocked along the \
                 width; the levels are measured with the container's, [dense] with the source's.",
                down.format, written.directory.down_format
            ));
        }
        match self.source.config().activation() {
            Activation::Relu => notes.push(
                "ReLU: a neuron with gate > 0 counts as truly active whatever the sign of up.".to_owned(),
            ),
            Activation::Silu | Activation::Gelu | Activation::SwigluOai => notes.push(format!(
                "{} is never exactly zero: the model has no lossless sparsity and no predictors{}.",
                match self.source.config().activation() {
                    Activation::Silu => "SiLU",
                    Activation::Gelu => "GELU",
                    _ => "SwiGLU",
                },
                if self.menu.cuts_gates { "; levels leave out neurons whose gate is small" } else { "" }
            )),
            Activation::Drelu => {}
            Activation::ReluSquared => notes.push(
                "ReLU squared without gates: a neuron fires, and is truly active, where its up is above zero.".to_owned(),
            ),
        }
        Ok(notes)
    }
}

/// Reads a recording for a mixture that is read expert by expert; requests of other models depend on more than experts.
fn recorded(path: &Path, source: &SourceModel<'_>, menu: &Menu) -> anyhow::Result<Recording> {
    let recording = Recording::read(path, Routing::of(source.config()))?;
    if menu.slice_neurons == 1 {
        bail!(
            "neurons of {} come and go one by one, and recorded experts do not say which of them a token requests: leave out \
             --routes",
            source.config().activation().name()
        );
    }
    Ok(recording)
}

/// Refuses `--index` where weights cannot be read from the model's own file.
fn check_in_place(
    context: &Context,
    options: &ModelOptions,
    path: &Path,
    menu: &Menu,
    elsewhere: bool,
) -> anyhow::Result<()> {
    if options.weights != Some(Weights::OwnFile) {
        return Ok(());
    }
    if !menu.index {
        let why = if menu.down.is_some() && menu.levels.len() > 1 {
            "its levels read single neurons"
        } else {
            "its down rows are stored anew"
        };
        bail!("{why}, so that all weights go into a container; leave out --index");
    }
    if options.consume {
        bail!(
            "--consume-model does not go with --index: experts and layers are read from the model's own file"
        );
    }
    if elsewhere {
        bail!(
            "{} is read in place, and is on another disk than {}, which is measured: name a folder on the model's disk with \
             --storage (and profile the device for it), or leave out --index",
            path.display(),
            context.storage.display()
        );
    }
    Ok(())
}

/// A remark on the files of another model that this profile replaces, if there are such.
///
/// # Errors
/// A container that would replace the model itself, and files of another model without `--replace`.
fn replaced(
    context: &Context,
    options: &ModelOptions,
    source: &SourceModel<'_>,
    container: &Path,
    fingerprint: &str,
) -> anyhow::Result<Option<String>> {
    let own: Vec<_> = source.gguf().files().map(|(file, ..)| ("the model itself", file)).collect();
    plans::file::writable(container, container::OUTPUT, &own)?;
    match folder::of_another_model(&context.out.join(MODEL), container, fingerprint) {
        Some(other) if !options.replace => bail!(
            "this profile would replace {other}: name another folder with --out and --storage, or replace them with \
             --replace"
        ),
        other => Ok(other.map(|other| format!("--replace: {other} will be replaced"))),
    }
}

/// The levels of a profile, for people.
fn levels_of(model: &plans::Model) -> Vec<LevelSummary> {
    let of_level = |level: &plans::model::Level| {
        let requested = level.layers.iter().map(|layer| layer.active_predicted_fraction).sum::<f64>();
        LevelSummary {
            name: level.name.clone(),
            lossless: level.lossless,
            change_fraction: level.perplexity_change_fraction,
            upper_fraction: level.perplexity_change_fraction_upper,
            active_fraction: requested / level.layers.len() as f64,
        }
    };
    model.levels.iter().map(of_level).collect()
}

/// Measures a model and writes `model.toml`, its CSV files and the container.
///
/// # Errors
/// As [`Profile::prepare`] and [`Profile::run`].
pub fn profile(context: &Context, options: &ModelOptions) -> anyhow::Result<Summary> {
    Profile::prepare(context, options)?.run()
}

/// Name of the contract file.
const MODEL: &str = "model.toml";
/// The part with the amount of work.
const JOB: &str = "job";
/// Version of the finished parts; parts of another version are ignored.
const KEPT: u32 = 9;
