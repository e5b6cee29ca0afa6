//! Consecutive tokens of a sequence in one step have the same bits as one by one.

use super::together::{Decoded, SEQUENCES};
use super::*;

/// A reader of one of [`SEQUENCES`]: its expected logits, and its position.
struct Reader<'a> {
    sequence: u32,
    tokens: &'a [u32],
    position: usize,
    expected: std::slice::Iter<'a, Vec<f32>>,
}

impl<'a> Reader<'a> {
    /// Prefills the prompt in a sequence of the engine.
    fn new(engine: &mut Transformer, expected: &'a Decoded, of: usize, sequence: u32) -> Self {
        let (_, prompt, tokens) = &SEQUENCES[of];
        let reader = Self { sequence, tokens, position: *prompt, expected: expected[of].iter() };
        let rows: Vec<Token> = (0..*prompt).map(|position| reader.row(position)).collect();
        engine.prefill(&rows, None).unwrap();
        reader
    }

    fn row(&self, position: usize) -> Token {
        Token { token: self.tokens[position], sequence: self.sequence, position }
    }

    /// The next rows, at most `count`; tokens from row `right` on are wrong, as in a draft that fails there.
    fn rows(&self, count: usize, right: usize) -> Vec<Token> {
        let end = self.tokens.len().min(self.position + count);
        let wrong = |(at, position): (usize, usize)| Token {
            token: (self.row(position).token + u32::from(at >= right)) % VOCABULARY as u32,
            ..self.row(position)
        };
        (self.position..end).enumerate().map(wrong).collect()
    }

    /// Compares the correct rows, and continues after them.
    fn take<'l>(&mut self, logits: impl Iterator<Item = &'l [f32]>, right: usize, told: &str) {
        for logits in logits.take(right) {
            assert!(logits == self.expected.next().unwrap(), "{told}: position {}", self.position);
            self.position += 1;
        }
    }
}

/// Steps of every length with a draft that fails at every place give the same as token by token. Checked for
/// one sequence, and for two with interleaved rows.
pub(super) fn check(engine: &mut Transformer, expected: &Decoded, told: &str) {
    for right in 1..=4 {
        let mut reader = Reader::new(engine, expected, 1, 0);
        while reader.position < reader.tokens.len() {
            let rows = reader.rows(5, right);
            let logits = engine.decode(&rows).unwrap();
            reader.take(logits.chunks_exact(VOCABULARY), right, told);
        }
        assert!(reader.expected.next().is_none(), "{told}");
    }
    // three rows of each: three correct ones of the first sequence, two of the second
    let mut both = [(0, 1, 3), (2, 0, 2)]
        .map(|(of, sequence, right)| (Reader::new(engine, expected, of, sequence), right));
    while both.iter().any(|(reader, _)| reader.position < reader.tokens.len()) {
        let [one, other] = both.each_ref().map(|(reader, right)| reader.rows(3, *right));
        let longest = one.len().max(other.len());
        let rows: Vec<Token> =
            (0..longest).flat_map(|at| [one.get(at), other.get(at)]).flatten().copied().collect();
        let logits = engine.decode(&rows).unwrap();
        for (reader, right) in &mut both {
            let sequence = reader.sequence;
            let own = rows.iter().zip(logits.chunks_exact(VOCABULARY));
            let own = own.filter(|(row, _)| row.sequence == sequence).map(|(_, logits)| logits);
            reader.take(own, *right, told);
        }
    }
}

#[test]
fn what_tokens_that_follow_each_other_miss_is_read_once() {
    let bytes = model(1, Format::F32);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    let knobs = Knobs { draft: 3, ..Knobs::default() };
    let read = |at_a_time: usize| {
        let mut engine = start(&container, &plan(&container, "dense", &knobs));
        for rows in rows(&TOKENS).chunks(at_a_time) {
            engine.decode(rows).unwrap();
        }
        engine.counters()
    };
    let (one, four) = (read(1), read(4));
    assert_eq!(four.read_bytes * 4, one.read_bytes, "without a cache a step reads all");
    assert_eq!(
        four.detail.activity, one.detail.activity,
        "and computes for each token what it computes alone"
    );
    assert_eq!(four.detail.traffic.weights * 4, one.detail.traffic.weights);
}

#[test]
#[should_panic(expected = "one after another")]
fn rows_of_a_sequence_follow_each_other() {
    let bytes = model(1, Format::F32);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    let knobs = Knobs { draft: 2, ..Knobs::default() };
    let [first, _, third] = rows(&TOKENS[..3])[..] else { panic!("three") };
    let _ = start(&container, &plan(&container, "dense", &knobs)).decode(&[first, third]);
}
