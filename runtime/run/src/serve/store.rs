//! Conversations that a response has ended, so that the next one can go on with `previous_response_id`: the latest ones, in bounded memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::super::chat::conversation::{Call, Message};
use super::budget::{Charge, Shares};

/// The latest conversations, in a part of the bytes that there are for requests.
#[derive(Debug)]
pub(super) struct Store {
    kept: Mutex<VecDeque<Kept>>,
    shares: Arc<Shares>,
}

#[derive(Debug)]
struct Kept {
    id: String,
    messages: Vec<Message>,
    held: Charge,
}

/// The part of the bytes for requests that conversations may take.
const PART: usize = 4;
/// Bytes of a message beside its texts, roughly.
const MESSAGE_BYTES: usize = 256;

fn bytes(messages: &[Message]) -> usize {
    let of_message = |message: &Message| {
        let calls: usize = message.calls.iter().map(|call| call.name.len() + 2 * value_bytes(call)).sum();
        MESSAGE_BYTES + message.content.len() + message.reasoning.as_ref().map_or(0, String::len) + calls
    };
    messages.iter().map(of_message).sum()
}

fn value_bytes(call: &Call) -> usize {
    serde_json::to_string(&call.arguments).map_or(0, |text| text.len())
}

impl Store {
    /// An empty one.
    pub(super) fn new(shares: Arc<Shares>) -> Self {
        Self { kept: Mutex::default(), shares }
    }

    /// Keeps a conversation; the oldest ones go. One that is larger than all may be is not kept.
    pub(super) fn put(&self, id: &str, messages: Vec<Message>) {
        let (bytes, most) = (bytes(&messages), self.shares.requests.bytes() / PART);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        while kept.iter().map(|kept| kept.held.bytes()).sum::<usize>() + bytes > most {
            if kept.pop_front().is_none() {
                return;
            }
        }
        // requests that wait may need the room
        if let Ok(held) = self.shares.requests.take(bytes) {
            kept.push_back(Kept { id: id.to_owned(), messages, held });
        }
    }

    /// The conversation of a response, if it is still kept.
    pub(super) fn get(&self, id: &str) -> Option<Vec<Message>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|kept| kept.id == id).map(|kept| kept.messages.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::chat::conversation::Role;
    use super::*;

    #[test]
    fn the_latest_conversations_stay_within_the_bound() {
        let shares = Arc::new(Shares::of(2 << 20).unwrap());
        let part = shares.requests.bytes() / PART;
        let said = |bytes: usize| vec![Message::new(Role::User, "a".repeat(bytes))];
        let store = Store::new(Arc::clone(&shares));
        let third = part / 3 - MESSAGE_BYTES;
        ["1", "2", "3", "4"].iter().for_each(|id| store.put(id, said(third)));
        assert_eq!((store.get("1"), store.get("4")), (None, Some(said(third))));
        let taken = shares.requests.bytes() - shares.requests.free();
        assert!(taken > part / 2 && taken <= part, "{taken}");
        store.put("5", said(2 * part));
        assert_eq!(store.get("5"), None);
        drop(store);
        assert_eq!(shares.requests.free(), shares.requests.bytes());
    }
}
