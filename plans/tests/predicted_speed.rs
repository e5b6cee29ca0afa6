//! The predicted speed of committed plans: this file computes it again from the plan's terms, and checks how it follows the rates.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};

use plans::Plan;
use plans::expectation::{Stream, at, of};
use plans::file::read;
use plans::terms::{Factors, Terms, Work};

/// Plans have six digits of every part.
const DIGITS: f64 = 1e-4;

/// Every committed plan, by its file.
fn plans() -> Vec<(PathBuf, Plan)> {
    let folders = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let devices = folders(Path::new(env!("CARGO_MANIFEST_DIR")));
    let files = devices.iter().flat_map(|device| folders(device)).flat_map(|model| {
        let files = std::fs::read_dir(model).unwrap().map(|entry| entry.unwrap().path());
        files
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("plan-"))
            .collect::<Vec<_>>()
    });
    let plans: Vec<_> = files.map(|path| (path.clone(), read::<Plan>(&path).unwrap().value)).collect();
    assert!(plans.len() > 10, "only {}", plans.len());
    plans
}

/// A stage: the longer of computing and moving bytes, and what overlaps with nothing.
fn seconds(work: &Work) -> f64 {
    let longer = work.compute_seconds.max(work.stream_seconds + work.gather_seconds);
    longer + work.dispatch_seconds + work.serial_seconds + work.read_seconds
}

/// A token of a plan whose reads take no time: stage after stage, in every layer.
fn token_without_reads(plan: &Plan, terms: &Terms) -> f64 {
    let layers = plan.quality.always_on_neurons.len();
    let of = |list: &[f64], layer: usize| list.get(layer).copied().unwrap_or(0.0);
    let l = &terms.layers;
    let mut token = seconds(&terms.rest);
    for layer in 0..layers {
        let products = Work {
            compute_seconds: of(&l.gate_up_compute_seconds, layer),
            stream_seconds: of(&l.gate_up_stream_seconds, layer),
            gather_seconds: of(&l.gate_up_gather_seconds, layer),
            ..Work::default()
        };
        let down = Work {
            compute_seconds: of(&l.down_compute_seconds, layer),
            stream_seconds: of(&l.down_stream_seconds, layer),
            gather_seconds: of(&l.down_gather_seconds, layer),
            dispatch_seconds: of(&l.down_dispatch_seconds, layer),
            serial_seconds: of(&l.down_serial_seconds, layer),
            ..Work::default()
        };
        // threads wait half a cluster for the last one, the slowest one longest
        let requested = of(&l.requested_neurons, layer);
        let cluster = f64::from(plan.decode.cluster_neurons).min(requested) / requested.max(1.0);
        let others = terms.cores_over_slowest.unwrap_or(plan.decode.compute_cores.len() as f64) - 1.0;
        token += seconds(&terms.attention) + seconds(&terms.select);
        token +=
            seconds(&products) * (1.0 + others / 2.0 * cluster) + terms.dispatch_seconds + seconds(&down);
        if plan.read.look_ahead > 0 && layer + 1 < layers {
            token += seconds(&terms.look_ahead);
        }
    }
    token
}

#[test]
fn a_token_takes_as_long_as_its_stages_one_after_another_where_nothing_is_read() {
    for (path, plan) in plans() {
        let terms = plan.terms.as_ref().unwrap();
        let (of_parts, expected) =
            (terms.decode(&plan, &Factors::NONE, 0.0).constant, token_without_reads(&plan, terms));
        assert!((of_parts / expected - 1.0).abs() < 1e-9, "{}: {of_parts} for {expected}", path.display());
        // reads only ever add
        let (mean, double) = (
            terms.decode(&plan, &Factors::NONE, 1.0).constant,
            terms.decode(&plan, &Factors::NONE, 2.0).constant,
        );
        assert!(of_parts <= mean && mean <= double, "{}: {of_parts} {mean} {double}", path.display());
    }
}

#[test]
fn the_speed_of_a_plan_is_that_of_its_mean_token() {
    for (path, plan) in plans() {
        let (e, context) = (&plan.expected, f64::from(plan.context.tokens));
        // a prompt of 64 tokens, then 1024 tokens or as many as the context has room for
        let tokens = (context - 64.0).min(1024.0);
        let warm =
            e.decode_seconds_constant + e.decode_seconds_per_context_token * (64.0 + (tokens - 1.0) / 2.0);
        let cold = warm + e.decode_cold_start_seconds / tokens;
        let found = 1.0 / e.decode_tokens_per_second;
        assert!(
            found >= warm * (1.0 - DIGITS) && found <= cold * (1.0 + DIGITS),
            "{}: {found} s, warm {warm}, cold {cold}",
            path.display()
        );
        let parts = plan.terms.as_ref().unwrap().decode(&plan, &Factors::NONE, 1.0);
        for (of_parts, told) in [
            (parts.constant, e.decode_seconds_constant),
            (parts.per_context_token, e.decode_seconds_per_context_token),
        ] {
            assert!((of_parts / told - 1.0).abs() < DIGITS, "{}: {of_parts} for {told}", path.display());
        }
    }
}

/// A stream that meets warm slots, at the mean position of the measured run.
fn stream(plan: &Plan) -> Stream {
    Stream { prompted: true, ..Stream::measured(plan.context.tokens, 0.0) }
}

#[test]
fn a_machine_that_is_twice_as_fast_at_everything_decodes_twice_as_fast() {
    const TWICE: Factors =
        Factors { compute: 2.0, stream: 2.0, gather: 2.0, random_reads: 2.0, ordered_reads: 2.0 };
    for (path, plan) in plans() {
        let terms = plan.terms.as_ref().unwrap();
        let [now, then] = [Factors::NONE, TWICE].map(|f| terms.decode(&plan, &f, 0.0).constant);
        assert!((now / then - 2.0).abs() < 1e-9, "{}: {now} and {then}", path.display());
        // the CPU time of a read is no part of a rate, so that with reads it is less than twice
        let [now, then] =
            [Factors::NONE, TWICE].map(|f| at(&plan, &stream(&plan), &f).unwrap().tokens_per_second);
        assert!((1.0..=2.0 + 1e-9).contains(&(then / now)), "{}: {now} and {then}", path.display());
        assert!(then / now > 1.25, "{}: {now} and {then}", path.display());
        let told = of(&plan, &stream(&plan)).unwrap().tokens_per_second;
        assert!((now / told - 1.0).abs() < DIGITS, "{}: {now} and {told}", path.display());
    }
}

#[test]
fn no_plan_decodes_slower_on_a_machine_that_is_faster_at_one_thing() {
    type Faster = fn(f64) -> Factors;
    let each: [(&str, Faster); 4] = [
        ("compute", |compute| Factors { compute, ..Factors::NONE }),
        ("stream", |stream| Factors { stream, ..Factors::NONE }),
        ("gather", |gather| Factors { gather, ..Factors::NONE }),
        ("reads", |reads| Factors { random_reads: reads, ordered_reads: reads, ..Factors::NONE }),
    ];
    for (path, plan) in plans() {
        let mut matters = false;
        for (name, faster) in each {
            let speeds = [0.25, 0.5, 1.0, 2.0, 4.0]
                .map(|times| at(&plan, &stream(&plan), &faster(times)).unwrap().tokens_per_second);
            assert!(speeds.is_sorted(), "{}: {name} {speeds:?}", path.display());
            matters |= speeds[4] > 1.5 * speeds[0];
        }
        assert!(matters, "{}: no rate matters", path.display());
    }
}
