//! A block's token mixer: attention over keys and values, or a recurrent mixer over a state.
//!
//! ```text
//! projected = input matrices norm(x);   mixed = mixer(projected, stored state)
//! x += scale * post_norm(output matrix mixed)
//! ```
//!
//! Rows pass the matrices together and the stored state one after another, so chunks of a prompt change no
//! bit.

use super::heads::Heads;
use super::matrices::multiply;
use super::vectors::{add, as_rotations, norm_rows, post_normed};
use super::{Phase, Transformer};
use crate::attention::{Chosen, Tiling, attend, attend_chosen};
use crate::convolution::convolve;
use crate::delta_net::Net;
use crate::kv::{At, Half};
use crate::model::config::{DeltaNet, Mixer, Role};
use crate::state_space::Space;
use kernels::Rotation;

impl Transformer {
    /// Computes `x += scale * post_norm(output(mixer(norm(x))))`.
    pub(super) fn mixer_block(&mut self, block: usize, rows: usize) {
        let norm = self.weights.values(block, Role::AttentionNorm);
        norm_rows(&self.config, norm, &self.buffers.residual, rows, &mut self.buffers.normed);
        let latent = self.config.blocks[block].attention().and_then(|attention| attention.latent);
        let output = match self.config.blocks[block].mixer {
            None => return,
            Some(Mixer::Attention(ref attention)) => {
                let value = if attention.values_are_keys { Role::Key } else { Role::Value };
                match latent {
                    None => {
                        let parts = [Role::Query, Role::Key, value, Role::IndexerQuery, Role::IndexerKey];
                        let own = match (attention.shares, attention.indexer) {
                            (Some(_), _) => &parts[..1],
                            (None, None) => &parts[..3],
                            (None, Some(_)) => &parts[..],
                        };
                        self.project(block, own, rows);
                        self.attention(block, rows);
                    }
                    Some(latent) => self.latent_attention(block, latent, rows),
                }
                Role::AttentionOutput
            }
            Some(Mixer::Convolution(_)) => {
                self.project(block, &[Role::ConvolutionInput], rows);
                self.recurrent(block, rows);
                Role::ConvolutionOutput
            }
            Some(Mixer::StateSpace(_)) => {
                self.project(block, &[Role::StateInput], rows);
                self.recurrent(block, rows);
                Role::StateOutput
            }
            Some(Mixer::DeltaNet(net)) => {
                self.project(block, net.input_roles(), rows);
                self.widen_gates(block, net, rows);
                self.recurrent(block, rows);
                Role::StateOutput
            }
        };
        self.put_out(block, output, rows);
        let (c, w) = (&self.config, &self.weights);
        let out = &mut self.buffers.block_output[..rows * c.width];
        if let Some(bias) = w.values(block, Role::AttentionOutputBias) {
            out.chunks_exact_mut(c.width).for_each(|out| add(out, bias, 1.0));
        }
        if let Some(streams) = c.streams.filter(|streams| streams.are_gated()) {
            return self.inject(block, [Role::MixerGateNorm, Role::MixerInject], streams, rows);
        }
        let out = post_normed(c, w.values(block, Role::AttentionPostNorm), out, &mut self.buffers.normed);
        add(&mut self.buffers.residual, out, c.blocks[block].residual_scale);
    }

    /// Multiplies the rows' normalised input by the input matrices: `projections: [rows, projected_values]`, from
    /// their first column on.
    pub(super) fn project(&mut self, block: usize, roles: &[Role], rows: usize) {
        let (c, w) = (&self.config, &self.weights);
        let projected = c.blocks[block].mixer.as_ref().map_or(0, |mixer| mixer.projected_values(c.width));
        let mut parts = [w.matrix(block, roles[0]); ROLES_MAX];
        roles.iter().zip(&mut parts).for_each(|(&role, part)| *part = w.matrix(block, role));
        let parts = &parts[..roles.len()];
        let (x, out) =
            (&mut self.buffers.normed[..rows * c.width], &mut self.buffers.projections[..rows * projected]);
        let words = &mut self.layers.feed_forward.rounded[0];
        let spare = &mut self.buffers.block_output;
        multiply(&self.compute, &mut self.fetcher, words, parts, x, spare, (out, 0));
    }

    /// Makes a delta net's gates and decays from their low-rank vectors, if it has those, in the last columns of
    /// `projections`.
    fn widen_gates(&mut self, block: usize, net: DeltaNet, rows: usize) {
        let (stride, rank) = (net.projected_values(), net.low_values() / 2);
        if rank == 0 {
            return;
        }
        let wide = stride - net.wide_values();
        for (at, role) in [Role::DeltaGate, Role::DeltaAlpha].into_iter().enumerate() {
            let out = &mut self.buffers.projections[..rows * stride];
            let low = &mut self.buffers.normed[..rows * rank];
            for (row, low) in out.chunks_exact(stride).zip(low.chunks_exact_mut(rank)) {
                low.copy_from_slice(&row[wide - (2 - at) * rank..][..rank]);
            }
            let (parts, first) = ([self.weights.matrix(block, role)], wide + at * net.value_width());
            let words = &mut self.layers.feed_forward.rounded[0];
            let spare = &mut self.buffers.block_output;
            multiply(&self.compute, &mut self.fetcher, words, &parts, low, spare, (out, first));
        }
    }

    /// Multiplies the mixer's result by the output matrix: `block_output: [rows, width]`.
    fn put_out(&mut self, block: usize, role: Role, rows: usize) {
        let c = &self.config;
        let mixed = c.blocks[block].mixer.as_ref().map_or(0, |mixer| mixer.mixed_values(c.width));
        let (x, out) =
            (&mut self.buffers.attended[..rows * mixed], &mut self.buffers.block_output[..rows * c.width]);
        let parts = [self.weights.matrix(block, role)];
        let words = &mut self.layers.feed_forward.rounded[0];
        let spare = &mut self.buffers.projections;
        multiply(&self.compute, &mut self.fetcher, words, &parts, x, spare, (out, 0));
    }

    /// Stores the rows' keys and values, unless the block reads another's, and computes `softmax(scale q k^T) v` of their heads over their
    /// sequences.
    fn attention(&mut self, block: usize, rows: usize) {
        let (c, w) = (&self.config, &self.weights);
        let (a, place) = (c.attention(block), self.kept.at[block]);
        let (query, kv) = (a.query_width(), a.own_kv_width());
        let (stride, own) = (a.projected_width(), a.own_projected_width());
        let projections = &mut self.buffers.projections[..rows * stride];
        let rotations: &[Rotation] = as_rotations(&mut self.buffers.rotations);
        let (pairs, rotary) = (self.turns.pairs, a.rope.map(|rope| &self.turns.rotaries[rope]));
        let first = a.rope.unwrap_or(0) * rows;
        let heads = Heads { attention: a, rotary, weights: w, block, epsilon: c.norm_epsilon };
        for (row, values) in projections.chunks_exact_mut(stride).enumerate() {
            let (At { sequence, position }, rotations) =
                (self.kept.rows[row], &rotations[(first + row) * pairs..][..pairs]);
            heads.prepare(&mut values[..own], position, rotations, &mut self.buffers.attended);
            if a.shares.is_some() {
                continue;
            }
            let (key, value) = values[query..query + 2 * kv].split_at(kv);
            self.kept.kv.store(sequence, place, Half::Key, position, key);
            self.kept.kv.store(sequence, place, Half::Value, position, value);
        }
        let sees_all = self.choose(block, rows);
        let (c, w) = (&self.config, &self.weights);
        let a = c.attention(block);
        let projections = &self.buffers.projections[..rows * stride];
        let attended = &mut self.buffers.attended[..rows * query];
        let order = if self.compute.phase == Phase::Decode { Tiling::OneByOne } else { Tiling::Tiles };
        let sinks = w.values(block, Role::Sinks);
        let (pool, kernels, kept) = (&self.compute.pool, self.compute.kernels, &self.kept.kv);
        // rows before any choice, then the others
        let at = &self.kept.rows;
        let (all, some) = attended.split_at_mut(sees_all * query);
        if sees_all > 0 {
            attend(pool, kernels, a, sinks, kept, place, &at[..sees_all], projections, order, all);
        }
        if let Some(indexer) = a.indexer.filter(|_| sees_all < rows) {
            let blocks: &[u32] = bytemuck::cast_slice(&self.buffers.chosen[sees_all * indexer.blocks..]);
            let chosen = Chosen { blocks, count: indexer.blocks, positions: indexer.positions };
            let projections = &projections[sees_all * stride..];
            attend_chosen(pool, kernels, a, kept, place, &at[sees_all..], projections, chosen, some);
        }
        let attended = &mut self.buffers.attended[..rows * query];
        if a.gate {
            let gates = projections.chunks_exact(stride).map(|row| &row[query + 2 * kv..]);
            for (attended, gates) in attended.chunks_exact_mut(query).zip(gates) {
                let gated = attended.iter_mut().zip(gates);
                gated.for_each(|(attended, gate)| *attended *= 1.0 / (1.0 + (-gate).exp()));
            }
        }
    }

    /// Updates the states of the rows' sequences and computes the mixer's result, one sequence after another.
    fn recurrent(&mut self, block: usize, rows: usize) {
        let (c, w, pool, kernels) = (&self.config, &self.weights, &self.compute.pool, self.compute.kernels);
        let (Some(mixer), Some(states)) = (c.blocks[block].recurrent(), &mut self.kept.states) else {
            return;
        };
        let (stride, width) = (mixer.projected_values(c.width), mixer.mixed_values(c.width));
        let mut done = 0;
        for of_sequence in self.kept.rows[..rows].chunk_by(|a, b| a.sequence == b.sequence) {
            let count = of_sequence.len();
            let projected = &mut self.buffers.projections[done * stride..][..count * stride];
            let mixed = &mut self.buffers.attended[done * width..][..count * width];
            let state = states.of(of_sequence[0].sequence, self.kept.at[block]);
            let state = &mut state[..mixer.state_values(c.width)];
            match mixer {
                Mixer::Attention(_) => {}
                Mixer::Convolution(_) => {
                    let taps = w.values(block, Role::ConvolutionTaps).unwrap_or_default();
                    convolve_gated(taps, state, projected, width, mixed);
                }
                Mixer::DeltaNet(net) => {
                    let net = Net::new(*net, kernels, c.norm_epsilon, w, block);
                    net.run(pool, projected, state, mixed);
                }
                Mixer::StateSpace(space) => {
                    let space = Space::new(*space, kernels, c.norm_epsilon, w, block);
                    space.run(pool, projected, state, mixed);
                }
            }
            done += count;
        }
    }
}

/// Computes `c * convolved(b * x)` for rows `[b | c | x]`, each part of `width`.
fn convolve_gated(taps: &[f32], state: &mut [f32], projected: &[f32], width: usize, mixed: &mut [f32]) {
    for (row, mixed) in projected.chunks_exact(3 * width).zip(mixed.chunks_exact_mut(width)) {
        let [b, c, x] = [0, 1, 2].map(|part| &row[part * width..][..width]);
        mixed.iter_mut().zip(b).zip(x).for_each(|((mixed, b), x)| *mixed = b * x);
        convolve(taps, state, mixed);
        mixed.iter_mut().zip(c).for_each(|(mixed, c)| *mixed *= c);
    }
}

/// The most input matrices of a mixer.
const ROLES_MAX: usize = 6;
