//! Inputs that a run reads before it starts: the plan, the container's directory, a text. Any of them may be a pipe.
//!
//! A text is read no further than the plan's context can hold it; one that may be longer is read in [`Pieces`].

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flashplan::internals::engine::contract;
use flashplan::{Model, Plan, StopHandle};
use platform::page_cache;

use super::chat::TOKEN_BYTES_MAX;
use super::{Failure, failure};

/// The name that stands for standard input.
const STANDARD_INPUT: &str = "-";
/// Bytes of a piece of a text, at most.
const PIECE_BYTES: usize = 64 << 10;

/// A text, or where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Text(String),
    File(PathBuf),
    StandardInput,
}

impl Source {
    /// A text as it stands on the command line.
    pub(super) fn text(text: &str) -> Self {
        if text == STANDARD_INPUT { Self::StandardInput } else { Self::Text(text.to_owned()) }
    }

    /// The name of a file.
    pub(super) fn file(path: &Path) -> Self {
        if path == Path::new(STANDARD_INPUT) { Self::StandardInput } else { Self::File(path.to_owned()) }
    }

    /// Name of the source in a sentence.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Text(_) => "the text".to_owned(),
            Self::File(path) => path.display().to_string(),
            Self::StandardInput => "standard input".to_owned(),
        }
    }

    /// The text itself, if it has no more bytes than `most`; `larger` says what is to be done otherwise.
    pub(super) fn read(self, most: usize, larger: &str) -> Result<String, Failure> {
        let name = self.name();
        let read = match self.open()? {
            Opened::Text(text) => Ok(Some(text).filter(|text| text.len() <= most)),
            Opened::File(file) => bounded_file(&file, most),
            Opened::StandardInput => bounded(&mut io::stdin(), most),
        };
        let larger = || failure(format!("{name} has more than {most} bytes; {larger}"));
        read.map_err(|error| unreadable(&name, &error))?.ok_or_else(larger)
    }

    /// The text's beginning, of so many bytes at most, in whole characters.
    fn beginning(self, most: usize) -> Result<String, Failure> {
        let (name, mut bytes) = (self.name(), Vec::new());
        let read = match self.open()? {
            Opened::Text(text) => text.as_bytes().take(most as u64).read_to_end(&mut bytes),
            Opened::File(file) => {
                let read = (&file).take(most as u64).read_to_end(&mut bytes);
                page_cache::forget(&file);
                read
            }
            Opened::StandardInput => io::stdin().take(most as u64).read_to_end(&mut bytes),
        };
        let cut = |error: std::str::Utf8Error| match error.error_len() {
            None => Ok(error.valid_up_to()), // the last character is cut
            Some(_) => Err(ErrorKind::InvalidData.into()),
        };
        let whole = read.and_then(|_| std::str::from_utf8(&bytes).map_or_else(cut, |text| Ok(text.len())));
        bytes.truncate(whole.map_err(|error| unreadable(&name, &error))?);
        String::from_utf8(bytes).map_err(|_| unreadable(&name, &ErrorKind::InvalidData.into()))
    }

    fn open(self) -> Result<Opened, Failure> {
        let name = self.name();
        Ok(match self {
            Self::Text(text) => Opened::Text(text),
            Self::StandardInput => Opened::StandardInput,
            Self::File(path) if path.is_dir() => {
                return Err(failure(format!("{name} is a folder; name a text file inside it")));
            }
            Self::File(path) => {
                Opened::File(page_cache::open(&path).map_err(|error| unreadable(&name, &error))?)
            }
        })
    }
}

/// The text of a file that was opened, and that leaves nothing in the page cache; as [`bounded`].
pub(super) fn bounded_file(mut file: &File, most: usize) -> io::Result<Option<String>> {
    let read = bounded(&mut file, most);
    page_cache::forget(file);
    read
}

/// A text, if it has no more bytes than `most`: no more are read than tell that.
fn bounded(reader: &mut impl Read, most: usize) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    reader.take(most as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > most {
        return Ok(None);
    }
    String::from_utf8(bytes).map(Some).map_err(|_| ErrorKind::InvalidData.into())
}

/// A source that is about to be read.
enum Opened {
    Text(String),
    File(File),
    StandardInput,
}

/// Why a text cannot be read.
fn unreadable(name: &str, error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::InvalidData => {
            failure(format!("{name} is not UTF-8 text; convert it or name another file"))
        }
        ErrorKind::NotFound => {
            failure(format!("cannot read {name}: there is no such file; name a text file"))
        }
        _ => failure(format!("cannot read {name}: {error}; name a text file")),
    }
}

/// A text that is read piece by piece.
pub(super) struct Pieces {
    name: String,
    reader: Box<dyn Read + Send>,
    /// The file, whose pages are not left in memory.
    file: Option<File>,
    /// Bytes that were read and are in no piece yet.
    held: Vec<u8>,
    /// Bytes of the whole text, where they are known.
    bytes: Option<u64>,
}

impl Pieces {
    /// Opens a source.
    pub(super) fn open(source: Source) -> Result<Self, Failure> {
        let name = source.name();
        let (reader, file): (Box<dyn Read + Send>, _) = match source.open()? {
            Opened::Text(text) => (Box::new(io::Cursor::new(text.into_bytes())), None),
            Opened::StandardInput => (Box::new(io::stdin()), None),
            Opened::File(file) => {
                let again = file.try_clone().map_err(|error| unreadable(&name, &error))?;
                (Box::new(file), Some(again))
            }
        };
        let metadata = file.as_ref().and_then(|file| file.metadata().ok());
        let bytes = metadata.filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
        Ok(Self { name, reader, file, held: Vec::new(), bytes })
    }

    /// Name of the source in a sentence.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of the whole text, where they are known.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// The next piece: whole lines, if 64 KiB have any; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<String>, Failure> {
        let more = PIECE_BYTES.saturating_sub(self.held.len()) as u64;
        let read = (&mut self.reader).take(more).read_to_end(&mut self.held);
        read.map_err(|error| unreadable(&self.name, &error))?;
        if let Some(file) = &self.file {
            page_cache::forget(file);
        }
        let lines = self.held.iter().rposition(|&byte| byte == b'\n').map(|end| end + 1);
        let end = match lines {
            _ if self.held.len() < PIECE_BYTES => self.held.len(), // that was all
            Some(end) => end,
            // before a character that may go on
            None => (0..=PIECE_BYTES).rev().find(|&end| is_boundary(&self.held, end)).unwrap_or(PIECE_BYTES),
        };
        let rest = self.held.split_off(end);
        let piece = std::mem::replace(&mut self.held, rest);
        if piece.is_empty() {
            return Ok(None);
        }
        let text = String::from_utf8(piece);
        text.map(Some).map_err(|_| unreadable(&self.name, &ErrorKind::InvalidData.into()))
    }
}

/// Whether a character of UTF-8 may begin at a place; not at the end, where one may go on.
fn is_boundary(bytes: &[u8], at: usize) -> bool {
    bytes.get(at).is_some_and(|byte| byte & 0xc0 != 0x80)
}

/// The inputs of a run.
pub(super) struct Inputs {
    pub(super) plan: Plan,
    pub(super) model: Model,
    pub(super) text: Option<String>,
    /// The text that is scored.
    pub(super) scored: Option<Pieces>,
}

/// Reads all of it, and ends as soon as the user wants to: a pipe may never say anything. Of a text `in_part` the beginning is enough.
pub(super) fn read(
    plan: &Path,
    container: Option<&Path>,
    text: Option<Source>,
    in_part: bool,
    scored: Option<Source>,
    stop: &StopHandle,
) -> Result<Inputs, Failure> {
    let (plan, container) = (plan.to_owned(), container.map(Path::to_owned));
    let work = move || {
        let plan = Plan::read(&plan)?;
        let model = match container {
            Some(path) => Model::open_for_at(&plan, path)?,
            None => Model::open_for(&plan)?,
        };
        let context = contract(&plan).context.tokens as usize;
        let larger = format!(
            "the plan's context has room for {context} tokens; shorten it, or plan with a larger --context"
        );
        let most = context.saturating_mul(TOKEN_BYTES_MAX);
        let text = text.map(|text| if in_part { text.beginning(most) } else { text.read(most, &larger) });
        let text = text.transpose()?;
        let scored = scored.map(Pieces::open).transpose()?;
        Ok(Inputs { plan, model, text, scored })
    };
    terminal::interrupt::heeding(|| stop.is_stopped(), work)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dash_is_standard_input() {
        for (source, is) in [
            (Source::text("-"), Source::StandardInput),
            (Source::text("- a list"), Source::Text("- a list".to_owned())),
            (Source::file(Path::new("-")), Source::StandardInput),
            (Source::file(Path::new("./-")), Source::File(PathBuf::from("./-"))),
        ] {
            assert_eq!(source, is);
        }
    }

    #[test]
    fn a_text_is_read_as_far_as_it_may_be_and_no_further() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "0123456789").unwrap();
        assert_eq!(Source::file(&path).read(10, "x").unwrap(), "0123456789");
        for source in [Source::file(&path), Source::text("0123456789")] {
            let said = source.read(9, "shorten it").unwrap_err().to_string();
            assert!(said.contains("has more than 9 bytes; shorten it"), "{said}");
        }
        // what never ends is no trouble, nor a character that is cut by the limit
        let said = Source::file(Path::new("/dev/zero")).read(1000, "x").unwrap_err().to_string();
        assert!(said.contains("/dev/zero has more than 1000 bytes"), "{said}");
        std::fs::write(&path, "\u{e9}\u{e9}").unwrap();
        let said = Source::file(&path).read(2, "x").unwrap_err().to_string();
        assert!(said.contains("has more than 2 bytes"), "{said}");
    }

    #[test]
    fn pieces_are_the_text_and_end_with_lines_where_there_are_any() {
        let lines = "a line with \u{1f980}\n".repeat(9000);
        let unbroken = "\u{1f980}".repeat(40_000);
        for text in
            [String::new(), "a".to_owned(), "a\n".to_owned(), lines, unbroken, "\n".repeat(PIECE_BYTES)]
        {
            let mut pieces = Pieces::open(Source::Text(text.clone())).unwrap();
            let mut all: Vec<String> = Vec::new();
            while let Some(piece) = pieces.next().unwrap() {
                assert!(!piece.is_empty() && piece.len() <= PIECE_BYTES, "{} bytes", piece.len());
                all.push(piece);
            }
            assert_eq!(all.concat(), text);
            if text.contains("line") {
                assert!(all.iter().all(|piece| piece.ends_with('\n')), "whole lines");
            }
        }
        let mut wrong = Pieces::open(Source::Text("a".repeat(PIECE_BYTES + 1))).unwrap();
        wrong.held = vec![0xff];
        assert!(wrong.next().unwrap_err().to_string().contains("is not UTF-8 text"));
    }
}
