//! The unit beside the CPU that a plan names, for the engine.
//!
//! A program without the feature `gpu` knows no unit, and refuses such plans like a machine without one.

use flashplan::internals::engine::{Aside, Fallback};
use flashplan::{Error, Mismatch};
use kernels::ProductUnit;
use plans::Plan;
use plans::plan::UnitQuality;

use super::Failure;
#[cfg(feature = "gpu")]
use super::failure;

/// Opens the unit of a plan's quality; `fallback` lets the cores compute its part where it is absent or fails.
pub(super) fn aside(plan: &Plan, fallback: bool) -> Result<Aside, Failure> {
    let Some(quality) = plan.quality.units.first() else { return Ok(Aside::default()) };
    let falls_back = fallback.then(|| Fallback(Box::new(|fault| go_on(fault))));
    match open(plan, quality) {
        Ok(unit) => Ok(Aside { unit: Some(unit), fallback: falls_back }),
        Err(failure) if fallback => {
            go_on(&failure);
            Ok(Aside { unit: None, fallback: falls_back })
        }
        Err(failure) => Err(failure),
    }
}

fn go_on(why: &dyn std::fmt::Display) {
    terminal::say(format_args!("warning: the cores compute the unit's part, in other bits: {why}"));
}

/// Time that a GPU has for a chunk's products with a matrix: far more than any needs.
#[cfg(feature = "gpu")]
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

#[cfg(feature = "gpu")]
fn open(plan: &Plan, quality: &UnitQuality) -> Result<Box<dyn ProductUnit>, Failure> {
    let adapters = gpu::adapters();
    let found = adapters.iter().map(gpu::Adapter::identity).collect::<Vec<_>>();
    let Some(at) = found.iter().position(|name| *name == quality.adapter) else {
        let found = if found.is_empty() { "no driver that answers".to_owned() } else { found.join("`, `") };
        return Err(Error::from(Mismatch::Adapter { planned: quality.adapter.clone(), found }).into());
    };
    let Some(memory) = plan.gpu else { return Err(failure("the plan has no `gpu`; plan again")) };
    let limits = gpu::Limits {
        memory_bytes: memory.limit_bytes,
        transfer_bytes: memory.transfer_bytes,
        patience: PATIENCE,
    };
    Ok(Box::new(gpu::Beside::open(&adapters[at], limits).map_err(failure)?))
}

#[cfg(not(feature = "gpu"))]
fn open(_: &Plan, quality: &UnitQuality) -> Result<Box<dyn ProductUnit>, Failure> {
    let unit = quality.unit.clone();
    let share_percent = 100.0 * quality.share_fraction();
    Err(Error::from(Mismatch::Unit { stage: "prompts", unit, share_percent }).into())
}
