//! An answer on its way from the engine's thread to its client, and the memory that it may take there.
//!
//! The speaker never waits: a slow client delays no other. Memory stays bounded all the same, for the listener holds a charge for
//! the whole answer before its first word.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Told;
use super::budget::Charge;

/// The listener has hung up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gone;

/// The end that the engine's thread has.
#[derive(Debug, Clone)]
pub(super) struct Speaker {
    messages: UnboundedSender<Message>,
    unread: Arc<AtomicUsize>,
}

/// The end that the client's connection has. Dropped, it hangs up, and gives back the charge.
#[derive(Debug)]
pub(super) struct Listener {
    messages: UnboundedReceiver<Message>,
    unread: Arc<AtomicUsize>,
    charge: Option<Charge>,
}

#[derive(Debug)]
enum Message {
    Told(Told),
    /// Memory that the answer may take.
    Charge(Charge),
}

/// Both ends of a new one.
pub(super) fn mailbox() -> (Speaker, Listener) {
    let (sender, receiver) = unbounded_channel();
    let unread = Arc::new(AtomicUsize::new(0));
    let speaker = Speaker { messages: sender, unread: Arc::clone(&unread) };
    (speaker, Listener { messages: receiver, unread, charge: None })
}

impl Speaker {
    /// Tells the listener something.
    pub(super) fn send(&self, told: Told) -> Result<(), Gone> {
        self.unread.fetch_add(1, Ordering::Relaxed);
        self.messages.send(Message::Told(told)).map_err(|_| Gone)
    }

    /// Gives the listener more memory.
    pub(super) fn charge(&self, charge: Charge) {
        // a listener that has gone needs none
        let _ = self.messages.send(Message::Charge(charge));
    }

    /// Messages that the listener has not taken yet.
    pub(super) fn unread(&self) -> usize {
        self.unread.load(Ordering::Relaxed)
    }

    /// Whether the listener has hung up.
    pub(super) fn is_closed(&self) -> bool {
        self.messages.is_closed()
    }
}

impl Listener {
    /// The next message; none if the speaker has gone.
    pub(super) async fn recv(&mut self) -> Option<Told> {
        std::future::poll_fn(|context| self.poll_recv(context)).await
    }

    pub(super) fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Told>> {
        loop {
            match self.messages.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Message::Told(told))) => {
                    self.unread.fetch_sub(1, Ordering::Relaxed);
                    return Poll::Ready(Some(told));
                }
                Poll::Ready(Some(Message::Charge(more))) => match &mut self.charge {
                    Some(charge) => charge.add(more),
                    None => self.charge = Some(more),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::Budget;
    use super::*;

    #[test]
    fn an_answers_charge_lasts_until_its_listener_is_gone() {
        let budget = Budget::new(100);
        let (speaker, mut listener) = mailbox();
        speaker.charge(budget.take(30).expect("there is room"));
        speaker.send(Told::Begins { prompt: 1, ignored: Vec::new() }).expect("it listens");
        speaker.charge(budget.take(50).expect("there is room"));
        speaker.send(Told::Begins { prompt: 2, ignored: Vec::new() }).expect("it listens");
        assert_eq!((speaker.unread(), budget.free()), (2, 20));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let heard = runtime.block_on(async { (listener.recv().await, listener.recv().await) });
        assert!(
            matches!(heard, (Some(Told::Begins { prompt: 1, .. }), Some(Told::Begins { prompt: 2, .. }))),
            "{heard:?}"
        );
        drop(speaker.clone());
        assert_eq!((speaker.unread(), budget.free()), (0, 20));
        assert!(!speaker.is_closed());
        drop(listener);
        assert!(
            speaker.is_closed() && speaker.send(Told::Begins { prompt: 3, ignored: Vec::new() }) == Err(Gone)
        );
        assert_eq!(budget.free(), 100);
        // a charge that the listener has not taken is given back as well
        let (speaker, listener) = mailbox();
        drop(listener);
        speaker.charge(budget.take(30).expect("there is room"));
        assert_eq!(budget.free(), 100);
    }
}
