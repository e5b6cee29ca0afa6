//! The model of `--model`: a path, or a download from Hugging Face's hub.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::bail;
use hub::{Hub, Kind, Name, NameError};
use plans::size::show;

use crate::device::storage::free_bytes;
use crate::{Context, ProfileError};

/// A model as named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file or a folder.
    Path(PathBuf),
    /// A model of the hub.
    Hub(Name),
}

impl Source {
    /// Parses the name of a model: on the hub if it begins with `hf:`, else a path.
    ///
    /// # Errors
    /// [`NameError`] for an invalid name with `hf:`.
    pub fn read(text: OsString) -> Result<Self, NameError> {
        match text.to_str().filter(|text| text.starts_with(Name::PREFIX)) {
            Some(name) => Ok(Self::Hub(name.parse()?)),
            None => Ok(Self::Path(text.into())),
        }
    }
}

/// Downloads the missing files of a model, from the hub that the environment names, and returns the path of its file or folder.
///
/// `say` gets the files and their source before the download.
///
/// # Errors
/// The hub's, each with its remedy; too little space, before the first byte; a model that `consume` would delete from the cache.
pub fn fetch(
    context: &Context,
    name: &Name,
    consume: bool,
    say: &mut dyn FnMut(String),
) -> anyhow::Result<PathBuf> {
    let hub = Hub::from_environment(|name| std::env::var(name).ok())?;
    let model = hub.find(name, &mut || context.stopped().is_ok())?;
    if consume && model.choice.kind == Kind::Gguf {
        bail!(
            "--consume-model would leave holes in the hub's cache, which other programs use: fetch {name} without it, or download the \
             file to a folder of your own and name it there"
        );
    }
    let bar = context.bytes_bar(model.bytes(), "checking what is cached");
    let damaged = hub.discard_damaged(&model, &mut |bytes| {
        bar.set_position(bytes);
        context.stopped().is_ok()
    })?;
    drop(bar);
    for path in damaged {
        say(format!("warning: {path} was damaged in the cache, and is removed: it is fetched again"));
    }
    let (missing, folder) = (hub.missing_bytes(&model), hub.folder());
    let of = format!("{name} at {:.12}: {}", model.commit, files(&model));
    if missing == 0 {
        say(format!("hub: {of}; all of it is in {}", folder.display()));
    } else {
        std::fs::create_dir_all(folder).map_err(|source| ProfileError::Io {
            action: "create",
            path: folder.to_owned(),
            source,
        })?;
        let free = free_bytes(folder)?;
        if free < missing {
            bail!(
                "{} has {} free and {} of {name} are to be fetched; make room, or name another folder with HF_HOME",
                folder.display(),
                show(free),
                show(missing)
            );
        }
        say(format!("hub: {of}; fetches {} from {} to {}", show(missing), hub.endpoint(), folder.display()));
    }
    let bar = context.bytes_bar(model.bytes(), "fetching the model");
    let path = hub.fetch(&model, &mut |bytes| {
        bar.set_position(bytes);
        context.stopped().is_ok()
    })?;
    Ok(path)
}

/// A model's files, for people.
fn files(model: &hub::Model) -> String {
    match (&model.choice.files[..], model.choice.kind) {
        ([file], _) => format!("{}, {}", file.path, show(file.bytes)),
        (files, Kind::Gguf) => format!("{} parts of {}, {}", files.len(), files[0].path, show(model.bytes())),
        (files, Kind::Folder) => format!("a folder of {} files, {}", files.len(), show(model.bytes())),
    }
}
