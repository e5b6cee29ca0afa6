//! A unit beside the cores, and its rows of the fixed matrices.
//!
//! The unit has the last rows of each matrix from the start, the cores have all. A prompt's products begin on
//! the unit, the cores compute their rows meanwhile, and the step goes on when both are done. If the unit fails,
//! the cores compute its rows, too; then the step ends with an error, unless the caller allowed a fallback.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use kernels::{Matrix, ProductUnit, UnitError};
use plans::plan::UnitQuality;

use super::{Transformer, TransformerError};
use crate::model::config::Config;
use crate::weights::Weights;

/// A unit beside the cores, and what is done without it.
#[derive(Debug, Default)]
pub struct Aside {
    /// The unit that the plan's quality names.
    pub unit: Option<Box<dyn ProductUnit>>,
    /// Lets the cores compute the part of a unit that is absent or fails, in their own bits. It hears the fault, once.
    pub fallback: Option<Fallback>,
}

/// Hears why the cores go on alone.
pub struct Fallback(pub Box<dyn FnMut(&UnitError) + Send>);

impl fmt::Debug for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fallback").finish_non_exhaustive()
    }
}

/// A unit with its rows of the fixed matrices.
#[derive(Debug)]
pub(super) struct Beside {
    /// By the address of a matrix, which never moves.
    shares: HashMap<usize, Share>,
    state: RefCell<State>,
}

/// The unit's rows of a matrix.
#[derive(Debug, Clone, Copy)]
struct Share {
    /// The matrix that the unit has them as.
    number: usize,
    /// Rows before them.
    first: usize,
}

#[derive(Debug)]
struct State {
    unit: Box<dyn ProductUnit>,
    /// The fault since the last check.
    fault: Option<UnitError>,
    fallback: Option<Fallback>,
    /// The cores have fallen back.
    lost: bool,
    work: UnitWork,
    /// Matrices of a call, and the first columns of their products.
    numbers: Vec<usize>,
    firsts: Vec<usize>,
}

/// Totals of a unit's work since start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnitWork {
    /// Calls: matrices with the same vectors.
    pub calls: u64,
    /// Bytes of vectors to the unit.
    pub vector_bytes: u64,
    /// Bytes of products from the unit.
    pub product_bytes: u64,
    /// Bytes of the unit's memory; not a total.
    pub held_bytes: u64,
    /// Time to hand vectors over.
    pub begin: Duration,
    /// Time that the cores waited for the unit.
    pub wait: Duration,
}

impl UnitWork {
    /// Combines numbers and times with the other's.
    pub(crate) fn with(
        &self,
        other: &Self,
        of: fn(u64, u64) -> u64,
        of_time: fn(Duration, Duration) -> Duration,
    ) -> Self {
        Self {
            calls: of(self.calls, other.calls),
            vector_bytes: of(self.vector_bytes, other.vector_bytes),
            product_bytes: of(self.product_bytes, other.product_bytes),
            held_bytes: self.held_bytes.max(other.held_bytes),
            begin: of_time(self.begin, other.begin),
            wait: of_time(self.wait, other.wait),
        }
    }
}

impl Transformer {
    /// Gives a unit its rows of the fixed matrices: from now on prompts use it.
    ///
    /// # Errors
    /// If the unit has no memory for them, or fails, and there is no fallback.
    pub(crate) fn work_beside(
        &mut self,
        aside: Aside,
        quality: Option<&UnitQuality>,
    ) -> Result<(), TransformerError> {
        let Aside { unit, mut fallback } = aside;
        let Some((mut unit, quality)) = unit.zip(quality) else { return Ok(()) };
        match Share::all(&mut *unit, quality, &self.config, &self.weights) {
            Ok(shares) => self.compute.unit = Some(Beside::new(unit, shares, fallback)),
            Err(source) => match &mut fallback {
                Some(fallback) => (fallback.0)(&source),
                None => return Err(TransformerError::Unit { source }),
            },
        }
        Ok(())
    }
}

impl Share {
    /// Gives the unit its rows of all matrices.
    fn all(
        unit: &mut dyn ProductUnit,
        quality: &UnitQuality,
        config: &Config,
        weights: &Weights,
    ) -> Result<HashMap<usize, Self>, UnitError> {
        let mut shares = HashMap::new();
        let of_block = |block| config.parts(block).into_iter().map(move |part| (block, part.role));
        let all = (0..config.blocks.len()).flat_map(of_block).filter(|(_, role)| role.meets_chunks());
        for w in all.map(|(block, role)| weights.matrix(block, role)) {
            let (first, row_bytes) = (quality.rows_left(w.rows), w.bytes.len() / w.rows);
            if first < w.rows && !shares.contains_key(&address(w)) {
                let bytes = &w.bytes[first * row_bytes..];
                let number = unit.load(Matrix { rows: w.rows - first, bytes, ..w })?;
                shares.insert(address(w), Self { number, first });
            }
        }
        Ok(shares)
    }
}

impl Beside {
    fn new(unit: Box<dyn ProductUnit>, shares: HashMap<usize, Share>, fallback: Option<Fallback>) -> Self {
        let state = State {
            unit,
            fault: None,
            fallback,
            lost: false,
            work: UnitWork::default(),
            numbers: Vec::new(),
            firsts: Vec::new(),
        };
        Self { shares, state: state.into() }
    }

    /// Begins the unit's part of stacked matrices times many vectors. Returns whether the cores are to leave it out:
    /// [`Self::rows_left`].
    pub(super) fn begin(&self, parts: &[Matrix<'_>], x: &[f32]) -> bool {
        let state = &mut *self.state.borrow_mut();
        if state.fault.is_some() || state.lost {
            return false;
        }
        state.numbers.clear();
        state.firsts.clear();
        let (mut at, mut rows) = (0, 0);
        for part in parts {
            if let Some(share) = self.shares.get(&address(*part)) {
                state.numbers.push(share.number);
                state.firsts.push(at + share.first);
                rows += part.rows - share.first;
            }
            at += part.rows;
        }
        if rows == 0 {
            return false;
        }
        let clock = Instant::now();
        let begun = state.unit.begin(&state.numbers, x);
        state.work.begin += clock.elapsed();
        state.work.calls += 1;
        state.work.vector_bytes += size_of_val(x) as u64;
        state.work.product_bytes += (x.len() / parts[0].columns * rows * size_of::<f32>()) as u64;
        state.done(begun)
    }

    /// Rows of a matrix that the cores compute beside the unit, the first ones.
    pub(super) fn rows_left(&self, part: Matrix<'_>) -> usize {
        self.shares.get(&address(part)).map_or(part.rows, |share| share.first)
    }

    /// Waits for what was begun, and writes it to the columns from `first` on; whether it is there.
    pub(super) fn finish(&self, out: &mut [f32], stride: usize, first: usize) -> bool {
        let state = &mut *self.state.borrow_mut();
        state.firsts.iter_mut().for_each(|column| *column += first);
        let clock = Instant::now();
        let finished = state.unit.finish(out, stride, &state.firsts);
        state.work.wait += clock.elapsed();
        state.done(finished)
    }

    /// The fault since the last check.
    pub(super) fn check(&self) -> Result<(), TransformerError> {
        match self.state.borrow_mut().fault.take() {
            Some(source) => Err(TransformerError::Unit { source }),
            None => Ok(()),
        }
    }

    /// Totals since start.
    pub(super) fn work(&self) -> UnitWork {
        let state = self.state.borrow();
        UnitWork { held_bytes: state.unit.held_bytes(), ..state.work }
    }
}

impl State {
    /// Takes note of a call's fault, or tells the fallback; whether there was none.
    fn done(&mut self, result: Result<(), UnitError>) -> bool {
        let Err(fault) = result else { return true };
        if let Some(fallback) = &mut self.fallback {
            (fallback.0)(&fault);
            self.lost = true;
        } else {
            self.fault = Some(fault);
        }
        false
    }
}

/// The address of a matrix in the fixed region, where no other begins.
fn address(w: Matrix<'_>) -> usize {
    w.bytes.as_ptr().addr()
}
