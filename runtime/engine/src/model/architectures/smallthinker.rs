//! `smallthinker`: experts with `ReLU`, whose router reads the block's unnormalised input. If there is a
//! window, every fourth layer from the first has none, and no rotations.

use kernels::Activation;

use super::super::config::{Attention, Config, Gating, Pairing, RouterInput};
use super::shapes::Shapes;
use super::{Keys, Names};

/// The period of layers without a window.
const PERIOD: usize = 4;

pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    k.size("expert_count");
    let shapes = Shapes::read(k);
    let rope = shapes.rope(k, Pairing::Halves);
    let window = k.whole("attention.sliding_window").filter(|&window| window > 0);
    let sees_everything = |layer: usize| window.is_some() && layer.is_multiple_of(PERIOD);
    let mut network = shapes.feed_forward(k, k.activation(Activation::Relu));
    if let Some(router) = &mut network.router {
        router.input = RouterInput::BeforeMixer;
        router.gating = match k.whole("expert_gating_func") {
            Some(1) => Gating::Softmax,
            // the default of early files
            None | Some(2) => Gating::Sigmoid,
            Some(_) => {
                k.refuse_value("expert_gating_func", "1 or 2");
                Gating::Sigmoid
            }
        };
    }
    let blocks = shapes.blocks(&network, |layer| {
        let plain = shapes.attention(k, layer);
        match sees_everything(layer) {
            true => Attention { rope: None, ..plain },
            false => Attention { window, ..plain },
        }
    });
    // some files store down by neurons under the usual name
    (shapes.config(k, vec![rope], blocks), Names { down_rows: true, ..Names::default() })
}
