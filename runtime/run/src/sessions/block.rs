//! Keys and values of some tokens as a file, with the recurrent state behind them if there is one. Every byte is checked before use.
//!
//! ```text
//! "flashkv\n" | key: 32 | tokens: 4 each, little-endian | keys and values | BLAKE3 of all that: 32
//! ```

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use flashplan::Error;
use platform::file::open_unfollowed;
use platform::page_cache::forget;

const MAGIC: &[u8; 8] = b"flashkv\n";
/// Bytes of a key, and of the hash at the end.
const HASH_BYTES: usize = 32;

/// Key of a block of tokens: a hash of them and of all that stands before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key([u8; HASH_BYTES]);

impl Key {
    /// Key that all others follow, of a plan's `parts`.
    pub(super) fn root(parts: &[&str]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The key of tokens that follow this key's tokens.
    pub(super) fn followed_by(&self, tokens: &[u32]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0);
        put_tokens(&mut hasher, tokens);
        Self(*hasher.finalize().as_bytes())
    }

    /// The keys of the first of these tokens, of the first two, and so on.
    pub(super) fn followed_by_each<'t>(&self, tokens: &'t [u32]) -> impl Iterator<Item = Self> + use<'t> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0);
        tokens.iter().map(move |&token| {
            put_tokens(&mut hasher, &[token]);
            Self(*hasher.finalize().as_bytes())
        })
    }

    /// 64 hexadecimal digits.
    pub(super) fn name(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }
}

fn put_tokens(hasher: &mut blake3::Hasher, tokens: &[u32]) {
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
}

/// Tokens, and how many bytes their keys and values take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block<'t> {
    pub(super) key: Key,
    pub(super) tokens: &'t [u32],
    pub(super) bytes: u64,
}

/// Bytes of a file of so many tokens with such keys and values.
pub(super) fn file_bytes(tokens: usize, bytes: u64) -> u64 {
    (MAGIC.len() + 2 * HASH_BYTES + 4 * tokens) as u64 + bytes
}

/// Why a block is not read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is no regular file")]
    Special,
    #[error("it has {found} bytes, and there are {expected} in such a file")]
    Size { found: u64, expected: u64 },
    #[error("it is of other tokens, another model, another plan or another version")]
    Other,
    #[error("it is damaged")]
    Damaged,
    /// There is no room in the sequence, which its owner rules out.
    #[error(transparent)]
    Engine(#[from] Error),
}

impl Problem {
    /// Whether the file itself is to blame, and will never be of use.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Special | Self::Size { .. } | Self::Other | Self::Damaged => true,
            Self::Io(error) => error.kind() == io::ErrorKind::UnexpectedEof,
            Self::Engine(_) => false,
        }
    }
}

/// A file that is written or read, and the hash of what has passed.
#[derive(Debug)]
pub(super) struct Hashed {
    file: File,
    hasher: blake3::Hasher,
}

impl Block<'_> {
    /// Writes the block into an empty file, down to the disk; `fill` puts its keys and values.
    pub(super) fn write(
        &self,
        file: File,
        fill: impl FnOnce(&mut Hashed) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let mut hashed = Hashed { file, hasher: blake3::Hasher::new() };
        hashed.put(&self.head())?;
        fill(&mut hashed)?;
        let Hashed { mut file, hasher } = hashed;
        file.write_all(hasher.finalize().as_bytes())?;
        file.sync_all()?;
        forget(&file);
        Ok(())
    }

    /// Opens a file that should be this block's: of the right size, and with the right beginning. Nothing is waited for, and no
    /// link is followed.
    pub(super) fn read(&self, path: &Path) -> Result<Hashed, Problem> {
        let file = match open_unfollowed(path) {
            Ok(file) => file,
            Err(_) if path.is_symlink() => return Err(Problem::Special),
            Err(error) => return Err(error.into()),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(Problem::Special);
        }
        let (found, expected) = (metadata.len(), file_bytes(self.tokens.len(), self.bytes));
        if found != expected {
            return Err(Problem::Size { found, expected });
        }
        let mut hashed = Hashed { file, hasher: blake3::Hasher::new() };
        let expected = self.head();
        let mut head = vec![0; expected.len()];
        hashed.fill(&mut head)?;
        if head == expected { Ok(hashed) } else { Err(Problem::Other) }
    }

    /// All before keys and values.
    fn head(&self) -> Vec<u8> {
        let tokens = self.tokens.iter().flat_map(|token| token.to_le_bytes());
        MAGIC.iter().copied().chain(self.key.0).chain(tokens).collect()
    }
}

impl Hashed {
    /// The next bytes of keys and values go to the file.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        self.hasher.update(bytes);
        Ok(self.file.write_all(bytes)?)
    }

    /// The next bytes come from the file. They are not to be believed before [`Hashed::finish`].
    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Problem> {
        self.file.read_exact(bytes)?;
        self.hasher.update(bytes);
        Ok(())
    }

    /// Whether all that came is what was written.
    pub(super) fn finish(self) -> Result<(), Problem> {
        let Self { mut file, hasher } = self;
        let mut hash = [0; HASH_BYTES];
        file.read_exact(&mut hash)?;
        forget(&file);
        // compared in constant time
        if hasher.finalize() == blake3::Hash::from_bytes(hash) { Ok(()) } else { Err(Problem::Damaged) }
    }
}

/// Whether a file begins as every block does; a link does not.
///
/// # Errors
/// The system's.
pub(super) fn begins_as_one(path: &Path) -> io::Result<bool> {
    if !path.symlink_metadata()?.is_file() {
        return Ok(false);
    }
    let mut magic = [0; MAGIC.len()];
    match open_unfollowed(path)?.read_exact(&mut magic) {
        Ok(()) => Ok(magic == *MAGIC),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const TOKENS: [u32; 3] = [7, 1 << 20, 0];

    fn block() -> Block<'static> {
        let key = Key::root(&["model"]).followed_by(&TOKENS);
        Block { key, tokens: &TOKENS, bytes: 100 }
    }

    /// The keys and values that are read, a few bytes at a time.
    fn read(block: &Block<'_>, path: &Path) -> Result<Vec<u8>, Problem> {
        let mut file = block.read(path)?;
        let mut all = vec![0; block.bytes as usize];
        all.chunks_mut(7).try_for_each(|bytes| file.fill(bytes))?;
        file.finish()?;
        Ok(all)
    }

    fn written(folder: &Path) -> (std::path::PathBuf, Vec<u8>) {
        let (path, values) = (folder.join("block"), (0..100).collect::<Vec<u8>>());
        let put = |file: &mut Hashed| values.chunks(9).try_for_each(|bytes| file.put(bytes));
        block().write(File::create(&path).unwrap(), put).unwrap();
        (path, values)
    }

    #[test]
    fn a_block_comes_back_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let (path, values) = written(folder.path());
        assert_eq!(read(&block(), &path).unwrap(), values);
        assert_eq!(std::fs::metadata(path).unwrap().len(), file_bytes(3, 100));
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = written(folder.path());
        let whole = std::fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let problem = read(&block(), &path).expect_err("it is not what was written");
            assert!(problem.is_damage(), "{problem}");
            problem
        };
        for length in 0..whole.len() {
            assert!(matches!(refused(&whole[..length]), Problem::Size { .. }), "{length}");
        }
        assert!(matches!(refused(&[&whole[..], &[0]].concat()), Problem::Size { .. }));
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(refused(&bytes), Problem::Other | Problem::Damaged), "{bit}");
        }
        std::fs::write(&path, &whole).unwrap();
        read(&block(), &path).unwrap();
    }

    #[test]
    fn a_block_of_anything_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = written(folder.path());
        let other = |change: fn(&mut Block<'_>)| {
            let mut block = block();
            change(&mut block);
            read(&block, &path).expect_err("it is another block")
        };
        assert!(matches!(other(|block| block.tokens = &[7, 1 << 20, 1]), Problem::Other));
        assert!(matches!(other(|block| block.key = Key::root(&["model"])), Problem::Other));
        assert!(matches!(other(|block| block.tokens = &[7, 1 << 20]), Problem::Size { .. }));
        assert!(matches!(other(|block| block.bytes = u64::MAX / 2), Problem::Size { .. }));
    }

    #[test]
    fn what_is_no_file_is_neither_followed_nor_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = written(folder.path());
        let at = |name: &str| folder.path().join(name);
        symlink(&path, at("link")).unwrap();
        symlink("/dev/zero", at("zero")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        for name in ["link", "zero", "folder", "pipe"] {
            let problem = read(&block(), &at(name)).expect_err(name);
            assert!(matches!(problem, Problem::Special), "{name}: {problem}");
        }
        let none = read(&block(), &at("none")).expect_err("there is none");
        assert!(!none.is_damage(), "{none}");
    }

    #[test]
    fn a_key_says_all_that_stands_before_it() {
        let root = Key::root(&["a", "bc"]);
        assert_ne!(root, Key::root(&["ab", "c"]));
        let keys = [
            root,
            root.followed_by(&[1, 2]),
            root.followed_by(&[1]).followed_by(&[2]),
            root.followed_by(&[2]),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "{at}");
        }
        assert_eq!(root.name().len(), 64);
        let each: Vec<Key> = root.followed_by_each(&[1, 2, 3]).collect();
        assert_eq!(each, [&[1][..], &[1, 2], &[1, 2, 3]].map(|tokens| root.followed_by(tokens)));
    }
}
