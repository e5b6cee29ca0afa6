//! Time for active answers while another prompt is prefilled.
//!
//! A prompt is prefilled in chunks of the plan's length. After each chunk the active answers decode until they have had their share of the
//! time of both. Sharing changes no answer: a sequence's tokens do not depend on other sequences.

use std::time::Duration;

/// Least share of the time for active answers while a prompt is prefilled, in percent.
pub(super) const ANSWERS_PERCENT: u32 = 50;

/// Least decode time after so much prefill time.
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
