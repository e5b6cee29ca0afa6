//! Experts read and evicted in slices: the same bits as neuron by neuron, in fewer and longer reads.

use std::slice;

use super::*;
use crate::reference::{Observer, Reference};
use crate::routes::{Routes, Routing};

const SLICE: usize = 16;

/// A mixture whose neurons all fire, neuron by neuron and in slices, in the same order.
fn pair(folder: &Path, format: Format) -> ([Container; 2], Vec<Vec<f32>>) {
    let bytes = model_of("llama", 4, format, width(format));
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let containers = [1, SLICE].map(|slice| {
        let folder = folder.join(slice.to_string());
        std::fs::create_dir(&folder).unwrap();
        container_in_slices(&folder, &source, None, SLICE, slice)
    });
    let expected = dense_logits(&source, &containers[1]);
    (containers, expected)
}

/// [`all_knobs`] in whole slices, with buffers of at least one.
pub(super) fn knobs(container: &Container) -> impl Iterator<Item = Knobs> {
    let (longest, slice) = (container.directory.bundle.read_bytes_max(), SLICE as u32);
    all_knobs(&backends(container)).into_iter().map(move |knobs| Knobs {
        hot: knobs.hot.next_multiple_of(slice),
        cold: knobs.cold.next_multiple_of(slice),
        buffer_bytes: knobs.buffer_bytes.max(longest),
        ..knobs
    })
}

#[test]
fn slices_give_the_bits_of_single_neurons_and_the_reference() {
    for format in [Format::F32, Format::Q4_0, Format::Q6K] {
        let folder = tempfile::tempdir().unwrap();
        let ([single, sliced], expected) = pair(folder.path(), format);
        for activations in ["f32", "q8"] {
            let planned = |container: &Container, knobs: &Knobs| {
                let mut plan = plan(container, "dense", knobs);
                activations.clone_into(&mut plan.quality.activations);
                start(container, &plan)
            };
            let mut engine = planned(&single, &Knobs::default());
            let of_single = decode(&mut engine).unwrap();
            let (did, took) = (engine.counters().detail.activity, engine.counters().detail.traffic);
            let prompt = engine.prefill(&rows(&TOKENS), None).unwrap().to_vec();
            for knobs in knobs(&sliced) {
                let mut engine = planned(&sliced, &knobs);
                assert_eq!(decode(&mut engine).unwrap(), of_single, "{format} {activations} {knobs:?}");
                let c = engine.counters();
                assert_eq!(
                    (c.detail.activity, c.detail.traffic),
                    (did, took),
                    "{format} {activations} {knobs:?}"
                );
                assert_eq!(c.looked_up, c.hot_hits + c.cold_hits + c.missing);
                assert_eq!(c.looked_up, did.requested);
                let prefilled = engine.prefill(&rows(&TOKENS), None).unwrap();
                assert_eq!(prefilled, prompt, "{format} {activations} {knobs:?}");
            }
            let off = distance(&of_single, &expected);
            let tolerance = if activations == "q8" && format.has_blocks() { 0.1 } else { 2e-3 };
            assert!(off < tolerance, "{format} {activations}: {off}");
        }
    }
}

/// The experts that a model's own router chooses: a list for each layer of each token.
#[derive(Default)]
struct Chosen(Vec<Vec<usize>>, usize);

impl Observer for Chosen {
    fn feed_forward(&mut self, layer: usize, expert: usize, _: &[f32], _: &[f32], _: &[f32]) {
        if mem::replace(&mut self.1, layer) != layer {
            self.0.push(Vec::new());
        }
        self.0.last_mut().unwrap().push(expert);
    }
}

#[test]
fn recorded_routes_are_followed_and_weighed_as_the_router_would() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = model_of("llama", 4, Format::F32, width(Format::F32));
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let container = container_in_slices(folder.path(), &source, None, SLICE, SLICE);
    let mut own = Chosen(Vec::new(), usize::MAX);
    let mut reference = Reference::new(&source, best());
    TOKENS.iter().for_each(|&token| drop(reference.step(token, &mut own)));
    assert_eq!(own.0.len(), TOKENS.len() * LAYERS);
    let routing = Routing::of(source.config()).unwrap();

    let buffer_bytes = container.directory.bundle.read_bytes_max();
    let start_with = |routes: Option<Routes>, cold: u32| {
        // a buffer for every prefetched read, so that none has to give way on a slow machine
        let knobs = Knobs { cold, look_ahead: 2, buffers: 16, buffer_bytes, chunk: 5, ..Knobs::default() };
        let mut engine = start(&container, &plan(&container, "dense", &knobs));
        engine.replay_routes(routes);
        engine
    };
    let routes = |lists: &[Vec<usize>]| Routes::new(routing, lists.to_vec()).unwrap();
    let run = |lists: Option<&[Vec<usize>]>, cold: u32| {
        let mut engine = start_with(lists.map(routes), cold);
        let logits = decode(&mut engine).unwrap();
        let counters = engine.counters();
        let prompt = engine.prefill(&rows(&TOKENS), None).unwrap().to_vec();
        (logits, prompt, counters)
    };
    let (logits, prompt, free) = run(None, 16);
    // replaying the router's own choice only turns prefetching off
    let (same, same_prompt, replayed) = run(Some(&own.0), 16);
    assert!(distance(&same, &logits) < 1e-5 && distance(&[same_prompt], slice::from_ref(&prompt)) < 1e-5);
    assert!(free.prefetch_reads > 0 && replayed.prefetch_reads == 0, "{free:?} {replayed:?}");
    assert_eq!(free.looked_up, replayed.looked_up);
    // choices known one layer early are prefetched, and change no bit
    let others: Vec<Vec<usize>> =
        own.0.iter().map(|visited| (0..4).filter(|expert| !visited.contains(expert)).collect()).collect();
    for (ahead, all_used) in [(&own.0, true), (&others, false)] {
        let mut engine = start_with(Some(routes(&own.0).known_ahead(ahead.clone()).unwrap()), 16);
        assert_eq!(decode(&mut engine).unwrap(), same);
        let Counters { prefetch_reads, prefetch_reads_used, .. } = engine.counters();
        let used = if all_used { prefetch_reads } else { 0 };
        assert!(
            prefetch_reads > 0 && prefetch_reads_used == used,
            "{prefetch_reads_used} of {prefetch_reads}"
        );
    }
    // always the same two experts: read once, with other logits; after the recording the router chooses
    let fixed = vec![vec![1, 3]; TOKENS.len() * LAYERS];
    let (other, other_prompt, counters) = run(Some(&fixed), 2 * NEURONS as u32);
    assert_eq!(counters.missing, (LAYERS * 2 * NEURONS) as u64);
    assert!(distance(&other, &logits) > 1e-3 && distance(&[other_prompt], &[prompt]) > 1e-3);
    let (ended, _, counters) = run(Some(&own.0[..LAYERS]), 2 * NEURONS as u32);
    assert!(distance(&ended, &logits) < 1e-5);
    assert!(counters.looked_up == free.looked_up && counters.missing > (LAYERS * 2 * NEURONS) as u64);
}

#[test]
fn a_slice_is_one_read_and_slots_save_reads() {
    let folder = tempfile::tempdir().unwrap();
    let ([_, sliced], _) = pair(folder.path(), Format::F32);
    let buffer_bytes = sliced.directory.bundle.read_bytes_max();
    let run = |cold: usize, policy| {
        let knobs = Knobs { cold: cold as u32, policy, buffers: 4, buffer_bytes, ..Knobs::default() };
        let mut engine = start(&sliced, &plan(&sliced, "dense", &knobs));
        decode(&mut engine).unwrap();
        engine.counters()
    };
    for policy in Policy::ALL {
        let none = run(0, policy);
        // two of four experts a token
        assert_eq!(none.looked_up, (TOKENS.len() * LAYERS * 2 * NEURONS) as u64);
        assert_eq!((none.missing, none.reads), (none.looked_up, none.missing / SLICE as u64));
        // an expert takes a page or two more than its bytes
        assert!(
            none.read_bytes <= none.reads * buffer_bytes
                && none.read_bytes > none.reads * (buffer_bytes - 8192)
        );
        let some = run(3 * NEURONS, policy);
        assert!(some.cold_hits > 0 && some.reads == some.missing / SLICE as u64, "{policy}: {some:?}");
        assert!(some.reads < none.reads, "{policy}: {} of {}", some.reads, none.reads);
        // everything fits: each expert is read once
        let all = run(4 * NEURONS, policy);
        assert_eq!(all.reads, all.missing / SLICE as u64);
        assert!(all.missing <= (LAYERS * 4 * NEURONS) as u64, "{policy}: {all:?}");
    }
}

#[test]
fn a_prompt_fills_free_slots_and_changes_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let ([_, sliced], _) = pair(folder.path(), Format::F32);
    let buffer_bytes = sliced.directory.bundle.read_bytes_max();
    for policy in Policy::ALL {
        let knobs = Knobs { cold: 3 * NEURONS as u32, policy, chunk: 3, buffer_bytes, ..Knobs::default() };
        let plan = plan(&sliced, "dense", &knobs);
        let mut cold = start(&sliced, &plan);
        let (prompt, rest) = TOKENS.split_at(8);
        let expected = cold.prefill(&rows(prompt), None).unwrap().to_vec();
        let of_prompt = cold.counters().reads;
        cold.clear_cache();
        let mut warm = start(&sliced, &plan);
        assert_eq!(warm.prefill(&rows(prompt), None).unwrap(), expected);
        // the last layer's slots lie beneath the prompt's rows and are empty
        let used: Vec<u32> = warm.layers.neurons.iter().map(|layer| layer.cache.used()).collect();
        assert_eq!(used, [3 * NEURONS as u32 / SLICE as u32, 0], "{policy}");
        // three chunks: the later ones do not read experts cached by the first
        let everything = 3 * (LAYERS * 4 * NEURONS / SLICE) as u64;
        assert!(of_prompt < everything, "{of_prompt} of {everything}");
        for (position, &token) in (prompt.len()..).zip(rest) {
            let row = [Token { token, sequence: 0, position }];
            assert_eq!(warm.decode(&row).unwrap(), cold.decode(&row).unwrap(), "{policy}");
        }
        let [warm, cold] = [warm, cold].map(|engine| engine.counters().missing);
        assert!(warm < cold, "{policy}: {warm} and {cold}");
    }
}

/// Seven of a prompt's eight tokens use the two experts in slots, which are worth more than the experts of
/// one later token.
#[test]
fn the_tokens_of_a_prompt_count_as_uses() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = model_of("llama", 4, Format::F32, width(Format::F32));
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let container = container_in_slices(folder.path(), &source, None, SLICE, SLICE);
    let visited = |token: usize| if [3, 8].contains(&token) { vec![2, 3] } else { vec![0, 1] };
    let lists: Vec<Vec<usize>> = (0..TOKENS.len()).flat_map(|token| vec![visited(token); LAYERS]).collect();
    let routes = Routes::new(Routing::of(source.config()).unwrap(), lists).unwrap();
    for (policy, missing) in [(Policy::Frequency, 2), (Policy::Lru, 4)] {
        let (cold, buffer_bytes) = (2 * NEURONS as u32, container.directory.bundle.read_bytes_max());
        // each chunk uses experts 0 and 1 first, whose slots are free
        let knobs = Knobs { cold, policy, chunk: 3, buffer_bytes, ..Knobs::default() };
        let mut engine = start(&container, &plan(&container, "dense", &knobs));
        engine.replay_routes(Some(routes.clone()));
        let (prompt, rest) = TOKENS.split_at(8);
        engine.prefill(&rows(prompt), None).unwrap();
        for (position, &token) in (prompt.len()..).zip(&rest[..2]) {
            engine.decode(&[Token { token, sequence: 0, position }]).unwrap();
        }
        // the last layer's slots lay beneath the prompt's rows and were empty
        let slices = (missing * NEURONS / SLICE) as u64;
        assert_eq!(engine.layers.neurons[0].cache.counters().missing, slices, "{policy}");
    }
}

#[test]
fn neighbours_share_a_read_up_to_a_buffer() {
    let folder = tempfile::tempdir().unwrap();
    let ([_, sliced], _) = pair(folder.path(), Format::F32);
    let bundle = sliced.directory.bundle;
    let buffer_bytes = 4 * bundle.slice_span(0, Part::Whole).bytes + 2 * PAGE_BYTES;
    let knobs = Knobs { buffer_bytes, ..Knobs::default() };
    let mut engine = start(&sliced, &plan(&sliced, "dense", &knobs));
    // a prompt of many tokens uses every expert: layers are read in order
    let long: Vec<u32> = TOKENS.iter().cycle().take(32).copied().collect();
    engine.prefill(&rows(&long), None).unwrap();
    let (c, layers) = (engine.counters(), LAYERS as u64);
    let layer = bundle.layer_bytes(4 * NEURONS as u64);
    let chunks = 32 / u64::from(knobs.chunk);
    assert!(c.reads <= chunks * layers * (layer / (buffer_bytes - 2 * PAGE_BYTES) + 2), "{} reads", c.reads);
    assert!(c.read_bytes >= layer, "{}", c.read_bytes);
}

#[test]
fn slices_survive_what_a_device_may_do_and_damage_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let ([_, sliced], _) = pair(folder.path(), Format::F32);
    let buffer_bytes = sliced.directory.bundle.read_bytes_max();
    let planned = |look_ahead| {
        let knobs = Knobs {
            cold: 6 * SLICE as u32,
            hot: SLICE as u32,
            buffers: 7,
            depth: 4,
            look_ahead,
            buffer_bytes,
            ..Knobs::default()
        };
        plan(&sliced, "dense", &knobs)
    };
    let run = |plan: &Plan, fault| {
        let device = Box::new(Faulty::new(device(&sliced, plan), fault));
        let file = sliced.files(false).unwrap();
        decode(&mut Transformer::start_on(&sliced, plan, &file, device, StopHandle::default()).unwrap())
    };
    let expected = decode(&mut start(&sliced, &planned(0))).unwrap();
    for look_ahead in [0, 3] {
        let plan = planned(look_ahead);
        for fault in [Fault::Reordered, Fault::Late, Fault::Short { every: 3 }] {
            assert_eq!(run(&plan, fault).unwrap(), expected, "{fault:?}");
        }
        for (fault, says) in
            [(Fault::Failing { every: 7 }, "Input/output error"), (Fault::Stale { every: 1 }, "checksum")]
        {
            let message = run(&plan, fault).unwrap_err().to_string();
            assert!(message.contains(says), "{fault:?}: {message}");
        }
    }
    // one byte of a neuron in a slice
    let rank = (2 * SLICE + 5) as u64;
    let at = sliced.directory.layer_offsets[1] + sliced.directory.bundle.span(rank, Part::Whole).offset;
    let file = File::options().read(true).write(true).open(&sliced.path).unwrap();
    let mut byte = [0];
    platform::file::read_exact_at(&file, &mut byte, at).unwrap();
    platform::file::write_all_at(&file, &[!byte[0]], at).unwrap();
    let plan = planned(0);
    let mut engine = start(&sliced, &plan);
    let message = match decode(&mut engine) {
        Err(error) => error.to_string(),
        Ok(_) => engine.prefill(&rows(&TOKENS), None).unwrap_err().to_string(),
    };
    assert!(message.contains(&format!("neuron {rank} of layer 1")), "{message}");
}

#[test]
fn what_does_not_fit_slices_is_refused() {
    let bytes = model_of("llama", 4, Format::F32, WIDTH);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container_in_slices(folder.path(), &source, None, SLICE, SLICE);
    let buffer_bytes = container.directory.bundle.read_bytes_max();
    let good = Knobs { buffer_bytes, ..Knobs::default() };
    let refused =
        |plan: &Plan| Transformer::start(&container, plan, StopHandle::default()).unwrap_err().to_string();
    let message = refused(&plan(&container, "sign", &good));
    assert!(message.contains("quality.kind is sign"), "{message}");
    let message =
        refused(&plan(&container, "dense", &Knobs { buffer_bytes: buffer_bytes - 4096, ..good.clone() }));
    assert!(message.contains("read.buffer_bytes") && message.contains("16 neurons"), "{message}");
    let mut other = plan(&container, "dense", &good);
    other.cache.slice_neurons = 8;
    let message = refused(&other);
    assert!(message.contains("cache.slice_neurons is 8"), "{message}");
    // an order that mixes experts
    let mixed = tempfile::tempdir().unwrap();
    let container = container_in_slices(mixed.path(), &source, None, 1, SLICE);
    let plan = plan(&container, "dense", &good);
    let message = Transformer::start(&container, &plan, StopHandle::default()).unwrap_err().to_string();
    assert!(message.contains("neurons of several experts"), "{message}");
}
