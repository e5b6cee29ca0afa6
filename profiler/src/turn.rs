//! One profile at a time on a machine, because two would measure each other.
//!
//! The turn is an advisory lock on a file in the temporary folder that all users share. The system releases it when its holder ends in
//! any way. The file names the holder for waiting profiles.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Context, Stopped};

const NAME: &str = "flashplan-profile.lock";
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(200);
/// Maximum characters of the holder's name.
const SAID_MAX: usize = 300;

/// The right to measure, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    /// The locked file; `None` where the system has no locks.
    _file: Option<File>,
}

impl Turn {
    /// Waits until no other profile measures on this machine. `say` gets the holder's name, or why it does not wait.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn wait(context: &Context, say: impl FnMut(&str)) -> Result<Self, Stopped> {
        Self::wait_at(&path(), context, say)
    }

    fn wait_at(path: &Path, context: &Context, mut say: impl FnMut(&str)) -> Result<Self, Stopped> {
        let alone = |error: io::Error| {
            format!(
                "warning: cannot keep other profiles from measuring at the same time: {}: {error}",
                path.display()
            )
        };
        let mut file = match platform::file::open_shared(path) {
            Ok(file) => file,
            Err(error) => {
                say(&alone(error));
                return Ok(Self { _file: None });
            }
        };
        let mut waits = false;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => {
                    say(&alone(error));
                    return Ok(Self { _file: None });
                }
            }
            if !waits {
                say(&format!(
                    "another `profile` is measuring ({}): waiting until it has ended, since two would measure each other",
                    holder(path)
                ));
                waits = true;
            }
            context.stopped()?;
            std::thread::sleep(PAUSE);
        }
        // for people; another user's file may refuse it
        let folder = std::path::absolute(&context.out).unwrap_or_else(|_| context.out.clone());
        let _told = file
            .set_len(0)
            .and_then(|()| writeln!(file, "process {}, into {}", std::process::id(), folder.display()));
        Ok(Self { _file: Some(file) })
    }
}

fn path() -> PathBuf {
    std::env::temp_dir().join(NAME)
}

/// The holder's name, printable characters only.
fn holder(path: &Path) -> String {
    let mut said = String::new();
    let read = File::open(path).and_then(|file| file.take(4 * SAID_MAX as u64).read_to_string(&mut said));
    let said: String = said.chars().filter(|c| !c.is_control()).take(SAID_MAX).collect();
    if read.is_err() || said.is_empty() { "which does not say who it is".to_owned() } else { said }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::sync::mpsc;

    use super::*;

    fn context(folder: &Path) -> Context {
        Context::new(folder.to_owned(), folder.to_owned(), true)
    }

    #[test]
    fn the_second_waits_for_the_first_and_says_for_whom() {
        let folder = tempfile::tempdir().unwrap();
        let (path, first) = (folder.path().join(NAME), context(folder.path()));
        let turn = Turn::wait_at(&path, &first, |said| panic!("nobody to wait for: {said}")).unwrap();
        let (told, hears) = mpsc::channel();
        let second = std::thread::spawn({
            let (path, context) = (path.clone(), first.clone());
            move || Turn::wait_at(&path, &context, |said| told.send(said.to_owned()).unwrap()).unwrap()
        });
        let said = hears.recv().unwrap();
        let holder = format!("process {}, into {}", std::process::id(), folder.path().display());
        assert!(said.contains(&holder) && said.contains("waiting until it has ended"), "{said}");
        assert!(!second.is_finished(), "while the first measures");
        drop(turn);
        drop(second.join().unwrap());
        assert_eq!(hears.recv().ok(), None, "it is said once");
        Turn::wait_at(&path, &first, |said| panic!("it is free again: {said}")).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = path.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o666, "all users may take a turn");
        }
    }

    #[test]
    fn a_wait_ends_when_the_user_wants_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let _held = Turn::wait_at(&path, &context(folder.path()), |_| {}).unwrap();
        let stopped = context(folder.path());
        stopped.stop_flag().store(true, Ordering::Relaxed);
        Turn::wait_at(&path, &stopped, |_| {}).expect_err("stopped");
    }

    #[test]
    fn what_cannot_be_locked_is_said_and_does_not_keep_anyone_from_measuring() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        std::fs::write(&target, "kept").unwrap();
        let link = folder.path().join(NAME);
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let mut said = Vec::new();
        for path in [link, folder.path().join("no/such/folder")] {
            Turn::wait_at(&path, &context(folder.path()), |s| said.push(s.to_owned())).unwrap();
        }
        assert!(said.len() == 2 && said.iter().all(|s| s.starts_with("warning: cannot keep")), "{said:?}");
        assert_eq!(std::fs::read_to_string(target).unwrap(), "kept", "a link is not followed");
    }
}
