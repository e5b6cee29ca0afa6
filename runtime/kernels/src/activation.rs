//! The activation functions of a neuron: its value from its gate and its up projection.

use serde::{Deserialize, Serialize};

/// The activation function of a gated feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// `relu(gate) * up`.
    Relu,
    /// `silu(gate) * up`: llama's own, which is never exactly zero.
    Silu,
    /// `relu(gate) * relu(up)`.
    ///
    /// *Source*: Song et al., "Turbo Sparse", 2024, section 4.1, dReLU.
    Drelu,
}

impl Activation {
    /// The neuron's output, by which its row of down is multiplied.
    pub fn apply(self, gate: f32, up: f32) -> f32 {
        match self {
            Self::Relu => gate.max(0.0) * up,
            Self::Silu => gate / (1.0 + (-gate).exp()) * up,
            Self::Drelu => gate.max(0.0) * up.max(0.0),
        }
    }

    /// Whether all neurons fire, whatever their gates.
    pub fn always_fires(self) -> bool {
        self.fires(f32::MIN)
    }

    /// Whether a neuron with this gate can contribute, whatever its (finite) up projection: where this is false,
    /// [`Activation::apply`] is zero, and up and down need not be read.
    pub fn fires(self, gate: f32) -> bool {
        match self {
            Self::Relu | Self::Drelu => gate > 0.0,
            Self::Silu => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Activation::{Drelu, Relu, Silu};

    #[test]
    fn relu_zeroes_a_negative_gate_and_drelu_also_a_negative_up() {
        assert_eq!([Relu.apply(2.0, 3.0), Relu.apply(2.0, -3.0), Relu.apply(-2.0, 3.0)], [6.0, -6.0, 0.0]);
        assert_eq!([Drelu.apply(2.0, 3.0), Drelu.apply(2.0, -3.0), Drelu.apply(-2.0, -3.0)], [6.0, 0.0, 0.0]);
    }

    #[test]
    fn silu_is_the_gate_times_its_sigmoid() {
        assert_eq!(Silu.apply(0.0, 5.0), 0.0);
        assert!((Silu.apply(1.0, 2.0) - 1.462_117_2).abs() < 1e-6, "2 / (1 + 1/e)");
        assert_eq!(Silu.apply(-200.0, 1.0), 0.0, "a vanishing sigmoid is no NaN");
        assert_eq!(Silu.apply(200.0, 1.0), 200.0);
    }

    #[test]
    fn a_neuron_that_does_not_fire_contributes_nothing() {
        for activation in [Relu, Silu, Drelu] {
            for gate in [-3.0, -0.0, 0.0, 1e-40, 1.0] {
                for up in [-2.0, 0.0, 2.0] {
                    assert!(
                        activation.fires(gate) || activation.apply(gate, up) == 0.0,
                        "{activation:?} {gate} {up}"
                    );
                }
            }
        }
        assert!(Silu.fires(-1.0) && !Relu.fires(0.0) && !Drelu.fires(-1.0), "only silu fires below zero");
    }
}
