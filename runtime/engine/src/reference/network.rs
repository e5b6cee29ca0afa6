//! Feed-forward networks: routing, experts, networks that every token uses, and blocks' own inputs of tokens.

use super::block::{Block, Routed, Rows};
use super::ends::embedded;
use super::products::Products;
use super::{add, product, sigmoid, values};
use crate::model::config::{FeedForward, Role, RouterInput};
use crate::moe;
use kernels::{Activation, dequantise};

/// An expert with the tokens that visit it.
#[derive(Debug)]
pub struct Visit<'v> {
    /// The expert's number; 0 without experts.
    pub expert: usize,
    /// The expert that is visited after it.
    pub next: Option<usize>,
    /// The tokens' rows, ascending.
    pub rows: &'v [usize],
    /// The expert's weight for each of them.
    pub weights: &'v [f32],
    /// `[rows, width]`, normalised.
    pub input: &'v [f32],
}

impl<P: Products> Block<'_, P> {
    /// Each token's experts and their weights; without experts, one of weight 1.
    ///
    /// *Shapes*: `x: [tokens, width]`: the residual stream before the network, or before the mixer for
    /// [`RouterInput::BeforeMixer`].
    pub fn routed(&self, x: &[f32]) -> Vec<Routed> {
        let width = self.config().width;
        let (Some(router), Some(matrix)) = (&self.network().router, self.model.part(self.at, Role::Router))
        else {
            return vec![vec![(0, 1.0)]; x.len() / width];
        };
        let read = match router.input {
            RouterInput::Experts => self.normed(self.network().input_norm(), x.to_vec()),
            RouterInput::BeforeMixer => x.to_vec(),
            RouterInput::Normed => self.normed(Role::RouterNorm, x.to_vec()),
        };
        let mut logits = self.products.times_unrounded(matrix, &read);
        if router.input == RouterInput::Normed {
            let scale = 1.0 / (width as f32).sqrt();
            logits.iter_mut().for_each(|logit| *logit *= scale);
        }
        let mut logits = self.biased(Role::RouterBias, logits);
        let [bias, scales] =
            [Role::SelectionBias, Role::ExpertScales].map(|role| self.model.part(self.at, role).map(values));
        let of_token = |logits| {
            let mut routed = moe::route(logits, router, bias.as_deref());
            moe::scale(&mut routed, scales.as_deref());
            routed
        };
        logits.chunks_mut(matrix.rows).map(of_token).collect()
    }

    /// Adds the network of a layer, and ends the block.
    ///
    /// `expert` computes `weight * down (f(gate x) * up x)` of an expert without the bias of down: `[rows, width]`.
    ///
    /// # Errors
    /// As `expert`.
    pub fn experts<E>(
        &self,
        rows: &mut Rows<'_>,
        routed: Option<Vec<Routed>>,
        expert: &mut dyn FnMut(Visit<'_>) -> Result<Vec<f32>, E>,
    ) -> Result<(), E> {
        const SHARED: [Role; 3] = [Role::SharedGate, Role::SharedUp, Role::SharedDown];
        let (c, network) = (self.config(), self.network());
        let routed = routed.unwrap_or_else(|| self.routed(rows.x));
        let normed = self.normed(network.input_norm(), rows.x.to_vec());
        let down_bias = self.model.part(self.at, Role::DownBias).map(values);
        let mut sums = vec![0.0; rows.x.len()];
        let visited = visitors(&routed, c.experts());
        for (at, (number, visitors)) in visited.iter().enumerate() {
            let (visiting, weights): (Vec<usize>, Vec<f32>) = visitors.iter().copied().unzip();
            let rows = visiting.iter().flat_map(|row| &normed[row * c.width..][..c.width]);
            let (input, next) = (rows.copied().collect::<Vec<f32>>(), visited.get(at + 1).map(|next| next.0));
            let visit = Visit { expert: *number, next, rows: &visiting, weights: &weights, input: &input };
            for (&(row, weight), out) in visitors.iter().zip(expert(visit)?.chunks(c.width)) {
                let sum = &mut sums[row * c.width..][..c.width];
                add(sum, 1.0, out);
                if let Some(bias) = &down_bias {
                    add(sum, weight, &bias[number * c.width..][..c.width]);
                }
            }
        }
        let mut sums = self.normed(Role::ExpertsPostNorm, sums);
        if network.shared_neurons.is_some() {
            let normed = self.normed(Role::FfnNorm, rows.x.to_vec());
            let out = self.normed(Role::SharedPostNorm, self.always(SHARED, network, &normed));
            let gate = self.model.part(self.at, Role::SharedOutputGate).map(values);
            let rows = sums.chunks_mut(c.width).zip(out.chunks(c.width)).zip(normed.chunks(c.width));
            for ((sum, out), x) in rows {
                add(sum, gate.as_ref().map_or(1.0, |gate| sigmoid(product(gate, x))), out);
            }
        }
        self.add_network(sums, rows);
        self.end(rows);
        Ok(())
    }

    /// Computes `down (f(gate x) * up x)` of a network that every token uses. Without gates, the gates are
    /// the ups.
    pub(super) fn always(&self, roles: [Role; 3], network: &FeedForward, x: &[f32]) -> Vec<f32> {
        let [gate, up, down] = roles;
        let ups = self.times(up, x);
        let mut values = match self.model.part(self.at, gate) {
            Some(gate) => self.products.times(gate, x),
            None => ups.clone(),
        };
        let neurons = self.part(up).rows;
        self.products.each_row(&mut values, neurons, |row, gates| {
            if let Some(cutoff) = network.gate_cutoff {
                cut_off(gates, cutoff);
            }
            for (gate, &up) in gates.iter_mut().zip(&ups[row * neurons..]) {
                *gate = network.activation.apply(*gate, up);
            }
        });
        self.times(down, &values)
    }

    /// Adds the block's own input of each token, as
    /// [`Config::per_layer_width`](crate::model::config::Config::per_layer_width) has it, if there is one.
    pub(super) fn add_own_inputs(&self, rows: &mut Rows<'_>) {
        let c = self.config();
        let (Some(own), Some(table)) = (c.per_layer_width, self.model.row_table()) else { return };
        let embeddings = embedded(self.model, self.products, rows.tokens);
        let mut projected = self.times(Role::PerLayerProjection, &embeddings);
        projected.iter_mut().for_each(|value| *value /= (c.width as f32).sqrt());
        let mut values = self.normed(Role::PerLayerNorm, projected);
        let gates = self.times(Role::PerLayerGate, rows.x);
        let tokens = rows.tokens;
        self.products.each_row(&mut values, own, |row, values| {
            let mut embedded = vec![0.0; table.columns];
            dequantise(table.format, table.row(tokens[row] as usize).bytes, &mut embedded);
            let gates = &gates[row * own..];
            for ((value, gate), embedded) in values.iter_mut().zip(gates).zip(&embedded[self.at * own..]) {
                let input = (*value + (own as f32).sqrt() * embedded) / 2_f32.sqrt();
                *value = Activation::Gelu.apply(*gate, input);
            }
        });
        let out = self.normed(Role::PerLayerPostNorm, self.times(Role::PerLayerOutput, &values));
        match c.streams {
            None => add(rows.x, 1.0, &out),
            Some(_) => self.products.each_row(rows.streams, c.streams_width(), |row, streams| {
                let others = streams[c.width..].chunks_mut(c.width);
                others.for_each(|stream| add(stream, 1.0, &out[row * c.width..]));
            }),
        }
    }
}

/// The visited experts, ascending, with the rows that visit them and their weights there.
fn visitors(routed: &[Routed], experts: usize) -> Vec<(usize, Vec<(usize, f32)>)> {
    let mut visitors: Vec<(usize, Vec<(usize, f32)>)> =
        (0..experts).map(|expert| (expert, Vec::new())).collect();
    for (row, routed) in routed.iter().enumerate() {
        routed.iter().for_each(|&(expert, weight)| visitors[expert].1.push((row, weight)));
    }
    visitors.retain(|(_, visitors)| !visitors.is_empty());
    visitors
}

/// Replaces gates by what they exceed `cutoff` standard deviations above their mean by, or zero.
fn cut_off(gates: &mut [f32], cutoff: f32) {
    let count = gates.len() as f32;
    let mean = gates.iter().sum::<f32>() / count;
    let variance = gates.iter().map(|gate| (gate - mean) * (gate - mean)).sum::<f32>() / count;
    let least = mean + cutoff * variance.sqrt();
    gates.iter_mut().for_each(|gate| *gate = (*gate - least).max(0.0));
}
