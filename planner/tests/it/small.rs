//! A small device and model to plan with.

use planner::Inputs;
use plans::device::{
    Capacity, CoreClass, Device, Identity, KernelSpeed, Memory, Provenance, ReadSpeed, Storage, Unit,
};
use plans::layout::BundleLayout;
use plans::model::{
    Architecture, ContainerIdentity, DenseQuality, LayerActivity, Level, LevelKind, LevelLayer, Model,
    ModelProvenance, Parts, ReuseAxes,
};
use plans::plan::Request;

/// Two big and two little cores, a disk, 64 MiB to plan with.
pub(crate) fn device() -> Device {
    let identity = Identity {
        cpu: "small".to_owned(),
        core_classes: vec!["2 x 3000 MHz".to_owned(), "2 x 2000 MHz".to_owned()],
        instruction_sets: vec!["scalar".to_owned(), "avx2".to_owned()],
        ram_gib: 1,
        storage: "disk".to_owned(),
    };
    let reads = [("random", 1.0), ("sequential", 3.0)].into_iter().flat_map(|(pattern, factor)| {
        [(1, 0.3), (8, 1.0), (32, 1.6)].into_iter().flat_map(move |(depth, share)| {
            [(4096, 30_000.0), (16384, 20_000.0), (65536, 9000.0)].map(|(block_bytes, rate)| ReadSpeed {
                backend: plans::Backend::Pread,
                direct: true,
                pattern: pattern.to_owned(),
                block_bytes,
                depth,
                span_bytes: 1 << 30,
                reads_per_second: rate * share * factor,
                spread_fraction: None,
            })
        })
    });
    let speeds = [4e9, 7e9, 8e9, 8.5e9];
    Device {
        schema: plans::SCHEMA,
        name: "small".to_owned(),
        fingerprint: Device::fingerprint_of(&identity),
        identity,
        provenance: Provenance { tool: "test".to_owned(), origin: "assumed".to_owned(), notes: vec![] },
        capacity: Capacity {
            ram_bytes: 96 << 20,
            cgroup_limit_bytes: None,
            lockable_bytes: None,
            system_reserve_bytes: 32 << 20,
            process_bytes: 1 << 20,
            thread_bytes: 64 << 10,
        },
        memory: Memory {
            stream_bytes_per_second: speeds.to_vec(),
            gather_bytes_per_second: speeds.to_vec(),
            gather_row_bytes: 4096,
            spread_fraction: None,
            fresh_bytes_per_second: None,
        },
        storage: Storage {
            file_system: "ext4".to_owned(),
            direct: true,
            cpu_seconds_per_read: 1e-5,
            io_uring: None,
            best_core: 2,
            interference_fraction: 0.1,
            wake_seconds: Some(vec![0.0, 2e-6, 3e-6, 4e-6]),
            completed_together_fraction: Some(0.25),
            check_bytes_per_second: Some(2e9),
            reads: reads.collect(),
        },
        cores: vec![class("big", &[0, 1], 20e9), class("little", &[2, 3], 8e9)],
        kernels: vec![KernelSpeed {
            format: "F16".to_owned(),
            instruction_set: "avx2".to_owned(),
            flops_per_second: vec![20e9, 40e9, 24e9, 32e9],
            dense_bytes_per_second: speeds.map(|s| 0.9 * s).to_vec(),
            sparse_bytes_per_second: speeds.map(|s| 0.7 * s).to_vec(),
            sparse_down_bytes_per_second: Some(speeds.map(|s| 0.8 * s).to_vec()),
            sparse_down_group_seconds: Some(speeds.map(|_| 1e-7).to_vec()),
            prompt_flops_per_second: None,
            prompt_few_flops_per_second: None,
            prompt_sparse_flops_per_second: None,
            attention_flops_per_second: None,
            short_dense_row_seconds: None,
            short_dot_row_seconds: None,
            short_add_row_seconds: None,
            dispatch_seconds: vec![1e-7, 1e-6, 2e-6, 3e-6],
            spread_fraction: None,
        }],
        units: vec![Unit::cpu()],
    }
}

fn class(name: &str, ids: &[u32], flops_per_second: f64) -> CoreClass {
    CoreClass { name: name.to_owned(), ids: ids.to_vec(), capacity: 1024, clock_mhz: 3000, flops_per_second }
}

/// A model of some layers of 2048 neurons (3 KiB each), no two alike; with dense, sign and low-rank levels.
pub(crate) fn model(layers: u32) -> Model {
    let (width, neurons) = (512u64, 2048u32);
    let bundle = BundleLayout::new(2 * width, 2 * width, 2 * width);
    let attention = 4 * width * width * 2;
    let table = 4096 * width * 2;
    let fixed = u64::from(layers) * attention + 2 * table;
    let reuse = ReuseAxes {
        cached_fraction: vec![0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0],
        pinned_share_fraction: vec![0.0, 0.5, 1.0],
        wide_gap_ranks: None,
    };
    let level = |name: &str, kind, loss: f64, alpha: f64, resident: u64| Level {
        name: name.to_owned(),
        kind,
        lossless: loss == 0.0,
        resident_bytes: resident,
        read_bytes_per_token: resident,
        flops_per_token: resident,
        perplexity: 5.0 * (1.0 + loss),
        perplexity_change_fraction: loss,
        perplexity_change_fraction_upper: None,
        perplexity_change_fraction_of_texts: Vec::new(),
        recall_fraction: 0.97,
        added_fraction: None,
        look_ahead_recall_fraction: None,
        look_ahead_precision_fraction: None,
        missing_p50_over_mean: vec![],
        missing_p90_over_mean: vec![],
        missing_p99_over_mean: vec![],
        precision_fraction: 0.7,
        layers: (0..layers).map(|layer| level_layer(&reuse, layer, alpha * f64::from(neurons))).collect(),
    };
    let activity = LayerActivity {
        active_true_fraction: 0.1,
        active_gate_fraction: 0.2,
        active_neurons_mean: 200.0,
        active_neurons_p50: 190.0,
        active_neurons_p90: 260.0,
        active_neurons_p99: 300.0,
        bundle: None,
    };
    Model {
        activations: "f32".to_owned(),
        schema: plans::SCHEMA,
        name: "small".to_owned(),
        fingerprint: "small".to_owned(),
        provenance: ModelProvenance {
            tool: "test".to_owned(),
            origin: "assumed".to_owned(),
            calibration_text: String::new(),
            calibration_tokens: 0,
            held_out_text: String::new(),
            held_out_tokens: 0,
            quick: false,
            routes: None,
            notes: vec![],
        },
        architecture: Architecture {
            family: "llama".to_owned(),
            activation: "relu".to_owned(),
            layers,
            width: width as u32,
            neurons_per_expert: neurons,
            experts: 1,
            experts_used: 1,
            heads: 8,
            kv_heads: 8,
            head_width: 64,
            gated_attention: false,
            kv_layers: None,
            other_heads: Vec::new(),
            sharing_heads: Vec::new(),
            per_layer: None,
            streams: None,
            chosen_blocks: 0,
            shared_neurons: 0,
            rotary_embeddings: 1,
            vocabulary: 4096,
            context: 1024,
            weight_format: "F16".to_owned(),
            down_format: "F16".to_owned(),
            down_transposed: true,
            recurrent: None,
            latent: None,
        },
        parts: Parts {
            embedding_bytes: table,
            head_bytes: table,
            head_read_bytes: table,
            attention_layer_bytes: attention,
            router_layer_bytes: 0,
            fixed_bytes: fixed,
            tokenizer_bytes: 1 << 16,
            bundle,
        },
        container: ContainerIdentity {
            file: "small.bundle".to_owned(),
            fingerprint: "small".to_owned(),
            bytes: fixed + u64::from(layers) * bundle.layer_bytes(u64::from(neurons)),
        },
        dense: DenseQuality { perplexity: 5.0 },
        kv_formats: vec![],
        levels: vec![
            level("dense", LevelKind::Dense, 0.0, 1.0, 0),
            level("sign", LevelKind::Sign, 0.004, 0.2, u64::from(layers * neurons) * 64),
            level("low-rank", LevelKind::LowRank, 0.02, 0.12, u64::from(layers) * (256 << 10)),
        ],
        drafts: None,
        reuse,
        layers: vec![activity; layers as usize],
    }
}

/// A layer whose misses fall as a power of what is cached, faster where slots hold what is used most often; later layers
/// are hotter. Friends miss together: of neighbours a fourth at most.
fn level_layer(reuse: &ReuseAxes, layer: u32, requested: f64) -> LevelLayer {
    let heat = 1.5 + 0.4 * f64::from(layer);
    let surface = |recurring: f64| -> Vec<Vec<f64>> {
        let row = |&share: &f64| {
            let cell = |&cached: &f64| (1.0 - cached).powf(heat + recurring * (1.0 - share) * cached);
            reuse.cached_fraction.iter().map(|x| plans::file::significant(cell(x))).collect()
        };
        reuse.pinned_share_fraction.iter().map(row).collect()
    };
    let miss_fraction = surface(2.0);
    let runs = |miss: &f64| plans::file::significant(1.0 - 0.25 * miss);
    let over_gaps = |miss: &f64| plans::file::significant((1.0 - 0.25 * miss) * (1.0 - 0.3 * miss).powi(3));
    let runs_fraction = miss_fraction.iter().map(|row| row.iter().map(runs).collect()).collect();
    let runs_over_gaps_fraction =
        miss_fraction.iter().map(|row| row.iter().map(over_gaps).collect()).collect();
    // further ones are rarer than near ones let expect
    let over_wide = |miss: &f64| plans::file::significant(over_gaps(miss) * (1.0 - 0.2 * miss).powi(5));
    let runs_over_wide_gaps_fraction =
        miss_fraction.iter().map(|row| row.iter().map(over_wide).collect()).collect();
    LevelLayer {
        active_predicted_fraction: requested / 2048.0,
        beta_fraction: 0.8,
        predicted_neurons_mean: requested,
        predicted_neurons_p99: (1.3 * requested).min(2048.0),
        always_on_neurons: layer,
        miss_fraction,
        clock_miss_fraction: surface(2.0),
        frequency_miss_fraction: surface(3.0),
        runs_fraction,
        runs_over_gaps_fraction,
        runs_over_wide_gaps_fraction,
    }
}

/// Both, as if read from files.
pub(crate) fn inputs(layers: u32) -> Inputs {
    Inputs {
        device: device(),
        device_hash: "device".to_owned(),
        model: model(layers),
        model_hash: "model".to_owned(),
        notes: Vec::new(),
    }
}

/// A request for speed within so much memory.
pub(crate) fn request(memory_limit_bytes: Option<u64>) -> Request {
    Request { memory_limit_bytes, context_tokens: Some(256), ..Request::default() }
}

/// The plan, where there must be one.
pub(crate) fn plan(inputs: &Inputs, request: &Request) -> planner::Solved {
    match planner::plan(inputs, request).expect("a sensible request") {
        planner::Answer::Plan(solved) => *solved,
        planner::Answer::Infeasible(why) => panic!("{why}"),
    }
}
