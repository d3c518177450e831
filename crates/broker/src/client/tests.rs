use super::*;
use crate::ledger::Publication;
use crate::names::{Extent, Memory};
use rustix::fs::FlockOperation;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::sync::mpsc;
use weirpool_wire::Listener;

/// As long as the tests wait for a broker that says nothing.
const PATIENCE: Duration = Duration::from_millis(20);

/// A folder of a test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("weirpool-client-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path)
    }

    fn config(&self) -> ClientConfig {
        ClientConfig {
            socket: self.0.join("broker"),
            name: "client".into(),
            share: Share::default(),
            headroom: 0,
        }
    }

    fn listener(&self) -> Listener {
        Listener::bind(self.0.join("broker"), Allowed::own()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn refusal(folder: &Folder) -> ClientError {
    let joined = admitted(&folder.config(), 1, 0, 0, PATIENCE);
    joined.map(drop).unwrap_err()
}

#[test]
fn silent_broker_is_told_from_one_that_is_missing() {
    let folder = Folder::new("silent");
    let missing = refusal(&folder);
    assert!(matches!(missing, ClientError::Unreachable { .. }));
    assert!(missing.to_string().starts_with("no broker listens"));
    let listener = folder.listener();
    let silent = refusal(&folder);
    assert!(matches!(silent, ClientError::Silent { .. }), "{silent}");
    let text = silent.to_string();
    assert!(
        text.contains("is silent") && text.contains("did not answer"),
        "{text}"
    );
    let mut watch = Watch::connect_within(&folder.config().socket, PATIENCE).unwrap();
    let silent = watch.next_figures().unwrap_err();
    assert!(matches!(silent, ClientError::Silent { .. }), "{silent}");
    drop(listener);
}

#[test]
fn broker_whose_queue_is_full_is_silent() {
    let folder = Folder::new("full-queue");
    let listener = folder.listener();
    let connections: Vec<_> = (0..1000)
        .map_while(|_| connect(&folder.config().socket, PATIENCE).ok())
        .collect();
    assert!(
        (1..1000).contains(&connections.len()),
        "{}",
        connections.len()
    );
    let silent = refusal(&folder);
    assert!(matches!(silent, ClientError::Silent { .. }), "{silent}");
    drop(listener);
}

#[test]
fn broker_that_closes_the_connection_before_its_answer_is_silent() {
    let folder = Folder::new("closes");
    let listener = folder.listener();
    let closing = thread::spawn(move || {
        for _ in 0..2 {
            drop(listener.accept().unwrap());
        }
    });
    let silent = refusal(&folder);
    assert!(matches!(silent, ClientError::Silent { .. }), "{silent}");
    let mut watch = Watch::connect(&folder.config().socket).unwrap();
    let silent = watch.next_figures().unwrap_err();
    assert!(matches!(silent, ClientError::Silent { .. }), "{silent}");
    closing.join().unwrap();
}

#[test]
fn broker_of_another_version_is_refused() {
    let folder = Folder::new("version");
    let listener = folder.listener();
    let answering = thread::spawn(move || {
        let connection = listener.accept().unwrap();
        let welcome = Reply::Welcome {
            version: 99,
            capacity: 64 << 20,
            terms: Terms::default(),
        };
        connection.send(&welcome, &[]).unwrap();
        let _ = connection.receive::<Request>();
        let _ = connection.receive::<Request>();
    });
    let refused = Client::join(folder.config()).map(drop).unwrap_err();
    assert!(matches!(refused, ClientError::Protocol(_)), "{refused}");
    assert!(refused.to_string().contains("version 99"), "{refused}");
    answering.join().unwrap();
}

/// A tenant that gives up all that it is asked for.
struct Obedient;

impl Tenant for Obedient {
    fn apply(&self, bounds: Bounds) -> Option<Holding> {
        Some(Holding {
            held: bounds.bound,
            ..Holding::default()
        })
    }
}

const LEASE: u64 = 1 << 20;

/// The broker's end of a connection, which a test speaks for.
struct Spoken(Connection);

impl Spoken {
    /// Takes a client, which has a lease.
    fn accept(listener: &Listener, terms: Terms) -> Self {
        let connection = listener.accept().unwrap();
        let Request::Join { .. } = connection.receive::<Request>().unwrap().0 else {
            panic!("no client joins");
        };
        let welcome = Reply::Welcome {
            version: VERSION,
            capacity: LEASE,
            terms,
        };
        connection.send(&welcome, &[]).unwrap();
        Self(connection)
    }

    /// Receives until there is what a test looks for.
    fn until<T>(&self, look: impl Fn(&Request) -> Option<T>) -> T {
        loop {
            let (request, _closed) = self.0.receive::<Request>().unwrap();
            if let Some(found) = look(&request) {
                return found;
            }
        }
    }

    fn until_published(&self) -> u64 {
        self.until(|request| match request {
            Request::Publish { request, .. } => Some(*request),
            _ => None,
        })
    }

    fn publish(&self) {
        let request = self.until_published();
        let version = Ok(request + 1);
        let published = Reply::Published { request, version };
        self.0.send(&published, &[]).unwrap();
    }
}

fn terms(number: u64, recalled: u64) -> Terms {
    Terms {
        number,
        granted: LEASE,
        recalled,
        ..Terms::default()
    }
}

/// Starts a client of a broker that a test speaks for.
fn started(folder: &Folder, listener: &Listener) -> (Client, Spoken) {
    thread::scope(|scope| {
        let joined = scope.spawn(|| {
            let (client, reader) = Client::join(folder.config()).unwrap();
            reader.start(Arc::new(Obedient)).unwrap();
            client
        });
        let spoken = Spoken::accept(listener, terms(1, 0));
        (joined.join().unwrap(), spoken)
    })
}

fn publication(name: &str, blocks: usize) -> (Publication, Vec<OwnedFd>) {
    let (bytes, length) = (1, 1);
    let memory = Memory {
        device: "d0".into(),
        is_writable: false,
        blocks: vec![Extent { bytes, length }; blocks],
    };
    let publication = Publication {
        name: name.into(),
        replaces: false,
        memory,
    };
    let files = (0..blocks).map(|_| fs::File::open("/proc/self/exe").unwrap().into());
    (publication, files.collect())
}

type Told = mpsc::Receiver<Result<Held, NameError>>;

fn publish(client: &Client, (publication, files): (Publication, Vec<OwnedFd>)) -> Told {
    let (sender, told) = mpsc::channel();
    let done = move |published| drop(sender.send(published));
    client.names().publish(publication, files, done);
    told
}

#[test]
fn request_that_cannot_be_sent_is_refused_and_the_connection_goes_on() {
    let folder = Folder::new("unsendable");
    let listener = folder.listener();
    let (client, broker) = started(&folder, &listener);
    let long = "x".repeat(65);
    for (name, blocks) in [("many", 65), ("none", 0), (&*long, 1), ("", 1)] {
        let refused = publish(&client, publication(name, blocks)).recv().unwrap();
        let refused = refused.map(drop).unwrap_err();
        assert!(matches!(refused, NameError::Invalid { .. }), "{refused}");
    }
    let (sender, told) = mpsc::channel();
    let done = move |attached| drop(sender.send(attached));
    client.names().attach(long, None, false, done);
    let refused = told.recv().unwrap().map(drop).unwrap_err();
    assert!(matches!(refused, NameError::Invalid { .. }), "{refused}");
    // What only the socket refuses is refused so, too.
    let connection = client.shared.lock().connection.clone();
    let (_, files) = publication("many", 65);
    let name = "name".to_owned();
    let withdraw = Request::Withdraw { version: 0, name };
    let unsent = send_with(connection, &withdraw, &files);
    assert!(unsent.is_err_and(|reason| reason.contains("descriptors")));
    let told = publish(&client, publication("fits", 64));
    broker.publish();
    drop(told.recv().unwrap().unwrap());
}

#[test]
fn descriptors_are_closed_before_the_broker_is_told() {
    let folder = Folder::new("closed-first");
    let listener = folder.listener();
    let (client, broker) = started(&folder, &listener);
    for _ in 0..20 {
        let (publication, mut files) = publication("llama", 64);
        let path = folder.0.join("memory");
        let last = fs::File::create(&path).unwrap();
        rustix::fs::flock(&last, FlockOperation::LockExclusive).unwrap();
        files[63] = last.into();
        let told = publish(&client, (publication, files));
        broker.publish();
        let held = told.recv().unwrap().unwrap();
        let look = fs::File::open(&path).unwrap();
        let lock = || rustix::fs::flock(&look, FlockOperation::NonBlockingLockExclusive);
        assert!(lock().is_err(), "the client keeps the descriptor");
        let dropping = thread::spawn(move || drop(held));
        broker.until(|request| matches!(request, Request::Detach { .. }).then_some(()));
        lock().expect("the descriptor is closed");
        dropping.join().unwrap();
    }
}

#[test]
fn bytes_that_were_returned_before_the_answer_are_not_returned_again() {
    let folder = Folder::new("moved-once");
    let listener = folder.listener();
    let (client, broker) = started(&folder, &listener);
    let told = publish(&client, publication("llama", 2));
    let request = broker.until_published();
    broker.0.send(&Reply::Terms(terms(2, 2)), &[]).unwrap();
    broker.until(|request| match request {
        Request::State(statement) => (statement.returned == 2).then_some(()),
        _ => None,
    });
    let version = Ok(1);
    let published = Reply::Published { request, version };
    broker.0.send(&published, &[]).unwrap();
    let held = told.recv().unwrap().unwrap();
    drop((broker, listener));
    while client.is_connected() {
        thread::yield_now();
    }
    assert_eq!((client.owes(), client.lease()), (0, LEASE - 2));
    drop(held);
}

#[test]
fn panic_of_a_requester_ends_no_thread_of_the_client() {
    let folder = Folder::new("panics");
    let listener = folder.listener();
    let (client, broker) = started(&folder, &listener);
    for blocks in [1, 2] {
        let (publication, files) = publication("llama", blocks);
        let done = |_: Result<Held, NameError>| panic!("a panic that the test expects");
        client.names().publish(publication, files, done);
        broker.publish();
    }
    let told = publish(&client, publication("llama", 3));
    broker.publish();
    drop(told.recv().unwrap().unwrap());
}

#[test]
fn requests_of_a_client_that_ended_are_dropped() {
    let folder = Folder::new("ended");
    let listener = folder.listener();
    let (client, broker) = started(&folder, &listener);
    let told = publish(&client, publication("llama", 1));
    broker.until_published();
    client.close();
    assert!(told.recv().is_err());
    let told = publish(&client, publication("llama", 1));
    assert!(told.recv().is_err());
    broker.until(|request| matches!(request, Request::Leave).then_some(()));
}

/// Failure: a broker that has no descriptor left ends each connection on which memory is brought back, and the memory is never
/// brought back later.
#[test]
fn memory_is_brought_back_again_after_a_connection_that_lasted() {
    let folder = Folder::new("lasted");
    let listener = folder.listener();
    let (client, broker) = started(&folder, &listener);
    let told = publish(&client, publication("llama", 1));
    broker.publish();
    let held = told.recv().unwrap().unwrap();
    drop(broker);
    let is_restored = || {
        let broker = Spoken::accept(&listener, terms(1, 0));
        let short = Some(Duration::from_millis(200));
        broker.0.set_timeouts(short, None).unwrap();
        loop {
            match broker.0.receive::<Request>() {
                Ok((Request::Restore(_), _)) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    };
    assert!(is_restored() && is_restored() && is_restored());
    let lasting = Spoken::accept(&listener, terms(1, 0));
    thread::sleep(Duration::from_millis(1200));
    drop(lasting);
    assert!(is_restored());
    drop((listener, held));
}
