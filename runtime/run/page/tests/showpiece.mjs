// An answer with everything that Markdown has, for pictures and for tests of layout.

export const SHOWPIECE = `Here is a **small function** in Rust. It splits the sentence into words, reverses each, and joins them with \`" "\`:

\`\`\`rust
/// Reverses each word of a sentence, and keeps their order.
pub fn reverse_words(sentence: &str) -> String {
    sentence
        .split_whitespace()
        .map(|word| word.chars().rev().collect::<String>())
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn words_are_reversed() {
    assert_eq!(reverse_words("hello big world"), "olleh gib dlrow"); // three words, and a comment that is wider than the page
}
\`\`\`

How long does it take? With $n$ characters, time and memory are $O(n)$:

$$T(n) = \\sum_{i=1}^{w} c \\cdot \\ell_i \\le c\\,n, \\qquad \\frac{T(n)}{n} \\to \\sqrt{\\alpha^2 + \\beta_1}$$

| Approach | Time | Memory | Notes |
|---|---:|---:|---|
| \`split_whitespace\` | $O(n)$ | $O(n)$ | also removes double spaces |
| in place, bytes only | $O(n)$ | $O(1)$ | needs ASCII, or care with UTF-8 |
| regular expressions | $O(n)$ | $O(n)$ | slower by a constant |

1. The words come from \`split_whitespace\`.
2. Each is reversed **by characters**:
   - not by bytes, which would break \`é\`
   - and not by grapheme clusters, for which see [unicode-segmentation](https://crates.io/crates/unicode-segmentation)

> A combining accent would move to the letter before it.

### See also

\`\`\`
plain text without a language
\`\`\`

---

~~Nothing~~ *else*, and ![a diagram](https://example.org/diagram.png).
`;
