//! Contract files: what is refused and in which words, and that nothing is lost on the way.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use expect_test::{Expect, expect};
use plans::file::{Contract, parse, read, render, write};
use plans::{Device, Model, Plan};

const PLAN: &str = include_str!("plan.toml");

#[track_caller]
fn refused(text: &str, message: Expect) {
    let error = parse::<Plan>(text, Path::new("plan.toml")).expect_err("the plan is refused");
    message.assert_eq(&error.to_string());
}

/// Every committed contract file of a kind.
fn committed(name: fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR"))];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.file_name().and_then(|file| file.to_str()).is_some_and(name) {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn what_was_read_is_written_byte_for_byte() {
    fn check<T: Contract>(files: &[PathBuf]) {
        for file in files {
            let text = std::fs::read_to_string(file).unwrap();
            let value: T = parse(&text, file).unwrap();
            assert_eq!(render(&value, file).unwrap(), text, "{}", file.display());
        }
    }
    check::<Device>(&committed(|name| name == "device.toml"));
    check::<Model>(&committed(|name| name == "model.toml"));
    check::<Plan>(&committed(|name| name.starts_with("plan-") && name.ends_with(".toml")));
}

#[test]
fn writing_is_stable_and_leaves_no_other_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.toml");
    let plan: Plan = parse(PLAN, &path).unwrap();
    let hash = write(&plan, &path).unwrap();
    let loaded = read::<Plan>(&path).unwrap();
    assert_eq!((&loaded.value, &loaded.hash), (&plan, &hash));
    assert_eq!(write(&plan, &path).unwrap(), hash, "the same value, the same bytes");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "the temporary file is gone");
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_known_name() {
    refused(
        &PLAN.replace("gap_bytes", "gap_byte"),
        expect!["plan.toml, line 60: unknown key `gap_byte`; the nearest known name is `gap_bytes`"],
    );
}

#[test]
fn other_schemas_are_refused() {
    refused(
        &PLAN.replace("schema = 1", "schema = 2"),
        expect![
            "plan.toml: schema is 2, this version reads 1; make the file again with this version's `plan`"
        ],
    );
    refused(
        &PLAN.replace("schema = 1\n", ""),
        expect![
            "plan.toml: schema is missing, this version reads 1; make the file again with this version's `plan`"
        ],
    );
}

#[test]
fn impossible_values_are_refused_with_the_key() {
    refused(
        &PLAN.replace("limit_bytes = 1000000000", "limit_bytes = 0"),
        expect!["plan.toml: `memory.limit_bytes` is zero; no process fits"],
    );
    refused(
        &PLAN.replace("limit_bytes = 1000000000", "limit_bytes = 5"),
        expect!["plan.toml: `memory.decode_total_bytes` is above the limit of 5 bytes"],
    );
    refused(
        &PLAN.replace("hot_bytes = 0", "hot_bytes = 7"),
        expect!["plan.toml: `memory.decode_total_bytes` is 4096, but the regions add up to 4103"],
    );
    refused(
        &PLAN.replace("depth = 1", "depth = 0"),
        expect!["plan.toml: `read` needs a depth of 1 to 1024 and 1 to 65536 buffers"],
    );
    refused(
        &PLAN.replacen("compute_cores = [0]", "compute_cores = [1, 1]", 1),
        expect!["plan.toml: `decode.compute_cores` must name each core once, and at least one"],
    );
    refused(
        &PLAN.replace("backend = \"pread\"", "backend = \"io_uring\""),
        expect!["plan.toml, line 55: unknown variant `io_uring`, expected `pread` or `io-uring`"],
    );
    refused(
        &PLAN.replace("tokens = 32", "tokens = -1"),
        expect!["plan.toml, line 32: invalid value: integer `-1`, expected u32"],
    );
    refused(
        &PLAN.replace("tokens = 32", "tokens = \"many\""),
        expect![[r#"plan.toml, line 32: invalid type: string "many", expected u32"#]],
    );
}

#[test]
fn a_file_cut_short_anywhere_is_an_error_and_never_another_plan() {
    let whole: Plan = parse(PLAN, Path::new("plan.toml")).unwrap();
    for end in 0..PLAN.len() - 1 {
        if let Ok(plan) = parse::<Plan>(&PLAN[..end], Path::new("plan.toml")) {
            // only the last number can lose digits without a trace; that is what the provenance hash is for
            assert_eq!(plan.quality, whole.quality, "cut at {end}");
            assert!(end > PLAN.rfind("memory_peak_bytes").unwrap(), "cut at {end}");
        }
    }
}

#[test]
fn a_folder_or_a_binary_file_is_named_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let error = read::<Plan>(folder.path()).unwrap_err().to_string();
    assert!(error.contains("is a folder; name the file inside it, for example"), "{error}");
    let path = folder.path().join("plan.toml");
    std::fs::write(&path, b"schema = 1\n\xff\xfe").unwrap();
    let error = read::<Plan>(&path).unwrap_err().to_string();
    assert!(error.ends_with("line 2: not UTF-8 text; is this a plan.toml?"), "{error}");
    std::fs::remove_file(&path).unwrap();
    let error = read::<Plan>(&path).unwrap_err().to_string();
    let named = format!(
        "cannot read {}: there is no such file; name your plan.toml, or make one with `plan`",
        path.display()
    );
    assert_eq!(error, named);
}

#[test]
fn a_contract_of_another_kind_is_called_by_its_name() {
    let error = parse::<Device>(PLAN, Path::new("plan.toml")).unwrap_err().to_string();
    expect!["plan.toml is a plan.toml, and a device.toml is needed; name your device.toml, or make one with `profile`"].assert_eq(&error);
    for (device, model) in
        committed(|name| name == "device.toml").iter().zip(committed(|name| name == "model.toml"))
    {
        let error = read::<Model>(device).unwrap_err().to_string();
        let end = "is a device.toml, and a model.toml is needed; name your model.toml, or make one with `profile --model FILE`";
        assert!(error.ends_with(end), "{error}");
        let error = read::<Plan>(&model).unwrap_err().to_string();
        assert!(error.contains("is a model.toml, and a plan.toml is needed"), "{error}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_named_once_and_by_its_own_name() {
    let folder = tempfile::tempdir().unwrap();
    let plan: Plan = parse(PLAN, Path::new("plan.toml")).unwrap();
    let path = folder.path().join("none/plan.toml");
    let error = write(&plan, &path).unwrap_err().to_string();
    assert_eq!(error, format!("cannot write {}: No such file or directory (os error 2)", path.display()));
    let occupied = folder.path().join("occupied");
    std::fs::create_dir(&occupied).unwrap();
    let error = write(&plan, &occupied).unwrap_err().to_string();
    assert_eq!(error, format!("cannot write {}: Is a directory (os error 21)", occupied.display()));
}

#[test]
fn written_files_have_the_permissions_of_any_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, any) = (folder.path().join("plan.toml"), folder.path().join("any"));
    write(&parse::<Plan>(PLAN, &ours).unwrap(), &ours).unwrap();
    std::fs::write(&any, "").unwrap();
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&ours), mode(&any));
}
