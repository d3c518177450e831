//! The client: keeps a lease for a tenant, whatever becomes of the broker.
//!
//! Two threads sleep until something happens. The *reader* takes the broker's terms, and reconnects when the connection
//! ends: after 5 ms, and then after twice as long each time, up to 500 ms. The *worker* looks again when memory came
//! back, and says goodbye. A client that is closed while no broker listens waits for the next one, to give its lease back,
//! for as long as a lease is recorded beside the socket. Either one applies terms to the tenant, which may take as long as unmapping does, and states
//! the result: the reader where it has news and the worker is idle, because each change of the thread costs a wake-up.
//!
//! Calls of the tenant send their messages themselves if that does not wait, and leave it to the worker otherwise. None
//! of them waits for the broker, but for [`Client::ask_and_wait`].

mod named;

use crate::ledger::{Figures, Joining, Refused};
use crate::message::{Reply, Request, VERSION};
use crate::names::{NameError, NameFigures};
use crate::server::record_of;
use crate::share::{Share, Statement, Terms};
use std::collections::hash_map::RandomState;
use std::fmt;
use std::fs;
use std::hash::BuildHasher;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;
use weirpool::extend::{Bounds, Holding};
use weirpool_wire::{Allowed, Connection};

use named::{Answer, Named, foreign};
pub use named::{Attachment, Descriptors, Held, Names};

/// The first and the longest time between two attempts to reconnect.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// How long the broker may take to admit a client, or to send the first figures.
const ADMISSION: Duration = Duration::from_secs(5);

/// How long the broker may take to answer a caller that waits.
const ANSWER: Duration = Duration::from_millis(100);

/// An allocator within a lease.
pub trait Tenant: Send + Sync {
    /// First lets up to [`first`](Bounds::first) bytes be held, and serves the requests that wait, if that is more than
    /// `bound`: it was granted for them, and then recalled for others.
    ///
    /// Then bounds the held memory to `bound` bytes, and releases free memory above it to the device. With
    /// `is_binding`, no use is begun that would keep the tenant above it. Returns the figures afterwards; `None` once
    /// the tenant has ended. The held bytes may exceed `bound` then, but from then on they do not grow beyond the
    /// larger of the two.
    ///
    /// Called by one thread at a time.
    fn apply(&self, bounds: Bounds) -> Option<Holding>;
}

/// How a client takes part.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The broker's socket.
    pub socket: PathBuf,
    /// A name for display.
    pub name: String,
    /// The share that it asks for.
    pub share: Share,
    /// Bytes that are asked for beyond a need, in case no other client waits.
    pub headroom: u64,
}

/// Why there is no lease.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No broker listens.
    #[error("no broker listens: {reason}; start one with `weirpool broker`")]
    Unreachable {
        /// The system's reason, with the socket.
        reason: String,
    },
    /// A broker listens and does not answer, or ends the connection without an answer.
    #[error("the broker at {} is silent: {reason}; look whether its process is stopped, or has no descriptor left", socket.display())]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// What became of the connection.
        reason: String,
    },
    /// The broker does not admit the client.
    #[error("the broker refuses the client: {0}")]
    Refused(#[from] Refused),
    /// The peer does not speak the protocol.
    #[error("the broker's answer is not valid: {0}")]
    Protocol(String),
}

/// What both threads and the tenant's calls share.
#[derive(Debug)]
struct State {
    granted: u64,
    returned: u64,
    recalled: u64,
    is_binding: bool,
    /// The number of the latest terms, by the present broker.
    number: u64,
    /// Bytes that must have been granted for the tenant's queue, and for each caller that waits here.
    queued: u64,
    callers: Vec<u64>,
    /// Questions asked so far, those that the broker has answered, and the latest one that it did not answer in time.
    asks: u64,
    heard: u64,
    unheard: u64,
    /// The part of the grants that the tenant has been told of.
    applied: u64,
    connection: Option<Arc<Connection>>,
    /// The number of the latest terms that were acted on, by the present broker.
    acted: u64,
    /// What the tenant held then.
    held: Holding,
    /// Time spent in applying terms that returned memory, and in applying those that granted some.
    returning: Duration,
    granting: Duration,
    /// There is something to apply or to state.
    is_dirty: bool,
    /// A thread applies terms and states the result. It looks again before it ends.
    is_working: bool,
    /// The tenant has ended.
    has_ended: bool,
    /// Why the broker does not take the client back.
    refused: Option<Refused>,
    is_closed: bool,
    named: Named,
}

impl State {
    fn lease(&self) -> u64 {
        self.granted - self.returned
    }

    fn owes(&self) -> u64 {
        self.recalled
            .saturating_sub(self.returned)
            .min(self.lease())
    }

    /// Bytes that must have been granted.
    fn needs(&self) -> u64 {
        self.callers.iter().copied().fold(self.queued, u64::max)
    }

    /// Notes that there is no broker. A recall ends with it: the lease is this client's, but for what went to names.
    fn lose_broker(&mut self) {
        self.connection = None;
        self.named.note_end();
        self.is_dirty |= self.owes() > 0;
        self.recalled = self.returned.saturating_add(self.named.moved);
        self.is_binding = false;
    }

    fn adopt(&mut self, terms: Terms) {
        self.number = terms.number;
        self.heard = terms.heard;
        self.granted = terms.granted.max(self.granted);
        self.recalled = terms.recalled;
        self.is_binding = terms.is_binding;
        self.is_dirty = true;
    }

    fn statement(&self, headroom: u64) -> Statement {
        let needs = self.needs();
        let headroom = if needs > self.granted { headroom } else { 0 };
        Statement {
            returned: self.returned,
            needs,
            wishes: needs.saturating_add(headroom),
            answered: self.acted,
            asks: self.asks,
            returning: self.returning.as_nanos() as u64,
            blocks: self.held.blocks,
            used: self.held.used,
            reserved: self.held.held,
            waiting: self.held.waiting as u64,
        }
    }
}

#[derive(Debug)]
struct Shared {
    config: ClientConfig,
    key: u64,
    capacity: u64,
    state: Mutex<State>,
    /// The worker sleeps here.
    work: Condvar,
    /// Calls that wait for a grant, and the reader between two attempts to connect, sleep here.
    news: Condvar,
}

/// A lease of a broker; see the module's documentation in the source.
pub struct Client {
    shared: Arc<Shared>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("shared", &self.shared)
            .finish()
    }
}

impl Client {
    /// Joins the broker, and waits until it admits the client. [Start](Reader::start) it once there is a tenant.
    ///
    /// # Errors
    /// Returns an error if no broker listens, or it is silent, refuses, or has another version of the protocol.
    pub fn join(config: ClientConfig) -> Result<(Self, Reader), ClientError> {
        let key = RandomState::new().hash_one(std::process::id());
        let (connection, capacity, terms) = admitted(&config, key, 0, 0, ADMISSION)?;
        let shared = Arc::new(Shared {
            key,
            capacity,
            state: Mutex::new(State {
                granted: terms.granted,
                returned: 0,
                recalled: terms.recalled,
                is_binding: terms.is_binding,
                number: terms.number,
                queued: 0,
                callers: Vec::new(),
                asks: 0,
                heard: 0,
                unheard: 0,
                applied: 0,
                connection: Some(connection.clone()),
                acted: 0,
                held: Holding::default(),
                returning: Duration::ZERO,
                granting: Duration::ZERO,
                is_dirty: true,
                is_working: false,
                has_ended: false,
                refused: None,
                is_closed: false,
                named: Named::default(),
            }),
            work: Condvar::new(),
            news: Condvar::new(),
            config,
        });
        let reader = Reader {
            shared: shared.clone(),
            connection,
        };
        Ok((Self { shared }, reader))
    }

    /// Returns the most bytes that the client may hold: its limit, within what the broker leases.
    pub fn limit(&self) -> u64 {
        self.shared.config.share.limit.min(self.shared.capacity)
    }

    /// Returns the share that the client asked for.
    pub fn share(&self) -> Share {
        self.shared.config.share
    }

    /// Returns the names of the broker, to publish and to attach memory.
    pub fn names(&self) -> Names {
        Names(self.shared.clone())
    }

    /// Returns the present lease in bytes.
    pub fn lease(&self) -> u64 {
        self.shared.lock().lease()
    }

    /// Returns the bytes that the broker has asked for and the tenant has not returned.
    pub fn owes(&self) -> u64 {
        self.shared.lock().owes()
    }

    /// Returns how long it took so far to apply terms that returned memory, and to apply terms that granted some.
    pub fn times(&self) -> (Duration, Duration) {
        let state = self.shared.lock();
        (state.returning, state.granting)
    }

    /// Returns whether the broker is there.
    pub fn is_connected(&self) -> bool {
        self.shared.lock().connection.is_some()
    }

    /// Returns why the broker does not take the client back after a restart, if it said so.
    pub fn refused(&self) -> Option<Refused> {
        self.shared.lock().refused.clone()
    }

    /// Returns whether a need waits.
    pub fn is_waiting(&self) -> bool {
        let state = self.shared.lock();
        state.needs() > state.granted
    }

    /// States a need of the queue: `wanted` bytes must have been [granted](Bounds::granted). Does not wait. Replaces the
    /// need that was stated before.
    pub fn ask(&self, wanted: u64) {
        let mut state = self.shared.lock();
        let before = state.needs();
        state.queued = wanted;
        if state.needs() != before {
            self.shared.state_or_wake(&mut state);
        }
    }

    /// States a need: `wanted` bytes must have been [granted](Bounds::granted); waits for the answer. If others have to
    /// return memory first, waits for that up to `patience`, and then takes the need back. Returns whether the tenant
    /// has been told of the bytes. A broker that does not answer within 100 ms is not waited for, until it answers.
    pub fn ask_and_wait(&self, wanted: u64, patience: Duration) -> bool {
        let shared = &*self.shared;
        let mut state = shared.lock();
        if state.applied >= wanted {
            return true;
        }
        if state.heard < state.unheard {
            return false;
        }
        state.callers.push(wanted);
        state.asks += 1;
        let asked = state.asks;
        shared.state_or_wake(&mut state);
        let mut until = Instant::now() + ANSWER;
        let mut has_heard = false;
        while state.applied < wanted {
            if state.granted < wanted && state.heard >= asked && !has_heard {
                has_heard = true;
                until = Instant::now() + patience;
            }
            let left = until.saturating_duration_since(Instant::now());
            let is_hopeless = state.connection.is_none() && state.granted < wanted;
            if left.is_zero() || is_hopeless || state.is_closed {
                break;
            }
            let waited = shared.news.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let is_granted = state.applied >= wanted;
        if state.heard < asked && !is_granted && state.connection.is_some() {
            state.unheard = asked;
        }
        let before = state.needs();
        let caller = state.callers.iter().position(|needs| *needs == wanted);
        state.callers.swap_remove(caller.expect("it waits here"));
        if !is_granted && state.needs() != before {
            shared.state_or_wake(&mut state);
        }
        is_granted
    }

    /// Takes the need of the queue back: no request waits any more.
    pub fn withdraw(&self) {
        let mut state = self.shared.lock();
        let before = state.needs();
        state.queued = state.queued.min(state.granted);
        if state.needs() != before {
            self.shared.state_or_wake(&mut state);
        }
    }

    /// Makes the worker apply the terms again, if the broker has asked for more than was returned: memory came back to
    /// the tenant.
    pub fn look_again(&self) {
        let mut state = self.shared.lock();
        if state.owes() > 0 {
            self.shared.wake(&mut state);
        }
    }

    /// Ends the lease, after the tenant's memory is back with the device, and published memory is unmapped. The callbacks of
    /// [names](Self::names) that wait are dropped. Where there is no broker now, a thread waits for the next one to tell it
    /// so, for as long as the process lives and the last broker's record is there.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        state.returned = state.granted;
        self.shared.work.notify_all();
        self.shared.news.notify_all();
    }
}

/// The receiving end of a client that has not started.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
}

impl Reader {
    /// Starts the client's threads, for this tenant.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub fn start(self, tenant: Arc<dyn Tenant>) -> io::Result<()> {
        let Self { shared, connection } = self;
        let (working, applied) = (shared.clone(), tenant.clone());
        let worker = thread::Builder::new().name("weirpool-lease".into());
        worker.spawn(move || working.work(&*applied))?;
        let reader = thread::Builder::new().name("weirpool-broker-client".into());
        reader.spawn(move || shared.read(connection, &*tenant))?;
        Ok(())
    }
}

impl Reader {
    /// Ends the lease of a client that has not started.
    pub fn abandon(self) {
        say_goodbye(&self.connection);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, state: &mut State) {
        state.is_dirty = true;
        self.work.notify_one();
    }

    /// States a need. Sends from this thread if that does not wait, and no other thread is about to send.
    fn state_or_wake(&self, state: &mut State) {
        // While another thread works, its statement could be older than this one, and arrive later.
        let connection = state.connection.as_ref();
        let connection = connection.filter(|_| !state.is_working && !state.is_dirty);
        let statement = Request::State(state.statement(self.config.headroom));
        // The reader sees it if the connection ended.
        let is_sent =
            connection.is_some_and(|connection| connection.try_send(&statement, &[]).is_ok());
        if !is_sent {
            self.wake(state);
        }
    }

    /// Applies what the reader did not, until the client is closed.
    fn work(&self, tenant: &dyn Tenant) {
        let mut state = self.lock();
        loop {
            if let Some((request, descriptors)) = state.next_outgoing() {
                let connection = state.connection.clone();
                drop(state);
                let sent = send_with(connection, &request, &descriptors);
                drop(descriptors);
                if let Err(reason) = sent {
                    self.refuse(&request, reason);
                }
                state = self.lock();
            } else if state.is_working {
                state = self.wait_for_work(state);
            } else if state.is_closed && state.named.has_waiting() {
                let ended = state.named.take_waiting();
                drop(state);
                foreign(|| drop(ended));
                state = self.lock();
            } else if state.is_closed && state.named.has_ready() {
                state = self.tell_ready(state);
            } else if state.is_closed && state.holds_nothing() {
                let connection = state.connection.clone();
                drop(state);
                return connection.iter().for_each(say_goodbye);
            } else if state.is_dirty && !state.has_ended && !state.is_closed {
                state = self.apply_all(state, tenant);
            } else {
                state = self.wait_for_work(state);
            }
        }
    }

    fn wait_for_work<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let woken = self.work.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the publications whose bytes are not the tenant's any more, which returns them then.
    fn tell_ready<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let ready = state.take_ready();
        if ready.is_empty() {
            return state;
        }
        drop(state);
        ready.into_iter().for_each(Answer::tell);
        state = self.lock();
        if state.owes() > 0 {
            self.wake(&mut state);
        }
        state
    }

    /// Applies terms and states the result, until nothing is left to apply or another thread does it.
    fn apply_all<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        tenant: &dyn Tenant,
    ) -> MutexGuard<'a, State> {
        if state.is_working {
            return state;
        }
        state.is_working = true;
        while state.is_dirty && !state.is_closed && !state.has_ended {
            state.is_dirty = false;
            let (granted, number) = (state.granted, state.number);
            // A new connection has other numbers.
            let connection = state.connection.clone();
            let is_more = state.applied < granted;
            let bound = state.lease() - state.owes();
            let first = if is_more { state.lease() } else { bound };
            let is_binding = state.is_binding && state.owes() > 0;
            drop(state);
            let begun = Instant::now();
            let held = tenant.apply(Bounds {
                granted,
                first,
                bound,
                is_binding,
            });
            let took = begun.elapsed();
            state = self.lock();
            let Some(held) = held else {
                // The lease ends when the memory is back.
                state.has_ended = true;
                break;
            };
            if state.is_closed {
                break;
            }
            // Bytes granted meanwhile are applied at the next turn: the tenant does not hold them.
            let returned = granted.saturating_sub(held.held.max(bound));
            if returned > state.returned {
                let more = returned - state.returned;
                state.named.moved = state.named.moved.saturating_sub(more);
                state.returned = returned;
                state.returning += took;
            } else if is_more {
                state.granting += took;
            }
            state.applied = granted;
            state.held = held;
            self.news.notify_all();
            if !is_same(&connection, &state.connection) {
                // The new broker's terms were adopted with it.
                continue;
            }
            state.acted = number;
            let statement = Request::State(state.statement(self.config.headroom));
            drop(state);
            send(connection, &statement);
            state = self.lock();
        }
        state.is_working = false;
        if state.is_closed || state.has_outgoing() {
            self.work.notify_one();
        }
        self.tell_ready(state)
    }

    /// Takes terms, and reconnects, until the broker knows that the client is closed.
    fn read(self: &Arc<Self>, mut connection: Arc<Connection>, tenant: &dyn Tenant) {
        loop {
            loop {
                match connection.receive() {
                    Ok((Reply::Terms(terms), _)) => {
                        let mut state = self.lock();
                        state.adopt(terms);
                        self.news.notify_all();
                        drop(self.apply_all(state, tenant));
                    }
                    Ok((Reply::Published { request, version }, _)) => {
                        let answer = self.take_published(request, version);
                        answer.into_iter().for_each(Answer::tell);
                        drop(self.tell_ready(self.lock()));
                    }
                    Ok((Reply::Attached { request, memory }, descriptors)) => {
                        let answer = self.take_attached(request, memory, descriptors);
                        answer.into_iter().for_each(Answer::tell);
                    }
                    Ok((Reply::Restored { version }, _)) => self.lock().note_restored(version),
                    Ok((Reply::Left, _)) => return,
                    _ => break,
                }
            }
            connection.shutdown();
            match self.connect_again() {
                Some(next) => connection = next,
                None => return,
            }
        }
    }

    /// Waits for a broker that takes the client back. Returns `None` if it is closed, and a broker refuses it, or no lease
    /// is recorded for the next broker: then there is nothing to give back.
    fn connect_again(&self) -> Option<Arc<Connection>> {
        let mut pause = BACK_OFF.0;
        loop {
            let mut state = self.lock();
            state.lose_broker();
            self.work.notify_one();
            self.news.notify_all();
            let waited = self.news.wait_timeout(state, pause);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            pause = (pause * 2).min(BACK_OFF.1);
            match self.reconnect() {
                Ok(connection) => return Some(connection),
                Err(ClientError::Refused(refused)) => {
                    let mut state = self.lock();
                    state.refused = Some(refused);
                    if state.is_closed {
                        return None;
                    }
                }
                Err(_) if self.is_over() && !self.is_recorded() => return None,
                Err(_) => {}
            }
        }
    }

    /// Returns whether the client is closed and has nothing to tell a broker but that.
    fn is_over(&self) -> bool {
        let state = self.lock();
        state.is_closed && state.holds_nothing()
    }

    /// Returns whether there is a record of leases for the next broker.
    fn is_recorded(&self) -> bool {
        let record = fs::symlink_metadata(record_of(&self.config.socket));
        record.is_ok_and(|record| record.is_file())
    }

    fn reconnect(&self) -> Result<Arc<Connection>, ClientError> {
        let (granted, returned, holds) = {
            let state = self.lock();
            (state.granted, state.returned, state.holds())
        };
        let (connection, _, terms) =
            admitted(&self.config, self.key, granted, returned, ADMISSION)?;
        let (versions, unanswered) = holds;
        let holds = Request::Holds {
            versions: versions.clone(),
            unanswered,
        };
        let stated = connection.send(&holds, &[]);
        stated.map_err(|error| silent(&self.config.socket, &error))?;
        let mut state = self.lock();
        state.refused = None;
        state.acted = 0;
        state.unheard = 0;
        state.adopt(terms);
        state.connection = Some(connection.clone());
        let vain = state.begin_again(&versions);
        self.work.notify_one();
        let is_over = state.is_closed && state.holds_nothing();
        drop(state);
        vain.into_iter().for_each(Answer::tell);
        if is_over {
            say_goodbye(&connection);
        }
        Ok(connection)
    }
}

/// The reader ends when the broker answers.
fn say_goodbye(connection: &Arc<Connection>) {
    send(Some(connection.clone()), &Request::Leave);
}

fn is_same(one: &Option<Arc<Connection>>, other: &Option<Arc<Connection>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

/// Sends with no lock held: a broker that is stopped reads nothing.
fn send(connection: Option<Arc<Connection>>, request: &Request) {
    let _ = send_with(connection, request, &[]);
}

/// # Errors
/// Returns why this message cannot be sent on any connection. This one goes on.
fn send_with(
    connection: Option<Arc<Connection>>,
    request: &Request,
    descriptors: &[OwnedFd],
) -> Result<(), String> {
    use weirpool_wire::Error;
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let Some(connection) = connection else {
        return Ok(());
    };
    match connection.send(request, &borrowed) {
        Ok(()) => {}
        Err(error @ (Error::TooLong { .. } | Error::TooManyDescriptors | Error::Malformed(_))) => {
            return Err(error.to_string());
        }
        // The reader sees the end.
        Err(_) => connection.shutdown(),
    }
    Ok(())
}

/// Connects, to wait for at most `patience` for each message.
fn connect(socket: &Path, patience: Duration) -> Result<Connection, ClientError> {
    let connection = Connection::connect_within(socket, &Allowed::own(), patience);
    let connection = connection.map_err(|error| match error {
        weirpool_wire::Error::TimedOut => silent(socket, &error),
        error => ClientError::Unreachable {
            reason: error.to_string(),
        },
    })?;
    connection
        .set_timeouts(Some(patience), Some(patience))
        .map_err(|error| silent(socket, &error))?;
    Ok(connection)
}

/// The error of a broker that listens.
fn silent(socket: &Path, error: &weirpool_wire::Error) -> ClientError {
    ClientError::Silent {
        socket: socket.to_owned(),
        reason: error.to_string(),
    }
}

/// Sends the first message, and waits for the answer. A broker that refuses the connection says so, and may have closed
/// it before the message.
fn exchange(
    connection: &Connection,
    socket: &Path,
    request: &Request,
) -> Result<Reply, ClientError> {
    match connection.send(request, &[]) {
        Ok(()) | Err(weirpool_wire::Error::Closed) => {}
        Err(error) => return Err(silent(socket, &error)),
    }
    match connection.receive::<Reply>() {
        Ok((Reply::Refused(refused), _)) => Err(refused.into()),
        Ok((reply, _)) => Ok(reply),
        Err(error @ (weirpool_wire::Error::Closed | weirpool_wire::Error::TimedOut)) => {
            Err(silent(socket, &error))
        }
        Err(error) => Err(ClientError::Protocol(error.to_string())),
    }
}

/// Connects and joins, with the bytes granted and returned so far. Returns the broker's capacity and terms.
fn admitted(
    config: &ClientConfig,
    key: u64,
    granted: u64,
    returned: u64,
    patience: Duration,
) -> Result<(Arc<Connection>, u64, Terms), ClientError> {
    let socket = &config.socket;
    let connection = connect(socket, patience)?;
    let client = Joining {
        key,
        name: config.name.clone(),
        share: config.share,
        granted,
        returned,
    };
    let version = VERSION;
    match exchange(&connection, socket, &Request::Join { version, client })? {
        Reply::Welcome {
            version: VERSION,
            capacity,
            terms,
        } => {
            connection
                .set_timeouts(None, None)
                .map_err(|error| silent(socket, &error))?;
            Ok((Arc::new(connection), capacity, terms))
        }
        Reply::Welcome { version, .. } => Err(ClientError::Protocol(format!(
            "version {version} of the protocol; this client has version {VERSION}"
        ))),
        other => Err(ClientError::Protocol(format!(
            "{other:?} in place of a welcome"
        ))),
    }
}

/// Makes a name of the broker at a socket lead to nothing, which may take the broker this long. Returns the figures of its
/// memory, which clients that hold it keep.
///
/// # Errors
/// Returns an error if no broker listens, it is silent, or it has another version of the protocol. The inner error says that
/// nothing has the name.
pub fn withdraw(
    socket: &Path,
    name: &str,
    patience: Duration,
) -> Result<Result<NameFigures, NameError>, ClientError> {
    let withdraw = Request::Withdraw {
        version: VERSION,
        name: name.to_owned(),
    };
    match exchange(&connect(socket, patience)?, socket, &withdraw)? {
        Reply::Withdrawn(withdrawn) => Ok(withdrawn),
        other => Err(ClientError::Protocol(format!(
            "{other:?} in place of an answer"
        ))),
    }
}

/// Receives the broker's figures, each time that they change.
#[derive(Debug)]
pub struct Watch {
    connection: Connection,
    socket: PathBuf,
    seen: Option<u64>,
}

impl Watch {
    /// Connects to the broker at a socket.
    ///
    /// # Errors
    /// Returns an error if no broker listens.
    pub fn connect(socket: &Path) -> Result<Self, ClientError> {
        Self::connect_within(socket, ADMISSION)
    }

    /// Connects to the broker at a socket, which may take this long for the first figures.
    ///
    /// # Errors
    /// Returns an error if no broker listens.
    pub fn connect_within(socket: &Path, patience: Duration) -> Result<Self, ClientError> {
        Ok(Self {
            connection: connect(socket, patience)?,
            socket: socket.to_owned(),
            seen: None,
        })
    }

    /// Waits until the figures change; returns at once the first time. `None` when the broker has ended after that.
    ///
    /// # Errors
    /// Returns an error if the broker refuses, if it does not answer the first time, or if its answer is not valid.
    pub fn next_figures(&mut self) -> Result<Option<Figures>, ClientError> {
        let (version, seen) = (VERSION, self.seen);
        let watch = Request::Watch { version, seen };
        match exchange(&self.connection, &self.socket, &watch) {
            Ok(Reply::Figures { version, figures }) => {
                self.seen = Some(version);
                // They may stay as they are for any time.
                self.connection
                    .set_timeouts(None, None)
                    .map_err(|error| silent(&self.socket, &error))?;
                Ok(Some(figures))
            }
            Ok(other) => Err(ClientError::Protocol(format!(
                "{other:?} in place of figures"
            ))),
            Err(ClientError::Silent { .. }) if seen.is_some() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
