//! Contract files: refusals and their messages, and round trips without loss.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use expect_test::{Expect, expect};
use plans::file::{Contract, FILE_BYTES_MAX, parse, read, render, write};
use plans::memory::kv_bytes_per_token;
use plans::model::Heads;
use plans::{Calibration, Device, Integrity, KvFormat, Learned, Model, Plan};

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
            let written = render(&value, file).unwrap();
            // older files have no checksum
            let more = written.strip_prefix(&text).unwrap_or_else(|| panic!("{} is another", file.display()));
            assert!(more.is_empty() || T::HAS_CHECKSUM && more.contains("[integrity]"), "{more}");
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

/// Reads a file of a kind with a part of its text replaced.
fn changed<T: Contract>(text: &str, from: &str, to: &str) -> Result<Integrity, String> {
    assert!(text.contains(from), "{from}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.toml");
    std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
    let read = read::<T>(&path).map(|loaded| loaded.integrity);
    read.map_err(|error| error.to_string().replace(&path.display().to_string(), T::KIND))
}

#[test]
fn no_digit_of_a_measured_file_changes_unnoticed() {
    fn check<T: Contract>(text: &str) {
        let path = Path::new(T::KIND);
        let written = render(&parse::<T>(text, path).unwrap(), path).unwrap();
        assert_eq!(changed::<T>(&written, "", "").unwrap(), Integrity::Right);
        let figures = written.find("\n# A hash of all keys").unwrap();
        let mut digits = 0;
        let mut start = 0;
        for line in written[..figures].split_inclusive('\n').filter(|line| !line.starts_with('#')) {
            start = written[start..].find(line).unwrap() + start;
            for (at, digit) in line.char_indices().filter(|(_, c)| c.is_ascii_digit()) {
                let other = char::from(b'0' + (digit as u8 - b'0' + 1) % 10).to_string();
                let mut flipped = written.clone();
                flipped.replace_range(start + at..=start + at, &other);
                assert!(parse::<T>(&flipped, path).is_err(), "{}: {line}", T::KIND);
                digits += 1;
            }
        }
        assert!(digits > 20, "{digits} digits");
    }
    check::<Device>(include_str!("device.toml"));
    check::<Model>(include_str!("model.toml"));
    check::<Calibration>(include_str!("calibration.toml"));
    check::<Learned>(include_str!("learned.toml"));
}

#[test]
fn a_changed_figure_is_refused_unless_its_file_says_so() {
    let path = Path::new("device.toml");
    let text = render(&parse::<Device>(include_str!("device.toml"), path).unwrap(), path).unwrap();
    let (figure, other) = ("thread_bytes = 65536", "thread_bytes = 65537");
    let said = changed::<Device>(&text, figure, other).unwrap_err();
    expect![[r#"device.toml: its figures are not those that `profile` wrote, for their checksum is another: make the device.toml again, or, if they were changed by hand, write checksum = "void" below [integrity]"#]]
        .assert_eq(&said);
    let (before, checksum) = text.split_once("checksum = \"void\".\n[integrity]\n").unwrap();
    let checksum = checksum.trim_end();
    let by_hand = text.replace(figure, other);
    assert_eq!(changed::<Device>(&by_hand, checksum, "checksum = \"void\"").unwrap(), Integrity::Void);
    let older = before.rsplit_once("\n#").unwrap().0;
    assert_eq!(changed::<Device>(older, "", "").unwrap(), Integrity::Absent);
    // comments and white space are no figures
    assert_eq!(
        changed::<Device>(&text, figure, "thread_bytes  =  65536 # measured").unwrap(),
        Integrity::Right
    );
    for (wrong, key) in [
        ("checksum = \"none\"", "checksum"),
        ("checksum = 7", "checksum"),
        ("sum = \"void\"", "sum"),
        ("", "checksum"),
    ] {
        let said = changed::<Device>(&text, checksum, wrong).unwrap_err();
        assert!(
            said.contains(&format!("`integrity.{key}` is not a checksum; the table [integrity] has")),
            "{said}"
        );
    }
    let plan = format!("{PLAN}\n[integrity]\n{checksum}\n");
    assert!(changed::<Plan>(&plan, "", "").unwrap_err().contains("unknown key `integrity`"));
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_known_name() {
    refused(
        &PLAN.replace("gap_bytes", "gap_byte"),
        expect!["plan.toml, line 61: unknown key `gap_byte`; the nearest known name is `gap_bytes`"],
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
fn impossible_values_are_refused_with_file_line_key_value_and_what_is_right() {
    let changed = |from: &str, to: &str| {
        assert!(PLAN.contains(from), "{from}");
        PLAN.replacen(from, to, 1)
    };
    refused(
        &changed("limit_bytes = 1000000000", "limit_bytes = 0"),
        expect!["plan.toml, line 36: `memory.limit_bytes` is 0; 1 to 1125899906842624 are possible"],
    );
    refused(
        &changed("limit_bytes = 1000000000", "limit_bytes = 9223372036854775807"),
        expect![
            "plan.toml, line 36: `memory.limit_bytes` is 9223372036854775807; 1 to 1125899906842624 are possible"
        ],
    );
    refused(
        &changed("limit_bytes = 1000000000", "limit_bytes = 5"),
        expect!["plan.toml, line 47: `memory.decode_total_bytes` is 40960, above the limit of 5 bytes"],
    );
    refused(
        &changed("hot_bytes = 0", "hot_bytes = 7"),
        expect!["plan.toml, line 39: `memory.hot_bytes` is 7; whole pages of 4096 bytes are possible"],
    );
    refused(
        &changed("hot_bytes = 0", "hot_bytes = 4096"),
        expect!["plan.toml, line 47: `memory.decode_total_bytes` is 40960, but the regions add up to 45056"],
    );
    refused(
        &changed("depth = 1", "depth = 0"),
        expect!["plan.toml, line 58: `read.depth` is 0; 1 to 1024 are possible"],
    );
    refused(
        &changed("depth = 1", "depth = 2"),
        expect![
            "plan.toml, line 59: `read.buffers` is 1, and 2 reads in flight need 2; 2 to 65536 are possible"
        ],
    );
    refused(
        &changed("compute_cores = [0]", "compute_cores = [1, 1]"),
        expect!["plan.toml, line 64: `decode.compute_cores` names core 1 twice; name each once"],
    );
    refused(
        &changed("io_cores = [0]", "io_cores = []"),
        expect![
            "plan.toml, line 65: `decode.io_cores` names 0 cores; name cores for `pread`, and none for `io-uring`"
        ],
    );
    refused(
        &changed("backend = \"pread\"", "backend = \"io_uring\""),
        expect!["plan.toml, line 56: unknown variant `io_uring`, expected `pread` or `io-uring`"],
    );
    refused(
        &changed("tokens = 32", "tokens = -1"),
        expect!["plan.toml, line 33: invalid value: integer `-1`, expected u32"],
    );
    refused(
        &changed("tokens = 32", "tokens = \"many\""),
        expect![[r#"plan.toml, line 33: invalid type: string "many", expected u32"#]],
    );
    refused(
        &changed("decode_tokens_per_second = 1.0", "decode_tokens_per_second = nan"),
        expect![
            "plan.toml, line 81: `expected.decode_tokens_per_second` is NaN; a number above 0 and up to 1000000000 is possible"
        ],
    );
    refused(
        &changed("decode_tokens_per_second = 1.0", "decode_tokens_per_second = 1e300"),
        expect![
            "plan.toml, line 81: `expected.decode_tokens_per_second` is 1e300; a number above 0 and up to 1000000000 is possible"
        ],
    );
    refused(
        &changed("decode_tokens_per_second = 1.0", "decode_tokens_per_second = 2.0"),
        expect![
            "plan.toml, line 81: `expected.decode_tokens_per_second` is 2; with the constant, slope and cold start beside it and a context of 32 tokens it is 1"
        ],
    );
    refused(
        &changed("instruction_set = \"scalar\"", "instruction_set = \"sse\""),
        expect![
            "plan.toml, line 30: `quality.instruction_set` is `sse`; known here: scalar, avx2, avx512, neon, dotprod, i8mm"
        ],
    );
    refused(
        &changed("share_fraction = 1.0", "share_fraction = 0.5"),
        expect![
            "plan.toml, line 70: `decode.units[0].share_fraction` is 0.5; the shares of a stage add up to 1"
        ],
    );
}

#[test]
fn a_level_changed_by_name_does_not_keep_the_other_levels_kind_or_loss() {
    refused(
        &PLAN.replace("\nlevel = \"dense\"\nkind", "\nlevel = \"low-rank-99\"\nkind"),
        expect![
            "plan.toml, line 25: `quality.level` is `low-rank-99`; a level of kind `dense` is called `dense` or `dense-...`"
        ],
    );
    // both names changed, and each other value that has a loss
    for (from, to) in [
        ("level = \"dense\"\nkind = \"dense\"", "level = \"low-rank-90\"\nkind = \"low-rank\""),
        ("kv_format = \"F32\"", "kv_format = \"F16\""),
        ("activations = \"f32\"", "activations = \"q8\""),
        ("perplexity_change_fraction = 0.0\n", "perplexity_change_fraction = -0.5\n"),
    ] {
        let changed = PLAN.replace(from, to);
        assert_ne!(changed, PLAN, "{from}");
        let message = parse::<Plan>(&changed, Path::new("plan.toml")).unwrap_err().to_string();
        assert!(
            message.starts_with("plan.toml, line 18: `provenance.quality` is the hash of other values"),
            "{message}"
        );
    }
    let unstated = PLAN.replacen("quality = \"", "# quality = \"", 1);
    refused(&unstated, expect!["plan.toml, line 14: missing field `quality`"]);
}

#[test]
fn a_network_has_gates_or_its_ups_stand_in_their_place() {
    let path = committed(|name| name == "model.toml").swap_remove(0);
    let text = std::fs::read_to_string(&path).unwrap();
    let model: Model = parse(&text, &path).unwrap();
    assert!(model.architecture.is_gated() && model.parts.bundle.up_bytes > 0);
    let said = |text: &str| parse::<Model>(text, Path::new("model.toml")).unwrap_err().to_string();
    let up = format!("up_bytes = {}", model.parts.bundle.up_bytes);
    let error = said(&text.replacen(&up, "up_bytes = 0", 1));
    assert!(error.contains("`parts.bundle.up_bytes` is 0, and neurons of"), "{error}");
    let activation = format!("activation = \"{}\"", model.architecture.activation);
    let error = said(&text.replacen(&activation, "activation = \"relu-squared\"", 1));
    assert!(error.contains("neurons of relu-squared have their up in place of a gate"), "{error}");
}

#[test]
fn heads_of_other_shapes_take_memory_of_their_own_and_are_of_fewer_layers_than_there_are() {
    let all =
        committed(|name| name == "model.toml").into_iter().map(|path| read::<Model>(&path).unwrap().value);
    let mut model = all.into_iter().find(|model| model.architecture.layers > 4).unwrap();
    let a = model.architecture.clone();
    let alike = kv_bytes_per_token(&a, KvFormat::Q8_0);
    model.architecture.other_heads = vec![Heads { layers: 3, heads: 6, kv_heads: 3, head_width: 64 }];
    let path = Path::new("model.toml");
    let text = render(&model, path).unwrap();
    assert_eq!(parse::<Model>(&text, path).unwrap(), model);
    // of each head a key and a value, two blocks of 34 bytes each
    let own = alike / u64::from(a.layers) * u64::from(a.layers - 3);
    let found = kv_bytes_per_token(&model.architecture, KvFormat::Q8_0);
    assert_eq!(found, own + 3 * 3 * 2 * 2 * 34);
    for (from, to, says) in [
        ("layers = 3", format!("layers = {}", a.layers), "have keys and values"),
        ("kv_heads = 3", "kv_heads = 4".to_owned(), "which does not divide the 6 query heads"),
        ("head_width = 64", "head_width = 0".to_owned(), "1 to 16384 are possible"),
    ] {
        let at = text.find("other_heads").unwrap();
        let (before, after) = text.split_at(at);
        let error = parse::<Model>(&format!("{before}{}", after.replacen(from, &to, 1)), path)
            .unwrap_err()
            .to_string();
        assert!(error.contains("architecture.other_heads") && error.contains(says), "{error}");
    }
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
fn what_is_no_file_or_has_no_end_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let said = |path: &Path| read::<Device>(path).unwrap_err().to_string();
    expect!["/dev/zero is a device, and a device.toml is a file; name the file, or save what comes from there to one"].assert_eq(&said(Path::new("/dev/zero")));
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let end =
        "pipe is a pipe, and a device.toml is a file; name the file, or save what comes from there to one";
    assert!(said(&pipe).ends_with(end), "{}", said(&pipe));
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert!(said(&socket).contains("socket is a socket, and a device.toml is a file"), "{}", said(&socket));
    // a file of holes: as long as it says, and nothing of it on the disk
    let long = folder.path().join("long.toml");
    File::create(&long).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
    assert!(said(&long).contains("has more than 16777216 bytes"), "{}", said(&long));
    File::create(&long).unwrap().set_len(FILE_BYTES_MAX).unwrap();
    assert!(said(&long).contains(", line 1: "), "{}", said(&long));
}

#[test]
fn a_file_that_cannot_be_written_is_named_once_and_by_its_own_name() {
    let folder = tempfile::tempdir().unwrap();
    let plan: Plan = parse(PLAN, Path::new("plan.toml")).unwrap();
    let path = folder.path().join("none/plan.toml");
    let error = write(&plan, &path).unwrap_err().to_string();
    let none = folder.path().join("none");
    let said = format!("there is no folder {}; make it, or name another", none.display());
    assert_eq!(error, format!("cannot write {}: {said}", path.display()));
    let occupied = folder.path().join("occupied");
    std::fs::create_dir(&occupied).unwrap();
    let error = write(&plan, &occupied).unwrap_err().to_string();
    let said = "it is a folder; name a file inside it";
    assert_eq!(error, format!("cannot write {}: {said}", occupied.display()));
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

/// Regions that other ones make up for, so that the sums stay.
fn with_kv_bytes(plan: &Plan, kv_bytes: u64, kv_token_bytes: u64) -> Result<Plan, String> {
    let mut plan = plan.clone();
    plan.memory.fixed_bytes = plan.memory.fixed_bytes + plan.memory.kv_bytes - kv_bytes;
    (plan.memory.kv_bytes, plan.memory.kv_token_bytes) = (kv_bytes, kv_token_bytes);
    let path = Path::new("plan.toml");
    let text = render(&plan, path).map_err(|error| error.to_string())?;
    parse(&text, path).map_err(|error| error.to_string())
}

#[test]
fn keys_and_values_are_those_of_whole_layers_or_what_a_plan_says_of_a_token() {
    let plans = committed(|name| name.starts_with("plan-") && name.ends_with(".toml"));
    let plans = plans.into_iter().map(|path| read::<Plan>(&path).unwrap().value);
    // of each token more bytes than a page has tokens, so that whole pages tell a block from none
    let large = |plan: &Plan| plan.context.tokens >= 4096;
    let plan = plans.into_iter().find(large).unwrap();
    let (layers, block) = (plan.quality.always_on_neurons.len() as u64, plan.quality.kv().block_bytes());
    let tokens = u64::from(plan.context.tokens) * u64::from(plan.context.sequences);
    let unit = layers * 2 * block;
    let of_token = plan.memory.kv_bytes / (tokens * unit) * unit;
    let all = |of_token: u64| (tokens * of_token).next_multiple_of(4096);
    assert!(tokens * block >= 4096 && all(of_token) == plan.memory.kv_bytes);
    with_kv_bytes(&plan, all(of_token), 0).unwrap();
    // a layer less, of keys and values of a block for each token
    let less = all(of_token - 2 * block);
    let error = with_kv_bytes(&plan, less, 0).unwrap_err();
    assert!(error.contains(&format!("`memory.kv_bytes` is {less}, which keys and values of")), "{error}");
    with_kv_bytes(&plan, less, of_token - 2 * block).unwrap();
    // one vector for keys and values, of an odd number of blocks
    with_kv_bytes(&plan, all(of_token - block), of_token - block).unwrap();
    for (token_bytes, says) in [
        (of_token, "`memory.kv_bytes` is"),
        (of_token - 4 * block, "`memory.kv_bytes` is"),
        (of_token - block - 1, "which blocks of"),
    ] {
        let error = with_kv_bytes(&plan, less, token_bytes).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}
