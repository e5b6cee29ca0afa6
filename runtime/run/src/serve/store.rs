//! Conversations that a response has ended, so that the next one can go on with `previous_response_id`: the latest ones, in bounded memory.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::super::chat::conversation::{Call, Message};
use super::budget::{Charge, Shares, Short};
use super::weight;

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
/// Bytes of a message and of a call beside their texts.
const MESSAGE_BYTES: usize = 256;
const CALL_BYTES: usize = 2 * size_of::<Call>();

/// Bytes of messages, at most.
fn bytes(messages: &[Message]) -> usize {
    let of_call = |call: &Call| {
        let arguments = serde_json::to_vec(&call.arguments).unwrap_or_default();
        CALL_BYTES + call.id.len() + call.name.len() + weight::of(&arguments).request
    };
    let of_message = |message: &Message| {
        let texts = [Some(&message.content), message.reasoning.as_ref(), message.answers.as_ref()];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        MESSAGE_BYTES + texts + message.calls.iter().map(of_call).sum::<usize>()
    };
    messages.iter().map(of_message).sum()
}

impl Store {
    /// An empty one.
    pub(super) fn new(shares: Arc<Shares>) -> Self {
        Self { kept: Mutex::default(), shares }
    }

    /// Keeps a conversation of these messages and an answer; the oldest conversations go. One that is larger than the part is not kept.
    pub(super) fn put(&self, id: &str, messages: &[Message], answer: Vec<Message>) {
        let bytes = id.len() + bytes(messages) + bytes(&answer);
        let most = self.shares.requests.bytes() / PART;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        while kept.iter().map(|kept| kept.held.bytes()).sum::<usize>() + bytes > most {
            if kept.pop_front().is_none() {
                return;
            }
        }
        // requests that wait may need the bytes
        if let Ok(held) = self.shares.requests.take(bytes) {
            let messages = messages.iter().cloned().chain(answer).collect();
            kept.push_back(Kept { id: id.to_owned(), messages, held });
        }
    }

    /// A copy of the conversation of a response, with the charge for the copy; `None` if it is not kept, or not any more.
    ///
    /// # Errors
    /// If there are no bytes for the copy now.
    fn get(&self, id: &str) -> Result<Option<(Vec<Message>, Charge)>, Short> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(kept) = kept.iter().find(|kept| kept.id == id) else { return Ok(None) };
        let charge = self.shares.requests.take(kept.held.bytes())?;
        Ok(Some((kept.messages.clone(), charge)))
    }
}

/// The store for one request, which may continue a conversation. It collects the charge for the copy.
#[derive(Debug)]
pub(super) struct Lookup<'s> {
    store: &'s Store,
    charge: RefCell<Option<Charge>>,
}

impl<'s> Lookup<'s> {
    /// No conversation has been looked up yet.
    pub(super) fn new(store: &'s Store) -> Self {
        Self { store, charge: RefCell::default() }
    }

    /// A copy of the conversation of a response; `None` if it is not kept, or not any more.
    ///
    /// # Errors
    /// If there are no bytes for the copy now.
    pub(super) fn get(&self, id: &str) -> Result<Option<Vec<Message>>, Short> {
        let Some((messages, charge)) = self.store.get(id)? else { return Ok(None) };
        *self.charge.borrow_mut() = Some(charge);
        Ok(Some(messages))
    }

    /// The charge for the copy, if one was made.
    pub(super) fn charge(self) -> Option<Charge> {
        self.charge.into_inner()
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
        let kept = |id: &str| store.get(id).unwrap().map(|(messages, _)| messages);
        let third = part / 3 - MESSAGE_BYTES - 1;
        ["1", "2", "3", "4"].iter().for_each(|id| store.put(id, &said(third), Vec::new()));
        assert_eq!((kept("1"), kept("4")), (None, Some(said(third))));
        let taken = shares.requests.bytes() - shares.requests.free();
        assert!(taken > part / 2 && taken <= part, "{taken}");
        store.put("5", &said(2 * part), Vec::new());
        assert_eq!(kept("5"), None);
        drop(store);
        assert_eq!(shares.requests.free(), shares.requests.bytes());
    }

    #[test]
    fn a_copy_for_a_request_is_charged_and_refused_where_there_are_no_bytes_for_it() {
        let shares = Arc::new(Shares::of(2 << 20).unwrap());
        let store = Store::new(Arc::clone(&shares));
        store.put("1", &[Message::new(Role::User, "a".repeat(5000))], Vec::new());
        let free = shares.requests.free();
        let lookup = Lookup::new(&store);
        assert_eq!(lookup.get("2"), Ok(None));
        assert!(lookup.get("1").unwrap().is_some() && shares.requests.free() <= free - 5000);
        let charge = lookup.charge().unwrap();
        assert!(charge.bytes() >= 5000);
        let _others = shares.requests.take(shares.requests.free()).unwrap();
        assert_eq!(Lookup::new(&store).get("1"), Err(Short::Now));
    }

    #[test]
    fn every_part_of_a_message_is_counted() {
        let long = || "a".repeat(1000);
        let arguments = |json: &str| serde_json::from_str(json).unwrap();
        let call = |id: String, name: String, json: &str| Call { id, name, arguments: arguments(json) };
        let small = || call(String::new(), String::new(), "{}");
        let empty = || Message { calls: vec![small()], ..Message::new(Role::Assistant, "") };
        let many = format!("{{\"a\":[{}]}}", vec!["[1]"; 100].join(","));
        for (more, least) in [
            (Message { content: long(), ..empty() }, 1000),
            (Message { reasoning: Some(long()), ..empty() }, 1000),
            (Message { answers: Some(long()), ..empty() }, 1000),
            (Message { calls: vec![call(long(), String::new(), "{}")], ..empty() }, 1000),
            (Message { calls: vec![call(String::new(), long(), "{}")], ..empty() }, 1000),
            // 200 values of 32 bytes each in 100 lists
            (Message { calls: vec![call(String::new(), String::new(), &many)], ..empty() }, 6400),
            (Message { calls: vec![small(), small()], ..empty() }, size_of::<Call>()),
        ] {
            let (before, after) = (bytes(&[empty()]), bytes(&[more]));
            assert!(after >= before + least, "{before} {after} {least}");
        }
    }
}
