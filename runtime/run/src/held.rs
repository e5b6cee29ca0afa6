//! Tokens that a sequence holds between answers.

/// Tokens whose keys and values a sequence holds, and how they came.
#[derive(Debug, Default)]
pub(super) struct Held {
    tokens: Vec<u32>,
    /// Tokens at the beginning that were prefilled, before any decoded token. Any prefill of these tokens makes the same keys and values.
    prefilled: usize,
}

impl Held {
    /// Nothing yet, with room for a context.
    pub(super) fn new(context: usize) -> Self {
        Self { tokens: Vec::with_capacity(context), prefilled: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens at the beginning whose keys and values any prefill makes.
    pub(super) fn prefilled(&self) -> &[u32] {
        &self.tokens[..self.prefilled]
    }

    /// Tokens that a prompt begins with, too.
    pub(super) fn same(&self, prompt: &[u32]) -> usize {
        self.tokens.iter().zip(prompt).take_while(|(held, token)| held == token).count()
    }

    /// Begins with so many tokens of another sequence.
    pub(super) fn share(&mut self, other: &Self, tokens: usize) {
        self.tokens.clear();
        self.tokens.extend_from_slice(&other.tokens[..tokens]);
        self.prefilled = other.prefilled.min(tokens);
    }

    /// Forgets what comes after so many.
    pub(super) fn truncate(&mut self, tokens: usize) {
        self.tokens.truncate(tokens);
        self.prefilled = self.prefilled.min(tokens);
    }

    /// These came by a prefill.
    pub(super) fn read(&mut self, tokens: &[u32]) {
        if self.prefilled == self.tokens.len() {
            self.prefilled += tokens.len();
        }
        self.tokens.extend_from_slice(tokens);
    }

    /// This one was decoded.
    pub(super) fn decoded(&mut self, token: u32) {
        self.tokens.push(token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_decoded_token_is_not_what_a_prefill_makes() {
        let mut held = Held::default();
        held.read(&[1, 2, 3]);
        held.decoded(4);
        held.read(&[5]);
        assert_eq!((held.len(), held.prefilled()), (5, &[1, 2, 3][..]));
        assert_eq!((held.same(&[1, 2, 3, 4, 6]), held.same(&[2]), held.same(&[1, 2])), (4, 0, 2));
        // where the decoded token is forgotten, others follow what was prefilled
        held.truncate(2);
        held.read(&[7, 8]);
        assert_eq!(held.prefilled(), [1, 2, 7, 8]);
        held.decoded(9);
        let mut other = Held::default();
        other.share(&held, 5);
        assert_eq!((other.len(), other.prefilled()), (5, &[1, 2, 7, 8][..]));
        other.share(&held, 3);
        assert_eq!((other.len(), other.prefilled()), (3, &[1, 2, 7][..]));
        held.truncate(5);
        assert_eq!(held.prefilled(), [1, 2, 7, 8]);
    }
}
