//! Conversion of a folder from Hugging Face's hub to the GGUF file of a profile.
//!
//! The file is written beside the container or index, and stays. It names its source, so the same command finds it again. The loss of
//! quantising is measured once, before the file gets its name. Held-out text is read with the folder's own weights and with quantised
//! ones.

use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use flashplan::internals::model::gguf::Gguf;
use flashplan::internals::model::source::SourceModel;
use huggingface::{Conversion, FolderError, Quantisation, made_of};
use plans::size::show;

use super::ModelOptions;
use super::batch::{Layer, Stream, said};
use super::loss::{Loss, Window};
use super::text::{Texts, Windows};
use crate::device::storage::free_bytes;
use crate::{Context, ProfileError, Stopped};

/// Tokens of held-out text that measure the loss of quantising; a quarter of them with `--quick`.
const HELD_OUT_TOKENS: usize = 2048;

/// Checks the model or its folder, and the free space, before any wait.
///
/// # Errors
/// A fault of the folder or file, and too little space.
pub fn check(
    context: &Context,
    options: &ModelOptions,
    quantisation: Option<Quantisation>,
) -> anyhow::Result<()> {
    let folder = &options.model;
    if !is_of_the_hub(folder, quantisation)? {
        return super::check(context, options);
    }
    let conversion = Conversion::new(folder, quantisation, &context.storage)?;
    if path_of(context, options, quantisation).exists() {
        return Ok(());
    }
    let exact = quantisation.map(|_| Conversion::new(folder, None, &context.storage)).transpose()?;
    check_space(context, &conversion, exact.as_ref())
}

/// The path of a folder's GGUF file.
fn path_of(context: &Context, options: &ModelOptions, quantisation: Option<Quantisation>) -> PathBuf {
    let name = options.name.clone().or_else(|| name_of(&options.model.canonicalize().ok()?));
    let suffix = quantisation.map_or_else(String::new, |it| format!("-{}", it.name()));
    context.storage.join(format!("{}{suffix}.gguf", name.unwrap_or_else(|| "model".to_owned())))
}

/// Checks that the disk has room for a conversion, and for the exact weights beside it.
fn check_space(context: &Context, conversion: &Conversion, exact: Option<&Conversion>) -> anyhow::Result<()> {
    let needed = conversion.bytes() + exact.map_or(0, Conversion::bytes);
    let free = free_bytes(&context.storage)?;
    if free < needed {
        let (free, needed) = (show(free), show(needed));
        bail!(ProfileError::Space { path: context.storage.clone(), free, needed, remedy: "or " });
    }
    Ok(())
}

/// The options, with the GGUF file in place of a folder from the hub. A missing file is written.
///
/// `say` gets the file that is written, and its loss.
///
/// # Errors
/// The folder's, too little space, another file at the path, and [`Stopped`].
pub fn open(
    context: &Context,
    options: ModelOptions,
    quantisation: Option<Quantisation>,
    say: &mut dyn FnMut(String),
) -> anyhow::Result<ModelOptions> {
    let folder = options.model.clone();
    if !is_of_the_hub(&folder, quantisation)? {
        return Ok(options);
    }
    let path = path_of(context, &options, quantisation);
    let mut conversion = Conversion::new(&folder, quantisation, &context.storage)?;
    for remark in &conversion.remarks {
        say(format!("warning: {remark}"));
    }
    let hash = stopped(conversion.identify(&|| context.stopped().is_err()))?;
    let opened = |path: PathBuf| ModelOptions { model: path, ..options.clone() };
    if path.exists() {
        if made_of(&path).as_ref() == Some(&hash) {
            say(format!("{} is there, made of {}", path.display(), folder.display()));
            return Ok(opened(path));
        }
        if !options.replace {
            bail!(
                "{} is there and was not made of {}: name the model otherwise with --name, another folder with --storage, or \
                 replace it with --replace",
                path.display(),
                folder.display()
            );
        }
    }
    let exact = quantisation.map(|_| Conversion::new(&folder, None, &context.storage)).transpose()?;
    check_space(context, &conversion, exact.as_ref())?;
    let also = exact.as_ref().map_or_else(String::new, |exact| {
        format!(", and {} of unquantised weights that it removes again", show(exact.bytes()))
    });
    let formats: Vec<_> = conversion.formats().iter().map(ToString::to_string).collect();
    say(format!(
        "folder: a {} model; writes {} ({}) to {}{also}",
        conversion.architecture(),
        show(conversion.bytes()),
        formats.join(", "),
        path.display()
    ));
    match exact {
        None => write(context, &mut conversion, &path, options.replace, &mut |_| Ok(None))?,
        Some(exact) => {
            // removed when it is dropped
            let beside = path.with_extension("unquantised");
            let unquantised = stopped(exact.write_aside(&beside, &progress(context, exact.bytes())))?;
            let mut said = String::new();
            write(context, &mut conversion, &path, options.replace, &mut |quantised| {
                let (loss, [before, after]) = compare(context, &options, unquantised.path(), quantised)?;
                let upper = loss.upper.map_or_else(String::new, |upper| {
                    format!(" (at most {:+.2} % with 95 % confidence)", upper * 100.0)
                });
                said = format!(
                    "quantised: perplexity {after:.4}, {before:.4} with the folder's weights: {:+.2} %{upper}",
                    loss.change * 100.0
                );
                Ok(Some(loss.change))
            })?;
            say(said);
        }
    }
    Ok(opened(path))
}

/// The model's name: the folder's, or `NAME` of the hub's cache (`models--OWNER--NAME/snapshots/COMMIT`).
fn name_of(folder: &Path) -> Option<String> {
    let name = |folder: &Path| Some(folder.file_name()?.to_str()?.to_owned());
    let parent = folder.parent()?;
    match name(parent)?.as_str() {
        "snapshots" => {
            Some(name(parent.parent()?)?.strip_prefix("models--")?.rsplit("--").next()?.to_owned())
        }
        _ => None,
    }
    .or_else(|| name(folder))
}

/// Whether a path is a folder from the hub that must be converted.
fn is_of_the_hub(path: &Path, quantisation: Option<Quantisation>) -> anyhow::Result<bool> {
    let has_gguf = || -> anyhow::Result<bool> {
        let io = |source| ProfileError::Io { action: "list", path: path.to_owned(), source };
        let mut names = path.read_dir().map_err(io)?.filter_map(Result::ok).map(|entry| entry.path());
        Ok(names.any(|file| file.extension().is_some_and(|extension| extension == "gguf")))
    };
    let folder = huggingface::is_folder(path);
    if quantisation.is_some() && !folder {
        bail!(
            "--quantize is for folders from Hugging Face's hub, and {} has no config.json: quantise a GGUF file with llama.cpp's \
             llama-quantize",
            path.display()
        );
    }
    Ok(folder && (quantisation.is_some() || !has_gguf()?))
}

fn stopped<T>(result: Result<T, FolderError>) -> anyhow::Result<T> {
    result.map_err(|error| match error {
        FolderError::Stopped => Stopped.into(),
        other => anyhow!(other),
    })
}

/// A callback that shows the written bytes out of `bytes`, and returns whether to go on.
fn progress(context: &Context, bytes: u64) -> impl Fn(u64) -> bool {
    let bar = context.bytes_bar(bytes, "writing weights");
    move |bytes| {
        bar.set_position(bytes);
        context.stopped().is_ok()
    }
}

/// Writes a file, showing its progress.
fn write(
    context: &Context,
    conversion: &mut Conversion,
    path: &Path,
    replace: bool,
    judge: &mut dyn FnMut(&Path) -> anyhow::Result<Option<f64>>,
) -> anyhow::Result<()> {
    let go_on = progress(context, conversion.bytes());
    let mut failed = None;
    let written = conversion.write(path, replace, &go_on, &mut |file| {
        judge(file).map_err(|error| failed = Some(error)).map_err(|()| FolderError::Stopped)
    });
    match failed {
        Some(error) => Err(error),
        None => stopped(written),
    }
}

/// The perplexities of two files on held-out text, and the loss from one to the other.
fn compare(
    context: &Context,
    options: &ModelOptions,
    before: &Path,
    after: &Path,
) -> anyhow::Result<(Loss, [f64; 2])> {
    let tokens = if context.quick { HELD_OUT_TOKENS / 4 } else { HELD_OUT_TOKENS };
    let texts = match &options.text {
        None => Texts::built_in(),
        Some(path) => Texts::from_file(path)?,
    };
    let mut windows = Windows::default();
    let mut read = |file: &Path, what: &str| -> anyhow::Result<Vec<f64>> {
        let mut source = SourceModel::open(file)?;
        if let Some(activation) = options.activation {
            source = super::opened::with_activation(source, activation)?;
        }
        let tokenizer = source.tokenizer_data()?.into_tokenizer()?;
        windows = Windows::new(&tokenizer, &texts.held_out, source.config().context, tokens);
        if windows.tokens.is_empty() {
            bail!(
                "the text is too short to measure what quantising loses; give --text a file of a few thousand words"
            );
        }
        dense(context, &source, &windows, what)
    };
    let of_before = read(before, "with the folder's weights")?;
    let of_after = read(after, "with quantised weights")?;
    let predicted: Vec<usize> = windows.tokens.iter().map(|window| window.len() - 1).collect();
    let risen: Vec<Window> = (of_before.iter().zip(&of_after).zip(predicted.iter().zip(&windows.text_of)))
        .map(|((before, after), (&tokens, &text))| Window { text, tokens, rise: after - before })
        .collect();
    let all = predicted.iter().sum::<usize>() as f64;
    let perplexity = |losses: &[f64]| (losses.iter().sum::<f64>() / all).exp();
    let [before, after] = [perplexity(&of_before), perplexity(&of_after)];
    if !before.is_finite() || !after.is_finite() {
        bail!(
            "the perplexity of held-out text is {after} with quantised weights, and {before} with the folder's: leave --quantize out or \
             give another format, and if both are no numbers, another model or --text"
        );
    }
    Ok((Loss::of(&risen), [before, after]))
}

/// The negative log likelihood of each window, computed with all neurons.
fn dense(
    context: &Context,
    source: &SourceModel<'_>,
    windows: &Windows,
    what: &str,
) -> anyhow::Result<Vec<f64>> {
    let windows: Vec<&[u32]> = windows.tokens.iter().map(Vec::as_slice).collect();
    let mut go_on = || context.stopped();
    let mut stream = Stream::new(source, &windows);
    let activation = source.config().activation();
    let bar = context.bar(source.config().layers() as u64, what);
    for layer in 0..source.config().layers() {
        let weights = Layer::new(source, layer);
        weights.attention(&mut stream, &mut go_on)?;
        weights.feed_forward(&mut stream, &mut |expert| expert.activate(activation), &mut go_on)?;
        bar.inc(1);
    }
    Ok(said(source, &stream, &windows, false, &mut go_on)?.losses)
}

/// A note on the quantisation of a file that was converted here.
pub(super) fn note(gguf: &Gguf<'_>) -> Option<String> {
    let (name, change) = huggingface::quantised(gguf)?;
    Some(format!(
        "The source was quantised to {name} from a folder of Hugging Face's: its perplexity changed by {:+.2} %, which [dense] has \
         in it already.",
        change * 100.0
    ))
}
