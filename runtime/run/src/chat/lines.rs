//! User input: edited lines with a history at a terminal, plain lines from anything else.
//!
//! Reading a line may block for ever, so a thread of its own reads. Meanwhile the program handles signals.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use platform::terminal::Settings;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Behavior, Config, Context, Editor, Helper};

use super::commands;
use crate::{Failure, failure};

/// How soon a signal is heeded while a line is waited for.
const SOON: Duration = Duration::from_millis(20);
/// Lines that the history keeps.
const HISTORY_LINES: usize = 1000;
/// The prompt for a message, and for a line that goes on.
const PROMPT: &str = "> ";
const GOES_ON: &str = "... ";
/// The end of a line that goes on in the next.
const JOINS: char = '\\';

/// Result of waiting for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    /// A message, perhaps of several lines.
    Text(String),
    /// A message that is not taken, and why.
    Refused(String),
    /// Ctrl-C at the prompt.
    Cleared,
    /// Ctrl-D, or the end of the input.
    End,
    /// A signal asks the program to end.
    Stopped,
}

/// Where lines come from.
#[derive(Debug)]
pub(super) struct Lines {
    prompts: Sender<&'static str>,
    lines: Receiver<io::Result<Line>>,
    /// Settings of the terminal before the first line was edited.
    terminal: Option<Settings>,
    /// Bytes of a message, at most.
    most: usize,
}

impl Lines {
    /// Lines of standard input, for messages of so many bytes at most. At a terminal, lines are edited, and lines of earlier conversations
    /// can be called back.
    pub(super) fn open(most: usize) -> Result<Self, Failure> {
        let terminal = io::stdin().is_terminal().then(Settings::of_standard_input).flatten();
        let source = match &terminal {
            Some(_) => Source::Terminal(Box::new(Terminal::open().map_err(|error| {
                failure(format!("cannot edit lines at this terminal: {error}; give them through a pipe"))
            })?)),
            None => Source::Plain(io::stdin(), most),
        };
        let (prompts, asked) = channel();
        let (answers, lines) = channel();
        thread::Builder::new()
            .name("lines".to_owned())
            .spawn(move || source.serve(&asked, &answers))
            .map_err(|error| failure(format!("cannot start a thread that reads lines: {error}")))?;
        Ok(Self { prompts, lines, terminal, most })
    }

    /// Whether lines are typed.
    pub(super) fn are_typed(&self) -> bool {
        self.terminal.is_some()
    }

    /// The next message. Lines that end with a backslash go on in the next.
    pub(super) fn next(&self, stopped: impl Fn() -> bool) -> Result<Line, Failure> {
        let mut text = String::new();
        loop {
            match self.line(if text.is_empty() { PROMPT } else { GOES_ON }, &stopped)? {
                Line::Text(line) => match line.strip_suffix(JOINS) {
                    Some(line) => {
                        text.push_str(line);
                        text.push('\n');
                        if text.len() > self.most {
                            return Ok(Line::Refused(too_long(self.most)));
                        }
                    }
                    None => return Ok(Line::Text(text + &line)),
                },
                // text before the end of the input is a message
                Line::End if !text.is_empty() => return Ok(Line::Text(text)),
                other => return Ok(other),
            }
        }
    }

    fn line(&self, prompt: &'static str, stopped: impl Fn() -> bool) -> Result<Line, Failure> {
        // a thread that has ended is told of by its silence
        let _ = self.prompts.send(prompt);
        loop {
            match self.lines.recv_timeout(SOON) {
                Ok(line) => return line.map_err(|error| failure(format!("cannot read a line: {error}"))),
                Err(RecvTimeoutError::Timeout) if stopped() => {
                    self.restore();
                    return Ok(Line::Stopped);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(Line::End),
            }
        }
    }

    /// The terminal as it was: the thread that edits a line is left behind with it.
    fn restore(&self) {
        if let Some(terminal) = &self.terminal {
            // the end of pasting in brackets, too; a terminal that has gone needs neither
            terminal.restore();
            let _ = io::stderr().write_all(b"\x1b[?2004l\n");
        }
    }
}

/// The input that the thread reads.
enum Source {
    Terminal(Box<Terminal>),
    Plain(io::Stdin, usize),
}

impl Source {
    /// A line for every prompt, until the receiver has gone.
    fn serve(mut self, prompts: &Receiver<&'static str>, lines: &Sender<io::Result<Line>>) {
        for prompt in prompts {
            let line = match &mut self {
                Self::Terminal(terminal) => terminal.line(prompt),
                Self::Plain(input, most) => plain(input, *most),
            };
            if lines.send(line).is_err() {
                return;
            }
        }
    }
}

/// Why a message is refused.
fn too_long(most: usize) -> String {
    format!("a message has more than {most} bytes, which the plan's context has no room for; say it shorter")
}

fn plain(input: &io::Stdin, most: usize) -> io::Result<Line> {
    let (mut input, mut line) = (input.lock(), Vec::new());
    if input.by_ref().take(most as u64).read_until(b'\n', &mut line)? == 0 {
        return Ok(Line::End);
    }
    if line.len() == most && !line.ends_with(b"\n") {
        input.skip_until(b'\n')?;
        return Ok(Line::Refused(too_long(most)));
    }
    let line = String::from_utf8(line).map_err(|_| io::Error::other("it is not UTF-8 text; convert it"))?;
    let line = line.strip_suffix('\n').unwrap_or(&line);
    Ok(Line::Text(line.strip_suffix('\r').unwrap_or(line).to_owned()))
}

/// A terminal with an editor.
struct Terminal {
    editor: Editor<Completion, FileHistory>,
    /// Where the history is kept, if it can be.
    history: Option<PathBuf>,
}

impl Terminal {
    fn open() -> rustyline::Result<Self> {
        // answers may go to a file while lines are typed
        let config = Config::builder()
            .behavior(Behavior::PreferTerm)
            .max_history_size(HISTORY_LINES)?
            .history_ignore_dups(true)?
            .history_ignore_space(true)
            .build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(Completion(FilenameCompleter::new())));
        let history = history_file();
        if let Some(history) = history.as_deref().filter(|path| path.exists())
            && let Err(error) = editor.load_history(history)
        {
            terminal::say(format_args!("warning: cannot read the history {}: {error}", history.display()));
        }
        Ok(Self { editor, history })
    }

    fn line(&mut self, prompt: &str) -> io::Result<Line> {
        match self.editor.readline(prompt) {
            Ok(line) => {
                self.remember(&line);
                Ok(Line::Text(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Line::Cleared),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Keeps a line for later; where that fails, it is said once.
    fn remember(&mut self, line: &str) {
        let added = self.editor.add_history_entry(line).unwrap_or(false);
        if let Some(history) = self.history.take().filter(|_| added) {
            match write_history(&mut self.editor, &history) {
                Ok(()) => self.history = Some(history),
                Err(error) => {
                    terminal::say(format_args!(
                        "warning: the history is not kept: {}: {error}",
                        history.display()
                    ));
                }
            }
        }
    }
}

/// Appends what is new; only the user may read it.
fn write_history(editor: &mut Editor<Completion, FileHistory>, path: &Path) -> rustyline::Result<()> {
    if let Some(folder) = path.parent() {
        platform::file::create_private_folder(folder)?;
    }
    editor.append_history(path)
}

/// `$XDG_STATE_HOME/flashplan/chat-history`; without a home there is none.
fn history_file() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("flashplan").join("chat-history"))
}

/// Tab completes commands, and files after them.
struct Completion(FilenameCompleter);

impl Completer for Completion {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        if line.starts_with("/save ") || line.starts_with("/load ") {
            return self.0.complete(line, at, context);
        }
        let found = commands::beginning(&line[..at]).into_iter();
        Ok((0, found.map(|name| Pair { display: name.clone(), replacement: name }).collect()))
    }
}

impl Hinter for Completion {
    type Hint = String;
}

impl Highlighter for Completion {}
impl Validator for Completion {}
impl Helper for Completion {}
