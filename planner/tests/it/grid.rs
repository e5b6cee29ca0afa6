//! What holds on every committed device and model, over grids of limits. The sample runs with the suite; `make exhaustive`
//! runs the grid in steps of a percent.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use planner::branch::OPEN;
use planner::presolve::Presolve;
use planner::question::DIGITS;
use planner::request::resolve;
use planner::split::CLOSE;
use planner::{Answer, Inputs, Solved, plan};
use plans::model::{Level, LevelKind};
use plans::plan::{Objective, Request};

/// How much faster than a plan another one within its limits may be: it counts as alike with the fastest that was found, the
/// search and its split leave something open, and six digits of both are printed.
pub(crate) const ALIKE: f64 =
    (1.0 + PART) * (1.0 + 1.0 / OPEN as f64) * (1.0 + 1.0 / CLOSE as f64) * DIGITS * DIGITS;
/// The optimality gap: of the time of a token or of the memory, and where prompts are limited.
const GAP: f64 = 0.01;
const GAP_OF_PROMPTS: f64 = 0.02;
/// How much smaller than a plan of least memory another one may be.
const AS_SMALL: f64 = 1.0 + GAP;
/// The part within which plans are alike.
const PART: f64 = 1.0 / planner::candidate::TIE as f64;
/// Configurations that are priced layer by layer at most, of a hundred thousand.
const PRICED_MAX: usize = 200;

/// Every committed device with its model.
pub(crate) fn profiles() -> Vec<(String, Inputs)> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../plans");
    let folders = |path: PathBuf| {
        let entries = std::fs::read_dir(path).expect("a folder").map(|entry| entry.expect("an entry").path());
        entries.filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let models = folders(root).into_iter().flat_map(folders).filter(|path| path.join("device.toml").exists());
    let mut found: Vec<(String, Inputs)> = models
        .map(|path| {
            let inputs = planner::read_inputs(&path.join("device.toml"), &path.join("model.toml"));
            let mut inputs = inputs.expect("profiles");
            // generated weights know no text, so that rounding loses what it may: here the dense level loses nothing
            let generated =
                |level: &&mut Level| level.kind == LevelKind::Dense && level.loss_bound_fraction() > 0.01;
            for level in inputs.model.levels.iter_mut().filter(generated) {
                level.perplexity_change_fraction = 0.0;
                level.perplexity_change_fraction_upper = Some(0.0);
            }
            (path.display().to_string(), inputs)
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(found.len() >= 7, "{}", found.len());
    found
}

/// Those of `make exhaustive`: all, or those whose folders contain what `PROFILES` says.
pub(crate) fn exhaustive_profiles() -> Vec<(String, Inputs)> {
    let wanted = std::env::var("PROFILES").unwrap_or_default();
    let mut found = profiles();
    found.retain(|(name, _)| name.contains(&wanted));
    assert!(!found.is_empty(), "no profile's folder contains PROFILES={wanted}");
    found
}

/// What goes wrong on a grid that takes hours: all of it is told, not only the first.
#[derive(Default)]
pub(crate) struct Failures {
    checks: usize,
    failed: Vec<String>,
}

impl Failures {
    /// One of the checks, which panics if it fails.
    pub(crate) fn of(&mut self, place: &str, check: impl FnOnce()) {
        self.checks += 1;
        if catch_unwind(AssertUnwindSafe(check)).is_err() {
            self.failed.push(place.to_owned());
        }
    }

    /// Panics where one has failed; what it said is above.
    pub(crate) fn end(self) {
        let Self { checks, failed } = self;
        assert!(failed.is_empty(), "{} of {checks} failed: {failed:#?}", failed.len());
    }
}

/// The committed profiles of a device and a model.
fn profile(folder: &str) -> (String, Inputs) {
    let mut profiles = profiles();
    let place = profiles.iter().position(|(name, _)| name.ends_with(folder)).expect("committed profiles");
    profiles.swap_remove(place)
}

fn request(memory_limit_bytes: u64) -> Request {
    Request { context_tokens: None, ..crate::small::request(Some(memory_limit_bytes)) }
}

fn solved(inputs: &Inputs, request: &Request) -> Option<Box<Solved>> {
    match plan(inputs, request).expect("a sensible request") {
        Answer::Plan(solved) => Some(solved),
        Answer::Infeasible(_) => None,
    }
}

fn speed(solved: &Solved) -> f64 {
    solved.plan.expected.decode_tokens_per_second
}

/// Everything that a plan promises about requests that are restrictions of its own, or looser.
fn promises(name: &str, inputs: &Inputs, request: &Request) {
    let Some(free) = solved(inputs, request) else { return };
    let (fast, memory) = (speed(&free), request.memory_limit_bytes.expect("a limit"));
    let here = format!("{name} at {memory} bytes: {fast} tok/s");
    assert!(fast <= 1.00001 / free.seconds_proven, "{here}: proven {}", 1.0 / free.seconds_proven);
    assert!(fast >= free.plan.simple_rule.decode_tokens_per_second, "{here}: the simple rule is faster");
    assert!(free.gap() <= GAP, "{here}: a gap of {}", free.gap());
    assert!(free.priced <= PRICED_MAX, "{here}: {} ways priced", free.priced);
    let never_faster = |other: Option<Box<Solved>>, what: &str| {
        let other = other.map_or(0.0, |other| speed(&other));
        assert!(other <= fast * ALIKE, "{here}: {other} with {what}");
        other
    };
    let level = Request { level: Some(free.plan.quality.level.clone()), ..request.clone() };
    let same = never_faster(solved(inputs, &level), "its own level");
    assert!(same * ALIKE >= fast, "{here}: {same} with its own level");
    let cores = Request { cores: Some(inputs.device.core_ids()[..1].to_vec()), ..request.clone() };
    never_faster(solved(inputs, &cores), "one core");
    let lossless = Request { perplexity_change_fraction_max: 0.0, ..request.clone() };
    never_faster(solved(inputs, &lossless), "no loss");
    let asked = Request { decode_tokens_per_second_min: Some(fast), ..request.clone() };
    never_faster(Some(solved(inputs, &asked).expect("its own speed")), "its own speed requested");
    keeps_its_own_prompts(&here, inputs, request, &free, &PROMPTS);
    let less = Request { memory_limit_bytes: Some(memory / 100 * 99), ..request.clone() };
    never_faster(solved(inputs, &less), "a percent less memory");
}

/// What is asked of prompts: such a part of a plan's prefill speed, by `--max-ttft` instead of `--min-prefill`, and its speed besides.
type Prompts = (f64, bool, bool);

/// All of these that are tried.
const PROMPTS: [Prompts; 5] =
    [(1.0, false, false), (1.0, true, true), (1.0, false, true), (1.0, true, false), (0.9, false, false)];

/// Where prompts must be as fast as those of a plan, or may be slower, there is one that is as fast as it; and where its speed is asked
/// for besides, that is kept, too.
fn keeps_its_own_prompts(here: &str, inputs: &Inputs, request: &Request, free: &Solved, all: &[Prompts]) {
    let (fast, prefill) = (speed(free), free.plan.expected.prefill_tokens_per_second);
    let prompt = plans::plan::measured_run(free.plan.context.tokens).0;
    for &(part, by_seconds, with_speed) in all {
        let rate = plans::file::significant(prefill * part);
        let floor = with_speed.then_some(fast);
        let mut asked = Request { decode_tokens_per_second_min: floor, ..request.clone() };
        if by_seconds {
            // both were rounded to six digits
            let seconds = f64::from(prompt) / rate * DIGITS * DIGITS;
            asked.first_token_seconds_max = Some(plans::file::significant(seconds));
            asked.prompt_tokens = Some(prompt);
        } else {
            asked.prefill_tokens_per_second_min = Some(rate);
        }
        let kept = solved(inputs, &asked).unwrap_or_else(|| panic!("{here}: no plan for {asked:?}"));
        assert!(kept.gap() <= GAP_OF_PROMPTS, "{here}: a gap of {} with {asked:?}", kept.gap());
        let reached = kept.plan.expected.prefill_tokens_per_second;
        let rounded = if by_seconds { DIGITS * DIGITS * DIGITS } else { 1.0 };
        assert!(reached * rounded >= rate, "{here}: {reached} with {asked:?}");
        assert!(floor.is_none_or(|floor| speed(&kept) >= floor), "{here}: {} with {asked:?}", speed(&kept));
        let alike = speed(&kept) * ALIKE >= fast && speed(&kept) <= fast * ALIKE;
        assert!(alike, "{here}: {} with {asked:?}", speed(&kept));
    }
}

/// No plan is slower than the simple rule that is printed beside it, be prompts limited or not. How many of these requests have
/// both.
fn never_beaten(name: &str, inputs: &Inputs, memory: u64) -> usize {
    let here = request(memory);
    let Some(free) = solved(inputs, &here) else { return 0 };
    let prompts = free.plan.expected.prefill_tokens_per_second;
    let limited = [0.7, 0.95, 1.0, 1.1].map(|times| Request {
        prefill_tokens_per_second_min: Some(plans::file::significant(prompts * times)),
        ..here.clone()
    });
    let printed = |solved: &Solved| {
        let (fast, simple) = (speed(solved), solved.plan.simple_rule.decode_tokens_per_second);
        assert!(
            fast >= simple,
            "{name} at {memory} bytes: {fast} tok/s, the simple rule {simple}: {:?}",
            solved.plan.request
        );
        simple > 0.0
    };
    let limited = limited.iter().filter_map(|request| solved(inputs, request));
    std::iter::once(free).chain(limited).filter(|solved| printed(solved)).count()
}

/// A plan of least memory is found again under its own size.
fn found_again(name: &str, inputs: &Inputs, floor: f64) {
    let wanted = Request {
        objective: Objective::Memory,
        memory_limit_bytes: None,
        decode_tokens_per_second_min: Some(floor),
        ..request(1)
    };
    let Some(least) = solved(inputs, &wanted) else { return };
    assert!(least.gap() <= GAP, "{name}: a gap of {} at {floor} tok/s", least.gap());
    let own = least.plan.memory.prefill_total_bytes;
    let again = Request { decode_tokens_per_second_min: Some(floor), ..request(own) };
    let again = solved(inputs, &again)
        .unwrap_or_else(|| panic!("{name}: {floor} tok/s are not found in {own} bytes"));
    assert!(again.plan.memory.prefill_total_bytes <= own, "{name}");
}

/// Speeds of requests each of which allows what the one before it does: none is below one before it, but for ties.
fn rising(what: &str, inputs: &Inputs, requests: impl Iterator<Item = Request>) {
    let mut best = 0.0f64;
    for request in requests {
        let fast = solved(inputs, &request).map_or(0.0, |solved| speed(&solved));
        assert!(fast * ALIKE >= best, "{what}: {fast} after {best}: {request:?}");
        best = best.max(fast);
    }
}

/// With more cores, more loss and less context, in so many steps each, no plan is slower; and with more context none is smaller.
fn looser_is_never_slower(name: &str, inputs: &Inputs, memory: u64, steps: u32) {
    let here = request(memory);
    let cores = inputs.device.core_ids();
    let some = |n: usize| Request { cores: Some(cores[..n].to_vec()), ..here.clone() };
    rising(&format!("{name} at {memory}, cores"), inputs, (1..=cores.len()).map(some));
    let most = inputs.model.levels.iter().map(Level::loss_bound_fraction).fold(0.0, f64::max);
    let loss = |step: u32| Request {
        perplexity_change_fraction_max: plans::file::significant(
            1.01 * most * f64::from(step) / f64::from(steps),
        ),
        ..here.clone()
    };
    rising(&format!("{name} at {memory}, loss"), inputs, (0..=steps).map(loss));

    // the run whose speed is planned is the same from some context on
    let longest = inputs.model.architecture.context;
    let run = |context| plans::plan::measured_run(context);
    let contexts: Vec<u32> = (1..=steps).map(|step| (longest / steps * step).max(2)).collect();
    let of = |&context: &u32| Request { context_tokens: Some(context), ..here.clone() };
    let alike = contexts.iter().rev().filter(|&&context| run(context) == run(longest));
    rising(&format!("{name} at {memory}, context"), inputs, alike.map(of));
    let least = |context: u32| {
        let wanted = Request {
            objective: Objective::Memory,
            memory_limit_bytes: None,
            context_tokens: Some(context),
            ..request(1)
        };
        solved(inputs, &wanted).map_or(f64::INFINITY, |least| least.plan.memory.prefill_total_bytes as f64)
    };
    let least: Vec<f64> = contexts.iter().map(|&context| least(context)).collect();
    assert!(least.windows(2).all(|pair| pair[0] <= pair[1] * AS_SMALL), "{name}, least memory: {least:?}");
}

/// Requests within so much memory that ask for too much, in all ways: most have no plan.
fn too_much(inputs: &Inputs, memory: u64) -> Vec<Request> {
    let here = request(memory);
    let mut all = vec![
        Request { memory_limit_bytes: Some(memory / 2), ..here.clone() },
        Request { context_tokens: Some(inputs.model.architecture.context), ..request(memory / 2) },
    ];
    let Some(free) = solved(inputs, &here) else { return all };
    let (fast, prompts) = (speed(&free), free.plan.expected.prefill_tokens_per_second);
    let one = Some(inputs.device.core_ids()[..1].to_vec());
    for times in [1.01, 1.2, 1e3] {
        let decode_tokens_per_second_min = Some(plans::file::significant(fast * times));
        let floor = Request { decode_tokens_per_second_min, ..here.clone() };
        all.push(Request { cores: one.clone(), ..floor.clone() });
        all.push(Request { perplexity_change_fraction_max: 0.0, ..floor.clone() });
        all.push(floor);
    }
    for times in [1.01, 1.5, 1e3] {
        let prefill_tokens_per_second_min = Some(plans::file::significant(prompts * times));
        let floor = Request { prefill_tokens_per_second_min, ..here.clone() };
        all.push(Request { decode_tokens_per_second_min: Some(fast * 0.9), ..floor.clone() });
        all.push(Request { cores: one.clone(), ..floor.clone() });
        all.push(floor);
    }
    let prompt_tokens = Some(200.min(inputs.model.architecture.context / 2));
    for times in [0.5, 0.1] {
        let first_token_seconds_max = Some(64.0 / prompts * times);
        all.push(Request { first_token_seconds_max, prompt_tokens, ..here.clone() });
    }
    all
}

/// How many of every so many of these requests are refused: each refusal is to the point, and what it offers is accepted.
fn refusals_are_true(inputs: &Inputs, memory: u64, every: usize) -> usize {
    let all = too_much(inputs, memory).into_iter().step_by(every);
    all.filter(|request| crate::explains::refused(inputs, request)).count()
}

/// The limits between which memory matters for a model.
pub(crate) fn span(inputs: &Inputs) -> [f64; 2] {
    let smallest = Request { objective: Objective::Memory, memory_limit_bytes: None, ..request(1) };
    let low = solved(inputs, &smallest).expect("the smallest plan").plan.memory.prefill_total_bytes as f64;
    let parts = &inputs.model.parts;
    let neurons = inputs.model.architecture.neurons() * u64::from(inputs.model.architecture.layers);
    [
        low,
        (low + (neurons * parts.bundle.bundle_bytes()) as f64)
            .min(inputs.device.capacity.plannable_bytes() as f64),
    ]
}

/// Committed profiles: fixtures, a phone's 47B and 7B, and a mixture of 30B whose experts are read whole.
const DENSE: &str = "amd-epyc-2c-24g/oxide-dense";
const PHONE: &str = "oneplus-12/turbosparse-mixtral-47b";
const PHONE_7B: &str = "oneplus-ace-2/turbosparse-mistral-7b";
const WHOLE_EXPERTS: &str = "intel-xeon-2c-24g/qwen3-30b-a3b";

#[test]
fn plans_keep_their_promises_at_a_sample_of_limits() {
    for (folder, share, speed) in [(DENSE, 0.6, 900.0), (PHONE, 0.3, 4.0), (WHOLE_EXPERTS, 0.3, 2.0)] {
        let (name, inputs) = profile(folder);
        let [low, high] = span(&inputs);
        promises(&name, &inputs, &request((low + (high - low) * share) as u64));
        found_again(&name, &inputs, speed);
    }
}

#[test]
#[ignore = "exhaustive: `make exhaustive`"]
fn no_plan_is_beaten_by_the_simple_rule_on_the_whole_grid() {
    let mut failures = Failures::default();
    for (name, inputs) in exhaustive_profiles() {
        let [low, high] = span(&inputs);
        let mut both = 0;
        for percent in 0..=100 {
            let memory = (low + (high - low) * f64::from(percent) / 100.0) as u64;
            failures.of(&format!("{name} at {percent} %"), || both += never_beaten(&name, &inputs, memory));
        }
        println!("{name}: {both} plans beside a simple rule");
    }
    failures.end();
}

#[test]
fn looser_limits_are_never_slower_at_a_sample_of_limits() {
    let (name, inputs) = &profile("intel-xeon-2c-24g/oxide-dense");
    let [low, high] = span(inputs);
    looser_is_never_slower(name, inputs, (low + (high - low) * 0.4) as u64, 4);
}

#[test]
#[ignore = "exhaustive: `make exhaustive`"]
fn looser_limits_are_never_slower_on_the_whole_grid() {
    let mut failures = Failures::default();
    for (name, inputs) in exhaustive_profiles() {
        let [low, high] = span(&inputs);
        for percent in (2..=100).step_by(7) {
            let memory = (low + (high - low) * f64::from(percent) / 100.0) as u64;
            failures.of(&format!("{name} at {percent} %"), || {
                looser_is_never_slower(&name, &inputs, memory, 16);
            });
        }
        println!("{name}: cores, loss and context");
    }
    failures.end();
}

#[test]
#[ignore = "exhaustive: `make exhaustive`"]
fn refusals_are_to_the_point_and_their_offers_accepted_on_the_whole_grid() {
    let mut failures = Failures::default();
    for (name, inputs) in exhaustive_profiles() {
        let [low, high] = span(&inputs);
        for percent in (2..=100).step_by(7) {
            let memory = (low + (high - low) * f64::from(percent) / 100.0) as u64;
            failures.of(&format!("{name} at {percent} %"), || {
                let refused = refusals_are_true(&inputs, memory, 1);
                println!("{name} at {percent} %: {refused} refusals");
                assert!(refused > 8);
            });
        }
    }
    failures.end();
}

/// The work of a request, in numbers that depend on nothing but the request: relaxations that are solved, each of which prices some
/// thousand ways of caching, and configurations priced layer by layer.
#[test]
fn small_models_with_many_reads_and_devices_of_many_cores_take_little_work() {
    let zen5 = "amd-epyc-zen5-2c-24g/oxide-dense";
    for (folder, cores, limit, [relaxed, priced]) in [
        (zen5, 0, 22 << 20, [3_000, 20]),
        (zen5, 0, 25 << 20, [4_000, 20]),
        (zen5, 128, 22 << 20, [20_000, 20]),
        (PHONE, 0, 12 << 30, [1_000, 20]),
        (PHONE, 128, 12 << 30, [10_000, 50]),
    ] {
        let (name, mut inputs) = profile(folder);
        if cores > 0 {
            crate::wide::widen(&mut inputs, cores);
        }
        let request = request(limit);
        let question = resolve(&inputs, &request).expect("a question");
        let space = Presolve::new(&question);
        assert!(planner::search::best_in(&question, &space).expect("an answer").is_some());
        let work = space.work();
        assert!(
            work.relaxed <= relaxed && work.priced <= priced,
            "{name} with {cores} cores at {limit}: {work:?}"
        );
    }
}

/// The work of a refusal, in the space of its request.
#[test]
fn refusals_take_little_work() {
    let [dense, moe] = ["amd-epyc-zen5-2c-24g/oxide-dense", "amd-epyc-zen5-2c-24g/oxide-moe"];
    let speed = |speed| Request { decode_tokens_per_second_min: Some(speed), ..Request::default() };
    let prompts = |rate| Request { prefill_tokens_per_second_min: Some(rate), ..Request::default() };
    for (folder, cores, limit, asked, relaxed) in [
        (moe, 0, 24 << 20, speed(99_999.0), 5_000),
        (dense, 0, 26 << 20, speed(99_999.0), 8_000),
        (dense, 0, 26_000_000, speed(712.3), 8_000),
        (dense, 0, 25_000_000, prompts(1e7), 5_000),
        (dense, 128, 25_000_000, prompts(1e7), 12_000),
    ] {
        let (name, mut inputs) = profile(folder);
        if cores > 0 {
            crate::wide::widen(&mut inputs, cores);
        }
        let asked = Request { memory_limit_bytes: Some(limit), ..asked };
        let question = resolve(&inputs, &asked).expect("a question");
        let space = Presolve::new(&question);
        assert!(planner::search::best_in(&question, &space).expect("an answer").is_none(), "{name}");
        planner::explain::explain(&question, &space).expect("a core");
        let work = space.work();
        assert!(work.relaxed <= relaxed, "{name} with {cores} cores at {limit}: {work:?}");
    }
}

/// Where prompts are limited so many ways are looked into: with sixteen times as many cores, which may be left idle, a plan is slower by a fiftieth at most.
#[test]
fn a_limit_on_prompts_costs_a_device_of_many_cores_little_more_than_one_of_few() {
    let (_, few) = profile(PHONE);
    let (_, mut many) = profile(PHONE);
    crate::wide::widen(&mut many, 128);
    for (limit, prefill) in [(8 << 30, 3.0), (8 << 30, 9.5), (12 << 30, 6.0), (12 << 30, 9.5)] {
        let asked = Request { prefill_tokens_per_second_min: Some(prefill), ..request(limit) };
        let speed = |inputs| solved(inputs, &asked).expect("a plan").plan.expected.decode_tokens_per_second;
        let (few, many) = (speed(&few), speed(&many));
        assert!(many >= 0.98 * few, "{limit} {prefill}: {many} of {few}");
    }
}

#[test]
fn what_was_wrong_once_stays_right() {
    let (name, inputs) = &profile(DENSE);
    // 1038.8 tok/s with a bound of 1052 that 1757 broke: 1739 at the prices of today
    let at = |mib: f64| speed(&solved(inputs, &request((mib * f64::from(1 << 20)) as u64)).expect("a plan"));
    let (less, more) = (at(25.1), at(25.2));
    assert!(more >= 1739.0 && less >= 1400.0 && less <= more * ALIKE, "{less} and {more}");
    // with the prefill speed of the plan without, 349.0 tok/s instead of 399.6; and with 390 tok/s besides a false no. Since the
    // curves of flash are monotone, which this device's were not, it is 386.3; and 379.6 since reads of bundles that share pages are
    // counted by their places
    let free = solved(inputs, &request(23_592_960)).expect("a plan");
    keeps_its_own_prompts(&format!("{name} at 22.5 MiB"), inputs, &request(23_592_960), &free, &PROMPTS);
    assert!(speed(&free) > 379.0, "{}", speed(&free));
    // 0.72 % slower than the same with the level that it had chosen: a prompt's rows bind where no neuron has a slot
    for bytes in [19_158_794, 20_432_814, 23_592_960] {
        let free = solved(inputs, &request(bytes)).expect("a plan");
        for level in ["dense", &free.plan.quality.level] {
            let held = solved(inputs, &Request { level: Some(level.to_owned()), ..request(bytes) });
            let held = held.expect("a plan");
            assert!(
                speed(&free) * ALIKE >= speed(&held),
                "{bytes} bytes, {level}: {} and {}",
                speed(&free),
                speed(&held)
            );
        }
    }
    // two neurons of each layer were left to be read, since who read nothing was taken to wake up after a wait: 3626 tok/s
    let (name, inputs) = &profile("amd-epyc-zen5-2c-24g/oxide-moe");
    let all = solved(inputs, &request(40 << 20)).expect("a plan").plan;
    let (hits, speed_of_all) = (all.expected.hit_fraction, all.expected.decode_tokens_per_second);
    assert!(hits == 1.0 && speed_of_all > 4200.0, "{name} in 40 MiB: {hits} in memory, {speed_of_all} tok/s");
    // the speed of a plan, or that of its prompts, or both, were refused when they were asked for; or cost a hundredth
    for (folder, bytes) in [
        (DENSE, 20_751_319),
        ("amd-epyc-zen5-2c-24g/oxide-dense", 31_026_975),
        ("amd-epyc-zen5-2c-24g/oxide-dense", 32_723_944),
        ("amd-epyc-zen5-2c-24g/mistral-7b", 3_690_052_321),
        ("oneplus-12/qwen3-30b-a3b", 14_028_852_428),
    ] {
        let (name, inputs) = &profile(folder);
        let free = solved(inputs, &request(bytes)).expect("a plan");
        let own = Request { decode_tokens_per_second_min: Some(speed(&free)), ..request(bytes) };
        let own = solved(inputs, &own).unwrap_or_else(|| panic!("{name} at {bytes}: its own speed"));
        assert!(speed(&own) >= speed(&free), "{name} at {bytes}");
        keeps_its_own_prompts(&format!("{name} at {bytes}"), inputs, &request(bytes), &free, &PROMPTS[..2]);
    }
    // what was offered for 5 tok/s was then refused
    let (_, phone) = &profile(PHONE);
    let limits = Request { decode_tokens_per_second_min: Some(5.0), ..request(7 << 30) };
    let Answer::Infeasible(why) = plan(phone, &limits).expect("an answer") else {
        panic!("5 tok/s in 7 GiB")
    };
    let offer =
        why.sentences.iter().find_map(|sentence| sentence.strip_prefix("5 tok/s needs ")).expect("an offer");
    let offer = plans::size::parse(offer).expect("a size");
    assert!(solved(phone, &Request { memory_limit_bytes: Some(offer), ..limits }).is_some(), "{why}");
}

/// Where a single split keeps a prompt's limit, it is found: the prefill speed of a plan that pins all that fits could not be
/// asked for.
#[test]
fn the_prefill_speed_of_a_plan_can_be_asked_for_where_nothing_is_left_over() {
    let (_, inputs) = &profile(PHONE_7B);
    for mib in [1410, 1420, 1440] {
        let here = request(mib << 20);
        let free = solved(inputs, &here).expect("a plan");
        let prefill_tokens_per_second_min = Some(free.plan.expected.prefill_tokens_per_second);
        let asked = solved(inputs, &Request { prefill_tokens_per_second_min, ..here });
        let asked = asked.unwrap_or_else(|| panic!("{prefill_tokens_per_second_min:?} in {mib} MiB"));
        assert!(speed(&asked) * ALIKE >= speed(&free), "{mib} MiB");
    }
}

/// The prompts need nearly all memory pinned. Without prompts in the bounds of nodes: 13.2 tok/s with a gap of 34 %, and in the second
/// case 177 %.
#[test]
fn limits_on_prompts_that_take_most_memory_leave_a_small_gap() {
    let (_, inputs) = &profile(PHONE_7B);
    for (bytes, prefill, least, gap) in [(4_299_853_987, 83.044, 16.2, 0.02), (3 << 30, 40.0, 5.55, 0.04)] {
        let asked = Request { prefill_tokens_per_second_min: Some(prefill), ..request(bytes) };
        let solved = solved(inputs, &asked).expect("a plan");
        assert!(speed(&solved) >= least && solved.gap() <= gap, "{}, {}", speed(&solved), solved.gap());
    }
}

/// The grid of `make exhaustive`: hours on a small machine.
#[test]
#[ignore = "exhaustive: `make exhaustive`"]
fn plans_keep_their_promises_on_the_whole_grid() {
    let mut failures = Failures::default();
    for (name, inputs) in exhaustive_profiles() {
        let [low, high] = span(&inputs);
        for percent in 0..=100 {
            let memory = low + (high - low) * f64::from(percent) / 100.0;
            failures.of(&format!("{name} at {percent} %"), || {
                promises(&name, &inputs, &request(memory as u64));
            });
        }
        let fast = solved(&inputs, &request(high as u64)).map_or(1.0, |solved| speed(&solved));
        for percent in (1..100).step_by(3) {
            failures.of(&format!("{name} at {percent} % of {fast} tok/s"), || {
                found_again(&name, &inputs, fast * f64::from(percent) / 100.0);
            });
        }
        println!("{name}: promises");
    }
    failures.end();
}

mod slow {
    use super::*;

    #[test]
    #[ignore = "minutes: make test-slow"]
    fn limits_on_prompts_that_a_plan_keeps_make_it_no_slower() {
        let shares = [0.03, 0.15, 0.3, 0.45, 0.6, 0.75, 0.1, 0.4];
        for ((name, inputs), share) in profiles().into_iter().zip(shares.into_iter().cycle()) {
            let [low, high] = span(&inputs);
            let request = request((low + (high - low) * share) as u64);
            let free = solved(&inputs, &request).unwrap_or_else(|| panic!("{name}: no plan at {share}"));
            keeps_its_own_prompts(&format!("{name} at {share}"), &inputs, &request, &free, &PROMPTS[..2]);
        }
    }

    #[test]
    #[ignore = "minutes: make test-slow"]
    fn no_plan_is_beaten_by_the_simple_rule_on_a_fine_grid() {
        let inputs = crate::small::inputs(3);
        let [low, high] = span(&inputs);
        let at = |step: u32| (low + (high - low) * f64::from(step) / 100.0) as u64;
        let both: usize = (0..100).step_by(4).map(|step| never_beaten("small", &inputs, at(step))).sum();
        assert!(both > 60, "{both}");
        for (name, inputs) in [PHONE, PHONE_7B, WHOLE_EXPERTS].map(profile) {
            let [low, high] = span(&inputs);
            assert!(never_beaten(&name, &inputs, (low + (high - low) * 0.35) as u64) > 0, "{name}");
        }
    }

    #[test]
    #[ignore = "minutes: make test-slow"]
    fn refusals_are_to_the_point_and_their_offers_accepted_at_a_sample_of_limits() {
        let mixture = "amd-epyc-zen5-2c-24g/oxide-moe";
        for (folder, share) in [(DENSE, 0.5), (mixture, 0.2), (PHONE, 0.9), (WHOLE_EXPERTS, 0.5)] {
            let (name, inputs) = profile(folder);
            let [low, high] = span(&inputs);
            let memory = (low + (high - low) * share) as u64;
            let refused = refusals_are_true(&inputs, memory, 5);
            assert!(refused >= 2, "{name} at {memory}: {refused} refusals");
        }
    }
}
