//! Guarantees for embedders: refusals, positions, stops, and unpinned caller threads.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use plans::Device;
use platform::affinity::CoreSet;

use super::*;
use crate::engine::{EngineExt as _, start_beside};
use crate::error::Mismatch;
use crate::machine::Machine;
use crate::model::gguf::Gguf;
use crate::model::source::SourceModel;
use crate::open::Model;
use crate::plan::{Plan, contract};
use crate::pooling::Pooling;
use crate::transformer::Aside;
use crate::transformer::tests::unit::{PlainUnit, share};
use crate::transformer::tests::{Knobs, TOKENS, container, model, plan};

mod owned;

/// A model of random weights and a plan for it on this machine, in files of `folder`.
fn files(folder: &Path, change: impl FnOnce(&mut plans::Plan)) -> (Model, Plan) {
    let bytes = model(1, kernels::Format::F32);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let knobs = Knobs { hot: 3, cold: 5, ..Knobs::default() };
    files_of(folder, &source, "sign", &knobs, change)
}

/// A plan for a model on this machine.
fn files_of(
    folder: &Path,
    source: &SourceModel<'_>,
    level: &str,
    knobs: &Knobs,
    change: impl FnOnce(&mut plans::Plan),
) -> (Model, Plan) {
    let container = container(folder, source);
    let mut plan = plan(&container, level, knobs);
    let here = Machine::here(folder).unwrap().identity();
    let t = &mut plan.target;
    t.device_fingerprint = Device::fingerprint_of(&here);
    (t.cpu, t.ram_gib, t.storage) = (here.cpu, here.ram_gib, here.storage);
    t.model_fingerprint.clone_from(&container.directory.source_fingerprint);
    t.container_fingerprint.clone_from(&container.fingerprint);
    change(&mut plan);
    let path = folder.join("plan.toml");
    plans::file::write(&plan, &path).unwrap();
    let plan = Plan::read(&path).unwrap();
    (Model::open_for(&plan).unwrap(), plan)
}

fn engine(change: impl FnOnce(&mut plans::Plan)) -> Result<Engine, Error> {
    let folder = tempfile::tempdir().unwrap();
    let (model, plan) = files(folder.path(), change);
    Engine::start(&model, &plan)
}

/// A quarter for the CPU.
fn shared() -> Vec<plans::plan::UnitShare> {
    let share = |unit: &str, share_fraction| plans::plan::UnitShare { unit: unit.to_owned(), share_fraction };
    vec![share("cpu", 0.25), share("npu", 0.75)]
}

#[test]
fn a_plan_for_something_else_never_starts_and_says_what_differs() {
    type Change = fn(&mut plans::Plan);
    let changes: [(Change, &str); 7] = [
        (|plan| plan.target.model_fingerprint = "0".repeat(32), "for the model test"),
        (|plan| plan.target.container_fingerprint = "0".repeat(32), "for the container 000000000000"),
        (|plan| plan.target.cpu = "Z80".to_owned(), "the processor `Z80`"),
        (|plan| plan.target.ram_gib += 1, "GiB of memory"),
        (|plan| plan.target.storage = "tape".to_owned(), "the block device `tape`"),
        (|plan| plan.target.device_fingerprint = "0".repeat(32), "the device with fingerprint"),
        (|plan| plan.prefill.units = shared(), "it gives 75 % of prompts to the npu"),
    ];
    for (change, says) in changes {
        let error = engine(change).unwrap_err();
        assert!(matches!(error, Error::DoesNotFit(_)), "{error:?}");
        assert!(error.to_string().contains(says), "{error}");
    }
    // a sum that contradicts its parts
    let error = engine(|plan| plan.context.tokens -= 8).unwrap_err();
    assert!(matches!(error, Error::DoesNotFit(Mismatch::Key { key: "memory.kv_bytes", .. })), "{error:?}");
    assert!(engine(|_| ()).is_ok());
}

#[test]
fn a_prompt_in_parts_is_the_prompt_and_decoding_goes_on_after_it() {
    let engine = engine(|_| ()).unwrap();
    let mut session = engine.session().unwrap();
    let whole = session.prefill(&TOKENS).unwrap().to_vec();
    let next = session.decode(7).unwrap().to_vec();
    assert_eq!(session.position(), TOKENS.len() + 1);
    for cut in [1, 5, 8, 11] {
        session.reset();
        session.prefill(&TOKENS[..cut]).unwrap();
        assert_eq!(session.prefill(&TOKENS[cut..]).unwrap(), whole, "cut at {cut}");
        assert_eq!(session.decode(7).unwrap(), next);
    }
    let mut each = Vec::new();
    session.reset();
    session.prefill_each(&TOKENS, |index, logits| each.push((index, logits.to_vec()))).unwrap();
    assert_eq!(each.len(), TOKENS.len());
    assert_eq!(each.last().unwrap(), &(TOKENS.len() - 1, whole));
}

#[test]
fn what_is_rewound_leaves_no_trace() {
    let engine = engine(|_| ()).unwrap();
    let mut session = engine.session().unwrap();
    // a conversation with a discarded answer, and one without
    let told = |session: &mut Session| {
        session.prefill(&TOKENS[6..]).unwrap();
        [4, 2].map(|token| session.decode(token).unwrap().to_vec())
    };
    session.prefill(&TOKENS[..6]).unwrap();
    session.decode(7).unwrap();
    let expected = told(&mut session);
    session.reset();
    session.prefill(&TOKENS[..6]).unwrap();
    session.decode(7).unwrap();
    let kept = session.position();
    session.prefill(&[9, 8, 7, 6, 5]).unwrap();
    for token in [3, 2, 1] {
        session.decode(token).unwrap();
    }
    session.rewind(kept);
    assert_eq!(session.position(), kept);
    assert_eq!(told(&mut session), expected);
    // rewinding to the start gives a new sequence, forward does nothing
    session.rewind(0);
    let whole = session.prefill(&TOKENS).unwrap().to_vec();
    session.rewind(TOKENS.len() + 5);
    assert_eq!(session.position(), TOKENS.len());
    session.reset();
    assert_eq!(session.prefill(&TOKENS).unwrap(), whole);
}

#[test]
fn an_embedding_is_that_of_the_reference_and_of_the_text_alone() {
    let bytes = model(1, kernels::Format::F32);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let mut slow = crate::reference::Reference::new(&source, kernels::best());
    let hidden: Vec<Vec<f32>> = TOKENS.iter().map(|&token| slow.hidden(token)).collect();
    // at a level that leaves neurons out, but not in prompts
    let engine = engine(|_| ()).unwrap();
    assert_eq!((engine.pooling(), engine.width()), (Pooling::Last, hidden[0].len()));
    let mut session = engine.session().unwrap();
    let whole = session.embed(&TOKENS).unwrap();
    assert_eq!(session.position(), TOKENS.len());
    let length: f32 = whole.iter().map(|value| value * value).sum();
    assert!((length - 1.0).abs() < 1e-6, "{length}");
    let last = hidden.last().unwrap();
    let norm = last.iter().map(|value| value * value).sum::<f32>().sqrt();
    for (found, expected) in whole.iter().zip(last) {
        assert!((found - expected / norm).abs() < 1e-5, "{found} for {expected} / {norm}");
    }
    // earlier tokens change nothing, and later ones continue
    session.prefill(&TOKENS[3..]).unwrap();
    session.decode(7).unwrap();
    assert_eq!(session.embed(&TOKENS).unwrap(), whole);
    let next = session.decode(7).unwrap().to_vec();
    session.reset();
    session.prefill(&TOKENS).unwrap();
    assert_eq!(session.decode(7).unwrap(), next);
    assert_ne!(session.embed(&TOKENS[..11]).unwrap(), whole);
    assert!(matches!(session.embed(&[]), Err(Error::EmptyPrompt)));
    assert!(matches!(session.embed(&[0; 33]), Err(Error::Context { tokens: 33, context: 32 })));

    // in parts, with any pooling
    drop(session);
    let mut batch = engine.batch().unwrap();
    for pooling in [Pooling::Last, Pooling::First, Pooling::Mean] {
        let mut expected = Pooled::new(pooling);
        hidden.iter().for_each(|hidden| expected.add(hidden));
        let expected = expected.finish();
        let mut of_cuts = Vec::new();
        for cut in [1, 5, 11, 12] {
            batch.rewind(0, 0).unwrap();
            let mut pooled = Pooled::new(pooling);
            for part in [&TOKENS[..cut], &TOKENS[cut..]] {
                if !part.is_empty() {
                    batch.prefill_hidden(0, part, |_, hidden| pooled.add(hidden)).unwrap();
                }
            }
            of_cuts.push(pooled.finish());
        }
        assert!(of_cuts.iter().all(|found| *found == of_cuts[0]), "{pooling:?}");
        for (found, expected) in of_cuts[0].iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-5, "{pooling:?}: {found} for {expected}");
        }
        assert_eq!(of_cuts[0] == whole, pooling == Pooling::Last);
    }
}

#[test]
fn a_restored_prompt_is_the_prompt_to_the_bit_in_an_engine_that_never_read_it() {
    restores(|| engine(|_| ()).unwrap());
    // and with latent attention
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/architectures/deepseek2.gguf");
    let source = SourceModel::open(path).unwrap();
    restores(|| {
        let folder = tempfile::tempdir().unwrap();
        let knobs = Knobs { hot: 3, cold: 5, buffers: 9, ..Knobs::default() };
        let (model, plan) = files_of(folder.path(), &source, "dense", &knobs, |_| ());
        Engine::start(&model, &plan).unwrap()
    });
}

fn restores(engine: impl Fn() -> Engine) {
    let first = engine();
    let mut session = first.session().unwrap();
    let whole = session.prefill(&TOKENS).unwrap().to_vec();
    let next = session.decode(7).unwrap().to_vec();
    drop(session);
    let mut batch = first.batch().unwrap();
    batch.prefill(0, &TOKENS).unwrap();
    for (from, to) in [(0, 1), (0, 6), (4, 9)] {
        let mut kept = Vec::new();
        let keep = |bytes: &[u8]| -> Result<(), Error> {
            kept.extend_from_slice(bytes);
            Ok(())
        };
        batch.keys_and_values(0, from..to, keep).unwrap();
        let other = engine();
        assert_eq!(kept.len(), (to - from) * other.kv_bytes_per_token());
        let mut other = other.batch().unwrap();
        if from > 0 {
            other.prefill(0, &TOKENS[..from]).unwrap();
        }
        let mut rest = &kept[..];
        let restore = |bytes: &mut [u8]| -> Result<(), Error> {
            let (here, after) = rest.split_at(bytes.len());
            bytes.copy_from_slice(here);
            rest = after;
            Ok(())
        };
        other.restore(0, to - from, restore).unwrap();
        assert_eq!((other.positions()[0], rest.len()), (to, 0));
        assert_eq!(other.prefill(0, &TOKENS[to..]).unwrap(), whole, "{from}..{to}");
        assert_eq!(other.decode(&[(0, 7)]).unwrap(), next, "{from}..{to}");
    }
}

#[test]
fn a_restore_that_fails_leaves_the_sequence_where_it_was() {
    let engine = engine(|_| ()).unwrap();
    let context = engine.facts().context;
    let mut batch = engine.batch().unwrap();
    let expected = batch.prefill(0, &TOKENS).unwrap().to_vec();
    batch.rewind(0, 3).unwrap();
    let failed = batch.restore(0, 4, |bytes| {
        bytes.fill(0xFF);
        Err(Error::EmptyPrompt)
    });
    assert!(matches!(failed, Err(Error::EmptyPrompt)));
    let beyond = batch.keys_and_values(0, 1..4, |_| Ok::<(), Error>(()));
    assert!(matches!(beyond, Err(Error::Sequence { .. })), "{beyond:?}");
    let long = batch.restore(0, context, |_| Ok::<(), Error>(()));
    assert!(matches!(long, Err(Error::Context { tokens, .. }) if tokens == context + 3));
    assert_eq!(batch.positions()[0], 3);
    assert_eq!(batch.prefill(0, &TOKENS[3..]).unwrap(), expected);
}

/// Gives a plan several sequences and a draft.
fn for_rows(plan: &mut plans::Plan, container: &crate::container::Container, sequences: u32, draft: u32) {
    let knobs = Knobs { hot: 3, cold: 5, sequences, draft, ..Knobs::default() };
    let several = crate::transformer::tests::plan(container, "sign", &knobs);
    (plan.context, plan.memory) = (several.context, several.memory);
    plan.expected.memory_peak_bytes = several.expected.memory_peak_bytes;
    let speed = plan.expected.decode_tokens_per_second;
    plan.together = Some(plans::plan::Together { decode_tokens_per_second: vec![speed; sequences as usize] });
    plan.speculation = several.speculation;
}

#[test]
fn sequences_of_a_batch_are_sessions_that_share_what_they_begin_with() {
    let folder = tempfile::tempdir().unwrap();
    let (model, _) = files(folder.path(), |_| ());
    let (model, plan) = files(folder.path(), |plan| for_rows(plan, &model.container, 3, 0));
    let engine = Engine::start(&model, &plan).unwrap();
    let vocabulary = engine.vocabulary();
    let mut session = engine.session().unwrap();
    let prompt = session.prefill(&TOKENS).unwrap().to_vec();
    let mut expected = Vec::new();
    for token in [7, 9] {
        session.rewind(TOKENS.len());
        expected.extend_from_slice(session.decode(token).unwrap());
    }
    drop(session);
    let mut batch = engine.batch().unwrap();
    assert_eq!((batch.positions().len(), batch.positions()[2]), (3, 0));
    assert_eq!(batch.prefill(2, &TOKENS).unwrap(), prompt);
    batch.share(2, 0, TOKENS.len()).unwrap();
    assert_eq!(batch.decode(&[(2, 7), (0, 9)]).unwrap(), expected);
    assert_eq!(batch.positions(), [TOKENS.len() + 1, 0, TOKENS.len() + 1]);
    // a caller's mistakes change nothing
    assert!(matches!(batch.decode(&[]), Err(Error::EmptyPrompt)));
    assert!(matches!(batch.decode(&[(0, 1); 4]), Err(Error::Rows { rows: 4, most: 3 })));
    let said =
        [batch.decode(&[(3, 1)]).err(), batch.share(1, 1, 0).err()].map(|error| error.unwrap().to_string());
    assert!(
        said[0].starts_with("there is no sequence 3;") && said[1].starts_with("sequence 1 has"),
        "{said:?}"
    );
    assert_eq!(batch.positions(), [TOKENS.len() + 1, 0, TOKENS.len() + 1]);
    assert!(matches!(batch.share(1, 0, 1), Err(Error::Sequence { requested: 1, position: 0 })));
    assert!(matches!(batch.prefill(3, &TOKENS), Err(Error::Sequences { .. })));
    assert!(matches!(batch.decode(&[(0, 1), (1, vocabulary as u32)]), Err(Error::Token { .. })));
    assert!(matches!(batch.prefill(1, &[]), Err(Error::EmptyPrompt)));
    assert!(matches!(batch.rewind(3, 0), Err(Error::Sequences { .. })));
    batch.rewind(0, TOKENS.len()).unwrap();
    batch.rewind(2, TOKENS.len()).unwrap();
    assert_eq!(batch.decode(&[(0, 7), (2, 9)]).unwrap(), expected);
    // by keys and values
    let mut kept = Vec::new();
    let keep = |bytes: &[u8]| -> Result<(), Error> {
        kept.extend_from_slice(bytes);
        Ok(())
    };
    batch.keys_and_values(2, 0..TOKENS.len(), keep).unwrap();
    let mut rest = &kept[..];
    let restore = |bytes: &mut [u8]| -> Result<(), Error> {
        let (here, after) = rest.split_at(bytes.len());
        bytes.copy_from_slice(here);
        rest = after;
        Ok(())
    };
    batch.restore(1, TOKENS.len(), restore).unwrap();
    assert_eq!(batch.decode(&[(1, 7)]).unwrap(), &expected[..vocabulary]);
    while batch.positions()[1] < batch.engine().facts().context {
        batch.decode(&[(1, 3)]).unwrap();
    }
    batch.rewind(0, TOKENS.len()).unwrap();
    assert!(matches!(batch.decode(&[(0, 7), (1, 3)]), Err(Error::Context { .. })));
    assert_eq!(batch.positions()[0], TOKENS.len());
}

#[test]
fn a_draft_in_one_step_gives_what_its_tokens_give_one_by_one_and_what_is_refused_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let (model, _) = files(folder.path(), |_| ());
    let (model, plan) = files(folder.path(), |plan| for_rows(plan, &model.container, 2, 2));
    let engine = Engine::start(&model, &plan).unwrap();
    assert_eq!((engine.step_rows(), engine.facts().sequences), (4, 2));
    let stop = engine.stop_handle();
    let mut session = engine.session().unwrap();
    session.prefill(&TOKENS[..4]).unwrap();
    let expected: Vec<f32> =
        TOKENS[4..8].iter().flat_map(|&token| session.decode(token).unwrap().to_vec()).collect();
    session.rewind(4);
    assert_eq!(session.decode_each(&TOKENS[4..8]).unwrap(), expected);
    assert_eq!((session.position(), session.logits().len() * 4), (8, expected.len()));
    // the second token of the draft is wrong
    session.rewind(4);
    let vocabulary = session.logits().len();
    let [first, second, right] = TOKENS[4..7] else { panic!("three") };
    let found = session.decode_each(&[first, second, right + 1]).unwrap();
    assert_eq!(found[..2 * vocabulary], expected[..2 * vocabulary]);
    session.rewind(6);
    assert_eq!(session.decode_each(&[right, TOKENS[7]]).unwrap(), &expected[2 * vocabulary..]);
    // a batch has rows of both, in any order that keeps each sequence's
    drop(session);
    let mut batch = engine.batch().unwrap();
    batch.prefill(0, &TOKENS[..4]).unwrap();
    batch.share(0, 1, 4).unwrap();
    let of = |row: usize| &expected[row * vocabulary..][..vocabulary];
    let logits = batch.decode(&[(1, first), (0, first), (0, second), (1, second)]).unwrap();
    assert_eq!(logits, [of(0), of(0), of(1), of(1)].concat());
    assert_eq!(batch.positions(), [6, 6]);
    // a refused or stopped step leaves nothing
    assert!(matches!(batch.decode(&[(0, 1); 5]), Err(Error::Rows { rows: 5, most: 4 })));
    assert!(matches!(batch.decode(&[(0, 1), (0, u32::MAX)]), Err(Error::Token { .. })));
    stop.stop();
    assert!(matches!(batch.decode(&[(0, 1), (0, 2)]), Err(Error::Stopped)));
    stop.resume();
    assert_eq!(batch.positions(), [6, 6]);
    assert_eq!(batch.decode(&[(0, right)]).unwrap(), of(2));
    drop(batch);
    let (mut session, context) = (engine.session().unwrap(), contract(&plan).context.tokens as usize);
    assert!(matches!(session.decode_each(&[]), Err(Error::EmptyPrompt)));
    assert!(matches!(session.decode_each(&[1; 5]), Err(Error::Rows { .. })));
    session.prefill(&vec![1; context - 2]).unwrap();
    assert!(matches!(session.decode_each(&[1; 3]), Err(Error::Context { .. })));
    assert_eq!(session.position(), context - 2);
    session.decode_each(&[1; 2]).unwrap();
}

#[test]
fn what_a_caller_gets_wrong_is_an_error_and_changes_nothing() {
    let engine = engine(|_| ()).unwrap();
    let (context, vocabulary) = (engine.facts().context, engine.vocabulary());
    let mut session = engine.session().unwrap();
    let expected = session.prefill(&TOKENS).unwrap().to_vec();
    session.reset();

    assert!(matches!(session.prefill(&[]), Err(Error::EmptyPrompt)));
    let unknown = vocabulary as u32;
    assert!(matches!(session.prefill(&[1, unknown]), Err(Error::Token { token, .. }) if token == unknown));
    assert!(matches!(session.decode(u32::MAX), Err(Error::Token { .. })));
    let long = vec![1; context + 1];
    assert!(matches!(session.prefill(&long), Err(Error::Context { tokens, .. }) if tokens == context + 1));
    assert_eq!(session.position(), 0);
    assert_eq!(session.prefill(&TOKENS).unwrap(), expected);

    while session.position() < context {
        session.decode(3).unwrap();
    }
    assert!(matches!(session.decode(3), Err(Error::Context { .. })));
    session.reset();
    assert_eq!(session.prefill(&TOKENS).unwrap(), expected);
}

#[test]
fn a_stop_ends_the_call_and_the_token_can_be_decoded_again() {
    let engine = engine(|_| ()).unwrap();
    let stop = engine.stop_handle();
    let mut session = engine.session().unwrap();
    session.prefill(&TOKENS).unwrap();
    let expected = session.decode(9).unwrap().to_vec();

    session.reset();
    session.prefill(&TOKENS).unwrap();
    stop.stop();
    assert!(matches!(session.decode(9), Err(Error::Stopped)));
    assert!(matches!(session.prefill(&TOKENS), Err(Error::Stopped)));
    assert_eq!(session.position(), TOKENS.len());
    stop.resume();
    assert_eq!(session.decode(9).unwrap(), expected);

    // from another thread, in the middle of much work
    let watcher = thread::spawn({
        let stop = stop.clone();
        move || {
            thread::sleep(Duration::from_millis(20));
            stop.stop();
        }
    });
    let ended = loop {
        session.reset();
        if let Err(error) = session.prefill(&TOKENS).map(drop).and_then(|()| session.decode(9).map(drop)) {
            break error;
        }
    };
    watcher.join().unwrap();
    assert!(matches!(ended, Error::Stopped));

    let folder = tempfile::tempdir().unwrap();
    let (model, plan) = files(folder.path(), |_| ());
    assert!(matches!(Engine::start_with(&model, &plan, stop), Err(Error::Stopped)));
}

/// Runs `work`, which must end within a minute.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = sync_channel(1);
    let worker = thread::spawn(move || done.send(work()));
    match result.recv_timeout(Duration::from_secs(60)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("nothing for a minute"),
        // a panic of the work is a panic of the test
        ended => worker.join().map_or_else(|panic| resume_unwind(panic), |_| ended.unwrap()),
    }
}

#[test]
fn an_engine_is_dropped_while_a_callback_panics() {
    for rows in [1, 3, TOKENS.len()] {
        let panic = in_time(move || {
            catch_unwind(|| {
                let engine = engine(|_| ()).unwrap();
                engine.session().unwrap().prefill_each(&TOKENS[..rows], |_, _| panic!("a callback")).unwrap();
            })
        });
        assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"a callback"), "{rows} rows");
    }
}

#[test]
fn a_callback_that_panics_leaves_the_sequence_where_it_was() {
    const RECURRENT: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/architectures/lfm2.gguf");
    let recurrent = || {
        let (source, folder) = (SourceModel::open(RECURRENT).unwrap(), tempfile::tempdir().unwrap());
        let knobs = Knobs { hot: 3, cold: 5, buffers: 9, ..Knobs::default() };
        let (model, plan) = files_of(folder.path(), &source, "dense", &knobs, |_| ());
        Engine::start(&model, &plan).unwrap()
    };
    let engines: [fn() -> Engine; 2] = [|| engine(|_| ()).unwrap(), recurrent];
    for start in engines {
        in_time(move || {
            let engine = start();
            let mut session = engine.session().unwrap();
            session.prefill(&TOKENS[..5]).unwrap();
            let (last, next) = (session.logits().to_vec(), session.decode(7).unwrap().to_vec());
            let prompt = session.prefill(&TOKENS[5..]).unwrap().to_vec();
            for (fallen, decoded) in [(0, 0), (3, 0), (6, 0), (0, 1), (5, 1)] {
                session.reset();
                session.prefill(&TOKENS[..5]).unwrap();
                assert_eq!(session.logits(), last);
                if decoded > 0 {
                    assert_eq!(session.decode(7).unwrap(), next);
                }
                let each = |index, _: &[f32]| assert_ne!(index, fallen, "a callback");
                let caught = catch_unwind(AssertUnwindSafe(|| session.prefill_each(&TOKENS[5..], each)));
                assert!(caught.is_err());
                // a recurrent state goes back to the end of its last prompt, or to the start if the panicking
                // prompt was done
                let stands = session.position();
                let right = if session.engine().is_recurrent() { [5, 0] } else { [5 + decoded; 2] };
                assert!(right.contains(&stands), "{stands}: row {fallen} behind {decoded}");
                session.rewind(5);
                session.prefill(&TOKENS[session.position()..5]).ok();
                assert_eq!(session.decode(7).unwrap(), next, "row {fallen} behind {decoded}");
                assert_eq!(session.prefill(&TOKENS[5..]).unwrap(), prompt, "row {fallen} behind {decoded}");
            }
            drop(session);
            let mut batch = engine.batch().unwrap();
            batch.prefill(0, &TOKENS[..5]).unwrap();
            let each = |_: usize, _: &[f32]| panic!("a callback");
            let caught = catch_unwind(AssertUnwindSafe(|| batch.prefill_each(0, &TOKENS[5..], each)));
            assert!(caught.is_err());
            let stands = batch.positions()[0];
            assert!(stands == 5 || stands == 0 && batch.engine().is_recurrent(), "{stands}");
            batch.prefill(0, &TOKENS[stands..5]).ok();
            assert_eq!(batch.decode(&[(0, 7)]).unwrap(), next);
        });
    }
}

#[test]
fn an_engine_moves_between_threads_and_pins_none_of_them() {
    let before = CoreSet::current().unwrap();
    let engine = engine(|_| ()).unwrap();
    let here = engine.session().unwrap().prefill(&TOKENS).unwrap().to_vec();
    assert_eq!(CoreSet::current().unwrap(), before);
    let (there, after, engine) = thread::spawn(move || {
        let logits = engine.session().unwrap().prefill(&TOKENS).unwrap().to_vec();
        (logits, CoreSet::current().unwrap(), engine)
    })
    .join()
    .unwrap();
    assert_eq!((&there, &after), (&here, &before));
    drop(engine);
    assert_eq!(CoreSet::current().unwrap(), before);
}

/// Rates for a plan.
fn rates() -> plans::terms::Rates {
    plans::terms::Rates {
        weight_format: Some("F32".to_owned()),
        flops_per_second: Some(1e9),
        dense_bytes_per_second: Some(1e9),
        sparse_bytes_per_second: Some(1e9),
        random_read_bytes: Some(4096),
        random_reads_per_second: Some(1e4),
        ordered_reads_per_second: Some(1e3),
    }
}

#[test]
fn a_probe_finds_the_rates_that_the_plan_assumes_and_changes_no_result() {
    let engine = engine(|plan| plan.rates = Some(rates())).unwrap();
    let decoded = |engine: &Engine| {
        let mut session = engine.session().unwrap();
        session.prefill(&TOKENS).unwrap();
        session.decode(7).unwrap().to_vec()
    };
    let before = decoded(&engine);
    // after a prompt, whose rows overlap the slots, and after a token
    let probe = engine.probe();
    for rate in [probe.flops_per_second, probe.random_reads_per_second, probe.ordered_reads_per_second] {
        assert!(rate.is_some_and(|rate| rate > 0.0 && rate.is_finite()), "{probe:?}");
    }
    // a model of kilobytes does not measure memory
    assert_eq!((probe.dense_bytes_per_second, probe.sparse_bytes_per_second), (None, None));
    assert!(probe.unmeasured.iter().any(|why| why.contains("beside a cache of")), "{probe:?}");
    assert!((0.4..5.0).contains(&probe.time.as_secs_f64()), "{probe:?}");
    assert_eq!(decoded(&engine), before);
    engine.session().unwrap().prefill(&TOKENS).unwrap();
    assert!(engine.probe().flops_per_second.is_some());
    assert_eq!(decoded(&engine), before);
}

#[test]
fn a_probe_that_cannot_measure_says_why_and_fails_nothing() {
    // a plan without rates
    let probe = engine(|_| ()).unwrap().probe();
    assert_eq!((probe.flops_per_second, probe.random_reads_per_second), (None, None));
    assert!(probe.unmeasured[0].contains("plan again"), "{probe:?}");

    let folder = tempfile::tempdir().unwrap();
    let (model, plan) = files(folder.path(), |plan| plan.rates = Some(rates()));
    let engine = Engine::start(&model, &plan).unwrap();
    let file = std::fs::File::options().write(true).open(&model.container.path).unwrap();
    let whole = std::fs::read(&model.container.path).unwrap();
    file.set_len(0).unwrap();
    let probe = engine.probe();
    assert_eq!((probe.random_reads_per_second, probe.ordered_reads_per_second), (None, None));
    assert!(probe.unmeasured.iter().any(|why| why.contains("has become shorter")), "{probe:?}");
    assert!(probe.flops_per_second.is_some(), "{probe:?}");
    // with the file restored, everything works again
    std::fs::write(&model.container.path, whole).unwrap();
    engine.session().unwrap().prefill(&TOKENS).unwrap();

    engine.stop_handle().stop();
    assert!(engine.probe().time.as_secs_f64() < 0.4);
}

#[test]
fn a_sequence_with_a_recurrent_state_says_how_far_it_went_back() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/architectures/lfm2.gguf");
    let (source, folder) = (SourceModel::open(path).unwrap(), tempfile::tempdir().unwrap());
    let knobs = Knobs { hot: 3, cold: 5, buffers: 9, sequences: 2, ..Knobs::default() };
    let (model, plan) = files_of(folder.path(), &source, "dense", &knobs, |plan| {
        let speed = plan.expected.decode_tokens_per_second;
        plan.together = Some(plans::plan::Together { decode_tokens_per_second: vec![speed; 2] });
    });
    let engine = Engine::start(&model, &plan).unwrap();
    assert!(engine.is_recurrent());
    let stop = engine.stop_handle();
    let mut session = engine.session().unwrap();
    session.prefill(&TOKENS[..6]).unwrap();
    let first = session.decode(7).unwrap().to_vec();
    let second = session.decode(9).unwrap().to_vec();
    // to the end of the prompt, however little is forgotten
    session.rewind(7);
    assert_eq!(session.position(), 6);
    assert_eq!(session.decode(7).unwrap(), first);
    assert_eq!(session.decode(9).unwrap(), second);
    // a stop undoes everything after the prompt
    stop.stop();
    assert!(matches!(session.decode(1), Err(Error::Stopped)));
    stop.resume();
    assert_eq!(session.position(), 6);
    assert_eq!(session.decode(7).unwrap(), first);
    // a step refused before any work undoes nothing
    assert!(matches!(session.decode(u32::MAX), Err(Error::Token { .. })));
    assert_eq!(session.position(), 7);
    assert_eq!(session.decode(9).unwrap(), second);
    // before the prompt's end there is only the start
    session.rewind(5);
    assert_eq!(session.position(), 0);
    session.prefill(&TOKENS[..6]).unwrap();
    assert_eq!(session.decode(7).unwrap(), first);
    // a state cannot be cut where a draft fails
    let several = session.decode_each(&[7, 9]).unwrap_err().to_string();
    assert!(several.starts_with("sequence 0 is named twice, and a recurrent state is not cut"), "{several}");
    assert_eq!(session.position(), 7);

    drop(session);
    let mut batch = engine.batch().unwrap();
    batch.prefill(0, &TOKENS[..6]).unwrap();
    // the state is not cut: only all tokens up to it can be copied, and a sequence must start with them
    for tokens in [0..3, 1..6, 6..6] {
        let handed = batch.keys_and_values(0, tokens, |_| Ok::<(), Error>(()));
        assert!(matches!(handed, Err(Error::Recurrent)), "{handed:?}");
    }
    assert!(matches!(batch.restore(0, 3, |_| Ok::<(), Error>(())), Err(Error::Recurrent)));
    assert_eq!((batch.positions()[0], batch.state_at(0), batch.state_at(1), batch.state_at(2)), (6, 6, 0, 0));
    batch.decode(&[(0, 7)]).unwrap();
    let mut kept = Vec::new();
    let mut keep = |bytes: &[u8]| {
        kept.extend_from_slice(bytes);
        Ok::<(), Error>(())
    };
    batch.keys_and_values(0, 0..6, &mut keep).unwrap();
    let state_bytes = batch.engine().state_bytes();
    assert_eq!(kept.len(), 6 * batch.engine().kv_bytes_per_token() + state_bytes);
    assert!(state_bytes > 0);
    // a partial restore leaves nothing
    let broken = batch.restore(1, 6, |_| Err(Error::EmptyPrompt));
    assert!(matches!(broken, Err(Error::EmptyPrompt)), "{broken:?}");
    batch.prefill(1, &TOKENS[..6]).unwrap();
    assert_eq!(batch.decode(&[(1, 7)]).unwrap(), first);
    batch.rewind(1, 0).unwrap();
    let mut rest = &kept[..];
    let fill = |bytes: &mut [u8]| {
        let (now, later) = rest.split_at(bytes.len());
        bytes.copy_from_slice(now);
        rest = later;
        Ok::<(), Error>(())
    };
    batch.restore(1, 6, fill).unwrap();
    assert_eq!((rest.len(), batch.positions()[1], batch.state_at(1)), (0, 6, 6));
    assert_eq!(batch.decode(&[(1, 7)]).unwrap(), first);
    assert_eq!(batch.decode(&[(1, 9)]).unwrap(), second);
    batch.rewind(1, 7).unwrap();
    assert_eq!(batch.decode(&[(1, 7)]).unwrap(), first, "the state is kept as after a prefill");
    batch.rewind(1, 0).unwrap();
    batch.rewind(0, 6).unwrap();
    assert!(matches!(batch.decode(&[(0, 7), (0, 9)]), Err(Error::Sequences { .. })));
    batch.decode(&[(0, 7)]).unwrap();
    for (asked, given) in [(7, 7), (6, 6), (5, 0)] {
        assert_eq!(batch.rewound(0, asked).unwrap(), given);
        batch.share(0, 1, asked).unwrap();
        assert_eq!(batch.positions(), [7, given]);
    }
    batch.share(0, 1, 6).unwrap();
    assert_eq!(batch.decode(&[(1, 7)]).unwrap(), first);
    assert_eq!(batch.decode(&[(1, 9)]).unwrap(), second);
    stop.stop();
    assert!(matches!(batch.decode(&[(0, 9), (1, 1)]), Err(Error::Stopped)));
    stop.resume();
    assert_eq!(batch.positions(), [6, 6]);
    batch.rewind(1, 3).unwrap();
    assert_eq!(batch.positions(), [6, 0]);
    assert_eq!(batch.decode(&[(0, 7)]).unwrap(), first);
    drop(engine);
    // nor does a plan with drafts start
    let knobs = Knobs { sequences: 1, draft: 2, ..knobs };
    let (model, plan) = files_of(folder.path(), &source, "dense", &knobs, |_| ());
    let refused = Engine::start(&model, &plan).unwrap_err().to_string();
    assert!(refused.contains("speculation.draft_tokens is 2, and this model's recurrent state"), "{refused}");
}

#[test]
fn a_plan_with_a_unit_takes_that_unit_and_no_other_and_goes_on_after_a_fault() {
    let folder = tempfile::tempdir().unwrap();
    let (model, plan) = files(folder.path(), |plan| share(plan, 32));
    let aside = |unit: PlainUnit| Aside { unit: Some(Box::new(unit)), fallback: None };
    let start = |aside: Aside| start_beside(&model, &plan, aside, StopHandle::default());
    let refused = Engine::start(&model, &plan).unwrap_err().to_string();
    assert!(
        refused.contains("50 % of prompts to the gpu, and here the CPU computes them alone"),
        "{refused}"
    );
    let other = |plan: &mut plans::Plan| {
        share(plan, 32);
        plan.quality.units[0].adapter = "another".to_owned();
        plan.provenance.quality = plan.quality_hash();
    };
    let folder = tempfile::tempdir().unwrap();
    let (model, plan) = files(folder.path(), other);
    let here = aside(PlainUnit::default());
    let refused = start_beside(&model, &plan, here, StopHandle::default()).unwrap_err();
    assert!(matches!(refused, Error::DoesNotFit(Mismatch::Adapter { .. })), "{refused}");
    let decoding = |plan: &mut plans::Plan| {
        share(plan, 32);
        plan.decode.units.clone_from(&plan.prefill.units);
    };
    let folder = tempfile::tempdir().unwrap();
    let (model, plan) = files(folder.path(), decoding);
    let here = aside(PlainUnit::default());
    let refused = start_beside(&model, &plan, here, StopHandle::default()).unwrap_err();
    assert!(refused.to_string().contains("50 % of decoding to the gpu"), "{refused}");

    let mut session = start(aside(PlainUnit::default())).unwrap().session().unwrap();
    let whole = session.prefill(&TOKENS).unwrap().to_vec();
    let next = session.decode(7).unwrap().to_vec();
    let engine = start(aside(PlainUnit::failing("finish", 6))).unwrap();
    let mut session = engine.session().unwrap();
    session.prefill(&TOKENS[..5]).unwrap();
    let failed = session.prefill(&TOKENS[5..]).unwrap_err();
    assert!(matches!(failed, Error::Unit { .. }), "{failed}");
    assert_eq!(session.position(), 5, "nothing of the failed prompt is kept");
    assert_eq!(session.prefill(&TOKENS[5..]).unwrap(), whole);
    assert_eq!(session.decode(7).unwrap(), next);
}
