//! Measures a machine: cores, memory, flash, and the memory that a plan can take.
//!
//! ```text
//! topology -> capacity -> scratch file -> kernels (cores.csv) -> memory (memory.csv) -> storage (storage.csv) -> device.toml
//! ```
//!
//! The runtime's own kernels, threads and reads are timed in short windows. The median is kept, because other work disturbs only a window
//! or two. Files are written after all measurements, `device.toml` last. This half does not know the model.

pub mod capacity;
pub mod kernels;
pub mod load;
pub mod measure;
pub mod memory;
pub mod storage;
pub mod topology;
#[cfg(feature = "gpu")]
pub mod unit;

use std::path::PathBuf;
use std::time::Duration;

use flashplan::internals::arena::{Align, Arena};
use flashplan::internals::machine::Machine;
use plans::device::{Device, Memory, Provenance, Storage, Unit};
use plans::file::significant;

use crate::{Context, ProfileError, outputs};

/// The measured device and the files written.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The contents of `device.toml`.
    pub device: Device,
    /// The files written, `device.toml` last.
    pub files: Vec<PathBuf>,
    /// A warning where another figure stands for the measured size of `run`.
    pub stand_in: Option<String>,
}

/// Time, memory and disk space that a measurement will take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// Time, most of it in windows of fixed length.
    pub time: Duration,
    /// Bytes of the scratch file in `--storage`, which is gone at the end.
    pub scratch_bytes: u64,
    /// Bytes of memory during the measurement.
    pub memory_bytes: u64,
}

/// Estimates time and bytes before the measurement.
///
/// # Errors
/// [`ProfileError::Machine`].
pub fn estimate(context: &Context) -> Result<Estimate, ProfileError> {
    let machine = Machine::here(&context.storage)?;
    let windows = kernels::budget(context.quick)
        + memory::budget(context.quick)
        + storage::budget(context.quick)
        + Duration::from_secs(if context.quick { 2 } else { 4 }); // filling memory and the scratch file
    Ok(Estimate {
        time: windows,
        scratch_bytes: storage::scratch_bytes(context.quick),
        memory_bytes: memory::buffer_bytes(&machine, context.quick) + kernels::ATTENDED_BYTES,
    })
}

/// Checks the free space of the disk, before any wait or write.
///
/// # Errors
/// [`ProfileError::Space`].
pub fn check_space(context: &Context) -> Result<(), ProfileError> {
    storage::check_space(context)
}

/// Measures the machine and writes `device.toml`, `cores.csv`, `memory.csv` and `storage.csv`.
///
/// # Errors
/// [`ProfileError`]; nothing is written then, unless the writing itself failed.
pub fn profile(context: &Context, name: Option<&str>) -> Result<Summary, ProfileError> {
    let machine = Machine::here(&context.storage)?;
    storage::check_space(context)?;
    let (capacity, stand_in) = capacity::measure(&machine)?;
    let scratch = storage::prepare(context)?;
    let others = load::Watch::start();
    let cores = topology::ids(&machine);

    let buffer_bytes = memory::buffer_bytes(&machine, context.quick);
    let mut arena = Arena::new(buffer_bytes)?;
    let mut buffer = arena.take::<u8>(arena.left_bytes() as usize, Align::Page)?;
    // 1.06 in half precision, and small numbers in every other format: no subnormals, which are slow
    for chunk in buffer.chunks_mut(64 << 20) {
        context.stopped()?;
        chunk.fill(0x3c);
    }
    let kernels = kernels::measure(context, &cores, &buffer)?;
    let classes = kernels::classes(context, &machine)?;
    let memory = memory::measure(context, &cores, &buffer)?;
    let storage = storage::measure(context, &machine, &cores, &buffer, &scratch)?;
    drop(scratch);
    drop((buffer, arena));
    context.stopped()?;
    #[cfg(feature = "gpu")]
    let (unit, note_on_unit) = unit::measure(context)?;
    #[cfg(not(feature = "gpu"))]
    let (unit, note_on_unit) = (None, None::<String>);

    let identity = machine.identity();
    let mut notes = vec![
        format!(
            "memory is read from a buffer of {}: twice the largest cache, at least {}, at most an eighth of what is \
             available",
            plans::size::show(buffer_bytes),
            plans::size::show(memory::BUFFER_BYTES_MIN)
        ),
        "cores.flops_per_second is the dot product of F16 rows of the best instruction set".to_owned(),
    ];
    if context.quick {
        notes.push("measured with --quick: fewer points and shorter windows".to_owned());
    }
    notes.extend(kernels.notes);
    notes.extend(storage.notes);
    notes.extend(stand_in.clone());
    notes.extend(others.verdict());
    notes.extend(note_on_unit);
    let device = Device {
        schema: plans::SCHEMA,
        name: name.map_or_else(|| topology::slug(&machine), str::to_owned),
        fingerprint: Device::fingerprint_of(&identity),
        identity,
        provenance: Provenance {
            tool: format!("profile {}", env!("CARGO_PKG_VERSION")),
            origin: "measured".to_owned(),
            notes,
        },
        capacity,
        memory: Memory {
            stream_bytes_per_second: memory.stream.iter().map(|&rate| significant(rate)).collect(),
            gather_bytes_per_second: memory.gather.iter().map(|&rate| significant(rate)).collect(),
            gather_row_bytes: memory::GATHER_ROW_BYTES,
            fresh_bytes_per_second: Some(memory.fresh),
            spread_fraction: Some(memory.spread_fraction),
        },
        storage: Storage { file_system: machine.disk.file_system.clone(), ..storage.summary },
        cores: classes,
        kernels: kernels.speeds,
        units: std::iter::once(Unit::cpu()).chain(unit).collect(),
    };
    // an invalid figure is found before the first file
    let path = context.out.join("device.toml");
    plans::file::render(&device, &path)?;
    let mut files = Vec::new();
    for (name, kind, bytes) in [
        ("cores.csv", outputs::CORES, kernels.csv),
        ("memory.csv", outputs::MEMORY, memory.csv),
        ("storage.csv", outputs::STORAGE, storage.csv),
    ] {
        let path = context.out.join(name);
        plans::file::write_bytes(&path, kind, bytes.as_bytes())?;
        files.push(path);
    }
    plans::file::write(&device, &path)?;
    files.push(path);
    Ok(Summary { device, files, stand_in })
}
