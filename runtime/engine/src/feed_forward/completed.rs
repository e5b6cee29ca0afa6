//! Slices that were read: verified, rearranged for the kernels, and inserted.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use plans::layout::PARTS;

use super::{List, Network};
use crate::cache::Place;
use crate::fetch::{Arrived, Completed, Fetcher};
use crate::neurons::{LayerNeurons, NeuronError};

/// The first damaged bundle found by the threads, as an index into the list.
pub(super) struct Checks(AtomicUsize);

impl Default for Checks {
    fn default() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }
}

impl Checks {
    /// Verifies one neuron.
    pub(super) fn check(&self, list: &List<'_>, completed: Completed<'_>, index: usize) {
        if list.check(completed, index).is_err() {
            self.0.fetch_min(index, Ordering::Relaxed);
        }
    }

    /// The error of the first damaged neuron, if any; then cancels all reads of the list.
    pub(super) fn finish(self, list: &List<'_>, fetcher: &mut Fetcher) -> Result<(), NeuronError> {
        match self.0.into_inner() {
            usize::MAX => Ok(()),
            index => {
                let refused = list.check(fetcher.completed(), index);
                fetcher.abandon();
                refused
            }
        }
    }
}

/// Verifies each part of completed slices whose parts are separate, and rearranges its rows for the kernels
/// if needed, on all threads.
pub(super) fn complete_parts(
    n: &mut Network<'_>,
    list: &List<'_>,
    slices: &[u32],
) -> Result<(), NeuronError> {
    let failed = Mutex::new(None);
    let (completed, mut due) = n.fetcher.completed_and_due();
    n.pool.claim(
        PARTS * slices.len(),
        || due.go_on(),
        |at| {
            let (slice, part) = (slices[at / PARTS] as usize, at % PARTS);
            let (number, bytes) = (list.requested[slice], list.slice_bytes(completed, slice));
            let start = list.neurons.starts(list.shape, number)[part];
            let bytes = &bytes[start..][..list.shape.parts_bytes()[part]];
            if let Err(error) = list.neurons.verify_part(number, part, bytes) {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        },
    );
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        n.fetcher.abandon();
        return Err(error);
    }
    for &slice in slices {
        let number = list.requested[slice as usize];
        let span = list.neurons.slice_span(list.shape, list.shape.part, number);
        let starts = list.neurons.starts(list.shape, number);
        for part in (0..PARTS).filter(|&part| list.shape.is_repacked(part)) {
            let bytes = n.fetcher.completed_mut(slice as usize, span);
            let rows = &mut bytes[starts[part]..][..list.shape.parts_bytes()[part]];
            n.pool.split_rows(rows, list.shape.part_row_bytes(part), |_, rows| list.shape.repack(part, rows));
        }
    }
    Ok(())
}

/// Inserts each slice of a range that was read, if the cache accepts it; with `free`, only into free slots.
pub(super) fn insert(
    n: &mut Network<'_>,
    layer: usize,
    neurons: &mut LayerNeurons,
    (requested, places, order): (&[u32], &mut [Place], &mut [u32]),
    range: Range<usize>,
    free: bool,
) {
    let mut count = 0;
    for index in range {
        let (slice, place) = (requested[index], &mut places[index]);
        if *place == Place::Missing
            && n.fetcher.completed().arrived(index) != Arrived::Gate
            && (!free || neurons.cache.used() < neurons.cache.slots())
            && let Some(slot) = neurons.cache.insert(slice, n.stamp)
        {
            *place = Place::Cold(slot);
            order[count] = index as u32;
            count += 1;
        }
    }
    if count == 0 {
        return;
    }
    let list = List { neurons, shape: n.shape, requested, places };
    let (order, completed) = (&order[..count], n.fetcher.completed());
    let slice = neurons.slice();
    let inserted = order.iter().filter_map(|&index| match list.places[index as usize] {
        Place::Cold(slot) => {
            let first = index as usize * slice;
            Some((slot, move |neuron| list.read(completed, first + neuron)))
        }
        Place::Hot(_) | Place::Missing => None,
    });
    n.slots.fill_cold(n.pool, layer, inserted);
}
