//! Requests that wait for a sequence slot, in the order of their arrival. Their bytes and their waiting time are bounded.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::metrics::Metrics;
use super::request::{Ask, Refusal};
use super::{Job, Told};

/// Waiting requests. A client that hangs up gives up its place.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    come: Condvar,
    bounds: Bounds,
    metrics: Arc<Metrics>,
}

/// Bounds of a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Bytes of all waiting requests, at most; one request may always wait.
    pub(super) bytes: usize,
    /// Time until a waiting request is refused.
    pub(super) time: Duration,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<(Instant, Job)>,
    closed: bool,
}

/// Why a request may not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// The waiting requests have all bytes.
    Full,
    /// The server is stopping.
    Closed,
}

impl Queue {
    /// An empty queue.
    pub(super) fn new(bounds: Bounds, metrics: Arc<Metrics>) -> Self {
        Self { waiting: Mutex::default(), come: Condvar::new(), bounds, metrics }
    }

    /// Takes a request in, if there are bytes for it.
    pub(super) fn put(&self, job: Job) -> Result<(), Refused> {
        let mut waiting = self.swept();
        if waiting.closed {
            return Err(Refused::Closed);
        }
        let bytes: usize = waiting.jobs.iter().map(|(_, job)| job.held.bytes()).sum();
        if bytes > 0 && bytes + job.held.bytes() > self.bounds.bytes {
            return Err(Refused::Full);
        }
        waiting.jobs.push_back((Instant::now(), job));
        self.metrics.asked();
        self.metrics.waiting(waiting.jobs.len());
        self.come.notify_one();
        Ok(())
    }

    /// The next request, which may come within a time; none if it does not.
    pub(super) fn take(&self, wait: Duration) -> Option<Job> {
        let waiting = self.swept();
        let waited = self.come.wait_timeout_while(waiting, wait, |waiting| waiting.jobs.is_empty());
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let job = waiting.jobs.pop_front();
        self.metrics.waiting(waiting.jobs.len());
        job.map(|(_, job)| job)
    }

    /// The next question that needs no sequence, wherever it waits.
    pub(super) fn take_question(&self) -> Option<Job> {
        let mut waiting = self.swept();
        let at = waiting.jobs.iter().position(|(_, job)| matches!(job.request.ask, Ask::Question(_)))?;
        let job = waiting.jobs.remove(at);
        self.metrics.waiting(waiting.jobs.len());
        job.map(|(_, job)| job)
    }

    /// Removes requests of clients that hung up, and refuses requests that have waited for too long.
    pub(super) fn sweep(&self) {
        drop(self.swept());
    }

    /// Refuses all requests, waiting ones included.
    pub(super) fn close(&self) {
        let mut waiting = self.swept();
        (waiting.closed, waiting.jobs) = (true, VecDeque::new());
        self.metrics.waiting(0);
    }

    /// Whether a request waits.
    #[cfg(test)]
    pub(super) fn has_some(&self) -> bool {
        !self.swept().jobs.is_empty()
    }

    /// Whether the queue is closed.
    #[cfg(test)]
    pub(super) fn is_closed(&self) -> bool {
        self.swept().closed
    }

    fn swept(&self) -> MutexGuard<'_, Waiting> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let before = waiting.jobs.len();
        waiting.jobs.retain(|(since, job)| {
            let is_late = since.elapsed() >= self.bounds.time;
            if is_late {
                let seconds = self.bounds.time.as_secs();
                let message = format!("the request has waited for {seconds} s, the most; ask again later");
                // a client that hung up is told nothing
                job.told.send(Told::Failed(Refusal::of(503, "overloaded_error", message))).ok();
            }
            !is_late && !job.told.is_closed()
        });
        if waiting.jobs.len() < before {
            self.metrics.waiting(waiting.jobs.len());
        }
        waiting
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::Budget;
    use super::super::http::tests::metrics;
    use super::super::mailbox::{Listener, mailbox};
    use super::super::request::{AnswerRequest, Input};
    use super::*;

    fn job(said: &str) -> (Job, Listener) {
        let (told, heard) = mailbox();
        let request = AnswerRequest::of(Ask::Prompts(vec![Input::Text(said.to_owned())]));
        let held = Budget::new(10).take(10).expect("there is room");
        (Job { request, told, held }, heard)
    }

    fn queue(bytes: usize, time: Duration) -> (Queue, Arc<Metrics>) {
        let metrics = metrics();
        (Queue::new(Bounds { bytes, time }, Arc::clone(&metrics)), metrics)
    }

    fn next(queue: &Queue) -> Option<String> {
        match queue.take(Duration::ZERO)?.request.ask {
            Ask::Prompts(inputs) => match &inputs[..] {
                [Input::Text(said)] => Some(said.clone()),
                _ => None,
            },
            _ => None,
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_client_that_hangs_up_gives_up_its_place() {
        let (queue, metrics) = queue(20, LONG);
        let waits = |count: usize| {
            let text = metrics.text();
            assert!(text.contains(&format!("flashplan_queue_requests {count}\n")), "{count}: {text}");
        };
        let [(first, heard), (second, _second), (third, third_heard), (fourth, _fourth)] =
            ["1", "2", "3", "4"].map(job);
        queue.put(first).unwrap();
        queue.put(second).unwrap();
        waits(2);
        assert_eq!(queue.put(fourth), Err(Refused::Full));
        drop(heard);
        queue.put(third).unwrap();
        waits(2);
        assert_eq!(next(&queue).as_deref(), Some("2"));
        drop(third_heard);
        queue.sweep();
        waits(0);
        assert!(queue.take(Duration::from_millis(1)).is_none());
    }

    #[test]
    fn many_short_requests_wait_in_order_and_a_long_one_waits_alone() {
        let (queue, _) = queue(400, LONG);
        let (jobs, _heard): (Vec<Job>, Vec<Listener>) = (0..40).map(|at| job(&at.to_string())).unzip();
        jobs.into_iter().for_each(|job| queue.put(job).unwrap());
        let ((more, _more), all) = (job("more"), (0..40).map(|at| at.to_string()));
        assert_eq!(queue.put(more), Err(Refused::Full));
        all.for_each(|said| assert_eq!(next(&queue), Some(said)));
        let (held, (short, _short), (told, _long)) = (Budget::new(900).take(900), job("short"), mailbox());
        queue.put(Job { told, held: held.unwrap(), ..job("long").0 }).unwrap();
        assert_eq!(queue.put(short), Err(Refused::Full));
    }

    #[test]
    fn a_request_that_has_waited_for_too_long_is_refused_for_now() {
        let (queue, _) = queue(400, Duration::from_millis(20));
        let (late, mut heard) = job("late");
        queue.put(late).unwrap();
        std::thread::sleep(Duration::from_millis(30));
        let (soon, _soon) = job("soon");
        queue.put(soon).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let told = runtime.block_on(heard.recv());
        assert!(matches!(&told, Some(Told::Failed(refusal)) if refusal.status == 503), "{told:?}");
        assert_eq!(next(&queue).as_deref(), Some("soon"));
    }

    #[test]
    fn a_request_is_taken_as_soon_as_it_comes_and_nobody_waits_for_a_closed_queue() {
        let (queue, _) = queue(20, LONG);
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| queue.take(LONG));
            let (one, _heard) = job("1");
            queue.put(one).unwrap();
            assert!(taken.join().unwrap().is_some());
        });
        let ((one, mut heard), (two, _other)) = (job("1"), job("2"));
        queue.put(one).unwrap();
        queue.close();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(runtime.block_on(heard.recv()).is_none(), "its client is told");
        assert_eq!(queue.put(two), Err(Refused::Closed));
    }
}
