//! An engine allocates when it starts, and never after: not for a token, nor for a prompt, on no thread.
//!
//! The allocator counts what any thread of the process requests while it is armed, readers and workers included. There is one
//! test in this binary, so that no other allocates meanwhile.
#![expect(unsafe_code, reason = "an allocator that counts")]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use flashplan::container::{Container, LevelSource, PredictorSource, SetSource, stored_down_format, write};
use flashplan::embedding::EmbeddingRows;
use flashplan::engine::{Engine, EngineError, Token};
use flashplan::model::source::SourceModel;
use flashplan::predictor::{Hidden, sign_bits};
use kernels::{Format, dequantise};
use plans::file::parse;
use plans::layout::{Part, Phases};
use plans::memory::{Activations, choices_of, kv_bytes_per_token, slot_part, tables_bytes};
use plans::model::LevelKind;
use plans::{Backend, PAGE_BYTES, Plan, Policy};

/// The system's allocator, which counts what all threads request while it is armed.
struct Counting;

static ARMED: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Bytes of the first.
static FIRST_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes on to the system's allocator as it came. Counting changes atomic numbers and nothing else.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if ARMED.load(SeqCst) && ALLOCATIONS.fetch_add(1, SeqCst) == 0 {
            FIRST_BYTES.store(layout.size(), SeqCst);
        }
        // SAFETY: the caller has promised what is requested here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller has promised what is requested here.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What `work` gives, how often any thread allocated meanwhile, and bytes of the first time.
fn counted<T>(work: impl FnOnce() -> T) -> (T, [usize; 2]) {
    ALLOCATIONS.store(0, SeqCst);
    FIRST_BYTES.store(0, SeqCst);
    ARMED.store(true, SeqCst);
    let done = work();
    ARMED.store(false, SeqCst);
    (done, [&ALLOCATIONS, &FIRST_BYTES].map(|count| count.load(SeqCst)))
}

/// A plan in execution, behind what this test does with one.
struct Running(Engine);

impl Running {
    fn prefill(&mut self, tokens: &[Token]) -> Result<f32, EngineError> {
        self.0.prefill(tokens, None).map(|logits| logits[0])
    }

    fn decode(&mut self, token: Token) -> Result<f32, EngineError> {
        self.0.decode(&[token]).map(|logits| logits[0])
    }

    fn missing(&self) -> u64 {
        self.0.counters().missing
    }
}

/// The container of a fixture model in its own order, with levels that need no training.
fn container(folder: &Path, model: &str) -> Container {
    let model = format!("{}/../../fixtures/models/{model}.gguf", env!("CARGO_MANIFEST_DIR"));
    let source = SourceModel::open(&model).unwrap();
    let c = source.config();
    let orders: Vec<Vec<u32>> = vec![(0..(c.experts * c.ffn_width) as u32).collect(); c.layers];
    let words = c.width.div_ceil(64);
    let signs = |layer, expert| {
        let (gate, mut signs) = (source.ffn_gate(layer, expert), vec![0; c.ffn_width * words]);
        for (neuron, signs) in signs.chunks_mut(words).enumerate() {
            let mut row = vec![0.0; c.width];
            dequantise(gate.format, gate.row(neuron).bytes, &mut row);
            sign_bits(&row, signs);
        }
        PredictorSource::Sign(signs)
    };
    let signs: Vec<Vec<PredictorSource>> =
        (0..c.layers).map(|layer| (0..c.experts).map(|expert| signs(layer, expert)).collect()).collect();
    let half = vec![vec![vec![c.width as f32 / 2.0; c.ffn_width]; c.experts]; c.layers];
    let level = |name: &str, kind, set, thresholds| LevelSource {
        name: name.to_owned(),
        kind,
        set,
        thresholds,
        always_on: vec![0; c.layers],
    };
    let path = folder.join("test.bundle");
    let (set, down) = (
        SetSource {
            name: "sign",
            kind: LevelKind::Sign,
            format: Format::F16,
            hidden: Hidden::Relu,
            predictors: &signs,
        },
        stored_down_format(&source, None),
    );
    let levels = [
        level("dense", LevelKind::Dense, None, None),
        level("exact-gate", LevelKind::ExactGate, None, None),
        level("sign", LevelKind::Sign, Some(0), Some(half)),
    ];
    let part = path.with_extension("part");
    let tokenizer = source.tokenizer_data().unwrap();
    write(
        &path,
        &part,
        "test",
        "source",
        &source,
        tokenizer,
        down,
        &orders,
        &[set],
        &levels,
        &mut (),
        &mut |_| true,
    )
    .unwrap();
    Container::open(&path).unwrap()
}

/// What a plan of this test chooses.
#[derive(Debug, Clone, Copy)]
struct Choice {
    level: &'static str,
    activations: &'static str,
    backend: Backend,
    policy: Policy,
    phases: Phases,
    look_ahead: u32,
    blocking: bool,
    embedding_rows: bool,
}

fn plan(container: &Container, choice: Choice, cores: &[u32]) -> Plan {
    let d = &container.directory;
    let entry = container.level(choice.level).unwrap();
    let (a, layers) = (d.architecture(), d.config.layers);
    let text = include_str!("../src/engine/test_plan.toml");
    let mut plan: Plan = parse(text, Path::new("test_plan.toml")).unwrap();
    choice.level.clone_into(&mut plan.quality.level);
    plan.quality.kind = entry.kind;
    plan.quality.always_on_neurons.clone_from(&entry.always_on);
    kernels::best().instruction_set().name().clone_into(&mut plan.quality.instruction_set);
    choice.activations.clone_into(&mut plan.quality.activations);
    let neurons = container.neurons() as u32;
    let (hot, cold) = (neurons / 8, neurons / 4);
    (plan.cache.hot_neurons, plan.cache.cold_slots) = (vec![hot; layers], vec![cold; layers]);
    plan.cache.policy = choice.policy;
    plan.decode.compute_cores = cores.to_vec();
    plan.prefill.compute_cores = cores.to_vec();
    plan.read.backend = choice.backend;
    (plan.read.look_ahead, plan.read.blocking, plan.read.phases) =
        (choice.look_ahead, choice.blocking, choice.phases);
    (plan.read.buffers, plan.read.buffer_bytes, plan.read.depth) = (64, 16384, 8);
    let needs = EmbeddingRows::needs(container).filter(|_| choice.embedding_rows);
    plan.read.embedding_rows = needs.is_some();
    let (left, row_buffer) = needs.unwrap_or_default();
    let pages = |bytes: u64| bytes.next_multiple_of(PAGE_BYTES);
    let slots_bytes =
        |slots: u32| pages(u64::from(slots) * layers as u64 * d.bundle.part_bytes(slot_part(entry.kind)));
    let level_bytes = container.level_resident_bytes(entry);
    let m = &mut plan.memory;
    m.fixed_bytes = pages(d.fixed.bytes - left + level_bytes);
    (m.hot_bytes, m.cold_bytes) = (slots_bytes(hot), slots_bytes(cold));
    m.kv_bytes = pages(u64::from(plan.context.tokens) * kv_bytes_per_token(&a, 4));
    m.io_buffers_bytes = u64::from(plan.read.buffers) * plan.read.buffer_bytes + row_buffer;
    let choices = choices_of(&plan, level_bytes);
    let (activations, tables) = (Activations::new(&a, &choices), tables_bytes(&a, &choices));
    let m = &mut plan.memory;
    (m.activations_bytes, m.prompt_bytes) = (activations.bytes(), activations.prompt.bytes());
    m.tables_bytes = tables;
    (m.decode_total_bytes, m.prefill_total_bytes) = (m.decode_sum(), m.prefill_sum());
    plan
}

/// Cores that this process may use, two at most.
fn cores() -> Vec<u32> {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    (0..1024).filter(|&core| allowed.is_set(core as usize)).take(2).collect()
}

/// Choices that together use every way of reading, of computing and of caching.
fn choices() -> Vec<Choice> {
    let mut choices = Vec::new();
    for backend in Backend::ALL {
        let usual = Choice {
            level: "sign",
            activations: "f32",
            backend,
            policy: Policy::Lru,
            phases: Phases::Whole,
            look_ahead: 4,
            blocking: false,
            embedding_rows: false,
        };
        choices.extend([
            usual,
            Choice { policy: Policy::Clock, phases: Phases::Rows, ..usual },
            Choice { policy: Policy::Frequency, phases: Phases::TwoPhase, ..usual },
            Choice { level: "exact-gate", activations: "q8", embedding_rows: true, ..usual },
            Choice { level: "dense", blocking: true, look_ahead: 0, ..usual },
        ]);
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

    for model in ["oxide-dense", "oxide-moe"] {
        let folder = tempfile::tempdir().unwrap();
        let container = container(folder.path(), model);
        let tokens: Vec<Token> =
            (0..28).map(|i| Token { token: 5 + i * 37 % 900, sequence: 0, position: i as usize }).collect();
        for choice in choices() {
            let mut choice = choice;
            if container.directory.bundle.steps(Part::Whole, choice.phases).is_none() {
                choice.phases = Phases::Whole; // bundles of a page
            }
            let plan = plan(&container, choice, &cores());
            let mut engine = match Engine::start(&container, &plan) {
                Err(EngineError::Refused { .. }) => continue, // no io_uring here
                started => Running(started.unwrap()),
            };
            // twice: the second time nothing may be left from the first
            for round in 0..2 {
                let (done, [count, bytes]) = counted(|| {
                    engine.prefill(&tokens[..11])?;
                    for &token in &tokens[11..17] {
                        engine.decode(token)?;
                    }
                    engine.prefill(&tokens[17..20])?;
                    tokens[20..].iter().try_fold(0.0, |sum, &token| Ok(sum + engine.decode(token)?))
                });
                let sum: f32 = done.map_err(|error: EngineError| error.to_string()).unwrap();
                assert!(sum.is_finite() && engine.missing() > 0, "{model} {choice:?}: neurons are read");
                assert_eq!(count, 0, "{model} {choice:?} round {round}: the first of {bytes} bytes");
            }
        }
    }
}
