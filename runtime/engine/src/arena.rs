//! The memory of a run, mapped once at start.
//!
//! A plan says how many bytes every region has. [`Arena::new`] maps their sum anonymously and makes every
//! page present, so the token loop neither allocates nor faults. A region is a [`Slab`], cut off the front
//! and never given back. An arena that is too small is an error at start.
//!
//! The arena does not know what the regions hold.
#![expect(unsafe_code, reason = "one mapping, cut into disjoint slices")]

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use bytemuck::Pod;
use plans::size::show;
use platform::memory::{self, Mapping};

/// A page, as containers and direct I/O count them.
pub const PAGE_BYTES: usize = 4096;
/// A cache line, and the widest vector register.
pub const LINE_BYTES: usize = 64;
/// A huge page on most processors. A mapping of at least one huge page starts on such a multiple and uses
/// huge pages as far as they go. Where a virtual machine's host scatters a read over 4 KiB pages, the read
/// takes three times as long.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The alignment of a slab's first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Aligned to a cache line, for numbers.
    Line,
    /// Aligned to a page, for buffers that a device fills.
    Page,
}

impl Align {
    /// The alignment in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Line => LINE_BYTES,
            Self::Page => PAGE_BYTES,
        }
    }
}

/// Why an arena cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The mapping itself was refused.
    #[error(
        "cannot take {bytes} bytes of memory at start: {why}; raise the limit on address space (`ulimit -v`) if there is one, or plan \
         with a lower memory limit"
    )]
    Map {
        /// Bytes of the mapping, in whole pages.
        bytes: u64,
        /// The system's reason.
        why: io::Error,
    },
    /// Addresses were given, but not the pages behind them.
    #[error("cannot fill {bytes} bytes of memory at start: {why}; plan with a lower memory limit")]
    Populate {
        /// Bytes of the mapping, in whole pages.
        bytes: u64,
        /// The system's reason.
        why: io::Error,
    },
    /// The regions add up to more than was taken.
    #[error(
        "the arena of {arena_bytes} bytes is exhausted: a region of {requested_bytes} bytes was requested and \
         {left_bytes} are left; make the plan again"
    )]
    Exhausted {
        /// The requested bytes.
        requested_bytes: u64,
        /// Bytes left for it, after alignment.
        left_bytes: u64,
        /// The size of the arena.
        arena_bytes: u64,
    },
}

/// Why the arena may be swapped out.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The limit on locked memory is too low.
    #[error(
        "the memory of {} is not locked: the limit on locked memory (RLIMIT_MEMLOCK, `ulimit -l`) is {}; raise it to \
         be safe from swapping",
        show(*arena_bytes),
        show(*limit_bytes)
    )]
    Limit {
        /// The size of the arena.
        arena_bytes: u64,
        /// The soft limit.
        limit_bytes: u64,
    },
    /// Another reason.
    #[error("the memory of {} is not locked: {why}", show(*arena_bytes))]
    System {
        /// The whole arena.
        arena_bytes: u64,
        /// The system's reason.
        why: io::Error,
    },
}

/// One mapping, handed out from the front.
pub struct Arena {
    mapping: Arc<Mapping>,
    taken: usize,
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("bytes", &self.mapping.bytes()).field("taken", &self.taken).finish()
    }
}

impl Arena {
    /// Maps `bytes`, rounded up to whole pages, zeroed and present.
    ///
    /// # Errors
    /// [`ArenaError::Map`] or [`ArenaError::Populate`] if the system does not have that much memory. Under a
    /// control group's limit the kernel may end the process instead.
    pub fn new(bytes: u64) -> Result<Self, ArenaError> {
        let page = memory::page_bytes().max(PAGE_BYTES);
        let out_of_range = || ArenaError::Map { bytes, why: io::ErrorKind::OutOfMemory.into() };
        let whole = usize::try_from(bytes.max(1)).ok().and_then(|b| b.checked_next_multiple_of(page));
        let whole = whole.ok_or_else(out_of_range)?;
        let huge = whole >= HUGE_PAGE_BYTES;
        let align = if huge { HUGE_PAGE_BYTES } else { page };
        let mut mapping =
            Mapping::new(whole, align).map_err(|why| ArenaError::Map { bytes: whole as u64, why })?;
        mapping.populate(huge).map_err(|why| ArenaError::Populate { bytes: whole as u64, why })?;
        Ok(Self { mapping: Arc::new(mapping), taken: 0 })
    }

    /// Locks the arena in memory. A run without locked memory is correct, but slower on a machine that swaps.
    ///
    /// # Errors
    /// [`LockError`] with the reason, for the report.
    pub fn lock(&self) -> Result<(), LockError> {
        let arena_bytes = self.bytes();
        let Err(refused) = self.mapping.lock() else { return Ok(()) };
        match memory::lockable_bytes() {
            Some(limit_bytes) if limit_bytes < arena_bytes => {
                Err(LockError::Limit { arena_bytes, limit_bytes })
            }
            _ => Err(LockError::System { arena_bytes, why: refused }),
        }
    }

    /// Cuts off the next `elements` of `T`, all zero.
    ///
    /// # Errors
    /// [`ArenaError::Exhausted`] with the bytes requested and left; the arena is unchanged then.
    pub fn take<T: Pod>(&mut self, elements: usize, align: Align) -> Result<Slab<T>, ArenaError> {
        const {
            assert!(size_of::<T>() > 0, "a slab's elements take room");
            assert!(align_of::<T>() <= LINE_BYTES, "a slab begins on a line");
        }
        let start = self.taken.next_multiple_of(align.bytes());
        let requested = elements.checked_mul(size_of::<T>());
        let end =
            requested.and_then(|bytes| start.checked_add(bytes)).filter(|&end| end <= self.mapping.bytes());
        let Some(end) = end else {
            return Err(ArenaError::Exhausted {
                requested_bytes: requested.map_or(u64::MAX, |bytes| bytes as u64),
                left_bytes: self.mapping.bytes().saturating_sub(start) as u64,
                arena_bytes: self.mapping.bytes() as u64,
            });
        };
        self.taken = end;
        // SAFETY: `start <= end <= mapping.bytes`.
        let first = unsafe { self.mapping.first().add(start) };
        let mapping = Arc::clone(&self.mapping);
        Ok(Slab { first: first.cast(), elements, mapping, owned: PhantomData })
    }

    /// Size of the arena, in bytes.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes() as u64
    }

    /// Bytes not yet taken.
    pub fn left_bytes(&self) -> u64 {
        (self.mapping.bytes() - self.taken) as u64
    }
}

/// A part of an arena with one owner; outlives the [`Arena`].
///
/// [`Slab::split_off`] cuts a slab and [`Slab::join`] rejoins it; no two slabs overlap.
pub struct Slab<T: Pod> {
    /// Aligned for `T`; `elements` of them are inside `mapping` and in no other slab.
    first: NonNull<T>,
    elements: usize,
    mapping: Arc<Mapping>,
    owned: PhantomData<T>,
}

// SAFETY: a slab is the only way to its bytes, like a `Box<[T]>`.
unsafe impl<T: Pod + Send> Send for Slab<T> {}
// SAFETY: a shared slab gives out shared slices only.
unsafe impl<T: Pod + Sync> Sync for Slab<T> {}

impl<T: Pod> Slab<T> {
    /// Keeps the first `at` elements and returns the others.
    ///
    /// # Panics
    /// If there are fewer than `at`.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.elements, "split at {at} of {} elements", self.elements);
        // SAFETY: `at <= elements`, all of which are inside the mapping.
        let first = unsafe { self.first.add(at) };
        let elements = self.elements - at;
        self.elements = at;
        Self { first, elements, mapping: Arc::clone(&self.mapping), owned: PhantomData }
    }

    /// Whether both are parts of one arena.
    pub(crate) fn shares_arena(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.mapping, &other.mapping)
    }

    /// Joins this slab and `tail`, which [`Slab::split_off`] cut from it.
    ///
    /// # Panics
    /// If `tail` does not start where this slab ends.
    #[must_use]
    pub fn join(mut self, tail: Self) -> Self {
        // SAFETY: one behind the last element is inside the mapping or one behind it.
        let end = unsafe { self.first.add(self.elements) };
        assert!(end == tail.first && self.shares_arena(&tail), "slabs that do not touch");
        self.elements += tail.elements;
        self
    }

    /// The slab's bytes as numbers of another type.
    ///
    /// # Panics
    /// If the bytes do not start on a cache line or are not a whole number of `U`.
    #[must_use]
    pub fn cast<U: Pod>(self) -> Slab<U> {
        const { assert!(size_of::<U>() > 0 && align_of::<U>() <= LINE_BYTES, "as `Arena::take` asks") };
        let bytes = self.elements * size_of::<T>();
        assert!(
            self.first.addr().get().is_multiple_of(LINE_BYTES) && bytes.is_multiple_of(size_of::<U>()),
            "{bytes} bytes of another kind"
        );
        Slab {
            first: self.first.cast(),
            elements: bytes / size_of::<U>(),
            mapping: self.mapping,
            owned: PhantomData,
        }
    }
}

impl<T: Pod> Deref for Slab<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `elements` of `T` are inside the mapping, initialised (zero is a `T`), and ours alone.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.elements) }
    }
}

impl<T: Pod> DerefMut for Slab<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the slab is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.elements) }
    }
}

impl<T: Pod> fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slab<{}>[{}]", std::any::type_name::<T>(), self.elements)
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn slabs_are_zero_aligned_and_apart() {
        let mut arena = Arena::new(3 * PAGE_BYTES as u64).unwrap();
        let mut bytes = arena.take::<u8>(3, Align::Line).unwrap();
        let mut floats = arena.take::<f32>(5, Align::Line).unwrap();
        let mut page = arena.take::<u8>(PAGE_BYTES, Align::Page).unwrap();
        assert!(bytes.iter().all(|&b| b == 0) && floats.iter().all(|&f| f == 0.0));
        assert_eq!(floats.as_ptr().addr() % LINE_BYTES, 0);
        assert_eq!(page.as_ptr().addr() % PAGE_BYTES, 0);
        bytes.fill(1);
        floats.fill(2.0);
        page.fill(3);
        assert_eq!((&*bytes, &*floats), (&[1; 3][..], &[2.0; 5][..]));
        assert_eq!(arena.left_bytes(), PAGE_BYTES as u64);
    }

    #[test]
    fn an_arena_of_a_huge_page_begins_on_one_and_all_of_it_can_be_written() {
        for bytes in [HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + PAGE_BYTES, 5 * HUGE_PAGE_BYTES - PAGE_BYTES] {
            let mut arena = Arena::new(bytes as u64).unwrap();
            let mut all = arena.take::<u8>(bytes, Align::Page).unwrap();
            assert_eq!((all.as_ptr().addr() % HUGE_PAGE_BYTES, arena.left_bytes()), (0, 0));
            all.fill(1);
        }
    }

    #[test]
    fn a_slab_outlives_its_arena_and_changes_threads() {
        let mut slab = Arena::new(100).unwrap().take::<u32>(4, Align::Line).unwrap();
        let slab = std::thread::spawn(move || {
            slab.fill(7);
            slab
        });
        assert_eq!(*slab.join().unwrap(), [7; 4]);
    }

    #[test]
    fn an_exhausted_arena_tells_the_bytes_requested_and_the_bytes_left() {
        let mut arena = Arena::new(1).unwrap();
        let _taken = arena.take::<u8>(100, Align::Line).unwrap();
        let refused = arena.take::<f32>(1000, Align::Line).unwrap_err().to_string();
        expect!["the arena of 4096 bytes is exhausted: a region of 4000 bytes was requested and 3968 are left; make the plan again"]
        .assert_eq(&refused);
        arena.take::<f32>(992, Align::Line).unwrap();
        assert_eq!(arena.left_bytes(), 0);
        assert!(arena.take::<u64>(usize::MAX / 2, Align::Line).is_err(), "the product does not wrap");
    }

    #[test]
    fn a_slab_is_cut_into_two_that_do_not_touch() {
        let mut arena = Arena::new(2 * PAGE_BYTES as u64).unwrap();
        let mut whole = arena.take::<u8>(2 * PAGE_BYTES, Align::Page).unwrap();
        let mut tail = whole.split_off(PAGE_BYTES);
        tail.fill(9);
        whole.fill(8);
        assert_eq!((whole.len(), tail.len()), (PAGE_BYTES, PAGE_BYTES));
        assert!(whole.iter().all(|&b| b == 8) && tail.iter().all(|&b| b == 9));
        let words = tail.cast::<u32>();
        assert_eq!(words[..], [0x0909_0909; PAGE_BYTES / 4]);
        let whole = whole.join(words.cast());
        assert_eq!(whole.len(), 2 * PAGE_BYTES);
        assert!(whole.iter().enumerate().all(|(i, &b)| b == if i < PAGE_BYTES { 8 } else { 9 }));
    }

    #[test]
    #[should_panic(expected = "slabs that do not touch")]
    fn slabs_that_do_not_touch_are_not_joined() {
        let mut arena = Arena::new(2 * PAGE_BYTES as u64).unwrap();
        let mut take = || arena.take::<u8>(7, Align::Line).unwrap();
        let (first, second) = (take(), take());
        let _never = first.join(second);
    }

    #[test]
    fn memory_is_present_from_the_start() {
        if cfg!(flashplan_portable) {
            return skipped::skipped("resident memory", "POSIX tells its peak alone");
        }
        let resident = || crate::machine::footprint(None).unwrap().resident_bytes;
        let without = resident();
        let arena = Arena::new(80 << 20).unwrap();
        // other tests of this process come and go meanwhile; 80 MiB stand out
        assert!(resident() >= without + (60 << 20));
        assert_eq!(arena.bytes(), 80 << 20);
    }

    #[test]
    fn memory_that_does_not_exist_is_an_error_not_a_crash() {
        assert!(matches!(Arena::new(1 << 60), Err(ArenaError::Map { .. })));
        assert!(matches!(Arena::new(u64::MAX), Err(ArenaError::Map { .. })));
    }

    #[test]
    fn locking_works_or_says_why_not() {
        let arena = Arena::new(1 << 20).unwrap();
        match arena.lock() {
            // no other system says how much is locked
            Ok(()) if cfg!(not(target_os = "linux")) => {}
            Ok(()) => {
                let status = std::fs::read_to_string("/proc/self/status").unwrap();
                let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
                let kibibytes: u64 = locked.trim().strip_suffix(" kB").unwrap().parse().unwrap();
                assert!(kibibytes >= 1024, "{locked}");
            }
            Err(why) => assert!(why.to_string().contains("not locked"), "{why}"),
        }
        let limit = LockError::Limit { arena_bytes: 9000, limit_bytes: 4096 };
        expect!["the memory of 8.8 KiB is not locked: the limit on locked memory (RLIMIT_MEMLOCK, `ulimit -l`) is 4.0 KiB; raise it to be safe from swapping"]
        .assert_eq(&limit.to_string());
    }
}
