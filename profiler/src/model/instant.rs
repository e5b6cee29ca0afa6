//! A profile without calibration: `profile --instant`.
//!
//! One pass over the file checks every weight and makes the index; everything that a calibration text would show is a prior.
//!
//! | a full profile measures | the prior |
//! |---|---|
//! | misses of caches, by layer and policy | from recorded routes of another mixture, see `Prior` |
//! | the experts visited most | none is known: experts stay in the file's order, so pinning one is worth no more than chance |
//! | loss of the level `dense` | at most `LOSS_UPPER`, where vectors are rounded |
//! | neurons that fire, in `ReLU` models | the mean share of a few tokens, `Fired`; of a header alone, all. Such a model runs dense |
//! | keys and values in blocks, drafts, predictors | left out: plans do not offer them |
//!
//! `model.toml` has the origin `instant`, and a note for each prior.

use std::collections::BTreeMap;

use flashplan::internals::recording::Recording;
use plans::Policy;
use plans::file::significant;
use rayon::prelude::*;

use super::evaluate::{Figures, routed};
use super::glance::{Fired, Glance};
use super::reuse::{Miniature, Surfaces, Trace, surfaces};
use super::space::check_free;
use super::table;
use super::text::Windows;
use super::{
    Container, Context, Conversion, FinishedParts, MODEL, Menu, ModelOptions, ModelProvenance, Path,
    SourceModel, StoredLevel, Summary, Texts, Written, anyhow, budget, check_in_place, container_file, disk,
    fingerprint, glance, hub, levels_of, name_of, open, order, replaced, taken, weights_of,
};
use crate::device::storage::free_bytes;

/// Upper bound of the rise of perplexity by vectors that are rounded to 8 bits, as llama.cpp rounds them, too. The profiles of the
/// 7B model in `plans` measured at most 0.1 %.
const LOSS_UPPER: f64 = 0.005;
/// Tokens of held-out text that the model must predict, ...
const TOKENS: usize = 32;
/// ... and of a mixture of many experts, where each token reads and unpacks other ones.
const TOKENS_OF_MANY: usize = 4;
/// The fewest experts that count as many.
const MANY_EXPERTS: usize = 32;

/// Recorded routes of a mixture.
struct Recorded {
    /// Name of the model, for people.
    name: &'static str,
    layers: usize,
    experts: usize,
    /// Experts of a token that were recorded, ...
    recorded: usize,
    /// ... and that it visits.
    experts_used: usize,
    text: &'static str,
}

/// All recordings, of `BigMoeOnEdge` (Apache-2.0), see their first lines.
const RECORDED: [Recorded; 2] = [
    Recorded {
        name: "Qwen3-30B-A3B",
        layers: 48,
        experts: 128,
        recorded: 6,
        experts_used: 8,
        text: include_str!("../../routes/qwen3-30b-a3b.csv"),
    },
    Recorded {
        name: "gpt-oss-120b",
        layers: 36,
        experts: 128,
        recorded: 2,
        experts_used: 4,
        text: include_str!("../../routes/gpt-oss-120b.csv"),
    },
];

/// Misses in place of measured ones.
///
/// A cache misses as it does in the recording with the most similar share of visited experts. Layers at the same depth correspond.
struct Prior {
    /// The recording's model; `None` where every token requests everything.
    name: Option<&'static str>,
    /// By layer of the recording, for each policy.
    layers: Vec<BTreeMap<Policy, Surfaces>>,
}

impl Prior {
    /// The prior for a model.
    fn of(source: &SourceModel<'_>, menu: &Menu) -> anyhow::Result<Self> {
        let config = source.config();
        let (experts, used) = (config.experts(), config.experts_used());
        if experts == 1 || menu.slice_neurons == 1 {
            let neurons = Miniature::of(experts * config.ffn_width(), menu.slice_neurons).neurons();
            return Ok(Self {
                name: None,
                layers: vec![by_policy(&everything(neurons), neurons, &Policy::ALL[..1])],
            });
        }
        let share = (used as f64 / experts as f64).ln();
        let unlike = |recorded: &Recorded| {
            let own = recorded.experts_used as f64 / recorded.experts as f64;
            (own.ln() - share).abs()
        };
        let [first, second] = &RECORDED;
        let nearest = if unlike(first) <= unlike(second) { first } else { second };
        let &Recorded { name, layers, experts, recorded, text, .. } = nearest;
        let recording = Recording::parse(text, Path::new(name), layers, experts, recorded)?;
        let alone: Vec<Vec<u32>> = (0..experts as u32).map(|expert| vec![expert]).collect();
        let of_layer = |layer| by_policy(&routed(&recording, layer, &alone), experts, &Policy::ALL);
        Ok(Self { name: Some(name), layers: (0..layers).into_par_iter().map(of_layer).collect() })
    }

    /// The prior of a layer of so many.
    fn layer(&self, layer: usize, layers: usize) -> &BTreeMap<Policy, Surfaces> {
        &self.layers[layer * self.layers.len() / layers.max(1)]
    }
}

/// A few tokens, each of them requesting everything.
fn everything(neurons: usize) -> Trace {
    let mut trace = Trace::default();
    for token in 0..4 {
        trace.ask(0..neurons as u32);
        trace.end_token(Some(token));
    }
    trace
}

fn by_policy(trace: &Trace, neurons: usize, policies: &[Policy]) -> BTreeMap<Policy, Surfaces> {
    let axes = table::axes();
    let of = |policy| surfaces(trace, policy, neurons, &axes.pinned_share_fraction, &axes.cached_fraction);
    policies.iter().map(|&policy| (policy, of(policy))).collect()
}

/// A layer's figures: every neuron of the visited experts is requested, and as many fire as did in the few tokens.
fn figures(
    source: &SourceModel<'_>,
    menu: &Menu,
    prior: &BTreeMap<Policy, Surfaces>,
    fired: Fired,
) -> Figures {
    let config = source.config();
    let neurons = config.experts_used() * config.ffn_width();
    let all = neurons as u64;
    let known = fired.routed > 0 && !config.activation().always_fires();
    let fired = if known { fired } else { Fired { routed: all, truly: all, gate: all } };
    let truly = significant(neurons as f64 * fired.truly as f64 / fired.routed as f64);
    let mut figures = Figures {
        routed: fired.routed,
        truly: fired.truly,
        gate: fired.gate,
        requested: fired.routed,
        requested_truly: fired.truly,
        requested_gate: fired.gate,
        adding: 1,
        added: 1.0,
        truly_of_token: [truly; 4],
        requested_of_token: [neurons as f64; 4],
        ..Figures::default()
    };
    for (&policy, surfaces) in prior {
        let rounded = |row: &Vec<f64>| row.iter().copied().map(significant).collect();
        figures.misses.insert(policy, surfaces.miss_fraction.iter().map(rounded).collect());
        figures.missing = surfaces.missing.clone();
        if menu.slice_neurons == 1 {
            figures.runs.clone_from(&surfaces.runs_fraction);
            figures.runs_over_gaps.clone_from(&surfaces.runs_over_gaps_fraction);
        }
    }
    figures
}

/// Makes the index, or a container where weights cannot be read in place, and `model.toml` with priors.
///
/// # Errors
/// A fault of the model's files, a model that predicts no text, too little space, files of another model, and `Stopped`.
pub fn profile(
    context: &Context,
    options: &ModelOptions,
    say: &mut dyn FnMut(String),
) -> anyhow::Result<Summary> {
    let (path, source) = open(options)?;
    let tokenizer_data = source.tokenizer_data().map_err(|error| anyhow!("{}: {error}", path.display()))?;
    let name = name_of(options, &path)?;
    let elsewhere = disk(&path)? != disk(&context.storage)?;
    let menu = Menu::dense(&source, weights_of(options, elsewhere))?;
    check_in_place(context, options, &path, &menu, elsewhere)?;
    tokenizer_data.remark().into_iter().for_each(|remark| say(format!("warning: {remark}")));
    taken::told(&source, &tokenizer_data, options.activation).into_iter().take(1).for_each(&mut *say);
    let bytes = budget::container_bytes(&source, &menu);
    check_free(&context.storage, free_bytes(&context.storage)?, bytes)?;
    let container_file = container_file(&name, menu.index);
    let container_path = context.storage.join(&container_file);
    let (fingerprint, sums) = if menu.index {
        fingerprint::with_sums(context, &source)?
    } else {
        (fingerprint::of(context, &source)?, None)
    };
    replaced(context, options, &source, &container_path, &fingerprint)?
        .into_iter()
        .for_each(|remark| say(format!("warning: {remark}")));

    let tokenizer = tokenizer_data.clone().into_tokenizer()?;
    let text = Texts::built_in().held_out.into_iter().last().unwrap_or_default();
    let mut held_out = Windows::new(&tokenizer, &[text], source.config().context, TOKENS);
    held_out.tokens.truncate(1);
    held_out.text_of.truncate(1);
    if source.config().experts() >= MANY_EXPERTS {
        held_out.tokens.iter_mut().for_each(|window| window.truncate(TOKENS_OF_MANY));
    }
    let Glance { perplexity, fired } = glance::glance(context, &source, &held_out.tokens)?;
    glance::check(&path, perplexity)?;
    let predicted = held_out.predicted().sum::<usize>();
    let losses = vec![perplexity.ln() * predicted as f64; held_out.tokens.len()];

    let key = format!("instant {} {fingerprint} {name}", env!("CARGO_PKG_VERSION"));
    let work = FinishedParts::new(&context.out, key.as_bytes())?;
    let config = source.config();
    let order = order::NeuronOrder::as_stored(config.experts(), config.ffn_width());
    let orders = vec![order; config.layers()];
    let conversion = Conversion {
        name: &name,
        fingerprint: &fingerprint,
        source: &source,
        tokenizer: &tokenizer_data,
        work: &work,
        menu: &menu,
        orders: &orders,
        sums,
        consumption: None,
    };
    let written = conversion.write(context, &container_path, bytes)?;
    let container = Container::open_with(&container_path, path.parent())?;
    let found = Found {
        name: &name,
        fingerprint: &fingerprint,
        source: &source,
        menu: &menu,
        container_file,
        written: &written,
        stored: StoredLevel::all(&menu, &container)?,
        held_out: &held_out,
        losses,
        fired,
        note: format!(
            "Priors in place of measurements: `profile --instant` read the file once and calibrated nothing. The perplexity is of \
             {predicted} tokens."
        ),
    };
    let model = found.with_priors()?;
    for stale in ["neurons.csv", "reuse.csv"] {
        // those of an earlier profile describe other figures
        let _none = std::fs::remove_file(context.out.join(stale));
    }
    let model_toml = context.out.join(MODEL);
    plans::file::write(&model, &model_toml)?;
    work.remove()?;
    Ok(Summary {
        name,
        model_toml,
        container: container_path,
        perplexity_dense: model.dense.perplexity,
        levels: levels_of(&model),
        kv_formats: Vec::new(),
    })
}

/// A model as far as its file is known.
pub(super) struct Found<'a> {
    pub(super) name: &'a str,
    pub(super) fingerprint: &'a str,
    pub(super) source: &'a SourceModel<'a>,
    pub(super) menu: &'a Menu,
    /// File name of the index or container.
    pub(super) container_file: String,
    pub(super) written: &'a Written,
    pub(super) stored: Vec<StoredLevel>,
    /// Text that the model was seen to predict, and its negative log likelihood.
    pub(super) held_out: &'a Windows,
    pub(super) losses: Vec<f64>,
    /// How many neurons fired in it, by layer; nothing where no weight was read.
    pub(super) fired: Vec<Fired>,
    /// A sentence on the part of the file that was read.
    pub(super) note: String,
}

impl Found<'_> {
    /// `model.toml` of this model, with priors for everything that a calibration would measure.
    pub(super) fn with_priors(&self) -> anyhow::Result<plans::Model> {
        let (source, menu) = (self.source, self.menu);
        let prior = Prior::of(source, menu)?;
        let layers = source.config().layers();
        let all: Vec<Vec<Figures>> = (0..layers)
            .map(|layer| {
                let fired = self.fired.get(layer).copied().unwrap_or_default();
                vec![figures(source, menu, prior.layer(layer, layers), fired)]
            })
            .collect();
        let missing = (all.iter().map(|levels| levels[0].missing.clone()))
            .reduce(|sum, of_layer| sum.and(&of_layer))
            .unwrap_or_default();
        let findings = table::Findings {
            name: self.name,
            fingerprint: self.fingerprint,
            provenance: self.provenance(&prior),
            source,
            container_file: self.container_file.clone(),
            written: self.written,
            stored: &self.stored,
            menu,
            exact: !menu.differs(source),
            activations: menu.activations(source),
            held_out: self.held_out,
            own: &[],
            dense: &self.losses,
            losses: std::slice::from_ref(&self.losses),
            kv: &[],
            kv_windows: &[],
            drafts: None,
            figures: &all,
            missing: &[missing],
        };
        let mut model = findings.model()?;
        for level in &mut model.levels {
            // not measured: the bound is a prior, and a bound stands beside a change
            level.perplexity_change_fraction_of_texts = vec![0.0];
            level.perplexity_change_fraction_upper = Some(if findings.exact { 0.0 } else { LOSS_UPPER });
            level.lossless = findings.exact;
        }
        Ok(model)
    }

    /// Where the figures come from, with a note for each prior.
    fn provenance(&self, prior: &Prior) -> ModelProvenance {
        let activation = self.source.config().activation();
        let mut notes = Vec::new();
        notes.extend(hub::note(self.source.gguf()));
        notes.push(self.note.clone());
        notes.extend(prior.name.map(|name| {
            format!(
                "Misses are of recorded routes of {name} (BigMoeOnEdge, Apache-2.0), the mixture that visits the most similar share of its \
                 experts."
            )
        }));
        if !activation.always_fires() {
            notes.push(format!(
                "{} leaves neurons at zero, and this profile has no level that skips them: a full profile is faster.",
                activation.name()
            ));
        }
        ModelProvenance {
            tool: format!("profile {}", env!("CARGO_PKG_VERSION")),
            origin: plans::model::INSTANT.to_owned(),
            calibration_text: String::new(),
            calibration_tokens: 0,
            held_out_text: String::new(),
            held_out_tokens: 0,
            quick: false,
            routes: None,
            notes,
        }
    }
}
