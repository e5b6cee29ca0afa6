//! Drafts from the text itself: prompt lookup.
//!
//! Code repeats names, an answer its question, a summary its source. If the last tokens occurred before, the
//! tokens that followed them there become a draft. A draft needs no second model, and is always verified
//! ([`Session::decode_each`](crate::Session::decode_each)).
//!
//! Source: A. Saxena, "Prompt Lookup Decoding", 2023; verifying drafts in one step is from Leviathan et al.,
//! "Fast Inference from Transformers via Speculative Decoding", 2023. Drafts are compared with the tokens
//! that would be chosen without them, so they change no text.

/// The longest run of last tokens that is searched. Longer runs hardly ever have another continuation.
const NGRAM_MAX: usize = 4;
/// The shortest run. One token predicts too little.
const NGRAM_MIN: usize = 2;

/// Drafts at most `most` tokens: the continuation of an earlier occurrence of the text's last tokens.
///
/// The longest run of up to four tokens wins, then the latest occurrence. If its continuation reaches the end
/// of the text, the draft repeats it from there. Empty if no last two tokens occurred before.
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

    /// The specification, by trial: longest run first, latest place first, token by token.
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
