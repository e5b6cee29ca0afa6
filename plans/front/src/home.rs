//! The folder of all files: `$XDG_DATA_HOME/flashplan/DEVICE/MODEL`, as committed plans have it.
//!
//! ```text
//! DEVICE/device.toml      the machine and a disk, measured once
//! DEVICE/MODEL/           device.toml, model.toml, the index or container, plan-LIMIT.toml, source.toml,
//!                         learned.toml and learned-plan-LIMIT.toml of mixtures that were used
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};

use crate::machine;
use crate::model::Model;

/// The folder of all files.
#[derive(Debug, Clone)]
pub(crate) struct Home(PathBuf);

/// The folder of a model on a device.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The device's folder.
    pub(crate) device: PathBuf,
    /// The model's folder in it.
    pub(crate) folder: PathBuf,
    /// The folder of the index or container: on the model's disk, where experts are read in place.
    pub(crate) storage: PathBuf,
    /// A folder on that disk, which is there already.
    pub(crate) disk: PathBuf,
}

impl Home {
    /// The folder that the environment names.
    ///
    /// # Errors
    /// If neither `XDG_DATA_HOME` nor `HOME` is set.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let data = variable("XDG_DATA_HOME").filter(|path| path.is_absolute());
        let data = data.or_else(|| Some(variable("HOME")?.join(".local/share")));
        let data = data
            .ok_or_else(|| anyhow!("there is no folder for profiles and plans: set HOME or XDG_DATA_HOME"))?;
        Ok(Self(data.join("flashplan")))
    }

    /// The path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The folder of a model on this machine; the device's is made if it is not there.
    ///
    /// The index stands on the disk of the model's file: in this folder, or beside the file where this folder is on another disk.
    ///
    /// # Errors
    /// The system's, if a folder cannot be made.
    pub(crate) fn place(&self, model: &Model) -> anyhow::Result<Place> {
        let make = |path: &Path| {
            fs::create_dir_all(path).with_context(|| format!("cannot make the folder {}", path.display()))
        };
        make(&self.0)?;
        let beside = model.directory();
        let is_writable = platform::process::is_writable(&beside);
        let here = machine::same_disk(&self.0, &beside) || !is_writable;
        let device = self.0.join(machine::name(if here { &self.0 } else { &beside }));
        make(&device)?;
        let folder = device.join(model.folder_name());
        let (storage, disk) = if here { (folder.clone(), device.clone()) } else { (beside.clone(), beside) };
        Ok(Place { device, folder, storage, disk })
    }

    /// The folders of models, by name, on all devices.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        let list = |folder: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            let mut folders: Vec<_> =
                entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
            folders.sort();
            folders
        };
        let models = list(&self.0).into_iter().flat_map(|device| list(&device));
        models.filter(|folder| fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some())).collect()
    }
}
