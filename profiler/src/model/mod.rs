//! The model half: activation statistics, predictors, quality levels and the container.

use std::path::PathBuf;

use crate::Context;

/// What to measure.
#[derive(Debug, Clone)]
pub struct ModelOptions {
    /// A GGUF file, or a folder with a Hugging Face or PowerInfer model.
    pub model: PathBuf,
    /// The calibration text instead of the one built in.
    pub text: Option<PathBuf>,
    /// The model's short name instead of one made from its file name.
    pub name: Option<String>,
}

/// What was measured, for people.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The model's short name.
    pub name: String,
    /// The contract file.
    pub model_toml: PathBuf,
    /// The flash container.
    pub container: PathBuf,
    /// Perplexity of the source file computed dense.
    pub perplexity_dense: f64,
    /// Quality levels: name, change of perplexity as a fraction, mean share of active neurons.
    pub levels: Vec<(String, f64, f64)>,
}

/// Measures a model and writes `model.toml`, its CSV files and the container.
///
/// # Errors
/// Those of the model's files, the output files, and [`crate::Stopped`].
pub fn profile(context: &Context, options: &ModelOptions) -> anyhow::Result<Summary> {
    context.stopped()?;
    anyhow::bail!("{}: profiling a model is not implemented yet", options.model.display())
}
