//! Files: reads and writes at a place, identity, holes, free space and permissions.

use std::fs::File;
use std::io;

pub use crate::system::file::{
    change_stamp, create_private_folder, descriptor, free_bytes, id, is_pipe, is_socket, link, name_count,
    new_file_permissions, open_shared, open_unfollowed, path_id, punch_hole, read_at, set_used,
    standard_error, standard_output, write_at,
};
pub use crate::types::FileId;

/// Fills a buffer from a place of a file.
///
/// # Errors
/// The system's, and `UnexpectedEof`.
pub fn read_exact_at(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match read_at(file, buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => {
                buffer = &mut buffer[bytes..];
                offset += bytes as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all bytes at a place of a file.
///
/// # Errors
/// The system's, and `WriteZero`.
pub fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match write_at(file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
