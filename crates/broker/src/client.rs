//! The client: keeps a lease for a tenant, whatever becomes of the broker.
//!
//! Two threads sleep until something happens. The *reader* takes the broker's terms, and reconnects when the
//! connection ends: after 5 ms, and then after twice as long each time, up to 500 ms. That is the only time it measures. The
//! *worker* applies the terms to the tenant, which may take as long as unmapping does, and states the result. Calls of the tenant
//! only note what they want and wake the worker, so that none of them waits for the broker.

use crate::ledger::{Figures, Joining, Refused};
use crate::message::{Decoder, FrameError, LONGEST_REPLY, Reply, Request, VERSION, encode};
use crate::share::{Share, Statement, Terms};
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The first and the longest time between two attempts to reconnect.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// How long the broker may take to admit a client.
const ADMISSION: Duration = Duration::from_secs(5);

/// What a tenant holds after it applied terms; in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Held from the device, or about to be.
    pub held: u64,
    /// In use.
    pub used: u64,
    /// Requests that wait.
    pub waiting: u64,
}

/// An allocator within a lease.
pub trait Tenant: Send + Sync {
    /// Bounds what is held to `bound` bytes, and releases free memory above it to the device. With `is_binding`, no use is begun
    /// that would keep the tenant above it. Returns what is held afterwards, which may be more; `None` once the
    /// tenant has ended. It holds no more than the larger of `bound` and that from then on.
    ///
    /// Called by one thread at a time.
    fn apply(&self, bound: u64, is_binding: bool) -> Option<Held>;
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
    #[error("no broker listens at {}: {reason}; start one, or run without", .socket.display())]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// The broker does not admit the client.
    #[error("the broker refuses the client: {0}")]
    Refused(#[from] Refused),
    /// The peer does not speak the protocol.
    #[error("the broker's answer is not valid: {0}")]
    Protocol(String),
}

impl From<FrameError> for ClientError {
    fn from(error: FrameError) -> Self {
        Self::Protocol(error.to_string())
    }
}

/// A connection that exchanges messages, blocking.
struct Channel {
    stream: UnixStream,
    decoder: Decoder,
}

impl Channel {
    fn connect(socket: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(socket).map_err(|error| unreachable(socket, &error))?;
        Ok(Self {
            stream,
            decoder: Decoder::new(LONGEST_REPLY),
        })
    }

    /// Returns the next message; `None` when the connection has ended.
    fn receive(&mut self) -> Result<Option<Reply>, ClientError> {
        loop {
            if let Some(reply) = self.decoder.next()? {
                return Ok(Some(reply));
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(None),
                Ok(length) => self.decoder.add(&bytes[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ClientError::Protocol(error.to_string())),
            }
        }
    }
}

fn unreachable(socket: &Path, error: &io::Error) -> ClientError {
    ClientError::Unreachable {
        socket: socket.to_owned(),
        reason: error.to_string(),
    }
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
    /// Bytes that must have been granted.
    needs: u64,
    /// The turn in which the need was stated.
    turn: u64,
    /// What the tenant knows to be granted.
    applied: u64,
    /// The present connection's other half.
    stream: Option<UnixStream>,
    /// The worker has something to apply or to state.
    is_dirty: bool,
    /// Why the broker does not take the client back.
    refused: Option<Refused>,
    is_closed: bool,
}

impl State {
    fn lease(&self) -> u64 {
        self.granted - self.returned
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

/// A lease of a broker; see the [module](self).
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
    /// Joins the broker, and waits until it admits the client. [`start`](Self::start) it once there is a tenant.
    ///
    /// # Errors
    /// If no broker listens, or it refuses.
    pub fn join(config: ClientConfig) -> Result<(Self, Reader), ClientError> {
        let key = RandomState::new().hash_one(std::process::id());
        let joining = joining(&config, key, 0, 0);
        let (channel, capacity, terms) = admitted(&config.socket, joining)?;
        let stream = channel
            .stream
            .try_clone()
            .map_err(|error| unreachable(&config.socket, &error))?;
        let shared = Arc::new(Shared {
            key,
            capacity,
            state: Mutex::new(State {
                granted: terms.granted,
                returned: 0,
                recalled: terms.recalled,
                is_binding: terms.is_binding,
                number: terms.number,
                needs: 0,
                turn: 0,
                applied: 0,
                stream: Some(stream),
                is_dirty: true,
                refused: None,
                is_closed: false,
            }),
            work: Condvar::new(),
            news: Condvar::new(),
            config,
        });
        let reader = Reader {
            shared: shared.clone(),
            channel,
        };
        Ok((Self { shared }, reader))
    }

    /// Returns the most bytes that the client may hold: its limit, within what the broker leases.
    pub fn limit(&self) -> u64 {
        self.shared.config.share.limit.min(self.shared.capacity)
    }

    /// Returns the present lease in bytes.
    pub fn lease(&self) -> u64 {
        self.shared.lock().lease()
    }

    /// Returns whether the broker is there.
    pub fn is_connected(&self) -> bool {
        self.shared.lock().stream.is_some()
    }

    /// Returns why the broker does not take the client back after a restart, if it said so.
    pub fn refused(&self) -> Option<Refused> {
        self.shared.lock().refused.clone()
    }

    /// Returns whether a need waits.
    pub fn is_waiting(&self) -> bool {
        let state = self.shared.lock();
        state.needs > state.granted
    }

    /// Asks for `bytes` more than the client may hold after the present recall. Does not wait. Replaces what was asked for before in
    /// another turn; of several calls in one turn, the largest counts.
    pub fn ask(&self, turn: u64, bytes: u64) {
        let mut state = self.shared.lock();
        let is_same_turn = std::mem::replace(&mut state.turn, turn) == turn;
        let needs = state.granted.saturating_add(bytes);
        let needs = if is_same_turn {
            needs.max(state.needs)
        } else {
            needs
        };
        if needs != state.needs {
            state.needs = needs;
            self.shared.wake(&mut state);
        }
    }

    /// Asks for `bytes` more, and waits up to `patience` until they are granted. Otherwise takes the need back. Returns whether they
    /// were granted.
    pub fn ask_and_wait(&self, bytes: u64, patience: Duration) -> bool {
        let shared = &*self.shared;
        let mut state = shared.lock();
        let (before, wanted) = (state.needs, state.granted.saturating_add(bytes));
        if wanted > before {
            state.needs = wanted;
            shared.wake(&mut state);
        }
        let until = Instant::now() + patience;
        while state.granted < wanted {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.stream.is_none() || state.is_closed {
                if state.needs == wanted && wanted > before {
                    state.needs = before;
                    shared.wake(&mut state);
                }
                return false;
            }
            state = shared
                .news
                .wait_timeout(state, left)
                .unwrap_or_else(|poisoned| poisoned.into_inner())
                .0;
        }
        // The worker applies what was granted.
        let granted = state.granted;
        while state.applied < granted && !state.is_closed {
            state = shared
                .news
                .wait(state)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        true
    }

    /// Takes a need back: no request waits any more.
    pub fn withdraw(&self) {
        let mut state = self.shared.lock();
        if state.needs > state.granted {
            state.needs = state.granted;
            self.shared.wake(&mut state);
        }
    }

    /// Has the tenant asked again what it holds: memory came back to it.
    pub fn look_again(&self) {
        let mut state = self.shared.lock();
        if state.recalled > state.returned {
            self.shared.wake(&mut state);
        }
    }

    /// Ends the lease, after the tenant's memory is back with the device.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        state.returned = state.granted;
        state.needs = state.granted;
        self.shared.work.notify_all();
        self.shared.news.notify_all();
    }
}

/// The receiving end of a client that has not started.
pub struct Reader {
    shared: Arc<Shared>,
    channel: Channel,
}

impl Reader {
    /// Starts the client's threads, for this tenant.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(self, tenant: Arc<dyn Tenant>) -> io::Result<()> {
        let Self { shared, channel } = self;
        let working = shared.clone();
        let worker = thread::Builder::new().name("weirpool-lease".into());
        worker.spawn(move || working.work(&*tenant))?;
        let reader = thread::Builder::new().name("weirpool-broker-client".into());
        reader.spawn(move || shared.read(channel))?;
        Ok(())
    }
}

impl State {
    fn adopt(&mut self, terms: Terms) {
        self.number = terms.number;
        self.granted = terms.granted.max(self.granted);
        self.recalled = terms.recalled;
        self.is_binding = terms.is_binding;
        self.is_dirty = true;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn wake(&self, state: &mut State) {
        state.is_dirty = true;
        self.work.notify_one();
    }

    /// Applies terms and states the result, until the client is closed.
    fn work(&self, tenant: &dyn Tenant) {
        let mut has_ended = false;
        loop {
            let mut state = self.lock();
            while !state.is_closed && (!state.is_dirty || has_ended) {
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(|poisoned| poisoned.into_inner());
            }
            if state.is_closed {
                return self.say_goodbye(state);
            }
            state.is_dirty = false;
            let (granted, number) = (state.granted, state.number);
            let owed = state
                .recalled
                .saturating_sub(state.returned)
                .min(state.lease());
            let bound = state.lease() - owed;
            let is_binding = state.is_binding && owed > 0;
            drop(state);
            let Some(held) = tenant.apply(bound, is_binding) else {
                // The lease ends when the memory is back.
                has_ended = true;
                continue;
            };
            let mut state = self.lock();
            if state.is_closed {
                continue;
            }
            // What was granted meanwhile is applied at the next turn, and the tenant does not hold it.
            let returned = granted.saturating_sub(held.held.max(bound));
            state.returned = state.returned.max(returned);
            state.applied = granted;
            self.news.notify_all();
            let headroom = if state.needs > state.granted {
                self.config.headroom
            } else {
                0
            };
            let statement = Statement {
                returned: state.returned,
                needs: state.needs,
                wishes: state.needs.saturating_add(headroom),
                answered: number,
                used: held.used,
                reserved: held.held,
                waiting: held.waiting,
            };
            self.send(state, &encode(&Request::State(statement)));
        }
    }

    fn say_goodbye(&self, state: MutexGuard<'_, State>) {
        let statement = Statement {
            returned: state.returned,
            answered: state.number,
            ..Statement::default()
        };
        let mut frames = encode(&Request::State(statement));
        frames.extend(encode(&Request::Leave));
        self.send(state, &frames);
        if let Some(stream) = self.lock().stream.take() {
            // The reader ends. The broker reads what was sent first.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Sends with no lock held: a broker that is stopped reads nothing. Only the worker sends.
    fn send(&self, state: MutexGuard<'_, State>, frames: &[u8]) {
        let stream = state
            .stream
            .as_ref()
            .and_then(|stream| stream.try_clone().ok());
        drop(state);
        if let Some(mut stream) = stream
            && stream.write_all(frames).is_err()
        {
            // The reader sees the end.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Takes terms, and reconnects, until the client is closed.
    fn read(&self, mut channel: Channel) {
        loop {
            while let Ok(Some(Reply::Terms(terms))) = channel.receive() {
                let mut state = self.lock();
                state.adopt(terms);
                self.work.notify_one();
                self.news.notify_all();
            }
            let mut pause = BACK_OFF.0;
            channel = loop {
                {
                    let mut state = self.lock();
                    state.stream = None;
                    self.news.notify_all();
                    if !state.is_closed {
                        let waited = self.news.wait_timeout(state, pause);
                        state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
                    }
                    if state.is_closed {
                        return;
                    }
                }
                pause = (pause * 2).min(BACK_OFF.1);
                if let Some(channel) = self.reconnect() {
                    break channel;
                }
            };
        }
    }

    fn reconnect(&self) -> Option<Channel> {
        let joining = {
            let state = self.lock();
            joining(&self.config, self.key, state.granted, state.returned)
        };
        let admitted = admitted(&self.config.socket, joining);
        let mut state = self.lock();
        match admitted {
            Ok((channel, _, terms)) => {
                let stream = channel.stream.try_clone().ok()?;
                state.refused = None;
                state.adopt(terms);
                state.stream = Some(stream);
                self.work.notify_one();
                Some(channel)
            }
            Err(ClientError::Refused(refused)) => {
                state.refused = Some(refused);
                None
            }
            Err(_) => None,
        }
    }
}

fn joining(config: &ClientConfig, key: u64, granted: u64, returned: u64) -> Joining {
    Joining {
        key,
        name: config.name.clone(),
        share: config.share,
        granted,
        returned,
    }
}

fn admitted(socket: &Path, client: Joining) -> Result<(Channel, u64, Terms), ClientError> {
    let mut channel = Channel::connect(socket)?;
    let version = VERSION;
    let join = encode(&Request::Join { version, client });
    let sent = channel.stream.write_all(&join);
    sent.map_err(|error| unreachable(socket, &error))?;
    channel
        .stream
        .set_read_timeout(Some(ADMISSION))
        .map_err(|error| unreachable(socket, &error))?;
    match channel.receive()? {
        Some(Reply::Welcome {
            capacity, terms, ..
        }) => {
            channel
                .stream
                .set_read_timeout(None)
                .map_err(|error| unreachable(socket, &error))?;
            Ok((channel, capacity, terms))
        }
        Some(Reply::Refused(refused)) => Err(refused.into()),
        Some(other) => Err(ClientError::Protocol(format!(
            "{other:?} in place of a welcome"
        ))),
        None => Err(ClientError::Protocol("the connection ended".into())),
    }
}

/// Receives the broker's figures, each time that they change.
pub struct Watch {
    channel: Channel,
    seen: Option<u64>,
}

impl Watch {
    /// Connects to the broker at a socket.
    ///
    /// # Errors
    /// If no broker listens.
    pub fn connect(socket: &Path) -> Result<Self, ClientError> {
        let channel = Channel::connect(socket)?;
        Ok(Self {
            channel,
            seen: None,
        })
    }

    /// Waits until the figures change; returns at once the first time. `None` when the broker has ended.
    ///
    /// # Errors
    /// If the broker refuses, or its answer is not valid.
    pub fn next(&mut self) -> Result<Option<Figures>, ClientError> {
        let seen = self.seen;
        let watch = encode(&Request::Watch {
            version: VERSION,
            seen,
        });
        if self.channel.stream.write_all(&watch).is_err() {
            return Ok(None);
        }
        match self.channel.receive()? {
            Some(Reply::Figures { version, figures }) => {
                self.seen = Some(version);
                Ok(Some(figures))
            }
            Some(Reply::Refused(refused)) => Err(refused.into()),
            Some(other) => Err(ClientError::Protocol(format!(
                "{other:?} in place of figures"
            ))),
            None => Ok(None),
        }
    }
}
