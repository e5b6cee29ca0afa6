//! Tables: one look for all of them.

use std::fmt;

use comfy_table::{CellAlignment, Table, presets};

/// Rows of text: the first column begins on the left, the others end on the right unless they are [`Rows::left`].
#[derive(Debug, Clone)]
pub struct Rows {
    table: Table,
    look: Look,
}

/// How a table is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// The first column begins on the left, the others end on the right.
    Numbers,
    /// All columns begin on the left.
    Words,
    /// Markdown.
    Markdown,
}

impl Rows {
    /// A table without a heading.
    pub fn new() -> Self {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        Self { table, look: Look::Numbers }
    }

    /// A table with a heading for each column.
    pub fn headed(headings: &[&str]) -> Self {
        let mut rows = Self::new();
        rows.table.set_header(headings.to_vec());
        rows
    }

    /// A table in Markdown, for pages.
    pub fn markdown(headings: &[&str]) -> Self {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(headings.iter().map(|heading| escaped(heading)));
        Self { table, look: Look::Markdown }
    }

    /// All columns begin on the left: for words, not numbers.
    #[must_use]
    pub fn left(mut self) -> Self {
        self.look = Look::Words;
        self
    }

    /// One more row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        match self.look {
            Look::Markdown => self.table.add_row(cells.into_iter().map(|cell| escaped(&cell))),
            Look::Numbers | Look::Words => self.table.add_row(cells),
        };
    }
}

/// A cell that does not end at its own bars.
fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|")
}

impl Default for Rows {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.look == Look::Markdown {
            return write!(f, "{}", self.table);
        }
        let mut table = self.table.clone();
        for index in 0..table.column_count() {
            if let Some(column) = table.column_mut(index) {
                column.set_padding((if index == 0 { 0 } else { 2 }, 0));
                if index > 0 && self.look == Look::Numbers {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        write!(f, "{}", table.trim_fmt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn numbers_end_below_each_other_and_words_begin_so() {
        let mut rows = Rows::headed(&["region", "bytes", ""]);
        rows.row(["process".to_owned(), "8388608".to_owned(), "8.0 MiB".to_owned()]);
        rows.row(["page tables".to_owned(), "512".to_owned(), "512 B".to_owned()]);
        expect![[r#"
            region         bytes
            process      8388608  8.0 MiB
            page tables      512    512 B
        "#]]
        .assert_eq(&format!("{rows}\n"));
        let mut rows = Rows::new().left();
        rows.row(["model".to_owned(), "oxide-dense".to_owned()]);
        rows.row(["dense perplexity".to_owned(), "4.1".to_owned()]);
        expect![[r#"
            model             oxide-dense
            dense perplexity  4.1
        "#]]
        .assert_eq(&format!("{rows}\n"));
    }

    #[test]
    fn bars_do_not_break_a_table_in_markdown() {
        let mut rows = Rows::markdown(&["a|b"]);
        rows.row(["c".to_owned()]);
        assert_eq!(rows.to_string(), "| a\\|b |\n|------|\n| c    |");
    }
}
