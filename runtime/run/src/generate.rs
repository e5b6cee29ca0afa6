//! Text after a prompt.

use std::io::Write as _;

use flashplan::{Error, Sampler};
use serde::Serialize;

use super::cli::Cli;
use super::report::{self, Figures};
use super::session::Session;
use super::{Failure, failure};

#[derive(Serialize)]
struct Output<'a> {
    model: &'a str,
    text: &'a str,
    prompt_tokens: usize,
    tokens: &'a [u32],
    /// Whether Ctrl-C ended it early.
    stopped: bool,
    #[serde(flatten)]
    figures: Figures,
}

/// Generates until the count, the end of the text, the end of the context or Ctrl-C; then reports.
pub(super) fn generate(
    session: &mut Session<'_>,
    prompt: &[u32],
    mut sampler: Sampler,
    cli: &Cli,
) -> Result<(), Failure> {
    let room = session.context();
    if prompt.len() > room {
        let most = session.model.context_max();
        let remedy = if prompt.len() < most {
            format!("plan with --context {}", (prompt.len() + cli.count).min(most))
        } else {
            format!("this model takes {most} at most: shorten it")
        };
        return Err(failure(format!(
            "the prompt has {} tokens and the plan's context {room}; {remedy}",
            prompt.len()
        )));
    }
    if let Some(&token) = prompt.iter().find(|&&token| token as usize >= session.vocabulary()) {
        return Err(Error::Token { token, vocabulary: session.vocabulary() }.into());
    }
    prompt.iter().for_each(|&token| sampler.saw(token));
    let mut stdout = std::io::stdout();
    let mut say = |text: &str| {
        if cli.json {
            return Ok(());
        }
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(failure)
    };
    let tokenizer = session.tokenizer();
    let mut decoder = tokenizer.stream();
    say(&tokenizer.decode(prompt))?;

    let (mut tokens, mut text) = (Vec::new(), String::new());
    let mut ended = Ok(());
    if cli.count > 0 {
        let mut token = match session.prefill(prompt) {
            Ok(logits) => sampler.sample(logits),
            Err(failure) => {
                say("\n")?;
                return Err(failure);
            }
        };
        loop {
            tokens.push(token);
            if tokenizer.is_end(token) {
                break;
            }
            let piece = decoder.push(token);
            say(&piece)?;
            text.push_str(&piece);
            let position = prompt.len() + tokens.len() - 1;
            if tokens.len() == cli.count || position == room {
                break;
            }
            match session.decode(token) {
                Ok(logits) => token = sampler.sample(logits),
                Err(failure) => {
                    ended = Err(failure);
                    break;
                }
            }
        }
    } else {
        session.prefill(prompt)?;
    }
    let rest = decoder.finish();
    say(&rest)?;
    text.push_str(&rest);
    say("\n")?;

    let figures = report::figures(session, 1)?;
    if let Some(path) = &cli.report {
        report::write(path, session)?;
    }
    if cli.json {
        report::print_json(&Output {
            model: session.model.name(),
            text: &text,
            prompt_tokens: prompt.len(),
            tokens: &tokens,
            stopped: matches!(ended, Err(Failure::Stopped)),
            figures,
        })?;
    } else {
        report::print(session, &figures);
    }
    ended
}
