//! A conversation in the terminal, in the model's own template and under the plan.
//!
//! A user's message joins the conversation, and the template makes it one text. Tokens that the context holds already stay, and the others
//! are prefilled. The answer is decoded token by token, and shown, until the model ends its turn; then it is the user's. A message that
//! does not fit, or is refused, leaves everything as it was.
//!
//! In reading order: input (`lines`), its `commands`, the `conversation`, and its tokens (`template`). Messages never become special tokens
//! (`guard`), and the part of an answer for the user goes to the `screen`.

mod commands;
pub(crate) mod conversation;
mod guard;
mod lines;
mod screen;
mod template;

use std::ops::ControlFlow;
use std::path::Path;

use flashplan::internals::counters::detail;
use flashplan::internals::engine::container;
use flashplan::{Sampler, Sampling, StopHandle};
use plans::expectation::{self, Stream};
use plans::names;
use plans::size::show;
use terminal::Rows;
use terminal::interrupt::is_terminated;
use terminal::output::say_error;

use self::commands::{Command, Entry};
use self::conversation::{Conversation, Message, Role};
use self::lines::{Line, Lines};
use self::screen::Screen;
use super::cli::Cli;
use super::ended::Ended;
use super::figures::{self, sums};
use super::held::Held;
use super::reasoning::{Channel, Parts};
use super::report::{self, About};
use super::session::RunningPlan;
use super::sessions::Sessions;
use super::steering::Steering;
use super::turn::{self, Answered, Turn};
use super::{Failure, failure};

pub(crate) use self::template::{
    Prompt, SOURCE_BYTES_MAX as TEMPLATE_BYTES_MAX, Scene, Template, TemplateError,
};

/// A remedy for a context that is too small leaves room for so many tokens more.
const MORE_TOKENS: usize = 512;
/// Bytes of text to a token, as is usual.
const TOKEN_BYTES: usize = 4;
/// Bytes of text to a token, more than any text has that fits into a context.
pub(crate) const TOKEN_BYTES_MAX: usize = 32;

/// Talks until the user ends it.
pub(super) fn chat(
    session: &mut RunningPlan<'_>,
    template: &Template,
    sessions: Option<Sessions>,
    cli: &Cli,
    stop: &StopHandle,
) -> Result<(), Failure> {
    let mut chat = Chat::new(session, template, sessions, cli)?;
    let lines = Lines::open(chat.session.context().saturating_mul(TOKEN_BYTES_MAX))?;
    if lines.are_typed() {
        terminal::say(chat.greeting());
    }
    let mut cleared = false;
    while !chat.screen.is_gone() {
        if is_terminated() {
            return Err(Failure::Stopped);
        }
        if lines.are_typed() {
            stop.resume(); // it stopped the answer, not the chat
        }
        let line = lines.next(|| stop.is_stopped())?;
        let again = std::mem::replace(&mut cleared, line == Line::Cleared);
        match line {
            Line::Text(text) if text.trim().is_empty() => {}
            Line::Text(text) => match commands::parse(&text) {
                Ok(Entry::Message(said)) => chat.turn(said)?,
                Ok(Entry::Command(Command::Exit)) => break,
                Ok(Entry::Command(Command::Regenerate)) => chat.regenerate()?,
                Ok(Entry::Command(command)) => match chat.obey(command)? {
                    Ok(said) => terminal::say(said),
                    Err(refusal) => say_error(refusal),
                },
                Err(unknown) => say_error(unknown),
            },
            Line::Refused(why) => say_error(why),
            Line::Cleared if again => break,
            Line::Cleared => terminal::say("Ctrl-C once more, Ctrl-D or /exit ends."),
            Line::End => break,
            Line::Stopped => return Err(Failure::Stopped),
        }
        if stop.is_stopped() && !lines.are_typed() {
            return Err(Failure::Stopped);
        }
    }
    chat.session.warn_of_memory()
}

/// A conversation and all that it needs.
struct Chat<'c, 'engine> {
    session: &'c mut RunningPlan<'engine>,
    template: &'c Template,
    cli: &'c Cli,
    sampler: Sampler,
    conversation: Conversation,
    /// How much the model reasons.
    steering: Steering,
    held: Held,
    sessions: Option<Sessions>,
    screen: Screen,
    /// Every token decoded since the start: slots fill once.
    decoded: Stream,
    /// Tokens of the last answer, and why it ended.
    last: Option<(usize, Ended)>,
}

/// An answer of the model.
struct Answer {
    content: String,
    reasoning: String,
    tokens: usize,
    ended: Ended,
}

impl<'c, 'engine> Chat<'c, 'engine> {
    fn new(
        session: &'c mut RunningPlan<'engine>,
        template: &'c Template,
        sessions: Option<Sessions>,
        cli: &'c Cli,
    ) -> Result<Self, Failure> {
        let held = Held::new(session.context());
        let conversation = Conversation::new(session.model.name());
        let sampler = Sampler::new(cli.chat_sampling(session.tokenizer()))?;
        let decoded = Stream { tokens: 0, positions: 0.0, starts: 1, prompted: true, routed_per_token: 0.0 };
        let screen = Screen::new();
        let mut chat = Self {
            session,
            template,
            cli,
            sampler,
            conversation,
            steering: Steering::default(),
            held,
            sessions,
            screen,
            decoded,
            last: None,
        };
        if let Some(system) = &cli.system {
            chat.change(chat.conversation.with_system(Some(system))).map_err(failure)?;
        }
        Ok(chat)
    }

    fn greeting(&self) -> String {
        let plan = self.session.plan;
        format!(
            "{} on {}: quality level `{}`, a context of {} tokens, {:.1} tok/s planned\n/help lists what there is beside talking; Ctrl-C stops an answer, Ctrl-D ends.",
            self.session.model.name(),
            plan.target.device,
            plan.quality.level,
            self.session.context(),
            plan.expected.decode_tokens_per_second
        )
    }

    /// The user says something and the model answers.
    fn turn(&mut self, said: String) -> Result<(), Failure> {
        self.conversation.messages.push(Message::new(Role::User, said));
        let prompt = match self.prompt(&self.conversation, true) {
            Ok(prompt) => prompt,
            Err(refusal) => {
                self.conversation.messages.pop();
                say_error(refusal);
                return Ok(());
            }
        };
        let answer = self.answer(&prompt)?;
        self.last = Some((answer.tokens, answer.ended));
        terminal::say(self.told_of(&answer));
        if let Some(sessions) = &mut self.sessions {
            sessions.keep(self.session, 0, &self.held);
        }
        if answer.content.is_empty() && answer.ended != Ended::EndOfText {
            self.conversation.messages.pop();
            terminal::say("There is no answer, and the message was taken back.");
            return Ok(());
        }
        let reasoning = Some(answer.reasoning).filter(|text| !text.is_empty());
        let message = Message { reasoning, ..Message::new(Role::Assistant, answer.content) };
        self.conversation.messages.push(message);
        Ok(())
    }

    /// Replaces the last answer by another one, which goes on with the sampler's draws. It stays where there is no other.
    fn regenerate(&mut self) -> Result<(), Failure> {
        let before = self.conversation.messages.clone();
        let [earlier @ .., said, answer] = &before[..] else {
            say_error("there is no answer yet; say something first");
            return Ok(());
        };
        if (said.role, answer.role) != (Role::User, Role::Assistant) {
            say_error("the last message is no answer to you; say something first");
            return Ok(());
        }
        self.conversation.messages = earlier.to_vec();
        self.turn(said.content.clone())?;
        if self.conversation.messages.len() < before.len() {
            self.conversation.messages = before;
        }
        Ok(())
    }

    /// The tokens of a conversation; a sentence if the template refuses it or the context has no room for it and an answer.
    fn prompt(&self, conversation: &Conversation, answer: bool) -> Result<Prompt, String> {
        let (room, most) = (self.session.context(), self.session.context_max());
        let too_long = |found: String, tokens: usize| {
            let remedy = if room < most {
                let context = (tokens + MORE_TOKENS).next_multiple_of(MORE_TOKENS).min(most);
                format!("or plan with --context {context}")
            } else {
                format!("for this model takes {most} at most")
            };
            format!(
                "the conversation would have {found}, and the plan's context has room for {room} tokens with the answer; say it shorter, begin anew with /reset, {remedy}"
            )
        };
        // a text that is far too long is not rendered
        let bytes: usize = conversation.messages.iter().map(|message| message.content.len()).sum();
        if bytes > room * TOKEN_BYTES_MAX {
            return Err(too_long(format!("{bytes} bytes"), bytes / TOKEN_BYTES));
        }
        let tokenizer = self.session.tokenizer();
        let scene = Scene { steering: Some(&self.steering), ..Scene::of(&conversation.messages, answer) };
        let prompt = self.template.prompt(tokenizer, scene);
        let prompt = prompt.map_err(|error| error.to_string())?;
        match prompt.tokens.len() {
            0 => {
                Err("the chat template makes nothing of the conversation; name another with --template FILE"
                    .to_owned())
            }
            tokens if tokens < room => Ok(prompt),
            tokens => Err(too_long(format!("{tokens} tokens"), tokens)),
        }
    }

    /// Prefills what the context does not hold yet, and decodes until the model has said what it has to say.
    fn answer(&mut self, prompt: &Prompt) -> Result<Answer, Failure> {
        let (mut content, mut reasoning, mut written) = (String::new(), String::new(), Ok(()));
        let mut show = |part: Channel, text: &str| {
            match part {
                Channel::Reasoning | Channel::Call => reasoning.push_str(text),
                Channel::Answer => content.push_str(text),
            }
            if written.is_ok() {
                written = self.screen.show(part, text);
            }
            ControlFlow::Continue(())
        };
        let most = self.cli.count.unwrap_or(usize::MAX);
        let turn = Turn {
            reasons: Some(prompt.reasons),
            named: prompt.named,
            tags: prompt.tags,
            reasoning_most: self.steering.budget,
            most,
            marks: None,
        };
        prompt.tokens.iter().for_each(|&token| self.sampler.saw(token));
        let mut choose = |_: Option<&Parts>, logits: &[f32]| Ok(Some(self.sampler.sample(logits)));
        let read = turn::read(self.session, &mut self.held, self.sessions.as_mut(), &prompt.tokens)?;
        let answered = match read {
            None => Ok(Answered { tokens: 0, reasoning: 0, ended: Ended::Interrupt }),
            Some(_) => turn::write(self.session, &mut self.held, turn, &mut choose, &mut show),
        };
        self.screen.end()?;
        let Answered { tokens, ended, .. } = answered?;
        written.map(|()| Answer { content, reasoning, tokens, ended })
    }

    /// In one line: what was read and written, how fast beside what was planned, and what of the context is taken.
    fn told_of(&mut self, answer: &Answer) -> String {
        let (time, counters) = sums(&self.session.steps);
        let steps = figures::tokens_of(&self.session.steps);
        let mut line = format!("[{} in, {} out", count(self.session.prefilled.0), count(answer.tokens));
        if steps > 0 {
            line += &format!(" at {:.1} tok/s", steps as f64 / time.as_secs_f64());
            let before = expectation::of(self.session.plan, &self.decoded).map_or(0.0, |all| all.seconds);
            let d = &mut self.decoded;
            let routed = d.routed_per_token * d.tokens as f64 + detail(&counters).activity.routed as f64;
            d.tokens += steps;
            d.positions += figures::positions_of(&self.session.steps);
            d.routed_per_token = routed / d.tokens as f64;
            if let Some(all) = expectation::of(self.session.plan, d) {
                let times_as_fast = figures::speedup(self.session);
                line += &format!(" (planned {:.1})", times_as_fast * steps as f64 / (all.seconds - before));
            }
        }
        line += &format!("; context {} of {}]", self.held.len(), self.session.context());
        match answer.ended {
            Ended::EndOfText => {}
            Ended::Length => line += " Cut off: the limit of -n.",
            Ended::ContextFull => {
                line += " Cut off: the context is full; /reset begins anew, a plan with a larger --context has room for more.";
            }
            Ended::Interrupt => line += " Interrupted.",
        }
        line
    }

    /// Does what a command asks for: what there is to tell, or why it is not done.
    fn obey(&mut self, command: Command) -> Result<Result<String, String>, Failure> {
        Ok(match command {
            Command::Help => Ok(commands::help()),
            Command::Reset => {
                self.change(self.conversation.anew()).map(|()| "The conversation begins anew.".to_owned())
            }
            Command::Save(path) => self.save(&path),
            Command::Load(path) => self.load(&path),
            Command::Stats => Ok(self.stats()?),
            Command::Plan => Ok(self.plan()),
            Command::System(text) => {
                let said = text
                    .as_ref()
                    .map_or("The system message is taken away.", |_| "The system message is set.");
                self.change(self.conversation.with_system(text.as_deref())).map(|()| said.to_owned())
            }
            Command::Think(steering) => self.think(steering),
            // the chat's loop does these
            Command::Exit | Command::Regenerate => Ok(String::new()),
        })
    }

    /// Goes on with another conversation, if the template and the context take it. The sampler starts again.
    fn change(&mut self, conversation: Conversation) -> Result<(), String> {
        // a system message alone is nothing that a template must know
        let mut tried = conversation.clone();
        if tried.answers() == 0 && tried.system().is_some() {
            tried.messages.push(Message::new(Role::User, "Hello"));
        }
        if !tried.messages.is_empty() {
            self.prompt(&tried, false)?;
        }
        self.sampler = Sampler::new(self.sampling()).map_err(|error| error.to_string())?;
        self.conversation = conversation;
        Ok(())
    }

    /// Has the model reason more or less from the next answer on, if its template takes that.
    fn think(&mut self, steering: Steering) -> Result<String, String> {
        let before = std::mem::replace(&mut self.steering, steering);
        let has_channels = self.template.source().contains("<|channel|>");
        match self.prompt(&Conversation::new("").with_said("Hello"), true) {
            Err(refusal) => {
                self.steering = before;
                Err(refusal)
            }
            Ok(Prompt { tags: None, .. }) if !has_channels => {
                Ok("This model's template says nothing of reasoning, so nothing changes.".to_owned())
            }
            Ok(Prompt { unread, .. }) if !unread.is_empty() && has_channels => {
                self.steering = before;
                Err("this model always reasons, with one of three efforts; /think low, /think medium, /think high and /think TOKENS work".to_owned())
            }
            Ok(Prompt { unread, .. }) if !unread.is_empty() => {
                self.steering = before;
                Err("the chat template cannot tell this model how much to reason; /think off and /think TOKENS work with every model".to_owned())
            }
            Ok(_) => Ok("Set from the next answer on.".to_owned()),
        }
    }

    fn save(&self, path: &Path) -> Result<String, String> {
        self.conversation.save(path)?;
        Ok(format!("{} with {} is in {}.", "The conversation", answers(&self.conversation), path.display()))
    }

    fn load(&mut self, path: &Path) -> Result<String, String> {
        let mut loaded = Conversation::load(path, self.session.context())?;
        let model = self.session.model.name();
        let other = if loaded.model == model {
            String::new()
        } else {
            format!(" It was had with {}; {model} goes on with it.", loaded.model)
        };
        let said = format!("A conversation with {} is loaded.{other}", answers(&loaded));
        model.clone_into(&mut loaded.model);
        self.change(loaded)?;
        Ok(said)
    }

    fn sampling(&self) -> Sampling {
        self.cli.chat_sampling(self.session.tokenizer())
    }

    fn stats(&self) -> Result<String, Failure> {
        let Sampling { temperature, top_k, top_p, min_p, repeat_penalty, seed, .. } = self.sampling();
        let drawn = if temperature == 0.0 {
            "the likeliest token, always (--temp 0)".to_owned()
        } else {
            format!("--temp {temperature} --top-k {top_k} --top-p {top_p} --min-p {min_p}")
        };
        let tokens = match &self.conversation.messages[..] {
            [] => 0,
            _ => self.prompt(&self.conversation, false).map_or(self.held.len(), |prompt| prompt.tokens.len()),
        };
        let held = format!("{tokens} of {} tokens", self.session.context());
        let mut rows = Rows::new().left();
        for (name, value) in [
            ("conversation", answers(&self.conversation)),
            ("context", held),
            ("draws", format!("{drawn} --repeat-penalty {repeat_penalty} --seed {seed}")),
        ] {
            rows.row([name.to_owned(), value]);
        }
        let Some(last) = self.last else { return Ok(rows.to_string()) };
        let figures = figures::figures(self.session, 1)?;
        let about = About::new(self.session.model.name(), self.session.plan, Some(last));
        Ok(format!("{rows}\n\nThe last answer:\n{}", report::text(&about, &figures)))
    }

    fn plan(&self) -> String {
        let plan = self.session.plan;
        let path = self.cli.plan.as_ref().map(|path| path.display().to_string());
        let e = &plan.expected;
        let mut rows = Rows::new().left();
        for (name, value) in [
            ("plan", path.unwrap_or_default()),
            ("model", container(self.session.model).path.display().to_string()),
            ("device", plan.target.device.clone()),
            (
                "quality level",
                format!("{}, perplexity {:+.2} %", plan.quality.level, e.perplexity_change_fraction * 100.0),
            ),
            ("keys and values", plan.quality.kv_format.clone()),
            ("memory", format!("at most {}", show(plan.memory.limit_bytes))),
            ("context", format!("{} tokens", plan.context.tokens)),
            ("decode", format!("{:.1} tok/s", e.decode_tokens_per_second)),
            ("prefill", format!("{:.1} tok/s", e.prefill_tokens_per_second)),
            ("disk read per token", show(e.bytes_read_per_token.round() as u64)),
            (names::FOUND, format!("{:.1} %", e.hit_fraction * 100.0)),
        ] {
            rows.row([name.to_owned(), value]);
        }
        rows.to_string()
    }
}

fn count(tokens: usize) -> String {
    if tokens == 1 { "1 token".to_owned() } else { format!("{tokens} tokens") }
}

fn answers(conversation: &Conversation) -> String {
    match conversation.answers() {
        1 => "1 answer".to_owned(),
        answers => format!("{answers} answers"),
    }
}
