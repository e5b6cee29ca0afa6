//! Steps between projections and attention, as the model describes them:
//!
//! ```text
//! q, k, v += biases;   q, k, v = norm(q), norm(k), norm(v);   q, k rotated by their position;   q *= temperature(position)
//! row    [ each head's query and gate | k | v ]   becomes   [ q | k | v | gates ]
//! ```

use kernels::{Rotation, rms_norm, rms_norm_in_place};

use crate::model::config::{Attention, HeadNorm, Role};
use crate::rotary::Rotary;
use crate::weights::Weights;

/// A block's queries, keys and values between projection and attention.
pub(super) struct Heads<'a> {
    pub(super) attention: &'a Attention,
    pub(super) rotary: Option<&'a Rotary>,
    pub(super) weights: &'a Weights,
    pub(super) block: usize,
    pub(super) epsilon: f32,
}

impl Heads<'_> {
    /// Prepares one row, `[queries | keys | values]`, at a position, and moves its gates to the end. `spare`
    /// is as long as all queries. A block that reads another's keys has only queries.
    pub(super) fn prepare(
        &self,
        row: &mut [f32],
        position: usize,
        rotations: &[Rotation],
        spare: &mut [f32],
    ) {
        let (a, query, kv) = (self.attention, self.attention.query_width(), self.attention.own_kv_width());
        let (queries, keys_and_values) = row.split_at_mut(a.query_rows());
        let (keys, values) = keys_and_values.split_at_mut(kv);
        self.bias(Role::QueryBias, queries);
        self.bias(Role::KeyBias, keys);
        self.bias(Role::ValueBias, values);
        if a.gate {
            gates_behind(row, query, a.head_width, &mut spare[..query]);
        }
        let (queries, rest) = row.split_at_mut(query);
        let (keys, values) = rest.split_at_mut(kv);
        self.norm(Role::QueryNorm, queries, spare);
        self.norm(Role::KeyNorm, keys, spare);
        if a.value_norm {
            let heads = values[..kv].chunks_exact_mut(a.head_width);
            heads.for_each(|head| rms_norm_in_place(head, self.epsilon));
        }
        if let Some(rotary) = self.rotary {
            // queries and keys are adjacent: heads of one width
            rotary.rotate(&mut row[..query + kv], a.head_width, &rotations[..rotary.pairs()]);
        }
        if let Some(temperature) = a.temperature {
            let factor = temperature.factor(position);
            row[..query].iter_mut().for_each(|query| *query *= factor);
        }
    }

    fn bias(&self, role: Role, values: &mut [f32]) {
        if let Some(bias) = self.weights.values(self.block, role) {
            values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
    }

    fn norm(&self, role: Role, heads: &mut [f32], spare: &mut [f32]) {
        let Some(weight) = self.weights.values(self.block, role) else { return };
        let together = match self.attention.norm {
            Some(HeadNorm::Head) => self.attention.head_width,
            Some(HeadNorm::Width) | None => heads.len(),
        };
        for heads in heads.chunks_exact_mut(together) {
            rms_norm(heads, weight, self.epsilon, &mut spare[..together]);
            heads.copy_from_slice(&spare[..together]);
        }
    }
}

/// Moves the gates from between the queries to the end of the row.
fn gates_behind(row: &mut [f32], query: usize, head_width: usize, gates: &mut [f32]) {
    for (head, gate) in gates.chunks_exact_mut(head_width).enumerate() {
        let both = 2 * head * head_width;
        gate.copy_from_slice(&row[both + head_width..][..head_width]);
        row.copy_within(both..both + head_width, head * head_width);
    }
    let end = row.len() - query;
    row.copy_within(2 * query.., query);
    row[end..].copy_from_slice(gates);
}
