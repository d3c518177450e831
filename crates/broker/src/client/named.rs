//! Published memory at the client: the versions that it holds, requests that wait for an answer, and messages to send.
//!
//! Requests are sent by the worker, and answered by the reader. On a new connection, a client states what it holds, brings
//! the descriptors of it, and repeats the requests that were not answered: a publication has a number by which the broker
//! knows it again.

use super::{Shared, State};
use crate::ledger::Publication;
use crate::message::Request;
use crate::names::{Memory, NameError, Restored, check_name};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::mem;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// On how many connections a request is sent.
const ATTEMPTS: u8 = 3;

/// A connection that lasted this long did not end because of the first messages.
const STABLE: Duration = Duration::from_secs(1);

/// Names of a broker, for the pool of a client: [`names_of`](crate::names_of). `weirpool-share` has the calls for blocks.
///
/// A request waits for a broker while there is none, and is answered on a thread of the client's; one that is not valid is
/// answered at once. If the client ends before that, the callback is dropped.
#[derive(Clone, Debug)]
pub struct Names(pub(super) Arc<Shared>);

/// A version that this process holds, once. Drop it after its memory is unmapped here: the broker is told.
#[derive(Debug)]
pub struct Held {
    shared: Arc<Shared>,
    version: u64,
}

/// Memory that was attached, by its descriptors.
#[derive(Debug)]
pub struct Attachment {
    /// The memory.
    pub memory: Memory,
    /// A descriptor for each block. Closed before `held` tells the broker that the memory is free here.
    pub descriptors: Descriptors,
    /// The version, as long as it is mapped.
    pub held: Held,
}

/// The descriptors of a version.
pub type Descriptors = Arc<Vec<OwnedFd>>;

type Published = Box<dyn FnOnce(Result<Held, NameError>) + Send>;
type Attached = Box<dyn FnOnce(Result<Attachment, NameError>) + Send>;

/// The part of the client's state that is about names.
#[derive(Debug, Default)]
pub(super) struct Named {
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
    held: BTreeMap<u64, Version>,
    /// To be sent, with their descriptors, while there is a connection.
    outgoing: VecDeque<(Request, Descriptors)>,
    /// Publications that are to be told once the terms with this number are applied.
    ready: Vec<(u64, Answer)>,
    /// When the present connection began again.
    since: Option<Instant>,
    /// Bytes that went to names and that the client has not returned.
    pub(super) moved: u64,
}

/// A version that this process holds.
#[derive(Debug)]
struct Version {
    count: u32,
    name: String,
    memory: Memory,
    descriptors: Descriptors,
    attempts: u8,
}

/// A request that was not answered.
struct Waiting {
    request: Request,
    descriptors: Descriptors,
    done: Done,
    attempts: u8,
}

enum Done {
    Published(Published),
    Attached(Attached),
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting")
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

/// A call of the requester's that is due, which no lock may be held for.
pub(super) struct Answer(Box<dyn FnOnce() + Send>);

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

impl Answer {
    /// Calls the requester, whose panic ends no thread of the client's.
    pub(super) fn tell(self) {
        foreign(self.0);
    }
}

/// Calls foreign code: wakers, and destructors.
pub(super) fn foreign(call: impl FnOnce()) {
    let outcome = catch_unwind(AssertUnwindSafe(call));
    // The payload of the panic is foreign as well.
    let _ = outcome.map_err(mem::forget);
}

impl Names {
    /// Publishes memory of this process, by a descriptor for each block. The bytes leave the lease of the client. `done` is
    /// called once the client's tenant keeps to the smaller lease: give up the memory's own bytes then, at once.
    pub fn publish(
        &self,
        publication: Publication,
        descriptors: Vec<OwnedFd>,
        done: impl FnOnce(Result<Held, NameError>) + Send + 'static,
    ) {
        let memory = publication.memory.check(descriptors.len());
        if let Err(error) = memory.and_then(|_| check_name(&publication.name)) {
            return done(Err(error));
        }
        let done = Done::Published(Box::new(done));
        let request = |request| Request::Publish {
            request,
            publication,
        };
        self.0.request(request, Arc::new(descriptors), done);
    }

    /// Attaches the memory of a name, in a version or the present one.
    pub fn attach(
        &self,
        name: String,
        version: Option<u64>,
        writes: bool,
        done: impl FnOnce(Result<Attachment, NameError>) + Send + 'static,
    ) {
        if let Err(error) = check_name(&name) {
            return done(Err(error));
        }
        let done = Done::Attached(Box::new(done));
        let request = |request| Request::Attach {
            request,
            name,
            version,
            writes,
        };
        self.0.request(request, Descriptors::default(), done);
    }
}

impl Held {
    /// Returns the version.
    pub fn version(&self) -> u64 {
        self.version
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let version = self.version;
        let mut state = self.shared.lock();
        // The last one closes the descriptors first: the broker grants the bytes once it is told. Until then, the version is
        // held for a broker that starts meanwhile.
        while let Some(descriptors) = state.named.take_last(version) {
            drop(state);
            drop(descriptors);
            state = self.shared.lock();
        }
        state.named.let_go(version);
        state.enqueue(Request::Detach { version }, Descriptors::default());
        self.shared.work.notify_one();
    }
}

impl Named {
    /// Takes the descriptors of a version that is held once. Returns `None` if they are taken, or it is held more often.
    fn take_last(&mut self, version: u64) -> Option<Descriptors> {
        let held = self.held.get_mut(&version)?;
        let is_last = held.count == 1 && !held.descriptors.is_empty();
        is_last.then(|| mem::take(&mut held.descriptors))
    }

    fn let_go(&mut self, version: u64) {
        let held = self.held.get_mut(&version);
        let held = held.expect("it is held as often as there are values of that type");
        held.count -= 1;
        if held.count == 0 {
            self.held.remove(&version);
        }
    }

    /// Notes that the connection ended. One that lasted did not end because of the versions that were brought back: they
    /// are brought again.
    pub(super) fn note_end(&mut self) {
        let since = self.since.take();
        if since.is_some_and(|since| since.elapsed() >= STABLE) {
            self.held
                .values_mut()
                .for_each(|version| version.attempts = 0);
        }
    }

    /// Takes the requests of a client that has ended, to drop them with no lock held.
    pub(super) fn take_waiting(&mut self) -> impl Sized + use<> {
        mem::take(&mut self.waiting)
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }
}

impl State {
    /// Has the worker send a message. Without a connection, the next one begins with all that counts.
    fn enqueue(&mut self, request: Request, descriptors: Descriptors) {
        if self.connection.is_some() {
            self.named.outgoing.push_back((request, descriptors));
        }
    }

    /// Returns the answers that are due: the terms that came with them are applied, or no tenant is left to apply any.
    pub(super) fn take_ready(&mut self) -> Vec<Answer> {
        let (acted, has_ended) = (self.acted, self.has_ended || self.is_closed);
        let ready = mem::take(&mut self.named.ready).into_iter();
        let (due, later) = ready.partition(|(number, _)| has_ended || *number <= acted);
        self.named.ready = later;
        due.into_iter()
            .map(|(_, answer): (u64, Answer)| answer)
            .collect()
    }

    /// Begins again on a new connection. Returns the answers of requests that were sent in vain too often.
    pub(super) fn begin_again(&mut self, stated: &[(u64, u32)]) -> Vec<Answer> {
        let number = self.number;
        self.named.since = Some(Instant::now());
        self.named
            .ready
            .iter_mut()
            .for_each(|ready| ready.0 = number);
        self.named.outgoing.clear();
        let named = &mut self.named;
        for (number, version) in &mut named.held {
            if version.attempts < ATTEMPTS {
                version.attempts += 1;
                let restored = Restored {
                    version: *number,
                    count: version.count,
                    name: version.name.clone(),
                    memory: version.memory.clone(),
                };
                let restore = Request::Restore(restored);
                named
                    .outgoing
                    .push_back((restore, version.descriptors.clone()));
            }
        }
        // Versions that were let go since they were stated.
        for (number, count) in stated {
            let left = named.held.get(number).map_or(0, |version| version.count);
            for _ in left..*count {
                let detach = Request::Detach { version: *number };
                named.outgoing.push_back((detach, Descriptors::default()));
            }
        }
        let vain = named
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.attempts >= ATTEMPTS);
        let vain: Vec<_> = vain.map(|(request, _)| *request).collect();
        let vain: Vec<_> = vain
            .iter()
            .filter_map(|request| named.waiting.remove(request))
            .collect();
        for waiting in named.waiting.values_mut() {
            waiting.attempts += 1;
            let again = (waiting.request.clone(), waiting.descriptors.clone());
            named.outgoing.push_back(again);
        }
        vain.into_iter()
            .map(|waiting| waiting.refuse(NameError::Unanswered))
            .collect()
    }

    /// Returns the versions that are held, and how often, and the publications that will be sent again.
    pub(super) fn holds(&self) -> (Vec<(u64, u32)>, Vec<u64>) {
        let held = self.named.held.iter();
        let held = held.map(|(number, version)| (*number, version.count));
        let waiting = self.named.waiting.iter();
        let waiting = waiting.filter(|(_, waiting)| {
            matches!(waiting.done, Done::Published(_)) && waiting.attempts < ATTEMPTS
        });
        let waiting = waiting.map(|(request, _)| *request);
        (held.collect(), waiting.collect())
    }

    pub(super) fn next_outgoing(&mut self) -> Option<(Request, Descriptors)> {
        self.named.outgoing.pop_front()
    }

    pub(super) fn has_outgoing(&self) -> bool {
        !self.named.outgoing.is_empty()
    }

    pub(super) fn holds_nothing(&self) -> bool {
        self.named.held.is_empty()
    }

    /// Notes that the broker has a version that was brought back.
    pub(super) fn note_restored(&mut self, version: u64) {
        if let Some(version) = self.named.held.get_mut(&version) {
            version.attempts = 0;
        }
    }
}

impl Waiting {
    fn refuse(self, error: NameError) -> Answer {
        Answer(match self.done {
            Done::Published(done) => Box::new(move || done(Err(error))),
            Done::Attached(done) => Box::new(move || done(Err(error))),
        })
    }
}

impl Shared {
    fn request(&self, request: impl FnOnce(u64) -> Request, descriptors: Descriptors, done: Done) {
        let mut state = self.lock();
        if state.is_closed {
            // What the callback holds is dropped with no lock held.
            return drop(state);
        }
        let number = state.named.next;
        state.named.next += 1;
        let request = request(number);
        state.enqueue(request.clone(), descriptors.clone());
        let waiting = Waiting {
            request,
            descriptors,
            done,
            attempts: u8::from(state.connection.is_some()),
        };
        state.named.waiting.insert(number, waiting);
        self.work.notify_one();
    }

    /// Refuses a request that cannot be sent, and whose connection goes on.
    pub(super) fn refuse(&self, request: &Request, reason: String) {
        let (Request::Publish { request, .. } | Request::Attach { request, .. }) = request else {
            return;
        };
        let waiting = self.lock().named.waiting.remove(request);
        if let Some(waiting) = waiting {
            waiting.refuse(NameError::Invalid { reason }).tell();
        }
    }

    /// Takes the answer to a publication. It is told once the latest terms are applied: they take its bytes from the lease.
    pub(super) fn take_published(
        self: &Arc<Self>,
        request: u64,
        version: Result<u64, NameError>,
    ) -> Option<Answer> {
        let mut state = self.lock();
        let Waiting {
            request: sent,
            descriptors,
            done,
            ..
        } = state.named.waiting.remove(&request)?;
        let (Done::Published(done), Request::Publish { publication, .. }) = (done, sent) else {
            return None;
        };
        let version = match version {
            Err(error) => return Some(Answer(Box::new(move || done(Err(error))))),
            Ok(version) => version,
        };
        let Publication { name, memory, .. } = publication;
        let bytes = memory.bytes().unwrap_or(0);
        // The client may have returned them before this answer: the terms precede it.
        let unreturned = state.recalled.saturating_sub(state.returned);
        state.named.moved = state.named.moved.saturating_add(bytes).min(unreturned);
        let held = self.hold(&mut state, version, name, memory, descriptors);
        let number = state.number;
        let answer = Answer(Box::new(move || done(Ok(held))));
        state.named.ready.push((number, answer));
        None
    }

    /// Takes the answer to a request for memory.
    pub(super) fn take_attached(
        self: &Arc<Self>,
        request: u64,
        memory: Result<(u64, Memory), NameError>,
        descriptors: Vec<OwnedFd>,
    ) -> Option<Answer> {
        let mut state = self.lock();
        let waiting = state.named.waiting.remove(&request)?;
        let (version, memory) = match memory {
            Ok(memory) => memory,
            Err(error) => return Some(waiting.refuse(error)),
        };
        let (Done::Attached(done), Request::Attach { name, .. }) = (waiting.done, waiting.request)
        else {
            return None;
        };
        let descriptors = Arc::new(descriptors);
        let held = self.hold(
            &mut state,
            version,
            name,
            memory.clone(),
            descriptors.clone(),
        );
        // One that is not used takes the lock.
        drop(state);
        let (count, blocks) = (descriptors.len(), memory.blocks.len());
        let attachment = Attachment {
            memory,
            descriptors,
            held,
        };
        let result = match count == blocks {
            true => Ok(attachment),
            false => Err(NameError::Invalid {
                reason: format!("{count} descriptors for {blocks} blocks"),
            }),
        };
        Some(Answer(Box::new(move || done(result))))
    }

    fn hold(
        self: &Arc<Self>,
        state: &mut State,
        version: u64,
        name: String,
        memory: Memory,
        descriptors: Descriptors,
    ) -> Held {
        let held = state.named.held.entry(version).or_insert(Version {
            count: 0,
            name,
            memory,
            descriptors: Descriptors::default(),
            attempts: 0,
        });
        held.count += 1;
        if held.descriptors.is_empty() {
            // None are left, or the last owner is closing them.
            held.descriptors = descriptors;
        }
        Held {
            shared: self.clone(),
            version,
        }
    }
}
