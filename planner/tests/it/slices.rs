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
pub(crate) fn mixture(slice_neurons: u32) -> Inputs {
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
        (layer.runs_fraction, layer.runs_over_gaps_fraction, layer.runs_over_wide_gaps_fraction) =
            (Vec::new(), Vec::new(), Vec::new());
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
    // both are rounded to six digits
    let most = 1.00001 * plan.read.buffer_bytes as f64;
    assert!(each >= 0.999 * least && each <= most, "{each} of {least}");
}

/// A model without experts whose neurons all fire, in slices with pieces of down, of which every other layer's take half as
/// much again.
fn dense() -> Inputs {
    let mut inputs = small::inputs(6);
    let model = &mut inputs.model;
    "silu".clone_into(&mut model.architecture.activation);
    model.architecture.down_transposed = false;
    let rows = model.parts.bundle;
    let of_layer = |down| BundleLayout::in_slices(rows.gate_bytes, rows.up_bytes, down, SLICE.into());
    let own: Vec<BundleLayout> = (0..6).map(|layer| of_layer(1024 + 512 * (layer % 2))).collect();
    model.parts.bundle = BundleLayout::mean(&own).expect("layers");
    model.container.bytes += 6 * own[0].layer_bytes(2048);
    model.levels.retain(|level| level.kind == LevelKind::Dense);
    for layer in &mut model.levels[0].layers {
        layer.active_predicted_fraction = 1.0;
        (layer.predicted_neurons_mean, layer.predicted_neurons_p99) = (2048.0, 2048.0);
        (layer.runs_fraction, layer.runs_over_gaps_fraction, layer.runs_over_wide_gaps_fraction) =
            (Vec::new(), Vec::new(), Vec::new());
    }
    for (activity, bundle) in model.layers.iter_mut().zip(own) {
        (activity.active_true_fraction, activity.active_gate_fraction) = (1.0, 0.5);
        activity.active_neurons_mean = 2048.0;
        (activity.active_neurons_p50, activity.active_neurons_p90, activity.active_neurons_p99) =
            (2048.0, 2048.0, 2048.0);
        activity.bundle = Some(bundle);
    }
    inputs
}

#[test]
fn layers_with_pieces_are_pinned_in_slices_and_take_their_own_bytes() {
    let inputs = dense();
    inputs.model.check().expect("a model that the contract allows");
    for mem in [36 << 20, 44 << 20, 60 << 20] {
        let plan = planned(&inputs, mem, &[]);
        let hot = &plan.cache.hot_neurons;
        assert!(hot.iter().all(|count| count.is_multiple_of(SLICE)), "{hot:?}");
        assert!(plan.cache.cold_slots.iter().all(|&slots| slots == 0), "everything is requested every time");
        let bytes: u64 = (0..6).map(|l| u64::from(hot[l]) * inputs.model.bundle(l).bundle_bytes()).sum();
        assert_eq!(plan.memory.hot_bytes, bytes.next_multiple_of(plans::PAGE_BYTES));
        assert_eq!(plan.cache.slot_bytes, [3072, 3584].repeat(3));
        let mut other = plan.clone();
        other.cache.slot_bytes[5] += 4096;
        assert_eq!(other.check().is_err(), hot[5] > 0, "a size that the region contradicts is refused");
        assert!(plan.read.buffer_bytes >= inputs.model.read_bytes_max() && plan.read.gap_bytes == 0);
        let terms = plan.terms.as_ref().expect("a plan has its terms");
        assert!(terms.layers.down_gather_seconds.is_empty(), "down is products with rows in order");
        assert_eq!(terms.layers.down_stream_seconds.len(), 6);
        // what is not pinned is read in order, in pages
        let missing: u64 = hot.iter().map(|&hot| u64::from(2048 - hot)).sum();
        let bytes = missing as f64 * inputs.model.parts.bundle.stride_bytes as f64;
        let over = plan.expected.bytes_read_per_token / bytes;
        assert!(missing == 0 || (0.999..1.2).contains(&over), "{over}: {:?}", plan.expected);
        assert!(terms.layers.reads_in_order.contains(&true) || missing == 0, "{:?}", terms.layers);
    }
}

#[test]
fn a_layer_that_has_another_bundle_than_the_mean_says_is_refused() {
    let refused = |change: fn(&mut plans::Model)| {
        let mut model = dense().model;
        change(&mut model);
        model.check().expect_err("a contradiction").to_string()
    };
    let missing = refused(|model| model.layers[2].bundle = None);
    assert!(
        missing.contains("layers[2].bundle") && missing.contains("in all layers or in none"),
        "{missing}"
    );
    let mean = refused(|model| model.parts.bundle = *model.bundle(1));
    assert!(mean.contains("on average"), "{mean}");
    let rows = refused(|model| {
        "relu".clone_into(&mut model.architecture.activation);
        model.levels[0].kind = LevelKind::ExactGate;
    });
    assert!(rows.contains("architecture.down_transposed"), "{rows}");
}
