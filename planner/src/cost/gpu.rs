//! The GPU's part of prompts: the last rows of each fixed matrix, in its memory from the start.
//!
//! The part is decided before the search, for the largest chunk on all cores. Parts that balance cores and GPU there are near the
//! best for others, and one part for all keeps the bits of all candidates equal. Neurons and decoding stay with the cores.

use plans::Model;
use plans::device::{Device, UnitRates};
use plans::memory::Activations;
use plans::plan::{Feature, GpuPlan, Request, UnitQuality, UnitShare};
use plans::size::show;

use super::hardware::Rates;
use super::prompt::{beside_chunk, product_seconds};
use super::rates::{ATTENTION_MATRICES, rates};
use super::stages::weight_bytes;
use super::units::flops_per_second;
use crate::error::PlanError;
use crate::question::Question;
use crate::rules;

/// Submissions of a layer: one for the matrices before the token mixer, one for that behind.
const CALLS: f64 = 2.0;

/// The part of prompts that a plan gives to a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gpu {
    /// Place among the device's units.
    unit: usize,
    /// Sixty-fourths of each matrix's rows.
    parts: u32,
    /// Its memory.
    pub memory: GpuPlan,
    /// Bytes of the process: driver, buffers on the way, and the GPU's memory if it has none of its own.
    pub process_bytes: u64,
}

impl Gpu {
    /// The part that makes prompts fastest within the GPU's memory, or that the request holds; `None` if the cores alone are as fast.
    ///
    /// # Errors
    /// A request for a GPU that is not there, or for a part that its limit does not hold.
    pub fn decide(question: &Question<'_>) -> Result<Option<Self>, PlanError> {
        let Question { device, model, limits, origin, .. } = question;
        let request = origin.request;
        let wrong = |sentence: String| Err(PlanError::Request(sentence));
        let found = device.units.iter().position(|unit| rates_of(unit).is_some());
        let asked = request.gpu_limit_bytes.is_some() || request.gpu_parts.is_some();
        let Some(unit) = found.filter(|_| limits.with(Feature::Units)) else {
            return if asked {
                wrong("--gpu-mem and --gpu-share are for a GPU that `run` computes on, and here is none; profile with a build that has the feature `gpu`, or leave them out".to_owned())
            } else {
                Ok(None)
            };
        };
        let chunk = rules::chunk_most(limits.context);
        let cores = rates(question, &limits.cores);
        let with = |parts: u32| Self::of_parts(question, unit, parts, chunk, request);
        let fits = |gpu: &Self| gpu.memory.held_bytes() <= gpu.memory.limit_bytes;
        if let Some(parts) = request.gpu_parts {
            let gpu = with(parts);
            if fits(&gpu) {
                return Ok(Some(gpu));
            }
            return wrong(format!(
                "{} of the GPU's memory do not hold its part, which takes {}; give more with --gpu-mem, or less with --gpu-share",
                show(gpu.memory.limit_bytes),
                show(gpu.memory.held_bytes())
            ));
        }
        let seconds = |gpu: &Self| gpu.chunk_seconds(device, model, &cores, chunk);
        let alone = f64::from(chunk) * attention(model, &cores)[0] + attention(model, &cores)[1];
        let candidates = (1..=UnitQuality::PARTS).map(with).filter(fits);
        let best = candidates.min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        Ok(best.filter(|gpu| seconds(gpu) < alone))
    }

    fn of_parts(question: &Question<'_>, unit: usize, parts: u32, chunk: u32, request: &Request) -> Self {
        let Question { device, model, limits, .. } = question;
        let p = &model.parts;
        let layers = u64::from(model.architecture.layers);
        let others = p.embedding_bytes + p.head_bytes + layers * p.router_layer_bytes;
        let part = p.fixed_bytes.saturating_sub(others) * u64::from(parts) / u64::from(UnitQuality::PARTS);
        let none = vec![0; model.architecture.layers as usize];
        let mut c = rules::nothing(limits, &none);
        c.chunk_tokens = u64::from(chunk);
        let rows = Activations::new(&model.architecture, &c).prompt;
        let widest = rows.projections.max(rows.attended).max(rows.block_output).max(rows.streams);
        // vectors are filled up to eights
        let transfer_bytes = (4 * (widest + 8 * u64::from(chunk))).next_multiple_of(4096);
        // the allocator's blocks of 4 MiB may be half empty
        let mut memory = GpuPlan { limit_bytes: 0, weights_bytes: 2 * part, transfer_bytes };
        let rates = rates_of(&device.units[unit]);
        let own = rates.and_then(|rates| rates.own_memory);
        memory.limit_bytes = request.gpu_limit_bytes.unwrap_or_else(|| memory.held_bytes());
        let driver = rates.map_or(0, |rates| rates.process_bytes);
        let on_the_way = 2 * transfer_bytes + GpuPlan::OTHERS_BYTES;
        let process_bytes = driver + if own.is_some() { on_the_way } else { memory.held_bytes() };
        Self { unit, parts, memory, process_bytes }
    }

    /// The rates of the unit.
    fn rates(self, device: &Device) -> Option<&UnitRates> {
        rates_of(&device.units[self.unit])
    }

    /// Seconds of a layer's fixed matrices in a prompt, for each token of a chunk and for the chunk. The slower of cores and GPU
    /// decides either.
    pub fn attention(self, device: &Device, model: &Model, cores: &Rates, chunk: u32) -> [f64; 2] {
        let [token, once] = attention(model, cores);
        let Some(rates) = self.rates(device) else { return [token, once] };
        let (share, width) = (self.share(), f64::from(model.architecture.width));
        let parameters = model.parts.attention_layer_bytes as f64 / weight_bytes(model);
        let copy = rates.own_memory.map_or(rates.stream_bytes_per_second, |own| own.copy_bytes_per_second);
        let vectors = 2.0 * ATTENTION_MATRICES * 4.0 * width / copy;
        let of_unit = share * 2.0 * parameters / flops_per_second(rates, f64::from(chunk)) + vectors;
        let calls = CALLS * rates.dispatch_seconds;
        [((1.0 - share) * token).max(of_unit), ((1.0 - share) * once).max(calls)]
    }

    fn chunk_seconds(self, device: &Device, model: &Model, cores: &Rates, chunk: u32) -> f64 {
        let [token, once] = self.attention(device, model, cores, chunk);
        f64::from(chunk) * token + once
    }

    fn share(self) -> f64 {
        f64::from(self.parts) / f64::from(UnitQuality::PARTS)
    }

    /// The unit as a plan's quality has it.
    pub fn quality(self, device: &Device) -> UnitQuality {
        let adapter = self.rates(device).and_then(|rates| rates.adapter.clone()).unwrap_or_default();
        UnitQuality { unit: device.units[self.unit].name.clone(), adapter, prefill_parts: self.parts }
    }

    /// The shares of cores and GPU in a prompt's fixed matrices.
    pub fn shares(self, device: &Device) -> Vec<UnitShare> {
        let share =
            |unit: usize, share_fraction| UnitShare { unit: device.units[unit].name.clone(), share_fraction };
        vec![share(0, 1.0 - self.share()), share(self.unit, self.share())]
    }
}

/// The rates of a unit that the engine computes on.
fn rates_of(unit: &plans::device::Unit) -> Option<&UnitRates> {
    unit.rates.as_ref().filter(|rates| rates.adapter.is_some())
}

/// Seconds of a layer's fixed matrices on the cores, for each token of a chunk and for the chunk.
pub fn attention(model: &Model, cores: &Rates) -> [f64; 2] {
    let alone = product_seconds(model, cores) * beside_chunk(cores);
    [alone, cores.chunk_tokens * alone]
}
