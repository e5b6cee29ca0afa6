//! One answer to one prompt, in a sequence that keeps what it holds from one to the next.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Duration;

use flashplan::{TextStream, Tokenizer};

use super::Failure;
use super::ended::Ended;
use super::held::Held;
use super::reasoning::{Channel, Parts, Tags};
use super::session::RunningPlan;
use super::sessions::Sessions;

/// Tokens that are prefilled, in whole chunks, before it is asked again whether the answer is wanted. Where others wait it is one chunk.
const PREFILLED_AT_ONCE: usize = 256;

/// Limits of the answer that follows a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// Whether the prompt ends in the middle of the model's reasoning; `None` where no part of the text is.
    pub(super) reasons: Option<bool>,
    /// Whether the prompt ends with the name of the speaker, so that the answer may begin with a recipient.
    pub(super) named: bool,
    /// The tags between which the model reasons.
    pub(super) tags: Option<Tags>,
    /// Tokens of reasoning, at most: it is closed then.
    pub(super) reasoning_most: Option<usize>,
    /// Tokens of the answer, at most.
    pub(super) most: usize,
    /// Where calls of tools are separated: the tokens that steer the model and are part of their text.
    pub(super) marks: Option<&'static [&'static str]>,
}

/// Makes the next token of logits, or none to end the answer; it knows the parts of the text so far.
pub(super) type Choose<'c> = dyn FnMut(Option<&Parts>, &[f32]) -> Result<Option<u32>, Failure> + 'c;

/// Hears the hidden state `[width]` of each token that is prefilled.
pub(super) type Hear<'h> = dyn FnMut(&[f32]) + 'h;

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answered {
    /// Tokens of the answer, the one that ends it among them.
    pub(super) tokens: usize,
    /// Reasoning tokens, the marks around them included.
    pub(super) reasoning: usize,
    /// Why there were no more.
    pub(super) ended: Ended,
}

/// Makes a sequence hold the longest known prefix of a prompt without its last token, and nothing after it. Returns the tokens held. The
/// prompt has one or more tokens. A longer prefix on disk is restored.
pub(super) fn open(
    session: &mut RunningPlan<'_>,
    sequence: usize,
    held: &mut Held,
    sessions: Option<&mut Sessions>,
    prompt: &[u32],
    wanted: &dyn Fn() -> bool,
) -> Result<usize, Failure> {
    if let Some(sessions) = sessions {
        sessions.restore(session, sequence, held, prompt, wanted)?;
    }
    let same = held.same(prompt).min(prompt.len().saturating_sub(1));
    let kept = session.forget(sequence, same)?;
    held.truncate(kept);
    Ok(kept)
}

/// Prefills the next piece of a prompt, and returns the time it took. The session's logits are then the logits after the piece, unless
/// `hidden` receives the hidden states instead.
///
/// # Errors
/// The engine's; `held` is true then, too.
pub(super) fn read_some(
    session: &mut RunningPlan<'_>,
    sequence: usize,
    held: &mut Held,
    prompt: &[u32],
    others_wait: bool,
    hidden: Option<&mut Hear<'_>>,
) -> Result<Duration, Failure> {
    let chunk = session.plan.prefill.chunk_tokens.max(1) as usize;
    let rest = &prompt[held.len()..];
    let most = if others_wait { chunk } else { PREFILLED_AT_ONCE.next_multiple_of(chunk) };
    let piece = &rest[..rest.len().min(most)];
    let read = match hidden {
        None => session.read(sequence, piece).map(|(_, time)| time),
        Some(each) => session.read_hidden(sequence, piece, each),
    };
    match &read {
        Ok(_) => held.read(piece),
        Err(_) => held.truncate(session.position(sequence)),
    }
    read
}

/// Prefills the tokens of a prompt that neither the first sequence nor the disk holds. The prompt has one or more tokens. The session's
/// logits are then the logits after it. Returns how many of its tokens were held; `None` if the engine was stopped.
///
/// # Errors
/// The engine's, but for a stop; `held` is true then, too.
pub(super) fn read(
    session: &mut RunningPlan<'_>,
    held: &mut Held,
    sessions: Option<&mut Sessions>,
    prompt: &[u32],
) -> Result<Option<usize>, Failure> {
    session.begin();
    let kept = open(session, 0, held, sessions, prompt, &|| true)?;
    while held.len() < prompt.len() {
        let before = held.len();
        match read_some(session, 0, held, prompt, false, None) {
            Ok(time) => {
                session.prefilled = (session.prefilled.0 + held.len() - before, session.prefilled.1 + time);
            }
            Err(Failure::Stopped) => return Ok(None),
            Err(failure) => return Err(failure),
        }
    }
    Ok(Some(kept))
}

/// Decodes in the first sequence until the answer ends: the model ends it, nothing more may follow, the engine stops, or `show` breaks off.
/// The first logits are the session's.
///
/// # Errors
/// Errors of `choose`, and the engine's, but for a stop; `held` is true then, too.
pub(super) fn write(
    session: &mut RunningPlan<'_>,
    held: &mut Held,
    turn: Turn,
    choose: &mut Choose<'_>,
    show: &mut dyn FnMut(Channel, &str) -> ControlFlow<()>,
) -> Result<Answered, Failure> {
    let mut writing = Writing::new(session.tokenizer(), turn);
    let mut next = choose(writing.parts(), session.last_logits())?;
    let ended = loop {
        let token = match writing.take(next, held.len() < session.context(), show) {
            ControlFlow::Continue(token) => token,
            ControlFlow::Break(ended) => break ended,
        };
        held.decoded(token);
        let done = session.go_on(held.tokens()).map(|_| ());
        if done.is_err() {
            held.truncate(session.position(0));
        }
        match done {
            Ok(()) => {}
            Err(Failure::Stopped) => break Ended::Interrupt,
            Err(failure) => return Err(failure),
        }
        next = match writing.ordained() {
            Some(token) => Some(token),
            None => choose(writing.parts(), session.last_logits())?,
        };
    };
    Ok(writing.finish(ended, show))
}

/// An answer as its tokens become text.
#[derive(Debug)]
pub(super) struct Writing<'t> {
    tokenizer: &'t Tokenizer,
    turn: Turn,
    parts: Option<Parts>,
    letters: TextStream<'t>,
    tokens: usize,
    /// Tokens of reasoning, with its marks.
    reasoning: usize,
    /// Tokens of reasoning that count against its limit; the next field has tokens that end it early.
    reasoned: usize,
    closing: VecDeque<u32>,
    /// Whether the listener has gone.
    broken: bool,
}

impl<'t> Writing<'t> {
    /// Nothing has been said yet.
    pub(super) fn new(tokenizer: &'t Tokenizer, turn: Turn) -> Self {
        let parts = turn
            .reasons
            .map(|reasons| Parts::new(reasons).with_calls(turn.marks.is_some()).with_name(turn.named));
        let letters = tokenizer.stream();
        Self {
            tokenizer,
            turn,
            parts,
            letters,
            tokens: 0,
            reasoning: 0,
            reasoned: 0,
            closing: VecDeque::new(),
            broken: false,
        }
    }

    /// The next token, where none is chosen: the model has reasoned for as long as it may.
    pub(super) fn ordained(&mut self) -> Option<u32> {
        if let Some(most) = self.turn.reasoning_most
            && self.closing.is_empty()
            && let Some(closing) = self.parts.as_ref().and_then(|parts| parts.closing(self.turn.tags))
        {
            self.reasoned += 1;
            if self.reasoned > most {
                self.closing = self.tokenizer.encode_rendered(&closing, &[]).into();
            }
        }
        self.closing.pop_front()
    }

    /// Whether there are as many tokens as there may be.
    pub(super) fn is_full(&self) -> bool {
        self.tokens >= self.turn.most
    }

    /// Shows a token of the prompt as if it was of the answer.
    pub(super) fn echo(&mut self, token: u32, show: &mut dyn FnMut(Channel, &str) -> ControlFlow<()>) {
        let text = self.letters.push(token);
        if !self.broken && !text.is_empty() {
            self.broken = show(Channel::Answer, &text).is_break();
        }
    }

    /// The parts of the text so far.
    pub(super) fn parts(&self) -> Option<&Parts> {
        self.parts.as_ref()
    }

    fn is_reasoning(&self) -> bool {
        self.parts.as_ref().is_some_and(Parts::is_reasoning)
    }

    /// Takes the token that was chosen, or none, and shows its text. Returns the token to decode if there is room, or why the answer ends.
    pub(super) fn take(
        &mut self,
        token: Option<u32>,
        room: bool,
        show: &mut dyn FnMut(Channel, &str) -> ControlFlow<()>,
    ) -> ControlFlow<Ended, u32> {
        let Some(token) = token else { return ControlFlow::Break(Ended::EndOfText) };
        self.tokens += 1;
        if self.tokenizer.is_end(token) {
            return ControlFlow::Break(Ended::EndOfText);
        }
        let before = self.is_reasoning();
        let (turn, broken) = (self.turn, &mut self.broken);
        let is_text = |name: &&str| turn.marks.is_some_and(|marks| marks.contains(name));
        let say = |part: Channel, text: &str| {
            if !*broken && !text.is_empty() {
                *broken = show(part, text).is_break();
            }
        };
        match (&mut self.parts, self.tokenizer.special(token)) {
            (Some(parts), Some(name)) if is_text(&name) => parts.text(name, say),
            (Some(parts), Some(name)) => parts.special(name, say),
            (Some(parts), None) => parts.text(&self.letters.push(token), say),
            (None, Some(name)) if is_text(&name) => {
                let mut say = say;
                say(Channel::Answer, name);
            }
            (None, _) => {
                let mut say = say;
                say(Channel::Answer, &self.letters.push(token));
            }
        }
        self.reasoning += usize::from(before || self.is_reasoning());
        if self.broken {
            return ControlFlow::Break(Ended::Interrupt);
        }
        if self.tokens >= turn.most {
            return ControlFlow::Break(Ended::Length);
        }
        if room { ControlFlow::Continue(token) } else { ControlFlow::Break(Ended::ContextFull) }
    }

    /// Shows the text that was held back, unless the answer broke off.
    pub(super) fn finish(
        self,
        ended: Ended,
        show: &mut dyn FnMut(Channel, &str) -> ControlFlow<()>,
    ) -> Answered {
        let Self { parts, letters, tokens, reasoning, mut broken, .. } = self;
        let mut say = |part: Channel, text: &str| {
            if !broken && !text.is_empty() {
                broken = show(part, text).is_break();
            }
        };
        let rest = letters.finish();
        match parts {
            Some(mut parts) => {
                parts.text(&rest, &mut say);
                parts.finish(say);
            }
            None => say(Channel::Answer, &rest),
        }
        Answered { tokens, reasoning, ended }
    }
}
