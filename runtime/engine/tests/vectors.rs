//! The tokenizers against llama.cpp's published vectors: `make vectors LLAMA_CPP=folder`, which links that
//! folder's `models` to `target/vectors`. The files belong to another project and are not committed.

use std::path::Path;

use flashplan::internals::model::gguf::Gguf;
use flashplan::internals::model::tokenizer::{TokenizerData, TokenizerError};

/// Vocabularies of unsupported kinds.
const OTHER_KINDS: [&str; 1] = ["bert-bge"];

#[test]
#[ignore = "needs llama.cpp's files: make vectors LLAMA_CPP=folder"]
fn tokens_are_those_of_the_published_vectors() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/vectors"));
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}; run make vectors LLAMA_CPP=folder", folder.display()))
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter_map(|name| Some(name.strip_prefix("ggml-vocab-")?.strip_suffix(".gguf.inp")?.to_owned()))
        .collect();
    names.sort();
    assert!(!names.is_empty(), "{} has no vectors", folder.display());
    let mut wrong = 0;
    for name in names {
        let path = folder.join(format!("ggml-vocab-{name}.gguf"));
        let data = match TokenizerData::from_gguf(&Gguf::open(&path).unwrap()) {
            Err(TokenizerError::Kind { found }) if OTHER_KINDS.contains(&name.as_str()) => {
                println!("{name}: tokenizer `{found}`, which is not implemented");
                continue;
            }
            data => data.unwrap_or_else(|error| panic!("{name}: {error}")),
        };
        let rule = if data.pre.is_empty() { "none".to_owned() } else { data.pre.clone() };
        let tokenizer = data.into_tokenizer().unwrap_or_else(|error| panic!("{name}: {error}"));
        let read =
            |end: &str| std::fs::read_to_string(folder.join(format!("ggml-vocab-{name}.gguf{end}"))).unwrap();
        let (texts, expected) = (read(".inp"), read(".out"));
        let texts = texts.strip_suffix("\n__ggml_vocab_test__\n").unwrap_or(&texts); // each text ends so
        let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        let expected: Vec<Vec<u32>> = expected
            .lines()
            .map(|line| line.split_whitespace().map(|token| token.parse().unwrap()).collect())
            .collect();
        assert_eq!(texts.len(), expected.len(), "{name}");
        let mut different = 0;
        for (text, expected) in texts.iter().zip(&expected) {
            let found = tokenizer.encode(text, false);
            if found != *expected {
                different += 1;
                println!("{name}: {text:?}\n  found    {found:?}\n  expected {expected:?}");
            }
        }
        println!("{name} (rule {rule}): {} of {} equal", texts.len() - different, texts.len());
        wrong += different;
    }
    assert_eq!(wrong, 0, "differences");
}
