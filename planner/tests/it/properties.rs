//! What holds for every plan.

use std::path::Path;

use planner::cost::{self, Decision};
use planner::layers::Cached;
use planner::question::Question;
use planner::relax::{Favourable, computing, relax};
use planner::space::{Configuration, Node, Space};
use plans::device::{ReadCost, ReadSpeed};
use plans::layout::{BundleLayout, Phases};
use plans::model::{LevelKind, LevelLayer};
use plans::overlap::Stages;
use plans::plan::{Feature, Objective, Request};
use plans::{Backend, Policy, file};

use crate::small::{inputs, plan, request};

/// Plans that are as fast as this are alike.
const TOLERANCE: f64 = 0.01;
/// How far the exact split may be from the bound that the solver proves.
const PROVEN_TOLERANCE: f64 = 0.01;

fn limits() -> impl Iterator<Item = u64> {
    [22, 26, 28, 32, 40, 64].into_iter().map(|mib| mib << 20)
}

#[test]
fn more_memory_is_never_slower_and_every_plan_is_within_its_limit() {
    let inputs = inputs(6);
    let mut last = 0.0;
    let mut plans = 0;
    for limit in limits() {
        let planner::Answer::Plan(solved) = planner::plan(&inputs, &request(Some(limit))).expect("an answer")
        else {
            assert_eq!(last, 0.0, "less memory had a plan");
            continue;
        };
        let e = &solved.plan.expected;
        assert!(
            e.decode_tokens_per_second >= last * (1.0 - TOLERANCE),
            "{} after {last}",
            e.decode_tokens_per_second
        );
        assert!(e.memory_peak_bytes <= limit, "{} above {limit}", e.memory_peak_bytes);
        let proven = 1.0 / solved.seconds_proven;
        let reached = e.decode_tokens_per_second;
        assert!(
            reached <= proven * 1.00001 && reached >= proven * (1.0 - PROVEN_TOLERANCE),
            "{reached} of {proven}"
        );
        assert!(
            e.decode_tokens_per_second >= solved.plan.simple_rule.decode_tokens_per_second * (1.0 - 1e-5),
            "the simple rule is faster at {limit}: {} against {}",
            solved.plan.simple_rule.decode_tokens_per_second,
            e.decode_tokens_per_second
        );
        (last, plans) = (e.decode_tokens_per_second, plans + 1);
    }
    assert!(plans >= 4, "only {plans} limits have plans");
}

#[test]
fn the_same_request_gives_the_same_bytes() {
    let inputs = inputs(5);
    let text = || {
        let solved = plan(&inputs, &request(Some(24 << 20)));
        file::render(&solved.plan, Path::new("plan.toml")).expect("text")
    };
    assert_eq!(text(), text());
}

#[test]
fn a_plan_reads_back_as_it_was_written() {
    let solved = plan(&inputs(3), &request(None));
    let text = file::render(&solved.plan, Path::new("plan.toml")).expect("text");
    let back: plans::Plan = file::parse(&text, Path::new("plan.toml")).expect("a plan");
    assert_eq!(back, solved.plan);
}

#[test]
fn slots_that_admit_everybody_hold_a_tokens_working_set_or_there_are_none() {
    let inputs = inputs(4);
    let mut planned = Vec::new();
    let limits = limits().chain([23, 24, 25, 27].map(|mib| mib << 20));
    for (limit, without) in limits.flat_map(|limit| [(limit, vec![]), (limit, vec![Feature::Policy])]) {
        let level = Some("sign".to_owned());
        let requested = Request { without, level, ..request(Some(limit)) };
        let Ok(planner::Answer::Plan(solved)) = planner::plan(&inputs, &requested) else { continue };
        let (level, cache) = (&solved.plan.quality.level, &solved.plan.cache);
        let level = inputs.model.level(level).expect("the level");
        for (layer, &slots) in cache.cold_slots.iter().enumerate().filter(|(_, slots)| **slots > 0) {
            let working_set = level.layers[layer].predicted_neurons_p99;
            let holds = f64::from(slots) >= working_set;
            assert!(holds || !cache.policy.inserts_all(), "layer {layer}: {slots} of {working_set}");
            planned.push((cache.policy, holds));
        }
    }
    for seen in [(Policy::Lru, true), (Policy::Frequency, true), (Policy::Frequency, false)] {
        assert!(planned.contains(&seen), "{seen:?} is not in any plan");
    }
}

#[test]
fn with_room_for_everything_nothing_is_read() {
    let solved = plan(&inputs(3), &request(None));
    let e = &solved.plan.expected;
    assert!(e.bytes_read_per_token < 2000.0 && e.hit_fraction > 0.99, "{e:?}");
}

#[test]
fn a_floor_is_kept_with_the_least_memory() {
    let inputs = inputs(4);
    let fast = plan(&inputs, &request(Some(32 << 20))).plan.expected.decode_tokens_per_second;
    for share in [0.2, 0.5, 0.8, 0.99] {
        let floor = share * fast;
        let mut frugal = request(None);
        frugal.objective = Objective::Memory;
        frugal.decode_tokens_per_second_min = Some(floor);
        let least = plan(&inputs, &frugal).plan.expected;
        assert!(least.decode_tokens_per_second >= floor, "{least:?}");
        // With one part in a hundred less, no plan reaches the floor.
        let mut below = request(Some(least.memory_peak_bytes / 100 * 99));
        below.decode_tokens_per_second_min = Some(floor);
        let answer = planner::plan(&inputs, &below).expect("an answer");
        if let planner::Answer::Plan(other) = answer {
            panic!("{floor} tok/s in less than {least:?}: {:?}", other.plan.expected);
        }
        // And with that memory the floor can be requested.
        let mut there = request(Some(least.memory_peak_bytes + (128 << 10)));
        there.decode_tokens_per_second_min = Some(floor);
        plan(&inputs, &there);
    }
}

#[test]
fn cores_are_those_allowed_and_a_held_level_is_kept() {
    let inputs = inputs(3);
    let mut requested = request(None);
    requested.cores = Some(vec![1, 3]);
    requested.level = Some("dense".to_owned());
    let plan = plan(&inputs, &requested).plan;
    assert_eq!(plan.quality.level, "dense");
    let d = &plan.decode;
    assert!(d.compute_cores.iter().chain(&d.io_cores).all(|core| [1, 3].contains(core)), "{d:?}");
}

#[test]
fn a_back_end_is_used_where_it_was_measured_and_pays() {
    let mut inputs = inputs(3);
    let requested = request(Some(24 << 20));
    let by_threads = plan(&inputs, &requested).plan;
    assert_eq!(by_threads.read.backend, Backend::Pread);
    let quicker = |read: &ReadSpeed| ReadSpeed {
        backend: Backend::IoUring,
        reads_per_second: 2.0 * read.reads_per_second,
        ..read.clone()
    };
    let more: Vec<ReadSpeed> = inputs.device.storage.reads.iter().map(quicker).collect();
    inputs.device.storage.reads.extend(more);
    // Measured reads alone are not enough: the device may refuse them.
    assert_eq!(plan(&inputs, &requested).plan, by_threads);
    inputs.device.storage.io_uring = Some(ReadCost {
        cpu_seconds_per_read: 3e-6,
        interference_fraction: 0.02,
        completed_together_fraction: Some(1.0),
    });
    let ring = plan(&inputs, &requested).plan;
    assert_eq!((ring.read.backend, ring.decode.io_cores.len()), (Backend::IoUring, 0));
    assert!(ring.expected.decode_tokens_per_second > by_threads.expected.decode_tokens_per_second);
}

/// Inputs whose device has an io_uring, too, that costs less than threads.
fn with_ring(mut inputs: planner::Inputs) -> planner::Inputs {
    let ring = |read: &ReadSpeed| ReadSpeed { backend: Backend::IoUring, ..read.clone() };
    let more: Vec<ReadSpeed> = inputs.device.storage.reads.iter().map(ring).collect();
    inputs.device.storage.reads.extend(more);
    inputs.device.storage.io_uring = Some(ReadCost {
        cpu_seconds_per_read: 3e-6,
        interference_fraction: 0.02,
        completed_together_fraction: Some(1.0),
    });
    inputs
}

#[test]
fn the_plain_functions_agree_with_the_price_of_a_configuration() {
    let inputs = with_ring(inputs(5));
    for without in [vec![], vec![Feature::Pipeline], vec![Feature::HotRegion, Feature::LookAhead]] {
        let requested = Request { without, ..request(Some(40 << 20)) };
        let mut question = planner::request::resolve(&inputs, &requested).expect("a question");
        question.limits.loss_max = 1.0;
        plain_functions_agree(&question);
    }
}

/// No configuration of a node, with anything cached, is below the node's relaxation: nodes of all configurations of a group, of one way of
/// reading, of one core set, and of one configuration.
#[test]
fn no_price_is_below_the_relaxation() {
    let mut seen = 0;
    for (inputs, limit) in [(with_ring(inputs(5)), 40 << 20), (crate::slices::mixture(32), 8 << 30)] {
        for without in [vec![], vec![Feature::Pipeline], vec![Feature::HotRegion, Feature::LookAhead]] {
            let requested = Request { without, ..request(Some(limit)) };
            let mut question = planner::request::resolve(&inputs, &requested).expect("a question");
            question.limits.loss_max = 1.0;
            let space = Space::new(&question);
            for root in space.roots() {
                let reads = Node { reads: (root.reads.0, root.reads.0 + 1), ..root };
                let sets = Node { sets: (root.sets.1 - 1, root.sets.1), ..root };
                let single = Node { reads: reads.reads, ..sets };
                let [first, second] = if root.is_single() { [root; 2] } else { root.halves() };
                for node in [root, reads, sets, single, first, second] {
                    seen += relaxation_holds(&question, &space, node);
                }
            }
        }
    }
    assert!(seen > 100_000, "{seen}");
}

/// How many prices were compared.
fn relaxation_holds(question: &Question<'_>, space: &Space<'_>, node: Node) -> usize {
    let ways = &space.options[node.level];
    let favourable = Favourable::new(space, node);
    let mut of_layers = vec![Vec::new(); ways.cached.len()];
    for &(layer, _) in &ways.kinds {
        favourable.layer(layer, |_, seconds| of_layers[layer].push(seconds));
    }
    let (relaxation, mut seen) = (relax(space, node), 0);
    let most = planner::relax::room(space, question.device, node, 0);
    let computes = space.computes_of(node);
    let pairs = space.reads_of(node).iter().flat_map(|&read| computes.iter().map(move |&c| (read, c)));
    for (read, compute) in pairs.step_by(3) {
        let (of_read, of_compute) = (&ways.reads[read], &ways.computes[compute]);
        let interference = ways.interference(of_compute, of_read);
        for &(layer, _) in &ways.kinds {
            for (cached, least) in ways.cached[layer].iter().zip(&of_layers[layer]).step_by(11) {
                let seconds = ways.seconds(of_compute, of_read, &interference, layer, cached);
                assert!(
                    seconds >= least * (1.0 - 1e-9),
                    "{seconds} below {least}: {node:?} {of_read:?} {cached:?}"
                );
                seen += 1;
            }
        }
        assert!(space.ticks(of_compute.serial) >= relaxation.serial, "{node:?}");
        assert!(space.ticks(ways.seconds_least(of_compute)) >= computing(space, node), "{node:?}");
        for prompt in 0..space.prompts.len() {
            let room =
                space.room(question.device, Configuration { level: node.level, compute, read, prompt }, 0);
            assert!(
                room.bytes <= most.bytes && room.rows >= most.rows && room.tables >= most.tables,
                "{node:?}"
            );
        }
    }
    seen
}

fn plain_functions_agree(question: &Question<'_>) {
    let Question { model, limits, .. } = question;
    let levels = model.levels.iter().flat_map(|level| level.policies().map(move |policy| (level, policy)));
    for (level, policy) in levels {
        let ways = planner::space::options_of(question, level, policy);
        let all = 0..ways.computes.len();
        let pairs = (0..ways.reads.len()).step_by(7).flat_map(|read| all.clone().map(move |c| (c, read)));
        for (i, j) in pairs {
            let (compute, read) = (&ways.computes[i], &ways.reads[j]);
            let interference = ways.interference(compute, read);
            let seconds =
                |layer: usize, cached: &Cached| ways.seconds(compute, read, &interference, layer, cached);
            // the same share of every layer, and shares that differ from layer to layer
            for (place, skew) in (0..=8).flat_map(|place| [0, 1, 5].map(|skew| (place, skew))) {
                let at = |layer: usize| (ways.cached[layer].len() - 1) * ((place + skew * layer) % 9) / 8;
                let taken = |layer: usize| ways.cached[layer][at(layer)];
                let layers = 0..ways.cached.len();
                let beyond: f64 = layers.clone().map(|layer| seconds(layer, &taken(layer))).sum();
                let priced = compute.serial + beyond;
                let (hot, cold): (Vec<u32>, Vec<u32>) =
                    layers.map(|layer| (taken(layer).hot, taken(layer).cold)).unzip();
                let decision = Decision {
                    level,
                    cores: &compute.cores,
                    shared: compute.shared,
                    cluster: planner::rules::cluster(level),
                    read: read.choice,
                    embedding_rows: compute.embedding_rows,
                    hot: &hot,
                    cold: &cold,
                    policy,
                };
                let plain = cost::decode(question, &decision).mean_seconds(limits.context);
                assert!((plain / priced - 1.0).abs() < 1e-9, "{plain} is not {priced}: {read:?}");
            }
        }
    }
}

#[test]
fn what_is_left_out_is_not_planned_and_the_fewer_mechanisms_the_slower() {
    let inputs = with_ring(inputs(5));
    let without = |features: &[Feature]| {
        let requested = Request { without: features.to_vec(), ..request(Some(26 << 20)) };
        plan(&inputs, &requested).plan
    };
    let all = without(&[]);
    assert!(all.cache.hot_neurons.iter().any(|&hot| hot > 0) && !all.read.blocking);
    let ladder = [
        &[Feature::LookAhead][..],
        &[Feature::Pipeline, Feature::LookAhead],
        &[Feature::HotRegion, Feature::Pipeline, Feature::LookAhead],
        &[Feature::Cache, Feature::Pipeline, Feature::LookAhead],
    ];
    let mut faster = all.expected.decode_tokens_per_second;
    for features in ladder {
        let plan = without(features);
        assert_eq!(plan.read.look_ahead, 0);
        assert_eq!(plan.read.blocking, features.contains(&Feature::Pipeline));
        let none = |counts: &[u32]| counts.iter().all(|&count| count == 0);
        let pinned = !features.contains(&Feature::HotRegion) && !features.contains(&Feature::Cache);
        assert!(pinned || none(&plan.cache.hot_neurons), "{features:?}");
        assert!(!features.contains(&Feature::Cache) || none(&plan.cache.cold_slots), "{features:?}");
        let speed = plan.expected.decode_tokens_per_second;
        assert!(speed <= faster * 1.001, "{features:?}: {speed} after {faster}");
        faster = speed;
    }
}

#[test]
fn a_gate_is_read_first_where_short_reads_are_cheap_and_few_gates_fire() {
    let mut inputs = inputs(5);
    inputs.model.parts.bundle = BundleLayout::new(2048, 2048, 2048);
    inputs.model.levels.iter_mut().flat_map(|level| &mut level.layers).for_each(|l| l.beta_fraction = 0.3);
    let plan_of = |inputs: &planner::Inputs, without: &[Feature]| {
        let requested =
            Request { without: without.to_vec(), level: Some("sign".to_owned()), ..request(Some(48 << 20)) };
        let plan = plan(inputs, &requested).plan;
        assert!(plan.expected.bytes_read_per_token > 0.0);
        (plan.read.phases, plan.expected)
    };
    // as many long reads a second as short ones
    for read in &mut inputs.device.storage.reads {
        read.reads_per_second = 50_000.0;
    }
    assert_eq!(plan_of(&inputs, &[]).0, Phases::Whole);
    // as many bytes
    for read in &mut inputs.device.storage.reads {
        read.reads_per_second = 4e8 / read.block_bytes as f64;
    }
    let (phases, two_phase) = plan_of(&inputs, &[]);
    assert_eq!(phases, Phases::TwoPhase);
    let (phases, whole) = plan_of(&inputs, &[Feature::TwoPhase]);
    assert_eq!(phases, Phases::Whole);
    assert!(two_phase.bytes_read_per_token < 0.8 * whole.bytes_read_per_token);
    assert!(two_phase.decode_tokens_per_second > whole.decode_tokens_per_second);
    assert_eq!(plan_of(&inputs, &[Feature::WholeRead]), (Phases::TwoPhase, two_phase));
    let (phases, rows) = plan_of(&inputs, &[Feature::Bundle]);
    assert_eq!(phases, Phases::Rows);
    assert!(rows.decode_tokens_per_second < two_phase.decode_tokens_per_second);
}

#[test]
fn without_gates_a_neuron_is_priced_as_two_rows_and_one_product() {
    // a network whose gate is its up, as three rows and as two
    let mut three = inputs(5);
    three.model.parts.bundle = BundleLayout::new(2048, 2048, 2048);
    three.model.container.bytes *= 2;
    let mut two = planner::Inputs { model: three.model.clone(), device: three.device.clone(), ..inputs(5) };
    two.model.parts.bundle = BundleLayout::new(2048, 0, 2048);
    "relu-squared".clone_into(&mut two.model.architecture.activation);
    for inputs in [&mut three, &mut two] {
        // the exact gate beside a predictor, which requests as many
        let mut exact = inputs.model.levels[1].clone();
        (exact.kind, exact.name) = (LevelKind::ExactGate, "exact-gate".to_owned());
        exact.layers.iter_mut().for_each(|layer| layer.beta_fraction = 1.0);
        inputs.model.levels.push(exact);
    }
    let [of_three, of_two] = [&three, &two].map(|inputs| {
        let any = request(None);
        let question = planner::request::resolve(inputs, &any).unwrap();
        let rates = cost::rates(&question, &[0, 1]);
        ["sign", "exact-gate"].map(|name| {
            let level = inputs.model.level(name).unwrap();
            let requested = cost::requested(&inputs.model, level, 0);
            (requested, cost::gate_up(&inputs.model, level, requested, 16, &rates).0)
        })
    });
    let [((requested, fires), sign), (_, exact)] = of_two;
    assert!(requested > 0.0 && fires == 0.8, "{requested} {fires}");
    // ups of all that is requested; with gates, the ups of those that fire besides
    for of in [|work: &cost::Work| work.compute_seconds, |work: &cost::Work| work.gather_seconds] {
        assert!((of(&of_three[0].1) / of(&sign) - 1.8).abs() < 1e-9, "{sign:?} {of_three:?}");
    }
    assert_eq!((exact.compute_seconds, exact.memory()), (0.0, 0.0), "its ups were computed to select");
    assert!(of_three[1].1.compute_seconds > 0.0);
    // and so read and kept: two rows of a predictor's neurons, one of the exact gate's
    for (level, row_bytes) in [("sign", 4096), ("exact-gate", 2048)] {
        let requested = Request { level: Some(level.to_owned()), ..request(Some(44 << 20)) };
        let [of_three, of_two] = [&three, &two].map(|inputs| plan(inputs, &requested).plan);
        let slots: u64 =
            of_two.cache.hot_neurons.iter().chain(&of_two.cache.cold_slots).map(|&n| u64::from(n)).sum();
        let bytes = of_two.memory.hot_bytes + of_two.memory.cold_bytes;
        assert!(
            (slots * row_bytes..slots * row_bytes + 2 * 4096).contains(&bytes),
            "{level}: {slots} in {bytes}"
        );
        let [read, read_of_three] = [&of_two, &of_three].map(|plan| plan.expected.bytes_read_per_token);
        assert!(read < read_of_three, "{level}: {read} and {read_of_three}");
        let [speed, of_three] = [&of_two, &of_three].map(|plan| plan.expected.decode_tokens_per_second);
        assert!(speed > of_three, "{level}: {speed} and {of_three}");
    }
}

#[test]
fn the_policy_that_misses_least_is_planned_and_of_equals_the_order_of_use() {
    let mut inputs = inputs(5);
    let planned = |inputs: &planner::Inputs, without: &[Feature]| {
        let level = Some("sign".to_owned());
        let requested = Request { without: without.to_vec(), level, ..request(Some(28 << 20)) };
        let plan = plan(inputs, &requested).plan;
        assert!(plan.cache.cold_slots.iter().any(|&slots| slots > 0), "{:?}", plan.cache);
        (plan.cache.policy, plan.expected.decode_tokens_per_second)
    };
    let (policy, speed) = planned(&inputs, &[]);
    assert_eq!(policy, Policy::Frequency);
    let (policy, without) = planned(&inputs, &[Feature::Policy]);
    assert_eq!(policy, Policy::Lru);
    assert!(speed > 1.005 * without, "{speed} tok/s, {without} by the order of use");
    let layers = |inputs: &mut planner::Inputs, of: fn(&mut LevelLayer)| {
        inputs.model.levels.iter_mut().flat_map(|level| &mut level.layers).for_each(of);
    };
    layers(&mut inputs, |layer| layer.frequency_miss_fraction.clone_from(&layer.miss_fraction));
    assert_eq!(planned(&inputs, &[]), (Policy::Lru, without), "all policies miss alike");
    layers(&mut inputs, |layer| layer.frequency_miss_fraction.clear());
    layers(&mut inputs, |layer| layer.clock_miss_fraction.clear());
    assert_eq!(planned(&inputs, &[]), (Policy::Lru, without), "no other policy was measured");
}

#[test]
fn reads_are_prefetched_where_there_is_something_to_overlap_them_with() {
    let mut inputs = with_ring(inputs(5));
    let requested = request(Some(40 << 20));
    inputs.model.parts.attention_layer_bytes = 16 << 20;
    let solved = plan(&inputs, &requested);
    assert!(solved.plan.read.look_ahead > 0 && solved.price.reads.1 > 0.0, "{:?}", solved.plan.read);
    // nothing but keys and values, at no speed
    inputs.model.parts.attention_layer_bytes = 64;
    let kernels = &mut inputs.device.kernels;
    kernels.iter_mut().for_each(|kernel| kernel.dense_bytes_per_second.fill(1e8));
    let solved = plan(&inputs, &requested);
    assert_eq!((solved.plan.read.look_ahead, solved.price.reads.1), (0, 0.0), "{:?}", solved.plan.read);
}

#[test]
fn a_context_costs_its_measured_attention_and_steps_cost_what_they_cost_beyond_bytes() {
    let mut inputs = inputs(5);
    let requested = Request { level: Some("dense".to_owned()), ..request(None) };
    let before = plan(&inputs, &requested).price;
    // heads, keys and values, a multiplication and an addition, five layers
    let a = &inputs.model.architecture;
    let flops = 5.0 * 2.0 * 2.0 * f64::from(a.heads) * f64::from(a.head_width);
    let kernel = &mut inputs.device.kernels[0];
    kernel.attention_flops_per_second = Some(vec![1e7, 2e7, 2e7, 2e7]);
    let after = plan(&inputs, &requested).price;
    assert!(before.per_context_token < after.per_context_token, "{before:?}");
    assert!((after.per_context_token / (flops / 2e7) - 1.0).abs() < 1e-9, "{after:?}");
    assert_eq!(after.attention, before.attention);
    // three of attention, one of the values; a few rows and their sums are one thread's, who is not dispatched
    let kernel = &mut inputs.device.kernels[0];
    kernel.dispatch_seconds.iter_mut().for_each(|seconds| *seconds += 1e-5);
    let slower = plan(&inputs, &requested).price;
    let more = |stage: fn(&cost::DecodePrice) -> f64| (stage(&slower) - stage(&after)) / (5.0 * 1e-5);
    assert!((more(|price| price.attention.serial()) - 3.0).abs() < 1e-6, "{slower:?}");
    assert!((more(|price| price.gate_up.serial()) - 1.0).abs() < 1e-6, "{slower:?}");
    let level = &inputs.model.levels[0];
    let question = planner::request::resolve(&inputs, &requested).unwrap();
    let rates = cost::rates(&question, &[0, 1]);
    let [few, many] =
        [16.0, 2048.0].map(|requested| cost::down(&inputs.model, level, (requested, 1.0), &rates));
    assert!(few.serial() < 1e-5 && many.serial() > 1e-5, "{few:?} {many:?}");
    assert!(few.memory() / 16.0 > many.memory() / 2048.0, "one thread is slower than two");
}

#[test]
fn threads_that_waited_for_reads_are_woken_for_what_the_last_one_brought() {
    let mut inputs = inputs(5);
    let stages = |inputs: &planner::Inputs| {
        let requested = request(None);
        let question = planner::request::resolve(inputs, &requested).unwrap();
        let rates = cost::rates(&question, &[0, 1]);
        cost::stages(&inputs.model, &inputs.model.levels[0], 0, 16, &rates)
    };
    inputs.device.storage.wake_seconds = None;
    let at_once = stages(&inputs);
    inputs.device.storage.wake_seconds = Some(vec![0.0, 3e-5, 3e-5, 3e-5]);
    let woken = stages(&inputs);
    assert!((woken.drain - at_once.drain - 3e-5).abs() < 1e-12, "{woken:?} {at_once:?}");
    // who computes while reads are in flight is awake
    assert_eq!(woken, Stages { drain: woken.drain, ..at_once });
}

#[test]
fn no_loss_means_a_lossless_level() {
    let mut lossless = request(None);
    lossless.perplexity_change_fraction_max = 0.0;
    assert_eq!(plan(&inputs(3), &lossless).plan.quality.level, "dense");
}

#[test]
fn a_model_without_sparsity_streams_what_is_not_pinned() {
    let mut requested = request(Some(24 << 20));
    requested.level = Some("dense".to_owned());
    let plan = plan(&inputs(4), &requested).plan;
    assert!(plan.cache.cold_slots.iter().all(|&slots| slots == 0), "{:?}", plan.cache);
    assert!(plan.expected.bytes_read_per_token > 1e6, "{:?}", plan.expected);
}

#[test]
fn what_is_reserved_is_left_free_and_nothing_else_changes() {
    let inputs = inputs(4);
    let less = plan(&inputs, &request(Some(28 << 20))).plan;
    // not whole pages: rounded up
    let reserved = Request { reserve_bytes: Some((4 << 20) - 5), ..request(Some(32 << 20)) };
    let plan = plan(&inputs, &reserved).plan;
    let m = plan.memory;
    assert_eq!((m.limit_bytes, m.reserve_bytes), (32 << 20, 4 << 20));
    assert!(m.prefill_total_bytes <= m.limit_bytes, "{m:?}");
    // what is reserved has page tables
    let (all, of_less) = (plan.expected.decode_tokens_per_second, less.expected.decode_tokens_per_second);
    assert!(all <= of_less * (1.0 + TOLERANCE) && all >= 0.9 * of_less, "{all}, {of_less}");
}

#[test]
fn a_model_of_many_unlike_layers_is_planned_within_a_second() {
    let mut inputs = inputs(32);
    let started = std::time::Instant::now();
    let mut requested = request(Some(150 << 20));
    requested.context_tokens = Some(128);
    inputs.device.capacity.ram_bytes = 512 << 20;
    let solved = plan(&inputs, &requested);
    assert!(solved.plan.cache.hot_neurons.iter().any(|&hot| hot > 0), "{:?}", solved.plan.cache);
    // Twenty times the second that it may take, for machines that do something else besides.
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

#[test]
fn the_simple_rule_can_be_run_as_it_is_told_beside_a_plan() {
    let inputs = inputs(3);
    let requested = request(Some(24 << 20));
    let planned = plan(&inputs, &requested).plan;
    let requested = Request { simple_rule: true, ..requested };
    let simple = planner::simple_plan(&inputs, &requested).unwrap().expect("it fits");
    assert_eq!(simple.simple_rule, planned.simple_rule);
    assert_eq!(simple.expected.decode_tokens_per_second, planned.simple_rule.decode_tokens_per_second);
    assert_eq!(simple.memory.prefill_total_bytes, planned.simple_rule.memory_peak_bytes);
    assert!(simple.cache.cold_slots.iter().all(|&slots| slots == 0) && simple.cache.hot_neurons[0] > 0);
    assert!(simple.expected.decode_tokens_per_second < planned.expected.decode_tokens_per_second);
    let faster = Request { decode_tokens_per_second_min: Some(1.0), ..requested.clone() };
    assert!(planner::simple_plan(&inputs, &faster).is_err());
    let none = Request { memory_limit_bytes: Some(1 << 20), ..requested };
    assert_eq!(planner::simple_plan(&inputs, &none).unwrap(), None);
}
