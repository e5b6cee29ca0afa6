//! Prefetch reads: for the next layer, and for this one before its input is known.

use plans::model::LevelKind;

use super::select::{Candidates, Ends, merged};
use super::{FeedForward, Network};
use crate::fetch::Fetcher;
use crate::model::config::RouterInput;
use crate::neurons::{LayerNeurons, Shape};

/// The layer after the current one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Next<'a> {
    /// Number of the layer.
    pub layer: usize,
    /// Neurons of the layer.
    pub neurons: &'a LayerNeurons,
    /// The parts of the layer's bundles.
    pub shape: &'a Shape,
    /// The layer's expected input, normalised: `[width]`.
    pub x: &'a [f32],
    /// The layer's expected residual stream: `[width]`.
    pub stream: &'a [f32],
}

impl FeedForward {
    /// Prefetches what the next layer would request for the expected input of `next`. The stream changes
    /// little from layer to layer, so most guesses are right. Rarely used neurons are not considered: there
    /// are many, and few of them would be requested.
    pub(super) fn prefetch(&mut self, n: &mut Network<'_>, next: &Next<'_>) {
        let row = self.router.len() / (2 * next.neurons.experts_count()) - 1;
        let input = n.routing.router.map_or(RouterInput::Experts, |router| router.input);
        let x = if input == RouterInput::Experts { next.x } else { next.stream };
        let recorded =
            n.routing.routes.and_then(|routes| routes.ahead(n.routing.rows[0].position, next.layer));
        self.route_row(&n.routing, next.layer, x, row, recorded);
        let ends = self.select(n, next.layer, next.neurons, Candidates::Missing, next.x, row);
        let span = |slice| next.neurons.slice_span(next.shape, next.shape.part, slice);
        let probable = merged(&self.selected, &self.scores, ends);
        let certain = n.level.kind() == LevelKind::Dense && next.neurons.experts_count() == 1;
        let sure = |score: f32| if certain { f32::INFINITY } else { score.abs() };
        n.fetcher.prefetch(probable.map(|(slice, score)| (span(slice), sure(score))));
    }

    /// Prefetches all missing slices of the experts that a row is routed to, before the layer's input is
    /// known. For levels that select whole experts.
    pub(crate) fn prefetch_routed(&mut self, fetcher: &mut Fetcher, shape: &Shape, neurons: &LayerNeurons) {
        let (experts, half) = (neurons.experts_count(), self.router.len() / 2);
        let mut ends = Ends::default();
        for expert in (0..experts).filter(|&expert| self.router[half + expert] != 0.0) {
            let mut end = ends.last();
            for slice in neurons.slices_of(expert).filter(|&slice| neurons.cache.is_missing(slice)) {
                (self.selected[end], self.scores[end]) = (slice, f32::INFINITY);
                end += 1;
            }
            ends.push(end);
        }
        let span = |slice| neurons.slice_span(shape, shape.part, slice);
        let certain = merged(&self.selected, &self.scores, ends);
        fetcher.prefetch(certain.map(|(slice, score)| (span(slice), score)));
        fetcher.poll();
    }
}
