//! `KEYS.md` lists every key with its unit and meaning, taken from the types themselves.
//! `UPDATE_EXPECT=1 cargo test -p flashplan-plans` renews it.
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "../../fixtures/fuzz/every.rs"]
mod every;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use every::{every_figure, every_rate, every_request};
use expect_test::expect_file;
use plans::file::{Contract, read};
use plans::model::LevelKind;
use plans::{Calibration, Device, Learned, Model, Plan};

struct Field {
    key: String,
    kind: String,
    doc: String,
}

/// Fields by struct, with their documentation, from the source text.
fn structs(source: &str) -> BTreeMap<String, Vec<Field>> {
    let (mut structs, mut current, mut doc) = (BTreeMap::new(), None, String::new());
    for line in source.lines() {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("///") {
            doc = format!("{doc} {}", text.trim()).trim().to_owned();
        } else if let Some(name) = line.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {")) {
            current = Some(name.to_owned());
            structs.insert(name.to_owned(), Vec::new());
            doc.clear();
        } else if line == "}" {
            current = None;
        } else if let (Some(name), Some(field)) = (&current, line.strip_prefix("pub ")) {
            let (key, kind) = field.trim_end_matches(',').split_once(": ").unwrap();
            let field = Field { key: key.to_owned(), kind: kind.to_owned(), doc: std::mem::take(&mut doc) };
            structs.get_mut(name).unwrap().push(field);
        } else if !line.starts_with("#[") {
            doc.clear();
        }
    }
    structs
}

/// The names in files of each enum's values, from the source text; all are kebab-case.
fn enums(source: &str) -> BTreeMap<String, Vec<String>> {
    let (mut enums, mut current) = (BTreeMap::new(), None);
    for line in source.lines() {
        if let Some(name) = line.strip_prefix("pub enum ").and_then(|rest| rest.strip_suffix(" {")) {
            current = Some(name.to_owned());
        } else if line == "}" {
            current = None;
        } else if let (Some(name), Some(value)) = (&current, line.trim().strip_suffix(','))
            && value.chars().all(char::is_alphanumeric)
        {
            let mut kebab = String::new();
            for letter in value.chars() {
                if letter.is_uppercase() && !kebab.is_empty() {
                    kebab.push('-');
                }
                kebab.push(letter.to_ascii_lowercase());
            }
            enums.entry(name.clone()).or_insert_with(Vec::new).push(format!("`{kebab}`"));
        }
    }
    enums
}

/// The unit that a key ends in.
fn unit(key: &str) -> &'static str {
    let units = [
        ("tokens_per_second", "tokens/s"),
        ("tokens_per_second_min", "tokens/s"),
        ("bytes_per_second", "bytes/s"),
        ("flops_per_second", "FLOP/s"),
        ("reads_per_second", "reads/s"),
        ("seconds_per_context_token", "s/token"),
        ("seconds_per_read", "s"),
        ("bytes_per_token", "bytes/token"),
        ("flops_per_token", "FLOP/token"),
        ("bytes_read_per_token", "bytes/token"),
        ("_bytes", "bytes"),
        ("container.bytes", "bytes"),
        ("limit_bytes", "bytes"),
        ("_seconds", "s"),
        ("seconds_p50", "s"),
        ("seconds_p90", "s"),
        ("seconds_p99", "s"),
        ("seconds_constant", "s"),
        ("seconds_max", "s"),
        ("_fraction", "fraction"),
        ("fraction_max", "fraction"),
        ("fraction_upper", "fraction"),
        ("fraction_of_texts", "fraction"),
        ("flops_per_second", "FLOP/s"),
        ("_neurons", "neurons"),
        ("_slots", "neurons"),
        ("_mhz", "MHz"),
        ("_gib", "GiB"),
        ("tokens", "tokens"),
        ("ranks", "ranks"),
    ];
    units.iter().find(|(end, _)| key.ends_with(end)).map_or("", |(_, unit)| unit)
}

/// The contracts' types, the source of `KEYS.md`.
struct Types {
    structs: BTreeMap<String, Vec<Field>>,
    enums: BTreeMap<String, Vec<String>>,
}

fn table(out: &mut String, types: &Types, ranges: &mut BTreeMap<String, String>, name: &str, prefix: &str) {
    for field in &types.structs[name] {
        let key = format!("{prefix}{}", field.key);
        let list = field.kind.starts_with("Vec<");
        let inner = field.kind.rsplit('<').next().unwrap().trim_end_matches('>');
        let mut doc = field.doc.replace("[`", "`").replace("`]", "`").replace('|', "\\|");
        doc = doc.replace("`crate::SCHEMA`", &plans::SCHEMA.to_string());
        doc = doc.replace("`crate::", "`plans::");
        if types.structs.contains_key(inner) {
            let entries = if list { "[]" } else { "" };
            if let Some(range) = ranges.remove(&key) {
                writeln!(out, "| `{key}{entries}` | table |  | {range} | {doc} |").unwrap();
            }
            table(out, types, ranges, inner, &format!("{key}{entries}."));
            continue;
        }
        let mut kind = field.kind.replace("crate::", "");
        let mut notes: Vec<String> = Vec::new();
        for (entries, each) in [("", ""), ("[]", "each "), ("[][]", "each ")] {
            let Some(range) = ranges.remove(&format!("{key}{entries}")) else { continue };
            let range = match types.enums.get(inner) {
                Some(names) if range == "one of its names" => names.join(", "),
                _ => range,
            };
            notes.push(format!("{}{range}", if notes.is_empty() && entries.is_empty() { "" } else { each }));
        }
        if types.enums.contains_key(inner) {
            kind = kind.replace(inner, "String");
        }
        assert!(!notes.is_empty(), "{key} is not checked: no value of it that the tests know was seen");
        writeln!(out, "| `{key}` | {kind} | {} | {} | {doc} |", unit(&key), notes.join("; ")).unwrap();
    }
}

/// The ranges of all keys of a kind of file, from every committed file and from one with the keys that these lack.
fn ranges<T: Contract>(start: &str, fill: fn(&mut T)) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut folders = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR"))];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.starts_with(start) && name.ends_with(".toml") {
                let mut value: T = read(&path).unwrap().value;
                all.extend(value.ranges().unwrap());
                fill(&mut value);
                all.extend(value.ranges().unwrap());
            }
        }
    }
    all
}

#[test]
fn every_key_is_documented() {
    let mut out = format!(
        "# The keys of the contract files\n\nA test makes this page from the types in `src/`. A key of kind `Option` may be absent; `[]` \
         stands for each entry of a list. A value outside its range is refused when the file is read, with file, line, key, value and \
         range. All files have `schema = {}`. Unknown keys are refused, and the same values always give the same bytes.\n\n`device.toml`, `model.toml`, `calibration.toml` and `learned.toml` end in a \
         checksum of all keys and values: `checksum` in the table `[integrity]`. A file with other figures is refused, because one \
         changed digit can give another plan. After a change by hand write `checksum = \"void\"`; `plan` accepts the file and says \
         so. Files of older versions have no checksum and are accepted.\n",
        plans::SCHEMA
    );
    let sources = [
        include_str!("../src/backend.rs"),
        include_str!("../src/calibration.rs"),
        include_str!("../src/device.rs"),
        include_str!("../src/layout.rs"),
        include_str!("../src/learned.rs"),
        include_str!("../src/model.rs"),
        include_str!("../src/plan.rs"),
        include_str!("../src/plan/expected.rs"),
        include_str!("../src/plan/request.rs"),
        include_str!("../src/policy.rs"),
        include_str!("../src/terms.rs"),
    ];
    let types = Types {
        structs: sources.iter().flat_map(|source| structs(source)).collect(),
        enums: sources.iter().flat_map(|source| enums(source)).collect(),
    };
    for (root, file, writer, reader, mut ranges) in [
        ("Device", Device::KIND, "profile", "plan", ranges::<Device>("device", every_rate)),
        ("Model", Model::KIND, "profile", "plan", ranges::<Model>("model", every_figure)),
        ("Plan", Plan::KIND, "plan", "run, and plan --check", ranges::<Plan>("plan", every_request)),
        (
            "Calibration",
            Calibration::KIND,
            "run --bench --calibration-out",
            "plan",
            ranges::<Calibration>("calibration", |_| ()),
        ),
        ("Learned", Learned::KIND, "run", "plan, and run", ranges::<Learned>("learned", |_| ())),
    ] {
        write!(out, "\n## {file}\n\nWritten by `{writer}`, read by `{reader}`.\n\n").unwrap();
        out.push_str("| key | kind | unit | possible | meaning |\n|---|---|---|---|---|\n");
        table(&mut out, &types, &mut ranges, root, "");
        assert!(ranges.is_empty(), "these are checked and stand in no table: {ranges:?}");
    }
    for line in out.lines().filter(|line| line.starts_with("| `")) {
        assert!(!line.ends_with("|  |"), "no documentation: {line}");
    }
    for (kind, written) in [(LevelKind::ExactGate, "exact-gate"), (LevelKind::LowRank, "low-rank")] {
        assert!(kind.name() == written && out.contains(&format!("`{written}`")), "the names are the files'");
    }
    expect_file!["../KEYS.md"].assert_eq(&out);
}
