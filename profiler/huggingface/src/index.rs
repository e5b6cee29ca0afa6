//! The weights of a folder: one safetensors file, or several that an index lists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use crate::error::{FolderError, quote};
use crate::folder::{Folder, LARGE_MAX, Opened};
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

/// All tensors of a folder.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    files: Vec<Opened>,
    /// By name: the file's number, and the tensor.
    tensors: BTreeMap<String, (usize, Tensor)>,
}

impl Weights {
    /// Opens the files of a folder and reads their headers.
    pub(crate) fn open(folder: &Folder) -> Result<Self, FolderError> {
        let index_path = folder.file(INDEX);
        let index = folder.read(INDEX, LARGE_MAX)?.map(|bytes| read(&bytes, &index_path)).transpose()?;
        let names: BTreeSet<&str> = match &index {
            None => BTreeSet::from([WHOLE]),
            Some(index) => index.weight_map.values().map(String::as_str).collect(),
        };
        if names.len() > FILES_MAX {
            return Err(FolderError::damaged(&index_path, format!("it names {} files", names.len())));
        }
        let mut weights = Self { files: Vec::new(), tensors: BTreeMap::new() };
        for name in names {
            let file = folder.open(folder.named(name, &index_path)?)?.ok_or_else(|| match index {
                Some(_) => {
                    FolderError::damaged(&index_path, format!("it names {}, which is not there", quote(name)))
                }
                None => FolderError::Lacks {
                    path: folder.path().to_owned(),
                    what: "model.safetensors (weights in other forms are not read)",
                },
            })?;
            let header = Header::read(file.bytes, &file.path, &|place, bytes| file.read_at(place, bytes))?;
            for (tensor_name, tensor) in header.tensors {
                if let Some(index) = &index
                    && index.weight_map.get(&tensor_name).is_none_or(|said| said != name)
                {
                    return Err(FolderError::damaged(
                        &file.path,
                        format!("it has tensor {}, which the index has elsewhere", quote(&tensor_name)),
                    ));
                }
                weights.tensors.insert(tensor_name, (weights.files.len(), tensor));
            }
            weights.files.push(file);
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

    /// Tensors without a file, which cannot be read.
    pub(crate) fn described(header: Header) -> Self {
        let tensors = header.tensors.into_iter().map(|(name, tensor)| (name, (0, tensor))).collect();
        Self { files: Vec::new(), tensors }
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
        let (file, _) = self.tensors.get(name)?;
        self.files.get(*file).map(|file| file.path.as_path())
    }

    /// Fills a buffer with a tensor's bytes, from the offset `place`.
    ///
    /// # Errors
    /// The disk's, and a file that got shorter.
    ///
    /// # Panics
    /// If there is no such tensor, or it has fewer bytes.
    pub(crate) fn read(&self, name: &str, place: u64, bytes: &mut [u8]) -> Result<(), FolderError> {
        let (file, tensor) = &self.tensors[name];
        assert!(place + bytes.len() as u64 <= tensor.bytes, "bytes of {name}");
        self.files[*file].read_at(tensor.start + place, bytes)
    }

    /// Every file, in the order of their names.
    pub(crate) fn files(&self) -> &[Opened] {
        &self.files
    }
}
