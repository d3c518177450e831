use crate::{Error, Peer};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

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
        let peer = peer_of(socket)?;
        match self.contains(peer.uid) {
            true => Ok(peer),
            false => Err(Error::Refused(peer)),
        }
    }
}

pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn peer_of(socket: BorrowedFd<'_>) -> Result<Peer, Error> {
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
    Ok(Peer {
        pid: credentials.pid as u32,
        uid: credentials.uid,
        gid: credentials.gid,
    })
}
