//! The files of a repository, as the hub lists them.

use serde::Deserialize;

use crate::checksum::{Checksum, is_hex};
use crate::error::HubError;

/// Files of a repository, and bytes of all of them, at most: so sums of them are right.
const FILES_MAX: usize = 100_000;
const BYTES_MAX: u64 = 1 << 50;

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Path of the file in the repository: names, joined by `/`.
    pub path: String,
    /// Length of the file, in bytes.
    pub bytes: u64,
    /// Checksum that the file's bytes must have.
    pub checksum: Checksum,
}

/// A repository at one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listing {
    /// The commit, 40 hexadecimal digits.
    pub(crate) commit: String,
    pub(crate) files: Vec<File>,
}

/// The answer of `/api/models/OWNER/REPO?blobs=true`; other fields are ignored.
#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Listing {
    /// Reads an answer of the hub. Files without a size or checksum are left out.
    ///
    /// # Errors
    /// [`HubError::Answer`] when it is none, or names a file that is not in the repository.
    pub(crate) fn read(json: &str, url: &str) -> Result<Self, HubError> {
        let wrong = |what: String| HubError::Answer { url: url.to_owned(), what };
        let answer: Answer = serde_json::from_str(json).map_err(|error| wrong(error.to_string()))?;
        if !is_hex(&answer.sha, 40) {
            return Err(wrong(format!("{:?} is no commit", answer.sha)));
        }
        if answer.siblings.len() > FILES_MAX {
            return Err(wrong(format!("it lists {} files; {FILES_MAX} are the most", answer.siblings.len())));
        }
        let (mut files, mut all_bytes) = (Vec::new(), 0_u64);
        for sibling in answer.siblings {
            let path = sibling.rfilename;
            if !is_inside(&path) {
                return Err(wrong(format!("it lists {path:?}, which is no file of a repository")));
            }
            let (bytes, checksum) = match sibling.lfs {
                Some(lfs) => (Some(lfs.size), Checksum::sha256(lfs.sha256)),
                None => (sibling.size, sibling.blob.and_then(Checksum::git)),
            };
            match (bytes, checksum) {
                (Some(bytes), Some(checksum)) => {
                    all_bytes = all_bytes.saturating_add(bytes);
                    if all_bytes > BYTES_MAX {
                        return Err(wrong(format!("with {path:?} its files are longer than 1 PiB")));
                    }
                    files.push(File { path, bytes, checksum });
                }
                _ => tracing::debug!(path, "has no size or checksum, and is left out"),
            }
        }
        Ok(Self { commit: answer.sha, files })
    }
}

/// Whether a path stays in the folder that it is joined to, and can be shown in a terminal.
fn is_inside(path: &str) -> bool {
    let plain = |name: &str| !name.is_empty() && name != "." && name != "..";
    !path.contains(|it: char| it == '\\' || it.is_control()) && path.split('/').all(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::path::{Component, Path};

    use super::*;

    fn listed(path: &str) -> Result<Listing, HubError> {
        let file = serde_json::json!({ "rfilename": path, "size": 3, "blobId": "0".repeat(40) });
        Listing::read(&serde_json::json!({ "sha": "a".repeat(40), "siblings": [file] }).to_string(), "URL")
    }

    #[test]
    fn sizes_and_checksums_are_those_of_large_files_where_there_are_such() {
        let json = r#"{"id": "a/b", "sha": "0123456789abcdef0123456789abcdef01234567", "siblings": [
            {"rfilename": "config.json", "size": 7, "blobId": "89abcdef0123456789abcdef0123456789abcdef"},
            {"rfilename": "sub/m.gguf", "size": 134, "blobId": "89abcdef0123456789abcdef0123456789abcdef",
             "lfs": {"sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "size": 5000000000, "pointerSize": 134}},
            {"rfilename": "no-checksum", "size": 7}]}"#;
        let listing = Listing::read(json, "URL").unwrap();
        assert_eq!(listing.commit, "0123456789abcdef0123456789abcdef01234567");
        let [config, weights] = &listing.files[..] else { panic!("{listing:?}") };
        assert_eq!((config.bytes, config.checksum.hex().len()), (7, 40));
        assert_eq!((weights.bytes, weights.checksum.hex().len()), (5_000_000_000, 64));
    }

    #[test]
    fn an_answer_that_is_none_is_refused_with_its_address() {
        for json in ["<html>", "{}", r#"{"sha": "../..", "siblings": []}"#, r#"{"sha": 1, "siblings": []}"#] {
            assert!(Listing::read(json, "URL").unwrap_err().to_string().contains("URL"), "{json}");
        }
    }

    #[test]
    fn more_than_there_can_be_is_refused() {
        let listed = |files: Vec<serde_json::Value>| {
            let json = serde_json::json!({ "sha": "a".repeat(40), "siblings": files });
            Listing::read(&json.to_string(), "URL").map_err(|error| error.to_string())
        };
        let file =
            |bytes: u64| serde_json::json!({ "rfilename": "m", "size": bytes, "blobId": "0".repeat(40) });
        assert!(listed(vec![file(BYTES_MAX)]).is_ok());
        for sizes in [&[BYTES_MAX + 1][..], &[u64::MAX], &[BYTES_MAX, 1], &[1, u64::MAX]] {
            let error = listed(sizes.iter().map(|&bytes| file(bytes)).collect()).unwrap_err();
            assert!(error.contains("longer than 1 PiB"), "{error}");
        }
        assert!(listed(vec![file(1); FILES_MAX + 1]).unwrap_err().contains("100001 files"));
    }

    proptest! {
        #[test]
        fn no_listed_path_leaves_the_folder(path in r"[a./\\\x00-]{0,12}") {
            if listed(&path).is_ok() {
                let inside = |it: Component<'_>| matches!(it, Component::Normal(_));
                prop_assert!(!path.is_empty() && Path::new(&path).components().all(inside));
            }
        }
    }

    #[test]
    fn a_path_out_of_the_folder_is_refused() {
        for path in
            ["../x", "/etc/passwd", "a/../../x", "a//b", "", "a\\..\\b", "a\u{1b}[2Jb", "a\u{9b}b", "a\nb"]
        {
            assert!(listed(path).unwrap_err().to_string().contains("no file of a repository"), "{path}");
        }
        assert!(listed("a/b..c/.d").is_ok());
    }
}
