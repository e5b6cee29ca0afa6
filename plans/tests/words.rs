//! Words that other words have replaced stand nowhere in the repository but where its past is told.

use std::fs;
use std::path::{Path, PathBuf};

/// A word that is gone, and the one in its place.
const GONE: [(&str, &str); 15] = [
    ("foretold", "prefetched"),
    ("foretell", "prefetch, look ahead"),
    ("foretelling", "look-ahead"),
    ("reads_foretold", "prefetch_reads"),
    ("naming_seconds", "select_seconds"),
    ("landing_seconds", "demand_seconds"),
    ("waited_seconds", "io_wait_seconds"),
    ("admission", "insert"),
    ("land", "complete, fill"),
    ("landing", "demand"),
    ("turned_heads", "permuted_heads"),
    ("neurons_asked", "neurons_requested"),
    ("trace_asked", "trace_requested"),
    ("asked for their neurons", "requested their neurons"),
    ("rooms", "sizes"),
];

/// Files that tell the past, and this one.
const PAST: [&str; 3] = ["CHANGELOG.md", "history.md", "words.rs"];
const KINDS: [&str; 4] = ["rs", "md", "toml", "py"];
const FOLDERS: [&str; 6] = ["docs", "fixtures", "planner", "plans", "profiler", "runtime"];

/// Source and text below a folder.
fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let ends = |names: &[&str]| names.iter().any(|name| path.ends_with(name));
        if path.is_dir() {
            // what a build or a training has left there is not ours
            if !ends(&["build", "target"]) {
                files_below(&path, found);
            }
        } else if path.extension().is_some_and(|kind| KINDS.iter().any(|known| kind == *known))
            && !ends(&PAST)
        {
            found.push(path);
        }
    }
}

/// Whether a text in small letters has a word by itself.
fn has(text: &str, word: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| {
        !inside(text[..at].chars().next_back()) && !inside(text[at + word.len()..].chars().next())
    })
}

#[test]
fn a_word_is_found_by_itself_alone() {
    for (text, found) in
        [("fn land(", true), ("lands or an island", false), ("land_at", false), ("no land", true)]
    {
        assert_eq!(has(text, "land"), found, "{text}");
    }
}

#[test]
fn words_that_are_gone_stand_in_no_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = ["README.md", "ARCHITECTURE.md"].map(|name| root.join(name)).to_vec();
    FOLDERS.iter().for_each(|folder| files_below(&root.join(folder), &mut files));
    assert!(files.len() > 300, "{} files: they are looked for in a wrong place", files.len());
    let mut found = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).unwrap_or_default().to_lowercase();
        for (gone, now) in GONE.iter().filter(|(gone, _)| has(&text, gone)) {
            let line = text.lines().position(|line| has(line, gone)).unwrap_or_default() + 1;
            found.push(format!("{}:{line}: `{gone}` is called {now} now", path.display()));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
