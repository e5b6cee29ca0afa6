//! Activation functions: a neuron's value from its gate and up projections.

use serde::{Deserialize, Serialize};

use super::softmax::exp;

/// The activation function of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// `relu(gate) * up`.
    Relu,
    /// `silu(gate) * up`: llama's activation, which is never exactly zero.
    Silu,
    /// `relu(gate) * relu(up)`.
    ///
    /// *Source*: Song et al., "Turbo Sparse", 2024, section 4.1, dReLU.
    Drelu,
    /// `gelu(gate) * up`, in the tanh form.
    ///
    /// *Source*: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, section 2.
    Gelu,
    /// `min(gate, 7) sigmoid(1.702 min(gate, 7)) * (clamp(up, -7, 7) + 1)`, as in gpt-oss.
    #[serde(rename = "swiglu-oai")]
    SwigluOai,
    /// `relu(up)^2` of a network without gates, `down (relu(up x)^2)`: the up projection also acts as the
    /// gate.
    ///
    /// *Source*: So et al., "Primer", 2021, section 4.1.
    #[serde(rename = "relu-squared")]
    ReluSquared,
}

impl Activation {
    /// The name in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Relu => "relu",
            Self::Silu => "silu",
            Self::Drelu => "drelu",
            Self::Gelu => "gelu",
            Self::SwigluOai => "swiglu-oai",
            Self::ReluSquared => "relu-squared",
        }
    }

    /// Whether a neuron has both a gate and an up projection; otherwise it has only an up projection.
    pub fn is_gated(self) -> bool {
        self != Self::ReluSquared
    }

    /// The neuron's output: the factor of its row of down. Without gates, pass the up value twice.
    #[inline(always)]
    pub fn apply(self, gate: f32, up: f32) -> f32 {
        let gate = self.of_gate(gate);
        match self {
            Self::Relu | Self::ReluSquared | Self::Silu | Self::Gelu => gate * up,
            Self::Drelu => gate * up.max(0.0),
            Self::SwigluOai => gate * (up.clamp(-7.0, 7.0) + 1.0),
        }
    }

    /// The factor of the neuron's output that comes from the gate alone.
    #[inline(always)]
    pub fn of_gate(self, gate: f32) -> f32 {
        match self {
            Self::Relu | Self::ReluSquared | Self::Drelu => gate.max(0.0),
            Self::Silu => gate * sigmoid(gate),
            Self::Gelu => {
                let root = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;
                0.5 * gate * (1.0 + (root * gate * (1.0 + 0.044_715 * gate * gate)).tanh())
            }
            Self::SwigluOai => {
                let gate = gate.min(7.0);
                gate * sigmoid(1.702 * gate)
            }
        }
    }

    /// Whether all neurons fire, whatever their gates.
    pub fn always_fires(self) -> bool {
        self.fires(f32::MIN)
    }

    /// Whether a neuron with this gate can contribute, whatever its (finite) up projection. If not,
    /// [`Activation::apply`] is zero, and its up and down rows need not be read.
    pub fn fires(self, gate: f32) -> bool {
        match self {
            Self::Relu | Self::ReluSquared | Self::Drelu => gate > 0.0,
            Self::Silu | Self::Gelu | Self::SwigluOai => true,
        }
    }
}

/// [`Activation::apply`] elementwise, bit for bit, vectorised for the instruction set of the caller it is
/// inlined into.
#[inline(always)]
pub(super) fn activate(activation: Activation, gates: &[f32], ups: &[f32], values: &mut [f32]) {
    // one branch-free loop per activation
    macro_rules! loops {
        ($($function:ident),*) => {
            match activation {
                $(Activation::$function => {
                    for ((value, gate), up) in values.iter_mut().zip(gates).zip(ups) {
                        *value = Activation::$function.apply(*gate, *up);
                    }
                })*
            }
        };
    }
    loops!(Relu, Silu, Drelu, Gelu, SwigluOai, ReluSquared);
}

/// `1 / (1 + e^-x)`, vectorisable; zero where the result is below the smallest normal number.
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let power = exp(-x.abs());
    let power = if x.abs() > 87.0 { 0.0 } else { power };
    (if x < 0.0 { power } else { 1.0 }) / (1.0 + power)
}

#[cfg(test)]
mod tests {
    use super::Activation::{Drelu, Gelu, Relu, ReluSquared, Silu, SwigluOai};

    #[test]
    fn relu_zeroes_a_negative_gate_and_drelu_also_a_negative_up() {
        assert_eq!([Relu.apply(2.0, 3.0), Relu.apply(2.0, -3.0), Relu.apply(-2.0, 3.0)], [6.0, -6.0, 0.0]);
        assert_eq!([Drelu.apply(2.0, 3.0), Drelu.apply(2.0, -3.0), Drelu.apply(-2.0, -3.0)], [6.0, 0.0, 0.0]);
    }

    #[test]
    fn without_gates_an_output_is_the_square_of_a_positive_up() {
        for up in [-3.0_f32, -0.0, 0.0, 1e-3, 0.7, 5.5] {
            assert_eq!(ReluSquared.apply(up, up), up.max(0.0).powi(2), "{up}");
        }
        assert!(
            !ReluSquared.is_gated() && [Relu, Silu, Drelu, Gelu, SwigluOai].iter().all(|it| it.is_gated())
        );
    }

    #[test]
    fn an_output_is_a_factor_of_the_gate_and_one_of_up() {
        for activation in [Relu, ReluSquared, Silu, Drelu, Gelu, SwigluOai] {
            for gate in [-9.0_f32, -1.278, -0.3, 0.0, 0.4, 3.0, 8.0] {
                let factor = if activation == SwigluOai { 3.0 } else { 2.0 };
                assert_eq!(
                    activation.apply(gate, 2.0),
                    activation.of_gate(gate) * factor,
                    "{activation:?} {gate}"
                );
            }
        }
        assert!((Silu.of_gate(-1.278) + 0.278).abs() < 1e-3, "the least that it is");
    }

    #[test]
    fn silu_is_the_gate_times_its_sigmoid() {
        assert_eq!(Silu.apply(0.0, 5.0), 0.0);
        assert!((Silu.apply(1.0, 2.0) - 1.462_117_2).abs() < 1e-6, "2 / (1 + 1/e)");
        assert_eq!(Silu.apply(-200.0, 1.0), 0.0, "a vanishing sigmoid is no NaN");
        assert_eq!(Silu.apply(200.0, 1.0), 200.0);
    }

    #[test]
    fn gelu_is_near_the_gate_times_the_normal_distribution() {
        // x times the standard normal distribution function at x, to four digits
        for (gate, expected) in [(0.0, 0.0), (1.0, 0.8413), (-1.0, -0.1587), (2.5, 2.4845), (-6.0, 0.0)] {
            let found = Gelu.apply(gate, 2.0) / 2.0;
            assert!((found - expected).abs() < 5e-4, "{gate}: {found}");
        }
    }

    #[test]
    fn the_clamped_swiglu_bounds_gate_and_up_and_adds_one_to_up() {
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        assert!((SwigluOai.apply(1.0, 0.5) - sigmoid(1.702) * 1.5).abs() < 1e-6);
        assert!((SwigluOai.apply(9.0, 9.0) - 7.0 * sigmoid(1.702 * 7.0) * 8.0).abs() < 1e-4);
        assert_eq!(SwigluOai.apply(1.0, -9.0), SwigluOai.apply(1.0, -7.0));
        assert!((SwigluOai.apply(-9.0, 0.0) + 9.0 * sigmoid(-1.702 * 9.0)).abs() < 1e-6, "no lower bound");
    }

    #[test]
    fn a_neuron_that_does_not_fire_contributes_nothing() {
        for activation in [Relu, ReluSquared, Silu, Drelu, Gelu, SwigluOai] {
            for gate in [-3.0, -0.0, 0.0, 1e-40, 1.0] {
                for up in [-2.0, 0.0, 2.0] {
                    assert!(
                        activation.fires(gate) || activation.apply(gate, up) == 0.0,
                        "{activation:?} {gate} {up}"
                    );
                }
            }
        }
        assert!(Silu.fires(-1.0) && !Relu.fires(0.0) && !Drelu.fires(-1.0), "silu fires below zero");
        for activation in [Relu, ReluSquared, Silu, Drelu, Gelu, SwigluOai] {
            let name = serde_json::to_string(&activation).unwrap_or_default();
            assert_eq!(name, format!("\"{}\"", activation.name()), "one name in all files");
        }
    }
}
