//! Text after a prompt.

use flashplan::{Error, Sampler};
use serde::Serialize;

use super::cli::Cli;
use super::ended::Ended;
use super::figures::{self, Figures};
use super::output::Text;
use super::report::{self, About};
use super::session::RunningPlan;
use super::{Failure, failure, tokens};

/// Tokens that are generated where `-n` does not say.
const TOKENS: usize = 128;

#[derive(Serialize)]
struct Output<'a> {
    model: &'a str,
    text: &'a str,
    prompt_tokens: usize,
    tokens: &'a [u32],
    ended: Ended,
    #[serde(flatten)]
    figures: Figures,
}

/// Generates until the count, the end of the text, the end of the context or an interrupt; then reports. If standard output is closed, it
/// ends silently.
pub(super) fn generate(
    session: &mut RunningPlan<'_>,
    prompt: &[u32],
    mut sampler: Sampler,
    cli: &Cli,
) -> Result<(), Failure> {
    let count = cli.count.unwrap_or(TOKENS);
    fits(session, prompt, count)?;
    prompt.iter().for_each(|&token| sampler.saw(token));
    let mut out = if cli.json { Text::silent() } else { Text::new() };
    let tokenizer = session.tokenizer();
    let mut decoder = tokenizer.stream();
    out.say(&tokenizer.decode(prompt))?;

    // the prompt, and what follows it
    let (mut tokens, mut text) = (prompt.to_vec(), String::new());
    let mut failed = Ok(());
    let mut next = match session.prefill(prompt) {
        Ok(logits) => sampler.sample(logits),
        Err(failure) => {
            out.say("\n")?;
            return Err(failure);
        }
    };
    let ended = loop {
        if tokens.len() - prompt.len() == count {
            break Ended::Length;
        }
        tokens.push(next);
        if tokenizer.is_end(next) {
            break Ended::EndOfText;
        }
        let piece = decoder.push(next);
        out.say(&piece)?;
        text.push_str(&piece);
        if tokens.len() - prompt.len() == count || out.is_gone() {
            break Ended::Length;
        }
        if tokens.len() > session.context() {
            break Ended::ContextFull;
        }
        match session.go_on(&tokens) {
            Ok(logits) => next = sampler.sample(logits),
            Err(failure) => {
                failed = Err(failure);
                break Ended::Interrupt;
            }
        }
    };
    if let Err(failure) = &failed
        && !matches!(failure, Failure::Stopped)
    {
        out.say("\n")?;
        return failed;
    }
    let rest = decoder.finish();
    out.say(&rest)?;
    text.push_str(&rest);
    out.say("\n")?;

    if let Some(path) = &cli.report {
        tokens::write(path, session)?;
    }
    if out.is_gone() {
        return Ok(());
    }
    let figures = figures::figures(session, 1)?;
    let model = session.model.name();
    let tokens = &tokens[prompt.len()..];
    if cli.json {
        let prompt_tokens = prompt.len();
        report::print_json(&Output { model, text: &text, prompt_tokens, tokens, ended, figures })?;
    } else {
        let about = About::new(model, session.plan, Some((tokens.len(), ended)));
        terminal::say(format_args!("\n{}", report::text(&about, &figures)));
        if cli.report.is_some() {
            terminal::say(format_args!("\n{}", report::details(&about, &figures)));
        }
    }
    failed
}

/// Whether the context has room for the prompt, and the vocabulary all of its tokens.
fn fits(session: &RunningPlan<'_>, prompt: &[u32], count: usize) -> Result<(), Failure> {
    let room = session.context();
    if prompt.len() > room {
        let most = session.context_max();
        let remedy = if prompt.len() < most {
            format!("plan with --context {}", (prompt.len() + count).min(most))
        } else {
            format!("this model takes {most} at most: shorten it")
        };
        return Err(failure(format!(
            "the prompt has {} tokens and the plan's context {room}; {remedy}",
            prompt.len()
        )));
    }
    match prompt.iter().find(|&&token| token as usize >= session.vocabulary()) {
        Some(&token) => Err(Error::Token { token, vocabulary: session.vocabulary() }.into()),
        None => Ok(()),
    }
}
