//! A few seconds of `make fuzz`, without its instruments: committed files, changed at random.
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "../../fixtures/fuzz/total.rs"]
mod total;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Maximum bytes of memory for each byte of a file: its tables with their positions (twice for a refused value), the value, its text.
const BYTES_PER_BYTE: usize = 400;
/// Bytes of memory for a file without any.
const BYTES_AT_LEAST: usize = 1 << 16;
/// How long files are changed.
const TIME: Duration = Duration::from_secs(4);

/// Reads a file, and counts the memory that takes.
fn read(data: &[u8]) {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    total::total(data, true);
    let taken = MEMORY.peak_usage().saturating_sub(before);
    let most = BYTES_PER_BYTE * data.len() + BYTES_AT_LEAST;
    assert!(taken <= most, "{taken} bytes of memory for a file of {}, above {most}", data.len());
}

/// Numbers that are the same in every run (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }

    /// Any place, ends included.
    fn place(&mut self, data: &[u8]) -> usize {
        self.below(data.len() + 1)
    }
}

/// Texts that mean something in TOML.
const WORDS: [&str; 24] = [
    "nan",
    "-inf",
    "1e300",
    "9223372036854775807",
    "-1",
    "0",
    "\"",
    "'''",
    "[",
    "]",
    "[[",
    "{",
    "}",
    "=",
    ".",
    ",",
    "\n",
    "#",
    "\\u0000",
    "true",
    "1979-05-27",
    "a.b.c = 1\n",
    "[a.b.c]\n",
    "\u{feff}",
];

fn change(data: &mut Vec<u8>, random: &mut Random) {
    let (a, b) = (random.place(data), random.place(data));
    let (a, b) = (a.min(b), a.max(b).min(a.min(b) + 64));
    match random.below(6) {
        0 => drop(data.drain(a..b)),
        1 => {
            let copy = data[a..b].to_vec();
            let at = random.place(data);
            data.splice(at..at, copy);
        }
        2 | 3 => drop(data.splice(a..a, WORDS[random.below(WORDS.len())].bytes())),
        4 => drop(data.splice(a..b, WORDS[random.below(WORDS.len())].bytes())),
        _ => {
            if let Some(byte) = data.get_mut(a) {
                *byte = b'!' + random.below(94) as u8;
            }
        }
    }
}

fn committed() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(end) if end == "toml" => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

#[test]
fn any_bytes_are_a_file_or_an_error_and_take_no_more_memory_than_a_multiple_of_them() {
    // what grows fastest: many small tables, deep ones, long keys, entries of lists
    let repeated = |text: &str| text.repeat((1 << 16) / text.len());
    let grown = ["[[a]]\n", "[", "{a=", "a.", "[a.b]\n", "1,", "\"", "#\n", "a=1\n"].map(repeated);
    let lists = ["[target]\n[identity]\nx=[", "target=[", "target.x=[["]
        .map(|start| format!("{start}{}", "[],".repeat(1 << 14)));
    for text in grown.iter().chain(&lists) {
        read(text.as_bytes());
    }
    for n in [10, 100, 1000, 10_000] {
        read(format!("{}=1", vec!["a"; n].join(".")).as_bytes());
        read(format!("a={}{}", "[".repeat(n), "]".repeat(n)).as_bytes());
        read(format!("a={}1{}", "{a=".repeat(n), "}".repeat(n)).as_bytes());
    }
    let mut corpus: Vec<Vec<u8>> = committed().iter().map(|path| std::fs::read(path).unwrap()).collect();
    corpus.sort_by_key(Vec::len);
    corpus.dedup();
    corpus.iter().for_each(|data| read(data));
    let (mut random, start, mut done) = (Random(0x5eed), Instant::now(), 0);
    while start.elapsed() < TIME {
        // small files change the most of what they say
        let mut data = corpus[random.below(corpus.len()).min(random.below(corpus.len()))].clone();
        for _ in 0..=random.below(4) {
            change(&mut data, &mut random);
        }
        read(&data);
        done += 1;
    }
    assert!(done > 100, "{done} files in {TIME:?}");
}
