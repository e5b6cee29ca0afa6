//! Experts that come and go in slices are planned in whole slices, with slots, and read a slice at a time.

use planner::Inputs;
use plans::Policy;
use plans::file::Contract as _;
use plans::layout::{BundleLayout, Part};
use plans::model::LevelKind;
use plans::plan::{Feature, Plan};

use crate::small;

const SLICE: u32 = 32;

/// A mixture of 16 experts, of which a token visits two, in slices of so many neurons; experts are all that can be requested.
fn mixture(slice_neurons: u32) -> Inputs {
    let mut inputs = small::inputs(6);
    let model = &mut inputs.model;
    let a = &mut model.architecture;
    "silu".clone_into(&mut a.activation);
    (a.experts, a.experts_used, a.neurons_per_expert) = (16, 2, 128);
    let router = u64::from(a.experts * a.width) * 4;
    let layers = u64::from(a.layers);
    let rows = model.parts.bundle;
    model.parts.bundle =
        BundleLayout::in_slices(rows.gate_bytes, rows.up_bytes, rows.down_bytes, u64::from(slice_neurons));
    model.parts.router_layer_bytes = router;
    model.parts.fixed_bytes += layers * router;
    model.container.bytes += layers * router;
    model.levels.retain(|level| level.kind == LevelKind::Dense);
    for layer in &mut model.levels[0].layers {
        layer.active_predicted_fraction = 1.0;
        (layer.predicted_neurons_mean, layer.predicted_neurons_p99) = (256.0, 256.0);
        (layer.runs_fraction, layer.runs_over_gaps_fraction) = (Vec::new(), Vec::new());
    }
    for activity in &mut model.layers {
        (activity.active_true_fraction, activity.active_gate_fraction) = (1.0, 0.5);
        activity.active_neurons_mean = 256.0;
        (activity.active_neurons_p50, activity.active_neurons_p90, activity.active_neurons_p99) =
            (256.0, 256.0, 256.0);
    }
    inputs
}

fn planned(inputs: &Inputs, mem: u64, without: &[Feature]) -> Plan {
    let mut request = small::request(Some(mem));
    request.without = without.to_vec();
    small::plan(inputs, &request).plan
}

#[test]
fn slices_are_planned_whole_and_have_slots() {
    let inputs = mixture(SLICE);
    inputs.model.check().expect("a model that the contract allows");
    let bundle = inputs.model.parts.bundle;
    for mem in [28 << 20, 34 << 20, 44 << 20] {
        let plan = planned(&inputs, mem, &[]);
        let counts = plan.cache.hot_neurons.iter().chain(&plan.cache.cold_slots);
        assert!(counts.clone().all(|count| count.is_multiple_of(SLICE)), "{:?}", plan.cache);
        assert!(plan.cache.cold_slots.iter().any(|&slots| slots > 0), "{:?}", plan.cache);
        assert_eq!(plan.cache.slice_neurons, SLICE);
        assert!(
            plan.read.buffer_bytes >= bundle.read_bytes_max() && plan.read.gap_bytes == 0,
            "{:?}",
            plan.read
        );
        // what is missing, in pages
        let e = &plan.expected;
        let missing = (1.0 - e.hit_fraction) * 6.0 * 256.0 * bundle.stride_bytes as f64;
        let over = e.bytes_read_per_token / missing;
        assert!((0.999..1.2).contains(&over), "{over}: {e:?}");
    }
}

#[test]
fn slots_beat_pinned_experts_alone_and_both_beat_neither() {
    let inputs = mixture(SLICE);
    let speed = |without: &[Feature]| planned(&inputs, 34 << 20, without).expected.decode_tokens_per_second;
    let (all, lru) = (speed(&[]), speed(&[Feature::Policy]));
    let pinned = {
        let mut single = mixture(1);
        // the same bytes, neuron by neuron: nothing comes and goes, as everything that is routed to is requested
        single.model.parts.bundle.stride_bytes = inputs.model.parts.bundle.stride_bytes;
        planned(&single, 34 << 20, &[]).expected.decode_tokens_per_second
    };
    assert!(all >= lru && lru > speed(&[Feature::Cache]) && all > pinned, "{all} {lru} {pinned}");
    let plan = planned(&inputs, 34 << 20, &[Feature::Policy]);
    assert_eq!(plan.cache.policy, Policy::Lru);
}

#[test]
fn a_slice_is_one_read_of_its_pages() {
    let inputs = mixture(SLICE);
    let bundle = inputs.model.parts.bundle;
    let plan = planned(&inputs, 28 << 20, &[Feature::LookAhead]);
    let e = &plan.expected;
    let terms = plan.terms.as_ref().expect("a plan has its terms");
    let reads: f64 = terms.layers.reads.iter().sum();
    let each = e.bytes_read_per_token / reads;
    let least = bundle.slice_span(0, Part::Whole).bytes as f64;
    assert!(each >= 0.999 * least && each <= plan.read.buffer_bytes as f64, "{each} of {least}");
}
