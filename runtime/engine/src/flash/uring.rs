//! Asynchronous reads by `io_uring`: the compute thread submits them and finds them completed, without
//! another thread.
//!
//! ```text
//! submit: queue.push(requests); fill the ring; one system call for all of them
//! reap:   poll the ring; if empty: one call, only if the kernel has pending completions, or to wait
//! ```
//!
//! The kernel has at most `depth` reads; others wait in the queue until half of those have completed.
//! Submitting them one by one would cost a call each. In a virtual machine a call exits to the host and costs
//! as much as many reads. The files are registered, and the buffers too where the limit on locked memory
//! allows it. Completions enter the ring when this thread is in the kernel anyway, without an interrupt
//! (`COOP_TASKRUN`, Linux 5.19). Before that version the ring's flag says that some are pending.
//! `SINGLE_ISSUER` is not used, because it ties the ring to one thread.
//!
//! `profile` measured the process time of direct random reads of 4 to 16 KiB on two cores. At depth 16 to 64:
//! 4.4 to 7.3 us a read, against 12 to 19 us with `pread`. At depth 1: 26 to 30 us against 42 to 75.
#![expect(unsafe_code, reason = "the kernel writes into buffers behind the compiler's back")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd as _;
use std::thread;
use std::time::{Duration, Instant};

use io_uring::{IoUring, Probe, opcode, squeue, types};

use super::{Buffer, Completion, Files, Flash, FlashCounters, ReadRequest, explain, forget_pages};

/// The kernel's limit for one registered buffer.
const REGION_BYTES_MAX: usize = 1 << 30;
/// The pause between attempts to get kernel memory.
const PAUSE: Duration = Duration::from_millis(5);
/// The longest time of refusals while no read in flight could free memory.
const PATIENCE: Duration = if cfg!(test) { Duration::from_millis(100) } else { Duration::from_secs(10) };

/// A ring over files.
pub struct Uring {
    ring: IoUring,
    files: Files,
    /// Whether reads go through the page cache, see [`forget_pages`].
    buffered: bool,
    /// Reads at the kernel, by the number in their ring entries.
    slots: Vec<Option<Read>>,
    /// Numbers that are not in use.
    free: Vec<u32>,
    /// Reads waiting for room in the ring, in order.
    queue: VecDeque<Read>,
    /// Numbers entered since the ring was last empty, in order.
    entered: Vec<u32>,
    /// Completions not yet returned.
    reaped: VecDeque<Completion>,
    buffers: Registration,
    /// The system's reason once the ring accepts nothing more.
    broken: Option<i32>,
    calls: u64,
    counters: FlashCounters,
    /// Results of the next calls, instead of the kernel's.
    #[cfg(test)]
    faults: VecDeque<i32>,
}

/// A request with `done` bytes read.
#[derive(Debug)]
struct Read {
    request: ReadRequest,
    done: usize,
}

/// The purpose of a call, besides submitting the entries in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    /// Only submits entries.
    Give,
    /// Lets the kernel put completions into the ring.
    Look,
    /// Sleeps until a read completes or a signal arrives.
    Wait,
}

/// Whether the kernel knows the buffers.
#[derive(Debug)]
enum Registration {
    /// No buffers were offered.
    Unknown,
    /// Buffers by the number of their region, ascending.
    Regions(Vec<Region>),
    /// The kernel refused to register them.
    Refused(io::Error),
}

/// Addresses of one mapping, registered as one buffer.
#[derive(Debug)]
struct Region {
    first: usize,
    bytes: usize,
    /// An empty slab of the mapping, which keeps the registered memory mapped.
    memory: Buffer,
}

impl Region {
    /// The regions of some buffers, ascending; neighbours in one mapping share a region. A region over two
    /// mappings would keep only one of them alive, and the kernel would still write to pages of the other.
    fn all(buffers: &mut [Buffer]) -> Vec<Self> {
        let mut all: Vec<Self> = buffers
            .iter_mut()
            .map(|buffer| {
                let (first, bytes) = (buffer.as_ptr().addr(), buffer.len());
                Self { first, bytes, memory: buffer.split_off(bytes) }
            })
            .collect();
        all.sort_by_key(|region| region.first);
        all.dedup_by(|region, before| before.takes(region));
        all
    }

    /// Joins the next region to this one, if both can be registered as one buffer.
    fn takes(&mut self, next: &Self) -> bool {
        let neighbours = self.first + self.bytes == next.first && self.memory.shares_arena(&next.memory);
        let one = neighbours && self.bytes + next.bytes <= REGION_BYTES_MAX;
        if one {
            self.bytes += next.bytes;
        }
        one
    }
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring")
            .field("slots", &self.slots)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

impl Uring {
    /// A ring for `depth` reads in flight, with room for `requests` requests.
    ///
    /// # Errors
    /// The system's error: no `io_uring`, or none for this process.
    pub fn new(files: impl Into<Files>, direct: bool, depth: usize, requests: usize) -> io::Result<Self> {
        let files = files.into();
        let entries = u32::try_from(depth).map_err(|_| io::ErrorKind::InvalidInput)?;
        let ring = patiently(|| {
            match IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(entries) {
                // Linux before 5.19
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => IoUring::new(entries),
                made => made,
            }
        })?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it cannot read yet in this kernel"));
        }
        // registered under their file numbers
        let descriptors: Vec<_> = files.each().map(|file| file.as_raw_fd()).collect();
        ring.submitter().register_files(&descriptors)?;
        Ok(Self {
            ring,
            files,
            buffered: !direct,
            slots: (0..entries).map(|_| None).collect(),
            free: (0..entries).rev().collect(),
            queue: VecDeque::with_capacity(requests),
            entered: Vec::with_capacity(depth),
            reaped: VecDeque::with_capacity(requests),
            buffers: Registration::Unknown,
            broken: None,
            calls: 0,
            counters: FlashCounters::default(),
            #[cfg(test)]
            faults: VecDeque::new(),
        })
    }

    /// System calls so far: one for a batch, none for looking into the ring.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    fn with_kernel(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Moves reads from the queue into the ring, as many as may be in flight. No system call.
    fn fill(&mut self) {
        while !self.queue.is_empty() {
            if let Some(why) = self.broken {
                let read = self.queue.pop_front();
                read.into_iter().for_each(|read| self.finish(read, Err(io::Error::from_raw_os_error(why))));
                continue;
            }
            let Some(number) = self.free.pop() else { return };
            let Some(mut read) = self.queue.pop_front() else { return };
            let entry = self.entry(&mut read).user_data(u64::from(number));
            self.slots[number as usize] = Some(read);
            self.entered.push(number);
            // SAFETY: the entry's file is registered for as long as the ring lives. Its addresses are inside the
            // request's buffer, which lies in a slot from here on, where nobody looks at it and from where it leaves
            // when the kernel has answered this entry, or has provably not taken it (`flush`); a slab keeps its
            // memory mapped, and does not move when it is moved. `drop` waits for all slots.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            assert!(pushed.is_ok(), "the ring has an entry for every slot");
        }
    }

    /// The ring entry for the missing bytes of a read.
    fn entry(&self, read: &mut Read) -> squeue::Entry {
        let (number, _, offset) = self.files.at(read.request.offset);
        let file = types::Fixed(number as u32);
        let missing = &mut read.request.target()[read.done..];
        let (start, length) = (missing.as_mut_ptr(), missing.len().min(REGION_BYTES_MAX) as u32);
        let offset = offset + read.done as u64;
        if let Registration::Regions(regions) = &self.buffers {
            let after = regions.partition_point(|region| region.first <= start.addr());
            if after > 0
                && start.addr() + length as usize <= regions[after - 1].first + regions[after - 1].bytes
            {
                let number = (after - 1) as u16;
                return opcode::ReadFixed::new(file, start, length, number).offset(offset).build();
            }
        }
        opcode::Read::new(file, start, length).offset(offset).build()
    }

    /// Submits the entries in the ring; `Call::Look` and `Call::Wait` call the kernel even without entries.
    ///
    /// Under memory pressure the kernel may refuse for a while. Reads in flight free memory. Without any,
    /// this thread sleeps and retries until [`PATIENCE`] is over.
    fn flush(&mut self, call: Call) {
        let mut called = call == Call::Give;
        let mut refused_since = None;
        loop {
            let left = self.ring.submission().len();
            if left == 0 {
                self.entered.clear();
                if called {
                    return;
                }
            }
            if self.broken.is_some() {
                // every return from the kernel brings completions
                return thread::yield_now();
            }
            match self.enter(usize::from(call == Call::Wait)) {
                Ok(_) => called = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => called = true,
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                    // the kernel may need room for completions
                    self.collect();
                    if self.with_kernel() > left {
                        thread::yield_now();
                    } else if refused_since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                        thread::sleep(PAUSE);
                    } else {
                        self.give_up(&error);
                    }
                }
                Err(error) => self.give_up(&error),
            }
        }
    }

    /// One system call: submits the entries in the ring, and waits for `completions`.
    fn enter(&mut self, completions: usize) -> io::Result<usize> {
        self.calls += 1;
        #[cfg(test)]
        if let Some(fault) = self.faults.pop_front() {
            return Err(io::Error::from_raw_os_error(fault));
        }
        self.ring.submit_and_wait(completions)
    }

    /// Gives up on the ring: entries still in it fail, and no more are entered.
    fn give_up(&mut self, error: &io::Error) {
        let why = error.raw_os_error().unwrap_or(libc::EIO);
        self.broken = Some(why);
        // the kernel takes entries in order, so the last ones are left; without another submission it never
        // takes them
        let left = self.ring.submission().len();
        for number in self.entered.split_off(self.entered.len() - left) {
            self.free.push(number);
            let read = self.slots[number as usize].take();
            read.into_iter().for_each(|read| self.finish(read, Err(io::Error::from_raw_os_error(why))));
        }
    }

    /// Takes all completions in the ring. No system call.
    fn collect(&mut self) {
        loop {
            let Some(entry) = self.ring.completion().next() else { return };
            self.settle(entry.user_data() as u32, entry.result());
        }
    }

    /// Settles a slot with the kernel's result: a number of bytes, or minus the error.
    fn settle(&mut self, number: u32, result: i32) {
        let Some(mut read) = self.slots[number as usize].take() else {
            debug_assert!(false, "an answer without a request");
            return;
        };
        self.free.push(number);
        match usize::try_from(result) {
            Ok(0) => self.finish(read, Err(io::ErrorKind::UnexpectedEof.into())),
            Ok(bytes) if read.done + bytes < self.files.needed(read.request.offset, read.request.bytes) => {
                read.done += bytes;
                self.resume(read);
            }
            Ok(_) => self.finish(read, Ok(())),
            Err(_) if matches!(-result, libc::EINTR | libc::EAGAIN) => self.resume(read),
            Err(_) => self.finish(read, Err(io::Error::from_raw_os_error(-result))),
        }
    }

    /// Queues the rest of a read before all others.
    fn resume(&mut self, read: Read) {
        self.counters.resumed += 1;
        self.queue.push_front(read);
    }

    fn finish(&mut self, read: Read, result: io::Result<()>) {
        let ReadRequest { tag, offset, bytes, buffer, .. } = read.request;
        let result = result.map_err(|error| explain(&self.files, offset, bytes, error));
        if self.buffered {
            forget_pages(&self.files, offset, bytes);
        }
        self.reaped.push_back(Completion { tag, bytes, buffer, result });
    }
}

/// Retries for a moment when memory is short: a closed ring frees its locked memory a little later.
fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..20 {
        match attempt() {
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENOMEM | libc::EAGAIN | libc::EBUSY | libc::EINTR)
                ) =>
            {
                thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
    attempt()
}

impl Flash for Uring {
    fn adopt(&mut self, buffers: &mut [Buffer]) {
        let regions = Region::all(buffers);
        let vectors: Vec<libc::iovec> = regions
            .iter()
            .map(|region| libc::iovec {
                iov_base: std::ptr::without_provenance_mut(region.first),
                iov_len: region.bytes,
            })
            .collect();
        // SAFETY: the addresses are those of slabs, which stay mapped as long as the regions' empty slabs live, that
        // is as long as the ring or longer; registering writes nothing there.
        let register = || unsafe { self.ring.submitter().register_buffers(&vectors) };
        self.buffers = match patiently(register) {
            Ok(()) => Registration::Regions(regions),
            Err(why) => Registration::Refused(why),
        };
    }

    fn submit(&mut self, requests: &mut Vec<ReadRequest>) {
        for request in &*requests {
            assert!(request.fits(), "a read fits its buffer");
        }
        self.queue.extend(requests.drain(..).map(|request| Read { request, done: 0 }));
        self.fill();
        self.flush(Call::Give);
    }

    fn go_on(&mut self) {
        if self.with_kernel() + self.queue.len() == 0 {
            return;
        }
        if self.ring.submission().taskrun() {
            self.flush(Call::Look);
        }
        self.collect();
        if self.with_kernel() <= self.slots.len() / 2 {
            self.fill();
            self.flush(Call::Give);
        }
    }

    fn reap(&mut self, wait: bool) -> Option<Completion> {
        while self.reaped.is_empty() && self.in_flight() > 0 {
            self.collect();
            if self.with_kernel() <= self.slots.len() / 2 {
                self.fill();
            }
            let call = if !self.reaped.is_empty() {
                Call::Give
            } else if wait {
                Call::Wait
            } else if self.ring.submission().taskrun() {
                Call::Look
            } else {
                Call::Give
            };
            self.flush(call);
            if call == Call::Give {
                break;
            }
        }
        let completion = self.reaped.pop_front()?;
        if completion.result.is_ok() {
            self.counters.reads += 1;
            self.counters.bytes += completion.bytes as u64;
        }
        Some(completion)
    }

    fn describe(&self) -> String {
        let buffers = match &self.buffers {
            Registration::Unknown => "buffers not registered".to_owned(),
            Registration::Regions(_) => "registered buffers".to_owned(),
            Registration::Refused(why) => {
                format!(
                    "buffers not registered ({why}; the limit on locked memory, `ulimit -l`, may be too low)"
                )
            }
        };
        format!("io-uring, {} in flight, {buffers}", self.slots.len())
    }

    fn in_flight(&self) -> usize {
        self.queue.len() + self.with_kernel() + self.reaped.len()
    }

    fn counters(&self) -> FlashCounters {
        self.counters
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.queue.clear();
        // the kernel writes into the buffers until it has completed their reads
        while self.reap(true).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Align, Arena};
    use crate::flash::open;
    use crate::flash::tests::{PAGE, buffers, file, refused};

    /// A ring over the file, buffered; `None` if the kernel refuses.
    fn ring(file: &tempfile::NamedTempFile, depth: usize) -> Option<Uring> {
        let opened = open(file.path(), false).unwrap();
        match Uring::new(opened, false, depth, 8) {
            Err(error) if refused(&error) => None,
            made => Some(made.unwrap()),
        }
    }

    fn request(page: usize, pages: usize, buffer: Buffer) -> ReadRequest {
        ReadRequest { tag: page as u32, offset: (page * PAGE) as u64, bytes: pages * PAGE, buffer, at: 0 }
    }

    #[test]
    fn a_batch_is_one_call_and_looking_at_completions_is_none() {
        let file = file();
        let Some(mut ring) = ring(&file, 8) else { return };
        let (_arena, free) = buffers(8);
        let mut batch: Vec<ReadRequest> =
            free.into_iter().enumerate().map(|(i, b)| request(i, 1, b)).collect();
        ring.submit(&mut batch);
        assert_eq!(ring.calls(), 1);
        while ring.with_kernel() > 0 {
            thread::yield_now(); // brings what is over into the ring
            ring.collect();
        }
        let calls = ring.calls();
        assert_eq!((0..8).filter(|_| ring.reap(false).is_some()).count(), 8);
        assert!((0..1000).all(|_| ring.reap(false).is_none() && ring.reap(true).is_none()));
        assert_eq!(ring.calls(), calls);
    }

    #[test]
    fn a_short_read_goes_on_where_it_ended() {
        let file = file();
        let Some(mut ring) = ring(&file, 2) else { return };
        let (_arena, mut free) = buffers(1);
        let mut request = request(3, 3, free.remove(0));
        request.buffer.fill(99);
        // as if the kernel had answered with one page of three
        ring.free.retain(|&number| number != 1);
        ring.slots[1] = Some(Read { request, done: 0 });
        ring.settle(1, PAGE as i32);
        let done = ring.reap(true).unwrap();
        done.result.unwrap();
        let firsts: Vec<u8> = done.buffer.iter().step_by(PAGE).copied().collect();
        assert_eq!(firsts, [99, 4, 5, 99]);
        assert_eq!(ring.counters(), FlashCounters { reads: 1, bytes: 3 * PAGE as u64, resumed: 1 });
    }

    #[test]
    fn a_read_interrupted_is_read_again_and_one_refused_is_an_error() {
        let file = file();
        let Some(mut ring) = ring(&file, 1) else { return };
        let (_arena, mut free) = buffers(1);
        let _number = ring.free.pop();
        ring.slots[0] = Some(Read { request: request(7, 1, free.remove(0)), done: 0 });
        ring.settle(0, -libc::EINTR);
        let done = ring.reap(true).unwrap();
        assert!(done.result.is_ok() && done.buffer[0] == 7);
        assert_eq!(ring.counters().resumed, 1);
        let _number = ring.free.pop();
        ring.slots[0] = Some(Read { request: request(7, 1, done.buffer), done: 0 });
        ring.settle(0, -libc::EIO);
        assert_eq!(ring.reap(false).unwrap().result.unwrap_err().raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn a_submission_that_the_kernel_refuses_is_retried() {
        let file = file();
        let Some(mut ring) = ring(&file, 2) else { return };
        let (_arena, free) = buffers(6);
        let mut requests = free.into_iter().enumerate().map(|(i, b)| request(i, 1, b)).collect();
        ring.faults.extend([libc::EAGAIN, libc::EBUSY, libc::EINTR, libc::EAGAIN]);
        ring.submit(&mut requests);
        assert!(ring.faults.is_empty(), "the first are refused with nothing in flight");
        let mut pages = Vec::new();
        loop {
            // every other call, whether reads are in flight or not
            ring.faults.extend([libc::EAGAIN, libc::EINTR, libc::EBUSY].get(pages.len() % 3));
            let Some(done) = ring.reap(true) else { break };
            done.result.unwrap();
            pages.push(done.buffer[0]);
        }
        pages.sort_unstable();
        assert_eq!(pages, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_kernel_that_refuses_for_good_fails_the_reads() {
        let file = file();
        let Some(mut ring) = ring(&file, 2) else { return };
        let (_arena, mut free) = buffers(1);
        ring.faults.extend([libc::EAGAIN; 1000]);
        ring.submit(&mut vec![request(0, 1, free.remove(0))]);
        let refused = ring.reap(true).unwrap().result.unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EAGAIN));
        assert!(ring.reap(true).is_none());
    }

    #[test]
    fn a_ring_that_takes_nothing_more_fails_the_reads_it_did_not_take_and_later_ones() {
        let file = file();
        let Some(mut ring) = ring(&file, 4) else { return };
        let (_arena, free) = buffers(6);
        ring.queue
            .extend(free.into_iter().enumerate().map(|(i, b)| Read { request: request(i, 1, b), done: 0 }));
        ring.fill();
        ring.give_up(&io::Error::from_raw_os_error(libc::ENOMEM));
        let mut failed = 0;
        while let Some(done) = ring.reap(true) {
            assert_eq!(done.result.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
            failed += 1;
        }
        assert_eq!((failed, ring.calls()), (6, 0));
    }

    #[test]
    fn neighbouring_buffers_of_two_mappings_are_two_regions() {
        // mappings of one page each until two of them are neighbours
        let mut arenas = Vec::new();
        let mut pages: Vec<Buffer> = Vec::new();
        let touch = |pages: &[Buffer]| {
            let firsts: Vec<usize> = pages.iter().map(|page| page.as_ptr().addr()).collect();
            firsts.iter().any(|first| firsts.contains(&(first + PAGE)))
        };
        while !touch(&pages) {
            assert!(pages.len() < 1000, "the system leaves a gap between all mappings");
            let mut arena = Arena::new(PAGE as u64).unwrap();
            pages.push(arena.take(PAGE, Align::Page).unwrap());
            arenas.push(arena);
        }
        let regions = Region::all(&mut pages);
        assert_eq!(regions.len(), pages.len(), "{regions:?}");
        assert!(regions.iter().all(|region| region.bytes == PAGE));
    }

    #[test]
    fn neighbouring_buffers_are_registered_as_one_and_strangers_are_read_all_the_same() {
        let file = file();
        let Some(mut ring) = ring(&file, 4) else { return };
        let ((_arena, mut free), (_other, strangers)) = (buffers(3), buffers(1));
        ring.adopt(&mut free);
        match &ring.buffers {
            Registration::Regions(regions) => {
                assert_eq!(regions.iter().map(|region| region.bytes).collect::<Vec<_>>(), [12 * PAGE]);
                assert!(ring.describe().contains("registered buffers"));
            }
            refused => skipped::skipped("registered buffers", format_args!("{refused:?}")),
        }
        free.extend(strangers);
        ring.submit(&mut free.into_iter().enumerate().map(|(i, b)| request(8 * i, 2, b)).collect());
        let mut pages: Vec<(u8, u8)> = Vec::new();
        while let Some(done) = ring.reap(true) {
            done.result.unwrap();
            pages.push((done.buffer[0], done.buffer[PAGE]));
        }
        pages.sort_unstable();
        assert_eq!(pages, [(0, 1), (8, 9), (16, 17), (24, 25)]);
    }
}
