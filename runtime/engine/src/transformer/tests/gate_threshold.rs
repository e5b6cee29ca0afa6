//! Neurons with small gates left out, in a model whose neurons all fire, against a reference that leaves out
//! the same ones.

use super::*;
use crate::reference::{Observer, Selector};
use kernels::Activation;

/// The threshold of a neuron's activated gate, by its index in the expert.
fn threshold(neuron: usize) -> f32 {
    0.02 * (neuron % 7) as f32
}

/// Leaves out gates below [`threshold`], and counts.
#[derive(Default)]
struct Cut {
    activation: Option<Activation>,
    routed: u64,
    selected: u64,
    /// The smallest difference of a gate from its threshold.
    margin: f32,
}

impl Observer for Cut {
    fn feed_forward(&mut self, _: usize, _: usize, _: &[f32], _: &[f32], _: &[f32]) {}
}

impl Selector for Cut {
    fn select(&mut self, _: usize, _: usize, _: &[f32], gate: &[f32], selected: &mut [bool]) {
        for (neuron, (&gate, selected)) in gate.iter().zip(selected).enumerate() {
            let size = self.activation.unwrap().apply(gate, 1.0).abs();
            *selected = size >= threshold(neuron);
            self.routed += 1;
            self.selected += u64::from(*selected);
            self.margin = self.margin.min((size - threshold(neuron)).abs());
        }
    }
}

/// The source's container with the level `gate-threshold`, in a shuffled order.
fn cut_container(folder: &Path, source: &SourceModel<'_>) -> Container {
    let (c, orders) = (source.config(), orders(source, 1));
    let of_expert = |layer: usize, expert: usize| -> Vec<f32> {
        let own = orders[layer].iter().filter(|&&index| index as usize / c.ffn_width() == expert);
        own.map(|&index| threshold(index as usize % c.ffn_width())).collect()
    };
    let of_layer = |layer| (0..c.experts()).map(|expert| of_expert(layer, expert)).collect();
    let level = |kind: LevelKind, thresholds| {
        let (name, always_on) = (kind.name().to_owned(), vec![0; c.layers()]);
        LevelSource { name, kind, set: None, thresholds, always_on }
    };
    let thresholds = Some((0..c.layers()).map(of_layer).collect());
    let levels = [level(LevelKind::Dense, None), level(LevelKind::GateThreshold, thresholds)];
    let contents = Contents {
        name: "test",
        source_fingerprint: "source",
        source,
        tokenizer: tokenizer(),
        down_format: Some(crate::container::stored_down_format(source, None)),
        slice_neurons: 1,
        orders: &orders,
        sets: &[],
        levels: &levels,
    };
    let path = folder.join("test.bundle");
    write(&path, &path.with_extension("part"), contents, &mut (), &mut |_| true).unwrap();
    Container::open(&path).unwrap()
}

#[test]
fn what_is_left_out_is_what_the_reference_leaves_out_under_all_plans() {
    for (experts, format, width) in [
        (1, Format::F32, WIDTH),
        (4, Format::F32, WIDTH),
        (1, Format::F16, WIDTH),
        (4, Format::Q8_0, WIDTH),
        (1, Format::F32, 512), // up and down are a page: they are read in one, or one after the other
    ] {
        let phases = if width == 512 { &[Phases::Whole, Phases::Rows][..] } else { &[Phases::Whole] };
        let bytes = model_of("llama", experts, format, width);
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let activation = source.config().activation();
        assert!(activation.always_fires());
        let folder = tempfile::tempdir().unwrap();
        let container = cut_container(folder.path(), &source);
        let mut cut = Cut { activation: Some(activation), margin: f32::INFINITY, ..Cut::default() };
        let mut reference = Reference::new(&source, best());
        let expected: Vec<Vec<f32>> =
            TOKENS.iter().map(|&token| reference.step_selected(token, &mut cut)).collect();
        assert!(
            cut.selected > cut.routed / 5 && cut.selected < cut.routed * 4 / 5,
            "some of each: {} of {}",
            cut.selected,
            cut.routed
        );
        let mut first: Option<Vec<Vec<f32>>> = None;
        let all = all_knobs(&backends(&container));
        let room = |common: &Knobs| common.buffer_bytes.max(16384);
        let of = |phases| {
            all.iter().map(move |common| Knobs { phases, buffer_bytes: room(common), ..common.clone() })
        };
        for knobs in phases.iter().copied().flat_map(of) {
            let plan = plan(&container, "gate-threshold", &knobs);
            let mut engine = start(&container, &plan);
            let logits = decode(&mut engine).unwrap();
            let Detail { activity: a, traffic: t, .. } = engine.counters().detail;
            match &first {
                // down rows that are quantised again belong to another model
                None if format.has_blocks() => {}
                None => {
                    let off = distance(&logits, &expected);
                    assert!(off < 2e-3, "{experts} {format}: {off}, {} from a threshold", cut.margin);
                    assert_eq!((a.routed, a.requested), (cut.routed, cut.selected), "{experts} {format}");
                }
                Some(first) => assert_eq!(&logits, first, "{experts} {format} {knobs:?}"),
            }
            assert_eq!((a.fired, a.routed), (a.requested, cut.routed));
            // gate rows, and a threshold for each
            let row = format.row_bytes(width) as u64;
            assert_eq!(t.selection, a.routed * (row + 4));
            first.get_or_insert(logits);
            // a prompt leaves nothing out
            let prefilled = |level: &str| {
                let mut plan = self::plan(&container, level, &knobs);
                plan.read.phases = Phases::Whole;
                start(&container, &plan).prefill(&rows(&TOKENS), None).unwrap().to_vec()
            };
            assert_eq!(prefilled("gate-threshold"), prefilled("dense"), "{experts} {format} {knobs:?}");
        }
    }
}

#[test]
fn sequences_that_leave_out_different_neurons_have_the_bits_that_they_have_alone() {
    for experts in [1, 4] {
        let bytes = model_of("llama", experts, Format::F32, width(Format::F32));
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let container = cut_container(folder.path(), &source);
        let all = all_knobs(&backends(&container));
        together::check(&container, &format!("{experts}"), "gate-threshold", &all);
    }
}

#[test]
fn thresholds_that_are_missing_or_belong_to_another_kind_are_refused() {
    let bytes = model_of("llama", 1, Format::F32, width(Format::F32));
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = || cut_container(folder.path(), &source);
    let refused = |spoil: &dyn Fn(&mut Vec<crate::container::LevelEntry>)| {
        let mut container = container();
        spoil(&mut container.directory.levels);
        let message = container.check().unwrap_err();
        assert!(message.contains("has no predictor of its kind"), "{message}");
    };
    assert!(container().check().is_ok());
    refused(&|levels| levels[1].thresholds = None);
    refused(&|levels| levels[1].thresholds.as_mut().unwrap().bytes = 0);
    refused(&|levels| levels[1].set = Some(0));
    refused(&|levels| levels[0].thresholds = levels[1].thresholds.clone());
    refused(&|levels| levels[1].kind = LevelKind::ExactGate);
}
