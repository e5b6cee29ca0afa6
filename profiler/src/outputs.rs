//! The files that a profile writes to `--out`, and the marks of an earlier profile's files.

use std::path::Path;

use plans::file::kind;
use plans::output_file::{InputFiles, OutputKind};
use plans::{ContractError, Device, Model};

/// `cores.csv`.
pub const CORES: OutputKind = OutputKind {
    name: "a profile's cores.csv",
    is_one: |head| head.starts_with(b"instruction_set,format,threads,measure,"),
};
/// `memory.csv`.
pub const MEMORY: OutputKind = OutputKind {
    name: "a profile's memory.csv",
    is_one: |head| head.starts_with(b"pattern,row_bytes,buffer_bytes,threads,"),
};
/// `storage.csv`.
pub const STORAGE: OutputKind = OutputKind {
    name: "a profile's storage.csv",
    is_one: |head| head.starts_with(b"backend,direct,pattern,block_bytes,"),
};
/// `neurons.csv`.
pub const NEURONS: OutputKind = OutputKind {
    name: "a profile's neurons.csv",
    is_one: |head| head.starts_with(b"layer,position,source_index,"),
};
/// `reuse.csv`.
pub const REUSE: OutputKind = OutputKind {
    name: "a profile's reuse.csv",
    is_one: |head| head.starts_with(b"level,policy,layer,pinned_share_fraction,"),
};

/// The files of a device's profile.
pub fn of_device() -> [(&'static str, OutputKind); 4] {
    [
        ("cores.csv", CORES),
        ("memory.csv", MEMORY),
        ("storage.csv", STORAGE),
        ("device.toml", kind::<Device>()),
    ]
}

/// The files of a model's profile, without its container.
pub fn of_model() -> [(&'static str, OutputKind); 3] {
    [("neurons.csv", NEURONS), ("reuse.csv", REUSE), ("model.toml", kind::<Model>())]
}

/// Checks that a profile with these inputs can write these files to a folder.
///
/// # Errors
/// The first file that it cannot write, and why.
pub fn writable(
    folder: &Path,
    files: &[(&str, OutputKind)],
    inputs: InputFiles<'_>,
) -> Result<(), ContractError> {
    files.iter().try_for_each(|(name, kind)| plans::file::writable(&folder.join(name), *kind, inputs))
}
