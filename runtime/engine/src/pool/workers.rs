//! The pool over the threads, atomics and waits of `super::sync`: real ones, or modelled ones in tests.
#![expect(unsafe_code, reason = "a borrowed closure and disjoint parts of a slice cross to workers")]

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;

use super::affinity::Affinity;
use super::sync::{
    Arc, AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, JoinHandle, Mutex, Ordering, Word, spin_until, thread,
};

/// An error of making a pool.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// No cores were given.
    #[error("a pool needs at least one core; the plan names none")]
    NoCores,
    /// The core does not exist, or this process may not use it.
    #[error("core {core} cannot be used: {why}; plan with the cores of this machine that `nproc` counts")]
    Core {
        /// The core's number.
        core: u32,
        /// The system's reason.
        why: io::Error,
    },
    /// The system gave no thread.
    #[error(
        "cannot start a thread on core {core}: {why}; raise the limit on address space (`ulimit -v`) or on processes (`ulimit -u`)"
    )]
    Spawn {
        /// The core of the thread.
        core: u32,
        /// The system's reason.
        why: io::Error,
    },
}

/// A run's work: a closure borrowed from the caller of [`Pool::run`] until all workers are done.
struct Job<'run> {
    call: &'run (dyn Fn(usize) + Sync),
}

/// State shared by caller and workers. The two counters have cache lines of their own: one side writes each,
/// the other polls it.
#[derive(Default)]
struct Shared {
    /// Number of started runs; a change is the signal to start.
    epoch: Line<Word>,
    /// Number of workers to wait for, with a flag for workers that may enter the current run: [`OPEN`],
    /// [`ALL`] or none.
    pending: Line<Word>,
    /// The current run's value of `epoch`; stored before a worker can enter.
    number: AtomicU32,
    /// Workers asleep, or about to sleep.
    sleepers: Line<AtomicU32>,
    /// Whether the caller is asleep, or about to sleep.
    caller_sleeps: AtomicBool,
    /// The current run's closure; valid from the change of `epoch` until `pending` has no workers left.
    job: AtomicPtr<Job<'static>>,
    /// Whether the next start ends the workers.
    stop: AtomicBool,
    /// The first panic of the current run.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Flag: any worker may enter the run; only workers that entered are awaited.
const OPEN: u32 = 1 << 31;
/// Flag: every worker enters the run, and is counted from the start.
const ALL: u32 = 1 << 30;
/// Mask of the number of workers to wait for.
const COUNT: u32 = ALL - 1;

#[derive(Default)]
#[repr(align(64))]
struct Line<T>(T);

/// Compute threads pinned to cores. Thread 0 is the thread that made the pool and calls [`Pool::run`].
///
/// Runs do not overlap: the pool is not `Sync`, and starting a run inside a run panics.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// The next unclaimed piece of each thread's own part.
    next: Box<[Line<AtomicUsize>]>,
    /// The caller's affinity.
    affinity: RefCell<Affinity>,
    /// Whether a run is in progress. A `Cell` is not `Sync`.
    running: Cell<bool>,
}

/// Proof that this run is the only one in progress, until it is dropped.
pub(super) struct Running<'pool>(&'pool Cell<bool>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Pool {
    /// Starts a thread for each of `cores`, pinned to that core. The calling thread is thread 0, on
    /// `cores[0]` until the pool is dropped.
    ///
    /// # Errors
    /// [`PoolError`]; then no thread is left running, and the caller's affinity is restored.
    pub fn new(cores: &[u32]) -> Result<Self, PoolError> {
        let (&own, others) = cores.split_first().ok_or(PoolError::NoCores)?;
        let affinity = Affinity::current().map_err(|why| PoolError::Core { core: own, why })?;
        // an early return from here on joins the started threads and restores the caller
        let mut pool = Self {
            shared: Arc::default(),
            workers: Vec::new(),
            next: cores.iter().map(|_| Line::default()).collect(),
            affinity: affinity.into(),
            running: Cell::new(false),
        };
        for (worker, &core) in (1..).zip(others) {
            pool.pin(core)?;
            let shared = Arc::clone(&pool.shared);
            let handle = thread::Builder::new()
                .name(format!("compute {worker}"))
                .spawn(move || work(&shared, worker))
                .map_err(|why| PoolError::Spawn { core, why })?;
            pool.workers.push(handle);
        }
        pool.pin(own)?;
        Ok(pool)
    }

    /// Replaces the pool's threads by threads on other cores.
    ///
    /// # Errors
    /// As [`Pool::new`]; the pool is then unchanged, with thread 0 on its former core.
    pub fn move_to(&mut self, cores: &[u32]) -> Result<(), PoolError> {
        let own = *cores.first().ok_or(PoolError::NoCores)?;
        let new = Self::new(cores)?;
        // the new pool saw the caller on the old pool's core; restore the original affinity at the end
        std::mem::swap(&mut new.affinity.borrow_mut().before, &mut self.affinity.borrow_mut().before);
        *self = new;
        // dropping the old pool moved the caller back
        self.pin(own)
    }

    fn pin(&self, core: u32) -> Result<(), PoolError> {
        self.affinity.borrow().restrict_to(&[core]).map_err(|(core, why)| PoolError::Core { core, why })
    }

    /// Number of threads, including the caller.
    pub fn threads(&self) -> usize {
        self.next.len()
    }

    /// Calls `f(worker)` for every `worker < threads()`, each on its own thread; returns when all have
    /// returned.
    ///
    /// With two threads on two cores of a virtual machine, an empty `f` takes 0.4 us when runs follow each
    /// other. If the worker sleeps, a wake-up adds about 10 us.
    ///
    /// # Panics
    /// If `f` panics on any thread, with its message, after all threads have ended. Also if a run of this
    /// pool is in progress.
    pub fn run(&self, f: impl Fn(usize) + Sync) {
        let running = self.begin();
        self.run_beside(&running, || f(0), &f, ALL | self.workers.len() as u32);
    }

    /// Runs `own()` on this thread, and `f` on all other threads that enter before it ends. Late threads,
    /// asleep or on a slow core, are not awaited.
    pub(super) fn help(&self, running: &Running<'_>, own: impl FnOnce(), f: &(dyn Fn(usize) + Sync)) {
        self.run_beside(running, own, f, OPEN);
    }

    /// Marks the pool as running.
    ///
    /// The workers' job, the counters of pieces and the parts of a slice belong to one run. A nested run
    /// would hand out pieces twice and leave workers with a dangling job.
    pub(super) fn begin(&self) -> Running<'_> {
        assert!(
            !self.running.replace(true),
            "a closure of a pool's run has started another run of the same pool"
        );
        Running(&self.running)
    }

    /// Calls `f(piece)` once for every `piece < pieces`. Each thread works through its own part in order,
    /// then claims pieces left in others' parts. Thread 0 calls `between` before each of its pieces and after
    /// the last.
    ///
    /// Pieces are often contiguous in memory, and processors prefetch for sequential readers. Claiming in
    /// arrival order is slower. On two threads of a Zen 5, pieces of 37 KB reach 58 % of the speed of halves.
    /// Pieces of 295 KB reach 92 %.
    ///
    /// # Panics
    /// If `f` or `between` panics; if a run of this pool is in progress. The same holds for all methods based
    /// on this one.
    pub fn claim(&self, pieces: usize, mut between: impl FnMut(), f: impl Fn(usize) + Sync) {
        let running = self.begin();
        let (next, threads) = (&*self.next, self.threads());
        let own = |worker: usize| part(pieces, 1, worker, threads);
        for (worker, next) in next.iter().enumerate() {
            next.0.store(own(worker).start, Ordering::Relaxed);
        }
        let take_of = |owner: usize| {
            let piece = next[owner].0.fetch_add(1, Ordering::Relaxed);
            let any = piece < own(owner).end;
            if any {
                f(piece);
            }
            any
        };
        let take_all = |worker: usize, between: &mut dyn FnMut()| {
            for owner in (worker..threads).chain(0..worker) {
                while take_of(owner) {
                    between();
                }
            }
        };
        let mut first = || {
            between();
            take_all(0, &mut between);
        };
        if pieces <= 1 {
            first();
        } else {
            self.help(&running, first, &|worker| take_all(worker, &mut || ()));
        }
    }

    fn run_beside(
        &self,
        _running: &Running<'_>,
        own: impl FnOnce(),
        f: &(dyn Fn(usize) + Sync),
        pending: u32,
    ) {
        if self.workers.is_empty() {
            return own();
        }
        let job = Job { call: f };
        let shared = &*self.shared;
        // This extends the borrow; `wait_for_workers` below ends it before `job` and `f` are dropped.
        shared.job.store((&raw const job).cast_mut().cast(), Ordering::Relaxed);
        let number = shared.epoch.0.load(Ordering::Relaxed).wrapping_add(1);
        shared.number.store(number, Ordering::Relaxed);
        shared.pending.0.store(pending, Ordering::SeqCst);
        shared.start();
        let own = catch_unwind(AssertUnwindSafe(own));
        shared.wait_for_workers();
        let theirs = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Cuts `out` into pieces of `grain` that threads claim one by one, and calls `f(start, piece)` for each.
    /// Thread 0 calls `between` before each of its pieces and after the last.
    ///
    /// # Panics
    /// If `grain` is zero, or `f` or `between` panics.
    pub fn share_mut<T: Send>(
        &self,
        out: &mut [T],
        grain: usize,
        between: impl FnMut(),
        f: impl Fn(usize, &mut [T]) + Sync,
    ) {
        assert!(grain > 0, "a piece is something");
        let (len, first) = (out.len(), AtomicPtr::new(out.as_mut_ptr()));
        self.claim(len.div_ceil(grain), between, |piece| {
            let start = piece * grain;
            // SAFETY: the number of pieces ensures that `start < len`.
            let begin = unsafe { first.load(Ordering::Relaxed).add(start) };
            // SAFETY: each piece is claimed once, because runs do not overlap (`begin`), so pieces do not
            // overlap; they end at `len` at most, and `out` is borrowed mutably until all threads are done.
            f(start, unsafe { std::slice::from_raw_parts_mut(begin, grain.min(len - start)) });
        });
    }

    /// [`Pool::share_mut`] in pieces that suit rows of matrices: eight for each thread, of 16 to 128 rows.
    ///
    /// # Panics
    /// If `f` or `between` panics.
    pub fn share_rows<T: Send>(
        &self,
        out: &mut [T],
        between: impl FnMut(),
        f: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let piece = (out.len() / (8 * self.threads())).clamp(16, 128);
        self.share_mut(out, piece, between, f);
    }

    /// [`Pool::share_mut`] with one piece for each thread, starting at multiples of `grain`: for work with a
    /// cost per piece.
    ///
    /// # Panics
    /// If `grain` is zero, or `f` panics.
    pub fn split_mut<T: Send>(&self, out: &mut [T], grain: usize, f: impl Fn(usize, &mut [T]) + Sync) {
        self.share_mut(out, pieces_of(out.len(), grain, self.threads()), || (), f);
    }

    /// [`Pool::split_mut`] by whole rows of `columns`: `f(row, rows)` gets the index of its first row.
    ///
    /// # Panics
    /// If `columns` is zero or `out` is not whole rows, or `f` panics.
    pub fn split_rows<T: Send>(&self, out: &mut [T], columns: usize, f: impl Fn(usize, &mut [T]) + Sync) {
        assert!(columns > 0 && out.len().is_multiple_of(columns), "{} are not rows of {columns}", out.len());
        self.split_mut(out, columns, |start, rows| f(start / columns, rows));
    }

    /// [`Pool::share_mut`] in pieces of any length: piece `i` ends at `ends[i]`, where the next starts. Calls
    /// `f(i, piece)`.
    ///
    /// # Panics
    /// If `ends` do not ascend or extend beyond `out`, or if `f` or `between` panics.
    pub fn share_pieces<T: Send>(
        &self,
        out: &mut [T],
        ends: &[usize],
        between: impl FnMut(),
        f: impl Fn(usize, &mut [T]) + Sync,
    ) {
        assert!(
            ends.is_sorted() && ends.last().is_none_or(|&end| end <= out.len()),
            "pieces of {}",
            out.len()
        );
        let first = AtomicPtr::new(out.as_mut_ptr());
        let end = |piece: usize| ends[piece];
        self.claim(ends.len(), between, |piece| {
            let start = piece.checked_sub(1).map_or(0, end);
            // SAFETY: `start <= end(piece) <= out.len()`, as asserted.
            let begin = unsafe { first.load(Ordering::Relaxed).add(start) };
            // SAFETY: each piece is claimed once, and starts where the one before ends, so pieces do not
            // overlap; `out` is borrowed mutably until all threads are done.
            f(piece, unsafe { std::slice::from_raw_parts_mut(begin, end(piece) - start) });
        });
    }

    /// Cuts the columns of `out`, whole rows of `columns`, into about four pieces a thread, starting at
    /// multiples of `grain`. Threads claim them one by one and call `f(piece)`.
    ///
    /// # Panics
    /// If `columns` or `grain` is zero or `out` is not whole rows, or `f` panics.
    pub fn share_columns<T: Send>(
        &self,
        out: &mut [T],
        columns: usize,
        grain: usize,
        between: impl FnMut(),
        f: impl Fn(&mut Columns<'_, T>) + Sync,
    ) {
        assert!(columns > 0 && out.len().is_multiple_of(columns), "{} are not rows of {columns}", out.len());
        let (rows, first) = (out.len() / columns, AtomicPtr::new(out.as_mut_ptr()));
        let width = pieces_of(columns, grain, 4 * self.threads());
        self.claim(columns.div_ceil(width), between, |piece| {
            let range = piece * width..((piece + 1) * width).min(columns);
            let first = first.load(Ordering::Relaxed);
            f(&mut Columns { first, rows, columns, range, out: PhantomData });
        });
    }
}

impl Pool {
    /// [`Pool::share_columns`] for some `columns` of rows of `stride`. Each piece also gets its part of
    /// `beside`, which has equally many values for each column: `f(piece, part)`. Pieces start at multiples
    /// of `grain` from the first column.
    ///
    /// # Panics
    /// If `grain` is zero, there are no such columns, `out` is not whole rows or `beside` not whole columns, or `f` panics.
    pub fn share_columns_with<T: Send, U: Send>(
        &self,
        out: &mut [T],
        stride: usize,
        columns: Range<usize>,
        beside: &mut [U],
        grain: usize,
        f: impl Fn(&mut Columns<'_, T>, &mut [U]) + Sync,
    ) {
        let count = columns.len();
        assert!(
            count > 0
                && columns.end <= stride
                && out.len().is_multiple_of(stride)
                && beside.len().is_multiple_of(count),
            "{} are not rows of {stride} with {columns:?}, or {} not for {count}",
            out.len(),
            beside.len()
        );
        let (rows, each) = (out.len() / stride, beside.len() / count);
        let (first, beside) = (AtomicPtr::new(out.as_mut_ptr()), AtomicPtr::new(beside.as_mut_ptr()));
        let width = pieces_of(count, grain, 4 * self.threads());
        self.claim(
            count.div_ceil(width),
            || (),
            |piece| {
                let (start, end) = (piece * width, ((piece + 1) * width).min(count));
                // SAFETY: `start..end` is inside `0..count`, and `beside` has `each` values for each of
                // `count`.
                let part = unsafe { beside.load(Ordering::Relaxed).add(start * each) };
                // SAFETY: pieces do not overlap and each is claimed once; `beside` is borrowed mutably until all threads are done.
                let part = unsafe { std::slice::from_raw_parts_mut(part, (end - start) * each) };
                let range = columns.start + start..columns.start + end;
                let first = first.load(Ordering::Relaxed);
                f(&mut Columns { first, rows, columns: stride, range, out: PhantomData }, part);
            },
        );
    }
}

/// The length of about `pieces` pieces of `len`, a multiple of `grain`.
fn pieces_of(len: usize, grain: usize, pieces: usize) -> usize {
    assert!(grain > 0, "a piece is something");
    len.div_ceil(pieces).max(1).next_multiple_of(grain)
}

/// A thread's columns of a matrix; it cannot reach the columns of other threads.
#[derive(Debug)]
pub struct Columns<'out, T> {
    first: *mut T,
    rows: usize,
    columns: usize,
    range: Range<usize>,
    out: PhantomData<&'out mut [T]>,
}

impl<T> Columns<'_, T> {
    /// The range of the columns.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The columns of a row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: `first` is the start of `rows` rows of `columns`, and `share_columns` makes ranges inside
        // `0..columns`.
        let start = unsafe { self.first.add(row * self.columns + self.range.start) };
        // SAFETY: ranges do not overlap, each is claimed once, and `share_columns` borrows the matrix mutably
        // until all threads are done; `self` is borrowed as long as the row.
        unsafe { std::slice::from_raw_parts_mut(start, self.range.len()) }
    }
}

/// `worker`'s part of `0..items` among `threads`: near-equal, disjoint parts in order, covering all items and
/// starting at multiples of `grain`.
///
/// # Panics
/// If `grain` is zero or there is no such worker.
pub fn part(items: usize, grain: usize, worker: usize, threads: usize) -> Range<usize> {
    assert!(worker < threads, "worker {worker} of {threads}");
    let grains = items.div_ceil(grain);
    let (each, more) = (grains / threads, grains % threads);
    let first = |worker: usize| ((each * worker + more.min(worker)) * grain).min(items);
    first(worker)..first(worker + 1)
}

impl Shared {
    /// Publishes what was stored before, and starts the workers.
    fn start(&self) {
        // Either this sees a sleeper and wakes it, or the sleeper-to-be sees the new epoch: both sides
        // write, then read what the other wrote, in one total order.
        self.epoch.0.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.0.load(Ordering::SeqCst) > 0 {
            self.epoch.0.wake(u32::MAX >> 1);
        }
    }

    /// Waits for an epoch after `seen`; returns it.
    fn wait_for_start(&self, seen: u32) -> u32 {
        // a worker may have entered a run before it saw its epoch
        let after = |epoch: u32| epoch.wrapping_sub(seen).cast_signed() > 0;
        if !spin_until(|| after(self.epoch.0.load(Ordering::Acquire))) {
            self.sleepers.0.fetch_add(1, Ordering::SeqCst);
            loop {
                let epoch = self.epoch.0.load(Ordering::SeqCst);
                if after(epoch) {
                    break;
                }
                self.epoch.0.wait_while(epoch);
            }
            self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
        }
        self.epoch.0.load(Ordering::SeqCst)
    }

    /// Enters the current run if it is still open; returns its number. The run then lasts until
    /// [`Shared::finish`]. A worker that has seen a new epoch sees its run here, or a later one that it has
    /// not entered.
    fn enter(&self) -> Option<u32> {
        let mut pending = self.pending.0.load(Ordering::SeqCst);
        loop {
            if pending & ALL != 0 {
                // the run waits for this worker, which is counted
                return Some(self.number.load(Ordering::Relaxed));
            }
            if pending & OPEN == 0 {
                return None;
            }
            match self.pending.0.compare_exchange(pending, pending + 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Some(self.number.load(Ordering::Relaxed)),
                Err(now) => pending = now,
            }
        }
    }

    /// Counts this worker out; the last one wakes the caller.
    fn finish(&self) {
        let last = self.pending.0.fetch_sub(1, Ordering::SeqCst) & COUNT == 1;
        if last && self.caller_sleeps.load(Ordering::SeqCst) {
            self.pending.0.wake(1);
        }
    }

    /// Closes the run to further workers; returns when all that entered are done.
    fn wait_for_workers(&self) {
        self.pending.0.fetch_and(!OPEN, Ordering::SeqCst);
        if !spin_until(|| self.pending.0.load(Ordering::Acquire) & COUNT == 0) {
            self.caller_sleeps.store(true, Ordering::SeqCst);
            loop {
                let pending = self.pending.0.load(Ordering::SeqCst);
                if pending & COUNT == 0 {
                    break;
                }
                self.pending.0.wait_while(pending);
            }
            self.caller_sleeps.store(false, Ordering::SeqCst);
        }
        self.pending.0.store(0, Ordering::SeqCst);
    }
}

/// The loop of a worker.
fn work(shared: &Shared, worker: usize) {
    let mut seen = 0;
    loop {
        let epoch = shared.wait_for_start(seen);
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        let Some(number) = shared.enter() else {
            seen = epoch;
            continue;
        };
        seen = number;
        let job = shared.job.load(Ordering::Relaxed);
        // SAFETY: `run_beside` stored a pointer to a live `Job` before any worker could enter, stores no
        // other before this run is over (`begin`), and does not return or unwind before this worker has
        // called `finish`.
        let job = unsafe { &*job };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (job.call)(worker))) {
            shared.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
        shared.finish();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.start();
        for worker in self.workers.drain(..) {
            // a worker catches every panic of a job, and has none of its own
            let _no_panic = worker.join();
        }
    }
}
