use crate::allowed::own_uid;
use crate::connection::{address, retry, socket};
use crate::private::{beside, check_directory_of, file_at, open};
use crate::{Allowed, Connection, Error};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// A socket of the file system that accepts [connections](Connection) of allowed users.
///
/// Dropping it removes the socket. Connections that were accepted go on.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// The file that this listener created: a later one at the same path is not removed.
    file: (u64, u64),
    allowed: Allowed,
}

impl Listener {
    /// Creates a socket at a path and listens.
    ///
    /// The socket has mode 0600 if only the own user is allowed, and 0666 otherwise, where the credentials of each
    /// connection decide. A socket that no process listens on any more is replaced.
    ///
    /// # Errors
    /// Returns [`Error::OpenDirectory`] if other users can change the directory or replace it, [`Error::InUse`] if a process
    /// listens on the path, [`Error::NotASocket`] if the path is something else, and [`Error::System`].
    pub fn bind(path: impl AsRef<Path>, allowed: Allowed) -> Result<Self, Error> {
        let path = path.as_ref();
        let _lock = PathLock::take(path)?;
        let (socket, address) = (socket()?, address(path)?);
        if let Some(file) = file_at(path)? {
            let is_own = file.st_uid == own_uid();
            if FileType::from_raw_mode(file.st_mode) != FileType::Socket || !is_own {
                return Err(Error::NotASocket(path.into()));
            }
            // A full backlog is a live process too. Only a socket of a dead one refuses.
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let probe = probe(flags)?;
            match retry(|| rustix::net::connect(&probe, &address)) {
                Err(Errno::CONNREFUSED) => rustix::fs::unlink(path)
                    .map_err(Error::system(format!("removing {}", path.display())))?,
                _ => return Err(Error::InUse(path.into())),
            }
        }
        // Linux creates the file with the mode of the socket, so that there is no time between creation and `chmod`.
        let mode = match allowed.is_own_only() {
            true => Mode::RUSR | Mode::WUSR,
            false => Mode::from_raw_mode(0o666),
        };
        let call = || format!("listening on {}", path.display());
        rustix::fs::fchmod(&socket, mode).map_err(Error::system(call()))?;
        rustix::net::bind(&socket, &address).map_err(Error::system(call()))?;
        let file = file_at(path)?.map(|file| (file.st_dev, file.st_ino));
        let listener = Self {
            socket,
            path: path.into(),
            file: file.unwrap_or_default(),
            allowed,
        };
        if !listener.allowed.is_own_only() {
            // The mask of the process applies to the creation; the directory is this user's.
            rustix::fs::chmod(path, mode).map_err(Error::system(call()))?;
        }
        rustix::net::listen(&listener.socket, BACKLOG).map_err(Error::system(call()))?;
        Ok(listener)
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for a connection of an allowed user.
    ///
    /// # Errors
    /// [`Error::Refused`] names a peer that was not allowed and whose connection is closed: go on. [`Error::Closed`]
    /// follows [`shutdown`](Self::shutdown). [`Error::System`] may pass, such as a process without free descriptors;
    /// wait a little before the next call.
    pub fn accept(&self) -> Result<Connection, Error> {
        match retry(|| rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC)) {
            Ok(socket) => Connection::checked(socket, &self.allowed),
            Err(Errno::INVAL) => Err(Error::Closed),
            Err(error) => Err(Error::system("accepting a connection")(error)),
        }
    }

    /// Ends listening: `accept` returns [`Error::Closed`], in threads that wait in it too.
    pub fn shutdown(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _lock = PathLock::take(&self.path);
        let file = file_at(&self.path).ok().flatten();
        if file.is_some_and(|file| (file.st_dev, file.st_ino) == self.file) {
            // A socket that stays behind is replaced by the next listener.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

fn probe(flags: SocketFlags) -> Result<OwnedFd, Error> {
    use rustix::net::{AddressFamily, SocketType};
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(Error::system("opening a Unix socket"))
}

/// Keeps other listeners from the path: two that find a dead socket must not both replace it.
///
/// A file of this user beside the socket, for as long as this lives. Locking the directory instead would let any user
/// that can read the directory hold this process up.
struct PathLock {
    path: PathBuf,
    _file: OwnedFd,
}

impl PathLock {
    fn take(path: &Path) -> Result<Self, Error> {
        let socket = path;
        let path = beside(socket, ".lock");
        let call = || format!("locking {}", path.display());
        loop {
            // It may be removed or replaced while this waits.
            check_directory_of(socket)?;
            let Some(file) = open(&path, OFlags::RDWR | OFlags::CREATE)? else {
                continue;
            };
            let opened = rustix::fs::fstat(&file).map_err(Error::system(call()))?;
            retry(|| rustix::fs::flock(&file, FlockOperation::LockExclusive))
                .map_err(Error::system(call()))?;
            // The last owner removed the file that this one waited for: lock the next one.
            let now = file_at(&path)?.map(|file| (file.st_dev, file.st_ino));
            if now == Some((opened.st_dev, opened.st_ino)) {
                return Ok(Self { path, _file: file });
            }
        }
    }
}

impl Drop for PathLock {
    fn drop(&mut self) {
        let _ = rustix::fs::unlink(&self.path);
    }
}
