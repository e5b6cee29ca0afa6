//! Tokens compared with other implementations, and properties of any text.

use std::sync::LazyLock;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::model::writer::Writer;

/// Values from other libraries; the file names them and the command.
#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    tokens: Vec<u32>,
}

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures");

fn fixture(model: &str) -> Tokenizer {
    let gguf = Gguf::open(format!("{FIXTURES}/models/{model}.gguf")).unwrap();
    let data = TokenizerData::from_gguf(&gguf).unwrap();
    let json = serde_json::to_string(&data).unwrap();
    assert_eq!(serde_json::from_str::<TokenizerData>(&json).unwrap(), data, "it survives being written");
    Tokenizer::new(data).unwrap()
}

fn agrees_with(golden: &str, model: &str) {
    let golden = std::fs::read_to_string(format!("{FIXTURES}/golden/{golden}.json")).unwrap();
    let golden: Golden = serde_json::from_str(&golden).unwrap();
    let tokenizer = fixture(model);
    assert!(tokenizer.adds_bos() && !golden.cases.is_empty(), "the fixtures begin with a token of their own");
    for Case { text, tokens } in golden.cases {
        assert_eq!(tokenizer.encode(&text, false), tokens, "{text:?}");
        let with_bos: Vec<u32> = tokenizer.bos().into_iter().chain(tokens.iter().copied()).collect();
        assert_eq!(tokenizer.encode(&text, true), with_bos, "{text:?}");
        let decoded = tokenizer.decode(&tokens);
        assert_eq!(tokenizer.decode(&with_bos), decoded, "{text:?}");
        // SentencePiece's own mark for a space reads back as one
        if !text.contains('\u{2581}') {
            assert_eq!(decoded, text, "every text can be written");
        }
        let mut decoder = tokenizer.stream_from_beginning();
        let streamed: String = tokens.iter().map(|&token| decoder.push(token)).collect();
        assert_eq!(streamed + &decoder.finish(), decoded, "{text:?}");
    }
}

#[test]
fn a_chat_template_is_kept_and_its_absence_leaves_no_trace() {
    let mut data = pieces(&[("a", 1)]);
    assert!(
        !serde_json::to_string(&data).unwrap().contains("chat_template"),
        "containers without one stay as they are"
    );
    data.chat_template = Some("{{ messages }}".to_owned());
    let json = serde_json::to_string(&data).unwrap();
    assert_eq!(serde_json::from_str::<TokenizerData>(&json).unwrap(), data);
    assert_eq!(Tokenizer::new(data).unwrap().chat_template(), Some("{{ messages }}"));
}

#[test]
fn tokens_are_those_of_sentencepiece() {
    agrees_with("dense-tokens", "oxide-dense");
}

#[test]
fn tokens_are_those_of_hugging_face() {
    agrees_with("moe-tokens", "oxide-moe");
}

/// A unigram model of `fixtures/golden/unigram.py`.
#[derive(Deserialize)]
struct Unigram {
    pieces: Vec<(String, f32, u8)>,
    add_space_prefix: bool,
    removes_spaces: bool,
    tokens: Vec<Vec<u32>>,
}

#[derive(Deserialize)]
struct Unigrams {
    texts: Vec<String>,
    models: std::collections::BTreeMap<String, Unigram>,
}

#[test]
fn tokens_of_unigram_models_are_those_of_sentencepiece() {
    let golden = std::fs::read_to_string(format!("{FIXTURES}/golden/unigram.json")).unwrap();
    let Unigrams { texts, models } = serde_json::from_str(&golden).unwrap();
    assert!(models.len() >= 5 && texts.len() > 80, "models of every setting, and texts in many languages");
    for (name, model) in models {
        let integers =
            |values: Vec<u32>| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        let count = model.pieces.len() as u64;
        let scores = model.pieces.iter().map(|(_, score, _)| score.to_bits()).collect();
        let types = model.pieces.iter().map(|(_, _, kind)| u32::from(*kind)).collect();
        let file = Writer::new()
            .text("tokenizer.ggml.model", "t5")
            .texts(
                "tokenizer.ggml.tokens",
                &model.pieces.iter().map(|(text, ..)| text.as_str()).collect::<Vec<_>>(),
            )
            .array("tokenizer.ggml.scores", 6, count, &integers(scores))
            .array("tokenizer.ggml.token_type", 5, count, &integers(types))
            .boolean("tokenizer.ggml.add_space_prefix", model.add_space_prefix)
            .boolean("tokenizer.ggml.remove_extra_whitespaces", model.removes_spaces)
            .u32("tokenizer.ggml.eos_token_id", 2);
        let data = TokenizerData::from_gguf(&Gguf::parse(&file.bytes()).unwrap()).unwrap();
        let json = serde_json::to_string(&data).unwrap();
        assert_eq!(serde_json::from_str::<TokenizerData>(&json).unwrap(), data, "it survives being written");
        assert_eq!(
            (data.kind, data.add_bos, data.add_eos),
            (TokenizerKind::Unigram, false, true),
            "as llama.cpp has it"
        );
        let has_bytes = data.types.contains(&6);
        let tokenizer = Tokenizer::new(data).unwrap();
        for (text, tokens) in texts.iter().zip(&model.tokens) {
            assert_eq!(tokenizer.encode(text, false), *tokens, "{name}: {text:?}");
            let mut decoder = tokenizer.stream_from_beginning();
            let streamed: String = tokens.iter().map(|&token| decoder.push(token)).collect();
            let decoded = streamed + &decoder.finish();
            assert_eq!(tokenizer.decode(tokens), decoded, "{name}: {text:?}");
            if has_bytes && !text.contains('\u{2581}') {
                assert_eq!(decoded, *text, "{name}: every text can be written");
            }
        }
        let key = "tokenizer.ggml.precompiled_charsmap";
        let mapped = file.array(key, 0, 1, &[1]).bytes();
        let refused = TokenizerData::from_gguf(&Gguf::parse(&mapped).unwrap()).unwrap_err();
        assert_eq!(refused, TokenizerError::Normalisation { key }, "{name}");
    }
}

#[test]
fn pieces_that_a_text_begins_with_are_found_as_one_by_one() {
    let data = pieces(&[
        ("a", 1),
        ("ab", 1),
        ("abc", 5),
        ("abd", 1),
        ("b", 1),
        ("\u{e9}", 1),
        ("\u{e9}t", 4),
        ("ab", 1),
    ]);
    let tokenizer = Tokenizer::new(data).unwrap();
    let vocabulary = &tokenizer.vocabulary;
    for text in ["", "a", "abc", "abdab", "abx", "ba", "\u{e9}t\u{e9}", "\u{ea}", "zz"] {
        let ends = text.char_indices().map(|(at, character)| at + character.len_utf8());
        let one_by_one: Vec<_> = ends.filter_map(|end| Some((end, vocabulary.find(&text[..end])?))).collect();
        assert_eq!(vocabulary.beginnings(text).collect::<Vec<_>>(), one_by_one, "{text:?}");
    }
}

/// A SentencePiece vocabulary: unknown, beginning, end, 256 bytes, then the given pieces with falling scores.
fn pieces(pieces: &[(&str, u8)]) -> TokenizerData {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    let mut types = vec![2, 3, 3];
    tokens.extend((0..=255).map(|byte: u8| format!("<0x{byte:02X}>")));
    types.extend([6; 256]);
    for (text, kind) in pieces {
        tokens.push((*text).to_owned());
        types.push(*kind);
    }
    TokenizerData {
        kind: TokenizerKind::SentencePiece,
        scores: (0..tokens.len()).map(|id| -(id as f32)).collect(),
        tokens,
        types,
        merges: Vec::new(),
        pre: String::new(),
        bos: Some(1),
        eos: Some(2),
        eot: None,
        unknown: Some(0),
        add_bos: true,
        add_eos: false,
        add_space_prefix: true,
        removes_spaces: false,
        strips: Strips::default(),
        chat_template: None,
        recommended: None,
    }
}

/// A byte-level vocabulary: 256 bytes, the given merges, one control token and one that is never cut.
fn merges(merges: &[&str], pre: &str) -> TokenizerData {
    let mut tokens: Vec<String> = (0..=255).map(|byte| bpe::letter_of(byte).to_string()).collect();
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let mut types = vec![1; tokens.len()];
    tokens.extend(["<|end|>", "<tool>"].map(str::to_owned));
    types.extend([3, 4]);
    let end = tokens.len() as u32 - 2;
    TokenizerData {
        kind: TokenizerKind::ByteLevel,
        scores: Vec::new(),
        types,
        merges: merges.iter().map(|&merge| merge.to_owned()).collect(),
        pre: pre.to_owned(),
        bos: None,
        eos: Some(end),
        eot: Some(end),
        unknown: None,
        add_bos: false,
        add_eos: false,
        add_space_prefix: false,
        removes_spaces: false,
        strips: Strips::default(),
        chat_template: None,
        recommended: None,
        tokens,
    }
}

#[test]
fn special_tokens_come_out_of_text_only_on_request() {
    let tokenizer = Tokenizer::new(merges(&["< |"], "gpt-2")).unwrap();
    let (end, tool) = (257, 258);
    assert!(!tokenizer.encode("a<|end|>b", false).contains(&end), "text is text");
    assert_eq!(tokenizer.encode_rendered("a<|end|>b", &[]), [97, end, 98]);
    assert_eq!(tokenizer.encode("a<tool>b", false), [97, tool, 98], "a user-defined piece is text");
    assert_eq!(tokenizer.decode(&[97, end, tool, 98]), "a<tool>b");
    assert!(tokenizer.is_end(end) && !tokenizer.is_end(97), "the end token ends");

    let tokenizer = Tokenizer::new(pieces(&[("\u{2581}", 1), ("a", 1), ("</s>\u{2581}x", 4)])).unwrap();
    assert!(!tokenizer.encode("</s>", true).contains(&2), "text is text");
    assert_eq!(tokenizer.encode_rendered("a</s>a", &[]), [259, 260, 2, 259, 260]);
    assert_eq!(tokenizer.encode("</s> xa", false), [261, 259, 260]);
}

#[test]
fn what_people_say_in_a_rendered_template_never_steers() {
    let tokenizer = Tokenizer::new(merges(&["< |"], "gpt-2")).unwrap();
    let (end, tool) = (257, 258);
    assert_eq!([tokenizer.special(end), tokenizer.special(tool)], [Some("<|end|>"), None]);
    let text = "a<|end|>b<|end|>";
    let said = |plain: &[Range<usize>]| tokenizer.encode_rendered(text, plain);
    let in_one = |plain: Range<usize>| said(std::slice::from_ref(&plain));
    assert_eq!(said(&[]), [97, end, 98, end]);
    let spelled = tokenizer.encode("<|end|>", false);
    assert_eq!(in_one(1..8), [&[97], &spelled[..], &[98, end]].concat());
    // overlapping a part is enough, at either end or inside
    for part in [1..2, 7..8, 3..4, 0..2] {
        assert_eq!(in_one(part.clone()), in_one(1..8), "{part:?}");
    }
    assert_eq!(said(&[0..1, 8..9]), said(&[]), "beside it is not in it");
    assert_eq!(in_one(0..16), tokenizer.encode(text, false));
    // a mark that the file has as text
    let data = pieces(&[("a", 1), ("<|im_start|>", 4), ("<b>", 4)]);
    let (tokenizer, mark, piece) = (Tokenizer::new(data).unwrap(), 260, 261);
    let text = "<|im_start|>a<|im_start|><b>";
    let all = tokenizer.encode_rendered(text, &[]);
    assert_eq!(all.iter().filter(|&&token| token == mark).count(), 2);
    let safe = tokenizer.encode_rendered(text, std::slice::from_ref(&(12..28)));
    assert_eq!((safe[0], safe.iter().filter(|&&token| token == mark).count()), (mark, 1));
    assert_eq!(safe.last(), Some(&piece));
    let tokenizer = Tokenizer::new(merges(&["< |"], "gpt-2")).unwrap();
    // a piece that is text everywhere
    assert_eq!(tokenizer.encode_rendered("<tool>", std::slice::from_ref(&(0..6))), [tool]);
}

#[test]
fn unused_pieces_are_steps_and_not_results() {
    let data = pieces(&[("\u{2581}", 1), ("ab", 5), ("a", 1), ("b", 1), ("abc", 1), ("c", 1)]);
    let tokenizer = Tokenizer::new(data).unwrap();
    assert_eq!(tokenizer.encode("abc", false), [259, 263], "by way of ab");
    assert_eq!(tokenizer.encode("ab", false), [259, 261, 262], "not ab itself");
}

#[test]
fn a_space_before_the_text_is_put_and_taken() {
    let mut data = pieces(&[("\u{2581}", 1), ("\u{2581}a", 1), ("a", 1)]);
    let tokenizer = Tokenizer::new(data.clone()).unwrap();
    assert_eq!(tokenizer.encode("a a", false), [260, 260]);
    assert_eq!(tokenizer.decode(&[1, 260, 260]), "a a");
    let mut after = tokenizer.stream();
    assert_eq!([after.push(260), after.push(260)], [" a", " a"]);
    data.add_space_prefix = false;
    let tokenizer = Tokenizer::new(data).unwrap();
    assert_eq!(tokenizer.encode("a a", false), [261, 260]);
    assert_eq!(tokenizer.decode(&[260]), " a");
}

#[test]
fn a_character_comes_out_when_it_is_complete() {
    let tokenizer = Tokenizer::new(pieces(&[("\u{2581}", 1)])).unwrap();
    let crab: Vec<u32> = "\u{1f980}".bytes().map(|byte| 3 + u32::from(byte)).collect();
    let mut decoder = tokenizer.stream_from_beginning();
    assert_eq!(crab.iter().map(|&id| decoder.push(id)).collect::<Vec<_>>(), ["", "", "", "\u{1f980}"]);
    let mut decoder = tokenizer.stream_from_beginning();
    assert_eq!([decoder.push(crab[0]), decoder.push(crab[1]), decoder.push(259)], ["", "", "\u{fffd} "]);
    assert_eq!(decoder.push(crab[0]), "");
    assert_eq!(decoder.finish(), "\u{fffd}");
    assert_eq!(tokenizer.decode(&[99_999]), "\u{fffd}", "an id beyond the vocabulary");
}

#[test]
fn tokenizers_that_contradict_themselves_are_refused() {
    #[track_caller]
    fn check(data: TokenizerData, change: impl FnOnce(&mut TokenizerData), message: Expect) {
        let mut data = data;
        change(&mut data);
        message.assert_eq(&Tokenizer::new(data).expect_err("it is refused").to_string());
    }
    let spm = || pieces(&[("a", 1)]);
    let bpe = || merges(&["a b"], "qwen2");
    check(
        spm(),
        |data| data.tokens.clear(),
        expect!["the vocabulary has 0 tokens, outside 1 to 4194304: convert the model again"],
    );
    check(
        spm(),
        |data| data.types.truncate(9),
        expect!["there are 9 token types for 260 tokens: convert the model again"],
    );
    check(
        spm(),
        |data| data.scores.push(0.0),
        expect!["there are 261 scores for 260 tokens: convert the model again"],
    );
    check(
        spm(),
        |data| data.scores[7] = f32::NAN,
        expect!["token 7 has score NaN, which is not a number that can be compared: convert the model again"],
    );
    check(
        spm(),
        |data| data.types[7] = 9,
        expect!["token 7 has type 9, and there are 1 to 6: convert the model again"],
    );
    check(
        spm(),
        |data| data.tokens[7] = "<0xG1>".to_owned(),
        expect!["token 7, `<0xG1>`, should name a byte as <0x00> to <0xFF>: convert the model again"],
    );
    check(
        spm(),
        |data| data.eos = Some(260),
        expect!["the end token is 260, and there are 260 tokens: convert the model again"],
    );
    check(
        spm(),
        |data| data.bos = None,
        expect!["the model expects a beginning token and names none: convert the model again"],
    );
    check(
        spm(),
        |data| (data.types[7], data.unknown) = (1, None),
        expect![
            "the vocabulary has no token for byte 0x04 and no unknown token: some text cannot be encoded, convert the model again"
        ],
    );
    check(
        bpe(),
        |data| data.pre = "superbpe".to_owned(),
        expect![
            "pre-tokenizer `superbpe` is not implemented, and another would give other tokens: give a model with one of default, gpt-2, phi-2, mpt, jais, trillion, granite-docling, exaone4, gigachat, a.x-4.0, mellum, modern-bert, olmo, smollm, starcoder, refact, codeshell, exaone, minerva-7b, mellum2, command-r, falcon, llama-bpe, llama3, llama-v3, lfm2, pixtral, falcon3, falcon-h1, midm-2.0, glm4, glm5, dbrx, smaug-bpe, chatglm-bpe, qwen2, deepseek-r1-qwen, megrez, stablelm2, hunyuan, solar-open, kormo, grok-2, qwen35, tekken, gpt-4o, llama4, kanana2, minimax-m2, kimi-k2, deepseek-v3, hunyuan-dense, joyai-llm, hy_v4, deepseek-llm, deepseek-coder, bailingmoe, bailingmoe2, llada-moe, seed-coder, exaone-moe, minicpm5, bloom, poro-chat, gpt3-finnish, viking"
        ],
    );
    check(
        bpe(),
        |data| data.merges.push("a zz".to_owned()),
        expect![
            "merge 1, `a zz`, does not join two tokens of the vocabulary into a third: convert the model again"
        ],
    );
    check(
        bpe(),
        |data| data.merges.push("ab".to_owned()),
        expect![
            "merge 1, `ab`, does not join two tokens of the vocabulary into a third: convert the model again"
        ],
    );
}

#[test]
fn tokenizers_that_are_not_implemented_are_refused_by_name() {
    #[track_caller]
    fn check(writer: &Writer, message: Expect) {
        let bytes = writer.bytes();
        let error = TokenizerData::from_gguf(&Gguf::parse(&bytes).unwrap()).expect_err("it is refused");
        message.assert_eq(&error.to_string());
    }
    let llama = || Writer::new().text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", &["a"]);
    check(
        &Writer::new(),
        expect!["key `tokenizer.ggml.model` is missing: convert the model again with a current converter"],
    );
    check(
        &Writer::new().text("tokenizer.ggml.model", "bert"),
        expect![
            "tokenizer `bert` is not implemented: give a model with tokenizer.ggml.model llama, gpt2, gemma4 or t5"
        ],
    );
    check(
        &llama(),
        expect![
            "key `tokenizer.ggml.token_type` is missing: convert the model again with a current converter"
        ],
    );
    check(
        &llama().i32s("tokenizer.ggml.token_type", &[-1]),
        expect!["token 0 has type -1, and there are 1 to 6: convert the model again"],
    );
    check(
        &llama().i32s("tokenizer.ggml.token_type", &[1]),
        expect!["key `tokenizer.ggml.scores` is missing: convert the model again with a current converter"],
    );
    let typed = || llama().i32s("tokenizer.ggml.token_type", &[1]);
    check(
        &typed().boolean("tokenizer.ggml.remove_extra_whitespaces", true),
        expect![
            "key `tokenizer.ggml.remove_extra_whitespaces` requires a text normalisation that is not implemented: give a model without it"
        ],
    );
    check(
        &typed().f32s("tokenizer.ggml.scores", &[0.0]).i32s("tokenizer.ggml.bos_token_id", &[1]),
        expect![
            "key `tokenizer.ggml.bos_token_id` should be a whole number of 0 or more, but is an array: convert the model again"
        ],
    );
}

/// The output of `rules.py`: a vocabulary, and for each rule the tokens of the texts.
#[derive(Deserialize)]
struct Rules {
    vocabulary: Vec<String>,
    merges: Vec<String>,
    texts: Vec<String>,
    rules: std::collections::BTreeMap<String, RuleTokens>,
}

#[derive(Deserialize)]
struct RuleTokens {
    tokens: Vec<Vec<u32>>,
}

#[test]
fn words_of_every_language_are_cut_as_by_hugging_face() {
    let json = std::fs::read_to_string(format!("{FIXTURES}/golden/rules.json")).unwrap();
    let Rules { vocabulary, merges: joined, texts, rules } = serde_json::from_str(&json).unwrap();
    assert!(rules.len() >= 16 && texts.len() >= 75, "{} rules, {} texts", rules.len(), texts.len());
    for (name, expected) in rules {
        let mut data = merges(&[], &name);
        data.types = vec![1; vocabulary.len()];
        (data.tokens, data.merges) = (vocabulary.clone(), joined.clone());
        (data.eos, data.eot) = (None, None);
        let tokenizer = Tokenizer::new(data).unwrap();
        assert_eq!(expected.tokens.len(), texts.len(), "{name}");
        for (text, expected) in texts.iter().zip(&expected.tokens) {
            assert_eq!(tokenizer.encode(text, false), *expected, "{name}: {text:?}");
        }
    }
}

#[test]
fn a_file_without_a_rule_is_cut_as_llama_cpp_does_and_says_so() {
    let vocabulary: Vec<String> = (0..=255).map(|byte| bpe::letter_of(byte).to_string()).collect();
    let words: Vec<&str> = vocabulary.iter().map(String::as_str).collect();
    let writer = Writer::new()
        .text("tokenizer.ggml.model", "gpt2")
        .texts("tokenizer.ggml.tokens", &words)
        .texts("tokenizer.ggml.merges", &[])
        .i32s("tokenizer.ggml.token_type", &[1; 256]);
    let bytes = writer.bytes();
    let data = TokenizerData::from_gguf(&Gguf::parse(&bytes).unwrap()).unwrap();
    assert!(data.remark().unwrap().contains("`tokenizer.ggml.pre`"));
    let bytes = writer.text("tokenizer.ggml.pre", "default").bytes();
    let named = TokenizerData::from_gguf(&Gguf::parse(&bytes).unwrap()).unwrap();
    assert_eq!(named.remark(), None);
    // digits in threes, unlike GPT-2's rule
    let three = |pre| Tokenizer::new(merges(&["1 2", "12 3", "123 4"], pre)).unwrap().encode("1234", false);
    assert_eq!(three(""), three("default"));
    assert_ne!(three(""), three("gpt-2"));
}

#[test]
fn ends_are_known_by_their_text_and_are_never_text() {
    let ends = |texts: &[(&str, u8)], eos: Option<&str>, eot: Option<&str>| {
        let mut data = pieces(texts);
        let id = |text: &str| data.tokens.iter().position(|token| token == text).map(|id| id as u32);
        (data.eos, data.eot) = (eos.and_then(id), eot.and_then(id));
        let tokenizer = Tokenizer::new(data.clone()).unwrap();
        let ends = |id: &u32| tokenizer.is_end(*id);
        (0..data.tokens.len() as u32)
            .filter(ends)
            .map(|id| data.tokens[id as usize].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(ends(&[("<|im_end|>", 3), ("a", 1)], Some("</s>"), None), ["</s>", "<|im_end|>"]);
    assert_eq!(ends(&[("<|im_end|>", 1)], Some("</s>"), None), ["</s>", "<|im_end|>"], "whatever its type");
    let harmony = [("<|end|>", 3), ("<|return|>", 3), ("<|call|>", 3), ("<|message|>", 3)];
    let turn = ["</s>", "<|return|>", "<|call|>"];
    assert_eq!(ends(&harmony, Some("<|return|>"), None), turn, "a message's end is no turn's");
    assert_eq!(ends(&harmony, Some("<|return|>"), Some("<|end|>")), turn, "whatever the file says");
    assert_eq!(ends(&[("<|end|>", 3)], Some("</s>"), None), ["</s>", "<|end|>"]);
    assert_eq!(
        ends(&[("<|tool_response>", 4)], None, None),
        ["<|tool_response>"],
        "Gemma 4 has </s> as text"
    );

    // phi-3's files have it as text that is never cut
    let mut data = pieces(&[("<", 1), ("/", 1), ("s", 1), (">", 1), ("\u{2581}", 1)]);
    data.types[2] = 4;
    let tokenizer = Tokenizer::new(data).unwrap();
    assert!(!tokenizer.encode("</s>", false).contains(&2), "text is text");
    assert_eq!(tokenizer.encode_rendered("</s>", &[]), [2]);
    assert!(tokenizer.is_end(2), "and it ends");
}

#[test]
fn merges_of_characters_stay_in_their_line() {
    let mut data =
        pieces(&[("\u{2581}", 1), ("a", 1), ("b", 1), ("\u{2581}a", 1), ("ab", 1), ("\n\n", 1), ("\n", 1)]);
    data.kind = TokenizerKind::Spaced;
    data.scores.clear();
    data.merges = ["a b", "\u{2581} a"].map(str::to_owned).to_vec();
    let tokenizer = Tokenizer::new(data).unwrap();
    let [space, a, b, space_a, ab, breaks, line] = [259, 260, 261, 262, 263, 264, 265];
    assert_eq!(tokenizer.encode(" a", false), [space_a]);
    assert_eq!(tokenizer.encode(" ab", false), [space, ab], "the lowest rank first");
    assert_eq!(tokenizer.encode("a\n\nb\nb", false), [a, breaks, b, line, b]);
    assert_eq!(tokenizer.encode("\n\n\n", false), [line, line, line], "no merge joins them");
    let crab: Vec<u32> = "\u{1f980}".bytes().map(|byte| 3 + u32::from(byte)).collect();
    assert_eq!(tokenizer.encode("\u{1f980}", false), crab);
    assert_eq!(tokenizer.decode(&tokenizer.encode(" ab\u{1f980}\n a", false)), " ab\u{1f980}\n a");
}

#[test]
fn a_piece_is_the_bytes_of_a_token_by_itself() {
    let tokenizer = Tokenizer::new(pieces(&[("\u{2581}a", 1)])).unwrap();
    for (token, piece) in [(1, &b"<s>"[..]), (3 + 0xf0, &[0xf0]), (259, b" a")] {
        assert_eq!(tokenizer.piece(token).unwrap(), piece);
    }
    assert_eq!(tokenizer.piece(260), None);
    let tokenizer = Tokenizer::new(merges(&["\u{120} a"], "gpt-2")).unwrap();
    assert_eq!(
        [256, 257, 200].map(|token| tokenizer.piece(token).unwrap()),
        [&b" a"[..], b"<|end|>", &[200]]
    );
}

#[test]
fn a_token_may_take_the_spaces_beside_it() {
    let mut data = merges(&["\u{120} \u{120}"], "gpt-2");
    let [end, tool] = [257, 258];
    let encoded = |data: &TokenizerData, text: &str, plain: &[Range<usize>]| {
        Tokenizer::new(data.clone()).unwrap().encode_rendered(text, plain)
    };
    assert_eq!(encoded(&data, "a <|end|>\n b", &[]), [97, 32, end, 10, 32, 98]);
    data.strips.after = vec![end];
    assert_eq!(encoded(&data, "a <|end|>\n b", &[]), [97, 32, end, 98]);
    data.strips.before = vec![end, tool];
    assert_eq!(encoded(&data, "a \t<|end|>\n b  <tool> c ", &[]), [97, end, 98, tool, 32, 99, 32]);
    assert_eq!(encoded(&data, " <|end|> <|end|> ", &[]), [end, end]);
    // a name that somebody said is text, and so are the spaces beside it
    let said = std::slice::from_ref(&(2..3));
    assert_eq!(encoded(&data, "a <|end|> b", said)[..2], [97, 32]);
    data.strips.after = vec![1000];
    let error = Tokenizer::new(data).unwrap_err();
    assert!(matches!(error, TokenizerError::Id { found: 1000, .. }), "{error}");
}

#[test]
fn models_whose_tokens_take_spaces_are_known_by_their_files() {
    let texts = ["<unk>", "<s>", "</s>", "a", "<|endoftext|>", "<|user|>", "<|im_sep|>"].map(str::to_owned);
    let types = [2, 3, 4, 1, 3, 3, 3];
    let found =
        |name: &str, architecture: &str, tokens: &[String]| strips::known(name, architecture, tokens, &types);
    let phi3 = found("Phi-3 mini 4k", "phi3", &texts[..6]);
    assert_eq!((&phi3.before[..], &phi3.after[..]), (&[][..], &[2, 5][..]));
    let phi4 = found("Phi 4", "phi3", &texts);
    assert_eq!((&phi4.before[..], &phi4.after[..]), (&[1, 4, 5, 6][..], &[1, 4, 5, 6][..]));
    assert!(found("a model", "llama", &texts).is_empty() && found("a model", "phi3", &texts[..6]).is_empty());
}

#[test]
fn a_million_spaces_are_no_trouble() {
    for pre in ["gpt-2", "llama-bpe", "qwen2", "smollm", "tekken", "gpt-4o", "deepseek-v3"] {
        let tokenizer = Tokenizer::new(merges(&["\u{120} \u{120}"], pre)).unwrap();
        let text = " ".repeat(2_000_001) + "a";
        assert_eq!(tokenizer.encode(&text, false).len(), 1_000_000 + 2, "{pre}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn words_are_cut_as_by_the_published_expressions(text in "([ \t\r\n\u{a0}\u{3000}]{0,4}([a-zA-Z'\u{e9}\u{6f22}]{1,3}|[0-9\u{bd}]{1,4}|[-.!_\u{301}\u{1f980}]{1,3}|'[sStTdD]|'re|'LL)?){0,8}") {
        pre::check_cut(&text);
    }

    #[test]
    fn any_text_survives(text in any::<String>()) {
        static BOTH: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| {
            [pieces(&[("\u{2581}", 1), ("a", 1), ("\u{2581}a", 1)]), merges(&["a b", "\u{120} a"], "llama-bpe")]
                .map(|data| Tokenizer::new(data).unwrap())
        });
        let [spm, bpe] = &*BOTH;
        prop_assert_eq!(spm.decode(&spm.encode(&text, true)), text.replace('\u{2581}', " "));
        prop_assert_eq!(bpe.decode(&bpe.encode(&text, false)), text);
    }

    #[test]
    fn a_rendered_text_of_people_alone_is_plain(
        parts in prop::collection::vec("a|b|<|>|\\||<\\|end\\|>|<tool>|</s>| ", 0..12)
    ) {
        static BOTH: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| {
            let spm = pieces(&[("\u{2581}", 1), ("a", 1), ("<|", 4), ("<|end|>", 3), ("<|end|>b", 4), ("|><", 3)]);
            [spm, merges(&["< |", "| >"], "gpt-2")].map(|data| Tokenizer::new(data).unwrap())
        });
        let text = parts.concat();
        for tokenizer in &*BOTH {
            let all = tokenizer.encode_rendered(&text, std::slice::from_ref(&(0..text.len())));
            prop_assert_eq!(all, tokenizer.encode(&text, false));
        }
    }

    #[test]
    fn any_tokens_decode_to_equal_text_at_once_and_one_by_one(tokens in prop::collection::vec(0_u32..265, 0..20)) {
        let tokenizer = Tokenizer::new(pieces(&[("\u{2581}", 1), ("a", 1), ("\u{e9}", 1)])).unwrap();
        let bytes: Vec<u8> = tokens.iter().flat_map(|&token| match token {
            3..259 => vec![(token - 3) as u8],
            259 => b" ".to_vec(),
            260 => b"a".to_vec(),
            261 => "\u{e9}".as_bytes().to_vec(),
            0 => UNKNOWN_TEXT.as_bytes().to_vec(),
            1 | 2 => Vec::new(),
            _ => "\u{fffd}".as_bytes().to_vec(),
        }).collect();
        let mut decoder = tokenizer.stream();
        let streamed: String = tokens.iter().map(|&token| decoder.push(token)).collect();
        prop_assert_eq!(streamed + &decoder.finish(), String::from_utf8_lossy(&bytes));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// The vocabulary of the fixture has no piece that spans words.
    #[test]
    fn words_joined_one_by_one_are_the_text_joined_whole(text in "( {1,4}|\u{2581}|[a-z]{1,3}|let|fn main|[(;é]|\n){0,40}") {
        static BY_WORDS: LazyLock<Tokenizer> = LazyLock::new(|| fixture("oxide-dense"));
        static WHOLE: LazyLock<Tokenizer> = LazyLock::new(|| {
            let mut tokenizer = fixture("oxide-dense");
            let Model::SentencePiece(model) = &mut tokenizer.model else { panic!("another kind") };
            assert!(std::mem::take(&mut model.by_words), "its words are joined one by one");
            tokenizer
        });
        prop_assert_eq!(BY_WORDS.encode(&text, false), WHOLE.encode(&text, false));
    }
}

#[test]
fn a_vocabulary_with_a_piece_that_spans_words_joins_texts_whole() {
    let by_words = |all: &[(&str, u8)]| {
        let model = Tokenizer::new(pieces(all)).unwrap().model;
        matches!(model, Model::SentencePiece(spm::SentencePiece { by_words: true, .. }))
    };
    assert!(by_words(&[("\u{2581}\u{2581}a", 1), ("ab", 1)]));
    assert!(!by_words(&[("a\u{2581}b", 1)]) && !by_words(&[("a\u{2581}", 1)]));
    // an unused piece that can be joined in two ways
    assert!(by_words(&[("a", 1), ("bc", 1), ("abc", 5)]));
    assert!(!by_words(&[("a", 1), ("bc", 1), ("ab", 1), ("c", 1), ("abc", 5)]));
}
