//! One profile at a time on a machine: two would measure each other.
//!
//! An advisory lock on a file in the folder for temporary files, which all users of a machine share. The system gives it up when its
//! holder ends, however that is. The file says who holds it, for those who wait.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use crate::{Context, Stopped};

const NAME: &str = "flashplan-profile.lock";
/// Everyone may hold it, and say so.
const MODE: u32 = 0o666;
/// Between two looks at whether it is free.
const PAUSE: Duration = Duration::from_millis(200);
/// Of what the holder says, so many characters are told.
const SAID_MAX: usize = 300;

/// The right to measure, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    /// Locked; where the system gives no lock there is none.
    _file: Option<File>,
}

impl Turn {
    /// Waits until no other profile measures on this machine; `say` is told whom it waits for, or why it does not wait.
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
        let mut file = match opened(path) {
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
        // for people; a file of another user takes it or not
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

/// The file, made if it is not there; never one that a link points to.
fn opened(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    // in a folder of everyone's, some systems refuse to make a file that another user has made: so it is opened first
    match options.clone().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match options.clone().write(true).create_new(true).mode(MODE).open(path) {
                Ok(file) => {
                    // without what the umask takes away
                    file.set_permissions(Permissions::from_mode(MODE))?;
                    Ok(file)
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.write(true).open(path),
                Err(error) => Err(error),
            }
        }
        // a lock needs no right to write
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => options.open(path),
        opened => opened,
    }
}

/// The holder's words about itself, as far as they can be shown.
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
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, MODE);
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
