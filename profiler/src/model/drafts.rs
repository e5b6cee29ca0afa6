//! Accepted tokens of drafts by prompt lookup, on held-out text.
//!
//! ```text
//! at a token:   draft = what followed the last tokens where they stood before in the window, k of them at most
//!               kept  = those at the front that the model chooses there, as far as the text says the same
//! next token:   behind those kept, and one more
//! ```
//!
//! The model reads the text, not its own answer. After the first token where its choice differs from the text, nothing is known, and nothing
//! counts. Models repeat themselves more than people, so the figures are a lower bound for text like the held-out text.

use flashplan::internals::draft::draft;
use plans::engine::DRAFT_TOKENS_MAX;
use plans::file::significant;
use plans::model::Drafts;

/// Mean drafts and accepted tokens for each draft length; `None` without text.
///
/// `chosen` has the model's choice of the next token after each token, window after window.
pub fn measured(windows: &[Vec<u32>], chosen: &[u32]) -> Option<Drafts> {
    let of_length = |most: usize| {
        let (mut steps, mut drafted, mut kept, mut first) = (0_usize, 0, 0, 0);
        for window in windows {
            let chosen = &chosen[first..first + window.len()];
            first += window.len();
            let mut at = 0;
            // the last token has no successor
            while at + 1 < window.len() {
                let found: Vec<u32> = draft(&window[..=at], most).take(window.len() - 1 - at).collect();
                let here = kept_of(&found, &chosen[at..], &window[at + 1..]);
                (steps, drafted, kept) = (steps + 1, drafted + found.len(), kept + here);
                at += 1 + here;
            }
        }
        [drafted, kept].map(|count| count as f64 / steps.max(1) as f64)
    };
    let of_lengths: Vec<[f64; 2]> = (1..=DRAFT_TOKENS_MAX).map(of_length).collect();
    let figure = |which: usize| of_lengths.iter().map(|of| significant(of[which])).collect();
    windows
        .iter()
        .any(|window| window.len() > 1)
        .then(|| Drafts { drafted_tokens: figure(0), kept_tokens: figure(1) })
}

/// Accepted tokens of a draft: the first tokens that the model chooses, as long as the text agrees.
fn kept_of(draft: &[u32], chosen: &[u32], text: &[u32]) -> usize {
    let right = draft.iter().zip(chosen).take_while(|(draft, chosen)| draft == chosen).count();
    let known = draft.iter().zip(text).take_while(|(draft, text)| draft == text).count();
    right.min(known + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_is_kept_as_far_as_it_is_chosen_and_known() {
        assert_eq!(kept_of(&[1, 2, 3], &[1, 2, 3], &[1, 2, 3]), 3);
        assert_eq!(kept_of(&[1, 2, 3], &[1, 9, 3], &[1, 2, 3]), 1);
        assert_eq!(kept_of(&[1, 2, 3], &[9, 2, 3], &[1, 2, 3]), 0);
        assert_eq!(kept_of(&[1, 2, 3], &[1, 2, 3], &[1, 7, 3]), 2, "what follows a 2 nobody knows");
        assert_eq!(kept_of(&[], &[1], &[1]), 0);
    }

    #[test]
    fn a_text_that_goes_round_is_drafted_and_kept_and_one_that_does_not_is_neither() {
        let round: Vec<u32> = (0..40).map(|at| at % 4).collect();
        let right: Vec<u32> = round[1..].iter().copied().chain([0]).collect();
        let found = measured(std::slice::from_ref(&round), &right).unwrap();
        // six tokens one by one until two have repeated, then 33 in steps of a draft and one; the last step may be cut
        assert_eq!(found.kept_tokens, found.drafted_tokens, "all that is drafted is right");
        for (most, &kept) in (1..).zip(&found.kept_tokens) {
            let drafts = 34_usize.div_ceil(most + 1);
            // the last draft has the rest of the text
            let last = most.min(34 - (most + 1) * (drafts - 1));
            let all = (drafts - 1) * most + last;
            assert_eq!(kept, significant(all as f64 / (5 + drafts) as f64), "{most}");
        }
        // other choices accept nothing of as many drafts
        let found = measured(std::slice::from_ref(&round), &[9; 40]).unwrap();
        assert!(found.kept_tokens.iter().all(|&kept| kept == 0.0));
        assert_eq!(found.drafted_tokens[0], significant(34.0 / 39.0));
        // nothing crosses from one window to the next
        let different: Vec<u32> = (0..40).collect();
        let found = measured(&[different.clone(), different], &[1; 80]).unwrap();
        assert!(found.drafted_tokens.iter().chain(&found.kept_tokens).all(|&tokens| tokens == 0.0));
        assert_eq!(measured(&[vec![1]], &[2]), None);
        assert_eq!(measured(&[], &[]), None);
    }
}
