//! A few seconds of `make fuzz`, without its instruments: randomly changed files of committed folders take no more memory than a multiple
//! of their bytes.

use std::path::Path;
use std::time::{Duration, Instant};

use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Bytes of memory for each byte of a file, at the most: JSON's values, and tables of what they name.
const BYTES_PER_BYTE: usize = 200;
/// Bytes of memory for a file without any.
const BYTES_AT_LEAST: usize = 1 << 16;
/// How long files are changed.
const TIME: Duration = Duration::from_secs(4);

/// Reads a file as each of a folder's, and counts the memory that takes.
fn read(data: &[u8]) {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    huggingface::read_any(data, true);
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
}

#[test]
fn changed_files_take_no_more_memory_than_a_multiple_of_their_bytes() {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden/folders");
    let mut files = Vec::new();
    for folder in folders.read_dir().unwrap() {
        for file in folder.unwrap().path().read_dir().unwrap() {
            let mut bytes = std::fs::read(file.unwrap().path()).unwrap();
            bytes.truncate(1 << 15);
            files.push(bytes);
        }
    }
    assert!(files.len() > 60, "files of many kinds");
    // few bytes that ask for much
    for (begin, part) in [
        ("[", "[],"),
        ("{\"a\":[", "0,"),
        ("{\"weight_map\":{", "\"\":\"\","),
        ("{\"model\":{\"vocab\":{},\"merges\":[", "\"\","),
    ] {
        let long = format!("{begin}{}", part.repeat(5000));
        read(long.as_bytes());
        files.push(long.into_bytes());
    }
    // tensors of unknown types, whose shapes the file's bytes say nothing of
    for (name, shape) in [
        ("model.layers.0.mlp.experts.gate_up_proj", "4611686018427387904,2,1"),
        ("model.layers.0.mlp.experts.gate_up_proj", "18446744073709551615,18446744073709551615,2"),
        ("model.layers.0.block_sparse_moe.input_linear.weight", "4611686018427387904,2,1"),
    ] {
        let header = format!("{{\"{name}\":{{\"dtype\":\"X\",\"shape\":[{shape}],\"data_offsets\":[0,0]}}}}");
        files.push([&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat());
    }
    files.push([&u64::MAX.to_le_bytes()[..], b"{}"].concat());
    files.push([&99_999_999_u64.to_le_bytes()[..], b"{}"].concat());
    files.push(vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    files.iter().for_each(|file| read(file));

    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < TIME || count < 1000 {
        let mut file = files[random.below(files.len())].clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(file.len());
            match random.below(4) {
                0 => file.truncate(at),
                1 if at < file.len() => file[at] = random.below(256) as u8,
                2 => {
                    let other = &files[random.below(files.len())];
                    let from = random.below(other.len());
                    let part = &other[from..other.len().min(from + random.below(200))];
                    file.splice(at..at, part.iter().copied());
                }
                _ => file
                    .splice(at..at, [b"0", b"9", b"[", b"{"][random.below(4)].iter().copied())
                    .for_each(drop),
            }
        }
        read(&file);
        count += 1;
    }
}
