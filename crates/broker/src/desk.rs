//! The desk: what the broker answers to which message. It does no I/O: connections are numbers, and answers are values.

use crate::ledger::{ClientId, Ledger, Lie, Process, Refused};
use crate::message::{Reply, Request, VERSION};
use crate::names::NameError;
use std::collections::BTreeMap;
use std::time::Duration;

/// The most connections that are served at once, and the most clients with and without one. The figures of as many fit
/// into a frame.
pub const MOST_CONNECTIONS: usize = 128;

/// The most connections of one process, and the most leases, unless the broker's configuration says otherwise.
pub const MOST_OF_A_PROCESS: usize = 32;

/// How long a connection may take to send its first message. Clients send it at once.
pub const FIRST_MESSAGE: Duration = Duration::from_secs(5);

/// The longest name of a client, in bytes.
const LONGEST_NAME: usize = 64;

/// What to do with a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends a message.
    Send(u64, Reply),
    /// Sends a message with the kept descriptors of a version.
    Lend(u64, Reply, u64),
    /// Ends the connection, after the messages sent before.
    Close(u64),
}

#[derive(Debug)]
struct Connection {
    process: Process,
    role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It has sent nothing since then.
    New {
        since: Duration,
    },
    Client(ClientId),
    /// It waits for figures of another version.
    Watcher {
        seen: Option<u64>,
        waits: bool,
    },
}

/// See the [module](self).
#[derive(Debug)]
pub struct Desk {
    /// The ledger. Call [`actions`](Self::actions) after a change.
    pub ledger: Ledger,
    connections: BTreeMap<u64, Connection>,
    most_of_a_process: usize,
    actions: Vec<Action>,
    /// Actions that follow the terms of the present turn.
    later: Vec<Action>,
}

/// The descriptors that came with a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptors {
    /// Their number.
    pub count: usize,
    /// One of them cannot be that of memory.
    pub are_foreign: bool,
}

impl Desk {
    /// Creates a desk over a ledger, which serves this many connections and leases of one process at most.
    pub fn new(ledger: Ledger, most_of_a_process: usize) -> Self {
        Self {
            ledger,
            connections: BTreeMap::new(),
            most_of_a_process,
            actions: Vec::new(),
            later: Vec::new(),
        }
    }

    /// Begins a connection of a process, under a number that no other connection has and that is above all earlier ones.
    ///
    /// At a limit, the oldest connection that has sent nothing makes room: one of the process that has most of them. So
    /// connections that stay silent keep no client out.
    pub fn connect(&mut self, number: u64, process: Process, now: Duration) {
        let of_process = self.connections.values();
        let of_process = of_process.filter(|connection| connection.process == process);
        let of_process = of_process.count();
        let (is_full, is_crowded) = (
            self.connections.len() >= MOST_CONNECTIONS,
            of_process >= self.most_of_a_process,
        );
        let silent = match (is_crowded, is_full) {
            (true, _) => self.oldest_silent(process),
            (false, true) => self
                .most_silent()
                .and_then(|process| self.oldest_silent(process)),
            (false, false) => None,
        };
        if let Some(silent) = silent {
            self.connections.remove(&silent);
            self.actions.push(Action::Close(silent));
        } else if is_crowded {
            return self.refuse(number, self.crowded(process));
        } else if is_full {
            let clients = self.connections.len();
            return self.refuse(number, Refused::Full { clients });
        }
        let connection = Connection {
            process,
            role: Role::New { since: now },
        };
        self.connections.insert(number, connection);
    }

    fn crowded(&self, process: Process) -> Refused {
        Refused::Crowded {
            process: process.id,
            most: self.most_of_a_process,
        }
    }

    /// Returns the connections that have sent nothing, the oldest first.
    fn silent(&self) -> impl Iterator<Item = (u64, Process, Duration)> {
        let connections = self.connections.iter();
        connections.filter_map(|(number, connection)| match connection.role {
            Role::New { since } => Some((*number, connection.process, since)),
            _ => None,
        })
    }

    fn oldest_silent(&self, process: Process) -> Option<u64> {
        let mut silent = self.silent().filter(|(_, of, _)| *of == process);
        silent.next().map(|(number, ..)| number)
    }

    /// Returns the process with the most connections that have sent nothing.
    fn most_silent(&self) -> Option<Process> {
        let mut counts = BTreeMap::<Process, usize>::new();
        for (_, process, _) in self.silent() {
            *counts.entry(process).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.map(|(process, _)| process)
    }

    /// Notes the time: connections that have sent nothing for [`FIRST_MESSAGE`] end.
    pub fn pass_time(&mut self, now: Duration) {
        let late = self
            .silent()
            .filter(|(.., since)| now >= since.saturating_add(FIRST_MESSAGE));
        let late: Vec<_> = late.map(|(number, ..)| number).collect();
        for number in late {
            self.connections.remove(&number);
            self.actions.push(Action::Close(number));
        }
        if self.ledger.next_time().is_some_and(|at| at <= now) {
            self.ledger.pass_time(now);
        }
    }

    /// Returns when to [pass the time](Self::pass_time) next, if at all.
    pub fn next_time(&self) -> Option<Duration> {
        let silent = self
            .silent()
            .map(|(.., since)| since.saturating_add(FIRST_MESSAGE));
        silent.chain(self.ledger.next_time()).min()
    }

    /// Takes a message of a connection, and the descriptors that came with it. Returns the version for which to keep
    /// them; without one, close them.
    pub fn receive(
        &mut self,
        number: u64,
        request: Request,
        descriptors: Descriptors,
        now: Duration,
    ) -> Option<u64> {
        let role = self.connections.get(&number)?.role;
        if let Role::Client(id) = role
            && self.ledger.terms(id).is_none()
        {
            // Its process has ended, and left messages behind.
            self.fault(number, Lie::Unknown.to_string(), now);
            return None;
        }
        match (request, role) {
            (
                Request::Publish {
                    request,
                    publication,
                },
                Role::Client(id),
            ) => {
                let published = match descriptors.are_foreign {
                    true => Err(NameError::NotMemory),
                    false => {
                        let count = descriptors.count;
                        self.ledger.publish(id, request, publication, count, now)
                    }
                };
                let kept = published.as_ref().ok().filter(|(_, is_new)| *is_new);
                let kept = kept.map(|(version, _)| *version);
                let version = published.map(|(version, _)| version);
                // After the terms that recall the bytes.
                let answer = Reply::Published { request, version };
                self.later.push(Action::Send(number, answer));
                kept
            }
            (Request::Restore(held), Role::Client(id)) => {
                let version = held.version;
                let count = descriptors.count;
                let is_kept =
                    !descriptors.are_foreign && self.ledger.bring_back(id, held, count, now);
                let answer = Reply::Restored { version };
                self.actions.push(Action::Send(number, answer));
                is_kept.then_some(version)
            }
            (request, _) if descriptors.count > 0 => {
                let reason = format!("descriptors came with {request:?}");
                self.fault(number, reason, now);
                None
            }
            (request, _) => {
                self.handle(number, request, now);
                None
            }
        }
    }

    /// Refuses a connection that sent a malformed message.
    pub fn refuse_malformed(&mut self, number: u64, reason: String, now: Duration) {
        if self.connections.contains_key(&number) {
            self.fault(number, reason, now);
        }
    }

    fn handle(&mut self, number: u64, request: Request, now: Duration) {
        let Connection { process, role, .. } = &self.connections[&number];
        let (process, role) = (*process, *role);
        match (request, role) {
            (
                Request::Join { version, .. }
                | Request::Watch { version, .. }
                | Request::Withdraw { version, .. },
                _,
            ) if version != VERSION => {
                let reason =
                    format!("version {version} of the protocol; this broker has version {VERSION}");
                self.fault(number, reason, now);
            }
            (Request::Join { mut client, .. }, Role::New { .. }) => {
                if client.name.len() > LONGEST_NAME {
                    return self.fault(
                        number,
                        format!("the name exceeds {LONGEST_NAME} bytes"),
                        now,
                    );
                }
                // They are shown on terminals, and take six bytes in a frame of figures.
                client.name = client
                    .name
                    .replace(|name: char| name.is_ascii_control(), "?");
                let clients = self.ledger.leases().count();
                let is_known = || self.ledger.leases().any(|(key, ..)| key == client.key);
                if clients >= MOST_CONNECTIONS && !is_known() {
                    return self.refuse(number, Refused::Full { clients });
                }
                let of_process = self.ledger.leases().filter(|lease| lease.2 == process);
                if of_process.count() >= self.most_of_a_process && !is_known() {
                    return self.refuse(number, self.crowded(process));
                }
                match self.ledger.join(process, &client, now) {
                    Ok(id) => self.welcome(number, id),
                    Err(refused) => self.refuse(number, refused),
                }
            }
            (Request::State(statement), Role::Client(id)) => {
                if let Err(lie) = self.ledger.state(id, statement, now) {
                    self.fault(number, lie.to_string(), now);
                }
            }
            (
                Request::Attach {
                    request,
                    name,
                    version,
                    writes,
                },
                Role::Client(id),
            ) => {
                let memory = self.ledger.attach(id, &name, version, writes);
                let kept = memory.as_ref().ok().map(|(version, _)| *version);
                let answer = Reply::Attached { request, memory };
                self.actions.push(match kept {
                    Some(version) => Action::Lend(number, answer, version),
                    None => Action::Send(number, answer),
                });
            }
            (Request::Detach { version }, Role::Client(id)) => {
                self.ledger.detach(id, version, now);
            }
            (
                Request::Holds {
                    versions,
                    unanswered,
                },
                Role::Client(id),
            ) => self.ledger.restate(id, &versions, &unanswered, now),
            (Request::Withdraw { name, .. }, Role::New { .. }) => {
                let withdrawn = self.ledger.withdraw(&name, now);
                self.connections.remove(&number);
                let answer = Action::Send(number, Reply::Withdrawn(withdrawn));
                self.actions.extend([answer, Action::Close(number)]);
            }
            (Request::Leave, Role::Client(id)) => {
                self.ledger.leave(id, now);
                self.connections.remove(&number);
                let answer = [Action::Send(number, Reply::Left), Action::Close(number)];
                self.actions.extend(answer);
            }
            (
                Request::Watch { seen, .. },
                Role::New { .. } | Role::Watcher { waits: false, .. },
            ) => {
                let watcher = Role::Watcher { seen, waits: true };
                self.connections.get_mut(&number).expect("it is known").role = watcher;
            }
            (request, _) => self.fault(number, format!("{request:?} is out of turn"), now),
        }
    }

    fn welcome(&mut self, number: u64, id: ClientId) {
        // A client that came back may not be known to be gone.
        let is_earlier = |connection: &Connection| connection.role == Role::Client(id);
        let earlier: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, connection)| is_earlier(connection))
            .collect();
        let earlier: Vec<_> = earlier.into_iter().map(|(number, _)| *number).collect();
        for number in earlier {
            self.connections.remove(&number);
            self.actions.push(Action::Close(number));
        }
        self.connections.get_mut(&number).expect("it is known").role = Role::Client(id);
        let welcome = Reply::Welcome {
            version: VERSION,
            capacity: self.ledger.capacity(),
            terms: self.ledger.terms(id).unwrap_or_default(),
        };
        self.actions.push(Action::Send(number, welcome));
        self.ledger.note_sent(id);
    }

    fn fault(&mut self, number: u64, reason: String, now: Duration) {
        self.part(number, now);
        self.refuse(number, Refused::Protocol(reason));
    }

    fn refuse(&mut self, number: u64, refused: Refused) {
        self.connections.remove(&number);
        self.actions
            .push(Action::Send(number, Reply::Refused(refused)));
        self.actions.push(Action::Close(number));
    }

    fn part(&mut self, number: u64, now: Duration) {
        if let Some(Connection {
            role: Role::Client(id),
            ..
        }) = self.connections.get(&number)
        {
            self.ledger.part(*id, now);
        }
    }

    /// Notes that a connection ended.
    pub fn disconnect(&mut self, number: u64, now: Duration) {
        self.part(number, now);
        self.connections.remove(&number);
    }

    /// Takes the actions since the last call, in order.
    pub fn actions(&mut self) -> Vec<Action> {
        for (id, terms) in self.ledger.take_news() {
            let of = |(_, connection): &(&u64, &Connection)| connection.role == Role::Client(id);
            if let Some((number, _)) = self.connections.iter().find(of) {
                self.actions
                    .push(Action::Send(*number, Reply::Terms(terms)));
            }
        }
        self.actions.append(&mut self.later);
        let version = self.ledger.version();
        for (number, connection) in &mut self.connections {
            if let Role::Watcher { seen, waits } = &mut connection.role
                && *waits
                && *seen != Some(version)
            {
                *waits = false;
                let figures = self.ledger.figures();
                self.actions
                    .push(Action::Send(*number, Reply::Figures { version, figures }));
            }
        }
        std::mem::take(&mut self.actions)
    }

    /// Returns whether a connection has begun, and was neither refused nor ended.
    pub fn is_connected(&self, number: u64) -> bool {
        self.connections.contains_key(&number)
    }
}

#[cfg(test)]
mod tests;
