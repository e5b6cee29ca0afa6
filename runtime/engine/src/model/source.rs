//! A model's tensors by role, with checked shapes.
//!
//! Every tensor of the file must have a role or be known as irrelevant; others are refused by name. A tensor
//! left out, such as a bias or a norm, would give text that is wrong but plausible. All problems of a file
//! are reported together, each kind once.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::ops::Range;
use std::path::Path;

use thiserror::Error;

use super::architectures::{self, Names};
use super::config::{Config, ConfigError, Mixer, Role, TensorShape};
use super::gguf::{Gguf, GgufError, TensorInfo, quote};
use super::tokenizer::{Tokenizer, TokenizerData, TokenizerError};
use kernels::Matrix;
use kernels::{Activation, Format};

#[cfg(test)]
mod tests;

/// Why a model cannot be used.
#[derive(Debug, Error)]
pub enum SourceError {
    /// An error of the file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// An error of a key.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An error of the tokenizer, besides another problem.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A required tensor is missing.
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
    /// A tensor with unsupported or unknown mathematics.
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
    /// Several problems.
    #[error("{0}")]
    Several(Problems),
}

/// Several reasons why a model cannot be used.
#[derive(Debug)]
pub struct Problems(pub Vec<SourceError>);

/// The most problems listed one by one.
const SHOWN_MAX: usize = 16;

impl Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} things keep this model from being used", self.0.len())?;
        self.0.iter().take(SHOWN_MAX).try_for_each(|problem| write!(f, "\n  {problem}"))?;
        if self.0.len() > SHOWN_MAX { write!(f, "\n  and {} more", self.0.len() - SHOWN_MAX) } else { Ok(()) }
    }
}

impl SourceError {
    /// The message for the file at `path`, naming it once: errors of the file's bytes name it already.
    pub fn of_file(&self, path: &Path) -> String {
        match self {
            Self::Gguf(error) => error.to_string(),
            _ => format!("{}: {self}", path.display()),
        }
    }

    /// One problem by itself, or several together.
    fn of(mut problems: Vec<Self>) -> Self {
        if problems.len() == 1 { problems.remove(0) } else { Self::Several(Problems(problems)) }
    }
}

/// The down projection, in the file's order.
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
    token_embedding: TensorSpan,
    output_norm: TensorSpan,
    output: Option<TensorSpan>,
    row_table: Option<TensorSpan>,
    blocks: Vec<Block>,
    /// The block of each layer.
    layers: Vec<usize>,
}

/// The places of one block's tensors.
#[derive(Debug)]
struct Block {
    /// Tensors that every token uses, by role.
    parts: [Option<TensorSpan>; Role::COUNT],
    /// Matrices that are cut into neurons.
    network: Option<Network>,
}

/// The places of a network's matrices.
#[derive(Debug)]
struct Network {
    /// The up matrices if there are no gates.
    gate: Experts,
    /// `None` if there are no gates.
    up: Option<Experts>,
    down: Experts,
    /// Whether `down` has a row for each neuron.
    down_transposed: bool,
}

/// The place of a matrix in the file.
#[derive(Debug, Clone, Copy)]
struct TensorSpan {
    format: Format,
    rows: usize,
    columns: usize,
    start: usize,
}

impl TensorSpan {
    /// The place of a tensor with a problem.
    const NONE: Self = Self { format: Format::F32, rows: 0, columns: 0, start: 0 };

    fn bytes(&self) -> usize {
        self.rows * self.format.row_bytes(self.columns)
    }

    /// A range of its rows.
    fn rows(&self, rows: Range<usize>) -> Self {
        let start = self.start + rows.start * self.format.row_bytes(self.columns);
        Self { rows: rows.len(), start, ..*self }
    }

    /// A range of the values of a vector without blocks.
    fn values(&self, values: Range<usize>) -> Self {
        Self { columns: values.len(), start: self.start + self.format.row_bytes(values.start), ..*self }
    }
}

/// One matrix per expert.
#[derive(Debug)]
enum Experts {
    /// One tensor with all experts: the place of the first, and the bytes from one to the next. Also the
    /// single matrix of a dense model.
    Stacked(TensorSpan, usize),
    /// A tensor for each expert.
    Separate(Vec<TensorSpan>),
}

impl SourceModel<'static> {
    /// Opens a GGUF file and finds every tensor of its model.
    ///
    /// # Errors
    /// Every [`SourceError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SourceError> {
        Self::from_gguf(Gguf::open(path)?)
    }
}

impl<'a> SourceModel<'a> {
    /// Finds every tensor of a model in a GGUF file.
    ///
    /// # Errors
    /// Every [`SourceError`] except failed reads.
    pub fn from_gguf(gguf: Gguf<'a>) -> Result<Self, SourceError> {
        let tokenizer = || {
            gguf.value("tokenizer.ggml.model")?;
            TokenizerData::from_gguf(&gguf).and_then(Tokenizer::new).err().map(SourceError::from)
        };
        let (config, names) = match architectures::read(&gguf) {
            Ok(read) => read,
            Err(problems) => {
                let problems = problems.into_iter().map(SourceError::from);
                return Err(SourceError::of(problems.chain(tokenizer()).collect()));
            }
        };
        let mut roles = Roles::new(&gguf, &names);
        let (width, vocabulary) = (config.width, config.vocabulary);
        let token_embedding = roles.matrix("token_embd.weight", vocabulary, width);
        let norm_values = config.output_norm_values();
        let output_norm = roles.matrix(names.output_norm.unwrap_or("output_norm.weight"), 1, norm_values);
        let output = roles.optional("output.weight", vocabulary, width);
        let row_table = config
            .row_table()
            .map(|(rows, columns, _)| roles.matrix("per_layer_token_embd.weight", rows, columns));
        let blocks = (0..config.blocks.len()).map(|block| roles.block(block, &config)).collect();
        let layers = (0..config.layers()).map(|layer| config.block_of(layer)).collect();
        if config.ropes.iter().any(|rope| !rope.divisors.is_empty()) {
            roles.use_tensor("rope_freqs.weight");
        }
        if config.ropes.iter().any(|rope| rope.long.is_some()) {
            roles.use_tensor("rope_factors_long.weight");
            roles.use_tensor("rope_factors_short.weight");
        }
        let mut problems = roles.finish(config.blocks.len());
        if !problems.is_empty() {
            problems.extend(tokenizer());
            return Err(SourceError::of(problems));
        }
        Ok(Self { config, token_embedding, output_norm, output, row_table, blocks, layers, gguf })
    }

    /// Replaces the activation that the file says or implies.
    #[must_use]
    pub fn with_activation(mut self, activation: Activation) -> Self {
        self.config.networks_mut().for_each(|network| network.activation = activation);
        self
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
    /// If the file has no tokenizer, or an unsupported one.
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

    /// `[vocabulary, width]`; `None` if the token embedding is the head, too.
    pub fn output(&self) -> Option<Matrix<'_>> {
        self.output.map(|place| self.view(place))
    }

    /// The table of [`Config::row_table`]: each block's own embedding of a token, `[vocabulary, blocks * own]`, or
    /// rows of n-grams.
    pub fn row_table(&self) -> Option<Matrix<'_>> {
        self.row_table.map(|place| self.view(place))
    }

    /// A tensor of a block that every token uses, if the model has it.
    ///
    /// # Panics
    /// If there is no such block; likewise below.
    pub fn part(&self, block: usize, role: Role) -> Option<Matrix<'_>> {
        self.blocks[block].parts[role as usize].map(|place| self.view(place))
    }

    /// Query, key, value and output matrices of attention, `[rows, width]` and `[width, rows]`; empty for
    /// other mixers.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn projections(&self, block: usize) -> [Matrix<'_>; 4] {
        let place = |role: Role| self.blocks[block].parts[role as usize].unwrap_or(TensorSpan::NONE);
        [Role::Query, Role::Key, Role::Value, Role::AttentionOutput].map(|role| self.view(place(role)))
    }

    /// A layer's router, `[experts, width]`; `None` in a dense model.
    pub fn router(&self, layer: usize) -> Option<Matrix<'_>> {
        self.part(self.layers[layer], Role::Router)
    }

    /// Gate rows, `[neurons, width]`, which decide which neurons fire. The up rows if there are no gates.
    ///
    /// # Panics
    /// If there is no such layer or expert; a dense layer has expert 0.
    pub fn ffn_gate(&self, layer: usize, expert: usize) -> Matrix<'_> {
        self.expert(&self.network(layer).gate, expert)
    }

    /// Up rows, `[neurons, width]`.
    ///
    /// # Panics
    /// If there is no such layer or expert.
    pub fn ffn_up(&self, layer: usize, expert: usize) -> Matrix<'_> {
        let network = self.network(layer);
        self.expert(network.up.as_ref().unwrap_or(&network.gate), expert)
    }

    /// The down projection, in the file's order.
    ///
    /// # Panics
    /// If there is no such layer or expert.
    pub fn ffn_down(&self, layer: usize, expert: usize) -> Down<'_> {
        let network = self.network(layer);
        let view = self.expert(&network.down, expert);
        if network.down_transposed { Down::Rows(view) } else { Down::Columns(view) }
    }

    /// The file's byte ranges of a layer's feed-forward matrices, all experts together.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn feed_forward_ranges(&self, layer: usize) -> Vec<Range<usize>> {
        let Network { gate, up, down, .. } = self.network(layer);
        let all = [Some(gate), up.as_ref(), Some(down)].into_iter().flatten();
        let ranges = all.flat_map(|experts| match experts {
            Experts::Stacked(first, stride) => {
                let end = first.start + (self.config.experts() - 1) * stride + first.bytes();
                Vec::from_iter(std::iter::once(first.start..end))
            }
            Experts::Separate(places) => places.iter().map(|p| p.start..p.start + p.bytes()).collect(),
        });
        ranges.collect()
    }

    fn network(&self, layer: usize) -> &Network {
        let network = &self.blocks[self.layers[layer]].network;
        network.as_ref().unwrap_or_else(|| panic!("layer {layer} has a network"))
    }

    fn expert(&self, experts: &Experts, expert: usize) -> Matrix<'_> {
        assert!(expert < self.config.experts(), "expert {expert} of {}", self.config.experts());
        self.view(match experts {
            Experts::Stacked(first, stride) => TensorSpan { start: first.start + expert * stride, ..*first },
            Experts::Separate(places) => places[expert],
        })
    }

    fn view(&self, place: TensorSpan) -> Matrix<'_> {
        let TensorSpan { format, rows, columns, start } = place;
        Matrix { format, rows, columns, bytes: self.gguf.bytes(start..start + place.bytes()) }
    }
}

/// The assignment of tensors to roles.
struct Roles<'g> {
    gguf: &'g Gguf<'g>,
    names: &'g Names,
    /// Whether each tensor of the file has a role.
    used: Vec<bool>,
    problems: Vec<SourceError>,
    /// The kinds of problems noted.
    kinds: BTreeSet<String>,
}

impl<'g> Roles<'g> {
    fn new(gguf: &'g Gguf<'g>, names: &'g Names) -> Self {
        let used = vec![false; gguf.tensors().len()];
        Self { gguf, names, used, problems: Vec::new(), kinds: BTreeSet::new() }
    }

    fn block(&mut self, block: usize, config: &Config) -> Block {
        let mut parts = [None; Role::COUNT];
        for part in config.parts(block) {
            parts[part.role as usize] = Some(self.part(block, part, config));
        }
        let network = config.blocks[block].network().map(|_| self.network(block, config));
        Block { parts, network }
    }

    /// The matrices of a block that are cut into neurons.
    fn network(&mut self, layer: usize, config: &Config) -> Network {
        let (width, neurons) = (config.width, config.ffn_width());
        let (gate, up) = self.gate_and_up(layer, config);
        let transposed = self.experts(layer, "ffn_down_t", neurons, width, config);
        let (down, down_transposed) = match transposed {
            Some(down) => (down, true),
            None if self.has_down_rows(layer, config) => {
                (self.needed_experts(layer, "ffn_down", neurons, width, config), true)
            }
            None => (self.needed_experts(layer, "ffn_down", width, neurons, config), false),
        };
        Network { gate, up, down, down_transposed }
    }

    /// Whether the experts' down has a row for each neuron, as only its shape shows.
    fn has_down_rows(&self, layer: usize, config: &Config) -> bool {
        let (width, neurons, experts) = (config.width, config.ffn_width(), config.experts());
        let rows = [width as u64, neurons as u64, experts as u64, 1];
        let tensor = self.gguf.tensor(&format!("blk.{layer}.ffn_down_exps.weight"));
        self.names.down_rows && width != neurons && tensor.is_some_and(|tensor| tensor.dims == rows)
    }

    /// A tensor that every token uses, alone or as part of a fused one.
    fn part(&mut self, layer: usize, part: TensorShape, config: &Config) -> TensorSpan {
        let TensorShape { role, rows, columns } = part;
        let own = self.names.of(role);
        match role {
            Role::PerLayerProjection => {
                let all = self.matrix(own, rows * config.blocks.len(), columns);
                return if all.rows == 0 { all } else { all.rows(layer * rows..(layer + 1) * rows) };
            }
            Role::PerLayerNorm => return self.matrix(own, rows, columns),
            Role::StreamsOpen | Role::StreamsJoin => {
                // a matrix for each stream but the first
                let first = self.needed(own, columns, columns, rows / columns.max(1));
                return if first.rows == 0 { first } else { TensorSpan { rows, ..first } };
            }
            Role::OutputGateDown | Role::OutputGateUp => return self.matrix(own, rows, columns),
            _ => {}
        }
        let own = match (own.split_once('.'), role) {
            (Some((name, kind)), Role::GateBias | Role::UpBias | Role::DownBias) if config.experts() > 1 => {
                format!("blk.{layer}.{name}_exps.{kind}")
            }
            _ => format!("blk.{layer}.{own}"),
        };
        let (query, kv) = match &config.blocks[layer].mixer {
            Some(Mixer::Attention(a)) if matches!(role, Role::KeyUp | Role::ValueUp) => {
                // one matrix for each head
                let first = self.needed(&own, rows / a.heads, columns, a.heads);
                return if first.rows == 0 { first } else { TensorSpan { rows, ..first } };
            }
            Some(Mixer::Attention(a)) if a.latent.is_none() => (a.query_rows(), a.kv_width()),
            Some(Mixer::DeltaNet(net)) => (net.key_width(), net.value_width()),
            _ => return self.matrix(&own, rows, columns),
        };
        let (first, kind) = match role {
            Role::Query => (0, "weight"),
            Role::Key => (query, "weight"),
            Role::Value => (query + kv, "weight"),
            Role::QueryBias => (0, "bias"),
            Role::KeyBias => (query, "bias"),
            Role::ValueBias => (query + kv, "bias"),
            _ => return self.matrix(&own, rows, columns),
        };
        let (fused, all) = (format!("blk.{layer}.attn_qkv.{kind}"), query + 2 * kv);
        if self.gguf.tensor(&own).is_some() || self.gguf.tensor(&fused).is_none() {
            return self.matrix(&own, rows, columns);
        }
        match kind {
            "weight" => self.matrix(&fused, all, columns).rows(first..first + rows),
            _ => self.matrix(&fused, 1, all).values(first..first + columns),
        }
    }

    /// Gate and up, as two tensors or stacked in one; up alone without gates.
    fn gate_and_up(&mut self, layer: usize, config: &Config) -> (Experts, Option<Experts>) {
        let (width, neurons, experts) = (config.width, config.ffn_width(), config.experts());
        if !config.activation().is_gated() {
            return (self.needed_experts(layer, "ffn_up", neurons, width, config), None);
        }
        let stacked = format!("blk.{layer}.ffn_gate_up_exps.weight");
        let fused = match self.names.gate_up {
            Some(name) if experts == 1 => Some(format!("blk.{layer}.{name}")),
            _ if self.gguf.tensor(&stacked).is_some() => Some(stacked),
            _ => None,
        };
        if let Some(fused) = fused {
            let both = self.needed(&fused, 2 * neurons, width, experts);
            if both.rows == 0 {
                return (Experts::Stacked(both, 0), None);
            }
            let half = |rows| Experts::Stacked(both.rows(rows), both.bytes());
            return (half(0..neurons), Some(half(neurons..2 * neurons)));
        }
        let mut needed = |role| self.needed_experts(layer, role, neurons, width, config);
        (needed("ffn_gate"), Some(needed("ffn_up")))
    }

    /// [`Roles::experts`], required.
    fn needed_experts(
        &mut self,
        layer: usize,
        role: &str,
        rows: usize,
        columns: usize,
        config: &Config,
    ) -> Experts {
        self.experts(layer, role, rows, columns, config).unwrap_or_else(|| {
            // the current name of the two
            let suffix = if config.experts() > 1 { "_exps" } else { "" };
            self.missing(&format!("blk.{layer}.{role}{suffix}.weight"));
            Experts::Stacked(TensorSpan::NONE, 0)
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
    ) -> Option<Experts> {
        let experts = config.experts();
        if experts == 1 {
            let only = self.optional(&format!("blk.{layer}.{role}.weight"), rows, columns)?;
            return Some(Experts::Stacked(only, 0));
        }
        if let Some(first) = self.find(&format!("blk.{layer}.{role}_exps.weight"), rows, columns, experts) {
            return Some(Experts::Stacked(first, first.bytes()));
        }
        let separate = |expert| format!("blk.{layer}.{role}.{expert}.weight");
        self.gguf.tensor(&separate(0))?;
        let mut places = Vec::new();
        for expert in 0..experts {
            let place = self.matrix(&separate(expert), rows, columns);
            places.push(place);
            if place.rows == 0 {
                break; // a wrong number of experts costs neither time nor memory
            }
        }
        Some(Experts::Separate(places))
    }

    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> TensorSpan {
        self.needed(name, rows, columns, 1)
    }

    fn optional(&mut self, name: &str, rows: usize, columns: usize) -> Option<TensorSpan> {
        self.find(name, rows, columns, 1)
    }

    /// [`Roles::find`], required.
    fn needed(&mut self, name: &str, rows: usize, columns: usize, matrices: usize) -> TensorSpan {
        self.find(name, rows, columns, matrices).unwrap_or_else(|| {
            self.missing(name);
            TensorSpan::NONE
        })
    }

    /// The first of `matrices` matrices in a tensor, which is marked as used; no place if there is a problem.
    fn find(&mut self, name: &str, rows: usize, columns: usize, matrices: usize) -> Option<TensorSpan> {
        let place = self.gguf.place_of(name)?;
        self.used[place] = true;
        let tensor = &self.gguf.tensors()[place];
        let expected = [columns as u64, rows as u64, matrices as u64, 1];
        // taps of channels may have a dimension of one value between
        if tensor.dims != expected && (matrices > 1 || tensor.dims != [columns as u64, 1, rows as u64, 1]) {
            let (expected, found) = (trimmed(expected), trimmed(tensor.dims));
            self.note("shape", name, SourceError::Shape { name: name.to_owned(), expected, found });
            return Some(TensorSpan::NONE);
        }
        match tensor.format() {
            Ok(format) => Some(TensorSpan { format, rows, columns, start: tensor.offset as usize }), // within the file, which is in memory
            Err(error) => {
                if self.kinds.insert(tensor.kind.to_string()) {
                    self.problems.push(error.into());
                }
                Some(TensorSpan::NONE)
            }
        }
    }

    fn missing(&mut self, name: &str) {
        self.note("missing", name, SourceError::Missing { name: name.to_owned() });
    }

    /// Notes a problem, once for all layers.
    fn note(&mut self, kind: &str, name: &str, problem: SourceError) {
        if self.kinds.insert(format!("{kind} {}", role_of(name).1)) {
            self.problems.push(problem);
        }
    }

    fn use_tensor(&mut self, name: &str) {
        if let Some(place) = self.gguf.place_of(name) {
            self.used[place] = true;
        }
    }

    /// All problems, tensors without a role included.
    fn finish(mut self, layers: usize) -> Vec<SourceError> {
        for (place, tensor) in self.gguf.tensors().iter().enumerate() {
            let layer = role_of(&tensor.name).0.parse().unwrap_or(0);
            let left_out = (layers..layers + self.names.left_out).contains(&layer);
            let unused = || self.names.unused.contains(&tensor.name);
            if !self.used[place] && !left_out && !is_harmless(tensor) && !unused() {
                let (name, what) = (tensor.name.clone(), guess(&tensor.name, layers));
                self.note("unexpected", &tensor.name, SourceError::Unexpected { name, what });
            }
        }
        self.problems
    }
}

/// The layer in a tensor's name, and the rest of the name; no layer if it has none.
fn role_of(name: &str) -> (&str, &str) {
    name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).unwrap_or(("", name))
}

/// Dimensions without trailing ones.
fn trimmed(dims: [u64; 4]) -> Vec<u64> {
    let used = dims.iter().rposition(|&dim| dim != 1).map_or(1, |last| last + 1);
    dims[..used].to_vec()
}

/// Whether a tensor belongs to a model's vision or audio part, by its name.
pub fn is_of_pictures(name: &str) -> bool {
    ["mm.", "v.", "a."].into_iter().any(|part| name.starts_with(part))
}

/// Whether a tensor can be ignored: the vision part, and `PowerInfer`'s predictors `fc1` and `fc2` of a layer
/// or an expert.
fn is_harmless(tensor: &TensorInfo) -> bool {
    if is_of_pictures(&tensor.name) {
        return true;
    }
    let Some((_, role)) = tensor.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
        return false;
    };
    role.starts_with("fc1.") || role.starts_with("fc2.")
}

/// A tensor's probable role by its name, in a model of `layers` layers.
fn guess(name: &str, layers: usize) -> &'static str {
    let (layer, role) = role_of(name);
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
