//! Output files: what stands at a path stays what it is, and no half file is ever seen.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;

use plans::file;
use plans::output_file::{self, OutputFile, OutputKind};
use plans::{Device, Plan};

/// A kind that every file has.
const ANY: OutputKind = OutputKind { name: "anything", is_one: |_| true };

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    output_file::write(path, ANY, bytes)
}

fn writable(path: &Path) -> std::io::Result<()> {
    output_file::writable(path, ANY, &[])
}

fn deliver(from: &Path, to: &Path) -> std::io::Result<()> {
    output_file::deliver(from, to, ANY)
}

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
        let mut file = OutputFile::create(&path, ANY).unwrap();
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
    drop(OutputFile::create(&path, ANY).unwrap());
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

/// Files of users that an output must not replace.
const OF_USERS: [(&str, &[u8]); 5] = [
    ("model.gguf", b"GGUF\x03\x00\x00\x00"),
    ("model.bundle", b"flashpln"),
    ("note.txt", b"remember the milk\n"),
    ("table.csv", b"name,age\nAda,36\n"),
    ("drawing.svg", b"<?xml version=\"1.0\"?>\n<svg width=\"1\"/>\n"),
];

#[test]
fn a_file_of_another_kind_is_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let text = |name: &str| fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)).unwrap();
    let (device, plan) = (text("device.toml"), text("plan.toml"));
    let kinds = [
        file::kind::<Plan>(),
        file::kind::<Device>(),
        OutputKind::PICTURE,
        OutputKind { name: "a table of ours", is_one: |head| head.starts_with(b"a,b,") },
    ];
    let mut cases: Vec<(OutputKind, &[u8])> =
        kinds.iter().flat_map(|kind| OF_USERS.map(|(_, bytes)| (*kind, bytes))).collect();
    cases.extend([(kinds[0], &*device), (kinds[1], &*plan)]);
    let (path, new) = (folder.path().join("file"), folder.path().join("new"));
    for (kind, bytes) in cases {
        fs::write(&path, bytes).unwrap();
        fs::write(&new, "new").unwrap();
        let said = output_file::write(&path, kind, b"new").unwrap_err().to_string();
        assert_eq!(
            said,
            format!(
                "the file that is there is not {}, and would be lost; name another file, or remove that one",
                kind.name
            )
        );
        for also in [output_file::writable(&path, kind, &[]), output_file::deliver(&new, &path, kind)] {
            assert_eq!(also.unwrap_err().to_string(), said);
        }
        assert!(fs::read(&path).unwrap() == bytes && new.exists(), "{said}");
    }
    assert_eq!(names(folder.path()), ["file", "new"]);
}

#[test]
fn a_file_of_another_kind_that_appears_meanwhile_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let mut file = OutputFile::create(&path, OutputKind::GGUF).unwrap();
    file.write_all(b"GGUF").unwrap();
    fs::write(&path, "remember the milk\n").unwrap();
    let said = file.finish().unwrap_err().to_string();
    assert!(said.starts_with("the file that is there is not a GGUF file, and would be lost"), "{said}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "remember the milk\n");
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn an_earlier_output_and_an_empty_file_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let (header, device) = (
        "<svg width=\"9\" height=\"9\" viewBox=\"0 0 9 9\" xmlns=\"http://www.w3.org/2000/svg\">\n",
        "device.toml",
    );
    let device = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(device)).unwrap();
    // even one that cannot be read any more
    let damaged = [&device[..device.len() / 2], b"\n[[["].concat();
    for (kind, old) in [
        (OutputKind::PICTURE, header.as_bytes()),
        (file::kind::<Device>(), &*device),
        (file::kind::<Device>(), &*damaged),
        (file::kind::<Device>(), b""),
    ] {
        fs::write(&path, old).unwrap();
        output_file::writable(&path, kind, &[]).unwrap();
        output_file::write(&path, kind, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new", "{}", kind.name);
    }
}

#[test]
fn an_input_is_never_replaced_under_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("inner")).unwrap();
    fs::write(at("input"), "read").unwrap();
    fs::hard_link(at("input"), at("linked")).unwrap();
    symlink("../input", at("inner/link")).unwrap();
    for name in ["input", "linked", "inner/link", "inner/../input"] {
        let refused = output_file::writable(&at(name), ANY, &[("the text", &at("input"))]).unwrap_err();
        assert_eq!(refused.to_string(), "it is the text; name another file", "{name}");
    }
    // another output, which is not there yet
    let other = [("where the report goes", &*at("later"))];
    let refused = output_file::writable(&at("inner/../later"), ANY, &other).unwrap_err();
    assert_eq!(refused.to_string(), "it is where the report goes; name another file");
    output_file::writable(&at("later.svg"), ANY, &other).unwrap();
    // an output whose link leads to a file that is not there yet, either way round
    symlink("later", at("ahead")).unwrap();
    for (path, taken) in [("later", "ahead"), ("ahead", "later")] {
        let taken = [("where the report goes", &*at(taken))];
        let refused = output_file::writable(&at(path), ANY, &taken).unwrap_err();
        assert_eq!(refused.to_string(), "it is where the report goes; name another file", "{path}");
    }
    output_file::writable(Path::new("/dev/null"), ANY, &[("an output", Path::new("/dev/null"))]).unwrap();
}
