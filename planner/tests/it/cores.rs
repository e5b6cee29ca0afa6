//! Cores of unlike speed: threads claim pieces of the work, so the speeds of all cores add up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::PathBuf;

use planner::cost;
use planner::request::resolve;
use planner::{Answer, Inputs, plan};
use plans::overlap::uneven;
use plans::plan::Request;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A device of two fast cores, 0 and 1, and four slow ones.
fn unlike() -> Inputs {
    let device = root().join("tests/it/cases/two-fast-four-slow-cores.device.toml");
    let model = root().join("../plans/intel-xeon-2c-24g/oxide-dense/model.toml");
    planner::read_inputs(&device, &model).expect("profiles")
}

fn phone() -> Inputs {
    let folder = root().join("../plans/oneplus-12/turbosparse-mixtral-47b");
    planner::read_inputs(&folder.join("device.toml"), &folder.join("model.toml")).expect("profiles")
}

fn cores_of(inputs: &Inputs, request: &Request) -> Vec<u32> {
    match plan(inputs, request).expect("an answer") {
        Answer::Plan(solved) => solved.plan.decode.compute_cores,
        Answer::Infeasible(why) => panic!("{why}"),
    }
}

#[test]
fn a_fast_core_is_worth_more_than_a_slow_one() {
    let inputs = unlike();
    let request = Request::default();
    let question = resolve(&inputs, &request).expect("a question");
    let flops = |cores: &[u32]| cost::rates(&question, cores).flops;
    let [one_fast, two_fast] = [flops(&[0, 2, 3, 4, 5]), flops(&[0, 1, 2, 3, 4])];
    // 37 GFLOP/s and 14.8
    let expected = (37.0 + 4.0 * 14.8) / (2.0 * 37.0 + 3.0 * 14.8);
    assert!((one_fast / two_fast - expected).abs() < 1e-9, "{one_fast} of {two_fast}");
    assert!(flops(&[0, 1, 2, 3, 4, 5]) > two_fast);
}

#[test]
fn no_fast_core_is_idle_while_slow_ones_compute() {
    let inputs = unlike();
    for limit in [20 << 20, 25 << 20, 64 << 20] {
        let cores = cores_of(&inputs, &Request { memory_limit_bytes: Some(limit), ..Request::default() });
        let fast = cores.iter().filter(|&&core| core < 2).count();
        assert!(fast == 2 || cores.len() == fast, "{cores:?} within {limit} bytes");
    }
}

#[test]
fn a_slow_core_beside_a_fast_one_is_used() {
    let cores = Some(vec![2, 7]);
    let request = Request { memory_limit_bytes: Some(19 << 30), cores, ..Request::default() };
    assert_eq!(cores_of(&phone(), &request), [7, 2]);
}

/// Threads of unlike speed that claim clusters of neurons until none is left: the price of the stage is what they take.
#[test]
fn the_price_of_unlike_cores_is_that_of_a_simulated_pool() {
    const CLUSTER: u32 = 32;
    for speeds in [&[1.0, 1.0, 0.4, 0.4, 0.4, 0.4][..], &[1.0, 0.35, 0.35], &[1.0, 0.5], &[1.0; 4]] {
        let sum: f64 = speeds.iter().sum();
        let pace = sum / speeds.iter().copied().fold(f64::INFINITY, f64::min);
        let (mut simulated, mut priced) = (0.0, 0.0);
        // many numbers of neurons: where the last cluster ends is chance
        for neurons in (1500..4500).step_by(7) {
            let busy = f64::from(neurons) / sum;
            priced += busy + uneven(f64::from(neurons), busy, f64::from(CLUSTER), pace).0;
            simulated += makespan(neurons, CLUSTER, speeds);
        }
        assert!((priced / simulated - 1.0).abs() < 0.1, "{speeds:?}: {priced} priced, {simulated} simulated");
    }
}

/// Seconds until the last thread is done, at `speeds` in neurons per second.
fn makespan(neurons: u32, cluster: u32, speeds: &[f64]) -> f64 {
    // nanoseconds at which a thread is free, the first one first
    let mut free: BinaryHeap<Reverse<(u64, usize)>> =
        (0..speeds.len()).map(|thread| Reverse((0, thread))).collect();
    let (mut left, mut last) = (neurons, 0);
    while left > 0 {
        let Some(Reverse((at, thread))) = free.pop() else { break };
        let claimed = left.min(cluster);
        left -= claimed;
        let done = at + (f64::from(claimed) / speeds[thread] * 1e9) as u64;
        last = last.max(done);
        free.push(Reverse((done, thread)));
    }
    last as f64 / 1e9
}
