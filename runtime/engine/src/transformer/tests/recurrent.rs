//! Layers with a recurrent state: the bits do not depend on how a sequence was built.

use super::architectures::of_chosen_blocks;
use super::*;

/// Containers of models with each kind of state: those with golden logits, and one whose attention chooses blocks
/// from the end of the prompt on.
fn with_models(of: impl Fn(&Container)) {
    for name in ["lfm2", "lfm2moe", "qwen35", "qwen35moe", "nemotron_h_moe", "kimi-linear", "bailingmoe3"] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/architectures");
        let source = SourceModel::open(format!("{folder}/{name}.gguf")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        of(&container(folder.path(), &source));
    }
    let (bytes, folder) = (of_chosen_blocks(), tempfile::tempdir().unwrap());
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let (_, indexer) = source.config().indexers().next().unwrap();
    assert!(!indexer.chooses(8) && [9, 10, 11].into_iter().all(|position| indexer.chooses(position)));
    of(&container(folder.path(), &source));
}

fn knobs(chunk: u32, sequences: u32) -> Knobs {
    Knobs { hot: 20, cold: 40, chunk, sequences, buffers: 9, ..Knobs::default() }
}

/// The logits after a prompt in parts, and after each of two decoded tokens.
fn told(engine: &mut Transformer, sequence: u32, cuts: &[usize]) -> [Vec<f32>; 3] {
    let rows: Vec<Token> = rows(&TOKENS).into_iter().map(|row| Token { sequence, ..row }).collect();
    let mut done = 0;
    for &cut in cuts {
        engine.prefill(&rows[done..cut], None).unwrap();
        done = cut;
    }
    let prompt = engine.prefill(&rows[done..10], None).unwrap().to_vec();
    let decoded = [10, 11].map(|at| engine.decode(&rows[at..at + 1]).unwrap().to_vec());
    let [first, second] = decoded;
    [prompt, first, second]
}

#[test]
fn a_prompt_in_chunks_and_parts_of_any_size_has_the_bits_of_the_whole() {
    with_models(|container| {
        let expected = told(&mut start(container, &plan(container, "dense", &knobs(12, 1))), 0, &[]);
        for chunk in [1, 2, 3, 7] {
            let mut engine = start(container, &plan(container, "dense", &knobs(chunk, 1)));
            for cuts in [&[][..], &[1], &[2, 3], &[5], &[1, 2, 3, 4, 5, 6, 7, 8, 9]] {
                assert!(told(&mut engine, 0, cuts) == expected, "chunks of {chunk}, parts {cuts:?}");
            }
        }
    });
}

#[test]
fn sequences_that_go_on_together_have_the_bits_that_they_have_alone() {
    with_models(|container| {
        let mut one = start(container, &plan(container, "dense", &knobs(4, 1)));
        let [_, first, second] = told(&mut one, 0, &[]);
        let mut engine = start(container, &plan(container, "dense", &knobs(4, 3)));
        let row = |sequence: u32, at: usize| Token { sequence, ..rows(&TOKENS)[at] };
        let prompt = |sequence: u32, tokens: usize| -> Vec<Token> {
            (0..tokens).map(|at| row(sequence, at)).collect()
        };
        engine.prefill(&prompt(2, 10), None).unwrap();
        engine.prefill(&prompt(0, 3), None).unwrap();
        let vocabulary = engine.config().vocabulary;
        let logits = engine.decode(&[row(0, 3), row(2, 10)]).unwrap();
        assert_eq!(logits[vocabulary..], first);
        // another sequence starts where this one's prompt ended, and this one continues
        engine.share(2, 1, 10);
        let logits = engine.decode(&[row(1, 10), row(2, 11)]).unwrap().to_vec();
        assert_eq!(logits[..vocabulary], first);
        assert_eq!(logits[vocabulary..], second);
        assert_eq!(engine.decode(&[row(1, 11)]).unwrap(), second);
        // and one that starts at another's current position
        engine.share(0, 1, 4);
        let both = engine.decode(&[row(0, 4), row(1, 4)]).unwrap();
        assert_eq!(both[..vocabulary], both[vocabulary..]);
    });
}

#[test]
fn a_sequence_goes_back_to_the_end_of_its_prompt_and_to_its_beginning() {
    with_models(|container| {
        let mut engine = start(container, &plan(container, "dense", &knobs(4, 1)));
        let expected = told(&mut engine, 0, &[]);
        let rows = rows(&TOKENS);
        for _ in 0..2 {
            let again = [10, 11].map(|at| engine.decode(&rows[at..at + 1]).unwrap().to_vec());
            assert_eq!(again[..], expected[1..]);
        }
        assert!(told(&mut engine, 0, &[4]) == expected, "from the beginning");
        // stopped work leaves layers at different positions: it is repeated from the end of the prompt
        engine.stop.engine.stop();
        assert!(matches!(engine.decode(&[rows[10]]), Err(TransformerError::Stopped)));
        assert!(matches!(engine.prefill(&rows[10..], None), Err(TransformerError::Stopped)));
        engine.stop.engine.resume();
        let again = [10, 11].map(|at| engine.decode(&rows[at..at + 1]).unwrap().to_vec());
        assert_eq!(again[..], expected[1..]);
    });
}

#[test]
#[should_panic(expected = "the states of sequence 0 stand behind Some(12) tokens")]
fn a_sequence_does_not_go_on_where_it_has_no_state() {
    with_models(|container| {
        let mut engine = start(container, &plan(container, "dense", &knobs(4, 1)));
        told(&mut engine, 0, &[]);
        let _never = engine.decode(&[rows(&TOKENS)[6]]);
    });
}
