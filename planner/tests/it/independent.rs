//! Other searches for the fastest plan, without bounds or a solver: of two layers every way and every pair of what both may cache;
//! of committed profiles every way, its memory filled where a byte gains most. What the planner finds is as fast, and what it proves
//! is true.

use planner::cores::Compute;
use planner::cost::reads::LayerReads;
use planner::flash::Read;
use planner::layers::Cached;
use planner::options::Options;
use planner::question::Question;
use planner::request::resolve;
use planner::room::{Need, Room, regions_within};
use planner::space::Space;
use planner::{Answer, Inputs};
use plans::PAGE_BYTES;
use plans::plan::Request;
use rayon::prelude::{IntoParallelIterator as _, ParallelIterator as _};

use crate::grid::{ALIKE, Failures, exhaustive_profiles, profiles, span};
use crate::small::{inputs, plan, request};

/// Seconds of the fastest plan of two layers: no plan is faster than the first, and the second is reached.
fn fastest(question: &Question<'_>) -> [f64; 2] {
    let space = Space::new(question);
    let mut best = [f64::INFINITY; 2];
    for ways in &space.options {
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
    ways: &Options<'_>,
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
    let interference = ways.interference(compute, read);
    let layer = |layer: usize| {
        let priced = ways.cached[layer].iter();
        let mut priced: Vec<(i64, f64)> = priced
            .map(|cached| (cached.need.bytes(), ways.seconds(compute, read, &interference, layer, cached)))
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
        assert!(seconds <= reached * ALIKE, "{mib} MiB: {seconds} s, but {reached} is reached");
        assert!(seconds >= least * (1.0 - 1e-5), "{mib} MiB: {seconds} s, but none is below {least}");
        assert!(
            solved.seconds_proven <= reached * (1.0 + 1e-9),
            "{} is not below {reached}",
            solved.seconds_proven
        );
    }
}

/// What is kept of a layer, and its seconds.
type Kept = (Need, f64);

/// How many ways were looked at, and seconds of the fastest plan of any of them.
fn fastest_filled(question: &Question<'_>) -> (usize, f64) {
    let levels = planner::rules::levels(question.model, &question.limits);
    let of_level = |level| {
        let space = Space::of(question, vec![level]);
        let (mut count, mut best) = (0, f64::INFINITY);
        for ways in &space.options {
            let mut computes: Vec<&Compute> = ways.computes.iter().collect();
            computes.sort_by(|a, b| ways.seconds_least(a).total_cmp(&ways.seconds_least(b)));
            for compute in computes {
                for read in 0..ways.reads.len() {
                    count += 1;
                    // were nothing read it would be slower
                    if ways.seconds_least(compute) < best {
                        best = best.min(filled(question, &space, ways, compute, read));
                    }
                }
            }
        }
        (count, best)
    };
    let all: Vec<(usize, f64)> = levels.into_par_iter().map(of_level).collect();
    all.into_iter().fold((0, f64::INFINITY), |sum, of_level| (sum.0 + of_level.0, sum.1.min(of_level.1)))
}

/// Seconds of a way whose memory is filled step by step, each the one that gains most for its bytes, and then whatever still fits;
/// infinite where nothing fits.
fn filled(
    question: &Question<'_>,
    space: &Space<'_>,
    ways: &Options<'_>,
    compute: &Compute,
    read: usize,
) -> f64 {
    let (regions, reads) = (regions_within(question.limits.memory_bytes), ways.layer_reads(read));
    let read = &ways.reads[read];
    let room = ways.room(question.device, regions, compute, read, &space.prompts[0]);
    let interference = ways.interference(compute, read);
    let layer = |(layer, cached): (usize, &Vec<Cached>)| {
        let kept = |(cached, reads): (&Cached, &LayerReads)| {
            (cached.need, ways.seconds_with(compute, read, &interference, layer, cached, reads))
        };
        let mut all: Vec<Kept> = cached.iter().zip(&*reads[layer]).map(kept).collect();
        all.sort_by(|a, b| a.0.bytes().cmp(&b.0.bytes()).then(a.1.total_cmp(&b.1)));
        all
    };
    let layers: Vec<Vec<Kept>> = ways.cached.iter().enumerate().map(layer).collect();
    let mut steps: Vec<(f64, usize, usize)> = Vec::new();
    for (layer, all) in layers.iter().enumerate() {
        let mut at = 0;
        while let Some((gain, next)) = steepest(all, at) {
            steps.push((gain, layer, next));
            at = next;
        }
    }
    steps.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut chosen = vec![0; layers.len()];
    let mut need = layers.iter().fold(Need::default(), |sum, all| sum.with(all[0].0));
    if !room.fits(need) {
        return f64::INFINITY;
    }
    let mut open = vec![true; layers.len()];
    for (_, layer, next) in steps {
        let more = need.with(layers[layer][next].0).with(layers[layer][chosen[layer]].0.negated());
        open[layer] &= room.fits(more);
        if open[layer] {
            (need, chosen[layer]) = (more, next);
        }
    }
    while let Some((layer, next)) = any_gain(&layers, &chosen, need, room) {
        need = need.with(layers[layer][next].0).with(layers[layer][chosen[layer]].0.negated());
        chosen[layer] = next;
    }
    compute.serial + layers.iter().zip(&chosen).map(|(all, &at)| all[at].1).sum::<f64>()
}

/// What takes more bytes than `at` and gains most seconds for each of them.
fn steepest(all: &[Kept], at: usize) -> Option<(f64, usize)> {
    let (need, seconds) = all[at];
    let gain = |(next, kept): (usize, &Kept)| {
        ((seconds - kept.1) / (kept.0.bytes() - need.bytes()).max(1) as f64, next)
    };
    let later = all.iter().enumerate().skip(at + 1).map(gain).filter(|(gain, _)| *gain > 0.0);
    later.max_by(|a, b| a.0.total_cmp(&b.0))
}

/// The change of one layer that gains most and still fits.
fn any_gain(layers: &[Vec<Kept>], chosen: &[usize], need: Need, room: Room) -> Option<(usize, usize)> {
    let of_layer = |(layer, all): (usize, &Vec<Kept>)| {
        let now = all[chosen[layer]];
        let fits = |kept: &Kept| room.fits(need.with(kept.0).with(now.0.negated()));
        let better = all.iter().enumerate().filter(|(_, kept)| kept.1 < now.1 && fits(kept));
        let best = better.min_by(|a, b| a.1.1.total_cmp(&b.1.1))?;
        Some((now.1 - best.1.1, layer, best.0))
    };
    let gains = layers.iter().enumerate().filter_map(of_layer);
    gains.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, layer, next)| (layer, next))
}

/// How much slower what is found by filling up may be: where gains do not fall from byte to byte, the best is not found so.
const FILLED: f64 = 1.05;

/// The planner's plan is as fast as that of filling up all ways, or faster, and its bound is not above that. How many ways there were.
fn as_fast_as_filling_up(name: &str, inputs: &Inputs, request: &Request) -> usize {
    let (ways, seconds) = fastest_filled(&resolve(inputs, request).expect("a question"));
    let Answer::Plan(solved) = planner::plan(inputs, request).expect("an answer") else {
        panic!("{name}: no plan, but {seconds} s with {request:?}")
    };
    let planned = 1.0 / solved.plan.expected.decode_tokens_per_second;
    let alike = planned <= seconds * ALIKE && seconds <= planned * FILLED;
    assert!(alike, "{name}: {planned} s planned, {seconds} s found with {request:?}");
    assert!(
        solved.seconds_proven <= seconds * (1.0 + 1e-9),
        "{name}: {} is not below",
        solved.seconds_proven
    );
    ways
}

#[test]
#[ignore = "exhaustive: `make exhaustive`"]
fn filling_up_every_way_finds_nothing_faster() {
    let mut failures = Failures::default();
    for (name, inputs) in exhaustive_profiles() {
        let [low, high] = span(&inputs);
        for share in [0.02, 0.1, 0.25, 0.5, 0.8] {
            let memory_limit_bytes = Some((low + (high - low) * share) as u64);
            let here = Request { context_tokens: None, ..request(memory_limit_bytes) };
            failures.of(&format!("{name} at {share}"), || {
                as_fast_as_filling_up(&name, &inputs, &here);
            });
        }
        println!("{name}: filling up");
    }
    failures.end();
}

mod slow {
    use super::*;

    #[test]
    #[ignore = "minutes: make test-slow"]
    fn filling_up_every_way_of_one_core_and_level_finds_nothing_faster() {
        let mut ways = 0;
        for (name, inputs) in profiles() {
            let [low, high] = span(&inputs);
            let free = Request { context_tokens: None, ..request(Some((low + (high - low) * 0.3) as u64)) };
            let level = Some(plan(&inputs, &free).plan.quality.level.clone());
            let cores = Some(inputs.device.core_ids()[..1].to_vec());
            ways += as_fast_as_filling_up(&name, &inputs, &Request { level, cores, ..free });
        }
        assert!(ways > 1000, "{ways}");
    }
}
