//! Existing files in the output folders: the profile of another model, or of another machine.

use std::fmt::Display;
use std::path::Path;

use flashplan::internals::container::Container;
use flashplan::internals::machine::{Machine, MachineError};
use plans::{Device, Model};

/// Files of another model that the profile of the model with this fingerprint would replace, in words.
///
/// An unreadable container counts as the model's own if `model.toml` names it.
pub fn of_another_model(model_toml: &Path, container: &Path, fingerprint: &str) -> Option<String> {
    let mut found = Vec::new();
    let mut told = |path: &Path, whose: &dyn Display| found.push(format!("{} ({whose})", path.display()));
    let mut own_container = false;
    if model_toml.exists() {
        match plans::file::read::<Model>(model_toml) {
            Ok(profile) if profile.value.fingerprint == fingerprint => {
                own_container = container.file_name() == Some(profile.value.container.file.as_ref());
            }
            Ok(profile) => told(model_toml, &format_args!("of the model `{}`", profile.value.name)),
            Err(_) => told(model_toml, &"which this version cannot read"),
        }
    }
    if container.exists() {
        match Container::open(container) {
            Ok(there) if there.directory.source_fingerprint == fingerprint => {}
            Ok(there) => told(container, &format_args!("of the model `{}`", there.directory.name)),
            Err(_) if own_container => {}
            Err(_) => told(container, &"which this version cannot read"),
        }
    }
    (!found.is_empty()).then(|| found.join(" and "))
}

/// The difference between this machine and a device's, in words; `None` if they are the same.
///
/// # Errors
/// A machine that cannot be identified.
pub fn of_another_machine(device: &Device, storage: &Path) -> Result<Option<String>, MachineError> {
    let (there, here) = (&device.identity, Machine::here(storage)?.identity());
    if Device::fingerprint_of(&here) == Device::fingerprint_of(there) {
        return Ok(None);
    }
    let pairs = [
        ("processor", there.cpu.clone(), here.cpu.clone()),
        ("cores", there.core_classes.join(", "), here.core_classes.join(", ")),
        ("GiB of memory", there.ram_gib.to_string(), here.ram_gib.to_string()),
        ("block device", there.storage.clone(), here.storage.clone()),
        ("instruction sets", there.instruction_sets.join(", "), here.instruction_sets.join(", ")),
    ];
    let different = pairs.into_iter().filter(|(_, there, here)| there != here);
    let different: Vec<String> =
        different.map(|(what, there, here)| format!("{what}: {there} there, {here} here")).collect();
    Ok(Some(different.join("; ")))
}
