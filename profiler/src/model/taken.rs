//! Assumptions about a model where its file says little, and why: activation, router, pre-tokenizer and template.

use flashplan::internals::model::config::{Gating, Router};
use flashplan::internals::model::source::{SourceModel, is_of_pictures};
use flashplan::internals::model::tokenizer::{TokenizerData, TokenizerKind};
use kernels::Activation;

/// Part of the sentence on an assumption that no key of the file supports.
pub(super) const UNSTATED: &str = "the file does not say";

/// A sentence for people on each assumption, the activation first. `asked` is the user's activation.
pub fn told(source: &SourceModel<'_>, tokenizer: &TokenizerData, asked: Option<Activation>) -> Vec<String> {
    let router = source.config().network().router.as_ref().map(|router| of_router(source, router));
    let mut told = vec![format!("activation: {}", activation(source, asked))];
    told.extend(router.map(|router| format!("router: {router}")));
    told.extend(left_out(source).map(|what| format!("left out: {what}, which changes no text")));
    told.push(format!("pre-tokenizer: {}", pre_tokenizer(tokenizer)));
    told.push(format!("chat template: {}", template(tokenizer)));
    told
}

fn activation(source: &SourceModel<'_>, asked: Option<Activation>) -> String {
    let (architecture, own) = (&source.config().architecture, source.config().activation());
    let name = own.name();
    if asked.is_some() {
        return format!("{name}, by --activation");
    }
    if source.gguf().value("flashplan.activation").is_some() {
        return format!("{name}, by the key `flashplan.activation`");
    }
    if source.gguf().powerinfer() && architecture == "llama" {
        return format!("{name}, by the magic `PWRI` of the file");
    }
    let other = if own.is_gated() { "; --activation names another" } else { "" };
    format!("{name}, as `{architecture}` has it; {UNSTATED}{other}")
}

/// Ignored parts of the file, which text does not need.
fn left_out(source: &SourceModel<'_>) -> impl Iterator<Item = &'static str> {
    let sees = source.gguf().tensors().iter().any(|tensor| is_of_pictures(&tensor.name));
    let key = format!("{}.nextn_predict_layers", source.config().architecture);
    let guesses = source.gguf().unsigned(&key).ok().flatten().is_some_and(|layers| layers > 0);
    let parts =
        [(sees, "the part that sees pictures or hears"), (guesses, "layers that guess further tokens")];
    parts.into_iter().filter_map(|(there, what)| there.then_some(what))
}

fn of_router(source: &SourceModel<'_>, router: &Router) -> String {
    let how = match router.gating {
        Gating::Softmax => "by a softmax over all",
        Gating::SelectedSoftmax => "by a softmax over the chosen",
        Gating::Sigmoid => "by the sigmoid of each",
    };
    let sum = if router.renormalise { ", divided by their sum" } else { "" };
    let key = format!("{}.expert_gating_func", source.config().architecture);
    let why = if source.gguf().value(&key).is_some() {
        format!("by the key `{key}`")
    } else {
        format!("as `{}` has it; {UNSTATED}", source.config().architecture)
    };
    let groups = router
        .groups
        .map_or_else(String::new, |groups| format!(" of {} of {} groups", groups.used, groups.count));
    format!("{} of {} experts{groups}, weighed {how}{sum}, {why}", router.experts_used, router.experts)
}

fn pre_tokenizer(tokenizer: &TokenizerData) -> String {
    match tokenizer.kind {
        TokenizerKind::SentencePiece | TokenizerKind::Spaced | TokenizerKind::Unigram => {
            "none, as the tokenizer (key `tokenizer.ggml.model`) has it".to_owned()
        }
        TokenizerKind::ByteLevel if tokenizer.pre.is_empty() => {
            format!("`default`, as llama.cpp takes it; {UNSTATED}")
        }
        TokenizerKind::ByteLevel => format!("`{}`, by the key `tokenizer.ggml.pre`", tokenizer.pre),
    }
}

fn template(tokenizer: &TokenizerData) -> String {
    match &tokenizer.chat_template {
        Some(template) => format!("{} bytes, by the key `tokenizer.chat_template`", template.len()),
        None => format!("none; {UNSTATED}, and a conversation needs `run --template FILE`"),
    }
}
