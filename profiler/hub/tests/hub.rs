//! Models are fetched from a hub on this machine that does what hubs and networks do.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use hub::{Hub, HubError, Kind, Model};
use tempfile::TempDir;

mod server;

use server::{COMMIT, NAME, Server};

/// Bytes that differ from place to place.
fn weights(bytes: u32) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// A hub, and an empty cache of it.
struct Place {
    server: Server,
    home: TempDir,
    token: Option<&'static str>,
}

impl Place {
    fn new(files: &[(&str, &[u8])]) -> Self {
        Self { server: Server::new(files), home: TempDir::new().unwrap(), token: None }
    }

    fn hub(&self) -> Hub {
        let variable = |name: &str| match name {
            "HF_ENDPOINT" => Some(self.server.endpoint()),
            "HF_HOME" => Some(self.home.path().to_str().unwrap().to_owned()),
            "HF_TOKEN" => self.token.map(str::to_owned),
            _ => None,
        };
        Hub::from_environment(variable).unwrap().with_pause(Duration::from_millis(1))
    }

    fn find(&self, asked: &str) -> Result<Model, HubError> {
        self.hub().find(&format!("hf:{NAME}{asked}").parse().unwrap(), &mut || true)
    }

    fn fetch(&self, asked: &str) -> Result<PathBuf, HubError> {
        self.hub().fetch(&self.find(asked)?, &mut |_| true)
    }

    /// The folder of the repository in the cache.
    fn folder(&self) -> PathBuf {
        self.home.path().join("hub/models--someone--A-Model")
    }

    /// Names of the files of the repository whose bytes are there, in whole or in part.
    fn blobs(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.folder().join("blobs")) else { return Vec::new() };
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Ranges of files requested from their storage since the last call.
    fn ranges(&self) -> Vec<Option<String>> {
        let asked = self.server.asked().into_iter();
        asked.filter(|it| it.path.starts_with("/storage/")).map(|it| it.range).collect()
    }
}

fn from(byte: u32) -> Option<String> {
    Some(format!("bytes={byte}-"))
}

#[test]
fn a_file_lies_in_the_cache_as_the_hubs_own_programs_have_it_and_is_fetched_once() {
    let weights = weights(3_000_000);
    let here = Place::new(&[("README.md", b"words"), ("sub folder/m-Q4_0.gguf", &weights)]);
    let model = here.find(":Q4_0").unwrap();
    assert_eq!((model.choice.kind, model.bytes()), (Kind::Gguf, 3_000_000));
    assert_eq!(here.hub().missing_bytes(&model), 3_000_000);

    let mut told = Vec::new();
    let path = here
        .hub()
        .fetch(&model, &mut |bytes| {
            told.push(bytes);
            true
        })
        .unwrap();
    assert_eq!(path, here.folder().join(format!("snapshots/{COMMIT}/sub folder/m-Q4_0.gguf")));
    assert_eq!(fs::read(&path).unwrap(), weights);
    assert!(told.is_sorted() && told.last() == Some(&3_000_000), "{told:?}");
    // `huggingface_hub`: a link relative to itself, to a blob that has its checksum's name; the commit of the branch
    let link = fs::read_link(&path).unwrap();
    assert_eq!(link, Path::new("../../../blobs").join(&here.blobs()[0]));
    assert_eq!(here.blobs().len(), 1);
    assert_eq!(fs::read_to_string(here.folder().join("refs/main")).unwrap(), COMMIT);

    here.server.asked();
    assert_eq!(here.hub().missing_bytes(&here.find("").unwrap()), 0);
    assert_eq!(here.fetch("").unwrap(), path);
    assert_eq!(here.ranges(), Vec::<Option<String>>::new());
}

#[test]
fn a_cut_connection_goes_on_where_it_was_as_often_as_it_must() {
    let weights = weights(1_000_000);
    let here = Place::new(&[("m.gguf", &weights)]);
    here.server.cut(100_000, 9);
    here.server.behave().refusals = 2;
    assert_eq!(fs::read(here.fetch("").unwrap()).unwrap(), weights);
    let expected: Vec<_> = (0..10).map(|cuts| (cuts > 0).then(|| from(cuts * 100_000).unwrap())).collect();
    assert_eq!(here.ranges(), expected);
}

#[test]
fn a_stopped_start_is_gone_on_with_and_checked_as_a_whole() {
    let weights = weights(2_000_000);
    let here = Place::new(&[("m.gguf", &weights)]);
    let model = here.find("").unwrap();
    let stopped = here.hub().fetch(&model, &mut |bytes| bytes < 700_000).unwrap_err();
    assert!(matches!(stopped, HubError::Stopped), "{stopped}");
    let [incomplete] = &here.blobs()[..] else { panic!("{:?}", here.blobs()) };
    assert!(incomplete.ends_with(".incomplete"), "{incomplete}");
    let there = fs::metadata(here.folder().join("blobs").join(incomplete)).unwrap().len();
    assert!((700_000..2_000_000).contains(&there), "{there}");
    assert_eq!(here.hub().missing_bytes(&model), 2_000_000 - there);
    assert!(!here.folder().join("snapshots").exists(), "a name for a part of a file");

    here.server.asked();
    assert_eq!(fs::read(here.fetch("").unwrap()).unwrap(), weights);
    assert_eq!(here.ranges(), [from(there as u32)]);
}

#[test]
fn a_part_that_is_damaged_meanwhile_is_found_by_the_checksum() {
    let weights = weights(2_000_000);
    let here = Place::new(&[("m.gguf", &weights)]);
    here.hub().fetch(&here.find("").unwrap(), &mut |bytes| bytes < 700_000).unwrap_err();
    let incomplete = here.folder().join("blobs").join(&here.blobs()[0]);
    let mut bytes = fs::read(&incomplete).unwrap();
    bytes[123] ^= 1;
    fs::write(&incomplete, bytes).unwrap();
    let there = fs::metadata(&incomplete).unwrap().len();
    here.server.asked();
    assert_eq!(fs::read(here.fetch("").unwrap()).unwrap(), weights);
    // begun again once ...
    assert_eq!(here.ranges(), [from(there as u32), None]);

    let here = Place::new(&[("m.gguf", &weights)]);
    here.server.behave().flips = true;
    here.server.cut(700_000, 1);
    let error = here.fetch("").unwrap_err();
    assert!(matches!(&error, HubError::Checksum { file, .. } if file == "m.gguf"), "{error}");
    // ... and no more; it is gone, so that the same command is right
    assert_eq!(here.ranges(), [None, from(700_000), None]);
    assert_eq!(here.blobs(), Vec::<String>::new());
}

#[test]
fn a_file_that_was_damaged_in_the_cache_is_found_and_fetched_again() {
    let weights = weights(1_000_000);
    let here = Place::new(&[("m.gguf", &weights), ("README.md", b"words")]);
    let path = here.fetch("").unwrap();
    let model = here.find("").unwrap();
    let damaged = || here.hub().discard_damaged(&model, &mut |_| true).unwrap();
    assert_eq!(damaged(), [] as [&str; 0]);

    let mut bytes = fs::read(&path).unwrap();
    bytes[123_456] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_eq!(here.hub().missing_bytes(&model), 0, "its length is right");
    let stopped = here.hub().discard_damaged(&model, &mut |_| false).unwrap_err();
    assert!(matches!(stopped, HubError::Stopped), "{stopped}");
    assert_eq!(damaged(), ["m.gguf"]);
    assert_eq!(here.hub().missing_bytes(&model), 1_000_000);
    here.server.asked();
    assert_eq!(fs::read(here.fetch("").unwrap()).unwrap(), weights);
    assert_eq!(here.ranges(), [None]);
    assert_eq!(damaged(), [] as [&str; 0]);
}

#[test]
fn a_cached_file_is_read_again_only_after_a_change() {
    let here = Place::new(&[("m.gguf", &weights(1_000_000))]);
    let path = here.fetch("").unwrap();
    let model = here.find("").unwrap();
    let read = || {
        let mut most = 0;
        let checked = here.hub().discard_damaged(&model, &mut |bytes| {
            most = most.max(bytes);
            true
        });
        assert_eq!(checked.unwrap(), [] as [&str; 0]);
        most
    };
    assert_eq!(read(), 0, "its checksum was right when it came");
    let file = fs::File::options().append(true).open(&path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(read(), 1_000_000);
    assert_eq!(read(), 0);
    // a cache of another's, which takes no notes
    let locks = here.home.path().join("hub/.locks");
    fs::remove_dir_all(&locks).unwrap();
    fs::write(&locks, "").unwrap();
    assert_eq!((read(), read()), (1_000_000, 1_000_000));
}

#[test]
fn wrong_bytes_are_refused_and_never_have_a_name() {
    // one file by SHA-256, one by git's SHA-1
    for bytes in [&weights(1_000)[..], b"short"] {
        let here = Place::new(&[("m.gguf", bytes)]);
        here.server.behave().flips = true;
        let error = here.fetch("").unwrap_err().to_string();
        assert!(error.contains("m.gguf has the checksum") && error.contains("fetches it again"), "{error}");
        assert!(here.blobs().is_empty() && !here.folder().join("snapshots").exists());
    }
    let here = Place::new(&[("m.gguf", &weights(1_000))]);
    here.server.behave().surplus = 1;
    let error = here.fetch("").unwrap_err().to_string();
    assert!(error.contains("m.gguf should have 1000 bytes and comes with 1001"), "{error}");
}

#[test]
fn a_server_that_sends_everything_again_is_understood() {
    let weights = weights(1_000_000);
    let here = Place::new(&[("m.gguf", &weights)]);
    here.server.cut(400_000, 1);
    here.server.behave().ignores_ranges = true;
    assert_eq!(fs::read(here.fetch("").unwrap()).unwrap(), weights);
    assert_eq!(here.ranges(), [None, from(400_000)]);
}

#[test]
fn a_server_that_sends_everything_again_and_is_cut_each_time_is_given_up() {
    let here = Place::new(&[("m.gguf", &weights(1_000_000))]);
    here.server.cut(400_000, usize::MAX);
    here.server.behave().ignores_ranges = true;
    let error = here.fetch("").unwrap_err();
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
    assert_eq!(here.ranges().len(), 1 + 5);
}

#[test]
fn what_came_is_not_given_up_for_an_answer_of_unknown_length() {
    let here = Place::new(&[("m.gguf", &weights(1_000))]);
    here.server.cut(400, 1);
    let model = here.find("").unwrap();
    let cut = here.hub().fetch(&model, &mut |_| {
        // from the second request on
        let mut behaviour = here.server.behave();
        (behaviour.ignores_ranges, behaviour.hides_length) = (true, true);
        true
    });
    let error = cut.unwrap_err();
    assert!(matches!(error, HubError::Length { .. }), "{error}");
    assert_eq!(here.hub().missing_bytes(&model), 600);
}

#[test]
fn a_body_may_take_longer_than_the_time_in_which_more_must_come() {
    let weights = weights(1_000);
    let here = Place::new(&[("m.gguf", &weights)]);
    here.server.behave().wait = Duration::from_millis(400);
    let model = here.find("").unwrap();
    let patient = here.hub().with_patience(Duration::from_millis(1000));
    assert_eq!(fs::read(patient.fetch(&model, &mut |_| true).unwrap()).unwrap(), weights);
    assert_eq!(here.ranges(), [None]);

    let here = Place::new(&[("m.gguf", &weights)]);
    here.server.behave().wait = Duration::from_secs(2);
    let impatient = here.hub().with_patience(Duration::from_millis(100));
    assert_eq!(fs::read(impatient.fetch(&model, &mut |_| true).unwrap()).unwrap(), weights);
    assert!(here.ranges().len() > 1, "asked again where nothing came");
}

#[test]
fn a_model_that_is_there_needs_nothing_written() {
    let here = Place::new(&[("m.gguf", &weights(1_000))]);
    let path = here.fetch("").unwrap();
    let latest = here.folder().join("refs/main");
    let long_ago = SystemTime::UNIX_EPOCH;
    fs::File::options().append(true).open(&latest).unwrap().set_modified(long_ago).unwrap();
    let locks = here.home.path().join("hub/.locks");
    fs::remove_dir_all(&locks).unwrap();
    assert_eq!(here.fetch("").unwrap(), path);
    assert!(!locks.exists(), "a lock for what is there");
    assert_eq!(fs::metadata(&latest).unwrap().modified().unwrap(), long_ago);
}

#[test]
fn a_connection_that_brings_nothing_any_more_is_given_up_and_what_came_is_kept() {
    let here = Place::new(&[("m.gguf", &weights(1_000))]);
    here.server.cut(400, 1);
    let model = here.find("").unwrap();
    let cut = here.hub().fetch(&model, &mut |_| {
        here.server.behave().status = Some(500); // from the second request on
        true
    });
    let error = cut.unwrap_err();
    assert!(
        matches!(error, HubError::Refused { status: 500, .. })
            && error.to_string().contains("try again later"),
        "{error}"
    );
    assert_eq!(here.hub().missing_bytes(&model), 600);
    assert_eq!(here.ranges().len(), 1 + 5);
}

#[test]
fn a_refusal_says_what_to_do() {
    let mut here = Place::new(&[("m.gguf", &weights(1_000))]);
    here.server.behave().token = Some("secret".to_owned());
    let error = here.fetch("").unwrap_err().to_string();
    assert!(
        error.contains("answers 401") && error.contains("set HF_TOKEN") && error.contains(NAME),
        "{error}"
    );
    here.token = Some("other");
    let error = here.fetch("").unwrap_err().to_string();
    assert!(error.contains("the token in HF_TOKEN does not open it") && !error.contains("other"), "{error}");
    here.token = Some("secret");
    here.server.asked();
    here.fetch("").unwrap();
    for asked in here.server.asked() {
        let is_storage = asked.path.starts_with("/storage/");
        assert_eq!(asked.authorization.is_none(), is_storage, "the token is for the hub alone: {asked:?}");
    }

    let unknown =
        here.hub().find(&"hf:someone/Other".parse().unwrap(), &mut || true).unwrap_err().to_string();
    assert!(unknown.contains("answers 404") || unknown.contains("answers 401"), "{unknown}");
    here.server.behave().token = None;
    let unknown =
        here.hub().find(&"hf:someone/Other".parse().unwrap(), &mut || true).unwrap_err().to_string();
    assert!(unknown.contains("answers 404") && unknown.contains("mind its spelling"), "{unknown}");
    here.server.behave().status = Some(403);
    fs::remove_dir_all(here.folder()).unwrap();
    let error = here.fetch("").unwrap_err().to_string();
    assert!(error.contains("answers 403") && error.contains("accept them at"), "{error}");
}

#[test]
fn the_token_stays_at_the_hubs_own_port() {
    let weights = weights(1_000);
    let files: [(&str, &[u8]); 1] = [("m.gguf", &weights)];
    let (mut here, neighbour) = (Place::new(&files), Server::new(&files));
    here.token = Some("secret");
    here.server.behave().storage = Some(neighbour.endpoint());
    assert_eq!(fs::read(here.fetch("").unwrap()).unwrap(), weights);
    let asked = neighbour.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].authorization, None, "another port of the same host is another server");

    // the hub's own addresses may be relative, and the token stays with them
    fs::remove_dir_all(here.folder()).unwrap();
    here.server.asked();
    here.server.behave().storage = Some(String::new());
    assert_eq!(fs::read(here.fetch("").unwrap()).unwrap(), weights);
    assert!(here.server.asked().iter().all(|it| it.authorization.as_deref() == Some("Bearer secret")));
}

#[test]
fn redirects_that_lead_nowhere_are_told() {
    let here = Place::new(&[("m.gguf", &weights(1_000))]);
    here.server.behave().storage = Some(format!("{}/{NAME}/resolve/{COMMIT}", here.server.endpoint()));
    let error = here.fetch("").unwrap_err().to_string();
    assert!(error.contains("redirects more than 10 times"), "{error}");
}

#[test]
fn the_token_may_lie_in_its_file() {
    let here = Place::new(&[("m.gguf", &weights(1_000))]);
    here.server.behave().token = Some("kept".to_owned());
    fs::write(here.home.path().join("token"), "kept\n").unwrap();
    here.fetch("").unwrap();
}

#[test]
fn without_the_hub_what_was_fetched_is_named() {
    let here = Place::new(&[("m.gguf", &weights(1_000))]);
    let error = here.find(":Q9").unwrap_err().to_string();
    assert!(
        error.starts_with("someone/A-Model has no Q9; name one of\n  hf:someone/A-Model:m.gguf"),
        "{error}"
    );
    here.fetch("").unwrap();
    let variable = |name: &str| match name {
        "HF_ENDPOINT" => Some("http://127.0.0.1:9".to_owned()),
        "HF_HOME" => Some(here.home.path().to_str().unwrap().to_owned()),
        _ => None,
    };
    let hub = Hub::from_environment(variable).unwrap().with_pause(Duration::from_millis(1));
    let error = hub.find(&format!("hf:{NAME}").parse().unwrap(), &mut || true).unwrap_err().to_string();
    let folder = here.folder().join("snapshots").join(COMMIT);
    assert!(
        error.contains("cannot reach http://127.0.0.1:9") && error.contains(folder.to_str().unwrap()),
        "{error}"
    );
}

#[test]
fn parts_and_folders_come_whole() {
    let files: [(&str, &[u8]); 6] = [
        ("m-Q8_0-00001-of-00002.gguf", &weights(1_000)),
        ("m-Q8_0-00002-of-00002.gguf", &weights(2_000)),
        ("config.json", b"{}"),
        ("tokenizer.json", b"{ }"),
        ("model.safetensors", &weights(3_000)),
        ("README.md", b"words"),
    ];
    let here = Place::new(&files);
    let first = here.fetch("").unwrap();
    assert_eq!(fs::read(&first).unwrap(), files[0].1);
    assert_eq!(fs::read(first.with_file_name("m-Q8_0-00002-of-00002.gguf")).unwrap(), files[1].1);

    let here = Place::new(&files[2..]);
    let folder = here.fetch("").unwrap();
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), files[4].1);
}

#[test]
fn variables_say_where_the_hub_and_the_cache_are() {
    let with = |variables: &[(&str, &str)]| {
        let find =
            |name: &str| variables.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned());
        Hub::from_environment(find)
    };
    for (variables, folder) in [
        (&[("HOME", "/home/me")][..], "/home/me/.cache/huggingface/hub"),
        (&[("HOME", "/home/me"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
        (&[("HF_HOME", "/hf"), ("XDG_CACHE_HOME", "/x")], "/hf/hub"),
        (&[("HF_HUB_CACHE", "/models"), ("HF_HOME", "/hf")], "/models"),
    ] {
        let hub = with(variables).unwrap();
        assert_eq!((hub.folder(), hub.endpoint()), (Path::new(folder), "https://huggingface.co"));
    }
    let mirror = with(&[("HF_HOME", "/hf"), ("HF_ENDPOINT", "https://mirror.example/")]).unwrap();
    assert_eq!(mirror.endpoint(), "https://mirror.example");
    for (variables, name) in
        [(&[][..], "HF_HOME"), (&[("HF_HOME", "/hf"), ("HF_ENDPOINT", "mirror.example")], "HF_ENDPOINT")]
    {
        assert!(with(variables).unwrap_err().to_string().starts_with(name));
    }
    let error = with(&[("HF_HOME", "/hf"), ("HF_ENDPOINT", "https://me:secret@mirror.example")]).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("HF_TOKEN") && !error.contains("secret"), "{error}");
}

#[test]
fn two_at_once_fetch_a_file_once() {
    let weights = weights(2_000_000);
    let here = Place::new(&[("m.gguf", &weights)]);
    std::thread::scope(|scope| {
        let each: Vec<_> = (0..2).map(|_| scope.spawn(|| here.fetch("").unwrap())).collect();
        for path in each {
            assert_eq!(fs::read(path.join().unwrap()).unwrap(), weights);
        }
    });
    assert_eq!(here.ranges(), [None]);
}
