//! Adds the counts of this run to `learned.toml`, for the next plan.
//!
//! The file lies beside the `model.toml` that the plan was made from, found by its hash: beside the plan, or in the plan's
//! `model_folder`. Two runs that end at the same moment keep the counts of one of them.

use std::path::{Path, PathBuf};

use flashplan::internals::engine::Visited;
use plans::file::{hash_file, read, write};
use plans::learned::{Counted, FILE, Learned};
use plans::{ContractError, Plan, SCHEMA};

/// Adds the visits of a run, if there are any and the profile's folder is known. Counts of another model or version, or damaged ones,
/// are replaced, with a remark. A folder that cannot be written is left alone.
pub(super) fn add(visited: Visited, plan: &Plan, plan_path: &Path) {
    let Visited { tokens, layers } = visited;
    if tokens == 0 {
        return;
    }
    let Some(path) = profile_folder(plan, plan_path).map(|folder| folder.join(FILE)) else { return };
    let target = &plan.target;
    let mut of_run = Learned {
        schema: SCHEMA,
        learned: Counted {
            tool: format!("run {}", env!("CARGO_PKG_VERSION")),
            model: target.model.clone(),
            model_fingerprint: target.model_fingerprint.clone(),
            container_fingerprint: target.container_fingerprint.clone(),
            tokens,
        },
        layers,
    };
    of_run.bound();
    let replaces = match read::<Learned>(&path) {
        Ok(before) if before.value.is_of(&of_run) => {
            of_run.add(&before.value);
            None
        }
        Ok(_) => Some("it counted another model or container".to_owned()),
        Err(ContractError::Missing { .. }) => None,
        Err(error) => Some(error.to_string()),
    };
    if write(&of_run, &path).is_ok()
        && let Some(why) = replaces
    {
        terminal::say(format_args!("note: {FILE} is counted from the start: {why}"));
    }
}

/// The folder of the `model.toml` that a plan was made from.
fn profile_folder(plan: &Plan, plan_path: &Path) -> Option<PathBuf> {
    let beside = plan_path.parent().map(Path::to_owned);
    let named = plan.provenance.model_folder.as_ref().map(PathBuf::from);
    let is_profile = |folder: &PathBuf| {
        hash_file(&folder.join("model.toml")).is_ok_and(|hash| hash == plan.provenance.model_toml)
    };
    [beside, named].into_iter().flatten().find(is_profile)
}

#[cfg(test)]
mod tests {
    use plans::learned::{LayerVisits, PREFIXES, SIZES, after_prefix};

    use super::*;

    const PLAN: &str = include_str!("../../engine/src/transformer/test_plan.toml");

    /// Visits of eight experts, all of them at once again.
    fn visited(tokens: u64) -> Visited {
        let of_prefix = |prefix| {
            let mut distances = vec![0; 8 - after_prefix(8, prefix)];
            distances[0] = tokens * distances.len() as u64;
            distances
        };
        let layer = LayerVisits {
            visits: vec![tokens; 8],
            distances: (0..PREFIXES).map(of_prefix).collect(),
            frequency_misses: vec![tokens; SIZES.len()],
        };
        Visited { tokens, layers: vec![layer; 2] }
    }

    /// A folder with a profile, and a plan that was made from it.
    fn place() -> (tempfile::TempDir, Plan, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let mut plan: Plan = plans::file::parse(PLAN, Path::new("plan.toml")).unwrap();
        let profile = folder.path().join("model.toml");
        std::fs::write(&profile, "a profile").unwrap();
        plan.provenance.model_toml = hash_file(&profile).unwrap();
        let path = folder.path().join("plan.toml");
        (folder, plan, path)
    }

    fn tokens(folder: &Path) -> Option<u64> {
        read::<Learned>(&folder.join(FILE)).ok().map(|loaded| loaded.value.learned.tokens)
    }

    #[test]
    fn runs_add_up_beside_the_profile_and_nowhere_else() {
        let (folder, mut plan, path) = place();
        add(visited(0), &plan, &path);
        assert_eq!(tokens(folder.path()), None, "no token, no file");
        add(visited(30), &plan, &path);
        add(visited(12), &plan, &path);
        assert_eq!(tokens(folder.path()), Some(42));
        // a plan elsewhere names the profile's folder
        let elsewhere = tempfile::tempdir().unwrap();
        add(visited(1), &plan, &elsewhere.path().join("plan.toml"));
        plan.provenance.model_folder = Some(folder.path().display().to_string());
        add(visited(5), &plan, &elsewhere.path().join("plan.toml"));
        assert_eq!((tokens(folder.path()), tokens(elsewhere.path())), (Some(47), None));
        // a profile that was made again is another one
        std::fs::write(folder.path().join("model.toml"), "another profile").unwrap();
        add(visited(5), &plan, &path);
        assert_eq!(tokens(folder.path()), Some(47));
    }

    #[test]
    fn other_and_damaged_counts_are_replaced_and_files_of_others_stay() {
        let (folder, mut plan, path) = place();
        let file = folder.path().join(FILE);
        add(visited(30), &plan, &path);
        plan.target.container_fingerprint = "another".to_owned();
        add(visited(7), &plan, &path);
        assert_eq!(tokens(folder.path()), Some(7));
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace("tokens = 7", "tokens = 8")).unwrap();
        add(visited(9), &plan, &path);
        assert_eq!(tokens(folder.path()), Some(9));
        std::fs::write(&file, "my notes").unwrap();
        add(visited(9), &plan, &path);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "my notes");
    }
}
