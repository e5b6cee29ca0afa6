//! Disk space of a profile, checked before the first byte is written.

use std::path::Path;

use anyhow::bail;
use flashplan::internals::model::source::SourceModel;
use plans::size;

use super::ModelOptions;
use super::budget::{self, Estimate};
use super::level::{Menu, Weights};
use super::opened::open;
use super::work::FinishedParts;
use crate::device::storage::free_bytes;
use crate::{Context, ProfileError};

/// Opens the model, and checks the disk for its container.
///
/// `Profile::prepare` adds the finished parts, whose size depends on the machine's speed.
///
/// # Errors
/// A fault of the model's files, and too little space.
pub fn check(context: &Context, options: &ModelOptions) -> anyhow::Result<()> {
    let (path, source) = open(options)?;
    let elsewhere = disk(&path)? != disk(&context.storage)?;
    let weights = weights_of(options, elsewhere);
    let menu = if options.instant {
        Menu::dense(&source, weights)?
    } else {
        Menu::new(&source, options.down, weights, options.gate_levels)?
    };
    let given_back = if options.consume { given_back_bytes(context, &path, &source)? } else { 0 };
    let container = budget::container_bytes(&source, &menu).saturating_sub(given_back);
    check_free(&context.storage, free_bytes(&context.storage)?, container)
}

/// Checks before the first byte that container and finished parts will fit.
pub(super) fn check_space(
    context: &Context,
    work: &FinishedParts,
    estimate: &Estimate,
    given_back: u64,
) -> anyhow::Result<()> {
    let (storage_free, out_free) = (free_bytes(&context.storage)?, free_bytes(&context.out)?);
    let kept = work.bytes();
    let container = estimate.container_bytes.saturating_sub(given_back);
    let parts = estimate.work_bytes.saturating_sub(kept);
    let needs = if disk(&context.storage)? == disk(&context.out)? {
        vec![(&context.storage, storage_free, container + parts)]
    } else {
        vec![(&context.storage, storage_free, container), (&context.out, out_free, parts)]
    };
    needs.into_iter().try_for_each(|(path, free, needed)| check_free(path, free, needed))
}

/// Refuses a disk with too little free space.
pub(super) fn check_free(path: &Path, free: u64, needed: u64) -> anyhow::Result<()> {
    if free < needed {
        bail!(ProfileError::Space {
            path: path.to_owned(),
            free: size::show(free),
            needed: size::show(needed),
            remedy: "or ",
        });
    }
    Ok(())
}

/// Bytes that a consumed model frees on the container's disk in time for the container: all layers but one.
pub(super) fn given_back_bytes(
    context: &Context,
    path: &Path,
    source: &SourceModel<'_>,
) -> Result<u64, ProfileError> {
    if disk(path)? != disk(&context.storage)? {
        return Ok(0);
    }
    let of_layer =
        |layer| source.feed_forward_ranges(layer).iter().map(|range| range.len() as u64).sum::<u64>();
    Ok((1..source.config().layers()).map(of_layer).sum())
}

/// The place of the weights of a model that may lie on another disk than the measured one.
pub(super) fn weights_of(options: &ModelOptions, elsewhere: bool) -> Option<Weights> {
    options.weights.or((elsewhere || options.consume).then_some(Weights::Container))
}

/// The device number of a path's disk.
pub(super) fn disk(path: &Path) -> Result<u64, ProfileError> {
    match platform::file::path_id(path) {
        Ok(id) => Ok(id.disk),
        Err(source) => Err(ProfileError::Io { action: "read", path: path.to_owned(), source }),
    }
}
