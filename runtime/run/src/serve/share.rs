//! The time that those have who answer while somebody's prompt is read.
//!
//! A prompt is read in chunks of the plan's length. After each chunk those who answer decode until they have had their share of the time
//! of both. What anybody says does not depend on it: a sequence's tokens are the same whoever is there.

use std::time::Duration;

/// Of the time while a prompt is read, in parts of a hundred, what is at least for those who answer.
pub(super) const ANSWERS_PERCENT: u32 = 50;

/// How long they decode after so much reading, at least.
pub(super) fn owed(read: Duration) -> Duration {
    read * ANSWERS_PERCENT / (100 - ANSWERS_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_any_reading_those_who_answer_have_their_share_of_the_time() {
        for milliseconds in [0, 1, 7, 2500] {
            let read = Duration::from_millis(milliseconds);
            let all = read + owed(read);
            assert!(owed(read) >= all * ANSWERS_PERCENT / 100, "{read:?}");
        }
    }
}
