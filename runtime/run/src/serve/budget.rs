//! The memory that clients can make the server hold: counted in bytes, and taken before it is there.
//!
//! A [`Budget`] is a number of bytes, and a [`Charge`] is a held part of it. A charge gives its bytes back when it is dropped. It travels
//! with the memory it stands for: a body, a queued request, an unread answer. [`Shares`] divides the memory that the plan's limit leaves.
//! No share waits for another, and in a share nobody waits for one who waits ([`Budget::grow`]), so nothing can deadlock.

use std::sync::Arc;
use std::time::Duration;

use plans::size::show;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::request::Refusal;

/// Bytes of a connection, in this process and in the kernel. They cover the head, a piece of a body, unsent output, headers, tasks, and the
/// socket's records and buffers.
pub(super) const CONNECTION_BYTES: u64 = 40 << 10;
/// Connections at once, at most and at least.
const CONNECTIONS: (u64, u64) = (64, 4);
/// Copies of an answer's text until its client has it: as it grows, as JSON that grows, and on its way out.
pub(super) const TEXT_COPIES: usize = 5;
/// Bytes that `plan --reserve` must keep for one byte more of a share, at most.
pub(super) const RESERVED: usize = 6;
/// A quarter of what is not for connections, at least: with less there is no point in serving.
const QUARTER_BYTES_MIN: u64 = 32 << 10;

/// Bytes that can be taken and given back.
#[derive(Debug)]
pub(super) struct Budget {
    free: Arc<Semaphore>,
    bytes: usize,
    /// Held by the one who holds bytes and waits for more.
    grows: Mutex<()>,
}

/// Bytes of a budget that are held.
#[derive(Debug)]
pub(super) struct Charge(OwnedSemaphorePermit);

/// Why bytes cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Short {
    /// Others hold them.
    Now,
    /// The whole budget, of so many bytes, is smaller.
    Ever { bytes: usize, budget: usize },
}

impl Budget {
    /// A budget of so many bytes, all of them free.
    pub(super) fn new(bytes: u64) -> Self {
        let bytes = bytes.min(u32::MAX.into()) as usize; // a semaphore takes no more at a time
        Self { free: Arc::new(Semaphore::new(bytes)), bytes, grows: Mutex::new(()) }
    }

    /// All of its bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that are free now.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.free.available_permits()
    }

    /// Takes bytes if they are free.
    pub(super) fn take(&self, bytes: usize) -> Result<Charge, Short> {
        let permits = self.permits(bytes)?;
        Arc::clone(&self.free).try_acquire_many_owned(permits).map(Charge).map_err(|_| Short::Now)
    }

    /// Adds bytes to a charge as soon as they are free, within a time.
    ///
    /// One holder may wait for more. If another holder waits already, this fails at once: the two would wait for each other.
    pub(super) async fn grow(&self, held: &mut Charge, bytes: usize, most: Duration) -> Result<(), Short> {
        let more = match self.take(bytes) {
            Err(Short::Now) => {
                let grows = if held.bytes() > 0 { Some(self.grows.try_lock()) } else { None };
                let _alone = grows.transpose().map_err(|_| Short::Now)?;
                self.wait(bytes, most).await?
            }
            taken => taken?,
        };
        held.add(more);
        Ok(())
    }

    /// Takes bytes as soon as they are free, within a time.
    async fn wait(&self, bytes: usize, most: Duration) -> Result<Charge, Short> {
        let permits = self.permits(bytes)?;
        match timeout(most, Arc::clone(&self.free).acquire_many_owned(permits)).await {
            Ok(Ok(permit)) => Ok(Charge(permit)),
            _ => Err(Short::Now),
        }
    }

    fn permits(&self, bytes: usize) -> Result<u32, Short> {
        let fits = u32::try_from(bytes).ok().filter(|_| bytes <= self.bytes);
        fits.ok_or(Short::Ever { bytes, budget: self.bytes })
    }
}

impl Charge {
    /// Bytes of it.
    pub(super) fn bytes(&self) -> usize {
        self.0.num_permits()
    }

    /// Adds the bytes of another charge of the same budget.
    pub(super) fn add(&mut self, other: Self) {
        self.0.merge(other.0);
    }

    /// Gives all but so many bytes back.
    pub(super) fn keep(&mut self, bytes: usize) {
        let rest = self.bytes().saturating_sub(bytes);
        drop(self.0.split(rest));
    }
}

impl Short {
    /// The refusal for a client; `what` names the use of the bytes.
    pub(super) fn refusal(self, what: &str) -> Refusal {
        match self {
            Self::Now => Refusal::of(
                503,
                "overloaded_error",
                format!("the server has no room for {what} now; ask again in some seconds"),
            ),
            Self::Ever { bytes, budget } => {
                let more = (RESERVED * (bytes - budget)).div_ceil(1 << 20);
                let message = format!(
                    "{what} may take {}, and the plan's limit has {} for that; send less, or plan with a --reserve that is {more}M larger",
                    show(bytes as u64),
                    show(budget as u64)
                );
                Refusal::of(413, "invalid_request_error", message)
            }
        }
    }
}

/// Memory that the plan's limit leaves for clients, in parts that do not borrow from each other.
#[derive(Debug)]
pub(super) struct Shares {
    /// Connections at once, each of [`CONNECTION_BYTES`].
    pub(super) connections: usize,
    /// For bodies as they come, and requests until they are answered.
    pub(super) requests: Budget,
    /// For the JSON of a body: one at a time is read.
    pub(super) reading: usize,
    /// For prompts as they are made ready, grammars, vectors, and answers until they are read.
    pub(super) answers: Arc<Budget>,
}

impl Shares {
    /// Divides `bytes`: a third for connections, at least 4 and at most 64 of them. Half of the rest is for answers, a quarter for
    /// requests, and a quarter for reading one request.
    ///
    /// # Errors
    /// A sentence, where they are too few.
    pub(super) fn of(bytes: u64) -> Result<Self, String> {
        let connections = (bytes / 3 / CONNECTION_BYTES).clamp(CONNECTIONS.1, CONNECTIONS.0);
        let quarter = bytes.saturating_sub(connections * CONNECTION_BYTES) / 4;
        if quarter < QUARTER_BYTES_MIN {
            let needed = CONNECTIONS.1 * CONNECTION_BYTES + 4 * QUARTER_BYTES_MIN;
            let more = needed.saturating_sub(bytes).div_ceil(1 << 20).max(1);
            return Err(format!(
                "the plan's limit leaves {} for what clients send and are sent, and a server needs {}; plan again with --reserve {more}M",
                show(bytes),
                show(needed)
            ));
        }
        Ok(Self {
            connections: connections as usize,
            requests: Budget::new(quarter),
            reading: quarter as usize,
            answers: Arc::new(Budget::new(2 * quarter)),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_budget_is_never_exceeded_and_all_of_it_comes_back(
            steps in prop::collection::vec((0_usize..4, 0_usize..8, 0_usize..700), 0..200),
        ) {
            let budget = Budget::new(1000);
            let mut held: Vec<Charge> = Vec::new();
            for (kind, which, bytes) in steps {
                let place = which % held.len().max(1);
                match kind {
                    0 | 1 => match budget.take(bytes) {
                        Ok(charge) => held.push(charge),
                        Err(short) => prop_assert!(short == Short::Now && bytes > budget.free()),
                    },
                    2 if !held.is_empty() => drop(held.swap_remove(place)),
                    3 if held.len() > 1 => {
                        let other = held.pop().expect("one");
                        let place = place % held.len();
                        held[place].add(other);
                        held[place].keep(bytes);
                        prop_assert!(held[place].bytes() <= bytes);
                    }
                    _ => {}
                }
                let taken: usize = held.iter().map(Charge::bytes).sum();
                prop_assert_eq!(taken + budget.free(), 1000);
            }
            held.clear();
            prop_assert_eq!(budget.free(), 1000);
        }
    }

    #[test]
    fn of_many_who_take_in_pieces_some_get_all_and_nobody_waits_for_one_who_waits() {
        let (budget, done) = (Budget::new(100), std::sync::atomic::AtomicUsize::new(0));
        let (clock, long) = (std::time::Instant::now(), Duration::from_secs(60));
        std::thread::scope(|scope| {
            for taker in 0..8 {
                let (budget, done) = (&budget, &done);
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
                    runtime.expect("a runtime").block_on(async {
                        // each wants more than half of it, piece by piece, so that they stand in each other's way
                        for round in 0..20 {
                            let mut held = budget.take(0).expect("nothing");
                            let pieces = (0..6).map(|piece| 10 + (taker + round + piece) % 3);
                            let mut grown = Ok(());
                            for bytes in pieces {
                                grown = budget.grow(&mut held, bytes, long).await;
                                assert!(held.bytes() + budget.free() <= 100, "{held:?}");
                                tokio::task::yield_now().await;
                                if grown.is_err() {
                                    break;
                                }
                            }
                            match grown {
                                Ok(()) => _ = done.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
                                Err(short) => assert_eq!(short, Short::Now),
                            }
                        }
                    });
                });
            }
        });
        assert!(clock.elapsed() < long, "two have waited for each other");
        assert!(done.into_inner() > 0, "nobody got all");
        assert_eq!(budget.free(), 100);
    }

    #[test]
    fn what_can_never_fit_is_told_apart_from_what_does_not_fit_now() {
        let budget = Budget::new(1 << 20);
        let _held = budget.take(1).expect("there is room");
        let now = budget.take(1 << 20).expect_err("others hold it").refusal("the request");
        assert_eq!(now.status, 503);
        let ever = budget.take((1 << 20) + 1).expect_err("it is larger").refusal("the request");
        assert_eq!(ever.status, 413);
        assert!(
            ever.message.contains("has 1.0 MiB") && ever.message.contains("1M larger"),
            "{}",
            ever.message
        );
    }

    #[test]
    fn shares_are_no_more_than_there_is() {
        for bytes in (288 << 10..80 << 20).step_by(123_457) {
            let shares = Shares::of(bytes).expect("it is enough");
            assert!((4..=64).contains(&shares.connections), "{bytes}: {shares:?}");
            let all = shares.connections as u64 * CONNECTION_BYTES
                + (shares.requests.free() + shares.reading + shares.answers.free()) as u64;
            assert!(all <= bytes && bytes - all < 4, "{bytes}: {shares:?}");
        }
        let said = Shares::of(100 << 10).expect_err("too little");
        assert!(said.contains("leaves 100.0 KiB") && said.contains("--reserve 1M"), "{said}");
    }
}
