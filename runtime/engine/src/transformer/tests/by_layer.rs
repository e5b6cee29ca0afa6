//! Formats that differ by layer, as in mixed quantisations.

use super::*;

/// A dReLU model whose gates and ups differ by layer; down is stored exactly.
fn mixed(width: usize, of_layers: [[Format; 2]; LAYERS]) -> Vec<u8> {
    let format = |layer: usize, part: &str| match part {
        "ffn_gate" => of_layers[layer][0],
        "ffn_up" => of_layers[layer][1],
        _ => Format::F32,
    };
    model_with("bamboo", 1, [width, NEURONS], false, &format)
}

#[test]
fn layers_in_other_formats_give_the_references_numbers_and_take_their_own_bytes() {
    let of_layers = [[Format::Q8_0, Format::F16], [Format::F32, Format::Q8_0]];
    let bytes = mixed(WIDTH, of_layers);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    let d = &container.directory;
    let stored = [0, 1].map(|layer| d.stored(layer));
    assert_eq!(stored.map(|stored| [stored.gate_format, stored.up_format]), of_layers);
    let [gates, ups] = [[68, 256], [128, 68]];
    assert_eq!(stored.map(|stored| stored.bundle.bundle_bytes()), [0, 1].map(|l| gates[l] + ups[l] + 256));
    assert_eq!(d.mean_bundle().bundle_bytes(), 162 + 98 + 256);
    let expected = reference(&source);
    for level in ["dense", "exact-gate", "sign", "low-rank"] {
        let mut first: Option<(Vec<Vec<f32>>, Vec<f32>, _)> = None;
        for knobs in all_knobs(&backends(&container)) {
            let mut engine = start(&container, &plan(&container, level, &knobs));
            let logits = decode(&mut engine).unwrap();
            let Detail { activity, traffic, .. } = engine.counters().detail;
            let prompt = engine.prefill(&rows(&TOKENS), None).unwrap().to_vec();
            let off = distance(&logits, &expected);
            assert!(off < 2e-3 || matches!(level, "sign" | "low-rank"), "{level}: {off}");
            let found = (logits, prompt, (activity, traffic));
            let first = first.get_or_insert_with(|| found.clone());
            assert_eq!(first, &found, "{level} {knobs:?}");
        }
        let Some((_, _, (activity, traffic))) = first else { panic!("there are plans") };
        // equally many neurons of each layer are requested here
        let routed = activity.routed / LAYERS as u64;
        match level {
            "dense" => {
                let gates: u64 = gates.iter().sum();
                let rows = traffic.rows - routed * gates - activity.active * 256;
                assert!((activity.fired * 68..=activity.fired * 128).contains(&rows), "{traffic:?}");
            }
            "exact-gate" => assert_eq!(traffic.selection, routed * gates.iter().sum::<u64>()),
            _ => {}
        }
    }
}

#[test]
fn phases_are_refused_where_layers_differ() {
    let bytes = mixed(1024, [[Format::F32, Format::F32], [Format::F16, Format::F32]]);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    let knobs = Knobs { buffer_bytes: 32768, ..Knobs::default() };
    let expected = reference(&source);
    let found = decode(&mut start(&container, &plan(&container, "dense", &knobs))).unwrap();
    assert!(distance(&found, &expected) < 2e-3);
    let plan = plan(&container, "dense", &Knobs { phases: Phases::TwoPhase, ..knobs });
    let message = Transformer::start(&container, &plan, StopHandle::default()).unwrap_err().to_string();
    assert!(message.contains("read.phases is two-phase"), "{message}");
}
