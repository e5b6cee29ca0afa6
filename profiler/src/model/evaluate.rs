//! A quality level measured on held-out text, all layers deciding together.
//!
//! Perplexity, and what the level asked for against what truly fired, in one pass: a layer's input is what the level's
//! own earlier layers made of it, so truth is judged on the level's own stream.

use rayon::prelude::*;
use runtime::kernels::Kernels;
use runtime::model::source::SourceModel;
use runtime::reference::{Observer, Reference, Selector, negative_log_likelihood};

use super::level::{Level, Menu};
use super::observe::active;
use super::order::Order;
use super::reuse::Trace;
use crate::Context;

/// Counts of (token, neuron) pairs in one layer.
#[derive(Debug, Clone, Default)]
pub struct LayerCounts {
    /// Neurons of the routed experts.
    pub routed: u64,
    /// Truly active.
    pub truly: u64,
    /// Gate above zero.
    pub gate: u64,
    /// Asked for.
    pub asked: u64,
    /// Asked for and truly active.
    pub asked_truly: u64,
    /// Asked for and gate above zero.
    pub asked_gate: u64,
    /// For each token, how many were truly active.
    pub truly_of_token: Vec<u32>,
    /// For each token, how many were asked for.
    pub asked_of_token: Vec<u32>,
    /// Who was asked for, for the first tokens of each window.
    pub trace: Trace,
}

impl LayerCounts {
    fn append(&mut self, other: &Self) {
        self.routed += other.routed;
        self.truly += other.truly;
        self.gate += other.gate;
        self.asked += other.asked;
        self.asked_truly += other.asked_truly;
        self.asked_gate += other.asked_gate;
        self.truly_of_token.extend_from_slice(&other.truly_of_token);
        self.asked_of_token.extend_from_slice(&other.asked_of_token);
        self.trace.append(&other.trace);
    }
}

/// A level on the held-out text.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Perplexity over every token after the first of each window.
    pub perplexity: f64,
    /// Per layer.
    pub layers: Vec<LayerCounts>,
}

/// What a measurement is made with.
#[derive(Debug, Clone, Copy)]
pub struct Bench<'a> {
    /// The model.
    pub source: &'a SourceModel<'a>,
    /// The kernels of the runtime.
    pub kernels: &'a dyn Kernels,
    /// Per layer.
    pub orders: &'a [Order],
    /// Held-out text, cut into windows.
    pub windows: &'a [Vec<u32>],
    /// Asked neurons of a layer that are remembered for the cache curves.
    pub trace_asked_max: usize,
}

impl Bench<'_> {
    /// Measures a level.
    ///
    /// # Errors
    /// [`crate::Stopped`].
    pub fn measure(&self, context: &Context, menu: &Menu, level: &Level) -> anyhow::Result<Measured> {
        let tokens: usize = self.windows.iter().map(Vec::len).sum();
        let bar = context.bar(tokens as u64, &format!("measuring {}", level.source.name));
        let measured: Vec<(f64, Vec<LayerCounts>)> = self
            .windows
            .par_iter()
            .map(|window| {
                let mut listener = Listener::new(*self, menu, level);
                let mut reference = Reference::new(self.source, self.kernels);
                let mut loss = 0.0;
                for (i, &token) in window.iter().enumerate() {
                    context.stopped()?;
                    let logits = reference.step_selected(token, &mut listener);
                    if let Some(&next) = window.get(i + 1) {
                        loss += negative_log_likelihood(&logits, next);
                    }
                    listener.end_token();
                    bar.inc(1);
                }
                Ok((loss, listener.layers))
            })
            .collect::<Result<_, crate::Stopped>>()?;
        bar.finish_and_clear();
        let predicted: usize = self.windows.iter().map(|window| window.len().saturating_sub(1)).sum();
        let loss: f64 = measured.iter().map(|(loss, _)| loss).sum();
        let mut layers = vec![LayerCounts::default(); self.source.config().layers];
        for (_, counts) in &measured {
            for (sum, counts) in layers.iter_mut().zip(counts) {
                sum.append(counts);
            }
        }
        Ok(Measured { perplexity: (loss / predicted.max(1) as f64).exp(), layers })
    }
}

/// Selects as a level does, and counts.
struct Listener<'a> {
    bench: Bench<'a>,
    menu: &'a Menu,
    level: &'a Level,
    layers: Vec<LayerCounts>,
    /// What was selected last.
    selected: Vec<bool>,
    /// Of the token at hand, per layer: truly active, asked for.
    of_token: Vec<[u32; 2]>,
    /// Asked neurons of a layer and window that are remembered.
    trace_max: usize,
    /// Per layer, whether the token at hand is.
    tracing: Vec<bool>,
}

impl<'a> Listener<'a> {
    fn new(bench: Bench<'a>, menu: &'a Menu, level: &'a Level) -> Self {
        let layers = bench.source.config().layers;
        Self {
            trace_max: bench.trace_asked_max / bench.windows.len().max(1),
            bench,
            menu,
            level,
            layers: vec![LayerCounts::default(); layers],
            selected: Vec::new(),
            of_token: vec![[0; 2]; layers],
            tracing: vec![true; layers],
        }
    }

    fn end_token(&mut self) {
        for ((counts, of_token), tracing) in
            self.layers.iter_mut().zip(&mut self.of_token).zip(&mut self.tracing)
        {
            let [truly, asked] = std::mem::take(of_token);
            counts.truly_of_token.push(truly);
            counts.asked_of_token.push(asked);
            if *tracing {
                counts.trace.end_token();
                *tracing = counts.trace.asked() < self.trace_max;
            }
        }
    }
}

impl Observer for Listener<'_> {
    fn feed_forward(&mut self, layer: usize, expert: usize, _: &[f32], gate: &[f32], up: &[f32]) {
        let activation = self.bench.source.config().activation;
        let counts = &mut self.layers[layer];
        counts.routed += gate.len() as u64;
        for ((&gate, &up), &asked) in gate.iter().zip(up).zip(&self.selected) {
            let truly = active(activation, gate, up);
            counts.truly += u64::from(truly);
            counts.gate += u64::from(gate > 0.0);
            counts.asked += u64::from(asked);
            counts.asked_truly += u64::from(asked && truly);
            counts.asked_gate += u64::from(asked && gate > 0.0);
            self.of_token[layer][0] += u32::from(truly);
            self.of_token[layer][1] += u32::from(asked);
        }
        if self.tracing[layer] {
            let order = &self.bench.orders[layer].experts[expert];
            let selected = &self.selected;
            counts
                .trace
                .ask(order.iter().filter(|(_, n)| selected[*n as usize]).map(|&(position, _)| position));
        }
    }
}

impl Selector for Listener<'_> {
    fn select(&mut self, layer: usize, expert: usize, input: &[f32], gate: &[f32], selected: &mut [bool]) {
        let Bench { source, kernels, orders, .. } = self.bench;
        let order = &orders[layer];
        self.menu.select(kernels, source.config(), self.level, order, layer, expert, input, gate, selected);
        self.selected.clear();
        self.selected.extend_from_slice(selected);
    }
}

/// The value below which a share of the values lies; 0 for none.
pub fn quantile(values: &[u32], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let at = ((sorted.len() as f64 * share).ceil() as usize).saturating_sub(1);
    sorted.get(at).map_or(0.0, |&value| f64::from(value))
}

/// The mean; 0 for none.
pub fn mean(values: &[u32]) -> f64 {
    values.iter().map(|&value| f64::from(value)).sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_value_that_occurred() {
        let values: Vec<u32> = (1..=100).rev().collect();
        assert_eq!([0.5, 0.9, 0.99, 1.0].map(|share| quantile(&values, share)), [50.0, 90.0, 99.0, 100.0]);
        assert_eq!((quantile(&[], 0.5), mean(&[]), mean(&[1, 2])), (0.0, 0.0, 1.5));
    }
}
