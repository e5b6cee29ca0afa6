//! Nonsense for every key of every committed file, one value at a time. It is refused by file, line and key, or listed as free with
//! the reason.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use plans::file::{Contract, parse};
use plans::{Calibration, Device, Learned, Model, Plan};
use toml::de::{DeTable, DeValue};

/// Accepted nonsense: key, values, and why they are valid. Entries of lists are `[]`.
const FREE: &[(&str, &[&str], &str)] = &[
    ("*.notes", &["[]", "shorter", "longer", "reversed"], "sentences for people"),
    ("*.notes[]", &["a word"], "a sentence for people"),
    ("*.tool", &["a word"], "for people: who wrote the file"),
    // device.toml
    ("device.name", &["a word"], "for people, and a folder's name"),
    ("device.cores[].name", &["a word"], "for people"),
    ("device.storage.file_system", &["a word"], "for people; there are more than can be listed"),
    ("device.capacity.lockable_bytes", &["0"], "a process may be allowed to lock nothing"),
    ("device.capacity.system_reserve_bytes", &["0"], "a machine may be wholly ours"),
    (
        "device.capacity.process_bytes",
        &["0"],
        "measured; nothing else in the file says how large a process is",
    ),
    ("device.capacity.thread_bytes", &["0"], "measured, likewise"),
    ("device.storage.best_core", &["0"], "a core of the machine"),
    ("device.storage*.cpu_seconds_per_read", &["0"], "too small to be measured"),
    ("device.storage*.interference_fraction", &["0"], "too small to be measured"),
    ("device.storage*.completed_together_fraction", &["0"], "reads may complete one after another"),
    ("device.storage.wake_seconds", &["reversed"], "more threads may be woken sooner"),
    ("device.storage.wake_seconds[]", &["0"], "one thread is never woken"),
    ("device.cores[].ids", &["reversed", "shorter"], "any order; a core that is left out is not used"),
    ("device.cores[].clock_mhz", &["0"], "not known"),
    (
        "device.memory.*_second",
        &["reversed"],
        "more threads are slower on some machines, most of all under steal",
    ),
    ("device.*spread_fraction", &["0"], "windows may be alike"),
    ("device.kernels[].*_second", &["reversed"], "likewise"),
    ("device.kernels[].*_seconds", &["reversed"], "likewise"),
    (
        "device.units[].rates.formats",
        &["reversed", "shorter"],
        "any order; a format that is left out is not multiplied",
    ),
    // model.toml
    ("model.name", &["a word"], "for people"),
    ("model.architecture.family", &["a word"], "for people; what a plan needs of it stands beside it"),
    ("model.fingerprint", &["a word"], "a hash that only the source file can confirm"),
    ("model.container.file", &["a word"], "the user's name for it"),
    ("model.container.fingerprint", &["a word"], "a hash that only the container can confirm"),
    ("model.provenance.*_text", &["a word"], "a hash that only the text can confirm"),
    ("model.provenance.routes", &["a word"], "a hash that only the recording can confirm"),
    ("model.provenance.quick", &["a boolean"], "both are right"),
    ("model.parts.head_bytes", &["0"], "none where the head is the embedding"),
    ("model.parts.tokenizer_bytes", &["0"], "an upper bound that nothing else in the file confirms"),
    ("model.layers[].active_neurons_*", &["0"], "nothing may fire"),
    ("model.layers[].active_gate_fraction", &["0"], "nothing may fire"),
    ("model.drafts.drafted_tokens", &["reversed"], "with longer drafts steps begin at other tokens"),
    ("model.drafts.drafted_tokens[]", &["0"], "a text may repeat nothing"),
    ("model.drafts.kept_tokens", &["reversed"], "likewise"),
    ("model.drafts.kept_tokens[]", &["0"], "what a text repeats may be wrong"),
    ("model.kv_formats[].*_fraction", &["0"], "a format may lose nothing measurable"),
    ("model.kv_formats[].*_upper", &["0"], "a text may gain by a format, and so may its bound"),
    ("model.kv_formats[].*_of_texts", &["reversed"], "texts have no order"),
    ("model.kv_formats[].*_of_texts[]", &["0"], "a format may lose nothing measurable on a text"),
    ("model.levels[].missing_*", &["reversed"], "with more memory misses may be spread more or less"),
    ("model.levels[].missing_*[][]", &["0"], "most tokens may miss nothing"),
    ("model.levels[].read_bytes_per_token", &["0"], "nothing else in the file says how much is read"),
    ("model.levels[].flops_per_token", &["0"], "nothing else in the file says what deciding takes"),
    ("model.levels[].*_fraction", &["0"], "a share of 0 is a share"),
    ("model.levels[].*_upper", &["0"], "a text may gain by a level, and so may its bound"),
    ("model.levels[].*_of_texts", &["reversed"], "texts have no order"),
    ("model.levels[].*_of_texts[]", &["0"], "a level may lose nothing measurable on a text"),
    ("model.levels[].layers[].*_fraction*", &["0"], "a share of 0 is a share"),
    ("model.levels[].layers[].predicted_neurons_*", &["0"], "nothing may be requested"),
    ("model.levels[].layers[].clock_miss_fraction", &["[]"], "absent: not measured"),
    ("model.levels[].layers[].frequency_miss_fraction", &["[]"], "absent: not measured"),
    (
        "model.levels[].layers[].runs_*",
        &["[]", "reversed"],
        "absent: not measured; no order is known of them",
    ),
    ("model.levels[].layers[].*miss_fraction", &["reversed"], "pinning more may miss more or less"),
    // plan.toml
    ("plan.target.device", &["a word"], "for people"),
    ("plan.target.cpu", &["a word"], "compared with the machine by `run`"),
    ("plan.target.ram_gib", &["0"], "compared with the machine by `run`"),
    ("plan.target.storage", &["a word"], "compared with the machine by `run`"),
    ("plan.target.model", &["a word"], "for people"),
    ("plan.target.container", &["a word"], "looked for by `run`"),
    ("plan.target.*fingerprint", &["a word"], "compared by `run`"),
    ("plan.provenance.*_toml", &["a word"], "a hash that only the profile can confirm"),
    ("plan.request.perplexity_change_fraction_max", &["0"], "`--max-loss 0` asks for a lossless level"),
    ("plan.cache.hot_neurons", &["reversed"], "any counts, if their sum fills the region"),
    ("plan.cache.hot_neurons[]", &["0"], "a few neurons fill the region at another size, which `run` knows"),
    ("plan.cache.cold_slots", &["reversed"], "any counts, if their sum fills the region"),
    ("plan.cache.cold_slots[]", &["0"], "fewer slots fill the region at another size, which `run` knows"),
    ("plan.read.direct", &["a boolean"], "both are right"),
    ("plan.read.gap_bytes", &["0"], "none is read over"),
    ("plan.decode.compute_cores", &["shorter", "reversed"], "cores of the machine; `run` has these"),
    ("plan.prefill.compute_cores", &["shorter", "reversed"], "cores of the machine; `run` has these"),
    ("plan.decode.io_cores", &["shorter", "reversed"], "cores of the machine; any of them may read"),
    ("plan.*cores[]", &["0"], "a core of the machine"),
    ("plan.prefill.cluster_neurons", &["0"], "as absent"),
    ("plan.filling.neurons[]", &["0"], "a short run may find all that a warm cache would have"),
    (
        "plan.cache.slot_bytes",
        &["[]", "reversed"],
        "where each layer pins all, its sizes in any order add up to the same bytes, and so does their mean",
    ),
    ("plan.expected.decode_compute_seconds", &["0"], "a part may be nothing"),
    ("plan.expected.decode_memory_seconds", &["0"], "a part may be nothing"),
    ("plan.expected.decode_serial_seconds", &["0"], "a part may be nothing"),
    (
        "plan.terms.*",
        &["0", "reversed", "[]"],
        "a part may be nothing, if what is expected is that of all parts",
    ),
    (
        "plan.terms.reading.shares_cores",
        &["a boolean"],
        "it has no effect where reads take longer than computing, whoever computes",
    ),
    // calibration.toml
    ("calibration.measured.device", &["a word"], "for people"),
    ("calibration.measured.model", &["a word"], "for people"),
    ("calibration.measured.device_fingerprint", &["a word"], "compared by `plan`"),
    ("calibration.measured.others_cpu_fraction", &["0"], "nobody else may have worked"),
    // learned.toml
    ("learned.learned.model", &["a word"], "for people"),
    ("learned.learned.*fingerprint", &["a word"], "compared by `plan` and `run`"),
    ("learned.layers[].frequency_misses*", &["0", "reversed"], "any size may miss any number of visits"),
    ("learned.layers[].distances[]", &["reversed"], "any distance may be the commonest"),
    ("plan.expected.hit_fraction", &["0"], "everything may be missing"),
    ("plan.expected.missing_p50_over_mean", &["0"], "most tokens may miss nothing"),
    ("plan.expected.active_true_fraction", &["0"], "none of those requested may be active"),
];

/// A value in a file.
struct Leaf {
    /// With numbers: `cores[0].ids[1]`.
    key: String,
    /// The kind of file, and the key without numbers: `device.cores[].ids[]`.
    pattern: String,
    span: Range<usize>,
    /// The texts of its entries; none for what is no list.
    entries: Option<Vec<Range<usize>>>,
    is_text: bool,
}

fn leaves(table: &DeTable<'_>, key: &str, pattern: &str, found: &mut Vec<Leaf>) {
    for (name, value) in table {
        let dot = |prefix: &str| {
            if prefix.is_empty() {
                name.get_ref().to_string()
            } else {
                format!("{prefix}.{}", name.get_ref())
            }
        };
        leaf(value.get_ref(), value.span(), dot(key), dot(pattern), found);
    }
}

fn leaf(value: &DeValue<'_>, span: Range<usize>, key: String, pattern: String, found: &mut Vec<Leaf>) {
    match value {
        DeValue::Table(table) => leaves(table, &key, &pattern, found),
        DeValue::Array(array) => {
            let entries = array.iter().map(|entry| entry.span()).collect();
            if !array.iter().any(|entry| entry.get_ref().is_table()) {
                found.push(Leaf {
                    key: key.clone(),
                    pattern: pattern.clone(),
                    span,
                    entries: Some(entries),
                    is_text: false,
                });
            }
            for (index, entry) in array.iter().enumerate() {
                let (key, pattern) = (format!("{key}[{index}]"), format!("{pattern}[]"));
                leaf(entry.get_ref(), entry.span(), key, pattern, found);
            }
        }
        _ => found.push(Leaf { key, pattern, span, entries: None, is_text: value.is_str() }),
    }
}

/// Nonsense for one value: a name for it, and the text.
fn nonsense(leaf: &Leaf, text: &str) -> Vec<(&'static str, String)> {
    let scalars = [
        ("nan", "nan"),
        ("inf", "inf"),
        ("-1", "-1"),
        ("0", "0"),
        ("1e300", "1e300"),
        ("2^63-1", "9223372036854775807"),
        ("nothing", "\"\""),
        ("a word", "\"no-such-name\""),
        ("a line end", "\"a\\nb\""),
        ("a boolean", "true"),
        ("[]", "[]"),
        ("a table", "{ a = 1 }"),
    ];
    let mut all: Vec<(&str, String)> = scalars.map(|(name, text)| (name, text.to_owned())).to_vec();
    if let Some(entries) = &leaf.entries {
        let entries: Vec<&str> = entries.iter().map(|span| &text[span.clone()]).collect();
        let list = |entries: &[&str]| format!("[{}]", entries.join(", "));
        let last = entries.last().copied().unwrap_or("0");
        all.push(("longer", list(&[&entries[..], &[last]].concat())));
        all.push(("shorter", list(&entries[..entries.len().saturating_sub(1)])));
        all.push(("reversed", list(&entries.iter().rev().copied().collect::<Vec<_>>())));
    }
    if leaf.is_text {
        all.push(("too long", format!("\"{}\"", "x".repeat(5000))));
    }
    let old = &text[leaf.span.clone()];
    let same = |new: &str| {
        new == old || matches!((new.parse::<f64>(), old.parse::<f64>()), (Ok(a), Ok(b)) if a == b)
    };
    all.retain(|(_, new)| !same(new));
    all
}

/// Bytes of a file that only `make test-slow` reads some hundred times.
const LONGEST: usize = 1 << 18;

fn glob(pattern: &str, key: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == key,
        Some((start, rest)) => key.strip_prefix(start).is_some_and(|key| {
            (0..=key.len()).filter(|&at| key.is_char_boundary(at)).any(|at| glob(rest, &key[at..]))
        }),
    }
}

/// Replaces every value of a file by nonsense, and returns what was accepted without being free.
///
/// Of equal entries it takes the first, in all but the longest files the last, and in the shortest files all. `needed` collects the
/// used entries of [`FREE`].
fn mutate<T: Contract>(path: &Path, needed: &mut BTreeSet<usize>) -> Vec<String> {
    let whole = std::fs::read_to_string(path).unwrap();
    // its checksum would refuse every change
    let text = whole.rsplit_once("\n# A hash of all keys").map_or(&*whole, |(figures, _)| figures);
    let kind = T::KIND.trim_end_matches(".toml");
    let table = DeTable::parse(text).unwrap();
    let mut all = Vec::new();
    leaves(table.get_ref(), "", kind, &mut all);
    let (short, long) = (text.len() < 1 << 13, text.len() > 1 << 16);
    let mut wrong = Vec::new();
    for (index, leaf) in all.iter().enumerate() {
        let first = all[..index].iter().all(|other| other.pattern != leaf.pattern);
        let last = all[index + 1..].iter().all(|other| other.pattern != leaf.pattern);
        if !(first || last && !long || short) {
            continue;
        }
        for (name, new) in nonsense(leaf, text) {
            let changed = format!("{}{new}{}", &text[..leaf.span.start], &text[leaf.span.end..]);
            if changed == text {
                continue;
            }
            let key = leaf.pattern.as_str();
            let free =
                FREE.iter().position(|(pattern, names, _)| names.contains(&name) && glob(pattern, key));
            match parse::<T>(&changed, Path::new("file.toml")) {
                Ok(_) => match free {
                    Some(entry) => {
                        needed.insert(entry);
                    }
                    None => wrong.push(format!(
                        "{}: {} = {new:.40} ({name}) is accepted",
                        path.display(),
                        leaf.key
                    )),
                },
                Err(error) => {
                    let said = error.to_string();
                    let line = text[..leaf.span.start].matches('\n').count() + 1;
                    let own = said.starts_with(&format!("file.toml, line {line}: "));
                    let name = leaf.key.rsplit('.').next().unwrap().split('[').next().unwrap();
                    let named = said.starts_with("file.toml, line ") && said.contains(name);
                    // a message about another key names that and its line, and what it does not agree with
                    let other = said.starts_with("file.toml, line ") && said.contains('`');
                    if !(own || named || other || name == "schema") || said.len() > 600 {
                        wrong.push(format!("{}: {} = {new:.40}: {said}", path.display(), leaf.key));
                    }
                }
            }
        }
    }
    wrong
}

/// Every committed contract file, by the kind in its name.
fn committed(start: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR"))];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.starts_with(start) && name.ends_with(".toml") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Refuses nonsense in every file of a kind, and finds all of [`FREE`] needed.
fn refuses<T: Contract>(start: &str) {
    let needed = refuses_in::<T>(start, |bytes| bytes < LONGEST);
    let unneeded: Vec<String> = FREE
        .iter()
        .enumerate()
        .filter(|(entry, (pattern, ..))| pattern.starts_with(&format!("{start}.")) && !needed.contains(entry))
        .map(|(_, (pattern, names, reason))| format!("{pattern} {names:?} ({reason})"))
        .collect();
    assert!(unneeded.is_empty(), "nothing needs\n{}", unneeded.join("\n"));
}

/// Refuses nonsense in files of these sizes, and returns the used entries of [`FREE`]; like files count once. Two threads, since there
/// are as many cores.
fn refuses_in<T: Contract>(start: &str, is_of_size: fn(usize) -> bool) -> BTreeSet<usize> {
    let mut texts = BTreeSet::new();
    let mut is_another = |path: &PathBuf| {
        let text = std::fs::read(path).unwrap();
        is_of_size(text.len()) && texts.insert(text)
    };
    let files: Vec<PathBuf> = committed(start).into_iter().filter(&mut is_another).collect();
    assert!(!files.is_empty(), "there are committed files");
    let (left, right) = files.split_at(files.len() / 2);
    let all = |files: &[PathBuf]| {
        let mut needed = BTreeSet::new();
        let wrong: Vec<String> = files.iter().flat_map(|path| mutate::<T>(path, &mut needed)).collect();
        (wrong, needed)
    };
    let (one, two) = std::thread::scope(|scope| {
        let other = scope.spawn(|| all(left));
        (all(right), other.join().unwrap())
    });
    let wrong: Vec<String> = [one.0, two.0].concat();
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
    one.1.union(&two.1).copied().collect()
}

#[test]
fn nonsense_in_a_plan_is_refused_or_said_to_be_free() {
    refuses::<Plan>("plan");
}

#[test]
fn nonsense_in_a_device_is_refused_or_said_to_be_free() {
    refuses::<Device>("device");
}

#[test]
fn nonsense_in_a_model_is_refused_or_said_to_be_free() {
    refuses::<Model>("model");
}

mod slow {
    use super::*;

    #[test]
    #[ignore = "minutes: make test-slow"]
    fn nonsense_in_the_longest_model_is_refused_or_said_to_be_free() {
        let _needed = refuses_in::<Model>("model", |bytes| bytes >= LONGEST);
    }
}

#[test]
fn nonsense_in_a_calibration_is_refused_or_said_to_be_free() {
    refuses::<Calibration>("calibration");
}

#[test]
fn nonsense_in_learned_counts_is_refused_or_said_to_be_free() {
    refuses::<Learned>("learned");
}

/// Where something is lost, and where drafts are kept: what is free elsewhere is refused there.
#[test]
fn a_bound_below_a_loss_and_fewer_drafted_than_kept_are_refused() {
    let (mut lossy, mut kept) = (0, 0);
    for path in committed("model") {
        let model: Model = plans::file::read(&path).unwrap().value;
        for level in
            (0..model.levels.len()).filter(|&level| model.levels[level].perplexity_change_fraction > 0.0)
        {
            let mut wrong = model.clone();
            wrong.levels[level].perplexity_change_fraction_upper = Some(0.0);
            assert!(wrong.ranges().is_err(), "{}: level {level}", path.display());
            lossy += 1;
        }
        if let Some(drafts) =
            model.drafts.as_ref().filter(|drafts| !drafts.drafted_tokens.is_sorted_by(|a, b| a >= b))
        {
            let of = |drafted_tokens, kept_tokens| Model {
                drafts: Some(plans::model::Drafts { drafted_tokens, kept_tokens }),
                ..model.clone()
            };
            let drafted = &drafts.drafted_tokens;
            let reversed = drafted.iter().rev().copied().collect();
            assert!(of(drafted.clone(), drafted.clone()).ranges().is_ok(), "{}", path.display());
            assert!(of(reversed, drafted.clone()).ranges().is_err(), "{}", path.display());
            kept += 1;
        }
    }
    assert!(lossy > 0 && kept > 0, "{lossy} levels and {kept} drafts");
}
