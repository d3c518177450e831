use crate::{Allowed, Error, MAX_DESCRIPTORS, MAX_FRAME, Peer};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, sockopt,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A connection to another process.
///
/// All methods take `&self`: one thread can send while another receives. Frames of several senders stay whole. Dropping
/// it closes the connection: the peer receives the frames sent before, and then [`Error::Closed`].
pub struct Connection {
    socket: OwnedFd,
    peer: Peer,
    /// Where frames are received. Also keeps two receivers apart.
    buffer: Mutex<Vec<u8>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

pub(crate) fn socket() -> Result<OwnedFd, Error> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)
        .map_err(Error::system("opening a Unix socket"))
}

pub(crate) fn address(path: &Path) -> Result<SocketAddrUnix, Error> {
    let call = || format!("naming a socket {}", path.display());
    SocketAddrUnix::new(path).map_err(Error::system(call()))
}

impl Connection {
    /// Connects to the listener of a path, and checks that the listening process belongs to an allowed user.
    ///
    /// Blocks while the listener's backlog is full.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] if the user is not allowed, and [`Error::System`] if no process listens.
    pub fn connect(path: impl AsRef<Path>, allowed: &Allowed) -> Result<Self, Error> {
        Self::connect_on(socket()?, path.as_ref(), allowed)
    }

    /// Connects like [`connect`](Self::connect), and waits for at most this long while the listener's backlog is full.
    ///
    /// # Errors
    /// Returns [`Error::TimedOut`] after that time, and the errors of `connect`.
    pub fn connect_within(
        path: impl AsRef<Path>,
        allowed: &Allowed,
        patience: Duration,
    ) -> Result<Self, Error> {
        use sockopt::Timeout;
        let socket = socket()?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(patience))
            .map_err(Error::system("setting the timeout of a connection"))?;
        let connection = Self::connect_on(socket, path.as_ref(), allowed)?;
        connection.set_timeouts(None, None)?;
        Ok(connection)
    }

    fn connect_on(socket: OwnedFd, path: &Path, allowed: &Allowed) -> Result<Self, Error> {
        match rustix::net::connect(&socket, &address(path)?) {
            Ok(()) => Self::checked(socket, allowed),
            Err(Errno::AGAIN) => Err(Error::TimedOut),
            Err(error) => Err(Error::system(format!("connecting to {}", path.display()))(
                error,
            )),
        }
    }

    /// Takes a connected socket of type `SEQPACKET`: one inherited from a parent process, say. Checks its peer.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] if the peer's user is not allowed, and [`Error::System`] if this is not a socket.
    pub fn checked(socket: OwnedFd, allowed: &Allowed) -> Result<Self, Error> {
        let peer = allowed.check(socket.as_fd())?;
        Ok(Self {
            socket,
            peer,
            buffer: Mutex::default(),
        })
    }

    /// Creates two connections to each other, for tests and for a child process that inherits one.
    ///
    /// # Errors
    /// Returns [`Error::System`] if the operating system has no descriptors left.
    pub fn pair() -> Result<(Self, Self), Error> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (one, other) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)
            .map_err(Error::system("opening a pair of sockets"))?;
        let allowed = Allowed::own();
        Ok((
            Self::checked(one, &allowed)?,
            Self::checked(other, &allowed)?,
        ))
    }

    /// Returns the process at the other end.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Bounds how long a send and a receive wait. `None`, the default, waits for ever.
    ///
    /// # Errors
    /// Returns [`Error::System`] if a duration is zero.
    pub fn set_timeouts(
        &self,
        send: Option<Duration>,
        receive: Option<Duration>,
    ) -> Result<(), Error> {
        use sockopt::Timeout;
        sockopt::set_socket_timeout(&self.socket, Timeout::Send, send)
            .and_then(|()| sockopt::set_socket_timeout(&self.socket, Timeout::Recv, receive))
            .map_err(Error::system("setting the timeouts of a connection"))
    }

    /// Sends a value, and duplicates of file descriptors beside it. Blocks while the peer's queue is full.
    ///
    /// # Errors
    /// Nothing was sent if this fails: [`Error::Closed`], [`Error::TimedOut`], [`Error::TooLong`],
    /// [`Error::TooManyDescriptors`], or [`Error::Malformed`] if the value has no form in JSON.
    pub fn send<T: Serialize + ?Sized>(
        &self,
        value: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        self.send_with(value, descriptors, SendFlags::empty())
    }

    /// Sends like [`send`](Self::send), but returns at once where that would wait.
    ///
    /// # Errors
    /// Returns [`Error::Full`] if the peer has not read earlier frames, and the errors of `send`. Nothing was sent.
    pub fn try_send<T: Serialize + ?Sized>(
        &self,
        value: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        self.send_with(value, descriptors, SendFlags::DONTWAIT)
    }

    fn send_with<T: Serialize + ?Sized>(
        &self,
        value: &T,
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<(), Error> {
        let frame =
            serde_json::to_vec(value).map_err(|error| Error::Malformed(error.to_string()))?;
        self.send_bytes(&frame, descriptors, flags)
    }

    /// Sends a frame of any bytes, for tests of peers that receive values.
    #[doc(hidden)]
    pub fn send_raw(&self, frame: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        self.send_bytes(frame, descriptors, SendFlags::empty())
    }

    fn send_bytes(
        &self,
        frame: &[u8],
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<(), Error> {
        if frame.len() > MAX_FRAME {
            return Err(Error::TooLong { bytes: frame.len() });
        }
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(Error::TooManyDescriptors);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            let fits = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
            debug_assert!(
                fits,
                "there is space for as many descriptors as are allowed"
            );
        }
        let flags = flags | SendFlags::NOSIGNAL;
        let dont_wait = flags.contains(SendFlags::DONTWAIT);
        let sent = retry(|| {
            rustix::net::sendmsg(&self.socket, &[IoSlice::new(frame)], &mut ancillary, flags)
        });
        match sent {
            Ok(sent) => {
                debug_assert_eq!(sent, frame.len(), "the kernel keeps frames whole");
                Ok(())
            }
            Err(Errno::AGAIN) if dont_wait => Err(Error::Full),
            Err(Errno::AGAIN) => Err(Error::TimedOut),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(Error::Closed),
            Err(error) => Err(Error::system("sending a frame")(error)),
        }
    }

    /// Waits for a frame, and returns its value and the file descriptors beside it.
    ///
    /// # Errors
    /// Returns [`Error::Closed`], [`Error::TimedOut`], [`Error::TooLong`], [`Error::TooManyDescriptors`] or
    /// [`Error::Malformed`]. The last three discard one frame and leave the connection as it is: the caller decides
    /// whether to go on.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>), Error> {
        self.receive_with(RecvFlags::empty())
    }

    /// Receives like [`receive`](Self::receive), but returns at once where that would wait.
    ///
    /// # Errors
    /// Returns [`Error::Empty`] if no frame has arrived, and the errors of `receive`.
    pub fn try_receive<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>), Error> {
        self.receive_with(RecvFlags::DONTWAIT)
    }

    fn receive_with<T: DeserializeOwned>(
        &self,
        flags: RecvFlags,
    ) -> Result<(T, Vec<OwnedFd>), Error> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        buffer.resize(MAX_FRAME, 0);
        // The kernel reports a list that does not fit; alignment may leave space for one more than is allowed.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let dont_wait = flags.contains(RecvFlags::DONTWAIT);
        // TRUNC makes the call report the length of a frame that does not fit.
        let flags = flags | RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC;
        let mut receive = || {
            retry(|| {
                let mut slices = [IoSliceMut::new(&mut buffer)];
                rustix::net::recvmsg(&self.socket, &mut slices, &mut ancillary, flags)
            })
        };
        let received = match receive() {
            // The peer closed the connection with frames of this side unread. The kernel tells that once, and before
            // the frames that the peer sent.
            Err(Errno::CONNRESET) => receive(),
            received => received,
        };
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN) if dont_wait => return Err(Error::Empty),
            Err(Errno::AGAIN) => return Err(Error::TimedOut),
            Err(Errno::CONNRESET | Errno::NOTCONN) => return Err(Error::Closed),
            Err(error) => return Err(Error::system("receiving a frame")(error)),
        };
        // From here on they are closed when this returns an error.
        let descriptors: Vec<_> = ancillary
            .drain()
            .flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
                _ => Vec::new(),
            })
            .collect();
        let bytes = received.bytes;
        if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > MAX_DESCRIPTORS {
            return Err(Error::TooManyDescriptors);
        }
        if received.flags.contains(ReturnFlags::TRUNC) || bytes > MAX_FRAME {
            return Err(Error::TooLong { bytes });
        }
        // The kernel reports the end like an empty frame, which no peer of this crate sends.
        if bytes == 0 {
            return Err(Error::Closed);
        }
        let value = serde_json::from_slice(&buffer[..bytes])
            .map_err(|error| Error::Malformed(error.to_string()))?;
        Ok((value, descriptors))
    }

    /// Ends the connection: sends and receives that wait in other threads, and later ones, return [`Error::Closed`]
    /// once frames that arrived before are received.
    pub fn shutdown(&self) {
        // Fails only if the connection has ended already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Repeats a call that a signal interrupted.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
