//! Sequences decoded together: each has the same bits as alone, and neurons that several miss are read once.

use super::*;

/// Three sequences: the step at the start of each, the length of its prompt, and its tokens.
pub(super) const SEQUENCES: [(usize, usize, [u32; 8]); 3] = [
    (0, 3, [3, 17, 39, 0, 5, 5, 21, 8]),
    (2, 1, [30, 17, 3, 11, 39, 2, 2, 38]),
    (3, 4, [8, 21, 1, 5, 0, 39, 17, 3]),
];

/// The logits of each sequence after each decoded token.
pub(super) type Decoded = [Vec<Vec<f32>>; 3];

/// Decodes one sequence after another.
fn alone(engine: &mut Transformer) -> Decoded {
    SEQUENCES.map(|(_, prompt, tokens)| {
        let rows = rows(&tokens);
        engine.prefill(&rows[..prompt], None).unwrap();
        rows[prompt..].iter().map(|row| engine.decode(&[*row]).unwrap().to_vec()).collect()
    })
}

/// Decodes the sequences together as each starts and ends; the order of rows changes from step to step.
fn together(engine: &mut Transformer) -> Decoded {
    let mut decoded = Decoded::default();
    let mut positions = [0; 3];
    let row = |sequence: usize, position: usize| Token {
        token: SEQUENCES[sequence].2[position],
        sequence: sequence as u32,
        position,
    };
    for step in 0.. {
        for (sequence, &(_, prompt, _)) in SEQUENCES.iter().enumerate().filter(|(_, s)| s.0 == step) {
            let rows: Vec<Token> = (0..prompt).map(|position| row(sequence, position)).collect();
            // a prompt may be cut to let others continue
            let (first, rest) = rows.split_at(prompt / 2);
            if !first.is_empty() {
                engine.prefill(first, None).unwrap();
            }
            engine.prefill(rest, None).unwrap();
            positions[sequence] = prompt;
        }
        let mut running: Vec<usize> =
            (0..3).filter(|&s| SEQUENCES[s].0 <= step && positions[s] < 8).collect();
        if running.is_empty() {
            return decoded;
        }
        let turn = step % running.len();
        running.rotate_left(turn);
        let rows: Vec<Token> = running.iter().map(|&sequence| row(sequence, positions[sequence])).collect();
        let logits = engine.decode(&rows).unwrap();
        for (&sequence, logits) in running.iter().zip(logits.chunks_exact(VOCABULARY)) {
            decoded[sequence].push(logits.to_vec());
            positions[sequence] += 1;
        }
    }
    decoded
}

fn planned(container: &Container, level: &str, activations: &str, knobs: &Knobs) -> Transformer {
    let mut plan = plan(container, level, knobs);
    activations.clone_into(&mut plan.quality.activations);
    start(container, &plan)
}

/// Checks that all plans of a level give the same bits together as one gives alone, with drafts, too.
pub(super) fn check(container: &Container, name: &str, level: &str, all: &[Knobs]) {
    for activations in ["f32", "q8"] {
        let expected = alone(&mut planned(container, level, activations, &all[0]));
        assert!(expected.iter().flatten().flatten().all(|logit| logit.is_finite()));
        for (number, knobs) in all.iter().enumerate() {
            let knobs = Knobs { sequences: 3, ..knobs.clone() };
            let mut engine = planned(container, level, activations, &knobs);
            let found = together(&mut engine);
            assert!(found == expected, "{name} {level} {activations} {knobs:?}");
            // and one alone in a plan for several
            assert!(alone(&mut engine) == expected, "{name} {level} {activations} {knobs:?}");
            drop(engine);
            // every second one, to save time
            if number % 2 == 1 {
                continue;
            }
            let knobs = Knobs { sequences: 2, draft: 4, ..knobs };
            let mut engine = planned(container, level, activations, &knobs);
            drafts::check(&mut engine, &expected, &format!("{name} {level} {activations} {knobs:?}"));
        }
    }
}

#[test]
fn a_sequence_has_the_bits_that_it_has_without_the_others() {
    in_formats(&[(1, Format::Q4K), (4, Format::F32)]);
}

/// Models of so many experts in these formats.
fn in_formats(all: &[(usize, Format)]) {
    for &(experts, format) in all {
        let bytes = model(experts, format);
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let container = container(folder.path(), &source);
        let all = all_knobs(&backends(&container));
        for level in ["dense", "exact-gate", "sign", "low-rank"] {
            check(&container, &format!("{experts} {format}"), level, &all);
        }
    }
}

#[test]
fn so_it_has_where_neurons_are_read_in_phases() {
    in_phases(&[("low-rank", Phases::TwoPhase), ("exact-gate", Phases::Rows)]);
}

fn in_phases(all: &[(&str, Phases)]) {
    let bytes = model_of("bamboo", 1, Format::F32, 512); // bundles of a page and a half
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    for &(level, phases) in all {
        let knobs = |common| Knobs { phases, buffer_bytes: 16384, ..common };
        let all: Vec<Knobs> = all_knobs(&backends(&container)).into_iter().map(knobs).collect();
        check(&container, phases.name(), level, &all);
    }
}

#[test]
fn so_it_has_where_experts_come_and_go_in_slices() {
    for format in [Format::F32, Format::Q4_0] {
        let bytes = model_of("llama", 4, format, width(format));
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let container = container_in_slices(folder.path(), &source, None, 16, 16);
        let all: Vec<Knobs> = slices::knobs(&container).collect();
        check(&container, &format!("slices {format}"), "dense", &all);
    }
    for case in pieces::CASES {
        let bytes = case.model();
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let container = container_in_pieces(folder.path(), &source, case.slice);
        let all: Vec<Knobs> = case.knobs(&container).collect();
        check(&container, &case.name(), "dense", &all);
    }
    // and in slices that stay in the model's own file
    for case in index::CASES {
        let folder = tempfile::tempdir().unwrap();
        let index = index::index(&case.write(folder.path()));
        check(&index, &case.name(), "dense", &case.knobs(&index));
    }
}

#[test]
fn what_several_rows_miss_is_read_once() {
    let bytes = model(1, Format::F32);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    for level in ["dense", "sign"] {
        let read = |tokens: &[u32]| {
            let knobs = Knobs { sequences: 3, ..Knobs::default() };
            let mut engine = start(&container, &plan(&container, level, &knobs));
            let row =
                |(sequence, &token): (usize, &u32)| Token { token, sequence: sequence as u32, position: 0 };
            let rows: Vec<Token> = tokens.iter().enumerate().map(row).collect();
            engine.decode(&rows).unwrap();
            let c = engine.counters();
            (c.missing, c.read_bytes, c.detail.activity.requested)
        };
        let [one, other] = [3, 17].map(|token| read(&[token]));
        // the same token three times requests nothing more
        let same = read(&[3, 3, 3]);
        assert_eq!((same.0, same.1, same.2), (one.0, one.1, 3 * one.2), "{level}");
        let both = read(&[3, 17]);
        assert!(both.0 >= one.0.max(other.0) && both.0 <= one.0 + other.0, "{level}");
        assert!(both.0 < one.0 + other.0, "{level}: they share neurons");
        assert_eq!(both.2, one.2 + other.2, "{level}");
    }
}

mod slow {
    use super::*;

    #[test]
    #[ignore = "minutes: make test-slow"]
    fn so_it_has_in_other_formats_and_phases() {
        in_formats(&[(1, Format::F32), (1, Format::Q8_0), (4, Format::Q4_0)]);
        in_phases(&[("dense", Phases::TwoPhase), ("low-rank", Phases::Rows)]);
    }
}
