//! Hostile files, each with its message.

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;
use crate::model::source::SourceModel;
use crate::model::tokenizer::{Tokenizer, TokenizerData};
use crate::model::writer::{Writer, array, small_model, split, string};
use kernels::Format;

#[track_caller]
fn check(bytes: &[u8], message: Expect) {
    let error = Gguf::parse(bytes).expect_err("a hostile file is refused");
    message.assert_eq(&error.to_string());
}

/// Reads everything in a file, to see that nothing panics.
fn use_all_of(bytes: &[u8]) {
    let Ok(gguf) = Gguf::parse(bytes) else { return };
    for tensor in gguf.tensors() {
        let _ = gguf.tensor_bytes(tensor);
    }
    if let Ok(tokenizer) =
        TokenizerData::from_gguf(&gguf).map_err(drop).and_then(|data| Tokenizer::new(data).map_err(drop))
    {
        let tokens = tokenizer.encode("a b <unk> \u{2581}\u{1f980}", true);
        let _ = tokenizer.decode(&tokens);
    }
    let Ok(model) = SourceModel::from_gguf(gguf) else {
        return;
    };
    let _ = (model.token_embedding(), model.output(), model.output_norm());
    for layer in 0..model.config().layers() {
        let _ = (model.projections(layer).map(|w| w.row(0).bytes.len()), model.router(layer));
        for expert in 0..model.config().experts() {
            let _ = (model.ffn_gate(layer, expert).row(0), model.ffn_down(layer, expert));
        }
    }
}

#[test]
fn keys_and_tensors_are_read_back() {
    let bytes = small_model(1).boolean("x.flag", true).array("x.bytes", 0, 3, b"abc").bytes();
    let gguf = Gguf::parse(&bytes).unwrap();
    assert!(!gguf.powerinfer(), "the magic is GGUF");
    assert_eq!(gguf.version(), 3);
    assert_eq!(gguf.text("general.architecture"), Ok(Some("llama")));
    assert_eq!(gguf.unsigned("llama.embedding_length"), Ok(Some(4)));
    assert_eq!(gguf.number("llama.attention.layer_norm_rms_epsilon"), Ok(Some(1e-5)));
    assert_eq!(gguf.boolean("x.flag"), Ok(Some(true)));
    assert_eq!(gguf.value("x.bytes"), Some(&Value::Array(Array::U8(b"abc".to_vec()))));
    assert_eq!(gguf.text("nothing"), Ok(None));
    let tensor = gguf.tensor("blk.0.ffn_up.weight").unwrap();
    assert_eq!((tensor.dims, tensor.bytes, tensor.format().unwrap()), ([4, 6, 1, 1], 96, Format::F32));
    assert!(tensor.offset.is_multiple_of(32), "the data is aligned to 32 in this file");
    assert_eq!(gguf.tensor_bytes(tensor)[4..8], 1_f32.to_le_bytes());
    expect!["key `x.flag` should be text, but is the boolean true: convert the model again"]
        .assert_eq(&gguf.text("x.flag").unwrap_err().to_string());
}

#[test]
fn version_2_and_the_magic_of_powerinfer_are_read() {
    let mut writer = small_model(1);
    writer.magic = *b"PWRI";
    writer.version = 2;
    let bytes = writer.bytes();
    assert!(Gguf::parse(&bytes).unwrap().powerinfer(), "the magic is PWRI");
}

#[test]
fn other_files_are_recognised() {
    check(b"", expect!["the file is empty: fetch the model again"]);
    check(b"GG", expect![[r#"not a GGUF file: it begins with "GG"; give a model in GGUF format"#]]);
    check(
        b"PK\x03\x04rest of a zip",
        expect![[
            r#"not a GGUF file: it begins with "PK\x03\x04rest" (a zip archive or a PyTorch checkpoint); give a model in GGUF format"#
        ]],
    );
    check(
        b"version https://git-lfs.github.com/spec/v1",
        expect![[
            r#"not a GGUF file: it begins with "version " (a Git LFS pointer: the model itself was not fetched); give a model in GGUF format"#
        ]],
    );
    check(
        b"<!doctype html>",
        expect![[
            r#"not a GGUF file: it begins with "<!doctyp" (a web page: the download failed); give a model in GGUF format"#
        ]],
    );
    check(
        b"tjgg\x03\0\0\0",
        expect![[
            r#"not a GGUF file: it begins with "tjgg\x03\x00\x00\x00" (an old GGML file, from before GGUF); give a model in GGUF format"#
        ]],
    );
    check(
        b"\x10\x27\0\0\0\0\0\0{\"a\":",
        expect![[
            r#"not a GGUF file: it begins with "\x10\'\x00\x00\x00\x00\x00\x00" (perhaps safetensors); give a model in GGUF format"#
        ]],
    );
    check(
        b"GGUF\x01\0\0\0",
        expect!["GGUF version 1 is not supported: convert the model again to version 3"],
    );
    check(
        b"GGUF\0\0\0\x03",
        expect!["the GGUF file is big-endian: convert the model again on, or for, a little-endian machine"],
    );
    check(
        b"GGUF\x04\0\0\0",
        expect!["GGUF version 4 is not supported: convert the model again to version 3"],
    );
}

#[test]
fn counts_and_sizes_beyond_the_file_are_refused() {
    let with = |tensors, keys| {
        let mut writer = Writer::new().u32("a", 1);
        (writer.tensor_count, writer.key_count) = (tensors, keys);
        writer.bytes()
    };
    check(
        &with(None, Some(u64::MAX)),
        expect![
            "the file announces 18446744073709551615 keys at offset 24, but its remaining 17 bytes cannot hold them; fetch it again"
        ],
    );
    check(
        &with(Some(u64::MAX), None),
        expect![
            "the file announces 18446744073709551615 tensors at offset 24, but its remaining 17 bytes cannot hold them; fetch it again"
        ],
    );
    check(
        &with(Some(1 << 40), None),
        expect![
            "the file announces 1099511627776 tensors at offset 24, but its remaining 17 bytes cannot hold them; fetch it again"
        ],
    );
    check(
        &with(None, Some(2)),
        expect![
            "the file announces 2 keys at offset 24, but its remaining 17 bytes cannot hold them; fetch it again"
        ],
    );
    check(
        &Writer::new().raw(b"a", 8, &u64::MAX.to_le_bytes()).bytes(),
        expect![
            "the file ends inside the value of key `a`: 18446744073709551615 bytes are needed at offset 45 and the file has 45; fetch it again"
        ],
    );
    check(
        &Writer::new().array("a", 6, u64::MAX / 2, &[]).bytes(),
        expect![
            "the file announces 9223372036854775807 elements of the value of key `a` at offset 49, but its remaining 0 bytes cannot hold them; fetch it again"
        ],
    );
    check(
        &Writer::new().array("a", 8, 1000, &string(b"b")).bytes(),
        expect![
            "the file announces 1000 elements of the value of key `a` at offset 49, but its remaining 9 bytes cannot hold them; fetch it again"
        ],
    );
    check(
        &Writer::new().tensor_at("t", &[1 << 32, 1 << 32], 0, 0).bytes(),
        expect![
            "tensor `t` has dimensions [4294967296, 4294967296, 1, 1], more values than can be counted: the file is damaged, fetch it again"
        ],
    );
    check(
        &Writer::new().tensor_at("t", &[1 << 62], 0, 0).bytes(),
        expect![
            "tensor `t` has dimensions [4611686018427387904, 1, 1, 1], more values than can be counted: the file is damaged, fetch it again"
        ],
    );
    check(
        &Writer::new().tensor_at("t", &[1 << 40], 0, 0).bytes(),
        expect![
            "tensor `t` takes 4398046511104 bytes from offset 64, and the file has 57: it is truncated, fetch it again"
        ],
    );
    check(
        &Writer::new().tensor_at("t", &[8], 0, u64::MAX - 31).bytes(),
        expect![
            "tensor `t` takes 32 bytes from offset 18446744073709551615, and the file has 57: it is truncated, fetch it again"
        ],
    );
    check(
        &Writer::new().tensor_at("t", &[8], 0, 1 << 20).bytes(),
        expect![
            "tensor `t` takes 32 bytes from offset 1048640, and the file has 57: it is truncated, fetch it again"
        ],
    );
}

#[test]
fn values_that_cannot_be_are_refused() {
    check(
        &Writer::new().raw(b"a", 13, &[0; 8]).bytes(),
        expect![
            "the value of key `a` has value type 13, and GGUF has only 0 to 12: the file is damaged, fetch it again"
        ],
    );
    check(
        &Writer::new().raw(b"a", 7, &[2]).bytes(),
        expect![
            "the value of key `a` is a boolean of value 2, neither 0 nor 1: the file is damaged, fetch it again"
        ],
    );
    check(
        &Writer::new().raw(b"\xff", 7, &[1]).bytes(),
        expect!["the name of key 0 at offset 32 is not UTF-8: the file is damaged, fetch it again"],
    );
    check(
        &Writer::new().raw(b"a", 8, &string(b"\xc3(")).bytes(),
        expect!["the value of key `a` at offset 45 is not UTF-8: the file is damaged, fetch it again"],
    );
    check(
        &Writer::new().array("a", 77, 1, &[0; 8]).bytes(),
        expect![
            "an element of the value of key `a` has value type 77, and GGUF has only 0 to 12: the file is damaged, fetch it again"
        ],
    );
    let mut nested = array(4, 1, &1_u32.to_le_bytes());
    for _ in 0..3 {
        nested = array(9, 1, &nested);
    }
    assert!(Gguf::parse(&Writer::new().raw(b"a", 9, &nested).bytes()).is_ok(), "four deep is allowed");
    check(
        &Writer::new().array("a", 9, 1, &nested).bytes(),
        expect![
            "element 0 of element 0 of element 0 of element 0 of the value of key `a` nests arrays more than 4 deep, which no model needs: remove the key"
        ],
    );
    for alignment in [0, 24] {
        let error = Gguf::parse(&Writer::new().u32("general.alignment", alignment).bytes()).unwrap_err();
        assert!(matches!(error, GgufError::Alignment { found } if found == u64::from(alignment)), "{error}");
    }
    check(
        &Writer::new().u32("general.alignment", 24).bytes(),
        expect!["general.alignment is 24, not a power of two: write the file again with 32"],
    );
    check(
        &Writer::new().text("general.alignment", "32").bytes(),
        expect![
            "key `general.alignment` should be a whole number of 0 or more, but is the text `32`: convert the model again"
        ],
    );
}

#[test]
fn duplicate_names_are_refused() {
    check(
        &Writer::new().u32("a", 1).u32("a", 2).bytes(),
        expect!["key `a` appears twice, so its value is unclear: write the file again with one of them"],
    );
    check(
        &Writer::new().tensor("t", &[8]).tensor("t", &[8]).bytes(),
        expect!["tensor `t` appears twice, so its values are unclear: write the file again with one of them"],
    );
    check(
        &Writer::new().u32("\u{1b}[2J", 1).u32("\u{1b}[2J", 2).bytes(),
        expect![[
            r#"key `\u{1b}[2J` appears twice, so its value is unclear: write the file again with one of them"#
        ]],
    );
}

#[test]
fn tensors_that_cannot_be_are_refused() {
    check(
        &Writer::new().tensor_at("tensor_without_dimensions", &[], 0, 0).bytes(),
        expect![
            "tensor `tensor_without_dimensions` has 0 dimensions, and GGUF allows 1 to 4: write the file again"
        ],
    );
    check(
        &Writer::new().tensor_at("t", &[1; 5], 0, 0).bytes(),
        expect!["tensor `t` has 5 dimensions, and GGUF allows 1 to 4: write the file again"],
    );
    check(
        &Writer::new().tensor_at("t", &[4, 0], 0, 0).bytes(),
        expect!["tensor `t` has dimensions [4, 0, 1, 1], and none may be 0: write the file again"],
    );
    check(
        &Writer::new().tensor_of("t", &[33], 2, &[0; 36]).bytes(),
        expect!["tensor `t` has rows of 33 values, not whole Q4_0 blocks of 32: convert the model again"],
    );
    check(
        &Writer::new().tensor_of("t", &[8], 0, &[0; 64]).tensor_at("u", &[8], 0, 3).bytes(),
        expect!["tensor `u` begins at 3 of the data, not a multiple of 32: write the file again"],
    );
    check(
        &Writer::new().tensor_of("t", &[16], 0, &[0; 64]).tensor_at("u", &[8], 0, 32).bytes(),
        expect!["tensors `t` and `u` overlap at offset 128: write the file again"],
    );
    check(
        &Writer::new().tensor_of("t", &[8], 0, &[0; 32]).tensor_at("u", &[8], 0, 0).bytes(),
        expect!["tensors `t` and `u` overlap at offset 96: write the file again"],
    );
}

#[test]
fn an_unsupported_type_matters_only_where_the_tensor_is_used() {
    let bytes =
        Writer::new().tensor_of("t", &[256], 24, &[0; 256]).tensor_of("u", &[7], 250, &[0; 9]).bytes();
    let gguf = Gguf::parse(&bytes).unwrap();
    let refused = |name| gguf.tensor(name).unwrap().format().unwrap_err().to_string();
    expect!["tensor `t` is stored as I8, which is not supported: convert the model to one of F32, F16, BF16, Q8_0, Q6_K, Q5_1, Q5_0, Q5_K, Q4_1, Q4_0, IQ4_NL, NVFP4, Q4_K, MXFP4, IQ4_XS, Q3_K, IQ3_S, IQ3_XXS, Q2_K, IQ2_S, IQ2_XS, Q2_0, TQ2_0, IQ2_XXS, IQ1_M, TQ1_0, IQ1_S, Q1_0"].assert_eq(&refused("t"));
    expect!["tensor `u` is stored as ggml type 250, which is not supported: convert the model to one of F32, F16, BF16, Q8_0, Q6_K, Q5_1, Q5_0, Q5_K, Q4_1, Q4_0, IQ4_NL, NVFP4, Q4_K, MXFP4, IQ4_XS, Q3_K, IQ3_S, IQ3_XXS, Q2_K, IQ2_S, IQ2_XS, Q2_0, TQ2_0, IQ2_XXS, IQ1_M, TQ1_0, IQ1_S, Q1_0"].assert_eq(&refused("u"));
    assert_eq!(gguf.tensor_bytes(gguf.tensor("t").unwrap()).len(), 256);
    assert!(gguf.tensor_bytes(gguf.tensor("u").unwrap()).is_empty(), "of unknown size");
}

#[test]
fn a_type_number_with_another_meaning_is_detected_by_its_size() {
    for (kind, block, bytes, other) in [(40, 64, 36, 18), (41, 128, 18, 34), (42, 64, 18, 34)] {
        let file = |stored: usize| {
            let first = Writer::new().tensor_of("t", &[256 * block], kind, &vec![0; 256 * stored]);
            first.tensor_of("u", &[8], 0, &[0; 32]).bytes()
        };
        let own = Gguf::parse(&file(bytes)).unwrap().tensor("t").unwrap().format().unwrap();
        assert_eq!((own.block_values() as u64, own.block_bytes()), (block, bytes));
        let refusal = Gguf::parse(&file(other)).unwrap_err().to_string();
        assert!(refusal.contains("another program gives this type number another meaning"), "{refusal}");
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    for experts in [1, 2] {
        let bytes = small_model(experts).bytes();
        let last =
            Gguf::parse(&bytes).unwrap().tensors().iter().map(|tensor| tensor.offset + tensor.bytes).max();
        for length in 0..last.unwrap() {
            let error = Gguf::parse(&bytes[..length as usize]).expect_err("something is missing").to_string();
            assert!(!error.is_empty(), "cut at {length}");
        }
    }
    let bytes = small_model(1).bytes();
    check(
        &bytes[..6],
        expect![
            "the file ends inside the version: 4 bytes are needed at offset 4 and the file has 6; fetch it again"
        ],
    );
    check(
        &bytes[..20],
        expect![
            "the file ends inside the number of keys: 8 bytes are needed at offset 16 and the file has 20; fetch it again"
        ],
    );
    check(
        &bytes[..200],
        expect![
            "the file announces 11 tensors at offset 24, but its remaining 176 bytes cannot hold them; fetch it again"
        ],
    );
    check(
        &bytes[..bytes.len() - 40],
        expect![
            "tensor `blk.0.ffn_down.weight` takes 96 bytes from offset 1792, and the file has 1848: it is truncated, fetch it again"
        ],
    );
}

#[test]
fn paths_that_are_no_model_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("empty.gguf"), "").unwrap();
    fs::write(at("text.gguf"), "hello, world").unwrap();
    let refused = |name: &str| {
        let error = Gguf::open(at(name)).unwrap_err().to_string();
        error.replace(&folder.path().display().to_string(), "DIR")
    };
    expect!["DIR/ is a folder: name the .gguf file inside it"].assert_eq(&refused(""));
    expect!["DIR/none.gguf cannot be read: there is no such file; name one that is there"]
        .assert_eq(&refused("none.gguf"));
    expect!["DIR/empty.gguf: the file is empty: fetch the model again"].assert_eq(&refused("empty.gguf"));
    expect![[r#"DIR/text.gguf: not a GGUF file: it begins with "hello, w"; give a model in GGUF format"#]]
        .assert_eq(&refused("text.gguf"));
    if cfg!(unix) {
        expect!["/dev/null is not a regular file: copy the model to a disk first"]
            .assert_eq(&Gguf::open("/dev/null").unwrap_err().to_string());
    }
    fs::write(at("good.gguf"), small_model(1).bytes()).unwrap();
    assert_eq!(Gguf::open(at("good.gguf")).unwrap().tensors().len(), 11);
}

/// Writes a model's files into a folder; `a` is their common name.
fn write_split(folder: &Path, whole: &[u8], files: usize) -> Vec<PathBuf> {
    let parts = split(whole, files);
    let path = |number: usize| folder.join(format!("a-{number:05}-of-{files:05}.gguf"));
    (1..)
        .zip(parts)
        .map(|(number, bytes)| (path(number), bytes))
        .map(|(path, bytes)| {
            fs::write(&path, bytes).unwrap();
            path
        })
        .collect()
}

#[test]
fn a_model_in_several_files_is_the_one_in_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let whole =
        fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models/oxide-moe.gguf")).unwrap();
    let one = Gguf::parse(&whole).unwrap();
    for named in write_split(folder.path(), &whole, 3) {
        let split = Gguf::open(named).unwrap();
        assert_eq!(split.files().count(), 3);
        assert_eq!(split.tensors().len(), one.tensors().len());
        for tensor in one.tensors() {
            let found = split.tensor(&tensor.name).unwrap();
            assert_eq!((found.dims, found.kind), (tensor.dims, tensor.kind), "{}", tensor.name);
            assert!(split.tensor_bytes(found) == one.tensor_bytes(tensor), "{}", tensor.name);
        }
        for (key, value) in one.keys() {
            assert_eq!(split.value(key), Some(value));
        }
        let [one, split] =
            [Gguf::parse(&whole).unwrap(), split].map(|gguf| SourceModel::from_gguf(gguf).unwrap());
        assert_eq!(one.ffn_gate(1, 1).bytes, split.ffn_gate(1, 1).bytes);
    }
}

#[test]
fn files_of_a_model_that_do_not_belong_together_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole = small_model(1).bytes();
    let paths = write_split(folder.path(), &whole, 3);
    let refused = |path: &Path| {
        let error = Gguf::open(path).unwrap_err().to_string();
        error.replace(&folder.path().display().to_string(), "DIR")
    };
    expect!["this is file 2 of 3 of its model: put all of them into one folder, named as they were, NAME-00002-of-00003.gguf"].assert_eq(&Gguf::parse(&fs::read(&paths[1]).unwrap()).unwrap_err().to_string());
    let other = folder.path().join("b.gguf");
    fs::copy(&paths[1], &other).unwrap();
    expect!["DIR/b.gguf: this is file 2 of 3 of its model: put all of them into one folder, named as they were, NAME-00002-of-00003.gguf"].assert_eq(&refused(&other));
    let second = fs::read(&paths[1]).unwrap();
    fs::copy(&paths[0], &paths[1]).unwrap();
    expect!["DIR/a-00002-of-00003.gguf: its keys do not say that it is file 2 of 3, as its name does: fetch it again"].assert_eq(&refused(&paths[2]));
    fs::write(&paths[1], small_model(1).bytes()).unwrap();
    expect!["DIR/a-00002-of-00003.gguf: its keys do not say that it is file 2 of 3, as its name does: fetch it again"].assert_eq(&refused(&paths[0]));
    // another model's second file has other tensors, and its first one some of our second's
    let mut other = split(&small_model(2).tensor("more", &[4]).bytes(), 3);
    fs::write(&paths[1], other.swap_remove(1)).unwrap();
    expect!["DIR/a-00001-of-00003.gguf: the model's files should have 11 tensors together and have 12: fetch them again"].assert_eq(&refused(&paths[0]));
    let first = fs::read(&paths[0]).unwrap();
    fs::write(&paths[0], other.swap_remove(0)).unwrap();
    fs::write(&paths[1], &second).unwrap();
    expect!["DIR/a-00002-of-00003.gguf: tensor `blk.0.attn_k.weight` appears twice, so its values are unclear: write the file again with one of them"].assert_eq(&refused(&paths[0]));
    fs::write(&paths[0], first).unwrap();
    assert!(Gguf::open(&paths[0]).is_ok(), "whole again");
    fs::remove_file(&paths[2]).unwrap();
    expect!["DIR/a-00001-of-00003.gguf: of the model's 3 files `a-00003-of-00003.gguf` is missing: fetch the model's other files into this folder, too"]
        .assert_eq(&refused(&paths[0]));
    let lie = small_model(1).raw(b"split.count", 10, &u64::MAX.to_le_bytes()).bytes();
    expect![
        "keys say that it is file 0 (from 0) of 18446744073709551615, which is impossible: fetch it again"
    ]
    .assert_eq(&Gguf::parse(&lie).unwrap_err().to_string());
}

/// Bytes of a model with some changed, interesting numbers among them.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let change = (
        any::<prop::sample::Index>(),
        prop::sample::select(vec![0_u64, 1, 9, 31, 255, 1 << 31, 1 << 63, u64::MAX]),
        1..=8_usize,
    );
    (1..=2_u32, prop::collection::vec(change, 1..6), any::<bool>()).prop_map(
        |(experts, changes, in_header)| {
            let mut bytes = small_model(experts).bytes();
            for (place, value, width) in changes {
                let place = place.index(if in_header { 1400 } else { bytes.len() });
                let end = (place + width).min(bytes.len());
                let value = value.to_le_bytes();
                bytes[place..end].copy_from_slice(&value[..end - place]);
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_damage_makes_a_panic(bytes in damaged()) {
        use_all_of(&bytes);
    }

    #[test]
    fn no_bytes_after_a_magic_make_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        use_all_of(&[&b"GGUF\x03\0\0\0"[..], &bytes].concat());
    }
}

#[test]
fn one_changed_byte_anywhere_makes_no_panic() {
    let whole = small_model(2).bytes();
    for place in 0..whole.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[place] = value;
            use_all_of(&bytes);
        }
    }
}

#[test]
fn text_is_valid_where_the_file_changes_while_it_is_read() {
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Long enough for a change to fall between a check and a later use.
    const LENGTH: usize = 1 << 20;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), Writer::new().text("a", &"b".repeat(LENGTH)).bytes()).unwrap();
    // the last byte of the text: what follows is padding
    let bytes = fs::read(file.path()).unwrap();
    let last = bytes.iter().rposition(|&byte| byte == b'b').unwrap() as u64;
    let ended = AtomicBool::new(false);
    let (mut valid, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                for byte in [b"\xff", b"b"] {
                    platform::file::write_all_at(file.as_file(), byte, last).unwrap();
                }
            }
        });
        for _ in 0..300 {
            match Gguf::open(file.path()) {
                Err(_) => refused += 1,
                Ok(gguf) => {
                    let text = gguf.text("a").unwrap().unwrap();
                    valid += usize::from(std::str::from_utf8(text.as_bytes()).is_ok());
                }
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(valid + refused, 300, "text that is not UTF-8 was believed");
}
