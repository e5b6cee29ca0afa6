//! One block on new tokens of some windows of text: the order of its parts, and what they share.

use super::gated::Place;
use super::products::Products;
use super::{add, values};
use crate::model::config::{Config, FeedForward, Mixer, Role, RouterInput, Streams};
use crate::model::source::SourceModel;
use kernels::{Format, Matrix, rms_norm_in_place};

/// A block of a model, with what it is computed with.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a, P> {
    /// The model.
    pub model: &'a SourceModel<'a>,
    /// The block's number.
    pub at: usize,
    /// Matrix products.
    pub products: P,
    /// Context in tokens; some models have other rotary frequencies for a long one.
    pub context: usize,
    /// The format of keys and values.
    pub kv_format: Format,
}

/// The residual stream of new tokens, window after window.
#[derive(Debug)]
pub struct Rows<'r> {
    /// `[tokens, width]`: the stream, or what the next part reads of several.
    pub x: &'r mut [f32],
    /// `[tokens, streams, width]`, where there are several residual streams; else empty.
    pub streams: &'r mut [f32],
    /// The tokens.
    pub tokens: &'r [u32],
}

/// New tokens of one window of text.
#[derive(Debug)]
pub struct Window<'w> {
    /// Number of new tokens.
    pub tokens: usize,
    /// The window's state in the block.
    pub past: &'w mut Past,
    /// The window's state in the block whose keys and values this one reads, if it has none of its own.
    pub owner: Option<&'w Past>,
}

impl Window<'_> {
    /// The position of the first new token.
    pub(super) fn first(&self) -> usize {
        self.past.tokens.len() - self.tokens
    }
}

/// The state of a window of text in a block: all that its next tokens read.
#[derive(Debug, Clone, Default)]
pub struct Past {
    /// The tokens.
    pub(super) tokens: Vec<u32>,
    /// `[positions, kv_width]`, rounded to their format; for latent attention the stored vectors.
    pub keys: Vec<f32>,
    /// `[positions, kv_width]`, rounded to their format; none for latent attention.
    pub values: Vec<f32>,
    /// Keys of an indexer: `[positions, width]`.
    pub(super) indexed: Vec<f32>,
    /// Inputs of the mixer's convolution: `[positions, channels]`.
    pub(super) convolved: Vec<f32>,
    /// Inputs of the convolution of n-grams: `[positions, streams * width]`.
    pub(super) ngrams: Vec<f32>,
    /// The state of each head: of a delta net `[values, keys]`, of a state space `[values, state]`.
    pub(super) states: Vec<Vec<f32>>,
}

/// The experts of a token, with their weights.
pub type Routed = Vec<(usize, f32)>;

impl<'a, P: Products> Block<'a, P> {
    /// Adds the block's mixer, and all else that comes before its network.
    ///
    /// Returns each token's experts, if they are chosen before the mixer.
    pub fn mix(&self, rows: &mut Rows<'_>, windows: &mut [Window<'_>]) -> Option<Vec<Routed>> {
        let mut tokens = rows.tokens.iter();
        for Window { tokens: new, past, .. } in &mut *windows {
            past.tokens.extend(tokens.by_ref().take(*new));
        }
        let block = &self.config().blocks[self.at];
        self.add_ngrams(rows, windows);
        self.predict(rows);
        self.read_streams(Place::Mixer, rows);
        let router = block.network().and_then(|network| network.router.as_ref());
        let routes_here = router.is_some_and(|router| router.input == RouterInput::BeforeMixer);
        let routed = routes_here.then(|| self.routed(rows.x));
        if let Some(mixer) = &block.mixer {
            let normed = self.normed(Role::AttentionNorm, rows.x.to_vec());
            let out = match mixer {
                Mixer::Attention(attention) => match attention.latent {
                    None => self.attention(attention, &normed, windows),
                    Some(latent) => self.latent_attention(attention, latent, &normed, windows),
                },
                Mixer::Convolution(_) => self.convolution(&normed, windows),
                Mixer::DeltaNet(net) => self.delta_net(*net, &normed, windows),
                Mixer::StateSpace(space) => self.state_space(*space, &normed, windows),
            };
            self.add_output(Place::Mixer, &self.normed(Role::AttentionPostNorm, out), rows);
            if block.branch_rank.is_some() {
                self.add_branch(&normed, rows.x);
            }
        }
        self.read_streams(Place::Network, rows);
        routed
    }

    /// Adds a network that every token uses, if the block has one, and ends the block.
    pub fn resident(&self, rows: &mut Rows<'_>) {
        const RESIDENT: [Role; 3] = [Role::ResidentGate, Role::ResidentUp, Role::ResidentDown];
        if let Some(network) = self.config().blocks[self.at].resident() {
            let normed = self.normed(Role::FfnNorm, rows.x.to_vec());
            self.add_network(self.always(RESIDENT, network, &normed), rows);
        }
        self.end(rows);
    }

    /// Adds the output of the block's network.
    pub(super) fn add_network(&self, out: Vec<f32>, rows: &mut Rows<'_>) {
        self.add_output(Place::Network, &self.normed(Role::FfnPostNorm, out), rows);
    }

    /// Adds an output to the residual stream, or to all of several.
    fn add_output(&self, place: Place, out: &[f32], rows: &mut Rows<'_>) {
        if self.config().streams.is_some_and(Streams::are_gated) {
            self.inject(place, out, rows.streams);
        } else {
            add(rows.x, self.config().blocks[self.at].residual_scale, out);
        }
    }

    /// Ends the block after its network. The last block leaves the head's input in `rows.x`.
    pub(super) fn end(&self, rows: &mut Rows<'_>) {
        self.correct(rows);
        self.add_own_inputs(rows);
        if let Some(scale) = self.model.part(self.at, Role::OutputScale).map(values) {
            rows.x.iter_mut().for_each(|x| *x *= scale[0]);
        }
        if self.at + 1 == self.config().blocks.len() {
            self.join(rows);
            self.read_streams(Place::Head, rows);
        }
    }

    pub(super) fn config(&self) -> &'a Config {
        self.model.config()
    }

    /// The block's network, in a layer.
    pub(super) fn network(&self) -> &'a FeedForward {
        let network = self.config().blocks[self.at].network();
        network.unwrap_or_else(|| panic!("block {} is no layer", self.at))
    }

    /// A tensor that the block has.
    pub(super) fn part(&self, role: Role) -> Matrix<'a> {
        self.model.part(self.at, role).unwrap_or_else(|| panic!("block {} has no {role:?}", self.at))
    }

    /// The values of a tensor that the block has.
    pub(super) fn values(&self, role: Role) -> Vec<f32> {
        values(self.part(role))
    }

    /// A tensor times each vector.
    pub(super) fn times(&self, role: Role, x: &[f32]) -> Vec<f32> {
        self.products.times(self.part(role), x)
    }

    /// Vectors with the bias of this role, if the block has it.
    pub(super) fn biased(&self, role: Role, mut x: Vec<f32>) -> Vec<f32> {
        if let Some(bias) = self.model.part(self.at, role).map(values) {
            self.products.each_row(&mut x, bias.len(), |_, x| add(x, 1.0, &bias));
        }
        x
    }

    /// Vectors by the norm of this role, if the block has it.
    pub fn normed(&self, role: Role, x: Vec<f32>) -> Vec<f32> {
        match self.model.part(self.at, role) {
            Some(weight) => self.normed_by(weight, weight.rows * weight.columns, x),
            None => x,
        }
    }

    /// Vectors of `width` values by a norm; neighbouring vectors may each have their own weights in it.
    pub(super) fn normed_by(&self, weight: Matrix<'_>, width: usize, mut x: Vec<f32>) -> Vec<f32> {
        normalise(self.products, weight, (width, self.config().norm_epsilon), &mut x);
        x
    }

    /// The outputs of each head for each window, computed side by side: `[tokens, heads, width]`.
    ///
    /// `of` gets a window, its first row and a head. It returns `[tokens of the window, width]`, and the piece's other
    /// result.
    pub(super) fn by_head<T: Send>(
        &self,
        windows: &[Window<'_>],
        heads: usize,
        of: impl Fn(&Window<'_>, usize, usize) -> (Vec<f32>, T) + Sync,
    ) -> (Vec<f32>, Vec<T>) {
        let first_row = |window: usize| new_tokens(&windows[..window]);
        let pieces = self.products.pieces(windows.len() * heads, |piece| {
            let (window, head) = (piece / heads, piece % heads);
            of(&windows[window], first_row(window), head)
        });
        let (outputs, others): (Vec<Vec<f32>>, Vec<T>) = pieces.into_iter().unzip();
        let mut all = vec![0.0; outputs.iter().map(Vec::len).sum()];
        let width = all.len() / (heads * new_tokens(windows));
        for (piece, output) in outputs.iter().enumerate() {
            let (window, head) = (piece / heads, piece % heads);
            for (row, output) in (first_row(window)..).zip(output.chunks(width)) {
                all[(row * heads + head) * width..][..width].copy_from_slice(output);
            }
        }
        (all, others)
    }
}

/// Number of all new tokens.
fn new_tokens(windows: &[Window<'_>]) -> usize {
    windows.iter().map(|window| window.tokens).sum()
}

/// Each new token's window and position.
pub(super) fn places(windows: &[Window<'_>]) -> Vec<(usize, usize)> {
    let of_window = |(at, window): (usize, &Window<'_>)| {
        (window.first()..window.past.tokens.len()).map(move |position| (at, position)).collect::<Vec<_>>()
    };
    windows.iter().enumerate().flat_map(of_window).collect()
}

/// Each new token's position.
pub(super) fn positions(windows: &[Window<'_>]) -> Vec<usize> {
    places(windows).into_iter().map(|(_, position)| position).collect()
}

/// Keeps a vector of each new token in its window's past.
pub(super) fn keep(windows: &mut [Window<'_>], mut rows: &[f32], part: impl Fn(&mut Past) -> &mut Vec<f32>) {
    let width = rows.len() / new_tokens(windows);
    for window in windows {
        let (new, later) = rows.split_at(window.tokens * width);
        part(window.past).extend(new);
        rows = later;
    }
}

/// Values `first..first + count` of rows of `width`.
pub(super) fn columns(rows: &[f32], width: usize, first: usize, count: usize) -> Vec<f32> {
    rows.chunks(width).flat_map(|row| &row[first..][..count]).copied().collect()
}

/// Rows beside each other: of each token its row of the first part, of the second, ...
pub(super) fn beside(parts: &[Vec<f32>], tokens: usize) -> Vec<f32> {
    let row = |part: &'_ Vec<f32>, token: usize| {
        let width = part.len() / tokens;
        token * width..(token + 1) * width
    };
    let of_token = |token| parts.iter().flat_map(move |part| &part[row(part, token)]);
    (0..tokens).flat_map(of_token).copied().collect()
}

/// Normalises vectors of `width` values; neighbouring vectors may each have their own weights.
pub(super) fn normalise(
    products: impl Products,
    weight: Matrix<'_>,
    (width, epsilon): (usize, f32),
    x: &mut [f32],
) {
    let weight = values(weight);
    products.each_row(x, width, |at, x| {
        let weight = &weight[at * width % weight.len()..][..width];
        rms_norm_in_place(x, epsilon);
        x.iter_mut().zip(weight).for_each(|(x, weight)| *x *= weight);
    });
}
