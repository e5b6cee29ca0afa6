//! Equation 9: the rates of a set of cores for a model, with the part of dense products that other units take.

use plans::model::Model;
use plans::plan::Feature;

use super::hardware::{self, Formats, Rates};
use super::stages::{attention, weight_bytes};
use super::units::{Products, Shared};
use crate::question::Question;

/// The rates of a set of cores for this model.
pub fn rates(question: &Question<'_>, cores: &[u32]) -> Rates {
    let Question { device, model, limits, .. } = question;
    let a = &model.architecture;
    let down_bytes = model.parts.bundle.down_bytes as f64 / f64::from(a.width);
    let formats = Formats {
        weights: (&a.weight_format, weight_bytes(model)),
        down: (&a.down_format, down_bytes),
        kv: limits.kv,
    };
    let mut r = hardware::rates(device, cores, formats, &limits.isa);
    if limits.with(Feature::Units) {
        r.shared = Shared::soonest(device, &attention_products(model, &r));
    }
    r
}

/// Matrices of a layer's attention.
pub(super) const ATTENTION_MATRICES: f64 = 4.0;

/// A token's products with a layer's attention, by which the shares of all dense matrices are chosen: the other ones take as
/// long for each byte.
fn attention_products<'a>(model: &'a Model, r: &Rates) -> Products<'a> {
    let (a, bytes) = (&model.architecture, model.parts.attention_layer_bytes as f64);
    Products {
        format: &a.weight_format,
        tokens: 1.0,
        flops: 2.0 * bytes / weight_bytes(model),
        bytes,
        matrices: ATTENTION_MATRICES,
        vector_bytes: 2.0 * ATTENTION_MATRICES * 4.0 * f64::from(a.width),
        held_bytes: model.parts.fixed_bytes as f64,
        copied: false,
        seconds: attention(model, r).busy(),
    }
}
