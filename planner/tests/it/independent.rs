//! Another search for the fastest plan, without bounds, prices of memory or a solver: every way, every pair of what two
//! layers may cache. What the planner finds is as fast, and what it proves is true.

use planner::request::{Question, resolve};
use planner::room::regions_within;
use planner::space::Space;
use planner::ways::{Compute, Read, Ways};
use plans::PAGE_BYTES;
use plans::plan::Request;

use crate::small::{inputs, plan, request};

/// Seconds of the fastest plan of two layers: no plan is faster than the first, and the second is reached.
fn fastest(question: &Question<'_>) -> [f64; 2] {
    let space = Space::new(question);
    let mut best = [f64::INFINITY; 2];
    for ways in &space.ways {
        for (compute, read) in ways.computes.iter().flat_map(|c| ways.reads.iter().map(move |r| (c, r))) {
            let found = of_way(question, &space, ways, compute, read);
            best = [best[0].min(found[0]), best[1].min(found[1])];
        }
    }
    best
}

fn of_way(
    question: &Question<'_>,
    space: &Space<'_>,
    ways: &Ways<'_>,
    compute: &Compute,
    read: &Read,
) -> [f64; 2] {
    let regions = regions_within(question.limits.memory_bytes);
    let room = ways.room(question.device, regions, compute, read, &space.prompts[0]);
    // without rounding to pages and without a prompt's rows; and with both to spare
    let most = room.bytes - room.tables;
    let sure = most - room.rows - 3 * PAGE_BYTES as i64;
    if most < room.rows {
        return [f64::INFINITY; 2];
    }
    let toll = ways.toll(compute, read);
    let layer = |layer: usize| {
        let priced = ways.cached[layer].iter();
        let mut priced: Vec<(i64, f64)> = priced
            .map(|cached| (cached.need.bytes(), ways.seconds(compute, read, &toll, layer, cached)))
            .collect();
        priced.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        priced
    };
    let (first, mut second) = (layer(0), layer(1));
    for i in 1..second.len() {
        second[i].1 = second[i].1.min(second[i - 1].1);
    }
    [most, sure].map(|bytes| {
        let with = |&(taken, seconds): &(i64, f64)| {
            let fits = second.partition_point(|(other, _)| taken + other <= bytes);
            fits.checked_sub(1).map_or(f64::INFINITY, |last| compute.serial + seconds + second[last].1)
        };
        first.iter().map(with).fold(f64::INFINITY, f64::min)
    })
}

#[test]
fn trying_everything_finds_nothing_faster() {
    let inputs = inputs(2);
    for (mib, sequences) in [(11, None), (13, None), (16, None), (16, Some(4))] {
        let requested = Request { context_tokens: Some(64), sequences, ..request(Some(mib << 20)) };
        let [least, reached] = fastest(&resolve(&inputs, &requested).expect("a question"));
        let solved = plan(&inputs, &requested);
        let seconds = 1.0 / solved.plan.expected.decode_tokens_per_second;
        assert!(seconds <= reached * 1.0055, "{mib} MiB: {seconds} s, but {reached} is reached");
        assert!(seconds >= least * (1.0 - 1e-5), "{mib} MiB: {seconds} s, but none is below {least}");
        assert!(
            solved.seconds_proven <= reached * (1.0 + 1e-9),
            "{} is not below {reached}",
            solved.seconds_proven
        );
    }
}
