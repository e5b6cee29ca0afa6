//! Memory that a plan may take, and the memory of a process before it takes any.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use flashplan::internals::machine::{Footprint, Machine, footprint};
use plans::device::Capacity;
use plans::size::show;
use platform::process::{full_pipe, kernel_stack_bytes, sleeps};

use crate::ProfileError;

/// Memory that a run touches and a start does not: texts, tables, file buffers, the engine thread's heap, the report. A build with
/// assertions has more code.
const PROCESS_MARGIN_BYTES: u64 = if cfg!(debug_assertions) { 20 << 19 } else { 15 << 19 };
/// Rounding of a process's memory, because the touched pages of its program differ from start to start.
const PROCESS_STEP_BYTES: u64 = 256 << 10;
/// Memory that the system may need beyond its present use.
const SYSTEM_MARGIN_BYTES: u64 = 128 << 20;
/// Rounding of the system's reserve, so that it hardly changes from day to day.
const SYSTEM_STEP_BYTES: u64 = 256 << 20;
/// Threads whose mean memory is measured.
const THREADS: u64 = 32;
/// Bytes of a page, the unit and the minimum of `thread_bytes`: kernel stack, task, guard and a stack of a few frames.
const PAGE_BYTES: u64 = 4096;
const THREAD_BYTES_MIN: u64 = 64 << 10;
/// Maximum time for a child to start.
const CHILD_TIME_MAX: Duration = Duration::from_secs(2);

/// Measures capacity before anything large is allocated, and returns a warning if `run` could not be measured.
pub(super) fn measure(machine: &Machine) -> Result<(Capacity, Option<String>), ProfileError> {
    let own = footprint(None)?;
    let this = std::env::current_exe().ok();
    let (process, note) = process_footprint(this.as_deref(), own);
    let process_bytes = process.peak_bytes() + PROCESS_MARGIN_BYTES;
    // some systems write a very high number for no limit
    let limits = |bytes: &u64| *bytes <= plans::check::BYTES_MAX;
    let capacity = Capacity {
        ram_bytes: machine.ram_bytes,
        cgroup_limit_bytes: machine.memory_group.as_ref().and_then(|group| group.limit_bytes).filter(limits),
        lockable_bytes: machine.lockable_bytes.filter(limits),
        system_reserve_bytes: system_reserve(machine.ram_bytes, machine.available_bytes, own.resident_bytes),
        process_bytes: process_bytes.next_multiple_of(PROCESS_STEP_BYTES),
        thread_bytes: thread_bytes()?,
    };
    Ok((capacity, note))
}

/// The footprint of a new `run` process, from the program beside `this` one.
///
/// Where it is absent, a new process of `this` program stands in, or else this process, which has done other work before.
fn process_footprint(this: Option<&Path>, own: Footprint) -> (Footprint, Option<String>) {
    let run = format!("run{}", std::env::consts::EXE_SUFFIX);
    let beside = this.map_or_else(|| PathBuf::from(&run), |this| this.with_file_name(&run));
    if let Some(run) = child_footprint(&beside) {
        return (run, None);
    }
    let (found, what) = match this.and_then(child_footprint) {
        Some(another) => (another, "a new process of `profile`"),
        None => (own, "this process"),
    };
    let note = format!(
        "`run` could not be started as {}, so process_bytes is that of {what}, {}: install `run` beside `profile` and measure again",
        beside.display(),
        show(found.peak_bytes())
    );
    (found, Some(note))
}

/// Memory of other processes with a margin, rounded up; at most half of the RAM.
fn system_reserve(ram: u64, available: u64, own: u64) -> u64 {
    let held = ram.saturating_sub(available).saturating_sub(own);
    (held + SYSTEM_MARGIN_BYTES).next_multiple_of(SYSTEM_STEP_BYTES).min(ram / 2)
}

/// The footprint of `run --version` while it waits to print into a full pipe.
fn child_footprint(program: &Path) -> Option<Footprint> {
    let (reader, writer) = full_pipe().ok()?;
    let mut child = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let start = Instant::now();
    let mut last = None;
    while start.elapsed() < CHILD_TIME_MAX {
        thread::sleep(Duration::from_millis(5));
        // an ended child has no memory to request
        let Ok(now) = footprint(Some(child.id())) else { break };
        // a child that waits for a processor has not printed yet, and still grows
        if last == Some(now) && sleeps(child.id()).unwrap_or(true) {
            break;
        }
        last = Some(now);
    }
    drop(reader);
    let _ended_by_itself = child.kill();
    let _status = child.wait();
    last
}

/// Resident memory, page tables and kernel stack of one more thread that has called a few functions.
fn thread_bytes() -> Result<u64, ProfileError> {
    let before = footprint(None)?;
    let stacks_before = kernel_stack_bytes();
    let barrier = Barrier::new(THREADS as usize + 1);
    let during = thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                // a little stack, as computing and reading use it
                std::hint::black_box([1_u8; 16 << 10]);
                barrier.wait();
                barrier.wait();
            });
        }
        barrier.wait();
        let during = (footprint(None), kernel_stack_bytes());
        barrier.wait();
        during
    });
    let (during, stacks) = (during.0?, during.1);
    let grown = |after: u64, before: u64| after.saturating_sub(before);
    let bytes = grown(during.resident_bytes, before.resident_bytes)
        + grown(during.page_table_bytes, before.page_table_bytes)
        + grown(stacks, stacks_before);
    Ok((bytes / THREADS).next_multiple_of(PAGE_BYTES).max(THREAD_BYTES_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_reserve_is_rounded_up_and_leaves_half() {
        assert_eq!(system_reserve(24 << 30, 23 << 30, 10 << 20), 1280 << 20);
        assert_eq!(system_reserve(24 << 30, 24 << 30, 0), 256 << 20);
        assert_eq!(system_reserve(1 << 30, 100 << 20, 0), 512 << 20);
    }

    #[test]
    fn a_thread_takes_whole_pages() {
        let bytes = thread_bytes().unwrap();
        assert!(bytes >= THREAD_BYTES_MIN && bytes.is_multiple_of(PAGE_BYTES) && bytes < 4 << 20, "{bytes}");
    }

    #[test]
    fn a_child_that_prints_is_caught_alive_and_one_that_is_missing_is_none() {
        let held = child_footprint(Path::new("/bin/cat")).expect("cat --version prints");
        assert!(held.peak_bytes() > 64 << 10, "{held:?}");
        assert_eq!(child_footprint(Path::new("/no/such/program")), None);
    }

    #[test]
    fn a_missing_run_is_told_and_a_new_process_stands_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let this = folder.path().join("profile");
        let own = Footprint { resident_peak_bytes: 1 << 40, ..Footprint::default() };
        let (found, note) = process_footprint(Some(&this), own);
        let (run, said) = (folder.path().join("run"), note.unwrap());
        assert_eq!(found, own);
        assert!(said.contains(&format!("`run` could not be started as {}", run.display())), "{said}");
        assert!(said.contains("that of this process, 1.0 TiB"), "{said}");

        std::os::unix::fs::symlink("/bin/cat", &this).unwrap();
        let (found, note) = process_footprint(Some(&this), own);
        assert!(found.peak_bytes() < 1 << 30, "{found:?}");
        assert!(note.unwrap().contains("that of a new process of `profile`"));

        std::os::unix::fs::symlink("/bin/cat", &run).unwrap();
        assert_eq!(process_footprint(Some(&this), own).1, None);
    }
}
