//! A model's tensors by their role, each with its shape checked.
//!
//! Every tensor of the file has a role here, or is known not to matter; any other is refused by name, since weights
//! that are left out (a bias, another norm) give text that is wrong and looks plausible.

use std::ops::Range;
use std::path::Path;

use thiserror::Error;

use super::config::{Config, ConfigError};
use super::gguf::{Gguf, GgufError, TensorInfo, quote};
use super::tokenizer::{TokenizerData, TokenizerError};
use kernels::Format;
use kernels::Matrix;

#[cfg(test)]
mod tests;

/// Why a model cannot be used.
#[derive(Debug, Error)]
pub enum SourceError {
    /// The file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A key of the file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tensor that must be there is not.
    #[error("tensor `{name}` is missing: the model is incomplete, convert it again")]
    Missing {
        /// The tensor.
        name: String,
    },
    /// A tensor with another shape than the keys imply.
    #[error(
        "tensor `{name}` has dimensions {found:?} where the keys imply {expected:?}: convert the model again"
    )]
    Shape {
        /// The tensor.
        name: String,
        /// The dimensions that the keys imply, the contiguous one first.
        expected: Vec<u64>,
        /// The dimensions in the file.
        found: Vec<u64>,
    },
    /// A tensor that changes the mathematics in a way that is not implemented, or is not known.
    #[error(
        "tensor {} ({what}) is not implemented and cannot be left out: give a model without it",
        quote(name)
    )]
    Unexpected {
        /// The tensor.
        name: String,
        /// The tensor's probable role, by its name.
        what: &'static str,
    },
}

/// The down projection, in the order the file has it.
#[derive(Debug, Clone, Copy)]
pub enum Down<'a> {
    /// `[width, neurons]`: a neuron is a column, as in most files.
    Columns(Matrix<'a>),
    /// `[neurons, width]`: a neuron is a row, as in `PowerInfer`'s `ffn_down_t`.
    Rows(Matrix<'a>),
}

/// A GGUF model whose tensors have been found and checked.
#[derive(Debug)]
pub struct SourceModel<'a> {
    gguf: Gguf<'a>,
    config: Config,
    token_embedding: Place,
    output_norm: Place,
    output: Option<Place>,
    layers: Vec<Layer>,
}

/// The places of one layer's tensors.
#[derive(Debug)]
struct Layer {
    attention_norm: Place,
    query: Place,
    key: Place,
    value: Place,
    attention_output: Place,
    ffn_norm: Place,
    router: Option<Place>,
    gate: Experts,
    up: Experts,
    down: Experts,
    /// Whether `down` has a row for each neuron.
    down_transposed: bool,
}

/// The place of a matrix in the file.
#[derive(Debug, Clone, Copy)]
struct Place {
    format: Format,
    rows: usize,
    columns: usize,
    start: usize,
}

impl Place {
    fn bytes(&self) -> usize {
        self.rows * self.format.row_bytes(self.columns)
    }
}

/// One matrix per expert.
#[derive(Debug)]
enum Experts {
    /// One tensor, expert after expert: the place of the first. Also the only matrix of a dense model.
    Stacked(Place),
    /// A tensor for each expert.
    Separate(Vec<Place>),
}

impl SourceModel<'static> {
    /// Open a GGUF file and find every tensor of the model in it.
    ///
    /// # Errors
    /// Everything [`SourceError`] names.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SourceError> {
        Self::from_gguf(Gguf::open(path)?)
    }
}

impl<'a> SourceModel<'a> {
    /// Find every tensor of a model in a GGUF file.
    ///
    /// # Errors
    /// [`SourceError`], but for the reading.
    pub fn from_gguf(gguf: Gguf<'a>) -> Result<Self, SourceError> {
        let config = Config::from_gguf(&gguf)?;
        let mut roles = Roles { gguf: &gguf, used: vec![false; gguf.tensors().len()] };
        let (width, vocabulary) = (config.width, config.vocabulary);

        let token_embedding = roles.matrix("token_embd.weight", vocabulary, width)?;
        let output_norm = roles.matrix("output_norm.weight", 1, width)?;
        let output = roles.optional("output.weight", vocabulary, width)?;
        let mut layers = Vec::new();
        for layer in 0..config.layers {
            layers.push(roles.layer(layer, &config)?);
        }
        roles.check_all_used(config.layers)?;
        Ok(Self { config, token_embedding, output_norm, output, layers, gguf })
    }

    /// The sizes and constants.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The file.
    pub fn gguf(&self) -> &Gguf<'a> {
        &self.gguf
    }

    /// The tokenizer's description.
    ///
    /// # Errors
    /// Where the file has none, or one that is not supported.
    pub fn tokenizer_data(&self) -> Result<TokenizerData, TokenizerError> {
        TokenizerData::from_gguf(&self.gguf)
    }

    /// `[vocabulary, width]`.
    pub fn token_embedding(&self) -> Matrix<'_> {
        self.view(self.token_embedding)
    }

    /// `[1, width]`, before the output.
    pub fn output_norm(&self) -> Matrix<'_> {
        self.view(self.output_norm)
    }

    /// `[vocabulary, width]`; none where it is the token embedding.
    pub fn output(&self) -> Option<Matrix<'_>> {
        self.output.map(|place| self.view(place))
    }

    /// `[1, width]`, before attention.
    ///
    /// # Panics
    /// If there is no such layer; so do all that follow.
    pub fn attention_norm(&self, layer: usize) -> Matrix<'_> {
        self.view(self.layers[layer].attention_norm)
    }

    /// `[heads * head_width, width]`.
    pub fn query(&self, layer: usize) -> Matrix<'_> {
        self.view(self.layers[layer].query)
    }

    /// `[kv_heads * head_width, width]`.
    pub fn key(&self, layer: usize) -> Matrix<'_> {
        self.view(self.layers[layer].key)
    }

    /// `[kv_heads * head_width, width]`.
    pub fn value(&self, layer: usize) -> Matrix<'_> {
        self.view(self.layers[layer].value)
    }

    /// `[width, heads * head_width]`.
    pub fn attention_output(&self, layer: usize) -> Matrix<'_> {
        self.view(self.layers[layer].attention_output)
    }

    /// `[1, width]`, before the feed-forward network.
    pub fn ffn_norm(&self, layer: usize) -> Matrix<'_> {
        self.view(self.layers[layer].ffn_norm)
    }

    /// `[experts, width]`; none in a dense model.
    pub fn router(&self, layer: usize) -> Option<Matrix<'_>> {
        self.layers[layer].router.map(|place| self.view(place))
    }

    /// `[neurons, width]`.
    ///
    /// # Panics
    /// If there is no such layer or expert; a dense layer has expert 0.
    pub fn ffn_gate(&self, layer: usize, expert: usize) -> Matrix<'_> {
        self.expert(&self.layers[layer].gate, expert)
    }

    /// `[neurons, width]`.
    ///
    /// # Panics
    /// If there is no such layer or expert.
    pub fn ffn_up(&self, layer: usize, expert: usize) -> Matrix<'_> {
        self.expert(&self.layers[layer].up, expert)
    }

    /// The down projection, in the order the file has it.
    ///
    /// # Panics
    /// If there is no such layer or expert.
    pub fn ffn_down(&self, layer: usize, expert: usize) -> Down<'_> {
        let layer = &self.layers[layer];
        let view = self.expert(&layer.down, expert);
        if layer.down_transposed { Down::Rows(view) } else { Down::Columns(view) }
    }

    /// The byte ranges of a layer's feed-forward matrices in the file, all experts' together.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn feed_forward_ranges(&self, layer: usize) -> Vec<Range<usize>> {
        let Layer { gate, up, down, .. } = &self.layers[layer];
        let ranges = [gate, up, down].into_iter().flat_map(|experts| match experts {
            Experts::Stacked(first) => {
                let end = first.start + self.config.experts * first.bytes();
                Vec::from_iter(std::iter::once(first.start..end))
            }
            Experts::Separate(places) => places.iter().map(|p| p.start..p.start + p.bytes()).collect(),
        });
        ranges.collect()
    }

    fn expert(&self, experts: &Experts, expert: usize) -> Matrix<'_> {
        assert!(expert < self.config.experts, "expert {expert} of {}", self.config.experts);
        self.view(match experts {
            Experts::Stacked(first) => Place { start: first.start + expert * first.bytes(), ..*first },
            Experts::Separate(places) => places[expert],
        })
    }

    fn view(&self, place: Place) -> Matrix<'_> {
        let Place { format, rows, columns, start } = place;
        Matrix { format, rows, columns, bytes: &self.gguf.bytes()[start..start + place.bytes()] }
    }
}

/// Tensors being given their roles.
struct Roles<'g> {
    gguf: &'g Gguf<'g>,
    /// Whether each tensor of the file has one.
    used: Vec<bool>,
}

impl Roles<'_> {
    fn layer(&mut self, layer: usize, config: &Config) -> Result<Layer, SourceError> {
        let name = |role: &str| format!("blk.{layer}.{role}.weight");
        let (width, query_width, kv_width) = (config.width, config.query_width(), config.kv_width());
        let neurons = config.ffn_width;
        let (down, down_transposed) = match self.experts(layer, "ffn_down_t", neurons, width, config) {
            Err(SourceError::Missing { .. }) => {
                (self.experts(layer, "ffn_down", width, neurons, config)?, false)
            }
            transposed => (transposed?, true),
        };
        Ok(Layer {
            attention_norm: self.matrix(&name("attn_norm"), 1, width)?,
            query: self.matrix(&name("attn_q"), query_width, width)?,
            key: self.matrix(&name("attn_k"), kv_width, width)?,
            value: self.matrix(&name("attn_v"), kv_width, width)?,
            attention_output: self.matrix(&name("attn_output"), width, query_width)?,
            ffn_norm: self.matrix(&name("ffn_norm"), 1, width)?,
            router: match config.experts {
                1 => None,
                experts => Some(self.matrix(&name("ffn_gate_inp"), experts, width)?),
            },
            gate: self.experts(layer, "ffn_gate", neurons, width, config)?,
            up: self.experts(layer, "ffn_up", neurons, width, config)?,
            down,
            down_transposed,
        })
    }

    /// The matrices of a role, one per expert: `role`, `role_exps` (all in one tensor), or `role.0`, `role.1`, ...
    fn experts(
        &mut self,
        layer: usize,
        role: &str,
        rows: usize,
        columns: usize,
        config: &Config,
    ) -> Result<Experts, SourceError> {
        if config.experts == 1 {
            return Ok(Experts::Stacked(self.matrix(
                &format!("blk.{layer}.{role}.weight"),
                rows,
                columns,
            )?));
        }
        let stacked = format!("blk.{layer}.{role}_exps.weight");
        if let Some(first) = self.find(&stacked, rows, columns, config.experts)? {
            return Ok(Experts::Stacked(first));
        }
        let separate = |expert| format!("blk.{layer}.{role}.{expert}.weight");
        if self.gguf.tensor(&separate(0)).is_none() {
            return Err(SourceError::Missing { name: stacked }); // today's name of the two
        }
        let places: Result<_, _> =
            (0..config.experts).map(|expert| self.matrix(&separate(expert), rows, columns)).collect();
        Ok(Experts::Separate(places?))
    }

    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Place, SourceError> {
        self.optional(name, rows, columns)?.ok_or_else(|| SourceError::Missing { name: name.to_owned() })
    }

    fn optional(&mut self, name: &str, rows: usize, columns: usize) -> Result<Option<Place>, SourceError> {
        self.find(name, rows, columns, 1)
    }

    /// The first of `matrices` matrices in a tensor, which has no other use from now on.
    fn find(
        &mut self,
        name: &str,
        rows: usize,
        columns: usize,
        matrices: usize,
    ) -> Result<Option<Place>, SourceError> {
        let Some(place) = self.gguf.place_of(name) else {
            return Ok(None);
        };
        let tensor = &self.gguf.tensors()[place];
        let expected = [columns as u64, rows as u64, matrices as u64, 1];
        if tensor.dims != expected {
            let (expected, found) = (trimmed(expected), trimmed(tensor.dims));
            return Err(SourceError::Shape { name: name.to_owned(), expected, found });
        }
        let format = tensor.format()?;
        self.used[place] = true;
        Ok(Some(Place { format, rows, columns, start: tensor.offset as usize })) // within the file, which is in memory
    }

    fn check_all_used(&self, layers: usize) -> Result<(), SourceError> {
        for (tensor, used) in self.gguf.tensors().iter().zip(&self.used) {
            if !used && !is_harmless(tensor) {
                return Err(SourceError::Unexpected {
                    name: tensor.name.clone(),
                    what: guess(&tensor.name, layers),
                });
            }
        }
        Ok(())
    }
}

/// Dimensions without the ones at the end.
fn trimmed(dims: [u64; 4]) -> Vec<u64> {
    let used = dims.iter().rposition(|&dim| dim != 1).map_or(1, |last| last + 1);
    dims[..used].to_vec()
}

/// Whether a tensor may be left out: `PowerInfer`'s predictors `fc1` and `fc2`, of a layer or of one of its experts.
fn is_harmless(tensor: &TensorInfo) -> bool {
    let Some((_, role)) = tensor.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
        return false;
    };
    role.starts_with("fc1.") || role.starts_with("fc2.")
}

/// A tensor's probable role, by its name, in a model of `layers` layers.
fn guess(name: &str, layers: usize) -> &'static str {
    let (layer, role) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).unwrap_or(("", name));
    match role {
        _ if layer.parse().is_ok_and(|layer: usize| layer >= layers) => "of a layer beyond the last",
        _ if name.ends_with(".bias") => "a bias",
        _ if role.contains("attn_q_norm") || role.contains("attn_k_norm") => "a norm of queries or keys",
        _ if name.starts_with("rope_") => "a scaling of rotary frequencies",
        _ if role.contains("_shexp") => "part of a shared expert",
        _ if role.contains("_norm") => "another norm",
        _ if role.contains("attn_qkv") => "a fused projection",
        _ if role.contains("ffn_down") => "a second down projection",
        _ => "unknown here",
    }
}
