//! Downloads a file, in any number of pieces.

use std::fs::{self, File as OpenFile};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ureq::Body;
use ureq::http::Response;

use crate::checksum::Hasher;
use crate::client::unreachable;
use crate::error::HubError;
use crate::listing::File;
use crate::verify::Stamp;
use crate::{Hub, Model};

/// Maximum requests in a row without progress.
const FAILURES_MAX: u32 = 5;
/// Bytes that are read at once.
const BUFFER_BYTES: usize = 1 << 18;
/// Maximum delay of a stop during a wait.
const SOON: Duration = Duration::from_millis(50);

impl Hub {
    /// Fetches a file unless it is complete. `go_on` gets the number of bytes present.
    pub(crate) fn fetch_file(
        &self,
        model: &Model,
        file: &File,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), HubError> {
        let all = |go_on: &mut dyn FnMut(u64) -> bool| {
            if go_on(file.bytes) { Ok(()) } else { Err(HubError::Stopped) }
        };
        // a complete file needs no lock: the cache may be read-only
        if self.cache.has(&model.name, file) {
            return all(go_on);
        }
        let _lock = loop {
            match self.cache.lock(&model.name, file)? {
                Some(lock) => break lock,
                None => wait(SOON, &mut || go_on(0))?,
            }
        };
        if self.cache.has(&model.name, file) {
            return all(go_on);
        }
        let (blob, incomplete) =
            (self.cache.blob(&model.name, file), self.cache.incomplete(&model.name, file));
        let mut arriving = Arriving::open(&incomplete, file, go_on)?;
        let mut again = false;
        loop {
            self.complete(&mut arriving, model, go_on)?;
            let found = arriving.checksum()?;
            if found == file.checksum.hex() {
                fs::rename(&incomplete, &blob).map_err(HubError::io("rename", &incomplete))?;
                if let Some(stamp) = Stamp::of(&blob) {
                    self.cache.note_checked(&model.name, file, &stamp);
                }
                return Ok(());
            }
            if again || !arriving.resumed {
                fs::remove_file(&incomplete).map_err(HubError::io("remove", &incomplete))?;
                let expected = file.checksum.hex().to_owned();
                return Err(HubError::Checksum { file: file.path.clone(), expected, found });
            }
            // a piece was another file's, or was damaged meanwhile
            tracing::info!(file = file.path, "begins again: its pieces do not make it");
            again = true;
            arriving.begin_again()?;
        }
    }

    /// Downloads the rest of a file.
    fn complete(
        &self,
        arriving: &mut Arriving<'_>,
        model: &Model,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), HubError> {
        let file = arriving.of;
        let url = self.client.url(&model.name, &model.commit, &file.path);
        // a hub may send everything from the first byte again: only new bytes are progress
        let (mut failures, mut most) = (0, arriving.bytes);
        while arriving.bytes < file.bytes {
            let response = self.client.get(&url, &model.name, arriving.bytes);
            match response.and_then(|response| arriving.take(response, &url, go_on)) {
                Err(error) if error.passes() => {
                    failures = if arriving.bytes > most { 0 } else { failures + 1 };
                    most = most.max(arriving.bytes);
                    if failures == FAILURES_MAX {
                        return Err(error);
                    }
                    tracing::info!(file = file.path, bytes = arriving.bytes, "goes on after: {error}");
                    wait(self.pause * (1 << failures), &mut || go_on(arriving.bytes))?;
                }
                other => other?,
            }
        }
        Ok(())
    }
}

/// Retries after temporary failures.
pub(crate) fn patiently<T>(
    pause: Duration,
    go_on: &mut dyn FnMut() -> bool,
    mut ask: impl FnMut() -> Result<T, HubError>,
) -> Result<T, HubError> {
    let mut failures = 0;
    loop {
        match ask() {
            Err(error) if error.passes() && failures + 1 < FAILURES_MAX => {
                tracing::info!("asks again after: {error}");
                wait(pause * (1 << failures), go_on)?;
                failures += 1;
            }
            other => return other,
        }
    }
}

/// Waits, unless it is time to stop.
fn wait(time: Duration, go_on: &mut dyn FnMut() -> bool) -> Result<(), HubError> {
    let end = Instant::now() + time;
    loop {
        if !go_on() {
            return Err(HubError::Stopped);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(SOON));
    }
}

/// A partial file.
struct Arriving<'a> {
    of: &'a File,
    path: &'a Path,
    file: OpenFile,
    hasher: Hasher,
    bytes: u64,
    /// Whether it is made of several pieces.
    resumed: bool,
    buffer: Vec<u8>,
}

impl<'a> Arriving<'a> {
    /// Opens the partial file of an earlier start, or an empty one.
    fn open(path: &'a Path, of: &'a File, go_on: &mut dyn FnMut(u64) -> bool) -> Result<Self, HubError> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(HubError::io("create", folder))?;
        }
        let mut options = OpenFile::options();
        let options = options.create(true).truncate(false).read(true).write(true);
        let file = options.open(path).map_err(HubError::io("write", path))?;
        let hasher = of.checksum.hasher(of.bytes);
        let buffer = vec![0; BUFFER_BYTES];
        let mut this = Self { of, path, file, hasher, bytes: 0, resumed: false, buffer };
        let there = this.file.metadata().map_err(HubError::io("read", path))?.len();
        if there > of.bytes {
            this.begin_again()?;
        }
        while this.bytes < there.min(of.bytes) {
            match this.file.read(&mut this.buffer).map_err(HubError::io("read", path))? {
                0 => break,
                count => this.count(count),
            }
            this.resumed = true;
            if !go_on(this.bytes) {
                return Err(HubError::Stopped);
            }
        }
        Ok(this)
    }

    /// Counts bytes of the buffer as part of the file.
    fn count(&mut self, count: usize) {
        self.hasher.update(&self.buffer[..count]);
        self.bytes += count as u64;
    }

    fn begin_again(&mut self) -> Result<(), HubError> {
        self.hasher = self.of.checksum.hasher(self.of.bytes);
        (self.bytes, self.resumed) = (0, false);
        self.file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .map_err(HubError::io("write", self.path))?;
        Ok(())
    }

    /// Takes the bytes of an answer, and keeps all that came before an error.
    fn take(
        &mut self,
        response: Response<Body>,
        url: &str,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), HubError> {
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let wrong = |found: &str| HubError::Length {
            file: self.of.path.clone(),
            expected: self.of.bytes,
            found: found.to_owned(),
        };
        if response.status() == 206 {
            let range = header("content-range").unwrap_or_default();
            let expected = format!("bytes {}-{}/{}", self.bytes, self.of.bytes - 1, self.of.bytes);
            if range != expected {
                return Err(wrong(&format!("`{range}` of them")));
            }
            self.resumed = true;
        } else {
            // the whole file, asked for or not
            match header("content-length") {
                Some(length) if length != self.of.bytes.to_string() => return Err(wrong(length)),
                // the partial file is kept: the answer may be no file at all
                None if self.bytes > 0 => return Err(wrong("no length")),
                _ => {}
            }
            if self.bytes > 0 {
                self.begin_again()?;
            }
        }
        let mut body = response.into_body().into_reader();
        while self.bytes < self.of.bytes {
            let left = usize::try_from(self.of.bytes - self.bytes).unwrap_or(BUFFER_BYTES);
            let room = left.min(BUFFER_BYTES);
            let count = match body.read(&mut self.buffer[..room]) {
                Ok(0) => return Err(unreachable(url, &"the connection was closed early")),
                Ok(count) => count,
                Err(error) => return Err(unreachable(url, &error)),
            };
            self.file.write_all(&self.buffer[..count]).map_err(HubError::io("write", self.path))?;
            self.count(count);
            if !go_on(self.bytes) {
                return Err(HubError::Stopped);
            }
        }
        Ok(())
    }

    /// Flushes the file to the disk, and returns its checksum.
    fn checksum(&mut self) -> Result<String, HubError> {
        self.file.sync_all().map_err(HubError::io("write", self.path))?;
        let hasher = std::mem::replace(&mut self.hasher, self.of.checksum.hasher(self.of.bytes));
        Ok(hasher.finish())
    }
}
