//! The parts of a plan's times, by the rate that each depends on, so that a plan can be priced at other rates.
//!
//! Each part is scaled by its own factor. The parts are then combined by the same formula as in `plan` ([`crate::overlap`]).

pub(crate) mod check;

use serde::{Deserialize, Serialize};

use crate::Plan;
use crate::overlap::{
    Interference, LayerReads, PromptReads, Stages, Supply, prompt_compute_seconds, prompt_layer_seconds,
    reading_fraction, uneven,
};

/// Speed of a machine over the assumed one, at each thing by itself.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Factors {
    /// Computing with weights in cache, and steps of threads; 1: as assumed.
    pub compute: f64,
    /// Weights in order from memory; 1: as assumed.
    pub stream: f64,
    /// Rows here and there from memory; 1: as assumed.
    pub gather: f64,
    /// Reads of flash here and there; 1: as assumed.
    pub random_reads: f64,
    /// Reads of flash in order; 1: as assumed.
    pub ordered_reads: f64,
}

impl Factors {
    /// A machine as fast as the plan assumes.
    pub const NONE: Self =
        Self { compute: 1.0, stream: 1.0, gather: 1.0, random_reads: 1.0, ordered_reads: 1.0 };

    /// The factors by name, in the order of reports.
    pub fn named(&self) -> [(&'static str, f64); 5] {
        let Self { compute, stream, gather, random_reads, ordered_reads } = *self;
        [
            ("compute", compute),
            ("stream", stream),
            ("gather", gather),
            ("random_reads", random_reads),
            ("ordered_reads", ordered_reads),
        ]
    }
}

/// The rates that a plan assumes, at the points at which `run` measures them again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Storage format of the weights for `flops_per_second`, `dense_bytes_per_second` and `sparse_bytes_per_second`; absent, as these are
    /// then: the device was not measured with such weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_format: Option<String>,
    /// Products of the decoding threads with weights in cache; absent: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops_per_second: Option<f64>,
    /// Weights in long rows, in order from memory, by the decoding threads; absent: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dense_bytes_per_second: Option<f64>,
    /// Rows of gate and up here and there from memory, by the decoding threads; absent: not measured apart from down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sparse_bytes_per_second: Option<f64>,
    /// Bytes of a token's mean read here and there; absent, as `random_reads_per_second` is then: decoding reads nothing so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_read_bytes: Option<u64>,
    /// Reads of `random_read_bytes` here and there a second, with `read.depth` in flight; absent: decoding reads nothing so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_reads_per_second: Option<f64>,
    /// Reads of `read.buffer_bytes` in order a second, with `read.depth` in flight; absent: nothing is read so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordered_reads_per_second: Option<f64>,
}

/// A stage by itself: the longer of computing and moving bytes, and what nothing overlaps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// Computing, were it alone; absent: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub compute_seconds: f64,
    /// Moving bytes in order through memory, were it alone; absent: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stream_seconds: f64,
    /// Moving rows here and there through memory, were it alone; absent: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gather_seconds: f64,
    /// Starting threads and seeing them done; absent: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dispatch_seconds: f64,
    /// Bytes that one thread moves in order; absent: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub serial_seconds: f64,
    /// Reading a row of the embedding; absent: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub read_seconds: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

fn is_nothing(work: &Work) -> bool {
    *work == Work::default()
}

impl Work {
    /// Seconds of moving bytes through memory, were it alone.
    pub fn memory(&self) -> f64 {
        self.stream_seconds + self.gather_seconds
    }

    /// Computing or moving bytes, whichever takes longer.
    pub fn busy(&self) -> f64 {
        self.compute_seconds.max(self.memory())
    }

    /// Seconds that overlap with nothing.
    pub fn serial(&self) -> f64 {
        self.dispatch_seconds + self.serial_seconds + self.read_seconds
    }

    /// The stage's time.
    pub fn seconds(&self) -> f64 {
        self.busy() + self.serial()
    }

    /// The stage on a machine that is so many times as fast.
    #[must_use]
    pub fn at(&self, f: &Factors) -> Self {
        Self {
            compute_seconds: self.compute_seconds / f.compute,
            stream_seconds: self.stream_seconds / f.stream,
            gather_seconds: self.gather_seconds / f.gather,
            dispatch_seconds: self.dispatch_seconds / f.compute,
            serial_seconds: self.serial_seconds / f.stream,
            read_seconds: self.read_seconds / f.random_reads,
        }
    }

    /// Adds another stage's parts.
    pub fn add(&mut self, other: &Self) {
        self.compute_seconds += other.compute_seconds;
        self.stream_seconds += other.stream_seconds;
        self.gather_seconds += other.gather_seconds;
        self.dispatch_seconds += other.dispatch_seconds;
        self.serial_seconds += other.serial_seconds;
        self.read_seconds += other.read_seconds;
    }
}

/// The parts of a token's time and of a prompt's, at the rates that the plan assumes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// Starting all decoding threads once and seeing them done.
    pub dispatch_seconds: f64,
    /// Extra time of starting threads that fell asleep during a wait for reads; absent: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub wake_seconds: f64,
    /// Speed of all compute cores together over the slowest one's; absent: the number of cores, all of which are alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores_over_slowest: Option<f64>,
    /// Attention, each layer.
    pub attention: Work,
    /// Router and predictor, each layer; absent: nothing is selected.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub select: Work,
    /// Predicting what the next layer will request, each layer that has one; absent: nobody does.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub look_ahead: Work,
    /// Norms, head and sampling, once a token.
    pub rest: Work,
    /// Each token of context: its keys and values.
    pub context: Work,
    /// The share that reads take of the threads that compute, and how well they are known before.
    pub reading: ReadingTerms,
    /// The parts that differ from layer to layer.
    pub layers: LayerTerms,
    /// A prompt.
    pub prompt: PromptTerms,
    /// Starting; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartTerms>,
}

/// The parts of the time from the start of the engine until it takes its first prompt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartTerms {
    /// Reading what is always in memory, in order and one read at a time.
    pub read_seconds: f64,
    /// Taking all memory, and passing what is read through it, by one thread.
    pub memory_seconds: f64,
}

impl StartTerms {
    /// Seconds of both parts together: nothing overlaps.
    pub fn seconds(&self) -> f64 {
        self.read_seconds + self.memory_seconds
    }

    /// The start on a machine that is so many times as fast.
    #[must_use]
    pub fn at(&self, f: &Factors) -> Self {
        Self {
            read_seconds: self.read_seconds / f.ordered_reads,
            memory_seconds: self.memory_seconds / f.stream,
        }
    }
}

/// The share that reads take of the threads that compute, and how well the layer before knows them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadingTerms {
    /// CPU time of starting a read and finding it done.
    pub cpu_seconds_per_read: f64,
    /// Share of the computing speed that is lost while reads are in flight.
    pub interference_fraction: f64,
    /// Reads a second whose CPU time is in `interference_fraction`.
    pub covered_reads_per_second: f64,
    /// Whether reading and computing share cores.
    pub shares_cores: bool,
    /// Share of a layer's reads that the layer before it knows.
    pub prefetched_fraction: f64,
    /// Share of the prefetched reads that the layer then requests.
    pub prefetched_used_fraction: f64,
    /// Share of the reads in flight beside the last that complete no sooner than it does; absent: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub completed_together_fraction: f64,
    /// Reads that miss as a whole or not at all; absent: every token reads as much as the mean one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reads_by_chance: f64,
    /// Comparing a neuron that has been read with its checksum; absent: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub check_seconds_per_neuron: f64,
}

/// The parts that differ from layer to layer, each list with an entry for every layer; absent: 0 in every layer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerTerms {
    /// Neurons requested for a token; absent: 0 in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requested_neurons: Vec<f64>,
    /// Computing gate and up, were it alone; absent: 0 in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gate_up_compute_seconds: Vec<f64>,
    /// Moving gate and up through memory in order; absent: 0 in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gate_up_stream_seconds: Vec<f64>,
    /// Moving rows of gate and up through memory; absent: 0 in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gate_up_gather_seconds: Vec<f64>,
    /// Computing down, were it alone; absent: 0 in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub down_compute_seconds: Vec<f64>,
    /// Moving down through memory in order; absent: 0 in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub down_stream_seconds: Vec<f64>,
    /// Moving rows of down through memory; absent: 0 in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub down_gather_seconds: Vec<f64>,
    /// Starting threads for down; absent: 0 in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub down_dispatch_seconds: Vec<f64>,
    /// Joining the sums of down, by one thread; absent: 0 in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub down_serial_seconds: Vec<f64>,
    /// Copies into the cache; absent: 0 in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub insert_seconds: Vec<f64>,
    /// Neurons that are read for a token; absent: not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_neurons: Vec<f64>,
    /// Reads of flash for a token, the first of each neuron; absent: 0 in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<f64>,
    /// Time of the reads, were they alone; absent: 0 in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_seconds: Vec<f64>,
    /// Time of one read that is prefetched; absent: 0 in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefetch_read_seconds: Vec<f64>,
    /// Whether the reads lie in order on flash; absent: `false` in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads_in_order: Vec<bool>,
    /// Reads after a neuron's first; absent: 0 in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_reads: Vec<f64>,
    /// Time of the reads after a neuron's first; absent: 0 in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_read_seconds: Vec<f64>,
}

/// The parts of a prompt's time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptTerms {
    /// Norms, head and sampling, once a prompt.
    pub rest: Work,
    /// Moving a layer through memory, once a chunk; computing it takes as long at least.
    pub memory_seconds: f64,
    /// For each layer: computing a token of a chunk.
    pub token_seconds: Vec<f64>,
    /// Share of a layer's computing that is attention, during which nothing is read; absent: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attention_fraction: f64,
    /// For each layer: computing what a chunk takes beside its tokens; absent: 0 in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chunk_seconds: Vec<f64>,
    /// For each layer: reading in order what is not pinned, once a chunk; absent: 0 in every layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_seconds: Vec<f64>,
    /// Reading time of a layer with nothing pinned; absent: nothing is read.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub layer_read_seconds: f64,
    /// Reads a second meanwhile; absent: nothing is read.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reads_per_second: f64,
    /// Time that compute threads lose by starting and completing such a read, beyond the interference; absent: I/O threads do it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub taken_seconds_per_read: f64,
    /// Comparing what one of them brings with its checksum; absent: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub check_seconds_per_read: f64,
    /// Share of a layer's experts that 1, 2, 4, 8, ... tokens of a chunk visit, mean over the layers; absent: all. It scales the time of a
    /// chunk beside its tokens, and its reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub visited_fraction: Vec<f64>,
}

/// Number of chunk lengths with a known share of visited experts: 1, 2, 4, ... tokens.
pub const VISITED: usize = 13;

/// Share of a layer's experts that a chunk of `tokens` visits, interpolated between 1, 2, 4, ... tokens and constant after the last; all
/// where nothing is known.
pub fn visited(fractions: &[f64], tokens: u32) -> f64 {
    let (log, tokens) = (tokens.max(1).ilog2() as usize, f64::from(tokens.max(1)));
    match fractions.get(log..) {
        Some([at, next, ..]) => at + (next - at) * (tokens / 2f64.powi(log as i32) - 1.0),
        Some([last]) => *last,
        Some([]) | None => fractions.last().copied().unwrap_or(1.0),
    }
}

/// The times of a stream of tokens, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenSeconds {
    /// A token at position 0 with a warm cache.
    pub constant: f64,
    /// Added by each token already in the context.
    pub per_context_token: f64,
    /// Filling the cold region, once.
    pub cold_start: f64,
}

/// A layer's entry of a list that may be absent.
fn of(list: &[f64], layer: usize) -> f64 {
    list.get(layer).copied().unwrap_or(0.0)
}

impl Terms {
    /// Times of a token by this plan on a machine scaled by the factors, for `times` the misses of the mean token.
    pub fn decode(&self, plan: &Plan, f: &Factors, times: f64) -> TokenSeconds {
        let layers = plan.quality.always_on_neurons.len();
        let before = self.attention.at(f).seconds() + self.select.at(f).seconds();
        let interference = self.interference(plan, f);
        let r = &self.reading;
        let supply = Supply {
            depth: plan.read.depth,
            buffers: plan.read.held(),
            look_ahead: plan.read.ahead(),
            recall_fraction: r.prefetched_fraction,
            precision_fraction: r.prefetched_used_fraction,
            together_fraction: r.completed_together_fraction,
            blocking: plan.read.blocking,
        };
        let layer = |layer: usize| {
            let last = layer + 1 == layers;
            let stages = self.stages(plan, layer, before, last, f);
            let reads = self.reads(plan, layer, f, times);
            let insert = times * of(&self.layers.insert_seconds, layer) / f.stream;
            supply.layer_seconds(&stages, insert, &reads, layer > 0, &interference)
        };
        TokenSeconds {
            constant: self.rest.at(f).seconds()
                + layers as f64 * before
                + (0..layers).map(layer).sum::<f64>(),
            per_context_token: self.context.at(f).seconds(),
            cold_start: plan.expected.decode_cold_start_seconds / f.random_reads,
        }
    }

    /// Seconds of a prompt by this plan on a machine scaled by the factors: each chunk passes the layers, whose neurons are read while they
    /// are computed.
    pub fn prompt_seconds(&self, plan: &Plan, tokens: u32, f: &Factors) -> f64 {
        let (layers, p) = (plan.quality.always_on_neurons.len(), &self.prompt);
        let chunk = plan.prefill.chunk_tokens.max(1);
        let interference = Interference {
            cpu_seconds_per_read: p.taken_seconds_per_read,
            sharing: Some(1),
            ..self.interference(plan, f)
        };
        let reads_per_second = p.reads_per_second * f.ordered_reads;
        let checks = reads_per_second * p.check_seconds_per_read / f.stream;
        let taken_fraction = interference.taken(1.0, reads_per_second) + checks;
        let tokens = tokens.max(1);
        let of_chunk = |tokens: u32| {
            let visited = visited(&p.visited_fraction, tokens);
            let memory = visited * p.memory_seconds / f.stream;
            let layer = |layer: usize| {
                let (token, of_chunk) = (of(&p.token_seconds, layer), of(&p.chunk_seconds, layer));
                let of_chunk = visited * of_chunk / f.compute;
                let compute = prompt_compute_seconds(tokens, token / f.compute, of_chunk, memory);
                let read = |seconds: f64| visited * seconds / f.ordered_reads;
                let (seconds, all_seconds) = (read(of(&p.read_seconds, layer)), read(p.layer_read_seconds));
                let reads = PromptReads { seconds, all_seconds, taken_fraction };
                prompt_layer_seconds(compute, p.attention_fraction, &reads)
            };
            (0..layers).map(layer).sum::<f64>()
        };
        let mut seconds = p.rest.at(f).seconds();
        seconds += f64::from(tokens) * self.rest.at(f).read_seconds;
        if tokens >= chunk {
            seconds += f64::from(tokens / chunk) * of_chunk(chunk);
        }
        if !tokens.is_multiple_of(chunk) {
            seconds += of_chunk(tokens % chunk);
        }
        seconds
    }

    fn interference(&self, plan: &Plan, f: &Factors) -> Interference {
        let r = &self.reading;
        Interference {
            cpu_seconds_per_read: r.cpu_seconds_per_read,
            interference_fraction: r.interference_fraction,
            covered_per_second: r.covered_reads_per_second * f.random_reads,
            sharing: r.shares_cores.then_some(plan.decode.compute_cores.len()),
        }
    }

    fn stages(&self, plan: &Plan, layer: usize, before: f64, last: bool, f: &Factors) -> Stages {
        let l = &self.layers;
        let gate_up = Work {
            compute_seconds: of(&l.gate_up_compute_seconds, layer),
            stream_seconds: of(&l.gate_up_stream_seconds, layer),
            gather_seconds: of(&l.gate_up_gather_seconds, layer),
            ..Work::default()
        };
        let down = Work {
            compute_seconds: of(&l.down_compute_seconds, layer),
            stream_seconds: of(&l.down_stream_seconds, layer),
            gather_seconds: of(&l.down_gather_seconds, layer),
            dispatch_seconds: of(&l.down_dispatch_seconds, layer),
            serial_seconds: of(&l.down_serial_seconds, layer),
            ..Work::default()
        };
        let busy = gate_up.at(f).busy();
        let dispatch = self.dispatch_seconds / f.compute;
        let d = &plan.decode;
        let requested = of(&l.requested_neurons, layer);
        let pace = self.cores_over_slowest.unwrap_or(d.compute_cores.len() as f64);
        let (idle, drain) = uneven(requested, busy, f64::from(d.cluster_neurons), pace);
        let stages = Stages {
            before,
            look_ahead: if last { 0.0 } else { self.look_ahead.at(f).seconds() },
            gate_up: busy + dispatch + idle,
            completion: dispatch,
            drain: dispatch + self.wake_seconds / f.compute + drain,
            down: down.at(f).seconds(),
            neuron: busy / requested.max(1.0),
            check: self.reading.check_seconds_per_neuron / f.stream,
        };
        stages.with(plan.read.look_ahead)
    }

    fn reads(&self, plan: &Plan, layer: usize, f: &Factors, times: f64) -> LayerReads {
        let l = &self.layers;
        let in_order = l.reads_in_order.get(layer).copied().unwrap_or(false);
        let faster = if in_order { f.ordered_reads } else { f.random_reads };
        let reads = times * of(&l.reads, layer);
        let by_chance = if in_order { 0.0 } else { self.reading.reads_by_chance };
        LayerReads {
            reads,
            seconds: times * of(&l.read_seconds, layer) / faster,
            ahead_seconds: of(&l.prefetch_read_seconds, layer) / faster,
            more: times * of(&l.further_reads, layer),
            more_seconds: times * of(&l.further_read_seconds, layer) / f.random_reads,
            missing: times * of(&l.missing_neurons, layer),
            reading_fraction: reading_fraction(reads, by_chance),
            of_slice: f64::from(plan.read.parts),
            ..LayerReads::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_as_long_as_the_longer_of_two_at_each_rate() {
        let work = Work {
            compute_seconds: 3.0,
            stream_seconds: 2.0,
            dispatch_seconds: 0.5,
            serial_seconds: 0.25,
            read_seconds: 1.0,
            ..Work::default()
        };
        assert_eq!(work.seconds(), 3.0 + 1.75);
        // computing twice as fast leaves memory as the longer one
        assert_eq!(work.at(&Factors { compute: 2.0, ..Factors::NONE }).seconds(), 2.0 + 1.5);
        assert_eq!(work.at(&Factors { stream: 0.25, ..Factors::NONE }).seconds(), 8.0 + 2.5);
        assert_eq!(work.at(&Factors { random_reads: 4.0, ..Factors::NONE }).seconds(), 3.0 + 1.0);
        assert_eq!(work.at(&Factors::NONE), work);
    }

    #[test]
    fn a_chunk_visits_what_lies_between_the_powers_of_two_beside_it() {
        let fractions = [0.1, 0.2, 0.3, 0.5];
        let of = [1, 2, 3, 4, 6, 8, 100].map(|tokens| visited(&fractions, tokens));
        let expected = [0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.5];
        assert!(of.iter().zip(expected).all(|(of, expected)| (of - expected).abs() < 1e-12), "{of:?}");
        assert_eq!([0, 1, 7].map(|tokens| visited(&[], tokens)), [1.0; 3]);
    }
}
