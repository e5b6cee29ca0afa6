//! A few seconds of `make fuzz` without instrumentation. Randomly changed headers of GGUF files of every
//! architecture take at most a multiple of their size in memory.

#[path = "../../../fixtures/fuzz/opened.rs"]
mod opened;
#[path = "../../../fixtures/fuzz/small.rs"]
mod small;

use std::path::Path;
use std::time::{Duration, Instant};

use flashplan::internals::model::gguf::Gguf;
use flashplan::internals::model::source::SourceModel;
use flashplan::internals::model::tokenizer::TokenizerData;
use opened::{FILE_BYTES, memory_max, open};
use peak_alloc::PeakAlloc;
use small::{WEIGHT, small};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Duration of the test.
const TIME: Duration = Duration::from_secs(4);

/// Whether a file is a model with a tokenizer.
fn is_model(bytes: &[u8]) -> bool {
    let tokenizer = Gguf::parse(bytes).ok().and_then(|gguf| TokenizerData::from_gguf(&gguf).ok());
    let model = Gguf::parse(bytes).ok().and_then(|gguf| SourceModel::from_gguf(gguf).ok());
    model.is_some() && tokenizer.is_some_and(|tokenizer| tokenizer.into_tokenizer().is_ok())
}

/// The header of a small model's file, which is a model once weights are added.
fn beginning(path: &Path) -> Vec<u8> {
    let (beginning, weights) = small(path);
    let whole = [&*beginning, &vec![WEIGHT; weights]].concat();
    assert!(whole.len() <= FILE_BYTES && is_model(&whole), "{}", path.display());
    beginning
}

/// Opens a file with this header, and checks its memory.
fn read(data: &[u8], file: &mut [u8]) {
    file[..data.len()].copy_from_slice(data);
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    open(file);
    let taken = MEMORY.peak_usage().saturating_sub(before);
    let most = memory_max(data.len(), FILE_BYTES);
    assert!(taken <= most, "{taken} bytes of memory for a beginning of {}, above {most}", data.len());
    file[..data.len()].fill(0);
}

/// Random numbers, equal in every run (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }
}

/// Boundary values.
const NUMBERS: [u64; 10] = [0, 1, 3, 255, 4096, 1 << 22, 1 << 31, (1 << 32) - 1, 1 << 63, u64::MAX];

#[test]
fn changed_files_take_no_more_memory_than_a_multiple_of_their_bytes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden/architectures");
    let paths = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let goldens = paths.filter(|path| path.extension().is_some_and(|end| end == "gguf"));
    let files: Vec<Vec<u8>> = goldens.map(|path| beginning(&path)).collect();
    assert!(files.len() >= 27, "every architecture");
    let mut file = vec![0; FILE_BYTES];
    // things made once
    files.iter().for_each(|data| {
        file[..data.len()].copy_from_slice(data);
        open(&file);
        file[..data.len()].fill(0);
    });
    files.iter().for_each(|data| read(data, &mut file));

    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < TIME || count < 300 {
        let mut data = files[random.below(files.len())].clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(data.len());
            match random.below(4) {
                0 => data.truncate(at),
                1 if at < data.len() => data[at] = random.below(256) as u8,
                2 => {
                    let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
                    let number = &number[..1 << random.below(4)];
                    let end = data.len().min(at + number.len());
                    data[at..end].copy_from_slice(&number[..end - at]);
                }
                _ => {
                    let other = &files[random.below(files.len())];
                    let from = random.below(other.len());
                    let part = &other[from..other.len().min(from + random.below(200))];
                    data.splice(at..at, part.iter().copied());
                }
            }
        }
        read(&data, &mut file);
        count += 1;
    }
}
