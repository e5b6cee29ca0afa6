//! What a run reads before it starts: the plan, the container's directory, a text. Any of them may be a pipe.

use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use flashplan::{Model, Plan, StopHandle};

use super::{Failure, failure};

/// The name that stands for standard input.
const STANDARD_INPUT: &str = "-";

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

    /// The text itself.
    pub(super) fn read(self) -> Result<String, Failure> {
        let name = self.name();
        let read = match self {
            Self::Text(text) => return Ok(text),
            Self::File(path) if path.is_dir() => {
                return Err(failure(format!("{name} is a folder; name a text file inside it")));
            }
            Self::File(path) => std::fs::read_to_string(path),
            Self::StandardInput => {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).map(|_| text)
            }
        };
        read.map_err(|error| match error.kind() {
            ErrorKind::InvalidData => {
                failure(format!("{name} is not UTF-8 text; convert it or name another file"))
            }
            ErrorKind::NotFound => {
                failure(format!("cannot read {name}: there is no such file; name a text file"))
            }
            _ => failure(format!("cannot read {name}: {error}; name a text file")),
        })
    }
}

/// The inputs of a run.
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) plan: Plan,
    pub(super) model: Model,
    pub(super) text: Option<String>,
}

/// Reads all of it, and ends as soon as the user wants to: a pipe may never say anything.
pub(super) fn read(
    plan: &Path,
    container: Option<&Path>,
    text: Option<Source>,
    stop: &StopHandle,
) -> Result<Inputs, Failure> {
    let (plan, container) = (plan.to_owned(), container.map(Path::to_owned));
    let work = move || {
        let plan = Plan::read(&plan)?;
        let model = match container {
            Some(path) => Model::open_for_at(&plan, path)?,
            None => Model::open_for(&plan)?,
        };
        let text = text.map(Source::read).transpose()?;
        Ok(Inputs { plan, model, text })
    };
    terminal::interrupt::heeding(|| stop.is_stopped(), work).unwrap_or(Err(Failure::Stopped))
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
}
