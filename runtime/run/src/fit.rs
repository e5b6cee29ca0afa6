//! Whether a plan is for this machine and this container: every difference is named.

use std::path::{Path, PathBuf};

use plans::{Device, Plan};

use super::{Failure, failure};
use flashplan::container::Container;
use flashplan::machine::Machine;

/// A plan, the container it is for, and the machine it is for: this one.
#[derive(Debug)]
pub(super) struct Fitting {
    pub(super) plan: Plan,
    pub(super) container: Container,
}

/// Reads a plan and finds its container; both are checked against each other and against this machine.
pub(super) fn open(plan_path: &Path, model: Option<&Path>) -> Result<Fitting, Failure> {
    let plan: Plan = plans::file::read(plan_path)
        .map_err(|error| match error {
            error @ plans::ContractError::Schema { .. } => Failure::DoesNotFit(error.to_string()),
            error => failure(error),
        })?
        .value;
    let path = find(&plan, plan_path, model)?;
    let container = Container::open(&path).map_err(failure)?;
    container_matches(&plan, &container)?;
    let machine = Machine::here(&path).map_err(failure)?;
    machine_matches(&plan, &machine)?;
    Ok(Fitting { plan, container })
}

/// The container: as given, or by the plan's name for it beside the plan or in the current folder.
fn find(plan: &Plan, plan_path: &Path, given: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let name = &plan.target.container;
    if Path::new(name).file_name().is_none_or(|file| file != name.as_str()) {
        return Err(failure(format!("the plan's target.container is `{name}`, which is not a file name")));
    }
    let beside = plan_path.parent().unwrap_or(Path::new("")).join(name);
    [beside, PathBuf::from(name)].into_iter().find(|path| path.exists()).ok_or_else(|| {
        failure(format!(
            "{name} is neither beside {} nor in the current folder; name it with --model, or make it with `profile --model`",
            plan_path.display()
        ))
    })
}

fn container_matches(plan: &Plan, container: &Container) -> Result<(), Failure> {
    let target = &plan.target;
    if container.directory.source_fingerprint != target.model_fingerprint {
        return Err(Failure::DoesNotFit(format!(
            "it was made for the model {} ({}), and {} holds {} ({}); plan for this model",
            target.model,
            short(&target.model_fingerprint),
            container.path.display(),
            container.directory.name,
            short(&container.directory.source_fingerprint),
        )));
    }
    if container.fingerprint != target.container_fingerprint {
        return Err(Failure::DoesNotFit(format!(
            "it was made for the container {}, and {} is {}, made from the same model in another profile; plan with its model.toml",
            short(&target.container_fingerprint),
            container.path.display(),
            short(&container.fingerprint),
        )));
    }
    Ok(())
}

fn machine_matches(plan: &Plan, machine: &Machine) -> Result<(), Failure> {
    let (target, here) = (&plan.target, machine.identity());
    let differs = |what: &str, planned: &str, found: &str| {
        Err(Failure::DoesNotFit(format!(
            "it was made for {what} `{planned}` ({}), and this machine has `{found}`; profile and plan here",
            target.device
        )))
    };
    if target.cpu != here.cpu {
        return differs("the processor", &target.cpu, &here.cpu);
    }
    if target.ram_gib != here.ram_gib {
        return differs("GiB of memory", &target.ram_gib.to_string(), &here.ram_gib.to_string());
    }
    if target.storage != here.storage {
        return differs("the block device", &target.storage, &here.storage);
    }
    let fingerprint = Device::fingerprint_of(&here);
    if target.device_fingerprint != fingerprint {
        return differs("the device with fingerprint", &target.device_fingerprint, &fingerprint);
    }
    let (needed, available) = (plan.memory.prefill_total_bytes, machine.available_bytes);
    if needed > available {
        return Err(Failure::DoesNotFit(format!(
            "it takes {needed} bytes of memory, and {available} are available now; close other programs or plan with a lower --mem"
        )));
    }
    if let Some(group) = &machine.memory_group
        && let Some(limit) = group.limit_bytes
        && needed > limit
    {
        return Err(Failure::DoesNotFit(format!(
            "it takes {needed} bytes of memory, and this process's control group allows {limit}; plan with a lower --mem"
        )));
    }
    Ok(())
}

fn short(fingerprint: &str) -> &str {
    fingerprint.get(..12).unwrap_or(fingerprint)
}
