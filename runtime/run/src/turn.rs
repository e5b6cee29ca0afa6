//! One answer to one prompt, in a context that keeps what it holds from one to the next.

use std::ops::ControlFlow;
use std::time::Duration;

use super::Failure;
use super::context::Context;
use super::ended::Ended;
use super::reasoning::{Part, Parts};
use super::session::Session;

/// Tokens that are prefilled, in whole chunks, before it is asked again whether the answer is wanted.
const PREFILLED_AT_ONCE: usize = 256;

/// What may follow a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// Whether the prompt ends in the middle of the model's reasoning; `None` where no part of the text is.
    pub(super) reasons: Option<bool>,
    /// Tokens of the answer, at most.
    pub(super) most: usize,
    /// Where calls of tools are told apart: the tokens that steer the model and are part of their text.
    pub(super) marks: Option<&'static [&'static str]>,
}

/// Makes the next token of logits, or none to end the answer; it knows the parts of the text so far.
pub(super) type Choose<'c> = dyn FnMut(Option<&Parts>, &[f32]) -> Result<Option<u32>, Failure> + 'c;

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answered {
    /// Tokens of the answer, the one that ends it among them.
    pub(super) tokens: usize,
    /// Why there were no more.
    pub(super) ended: Ended,
}

/// Prefills what neither the context holds nor the disk of a prompt of one or more tokens; the session's logits are then those
/// after it. How many of its tokens were held; `None` if the engine was stopped or nobody wants the answer any more.
///
/// # Errors
/// The engine's, but for a stop; the context is true then, too.
pub(super) fn read(
    session: &mut Session<'_>,
    context: &mut Context,
    prompt: &[u32],
    wanted: &dyn Fn() -> bool,
) -> Result<Option<usize>, Failure> {
    context.restore(session, prompt, wanted);
    let held = &mut context.held;
    let kept = held.same(prompt).min(prompt.len().saturating_sub(1));
    // an answer that nobody wants any more has nothing of the one before it
    session.rewind(kept);
    held.truncate(kept);
    let chunk = session.plan.prefill.chunk_tokens.max(1) as usize;
    let mut prefilled = (0, Duration::ZERO);
    for piece in prompt[kept..].chunks(PREFILLED_AT_ONCE.next_multiple_of(chunk)) {
        if !wanted() {
            return Ok(None);
        }
        match session.go_on(held.len(), piece) {
            Ok(_) => {}
            Err(Failure::Stopped) => return Ok(None),
            Err(failure) => return Err(failure),
        }
        held.read(piece);
        prefilled = (prefilled.0 + piece.len(), prefilled.1 + session.prefilled.1);
    }
    session.prefilled = prefilled;
    Ok(Some(kept))
}

/// Decodes until the model has said what it has to say, nothing more may follow, the engine is stopped, nobody wants it, or `show`
/// breaks off. The first logits are those `after` the prompt, which are the session's if nobody kept them.
///
/// # Errors
/// Those of `choose`, and the engine's, but for a stop; the context is true then, too.
pub(super) fn write(
    session: &mut Session<'_>,
    context: &mut Context,
    turn: Turn,
    after: Option<&[f32]>,
    choose: &mut Choose<'_>,
    wanted: &dyn Fn() -> bool,
    show: &mut dyn FnMut(Part, &str) -> ControlFlow<()>,
) -> Result<Answered, Failure> {
    let tokenizer = session.tokenizer();
    let mut answered = Answered { tokens: 0, ended: Ended::Interrupt };
    let mut parts = turn.reasons.map(|reasons| Parts::new(reasons).with_calls(turn.marks.is_some()));
    let mut next = choose(parts.as_ref(), after.unwrap_or(session.last_logits()))?;
    let mut letters = tokenizer.stream();
    let mut flow = ControlFlow::Continue(());
    let mut say = |part: Part, text: &str| {
        if flow.is_continue() && !text.is_empty() {
            flow = show(part, text);
        }
        flow.is_continue()
    };
    loop {
        let Some(token) = next else {
            answered.ended = Ended::EndOfText;
            break;
        };
        answered.tokens += 1;
        if tokenizer.is_end(token) {
            answered.ended = Ended::EndOfText;
            break;
        }
        let mut goes_on = true;
        match (&mut parts, tokenizer.special(token)) {
            (Some(parts), Some(name)) if turn.marks.is_some_and(|marks| marks.contains(&name)) => {
                parts.text(name, |part, text| goes_on = say(part, text));
            }
            (Some(parts), Some(name)) => parts.special(name, |part, text| goes_on = say(part, text)),
            (Some(parts), None) => parts.text(&letters.push(token), |part, text| goes_on = say(part, text)),
            (None, _) => goes_on = say(Part::Answer, &letters.push(token)),
        }
        if !goes_on || !wanted() {
            return Ok(answered);
        }
        if answered.tokens >= turn.most {
            answered.ended = Ended::Length;
            break;
        }
        if context.held.len() == session.context() {
            answered.ended = Ended::ContextFull;
            break;
        }
        let logits = match session.decode(token) {
            Ok(logits) => logits,
            Err(Failure::Stopped) => break,
            Err(failure) => return Err(failure),
        };
        context.held.decoded(token);
        next = choose(parts.as_ref(), logits)?;
    }
    let rest = letters.finish();
    match parts {
        Some(mut parts) => {
            let mut say = |part: Part, text: &str| _ = say(part, text);
            parts.text(&rest, &mut say);
            parts.finish(say);
        }
        None => _ = say(Part::Answer, &rest),
    }
    Ok(answered)
}
