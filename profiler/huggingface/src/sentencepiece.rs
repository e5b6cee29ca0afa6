//! `tokenizer.model`: SentencePiece's pieces with their scores and types, out of its protocol buffer.
//!
//! ```text
//! model:  1 piece (1 text, 2 score f32, 3 type), 2 trainer (3 kind: 1 unigram, 2 BPE; 24 space behind words), 3 normaliser (2 map, 3 space before,
//!         4 spaces removed, 5 spaces as a letter)
//! ```
//!
//! Source: `sentencepiece_model.proto`, and protocol buffers' description of their encoding.

use std::path::Path;

use crate::error::FolderError;

/// Pieces of a model, at most.
const PIECES_MAX: usize = 1 << 22;

/// A piece of text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) score: f32,
    /// SentencePiece's number of its type, which is GGUF's, too.
    pub(crate) kind: i32,
}

/// The model.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) pieces: Vec<Piece>,
    /// Whether a space is put before a text.
    pub(crate) space_prefix: bool,
    /// Whether pieces are chosen by their probabilities, not joined.
    pub(crate) unigram: bool,
    /// Whether of spaces one after another one is left: of a unigram model alone.
    pub(crate) removes_spaces: bool,
}

/// A value of a field.
enum Value<'a> {
    Whole(u64),
    Fixed(#[expect(dead_code, reason = "no field that is read has eight bytes")] [u8; 8]),
    Single([u8; 4]),
    Bytes(&'a [u8]),
}

/// The fields of a message, one after another; ends at the first that is damaged, with an error.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (fixed, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*fixed)
    }

    /// The next field; `Err`: there is one, and it is damaged.
    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, ()> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let mut read = || {
            let key = self.varint()?;
            let value = match key & 7 {
                0 => Value::Whole(self.varint()?),
                1 => Value::Fixed(self.fixed()?),
                2 => {
                    let count = usize::try_from(self.varint()?).ok()?;
                    let (bytes, rest) = self.rest.split_at_checked(count)?;
                    self.rest = rest;
                    Value::Bytes(bytes)
                }
                5 => Value::Single(self.fixed()?),
                _ => return None,
            };
            Some((key >> 3, value))
        };
        read().map(Some).ok_or(())
    }
}

impl Model {
    /// The model of a file's bytes.
    pub(crate) fn read(file: &[u8], path: &Path) -> Result<Self, FolderError> {
        let damaged = |()| FolderError::damaged(path, "it is no model of SentencePiece");
        let mut pieces = Vec::new();
        let (mut kind, mut suffixed) = (1, false);
        let (mut charsmap, mut space_prefix, mut removes_spaces, mut escapes) = (false, true, true, true);
        let mut fields = Fields { rest: file };
        while let Some((field, value)) = fields.next().map_err(damaged)? {
            match (field, value) {
                (1, Value::Bytes(bytes)) => {
                    if pieces.len() == PIECES_MAX {
                        return Err(FolderError::damaged(
                            path,
                            format!("it has more than {PIECES_MAX} pieces"),
                        ));
                    }
                    pieces.push(piece(bytes).map_err(damaged)?);
                }
                (2, Value::Bytes(bytes)) => {
                    let mut fields = Fields { rest: bytes };
                    while let Some((field, value)) = fields.next().map_err(damaged)? {
                        match (field, value) {
                            (3, Value::Whole(value)) => kind = value,
                            (24, Value::Whole(value)) => suffixed = value != 0,
                            _ => {}
                        }
                    }
                }
                (3, Value::Bytes(bytes)) => {
                    let mut fields = Fields { rest: bytes };
                    while let Some((field, value)) = fields.next().map_err(damaged)? {
                        match (field, value) {
                            (2, Value::Bytes(map)) => charsmap = !map.is_empty(),
                            (3, Value::Whole(value)) => space_prefix = value != 0,
                            (4, Value::Whole(value)) => removes_spaces = value != 0,
                            (5, Value::Whole(value)) => escapes = value != 0,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        if pieces.is_empty() {
            return Err(damaged(()));
        }
        let refused = |what: &str| Err(FolderError::convertible(path, what));
        let unigram = kind == 1;
        match kind {
            1 | 2 if charsmap => {
                refused("SentencePiece's normalisation of text (key `precompiled_charsmap`)")
            }
            2 if removes_spaces => {
                refused("removing of spaces before text is cut (key `remove_extra_whitespaces`)")
            }
            1 | 2 if suffixed => refused("spaces behind words (key `treat_whitespace_as_suffix`)"),
            1 | 2 if !escapes => refused("spaces in pieces as they are (key `escape_whitespaces`)"),
            1 | 2 => Ok(Self { pieces, space_prefix, unigram, removes_spaces }),
            _ => refused(&format!("SentencePiece's model of kind {kind}")),
        }
    }
}

fn piece(bytes: &[u8]) -> Result<Piece, ()> {
    let mut piece = Piece { text: String::new(), score: 0.0, kind: 1 };
    let mut fields = Fields { rest: bytes };
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (1, Value::Bytes(text)) => piece.text = String::from_utf8(text.to_vec()).map_err(drop)?,
            (2, Value::Single(score)) => piece.score = f32::from_le_bytes(score),
            (3, Value::Whole(kind)) => {
                piece.kind = i32::try_from(kind).ok().filter(|kind| (1..=6).contains(kind)).ok_or(())?;
            }
            _ => {}
        }
    }
    Ok(piece)
}
