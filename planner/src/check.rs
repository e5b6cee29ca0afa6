//! `plan --check`: committed plans are solved again and compared, everything except provenance.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plans::file::{self, Contract as _};
use plans::learned;
use plans::plan::Plan;

use crate::error::PlanError;
use crate::learned::Learning;
use crate::{plan_of_any, read_inputs};

/// Differing keys that are named; the rest are counted.
const KEYS_NAMED: usize = 5;

/// Result of solving one committed plan again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The plan's file.
    pub path: PathBuf,
    /// Whether solving again gives the same plan.
    pub same: bool,
    /// The keys that differ, why there is no plan any more, or that the plan is the same: a sentence.
    pub finding: String,
    /// Inputs whose bytes are not those that the plan was made from.
    pub changed_inputs: Vec<&'static str>,
}

/// Solves a plan again from its request and the `device.toml` and `model.toml` beside it, and the `learned.toml` if it learned.
///
/// # Errors
/// Files that cannot be read, or a solver that gave up.
pub fn check(path: &Path) -> Result<Checked, PlanError> {
    let committed = file::read::<Plan>(path)?.value;
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    let model = folder.join("model.toml");
    let mut inputs = read_inputs(&folder.join("device.toml"), &model)?;
    let mut changed_inputs = Vec::new();
    if inputs.device_hash != committed.provenance.device_toml {
        changed_inputs.push("device.toml");
    }
    if inputs.model_hash != committed.provenance.model_toml {
        changed_inputs.push("model.toml");
    }
    if let Some(hash) = &committed.provenance.learned_toml {
        let learning = Learning::beside(&model, &inputs).ok().flatten();
        if learning.as_ref().is_none_or(|learning| learning.hash != *hash) {
            changed_inputs.push(learned::FILE);
        }
        inputs = learning.map_or(inputs, |learning| learning.inputs);
    }
    let (same, finding) = match plan_of_any(&inputs, &committed.request)? {
        Err(why) => (false, why),
        Ok(mut again) => {
            again.provenance = committed.provenance.clone();
            let keys = differences(&again, &committed, path)?;
            match keys.len() {
                0 => (true, format!("the same {}", Plan::KIND)),
                n => {
                    let more =
                        if n > KEYS_NAMED { format!(" and {} more", n - KEYS_NAMED) } else { String::new() };
                    let named = keys.iter().take(KEYS_NAMED).cloned().collect::<Vec<_>>().join("; ");
                    (false, format!("solving again differs in {named}{more}"))
                }
            }
        }
    };
    Ok(Checked { path: path.to_owned(), same, finding, changed_inputs })
}

/// Lines of the canonical text that differ, with the key and both values.
fn differences(again: &Plan, committed: &Plan, path: &Path) -> Result<Vec<String>, PlanError> {
    let (again, committed) = (lines(again, path)?, lines(committed, path)?);
    let mut keys = Vec::new();
    for (key, value) in &committed {
        match again.iter().find(|(other, _)| other == key) {
            Some((_, new)) if new == value => {}
            Some((_, new)) => keys.push(format!("{key} ({value} in the file, {new} now)")),
            None => keys.push(format!("{key} (absent now)")),
        }
    }
    keys.extend(
        again
            .iter()
            .filter(|(k, _)| !committed.iter().any(|(key, _)| key == k))
            .map(|(k, _)| format!("{k} (new)")),
    );
    Ok(keys)
}

/// Dotted keys and values of a plan's canonical text; the tables of a list are counted from 0.
fn lines(plan: &Plan, path: &Path) -> Result<Vec<(String, String)>, PlanError> {
    let text = file::render(plan, path)?;
    let mut table = String::new();
    let mut lists: BTreeMap<&str, usize> = BTreeMap::new();
    let mut all = Vec::new();
    for line in text.lines() {
        if let Some(entry) = line.strip_prefix("[[") {
            let list = entry.trim_end_matches(']');
            let index = lists.entry(list).and_modify(|index| *index += 1).or_insert(0);
            table = format!("{list}[{index}].");
        } else if let Some(heading) = line.strip_prefix('[') {
            table = format!("{}.", heading.trim_end_matches(']'));
        } else if let Some((key, value)) = line.split_once(" = ") {
            all.push((format!("{table}{key}"), value.to_owned()));
        }
    }
    Ok(all)
}
