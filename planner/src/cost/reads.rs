//! What the missing neurons of a layer cost to read: how many reads, how long, how many bytes.

use std::sync::Arc;

use plans::Backend;
use plans::PAGE_BYTES;
use plans::device::{INTERFERENCE_BLOCK_BYTES, INTERFERENCE_DEPTH, ReadCost};
use plans::layout::Phases;
use plans::memory::slot_part;
use plans::model::{LevelKind, LookAhead, Model};
pub use plans::overlap::{Interference, LayerReads, Queue};
use plans::overlap::{Stages, Supply, reading_fraction, reads_if_any};

use crate::cost::joined::{Joined, Run};
use crate::cost::misses::{Chances, Missing};
use crate::cost::read_curves::{Flash, ReadCurves};
use crate::question::Question;

/// Reads in flight of a prompt that have completed and that no thread has seen yet.
const COMPLETED_UNSEEN: f64 = 0.5;

/// How flash is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReadChoice {
    /// Back end that reads.
    pub backend: Backend,
    /// Past the page cache.
    pub direct: bool,
    /// Reads in flight.
    pub depth: u32,
    /// Buffers that reads fill.
    pub buffers: u32,
    /// Bytes of one.
    pub buffer_bytes: u64,
    /// Missing neurons this close are read as one.
    pub gap_bytes: u64,
    /// Reads in flight for the next layer.
    pub look_ahead: u32,
    /// How a neuron is read.
    pub phases: Phases,
    /// Nothing is computed while a layer's own reads are in flight.
    pub blocking: bool,
}

/// How the missing neurons of a layer are cut into reads, whatever the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cut {
    /// Reads.
    pub reads: f64,
    /// Bytes of one.
    block: f64,
    /// Logarithm of those.
    block_ln: f64,
    /// Whether they lie in order on flash.
    in_order: bool,
    /// Share of the tokens that read anything.
    reading_fraction: f64,
}

impl Cut {
    fn new(reads: f64, block: f64, in_order: bool, by_chance: f64) -> Self {
        let reading_fraction = reading_fraction(reads, if in_order { 0.0 } else { by_chance });
        Self { reads, block, block_ln: block.ln(), in_order, reading_fraction }
    }
}

/// Rates at which a device gives one back end reads, with so many in flight, whatever the model.
#[derive(Debug)]
pub struct Queued {
    random: ReadCurves,
    in_order: ReadCurves,
    /// The share that reads take of those who compute on cores of their own.
    interference: Interference,
    /// Share of the reads in flight beside the last that complete no sooner than it does.
    together_fraction: f64,
}

impl Queued {
    /// For reads in a file of so many bytes; a pattern that was not measured falls back on the other, and a back end that was
    /// not measured takes what `pread` does.
    pub fn new(flash: Flash<'_>, backend: Backend, direct: bool, depth: u32, span: u64) -> Self {
        let device = flash.device;
        let of = |direct, pattern, depth| ReadCurves::new(flash, backend, direct, pattern, depth, span);
        let curves = |pattern| {
            let likeness = [(direct, pattern), (direct, "random"), (!direct, pattern)];
            let found = likeness.into_iter().find_map(|(direct, pattern)| of(direct, pattern, depth));
            found.unwrap_or_else(|| ReadCurves::of_one(&device.storage.reads[0]))
        };
        // what lies in order is read at least as fast as what does not, and is measured at fewer depths
        let random = curves("random");
        let in_order = curves("sequential").or_faster(&random);
        let ReadCost { cpu_seconds_per_read, interference_fraction, completed_together_fraction } =
            device.storage.read_cost(backend).unwrap_or_else(|| device.storage.pread_cost());
        let then = of(direct, "random", INTERFERENCE_DEPTH);
        let covered_per_second = then
            .as_ref()
            .unwrap_or(&random)
            .reads_per_second(INTERFERENCE_BLOCK_BYTES as f64, f64::from(INTERFERENCE_DEPTH));
        let interference =
            Interference { cpu_seconds_per_read, interference_fraction, covered_per_second, sharing: None };
        let together_fraction = completed_together_fraction.unwrap_or(0.0);
        Self { random, in_order, interference, together_fraction }
    }
}

/// Prices reads under one choice.
#[derive(Debug, Clone)]
pub struct ReadPrice {
    choice: ReadChoice,
    /// Rates of the device.
    queued: Arc<Queued>,
    /// Bytes of the first read of one neuron, or of a slice in all its parts, and of those after it.
    single_bytes: f64,
    more_bytes: Vec<f64>,
    /// Whether those after it depend on the gate.
    asks: bool,
    /// Which missing neurons share a read.
    joined: Arc<Joined>,
    /// From one bundle to the next, and neurons that come and go together.
    stride_bytes: u64,
    slice_neurons: u64,
    /// Reads that bring a slice.
    parts: u32,
    neurons_per_expert: u64,
    /// Slices of an expert that share a read, and reads of what is missing as a whole or not at all.
    slices_of_read: u64,
    by_chance: f64,
    /// How well the layer before knows a layer's reads, as the model's profile has it.
    known: LookAhead,
}

impl ReadPrice {
    /// For a kind of level, which says what part of a bundle is wanted.
    pub fn new(question: &Question<'_>, kind: LevelKind, choice: ReadChoice) -> Self {
        let model = question.model;
        let ReadChoice { backend, direct, depth, .. } = choice;
        let queued = Queued::new(question.flash(), backend, direct, depth, model.container.bytes);
        Self::on(Arc::new(queued), model, kind, choice)
    }

    /// For a kind of level, at rates of the device that are known already.
    pub fn on(queued: Arc<Queued>, model: &Model, kind: LevelKind, choice: ReadChoice) -> Self {
        let (part, bundle) = (slot_part(kind), &model.parts.bundle);
        let steps = bundle.steps(part, choice.phases).unwrap_or_default();
        let (single_bytes, more_bytes) = match &steps.spans[..] {
            [first, more @ ..] if !more.is_empty() => {
                (first.bytes as f64, more.iter().map(|step| step.bytes as f64).collect())
            }
            _ => (bundle.read_bytes_mean(model.architecture.neurons(), part) as f64, Vec::new()),
        };
        let (slice, parts) = (bundle.slice_neurons, bundle.reads_of_slice());
        let slices = (u64::from(model.architecture.neurons_per_expert) / slice).max(1);
        let room = choice.buffer_bytes.saturating_sub(PAGE_BYTES) / (slice * bundle.stride_bytes).max(1);
        let slices_of_read = room.clamp(1, slices);
        let by_chance = match (slice, parts) {
            (1, _) => 1.0,
            (_, 1) => slices.div_ceil(slices_of_read) as f64,
            (_, parts) => (slices * parts) as f64,
        };
        Self {
            choice,
            queued,
            single_bytes,
            more_bytes,
            asks: steps.asks,
            joined: Arc::new(Joined::new(bundle, part, choice.gap_bytes, choice.buffer_bytes)),
            stride_bytes: bundle.stride_bytes,
            slice_neurons: bundle.slice_neurons,
            parts: bundle.reads_of_slice() as u32,
            neurons_per_expert: u64::from(model.architecture.neurons_per_expert),
            slices_of_read,
            by_chance,
            known: model.look_ahead(kind),
        }
    }

    /// The share of the missing neurons that is read whole, if the gates of a share `fires` of them fire.
    pub fn whole_fraction(&self, fires: f64) -> f64 {
        if self.asks { fires } else { 1.0 }
    }

    /// With so many prefetched reads in flight.
    #[must_use]
    pub fn with(mut self, look_ahead: u32) -> Self {
        self.choice.look_ahead = look_ahead;
        self
    }

    /// With so many buffers.
    #[must_use]
    pub fn with_buffers(mut self, buffers: u32) -> Self {
        self.choice.buffers = buffers;
        self
    }

    /// The share that reads take of `threads` that compute; `shared` where the reading threads run on the same cores.
    pub fn interference(&self, shared: bool, threads: usize) -> Interference {
        // a compute thread starts and reaps asynchronous reads itself
        let sharing = (shared || self.choice.backend == Backend::IoUring).then_some(threads);
        Interference { sharing, ..self.queued.interference }
    }

    /// Reads of missing neurons, of which the gates of a share `fires` fire.
    ///
    /// Two phases: `V_io = alpha mu N (page_1 + beta page_2)`. *Reconstructed.* In reads here, too. That a neuron
    /// whose gate does not fire is read in part and not cached is not priced.
    ///
    /// Equation 10, `alpha mu N / (reads per second)`, *reconstructed*. Differs: in reads, not bytes; neighbours within the gap share a read, up to a whole buffer. A layer
    /// with fewer reads than the plan's depth never has more of them in flight; one with more reads than
    /// buffers has half of the buffers' reads in flight while the other half is computed.
    pub fn of(&self, missing: Missing, fires: f64) -> LayerReads {
        if missing.neurons <= 0.0 {
            return LayerReads::default();
        }
        let Cut { reads, block, block_ln, in_order, reading_fraction } = self.cut(missing);
        let curves = if in_order { &self.queued.in_order } else { &self.queued.random };
        let buffers = f64::from(self.held());
        let most = reads_if_any(reads, reading_fraction);
        let most = if most > buffers { (buffers / 2.0).max(1.0) } else { most };
        let seconds = |in_flight: f64| 1.0 / curves.reads_per_second_of(block_ln, in_flight);
        let (in_flight, ahead) = (most.min(f64::from(self.choice.depth)), reads.min(f64::from(self.ahead())));
        let each = seconds(in_flight);
        let mut layer = LayerReads {
            reads,
            seconds: reads * each,
            bytes: reads * block,
            ahead_seconds: if ahead == in_flight { each } else { seconds(ahead) },
            missing: missing.neurons,
            reading_fraction,
            of_slice: f64::from(self.parts),
            ..LayerReads::default()
        };
        let others = missing.neurons * self.whole_fraction(fires);
        for &block in &self.more_bytes {
            let seconds = |in_flight: f64| 1.0 / curves.reads_per_second(block, in_flight);
            layer.more += others;
            layer.more_seconds += others * seconds(in_flight) + others.min(1.0) * seconds(1.0);
            layer.more_bytes += others * block;
        }
        layer
    }

    /// How many reads missing neurons take, and of what.
    ///
    /// An expert in slices is missing as a whole: its slices are neighbours, and share reads as far as buffers reach. So are all
    /// those of a layer without experts that are not pinned, which is read in order.
    pub fn cut(&self, missing: Missing) -> Cut {
        let slice = self.slice_neurons;
        let in_order = Self::in_order_on_flash(missing);
        if self.parts > 1 {
            // whole experts, by three places of the model's file
            let parts = f64::from(self.parts);
            return Cut::new(
                missing.neurons / slice as f64 * parts,
                self.single_bytes / parts,
                in_order,
                self.by_chance,
            );
        }
        if slice > 1 {
            let slice_bytes = slice * self.stride_bytes;
            let slices = self.neurons_per_expert / slice;
            let shared = self.slices_of_read;
            if in_order {
                let block = self.single_bytes + ((shared - 1) * slice_bytes) as f64;
                return Cut::new(missing.neurons / (slice * shared) as f64, block, true, self.by_chance);
            }
            let reads = slices.div_ceil(shared);
            let more = (slices as f64 / reads as f64 - 1.0) * slice_bytes as f64;
            let experts = missing.neurons / (slices * slice) as f64;
            return Cut::new(experts * reads as f64, self.single_bytes + more, false, self.by_chance);
        }
        if !self.more_bytes.is_empty() {
            return Cut::new(missing.neurons, self.single_bytes, false, self.by_chance);
        }
        let run = Run::new(missing.chances, &self.joined);
        Cut::new(missing.neurons / run.neurons, self.single_bytes + run.more_bytes, in_order, self.by_chance)
    }

    /// Reads of what is missing as a whole or not at all: those of an expert that comes and goes in slices, or one of neurons.
    pub fn by_chance(&self) -> f64 {
        self.by_chance
    }

    /// Share of the reads in flight beside the last that complete no sooner than it does.
    pub fn together_fraction(&self) -> f64 {
        self.queued.together_fraction
    }

    /// A layer's reads as the device gets them; `prefetched` where there is a layer before it that prefetches.
    pub fn queue(&self, all: &LayerReads, prefetched: bool, stages: &Stages) -> Queue {
        self.supply().queue(all, prefetched, stages)
    }

    /// The means of reading, by which a layer's reads queue and its seconds are priced.
    pub fn supply(&self) -> Supply {
        let LookAhead { recall_fraction, precision_fraction } = self.known;
        let (depth, buffers, look_ahead) = (self.choice.depth, self.held(), self.ahead());
        let together_fraction = self.together_fraction();
        let blocking = self.choice.blocking;
        Supply {
            depth,
            buffers,
            look_ahead,
            recall_fraction,
            precision_fraction,
            together_fraction,
            blocking,
        }
    }

    /// Reads that the buffers have room for.
    fn held(&self) -> u32 {
        self.choice.buffers.saturating_mul(self.parts)
    }

    /// Prefetched reads in flight.
    fn ahead(&self) -> u32 {
        self.choice.look_ahead.saturating_mul(self.parts)
    }

    /// How well the layer before knows a layer's reads, as the model's profile has it.
    pub fn look_ahead(&self) -> LookAhead {
        self.known
    }

    /// Whether missing neurons are read in order: where every position misses.
    pub fn in_order_on_flash(missing: Missing) -> bool {
        missing.chances == Chances::ALL
    }

    /// Reads of so many bytes here and there a second, with as many in flight as the plan allows.
    pub fn random_per_second(&self, bytes: f64) -> f64 {
        self.queued.random.reads_per_second(bytes, f64::from(self.choice.depth))
    }

    /// Reads of whole buffers in order a second, with as many in flight as the plan allows.
    pub fn ordered_per_second(&self) -> f64 {
        self.queued.in_order.reads_per_second(self.choice.buffer_bytes as f64, f64::from(self.choice.depth))
    }

    /// The choice that is priced.
    pub fn choice(&self) -> ReadChoice {
        self.choice
    }

    /// Seconds of filling a slot of one neuron: a read of it, with as many others in flight as the plan allows. Nothing where
    /// neurons come and go in slices: a prompt fills those slots.
    pub fn fill_seconds(&self) -> f64 {
        if self.slice_neurons > 1 {
            return 0.0;
        }
        let steps = std::iter::once(&self.single_bytes).chain(&self.more_bytes);
        steps
            .map(|&bytes| 1.0 / self.queued.random.reads_per_second(bytes, f64::from(self.choice.depth)))
            .sum()
    }

    /// Bytes of a read of what is read in order: a whole buffer, or a part of a slice.
    pub fn ordered_bytes(&self) -> f64 {
        if self.parts > 1 {
            return self.single_bytes / f64::from(self.parts);
        }
        self.choice.buffer_bytes as f64
    }

    /// Seconds of reading so many bytes of a prompt in order, in whole buffers, while threads compute what has come.
    ///
    /// Of the reads in flight half of one, on the average, has completed already: a thread looks only between its pieces of
    /// work. Of several in flight the device has the others meanwhile; one by itself leaves it idle half of the time.
    /// *Reconstructed.*
    pub fn in_order(&self, bytes: f64) -> f64 {
        let block = self.ordered_bytes();
        bytes / (self.in_order_rate(bytes / block) * block)
    }

    /// Reads a second of [`Self::in_order`] where there are more than are ever in flight.
    pub fn in_order_per_second(&self) -> f64 {
        self.in_order_rate(f64::INFINITY)
    }

    fn in_order_rate(&self, reads: f64) -> f64 {
        let in_flight = f64::from(self.choice.depth) - COMPLETED_UNSEEN;
        let busy = in_flight.min(1.0);
        self.queued.in_order.reads_per_second(self.ordered_bytes(), in_flight.min(reads)) * busy
    }
}
