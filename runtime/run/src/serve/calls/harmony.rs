//! Harmony's calls: messages to `functions.f`, which `reasoning` tells from others. It gives the name in a line, and the arguments.

use super::super::super::chat::conversation::Call;
use super::cursor::{Cursor, Stop};
use super::known::Known;
use super::{Format, Section, Shape, quoted};

pub(super) const HARMONY: Format = Format {
    name: "harmony",
    taught: |has| has("<|channel|>") && has("functions."),
    openings: &[],
    marks: &["<|constrain|>", "<|message|>"],
    section: Section {
        first: "",
        between: "",
        last: "",
        call: |name| Shape::Object { before: quoted(&format!("{name}\n")), after: "" },
    },
};

/// Text before the name in a prompt that forces a call, and text between name and arguments then.
pub(super) const BEFORE_NAME: &str = "<|channel|>commentary to=functions.";
pub(super) const AFTER_NAME: &str = " <|constrain|>json<|message|>";

/// A message with a tool's name in its first line.
pub(super) fn read(tools: Known<'_>, text: &mut Cursor<'_>) -> Result<Vec<Call>, Stop> {
    let name = text.name()?;
    if !text.may("\n")? {
        text.mark(AFTER_NAME)?;
    }
    let call = tools.with_object(name, text)?;
    text.space();
    Ok(vec![call])
}
