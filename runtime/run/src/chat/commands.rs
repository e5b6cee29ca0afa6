//! Commands, which begin with a slash.

use std::path::PathBuf;

use terminal::Rows;

use crate::steering::{EFFORTS, Steering};

/// A line of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    /// For the model.
    Message(String),
    /// For the program.
    Command(Command),
}

/// A command to the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    Reset,
    /// Another answer to the last message.
    Regenerate,
    Save(PathBuf),
    Load(PathBuf),
    Stats,
    Plan,
    /// Another system message; none takes it away.
    System(Option<String>),
    /// How much the model reasons.
    Think(Steering),
    Exit,
}

/// Every command and what it does.
const COMMANDS: [(&str, &str); 10] = [
    ("/help", "this list"),
    ("/reset", "begin anew, with the same system message"),
    ("/regenerate", "replace the last answer by another; with --temp 0 it is the same"),
    ("/save FILE", "write the conversation"),
    ("/load FILE", "go on with one that was written"),
    ("/stats", "what there was so far, and of the last answer what was planned beside what happened"),
    ("/plan", "the plan that runs"),
    ("/system TEXT", "set the system message; without TEXT, take it away"),
    (
        "/think HOW",
        "reason before an answer: on, off, an effort such as low or high, or at most so many tokens",
    ),
    ("/exit", "end, as Ctrl-D does"),
];

/// Help on keys and on special lines.
const KEYS: &str =
    "A line that ends with \\ goes on in the next. A message that begins with / is written with //.
Ctrl-C stops an answer, or clears the line; twice, or Ctrl-D, it ends.";

/// The list of commands.
pub(super) fn help() -> String {
    let mut rows = Rows::new().left();
    for (command, what) in COMMANDS {
        rows.row([command.to_owned(), what.to_owned()]);
    }
    format!("{rows}\n{KEYS}")
}

/// Commands that begin so, for completion.
pub(super) fn beginning(with: &str) -> Vec<String> {
    let names = COMMANDS.iter().filter_map(|(command, _)| command.split(' ').next());
    names.filter(|name| with.starts_with('/') && name.starts_with(with)).map(str::to_owned).collect()
}

/// The meaning of a line; a sentence if it is no command that there is.
pub(super) fn parse(line: &str) -> Result<Entry, String> {
    let Some(rest) = line.strip_prefix('/') else { return Ok(Entry::Message(line.to_owned())) };
    if rest.starts_with('/') {
        return Ok(Entry::Message(rest.to_owned()));
    }
    let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let argument = argument.trim();
    let file = || match argument {
        "" => Err(format!("/{name} needs a file: /{name} talk.json")),
        file => Ok(PathBuf::from(file)),
    };
    let command = match name {
        "help" => Command::Help,
        "reset" => Command::Reset,
        "regenerate" => Command::Regenerate,
        "save" => Command::Save(file()?),
        "load" => Command::Load(file()?),
        "stats" => Command::Stats,
        "plan" => Command::Plan,
        "system" => Command::System((!argument.is_empty()).then(|| argument.to_owned())),
        "think" => Command::Think(steering(argument)?),
        "exit" => Command::Exit,
        _ => return Err(format!("there is no command /{name}; /help lists those there are")),
    };
    let takes =
        matches!(command, Command::Save(_) | Command::Load(_) | Command::System(_) | Command::Think(_));
    if !takes && !argument.is_empty() {
        return Err(format!(
            "/{name} takes nothing after it; a message that begins with / is written with //"
        ));
    }
    Ok(Entry::Command(command))
}

/// How much a model is to reason.
fn steering(how: &str) -> Result<Steering, String> {
    let mut steering = Steering::default();
    match how {
        "" | "on" => steering.enabled = Some(true),
        "off" => steering.enabled = Some(false),
        effort if EFFORTS.contains(&effort) => steering.set_effort(effort)?,
        tokens => steering.set_budget(tokens.parse().map_err(|_| {
            format!("/think takes on, off, an effort ({}) or a number of tokens", EFFORTS.join(", "))
        })?),
    }
    Ok(steering)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_may_be_told_how_much_to_reason() {
        let think = |how: &str| match parse(&format!("/think {how}")) {
            Ok(Entry::Command(Command::Think(steering))) => Ok(steering),
            Err(why) => Err(why),
            other => panic!("{other:?}"),
        };
        assert_eq!(think("off").unwrap().enabled, Some(false));
        assert_eq!(think("").unwrap().enabled, Some(true));
        assert_eq!(think("high").unwrap().effort.as_deref(), Some("high"));
        assert_eq!(think("300").unwrap().budget, Some(300));
        assert!(think("hard").unwrap_err().contains("on, off, an effort (none, minimal"));
    }

    #[test]
    fn commands_begin_with_a_slash_and_messages_with_anything_else() {
        let message = |text: &str| Ok(Entry::Message(text.to_owned()));
        for (line, is) in [
            ("hello /help", message("hello /help")),
            ("//etc is a folder", message("/etc is a folder")),
            ("/help", Ok(Entry::Command(Command::Help))),
            ("/save  a b.json ", Ok(Entry::Command(Command::Save("a b.json".into())))),
            ("/system Be\nkind.", Ok(Entry::Command(Command::System(Some("Be\nkind.".to_owned()))))),
            ("/system", Ok(Entry::Command(Command::System(None)))),
            ("/save", Err("/save needs a file: /save talk.json".to_owned())),
            ("/halp", Err("there is no command /halp; /help lists those there are".to_owned())),
        ] {
            assert_eq!(parse(line), is, "{line}");
        }
        assert!(parse("/exit now").unwrap_err().contains("takes nothing after it"));
    }

    #[test]
    fn the_list_has_every_command_that_is_understood() {
        for (usage, _) in COMMANDS {
            assert!(matches!(parse(&usage.replace("HOW", "on")), Ok(Entry::Command(_))), "{usage}");
            assert!(help().contains(usage), "{usage}");
        }
        assert_eq!(beginning("/s"), ["/save", "/stats", "/system"]);
        assert!(beginning("s").is_empty() && beginning("").is_empty());
    }
}
