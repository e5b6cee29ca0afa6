//! Compares a plan with this machine and its container, and names every difference.

use plans::Device;
use plans::check::UNITS;

use crate::container::Container;
use crate::error::{Error, Mismatch};
use crate::machine::Machine;
use crate::transformer::Aside;

/// Compares a plan with its container, with this machine, and with the unit that is there beside the CPU.
pub(crate) fn check(plan: &plans::Plan, container: &Container, aside: &Aside) -> Result<(), Error> {
    units(plan, aside)?;
    container_matches(plan, container)?;
    let machine = Machine::here(container.weights_path())
        .map_err(|source| Error::Machine { source: Box::new(source) })?;
    Ok(machine_matches(plan, &machine)?)
}

/// Refuses every unit but the CPU, and the one that computes a prompt's part of the plan's quality.
fn units(plan: &plans::Plan, aside: &Aside) -> Result<(), Mismatch> {
    let (quality, unit) = (plan.quality.units.first(), aside.unit.as_deref());
    let there = quality.filter(|_| unit.is_some() || aside.fallback.is_some()).map(|quality| &quality.unit);
    for (stage, shares) in [("decoding", &plan.decode.units), ("prompts", &plan.prefill.units)] {
        let other = |name: &String| name != UNITS[0] && (stage == "decoding" || Some(name) != there);
        if let Some(other) = shares.iter().find(|share| other(&share.unit)) {
            let (unit, share_percent) = (other.unit.clone(), 100.0 * other.share_fraction);
            return Err(Mismatch::Unit { stage, unit, share_percent });
        }
    }
    match quality.zip(unit) {
        Some((quality, unit)) if quality.adapter != unit.name() => {
            Err(Mismatch::Adapter { planned: quality.adapter.clone(), found: unit.name().to_owned() })
        }
        _ => Ok(()),
    }
}

fn container_matches(plan: &plans::Plan, container: &Container) -> Result<(), Mismatch> {
    let (target, directory) = (&plan.target, &container.directory);
    if directory.source_fingerprint != target.model_fingerprint {
        return Err(Mismatch::Model {
            planned: target.model.clone(),
            planned_fingerprint: short(&target.model_fingerprint),
            path: container.path.clone(),
            found: directory.name.clone(),
            found_fingerprint: short(&directory.source_fingerprint),
        });
    }
    if container.fingerprint != target.container_fingerprint {
        return Err(Mismatch::Container {
            planned: short(&target.container_fingerprint),
            path: container.path.clone(),
            found: short(&container.fingerprint),
        });
    }
    Ok(())
}

fn machine_matches(plan: &plans::Plan, machine: &Machine) -> Result<(), Mismatch> {
    let (target, here) = (&plan.target, machine.identity());
    let (planned_ram, ram) = (target.ram_gib.to_string(), here.ram_gib.to_string());
    let fingerprint = Device::fingerprint_of(&here);
    for (what, planned, found) in [
        ("the processor", &target.cpu, &here.cpu),
        ("GiB of memory", &planned_ram, &ram),
        ("the block device", &target.storage, &here.storage),
        ("the device with fingerprint", &target.device_fingerprint, &fingerprint),
    ] {
        if planned != found {
            let (planned, found) = (planned.clone(), found.clone());
            return Err(Mismatch::Machine { what, planned, device: target.device.clone(), found });
        }
    }
    let (needed_bytes, available_bytes) = (plan.memory.prefill_total_bytes, machine.available_bytes);
    if needed_bytes > available_bytes {
        return Err(Mismatch::Memory { needed_bytes, available_bytes });
    }
    let limit = machine.memory_group.as_ref().and_then(|group| group.limit_bytes);
    if let Some(limit_bytes) = limit.filter(|&limit| needed_bytes > limit) {
        return Err(Mismatch::ControlGroup { needed_bytes, limit_bytes });
    }
    Ok(())
}

/// The first digits of a fingerprint, for people.
fn short(fingerprint: &str) -> String {
    fingerprint.get(..12).unwrap_or(fingerprint).to_owned()
}
