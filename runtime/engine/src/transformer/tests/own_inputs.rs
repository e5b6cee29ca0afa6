//! Per-layer embeddings and n-grams: rows read from the file, in every container, and checked.

use super::*;

/// A model with per-layer embeddings, shared keys and values, and networks of two widths.
fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden/architectures/gemma4-e2b.gguf")
}

#[test]
fn an_index_reads_rows_from_the_models_file_and_gives_the_bits_of_a_container() {
    let source = SourceModel::open(golden()).unwrap();
    let neurons = source.config().ffn_width();
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("model.gguf");
    std::fs::copy(golden(), &copy).unwrap();
    let [packed, index] = [container_in_pieces(folder.path(), &source, neurons), index::index(&copy)];
    let mut all = Vec::new();
    for container in [&packed, &index] {
        let buffer_bytes = container.directory.bundle.read_bytes_max().max(8192);
        let knobs =
            Knobs { hot: 192, cold: 0, buffers: 9, buffer_bytes, chunk: 5, sequences: 2, ..Knobs::default() };
        let mut engine = start(container, &plan(container, "dense", &knobs));
        let before = engine.counters();
        let decoded = decode(&mut engine).unwrap();
        let after = engine.counters();
        assert_eq!(after.reads - before.reads, TOKENS.len() as u64, "a row for each token");
        assert!(after.read_bytes - before.read_bytes >= TOKENS.len() as u64 * PAGE_BYTES);
        // sequences together, and one that begins with another's tokens
        engine.share(0, 1, 5);
        let both = [0, 1].map(|sequence| Token { token: TOKENS[5], sequence, position: 5 });
        let together = engine.decode(&both).unwrap().to_vec();
        assert!(together == [&*decoded[5], &decoded[5]].concat());
        let prompt = engine.prefill(&rows(&TOKENS), None).unwrap().to_vec();
        all.push((decoded, prompt));
    }
    assert!(all[0] == all[1]);
}

#[test]
fn n_grams_read_rows_of_the_tokens_before_in_every_container_and_sequence() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden/architectures/qwen4exp.gguf");
    let source = SourceModel::open(&path).unwrap();
    let ngrams = source.config().ngrams.clone().unwrap();
    let (end, tokens) = (ngrams.end, [7, 9, 148, 11, 12, 13, 14]);
    assert_eq!((end, ngrams.heads.len()), (148, 4));
    let rows = |last: [u32; 3]| ngrams.rows_of(&last).collect::<Vec<u32>>();
    // before an end nothing counts, and pairs do not know the third token
    assert_eq!(rows([11, 148, 9]), rows([11, 148, 148]));
    assert_eq!(rows([12, 11, 9])[..2], rows([12, 11, 10])[..2]);
    assert_ne!(rows([12, 11, 9])[2..], rows([12, 11, 10])[2..]);

    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("model.gguf");
    std::fs::copy(&path, &copy).unwrap();
    let neurons = source.config().ffn_width();
    let [packed, index] = [container_in_pieces(folder.path(), &source, neurons), index::index(&copy)];
    let mut all = Vec::new();
    for container in [&packed, &index] {
        let buffer_bytes = container.directory.bundle.read_bytes_max().max(8192);
        for chunk in [2, 5] {
            let knobs = Knobs {
                hot: 256,
                cold: 0,
                buffers: 9,
                buffer_bytes,
                chunk,
                sequences: 2,
                ..Knobs::default()
            };
            let mut engine = start(container, &plan(container, "dense", &knobs));
            let before = engine.counters();
            let row = |at: usize, sequence| Token { token: tokens[at], sequence, position: at };
            let decoded: Vec<Vec<f32>> =
                (0..tokens.len()).map(|at| engine.decode(&[row(at, 0)]).unwrap().to_vec()).collect();
            let after = engine.counters();
            assert_eq!(after.reads - before.reads, 4 * tokens.len() as u64, "four rows for each token");
            // a prompt in chunks, whose end is shared with another sequence; both go on together
            let prompt: Vec<Token> = (0..5).map(|at| row(at, 0)).collect();
            let found = engine.prefill(&prompt, None).unwrap().to_vec();
            engine.share(0, 1, 5);
            let mut both = vec![found];
            for at in 5..tokens.len() {
                let logits = engine.decode(&[row(at, 0), row(at, 1)]).unwrap();
                let (one, other) = logits.split_at(logits.len() / 2);
                assert!(one == other, "position {at}");
                both.push(one.to_vec());
            }
            all.push((decoded, both));
        }
    }
    assert!(all.iter().all(|other| *other == all[0]));
    for (found, expected) in all[0].1.iter().zip(&all[0].0[4..]) {
        assert!(largest_difference(found, expected) < 1e-5);
    }
}

#[test]
fn a_row_that_changes_under_us_is_named_and_the_others_are_read_on() {
    let (source, folder) = (SourceModel::open(golden()).unwrap(), tempfile::tempdir().unwrap());
    let container = container(folder.path(), &source);
    let mut engine = start(&container, &plan(&container, "dense", &Knobs::default()));
    let table = &container.directory.per_layer_rows.as_ref().unwrap().table;
    let file = File::options().write(true).open(&container.path).unwrap();
    let row_bytes = table.format.row_bytes(table.columns) as u64;
    platform::file::write_all_at(&file, &[0x7f], table.offset + 17 * row_bytes + 9).unwrap();
    let [three, seventeen] = [3, 17].map(|token| [Token { token, sequence: 0, position: 0 }]);
    engine.decode(&three).unwrap();
    let message = engine.decode(&seventeen).map(<[f32]>::to_vec).unwrap_err().to_string();
    assert!(message.starts_with("row 17 of the per-layer embedding"), "{message}");
    let message = engine.prefill(&seventeen, None).map(<[f32]>::to_vec).unwrap_err().to_string();
    assert!(message.contains("does not match its checksum"), "{message}");
    engine.decode(&three).unwrap();
}

#[test]
fn a_plan_for_a_model_without_them_is_refused() {
    let (source, folder) = (SourceModel::open(golden()).unwrap(), tempfile::tempdir().unwrap());
    let container = container(folder.path(), &source);
    let mut plan = plan(&container, "dense", &Knobs::default());
    plan.read.per_layer_rows = false;
    let error = Transformer::start(&container, &plan, StopHandle::default()).unwrap_err().to_string();
    assert!(error.contains("read.per_layer_rows"), "{error}");
}
