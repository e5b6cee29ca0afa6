//! Every architecture with a part of its prompts on a unit beside the cores.

use super::super::unit::{PlainUnit, prompt, start_beside};
use super::*;

#[test]
fn prompts_of_every_architecture_are_the_references_with_a_share_on_a_unit() {
    for case in CASES {
        let (bytes, folder) = (case.file(), tempfile::tempdir().unwrap());
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let container = container(folder.path(), &source);
        let expected = reference(&source);
        let squares = expected.iter().flatten().map(|value| value * value);
        let size = (squares.clone().sum::<f32>() / squares.count() as f32).sqrt();
        let most = if case.architecture == "gemma4" { SAME_UNSCALED } else { SAME };
        for parts in [20, 64] {
            let mut first = None;
            for knobs in [
                Knobs { hot: 40, cold: 30, chunk: 5, look_ahead: 1, ..Knobs::default() },
                Knobs { hot: 96, chunk: 12, cores: vec![0, 0], ..Knobs::default() },
                Knobs { cold: 96, chunk: 1, cluster: 7, ..Knobs::default() },
            ]
            .into_iter()
            .take(if parts == 64 { 1 } else { 3 })
            {
                let (unit, plan) = (PlainUnit::default(), plan(&container, "dense", &knobs));
                let log = unit.log.clone();
                let mut engine = start_beside(&container, plan, parts, unit).unwrap();
                let found = prompt(&mut engine).unwrap();
                let off = distance(&found, &expected) / size;
                assert!(off < most, "{}, {parts} parts: off by {off} of {size}", case.name);
                let work = engine.counters().detail.unit;
                let log = log.lock().unwrap();
                assert!(log.begun > 0 && work.calls == log.begun as u64, "{}: {work:?}", case.name);
                assert!(log.used.iter().all(|used| *used), "{}: held in vain: {:?}", case.name, log.used);
                assert!(work.vector_bytes > 0 && work.product_bytes > 0 && work.held_bytes > 0, "{work:?}");
                let together = (found, decode(&mut engine).unwrap());
                let first = first.get_or_insert_with(|| together.clone());
                assert!(first == &together, "{}, {parts} parts: one quality, the same bits", case.name);
            }
        }
    }
}
