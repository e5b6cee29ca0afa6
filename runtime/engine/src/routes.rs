//! Recorded routes: the experts that a real model's tokens used.
//!
//! A generated model's random weights route unrealistically. A recording exercises its caches and reads with
//! a real model's routing. The recording may include the real routers' choices one layer early, because the
//! generated routers' are unrelated to it.

use crate::model::config::Config;

/// The shape of a mixture's routing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Routing {
    /// Number of layers.
    pub layers: usize,
    /// Experts of a layer.
    pub experts: usize,
    /// Experts of a token in a layer.
    pub experts_used: usize,
}

impl Routing {
    /// A model's routing; `None` without experts.
    pub fn of(config: &Config) -> Option<Self> {
        let (experts, experts_used) = (config.experts(), config.experts_used());
        (experts > 1).then(|| Self { layers: config.layers(), experts, experts_used })
    }
}

/// Why routes do not fit a model.
#[derive(Debug, thiserror::Error)]
#[error("the recorded routes do not fit the model: {0}; name a recording of a model of this shape")]
pub struct RoutesError(pub(crate) String);

/// The experts of each token of a sequence, by position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    routing: Routing,
    /// `[tokens, layers, experts used]`, ascending in each layer.
    experts: Vec<u16>,
    /// The choices one layer early, in the same shape; empty if unknown.
    ahead: Vec<u16>,
}

impl Routes {
    /// Makes routes for `routing` from the experts of each layer of each token, in order.
    ///
    /// *Shapes*: `layers` yields `tokens * layers` lists of `experts_used` experts.
    ///
    /// # Errors
    /// If the lists do not have that shape.
    pub fn new(routing: Routing, layers: impl IntoIterator<Item = Vec<usize>>) -> Result<Self, RoutesError> {
        Ok(Self { routing, experts: in_order(routing, layers)?, ahead: Vec::new() })
    }

    /// Adds the choices one layer early.
    ///
    /// *Shapes*: as in [`Self::new`]; the first layer's are never used.
    ///
    /// # Errors
    /// If the lists do not have the shape of the routes.
    pub fn known_ahead(mut self, layers: impl IntoIterator<Item = Vec<usize>>) -> Result<Self, RoutesError> {
        self.ahead = in_order(self.routing, layers)?;
        match self.ahead.len() == self.experts.len() {
            true => Ok(self),
            false => Err(RoutesError("what is known ahead has other tokens".to_owned())),
        }
    }

    /// The shape of the routing.
    pub(crate) fn routing(&self) -> Routing {
        self.routing
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.experts.len() / (self.routing.layers * self.routing.experts_used)
    }

    /// The experts of a layer for the token at `position`, ascending; `None` after the last token.
    ///
    /// *Shapes*: `[experts used]`.
    pub fn experts(&self, position: usize, layer: usize) -> Option<&[u16]> {
        self.of(&self.experts, position, layer)
    }

    /// The choice of [`Self::experts`] one layer early; `None` after the last token, and if unknown.
    pub fn ahead(&self, position: usize, layer: usize) -> Option<&[u16]> {
        self.of(&self.ahead, position, layer)
    }

    /// Whether choices one layer early are known.
    pub fn are_known_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    fn of<'a>(&self, experts: &'a [u16], position: usize, layer: usize) -> Option<&'a [u16]> {
        let used = self.routing.experts_used;
        experts.get((position * self.routing.layers + layer) * used..)?.get(..used)
    }
}

/// Collects the experts of each layer of each token, ascending in each layer.
fn in_order(routing: Routing, layers: impl IntoIterator<Item = Vec<usize>>) -> Result<Vec<u16>, RoutesError> {
    let mut experts = Vec::new();
    for (index, mut list) in layers.into_iter().enumerate() {
        list.sort_unstable();
        list.dedup();
        let wrong = |problem: String| {
            let (token, layer) = (index / routing.layers, index % routing.layers);
            RoutesError(format!("layer {layer} of token {token}: {problem}"))
        };
        if list.len() != routing.experts_used {
            let (found, used) = (list.len(), routing.experts_used);
            return Err(wrong(format!("{found} different experts, and the model uses {used}")));
        }
        for expert in list {
            let known = u16::try_from(expert).ok().filter(|_| expert < routing.experts);
            experts.push(
                known.ok_or_else(|| {
                    wrong(format!("expert {expert}, and the model has {}", routing.experts))
                })?,
            );
        }
    }
    if !experts.len().is_multiple_of(routing.layers * routing.experts_used) {
        return Err(RoutesError("the last token lacks some layers".to_owned()));
    }
    Ok(experts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTING: Routing = Routing { layers: 2, experts: 4, experts_used: 2 };

    #[test]
    fn experts_are_found_by_position_and_layer() {
        let routes = Routes::new(ROUTING, [[3, 1], [0, 2], [2, 3], [1, 0]].map(Vec::from)).unwrap();
        assert_eq!(routes.tokens(), 2);
        assert_eq!(routes.experts(0, 0), Some(&[1, 3][..]));
        assert_eq!(routes.experts(1, 1), Some(&[0, 1][..]));
        assert_eq!(routes.experts(2, 0), None);
        assert!(!routes.are_known_ahead() && routes.ahead(0, 0).is_none());
        let ahead = [[1, 2], [3, 2], [0, 1], [1, 2]].map(Vec::from);
        let known = routes.clone().known_ahead(ahead.clone()).unwrap();
        assert!(known.are_known_ahead() && known.experts(1, 1) == routes.experts(1, 1));
        assert_eq!((known.ahead(0, 1), known.ahead(2, 0)), (Some(&[2, 3][..]), None));
        let error = routes.known_ahead(ahead[..2].to_vec()).unwrap_err().to_string();
        assert!(error.contains("other tokens"), "{error}");
    }

    #[test]
    fn what_the_model_cannot_visit_is_refused() {
        for (lists, problem) in [
            (vec![vec![1, 1], vec![0, 1]], "layer 0 of token 0: 1 different experts, and the model uses 2"),
            (vec![vec![0, 1], vec![0, 4]], "layer 1 of token 0: expert 4, and the model has 4"),
            (vec![vec![0, 1], vec![0, 3], vec![1, 2]], "the last token lacks some layers"),
        ] {
            let error = Routes::new(ROUTING, lists).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
