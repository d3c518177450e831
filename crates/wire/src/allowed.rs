use crate::Error;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The process at the other end of a connection, as the kernel reports it.
///
/// These are the credentials at the time of `connect`, or of `listen` for the listening side. A process id is a name
/// for logs: by the time it is read the process may have ended, and its id may name another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The process id, 0 for a process of another pid namespace (a container).
    pub pid: u32,
    /// The effective user id.
    pub uid: u32,
    /// The effective group id.
    pub gid: u32,
}

impl Peer {
    pub(crate) fn of(socket: BorrowedFd<'_>) -> Result<Self, Error> {
        // rustix has this call, but its type for process ids excludes 0, which the kernel reports across namespaces.
        let mut credentials = libc::ucred {
            pid: 0,
            uid: u32::MAX,
            gid: u32::MAX,
        };
        let mut length = mem::size_of_val(&credentials) as libc::socklen_t;
        // SAFETY: the socket is open while it is borrowed. The kernel writes at most `length` bytes, the size of the
        // struct, and any bytes are a valid one.
        let code = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut length,
            )
        };
        if code != 0 {
            return Err(Error::System {
                call: "reading the peer's credentials".into(),
                error: std::io::Error::last_os_error(),
            });
        }
        Ok(Self {
            pid: credentials.pid as u32,
            uid: credentials.uid,
            gid: credentials.gid,
        })
    }
}

/// The users whose processes may be at the other end: by default, the user of this process and no other.
///
/// Root can read the memory of every process, so a connection to a peer of root's reveals nothing. It is still refused
/// unless it is [added](Self::and), because a service of root's is rarely the one that was meant.
#[derive(Clone, Debug)]
pub struct Allowed {
    uids: Vec<u32>,
}

impl Default for Allowed {
    fn default() -> Self {
        Self::own()
    }
}

impl Allowed {
    /// Allows processes with the effective user id of this one.
    pub fn own() -> Self {
        Self {
            uids: vec![own_uid()],
        }
    }

    /// Allows these user ids, and no other: not even the own one.
    pub fn only(uids: impl IntoIterator<Item = u32>) -> Self {
        Self {
            uids: uids.into_iter().collect(),
        }
    }

    /// Allows a further user id.
    #[must_use]
    pub fn and(mut self, uid: u32) -> Self {
        self.uids.push(uid);
        self
    }

    /// Returns whether the processes of a user are allowed.
    pub fn contains(&self, uid: u32) -> bool {
        self.uids.contains(&uid)
    }

    /// Returns whether no user but the own one is allowed, so that the mode of the socket can say so too.
    pub(crate) fn is_own_only(&self) -> bool {
        let own = own_uid();
        self.uids.iter().all(|uid| *uid == own)
    }

    pub(crate) fn check(&self, socket: BorrowedFd<'_>) -> Result<Peer, Error> {
        let peer = Peer::of(socket)?;
        match self.contains(peer.uid) {
            true => Ok(peer),
            false => Err(Error::Refused(peer)),
        }
    }
}

pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
