//! A hub on this machine, with one repository, whose misbehaviour is part of the test.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use serde_json::json;

/// The repository.
pub(crate) const NAME: &str = "someone/A-Model";
/// Its commit.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Files of so many bytes or more are in large file storage.
const LARGE_BYTES: usize = 64;

/// A request as it was heard.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) range: Option<String>,
    pub(crate) authorization: Option<String>,
}

/// Faults of the server, as long as they are set.
#[derive(Debug, Default)]
pub(crate) struct Behaviour {
    /// Connections are cut after so many bytes of a file, ...
    pub(crate) cut_after: usize,
    /// ... so many times.
    pub(crate) cuts: usize,
    /// Requests are refused with 503, so many times.
    pub(crate) refusals: usize,
    /// Files are refused with this status.
    pub(crate) status: Option<u16>,
    /// Sends the whole file for every requested range.
    pub(crate) ignores_ranges: bool,
    /// The length of files is not said.
    pub(crate) hides_length: bool,
    /// A file comes in four pieces, each after the first after such a wait.
    pub(crate) wait: Duration,
    /// The last bit that is sent is another one.
    pub(crate) flips: bool,
    /// So many bytes more than there are in a file.
    pub(crate) surplus: usize,
    /// The size that is announced of every large file instead of its own.
    pub(crate) announced: Option<u64>,
    /// Files are sent for to this origin instead of this hub's own storage.
    pub(crate) storage: Option<String>,
    /// Requests without this token are refused with 401.
    pub(crate) token: Option<String>,
}

struct State {
    files: Vec<(String, Vec<u8>)>,
    behaviour: Mutex<Behaviour>,
    asked: Mutex<Vec<Asked>>,
    port: u16,
}

/// The hub.
#[derive(Clone)]
pub(crate) struct Server(Arc<State>);

impl Server {
    pub(crate) fn new(files: &[(&str, &[u8])]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let files = files.iter().map(|&(path, bytes)| (path.to_owned(), bytes.to_owned())).collect();
        let this =
            Self(Arc::new(State { files, behaviour: Mutex::default(), asked: Mutex::default(), port }));
        let server = this.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = server.clone();
                thread::spawn(move || {
                    // a client that hangs up is no failure of the server
                    let _sent = server.answer(&stream);
                });
            }
        });
        this
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.0.port)
    }

    pub(crate) fn behave(&self) -> MutexGuard<'_, Behaviour> {
        self.0.behaviour.lock().unwrap()
    }

    /// Cuts the next connections after so many bytes of a file.
    pub(crate) fn cut(&self, after: usize, times: usize) {
        let mut behaviour = self.behave();
        (behaviour.cut_after, behaviour.cuts) = (after, times);
    }

    /// Requests since the last call.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.0.asked.lock().unwrap())
    }

    fn listing(&self, announced: Option<u64>) -> String {
        let siblings: Vec<_> = self.0.files.iter().map(|(path, bytes)| {
            let of_git = [format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat();
            let lfs = (bytes.len() >= LARGE_BYTES)
                .then(|| json!({ "sha256": hex(digest(&SHA256, bytes).as_ref()), "size": announced.unwrap_or(bytes.len() as u64), "pointerSize": 134 }));
            let blob = hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, &of_git).as_ref());
            json!({ "rfilename": path, "size": bytes.len(), "blobId": blob, "lfs": lfs })
        }).collect();
        json!({ "id": NAME, "sha": COMMIT, "private": false, "siblings": siblings }).to_string()
    }

    fn answer(&self, stream: &TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream).lines();
        let line = lines.next().unwrap()?;
        let path = line.split(' ').nth(1).unwrap().to_owned();
        let mut asked = Asked { path: path.clone(), range: None, authorization: None };
        for header in lines.map_while(Result::ok).take_while(|line| !line.is_empty()) {
            match header.split_once(": ").unwrap() {
                (name, value) if name.eq_ignore_ascii_case("range") => asked.range = Some(value.to_owned()),
                (name, value) if name.eq_ignore_ascii_case("authorization") => {
                    asked.authorization = Some(value.to_owned());
                }
                _ => {}
            }
        }
        self.0.asked.lock().unwrap().push(asked.clone());
        let mut behaviour = self.behave();
        if behaviour.refusals > 0 {
            behaviour.refusals -= 1;
            return send(stream, 503, &[], b"");
        }
        let is_storage = path.starts_with("/storage/");
        let wanted = behaviour.token.as_ref().map(|token| format!("Bearer {token}"));
        if !is_storage && wanted.is_some() && asked.authorization != wanted {
            return send(stream, 401, &[], b"Invalid username or password.");
        }
        if path == format!("/api/models/{NAME}?blobs=true") {
            return send(stream, 200, &[], self.listing(behaviour.announced).as_bytes());
        }
        // the hub sends people to its storage, which is another host and knows nothing of tokens
        if let Some(file) = path.strip_prefix(&format!("/{NAME}/resolve/{COMMIT}/")) {
            let own = format!("http://localhost:{}", self.0.port);
            let storage = behaviour.storage.as_ref().unwrap_or(&own);
            return send(stream, 302, &[&format!("Location: {storage}/storage/{file}")], b"");
        }
        let file = path.strip_prefix("/storage/").map(|path| path.replace("%20", " "));
        let found = self.0.files.iter().find(|(path, _)| Some(path) == file.as_ref());
        let Some((_, bytes)) = found else { return send(stream, 404, &[], b"Repository not found") };
        if let Some(status) = behaviour.status {
            return send(stream, status, &[], b"");
        }
        let mut bytes = bytes.clone();
        bytes.extend(std::iter::repeat_n(0, behaviour.surplus));
        if behaviour.flips {
            *bytes.last_mut().unwrap() ^= 1;
        }
        let first = asked.range.filter(|_| !behaviour.ignores_ranges);
        let (first, end) = first.map_or((None, bytes.len()), |range| {
            let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
            let end = if last.is_empty() { bytes.len() } else { last.parse::<usize>().unwrap() + 1 };
            (Some(first.parse::<usize>().unwrap()), end.min(bytes.len()))
        });
        let cut = behaviour.cuts > 0;
        behaviour.cuts -= usize::from(cut);
        let sent = &bytes[first.unwrap_or(0)..end];
        let length = if behaviour.hides_length {
            "Transfer-Encoding: chunked".to_owned()
        } else {
            format!("Content-Length: {}", sent.len())
        };
        let range = first.map(|first| format!("Content-Range: bytes {first}-{}/{}", end - 1, bytes.len()));
        let headers: Vec<&str> = [&length].into_iter().chain(&range).map(String::as_str).collect();
        let sent = if cut { &sent[..behaviour.cut_after.min(sent.len())] } else { sent };
        let wait = behaviour.wait;
        drop(behaviour);
        let status = if first.is_some() { 206 } else { 200 };
        if wait.is_zero() {
            return send(stream, status, &headers, sent);
        }
        let (mut stream, mut pieces) = (stream, sent.chunks(sent.len().div_ceil(4)));
        send(stream, status, &headers, pieces.next().unwrap_or_default())?;
        for piece in pieces {
            thread::sleep(wait);
            stream.write_all(piece)?;
        }
        Ok(())
    }
}

/// Sends an answer, and closes the connection. Its length is said where it is not among the headers.
fn send(mut stream: &TcpStream, status: u16, headers: &[&str], body: &[u8]) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} so\r\nConnection: close\r\n");
    for header in headers {
        head += &format!("{header}\r\n");
    }
    let says_length = |header: &&str| header.starts_with("Content-Length") || header.starts_with("Transfer-");
    if !headers.iter().any(says_length) {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    stream.write_all(body)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
