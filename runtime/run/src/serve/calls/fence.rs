//! Blocks of code in an answer: what they show is not done.

/// The mark at the beginning of a line that opens a block, and closes it.
const FENCES: [&str; 2] = ["```", "~~~"];

/// Whether a text that comes in pieces is in a block of code.
#[derive(Debug, Clone, Default)]
pub(super) struct Fence {
    /// The mark that opened the block.
    open: Option<&'static str>,
    /// The line that has begun.
    line: String,
}

impl Fence {
    /// The text goes on.
    pub(super) fn read(&mut self, text: &str) {
        for piece in text.split_inclusive('\n') {
            self.line.push_str(piece);
            if piece.ends_with('\n') {
                self.open = self.now();
                self.line.clear();
            }
        }
    }

    /// Whether what comes next begins a line, but for spaces.
    pub(super) fn begins_line(&self) -> bool {
        self.line.trim().is_empty()
    }

    /// Whether what comes next is in a block.
    pub(super) fn is_open(&self) -> bool {
        self.now().is_some()
    }

    /// The block that is open behind the line that has begun.
    fn now(&self) -> Option<&'static str> {
        let line = self.line.trim_start();
        match self.open {
            None => FENCES.into_iter().find(|fence| line.starts_with(fence)),
            Some(fence) if line.trim_end() == fence => None,
            open => open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_code_is_open_between_its_fences() {
        for (text, open) in [
            ("a ``` b", false),
            ("a\n```json\n{", true),
            ("```\na\n```\nb", false),
            ("```\na\n``` x\nb", true),
            ("~~~\n```\n", true),
            ("  ```py", true),
        ] {
            for size in [1, 2, 100] {
                let mut fence = Fence::default();
                text.as_bytes()
                    .chunks(size)
                    .for_each(|piece| fence.read(std::str::from_utf8(piece).unwrap()));
                assert_eq!(fence.is_open(), open, "{text}");
            }
        }
    }
}
