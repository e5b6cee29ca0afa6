//! Downloads of models from Hugging Face's hub, or from a mirror.
//!
//! ```text
//! name       hf:OWNER/REPO[:QUANT], as people write it
//! client     requests, and what a refusal means
//! listing    the files of a repository: sizes and checksums; not trusted, so no name leaves the cache
//! choice     the files of a model: GGUF files of one quantisation, or a folder of safetensors
//! checksum   SHA-256, or git's SHA-1 of small files
//! cache      the folders of the hub's own programs, which share their downloads
//! fetch      a file: the first part from an earlier start, the rest from the network, in any number of pieces, then checked
//! verify     files that have changed in the cache: their checksums again
//! ```
//!
//! A file gets its name in the cache only after its checksum was verified. It is downloaded again only if it was damaged since.

mod cache;
mod checksum;
mod choice;
mod client;
mod error;
mod fetch;
mod listing;
mod name;
mod verify;

use std::io::{self, Read as _};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use cache::Cache;
pub use choice::{Kind, ModelFiles};
use client::Client;
pub use error::HubError;
pub use listing::File;
pub use name::{Name, NameError};

/// A hub, and the cache of its downloads.
#[derive(Debug)]
pub struct Hub {
    client: Client,
    cache: Cache,
    /// The wait after a first failure; each further one doubles it.
    pause: Duration,
}

/// A model as the hub has it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Name of the model.
    pub name: Name,
    /// The commit, hexadecimal.
    pub commit: String,
    /// The files to fetch.
    pub choice: ModelFiles,
}

impl Model {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.choice.files.iter().map(|file| file.bytes).sum()
    }
}

impl Hub {
    /// The hub that these environment variables name: `HF_ENDPOINT`, `HF_TOKEN` (or the file `HF_TOKEN_PATH`, `token` in `HF_HOME`),
    /// `HF_HUB_CACHE`, `HF_HOME`, as in Hugging Face's own programs.
    ///
    /// # Errors
    /// [`HubError::Environment`] for an invalid value, or without a folder for the cache.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, HubError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        Ok(Self {
            client: Client::new(&variable)?,
            cache: Cache::new(&variable)?,
            pause: Duration::from_secs(1),
        })
    }

    /// The hub with another wait after a first failure. For tests.
    #[must_use]
    pub fn with_pause(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    /// The hub with another timeout of silence, for tests.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { client: self.client.with_patience(patience), ..self }
    }

    /// The folder of the cache.
    pub fn folder(&self) -> &std::path::Path {
        self.cache.folder()
    }

    /// The hub's address.
    pub fn endpoint(&self) -> &str {
        self.client.endpoint()
    }

    /// Lists a model's files on the hub, and chooses the ones to download. `go_on` is called during waits, and returns whether to go on.
    ///
    /// # Errors
    /// A hub that cannot be reached or refuses, and an unknown model or quantisation.
    pub fn find(&self, name: &Name, go_on: &mut dyn FnMut() -> bool) -> Result<Model, HubError> {
        let listing = self.listing(name, go_on)?;
        let choice = choice::choose(listing.files, name)?;
        Ok(Model { name: name.clone(), commit: listing.commit, choice })
    }

    /// Asks the hub for all models under a name, smallest first; of every quantisation, unless the name has one.
    ///
    /// # Errors
    /// As [`Hub::find`].
    pub fn models(&self, name: &Name, go_on: &mut dyn FnMut() -> bool) -> Result<Vec<Model>, HubError> {
        let listing = self.listing(name, go_on)?;
        let found = choice::all(listing.files, name)?;
        let of_choice = |(quantisation, choice)| {
            let name = Name { quantisation, ..name.clone() };
            Model { name, commit: listing.commit.clone(), choice }
        };
        Ok(found.into_iter().map(of_choice).collect())
    }

    fn listing(&self, name: &Name, go_on: &mut dyn FnMut() -> bool) -> Result<listing::Listing, HubError> {
        let url = format!("{}/api/models/{name}?blobs=true", self.endpoint());
        let text = fetch::patiently(self.pause, go_on, || self.client.text(&url, name));
        let text = text.map_err(|error| match error {
            HubError::Unreachable { url, cause, .. } => {
                HubError::Unreachable { url, cause, fetched: self.cache.latest(name) }
            }
            other => other,
        })?;
        listing::Listing::read(&text, &url)
    }

    /// Some bytes of a file of the model, which are not kept.
    ///
    /// # Errors
    /// As [`Hub::fetch`], but for the checksum: of a part there is none.
    pub fn read(
        &self,
        model: &Model,
        file: &File,
        range: Range<u64>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<u8>, HubError> {
        let url = self.client.url(&model.name, &model.commit, &file.path);
        let wanted = range.end.saturating_sub(range.start);
        fetch::patiently(self.pause, go_on, || {
            let response = self.client.part(&url, &model.name, &range)?;
            let skipped = if response.status().as_u16() == 206 { 0 } else { range.start };
            let mut body = response.into_body().into_reader();
            let mut bytes = Vec::new();
            let lost = |error: io::Error| client::unreachable(&url, &error);
            io::copy(&mut (&mut body).take(skipped), &mut io::sink()).map_err(lost)?;
            body.take(wanted).read_to_end(&mut bytes).map_err(lost)?;
            if bytes.len() as u64 != wanted {
                return Err(lost(io::ErrorKind::UnexpectedEof.into()));
            }
            Ok(bytes)
        })
    }

    /// Bytes of the model that are not in the cache yet.
    pub fn missing_bytes(&self, model: &Model) -> u64 {
        model.choice.files.iter().map(|file| file.bytes - self.cache.fetched_bytes(&model.name, file)).sum()
    }

    /// Fetches the missing files of the model. Returns the path to open: its (first) GGUF file, or its folder. `go_on` gets the bytes
    /// present and says whether to continue.
    ///
    /// # Errors
    /// All of [`Hub::find`], [`HubError::Checksum`], errors of the disk, and [`HubError::Stopped`].
    pub fn fetch(&self, model: &Model, go_on: &mut dyn FnMut(u64) -> bool) -> Result<PathBuf, HubError> {
        let mut before = 0;
        for file in &model.choice.files {
            self.fetch_file(model, file, &mut |bytes| go_on(before + bytes))?;
            before += file.bytes;
        }
        let folder = self.cache.link(model)?;
        Ok(match (model.choice.kind, model.choice.files.first()) {
            (Kind::Gguf, Some(first)) => folder.join(&first.path),
            _ => folder,
        })
    }
}
