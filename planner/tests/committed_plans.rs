//! Every committed plan, solved again from the profiles beside it, comes out the same.

use std::fs;
use std::path::{Path, PathBuf};

/// `plan*.toml` in every folder of a device and a model.
fn committed() -> Vec<PathBuf> {
    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plans");
    let folders = |path: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(path).expect("a folder").map(|entry| entry.expect("an entry").path());
        entries.collect()
    };
    let deeper =
        |paths: Vec<PathBuf>| paths.into_iter().filter(|path| path.is_dir()).flat_map(|path| folders(&path));
    let devices =
        folders(&plans).into_iter().filter(|path| !path.ends_with("src") && !path.ends_with("tests"));
    let models = deeper(devices.collect()).collect();
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("plan") && name.ends_with(".toml")
    };
    let mut found: Vec<PathBuf> = deeper(models).filter(named).collect();
    found.sort();
    found
}

#[test]
fn committed_plans_are_solved_the_same_again() {
    let plans = committed();
    assert!(!plans.is_empty(), "there are committed plans");
    let wrong: Vec<String> = plans
        .iter()
        .filter_map(|path| match planner::check::check(path) {
            Ok(checked) if checked.same => None,
            Ok(checked) => Some(format!("{}: {}", path.display(), checked.finding)),
            Err(error) => Some(format!("{}: {error}", path.display())),
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
