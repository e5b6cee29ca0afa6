//! Requests that wait for their answer: a bounded number of them, all of clients that are still there.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Job;
use super::metrics::Metrics;
use super::request::Ask;

/// Who is asked first is first; who hangs up gives up his place.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    come: Condvar,
    most: usize,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    closed: bool,
}

/// Why a request may not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// So many wait already.
    Full,
    /// Nobody answers any more.
    Closed,
}

impl Queue {
    /// An empty queue of so many places.
    pub(super) fn new(most: usize, metrics: Arc<Metrics>) -> Self {
        Self { waiting: Mutex::default(), come: Condvar::new(), most, metrics }
    }

    /// Takes a request in, if there is a place.
    pub(super) fn put(&self, job: Job) -> Result<(), Refused> {
        let mut waiting = self.swept();
        if waiting.closed {
            return Err(Refused::Closed);
        }
        if waiting.jobs.len() >= self.most {
            return Err(Refused::Full);
        }
        waiting.jobs.push_back(job);
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
        job
    }

    /// The next question that needs no sequence, wherever it waits.
    pub(super) fn take_question(&self) -> Option<Job> {
        let mut waiting = self.swept();
        let at = waiting.jobs.iter().position(|job| matches!(job.request.ask, Ask::Question(_)))?;
        let job = waiting.jobs.remove(at);
        self.metrics.waiting(waiting.jobs.len());
        job
    }

    /// Lets those go who have hung up.
    pub(super) fn sweep(&self) {
        drop(self.swept());
    }

    /// Lets nobody in any more, and nobody wait.
    pub(super) fn close(&self) {
        let mut waiting = self.swept();
        (waiting.closed, waiting.jobs) = (true, VecDeque::new());
        self.metrics.waiting(0);
    }

    /// Whether anybody waits.
    #[cfg(test)]
    pub(super) fn has_some(&self) -> bool {
        !self.swept().jobs.is_empty()
    }

    /// Whether nobody is let in any more.
    #[cfg(test)]
    pub(super) fn is_closed(&self) -> bool {
        self.swept().closed
    }

    fn swept(&self) -> MutexGuard<'_, Waiting> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let before = waiting.jobs.len();
        waiting.jobs.retain(|job| !job.told.is_closed());
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
        let held = Budget::new(1).take(1).expect("there is room");
        (Job { request, told, held }, heard)
    }

    fn said(job: &Job) -> &Ask {
        &job.request.ask
    }

    #[test]
    fn who_hangs_up_while_he_waits_gives_up_his_place() {
        let metrics = metrics();
        let queue = Queue::new(2, Arc::clone(&metrics));
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
        assert_eq!(
            said(&queue.take(Duration::ZERO).unwrap()),
            &Ask::Prompts(vec![Input::Text("2".to_owned())])
        );
        drop(third_heard);
        queue.sweep();
        waits(0);
        assert!(queue.take(Duration::from_millis(1)).is_none());
    }

    #[test]
    fn a_request_is_taken_as_soon_as_it_comes_and_nobody_waits_for_a_closed_queue() {
        let queue = Queue::new(2, metrics());
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| queue.take(Duration::from_secs(60)));
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
