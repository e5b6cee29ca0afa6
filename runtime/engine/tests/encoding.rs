//! Encoding a text takes at most the memory announced before.
#![expect(clippy::unwrap_used, reason = "a test")]

use flashplan::Tokenizer;
use flashplan::internals::model::gguf::Gguf;
use flashplan::internals::model::tokenizer::TokenizerData;
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Models with a tokenizer of each kind.
const MODELS: [&str; 4] =
    ["models/oxide-dense", "models/oxide-moe", "golden/architectures/gemma4", "golden/architectures/lfm2"];

fn tokenizer(model: &str) -> Tokenizer {
    let path = format!("{}/../../fixtures/{model}.gguf", env!("CARGO_MANIFEST_DIR"));
    TokenizerData::from_gguf(&Gguf::open(path).unwrap()).unwrap().into_tokenizer().unwrap()
}

#[test]
fn encoding_takes_no_more_memory_than_is_said_before() {
    let words = "let mut total = 0; // the sum of all that is read\n".repeat(1000);
    let unbroken = "ab".repeat(20_000);
    let same = "a".repeat(40_000);
    let spaces = " ".repeat(40_000);
    let lines = "\n".repeat(40_000);
    let letters = "\u{1f980}\u{e9}\u{4e2d}".repeat(5000);
    let spaced = "a ".repeat(20_000);
    for model in MODELS {
        let tokenizer = tokenizer(model);
        // things made once, such as states of expressions
        tokenizer.encode(&words, false);
        for text in [&words, &unbroken, &same, &spaces, &lines, &letters, &spaced] {
            let said = tokenizer.encode_bytes(text);
            let before = MEMORY.current_usage();
            MEMORY.reset_peak_usage();
            let tokens = tokenizer.encode(text, false);
            let taken = MEMORY.peak_usage() - before;
            assert!(!tokens.is_empty(), "{model}: no tokens");
            // states of expressions for letters that are new
            let states = 1 << 20;
            assert!(taken <= said + states, "{model}, {:?}: {taken} of {said}", &text[..4]);
        }
        let said = tokenizer.encode_bytes(&words);
        assert!(said < 40 * words.len(), "{model}: {said} for {} bytes of words", words.len());
    }
}
