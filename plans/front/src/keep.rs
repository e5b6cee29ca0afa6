//! The models that are prepared: a list of them, and their removal.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use plans::file::read;
use plans::size::show;
use serde_json::json;
use terminal::{Rows, tell};

use crate::cli::Thoroughness;
use crate::home::Home;
use crate::model::{Model, SourceFile};
use crate::stages::plans_in;

/// Prints each prepared model with its profile, the size of its files and its plans.
///
/// # Errors
/// If there is no home, or standard output cannot be written.
pub(crate) fn list(as_json: bool) -> anyhow::Result<u8> {
    let home = Home::find()?;
    let mut table = Rows::headed(&["name", "model", "profile", "files", "plans"]).left();
    let mut models = Vec::new();
    for folder in home.folders() {
        let source = SourceFile::read(&folder).map_or_else(String::new, |source| source.model);
        let profile = read::<plans::Model>(&folder.join("model.toml")).ok();
        let profile = profile.map_or("unfinished", |model| Thoroughness::of(&model.value).name());
        let bytes = size_of(&folder);
        let plans = plans_in(&folder);
        let speeds = plans.iter().map(|plan| {
            format!("{} {:.1} tok/s", show(plan.memory.limit_bytes), plan.expected.decode_tokens_per_second)
        });
        let name = name_of(&folder);
        table.row([
            name.clone(),
            source.clone(),
            profile.to_owned(),
            show(bytes),
            speeds.collect::<Vec<_>>().join(", "),
        ]);
        let plans: Vec<_> = plans
            .iter()
            .map(|plan| {
                json!({
                    "limit_bytes": plan.memory.limit_bytes,
                    "decode_tokens_per_second": plan.expected.decode_tokens_per_second,
                })
            })
            .collect();
        models.push(json!({
            "name": name, "model": source, "profile": profile, "bytes": bytes, "folder": folder, "plans": plans,
        }));
    }
    if as_json {
        tell(json!({ "models": models }))?;
    } else if models.is_empty() {
        tell(format_args!(
            "no model is prepared in {}; `flashplan chat MODEL` prepares one",
            home.path().display()
        ))?;
    } else {
        tell(table)?;
    }
    Ok(0)
}

/// Removes the folder of a prepared model, on all devices.
///
/// # Errors
/// If no such model is prepared, or its files cannot be removed.
pub(crate) fn remove(named: &OsStr) -> anyhow::Result<u8> {
    let home = Home::find()?;
    // the file may be gone
    let model = Model::named(named).ok().map(|model| model.folder_name());
    let is_named = |folder: &PathBuf| {
        let name = name_of(folder);
        let source = SourceFile::read(folder).is_some_and(|source| OsStr::new(&source.model) == named);
        OsStr::new(&name) == named || Some(name) == model || source
    };
    let found: Vec<PathBuf> = home.folders().into_iter().filter(is_named).collect();
    if found.is_empty() {
        bail!("{} is not prepared; `flashplan list` names the models that are", named.to_string_lossy());
    }
    for folder in found {
        let (source, bytes) = (SourceFile::read(&folder), size_of(&folder));
        // before the rest: an interrupted removal leaves a model that is profiled again
        let _gone = fs::remove_file(folder.join("model.toml"));
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        let kept = source.map_or_else(String::new, |source| format!("; {} stays", source.model));
        tell(format_args!("removed {}, {}{kept}", folder.display(), show(bytes)))?;
    }
    Ok(0)
}

fn name_of(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Bytes of all files in a folder.
fn size_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
        .fold(0, |sum, (path, metadata)| {
            sum + if metadata.is_dir() { size_of(&path) } else { metadata.len() }
        })
}
