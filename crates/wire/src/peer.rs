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
