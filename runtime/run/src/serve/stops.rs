//! Texts before which an answer ends.

/// Looks for stop texts in an answer as it comes, and holds back what may be the beginning of one.
#[derive(Debug)]
pub(super) struct Stops {
    texts: Vec<String>,
    held: String,
    /// The one before which it ended.
    found: Option<String>,
}

impl Stops {
    /// For these texts, none of them empty.
    pub(super) fn new(texts: Vec<String>) -> Self {
        Self { texts, held: String::new(), found: None }
    }

    /// Adds `text`, and returns the text that can be sent now, and whether the answer ends there.
    pub(super) fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let ends = self.texts.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        if let Some((end, stop)) = ends.min_by_key(|&(end, _)| end) {
            self.found = Some(stop.clone());
            self.held.truncate(end);
            return (std::mem::take(&mut self.held), true);
        }
        let kept = self.texts.iter().map(|stop| beginning(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - kept);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// The text before which the answer ended.
    pub(super) fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }

    /// Text that was held back, when nothing more comes.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that `stop` begins with.
pub(super) fn beginning(text: &str, stop: &str) -> usize {
    let ends = stop.char_indices().map(|(at, _)| at).filter(|&at| at > 0 && at <= text.len());
    ends.filter(|&end| text.ends_with(&stop[..end])).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn told(texts: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut stops = Stops::new(texts.iter().map(|&text| text.to_owned()).collect());
        let mut all = String::new();
        for piece in pieces {
            let (text, ends) = stops.push(piece);
            all.push_str(&text);
            if ends {
                return (all, true);
            }
        }
        (all + &stops.finish(), false)
    }

    #[test]
    fn an_answer_ends_before_the_first_stop_text_however_it_comes() {
        assert_eq!(told(&["END"], &["a E", "N", "D b"]), ("a ".to_owned(), true));
        assert_eq!(told(&["END"], &["a EN", "d"]), ("a ENd".to_owned(), false));
        assert_eq!(told(&["\n\n", "x"], &["a\n", "bx"]), ("a\nb".to_owned(), true));
        assert_eq!(told(&["aab"], &["a", "a", "a", "b"]), ("a".to_owned(), true));
        assert_eq!(told(&["é!"], &["caf", "é", "!"]), ("caf".to_owned(), true));
        assert_eq!(told(&[], &["a", "b"]), ("ab".to_owned(), false));
    }

    proptest! {
        #[test]
        fn it_is_what_a_search_in_the_whole_text_finds(
            pieces in prop::collection::vec("[abé]{0,4}", 0..8),
            stops in prop::collection::vec("[abé]{1,4}", 0..3),
        ) {
            let whole = pieces.concat();
            let first = stops.iter().filter_map(|stop| whole.find(stop.as_str())).min();
            let (pieces, stops): (Vec<&str>, Vec<&str>) =
                (pieces.iter().map(String::as_str).collect(), stops.iter().map(String::as_str).collect());
            // a longer text that begins earlier may be complete only after a shorter one: the shorter ends it
            let (text, ended) = told(&stops, &pieces);
            prop_assert_eq!(ended, first.is_some());
            prop_assert!(whole.starts_with(&text));
            prop_assert!(stops.iter().all(|stop| !text.contains(stop)));
            if first.is_none() {
                prop_assert_eq!(text, whole);
            }
        }
    }
}
