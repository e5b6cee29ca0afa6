//! Models split into several files as by llama.cpp: `NAME-00001-of-00003.gguf` and so on.
//!
//! The first file has the model's keys; each file has some of its tensors. Three keys describe the split:
//! `split.no` (from 0), `split.count` and `split.tensors.count` (of all files).
//!
//! Source: llama.cpp's `llama_split_path` and `gguf-split`.

use std::path::{Path, PathBuf};

use super::contents::Contents;
use super::error::{GgufError, KeyError};
use super::value::Value;

/// The most files of a model; names have five digits.
const FILES_MAX: u64 = 99_999;

/// A file's place among the files of its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Split {
    /// This file, from 0.
    pub number: u64,
    /// Files of the model.
    pub count: u64,
}

impl Split {
    /// Reads a file's place from its keys; `None` for a model in one file.
    pub(super) fn of(contents: &Contents) -> Result<Option<Self>, GgufError> {
        let Some(count) = whole(contents, "split.count")?.filter(|&count| count > 1) else { return Ok(None) };
        let number = whole(contents, "split.no")?.unwrap_or(0);
        if count > FILES_MAX || number >= count {
            return Err(GgufError::Split {
                what: format!("keys say that it is file {number} (from 0) of {count}"),
            });
        }
        Ok(Some(Self { number, count }))
    }
}

/// Number of tensors in all files, if given.
pub(super) fn tensors(contents: &Contents) -> Result<Option<u64>, GgufError> {
    Ok(whole(contents, "split.tensors.count")?)
}

fn whole(contents: &Contents, key: &str) -> Result<Option<u64>, KeyError> {
    contents.typed(key, "a whole number of 0 or more", |value| match value {
        Value::Integer(value) => u64::try_from(*value).ok(),
        _ => None,
    })
}

/// The common part of the file names: `NAME` of `NAME-00002-of-00003.gguf`, for `count` files.
fn shared_name(path: &Path, count: u64) -> Option<String> {
    let name = path.file_name()?.to_str()?.strip_suffix(&format!("-of-{count:05}.gguf"))?;
    let (name, number) = name.split_at_checked(name.len().checked_sub(6)?)?;
    let digits = number.strip_prefix('-')?;
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| name.to_owned())
}

/// The paths of all files of the model that `path` belongs to, in order.
pub(super) fn paths(path: &Path, split: Split) -> Result<Vec<PathBuf>, GgufError> {
    let Some(name) = shared_name(path, split.count) else {
        return Err(GgufError::SplitName { number: split.number + 1, count: split.count });
    };
    let file = |number: u64| path.with_file_name(format!("{name}-{number:05}-of-{:05}.gguf", split.count));
    Ok((1..=split.count).map(file).collect())
}

/// The name of a split model without the file's number; `None` if `path` is not part of one.
pub fn model_name(path: &Path) -> Option<String> {
    let stem = path.file_stem()?.to_str()?;
    let count: u64 = stem.rsplit_once("-of-").and_then(|(_, count)| count.parse().ok())?;
    shared_name(path, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_models_files_share_all_but_a_number() {
        let split = Split { number: 1, count: 3 };
        let files = paths(Path::new("models/a-b-00002-of-00003.gguf"), split).unwrap();
        assert_eq!(files[0], Path::new("models/a-b-00001-of-00003.gguf"));
        assert_eq!(files[2], Path::new("models/a-b-00003-of-00003.gguf"));
        assert_eq!(model_name(Path::new("x/a-b-00002-of-00003.gguf")).as_deref(), Some("a-b"));
        for other in
            ["a.gguf", "a-0002-of-00003.gguf", "a-00002-of-00004.gguf", "-of-00003.gguf", "é-of-00003.gguf"]
        {
            assert!(paths(Path::new(other), split).is_err(), "{other}");
        }
        assert_eq!(model_name(Path::new("a.gguf")), None);
    }
}
