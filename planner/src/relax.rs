//! The relaxation: a lower bound on a token's time against memory, for all configurations of a node at once.
//!
//! Every input of a layer's price takes its most favourable value among the configurations; the formula is the one of every plan
//! ([`plans::overlap::layer_seconds`]). Then memory is shared at its best: the lower hull of each layer, and hulls merged by slope,
//! which is Lagrange's dual with one multiplier for the memory. No split of any configuration of the node lies below the curve.

use std::rc::Rc;
use std::sync::Arc;

use plans::Backend;
use plans::device::Device;
use plans::overlap::{Interference, LayerReads, Queue, Stages, Supply, layer_seconds, mean_layer_seconds};

use crate::cores::Compute;
use crate::cost::reads::ReadPrice;
use crate::curve::Curve;
use crate::flash::Read;
use crate::layers::Cached;
use crate::options::{AllReads, Options};
use crate::room::Room;
use crate::rules::Prompt;
use crate::space::{Node, Space};

/// The solved relaxation of a node.
#[derive(Debug)]
pub struct Relaxation {
    /// Ticks of all layers against bytes of what is cached.
    pub curve: Rc<Curve>,
    /// Where prompts are limited, such curves by the price of a pinned byte: see [`Self::layers_least`].
    pub pinning: Rc<[(f64, Curve)]>,
    /// Ticks that nothing overlaps.
    pub serial: i64,
}

/// Prices of a pinned byte, in what a byte of memory saves on average.
const PINNED_PRICES: [f64; 9] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];

impl Relaxation {
    /// A lower bound on ticks of all layers, within so many bytes and with at least `pinned` bytes of pinned neurons; `None` where the
    /// bytes are too few. Lagrange's dual: layers pay a price for each pinned byte, and the needed bytes give it back.
    pub fn layers_least(&self, bytes: i64, pinned: i64) -> Option<i64> {
        let given_back =
            |(price, curve): &(f64, Curve)| Some(curve.at(bytes)? + (price * pinned as f64) as i64 - 1);
        Some(self.pinning.iter().filter_map(given_back).fold(self.curve.at(bytes)?, i64::max))
    }

    /// The fewest bytes that [`Self::layers_least`] allows for so many ticks; `None` where no bytes are enough.
    pub fn bytes_least(&self, ticks: i64, pinned: i64) -> Option<i64> {
        let mut least = self.curve.reaching(ticks)?;
        for (price, curve) in self.pinning.iter() {
            least = least.max(curve.reaching(ticks + 1 - (price * pinned as f64) as i64)?);
        }
        Some(least)
    }

    /// With other ticks beside the layers.
    pub fn with_serial(&self, serial: i64) -> Self {
        Self { curve: Rc::clone(&self.curve), pinning: Rc::clone(&self.pinning), serial }
    }
}

/// Solves the relaxation of a node.
pub fn relax(space: &Space<'_>, node: Node) -> Relaxation {
    let options = &space.options[node.level];
    let favourable = Favourable::new(space, node);
    let points = |&(layer, _): &(usize, i64)| {
        let mut points: Vec<(i64, i64, i64)> = Vec::with_capacity(options.cached[layer].len());
        favourable.layer(layer, |cached, seconds| {
            // rounded down: a bound
            points.push((cached.need.bytes(), (seconds / space.tick_seconds) as i64, cached.need.hot));
        });
        points.sort_unstable();
        points
    };
    let points: Vec<_> = options.kinds.iter().map(points).collect();
    let at_price = |price: f64| {
        let cost =
            |&(bytes, ticks, hot): &(i64, i64, i64)| (bytes, ticks - (price * hot as f64).ceil() as i64);
        let hull = |points: &Vec<_>| Curve::over(&points.iter().map(cost).collect::<Vec<_>>());
        let hulls: Vec<Curve> = points.iter().map(hull).collect();
        Curve::sum(hulls.iter().zip(options.counts()))
    };
    let curve = at_price(0.0);
    let ends = (curve.corners[0], curve.corners[curve.corners.len() - 1]);
    let mean = -Curve::slope((ends.1.0 - ends.0.0, ends.1.1 - ends.0.1));
    let prices = PINNED_PRICES.iter().filter(|_| space.limits_prompts).map(|price| price * mean);
    Relaxation {
        pinning: prices.map(|price| (price, at_price(price))).collect(),
        curve: Rc::new(curve),
        serial: (favourable.serial / space.tick_seconds) as i64,
    }
}

/// Ticks of a token of a node's configurations if nothing were read: a bound without any curve.
pub fn computing(space: &Space<'_>, node: Node) -> i64 {
    let options = &space.options[node.level];
    let computes = space.computes_of(node);
    let seconds = computes.iter().map(|&compute| options.seconds_least(&options.computes[compute]));
    (seconds.fold(f64::INFINITY, f64::min) / space.tick_seconds) as i64
}

/// The most that any configuration of a node leaves of `regions` for neurons and a prompt's rows.
pub fn room(space: &Space<'_>, device: &Device, node: Node, regions: i64) -> Room {
    let options = &space.options[node.level];
    let computes = space.computes_of(node);
    let computes = || computes.iter().map(|&compute| &options.computes[compute]);
    let rows = || computes().map(|compute| usize::from(compute.embedding_rows));
    let least = |of: [i64; 2]| rows().map(|rows| of[rows]).min().unwrap_or(0);
    let threads = computes().map(|compute| compute.cores.len()).min().unwrap_or(0);
    let of_prompts = space.prompts.iter().map(|prompt| prompt.cores.len()).min().unwrap_or(0);
    let threads_bytes = threads.max(of_prompts) as i64 * device.capacity.thread_bytes as i64;
    let buffers = space.reads_of(node).iter().map(|&read| options.reads[read].bytes).min().unwrap_or(0);
    let prompt_rows = |prompt: &Prompt| prompt.rows_bytes;
    Room {
        bytes: regions - least(options.base) - threads_bytes - buffers,
        rows: space.prompts.iter().map(prompt_rows).min().unwrap_or(0),
        tables: least(options.tables),
    }
}

/// The most favourable inputs of a layer's price among the configurations of a node.
#[derive(Debug)]
pub struct Favourable<'w> {
    options: &'w Options<'w>,
    /// Seconds that nothing overlaps.
    serial: f64,
    /// By layer: the least of each stage, but the most of what comes before a layer's reads, which hides prefetched ones.
    least: Vec<Stages>,
    /// By layer: the most of each stage, behind which prefetched reads hide.
    most: Vec<Stages>,
    insert: f64,
    fill: f64,
    interference: Interference,
    /// Reads with the most in flight and the most buffers.
    price: ReadPrice,
    /// Fewest reads in flight with the most buffers.
    supply: Supply,
    buffers_least: f64,
    /// By layer and caching.
    reads: Arc<AllReads>,
    /// Whether there is one configuration but for where reading threads are: then the price of a layer is exact.
    single: bool,
}

impl<'w> Favourable<'w> {
    /// Of a node.
    pub fn new(space: &'w Space<'_>, node: Node) -> Self {
        let options = &space.options[node.level];
        let computes = space.computes_of(node);
        let computes: Vec<&Compute> = computes.iter().map(|&compute| &options.computes[compute]).collect();
        let reads: Vec<&Read> = space.reads_of(node).iter().map(|&read| &options.reads[read]).collect();
        let least = |of: fn(&Compute) -> f64| computes.iter().map(|c| of(c)).fold(f64::INFINITY, f64::min);
        // the least of each stage, or the most
        let stages = |layer: usize, (start, end): (f64, fn(f64, f64) -> f64)| {
            let all = || computes.iter().map(|compute| &compute.layers[layer]);
            let of = |stage: fn(&Stages) -> f64| all().map(stage).fold(start, end);
            Stages {
                before: all().map(|s| s.before).fold(0.0, f64::max),
                look_ahead: of(|s| s.look_ahead),
                gate_up: of(|s| s.gate_up),
                completion: of(|s| s.completion),
                drain: of(|s| s.drain),
                down: of(|s| s.down),
                neuron: of(|s| s.neuron),
                check: of(|s| s.check),
            }
        };
        let all_layers = |end| (0..options.fires.len()).map(|layer| stages(layer, end)).collect::<Vec<_>>();
        let [depth, buffers, look_ahead] = [
            |read: &Read| read.choice.depth,
            |read: &Read| read.choice.buffers,
            |read: &Read| read.choice.look_ahead,
        ]
        .map(|of| {
            [reads.iter().map(|r| of(r)).min().unwrap_or(1), reads.iter().map(|r| of(r)).max().unwrap_or(1)]
        });
        let deepest = reads.iter().find(|read| read.choice.depth == depth[1]).unwrap_or(&reads[0]);
        let price = deepest.price().clone().with_buffers(buffers[1]).with(look_ahead[1]);
        let buffers_least = reads.iter().map(|read| read.price().supply().buffers).min().unwrap_or(1);
        Self {
            serial: least(|compute| compute.serial),
            least: with_look_ahead(all_layers((f64::INFINITY, f64::min)), look_ahead[1]),
            most: with_look_ahead(all_layers((0.0, f64::max)), look_ahead[1]),
            insert: least(|compute| compute.insert),
            fill: reads.iter().map(|read| read.fill).fold(f64::INFINITY, f64::min),
            interference: least_interference(&price, deepest.choice.backend, &computes),
            supply: Supply { depth: depth[0], ..price.supply() },
            buffers_least: f64::from(buffers_least),
            reads: options.layer_reads_at(&price),
            single: node.is_single(),
            price,
            options,
        }
    }

    /// Each caching of a layer, with the seconds that no configuration is below.
    pub fn layer(&self, layer: usize, mut each: impl FnMut(&Cached, f64)) {
        for (cached, reads) in self.options.cached[layer].iter().zip(&*self.reads[layer]) {
            each(cached, self.seconds(layer, cached, reads));
        }
    }

    fn seconds(&self, layer: usize, cached: &Cached, all: &LayerReads) -> f64 {
        let (least, most) = (&self.least[layer], &self.most[layer]);
        let (missing, fires) = (cached.missing, self.options.fires[layer]);
        let inserted = missing.neurons * self.price.whole_fraction(fires);
        let insert = if cached.cold > 0 { inserted * self.insert } else { 0.0 };
        let filled = cached.filled * self.fill;
        if self.single {
            return self.supply.layer_seconds(least, insert, all, layer > 0, &self.interference) + filled;
        }
        let own = mean_layer_seconds(least, insert, all, |reads, insert| {
            let queue = self.queue(reads, layer > 0, most);
            layer_seconds(least, insert, &queue, &self.interference, self.supply.blocking)
        });
        // the device does all reads, prefetched or not
        let each = if all.reads > 0.0 { (all.seconds / all.reads).min(all.ahead_seconds) } else { 0.0 };
        let device = all.reads * each + all.more_seconds - most.before;
        own.max(device) + filled
    }

    /// A layer's reads with as many prefetched, and as much computed meanwhile, as with any of the configurations; what is
    /// prefetched costs nothing, and no read waits for a buffer.
    fn queue(&self, reads: &LayerReads, prefetched: bool, most: &Stages) -> Queue {
        Queue {
            ahead: 0.0,
            ahead_seconds: 0.0,
            waiting_seconds: 0.0,
            last_fraction: self.buffers_least / reads.reads.max(self.buffers_least),
            ..self.supply.queue(reads, prefetched, most)
        }
    }
}

/// Stages with so many prefetched reads in flight.
fn with_look_ahead(stages: Vec<Stages>, look_ahead: u32) -> Vec<Stages> {
    stages.into_iter().map(|stages| stages.with(look_ahead)).collect()
}

/// The least that reads take of those who compute, with any of some compute choices.
fn least_interference(price: &ReadPrice, backend: Backend, computes: &[&Compute]) -> Interference {
    let threads = computes.iter().map(|compute| compute.cores.len()).max().unwrap_or(1);
    let [shared, apart] = [true, false].map(|shared| computes.iter().any(|compute| compute.shared == shared));
    let interference = price.interference(shared && !apart, threads);
    // fewer reads in the same time never take more, and slower ones never less: else what each read takes is left out
    let each = interference.taken_seconds_per_read();
    let rises = interference.interference_fraction >= interference.covered_per_second * each;
    let mixed = shared && apart && backend == Backend::Pread;
    if mixed || !rises { Interference { cpu_seconds_per_read: 0.0, ..interference } } else { interference }
}
