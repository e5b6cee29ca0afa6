//! From the solver's choice to a finished [`Plan`]: the split inside groups, the gap, what is expected.

use plans::memory::{self, Choices};
use plans::model::Level;
use plans::plan::{
    CachePlan, Context, DecodePlan, Expected, Plan, PlanProvenance, PrefillPlan, Quality, ReadPlan, Request,
    SimpleRule, Target, UnitShare,
};

use crate::candidates::{self, Rules};
use crate::cost::{self, Decision};
use crate::reads::{ReadChoice, ReadPrice};
use crate::request::{Inputs, Limits, measured_run};
use crate::split::split;
use crate::tables::{Choice, Tables};
use crate::{file_tool, surface};

/// Portions of the split inside a group.
const PORTIONS: u64 = 4096;

/// Everything that is decided, before it is written down as a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Decided {
    /// Compute cores.
    pub cores: Vec<u32>,
    /// Cores of the reading threads.
    pub io_cores: Vec<u32>,
    /// Whether those are the same.
    pub shared: bool,
    /// Active neurons computed together.
    pub cluster: u64,
    /// How flash is read.
    pub read: ReadChoice,
    /// Pinned neurons per layer.
    pub hot: Vec<u32>,
    /// Slots per layer.
    pub cold: Vec<u32>,
    /// Prefill's cores and chunk.
    pub rules: Rules,
}

impl Decided {
    /// For pricing.
    pub fn decision<'a>(&'a self, level: &'a Level) -> Decision<'a> {
        Decision {
            level,
            cores: &self.cores,
            shared: self.shared,
            cluster: self.cluster,
            read: self.read,
            hot: &self.hot,
            cold: &self.cold,
        }
    }

    /// For the memory arithmetic.
    pub fn choices<'a>(&'a self, limits: &Limits, level: &Level) -> Choices<'a> {
        Choices {
            kind: level.kind,
            level_resident_bytes: level.resident_bytes,
            hot_neurons: &self.hot,
            cold_slots: &self.cold,
            context_tokens: u64::from(limits.context),
            kv_value_bytes: limits.kv_value_bytes(),
            compute_threads: self.cores.len().max(self.rules.prefill_cores.len()) as u64,
            io_threads: u64::from(self.read.depth),
            cluster_neurons: self.cluster,
            chunk_tokens: u64::from(self.rules.chunk),
            buffers: u64::from(self.read.buffers),
            buffer_bytes: self.read.buffer_bytes,
        }
    }
}

/// The solver's choice, split over the layers, with the best gap.
///
/// A gap costs no memory, so it is not the solver's: each is priced, the fastest taken, of equals the smallest.
pub fn decide(
    inputs: &Inputs,
    limits: &Limits,
    level: &Level,
    tables: &Tables,
    choice: &Choice,
    rules: &Rules,
) -> Decided {
    let (mode, read) = (&tables.compute[choice.compute], &tables.reads[choice.read]);
    let layers = level.layers.len();
    let mut decided = Decided {
        cores: mode.cores.clone(),
        io_cores: mode.io_cores.clone(),
        shared: mode.shared,
        cluster: mode.cluster,
        read: ReadChoice {
            direct: read.direct,
            depth: read.depth,
            buffers: read.buffers,
            buffer_bytes: read.buffer_bytes,
            gap_bytes: read.gap_bytes,
        },
        hot: vec![0; layers],
        cold: vec![0; layers],
        rules: rules.clone(),
    };
    for (group, &(stretch, quanta)) in tables.groups.iter().zip(&choice.groups) {
        let cached = quanta * tables.quantum;
        let stretch = &group.stretches[stretch];
        let shares =
            split_group(inputs, limits, level, &decided, &group.layers, stretch, cached, tables.quantum);
        for (&layer, cached) in group.layers.iter().zip(shares) {
            let hot = stretch.share_permille * cached / 1000;
            decided.hot[layer] = hot as u32;
            decided.cold[layer] = (cached - hot) as u32;
        }
    }
    let seconds = |gap_bytes: u64| {
        let read = ReadChoice { gap_bytes, ..decided.read };
        cost::decode(inputs, limits, &Decision { read, ..decided.decision(level) })
            .mean_seconds(limits.context)
    };
    let mut best = (seconds(decided.read.gap_bytes), decided.read.gap_bytes);
    for gap in candidates::gaps(inputs, decided.read.buffer_bytes) {
        let time = seconds(gap);
        // A thousandth is within what the even spread of misses leaves open: not worth a longer read.
        if time < best.0 * 0.999 {
            best = (time, gap);
        }
    }
    decided.read.gap_bytes = best.1;
    decided
}

/// A group's cached neurons over its layers, each priced by its own curve.
fn split_group(
    inputs: &Inputs,
    limits: &Limits,
    level: &Level,
    decided: &Decided,
    layers: &[usize],
    stretch: &crate::tables::Stretch,
    cached: i64,
    quantum: i64,
) -> Vec<i64> {
    if layers.len() == 1 || cached == 0 {
        return vec![cached; layers.len()];
    }
    let (model, device) = (&inputs.model, &inputs.device);
    let r = cost::rates(inputs, limits, &decided.cores);
    let reads = ReadPrice::new(inputs, level.kind, decided.read);
    let single = reads.single_seconds();
    let (low, high) = (stretch.low() * quantum, stretch.high() * quantum);
    let generated = f64::from(measured_run(limits.context).1);
    let cold_share = 1.0 - stretch.share_permille as f64 / 1000.0;
    let own: Vec<_> = layers
        .iter()
        .map(|&layer| {
            let asked = cost::asked(model, level, layer);
            let (work, drain) = cost::feed_forward(model, level, asked, decided.cluster, &r);
            let corners = candidates::layer_curve(inputs, level, layer, stretch.share_permille, low, high);
            (work.seconds(), drain, corners)
        })
        .collect();
    let seconds = |i: usize, n: i64| {
        let (busy, drain, corners) = &own[i];
        let missing = surface::at(corners, n as f64);
        let read = reads.of(missing, f64::from(u32::MAX));
        let issue = read.reads * device.storage.cpu_seconds_per_read;
        let sharing = decided.shared.then_some(decided.cores.len());
        let interference = device.storage.interference_fraction;
        cost::overlapped_seconds((*busy, *drain), (read.seconds, issue), interference, sharing)
            + n as f64 * cold_share * single / generated
    };
    let step = (model.architecture.neurons() / PORTIONS).max(1) as i64;
    // Every layer may come down to the stretch's beginning; none beyond its end.
    split(layers.len(), cached * layers.len() as i64, (low, high), step, seconds)
}

/// The plan, with all that is expected of it.
pub fn plan(
    inputs: &Inputs,
    limits: &Limits,
    request: &Request,
    level: &Level,
    d: &Decided,
    simple: SimpleRule,
) -> Plan {
    let (device, model) = (&inputs.device, &inputs.model);
    let memory = memory::regions(device, model, &d.choices(limits, level), limits.memory_bytes);
    let cpu = || vec![UnitShare { unit: device.units[0].name.clone(), share_fraction: 1.0 }];
    Plan {
        schema: plans::SCHEMA,
        target: Target {
            device: device.name.clone(),
            device_fingerprint: device.fingerprint.clone(),
            cpu: device.identity.cpu.clone(),
            ram_gib: device.identity.ram_gib,
            storage: device.identity.storage.clone(),
            model: model.name.clone(),
            model_fingerprint: model.fingerprint.clone(),
            container: model.container.file.clone(),
            container_fingerprint: model.container.fingerprint.clone(),
        },
        provenance: PlanProvenance {
            tool: file_tool(),
            device_toml: inputs.device_hash.clone(),
            model_toml: inputs.model_hash.clone(),
        },
        request: request.clone(),
        quality: Quality {
            level: level.name.clone(),
            kind: level.kind,
            always_on_neurons: level.layers.iter().map(|layer| layer.always_on_neurons).collect(),
            kv_format: limits.kv_format.clone(),
            activations: "f32".to_owned(),
            instruction_set: limits.isa.clone(),
        },
        context: Context { tokens: limits.context },
        memory,
        cache: CachePlan { policy: "lru".to_owned(), hot_neurons: d.hot.clone(), cold_slots: d.cold.clone() },
        read: ReadPlan {
            backend: "pread".to_owned(),
            direct: d.read.direct,
            depth: d.read.depth,
            buffers: d.read.buffers,
            buffer_bytes: d.read.buffer_bytes,
            gap_bytes: d.read.gap_bytes,
        },
        decode: DecodePlan {
            compute_cores: d.cores.clone(),
            io_cores: d.io_cores.clone(),
            cluster_neurons: d.cluster as u32,
            units: cpu(),
        },
        prefill: PrefillPlan {
            compute_cores: d.rules.prefill_cores.clone(),
            chunk_tokens: d.rules.chunk,
            units: cpu(),
        },
        expected: expected(inputs, limits, level, d, memory.decode_total_bytes),
        simple_rule: simple,
    }
}

/// The cost model's figures for a plan, with six significant digits.
pub fn expected(inputs: &Inputs, limits: &Limits, level: &Level, d: &Decided, peak: u64) -> Expected {
    let digits = plans::file::significant;
    let model = &inputs.model;
    let price = cost::decode(inputs, limits, &d.decision(level));
    let (prompt, _) = measured_run(limits.context);
    let prefill = cost::prefill_seconds(
        inputs,
        limits,
        &d.decision(level),
        &d.rules.prefill_cores,
        d.rules.chunk,
        prompt,
    );
    let works = [&price.attention, &price.predictor, &price.feed_forward, &price.rest];
    let routed = model.architecture.neurons_routed() as f64 * level.layers.len() as f64;
    let active = model.layers.iter().map(|layer| layer.active_true_fraction).sum::<f64>();
    Expected {
        decode_tokens_per_second: digits(1.0 / price.mean_seconds(limits.context)),
        decode_seconds_constant: digits(price.constant),
        decode_seconds_per_context_token: digits(price.per_context_token),
        decode_cold_start_seconds: digits(price.cold_start),
        decode_compute_seconds: digits(works.iter().map(|work| work.compute).sum()),
        decode_memory_seconds: digits(works.iter().map(|work| work.memory).sum()),
        decode_io_seconds: digits(price.io),
        decode_serial_seconds: digits(works.iter().map(|work| work.serial).sum()),
        prefill_tokens_per_second: digits(f64::from(prompt) / prefill),
        bytes_read_per_token: digits(price.bytes_read),
        hit_fraction: digits(if price.asked > 0.0 { 1.0 - price.missing / price.asked } else { 1.0 }),
        active_predicted_fraction: digits(price.asked / routed),
        active_true_fraction: digits(active / model.layers.len() as f64),
        perplexity_change_fraction: level.perplexity_change_fraction,
        memory_peak_bytes: peak,
    }
}
