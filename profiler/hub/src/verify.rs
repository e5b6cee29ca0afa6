//! Files of the cache are compared with their checksums again whenever they have changed on the disk.

use std::fs::{self, File as OpenFile};
use std::io::Read as _;
use std::path::Path;

use crate::error::HubError;
use crate::listing::File;
use crate::{Hub, Model};

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 1 << 18;

/// State of a file on the disk, in a line: length, times of the last changes, and number. Every write changes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp(pub(crate) String);

impl Stamp {
    /// State of the file at a path; nothing if there is none.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        platform::file::change_stamp(path).ok().map(Self)
    }
}

impl Hub {
    /// Removes damaged files of the model from the cache, and returns their paths in the repository. [`Hub::fetch`] fetches them again.
    ///
    /// A file is read only if it has changed since its checksum was last right. `go_on` gets the bytes read so far, and says
    /// whether to go on.
    ///
    /// # Errors
    /// A file that cannot be read or removed, and [`HubError::Stopped`].
    pub fn discard_damaged<'m>(
        &self,
        model: &'m Model,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Vec<&'m str>, HubError> {
        let (mut damaged, mut read) = (Vec::new(), 0);
        for file in &model.choice.files {
            let blob = self.cache.blob(&model.name, file);
            let Some(stamp) = Stamp::of(&blob).filter(|_| self.cache.has(&model.name, file)) else {
                continue;
            };
            if self.cache.is_checked(&model.name, file, &stamp) {
                continue;
            }
            if is_right(&blob, file, &mut read, go_on)? {
                self.cache.note_checked(&model.name, file, &stamp);
            } else if Stamp::of(&blob) == Some(stamp) {
                // otherwise another program has put a new one there
                fs::remove_file(&blob).map_err(HubError::io("remove the damaged", &blob))?;
                damaged.push(&*file.path);
            }
        }
        Ok(damaged)
    }
}

/// Whether the bytes at a path have a file's checksum; `read` counts them.
fn is_right(
    path: &Path,
    file: &File,
    read: &mut u64,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> Result<bool, HubError> {
    let mut bytes = OpenFile::open(path).map_err(HubError::io("read", path))?;
    let mut hasher = file.checksum.hasher(file.bytes);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match bytes.read(&mut buffer).map_err(HubError::io("read", path))? {
            0 => return Ok(hasher.finish() == file.checksum.hex()),
            count => {
                hasher.update(&buffer[..count]);
                *read += count as u64;
            }
        }
        if !go_on(*read) {
            return Err(HubError::Stopped);
        }
    }
}
