//! The broker's I/O: one thread, which sleeps until a client speaks, a process ends, or a grace period does.
//!
//! # When memory is back
//!
//! The driver frees the memory of a process when the kernel closes its device files, on the way out of the process. The
//! kernel closes the files first and reports the exit afterwards. So a pidfd that is readable says that the memory is
//! back, unless another process holds the same files: a child that inherited them, or an importer of exported memory,
//! which counts for the importer. The end of a connection says nothing of that kind.
//!
//! # Descriptors
//!
//! Published memory is a file descriptor for each block, which the broker keeps and lends, and never opens a device for.
//! Which kind of file a descriptor of the driver is depends on the driver. So only those are refused that no driver
//! gives out: a process that attaches other memory than it was promised is told so by its own driver.
//!
//! # Restart
//!
//! Before a change is sent, the leases are written to a file beside the socket. A broker that starts reads it, and
//! counts the leases of processes that live, so that it can grant at once without waiting for them. Clients reconnect,
//! and state their leases, which cannot exceed the recorded ones. The file is private, since it holds the keys of clients:
//! see [`weirpool_wire::private`].

use crate::desk::{Action, Descriptors, Desk, MOST_OF_A_PROCESS};
use crate::ledger::{Ledger, Process, Refused};
use crate::message::{Reply, Request};
use crate::names::{NameLimits, Version};
use crate::share::Share;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use std::collections::btree_map::Entry;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::hash::BuildHasher as _;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;
use weirpool_wire::{Allowed, Connection, Listener};

/// What a broker leases, and where it listens.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// The socket, private to the user. The record of the leases is beside it, with the ending `.leases`.
    pub socket: PathBuf,
    /// The bytes that can be leased.
    pub capacity: u64,
    /// How long a client may take to act on a recall before others are asked in its place. Default: 1 s.
    pub grace: Duration,
    /// The longest time for which a client keeps memory that others gave back for it: 16 times as long as that took,
    /// and no longer than this. A shorter one reduces the longest waits and the throughput, where clients compete.
    /// Default: 1 s.
    pub longest_hold: Duration,
    /// The most connections of one process, and the most leases: one process cannot keep the others out. Default: 32.
    pub most_of_a_process: usize,
    /// How much memory may be published under a name.
    pub names: NameLimits,
}

/// The longest grace period and the longest hold that a broker takes: 30 days.
pub const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// The most bytes of a record of leases. As many clients as are served, with the longest names, take a tenth of it.
const MOST_RECORDED: u64 = 1 << 20;

impl BrokerConfig {
    /// Creates a configuration with the default grace period.
    pub fn new(socket: impl Into<PathBuf>, capacity: u64) -> Self {
        Self {
            socket: socket.into(),
            capacity,
            grace: Duration::from_secs(1),
            longest_hold: Duration::from_secs(1),
            most_of_a_process: MOST_OF_A_PROCESS,
            names: NameLimits::default(),
        }
    }

    fn check(&self) -> Result<(), BrokerError> {
        for (name, time) in [
            ("grace period", self.grace),
            ("longest hold", self.longest_hold),
        ] {
            if time > LONGEST {
                return Err(BrokerError::TooLong { name, time });
            }
        }
        Ok(())
    }
}

/// Why a broker does not start, or ends.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The socket or the record of leases cannot be used: another broker has it, or others can change its directory.
    #[error(transparent)]
    Socket(#[from] weirpool_wire::Error),
    /// A time of the configuration is longer than [`LONGEST`].
    #[error("the {name} of {time:?} exceeds {LONGEST:?}; choose a shorter one")]
    TooLong {
        /// The name of the time.
        name: &'static str,
        /// The time.
        time: Duration,
    },
    /// The socket cannot be waited for.
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
        /// The problem.
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
    /// Absent in a record of version 1 of the protocol, which had no names.
    #[serde(default)]
    moved: u64,
}

/// All that the next broker has to know.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    leases: Vec<Recorded>,
    /// The number of the next version, and the versions that count.
    names: (u64, Vec<(u64, Version)>),
}

#[derive(Debug)]
struct Peer {
    connection: Connection,
    process: Process,
}

/// A broker that listens. [`run`](Self::run) it on a thread, or [`spawn`](Self::spawn) it.
#[derive(Debug)]
pub struct Broker {
    desk: Desk,
    listener: Listener,
    socket: PathBuf,
    record: PathBuf,
    recorded: Vec<u8>,
    stop: Arc<OwnedFd>,
    peers: BTreeMap<u64, Peer>,
    /// The descriptors of published memory, by version.
    memory: BTreeMap<u64, Vec<Arc<OwnedFd>>>,
    /// Processes with a lease or a connection. The descriptor is readable once the process has ended.
    processes: BTreeMap<Process, OwnedFd>,
    next: u64,
    since: Instant,
    /// No connection can be accepted until then.
    accepts_from: Duration,
}

/// How long the broker accepts no connection after it could not: the process may have no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

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
pub struct Running {
    stop: Stop,
    thread: Option<JoinHandle<Result<(), BrokerError>>>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the path of the record of the leases of the broker at a socket.
pub(crate) fn record_of(socket: &Path) -> PathBuf {
    let mut record = socket.as_os_str().to_owned();
    record.push(".leases");
    record.into()
}

impl Broker {
    /// Listens at the socket, and counts the leases of an earlier broker.
    ///
    /// # Errors
    /// Returns an error if another broker has the socket, if a file cannot be used, or if a time is too long.
    pub fn bind(config: BrokerConfig) -> Result<Self, BrokerError> {
        config.check()?;
        let BrokerConfig {
            socket,
            capacity,
            grace,
            longest_hold,
            most_of_a_process,
            names,
        } = config;
        // First: another broker may run, and write the record.
        let listener = Listener::bind(&socket, Allowed::own())?;
        let record = record_of(&socket);
        let mut ledger = Ledger::new(capacity, grace, longest_hold).with_name_limits(names);
        let mut processes = BTreeMap::new();
        let earlier = read_record(&record)?;
        let mut living = BTreeSet::new();
        for recorded in earlier.leases {
            let process = recorded.process;
            let pidfd = open_process(process).map_err(|error| BrokerError::Io {
                path: record.clone(),
                error,
            })?;
            if let Some(pidfd) = pidfd {
                let Recorded {
                    key,
                    name,
                    share,
                    lease,
                    moved,
                    ..
                } = recorded;
                ledger.restore(key, name, process, share, (lease, moved));
                processes.insert(process, pidfd);
                living.insert(key);
            }
        }
        let lives = |key| living.contains(&key);
        ledger.names_mut().number_from(first_version());
        ledger.names_mut().take_record(earlier.names, lives);
        let stop = eventfd(0, EventfdFlags::CLOEXEC);
        let stop = stop.map_err(|error| BrokerError::Io {
            path: socket.clone(),
            error: error.into(),
        })?;
        Ok(Self {
            desk: Desk::new(ledger, most_of_a_process),
            listener,
            socket,
            record,
            recorded: Vec::new(),
            stop: Arc::new(stop),
            peers: BTreeMap::new(),
            memory: BTreeMap::new(),
            processes,
            next: 0,
            since: Instant::now(),
            accepts_from: Duration::ZERO,
        })
    }

    /// Returns what stops the broker.
    pub fn stopper(&self) -> Stop {
        Stop(self.stop.clone())
    }

    /// Runs the broker on a thread of its own.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub fn spawn(self) -> io::Result<Running> {
        let stop = self.stopper();
        let thread = std::thread::Builder::new().name("weirpool-broker".into());
        let thread = thread.spawn(move || self.run())?;
        Ok(Running {
            stop,
            thread: Some(thread),
        })
    }

    /// Serves until it is [stopped](Self::stopper).
    ///
    /// # Errors
    /// Returns an error if the leases cannot be recorded, or the system cannot wait for events.
    pub fn run(mut self) -> Result<(), BrokerError> {
        loop {
            self.act()?;
            match self.wait() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    let path = self.socket.clone();
                    return Err(BrokerError::Io { path, error });
                }
            }
        }
        // The record stays for the next broker, as long as a lease is in it.
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
        let now = self.now();
        let accepts = now >= self.accepts_from;
        let pause = (!accepts).then_some(self.accepts_from);
        let timeout = self.desk.next_time().into_iter().chain(pause).min();
        let timeout = timeout.map(|at| {
            // The kernel refuses times that its clock cannot hold; after this one, the broker looks again.
            let left = at.saturating_sub(now).min(LONGEST);
            Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        let connections = match accepts {
            true => PollFlags::IN,
            false => PollFlags::empty(),
        };
        let numbers: Vec<u64> = self.peers.keys().copied().collect();
        let processes: Vec<Process> = self.processes.keys().copied().collect();
        let peers = self
            .peers
            .values()
            .map(|peer| PollFd::new(&peer.connection, PollFlags::IN));
        let pidfds = self
            .processes
            .values()
            .map(|pidfd| PollFd::new(pidfd, PollFlags::IN));
        let mut fds = vec![
            PollFd::new(&*self.stop, PollFlags::IN),
            PollFd::new(&self.listener, connections),
        ];
        fds.extend(peers.chain(pidfds));
        match poll(&mut fds, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok(true),
            polled => polled?,
        };
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if ready[0] {
            return Ok(false);
        }
        let (ready_peers, ended) = ready[2..].split_at(numbers.len());
        for (number, _) in numbers.iter().zip(ready_peers).filter(|(_, ready)| **ready) {
            self.read(*number);
        }
        for (process, _) in processes.iter().zip(ended).filter(|(_, ended)| **ended) {
            let now = self.now();
            self.desk.ledger.exit(*process, now);
            self.processes.remove(process);
        }
        if ready[1] {
            self.accept();
        }
        self.desk.pass_time(self.now());
        Ok(true)
    }

    /// Takes one connection: the next one is ready at the next turn.
    fn accept(&mut self) {
        let connection = match self.listener.accept() {
            Ok(connection) => connection,
            Err(weirpool_wire::Error::Refused(_)) => return,
            Err(_) => {
                self.accepts_from = self.now().saturating_add(PAUSE);
                return;
            }
        };
        let id = connection.peer().pid;
        let started = started(id).unwrap_or(0);
        let process = Process { id, started };
        let watched = self.processes.entry(process);
        if let Entry::Vacant(unwatched) = watched {
            let reason = match open_process(process) {
                Ok(Some(pidfd)) => {
                    unwatched.insert(pidfd);
                    None
                }
                Ok(None) => Some("its id is not known here; run the broker where it is".to_owned()),
                Err(error) => Some(format!(
                    "{error}; raise the broker's limit of open files, `ulimit -n`"
                )),
            };
            if let Some(reason) = reason {
                let process = id;
                let refused = Reply::Refused(Refused::Unwatched { process, reason });
                let _ = connection.try_send(&refused, &[]);
                return;
            }
        }
        let number = self.next;
        self.next += 1;
        self.peers.insert(
            number,
            Peer {
                connection,
                process,
            },
        );
        self.desk.connect(number, process, self.now());
    }

    /// Takes one message: a client that sends without end holds up no other.
    fn read(&mut self, number: u64) {
        use weirpool_wire::Error;
        let now = self.now();
        let Some(peer) = self.peers.get(&number) else {
            return;
        };
        match peer.connection.try_receive::<Request>() {
            Ok((request, descriptors)) => {
                let facts = Descriptors {
                    count: descriptors.len(),
                    are_foreign: !descriptors.iter().all(could_be_memory),
                };
                if let Some(version) = self.desk.receive(number, request, facts, now) {
                    let kept = descriptors.into_iter().map(Arc::new).collect();
                    self.memory.insert(version, kept);
                }
            }
            Err(Error::Empty) => {}
            Err(
                error @ (Error::Malformed(_) | Error::TooLong { .. } | Error::TooManyDescriptors),
            ) => {
                self.desk.refuse_malformed(number, error.to_string(), now);
            }
            Err(_) => self.end(number),
        }
    }

    fn end(&mut self, number: u64) {
        let now = self.now();
        self.peers.remove(&number);
        self.desk.disconnect(number, now);
    }

    /// Records the leases, and then does what the desk says.
    fn act(&mut self) -> Result<(), BrokerError> {
        loop {
            let actions = self.desk.actions();
            self.write_record()?;
            if actions.is_empty() {
                break;
            }
            let descriptors: Vec<_> = actions
                .iter()
                .map(|action| self.descriptors_for(action))
                .collect();
            // Before any message: terms grant the bytes of memory that these descriptors are the last to keep.
            let names = self.desk.ledger.names();
            self.memory.retain(|version, _| names.is_kept(*version));
            for (action, descriptors) in actions.into_iter().zip(descriptors) {
                match action {
                    Action::Send(number, reply) | Action::Lend(number, reply, _) => {
                        self.send(number, &reply, &descriptors);
                    }
                    Action::Close(number) => {
                        self.peers.remove(&number);
                    }
                }
            }
        }
        let leases = self.desk.ledger.leases().map(|(_, _, process, ..)| process);
        let connected = self.peers.values().map(|peer| peer.process);
        let known: BTreeSet<Process> = leases.chain(connected).collect();
        self.processes.retain(|process, _| known.contains(process));
        Ok(())
    }

    /// Returns the descriptors of memory that an action lends, as long as the memory counts.
    fn descriptors_for(&self, action: &Action) -> Vec<Arc<OwnedFd>> {
        match action {
            Action::Lend(_, _, version) if self.desk.ledger.names().counts(*version) => {
                self.memory.get(version).cloned().unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }

    /// Sends without waiting. A peer that does not read its messages is disconnected: a client of this protocol never
    /// has more than a few messages on the way.
    fn send(&mut self, number: u64, reply: &Reply, borrowed: &[Arc<OwnedFd>]) {
        let peer = self.peers.get(&number);
        let borrowed: Vec<_> = borrowed
            .iter()
            .map(|descriptor| descriptor.as_fd())
            .collect();
        let sent = peer.map(|peer| peer.connection.try_send(reply, &borrowed));
        if let Some(Err(_)) = sent {
            self.end(number);
        }
    }

    fn write_record(&mut self) -> Result<(), BrokerError> {
        let leases = self.desk.ledger.leases();
        let leases = leases.map(|(key, name, process, share, (lease, moved))| Recorded {
            key,
            name: name.to_owned(),
            process,
            share,
            lease,
            moved,
        });
        let record = Record {
            leases: leases.collect(),
            names: self.desk.ledger.names().record(),
        };
        let record = serde_json::to_vec(&record).expect("a record has string keys");
        if record == self.recorded {
            return Ok(());
        }
        // Replaced as a whole: a broker that ends in between leaves one or the other. The written record survives the
        // process without a flush; if the machine ends, so do the clients.
        weirpool_wire::private::replace(&self.record, &record)?;
        self.recorded = record;
        Ok(())
    }
}

/// Returns a random number for the first version: a broker without the record of an earlier one does not give out the numbers
/// that clients of that one bring back.
fn first_version() -> u64 {
    RandomState::new().hash_one(Instant::now()) >> 33
}

/// Returns whether a descriptor could be that of memory of a device.
fn could_be_memory(descriptor: &OwnedFd) -> bool {
    use rustix::fs::FileType;
    let kind = rustix::fs::fstat(descriptor).map(|state| FileType::from_raw_mode(state.st_mode));
    kind.is_ok_and(|kind| {
        !matches!(
            kind,
            FileType::Socket | FileType::Fifo | FileType::Directory
        )
    })
}

fn read_record(path: &Path) -> Result<Record, BrokerError> {
    let Some(bytes) = weirpool_wire::private::read(path, MOST_RECORDED)? else {
        return Ok(Record::default());
    };
    // Version 1 of the protocol recorded the leases alone.
    let leases = || {
        let leases = serde_json::from_slice(&bytes).ok()?;
        Some(Record {
            leases,
            ..Record::default()
        })
    };
    serde_json::from_slice(&bytes).or_else(|error| {
        leases().ok_or_else(|| BrokerError::Record {
            path: path.to_owned(),
            reason: error.to_string(),
        })
    })
}

/// Returns when a process started, in ticks since boot.
fn started(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may hold anything. The start is field 22, and field 3 is the first after the name.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// Opens a process, if it still is the one that is meant.
///
/// # Errors
/// Returns an error if this process has no descriptor left.
fn open_process(process: Process) -> io::Result<Option<OwnedFd>> {
    use rustix::io::Errno;
    let pid = i32::try_from(process.id).ok().and_then(Pid::from_raw);
    let Some(pid) = pid else {
        return Ok(None);
    };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => {
            let is_meant = started(process.id).unwrap_or(0) == process.started;
            Ok(is_meant.then_some(pidfd))
        }
        Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(error.into()),
        Err(_) => Ok(None),
    }
}
