//! `KEYS.md` lists every key with its unit and meaning, taken from the types themselves.
//! `UPDATE_EXPECT=1 cargo test -p plans` writes it anew.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use expect_test::expect_file;

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

fn table(out: &mut String, structs: &BTreeMap<String, Vec<Field>>, name: &str, prefix: &str) {
    for field in &structs[name] {
        let key = format!("{prefix}{}", field.key);
        let list = field.kind.starts_with("Vec<");
        let inner = field.kind.trim_start_matches("Vec<").trim_start_matches("Option<").trim_end_matches('>');
        if structs.contains_key(inner) {
            table(out, structs, inner, &format!("{key}{}.", if list { "[]" } else { "" }));
        } else if inner == "BundleLayout" {
            for row in ["gate_bytes", "up_bytes", "down_bytes", "stride_bytes"] {
                writeln!(out, "| `{key}.{row}` | u64 | bytes | See `layout.rs`. |").unwrap();
            }
        } else {
            let kind = field.kind.replace("crate::", "");
            let doc =
                field.doc.replace("[`", "`").replace("`]", "`").replace("crate::", "").replace('|', "\\|");
            writeln!(out, "| `{key}` | {kind} | {} | {doc} |", unit(&field.key)).unwrap();
        }
    }
}

#[test]
fn every_key_is_documented() {
    let mut out = String::from(
        "# The keys of the contract files\n\nTaken from the types in `src/` by a test, which also keeps this page true. \
         A key of kind `Option` may be absent; `[]` stands for each entry of a list. All files: `schema = 1`, unknown \
         keys are refused, the same values always give the same bytes.\n",
    );
    for (root, file, source, writer, reader) in [
        ("Device", "device.toml", include_str!("../src/device.rs"), "profile", "plan"),
        ("Model", "model.toml", include_str!("../src/model.rs"), "profile", "plan"),
        ("Plan", "plan.toml", include_str!("../src/plan.rs"), "plan", "run, and plan --check"),
    ] {
        let structs = structs(source);
        write!(out, "\n## {file}\n\nWritten by `{writer}`, read by `{reader}`.\n\n").unwrap();
        out.push_str("| key | kind | unit | meaning |\n|---|---|---|---|\n");
        table(&mut out, &structs, root, "");
    }
    for line in out.lines().filter(|line| line.starts_with("| `")) {
        assert!(!line.ends_with("|  |"), "no documentation: {line}");
    }
    expect_file!["../KEYS.md"].assert_eq(&out);
}
