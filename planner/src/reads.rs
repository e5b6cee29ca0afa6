//! What the missing neurons of a layer cost to read: how many reads, how long, how many bytes.

use std::sync::Arc;

use plans::Backend;
use plans::PAGE_BYTES;
use plans::device::{INTERFERENCE_BLOCK_BYTES, INTERFERENCE_DEPTH, ReadCost};
use plans::layout::{BundleLayout, Part, Phases};
use plans::memory::slot_part;
use plans::model::{GAP_RANKS, LevelKind, LookAhead, Model};
pub use plans::overlap::{LayerReads, Queue, Toll};
use plans::overlap::{Stages, Supply, reading_fraction, reads_if_any};

use crate::read_curves::{Flash, ReadCurves};
use crate::request::Question;
use crate::surface::{Chances, Missing};

/// Reads in flight of a prompt that have completed and that no thread has seen yet.
const COMPLETED_UNSEEN: f64 = 0.5;

/// How flash is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// [`ReadPrice::cut_key`].
pub type CutKey = (u64, u64, Phases);

/// [`ReadPrice::reads_key`].
pub type ReadsKey = (CutKey, Backend, bool, u32, u32, Option<u32>);

/// Rates at which a device gives one back end reads, with so many in flight, whatever the model.
#[derive(Debug)]
pub struct Queued {
    random: ReadCurves,
    in_order: ReadCurves,
    /// The share that reads take of those who compute on cores of their own.
    toll: Toll,
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
        let toll = Toll { cpu_seconds_per_read, interference_fraction, covered_per_second, sharing: None };
        let together_fraction = completed_together_fraction.unwrap_or(0.0);
        Self { random, in_order, toll, together_fraction }
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
    pub fn toll(&self, shared: bool, threads: usize) -> Toll {
        // a compute thread starts and reaps asynchronous reads itself
        let sharing = (shared || self.choice.backend == Backend::IoUring).then_some(threads);
        Toll { sharing, ..self.queued.toll }
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
        self.of_cut(missing, &self.cut(missing), fires)
    }

    /// [`Self::of`] where it is known how the missing neurons are cut.
    pub fn of_cut(&self, missing: Missing, cut: &Cut, fires: f64) -> LayerReads {
        if missing.neurons <= 0.0 {
            return LayerReads::default();
        }
        let Cut { reads, block, block_ln, in_order, reading_fraction } = *cut;
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

    /// How many reads missing neurons take, and of what. It depends on [`Self::cut_key`] alone of the choices.
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

    /// Reads of a layer of a token that takes any, where the mean token takes so many.
    pub fn at_once(&self, reads: f64) -> f64 {
        reads_if_any(reads, reading_fraction(reads, self.by_chance))
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

    /// The choices that [`Self::cut`] depends on: reads that are alike in these share their cuts.
    pub fn cut_key(&self) -> CutKey {
        (self.choice.gap_bytes, self.choice.buffer_bytes, self.choice.phases)
    }

    /// The choices that [`Self::of_cut`] depends on where no layer takes more than `most` reads: buffers matter only to one that
    /// takes more than there are.
    pub fn reads_key(&self, most: f64) -> ReadsKey {
        let ReadChoice { backend, direct, depth, look_ahead, .. } = self.choice;
        let held = (self.at_once(most) > f64::from(self.held())).then(|| self.held());
        (self.cut_key(), backend, direct, depth, look_ahead, held)
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

    /// Seconds that reading so many bytes in order cannot be below, however many pieces they are read in.
    pub fn in_order_least(&self, bytes: f64) -> f64 {
        let block = self.ordered_bytes();
        bytes / (self.queued.in_order.reads_per_second_most(block) * block)
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

/// What may share a read, on the average over where in a page a run of neurons begins: reads are of whole pages.
#[derive(Debug, Clone, PartialEq)]
struct Joined {
    /// By how many positions lie between two neurons: the share of the places at which a read holds both, and the bytes that the
    /// second adds there.
    of: Vec<(f64, f64)>,
    /// Positions that a read holds at most.
    most: f64,
    /// Bytes from one position to the next.
    stride_bytes: f64,
}

impl Joined {
    /// Of a part of the bundles, where reads go over gaps up to `gap_bytes` and end at `buffer_bytes`.
    fn new(bundle: &BundleLayout, part: Part, gap_bytes: u64, buffer_bytes: u64) -> Self {
        let stride = bundle.stride_bytes;
        let places = PAGE_BYTES / gcd(stride, PAGE_BYTES);
        // the bytes that the neuron after so many others adds to a read that begins with this one, if that holds both
        let added = |place: u64, between: u64| {
            let [first, second] = [place, place + between + 1].map(|at| bundle.slice_span(at, part).pages());
            let gap = second.offset.saturating_sub(first.offset + first.bytes);
            let whole = (second.offset + second.bytes).saturating_sub(first.offset);
            (gap <= gap_bytes && whole <= buffer_bytes).then(|| whole.saturating_sub(first.bytes) as f64)
        };
        let over = |between: u64| {
            let bytes: Vec<f64> = (0..places).filter_map(|place| added(place, between)).collect();
            let mean = bytes.iter().sum::<f64>() / bytes.len() as f64;
            (!bytes.is_empty()).then(|| (bytes.len() as f64 / places as f64, mean))
        };
        let step = PAGE_BYTES / places;
        let held = |place: u64| (buffer_bytes.saturating_sub(place * step) / stride).max(1);
        let most = (0..places).map(held).sum::<u64>() as f64 / places as f64;
        let of = (0..POSITIONS_MAX).map_while(over).collect();
        Self { of, most, stride_bytes: stride as f64 }
    }
}

/// Positions between two neurons over which it is looked whether a read holds both.
const POSITIONS_MAX: u64 = 4096;

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A mean run of missing neurons that one read covers.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Run {
    /// Missing neurons in it.
    neurons: f64,
    /// Bytes that those after the first add to the read.
    more_bytes: f64,
}

impl Run {
    /// A run goes on while a read holds the next miss, too.
    fn new(Chances { alone, begins }: Chances, joined: &Joined) -> Self {
        let all = Self { neurons: joined.most, more_bytes: (joined.most - 1.0) * joined.stride_bytes };
        if alone <= 0.0 {
            return all;
        }
        let [near, further] = begins;
        // of the neurons after a run's first the share that it holds, their distance and what they add; `none` have none behind them as far as
        // has been looked
        let (mut held, mut step, mut bytes, mut none) = (0.0, 0.0, 0.0, 1.0);
        for (d, &(share, more)) in joined.of.iter().enumerate() {
            let chance = match d as u64 {
                0 => 1.0 - alone,
                d if d <= u64::from(GAP_RANKS) => near,
                _ => further,
            };
            let here = none * chance * share;
            held += here;
            step += (d + 1) as f64 * here;
            bytes += more * here;
            none *= 1.0 - chance;
        }
        if held <= 0.0 {
            return Self { neurons: 1.0, more_bytes: 0.0 };
        }
        (step, bytes) = (step / held, bytes / held);
        // a run ends by chance, or since so many neurons fill it
        let full = 1.0 + (joined.most - 1.0) / step;
        let ends = 1.0 - held;
        let neurons = if ends > 1e-9 { (1.0 - held.powf(full)) / ends } else { full };
        Self { neurons, more_bytes: (neurons - 1.0) * bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_single_neurons_when_misses_are_rare_and_whole_buffers_when_all_miss() {
        let rare = Run::new(Chances::new(1e-6, None, [(3, None), (8, None)]), &even(0, 32.0));
        assert!((rare.neurons - 1.0).abs() < 1e-3 && rare.more_bytes < 8.0, "{rare:?}");
        assert_eq!(Run::new(Chances::ALL, &even(0, 32.0)), Run { neurons: 32.0, more_bytes: 31.0 * 8192.0 });
        assert_eq!(
            Run::new(Chances::new(0.5, None, [(3, None), (8, None)]), &even(3, 1.0)),
            Run { neurons: 1.0, more_bytes: 0.0 }
        );
    }

    /// Bundles of two pages, in reads of so many at most.
    fn even(gap: usize, most: f64) -> Joined {
        let of = (0..=gap).map(|between| (1.0, 8192.0 * (between + 1) as f64)).collect();
        Joined { of, most, stride_bytes: 8192.0 }
    }

    #[test]
    fn reads_hold_neighbours_whose_pages_they_reach() {
        // whole pages: as many as the bytes say
        let pages = BundleLayout::new(2304, 2304, 2304);
        assert_eq!(Joined::new(&pages, Part::Whole, 3 * 8192, 65536), even(3, 8.0));
        // eight places in a page; a page and the one after it hold five neurons from its front, three from behind
        let small = BundleLayout::new(512, 512, 512);
        let joined = Joined::new(&small, Part::Whole, 0, 8192);
        // the next is held but from the last of a page's places whose neighbour ends on a third page; its bytes by hand
        let page = PAGE_BYTES as f64;
        assert_eq!(joined.of[0], (1.0, 3.0 / 8.0 * page));
        assert_eq!(joined.of.len(), 4, "{joined:?}");
        assert!((3.0..4.5).contains(&joined.most));
        // where reads are longer than that, gaps decide
        let far = Joined::new(&small, Part::Whole, 0, 1 << 20);
        assert!(far.of.len() >= 4 && far.of.iter().zip(&joined.of).all(|(far, near)| far.0 >= near.0));
    }

    /// A layer whose neurons miss by chance, read as the engine does: whole pages, joined while a read holds the next.
    #[test]
    fn reads_of_small_bundles_are_those_that_counting_finds() {
        let small = BundleLayout::new(512, 512, 512);
        let single = small.read_bytes_mean(1152, Part::Whole) as f64;
        // where gaps of several pages meet small buffers, a read's last step is shorter than its mean one
        for (density, gap_bytes, buffer_bytes, off) in [
            (0.03, 0, 8192, 0.02),
            (0.1, 4608, 8192, 0.02),
            (0.1, 0, 16384, 0.03),
            (0.1, 10752, 16384, 0.12),
            (0.2, 23040, 65536, 0.12),
        ] {
            let (mut state, mut misses, mut reads, mut bytes) = (7u64, 0.0, 0.0, 0.0);
            let mut read: Option<(u64, u64)> = None;
            for neuron in 0..400_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if (state >> 33) as f64 / (1u64 << 31) as f64 >= density {
                    continue;
                }
                misses += 1.0;
                let pages = small.slice_span(neuron, Part::Whole).pages();
                let end = pages.offset + pages.bytes;
                let held = read.filter(|&(first, last)| {
                    pages.offset.saturating_sub(last) <= gap_bytes && end - first <= buffer_bytes
                });
                if held.is_none() {
                    reads += 1.0;
                    bytes += read.map_or(0, |(first, last)| last - first) as f64;
                }
                read = Some((held.map_or(pages.offset, |(first, _)| first), end));
            }
            let chances = Chances { alone: 1.0 - density, begins: [density; 2] };
            let run = Run::new(chances, &Joined::new(&small, Part::Whole, gap_bytes, buffer_bytes));
            let [neurons, block] = [misses / reads, bytes / reads];
            let told = single + run.more_bytes;
            assert!((run.neurons / neurons - 1.0).abs() < off, "{neurons} against {run:?}, {gap_bytes}");
            assert!((told / block - 1.0).abs() < off, "{block} against {told}, {density} {gap_bytes}");
        }
    }

    #[test]
    fn a_run_agrees_with_counting_over_random_positions() {
        let (density, positions) = (0.2, 400_000);
        let most = 1e6;
        for (alone, further, gap, most) in [
            (0.8, 1.0, 0, most),
            (0.8, 1.0, 2, most),
            (0.5, 1.0, 0, most),
            (0.5, 1.0, 3, most),
            (0.8, 1.0, 2, 8.0),
            (0.5, 1.0, 3, 6.0),
            // who has none near it is seldom used, and so are those around it
            (0.8, 0.3, 6, most),
            (0.5, 0.2, 8, most),
        ] {
            let (mut state, begins) = (7u64, alone * density / (1.0 - density));
            let (mut runs, mut misses, mut strides) = (0.0, 0.0, 0.0);
            let (mut first, mut last) = (0, None);
            for i in 0..positions {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let far = last.is_some_and(|last| i - last > GAP_RANKS as i32 + 1);
                let begins = begins * if far { further } else { 1.0 };
                let chance = if last == Some(i - 1) { 1.0 - alone } else { begins };
                if ((state >> 33) as f64 / (1u64 << 31) as f64) < chance {
                    misses += 1.0;
                    let step = last.map(|last| i - last).filter(|&step| step <= gap + 1);
                    match step.filter(|_| f64::from(i - first) < most) {
                        Some(step) => strides += f64::from(step),
                        None => (runs, first) = (runs + 1.0, i),
                    }
                    last = Some(i);
                }
            }
            let chances = Chances { alone, begins: [begins, begins * further] };
            let run = Run::new(chances, &even(gap as usize, most));
            // one that is cut short is taken to be cut after its mean steps; they are shorter
            let [close, apart] = if most < 1e6 { [0.04, 0.1] } else { [0.02; 2] };
            let (neurons, more_bytes) = (misses / runs, strides / runs * 8192.0);
            assert!((neurons / run.neurons - 1.0).abs() < close, "{neurons} against {run:?}");
            let [counted, told] = [more_bytes, run.more_bytes].map(|more| 8192.0 + more);
            assert!((counted / told - 1.0).abs() < apart, "{more_bytes} against {run:?}");
        }
    }
}
