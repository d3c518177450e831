//! The ledger: which client holds how much of the capacity, and which need is met next. It does no I/O and has no
//! clock.
//!
//! # Rules
//!
//! - The **lease** of a client consists of the bytes granted to it, less the bytes that it returned. A client returns
//!   bytes after its device has them back. So a lease counts while any of its memory may exist.
//! - **Capacity**: a grant is made only from bytes that no lease covers. The sum of leases never exceeds the capacity;
//!   if the capacity was lowered between two runs, nothing is granted until the sum is within it.
//! - **Guarantee**: guarantees together are within the capacity. A lease is never recalled below its guarantee. A need
//!   within the guarantee comes before all other needs.
//! - **Order**: a need is *reachable* if the free bytes, and the bytes above the guarantees of clients that answer, are
//!   enough. Reachable needs are met in the order of their arrival. A need that is not reachable is passed over
//!   until it is: other clients use their guarantees, or a client does not answer.
//! - **Recall**: for the need that is next, free memory is asked of the clients above their guarantee. Clients give
//!   until the rest of each, over its weight, is equal. A client that answered with less than it was asked for has no
//!   more free memory. If the need is still not met, the recall becomes *binding*: each client above its guarantee
//!   begins to use no more than it is to keep, and returns memory as its requests end, until the need is met. Each is
//!   asked for all that lacks, because the memory of any of them may be in use for ever.
//! - **Hold**: a client that was granted memory which others had to give back keeps its lease for 16 times what giving
//!   it back took, and at most for the longest hold. Meanwhile it is asked for nothing, and its further needs come
//!   before those of others. So most of the time goes to work, and not to moving memory. A hold ends early in three
//!   cases: for a sixteenth of it, while another client waited, the client granted no block and used nothing of the
//!   grant; the client itself waits for memory that other holds cover; its connection ends. A need within a guarantee
//!   ignores all holds, and begins none. While a need waits for holds to end, no memory is recalled for it: the others
//!   use theirs.
//! - **Silence**: a client that does not act on a recall within the grace period is silent. No more is asked of it
//!   until it speaks; others do without its lease.
//! - **Names**: memory that is published under a name counts for the name, and not for a client: see the crate's docs.
//!   Its bytes are taken out of the publisher's lease, in the same step, and the publisher is asked to return as many:
//!   until it has, they are *moved* bytes, which neither count in its lease nor are recalled for others. Names and
//!   guarantees together are within the capacity.
//! - **Death**: the lease of a client whose process has ended is free. A client whose connection ended keeps its lease:
//!   its process may go on to use the memory, and reconnect.
//!
//! # Progress
//!
//! Let the need of client `i` be such that lease and need are at most the capacity less the guarantees of the others.
//! Then the free bytes and the excess of the others are always enough: it is reachable while all clients answer. It
//! becomes the oldest reachable need after finitely many others, because younger needs do not pass it, but for those
//! within guarantees. While it is the oldest, each client above its guarantee may only shrink, and does so as its
//! requests end. Needs within guarantees take at most the guarantees, which the bound above leaves out. So the need is
//! met once the clients have ended their running requests: no request starves. A need beyond that bound is met when
//! others leave enough of their guarantees unused.
//!
//! Holds delay it by a bounded time. A hold lasts no longer than the longest hold, and a new one begins only when the
//! oldest need is met. So a need with `a` needs before it is met after at most `a + 1` times the sum of the longest
//! hold and the time in which clients end their running requests and give memory back. With `n` clients, `a` is at most
//! `n - 1`.
//!
//! Two processes that each hold memory while they wait for more can deadlock, like two tasks of one pool. The broker
//! does not resolve that: reserve what a task needs up front, or set a timeout.

use crate::names::{Memory, NameError, NameFigures, NameLimits, Names, Restored};
use crate::share::{Share, Statement, Terms};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;

/// How many times as long as giving memory back took, the next client keeps it. Mapping takes up to 1.5 times as long
/// as unmapping, so at least 6/7 of the time goes to work.
const HOLD: u32 = 16;

/// The part of a hold after which a client that granted no block loses it to a client that waits.
const SLICES: u32 = 16;

/// A client of a ledger, by number; numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// A process, with the time of its start: the kernel uses the ids of ended processes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Process {
    /// The process id.
    pub id: u32,
    /// When it started, in the kernel's ticks since boot; 0 where that is not known.
    pub started: u64,
}

/// A client that joins, or comes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Joining {
    /// A number that the client chose at random, and keeps.
    pub key: u64,
    /// A name for display.
    pub name: String,
    /// The share that it asks for.
    pub share: Share,
    /// Bytes granted so far, by this broker or an earlier one.
    pub granted: u64,
    /// Bytes returned so far.
    pub returned: u64,
}

/// Memory that a client publishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publication {
    /// Its name.
    pub name: String,
    /// Withdraws the memory that has the name, if any has.
    pub replaces: bool,
    /// The memory.
    pub memory: Memory,
}

/// Why a client is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refused {
    /// The guarantees together would exceed the capacity, or what published memory leaves of it.
    #[error(
        "a guarantee of {guaranteed} bytes does not fit: {promised} of {capacity} bytes are guaranteed to others or \
         published under a name; lower the guarantee, or raise the capacity"
    )]
    Guarantees {
        /// The guarantee that was asked for.
        guaranteed: u64,
        /// The guarantees of the others, and published memory, together.
        promised: u64,
        /// The capacity.
        capacity: u64,
    },
    /// The share contradicts itself.
    #[error("the share is invalid: {0}")]
    Share(String),
    /// The client claims more than it was granted.
    #[error(
        "the client claims a lease of {claimed} bytes, but at most {known} bytes can be its own"
    )]
    Claim {
        /// The lease that it claims.
        claimed: u64,
        /// The lease that it can have.
        known: u64,
    },
    /// The key belongs to a client of another process.
    #[error("the key belongs to a client of process {process}")]
    Key {
        /// That process.
        process: u32,
    },
    /// The message is not one of this protocol, or of another version.
    #[error("the message is not valid: {0}")]
    Protocol(String),
    /// The process has as many connections or leases as one process may have.
    #[error(
        "process {process} has {most} connections or leases, the most of one process; share a pool, or close some"
    )]
    Crowded {
        /// The process.
        process: u32,
        /// The most of one process.
        most: usize,
    },
    /// The broker cannot learn when the client's process ends.
    #[error("the broker cannot watch process {process}: {reason}")]
    Unwatched {
        /// The process.
        process: u32,
        /// The reason, with the remedy.
        reason: String,
    },
    /// The number of connected clients has reached its limit.
    #[error(
        "{clients} clients are connected, the most that a broker serves; retry once one of them has ended"
    )]
    Full {
        /// The number of clients.
        clients: usize,
    },
}

/// A statement that cannot be true. It changes nothing; the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Lie {
    /// More was returned than was granted, or less than before.
    #[error("{returned} bytes returned, after {before}, of {granted} bytes granted")]
    Returned {
        /// As stated.
        returned: u64,
        /// As stated before.
        before: u64,
        /// By the broker.
        granted: u64,
    },
    /// Terms were answered that were never sent.
    #[error("terms {answered} were answered, and the latest are {latest}")]
    Answered {
        /// As stated.
        answered: u64,
        /// The latest terms.
        latest: u64,
    },
    /// The client is not known.
    #[error("the client is not known")]
    Unknown,
}

/// How a client stands, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Standing {
    /// It is connected.
    Present,
    /// It has not acted on a recall within the grace period.
    Silent,
    /// Its connection ended, and its process lives.
    Absent,
}

/// The figures of one client; sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClientFigures {
    /// Its number.
    pub id: ClientId,
    /// Its name.
    pub name: String,
    /// Its process id.
    pub process: u32,
    /// Its share.
    pub share: Share,
    /// Bytes that it holds or may take.
    pub lease: u64,
    /// The need that waits; 0 for none.
    pub needs: u64,
    /// Bytes that it is asked to give back and has not.
    pub recalled: u64,
    /// In use, as it said last.
    pub used: u64,
    /// Held from the device, as it said last.
    pub reserved: u64,
    /// Requests that wait, as it said last.
    pub waiting: u64,
    /// How it stands.
    pub standing: Standing,
    /// It is asked for nothing at present, because moving its memory took long.
    pub holds: bool,
}

/// The figures of a ledger; sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Figures {
    /// Bytes that may be leased.
    pub capacity: u64,
    /// Bytes that no lease covers.
    pub free: u64,
    /// Every client, in the order in which they came.
    pub clients: Vec<ClientFigures>,
    /// The memory that has a name, in the order in which it was published.
    #[serde(default)]
    pub names: Vec<NameFigures>,
}

#[derive(Clone, Debug)]
struct Client {
    key: u64,
    name: String,
    process: Process,
    share: Share,
    statement: Statement,
    terms: Terms,
    /// Bytes that went to names, of those that the client has not returned.
    moved: u64,
    /// When the need arrived, as a number; `None` if it has none.
    need: Option<u64>,
    /// It has answered a recall with less than was asked for since the last need arrived.
    is_spent: bool,
    /// Since when it has not acted on a recall.
    asked_since: Option<Duration>,
    is_silent: bool,
    is_connected: bool,
    /// The terms changed, and were not sent.
    is_news: bool,
    hold: Option<Hold>,
}

/// A time during which a client is asked for nothing.
#[derive(Clone, Copy, Debug)]
struct Hold {
    since: Duration,
    length: Duration,
    /// Bytes granted when it began or became longer.
    granted: u64,
    look: Look,
}

/// The last known number of blocks that a client granted, asked for during its hold.
#[derive(Clone, Copy, Debug)]
enum Look {
    /// Nothing yet: no other client waited.
    None,
    /// It was asked; it had granted this many before.
    Asked { before: Option<u64> },
    /// It had granted this many then.
    Seen { at: Duration, blocks: u64 },
}

impl Hold {
    fn until(&self) -> Duration {
        self.since.saturating_add(self.length)
    }

    /// Returns when to ask for the number of blocks; `None` if an answer is awaited.
    fn next_look(&self) -> Option<Duration> {
        match self.look {
            Look::None => Some(Duration::ZERO),
            Look::Asked { .. } => None,
            Look::Seen { at, .. } => Some(at.saturating_add(self.length / SLICES)),
        }
    }
}

impl Client {
    fn holds(&self) -> bool {
        self.hold.is_some()
    }

    /// Begins a hold after a move that took others this long, or makes the present one longer.
    fn extend_hold(&mut self, moving: Duration, longest: Duration, now: Duration) {
        let more = moving.saturating_mul(HOLD);
        let mut hold = self.hold.unwrap_or(Hold {
            since: now,
            length: Duration::ZERO,
            granted: 0,
            look: Look::None,
        });
        hold.length = hold.length.saturating_add(more).min(longest);
        hold.granted = hold.granted.saturating_add(self.lacks());
        self.hold = Some(hold).filter(|hold| !hold.length.is_zero());
    }

    /// Takes the answer to a look. A client loses its hold if it granted no block in between, and leaves at least the
    /// bytes of the hold unused.
    fn note_blocks(&mut self, now: Duration) {
        let unused = self.lease().saturating_sub(self.statement.used);
        let blocks = self.statement.blocks;
        if let Some(hold) = &mut self.hold
            && let Look::Asked { before } = hold.look
        {
            hold.look = Look::Seen { at: now, blocks };
            if before == Some(blocks) && unused >= hold.granted {
                self.hold = None;
            }
        }
    }

    /// The bytes that the client says are its own. Moved ones are among them until it has returned them.
    fn unreturned(&self) -> u64 {
        self.terms.granted - self.statement.returned
    }

    fn lease(&self) -> u64 {
        self.unreturned() - self.moved
    }

    /// Bytes that the client has returned, or is to return for a name.
    fn returned(&self) -> u64 {
        self.statement.returned + self.moved
    }

    /// Bytes above the guarantee.
    fn excess(&self) -> u64 {
        self.lease().saturating_sub(self.share.guaranteed)
    }

    fn lacks(&self) -> u64 {
        match self.need {
            Some(_) => self.statement.needs.saturating_sub(self.terms.granted),
            None => 0,
        }
    }

    /// It can be asked to give memory back.
    fn answers(&self) -> bool {
        self.is_connected && !self.is_silent
    }

    fn owes(&self) -> u64 {
        let owed = self.terms.recalled.saturating_sub(self.returned());
        owed.min(self.lease())
    }

    fn is_within_guarantee(&self) -> bool {
        self.lease().saturating_add(self.lacks()) <= self.share.guaranteed
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Ledger {
    capacity: u64,
    grace: Duration,
    longest_hold: Duration,
    clients: BTreeMap<ClientId, Client>,
    names: Names,
    /// How long clients took to give memory back for the needs that wait.
    moving: Duration,
    /// The next need waits until holds end.
    is_held_up: bool,
    next: u64,
    arrivals: u64,
    /// The arrival of the need that memory is recalled for.
    head: Option<u64>,
    /// Rises with each change that the figures show.
    version: u64,
}

impl Ledger {
    /// Creates a ledger of this capacity in bytes. A client that does not act on a recall for `grace` is silent. No
    /// hold lasts longer than `longest_hold`; with zero, there are none.
    pub fn new(capacity: u64, grace: Duration, longest_hold: Duration) -> Self {
        Self {
            capacity,
            grace,
            longest_hold,
            moving: Duration::ZERO,
            is_held_up: false,
            clients: BTreeMap::new(),
            names: Names::new(NameLimits::default()),
            next: 0,
            arrivals: 0,
            head: None,
            version: 0,
        }
    }

    /// Sets how much memory may have a name, before any has.
    #[must_use]
    pub fn with_name_limits(mut self, limits: NameLimits) -> Self {
        self.names = Names::new(limits);
        self
    }

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns a number that rises with each change of the figures.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Counts the lease of a client of an earlier broker, whose process lives. `moved` of its bytes went to names.
    pub fn restore(
        &mut self,
        key: u64,
        name: String,
        process: Process,
        share: Share,
        (lease, moved): (u64, u64),
    ) -> ClientId {
        let moved = moved.min(lease);
        let id = self.add(Client {
            key,
            name,
            process,
            share,
            statement: Statement::default(),
            terms: Terms {
                granted: lease,
                recalled: moved,
                ..Terms::default()
            },
            moved,
            need: None,
            is_spent: false,
            asked_since: None,
            is_silent: false,
            is_connected: false,
            is_news: false,
            hold: None,
        });
        self.version += 1;
        id
    }

    fn add(&mut self, client: Client) -> ClientId {
        let id = ClientId(self.next);
        self.next += 1;
        self.clients.insert(id, client);
        id
    }

    /// Admits a client. Its first terms are [news](Self::take_news).
    ///
    /// # Errors
    /// Returns an error if its share does not fit, or it claims a lease that it cannot have. Nothing changes.
    pub fn join(
        &mut self,
        process: Process,
        joining: &Joining,
        now: Duration,
    ) -> Result<ClientId, Refused> {
        let Joining {
            key,
            name,
            share,
            granted,
            returned,
        } = joining;
        let mut share = *share;
        share.limit = share.limit.min(self.capacity);
        if share.weight == 0 {
            return Err(Refused::Share("the weight is 0; choose 1 or more".into()));
        }
        if share.guaranteed > share.limit {
            let Share {
                guaranteed, limit, ..
            } = share;
            let reason =
                format!("the guarantee of {guaranteed} bytes exceeds the limit of {limit} bytes");
            return Err(Refused::Share(reason));
        }
        let known = self.clients.iter().find(|(_, client)| client.key == *key);
        let known = known.map(|(id, client)| (*id, client.process, client.unreturned()));
        if let Some((_, owner, _)) = known.filter(|(_, owner, _)| *owner != process) {
            return Err(Refused::Key { process: owner.id });
        }
        let others = self
            .clients
            .iter()
            .filter(|(id, _)| known.is_none_or(|(known, ..)| known != **id));
        let promised: u64 = others
            .map(|(_, client)| client.share.guaranteed)
            .fold(self.names.bytes(), u64::saturating_add);
        // A lower capacity may not cover the guarantees of an earlier broker. That is no reason to refuse others.
        let is_covered = promised.saturating_add(share.guaranteed) <= self.capacity;
        if share.guaranteed > 0 && !is_covered {
            let (guaranteed, capacity) = (share.guaranteed, self.capacity);
            return Err(Refused::Guarantees {
                guaranteed,
                promised,
                capacity,
            });
        }
        // A record may be lost, and its clients live. Then the lease is counted if it can be true.
        let most = known.map_or(self.free(), |(_, _, lease)| lease);
        let claimed = granted.checked_sub(*returned).unwrap_or(u64::MAX);
        if claimed > most {
            return Err(Refused::Claim {
                claimed,
                known: most,
            });
        }
        let earlier =
            known.and_then(|(id, ..)| self.clients.remove(&id).map(|client| (id, client)));
        let number = earlier
            .as_ref()
            .map_or(0, |(_, client)| client.terms.number);
        // What it has returned since then was returned for names first.
        let moved = earlier.as_ref().map_or(0, |(_, client)| {
            let since = client.unreturned() - claimed;
            client.moved.saturating_sub(since)
        });
        let client = Client {
            key: *key,
            name: name.clone(),
            process,
            share,
            statement: Statement {
                returned: *returned,
                // The guarantee is granted at once if it is free.
                wishes: granted.saturating_add(share.guaranteed.saturating_sub(claimed)),
                ..Statement::default()
            },
            terms: Terms {
                number: number + 1,
                heard: 0,
                granted: *granted,
                recalled: *returned + moved,
                is_binding: false,
            },
            moved,
            need: None,
            is_spent: false,
            asked_since: None,
            is_silent: false,
            is_connected: true,
            is_news: true,
            hold: None,
        };
        let id = match earlier {
            Some((id, _)) => {
                self.clients.insert(id, client);
                id
            }
            None => self.add(client),
        };
        self.settle(now);
        Ok(id)
    }

    /// Takes a client's statement.
    ///
    /// # Errors
    /// Returns an error if it cannot be true. Nothing changes.
    pub fn state(
        &mut self,
        id: ClientId,
        mut statement: Statement,
        now: Duration,
    ) -> Result<(), Lie> {
        let client = self.clients.get_mut(&id).ok_or(Lie::Unknown)?;
        let (before, granted) = (client.statement.returned, client.terms.granted);
        let returned = statement.returned;
        if returned > granted || returned < before {
            return Err(Lie::Returned {
                returned,
                before,
                granted,
            });
        }
        let latest = client.terms.number;
        if statement.answered > latest {
            let answered = statement.answered;
            return Err(Lie::Answered { answered, latest });
        }
        // A client that asks for more gets its limit. Its need and a recall may have crossed on the way.
        client.moved = client.moved.saturating_sub(returned - before);
        let gone = returned.saturating_add(client.moved);
        statement.needs = statement.needs.min(gone.saturating_add(client.share.limit));
        let took = statement
            .returning
            .saturating_sub(client.statement.returning);
        if returned > before {
            self.moving = self.moving.saturating_add(Duration::from_nanos(took));
        }
        client.statement = statement;
        client.is_silent = false;
        let is_answer = statement.answered == latest;
        if is_answer {
            client.asked_since = None;
            client.is_spent |= client.owes() > 0;
            client.note_blocks(now);
        }
        if statement.needs <= granted {
            client.need = None;
        } else if client.need.is_none() {
            client.need = Some(self.arrivals);
            self.arrivals += 1;
        }
        self.settle(now);
        if let Some(client) = self.clients.get_mut(&id)
            && statement.asks > client.terms.heard
        {
            client.terms.heard = statement.asks;
            client.note_terms();
        }
        Ok(())
    }

    /// Notes that the present terms of a client were sent.
    pub fn note_sent(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.is_news = false;
        }
    }

    /// Notes that a client's connection ended. Its lease stays until it returns or its process ends; a client that
    /// holds nothing is forgotten.
    pub fn part(&mut self, id: ClientId, now: Duration) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.is_connected = false;
        client.hold = None;
        client.need = None;
        client.asked_since = None;
        client.terms.recalled = client.returned();
        client.terms.is_binding = false;
        if client.unreturned() == 0 && !self.names.is_holder(client.key) {
            self.clients.remove(&id);
        }
        self.settle(now);
    }

    /// Notes that a client holds nothing any more, whatever it was granted.
    pub fn leave(&mut self, id: ClientId, now: Duration) {
        self.remove(|other, _| other == id);
        self.settle(now);
    }

    /// Removes clients, and what they hold.
    fn remove(&mut self, is_meant: impl Fn(ClientId, &Client) -> bool) {
        let Self { clients, names, .. } = self;
        clients.retain(|id, client| {
            let stays = !is_meant(*id, client);
            if !stays {
                names.forget(client.key);
            }
            stays
        });
    }

    /// Notes that a process ended, and that the driver has its memory back.
    pub fn exit(&mut self, process: Process, now: Duration) {
        self.remove(|_, client| client.process == process);
        self.settle(now);
    }

    /// Frees the lease of one client that is not connected, where nothing tells when its process ends.
    pub fn forget(&mut self, id: ClientId, now: Duration) {
        self.remove(|other, client| other == id && !client.is_connected);
        self.settle(now);
    }

    /// Notes the time: clients that did not act on a recall within the grace period are silent from then on.
    pub fn pass_time(&mut self, now: Duration) {
        let grace = self.grace;
        for client in self.clients.values_mut() {
            if client
                .asked_since
                .is_some_and(|since| now >= since.saturating_add(grace))
            {
                client.asked_since = None;
                client.is_silent = true;
            }
        }
        self.settle(now);
    }

    /// Returns when to [pass the time](Self::pass_time) next; `None` while every client has answered, and no need waits
    /// for a hold to end.
    pub fn next_time(&self) -> Option<Duration> {
        let clients = self.clients.values();
        let asked = clients.filter_map(|client| client.asked_since);
        let asked = asked.map(|since| since.saturating_add(self.grace));
        let holds = self.clients.values().filter_map(|client| client.hold);
        let holds = holds.filter(|_| self.is_held_up);
        let holds = holds.flat_map(|hold| [Some(hold.until()), hold.next_look()]);
        asked.chain(holds.flatten()).min()
    }

    /// Returns the terms that changed since they were last taken.
    pub fn take_news(&mut self) -> Vec<(ClientId, Terms)> {
        let clients = self
            .clients
            .iter_mut()
            .filter(|(_, client)| client.is_connected);
        let news = clients.filter_map(|(id, client)| {
            std::mem::take(&mut client.is_news).then_some((*id, client.terms))
        });
        news.collect()
    }

    /// Returns the present terms of a client.
    pub fn terms(&self, id: ClientId) -> Option<Terms> {
        self.clients.get(&id).map(|client| client.terms)
    }

    /// Returns the bytes that no lease covers.
    pub fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.leased())
    }

    /// Returns the bytes of all leases, and of all names.
    fn leased(&self) -> u64 {
        self.clients
            .values()
            .map(Client::lease)
            .fold(self.names.bytes(), u64::saturating_add)
    }

    /// Returns the figures for display.
    pub fn figures(&self) -> Figures {
        let figures = |(id, client): (&ClientId, &Client)| ClientFigures {
            id: *id,
            name: client.name.clone(),
            process: client.process.id,
            share: client.share,
            lease: client.lease(),
            needs: client.lacks(),
            recalled: client.owes(),
            used: client.statement.used,
            reserved: client.statement.reserved,
            waiting: client.statement.waiting,
            standing: match (client.is_connected, client.is_silent) {
                (false, _) => Standing::Absent,
                (true, true) => Standing::Silent,
                (true, false) => Standing::Present,
            },
            holds: client.holds(),
        };
        Figures {
            capacity: self.capacity,
            free: self.free(),
            clients: self.clients.iter().map(figures).collect(),
            names: self.names.figures(),
        }
    }

    /// Returns the leases to record for the next broker, each with the bytes of it that went to names.
    pub fn leases(&self) -> impl Iterator<Item = (u64, &str, Process, Share, (u64, u64))> {
        let clients = self.clients.values();
        clients.map(|client| {
            (
                client.key,
                &*client.name,
                client.process,
                client.share,
                (client.unreturned(), client.moved),
            )
        })
    }

    /// Publishes memory of a client: its bytes go from the client's lease to the name, and the client is asked to return
    /// them. `request` is a number of the client's for this publication; the same one again changes nothing. Returns the
    /// version, and whether to keep the descriptors.
    ///
    /// # Errors
    /// Returns why nothing was published, which leaves the client's lease as it is.
    pub fn publish(
        &mut self,
        id: ClientId,
        request: u64,
        publication: Publication,
        descriptors: usize,
        now: Duration,
    ) -> Result<(u64, bool), NameError> {
        let client = self.clients.get(&id).expect("the client is known");
        let (key, lease) = (client.key, client.lease());
        if let Some(version) = self.names.made_by((key, request)) {
            return Ok((version, self.names.publish_again(version, key)));
        }
        let Publication {
            name,
            replaces,
            memory,
        } = publication;
        let bytes = self.names.check(&name, replaces, &memory, descriptors)?;
        if bytes > lease {
            return Err(NameError::NotLeased { bytes, lease });
        }
        let guarantees = self.clients.values().map(|client| client.share.guaranteed);
        let (promised, named) = (guarantees.fold(0, u64::saturating_add), self.names.bytes());
        let all = promised.saturating_add(named).saturating_add(bytes);
        if promised > 0 && all > self.capacity {
            return Err(NameError::Guaranteed {
                bytes,
                promised,
                named,
                capacity: self.capacity,
            });
        }
        let version = self.names.publish((key, request), name, memory);
        let client = self.clients.get_mut(&id).expect("the client is known");
        client.moved += bytes;
        self.settle(now);
        Ok((version, true))
    }

    /// Has a client hold the memory of a name. Returns its version.
    ///
    /// # Errors
    /// Returns why the client cannot have it.
    pub fn attach(
        &mut self,
        id: ClientId,
        name: &str,
        version: Option<u64>,
        writes: bool,
    ) -> Result<(u64, Memory), NameError> {
        let key = self.clients[&id].key;
        self.version += 1;
        self.names.attach(key, name, version, writes)
    }

    /// Notes that a client has unmapped the memory of a version, once. Does nothing if the client does not hold it: a broker
    /// without a record may not know the version.
    pub fn detach(&mut self, id: ClientId, version: u64, now: Duration) {
        self.names.detach(self.clients[&id].key, version);
        self.settle(now);
    }

    /// Notes which versions a client that came back holds, and how often: these, and those of the publications that it
    /// will repeat.
    pub fn restate(
        &mut self,
        id: ClientId,
        held: &[(u64, u32)],
        unanswered: &[u64],
        now: Duration,
    ) {
        self.names.restate(self.clients[&id].key, held, unanswered);
        self.settle(now);
    }

    /// Takes the descriptors of a version from a client that came back. Returns whether to keep them.
    pub fn bring_back(
        &mut self,
        id: ClientId,
        held: Restored,
        descriptors: usize,
        now: Duration,
    ) -> bool {
        let (key, free) = (self.clients[&id].key, self.free());
        let is_new = self.names.restore(key, held, descriptors, free);
        self.settle(now);
        is_new
    }

    /// Makes a name lead to nothing. Clients that hold its memory keep it, and its bytes count until they have let go.
    ///
    /// # Errors
    /// Returns an error if nothing has that name.
    pub fn withdraw(&mut self, name: &str, now: Duration) -> Result<NameFigures, NameError> {
        let withdrawn = self.names.withdraw(name)?;
        self.settle(now);
        Ok(withdrawn)
    }

    /// Returns the names, for the record of the broker.
    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the names, to take the record of an earlier broker.
    pub(crate) fn names_mut(&mut self) -> &mut Names {
        &mut self.names
    }

    /// Meets the needs that can be met, and recalls memory for the next one.
    fn settle(&mut self, now: Duration) {
        self.version += 1;
        self.end_holds(now);
        while let Some(id) = self.next_need() {
            let free = self.free();
            let client = self.clients.get_mut(&id).expect("it has a need");
            let lacks = client.lacks();
            if lacks > free {
                break;
            }
            let moving = std::mem::take(&mut self.moving);
            // Otherwise a client could hold again and again, ahead of others that wait.
            if !client.is_within_guarantee() {
                client.extend_hold(moving, self.longest_hold, now);
            }
            client.terms.granted += lacks;
            client.need = None;
            client.note_terms();
        }
        let next = self.next_need();
        let head = next.and_then(|id| self.clients[&id].need);
        if std::mem::replace(&mut self.head, head) != head {
            // Clients may have freed memory since they were asked for another need.
            self.clients
                .values_mut()
                .for_each(|client| client.is_spent = false);
        }
        if next.is_none() {
            self.moving = Duration::ZERO;
            self.grant_wishes();
        }
        self.recall_for(next, now);
    }

    /// Ends the holds whose time is over, and those of clients that wait for memory which other holds cover.
    fn end_holds(&mut self, now: Duration) {
        for client in self.clients.values_mut() {
            client.hold = client.hold.filter(|hold| now < hold.until());
        }
        // One after the other: each hold that ends may leave enough for the next client.
        while let Some(id) = self.blocked_holder() {
            self.clients.get_mut(&id).expect("it was found").hold = None;
        }
    }

    /// Returns a client that holds its lease, and needs memory that other holds cover.
    fn blocked_holder(&self) -> Option<ClientId> {
        let mut clients = self.clients.iter();
        let blocked = clients.find(|(id, client)| {
            let is_needy = client.holds() && client.need.is_some();
            is_needy && !client.is_within_guarantee() && !self.is_met_without_holds(**id)
        });
        blocked.map(|(id, _)| *id)
    }

    /// Returns the need that is met next: the oldest within a guarantee, or else the oldest of a client that holds, or
    /// else the oldest that is reachable.
    fn next_need(&self) -> Option<ClientId> {
        let needy = || {
            self.clients
                .iter()
                .filter(|(id, client)| client.need.is_some() && self.is_reachable(**id))
        };
        let oldest = |needs: &mut dyn Iterator<Item = (&ClientId, &Client)>| {
            needs
                .min_by_key(|(_, client)| client.need)
                .map(|(id, _)| *id)
        };
        let guaranteed = oldest(&mut needy().filter(|(_, client)| client.is_within_guarantee()));
        let held = || oldest(&mut needy().filter(|(_, client)| client.holds()));
        guaranteed.or_else(held).or_else(|| oldest(&mut needy()))
    }

    fn is_reachable(&self, id: ClientId) -> bool {
        self.is_met_by(id, |_| true)
    }

    fn is_met_without_holds(&self, id: ClientId) -> bool {
        self.is_met_by(id, |client| !client.holds())
    }

    /// Returns whether the free bytes, and the excess of the other clients that answer and that the filter admits, are
    /// enough for the need of a client.
    fn is_met_by(&self, id: ClientId, filter: impl Fn(&Client) -> bool) -> bool {
        let others = self
            .clients
            .iter()
            .filter(|(other, client)| **other != id && client.answers() && filter(client));
        let excess = others
            .map(|(_, client)| client.excess())
            .fold(0, u64::saturating_add);
        // Bytes leased beyond the capacity have to come back first.
        let could_be_leased = self
            .capacity
            .saturating_add(excess)
            .saturating_sub(self.leased());
        self.clients[&id].lacks() <= could_be_leased
    }

    /// Grants the bytes that clients wish for while no need waits. Bytes that are not free now are not granted later.
    fn grant_wishes(&mut self) {
        let mut free = self.free();
        for client in self
            .clients
            .values_mut()
            .filter(|client| client.is_connected)
        {
            let wished = client.statement.wishes;
            let wished = wished.saturating_sub(client.terms.granted);
            let room = client.share.limit.saturating_sub(client.lease());
            let given = wished.min(room).min(free);
            client.statement.wishes = 0;
            if given > 0 {
                free -= given;
                client.terms.granted += given;
                client.note_terms();
            }
        }
    }

    /// Sets the bytes that each client is asked to return, for this need and for leases beyond the capacity.
    fn recall_for(&mut self, next: Option<ClientId>, now: Duration) {
        let need = next.map_or(0, |id| self.clients[&id].lacks());
        let lacking = need
            .saturating_add(self.leased())
            .saturating_sub(self.capacity);
        // A need within a guarantee is met at once.
        let ignores_holds = next.is_some_and(|id| self.clients[&id].is_within_guarantee());
        self.is_held_up = match next {
            Some(id) => !ignores_holds && !self.is_met_without_holds(id),
            None => false,
        };
        if self.is_held_up {
            self.look_at_holds(now);
        }
        let lacking = if self.is_held_up { 0 } else { lacking };
        let others = || {
            let clients = self
                .clients
                .iter()
                .filter(|(id, client)| next != Some(**id) && client.answers());
            clients.filter(|(_, client)| client.excess() > 0 && (ignores_holds || !client.holds()))
        };
        let weighted = |is_spent: bool| -> Vec<(ClientId, u64, u32)> {
            let clients = others().filter(|(_, client)| client.is_spent == is_spent);
            clients
                .map(|(id, client)| (*id, client.excess(), client.share.weight))
                .collect()
        };
        let soft = split(lacking, &weighted(false));
        let rest = lacking - soft.values().sum::<u64>();
        // Each such client is asked for the whole rest, and the first to end its requests returns it: memory of another
        // one may be in use for ever.
        let binding: BTreeMap<_, _> = match rest {
            0 => BTreeMap::new(),
            _ => weighted(true)
                .into_iter()
                .map(|(id, excess, _)| (id, excess.min(rest)))
                .collect(),
        };
        for (id, client) in &mut self.clients {
            let asked = soft.get(id).or(binding.get(id)).copied().unwrap_or(0);
            let recalled = client.returned() + asked;
            let is_binding = binding.contains_key(id) && asked > 0;
            let is_same = client.terms.recalled.max(client.statement.returned) == recalled
                && client.terms.is_binding == is_binding;
            if !is_same {
                client.terms.recalled = recalled;
                client.terms.is_binding = is_binding;
                client.note_terms();
            }
            let is_unanswered = client.answers() && client.statement.answered < client.terms.number;
            match (asked > 0 && is_unanswered, client.asked_since) {
                (true, None) => client.asked_since = Some(now),
                (false, _) => client.asked_since = None,
                (true, Some(_)) => {}
            }
        }
    }

    /// Asks clients how many blocks they have granted, if they hold memory that another client waits for and a look is
    /// due. A client answers new terms with a statement.
    fn look_at_holds(&mut self, now: Duration) {
        for client in self.clients.values_mut() {
            let Some(hold) = &mut client.hold else {
                continue;
            };
            if hold.next_look().is_some_and(|at| at <= now) {
                let before = match hold.look {
                    Look::Seen { blocks, .. } => Some(blocks),
                    _ => None,
                };
                hold.look = Look::Asked { before };
                client.note_terms();
            }
        }
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// Returns a description of the first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        for (id, client) in &self.clients {
            let (lease, owes) = (client.lease(), client.owes());
            if client.statement.returned > client.terms.granted {
                return Err(format!("{id:?} returned more than it was granted"));
            }
            if owes > client.excess() {
                return Err(format!(
                    "{id:?} is asked for {owes} of {lease}, and its guarantee is {:?}",
                    client.share
                ));
            }
            if client.moved > client.unreturned() {
                return Err(format!("more of {id:?} went to names than it has"));
            }
            if client.need.is_some() && client.lacks() == 0 {
                return Err(format!("{id:?} waits for nothing"));
            }
        }
        self.names.check_invariants()?;
        if self.is_held_up && self.next_time().is_none() {
            return Err("a need waits for holds that no time ends".into());
        }
        let next = self.next_need();
        let is_met = next.is_some_and(|id| self.clients[&id].lacks() <= self.free());
        if is_met {
            return Err(format!("{next:?} waits for memory that is free"));
        }
        Ok(())
    }
}

impl Client {
    fn note_terms(&mut self) {
        self.terms.number += 1;
        self.is_news = true;
    }
}

/// Splits `bytes` over clients, of which each has an excess and a weight, so that the remaining excess of each, divided
/// by its weight, is equal, or less where there was less. Returns less in all if the excess of all is less.
fn split(bytes: u64, clients: &[(ClientId, u64, u32)]) -> BTreeMap<ClientId, u64> {
    let mut given = BTreeMap::new();
    if bytes == 0 {
        return given;
    }
    // Clients with the highest excess over their weight give first, down to the level of the next.
    let mut clients: Vec<_> = clients
        .iter()
        .filter(|(_, excess, _)| *excess > 0)
        .copied()
        .collect();
    let level = |excess: u64, weight: u32| {
        u128::from(excess) * u128::from(u32::MAX) / u128::from(weight.max(1))
    };
    clients.sort_by_key(|(id, excess, weight)| (std::cmp::Reverse(level(*excess, *weight)), *id));
    let total: u128 = clients
        .iter()
        .map(|(_, excess, _)| u128::from(*excess))
        .sum();
    let wanted = u128::from(bytes).min(total);
    // The sum that is given rises as the level falls: find the highest level at which it is enough.
    let gives = |at: u128, (_, excess, weight): &(ClientId, u64, u32)| {
        let kept = at.saturating_mul(u128::from(*weight)) / u128::from(u32::MAX);
        u128::from(*excess).saturating_sub(kept)
    };
    let sum = |at: u128| clients.iter().map(|client| gives(at, client)).sum::<u128>();
    let (mut low, mut high) = (
        0,
        clients
            .first()
            .map_or(0, |(_, excess, weight)| level(*excess, *weight) + 1),
    );
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        match sum(middle) >= wanted {
            true => low = middle,
            false => high = middle,
        }
    }
    let mut left = wanted;
    for client in &clients {
        let share = gives(low, client).min(left);
        left -= share;
        if share > 0 {
            given.insert(client.0, share as u64);
        }
    }
    given
}

#[cfg(test)]
mod tests;
