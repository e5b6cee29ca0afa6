//! Many prompts in a row, with most of a fixture model on an unreliable device: slow, late, short, out of
//! order, and sometimes failing. An engine with everything in memory gives the same tokens, and nothing
//! grows.

use std::process::Command;

use super::*;
use crate::flash::Flash;
use crate::machine::footprint;

/// The most that the process may grow after the first prompts, for the allocator and the kernel.
const GROWTH_MAX_BYTES: u64 = 64 * PAGE_BYTES;
/// Prompts until everything has been used once.
const WARM_UP: usize = 3;
const CONTEXT: usize = 64;

/// Faults at low rates, stacked: slow reads that others overtake, short reads, and failing reads.
fn unreliable(device: Box<dyn Flash>) -> Box<dyn Flash> {
    let slowed = Fault::Slowed { every: 67, by: Duration::from_micros(300) };
    [slowed, Fault::Short { every: 101 }, Fault::Failing { every: 20_011 }]
        .into_iter()
        .fold(device, |device, fault| Box::new(Faulty::new(device, fault)))
}

/// Quantities that must not grow: resident bytes, open files, threads.
fn held() -> (u64, usize, usize) {
    let entries = |folder| std::fs::read_dir(folder).unwrap().count();
    (footprint(None).unwrap().resident_bytes, entries("/proc/self/fd"), entries("/proc/self/task"))
}

/// Prefills a prompt and decodes the most likely tokens; returns them.
fn generate(engine: &mut Transformer, prompt: &[u32], count: usize) -> Result<Vec<u32>, TransformerError> {
    let likeliest = |logits: &[f32]| (0..).zip(logits).max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
    let mut tokens = Vec::with_capacity(count);
    let mut token = likeliest(engine.prefill(&rows(prompt), None)?);
    for position in prompt.len()..prompt.len() + count {
        tokens.push(token);
        token = likeliest(engine.decode(&[Token { token, sequence: 0, position }])?);
    }
    Ok(tokens)
}

/// Decodes at least `tokens` tokens.
fn soak(tokens: usize) {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/oxide-dense.gguf");
    let source = SourceModel::open(model).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    let neurons = container.neurons() as u32;
    let backend = *backends(&container).last().unwrap();
    let cores = CoreSet::current().unwrap().cores().into_iter().take(2).collect();
    let common = Knobs { context: CONTEXT as u32, buffer_bytes: 65536, ..Knobs::default() };
    let tight = Knobs {
        cores,
        hot: neurons / 8,
        cold: neurons / 3,
        buffers: 24,
        gap_bytes: 4096,
        depth: 8,
        look_ahead: 6,
        backend,
        ..common.clone()
    };
    let plan_of = |knobs| plan(&container, "low-rank", knobs);
    let (tight, roomy) = (plan_of(&tight), plan_of(&Knobs { hot: neurons, ..common }));
    let file = container.files(false).unwrap();
    let mut roomy = start(&container, &roomy);
    let mut tight = Transformer::start_on(
        &container,
        &tight,
        &file,
        unreliable(device(&container, &tight)),
        StopHandle::default(),
    )
    .unwrap();

    let mut numbers = Numbers(2);
    let mut below = |most: usize| ((numbers.next() + 1.0) / 2.0 * most as f32) as usize;
    let (mut prompts, mut decoded, mut failed, mut after_warm_up) = (0, 0, 0, (0, 0, 0));
    while decoded < tokens {
        let prompt: Vec<u32> =
            (0..1 + below(CONTEXT / 2)).map(|_| below(source.config().vocabulary) as u32).collect();
        let count = 1 + below(CONTEXT - prompt.len());
        let before = roomy.counters();
        let expected = generate(&mut roomy, &prompt, count).unwrap();
        let needed = roomy.counters().since(&before);
        // a failed read ends a prompt, and nothing of it remains when it starts again
        let happened = loop {
            let before = tight.counters();
            match generate(&mut tight, &prompt, count) {
                Ok(tokens) => {
                    assert_eq!(tokens, expected, "prompt {prompts}");
                    assert_eq!(tight.logits(), roomy.logits(), "prompt {prompts}");
                    break tight.counters().since(&before);
                }
                Err(error) => {
                    assert!(error.to_string().contains("Input/output error"), "{error}");
                    failed += 1;
                }
            }
        };
        let c = happened;
        assert_eq!(c.detail.activity, needed.detail.activity, "prompt {prompts}");
        assert_eq!(c.looked_up, c.detail.activity.requested);
        assert_eq!(c.looked_up, c.hot_hits + c.cold_hits + c.missing);
        assert_eq!((needed.missing, needed.reads), (0, 0), "everything is in memory there");
        assert!(c.read_bytes.is_multiple_of(PAGE_BYTES) && c.read_bytes >= c.reads * PAGE_BYTES);
        assert!(c.missing > 0 && c.prefetch_reads_used <= c.prefetch_reads, "{c:?}");
        (prompts, decoded) = (prompts + 1, decoded + count);
        if prompts == WARM_UP {
            after_warm_up = held();
        }
    }
    let at_end = held();
    println!(
        "{decoded} tokens after {prompts} prompts, {failed} begun again; resident bytes {} then {}; {}",
        after_warm_up.0,
        at_end.0,
        tight.flash()
    );
    assert!(prompts > 2 * WARM_UP, "{prompts} prompts show no growth");
    assert!(at_end.0 <= after_warm_up.0 + GROWTH_MAX_BYTES, "{after_warm_up:?}, then {at_end:?}");
    assert_eq!((at_end.1, at_end.2), (after_warm_up.1, after_warm_up.2), "open files, threads");
    assert!(failed > 0, "no read failed");
}

#[test]
#[ignore = "some minutes: make soak"]
fn ten_thousand_tokens() {
    soak(10_000);
}

#[test]
#[ignore = "run by the next one, in a process of its own, which holds what the engines hold and nothing of other tests"]
fn some_tokens() {
    soak(300);
}

#[test]
fn three_hundred_tokens_through_an_unreliable_device_are_right_and_leave_nothing_behind() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "transformer::tests::soak::some_tokens", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
