//! `KEYS.md` lists every key with its unit and meaning, taken from the types themselves.
//! `UPDATE_EXPECT=1 cargo test -p plans` writes it anew.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use expect_test::expect_file;
use plans::file::Contract as _;
use plans::model::LevelKind;
use plans::{Device, Model, Plan};

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
        ("_bytes", "bytes"),
        ("limit_bytes", "bytes"),
        ("_seconds", "s"),
        ("seconds_constant", "s"),
        ("_fraction", "0 to 1"),
        ("fraction_max", "0 to 1"),
        ("_mhz", "MHz"),
        ("_gib", "GiB"),
        ("tokens", "tokens"),
    ];
    units.iter().find(|(end, _)| key.ends_with(end)).map_or("", |(_, unit)| unit)
}

/// What `KEYS.md` is taken from.
struct Types {
    structs: BTreeMap<String, Vec<Field>>,
    enums: BTreeMap<String, Vec<String>>,
}

fn table(out: &mut String, types: &Types, name: &str, prefix: &str) {
    for field in &types.structs[name] {
        let key = format!("{prefix}{}", field.key);
        let list = field.kind.starts_with("Vec<");
        let inner = field.kind.trim_start_matches("Vec<").trim_start_matches("Option<").trim_end_matches('>');
        if types.structs.contains_key(inner) {
            table(out, types, inner, &format!("{key}{}.", if list { "[]" } else { "" }));
            continue;
        }
        let mut doc = field.doc.replace("[`", "`").replace("`]", "`").replace('|', "\\|");
        doc = doc.replace("`crate::SCHEMA`", &plans::SCHEMA.to_string());
        doc = doc.replace("`crate::", "`plans::");
        let mut kind = field.kind.replace("crate::", "");
        if let Some(values) = types.enums.get(inner) {
            doc = format!("{} One of {}.", doc, values.join(", "));
            kind = kind.replace(inner, "String");
        }
        writeln!(out, "| `{key}` | {kind} | {} | {doc} |", unit(&field.key)).unwrap();
    }
}

#[test]
fn every_key_is_documented() {
    let mut out = format!(
        "# The keys of the contract files\n\nTaken from the types in `src/` by a test, which also keeps this page true. \
         A key of kind `Option` may be absent; `[]` stands for each entry of a list. All files: `schema = {}`, unknown \
         keys are refused, the same values always give the same bytes.\n",
        plans::SCHEMA
    );
    let sources = [
        include_str!("../src/device.rs"),
        include_str!("../src/layout.rs"),
        include_str!("../src/model.rs"),
        include_str!("../src/plan.rs"),
        include_str!("../src/policy.rs"),
    ];
    let types = Types {
        structs: sources.iter().flat_map(|source| structs(source)).collect(),
        enums: sources.iter().flat_map(|source| enums(source)).collect(),
    };
    for (root, file, writer, reader) in [
        ("Device", Device::KIND, "profile", "plan"),
        ("Model", Model::KIND, "profile", "plan"),
        ("Plan", Plan::KIND, "plan", "run, and plan --check"),
    ] {
        write!(out, "\n## {file}\n\nWritten by `{writer}`, read by `{reader}`.\n\n").unwrap();
        out.push_str("| key | kind | unit | meaning |\n|---|---|---|---|\n");
        table(&mut out, &types, root, "");
    }
    for line in out.lines().filter(|line| line.starts_with("| `")) {
        assert!(!line.ends_with("|  |"), "no documentation: {line}");
    }
    for (kind, written) in [(LevelKind::ExactGate, "exact-gate"), (LevelKind::LowRank, "low-rank")] {
        assert!(kind.name() == written && out.contains(&format!("`{written}`")), "the names are the files'");
    }
    expect_file!["../KEYS.md"].assert_eq(&out);
}
