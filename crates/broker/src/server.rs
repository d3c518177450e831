//! The broker's I/O: one thread, which sleeps until a client speaks, a process ends, or a grace period does.
//!
//! # When memory is back
//!
//! The driver frees the memory of a process when the kernel closes its device files, on the way out of the process. The
//! kernel closes the files first and reports the exit afterwards. So a pidfd that is readable says that the memory is
//! back, unless another process holds the same files: a child that inherited them, or an importer of exported memory, which
//! counts for the importer. The end of a connection says nothing of that kind.
//!
//! # Restart
//!
//! Before a change is sent, the leases are written to a file beside the socket. A broker that starts reads it, and counts the
//! leases of processes that live, so that it can grant at once without waiting for them. Clients reconnect, and
//! state what they hold, which cannot be more.

use crate::desk::{Action, Desk};
use crate::ledger::{ClientId, Ledger, Process};
use crate::message::encode;
use crate::share::Share;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::net::SendFlags;
use rustix::process::{Pid, PidfdFlags, getuid, pidfd_open};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;

/// What a broker leases, and where it listens.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// The socket, private to the user. Files with the endings `.leases` and `.lock` are beside it.
    pub socket: PathBuf,
    /// What is leased, in bytes.
    pub capacity: u64,
    /// How long a client may take to act on a recall before others are asked in its place. The only time that the
    /// broker measures. Default: 1 s.
    pub grace: Duration,
}

impl BrokerConfig {
    /// Creates a configuration with the default grace period.
    pub fn new(socket: impl Into<PathBuf>, capacity: u64) -> Self {
        Self {
            socket: socket.into(),
            capacity,
            grace: Duration::from_secs(1),
        }
    }
}

/// Why a broker does not start, or ends.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// Another broker has the socket.
    #[error("another broker listens at {}; stop it, or choose another socket", .0.display())]
    InUse(PathBuf),
    /// A file or the socket cannot be used.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The record of leases cannot be read.
    #[error("{} is no record of leases: {reason}; remove it if no client of the earlier broker runs", .path.display())]
    Record {
        /// The record.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// One lease in the record.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Recorded {
    key: u64,
    name: String,
    process: Process,
    share: Share,
    lease: u64,
}

struct Peer {
    stream: UnixStream,
    process: Process,
}

/// A process with a client or a connection.
struct Watched {
    /// Readable once the process has ended.
    pidfd: OwnedFd,
}

/// A broker that listens. [`run`](Self::run) it on a thread, or [`spawn`](Self::spawn) it.
pub struct Broker {
    desk: Desk,
    listener: UnixListener,
    config: BrokerConfig,
    record: PathBuf,
    recorded: Vec<u8>,
    _lock: File,
    stop: Arc<OwnedFd>,
    peers: BTreeMap<u64, Peer>,
    processes: BTreeMap<Process, Watched>,
    next: u64,
    since: Instant,
}

/// Stops a broker.
#[derive(Clone, Debug)]
pub struct Stop(Arc<OwnedFd>);

impl Stop {
    /// Makes [`Broker::run`] return. Clients go on within their leases.
    pub fn stop(&self) {
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

/// A broker on a thread of its own, which ends when this is dropped.
#[derive(Debug)]
pub struct Running {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn beside(socket: &Path, ending: &str) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

impl Broker {
    /// Listens at the socket, and counts the leases of an earlier broker.
    ///
    /// # Errors
    /// If another broker has the socket, or a file cannot be used.
    pub fn bind(config: BrokerConfig) -> Result<Self, BrokerError> {
        let socket = &config.socket;
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: io::Error| BrokerError::Io { path, error }
        };
        let lock = beside(socket, ".lock");
        let lock = File::create(&lock).map_err(failed(&lock))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(BrokerError::InUse(socket.clone()));
        }
        let record = beside(socket, ".leases");
        let mut ledger = Ledger::new(config.capacity, config.grace);
        let mut processes = BTreeMap::new();
        for Recorded {
            key,
            name,
            process,
            share,
            lease,
        } in read_record(&record)?
        {
            if let Some(pidfd) = open_process(process) {
                ledger.restore(key, name, process, share, lease);
                processes.insert(process, Watched { pidfd });
            }
        }
        match fs::remove_file(socket) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(socket)(error)),
            _ => {}
        }
        let listener = UnixListener::bind(socket).map_err(failed(socket))?;
        fs::set_permissions(socket, Permissions::from_mode(0o600)).map_err(failed(socket))?;
        listener.set_nonblocking(true).map_err(failed(socket))?;
        let stop =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| failed(socket)(error.into()))?;
        Ok(Self {
            desk: Desk::new(ledger),
            listener,
            record,
            recorded: Vec::new(),
            _lock: lock,
            stop: Arc::new(stop),
            peers: BTreeMap::new(),
            processes,
            next: 0,
            since: Instant::now(),
            config,
        })
    }

    /// Returns what stops the broker.
    pub fn stopper(&self) -> Stop {
        Stop(self.stop.clone())
    }

    /// Runs the broker on a thread of its own.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn spawn(self) -> io::Result<Running> {
        let stop = self.stopper();
        let thread = std::thread::Builder::new().name("weirpool-broker".into());
        let thread = thread.spawn(move || {
            let _ = self.run();
        })?;
        Ok(Running {
            stop,
            thread: Some(thread),
        })
    }

    /// Serves until it is [stopped](Self::stopper).
    ///
    /// # Errors
    /// If the leases cannot be recorded, or the system cannot wait for events.
    pub fn run(mut self) -> Result<(), BrokerError> {
        loop {
            self.act()?;
            match self.wait() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    let path = self.config.socket;
                    return Err(BrokerError::Io { path, error });
                }
            }
        }
        // The record stays for the next broker, as long as a lease is in it.
        let _ = fs::remove_file(&self.config.socket);
        if self.desk.ledger.leases().next().is_none() {
            let _ = fs::remove_file(&self.record);
        }
        Ok(())
    }

    fn now(&self) -> Duration {
        self.since.elapsed()
    }

    /// Waits for an event and handles it. Returns whether to go on.
    fn wait(&mut self) -> io::Result<bool> {
        let timeout = self.desk.ledger.next_time().map(|at| {
            let left = at.saturating_sub(self.now());
            Timespec {
                tv_sec: left.as_secs() as i64,
                // At least a nanosecond: the time is passed once it is there.
                tv_nsec: i64::from(left.subsec_nanos()) + 1,
            }
        });
        let numbers: Vec<u64> = self.peers.keys().copied().collect();
        let processes: Vec<Process> = self.processes.keys().copied().collect();
        let mut fds = vec![
            PollFd::new(&*self.stop, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        fds.extend(
            self.peers
                .values()
                .map(|peer| PollFd::new(&peer.stream, PollFlags::IN)),
        );
        fds.extend(
            self.processes
                .values()
                .map(|watched| PollFd::new(&watched.pidfd, PollFlags::IN)),
        );
        match poll(&mut fds, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok(true),
            polled => polled?,
        };
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return Ok(false);
        }
        let (peers, ended) = ready[2..].split_at(numbers.len());
        let ready_peers = numbers.iter().zip(peers).filter(|(_, ready)| **ready);
        for (number, _) in ready_peers {
            self.read(*number);
        }
        // After what was read: a client may have returned memory before it ended.
        for (process, _) in processes.iter().zip(ended).filter(|(_, ended)| **ended) {
            let now = self.now();
            self.desk.ledger.exit(*process, now);
            self.processes.remove(process);
        }
        if ready[1] {
            self.accept();
        }
        let now = self.now();
        if self.desk.ledger.next_time().is_some_and(|at| at <= now) {
            self.desk.ledger.pass_time(now);
        }
        Ok(true)
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            let Some(process) = peer(&stream) else {
                continue;
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if !self.processes.contains_key(&process) {
                let Some(pidfd) = open_process(process) else {
                    continue;
                };
                self.processes.insert(process, Watched { pidfd });
            }
            let number = self.next;
            self.next += 1;
            self.desk.connect(number, process);
            self.peers.insert(number, Peer { stream, process });
        }
    }

    fn read(&mut self, number: u64) {
        let now = self.now();
        let Some(peer) = self.peers.get_mut(&number) else {
            return;
        };
        let mut bytes = [0; 4096];
        match peer.stream.read(&mut bytes) {
            Ok(0) => self.end(number),
            // The rest comes at the next turn, so that a client that sends without end holds up no other.
            Ok(length) => self.desk.receive(number, &bytes[..length], now),
            Err(error)
                if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) => {}
            Err(_) => self.end(number),
        }
    }

    fn end(&mut self, number: u64) {
        let now = self.now();
        self.peers.remove(&number);
        let _: Option<ClientId> = self.desk.disconnect(number, now);
    }

    /// Records the leases, and then does what the desk says.
    fn act(&mut self) -> Result<(), BrokerError> {
        loop {
            let actions = self.desk.actions();
            if actions.is_empty() {
                break;
            }
            self.write_record()?;
            for action in actions {
                match action {
                    Action::Send(number, reply) => self.send(number, &encode(&reply)),
                    Action::Close(number) => {
                        self.peers.remove(&number);
                    }
                }
            }
        }
        self.write_record()?;
        let held: std::collections::BTreeSet<Process> = self
            .desk
            .ledger
            .leases()
            .map(|(_, _, process, ..)| process)
            .collect();
        let is_connected =
            |process: &Process| self.peers.values().any(|peer| peer.process == *process);
        self.processes
            .retain(|process, _| held.contains(process) || is_connected(process));
        Ok(())
    }

    /// Sends without waiting. A peer that does not read what it was sent is disconnected: a client of this protocol
    /// never has more than a few messages on the way.
    fn send(&mut self, number: u64, frame: &[u8]) {
        let Some(peer) = self.peers.get(&number) else {
            return;
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = rustix::net::send(&peer.stream, frame, flags);
        if sent != Ok(frame.len()) {
            self.end(number);
        }
    }

    fn write_record(&mut self) -> Result<(), BrokerError> {
        let leases = self
            .desk
            .ledger
            .leases()
            .map(|(key, name, process, share, lease)| Recorded {
                key,
                name: name.to_owned(),
                process,
                share,
                lease,
            });
        let record =
            serde_json::to_vec(&leases.collect::<Vec<_>>()).expect("a record has string keys");
        if record == self.recorded {
            return Ok(());
        }
        let new = beside(&self.record, ".new");
        // Replaced as a whole: a broker that ends in between leaves one or the other. What was written survives the
        // process without a flush; if the machine ends, so do the clients.
        let written = fs::write(&new, &record).and_then(|()| fs::rename(&new, &self.record));
        written.map_err(|error| BrokerError::Io {
            path: self.record.clone(),
            error,
        })?;
        self.recorded = record;
        Ok(())
    }
}

fn read_record(path: &Path) -> Result<Vec<Recorded>, BrokerError> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| BrokerError::Record {
            path: path.to_owned(),
            reason: error.to_string(),
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(BrokerError::Io {
            path: path.to_owned(),
            error,
        }),
    }
}

/// Returns the process at the other end, if it belongs to this user or to root.
fn peer(stream: &UnixStream) -> Option<Process> {
    let credentials = rustix::net::sockopt::socket_peercred(stream).ok()?;
    let is_allowed = credentials.uid == getuid() || credentials.uid.is_root();
    let id = u32::try_from(credentials.pid.as_raw_nonzero().get()).ok()?;
    is_allowed.then(|| Process {
        id,
        started: started(id).unwrap_or(0),
    })
}

/// Returns when a process started, in ticks since boot.
fn started(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may hold anything. The start is field 22, and field 3 comes first after the name.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// Opens a process, if it still is the one that is meant.
fn open_process(process: Process) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(process.id).ok()?)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    (started(process.id).unwrap_or(0) == process.started).then_some(pidfd)
}
