//! An engine allocates only when it starts. A token allocates nothing on any thread; neither do several
//! sequences together, nor a draft. A prompt allocates one copy of its tokens, for the engine's thread.
//!
//! While armed, the allocator counts requests of all threads of the process, readers and workers included.
//! This binary has one test, so that no other test allocates meanwhile.
#![expect(unsafe_code, reason = "an allocator that counts")]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use flashplan::internals::container::{
    Container, Contents, LevelSource, PredictorSource, SetSource, stored_down_format, write, write_index,
};
use flashplan::internals::engine::{BatchExt as _, EngineExt as _};
use flashplan::internals::machine::Machine;
use flashplan::internals::model::source::SourceModel;
use flashplan::internals::predictor::{Hidden, sign_bits};
use flashplan::{Engine, Error, Model, Plan};
use kernels::{Format, dequantise};
use plans::KvFormat;
use plans::file::parse;
use plans::memory::{
    Activations, choices_of, embedding_buffer_bytes, embedding_left_bytes, kv_bytes_per_token,
    page_tables_bytes, slot_part, tables_bytes,
};
use plans::model::LevelKind;
use plans::plan::{Speculation, Together};
use plans::{Backend, Device, PAGE_BYTES, Policy};

/// The system's allocator, which counts requests of all threads while it is armed.
struct Counting;

static ARMED: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Bytes of the first request.
static FIRST_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged; counting only changes atomic numbers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if ARMED.load(SeqCst) && ALLOCATIONS.fetch_add(1, SeqCst) == 0 {
            FIRST_BYTES.store(layout.size(), SeqCst);
        }
        // SAFETY: the caller promised what this call requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller promised what this call requires.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The result of `work`, how often any thread allocated meanwhile, and the bytes of the first allocation.
fn counted<T>(work: impl FnOnce() -> T) -> (T, [usize; 2]) {
    ALLOCATIONS.store(0, SeqCst);
    FIRST_BYTES.store(0, SeqCst);
    ARMED.store(true, SeqCst);
    let done = work();
    ARMED.store(false, SeqCst);
    (done, [&ALLOCATIONS, &FIRST_BYTES].map(|count| count.load(SeqCst)))
}

/// The container of a fixture model in its own order, with levels that need no training.
fn container(folder: &Path, model: &str) -> Container {
    let model = format!("{}/../../fixtures/models/{model}.gguf", env!("CARGO_MANIFEST_DIR"));
    let source = SourceModel::open(&model).unwrap();
    let c = source.config();
    let orders: Vec<Vec<u32>> = vec![(0..(c.experts() * c.ffn_width()) as u32).collect(); c.layers()];
    let words = c.width.div_ceil(64);
    let signs = |layer, expert| {
        let (gate, mut signs) = (source.ffn_gate(layer, expert), vec![0; c.ffn_width() * words]);
        for (neuron, signs) in signs.chunks_mut(words).enumerate() {
            let mut row = vec![0.0; c.width];
            dequantise(gate.format, gate.row(neuron).bytes, &mut row);
            sign_bits(&row, signs);
        }
        PredictorSource::Sign(signs)
    };
    let signs: Vec<Vec<PredictorSource>> =
        (0..c.layers()).map(|layer| (0..c.experts()).map(|expert| signs(layer, expert)).collect()).collect();
    let half = vec![vec![vec![c.width as f32 / 2.0; c.ffn_width()]; c.experts()]; c.layers()];
    let level = |name: &str, kind, set, thresholds| LevelSource {
        name: name.to_owned(),
        kind,
        set,
        thresholds,
        always_on: vec![0; c.layers()],
    };
    let path = folder.join("test.bundle");
    let set = SetSource {
        name: "sign",
        kind: LevelKind::Sign,
        format: Format::F16,
        hidden: Hidden::Relu,
        predictors: &signs,
    };
    let levels = [
        level("dense", LevelKind::Dense, None, None),
        level("exact-gate", LevelKind::ExactGate, None, None),
        level("sign", LevelKind::Sign, Some(0), Some(half)),
    ];
    let contents = Contents {
        slice_neurons: 1,
        name: "test",
        source_fingerprint: "source",
        source: &source,
        tokenizer: source.tokenizer_data().unwrap(),
        down_format: Some(stored_down_format(&source, None)),
        orders: &orders,
        sets: &[set],
        levels: &levels,
    };
    write(&path, &path.with_extension("part"), contents, &mut (), &mut |_| true).unwrap();
    Container::open(&path).unwrap()
}

/// The index of a fixture model in its own order, with the level `dense`; the model is copied beside it.
fn index(folder: &Path, model: &str) -> Container {
    let file = format!("{}/../../fixtures/models/{model}.gguf", env!("CARGO_MANIFEST_DIR"));
    let copy = folder.join("test.gguf");
    std::fs::copy(file, &copy).unwrap();
    let source = SourceModel::open(&copy).unwrap();
    let c = source.config();
    let orders: Vec<Vec<u32>> = vec![(0..(c.experts() * c.ffn_width()) as u32).collect(); c.layers()];
    let level = LevelSource {
        name: "dense".to_owned(),
        kind: LevelKind::Dense,
        set: None,
        thresholds: None,
        always_on: vec![0; c.layers()],
    };
    let contents = Contents {
        slice_neurons: c.ffn_width(),
        name: "test",
        source_fingerprint: "source",
        source: &source,
        tokenizer: source.tokenizer_data().unwrap(),
        down_format: None,
        orders: &orders,
        sets: &[],
        levels: &[level],
    };
    let path = folder.join("test.index");
    write_index(&path, &path.with_extension("part"), contents, None, &mut |_| true).unwrap();
    Container::open(&path).unwrap()
}

/// The choices of a plan of this test.
#[derive(Debug, Clone, Copy)]
struct Choice {
    level: &'static str,
    activations: &'static str,
    backend: Backend,
    policy: Policy,
    look_ahead: u32,
    blocking: bool,
    embedding_rows: bool,
    sequences: u32,
    draft: u32,
}

/// The plan of a choice, for this machine, in `folder`.
fn plan(folder: &Path, container: &Container, choice: Choice, cores: &[u32]) -> Plan {
    let d = &container.directory;
    let entry = container.level(choice.level).unwrap();
    let (a, layers) = (d.architecture(), d.config.layers());
    let text = include_str!("../src/transformer/test_plan.toml");
    let mut plan: plans::Plan = parse(text, Path::new("test_plan.toml")).unwrap();
    choice.level.clone_into(&mut plan.quality.level);
    plan.quality.kind = entry.kind;
    plan.quality.always_on_neurons.clone_from(&entry.always_on);
    kernels::best().instruction_set().name().clone_into(&mut plan.quality.instruction_set);
    choice.activations.clone_into(&mut plan.quality.activations);
    let neurons = container.neurons() as u32;
    let slice = d.bundle.slice_neurons as u32;
    let (hot, cold) = if slice > 1 { (neurons / 4, neurons / 2) } else { (neurons / 8, neurons / 4) };
    (plan.cache.slice_neurons, plan.read.parts) = (slice, d.bundle.reads_of_slice() as u32);
    (plan.cache.hot_neurons, plan.cache.cold_slots) = (vec![hot; layers], vec![cold; layers]);
    plan.cache.policy = choice.policy;
    plan.decode.compute_cores = cores.to_vec();
    plan.prefill.compute_cores = cores.to_vec();
    plan.read.backend = choice.backend;
    if choice.backend == Backend::IoUring {
        plan.decode.io_cores.clear();
    }
    (plan.read.look_ahead, plan.read.blocking) = (choice.look_ahead, choice.blocking);
    (plan.read.buffers, plan.read.buffer_bytes, plan.read.depth) =
        (64, d.bundle.read_bytes_max().max(16384), 8);
    let embedding = container.tensor("token_embd.weight").unwrap();
    let row_bytes = embedding.format.row_bytes(embedding.columns) as u64;
    // an embedding that is the head, too, stays in memory
    plan.read.embedding_rows = choice.embedding_rows && container.tensor("output.weight").is_some();
    let (left, row_buffer) = if plan.read.embedding_rows {
        (embedding_left_bytes(embedding.rows as u64 * row_bytes), embedding_buffer_bytes(row_bytes))
    } else {
        (0, 0)
    };
    let pages = |bytes: u64| bytes.next_multiple_of(PAGE_BYTES);
    let slots_bytes =
        |slots: u32| pages(u64::from(slots) * layers as u64 * d.bundle.part_bytes(slot_part(entry.kind)));
    let level_bytes = container.level_resident_bytes(entry);
    let m = &mut plan.memory;
    m.fixed_bytes = pages(d.fixed.bytes - left + level_bytes);
    (m.hot_bytes, m.cold_bytes) = (slots_bytes(hot), slots_bytes(cold));
    plan.context.sequences = choice.sequences;
    plan.speculation = (choice.draft > 0).then_some(Speculation {
        draft_tokens: choice.draft,
        drafted_tokens_per_step: 0.0,
        tokens_per_step: 1.0,
        decode_tokens_per_second: 1.0,
    });
    let tokens = u64::from(choice.sequences) * u64::from(plan.context.tokens);
    m.kv_bytes = pages(tokens * kv_bytes_per_token(&a, KvFormat::F32));
    m.io_buffers_bytes = u64::from(plan.read.buffers) * plan.read.buffer_bytes + row_buffer;
    let choices = choices_of(&plan, level_bytes);
    let (activations, tables) = (Activations::new(&a, &choices), tables_bytes(&a, &choices));
    let m = &mut plan.memory;
    (m.activations_bytes, m.prompt_bytes) = (activations.bytes(), activations.prompt.bytes());
    m.tables_bytes = tables;
    m.page_tables_bytes = 0;
    m.page_tables_bytes = page_tables_bytes(m.prefill_sum());
    (m.decode_total_bytes, m.prefill_total_bytes) = (m.decode_sum(), m.prefill_sum());
    plan.expected.memory_peak_bytes = m.prefill_total_bytes;
    plan.together = (choice.sequences > 1).then(|| Together {
        decode_tokens_per_second: vec![plan.expected.decode_tokens_per_second; choice.sequences as usize],
    });

    let here = Machine::here(&container.path).unwrap().identity();
    let target = &mut plan.target;
    (target.device_fingerprint, target.ram_gib) = (Device::fingerprint_of(&here), here.ram_gib);
    (target.cpu, target.storage) = (here.cpu, here.storage);
    target.model_fingerprint.clone_from(&d.source_fingerprint);
    target.container_fingerprint.clone_from(&container.fingerprint);
    plan.provenance.quality = plan.quality_hash();
    let path = folder.join("plan.toml");
    plans::file::write(&plan, &path).unwrap();
    Plan::read(&path).unwrap()
}

/// At most two cores of this process.
fn cores() -> Vec<u32> {
    platform::affinity::CoreSet::current().unwrap().cores().into_iter().take(2).collect()
}

/// Choices that together use every way to read, compute and cache.
fn choices() -> Vec<Choice> {
    let mut choices = Vec::new();
    for backend in Backend::ALL {
        let usual = Choice {
            level: "sign",
            activations: "f32",
            backend,
            policy: Policy::Lru,
            look_ahead: 4,
            blocking: false,
            embedding_rows: false,
            sequences: 1,
            draft: 0,
        };
        choices.extend([
            usual,
            Choice { policy: Policy::Clock, ..usual },
            Choice { policy: Policy::Frequency, ..usual },
            Choice { level: "exact-gate", activations: "q8", embedding_rows: true, ..usual },
            Choice { level: "dense", blocking: true, look_ahead: 0, ..usual },
        ]);
        let several =
            choices[choices.len() - 5..].iter().map(|&choice| Choice { sequences: 3, draft: 2, ..choice });
        choices.extend(several.collect::<Vec<_>>());
    }
    choices
}

#[test]
fn nothing_is_allocated_after_start() {
    // the counter counts, on other threads, too
    let (_, [on_this, bytes]) = counted(|| black_box(vec![0_u8; 77]));
    assert_eq!((on_this, bytes), (1, 77), "a vector is counted");
    let (_, [on_another, _]) = counted(|| std::thread::scope(|s| s.spawn(|| black_box(Box::new(1))).join()));
    assert!(on_another > 1, "a thread and its box are counted: {on_another}");

    // visits of experts are counted where they are read from the model's file
    let whole = || choices().into_iter().filter(|choice| choice.level == "dense").collect();
    for (model, is_index, choices) in [
        ("oxide-dense", false, choices()),
        ("oxide-moe", false, choices().split_off(4)),
        ("oxide-moe", true, whole()),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let container = if is_index { index(folder.path(), model) } else { container(folder.path(), model) };
        let opened = Model::open(&container.path).unwrap();
        let tokens: Vec<u32> = (0..24).map(|i| 5 + i * 37 % 900).collect();
        for choice in choices {
            let plan = plan(folder.path(), &container, choice, &cores());
            let engine = match Engine::start(&opened, &plan) {
                Err(error) if error.to_string().contains("io_uring is refused here") => {
                    skipped::skipped("io_uring", error);
                    continue;
                }
                started => started.unwrap(),
            };
            // a channel allocates when a thread first waits at it, as the engine does for a command
            engine.clear_cache();
            std::thread::sleep(Duration::from_millis(50));
            let mut session = engine.session().unwrap();
            let prefill = |session: &mut flashplan::Session, tokens: &[u32]| {
                let (done, [count, bytes]) = counted(|| session.prefill(tokens).map(|logits| logits[0]));
                assert!(done.unwrap().is_finite(), "{model} {choice:?}");
                // the copy of the prompt for the engine's thread
                assert_eq!((count, bytes), (1, 4 * tokens.len()), "{model} {choice:?}: a prompt");
            };
            let decode = |session: &mut flashplan::Session, tokens: &[u32]| {
                let work = || tokens.iter().try_fold(0.0, |sum, &token| Ok(sum + session.decode(token)?[0]));
                let (done, [count, bytes]) = counted(work);
                assert!(
                    done.map_err(|error: Error| error.to_string()).unwrap().is_finite(),
                    "{model} {choice:?}"
                );
                assert_eq!(count, 0, "{model} {choice:?}: tokens, first {bytes} bytes");
            };
            prefill(&mut session, &tokens[..11]);
            decode(&mut session, &tokens[11..17]);
            // the first prompt's rows are in borrowed slots, which are filled again
            prefill(&mut session, &tokens[17..20]);
            decode(&mut session, &tokens[20..]);
            assert!(engine.counters().missing > 0, "{model} {choice:?}: neurons are read");
            drop(session);
            let counted = engine.visits().map(|visited| visited.tokens);
            assert_eq!(counted, is_index.then_some(10), "{model} {choice:?}: all decoded tokens");
            if choice.sequences > 1 {
                together(&engine, &tokens, &format!("{model} {choice:?}"));
            }
        }
    }
}

/// Three sequences of different lengths and positions give the same logits as alone, and allocate nothing.
fn together(engine: &Engine, tokens: &[u32], told: &str) {
    const STEPS: usize = 4;
    let prompts: [&[u32]; 3] = [&tokens[..3], &tokens[5..6], &tokens[8..16]];
    let next = |sequence: usize, step: usize| tokens[(7 * sequence + step) % tokens.len()];
    let mut session = engine.session().unwrap();
    let alone: Vec<Vec<f32>> = (0..3)
        .map(|sequence| {
            session.reset();
            session.prefill(prompts[sequence]).unwrap();
            let decode = |step| session.decode(next(sequence, step)).unwrap().to_vec();
            (0..STEPS).flat_map(decode).collect()
        })
        .collect();
    drop(session);
    let (mut batch, mut found) = (engine.batch().unwrap(), vec![Vec::new(); 3]);
    for (sequence, prompt) in prompts.into_iter().enumerate() {
        batch.prefill(sequence, prompt).unwrap();
    }
    for step in 0..STEPS {
        let rows = [2, 0, 1].map(|sequence| (sequence, next(sequence, step)));
        let (done, [count, bytes]) = counted(|| batch.decode(&rows).map(|_| ()));
        done.unwrap();
        assert_eq!(count, 0, "{told}: tokens together, first {bytes} bytes");
        let logits = batch.logits().chunks_exact(batch.engine().vocabulary());
        rows.iter()
            .zip(logits)
            .for_each(|(&(sequence, _), logits)| found[sequence].extend_from_slice(logits));
    }
    assert!(found == alone, "{told}: other logits than alone");
    // a draft of one sequence between the others' tokens
    for (sequence, prompt) in prompts.into_iter().enumerate() {
        batch.rewind(sequence, prompt.len()).unwrap();
    }
    let rows = [(1, 0), (0, 0), (1, 1), (2, 0), (1, 2)];
    let tokens = rows.map(|(sequence, step)| (sequence, next(sequence, step)));
    let (done, [count, bytes]) = counted(|| batch.decode(&tokens).map(|_| ()));
    done.unwrap();
    assert_eq!(count, 0, "{told}: a draft, first {bytes} bytes");
    let vocabulary = batch.engine().vocabulary();
    for ((sequence, step), logits) in rows.into_iter().zip(batch.logits().chunks_exact(vocabulary)) {
        assert!(logits == &alone[sequence][step * vocabulary..][..vocabulary], "{told}: {sequence} {step}");
    }
}
