//! The memory that a body takes once it is read as JSON, known before it is.
//!
//! A value of JSON takes 32 bytes, however short its text is: a list of lists of one digit each takes fifty times its text.

use serde_json::Value;

/// Bytes of a value in a list that grows while the list that is made of it is there, too.
const VALUE_BYTES: usize = 4 * size_of::<Value>();
/// Bytes that a list or an object takes besides: its first places, and the allocator's own.
const CONTAINER_BYTES: usize = 4 * size_of::<Value>() + 64;
/// Bytes of a key besides its text: a place in a table and an entry in a list, and both grow.
const KEY_BYTES: usize = 3 * (size_of::<String>() + size_of::<Value>() + 2 * size_of::<usize>());
/// Bytes that a text takes besides its own.
const TEXT_BYTES: usize = 32;

/// Memory for a body and its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Weight {
    /// Bytes while it is read, at most.
    pub(super) reading: usize,
    /// Bytes of the request that is made of it, at most.
    pub(super) request: usize,
}

/// The key whose text is read as JSON, too: the arguments of a call.
const ARGUMENTS: &[u8] = b"arguments";

/// Weighs a body in one pass. A body that is no JSON is weighed as if it were: reading it ends where it is wrong.
pub(super) fn of(body: &[u8]) -> Weight {
    let mut sum = Sum { values: 1, ..Sum::default() };
    let (mut texts, mut text_bytes, mut escaped_bytes) = (0, 0, 0);
    let (mut last, mut key) = (&body[..0], &body[..0]);
    let mut rest = body;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'"' {
            if byte == b':' {
                key = last;
            }
            sum.add(byte);
            continue;
        }
        let end = end_of_text(rest);
        last = &rest[..end];
        rest = rest.get(end + 1..).unwrap_or_default();
        (texts, text_bytes) = (texts + 1, text_bytes + last.len());
        if last.contains(&b'\\') {
            escaped_bytes = escaped_bytes.max(last.len());
        }
        // a key may be written with escapes
        if key == ARGUMENTS || key.contains(&b'\\') {
            last.iter().for_each(|&byte| sum.add(byte));
        }
    }
    let held = sum.bytes() + TEXT_BYTES * texts;
    // a text is copied where it may be one of several kinds; one with escapes is put together before, in a list that grows
    Weight { reading: held + 2 * text_bytes + 3 * escaped_bytes, request: held / 2 + text_bytes }
}

/// Bytes until the quotation mark that ends a text, or the body.
fn end_of_text(text: &[u8]) -> usize {
    let mut at = 0;
    while at < text.len() && text[at] != b'"' {
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    at.min(text.len())
}

/// Values, lists and objects, and keys.
#[derive(Debug, Default)]
struct Sum {
    values: usize,
    containers: usize,
    keys: usize,
}

impl Sum {
    /// Counts what a byte outside texts begins.
    fn add(&mut self, byte: u8) {
        match byte {
            b'[' | b'{' => (self.values, self.containers) = (self.values + 1, self.containers + 1),
            b',' => self.values += 1,
            b':' => self.keys += 1,
            _ => {}
        }
    }

    fn bytes(&self) -> usize {
        VALUE_BYTES * self.values + CONTAINER_BYTES * self.containers + KEY_BYTES * self.keys
    }
}
