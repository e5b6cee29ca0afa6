//! The weights of a folder: one safetensors file, or several that an index lists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use serde::Deserialize;

use crate::error::{FolderError, quote};
use crate::folder::{Folder, LARGE_MAX, map};
use crate::safetensors::{Header, Tensor};

/// Files of a model, at most.
const FILES_MAX: usize = 1 << 12;

const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// `model.safetensors.index.json`.
#[derive(Debug, Deserialize)]
pub(crate) struct Index {
    /// The file of each tensor.
    weight_map: BTreeMap<String, String>,
}

/// The index of these bytes.
pub(crate) fn read(bytes: &[u8], path: &Path) -> Result<Index, FolderError> {
    serde_json::from_slice(bytes).map_err(|error| FolderError::Json { path: path.to_owned(), error })
}

/// One file of weights.
#[derive(Debug)]
struct File {
    path: PathBuf,
    map: Mmap,
}

/// All tensors of a folder.
#[derive(Debug)]
pub(crate) struct Weights {
    files: Vec<File>,
    /// By name: the file's number, and the tensor.
    tensors: BTreeMap<String, (usize, Tensor)>,
}

impl Weights {
    /// Maps the files of a folder and reads their headers.
    pub(crate) fn open(folder: &Folder) -> Result<Self, FolderError> {
        let index_path = folder.file(INDEX);
        let index = folder.read(INDEX, LARGE_MAX)?.map(|bytes| read(&bytes, &index_path)).transpose()?;
        let paths = match &index {
            None if folder.file(WHOLE).exists() => vec![folder.file(WHOLE)],
            None => {
                return Err(FolderError::Lacks {
                    path: folder.path().to_owned(),
                    what: "model.safetensors (weights in other forms are not read)",
                });
            }
            Some(index) => {
                let names: BTreeSet<_> = index.weight_map.values().collect();
                if names.len() > FILES_MAX {
                    return Err(FolderError::damaged(&index_path, format!("it names {} files", names.len())));
                }
                let paths = names.into_iter().map(|name| folder.named(name, &index_path));
                paths.collect::<Result<Vec<_>, _>>()?
            }
        };
        let mut weights = Self { files: Vec::new(), tensors: BTreeMap::new() };
        for path in paths {
            let map = map(&path)?;
            let header = Header::read(&map, &path)?;
            for (name, tensor) in header.tensors {
                if let Some(index) = &index {
                    let said = index.weight_map.get(&name).map(|name| folder.file(name));
                    if said.as_ref() != Some(&path) {
                        return Err(FolderError::damaged(
                            &path,
                            format!("it has tensor {}, which the index has elsewhere", quote(&name)),
                        ));
                    }
                }
                weights.tensors.insert(name, (weights.files.len(), tensor));
            }
            weights.files.push(File { path, map });
        }
        if let Some(index) = &index
            && let Some((missing, file)) =
                index.weight_map.iter().find(|(name, _)| !weights.tensors.contains_key(*name))
        {
            return Err(FolderError::damaged(
                &folder.file(file),
                format!("it lacks tensor {}, which the index has there", quote(missing)),
            ));
        }
        Ok(weights)
    }

    /// Every tensor by name.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, (_, tensor))| (name.as_str(), tensor))
    }

    pub(crate) fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name).map(|(_, tensor)| tensor)
    }

    /// The file that has a tensor.
    pub(crate) fn path_of(&self, name: &str) -> Option<&Path> {
        self.tensors.get(name).map(|(file, _)| self.files[*file].path.as_path())
    }

    /// A tensor's bytes; none where there is no such tensor.
    pub(crate) fn bytes(&self, name: &str) -> &[u8] {
        let Some((file, tensor)) = self.tensors.get(name) else { return &[] };
        // within the file: compared when its header was read, and the mapping is as long as then
        &self.files[*file].map[tensor.start as usize..(tensor.start + tensor.bytes) as usize]
    }

    /// The bytes of every file, in the order of their names.
    pub(crate) fn files(&self) -> impl Iterator<Item = &[u8]> {
        self.files.iter().map(|file| &file.map[..])
    }
}
