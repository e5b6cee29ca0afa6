//! A block's feed-forward networks: neurons read from flash, shared experts, and networks that are always in
//! memory.

use plans::model::LevelKind;

use super::resident::Resident;
use super::vectors::{add, norm_rows, post_normed};
use super::{Phase, Transformer, TransformerError};
use crate::arena::Slab;
use crate::feed_forward::{FeedForward, Network, Next, Routing};
use crate::fetch::Fetcher;
use crate::kv::At;
use crate::level::Level;
use crate::model::config::{Config, Role, RouterInput};
use crate::neurons::{LayerNeurons, Shape, Slots};
use crate::routes::Routes;
use crate::weights::Weights;
use kernels::Kernels;

/// Matrices of a shared expert.
const SHARED: [Role; 3] = [Role::SharedGate, Role::SharedUp, Role::SharedDown];

/// The layers whose neurons are read, and the plan's decisions about them.
#[derive(Debug)]
pub(super) struct Layers {
    pub(super) level: Level,
    /// The parts of each layer's bundles.
    pub(super) shapes: Vec<Shape>,
    pub(super) neurons: Vec<LayerNeurons>,
    pub(super) slots: Slots,
    pub(super) feed_forward: FeedForward,
    /// The layer of each block, if it has one.
    pub(super) of_block: Box<[Option<usize>]>,
    /// By layer: the first ranks, requested by every token.
    pub(super) always_on: Vec<u32>,
    /// The number of the step; neurons that it uses are not evicted.
    pub(super) stamp: u32,
    /// The next layer's expected input.
    pub(super) next_input: Slab<f32>,
    pub(super) look_ahead: bool,
    pub(super) blocking: bool,
    pub(super) transposes_down: bool,
    /// Recorded experts, which replace the router's choice.
    pub(super) routes: Option<Routes>,
}

impl Transformer {
    /// Routes rows by the residual stream as it is now, if `read` is the layer's router input.
    pub(super) fn route(&mut self, block: usize, layer: usize, read: RouterInput, rows: usize) {
        let (c, router) = (&self.config, self.config.blocks[block].network().and_then(|n| n.router.as_ref()));
        if router.is_some_and(|router| router.input == read) {
            let routing = routing(
                c,
                block,
                &self.weights,
                self.compute.kernels,
                &self.kept.rows,
                self.layers.routes.as_ref(),
            );
            self.layers.feed_forward.route(&routing, layer, &self.buffers.residual[..rows * c.width]);
        }
    }

    /// If the router chose before the mixer, prefetches missing experts during the mixer. Only for one row:
    /// several rows would each request more.
    pub(super) fn read_early(&mut self, block: usize, layer: usize, rows: usize) {
        let router = self.config.blocks[block].network().and_then(|network| network.router.as_ref());
        let early = router.is_some_and(|router| router.input == RouterInput::BeforeMixer);
        let whole = self.layers.level.kind() == LevelKind::Dense;
        if early && whole && self.layers.look_ahead && self.compute.phase == Phase::Decode && rows == 1 {
            let (shape, neurons) = (&self.layers.shapes[layer], &self.layers.neurons[layer]);
            self.layers.feed_forward.prefetch_routed(&mut self.fetcher, shape, neurons);
        }
    }

    /// Computes `x += scale * post_norm(ffn(norm(x)))`.
    pub(super) fn feed_forward_block(
        &mut self,
        block: usize,
        layer: usize,
        rows: usize,
    ) -> Result<(), TransformerError> {
        self.route(block, layer, RouterInput::Normed, rows);
        let c = &self.config;
        let Some(described) = c.blocks[block].network() else { return Ok(()) };
        let norm = self.weights.values(block, described.input_norm());
        norm_rows(c, norm, &self.buffers.residual, rows, &mut self.buffers.normed);
        let routing = routing(
            c,
            block,
            &self.weights,
            self.compute.kernels,
            &self.kept.rows,
            self.layers.routes.as_ref(),
        );
        if described.router.as_ref().is_none_or(|router| router.input == RouterInput::Experts) {
            self.layers.feed_forward.route(&routing, layer, &self.buffers.normed[..rows * c.width]);
        }
        let mut network = Network {
            pool: &self.compute.pool,
            kernels: self.compute.kernels,
            form: self.compute.form,
            weights: &self.weights,
            level: &self.layers.level,
            shape: &self.layers.shapes[layer],
            slots: &mut self.layers.slots,
            fetcher: &mut self.fetcher,
            activation: described.activation,
            transposes_down: self.layers.transposes_down,
            routing,
            width: c.width,
            always_on: &self.layers.always_on,
            stamp: self.layers.stamp,
            blocking: self.layers.blocking,
        };
        let elements = rows * c.width;
        let (x, out) = (&mut self.buffers.normed[..elements], &mut self.buffers.block_output[..elements]);
        let (shared, has_norms) = (described.shared_neurons, described.shared_norms);
        // a shared expert with the same input does not depend on the routed ones
        let beside = shared
            .filter(|_| !has_norms && self.compute.phase == Phase::Decode)
            .and_then(|neurons| Resident::of(c, &self.weights, &self.compute, block, SHARED, neurons));
        let (here, after) = self.layers.neurons[layer..].split_at_mut(1);
        let (here, after) = (&mut here[0], after.first());
        match self.compute.phase {
            Phase::Decode => {
                // the next layer's router is unrelated to a recording; several rows request much at once
                let known = self.layers.routes.as_ref().is_none_or(Routes::are_known_ahead);
                let looks_ahead = self.layers.look_ahead && known && rows == 1;
                let next = after.filter(|_| looks_ahead).map(|neurons| {
                    let weight = self.weights.of_network(layer + 1, described.input_norm());
                    norm_rows(c, weight, &self.buffers.residual, 1, &mut self.layers.next_input);
                    let (layer, shape) = (layer + 1, &self.layers.shapes[layer + 1]);
                    Next {
                        layer,
                        neurons,
                        shape,
                        x: &self.layers.next_input,
                        stream: &self.buffers.residual[..c.width],
                    }
                });
                let (gates, room) = (&mut self.buffers.attended[..rows], &mut *self.buffers.projections);
                let mut meanwhile = |fetcher: &mut Fetcher, words: &mut [f32]| {
                    if let Some(network) = &beside {
                        network.decode(fetcher, words, x, gates, room);
                    }
                };
                self.layers.feed_forward.decode(&mut network, layer, here, next, &mut meanwhile, x, out)?;
            }
            Phase::Prefill => self.layers.feed_forward.prefill(&mut network, layer, here, x, out)?,
        }
        if let Some(network) = beside {
            network.add_to(out, &self.buffers.projections[..elements], &self.buffers.attended[..rows], x);
            self.add_network(block, rows);
            return Ok(());
        }
        if has_norms {
            let (weight, out) =
                (self.weights.values(block, Role::ExpertsPostNorm), &mut self.buffers.block_output);
            norm_rows(c, weight, out, rows, &mut self.buffers.normed);
            out[..rows * c.width].copy_from_slice(&self.buffers.normed[..rows * c.width]);
            norm_rows(
                c,
                self.weights.values(block, Role::FfnNorm),
                &self.buffers.residual,
                rows,
                &mut self.buffers.normed,
            );
        }
        if let Some(neurons) = shared {
            self.add_resident(block, SHARED, neurons, rows);
        }
        self.add_network(block, rows);
        Ok(())
    }

    /// [`Self::feed_forward_block`] for a network that is always in memory.
    pub(super) fn resident_block(&mut self, block: usize, rows: usize) {
        let c = &self.config;
        let Some(network) = c.blocks[block].resident() else { return };
        let neurons = network.neurons;
        norm_rows(
            c,
            self.weights.values(block, Role::FfnNorm),
            &self.buffers.residual,
            rows,
            &mut self.buffers.normed,
        );
        self.buffers.block_output[..rows * c.width].fill(0.0);
        let roles = [Role::ResidentGate, Role::ResidentUp, Role::ResidentDown];
        self.add_resident(block, roles, neurons, rows);
        self.add_network(block, rows);
    }

    /// Adds a network's output to the residual stream.
    fn add_network(&mut self, block: usize, rows: usize) {
        if let Some(streams) = self.config.streams.filter(|streams| streams.are_gated()) {
            return self.inject(block, [Role::NetworkGateNorm, Role::NetworkInject], streams, rows);
        }
        let (c, out) = (&self.config, &self.buffers.block_output[..rows * self.config.width]);
        let weight = self.weights.values(block, Role::FfnPostNorm);
        let out = post_normed(c, weight, out, &mut self.buffers.normed);
        add(&mut self.buffers.residual, out, c.blocks[block].residual_scale);
    }

    /// Adds a network that is always in memory to the block's output; overwrites its input.
    fn add_resident(&mut self, block: usize, roles: [Role; 3], count: usize, rows: usize) {
        let elements = rows * self.config.width;
        let network = Resident::of(&self.config, &self.weights, &self.compute, block, roles, count);
        let Some(network) = network else {
            return;
        };
        let (x, out) = (&mut self.buffers.normed[..elements], &mut self.buffers.block_output[..elements]);
        let (gates, room) = (&mut self.buffers.attended[..rows], &mut *self.buffers.projections);
        match self.compute.phase {
            Phase::Decode => {
                network.decode(&mut self.fetcher, &mut self.layers.feed_forward.rounded[0], x, gates, room);
                network.add_to(out, &room[..elements], gates, x);
            }
            Phase::Prefill => {
                network.prefill(x, gates, room);
                network.add_to(out, x, gates, &mut room[..elements]);
            }
        }
    }
}

/// The inputs of routing rows to a block's experts.
fn routing<'a>(
    c: &'a Config,
    block: usize,
    weights: &'a Weights,
    kernels: &'static dyn Kernels,
    rows: &'a [At],
    routes: Option<&'a Routes>,
) -> Routing<'a> {
    let router = c.blocks[block].network().and_then(|network| network.router.as_ref());
    Routing { kernels, weights, router, epsilon: c.norm_epsilon, rows, routes }
}
