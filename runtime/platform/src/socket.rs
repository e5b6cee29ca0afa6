//! Connections whose other end may vanish without a word.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// Has the system close a connection whose client is gone: it asks after `idle`, again after the same pause, `tries` times. Where the
/// system can, sent bytes may stay unconfirmed for `patience`.
///
/// # Errors
/// The system's.
pub fn watch<'s>(
    stream: impl Into<SockRef<'s>>,
    idle: Duration,
    tries: u32,
    patience: Duration,
) -> io::Result<()> {
    let stream = stream.into();
    let alive = TcpKeepalive::new().with_time(idle).with_interval(idle).with_retries(tries);
    stream.set_tcp_keepalive(&alive)?;
    crate::system::limit_unconfirmed(&stream, patience)
}

/// Sets the bytes that the system holds for each direction of a connection.
///
/// # Errors
/// The system's.
pub fn set_buffers<'s>(stream: impl Into<SockRef<'s>>, received: usize, sent: usize) -> io::Result<()> {
    let stream = stream.into();
    stream.set_recv_buffer_size(received)?;
    stream.set_send_buffer_size(sent)
}
