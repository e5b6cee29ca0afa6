//! A unit beside the cores: a plain one, whose sums are exact to the last bit or so, and one that fails on demand.

use std::sync::{Arc, Mutex};

use kernels::{Matrix, ProductUnit, UnitError};
use plans::plan::{GpuPlan, UnitQuality, UnitShare};

use super::*;

/// The name of both units.
pub(crate) const NAME: &str = "plain Rust (sums of f64; 1 lane)";

/// The calls of a unit.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Calls to begin.
    pub(crate) begun: usize,
    /// Whether each matrix was used.
    pub(crate) used: Vec<bool>,
}

/// A unit of plain loops over dequantised rows.
#[derive(Debug, Default)]
pub(crate) struct PlainUnit {
    /// Each matrix: its columns, and its values.
    matrices: Vec<(usize, Vec<f32>)>,
    /// The matrices and vectors of what was begun.
    begun: Option<(Vec<usize>, Vec<f32>)>,
    pub(crate) log: Arc<Mutex<Log>>,
    /// The call that fails, if one does: `load`, `begin` or `finish`, and how many of them go well before.
    fails: Option<(&'static str, usize)>,
}

impl PlainUnit {
    /// Fails at a call, once.
    pub(crate) fn failing(call: &'static str, after: usize) -> Self {
        Self { fails: Some((call, after)), ..Self::default() }
    }

    fn call(&mut self, call: &str) -> Result<(), UnitError> {
        match &mut self.fails {
            Some((failing, 0)) if *failing == call => {
                self.fails = None;
                Err(format!("the unit was lost at {call}: plan without it").into())
            }
            Some((failing, after)) if *failing == call => {
                *after -= 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl ProductUnit for PlainUnit {
    fn name(&self) -> &str {
        NAME
    }

    fn load(&mut self, w: Matrix<'_>) -> Result<usize, UnitError> {
        self.call("load")?;
        let mut values = vec![0.0; w.rows * w.columns];
        dequantise(w.format, w.bytes, &mut values);
        self.matrices.push((w.columns, values));
        self.log.lock().unwrap().used.push(false);
        Ok(self.matrices.len() - 1)
    }

    fn begin(&mut self, matrices: &[usize], x: &[f32]) -> Result<(), UnitError> {
        self.call("begin")?;
        assert!(self.begun.is_none(), "one after another");
        let mut log = self.log.lock().unwrap();
        log.begun += 1;
        matrices.iter().for_each(|&matrix| log.used[matrix] = true);
        self.begun = Some((matrices.to_vec(), x.to_vec()));
        Ok(())
    }

    fn finish(&mut self, out: &mut [f32], stride: usize, firsts: &[usize]) -> Result<(), UnitError> {
        let (matrices, x) = self.begun.take().expect("begun");
        self.call("finish")?;
        for (matrix, &first) in matrices.into_iter().zip(firsts) {
            let (columns, values) = &self.matrices[matrix];
            for (x, out) in x.chunks(*columns).zip(out.chunks_mut(stride)) {
                for (row, out) in values.chunks(*columns).zip(&mut out[first..]) {
                    *out = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() as f32;
                }
            }
        }
        Ok(())
    }

    fn held_bytes(&self) -> u64 {
        self.matrices.iter().map(|(_, values)| size_of_val(&values[..]) as u64).sum()
    }
}

/// Gives a prompt's part of a plan to a GPU.
pub(crate) fn share(plan: &mut Plan, prefill_parts: u32) {
    let quality = UnitQuality { unit: "gpu".to_owned(), adapter: NAME.to_owned(), prefill_parts };
    let share = |unit: &str, share_fraction| UnitShare { unit: unit.to_owned(), share_fraction };
    let taken = quality.share_fraction();
    plan.prefill.units = vec![share("cpu", 1.0 - taken), share("gpu", taken)];
    plan.gpu = Some(GpuPlan { limit_bytes: 1 << 30, weights_bytes: 1 << 20, transfer_bytes: 1 << 20 });
    plan.quality.units = vec![quality];
    plan.provenance.quality = plan.quality_hash();
}

pub(crate) fn start_beside(
    container: &Container,
    mut plan: Plan,
    prefill_parts: u32,
    unit: PlainUnit,
) -> Result<Transformer, TransformerError> {
    share(&mut plan, prefill_parts);
    let mut engine = start(container, &plan);
    let aside = Aside { unit: Some(Box::new(unit)), fallback: None };
    engine.work_beside(aside, plan.quality.units.first())?;
    Ok(engine)
}

pub(crate) fn prompt(engine: &mut Transformer) -> Result<Vec<Vec<f32>>, TransformerError> {
    let mut logits = Vec::new();
    engine.prefill(&rows(&TOKENS), Some(&mut |_, of_token| logits.push(of_token.to_vec())))?;
    Ok(logits)
}

#[test]
fn weights_in_blocks_are_multiplied_as_they_lie_on_either_side() {
    for (experts, format) in
        [(1, Format::F16), (1, Format::Q8_0), (4, Format::Q4_0), (1, Format::Q4K), (4, Format::Q6K)]
    {
        let bytes = model(experts, format);
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let container = container(folder.path(), &source);
        let expected = dense_logits(&source, &container);
        for (activations, near) in [("f32", 2e-3), ("q8", 0.1)] {
            let mut first: Option<Vec<Vec<f32>>> = None;
            for knobs in [Knobs { chunk: 3, ..Knobs::default() }, Knobs { hot: 96, ..Knobs::default() }] {
                let mut plan = plan(&container, "dense", &knobs);
                activations.clone_into(&mut plan.quality.activations);
                let mut alone = start(&container, &plan);
                let mut engine = start_beside(&container, plan, 40, PlainUnit::default()).unwrap();
                let found = prompt(&mut engine).unwrap();
                let off = distance(&found, &expected);
                assert!(off < near, "{experts} {format} {activations}: off by {off}");
                assert!(found != prompt(&mut alone).unwrap(), "{format}: the unit's sums are its own");
                assert_eq!(decode(&mut engine).unwrap(), decode(&mut alone).unwrap(), "the cores decode");
                let first = first.get_or_insert_with(|| found.clone());
                assert!(*first == found, "{experts} {format} {activations}: one quality, the same bits");
            }
        }
    }
}

#[test]
fn a_unit_that_fails_ends_the_step_and_gives_no_token() {
    let bytes = model(1, Format::F32);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    let planned = || plan(&container, "dense", &Knobs { chunk: 5, ..Knobs::default() });
    let whole = prompt(&mut start_beside(&container, planned(), 32, PlainUnit::default()).unwrap()).unwrap();
    let calls = 3 * LAYERS * 2; // of three chunks, for each layer's projections and output
    for call in ["begin", "finish"] {
        for after in 0..calls {
            let unit = PlainUnit::failing(call, after);
            let mut engine = start_beside(&container, planned(), 32, unit).unwrap();
            let mut given = 0;
            let failed = engine.prefill(&rows(&TOKENS), Some(&mut |_, _| given += 1)).map(drop).unwrap_err();
            let message = failed.to_string();
            assert_eq!(message, format!("the unit was lost at {call}: plan without it"));
            assert!(matches!(crate::Error::from(failed), crate::Error::Unit { .. }));
            let chunks = after / (calls / 3);
            assert_eq!(given, 5 * chunks, "{call} {after}: logits of the chunks before alone");
            assert!(prompt(&mut engine).unwrap() == whole, "{call} {after}: a prompt after it is right");
        }
        let mut engine = start_beside(&container, planned(), 32, PlainUnit::failing(call, calls)).unwrap();
        assert!(prompt(&mut engine).unwrap() == whole, "no call is left to fail");
    }
    let refused = start_beside(&container, planned(), 32, PlainUnit::failing("load", 3)).unwrap_err();
    assert_eq!(refused.to_string(), "the unit was lost at load: plan without it");
}

#[test]
fn with_a_fallback_the_cores_compute_what_a_unit_does_not() {
    let bytes = model(1, Format::F32);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    let mut plan = plan(&container, "dense", &Knobs { chunk: 5, ..Knobs::default() });
    let alone = prompt(&mut start(&container, &plan)).unwrap();
    share(&mut plan, 32);
    for (call, after) in [("load", 0), ("load", 3), ("begin", 0), ("finish", 0), ("begin", 5), ("finish", 9)]
    {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = told.clone();
        let fallback = move |fault: &UnitError| tell.lock().unwrap().push(fault.to_string());
        let unit = Some(Box::new(PlainUnit::failing(call, after)) as Box<dyn ProductUnit>);
        let mut engine = start(&container, &plan);
        let aside = Aside { unit, fallback: Some(Fallback(Box::new(fallback))) };
        engine.work_beside(aside, plan.quality.units.first()).unwrap();
        let found = prompt(&mut engine).unwrap();
        assert!(distance(&found, &alone) < 1e-4, "{call} {after}");
        assert_eq!(
            found == alone,
            after == 0 || call == "load",
            "{call} {after}: before it, the unit's own bits"
        );
        assert!(prompt(&mut engine).unwrap() == alone, "{call} {after}: then the cores' bits");
        assert_eq!(
            *told.lock().unwrap(),
            [format!("the unit was lost at {call}: plan without it")],
            "told once"
        );
    }
}
