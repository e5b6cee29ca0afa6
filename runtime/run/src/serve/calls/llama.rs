//! Llama 3's calls: objects at the beginning of a line, after text or not, one or several.
//!
//! ```text
//! {"name": "f", "parameters": {...}}
//! ```

use super::super::super::chat::conversation::Call;
use super::cursor::{Cursor, Stop};
use super::known::Known;
use super::{Format, Mark, Opening, Section, Shape, quoted};

const PYTHON: &str = "<|python_tag|>";

pub(super) const LLAMA: Format = Format {
    name: "Llama 3",
    taught: |has| has("<|start_header_id|>") && has("\"parameters\""),
    openings: &[Opening { mark: Mark::Object, read }, Opening { mark: Mark::Text(PYTHON), read }],
    marks: &[PYTHON],
    section: Section {
        first: "",
        between: "; {\"name\": \"",
        last: "",
        call: |name| Shape::Object { before: quoted(&format!("{name}\", \"parameters\": ")), after: "}" },
    },
};

/// Objects, with semicolons, commas or lines between them.
fn read(tools: Known<'_>, text: &mut Cursor<'_>) -> Result<Vec<Call>, Stop> {
    text.space();
    let calls = tools.objects(text.json()?)?;
    let mut after = *text;
    after.space();
    if after.ends()? || after.may(";")? || after.may(",")? {
        *text = after;
    }
    Ok(calls)
}

/// Whether a text begins as a call does; `None` if it may become one.
pub(super) fn begins(text: &str) -> Option<bool> {
    const BEGINNINGS: [&str; 3] = ["{\"name\":", "{\"type\":\"function\"", "{\"function\":"];
    // spaces inside a name do not matter: no beginning has any
    let bare: String = text.chars().filter(|c| !c.is_whitespace()).take(32).collect();
    if BEGINNINGS.iter().any(|beginning| bare.starts_with(beginning)) {
        return Some(true);
    }
    if BEGINNINGS.iter().any(|beginning| beginning.starts_with(&bare)) { None } else { Some(false) }
}
