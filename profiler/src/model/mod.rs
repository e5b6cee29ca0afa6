//! The model half: activation statistics, predictors, quality levels and the container.
//!
//! In the order in which things happen:
//!
//! 1. `text`: calibration and held-out texts, cut into windows of tokens;
//! 2. `observe`: what every feed-forward network is given on the calibration text, and what fires; `write` lets the
//!    model write more of it, to train on;
//! 3. `order`: hot neurons first, friends together;
//! 4. `level`: the menu of quality levels; `train` (or `import`) and `threshold` make its predictors;
//! 5. `evaluate`: perplexity, recall and the trace of asked neurons of each level, on held-out text;
//! 6. `reuse`: the trace as miss rates of caches of every size;
//! 7. `table`: all of it as `model.toml` and its tables, beside the container.

pub mod evaluate;
pub mod import;
pub mod level;
pub mod matrix;
pub mod observe;
pub mod order;
pub mod reuse;
pub mod table;
pub mod text;
pub mod threshold;
pub mod train;
pub mod write;

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use plans::model::ModelProvenance;
use plans::{PAGE_BYTES, size};
use rayon::prelude::*;
use runtime::container::{Container, LevelSource, SetSource, Written};
use runtime::kernels::{Activation, best};
use runtime::model::config::Config;
use runtime::model::source::{Down, SourceModel};
use runtime::model::tokenizer::{Tokenizer, TokenizerData};
use runtime::reference::Reference;

use crate::device::storage::free_bytes;
use crate::{Context, ProfileError, Stopped};
use evaluate::{Bench, Measured};
use level::Menu;
use observe::Collector;
use order::Order;
use text::Texts;

/// Multiplications that reading texts may take in all, two cores at a few thousand million a second for 20 minutes: it
/// bounds the tokens for large models, and leaves small ones all of them.
const READING_WORK: f64 = 1.4e13;
/// What `--quick` leaves of work and tokens.
const QUICK_SHARE: f64 = 1.0 / 6.0;
/// Passes over the held-out text: the levels of the menu.
const HELD_OUT_PASSES: f64 = 8.0;
/// Texts are not cut below this.
const TOKENS_MIN: usize = 256;
/// Tokens that a predictor is trained on; the model writes what the calibration text has not, ...
const TRAINING_TOKENS: usize = 16_000;
/// ... up to so many times the text. (Four times the text has gained a hundredth fewer asked neurons at equal recall
/// where the text had 13,000 tokens, and a fifth fewer where it had 2,000.)
const WRITTEN_SHARE: f64 = 3.0;
/// Asked neurons of a layer and level that the cache curves are made from.
const TRACE_ASKED: usize = 400_000;

/// What to measure.
#[derive(Debug, Clone)]
pub struct ModelOptions {
    /// A GGUF file, or a folder with a Hugging Face or PowerInfer model.
    pub model: PathBuf,
    /// The calibration text instead of the one built in.
    pub text: Option<PathBuf>,
    /// The model's short name instead of one made from its file name.
    pub name: Option<String>,
}

/// What was measured, for people.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The model's short name.
    pub name: String,
    /// The contract file.
    pub model_toml: PathBuf,
    /// The flash container.
    pub container: PathBuf,
    /// Perplexity of the source file computed dense.
    pub perplexity_dense: f64,
    /// Quality levels: name, change of perplexity as a fraction, mean share of active neurons.
    pub levels: Vec<(String, f64, f64)>,
}

/// Measures a model and writes `model.toml`, its CSV files and the container.
///
/// # Errors
/// Those of the model's files, the output files, and [`crate::Stopped`].
pub fn profile(context: &Context, options: &ModelOptions) -> anyhow::Result<Summary> {
    let path = model_file(&options.model)?;
    let source = SourceModel::open(&path).map_err(|error| anyhow!("{}: {error}", path.display()))?;
    let data = source.tokenizer_data().map_err(|error| anyhow!("{}: {error}", path.display()))?;
    let name = name_of(options, &path)?;
    check_space(context, &source)?;
    let tokenizer = Tokenizer::new(data.clone())?;
    let texts = match &options.text {
        None => Texts::built_in(),
        Some(path) => Texts::from_file(path)?,
    };
    let fingerprint = blake3::hash(source.gguf().bytes()).to_hex().to_string();
    context.stopped()?;

    let [calibration, held_out] = windows(context, &source, &tokenizer, &texts)?;
    let collected = observe(context, &source, &calibration)?;
    let calibration_tokens = collected.tokens as u64;
    let orders: Vec<Order> =
        collected.samples.par_iter().map(|experts| Order::new(experts, collected.tokens)).collect();
    let menu = menu(context, &source, &calibration, collected, &orders)?;

    let bench = Bench {
        source: &source,
        kernels: best(),
        orders: &orders,
        windows: &held_out,
        trace_asked_max: (TRACE_ASKED as f64 * share(context)) as usize,
    };
    let measured: Vec<Measured> = menu
        .levels
        .iter()
        .map(|level| bench.measure(context, &menu, level))
        .collect::<anyhow::Result<_>>()?;
    let axes = table::axes();
    let config = source.config();
    let surfaces = table::surfaces(&measured, config.experts * config.ffn_width, &axes);
    context.stopped()?;

    let container_file = format!("{name}.bundle");
    let container_path = context.storage.join(&container_file);
    let written =
        write_container(context, &container_path, &name, &fingerprint, &source, data, &orders, &menu)?;
    let container = Container::open(&container_path)?;
    let provenance = ModelProvenance {
        tool: format!("profile {}", env!("CARGO_PKG_VERSION")),
        origin: "measured".to_owned(),
        calibration_text: text::hash(&texts.calibration),
        calibration_tokens,
        held_out_text: text::hash(&texts.held_out),
        held_out_tokens: held_out.iter().map(|window| window.len() as u64).sum(),
        quick: context.quick,
        notes: notes(&source, &written),
    };
    let findings = table::Findings {
        name: &name,
        fingerprint: &fingerprint,
        provenance,
        source: &source,
        container_file,
        written: &written,
        container: &container,
        menu: &menu,
        measured: &measured,
        surfaces: &surfaces,
        axes,
    };
    let model = findings.model()?;
    plans::file::write_bytes(&context.out.join("neurons.csv"), &table::neurons_csv(&orders)?)?;
    plans::file::write_bytes(&context.out.join("reuse.csv"), &table::reuse_csv(&model)?)?;
    let model_toml = context.out.join("model.toml");
    plans::file::write(&model, &model_toml)?;
    let levels = (model.levels.iter())
        .map(|level| {
            let asked = level.layers.iter().map(|layer| layer.active_predicted_fraction).sum::<f64>();
            (level.name.clone(), level.perplexity_change_fraction, asked / level.layers.len() as f64)
        })
        .collect();
    Ok(Summary {
        name,
        model_toml,
        container: container_path,
        perplexity_dense: model.dense.perplexity,
        levels,
    })
}

fn share(context: &Context) -> f64 {
    if context.quick { QUICK_SHARE } else { 1.0 }
}

/// The file, or the only GGUF file of the folder.
fn model_file(path: &Path) -> anyhow::Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let io = |source| ProfileError::Io { action: "list", path: path.to_owned(), source };
    let mut found = Vec::new();
    for entry in path.read_dir().map_err(io)? {
        let file = entry.map_err(io)?.path();
        if file.extension().is_some_and(|extension| extension == "gguf") {
            found.push(file);
        }
    }
    found.sort();
    match found.as_slice() {
        [file] => Ok(file.clone()),
        [] => bail!(
            "{} is a folder without a .gguf file; convert the model to GGUF and name that file",
            path.display()
        ),
        [first, ..] => bail!(
            "{} holds {} .gguf files; name one of them, for example {}",
            path.display(),
            found.len(),
            first.display()
        ),
    }
}

/// The name given, or the file's without its extension.
fn name_of(options: &ModelOptions, path: &Path) -> anyhow::Result<String> {
    let name = match &options.name {
        Some(name) => name.clone(),
        None => path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default(),
    };
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
        bail!("the name `{name}` cannot be a file's; give another with --name");
    }
    Ok(name)
}

/// Refuses before the first byte if the container will not fit.
fn check_space(context: &Context, source: &SourceModel<'_>) -> anyhow::Result<()> {
    let (free, needed) = (free_bytes(&context.storage)?, container_bytes(source));
    if free < needed {
        bail!(ProfileError::Space {
            path: context.storage.clone(),
            free: size::show(free),
            needed: size::show(needed),
        });
    }
    Ok(())
}

/// An upper estimate: everything of the source, its rows padded and its down rows at most doubled, and predictors.
fn container_bytes(source: &SourceModel<'_>) -> u64 {
    let c = source.config();
    let neurons = (c.layers * c.experts * c.ffn_width) as u64;
    let row = |w: runtime::kernels::Matrix<'_>| w.format.row_bytes(c.width.max(w.columns)) as u64;
    let down = match source.ffn_down(0, 0) {
        Down::Columns(w) | Down::Rows(w) => 2 * (w.bytes.len() / c.ffn_width) as u64,
    };
    let bundle = row(source.ffn_gate(0, 0)) + row(source.ffn_up(0, 0)) + down;
    let padded = if bundle >= PAGE_BYTES { bundle.next_multiple_of(PAGE_BYTES) } else { bundle };
    let other = source.gguf().bytes().len() as u64 / 2;
    neurons * (padded + bundle / 2) + other + (16 << 20)
}

/// Both texts as windows of tokens, no more than the time allows.
fn windows(
    context: &Context,
    source: &SourceModel<'_>,
    tokenizer: &Tokenizer,
    texts: &Texts,
) -> anyhow::Result<[Vec<Vec<u32>>; 2]> {
    let config = source.config();
    let passes = READING_WORK * share(context) / work_per_token(config) / 2.0;
    let cut = |texts: &[String], tokens_max: f64| {
        let tokens: usize = texts.iter().map(|text| tokenizer.encode(text, false).len()).sum();
        let all = (tokens as f64 * share(context)) as usize;
        let tokens_max = all.min(tokens_max as usize).max(TOKENS_MIN);
        text::windows(tokenizer, texts, config.context, tokens_max)
    };
    let calibration = cut(&texts.calibration, passes);
    let held_out = cut(&texts.held_out, passes / HELD_OUT_PASSES);
    if calibration.is_empty() || held_out.is_empty() {
        bail!(
            "the text is too short to calibrate with and to hold some out; give --text a file of a few thousand words"
        );
    }
    Ok([calibration, held_out])
}

/// Multiplications of one token.
fn work_per_token(c: &Config) -> f64 {
    let attention = 2 * c.width * (c.heads + c.kv_heads) * c.head_width;
    let experts = 3 * c.width * c.ffn_width * c.experts_used;
    (c.layers * (attention + experts) + c.width * c.vocabulary) as f64
}

/// Reads the calibration text.
fn observe(context: &Context, source: &SourceModel<'_>, windows: &[Vec<u32>]) -> anyhow::Result<Collector> {
    let tokens: usize = windows.iter().map(Vec::len).sum();
    let bar = context.bar(tokens as u64, "reading calibration text");
    let collected: Vec<Collector> = windows
        .par_iter()
        .map(|window| {
            let mut collector = Collector::new(source.config(), true);
            let mut reference = Reference::new(source, best());
            for &token in window {
                context.stopped()?;
                reference.step(token, &mut collector);
                bar.inc(1);
            }
            collector.tokens = window.len();
            Ok(collector)
        })
        .collect::<Result<_, Stopped>>()?;
    bar.finish_and_clear();
    let mut all = Collector::new(source.config(), true);
    collected.into_iter().for_each(|one| all.append(one));
    Ok(all)
}

/// The levels that this model can have, predictors trained.
fn menu(
    context: &Context,
    source: &SourceModel<'_>,
    calibration: &[Vec<u32>],
    mut collected: Collector,
    orders: &[Order],
) -> anyhow::Result<Menu> {
    let config = source.config();
    let mut menu = Menu::new(config);
    // Without exact zeros there is nothing that a predictor could leave out unharmed.
    if config.activation != Activation::Silu {
        menu.add_sign(source, &collected.samples, orders);
        if let Some(shipped) = import::shipped(source)? {
            menu.add_shipped(config, &collected.samples, orders, shipped);
            return Ok(menu);
        }
        let work_left =
            READING_WORK * share(context) / 2.0 / work_per_token(config) - collected.tokens as f64;
        let wanted =
            (TRAINING_TOKENS / if context.quick { 2 } else { 1 }).saturating_sub(collected.tokens) as f64;
        let tokens = wanted.min(WRITTEN_SHARE * collected.tokens as f64).min(work_left).max(0.0) as usize;
        collected.append(write::written(context, source, calibration, tokens)?);
        menu.add_low_rank(context, source, &collected.samples, orders)?;
    }
    Ok(menu)
}

fn write_container(
    context: &Context,
    path: &Path,
    name: &str,
    fingerprint: &str,
    source: &SourceModel<'_>,
    tokenizer: TokenizerData,
    orders: &[Order],
    menu: &Menu,
) -> anyhow::Result<Written> {
    let orders: Vec<Vec<u32>> = orders.iter().map(|order| order.sources.clone()).collect();
    let sets: Vec<SetSource> = menu.sets.iter().map(|set| set.source.clone()).collect();
    let levels: Vec<LevelSource> = menu.levels.iter().map(|level| level.source.clone()).collect();
    let bar = context.bar(container_bytes(source), "writing container");
    let mut reached = 0;
    let mut progress = |bytes| {
        reached = bytes;
        bar.set_position(bytes);
        context.stopped().is_ok()
    };
    let written = runtime::container::write(
        path,
        name,
        fingerprint,
        source,
        tokenizer,
        &orders,
        &sets,
        &levels,
        &mut progress,
    );
    bar.finish_and_clear();
    match written {
        Ok(written) => Ok(written),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => bail!(Stopped),
        Err(error) if error.kind() == io::ErrorKind::StorageFull => bail!(
            "the disk of {} is full after {} of the container, which has been removed; make room or name another \
             folder with --storage",
            path.display(),
            size::show(reached)
        ),
        Err(source) => Err(ProfileError::Io { action: "write", path: path.to_owned(), source })
            .context("the container was not made"),
    }
}

/// What a reader of `model.toml` should know.
fn notes(source: &SourceModel<'_>, written: &Written) -> Vec<String> {
    let mut notes = Vec::new();
    let down = match source.ffn_down(0, 0) {
        Down::Columns(w) | Down::Rows(w) => w.format,
    };
    if down != written.directory.down_format {
        notes.push(format!(
            "Down is {down} in the source, blocked along the neurons, and {} in the container, blocked along the \
             width; dense figures are the source's.",
            written.directory.down_format
        ));
    }
    match source.config().activation {
        Activation::Relu => notes
            .push("ReLU: a neuron with gate > 0 counts as truly active whatever the sign of up.".to_owned()),
        Activation::Silu => notes.push(
            "SiLU is never exactly zero: the model has no lossless sparsity and no predictors.".to_owned(),
        ),
        Activation::Drelu => {}
    }
    notes
}
