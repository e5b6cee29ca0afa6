//! How far assumptions matter.

use planner::{Inputs, PlanError};

use super::devices::Phone;
use super::models::{Assumed, Published};
use super::results::{Case, speed};

/// Speeds of the 47B model with half of the FFN on flash where an assumption is other: its name, with 0.8 and with 1.25 times it.
pub(crate) fn sensitivity() -> Result<Vec<(&'static str, [f64; 2])>, PlanError> {
    let given = Assumed::PUBLISHED;
    let speed_of = |change: &dyn Fn(&mut Inputs), given: &Assumed| {
        let mut case = Case::new(Phone::OnePlus12, Published::Mixtral47B, given);
        let limit = case.half()?;
        change(&mut case.0);
        Ok::<_, PlanError>(speed(&case.plan(limit, &[])?))
    };
    let of_device = |change: &dyn Fn(&mut Inputs, f64)| {
        let [less, more] = [0.8, 1.25].map(|times| speed_of(&|inputs| change(inputs, times), &given));
        Ok::<_, PlanError>([less?, more?])
    };
    let of_model = |change: &dyn Fn(f64) -> Assumed| {
        let [less, more] = [0.8, 1.25].map(|times| speed_of(&|_| {}, &change(times)));
        Ok::<_, PlanError>([less?, more?])
    };
    let scale = |rates: &mut Vec<f64>, times: f64| rates.iter_mut().for_each(|rate| *rate *= times);
    Ok(vec![
        (
            "GFLOP/s of the cores",
            of_device(&|inputs, t| scale(&mut inputs.device.kernels[0].flops_per_second, t))?,
        ),
        (
            "bytes/s of gathered rows",
            of_device(&|inputs, t| scale(&mut inputs.device.kernels[0].sparse_bytes_per_second, t))?,
        ),
        (
            "reads/s",
            of_device(&|inputs, t| {
                inputs.device.storage.reads.iter_mut().for_each(|r| r.reads_per_second *= t);
            })?,
        ),
        (
            "the NPU's seconds to take a matrix",
            of_device(&|inputs, t| {
                inputs
                    .device
                    .units
                    .iter_mut()
                    .filter_map(|u| u.rates.as_mut())
                    .for_each(|r| r.dispatch_seconds *= t);
            })?,
        ),
        (
            "missing with half in memory",
            of_model(&|t| Assumed { missing_at_half: t * given.missing_at_half, ..given })?,
        ),
        (
            "the predictor's precision",
            of_model(&|t| Assumed { precision: (t * given.precision).min(1.0), ..given })?,
        ),
        ("an expert visited again", of_model(&|t| Assumed { same_expert: t * given.same_expert, ..given })?),
    ])
}
