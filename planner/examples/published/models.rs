//! Models of the paper's experiments.

use plans::layout::BundleLayout;
use plans::model::{
    Architecture, ContainerIdentity, DenseQuality, LayerActivity, Level, LevelKind, LevelLayer, Model,
    ModelProvenance, Parts, ReuseAxes,
};

use super::misses::Requests;

const LAYERS: u32 = 32;
const WIDTH: u64 = 4096;
const EXPERT: u64 = 14336;
/// Values of a block of `Q4_0`, bytes of its nibbles and of its scale.
const VALUES: u64 = 32;
const NIBBLES: u64 = 16;
const SCALE: u64 = 2;

/// A model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Published {
    /// TurboSparse-Mixtral-47B.
    Mixtral47B,
    /// TurboSparse-Mistral-7B.
    Mistral7B,
}

/// Assumptions about a model, which may be varied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Assumed {
    /// Share of the requested neurons missing with half of them in memory.
    pub(crate) missing_at_half: f64,
    /// Share of a token's active neurons that the last token had, too.
    pub(crate) persistence: f64,
    /// Chance that an expert is visited again by the next token.
    pub(crate) same_expert: f64,
    /// Share of the neurons that the predictor selects are truly active.
    pub(crate) precision: f64,
    /// Whether the scales of all feed-forward weights stay in memory, as in the paper's system, and bundles hold nibbles alone.
    pub(crate) resident_scales: bool,
}

impl Assumed {
    /// The published values, and the assumed ones where nobody published any.
    pub(crate) const PUBLISHED: Self = Self {
        missing_at_half: 0.035,
        persistence: 0.83,
        same_expert: 0.5,
        precision: 0.8,
        resident_scales: false,
    };
}

impl Published {
    fn experts(self) -> (u64, u64) {
        match self {
            Self::Mixtral47B => (8, 2),
            Self::Mistral7B => (1, 1),
        }
    }

    /// Published: the share of the visited experts' neurons that is truly active.
    fn active(self) -> f64 {
        match self {
            Self::Mixtral47B => 0.15,
            Self::Mistral7B => 0.1,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Mixtral47B => "turbosparse-mixtral-47b",
            Self::Mistral7B => "turbosparse-mistral-7b",
        }
    }

    /// Ranks of predictors; published of Mixtral, and of Mistral their mean.
    fn rank(self, layer: u32) -> u64 {
        match (self, layer) {
            (Self::Mistral7B, _) => 1024,
            (_, 0 | 1) => 896,
            (_, 13 | 27..=30) => 1088,
            (_, 31) => 1344,
            _ => 1024,
        }
    }
}

/// The model, with what may be other than published.
pub(crate) fn model(which: Published, given: &Assumed) -> Model {
    let ((experts, used), active) = (which.experts(), which.active());
    let row_blocks = WIDTH / VALUES;
    let row = row_blocks * (NIBBLES + SCALE);
    let (of_bundle, scales) = if given.resident_scales {
        let scales = u64::from(LAYERS) * experts * EXPERT * 3 * row_blocks * SCALE;
        (row_blocks * NIBBLES, scales)
    } else {
        (row, 0)
    };
    let bundle = BundleLayout::new(of_bundle, of_bundle, of_bundle);
    let attention = (2 * WIDTH + 2 * 1024) * row + 2 * WIDTH * 4;
    let router = if experts > 1 { experts * WIDTH * 4 } else { 0 };
    let table = 32000 * row;
    let fixed = u64::from(LAYERS) * (attention + router) + 2 * table + WIDTH * 4 + scales;
    let reuse = ReuseAxes {
        cached_fraction: vec![0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0],
        pinned_share_fraction: vec![0.0, 0.25, 0.5, 0.75, 1.0],
        wide_gap_ranks: None,
    };
    let levels = levels(which, given, &reuse, row);
    let resident = levels.iter().map(|level| level.resident_bytes).sum::<u64>();
    let routed = (EXPERT * used) as f64;
    let mut notes = vec![
        format!(
            "Published (TurboSparse, PowerInfer-2): shapes; {:.0} % of a visited expert's neurons truly active; P(gate > 0 | predicted) about 0.8; {:.0} % of a token's active neurons were active for the last one; {} % of the requested neurons missing with half of the feed-forward weights in memory.",
            100.0 * active,
            100.0 * given.persistence,
            100.0 * given.missing_at_half,
        ),
        "Derived: bytes of every part at 4.5 bits a weight (blocks of 32 with a half-precision scale).".to_owned(),
        format!(
            "Assumed: the predictor's recall of 95 % at a precision of {:.0} %, and a rise of perplexity of 0.8 %; a careful threshold with 98 % and 0.3 %.",
            100.0 * given.precision
        ),
        "Assumed: P(gate > 0) is twice the active share; the exact gate requests those neurons.".to_owned(),
        "Assumed: perplexity 5.0; only its change matters here.".to_owned(),
        "Assumed: the 99th percentile of neurons requested is 1.4 times the mean, in every layer alike.".to_owned(),
        "Derived: how often the neurons of a visited expert are requested falls as a power of their rank, with the exponent with which the published share is missing at half.".to_owned(),
        "Assumed: slots behave as least-recently-used under independent draws (Che's approximation), but for what the last token requested, which is there.".to_owned(),
    ];
    if experts > 1 {
        notes.push("Published: predictor ranks by layer, 4.89 B parameters.".to_owned());
        notes.push(format!(
            "Assumed: a visited expert is visited again by the next token with a chance of {}.",
            given.same_expert
        ));
    } else {
        notes.push("Assumed: predictors of rank 1024, the mean of the larger model's.".to_owned());
    }
    if given.resident_scales {
        notes.push("As in the paper's system: scales of all feed-forward weights stay in memory.".to_owned());
    }
    Model {
        activations: "f32".to_owned(),
        schema: plans::SCHEMA,
        name: which.name().to_owned(),
        fingerprint: format!("published-{}", which.name()),
        provenance: ModelProvenance {
            tool: "planner example published".to_owned(),
            origin: "published".to_owned(),
            calibration_text: String::new(),
            calibration_tokens: 0,
            held_out_text: String::new(),
            held_out_tokens: 0,
            quick: false,
            routes: None,
            notes,
        },
        architecture: Architecture {
            family: "llama".to_owned(),
            activation: "drelu".to_owned(),
            layers: LAYERS,
            width: WIDTH as u32,
            neurons_per_expert: EXPERT as u32,
            experts: experts as u32,
            experts_used: used as u32,
            heads: 32,
            kv_heads: 8,
            head_width: 128,
            gated_attention: false,
            kv_layers: None,
            other_heads: Vec::new(),
            sharing_heads: Vec::new(),
            per_layer: None,
            streams: None,
            chosen_blocks: 0,
            shared_neurons: 0,
            rotary_embeddings: 1,
            vocabulary: 32000,
            context: 32768,
            weight_format: "Q4_0".to_owned(),
            down_format: "Q4_0".to_owned(),
            down_transposed: true,
            recurrent: None,
            latent: None,
        },
        parts: Parts {
            embedding_bytes: table,
            head_bytes: table,
            head_read_bytes: table,
            attention_layer_bytes: attention,
            router_layer_bytes: router,
            fixed_bytes: fixed,
            tokenizer_bytes: 4 << 20,
            bundle,
        },
        container: ContainerIdentity {
            file: format!("{}.bundle", which.name()),
            fingerprint: format!("published-{}-bundle", which.name()),
            bytes: fixed + u64::from(LAYERS) * bundle.layer_bytes(EXPERT * experts) + resident,
        },
        dense: DenseQuality { perplexity: 5.0 },
        kv_formats: vec![],
        levels,
        drafts: None,
        reuse,
        layers: vec![
            LayerActivity {
                active_true_fraction: active,
                active_gate_fraction: 2.0 * active,
                active_neurons_mean: active * routed,
                active_neurons_p50: 0.98 * active * routed,
                active_neurons_p90: 1.17 * active * routed,
                active_neurons_p99: 1.4 * active * routed,
                bundle: None,
            };
            LAYERS as usize
        ],
    }
}

/// The menu: dense, the exact gate, and low-rank predictors at two thresholds.
fn levels(which: Published, given: &Assumed, reuse: &ReuseAxes, row: u64) -> Vec<Level> {
    let ((experts, used), active) = (which.experts(), which.active());
    let routed = (EXPERT * used) as f64;
    let requests = |requested: f64| Requests {
        expert: EXPERT as usize,
        experts: experts as f64,
        used: used as f64,
        requested: requested / used as f64,
        persistence: given.persistence,
        same_expert: if experts > used { given.same_expert } else { 1.0 },
    };
    // the published misses are of the usual predictor
    let usual = 0.95 * active / given.precision;
    let skew = requests(usual * routed).skew_of(given.missing_at_half, &reuse.pinned_share_fraction);
    let level = |name: &str, kind, loss: f64, alpha: f64, recall: f64, [resident, read, flops]: [u64; 3]| {
        let requested = alpha * routed;
        let layer = LevelLayer {
            active_predicted_fraction: alpha,
            beta_fraction: match kind {
                LevelKind::LowRank => 0.8,
                _ => 2.0 * active / alpha.max(2.0 * active),
            },
            predicted_neurons_mean: requested,
            predicted_neurons_p99: (requested * 1.4).round().min(routed),
            always_on_neurons: 0,
            miss_fraction: requests(requested).surface(skew, reuse),
            clock_miss_fraction: Vec::new(),
            frequency_miss_fraction: Vec::new(),
            runs_fraction: Vec::new(),
            runs_over_gaps_fraction: Vec::new(),
            runs_over_wide_gaps_fraction: Vec::new(),
        };
        Level {
            name: name.to_owned(),
            kind,
            lossless: loss == 0.0,
            resident_bytes: resident,
            read_bytes_per_token: read,
            flops_per_token: flops,
            perplexity: 5.0 * (1.0 + loss),
            perplexity_change_fraction: loss,
            perplexity_change_fraction_upper: None,
            perplexity_change_fraction_of_texts: Vec::new(),
            recall_fraction: recall,
            added_fraction: None,
            look_ahead_recall_fraction: None,
            look_ahead_precision_fraction: None,
            missing_p50_over_mean: Vec::new(),
            missing_p90_over_mean: Vec::new(),
            missing_p99_over_mean: Vec::new(),
            precision_fraction: (active * recall / alpha).min(1.0),
            layers: vec![layer; LAYERS as usize],
        }
    };
    let gates = u64::from(LAYERS) * EXPERT * experts * row;
    let gate_flops = u64::from(LAYERS) * EXPERT * used * WIDTH * 2;
    let predictors = (0..LAYERS).map(|layer| which.rank(layer)).sum::<u64>() * experts * (WIDTH + EXPERT);
    let predictor_bytes = predictors / VALUES * (NIBBLES + SCALE);
    let predicted = [predictor_bytes, predictor_bytes / experts * used, predictors / experts * used * 2];
    vec![
        level("dense", LevelKind::Dense, 0.0, 1.0, 1.0, [0; 3]),
        level(
            "exact-gate",
            LevelKind::ExactGate,
            0.0,
            2.0 * active,
            1.0,
            [gates, gates / experts * used, gate_flops],
        ),
        level("low-rank-95", LevelKind::LowRank, 0.008, usual, 0.95, predicted),
        level(
            "low-rank-98",
            LevelKind::LowRank,
            0.003,
            0.98 * active / (0.8 * given.precision),
            0.98,
            predicted,
        ),
    ]
}
