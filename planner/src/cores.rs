//! Equation 3: the sets of cores that may compute a token, and the cores that read.

use plans::Device;
use plans::model::{Level, Model};
use plans::overlap::Stages;

use crate::cost;
use crate::cost::hardware::Rates;
use crate::question::{Limits, Question};
use crate::rules;

/// One choice of compute cores.
#[derive(Debug, Clone, PartialEq)]
pub struct Compute {
    /// Compute cores, fastest first.
    pub cores: Vec<u32>,
    /// Cores of the reading threads, where there are any.
    pub io_cores: Vec<u32>,
    /// Whether the reading threads have the compute cores.
    pub shared: bool,
    /// Whether rows of the token embedding are read.
    pub embedding_rows: bool,
    /// Seconds that nothing overlaps, at the mean position of the measured run.
    pub serial: f64,
    /// Seconds of [`Self::serial`] that each layer has, before its reads.
    pub before: f64,
    /// Seconds of copying one neuron into its slot.
    pub(crate) insert: f64,
    /// Per layer.
    pub(crate) layers: Vec<Stages>,
}

/// Every set of cores by class counts that no other beats, those who read having cores of their own or not.
pub(crate) fn computes(question: &Question<'_>, level: &Level) -> Vec<Compute> {
    let Question { device, model, limits, .. } = question;
    let mut found = Vec::new();
    for cores in core_sets(device, &limits.cores) {
        let r = cost::rates(question, &cores);
        let cluster = rules::cluster(level);
        let layers: Vec<Stages> =
            (0..level.layers.len()).map(|layer| cost::stages(model, level, layer, cluster, &r)).collect();
        let before = layers.iter().map(|stages| stages.before).fold(0.0, f64::max);
        let serial = once_seconds(model, limits, &r) + layers.len() as f64 * before;
        let insert = cost::insert_seconds(model, level, &r);
        for (io_cores, shared) in io_cores(device, &limits.cores, &cores) {
            for embedding_rows in rules::embedding_rows(question) {
                let (cores, io_cores, layers) = (cores.clone(), io_cores.clone(), layers.clone());
                let serial = serial + cost::embedding_seconds(question, embedding_rows);
                found.push(Compute {
                    cores,
                    io_cores,
                    shared,
                    embedding_rows,
                    serial,
                    before,
                    insert,
                    layers,
                });
            }
        }
    }
    keep_unbeaten(found, |one| {
        let n = one.cores.len() as f64;
        let once = one.serial - one.layers.len() as f64 * one.before;
        let mut terms = vec![once, one.before, one.insert, n];
        // with cores of their own and without are not compared
        terms.extend(if one.shared { [1.0 / n, 0.0] } else { [0.0, 1.0] });
        terms.push(f64::from(u8::from(!one.embedding_rows)));
        terms.extend(
            one.layers
                .iter()
                .flat_map(|s| [s.look_ahead, s.gate_up, s.completion, s.drain, s.down, s.neuron, s.check]),
        );
        terms
    })
}

/// The fastest `n_k` cores of each class, for every `n_k` that the pool allows (equation 3, *stated*); of more than sixteen, numbers a
/// sixteenth to an eighth apart, and all.
fn core_sets(device: &Device, pool: &[u32]) -> Vec<Vec<u32>> {
    let mut sets: Vec<Vec<u32>> = vec![Vec::new()];
    for class in &device.cores {
        let ids: Vec<u32> = class.ids.iter().copied().filter(|id| pool.contains(id)).collect();
        let more = |set: &Vec<u32>| {
            let set = set.clone();
            let ids = ids.clone();
            counts(ids.len()).map(move |n| [set.clone(), ids[..n].to_vec()].concat())
        };
        sets = sets.iter().flat_map(more).collect();
    }
    sets.retain(|set| !set.is_empty());
    sets
}

/// Numbers of cores that are worth trying, up to `all`: where there are many, one more or less is not told from it.
fn counts(all: usize) -> impl Iterator<Item = usize> {
    (0..=all).filter(move |&n| n == all || n.is_multiple_of((n.next_power_of_two() / 16).max(1)))
}

/// Cores for the reading threads: one that does not compute, the best reader if it is among those, or those that compute.
fn io_cores(device: &Device, pool: &[u32], compute: &[u32]) -> Vec<(Vec<u32>, bool)> {
    let free: Vec<u32> = pool.iter().copied().filter(|core| !compute.contains(core)).collect();
    let best = device.storage.best_core;
    let own = free.first().map(|&first| (vec![if free.contains(&best) { best } else { first }], false));
    own.into_iter().chain([(compute.to_vec(), true)]).collect()
}

/// Seconds of a token besides its layers, and for its context at the mean position of the measured run.
fn once_seconds(model: &Model, limits: &Limits, r: &Rates) -> f64 {
    let context = cost::context_seconds(model, limits.kv, r) * cost::mean_position(limits.context);
    cost::rest(model, r).seconds() + context
}

/// The candidates that no other beats or equals in all terms; of equals, the first.
fn keep_unbeaten<T>(all: Vec<T>, terms: impl Fn(&T) -> Vec<f64>) -> Vec<T> {
    let rows: Vec<Vec<f64>> = all.iter().map(&terms).collect();
    let before = |&i: &usize, &j: &usize| {
        let mut differences = rows[i].iter().zip(&rows[j]).map(|(a, b)| a.total_cmp(b));
        differences.find(|difference| difference.is_ne()).unwrap_or(i.cmp(&j))
    };
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(before);
    // what beats comes before what it beats, and if it is beaten itself, then by one that beats both
    let (mut unbeaten, mut keep): (Vec<usize>, Vec<bool>) = (Vec::new(), vec![false; rows.len()]);
    for j in order {
        keep[j] = !unbeaten.iter().any(|&i| rows[i].iter().zip(&rows[j]).all(|(a, b)| a <= b));
        if keep[j] {
            unbeaten.push(j);
        }
    }
    all.into_iter().zip(keep).filter_map(|(item, kept)| kept.then_some(item)).collect()
}

#[cfg(test)]
mod tests;
