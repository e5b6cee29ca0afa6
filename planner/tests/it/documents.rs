//! What README, ARCHITECTURE and the pages of `docs/` quote is what there is: transcripts of `plan`, lines of committed files.
//! `UPDATE_EXPECT=1 cargo test -p flashplan-planner --test it -- documents` writes anew what differs.
//!
//! A transcript is a fenced block that goes into a folder of committed profiles and calls `plan` there:
//!
//! ```text
//! $ cd plans/oneplus-12/turbosparse-mixtral-47b
//! $ plan --mem 7G --min-speed 8
//! error: no plan satisfies the limits (...)
//! ```
//!
//! Quoted lines are those of a block of TOML below a line that names the file in backquotes at its beginning.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;

/// Where the files lie whose lines ARCHITECTURE.md quotes.
const QUOTED: &str = "plans/amd-epyc-zen5-2c-24g/oxide-dense";
/// Files that are quoted by name, and how they are called in that folder.
const FILES: [(&str, &str); 3] =
    [("`device.toml`", "device.toml"), ("`model.toml`", "model.toml"), ("`plan.toml`", "plan-20M.toml")];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// README.md, ARCHITECTURE.md and the pages of `docs/`.
fn pages() -> Vec<PathBuf> {
    let docs = fs::read_dir(root().join("docs")).expect("docs").map(|entry| entry.expect("an entry").path());
    let mut pages: Vec<_> = docs.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    pages.extend(["README.md", "ARCHITECTURE.md"].map(|name| root().join(name)));
    pages.sort();
    pages
}

/// Compares a page with what it should be, or writes that in its place. Returns what differs.
fn settle(page: &Path, text: &str, right: &str) -> Option<String> {
    if text == right {
        return None;
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(page, right).expect("written");
        return None;
    }
    let differ = |(line, (is, should)): (usize, (&str, &str))| {
        (is != should).then(|| format!("{}:{line}: `{is}` should be `{should}`", page.display()))
    };
    let first = (1..).zip(text.lines().zip(right.lines())).find_map(differ);
    Some(first.unwrap_or_else(|| format!("{}: lines are missing or left over", page.display())))
}

/// A page with its transcripts as they are now, and how many of them there are.
fn with_transcripts(page: &Path, text: &str) -> (String, usize) {
    let (mut right, mut count) = (String::new(), 0);
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        right.push_str(&format!("{line}\n"));
        if !line.starts_with("```") {
            continue;
        }
        let block: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| !line.starts_with("```")).collect();
        let calls = block.iter().filter(|line| line.starts_with("$ plan")).count();
        match block.as_slice() {
            [folder, call, ..] if calls == 1 => {
                let known = folder.strip_prefix("$ cd ").zip(call.strip_prefix("$ plan"));
                let (folder, arguments) = known.unwrap_or_else(|| {
                    panic!(
                        "{}:{number}: a transcript of plan begins with `$ cd plans/DEVICE/MODEL` and `$ plan`",
                        page.display()
                    )
                });
                right.push_str(&format!("{}\n{}\n{}", block[0], block[1], said(folder, arguments)));
                count += 1;
            }
            _ if calls == 0 => block.iter().for_each(|line| right.push_str(&format!("{line}\n"))),
            _ => panic!("{}:{number}: a transcript of plan has one call of it", page.display()),
        }
        right.push_str("```\n");
    }
    (right, count)
}

/// What `plan` says with the profiles of a committed folder. What it writes goes to a folder of the test's own.
fn said(folder: &str, arguments: &str) -> String {
    let profiles = root().join(folder);
    let own = Path::new(env!("CARGO_TARGET_TMPDIR")).join("transcripts").join(folder);
    fs::create_dir_all(&own).expect("a folder");
    for name in ["device.toml", "model.toml"] {
        fs::copy(profiles.join(name), own.join(name))
            .unwrap_or_else(|error| panic!("{folder}/{name}: {error}"));
    }
    let output = Command::cargo_bin("plan")
        .expect("the program")
        .current_dir(own)
        .args(arguments.split_whitespace())
        .output()
        .expect("a run");
    // notes and warnings come first, on standard error
    String::from_utf8([output.stderr, output.stdout].concat()).expect("text")
}

#[test]
fn transcripts_are_what_plan_says() {
    let (mut count, mut wrong) = (0, Vec::new());
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        let (right, there) = with_transcripts(&page, &text);
        count += there;
        wrong.extend(settle(&page, &text, &right));
    }
    assert!(count >= 2, "{count} transcripts: the fences are looked for in a wrong way");
    assert!(wrong.is_empty(), "{}\nUPDATE_EXPECT=1 writes them anew", wrong.join("\n"));
}

/// A line of a TOML file with the comment that a quotation has after it; `None`: the file has no such key.
fn quoted(line: &str, file: &str) -> Option<String> {
    let (stated, comment) =
        line.split_once(" # ").map_or((line, None), |(line, comment)| (line, Some(comment)));
    let stated = stated.trim_end();
    let key = stated.split_once(" = ")?.0;
    let same_key = |line: &&str| line.split_once(" = ").is_some_and(|(other, _)| other == key);
    let is = file.lines().find(|line| *line == stated).or_else(|| file.lines().find(same_key))?;
    let column = line.find(" # ").unwrap_or_default();
    Some(comment.map_or_else(|| is.to_owned(), |comment| format!("{is:column$} # {comment}")))
}

#[test]
fn quoted_lines_are_those_of_the_committed_files() {
    let page = root().join("ARCHITECTURE.md");
    let text = fs::read_to_string(&page).expect("a page");
    assert!(text.contains(&format!("Lines of the files in `{QUOTED}`")), "it says whose lines they are");
    let (mut right, mut fenced, mut count) = (String::new(), false, 0);
    let mut file = None;
    for line in text.lines() {
        if let Some((_, name)) = FILES.iter().find(|(named, _)| line.starts_with(named)) {
            file = Some(fs::read_to_string(root().join(QUOTED).join(name)).expect("a committed file"));
        }
        fenced = if fenced { line != "```" } else { line == "```toml" };
        let quotes = fenced && line.contains(" = ");
        count += usize::from(quotes);
        let line = match &file {
            Some(file) if quotes => {
                quoted(line, file).unwrap_or_else(|| panic!("{QUOTED} does not have `{line}`"))
            }
            _ => line.to_owned(),
        };
        right.push_str(&format!("{line}\n"));
    }
    assert!(count >= 20, "{count} lines: the blocks are looked for in a wrong way");
    let wrong = settle(&page, &text, &right);
    assert_eq!(wrong, None, "UPDATE_EXPECT=1 writes them anew");
}

/// The table of described computers has the speeds of the committed plans that it names.
#[test]
fn speeds_of_described_computers_are_those_of_their_plans() {
    let text = fs::read_to_string(root().join("docs/described.md")).expect("a page");
    let mut count = 0;
    for row in text.lines().filter(|line| line.contains(" | `plans/")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let path = root().join(cells[2].trim_matches('`'));
        let plan = plans::file::read::<plans::Plan>(&path).expect("a committed plan").value.expected;
        let speeds = [plan.decode_tokens_per_second, plan.prefill_tokens_per_second];
        assert_eq!(cells[3..5], speeds.map(|speed| format!("{speed:.1}")), "{row}");
        count += 1;
    }
    assert!(count >= 10, "{count} rows");
}

/// Files below a folder whose code is unsafe somewhere, without tests and vector kernels.
fn unsafe_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let elsewhere = ["kernels", "platform", "tests", "target"].iter().any(|name| path.ends_with(name));
        if path.is_dir() && !elsewhere {
            unsafe_below(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).expect("a source file");
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            if code.into_iter().any(|line| line.contains("unsafe {") || line.contains("unsafe impl")) {
                found.push(path);
            }
        }
    }
}

#[test]
fn unsafe_code_is_listed() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("a page");
    let listed = text.split("**Unsafe code** is in").nth(1).and_then(|rest| rest.split("\n\n").next());
    let listed: Vec<&str> = listed.expect("a list").split('`').skip(1).step_by(2).collect();
    let mut files = Vec::new();
    ["planner", "plans", "profiler", "runtime"]
        .iter()
        .for_each(|it| unsafe_below(&root().join(it), &mut files));
    assert!(files.len() >= 4, "{files:?}: they are looked for in a wrong way");
    for file in &files {
        assert!(listed.iter().any(|listed| file.ends_with(listed)), "{} is not listed", file.display());
    }
    let whole_crates = ["runtime/kernels", "runtime/platform"];
    let is_there = |name: &&str| whole_crates.contains(name) || files.iter().any(|file| file.ends_with(name));
    assert!(listed.iter().all(is_there), "{listed:?} has more than {files:?}");
}
