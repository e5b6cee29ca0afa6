//! Positioned reads by a pool of threads: as many reads in flight as there are threads.
//!
//! ```text
//! submit: queue.push(request)                        reap: done.pop()
//! thread: loop { r = queue.pop(); read all of r; done.push(r) }
//! ```

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use platform::affinity::CoreSet;

use super::{Completion, Files, Flash, FlashCounters, ReadRequest, explain, forget_pages};

/// Stack of a reading thread, which holds a request and calls the system.
const STACK_BYTES: usize = 64 << 10;

/// A pool of reading threads.
#[derive(Debug)]
pub struct Pread {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Completions taken from the threads, not yet returned.
    reaped: VecDeque<Completion>,
    in_flight: usize,
    counters: FlashCounters,
}

#[derive(Debug)]
struct Shared {
    files: Files,
    /// Whether reads go through the page cache; their pages are dropped at once, because they count as this
    /// process's memory.
    buffered: bool,
    state: Mutex<State>,
    queued: Condvar,
    done: Condvar,
    /// See [`FlashCounters::resumed`].
    resumed: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<ReadRequest>,
    done: VecDeque<Completion>,
    /// Threads waiting for a request.
    waiting: usize,
    /// Whether the owner waits for a completion.
    awaited: bool,
    closed: bool,
}

impl Pread {
    /// Starts `depth` threads on `cores`, with room for `requests` requests.
    ///
    /// # Errors
    /// If the system gives no thread, or a core does not exist.
    pub fn new(
        files: impl Into<Files>,
        direct: bool,
        depth: usize,
        requests: usize,
        cores: &[u32],
    ) -> io::Result<Self> {
        let missing = |core| {
            let why = format!("core {core} does not exist here or is not ours");
            io::Error::new(io::ErrorKind::InvalidInput, why)
        };
        // the system may ignore missing cores as long as one is left
        let allowed = CoreSet::current()?;
        if let Some(&core) = cores.iter().find(|&&core| !allowed.contains(core)) {
            return Err(missing(core));
        }
        let set = CoreSet::of(cores).map_err(missing)?;
        let state = State {
            queue: VecDeque::with_capacity(requests),
            done: VecDeque::with_capacity(requests),
            waiting: 0,
            awaited: false,
            closed: false,
        };
        let shared = Arc::new(Shared {
            files: files.into(),
            buffered: !direct,
            state: Mutex::new(state),
            queued: Condvar::new(),
            done: Condvar::new(),
            resumed: AtomicU64::new(0),
        });
        let mut pread = Self {
            shared,
            threads: Vec::with_capacity(depth),
            reaped: VecDeque::with_capacity(requests),
            in_flight: 0,
            counters: FlashCounters::default(),
        };
        for i in 0..depth {
            let shared = Arc::clone(&pread.shared);
            let set = set.clone();
            let (tell, told) = std::sync::mpsc::sync_channel(1);
            let handle = thread::Builder::new().name(format!("read {i}")).stack_size(STACK_BYTES).spawn(
                move || {
                    let pinned = set.restrict_this_thread();
                    let usable = pinned.is_ok();
                    let _ = tell.send(pinned);
                    if usable {
                        work(&shared);
                    }
                },
            )?;
            pread.threads.push(handle);
            told.recv().map_err(io::Error::other)??;
        }
        Ok(pread)
    }
}

impl Flash for Pread {
    fn describe(&self) -> String {
        format!("pread, {} threads", self.threads.len())
    }

    fn submit(&mut self, requests: &mut Vec<ReadRequest>) {
        for request in &*requests {
            assert!(request.fits(), "a read fits its buffer");
        }
        let count = requests.len();
        self.in_flight += count;
        let mut state = self.shared.lock();
        state.queue.extend(requests.drain(..));
        let waiting = state.waiting;
        drop(state);
        // one system call for a batch: waking threads dominates the cost
        match count.min(waiting) {
            0 => {}
            1 => self.shared.queued.notify_one(),
            _ => self.shared.queued.notify_all(),
        }
    }

    fn reap(&mut self, wait: bool) -> Option<Completion> {
        if self.reaped.is_empty() && self.in_flight > 0 {
            let mut state = self.shared.lock();
            while state.done.is_empty() && wait {
                state.awaited = true;
                state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.awaited = false;
            }
            std::mem::swap(&mut state.done, &mut self.reaped);
        }
        let completion = self.reaped.pop_front()?;
        self.in_flight -= 1;
        if completion.result.is_ok() {
            self.counters.reads += 1;
            self.counters.bytes += completion.bytes as u64;
        }
        Some(completion)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn counters(&self) -> FlashCounters {
        FlashCounters { resumed: self.shared.resumed.load(Ordering::Relaxed), ..self.counters }
    }
}

impl Drop for Pread {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.queued.notify_all();
        for thread in self.threads.drain(..) {
            // a panicked thread has no more to say
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn work(shared: &Shared) {
    let mut finished: Option<Completion> = None;
    loop {
        // one lock returns a read and takes the next
        let mut state = shared.lock();
        if let Some(completion) = finished.take() {
            state.done.push_back(completion);
            if state.awaited {
                shared.done.notify_one();
            }
        }
        let mut request = loop {
            if state.closed {
                return;
            }
            match state.queue.pop_front() {
                Some(request) => break request,
                None => {
                    state.waiting += 1;
                    state = shared.queued.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.waiting -= 1;
                }
            }
        };
        drop(state);
        let (_, file, offset) = shared.files.at(request.offset);
        let read = |buffer: &mut [u8], offset| platform::file::read_at(file, buffer, offset);
        let needed = shared.files.needed(request.offset, request.bytes);
        let (result, resumed) = read_all(read, request.target(), offset, needed);
        shared.resumed.fetch_add(resumed, Ordering::Relaxed);
        let result = result.map_err(|error| explain(&shared.files, request.offset, request.bytes, error));
        if shared.buffered {
            forget_pages(&shared.files, request.offset, request.bytes);
        }
        let ReadRequest { tag, bytes, buffer, .. } = request;
        finished = Some(Completion { tag, bytes, buffer, result });
    }
}

/// Fills a buffer from `offset`, at least `needed` bytes; returns how often a read had to be resumed.
fn read_all(
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
    buffer: &mut [u8],
    offset: u64,
    needed: usize,
) -> (io::Result<()>, u64) {
    let (mut done, mut resumed) = (0, 0);
    loop {
        match read(&mut buffer[done..], offset + done as u64) {
            Ok(0) if done < needed => return (Err(io::ErrorKind::UnexpectedEof.into()), resumed),
            Ok(bytes) => {
                done += bytes;
                if done >= needed {
                    return (Ok(()), resumed);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (Err(error), resumed),
        }
        resumed += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flash::{open, tests};

    #[test]
    fn a_short_or_interrupted_read_goes_on_where_it_ended() {
        let (mut buffer, mut calls) = ([0; 5], 0);
        let (result, resumed) = read_all(
            |buffer, offset| {
                calls += 1;
                if calls == 2 {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                let count = buffer.len().min(2);
                (offset..).zip(&mut buffer[..count]).for_each(|(at, byte)| *byte = at as u8);
                Ok(count)
            },
            &mut buffer,
            10,
            5,
        );
        assert!(result.is_ok());
        assert_eq!((buffer, resumed, calls), ([10, 11, 12, 13, 14], 3, 4));
        let (result, _) = read_all(|_, _| Ok(0), &mut buffer, 10, 5);
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_core_that_does_not_exist_is_an_error() {
        let file = tests::file();
        assert!(Pread::new(open(file.path(), false).unwrap(), false, 1, 1, &[1000]).is_err());
    }
}
