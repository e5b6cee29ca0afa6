//! The ranges of the values of a `learned.toml`.

use super::{Counted, LayerVisits, Learned, PREFIXES, SIZES, TOKENS_MAX, after_prefix};
use crate::SCHEMA;
use crate::check::{At, Checked, LAYERS_MAX};

/// The most experts of a layer.
const EXPERTS_MAX: usize = 1 << 16;

/// The whole file.
pub(super) fn check(of: &Learned, at: &At<'_>) -> Checked {
    let Learned { schema, learned, layers } = of;
    at.key("schema").count(*schema, SCHEMA.into(), SCHEMA.into())?;
    let Counted { tool, model, model_fingerprint, container_fingerprint, tokens } = learned;
    let counted = at.key("learned");
    counted.key("tool").text(tool)?;
    counted.key("model").text(model)?;
    counted.key("model_fingerprint").plain(model_fingerprint)?;
    counted.key("container_fingerprint").plain(container_fingerprint)?;
    counted.key("tokens").count(*tokens, 1, TOKENS_MAX)?;
    let of_layers = at.key("layers");
    let fits = !layers.is_empty() && layers.len() <= LAYERS_MAX as usize;
    of_layers
        .holds(fits, || format!("has no entry, or more than {LAYERS_MAX}; an entry a layer belongs there"))?;
    of_layers.each(layers, |at, layer| visits(layer, *tokens, at))
}

/// A layer: every prefix counts the same visits, but for what halving rounds away.
fn visits(layer: &LayerVisits, tokens: u64, at: &At<'_>) -> Checked {
    let LayerVisits { visits, distances, frequency_misses } = layer;
    let (experts, of_visits) = (visits.len(), at.key("visits"));
    of_visits.note(&format!("2 to {EXPERTS_MAX} experts, not all without a visit"));
    of_visits.holds((2..=EXPERTS_MAX).contains(&experts), || {
        format!("has {experts} entries; 2 to {EXPERTS_MAX} are possible")
    })?;
    of_visits.each(visits, |at, &count| at.count(count, 0, tokens))?;
    of_visits.item(0).note("0 to `learned.tokens`: a token visits an expert once");
    of_visits.holds(visits.iter().any(|&count| count > 0), || {
        "has no visit; every token visits experts".to_owned()
    })?;
    let of_distances = at.key("distances");
    of_distances.length(distances.len(), PREFIXES, "prefixes")?;
    of_distances.note("four lists");
    for (prefix, counts) in distances.iter().enumerate() {
        let (at, left) = (of_distances.item(prefix), experts - after_prefix(experts, prefix));
        at.length(counts.len(), left, "experts after the prefix")?;
        at.each(counts, |at, &count| at.count(count, 0, tokens * experts as u64))?;
        at.item(0).note("0 or more");
        let counted: u64 = counts.iter().sum();
        let visited: u64 = visits[experts - left..].iter().sum();
        at.holds(counted.abs_diff(visited) <= experts as u64, || {
            format!("adds up to {counted}, and these experts have {visited} visits")
        })?;
    }
    let (of_frequency, most) = (at.key("frequency_misses"), visits.iter().sum::<u64>() + experts as u64);
    of_frequency.length(frequency_misses.len(), SIZES.len(), "sizes")?;
    of_frequency.each(frequency_misses, |at, &count| at.count(count, 0, most))?;
    of_frequency.item(0).note("0 to the visits of all experts");
    Ok(())
}
