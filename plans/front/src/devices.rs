//! Devices that were measured elsewhere, or described by published figures: for `flashplan fit --device`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::bail;
use plans::Device;

/// The committed profiles, by name.
const DEVICES: [(&str, &str); 7] = [
    ("amd-epyc-2c-24g", include_str!("../devices/amd-epyc-2c-24g.toml")),
    ("amd-epyc-zen5-2c-24g", include_str!("../devices/amd-epyc-zen5-2c-24g.toml")),
    ("intel-xeon-2c-24g", include_str!("../devices/intel-xeon-2c-24g.toml")),
    ("oneplus-12", include_str!("../devices/oneplus-12.toml")),
    ("oneplus-ace-2", include_str!("../devices/oneplus-ace-2.toml")),
    ("laptop-16g", include_str!("../devices/laptop-16g.toml")),
    ("raspberry-pi-5-16g", include_str!("../devices/raspberry-pi-5-16g.toml")),
];
/// Short names of some.
const SHORT: [(&str, &str); 1] = [("rpi5", "raspberry-pi-5-16g")];

/// The `device.toml` that is named: a file, or one of [`DEVICES`], which is put into `folder`.
///
/// # Errors
/// A name that is neither, with the names that are.
pub(crate) fn file(named: &OsStr, folder: &Path) -> anyhow::Result<PathBuf> {
    let named = SHORT
        .iter()
        .find(|(short, _)| OsStr::new(short) == named)
        .map_or(named, |(_, name)| OsStr::new(name));
    if let Some((_, text)) = DEVICES.iter().find(|(name, _)| OsStr::new(name) == named) {
        let path = folder.join("device.toml");
        plans::file::write_bytes(&path, plans::file::kind::<Device>(), text.as_bytes())?;
        return Ok(path);
    }
    let path = PathBuf::from(named);
    let path = if path.is_dir() { path.join("device.toml") } else { path };
    if !path.is_file() {
        let names = DEVICES.map(|(name, _)| name).join(", ");
        bail!(
            "{} is neither a device.toml nor a device of flashplan, which are {names}",
            named.to_string_lossy()
        );
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_is_one_of_that_name() {
        for (name, text) in DEVICES {
            let device = plans::file::parse::<Device>(text, Path::new(name)).expect(name);
            assert_eq!(device.name, name);
        }
        let refused = file(OsStr::new("nowhere"), Path::new("/")).expect_err("refused").to_string();
        assert!(refused.contains("oneplus-12"), "{refused}");
    }
}
