//! Logits to files, for comparison with other implementations: `NumPy`'s format, version 1.0.

use std::io::Write as _;
use std::path::Path;

use plans::output_file::{OutputFile, OutputKind};
use serde::Serialize;

use super::report;
use super::session::RunningPlan;
use super::{Failure, failure};

/// Beginning of every file of this format, and the version.
const MAGIC: &[u8; 8] = b"\x93NUMPY\x01\x00";

/// A file of logits.
pub(super) const ARRAY: OutputKind =
    OutputKind { name: "a NumPy array", is_one: |head| head.starts_with(MAGIC) };

#[derive(Serialize)]
struct Written<'a> {
    tokens: &'a [u32],
    vocabulary: usize,
}

/// Writes the logits after each of `tokens`, through decode, through prefill, or both.
pub(super) fn write(
    session: &mut RunningPlan<'_>,
    tokens: &[u32],
    decode: Option<&Path>,
    prefill: Option<&Path>,
    json: bool,
) -> Result<(), Failure> {
    let vocabulary = session.vocabulary();
    if tokens.len() > session.context() {
        return Err(failure(format!(
            "the prompt has {} tokens and the plan's context {}; shorten it or plan with a larger --context",
            tokens.len(),
            session.context()
        )));
    }
    if let Some(path) = prefill {
        let mut file = Array::create(path, tokens.len(), vocabulary)?;
        let mut failed = None;
        session.prefill_each(tokens, &mut |_, logits| {
            if failed.is_none() {
                failed = file.push(logits).err();
            }
        })?;
        if let Some(failed) = failed {
            return Err(failed);
        }
        file.finish()?;
    }
    if let Some(path) = decode {
        let mut file = Array::create(path, tokens.len(), vocabulary)?;
        session.reset()?;
        for &token in tokens {
            file.push(session.decode(token)?)?;
        }
        file.finish()?;
    }
    if json { report::print_json(&Written { tokens, vocabulary }) } else { Ok(()) }
}

/// An array being written.
struct Array<'a> {
    path: &'a Path,
    file: OutputFile,
}

impl<'a> Array<'a> {
    fn create(path: &'a Path, rows: usize, columns: usize) -> Result<Self, Failure> {
        let file = OutputFile::create(path, ARRAY).map_err(|error| says(path, &error))?;
        let mut array = Self { path, file };
        let mut header =
            format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
        // magic, version and length take ten bytes, a new line one; the data begins on 64
        let padding = (10 + header.len() + 1).next_multiple_of(64) - (10 + header.len() + 1);
        header.extend(std::iter::repeat_n(' ', padding));
        header.push('\n');
        array.write(MAGIC)?;
        array.write(&(header.len() as u16).to_le_bytes())?;
        array.write(header.as_bytes())?;
        Ok(array)
    }

    fn push(&mut self, row: &[f32]) -> Result<(), Failure> {
        self.write(bytemuck::cast_slice(row))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|error| says(self.path, &error))
    }

    fn finish(self) -> Result<(), Failure> {
        self.file.finish().map_err(|error| says(self.path, &error))
    }
}

fn says(path: &Path, error: &std::io::Error) -> Failure {
    failure(format!("cannot write {}: {error}", path.display()))
}
