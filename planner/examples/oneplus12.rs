//! Writes `device.toml` and `model.toml` of a OnePlus 12 and TurboSparse-Mixtral-47B from published figures.
//!
//! `cargo run -p planner --example oneplus12 -- FOLDER`. What nobody published is assumed, and every
//! assumption is a sentence in the files' notes. Source: PowerInfer-2 (v1 and v3), TurboSparse.

use std::path::Path;
use std::process::ExitCode;

use plans::device::{
    Capacity, CoreClass, Device, Identity, KernelSpeed, Memory, Provenance, ReadSpeed, Storage, Unit,
};
use plans::layout::BundleLayout;
use plans::model::{
    Architecture, ContainerIdentity, DenseQuality, LayerActivity, Level, LevelKind, LevelLayer, Model,
    ModelProvenance, Parts, ReuseAxes,
};

const LAYERS: u32 = 32;
const WIDTH: u64 = 4096;
const EXPERT: u64 = 14336;
const EXPERTS: u64 = 8;
const USED: u64 = 2;
/// Bytes of a `Q4_0` row of the model's width.
const ROW: u64 = WIDTH / 32 * 18;
/// Exponent of the assumed power law of activation frequencies.
const SKEW: f64 = 1.0;
/// Published: share of a token's active neurons that the last token had too.
const PERSISTENCE: f64 = 0.83;
/// Assumed: chance that an expert is used again by the next token.
const SAME_EXPERT: f64 = 0.5;

fn main() -> ExitCode {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let folder = Path::new(&folder);
    let device = plans::file::write(&device(), &folder.join("device.toml"));
    let model = plans::file::write(&model(), &folder.join("model.toml"));
    if device.is_ok() && model.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn device() -> Device {
    let identity = Identity {
        cpu: "Snapdragon 8 Gen 3".to_owned(),
        core_classes: ["1 x 3300 MHz", "5 x 3000 MHz", "2 x 2200 MHz"].map(String::from).to_vec(),
        instruction_sets: ["scalar", "neon"].map(String::from).to_vec(),
        ram_gib: 24,
        storage: "UFS 4.0".to_owned(),
    };
    let stream = [18e9, 28e9, 35e9, 40e9, 43e9, 43.9e9, 43.9e9, 43.9e9];
    let flops = [42e9, 38e9, 57e9, 76e9, 95e9, 114e9, 49e9, 56e9];
    let mut reads = Vec::new();
    for (pattern, points) in [
        (
            "random",
            [(4096, 207_500.0), (8192, 103_700.0), (16384, 73_000.0), (65536, 33_500.0), (524_288, 7_440.0)],
        ),
        (
            "sequential",
            [(4096, 110_000.0), (8192, 97_600.0), (16384, 91_500.0), (65536, 45_800.0), (524_288, 7_630.0)],
        ),
    ] {
        for (depth, share) in [(1, 0.2), (8, 0.7), (32, 1.0)] {
            for (block_bytes, rate) in points {
                reads.push(ReadSpeed {
                    backend: plans::Backend::Pread,
                    direct: true,
                    pattern: pattern.to_owned(),
                    block_bytes,
                    depth,
                    span_bytes: 512 << 20,
                    reads_per_second: rate * share,
                });
            }
        }
    }
    Device {
        schema: plans::SCHEMA,
        name: "oneplus-12".to_owned(),
        fingerprint: Device::fingerprint_of(&identity),
        identity,
        provenance: Provenance {
            tool: "planner example oneplus12".to_owned(),
            origin: "published".to_owned(),
            notes: [
                "Published (PowerInfer-2): core counts and clocks, 24 GB of which 19 are usable, 43.9 GB/s of memory bandwidth for the CPU, 4 KB random reads of 1 GB/s within 128 MB and 850 MB/s across 512 MB, sequential reads of 450 MB/s at 4 KB and 4 GB/s at 512 KB.",
                "Assumed: core ids (0-1 little, 2-6 mid, 7 big) and capacities.",
                "Assumed: memory bandwidth below six threads; dense kernels reach 90 % and gathered ones 70 % of it.",
                "Assumed: 42, 19 and 7 GFLOP/s of a big, mid and little core, which gives the published CPU prefill of a 7B model, 8 tok/s; work is split evenly, so the slowest core sets the pace.",
                "Assumed: reads/s between the published blocks, 20 % of them at depth 1 and 70 % at depth 8; spans above 512 MB read like 512 MB.",
                "Assumed: two 4 KB reads are as fast as one of 8 KB, the least that `two beat one` allows.",
                "Derived: 3.8 us of CPU per read from the published 1076 MB/s of 4 KB reads issued by the big core.",
                "Assumed: 5 % of compute speed lost while reads are in flight; 3 to 10 us to start all threads; 48 MiB for the process and 256 KiB for a thread.",
            ]
            .map(String::from)
            .to_vec(),
        },
        capacity: Capacity {
            ram_bytes: 24 << 30,
            cgroup_limit_bytes: None,
            lockable_bytes: None,
            system_reserve_bytes: 5 << 30,
            process_bytes: 48 << 20,
            thread_bytes: 256 << 10,
        },
        memory: Memory {
            stream_bytes_per_second: stream.to_vec(),
            gather_bytes_per_second: stream.map(|rate| 0.7 * rate).to_vec(),
            gather_row_bytes: 3 * ROW,
        },
        storage: Storage {
            file_system: "f2fs".to_owned(),
            direct: true,
            cpu_seconds_per_read: 3.8e-6,
            io_uring: None,
            best_core: 7,
            interference_fraction: 0.05,
            reads,
        },
        cores: vec![
            class("big", &[7], 1024, 3300, 42e9),
            class("mid", &[2, 3, 4, 5, 6], 870, 3000, 19e9),
            class("little", &[0, 1], 310, 2200, 7e9),
        ],
        kernels: vec![KernelSpeed {
            format: "Q4_0".to_owned(),
            instruction_set: "neon".to_owned(),
            flops_per_second: flops.to_vec(),
            dense_bytes_per_second: stream.map(|rate| 0.9 * rate).to_vec(),
            sparse_bytes_per_second: stream.map(|rate| 0.7 * rate).to_vec(),
            prompt_flops_per_second: None,
            prompt_few_flops_per_second: None,
            prompt_sparse_flops_per_second: None,
            attention_flops_per_second: None,
            short_dense_row_seconds: None,
            short_dot_row_seconds: None,
            short_add_row_seconds: None,
            dispatch_seconds: (0..8).map(|i| 3e-6 + 1e-6 * f64::from(i)).collect(),
        }],
        units: vec![Unit { name: "cpu".to_owned() }],
    }
}

fn class(name: &str, ids: &[u32], capacity: u32, clock_mhz: u32, flops_per_second: f64) -> CoreClass {
    CoreClass { name: name.to_owned(), ids: ids.to_vec(), capacity, clock_mhz, flops_per_second }
}

fn model() -> Model {
    let bundle = BundleLayout::new(ROW, ROW, ROW);
    let attention = (2 * WIDTH + 2 * 1024) * ROW + 2 * WIDTH * 4;
    let router = EXPERTS * WIDTH * 4;
    let table = 32000 * ROW;
    let fixed = u64::from(LAYERS) * (attention + router) + 2 * table + WIDTH * 4;
    let neurons = EXPERT * EXPERTS;
    let reuse = ReuseAxes {
        cached_fraction: vec![0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0],
        pinned_share_fraction: vec![0.0, 0.25, 0.5, 0.75, 1.0],
    };
    let gates = gate_bytes();
    let predictors = predictor_parameters();
    Model {
        activations: "f32".to_owned(),
        schema: plans::SCHEMA,
        name: "turbosparse-mixtral-47b".to_owned(),
        fingerprint: "published-turbosparse-mixtral-47b".to_owned(),
        provenance: ModelProvenance {
            tool: "planner example oneplus12".to_owned(),
            origin: "published".to_owned(),
            calibration_text: String::new(),
            calibration_tokens: 0,
            held_out_text: String::new(),
            held_out_tokens: 0,
            quick: false,
            routes: None,
            notes: [
                "Published (TurboSparse, PowerInfer-2): shapes; 15 % of an expert's neurons truly active; predictor ranks per layer, 4.89 B parameters; P(gate > 0 | predicted) about 0.8; 83 % of a token's active neurons were active for the last one.",
                "Derived: bytes of every part at 4.5 bits a weight (blocks of 32 with a half-precision scale).",
                "Assumed: the predictor's recall of 95 % at a precision of 80 %, and a rise of perplexity of 0.8 %; a careful threshold with 98 % at 65 % and 0.3 %.",
                "Assumed: P(gate > 0) is 30 %; the exact gate asks for those neurons.",
                "Assumed: perplexity 5.0; only its change matters here.",
                "Assumed: the 99th percentile of neurons requested for is 1.4 times the mean, in every layer alike.",
                "Assumed: activation frequencies fall as rank to the power of -1, at most 1, which comes near the published mean miss rate of 3.5 % with half of the FFN in memory; pinned neurons miss by that law.",
                "Assumed: slots behave as least-recently-used under independent draws (Che's approximation), times what persistence leaves when an expert is used again every other token: 1 - 0.83 * 0.5.",
            ]
            .map(String::from)
            .to_vec(),
        },
        architecture: Architecture {
            family: "llama".to_owned(),
            activation: "drelu".to_owned(),
            layers: LAYERS,
            width: WIDTH as u32,
            neurons_per_expert: EXPERT as u32,
            experts: EXPERTS as u32,
            experts_used: USED as u32,
            heads: 32,
            kv_heads: 8,
            head_width: 128,
            shared_neurons: 0,
            rotary_embeddings: 1,
            vocabulary: 32000,
            context: 32768,
            weight_format: "Q4_0".to_owned(),
            down_format: "Q4_0".to_owned(),
            down_transposed: true,
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
            file: "turbosparse-mixtral-47b.bundle".to_owned(),
            fingerprint: "published-turbosparse-mixtral-47b-bundle".to_owned(),
            bytes: fixed + u64::from(LAYERS) * bundle.layer_bytes(neurons) + gates + in_q4(predictors),
        },
        dense: DenseQuality { perplexity: 5.0 },
        levels: levels(&reuse),
        reuse,
        layers: vec![
            LayerActivity {
                active_true_fraction: 0.15,
                active_gate_fraction: 0.3,
                active_neurons_mean: 0.15 * (EXPERT * USED) as f64,
                active_neurons_p50: 0.147 * (EXPERT * USED) as f64,
                active_neurons_p90: 0.175 * (EXPERT * USED) as f64,
                active_neurons_p99: 0.21 * (EXPERT * USED) as f64,
                bundle: None,
            };
            LAYERS as usize
        ],
    }
}

/// The menu: dense, the exact gate, and low-rank predictors at two thresholds.
fn levels(reuse: &ReuseAxes) -> Vec<Level> {
    let neurons = EXPERT * EXPERTS;
    let level =
        |name: &str, kind, loss: f64, alpha: f64, recall: f64, resident: u64, read: u64, flops: u64| {
            let requested = alpha * (EXPERT * USED) as f64;
            let layer = LevelLayer {
                active_predicted_fraction: alpha,
                beta_fraction: if kind == LevelKind::LowRank { 0.8 } else { 0.3 / alpha.max(0.3) },
                predicted_neurons_mean: requested,
                predicted_neurons_p99: (requested * 1.4).round().min((EXPERT * USED) as f64),
                always_on_neurons: 0,
                miss_fraction: surface(reuse, neurons, requested),
                clock_miss_fraction: Vec::new(),
                frequency_miss_fraction: Vec::new(),
                runs_fraction: Vec::new(),
                runs_over_gaps_fraction: Vec::new(),
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
                missing_p50_over_mean: vec![],
                missing_p90_over_mean: vec![],
                missing_p99_over_mean: vec![],
                precision_fraction: (0.15 * recall / alpha).min(1.0),
                layers: vec![layer; LAYERS as usize],
            }
        };
    let gates = gate_bytes();
    let predictors = predictor_parameters();
    vec![
        level("dense", LevelKind::Dense, 0.0, 1.0, 1.0, 0, 0, 0),
        level(
            "exact-gate",
            LevelKind::ExactGate,
            0.0,
            0.3,
            1.0,
            gates,
            gates / EXPERTS * USED,
            u64::from(LAYERS) * EXPERT * USED * WIDTH * 2,
        ),
        level(
            "low-rank-95",
            LevelKind::LowRank,
            0.008,
            0.178,
            0.95,
            in_q4(predictors),
            in_q4(predictors) / EXPERTS * USED,
            predictors / EXPERTS * USED * 2,
        ),
        level(
            "low-rank-98",
            LevelKind::LowRank,
            0.003,
            0.226,
            0.98,
            in_q4(predictors),
            in_q4(predictors) / EXPERTS * USED,
            predictors / EXPERTS * USED * 2,
        ),
    ]
}

/// All gate rows.
fn gate_bytes() -> u64 {
    u64::from(LAYERS) * EXPERT * EXPERTS * ROW
}

/// All predictors: two matrices for each expert.
fn predictor_parameters() -> u64 {
    (0..LAYERS).map(rank).sum::<u64>() * EXPERTS * (WIDTH + EXPERT)
}

/// Bytes of so many weights in blocks of 32.
fn in_q4(parameters: u64) -> u64 {
    parameters / 32 * 18
}

/// Published: predictor ranks of TurboSparse-Mixtral.
fn rank(layer: u32) -> u64 {
    match layer {
        0 | 1 => 896,
        13 | 27..=30 => 1088,
        31 => 1344,
        _ => 1024,
    }
}

/// `miss[share][cached]` by the assumed power law.
fn surface(reuse: &ReuseAxes, neurons: u64, requested: f64) -> Vec<Vec<f64>> {
    let frequencies = power_law(neurons, requested);
    let sums: Vec<f64> = std::iter::once(0.0)
        .chain(frequencies.iter().scan(0.0, |sum, f| {
            *sum += f;
            Some(*sum)
        }))
        .collect();
    let cell = |share: f64, cached: f64| {
        let cached = (cached * neurons as f64).round();
        let hot = (share * cached).floor() as usize;
        let slots = cached - hot as f64;
        let cold = &frequencies[hot..];
        let missed = if slots < 1.0 {
            sums[neurons as usize] - sums[hot]
        } else if hot as f64 + slots >= neurons as f64 {
            0.0
        } else {
            let time = characteristic_time(cold, slots);
            cold.iter().map(|f| f * (-f * time).exp()).sum::<f64>() * (1.0 - PERSISTENCE * SAME_EXPERT)
        };
        plans::file::significant(missed / requested).clamp(0.0, 1.0)
    };
    let row = |&share: &f64| reuse.cached_fraction.iter().map(|&cached| cell(share, cached)).collect();
    reuse.pinned_share_fraction.iter().map(row).collect()
}

/// Chances that a neuron is requested by a token; they add up to `requested`, none is above 1.
fn power_law(neurons: u64, requested: f64) -> Vec<f64> {
    let shape: Vec<f64> = (1..=neurons).map(|i| (i as f64).powf(-SKEW)).collect();
    let sum = |scale: f64| shape.iter().map(|s| (s * scale).min(1.0)).sum::<f64>();
    let (mut low, mut high) = (0.0, (neurons as f64).powf(SKEW));
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if sum(middle) < requested { low = middle } else { high = middle }
    }
    shape.iter().map(|s| (s * high).min(1.0)).collect()
}

/// Che's approximation: the time after which `slots` different neurons have been requested.
fn characteristic_time(frequencies: &[f64], slots: f64) -> f64 {
    let seen = |time: f64| frequencies.iter().map(|f| 1.0 - (-f * time).exp()).sum::<f64>();
    let (mut low, mut high) = (0.0, 1e9);
    for _ in 0..80 {
        let middle = 0.5 * (low + high);
        if seen(middle) < slots { low = middle } else { high = middle }
    }
    high
}
