//! A check of this machine: the programs, the folder of all files, and what `profile --check` finds.

use plans::Device;
use plans::file::read;
use plans::size::show;
use terminal::{Rows, tell};

use crate::home::Home;
use crate::machine;
use crate::programs::{Program, Programs};

/// Prints where everything is, and what slows this machine down.
///
/// # Errors
/// A program that is missing, and a folder that cannot be made.
pub(crate) fn doctor() -> anyhow::Result<u8> {
    let programs = Programs::find()?;
    let home = Home::find()?;
    std::fs::create_dir_all(home.path())?;
    let mut table = Rows::new().left();
    for program in Program::ALL {
        table.row([program.name().to_owned(), programs.path(program).display().to_string()]);
    }
    let free =
        machine::free_bytes(home.path()).map_or_else(String::new, |free| format!(", {} free", show(free)));
    table.row(["files".to_owned(), format!("{}{free}", home.path().display())]);
    let device_toml = home.path().join(machine::name(home.path())).join("device.toml");
    let measured = match read::<Device>(&device_toml) {
        Ok(device) => {
            let most = device.value.capacity.plannable_bytes();
            let folder = device_toml.parent().unwrap_or(home.path());
            let notes = device.value.provenance.disturbed(folder);
            let disturbed: String = notes.map(|note| format!("; {note}")).collect();
            format!("measured: plans may use {}{disturbed}", show(most))
        }
        Err(_) => "not measured yet; the first model that is started measures it in about 20 s".to_owned(),
    };
    table.row(["machine".to_owned(), measured]);
    if let Some(free) = machine::available_bytes() {
        table.row(["memory".to_owned(), format!("{} free now", show(free))]);
    }
    tell(table)?;
    let storage = home.path().as_os_str().to_owned();
    programs.start(Program::Profile, &["--check".into(), "--storage".into(), storage])
}
