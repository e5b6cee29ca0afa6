//! What several sequences give that decode together, a token each.
//!
//! ```text
//! t_rows = t_serial + sum over layers of max(t_before + max(t_gate_up, t_io + t_drain) + t_after, t_io)
//!
//! once for all rows       attention's and the head's weights, gate and up of what any row requests, reads of what any row misses
//! for each row            computing, keys and values, predictors and routers, down
//! ```
//!
//! How much rows have in common nobody has measured. A neuron that a token requests with probability `p` is requested by one of
//! `n` rows or more with `1 - (1 - p)^n`, were they independent, and all neurons of a layer together are the most if each is as
//! probable as the others: that is assumed, of what is requested and of what is missing. Sequences that speak of one matter have
//! more in common. Nothing is read ahead for several rows.

use crate::cost::misses::{self, Missing};
use crate::cost::reads::ReadPrice;
use crate::cost::{self, Decision, Work};
use crate::question::Question;
use plans::plan::mean_position;
use plans::plan::measured_run;

/// Of so many neurons those that one of `rows` concerns or more, if each concerns `each` of them.
fn of_any(neurons: f64, each: f64, rows: f64) -> f64 {
    neurons * (1.0 - (1.0 - (each / neurons).clamp(0.0, 1.0)).powf(rows))
}

/// Work whose bytes pass once while each row computes.
fn bytes_once(work: Work, rows: f64) -> Work {
    Work { compute_seconds: rows * work.compute_seconds, serial_seconds: rows * work.serial_seconds, ..work }
}

/// Tokens per second of so many sequences together, over the measured run.
pub fn tokens_per_second(question: &Question<'_>, d: &Decision<'_>, rows: u32) -> f64 {
    let (Question { model, limits, .. }, each) = (question, f64::from(rows));
    let r = cost::rates(question, d.cores);
    let reads = ReadPrice::new(question, d.level.kind, d.read);
    let interference = reads.interference(d.shared, r.threads);
    let neurons = model.architecture.neurons() as f64;
    let mut seconds = bytes_once(cost::rest(model, &r), each).seconds()
        + each * cost::embedding_seconds(question, d.embedding_rows);
    let (mut filling, (_, generated)) = (0.0, measured_run(limits.context));
    for layer in 0..d.level.layers.len() {
        let (requested, fires) = cost::requested(model, d.level, layer);
        let any = of_any(neurons, requested, each);
        let of_rows = |requested| cost::gate_up(model, d.level, (requested, fires), d.cluster, &r);
        let ((bytes, drain), (computed, _)) = (of_rows(any), of_rows(each * requested));
        let gate_up = Work { compute_seconds: computed.compute_seconds, ..bytes };
        let mut stages = cost::stages(model, d.level, layer, d.cluster, &r).with(0);
        let selection = cost::predictor(model, d.level, &r).seconds();
        stages.before = bytes_once(cost::attention(model, &r), each).seconds() + each * selection;
        (stages.gate_up, stages.drain) = (gate_up.seconds(), drain);
        stages.neuron = gate_up.busy() / any.max(1.0);
        stages.down = each * cost::down(model, d.level, (requested, fires), &r).seconds();
        let cached = (d.hot[layer], d.cold[layer]);
        let (missing, of_layer) =
            misses::missing_and_filling(model, d.level, layer, d.policy, requested, cached);
        filling += of_layer.at(each * f64::from(generated)) * reads.fill_seconds();
        let missing = Missing { neurons: of_any(neurons, missing.neurons, each), ..missing };
        let inserted = if cached.1 > 0 { missing.neurons * reads.whole_fraction(fires) } else { 0.0 };
        let insert = inserted * cost::insert_seconds(model, d.level, &r);
        let of_layer = reads.of(missing, fires);
        seconds +=
            stages.before + reads.supply().layer_seconds(&stages, insert, &of_layer, false, &interference);
    }
    let context = cost::context_seconds(model, limits.kv, &r) * mean_position(limits.context);
    each / (seconds + each * context + filling / f64::from(generated))
}

#[cfg(test)]
mod tests;
