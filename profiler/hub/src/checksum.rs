//! Checksums that the hub gives for files.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// A file's checksum, hexadecimal. It is the file's name in the cache, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checksum {
    /// SHA-256 of the bytes: files in large file storage, all weights among them.
    Sha256(String),
    /// SHA-1 of git's blob: small files.
    Git(String),
}

impl Checksum {
    /// SHA-256, if this is one.
    pub(crate) fn sha256(hex: String) -> Option<Self> {
        is_hex(&hex, 64).then_some(Self::Sha256(hex))
    }

    /// Git's name of a blob, if this is one.
    pub(crate) fn git(hex: String) -> Option<Self> {
        is_hex(&hex, 40).then_some(Self::Git(hex))
    }

    /// The checksum itself.
    pub fn hex(&self) -> &str {
        let (Self::Sha256(hex) | Self::Git(hex)) = self;
        hex
    }

    /// A hasher for the bytes of a file of this length.
    pub(crate) fn hasher(&self, bytes: u64) -> Hasher {
        match self {
            Self::Sha256(_) => Hasher(Context::new(&SHA256)),
            Self::Git(_) => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {bytes}\0").as_bytes());
                Hasher(context)
            }
        }
    }
}

/// Lower-case hexadecimal of so many digits, which is safe as a file's name.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// A checksum being computed.
#[derive(Clone)]
pub(crate) struct Hasher(Context);

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> String {
        self.0.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_sha256sum_and_git() {
        let of = |checksum: Checksum, text: &str| {
            let mut hasher = checksum.hasher(text.len() as u64);
            hasher.update(text.as_bytes());
            hasher.finish()
        };
        assert_eq!(
            of(Checksum::Sha256(String::new()), "abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        // git hash-object --stdin <<< hello
        assert_eq!(of(Checksum::Git(String::new()), "hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
    }

    #[test]
    fn what_is_no_checksum_never_names_a_file() {
        let right = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(Checksum::git(right.to_owned()), Some(Checksum::Git(right.to_owned())));
        for wrong in ["", "../../etc/passwd", &right[1..], &right.to_uppercase()] {
            assert_eq!(Checksum::git(wrong.to_owned()), None);
        }
        assert_eq!(Checksum::sha256(right.to_owned()), None);
    }
}
