use crate::{MAX_DESCRIPTORS, MAX_FRAME, Peer};
use std::io;
use std::path::PathBuf;
use thiserror::Error as Derive;

/// Why a socket could not be opened, or a frame not sent or received.
#[derive(Debug, Derive)]
#[non_exhaustive]
pub enum Error {
    /// The peer closed the connection, or [`shutdown`](crate::Connection::shutdown) was called.
    #[error("the connection is closed")]
    Closed,
    /// The time set by [`Connection::set_timeouts`](crate::Connection::set_timeouts) has passed.
    #[error("the peer did not answer, or did not read, within the time that the connection allows")]
    TimedOut,
    /// The peer has not read earlier frames, so that this one does not fit into its queue. Nothing was sent.
    #[error("the peer has not read earlier frames; the frame was not sent")]
    Full,
    /// No frame has arrived yet ([`try_receive`](crate::Connection::try_receive)).
    #[error("no frame has arrived")]
    Empty,
    /// The peer's user is not [allowed](crate::Allowed).
    #[error("process {pid} of user {uid} is not allowed to connect; allow the user, or run as an allowed one", pid = .0.pid, uid = .0.uid)]
    Refused(Peer),
    /// A frame to send, or a received one, is longer than [`MAX_FRAME`]. A received one was discarded.
    #[error("a frame of {bytes} bytes exceeds the bound of {MAX_FRAME} bytes")]
    TooLong {
        /// The length of the frame in bytes.
        bytes: usize,
    },
    /// A frame has more than [`MAX_DESCRIPTORS`] file descriptors. Those received with it were closed.
    #[error("a frame has more than {MAX_DESCRIPTORS} file descriptors")]
    TooManyDescriptors,
    /// A frame is not a value of the expected type. Descriptors received with it were closed.
    #[error("a frame is malformed: {0}")]
    Malformed(String),
    /// A live process listens on the path.
    #[error("{} belongs to a process that is running; stop it, or choose another path", .0.display())]
    InUse(PathBuf),
    /// The path exists and is no socket, or is the socket of another user.
    #[error("{} exists and is not a socket of this user; remove it, or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// The path exists and is no regular file of this user, or other users can write it.
    #[error("{} is not a regular file that only this user can write; remove it, or choose another path", .0.display())]
    NotAFile(PathBuf),
    /// A file is longer than its reader allows.
    #[error("{} has more than {most} bytes; remove it, or choose another path", path.display())]
    LongFile {
        /// The file.
        path: PathBuf,
        /// The most bytes that are read.
        most: u64,
    },
    /// Other users can create or replace files in the directory, or replace the directory. A sticky directory such as
    /// `/tmp` is one in which they can create files.
    #[error("{} can be changed by other users; choose a directory that only this user can write, for example $XDG_RUNTIME_DIR, or take their permission away with `chmod go-w`", .0.display())]
    OpenDirectory(PathBuf),
    /// A call of the operating system failed.
    #[error("{call} failed: {error}")]
    System {
        /// What failed, with its path if there is one.
        call: String,
        /// The error.
        #[source]
        error: io::Error,
    },
}

impl Error {
    pub(crate) fn system(call: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> Self {
        |error| Self::System {
            call: call.into(),
            error: error.into(),
        }
    }
}
