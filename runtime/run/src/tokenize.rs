//! The tokens of a text, as a prompt would have them: numbers and pieces.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use flashplan::internals::model::gguf::Gguf;
use flashplan::internals::model::tokenizer::TokenizerData;
use flashplan::{Model, Plan, StopHandle, Tokenizer};
use serde::Serialize;

use super::cli::PLAN;
use super::input::Source;
use super::{Failure, failure, report};

/// The longest text: its tokens take some GiB while they are found.
const TEXT_BYTES_MAX: usize = 64 << 20;

/// A request to tokenize: the text, and whose tokenizer.
#[derive(Debug)]
pub(super) struct TokenizeRequest {
    pub(super) text: Source,
    /// The plan of the container whose tokenizer is used, where no model is named.
    pub(super) plan: Option<PathBuf>,
    /// A container, or a GGUF file.
    pub(super) model: Option<PathBuf>,
    /// Whether special tokens that are spelled out become tokens.
    pub(super) special: bool,
}

#[derive(Debug, Serialize)]
struct Tokens {
    tokens: Vec<u32>,
    pieces: Vec<String>,
}

/// Prints the tokens of a text.
pub(super) fn tokenize(request: TokenizeRequest, json: bool, stop: &StopHandle) -> Result<(), Failure> {
    let work = move || request.tokens();
    let found = terminal::interrupt::heeding(|| stop.is_stopped(), work)??;
    if json {
        return report::print_json(&found);
    }
    let lines = found.tokens.iter().zip(&found.pieces).map(|(token, piece)| format!("{token:>7}  {piece:?}"));
    report::print(lines.collect::<Vec<_>>().join("\n"))
}

impl TokenizeRequest {
    fn tokens(self) -> Result<Tokens, Failure> {
        let (made, opened);
        let tokenizer = match &self.model {
            Some(path) if is_gguf(path) => {
                made = of_gguf(path)?;
                &made
            }
            Some(path) => {
                opened = Model::open(path)?;
                opened.tokenizer()
            }
            None => {
                let plan = self.plan.as_deref().unwrap_or(Path::new(PLAN));
                opened = Model::open_for(&Plan::read(plan)?)?;
                opened.tokenizer()
            }
        };
        let text = self.text.read(TEXT_BYTES_MAX, "give its parts one after another")?;
        let tokens = encode(tokenizer, &text, self.special);
        let pieces = tokens.iter().map(|&token| piece(tokenizer, token)).collect();
        Ok(Tokens { tokens, pieces })
    }
}

/// The tokens of a prompt. If `special`, special tokens that are spelled out become tokens.
pub(super) fn encode(tokenizer: &Tokenizer, text: &str, special: bool) -> Vec<u32> {
    if !special {
        return tokenizer.encode(text, tokenizer.adds_bos());
    }
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    bos.into_iter().chain(tokenizer.encode_rendered(text, &[])).collect()
}

/// A token's text; bytes that are not characters by their numbers.
fn piece(tokenizer: &Tokenizer, token: u32) -> String {
    let bytes = tokenizer.piece(token).unwrap_or_default();
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|byte| format!("<0x{byte:02X}>")));
    }
    text
}

/// Whether a file begins as GGUF does; an unreadable file is reported when it is opened.
fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && (&magic == b"GGUF" || &magic == b"PWRI")
}

fn of_gguf(path: &Path) -> Result<Tokenizer, Failure> {
    let says = |error: &dyn std::fmt::Display| failure(format!("{}: {error}", path.display()));
    let data = TokenizerData::from_gguf(&Gguf::open(path).map_err(failure)?);
    let data = data.map_err(|error| says(&error))?;
    if let Some(remark) = data.remark() {
        terminal::say(format_args!("warning: {remark}"));
    }
    data.into_tokenizer().map_err(|error| says(&error))
}
