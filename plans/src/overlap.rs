//! How a layer's computing and its reads overlap: the formula by which `plan` prices a layer, and by which `run` prices it
//! again at the rates of the hour.
//!
//! Seconds of computing ([`Stages`]) and of reading ([`LayerReads`]) go in. [`Supply::queue`] says which reads the layer
//! itself starts and which the layer before it started; [`layer_seconds`] what all of it takes together.

use crate::engine::{COMPLETED_CLUSTER, COMPLETED_DISPATCHES, REGISTER_ROWS};

/// A layer's time of the threads that compute, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stages {
    /// Attention and selection, which come before the layer's own reads.
    pub before: f64,
    /// Predicting what the next layer will request; none for the last.
    pub look_ahead: f64,
    /// Gate and up of all that is requested.
    pub gate_up: f64,
    /// The cost of each of the few times that some of it completes.
    pub completion: f64,
    /// The part of gate and up that is left when the last read has completed.
    pub drain: f64,
    /// Down.
    pub down: f64,
    /// The values of one neuron, which is computed once it has completed: its part of gate and up.
    pub neuron: f64,
    /// Comparing one neuron that has completed with its checksum.
    pub check: f64,
}

impl Stages {
    /// With so many prefetched reads in flight: with none, nobody prefetches.
    #[must_use]
    pub fn with(self, look_ahead: u32) -> Self {
        Self { look_ahead: if look_ahead > 0 { self.look_ahead } else { 0.0 }, ..self }
    }
}

/// The time of gate and up beyond computing, of so many neurons `requested` that threads share in clusters and that take
/// `busy` seconds together: seconds in which threads wait for the last, and seconds that are left when the last read has
/// completed.
///
/// Threads claim clusters until none is left, so the slowest thread takes the last cluster longest. `pace` is the speed of
/// all threads together over the slowest one's: the number of threads where all are alike. On average the threads wait for
/// half a cluster.
pub fn uneven(requested: f64, busy: f64, cluster: f64, pace: f64) -> (f64, f64) {
    let neuron = busy / requested.max(1.0);
    let idle = (pace - 1.0) / 2.0 * cluster.min(requested) * neuron;
    (idle, COMPLETED_CLUSTER as f64 * pace * neuron)
}

/// The reads of one layer and token, were none of them prefetched. Where neurons are read in phases, `more` are those after
/// a neuron's first; nobody prefetches them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LayerReads {
    /// Reads issued.
    pub reads: f64,
    /// Seconds of the reads, were they alone.
    pub seconds: f64,
    /// Bytes, pages and gaps included.
    pub bytes: f64,
    /// Seconds of one prefetched read, with as many others in flight as there may be.
    pub ahead_seconds: f64,
    /// Reads after a neuron's first.
    pub more: f64,
    /// Seconds of the reads after a neuron's first, and those that the last of all waits for the one before it.
    pub more_seconds: f64,
    /// Bytes of the reads after a neuron's first.
    pub more_bytes: f64,
    /// Neurons that they bring.
    pub missing: f64,
    /// Share of the tokens that read anything: [`reading_fraction`].
    pub reading_fraction: f64,
    /// Reads that bring what is computed together, once the last of them has completed: a slice whose parts lie apart.
    pub of_slice: f64,
}

/// Share of the tokens that read anything in a layer where the mean one takes so many `reads`, and what is missing or not takes
/// `by_chance` of them: that of independent, rare events. *Reconstructed.* All where every token reads as much.
pub fn reading_fraction(reads: f64, by_chance: f64) -> f64 {
    /// Events of which none ever comes to none: the difference from 1 is less than a number holds.
    const MANY: f64 = 38.0;
    if reads >= MANY * by_chance { 1.0 } else { -(-reads / by_chance).exp_m1() }
}

/// Reads of a token that takes any, where the mean token takes so many.
pub fn reads_if_any(reads: f64, reading_fraction: f64) -> f64 {
    if reads > 0.0 { reads / reading_fraction } else { 0.0 }
}

impl LayerReads {
    /// Those of a token that reads anything, of which there is this share.
    fn over(&self, share: f64) -> Self {
        Self {
            reads: self.reads / share,
            seconds: self.seconds / share,
            bytes: self.bytes / share,
            more: self.more / share,
            more_seconds: self.more_seconds / share,
            more_bytes: self.more_bytes / share,
            missing: self.missing / share,
            ..*self
        }
    }
}

/// A layer's reads in the order in which the device gets them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Queue {
    /// Seconds of the reads that the layer itself starts.
    pub urgent_seconds: f64,
    /// Reads that the layer itself starts.
    pub urgent: f64,
    /// Seconds of the reads that the layer before has started, for nothing or not.
    pub ahead_seconds: f64,
    /// Reads that the layer before has started, for nothing or not.
    pub ahead: f64,
    /// Share of the layer that is computed after its last read was started: all, if there are buffers for all reads.
    pub last_fraction: f64,
    /// Seconds of the reads that wait for a buffer, at most of half the buffers' reads.
    pub waiting_seconds: f64,
    /// Bytes of all reads.
    pub bytes: f64,
    /// Neurons that the reads bring.
    pub missing: f64,
    /// What completes with the last read.
    pub last: Last,
}

/// The shares of a layer's work that are left when the last read has completed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Last {
    /// Of the neurons that were read.
    pub of_missing: f64,
    /// Of down.
    pub of_down: f64,
    /// Of the copies.
    pub of_insert: f64,
}

impl Last {
    /// Of so many reads, with so many in flight of which a share completes together.
    ///
    /// Slices are added up and copied as they complete, in the order in which they were requested: with `k` of them missing, anywhere
    /// among the others, and the last `j` of these completing together, `j / (k + 1)` of the layer lies from the first of those `j` on.
    /// Neurons are added up when all have completed. *Reconstructed.*
    pub fn of(reads: f64, of_slice: f64, depth: u32, together_fraction: f64) -> Self {
        if reads <= 0.0 {
            return Self { of_missing: 0.0, of_down: 1.0, of_insert: 1.0 };
        }
        let beside = f64::from(depth).min(reads) - 1.0;
        let group = (1.0 + together_fraction * beside.max(0.0)).max(of_slice).min(reads);
        let of_missing = group / reads;
        if of_slice <= 1.0 {
            return Self { of_missing, of_down: 1.0, of_insert: 1.0 };
        }
        Self { of_missing, of_down: group / (reads + of_slice), of_insert: of_missing }
    }
}

/// The means of reading: places in flight, buffers, and how well the layer before knows what is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Supply {
    /// Reads in flight.
    pub depth: u32,
    /// Buffers that reads complete in.
    pub buffers: u32,
    /// Reads in flight for the next layer.
    pub look_ahead: u32,
    /// Share of a layer's reads that are prefetched.
    pub recall_fraction: f64,
    /// Share of what is prefetched that is requested.
    pub precision_fraction: f64,
    /// Share of the reads in flight beside the last that complete no sooner than it does.
    pub together_fraction: f64,
    /// Nothing is computed while a layer's own reads are in flight.
    pub blocking: bool,
}

impl Supply {
    /// A layer's time beyond [`Stages::before`], with `insert` seconds of copies; `prefetched` where there is a layer before it that
    /// prefetches.
    pub fn layer_seconds(
        &self,
        s: &Stages,
        insert: f64,
        all: &LayerReads,
        prefetched: bool,
        interference: &Interference,
    ) -> f64 {
        mean_layer_seconds(s, insert, all, |reads, insert| {
            layer_seconds(s, insert, &self.queue(reads, prefetched, s), interference, self.blocking)
        })
    }

    /// Share of a layer's reads that are prefetched, and share of those that is requested. Where nothing prefetched was ever
    /// requested nothing is prefetched.
    pub fn look_ahead_shares(&self) -> (f64, f64) {
        if self.precision_fraction > 0.0 {
            (self.recall_fraction, self.precision_fraction)
        } else {
            (0.0, 1.0)
        }
    }

    /// A layer's reads as the device gets them; `prefetched` where there is a layer before it that prefetches.
    ///
    /// The layer before is taken to be like this one, with these `stages`. What it prefetches starts when the device is done
    /// with all its own, a few at a time, while that layer adds up and this one attends and names; they stay in their
    /// buffers. At least as many as may be in flight start at once, whether there is time for them or not: a read that has started
    /// is not taken back, and what this layer itself requests waits for it.
    pub fn queue(&self, all: &LayerReads, prefetched: bool, stages: &Stages) -> Queue {
        let buffers = f64::from(self.buffers);
        let each = if all.reads > 0.0 { all.seconds / all.reads } else { 0.0 };
        let ahead = if prefetched { self.ahead(all, each, stages) } else { 0.0 };
        let urgent = all.reads - ahead * self.look_ahead_shares().1;
        let chain = if all.reads > 0.0 { each + all.more_seconds / all.reads } else { 0.0 };
        Queue {
            urgent_seconds: urgent * each + all.more_seconds,
            urgent: urgent + all.more,
            ahead_seconds: ahead * all.ahead_seconds,
            ahead,
            last_fraction: buffers / all.reads.max(buffers),
            waiting_seconds: (all.reads - buffers).clamp(0.0, buffers / 2.0) * chain,
            bytes: if all.reads > 0.0 { all.bytes / all.reads * (urgent + ahead) } else { 0.0 }
                + all.more_bytes,
            missing: all.missing,
            last: Last::of(all.reads, all.of_slice, self.depth, self.together_fraction),
        }
    }

    /// How many of a layer's reads, of `each` seconds, are started before it requests them.
    fn ahead(&self, all: &LayerReads, each: f64, stages: &Stages) -> f64 {
        let (share, used) = self.look_ahead_shares();
        let named = all.reads * share / used;
        let at_once = f64::from(self.look_ahead).min(named);
        if at_once <= 0.0 {
            return 0.0;
        }
        let own = (all.reads - at_once * used) * each;
        let idle = (stages.look_ahead + stages.gate_up - own).max(0.0) + stages.down + stages.before;
        // of a layer's own reads half the buffers hold the last, and those that it begins with need as many as are in flight
        let (buffers, depth) = (f64::from(self.buffers), f64::from(self.depth));
        let room = (buffers - all.reads.min(buffers / 2.0).max(2.0 * depth)).max(0.0);
        at_once.max(idle / all.ahead_seconds).min(named).min(room)
    }
}

/// The share that reads take of the threads that compute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interference {
    /// CPU time of starting a read and finding it done.
    pub cpu_seconds_per_read: f64,
    /// Share of the compute speed that is lost while reads are in flight, as measured.
    pub interference_fraction: f64,
    /// Reads a second while the interference was measured.
    pub covered_per_second: f64,
    /// Threads that compute and have readers on their cores; `None` if readers have a core of their own.
    pub sharing: Option<usize>,
}

impl Interference {
    /// Seconds lost by those who compute while reads are in flight for so many seconds.
    pub fn slowed(&self, seconds: f64) -> f64 {
        self.interference_fraction * seconds
    }

    /// Seconds that so many reads take: the interference contains the CPU time of as many as were read when it was measured,
    /// others take theirs besides. *Reconstructed.*
    pub fn taken(&self, seconds: f64, reads: f64) -> f64 {
        let others = (reads - seconds * self.covered_per_second).max(0.0);
        self.slowed(seconds) + others * self.taken_seconds_per_read()
    }

    /// What each read that is not in the interference takes of those who compute.
    pub fn taken_seconds_per_read(&self) -> f64 {
        self.sharing.map_or(0.0, |threads| self.cpu_seconds_per_read / threads as f64)
    }

    /// Seconds that a core of their own needs for so many reads.
    pub fn issuing(&self, reads: f64) -> f64 {
        if self.sharing.is_some() { 0.0 } else { reads * self.cpu_seconds_per_read }
    }
}

/// A layer's mean time over tokens that read in it and tokens that do not; `seconds` is the time of a token with such reads and
/// seconds of copies.
///
/// Tokens that read anything have so much the more to read. The mean of both times is above the time of the mean token, which
/// might hide its reads behind what it computes.
pub fn mean_layer_seconds(
    s: &Stages,
    insert: f64,
    all: &LayerReads,
    seconds: impl Fn(&LayerReads, f64) -> f64,
) -> f64 {
    let of_none = s.look_ahead + s.gate_up + s.down;
    if all.reads <= 0.0 {
        return of_none + insert;
    }
    let reading = all.reading_fraction;
    if reading >= 1.0 {
        return seconds(all, insert);
    }
    (1.0 - reading) * of_none + reading * seconds(&all.over(reading), insert / reading)
}

/// A layer's time beyond [`Stages::before`], with its reads as they queue and `insert` seconds of copies.
///
/// Three bounds. Computing, with what reads take of it meanwhile. The layer's own reads, no faster than the CPU of the one
/// core that reads where it has its own, with a drain after them. All reads, its own and those prefetched for it: the
/// device does these while the layer before ends and this one names, which is `before` here. What they take of those who
/// attend and name meanwhile nothing overlaps with.
///
/// What follows the last read (`after`) overlaps with reads where buffers are few, all but for what they hold; but
/// then those that wait for a buffer, at most as many as half the buffers, overlap with nothing. Where reading is
/// `blocking`, computing and a layer's own reads follow each other.
pub fn layer_seconds(
    s: &Stages,
    insert: f64,
    queue: &Queue,
    interference: &Interference,
    blocking: bool,
) -> f64 {
    let after = s.down + insert;
    let (reads, device) = (queue.urgent + queue.ahead, queue.urgent_seconds + queue.ahead_seconds);
    let Last { of_missing, of_down, of_insert } = queue.last;
    let early = after - (of_down * s.down + of_insert * insert).min(queue.last_fraction * after);
    let before = queue.ahead_seconds.min(s.before);
    let share = if queue.ahead_seconds > 0.0 { before / queue.ahead_seconds } else { 0.0 };
    let (ahead_before, ahead_after) = (share * queue.ahead, (1.0 - share) * queue.ahead);
    let taken_before = interference.taken(before, ahead_before);
    let completed = s.completion * queue.urgent.min(COMPLETED_DISPATCHES as f64);
    let checked = queue.missing * s.check;
    let busy = s.look_ahead
        + s.gate_up
        + checked
        + completed
        + early
        + interference.taken(device - before, reads - ahead_before);
    let drain = s.drain + of_missing * (checked + queue.missing * s.neuron);
    let own_reads = queue.urgent_seconds.max(interference.issuing(queue.urgent));
    let own = if blocking {
        busy + own_reads
    } else {
        busy.max(own_reads + drain + interference.taken(queue.ahead_seconds - before, ahead_after))
    };
    let own = own + queue.waiting_seconds + after - early + taken_before;
    own.max(device.max(interference.issuing(reads)) - s.before)
}

/// Computing a layer of a chunk of so many tokens: each takes its time, in whole registers of them, and the chunk some beside;
/// moving the layer through memory takes as long at least.
pub fn prompt_compute_seconds(tokens: u32, token: f64, chunk: f64, memory: f64) -> f64 {
    let rows = tokens.next_multiple_of(REGISTER_ROWS as u32);
    (f64::from(rows) * token + chunk).max(memory)
}

/// How a layer of a prompt is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PromptReads {
    /// Seconds of reading what is not pinned.
    pub seconds: f64,
    /// Seconds of reading all of it.
    pub all_seconds: f64,
    /// Seconds that those who compute lose for each second of reading.
    pub taken_fraction: f64,
}

impl PromptReads {
    /// Seconds that each second of reading adds to a layer whose neurons are computed in `own` seconds.
    ///
    /// Neurons are met by rank: first those that are pinned, and meanwhile no more is read than buffers hold, which is not counted. Then
    /// the others, as they come: either takes as long as its share of all of the layer, or what reading takes of the threads lies above
    /// that. *Reconstructed.*
    pub fn added_fraction(&self, own: f64) -> f64 {
        if self.all_seconds > 0.0 { self.taken_fraction.max(1.0 - own / self.all_seconds) } else { 0.0 }
    }
}

/// A layer of a chunk of a prompt, of whose computing a share is attention, during which nothing is read.
pub fn prompt_layer_seconds(compute: f64, attention_fraction: f64, reads: &PromptReads) -> f64 {
    compute + reads.seconds * reads.added_fraction((1.0 - attention_fraction) * compute)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAGES: Stages = Stages {
        before: 10.0,
        look_ahead: 0.0,
        gate_up: 5.0,
        completion: 0.0,
        drain: 0.5,
        down: 1.0,
        neuron: 0.0,
        check: 0.0,
    };
    const INTERFERENCE: Interference = Interference {
        cpu_seconds_per_read: 0.02,
        interference_fraction: 0.25,
        covered_per_second: 10.0,
        sharing: None,
    };

    fn seconds(queue: Queue, sharing: Option<usize>, blocking: bool) -> f64 {
        let last = Last { of_missing: 0.0, of_down: 1.0, of_insert: 1.0 };
        let queue = Queue { last_fraction: 1.0, last, ..queue };
        layer_seconds(&STAGES, 0.0, &queue, &Interference { sharing, ..INTERFERENCE }, blocking)
    }

    #[test]
    fn reads_ahead_slow_down_those_who_attend_while_they_are_in_flight() {
        assert_eq!(seconds(Queue::default(), None, false), 5.0 + 1.0);
        // all of it while others attend: the device is done before the layer begins
        let ahead = Queue { ahead_seconds: 4.0, ahead: 100.0, ..Queue::default() };
        assert_eq!(seconds(ahead, None, false), 6.0 + 0.25 * 4.0);
        // ten of fourteen seconds: the rest slows the values
        let longer = Queue { ahead_seconds: 14.0, ahead: 100.0, ..Queue::default() };
        assert_eq!(seconds(longer, None, false), 6.0 + 0.25 * 14.0);
        // where they share cores, the CPU time of sixty of them comes on top: that of forty is in the interference
        assert_eq!(seconds(ahead, Some(1), false), 6.0 + 0.25 * 4.0 + 60.0 * 0.02);
        assert_eq!(seconds(ahead, Some(2), false), 6.0 + 0.25 * 4.0 + 60.0 * 0.02 / 2.0);
        let few = Queue { ahead: 40.0, ..ahead };
        assert_eq!(seconds(few, Some(1), false), seconds(few, None, false));
    }

    #[test]
    fn a_layers_own_reads_overlap_with_its_values_unless_they_block() {
        let own = Queue { urgent_seconds: 3.0, urgent: 10.0, ..Queue::default() };
        assert_eq!(seconds(own, None, false), 5.0 + 0.25 * 3.0 + 1.0);
        assert_eq!(seconds(own, None, true), 5.0 + 0.25 * 3.0 + 3.0 + 1.0);
        // longer than computing: what the last read brings is computed after it
        let own = Queue { urgent_seconds: 30.0, urgent: 10.0, ..Queue::default() };
        assert_eq!(seconds(own, None, false), 30.0 + 0.5 + 1.0);
    }

    const SUPPLY: Supply = Supply {
        depth: 8,
        buffers: 64,
        look_ahead: 0,
        recall_fraction: 0.0,
        precision_fraction: 0.0,
        together_fraction: 0.0,
        blocking: false,
    };

    #[test]
    fn experts_that_are_missing_or_not_are_priced_as_counted_over_tokens() {
        // an expert of three reads in 6 seconds, missing by chance: independent draws of 40 with one in 80 each
        let interference = Interference { interference_fraction: 0.0, ..INTERFERENCE };
        let of = |experts: f64, by_chance: f64| {
            let reads = 3.0 * experts;
            let all = LayerReads {
                reads,
                seconds: 6.0 * experts,
                missing: experts,
                reading_fraction: reading_fraction(reads, by_chance),
                of_slice: 3.0,
                ..LayerReads::default()
            };
            SUPPLY.layer_seconds(&STAGES, 0.0, &all, false, &interference)
        };
        let (draws, tokens, mut state) = (40, 20_000, 7u64);
        let mut sum = 0.0;
        for _ in 0..tokens {
            let mut missing = 0.0;
            for _ in 0..draws {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                missing += f64::from(u8::from((state >> 33) % (2 * draws) == 0));
            }
            sum += of(missing, 0.0);
        }
        let (counted, priced, of_mean) = (sum / f64::from(tokens), of(0.5, 3.0), of(0.5, 0.0));
        assert!((priced / counted - 1.0).abs() < 0.02, "{priced} of {counted}");
        assert!(of_mean < 0.9 * counted, "the mean token hides its reads: {of_mean} of {counted}");
        // where all tokens miss nearly as much there is nothing between them, and none are below none
        assert!((of(20.0, 3.0) / of(20.0, 0.0) - 1.0).abs() < 1e-6);
        assert_eq!(of(0.0, 3.0), of(0.0, 0.0));
        assert!(of(1e-9, 3.0) - of(0.0, 3.0) < 1e-6);
    }

    #[test]
    fn where_nothing_is_read_nobody_wakes_up_and_a_little_reading_costs_a_little() {
        // a small model: waking up after a wait takes longer than all that a layer computes
        let stages = Stages { gate_up: 0.2, down: 0.1, drain: 2.0, ..STAGES };
        let of = |reads: f64| {
            let (seconds, reading_fraction) = (0.1 * reads, reading_fraction(reads, 1.0));
            let all =
                LayerReads { reads, seconds, missing: reads, reading_fraction, ..LayerReads::default() };
            SUPPLY.layer_seconds(&stages, 0.0, &all, false, &INTERFERENCE)
        };
        assert!((of(0.0) - 0.3).abs() < 1e-12);
        for reads in [1e-9, 1e-6, 1e-3] {
            assert!((0.0..5.0 * reads).contains(&(of(reads) - of(0.0))), "{reads}: {}", of(reads));
        }
        assert!(of(1.0) > 1.0, "who reads waits");
    }

    #[test]
    fn many_events_are_never_none_to_the_last_bit() {
        for reads in [38.0, 40.0, 1e6] {
            assert_eq!(-f64::exp_m1(-reads), 1.0);
            assert_eq!(reading_fraction(3.0 * reads, 3.0), 1.0);
        }
        assert!(reading_fraction(37.0 * 3.0 * 0.9, 3.0) < 1.0);
        assert_eq!((reading_fraction(0.0, 0.0), reading_fraction(5.0, 0.0)), (1.0, 1.0));
        assert_eq!(reading_fraction(0.0, 1.0), 0.0);
    }

    #[test]
    fn what_completes_last_is_a_slice_or_all_that_is_in_flight() {
        let last = |reads, depth, together| Last::of(reads, 3.0, depth, together);
        // three slices of three reads, one after another: one of three is left, and a quarter of the layer from it on
        let one = last(9.0, 8, 0.0);
        assert_eq!((one.of_missing, one.of_down, one.of_insert), (1.0 / 3.0, 0.25, 1.0 / 3.0));
        // all at once: everything from the first that is missing on
        let all = last(9.0, 16, 1.0);
        assert_eq!((all.of_missing, all.of_down, all.of_insert), (1.0, 0.75, 1.0));
        assert_eq!(last(9.0, 3, 1.0), one, "no more are in flight");
        // neurons are added up when all have completed
        let neurons = Last::of(100.0, 1.0, 10, 0.5);
        assert_eq!((neurons.of_missing, neurons.of_down, neurons.of_insert), (0.055, 1.0, 1.0));
        // what is left after the last read takes its time behind the reads, and not twice
        let all = LayerReads {
            reads: 9.0,
            seconds: 30.0,
            missing: 10.0,
            reading_fraction: 1.0,
            of_slice: 3.0,
            ..LayerReads::default()
        };
        let stages = Stages { neuron: 0.1, check: 0.3, ..STAGES };
        let interference = Interference { interference_fraction: 0.0, ..INTERFERENCE };
        let supply = |together_fraction| Supply { depth: 16, together_fraction, ..SUPPLY };
        let seconds = |supply: Supply| supply.layer_seconds(&stages, 2.0, &all, false, &interference);
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} instead of {b}");
        close(seconds(supply(0.0)), 30.0 + 0.5 + (0.1 + 0.3) * 10.0 / 3.0 + 0.25 + 2.0 / 3.0);
        close(seconds(supply(1.0)), 30.0 + 0.5 + (0.1 + 0.3) * 10.0 + 0.75 + 2.0);
    }

    #[test]
    fn reads_that_start_at_once_are_counted_whether_there_is_time_for_them_or_not() {
        let supply = Supply {
            depth: 4,
            buffers: 64,
            look_ahead: 4,
            recall_fraction: 0.9,
            precision_fraction: 0.75,
            together_fraction: 0.0,
            blocking: false,
        };
        let all = LayerReads {
            reads: 10.0,
            seconds: 10.0,
            bytes: 10.0,
            ahead_seconds: 1.0,
            ..LayerReads::default()
        };
        // the layer before has no moment in which the device would be idle
        let queue = supply.queue(&all, true, &Stages::default());
        assert_eq!((queue.ahead, queue.urgent, queue.bytes), (4.0, 10.0 - 4.0 * 0.75, 11.0));
        // with time there are more, and never more than the layer before names
        let queue = supply.queue(&all, true, &Stages { before: 6.0, ..Stages::default() });
        assert_eq!(queue.ahead, 6.0);
        let queue = Supply { look_ahead: 32, ..supply }.queue(&all, true, &Stages::default());
        assert!((queue.ahead - 12.0).abs() < 1e-9 && (queue.urgent - 1.0).abs() < 1e-9, "{queue:?}");
        // the first layer has nobody before it
        assert_eq!(supply.queue(&all, false, &Stages::default()).ahead, 0.0);
    }

    #[test]
    fn a_prompts_layer_is_read_while_it_computes_what_is_not_pinned_but_not_while_it_attends() {
        let of = |seconds, all_seconds, taken_fraction| {
            let reads = PromptReads { seconds, all_seconds, taken_fraction };
            prompt_layer_seconds(10.0, 0.2, &reads)
        };
        assert_eq!((of(0.0, 0.0, 0.25), of(0.0, 40.0, 0.25)), (10.0, 10.0));
        // nothing is pinned: the longer of both
        assert_eq!(of(4.0, 4.0, 0.25), 10.0 + 0.25 * 4.0);
        assert_eq!(of(40.0, 40.0, 0.25), 2.0 + 40.0);
        // a quarter is not: of eight seconds six pass before anything of the others is computed
        assert_eq!(of(10.0, 40.0, 0.25), 2.0 + 6.0 + 10.0);
        // small reads by those who compute take most of their time
        let taken = Interference { sharing: Some(2), ..INTERFERENCE }.taken(1.0, 150.0);
        assert_eq!(taken, 0.25 + 140.0 * 0.02 / 2.0);
        assert_eq!(of(40.0, 40.0, taken), 2.0 + 8.0 + 40.0 * taken);
    }

    #[test]
    fn a_chunk_is_computed_in_whole_registers_and_costs_something_by_itself() {
        assert_eq!(prompt_compute_seconds(8, 1.0, 10.0, 0.0), 16.0 + 10.0);
        assert_eq!(prompt_compute_seconds(16, 1.0, 10.0, 0.0), 16.0 + 10.0);
        assert_eq!(prompt_compute_seconds(17, 1.0, 10.0, 0.0), 32.0 + 10.0);
        assert_eq!(prompt_compute_seconds(16, 1.0, 10.0, 40.0), 40.0);
    }

    #[test]
    fn threads_wait_for_the_last_cluster_and_one_thread_for_nobody() {
        assert_eq!(uneven(100.0, 1.0, 8.0, 1.0), (0.0, 0.04));
        assert_eq!(uneven(100.0, 1.0, 8.0, 3.0), (0.08, 0.12));
        // fewer neurons than a cluster: one thread has them all
        assert_eq!(uneven(4.0, 1.0, 8.0, 2.0).0, 0.5);
    }
}
