//! Sessions and batches beside their engine: claims, other threads, stops of one sequence, and tokens one after another.

use super::*;
use crate::sampler::{Sampler, Sampling};

/// An engine with room for so many sequences.
fn engine_of(sequences: u32) -> Engine {
    let folder = tempfile::tempdir().unwrap();
    let (model, _) = files(folder.path(), |_| ());
    let (model, plan) = files(folder.path(), |plan| for_rows(plan, &model.container, sequences, 0));
    Engine::start(&model, &plan).unwrap()
}

/// One struct of an engine and its sessions.
struct Server {
    sessions: Vec<Session>,
    engine: Engine,
}

#[test]
fn sessions_live_beside_their_engine_and_work_on_other_threads() {
    fn is_shared<T: Send + Sync + 'static>(_: &T) {}
    let engine = engine_of(3);
    let prompts = [&TOKENS[..4], &TOKENS[2..9], &TOKENS[5..]];
    let told = |session: &mut Session, prompt: &[u32]| {
        session.prefill(prompt).unwrap();
        [4, 2, 7].map(|token| session.decode(token).unwrap().to_vec())
    };
    let expected = prompts.map(|prompt| told(&mut engine.session().unwrap(), prompt));
    let server = Server { sessions: (0..3).map(|_| engine.session().unwrap()).collect(), engine };
    is_shared(&server);
    let threads: Vec<_> = server
        .sessions
        .into_iter()
        .zip(prompts)
        .map(|(mut session, prompt)| {
            thread::spawn(move || {
                (0..5)
                    .map(|_| {
                        session.reset();
                        told(&mut session, prompt)
                    })
                    .collect::<Vec<_>>()
            })
        })
        .collect();
    // a session keeps its engine
    drop(server.engine);
    for (thread, expected) in threads.into_iter().zip(expected) {
        assert_eq!(thread.join().unwrap(), vec![expected; 5]);
    }
}

#[test]
fn a_sequence_belongs_to_one_session_or_to_the_batch() {
    let engine = engine_of(2);
    let (first, second) = (engine.session().unwrap(), engine.session().unwrap());
    let refused = engine.session().unwrap_err();
    assert!(matches!(refused, Error::Sequences { sequences: 2, .. }), "{refused}");
    assert!(refused.to_string().contains("free when these are dropped"), "{refused}");
    drop(first);
    assert!(engine.batch().is_err(), "the second session has a sequence");
    let first = engine.session().unwrap();
    drop((first, second));
    let batch = engine.batch().unwrap();
    assert!(engine.session().is_err() && engine.clone().batch().is_err());
    drop(batch);
    assert!(engine.batch().is_ok());
}

#[test]
fn a_stop_of_one_sequence_leaves_the_others_alone() {
    let engine = engine_of(2);
    let mut sessions = [engine.session().unwrap(), engine.session().unwrap()];
    sessions.iter_mut().for_each(|session| drop(session.prefill(&TOKENS).unwrap().to_vec()));
    let next = sessions[1].decode(9).unwrap().to_vec();
    let stop = sessions[0].stop_handle();
    stop.stop();
    assert!(matches!(sessions[0].decode(9), Err(Error::Stopped)));
    assert!(matches!(sessions[0].prefill(&TOKENS), Err(Error::Stopped)));
    assert_eq!((sessions[0].position(), sessions[1].position()), (TOKENS.len(), TOKENS.len() + 1));
    sessions[1].rewind(TOKENS.len());
    assert_eq!(sessions[1].decode(9).unwrap(), next);
    stop.resume();
    assert_eq!(sessions[0].decode(9).unwrap(), next);

    drop(sessions);
    let mut batch = engine.batch().unwrap();
    batch.prefill(0, &TOKENS).unwrap();
    batch.prefill(1, &TOKENS).unwrap();
    batch.stop_handle(0).unwrap().stop();
    assert!(matches!(batch.decode(&[(1, 9), (0, 9)]), Err(Error::Stopped)));
    assert!(matches!(batch.prefill(0, &TOKENS), Err(Error::Stopped)));
    assert_eq!(batch.positions(), [TOKENS.len(); 2]);
    assert_eq!(batch.decode(&[(1, 9)]).unwrap(), next);
    batch.stop_handle(0).unwrap().resume();
    assert_eq!(batch.decode(&[(0, 9)]).unwrap(), next);
    assert!(matches!(batch.stop_handle(2), Err(Error::Sequences { .. })));
}

#[test]
fn a_generation_is_what_sampling_and_decoding_give() {
    let engine = engine(|_| ()).unwrap();
    let context = engine.facts().context;
    let sampler = || {
        let mut sampling = Sampling::default();
        (sampling.temperature, sampling.seed) = (1.0, 3);
        Sampler::new(sampling).unwrap()
    };
    let mut session = engine.session().unwrap();
    let (mut expected, mut by_hand) = (Vec::new(), sampler());
    let mut token = by_hand.sample(session.prefill(&TOKENS).unwrap());
    loop {
        expected.push(token);
        if session.position() == context {
            break;
        }
        token = by_hand.sample(session.decode(token).unwrap());
    }
    session.reset();
    session.prefill(&TOKENS).unwrap();
    let mut chosen = sampler();
    // in two parts: the last token of the first is decoded by hand
    let mut found: Vec<u32> = session.generate(&mut chosen).take(4).map(Result::unwrap).collect();
    assert_eq!(session.position(), TOKENS.len() + 3);
    session.decode(found[3]).unwrap();
    let mut rest = session.generate(&mut chosen);
    found.extend(rest.by_ref().map(Result::unwrap));
    assert!(rest.next().is_none(), "the context is full");
    assert_eq!(found, expected);
    assert_eq!(found.len(), 1 + context - TOKENS.len());

    // an error ends it
    session.rewind(TOKENS.len() - 1);
    session.decode(TOKENS[TOKENS.len() - 1]).unwrap();
    let stop = session.stop_handle();
    let mut tokens = session.generate(&mut chosen);
    assert!(tokens.next().unwrap().is_ok());
    stop.stop();
    assert!(matches!(tokens.next(), Some(Err(Error::Stopped))));
    assert!(tokens.next().is_none());
}

#[test]
fn a_generation_needs_logits_of_the_last_token() {
    let engine = engine(|_| ()).unwrap();
    let mut session = engine.session().unwrap();
    let first = |session: &mut Session| {
        session.generate(&mut Sampler::new(Sampling::default()).unwrap()).next().unwrap()
    };
    let lacks = |session: &mut Session, after: &str| {
        assert!(matches!(first(session), Err(Error::NoLogits)), "after {after}");
    };
    lacks(&mut session, "the start");
    session.prefill(&TOKENS).unwrap();
    let expected = first(&mut session).unwrap();
    session.rewind(TOKENS.len() - 1);
    lacks(&mut session, "a rewind");
    session.embed(&TOKENS).unwrap();
    lacks(&mut session, "an embedding");
    session.reset();
    lacks(&mut session, "a reset");
    session.prefill(&TOKENS).unwrap();
    assert!(session.prefill(&[]).is_err());
    assert_eq!(first(&mut session).unwrap(), expected, "a call that failed changes nothing");
}

#[test]
fn a_plan_is_read_from_text_as_from_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let (model, plan) = files(folder.path(), |_| ());
    let text = std::fs::read_to_string(folder.path().join("plan.toml")).unwrap();
    let parsed = Plan::parse(&text).unwrap();
    assert_eq!(contract(&parsed), contract(&plan));
    let engine = Engine::start(&model, &parsed).unwrap();
    assert_eq!(engine.session().unwrap().prefill(&TOKENS).unwrap().len(), engine.vocabulary());
    let wrong = Plan::parse(&text.replace("[read]", "[reads]")).unwrap_err();
    assert!(matches!(wrong, Error::Plan { .. }) && wrong.to_string().contains("reads"), "{wrong}");
    let newer = Plan::parse(&text.replacen("schema = 1", "schema = 99", 1)).unwrap_err();
    assert!(matches!(newer, Error::DoesNotFit(Mismatch::Schema { .. })), "{newer}");
}

#[test]
fn a_callback_that_calls_its_engine_panics_and_leaves_it_in_order() {
    let engine = engine_of(2);
    let (mut first, mut second) = (engine.session().unwrap(), engine.session().unwrap());
    let expected = first.prefill(&TOKENS).unwrap().to_vec();
    first.reset();
    let called = catch_unwind(AssertUnwindSafe(|| {
        first.prefill_each(&TOKENS, |_, _| drop(second.decode(1).map(drop)))
    }));
    let told = *called.unwrap_err().downcast::<&str>().unwrap();
    assert!(told.contains("when the callback has returned"), "{told}");
    first.reset();
    assert_eq!(first.prefill(&TOKENS).unwrap(), expected);
    second.reset();
    assert_eq!(second.prefill(&TOKENS).unwrap(), expected);
}

#[test]
fn logits_stay_where_a_step_fails() {
    let engine = engine(|_| ()).unwrap();
    let mut session = engine.session().unwrap();
    session.prefill(&TOKENS).unwrap();
    let before = session.decode(9).unwrap().to_vec();
    session.stop_handle().stop();
    assert!(matches!(session.prefill(&[1, 2, 3]), Err(Error::Stopped)));
    assert!(matches!(session.decode(4), Err(Error::Stopped)));
    assert_eq!(session.logits(), before);
}
