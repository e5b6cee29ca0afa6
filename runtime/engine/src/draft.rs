//! What may come next, by the text itself: prompt lookup.
//!
//! Text repeats itself: code its names, an answer its question, a summary its source. Where the last tokens stood before, what
//! followed them there is a draft of what follows now. It needs no second model, and it is verified, never believed
//! ([`Session::decode_each`](crate::Session::decode_each)).
//!
//! Source: A. Saxena, "Prompt Lookup Decoding", 2023; verifying drafts in one step is from Leviathan et al., "Fast Inference from
//! Transformers via Speculative Decoding", 2023. Drafts here are compared with the very tokens that are chosen without them, so that
//! no text changes.

/// The longest run of last tokens that is looked for. A longer one is hardly ever followed by something else than its last tokens.
const NGRAM_MAX: usize = 4;
/// The shortest. One token says too little of what follows it.
const NGRAM_MIN: usize = 2;

/// At most `most` tokens that may follow a text: those that followed its last tokens where these stood before, the longest run of
/// them, of up to four, and of equally long ones the latest. Where that place is so late that the text ends first, it goes on as it
/// has gone on since. Nothing where no two last tokens stood together before.
pub fn draft(text: &[u32], most: usize) -> impl Iterator<Item = u32> + '_ {
    let end = text.len();
    let same = |after: usize| {
        let pairs = text[..after].iter().rev().zip(text.iter().rev());
        pairs.take(NGRAM_MAX).take_while(|(before, last)| before == last).count()
    };
    let (mut longest, mut from) = (NGRAM_MIN - 1, end);
    for after in (NGRAM_MIN..end).rev() {
        let length = same(after);
        if length > longest {
            (longest, from) = (length, after);
        }
        if longest == NGRAM_MAX {
            break;
        }
    }
    text[from..].iter().copied().cycle().take(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By trying: the longest run first, of each length the latest place, token after token.
    fn slow(text: &[u32], most: usize) -> Vec<u32> {
        for length in (NGRAM_MIN..=NGRAM_MAX).rev().filter(|&length| length < text.len()) {
            let last = &text[text.len() - length..];
            for start in (0..text.len() - length).rev() {
                if &text[start..start + length] != last {
                    continue;
                }
                let mut gone_on = text.to_vec();
                for at in start + length..start + length + most {
                    gone_on.push(gone_on[at]);
                }
                return gone_on[text.len()..].to_vec();
            }
        }
        Vec::new()
    }

    proptest! {
        #[test]
        fn a_draft_is_what_followed_the_longest_latest_run(
            text in prop::collection::vec(0..4_u32, 0..60),
            most in 0..8_usize,
        ) {
            prop_assert_eq!(draft(&text, most).collect::<Vec<_>>(), slow(&text, most));
        }
    }

    #[test]
    fn a_text_without_repetition_gives_no_draft_and_a_loop_goes_on() {
        let drafted = |text: &[u32], most| draft(text, most).collect::<Vec<_>>();
        assert!(drafted(&[], 3).is_empty());
        assert!(drafted(&[1, 2, 3, 4, 4], 3).is_empty(), "one token alone says too little");
        assert_eq!(drafted(&[7, 8, 1, 2, 3, 7, 8], 2), [1, 2]);
        assert_eq!(drafted(&[7, 8, 1, 7, 8, 2, 7, 8], 2), [2, 7], "the latest");
        assert_eq!(drafted(&[9, 7, 8, 1, 5, 7, 8, 2, 9, 7, 8], 2), [1, 5], "the longest");
        assert_eq!(drafted(&[5, 1, 2, 1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
        assert_eq!(drafted(&[3, 3, 3], 3), [3, 3, 3]);
    }
}
