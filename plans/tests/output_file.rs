//! Output files: what stands at a path stays what it is, and no half file is ever seen.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;

use plans::output_file::{OutputFile, deliver, writable, write};

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_is_replaced_whole_and_keeps_its_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    write(&path, b"old").unwrap();
    for mode in [0o600, 0o640, 0o755] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let reader = File::open(&path).unwrap();
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        file.flush().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old", "nothing is seen before the end");
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, mode);
        let mut old = String::new();
        (&reader).read_to_string(&mut old).unwrap();
        assert_eq!(old, "old", "who has the old file open keeps it");
        write(&path, b"old").unwrap();
    }
    drop(OutputFile::create(&path).unwrap());
    writable(&path).unwrap();
    assert_eq!((fs::read(&path).unwrap(), names(folder.path())), (b"old".to_vec(), vec!["file".to_owned()]));
}

#[test]
fn a_link_is_followed_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("inner")).unwrap();
    // relative, through another link, to a file that is not there yet
    symlink("second", at("first")).unwrap();
    symlink("inner/target", at("second")).unwrap();
    for text in ["new", "and again"] {
        writable(&at("first")).unwrap();
        write(&at("first"), text.as_bytes()).unwrap();
        assert_eq!(fs::read_to_string(at("inner/target")).unwrap(), text);
        for (link, target) in [("first", "second"), ("second", "inner/target")] {
            assert_eq!(fs::read_link(at(link)).unwrap(), Path::new(target), "{link} is still a link");
        }
    }
    assert_eq!(names(&at("inner")), ["target"]);
    symlink("round", at("round")).unwrap();
    let said = write(&at("round"), b"").unwrap_err().to_string();
    assert_eq!(said, "its symbolic links go round in a circle");
}

#[test]
fn a_pipe_is_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    writable(&pipe).unwrap();
    let reader = thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).unwrap()
    });
    write(&pipe, b"through").unwrap();
    assert_eq!(reader.join().unwrap(), b"through");
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo(), "it is still a pipe");
    assert_eq!(names(folder.path()), ["pipe"]);
}

/// A device of our own that takes everything, as `/dev/null` does; none where this user may not make one.
fn null(folder: &Path) -> Option<std::path::PathBuf> {
    let device = folder.join("null");
    let made = Command::new("mknod")
        .arg(&device)
        .args(["c", "1", "3"])
        .output()
        .is_ok_and(|run| run.status.success());
    // a file system may refuse devices though it lets them be made
    (made && File::options().write(true).open(&device).is_ok()).then_some(device)
}

#[test]
fn a_device_is_written_to_and_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = null(folder.path()) else {
        skipped::skipped("root", "only root can make a device");
        return;
    };
    let link = folder.path().join("link");
    symlink("null", &link).unwrap();
    for path in [&device, &link] {
        writable(path).unwrap();
        write(path, &[7; 100_000]).unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"whole").unwrap();
        deliver(&file, path).unwrap();
        assert!(fs::symlink_metadata(&device).unwrap().file_type().is_char_device(), "it is still a device");
        assert!(!file.exists(), "it was delivered");
    }
    assert_eq!(names(folder.path()), ["link", "null"]);
}

#[test]
fn a_file_is_delivered_under_its_name_with_the_permissions_that_stand_there() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("from"), "whole").unwrap();
    deliver(&at("from"), &at("to")).unwrap();
    fs::set_permissions(at("to"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(at("from"), "again").unwrap();
    symlink("to", at("link")).unwrap();
    deliver(&at("from"), &at("link")).unwrap();
    assert_eq!(fs::read_to_string(at("to")).unwrap(), "again");
    assert_eq!(fs::metadata(at("to")).unwrap().mode() & 0o777, 0o600);
    assert_eq!(names(folder.path()), ["link", "to"]);
}

#[test]
fn a_folder_is_refused_and_a_missing_one_named() {
    let folder = tempfile::tempdir().unwrap();
    let said = |path: &Path| {
        let error = write(path, b"").unwrap_err().to_string();
        assert_eq!(writable(path).unwrap_err().to_string(), error);
        error
    };
    assert_eq!(said(folder.path()), "it is a folder; name a file inside it");
    let none = folder.path().join("none");
    assert_eq!(
        said(&none.join("file")),
        format!("there is no folder {}; make it, or name another", none.display())
    );
}
