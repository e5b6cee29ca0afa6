//! Keys and values in every format: the reference's numbers, and the same bits in all plans.

use super::*;
use crate::reference::rounded as held;

/// Heads of whole blocks.
const WIDTH: usize = 128;

/// Formats of plans and of the reference.
const FORMATS: [(KvFormat, Format); 4] = [
    (KvFormat::F32, Format::F32),
    (KvFormat::F16, Format::F16),
    (KvFormat::Q8_0, Format::Q8_0),
    (KvFormat::Q4_0, Format::Q4_0),
];

fn by_reference(source: &SourceModel<'_>, format: Format) -> Vec<Vec<f32>> {
    let mut reference = Reference::new(source, best()).with_kv_format(format);
    TOKENS.iter().map(|&token| reference.step(token, &mut ())).collect()
}

#[test]
fn every_format_gives_the_references_numbers_and_equal_bits_in_all_plans() {
    for experts in [1, 4] {
        let bytes = model_of("bamboo", experts, Format::F32, WIDTH);
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let container = container(folder.path(), &source);
        let expected = FORMATS.map(|(_, format)| by_reference(&source, format));
        for (at, (kv, _)) in FORMATS.into_iter().enumerate() {
            let mut first: Option<[Vec<Vec<f32>>; 2]> = None;
            for knobs in all_knobs(&backends(&container)) {
                let mut engine =
                    start(&container, &plan(&container, "dense", &Knobs { kv, ..knobs.clone() }));
                let decoded = decode(&mut engine).unwrap();
                let mut prompt = Vec::new();
                engine.prefill(&rows(&TOKENS), Some(&mut |_, row| prompt.push(row.to_vec()))).unwrap();
                for logits in [&decoded, &prompt] {
                    let off = expected.each_ref().map(|expected| distance(logits, expected));
                    // rounding to the format has a far larger effect than the order of sums
                    let others = (0..FORMATS.len()).filter(|&other| other != at).map(|other| off[other]);
                    let nearest = others.fold(f32::INFINITY, f32::min);
                    assert!(off[at] < 1e-4 && off[at] * 4.0 < nearest, "{kv:?} {knobs:?}: {off:?}");
                }
                let (decoded_first, prompt_first) = match &first {
                    None => (&decoded, &prompt),
                    Some([decoded, prompt]) => (decoded, prompt),
                };
                assert!(decoded == *decoded_first && prompt == *prompt_first, "{kv:?} {knobs:?}");
                first.get_or_insert([decoded, prompt]);
            }
        }
    }
}

#[test]
fn sequences_in_blocks_have_the_bits_that_they_have_alone() {
    let bytes = model_of("bamboo", 4, Format::Q8_0, WIDTH);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    for kv in [KvFormat::Q8_0, KvFormat::Q4_0] {
        let knobs = all_knobs(&backends(&container)).into_iter().map(|knobs| Knobs { kv, ..knobs });
        together::check(&container, kv.name(), "low-rank", &knobs.collect::<Vec<_>>());
    }
}

#[test]
fn a_token_of_context_takes_its_blocks_and_reads_them() {
    let bytes = model_of("bamboo", 1, Format::F32, WIDTH);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    let tokens = TOKENS.len() as u64;
    for (kv, block) in [(KvFormat::F16, 64), (KvFormat::Q8_0, 34), (KvFormat::Q4_0, 18)] {
        let mut engine = start(&container, &plan(&container, "dense", &Knobs { kv, ..Knobs::default() }));
        decode(&mut engine).unwrap();
        // two heads of keys and two of values, one block each
        let of_token = LAYERS as u64 * 2 * 2 * block;
        assert_eq!(engine.kv_bytes_per_token(), of_token);
        assert_eq!(engine.counters().detail.traffic.kv, of_token * tokens * (tokens + 1) / 2);
    }
}

#[test]
fn heads_that_are_no_whole_blocks_are_refused_by_name() {
    let bytes = model(1, Format::F32); // heads of 16
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    for kv in [KvFormat::Q8_0, KvFormat::Q4_0] {
        let plan = plan(&container, "dense", &Knobs { kv, ..Knobs::default() });
        let error = Transformer::start(&container, &plan, StopHandle::default()).err().unwrap().to_string();
        let expected = format!("quality.kv_format is {}, whose blocks are of 32 values", kv.name());
        assert!(error.contains(&expected) && error.contains("heads are 16 wide"), "{error}");
    }
}

#[test]
fn the_reference_holds_values_as_a_row_does() {
    let values: Vec<f32> = (0..64).map(|i| (i as f32 - 20.0) / 7.0).collect();
    assert_eq!(held(Format::F32, &values), values);
    for (format, steps) in [(Format::Q8_0, 127.0), (Format::Q4_0, 8.0)] {
        let found = held(format, &values);
        for (values, found) in values.chunks(32).zip(found.chunks(32)) {
            let step = values.iter().fold(0.0_f32, |most, value| most.max(value.abs())) / steps;
            let off = largest_difference(values, found);
            assert!(off > 0.0 && off <= 1.01 * step, "{format}: {off} of {step}");
        }
    }
}
