//! Invariants of names over random events: of clients that are killed, come back and repeat themselves, and of a broker that
//! starts again.

use super::*;
use crate::desk::{Action, Descriptors, Desk, MOST_OF_A_PROCESS};
use crate::ledger::{Joining, Ledger, Process, Publication};
use crate::message::{Reply, Request, VERSION};
use crate::share::{Share, Statement};
use proptest::prelude::*;
use std::time::Duration;

const CAPACITY: u64 = 100;
const CLIENTS: usize = 3;

#[derive(Clone, Debug)]
enum Event {
    /// A client allocates this many bytes, and publishes them.
    Publish(usize, u8, u64, bool),
    Attach(usize, u8),
    /// A client unmaps what it mapped last.
    Detach(usize),
    Withdraw(u8),
    /// A client's process is killed.
    Kill(usize),
    /// A connection ends, perhaps with answers on the way, and the client comes back.
    Reconnect(usize),
    /// The broker is killed, and another one started; each client comes back.
    Restart,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let client = 0..CLIENTS;
    let event = prop_oneof![
        (client.clone(), 0..3_u8, 1..30_u64, any::<bool>()).prop_map(
            |(client, name, bytes, replaces)| Event::Publish(client, name, bytes, replaces)
        ),
        (client.clone(), 0..3_u8).prop_map(|(client, name)| Event::Attach(client, name)),
        client.clone().prop_map(Event::Detach),
        (0..3_u8).prop_map(Event::Withdraw),
        client.clone().prop_map(Event::Kill),
        client.prop_map(Event::Reconnect),
        Just(Event::Restart),
    ];
    prop::collection::vec(event, 1..60)
}

/// What becomes of the answer to a publication.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Comes,
    IsLost,
    IsLostWithItsBroker,
}

/// An honest client: it maps what it says.
#[derive(Default)]
struct Client {
    process: u32,
    connection: u64,
    granted: u64,
    returned: u64,
    recalled: u64,
    answered: u64,
    requests: u64,
    /// Bytes that it has allocated for a publication.
    own: u64,
    /// What it has mapped, once for each entry, with the name and the size.
    mapped: Vec<(u64, u8, u64)>,
}

struct World {
    desk: Desk,
    clients: Vec<Client>,
    connections: u64,
    processes: u32,
    /// The versions whose descriptors the broker keeps.
    kept: BTreeMap<u64, u64>,
}

fn memory(bytes: u64) -> Memory {
    let length = bytes;
    Memory {
        device: "d0".into(),
        is_writable: false,
        blocks: vec![Extent { bytes, length }],
    }
}

fn ledger() -> Ledger {
    let second = Duration::from_secs(1);
    Ledger::new(CAPACITY, second, second)
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            desk: Desk::new(ledger(), MOST_OF_A_PROCESS),
            clients: (0..CLIENTS).map(|_| Client::default()).collect(),
            connections: 0,
            processes: 0,
            kept: BTreeMap::new(),
        };
        (0..CLIENTS).for_each(|at| world.start(at));
        world
    }

    fn process(id: u32) -> Process {
        Process { id, started: 1 }
    }

    /// Starts a process.
    fn start(&mut self, at: usize) {
        self.processes += 1;
        self.clients[at] = Client {
            process: self.processes,
            ..Client::default()
        };
        self.join(at);
    }

    fn join(&mut self, at: usize) {
        self.connections += 1;
        let client = &mut self.clients[at];
        client.connection = self.connections;
        client.answered = 0;
        let joining = Joining {
            key: u64::from(client.process),
            name: "client".into(),
            share: Share::default(),
            granted: client.granted,
            returned: client.returned,
        };
        let (number, process) = (client.connection, client.process);
        self.desk
            .connect(number, Self::process(process), Duration::ZERO);
        let version = VERSION;
        let answers = self.send(
            at,
            Request::Join {
                version,
                client: joining,
            },
            0,
        );
        assert!(
            answers
                .iter()
                .any(|reply| matches!(reply, Reply::Welcome { .. })),
            "{answers:?}"
        );
    }

    /// Sends a message, and takes the answers.
    fn send(&mut self, at: usize, request: Request, descriptors: usize) -> Vec<Reply> {
        let facts = Descriptors {
            count: descriptors,
            are_foreign: false,
        };
        let sizes = match &request {
            Request::Publish { publication, .. } => publication.memory.bytes(),
            Request::Restore(held) => held.memory.bytes(),
            _ => None,
        };
        let number = self.clients[at].connection;
        if let Some(version) = self.desk.receive(number, request, facts, Duration::ZERO) {
            self.kept
                .insert(version, sizes.expect("it has descriptors"));
        }
        self.take_answers(at)
    }

    fn take_answers(&mut self, at: usize) -> Vec<Reply> {
        let mut answers = Vec::new();
        for action in self.desk.actions() {
            let (Action::Send(to, reply) | Action::Lend(to, reply, _)) = action else {
                continue;
            };
            let client = self
                .clients
                .iter_mut()
                .find(|client| client.connection == to);
            if let (Reply::Terms(terms) | Reply::Welcome { terms, .. }, Some(client)) =
                (&reply, client)
            {
                client.granted = terms.granted.max(client.granted);
                client.recalled = terms.recalled;
                client.answered = terms.number;
            }
            if to == self.clients[at].connection {
                answers.push(reply);
            }
        }
        let names = self.desk.ledger.names();
        self.kept.retain(|version, _| names.is_kept(*version));
        answers
    }

    /// States how the client stands: it returns recalled bytes that it does not use.
    fn state(&mut self, at: usize, wanted: u64) {
        let client = &mut self.clients[at];
        let bound = (client.granted - client.recalled.max(client.returned)).max(client.own);
        let returned = client.granted.saturating_sub(bound).max(client.returned);
        client.returned = returned.min(client.granted);
        let statement = Statement {
            returned: client.returned,
            needs: client.granted + wanted,
            answered: client.answered,
            used: client.own,
            ..Statement::default()
        };
        self.send(at, Request::State(statement), 0);
    }

    /// Comes back on a new connection, with this publication unanswered.
    fn come_back(&mut self, at: usize, unanswered: Option<u64>) {
        self.join(at);
        let mut counts = BTreeMap::<u64, u32>::new();
        for (version, ..) in &self.clients[at].mapped {
            *counts.entry(*version).or_default() += 1;
        }
        let versions = counts
            .iter()
            .map(|(version, count)| (*version, *count))
            .collect();
        let unanswered = unanswered.into_iter().collect();
        self.send(
            at,
            Request::Holds {
                versions,
                unanswered,
            },
            0,
        );
        for (version, count) in counts {
            let mapped = self.clients[at].mapped.iter();
            let (_, name, bytes) = *mapped.clone().find(|(of, ..)| *of == version).unwrap();
            let restored = Restored {
                version,
                count,
                name: name.to_string(),
                memory: memory(bytes),
            };
            self.send(at, Request::Restore(restored), 1);
        }
    }

    fn publish(&mut self, at: usize, name: u8, bytes: u64, replaces: bool, answer: Answer) {
        self.state(at, bytes);
        let client = &mut self.clients[at];
        let lease = client.granted - client.returned;
        if lease < bytes {
            // Takes the need back.
            return self.state(at, 0);
        }
        client.own = bytes;
        let request = client.requests;
        client.requests += 1;
        let publication = Publication {
            name: name.to_string(),
            replaces,
            memory: memory(bytes),
        };
        let publish = Request::Publish {
            request,
            publication,
        };
        let mut answers = self.send(at, publish.clone(), 1);
        match answer {
            Answer::Comes => {}
            Answer::IsLost => self.come_back(at, Some(request)),
            Answer::IsLostWithItsBroker => self.restart(Some((at, request))),
        }
        if answer != Answer::Comes {
            answers = self.send(at, publish, 1);
        }
        let published = answers.into_iter().find_map(|reply| match reply {
            Reply::Published { version, .. } => Some(version),
            _ => None,
        });
        match published.expect("an answer") {
            Ok(version) => self.clients[at].mapped.push((version, name, bytes)),
            // Its lease covers it, however often it asks.
            Err(refused) => assert!(matches!(refused, NameError::Taken { .. }), "{refused}"),
        }
        self.clients[at].own = 0;
        self.state(at, 0);
    }

    fn run(&mut self, event: &Event) {
        match *event {
            Event::Publish(at, name, bytes, replaces) => {
                let answers = [Answer::Comes, Answer::IsLost, Answer::IsLostWithItsBroker];
                let answer = answers[bytes as usize % answers.len()];
                self.publish(at, name, bytes, replaces, answer);
            }
            Event::Attach(at, name) => {
                let attach = Request::Attach {
                    request: 0,
                    name: name.to_string(),
                    version: None,
                    writes: false,
                };
                for reply in self.send(at, attach, 0) {
                    if let Reply::Attached {
                        memory: Ok((version, memory)),
                        ..
                    } = reply
                    {
                        let bytes = memory.bytes().unwrap();
                        assert_eq!(self.kept.get(&version), Some(&bytes), "nothing to lend");
                        self.clients[at].mapped.push((version, name, bytes));
                    }
                }
            }
            Event::Detach(at) => {
                if let Some((version, ..)) = self.clients[at].mapped.pop() {
                    self.send(at, Request::Detach { version }, 0);
                }
            }
            Event::Withdraw(name) => {
                let _ = self.desk.ledger.withdraw(&name.to_string(), Duration::ZERO);
                self.take_answers(0);
            }
            Event::Kill(at) => {
                let process = Self::process(self.clients[at].process);
                self.desk.ledger.exit(process, Duration::ZERO);
                self.desk
                    .disconnect(self.clients[at].connection, Duration::ZERO);
                self.take_answers(at);
                self.start(at);
            }
            Event::Reconnect(at) => {
                self.desk
                    .disconnect(self.clients[at].connection, Duration::ZERO);
                self.come_back(at, None);
            }
            Event::Restart => self.restart(None),
        }
    }

    /// Starts another broker. This client repeats this publication.
    fn restart(&mut self, unanswered: Option<(usize, u64)>) {
        let mut next = ledger();
        for (key, name, process, share, lease) in self.desk.ledger.leases() {
            next.restore(key, name.into(), process, share, lease);
        }
        let record = serde_json::to_vec(&self.desk.ledger.names().record()).unwrap();
        let record = serde_json::from_slice(&record).unwrap();
        let lives = |key| {
            self.clients
                .iter()
                .any(|client| u64::from(client.process) == key)
        };
        next.names_mut().take_record(record, lives);
        self.desk = Desk::new(next, MOST_OF_A_PROCESS);
        self.kept.clear();
        for at in 0..CLIENTS {
            self.check_counts();
            let request = unanswered.filter(|(of, _)| *of == at);
            self.come_back(at, request.map(|(_, request)| request));
        }
    }

    /// Nothing is promised twice.
    fn check_counts(&self) -> BTreeMap<u64, u64> {
        self.desk.ledger.check().unwrap();
        let figures = self.desk.ledger.figures();
        let named: u64 = figures.names.iter().map(|name| name.bytes).sum();
        let leased: u64 = figures.clients.iter().map(|client| client.lease).sum();
        assert!(named + leased <= CAPACITY, "{figures:?}");
        let names = figures.names.iter();
        names.map(|name| (name.version, name.bytes)).collect()
    }

    /// What exists on the device is counted, once, and within the capacity.
    fn check(&self) {
        let counted = self.check_counts();
        // Memory that is mapped, or whose descriptors the broker keeps.
        let mapped = self.clients.iter().flat_map(|client| &client.mapped);
        let mapped = mapped.map(|(version, _, bytes)| (*version, *bytes));
        let mut exists: BTreeMap<u64, u64> = mapped.collect();
        exists.extend(&self.kept);
        assert_eq!(exists, counted);
    }
}

proptest! {
    #[test]
    fn memory_with_a_name_counts_while_it_exists(events in events()) {
        let mut world = World::new();
        for event in &events {
            world.run(event);
            world.check();
        }
        // Without a name, and without a process, nothing counts.
        for name in 0..3 {
            world.run(&Event::Withdraw(name));
        }
        (0..CLIENTS).for_each(|at| world.run(&Event::Kill(at)));
        let figures = world.desk.ledger.figures();
        prop_assert!(figures.names.is_empty(), "{figures:?}");
        prop_assert!(world.kept.is_empty());
        prop_assert_eq!(figures.free, CAPACITY, "{:?}", figures);
    }
}

fn restored(version: u64, name: &str, bytes: u64) -> Restored {
    let (name, memory) = (name.to_owned(), memory(bytes));
    Restored {
        version,
        count: 1,
        name,
        memory,
    }
}

/// A broker without a record hears of a version from each client that has it.
#[test]
fn version_that_several_clients_bring_back_is_held_by_each() {
    let mut names = Names::new(NameLimits::default());
    assert!(names.restore(1, restored(7, "a", 3), 1, 10));
    assert!(!names.restore(2, restored(7, "a", 3), 1, 10));
    assert!(
        !names.restore(3, restored(7, "a", 4), 1, 10),
        "other memory"
    );
    assert_eq!(names.figures()[0].clients, 2);
    names.withdraw("a").unwrap();
    names.detach(1, 7);
    assert_eq!(names.bytes(), 3, "the second one has it mapped");
    names.detach(2, 7);
    assert_eq!(names.bytes(), 0);
}

#[test]
fn version_that_is_brought_back_replaces_none_within_the_limits() {
    let mut names = Names::new(NameLimits {
        bytes: 10,
        ..NameLimits::default()
    });
    names.publish((1, 0), "a".into(), memory(8));
    names.detach(1, 1);
    assert!(!names.restore(2, restored(7, "a", 8), 1, 100));
    assert_eq!(names.bytes(), 8, "no more than the limit");
    assert!(!names.restore(2, restored(7, "a", 2), 1, 100));
    assert_eq!(names.bytes(), 10, "counted without a name");
}

/// A client that lies about its number takes none of the numbers of others, which can bring theirs back.
#[test]
fn number_that_a_client_states_is_never_given_to_another_version() {
    for stated in [1, 2, HIGHEST - 1, HIGHEST] {
        let mut names = Names::new(NameLimits::default());
        assert!(names.restore(1, restored(stated, "lie", 3), 1, 100));
        let mut published = vec![names.publish((2, 0), "a".into(), memory(5))];
        let record = names.record();
        let mut next = Names::new(NameLimits::default());
        next.take_record(record, |_| true);
        for (request, name) in [(1, "b"), (2, "c")] {
            published.push(next.publish((2, request), name.into(), memory(7)));
        }
        assert_eq!(next.bytes(), 3 + 5 + 2 * 7, "each counts");
        next.check_invariants().unwrap();
        let mut without = Names::new(NameLimits::default());
        for (number, name, bytes) in [(published[0], "a", 5), (published[1], "b", 7)] {
            assert!(without.restore(2, restored(number, name, bytes), 1, 100));
        }
        assert!(!without.restore(1, restored(HIGHEST + 1, "lie", 3), 1, 100));
    }
}
