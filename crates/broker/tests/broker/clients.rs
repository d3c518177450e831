//! Clients whose callers, tenants and connections end while the broker acts on their messages.

use crate::common::{MIB, eventually};
use crate::hostile::{connect, join, joining};
use crate::processes::until;
use crate::puppet::Puppet;
use crate::{Folder, broker, broker_for_this_process};
use rustix::process::{Resource, Rlimit, Signal, prlimit};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use weirpool::extend::{Bounds, Holding};
use weirpool_broker::ledger::{Joining, Refused};
use weirpool_broker::message::{Reply, Request, VERSION};
use weirpool_broker::{Client, ClientConfig, ClientError, Share, Statement, Tenant, Terms};
use weirpool_wire::{Allowed, Connection, Listener};

/// Holds nothing, and may hold anything.
struct Idle;

impl Tenant for Idle {
    fn apply(&self, _: Bounds) -> Option<Holding> {
        Some(Holding::default())
    }
}

/// Holds all that it was granted.
#[derive(Default)]
struct Keeper(AtomicU64);

impl Tenant for Keeper {
    fn apply(&self, bounds: Bounds) -> Option<Holding> {
        let before = self.0.fetch_max(bounds.first, Ordering::Relaxed);
        let held = before.max(bounds.first);
        Some(Holding {
            held,
            used: held,
            ..Holding::default()
        })
    }
}

fn config(folder: &Folder) -> ClientConfig {
    ClientConfig {
        socket: folder.socket(),
        name: "client".into(),
        share: Share::default(),
        headroom: 0,
    }
}

fn client(folder: &Folder, tenant: Arc<dyn Tenant>) -> Client {
    let (client, reader) = Client::join(config(folder)).unwrap();
    reader.start(tenant).unwrap();
    client
}

/// A client that holds all of the capacity, and answers nothing.
fn holder(folder: &Folder, key: u64, bytes: u64) -> Connection {
    let (connection, _) = join(folder, joining(key));
    let needs = Statement {
        needs: bytes,
        ..Statement::default()
    };
    connection.send(&Request::State(needs), &[]).unwrap();
    let (granted, _) = connection.receive::<Reply>().unwrap();
    assert!(matches!(granted, Reply::Terms(terms) if terms.granted == bytes));
    connection
}

fn waits_for(folder: &Folder, bytes: u64) {
    until(folder, |figures| {
        figures.clients.iter().any(|client| client.needs == bytes)
    });
}

/// The second caller asks for more than the first one, and both give up, the first one first.
#[test]
fn callers_that_give_up_leave_no_need_behind() {
    let folder = Folder::new("callers");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let _holder = holder(&folder, 1, 64 * MIB);
    let client = client(&folder, Arc::new(Idle));
    thread::scope(|scope| {
        scope.spawn(|| assert!(!client.ask_and_wait(8 * MIB, Duration::from_millis(100))));
        waits_for(&folder, 8 * MIB);
        assert!(!client.ask_and_wait(16 * MIB, Duration::from_millis(500)));
    });
    assert!(!client.is_waiting());
    until(&folder, |figures| {
        figures.clients.iter().all(|client| client.needs == 0)
    });
    client.close();
}

/// A request in the queue and a caller ask for the same number of bytes. The caller gives up.
#[test]
fn caller_that_gives_up_takes_no_need_of_the_queue_along() {
    let folder = Folder::new("same-need");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let _holder = holder(&folder, 1, 64 * MIB);
    let client = client(&folder, Arc::new(Idle));
    thread::scope(|scope| {
        scope.spawn(|| assert!(!client.ask_and_wait(8 * MIB, Duration::from_millis(200))));
        waits_for(&folder, 8 * MIB);
        client.ask(8 * MIB);
    });
    assert!(client.is_waiting(), "the request waits");
    waits_for(&folder, 8 * MIB);
    client.withdraw();
    assert!(!client.is_waiting());
    client.close();
}

/// The queue has no request left, while a caller still waits for the answer.
#[test]
fn queue_that_ends_takes_no_need_of_a_caller_along() {
    let folder = Folder::new("queue-ends");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let holder = holder(&folder, 1, 64 * MIB);
    let client = client(&folder, Arc::new(Idle));
    thread::scope(|scope| {
        let caller = scope.spawn(|| client.ask_and_wait(8 * MIB, Duration::from_secs(30)));
        waits_for(&folder, 8 * MIB);
        client.withdraw();
        let gave_back = Statement {
            needs: 64 * MIB,
            returned: 64 * MIB,
            ..Statement::default()
        };
        holder.send(&Request::State(gave_back), &[]).unwrap();
        assert!(caller.join().unwrap());
    });
    client.close();
}

/// The client was granted more, and said goodbye before it knew.
#[test]
fn lease_that_is_granted_to_a_leaving_client_is_free_again() {
    let folder = Folder::new("leaving");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let leaving = holder(&folder, 1, 48 * MIB);
    leaving
        .send(&Request::State(Statement::default()), &[])
        .unwrap();
    leaving.send(&Request::Leave, &[]).unwrap();
    until(&folder, |figures| figures.clients.is_empty());
    let _next = holder(&folder, 2, 64 * MIB);
}

#[test]
fn refusal_of_a_full_broker_reaches_each_client() {
    let folder = Folder::new("refusals");
    let _broker = broker_for_this_process(&folder.socket(), 64 * MIB);
    let clients: Vec<_> = (0..128).map(|key| join(&folder, joining(key))).collect();
    let welcome = |(_, reply): &_| matches!(reply, Reply::Welcome { .. });
    assert!(clients.iter().all(welcome));
    for _ in 0..200 {
        let refused = Client::join(config(&folder)).map(drop).unwrap_err();
        assert!(
            matches!(
                refused,
                ClientError::Refused(Refused::Full { clients: 128 })
            ),
            "{refused}"
        );
    }
}

#[test]
fn recall_ends_with_the_broker_that_asked() {
    let folder = Folder::new("recall-ends");
    let running = broker(&folder.socket(), 64 * MIB);
    let keeper = client(&folder, Arc::new(Keeper::default()));
    assert!(keeper.ask_and_wait(64 * MIB, Duration::ZERO));
    let needy = client(&folder, Arc::new(Idle));
    needy.ask(32 * MIB);
    eventually(|| keeper.owes() == 32 * MIB);
    drop(running);
    eventually(|| keeper.owes() == 0);
    assert_eq!(keeper.lease(), 64 * MIB);
    // The next broker knows what both hold and need.
    let _broker = broker(&folder.socket(), 64 * MIB);
    eventually(|| keeper.owes() == 32 * MIB);
    needy.close();
    keeper.close();
}

/// It costs one wait, and not one for each request.
#[test]
fn broker_that_hangs_is_waited_for_once() {
    let folder = Folder::new("hangs");
    let running = Puppet::start_broker(&folder.socket(), 64 * MIB);
    let client = Arc::new(client(&folder, Arc::new(Idle)));
    assert!(client.ask_and_wait(MIB, Duration::ZERO));
    running.signal(Signal::STOP);
    let asking = thread::spawn({
        let client = client.clone();
        move || {
            let asks = (0..1000).filter(|_| client.ask_and_wait(8 * MIB, Duration::ZERO));
            assert_eq!(asks.count(), 0);
        }
    });
    eventually(|| asking.is_finished());
    asking.join().unwrap();
    running.signal(Signal::CONT);
    eventually(|| client.ask_and_wait(8 * MIB, Duration::ZERO));
    client.close();
}

/// The process of the broker has no descriptor left: it waits, rather than to try without end.
#[test]
fn broker_without_descriptors_sleeps_until_it_has_some() {
    let folder = Folder::new("descriptors");
    let running = Puppet::start_broker(&folder.socket(), 64 * MIB);
    let process = running.process().as_raw_nonzero();
    let open = std::fs::read_dir(format!("/proc/{process}/fd"))
        .unwrap()
        .count() as u64;
    let limit = Rlimit {
        current: Some(open + 6),
        maximum: Some(open + 6),
    };
    prlimit(Some(running.process()), Resource::Nofile, limit).unwrap();
    let many: Vec<_> = (0..16).map(|_| connect(&folder)).collect();
    eventually(|| (0..50).all(|_| running.state() == 'S'));
    drop(many);
    let _next = holder(&folder, 1, 64 * MIB);
}

/// Names and figures take the most bytes that they can.
#[test]
fn figures_of_as_many_clients_as_are_served_arrive() {
    let folder = Folder::new("many-figures");
    let _broker = broker_for_this_process(&folder.socket(), 64 * MIB);
    let most = Statement {
        used: u64::MAX,
        reserved: u64::MAX,
        waiting: u64::MAX,
        needs: u64::MAX,
        ..Statement::default()
    };
    let clients: Vec<_> = (0..127)
        .map(|key| {
            let letter = if key % 2 == 0 { "\u{1}" } else { "\"" };
            let name = letter.repeat(64);
            let share = Share {
                weight: u32::MAX,
                ..Share::default()
            };
            let client = Joining {
                name,
                share,
                ..joining(key)
            };
            let (connection, _) = join(&folder, client);
            connection.send(&Request::State(most), &[]).unwrap();
            connection
        })
        .collect();
    until(&folder, |figures| {
        let known = figures
            .clients
            .iter()
            .filter(|client| client.used == u64::MAX);
        known.count() == clients.len()
    });
}

/// A process leaves clients behind, each with a byte of its own.
#[test]
fn clients_without_connections_are_bounded() {
    let folder = Folder::new("absent");
    let _broker = broker_for_this_process(&folder.socket(), 64 * MIB);
    for key in 0..128 {
        drop(holder(&folder, key, 1));
    }
    let (_, refused) = join(&folder, joining(128));
    let full = Refused::Full { clients: 128 };
    assert!(
        matches!(&refused, Reply::Refused(told) if *told == full),
        "{refused:?}"
    );
    // One of them comes back, and leaves.
    let back = Joining {
        granted: 1,
        ..joining(7)
    };
    let (connection, welcome) = join(&folder, back);
    assert!(matches!(welcome, Reply::Welcome { .. }), "{welcome:?}");
    connection.send(&Request::Leave, &[]).unwrap();
    assert!(matches!(connection.receive(), Ok((Reply::Left, _))));
    let (_, welcome) = join(&folder, joining(128));
    assert!(matches!(welcome, Reply::Welcome { .. }), "{welcome:?}");
}

/// The broker does not answer in time, and grants the bytes later, with terms that do not answer the question yet.
#[test]
fn need_that_is_met_already_is_not_refused_after_an_unanswered_one() {
    let folder = Folder::new("unheard");
    let listener = Listener::bind(folder.socket(), Allowed::own()).unwrap();
    let (sender, terms) = mpsc::channel();
    let broker = thread::spawn(move || {
        let connection = listener.accept().unwrap();
        let _ = connection.receive::<Request>().unwrap();
        let welcome = Reply::Welcome {
            version: VERSION,
            capacity: 64 * MIB,
            terms: Terms::default(),
        };
        connection.send(&welcome, &[]).unwrap();
        for terms in terms {
            connection.send(&Reply::Terms(terms), &[]).unwrap();
        }
    });
    let client = client(&folder, Arc::new(Keeper::default()));
    let ask = || client.ask_and_wait(8 * MIB, Duration::from_millis(10));
    assert!(!ask());
    let granted = Terms {
        number: 1,
        granted: 16 * MIB,
        ..Terms::default()
    };
    sender.send(granted).unwrap();
    eventually(|| !client.times().1.is_zero());
    assert_eq!(client.lease(), 16 * MIB);
    assert!(ask(), "the tenant has been told of 16 MiB");
    client.close();
    drop(sender);
    broker.join().unwrap();
}

/// The broker ends first, as when a program drops both. A thread of the client waits for the next broker only for as long
/// as a lease is recorded for it.
#[test]
fn closed_client_leaves_no_thread_once_no_lease_is_recorded() {
    let folder = Folder::new("no-thread");
    let running = broker(&folder.socket(), 64 * MIB);
    let tenant = Arc::new(Keeper::default());
    let client = client(&folder, tenant.clone());
    assert!(client.ask_and_wait(8 * MIB, Duration::from_secs(10)));
    drop(running);
    client.close();
    // The lease is recorded: the thread waits for the next broker.
    thread::sleep(Duration::from_millis(50));
    assert!(Arc::strong_count(&tenant) > 1, "a thread has the tenant");
    let mut record = folder.socket().into_os_string();
    record.push(".leases");
    std::fs::remove_file(record).unwrap();
    eventually(|| Arc::strong_count(&tenant) == 1);
}
