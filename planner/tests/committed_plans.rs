//! Every committed plan, solved again from the profiles beside it, comes out the same.
//! `UPDATE_EXPECT=1 cargo test -p flashplan-planner --test committed_plans` writes what differs anew.

use std::fs;
use std::path::{Path, PathBuf};

use rayon::prelude::{IntoParallelRefIterator as _, ParallelIterator as _};

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

/// Writes a plan as its request is answered now, if that is another answer.
fn renew(path: &Path) {
    if planner::check::check(path).is_ok_and(|checked| checked.same) {
        return;
    }
    // the rest may be of other prices, and refused
    let committed: toml::Table = fs::read_to_string(path).expect("a plan").parse().expect("a plan");
    let request: plans::plan::Request = committed["request"].clone().try_into().expect("a request");
    let beside = |name: &str| path.with_file_name(name);
    let inputs = planner::read_inputs(&beside("device.toml"), &beside("model.toml")).expect("profiles");
    match planner::plan(&inputs, &request).expect("a sensible request") {
        planner::Answer::Plan(solved) => {
            plans::file::write(&solved.plan, path).expect("written");
        }
        planner::Answer::Infeasible(why) => panic!("{}: {why}", path.display()),
    }
}

#[test]
fn committed_plans_are_solved_the_same_again() {
    let plans = committed();
    assert!(!plans.is_empty(), "there are committed plans");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        plans.par_iter().for_each(|path| renew(path));
    }
    let wrong: Vec<String> = plans
        .par_iter()
        .filter_map(|path| match planner::check::check(path) {
            Ok(checked) if checked.same => None,
            Ok(checked) => Some(format!("{}: {}", path.display(), checked.finding)),
            Err(error) => Some(format!("{}: {error}", path.display())),
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
