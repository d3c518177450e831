//! Peers that lie: wrong sizes and counts, descriptors that are none of memory, messages out of turn. Others go on.

use crate::{Folder, MIB};
use rustix::fs::{FlockOperation, MemfdFlags, SealFlags, flock, memfd_create};
use rustix::pipe::pipe;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use weirpool_broker::ledger::{ClientFigures, Joining, Publication};
use weirpool_broker::message::{Reply, Request, VERSION};
use weirpool_broker::names::{Extent, Memory, NameError, Restored};
use weirpool_broker::{Share, Statement, withdraw};
use weirpool_share::ipc::wire::{Allowed, Connection, Error};
use weirpool_share::ipc::{IpcError, PublishError};

/// A client without a pool, which has been granted a lease.
struct Liar {
    connection: Connection,
    requests: u64,
    key: u64,
}

impl Liar {
    fn new(folder: &Folder, lease: u64) -> Self {
        let connection = Connection::connect(folder.socket(), &Allowed::own()).unwrap();
        let patience = Some(Duration::from_secs(30));
        connection.set_timeouts(None, patience).unwrap();
        let key = fastrand::u64(..);
        let client = Joining {
            key,
            name: "liar".into(),
            share: Share::default(),
            granted: 0,
            returned: 0,
        };
        let version = VERSION;
        let liar = Self {
            connection,
            requests: 0,
            key,
        };
        liar.send(&Request::Join { version, client }, &[]);
        let needs = Statement {
            needs: lease,
            ..Statement::default()
        };
        liar.send(&Request::State(needs), &[]);
        loop {
            if let (Reply::Terms(terms), _) = liar.connection.receive::<Reply>().unwrap()
                && terms.granted == lease
            {
                return liar;
            }
        }
    }

    fn send(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) {
        self.connection.send(request, descriptors).unwrap();
    }

    /// Publishes blocks of these sizes, with these descriptors.
    fn publish(
        &mut self,
        name: &str,
        blocks: &[(u64, u64)],
        with: &[OwnedFd],
    ) -> Result<u64, NameError> {
        let request = self.requests;
        self.requests += 1;
        let publication = Publication {
            name: name.into(),
            replaces: false,
            memory: memory(blocks),
        };
        let with: Vec<_> = with.iter().map(AsFd::as_fd).collect();
        self.send(
            &Request::Publish {
                request,
                publication,
            },
            &with,
        );
        loop {
            if let (
                Reply::Published {
                    request: of,
                    version,
                },
                _,
            ) = self.connection.receive().unwrap()
            {
                assert_eq!(of, request);
                return version;
            }
        }
    }

    /// Gives a lease of this size back, whether or not the connection has ended.
    fn leave(self, folder: &Folder, lease: u64) {
        let Self { key, .. } = self;
        drop(self.connection);
        let connection = Connection::connect(folder.socket(), &Allowed::own()).unwrap();
        let client = Joining {
            key,
            name: "liar".into(),
            share: Share::default(),
            granted: lease,
            returned: 0,
        };
        let version = VERSION;
        connection
            .send(&Request::Join { version, client }, &[])
            .unwrap();
        connection.send(&Request::Leave, &[]).unwrap();
        while connection.receive::<Reply>().is_ok() {}
    }

    /// Returns whether the broker ended the connection.
    fn is_ended(&self) -> bool {
        loop {
            match self.connection.receive::<Reply>() {
                Ok((Reply::Refused(_), _)) => return true,
                Ok(_) => {}
                Err(error) => return matches!(error, Error::Closed),
            }
        }
    }
}

fn memory(blocks: &[(u64, u64)]) -> Memory {
    let extents = blocks
        .iter()
        .map(|&(bytes, length)| Extent { bytes, length });
    Memory {
        // That of all simulated devices.
        device: device(),
        is_writable: false,
        blocks: extents.collect(),
    }
}

fn device() -> String {
    use weirpool::device::{Device, sim::SimDevice};
    let id = SimDevice::new().uuid().unwrap();
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file that a simulated device takes for a chunk of this size.
fn chunk(bytes: u64) -> OwnedFd {
    let file = memfd_create("chunk", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK).unwrap();
    file
}

#[test]
fn lies_about_sizes_and_descriptors_are_refused() {
    let folder = Folder::new("lies");
    let _broker = folder.broker(64 * MIB);
    let mut liar = Liar::new(&folder, 16 * MIB);
    let one = || vec![chunk(2 * MIB)];
    let whole = (2 * MIB, 2 * MIB);
    let many: Vec<_> = (0..64).map(|_| chunk(2 * MIB)).collect();
    let long = "n".repeat(65);
    type Case<'a> = (&'a str, &'a [(u64, u64)], &'a [OwnedFd]);
    let cases: [Case<'_>; 11] = [
        ("no blocks", &[], &[]),
        ("no descriptor", &[whole], &[]),
        ("too many", &[whole], &many[..2]),
        ("too few", &[whole; 64], &many[..63]),
        ("65 blocks", &[whole; 65], &many),
        ("empty", &[(0, 0)], &one()),
        ("nothing of it", &[(2 * MIB, 0)], &one()),
        ("more than it", &[(2 * MIB, 2 * MIB + 1)], &one()),
        ("overflow", &[(u64::MAX, 1), (2, 1)], &many[..2]),
        ("\u{1b}[2J", &[whole], &one()),
        (&long, &[whole], &one()),
    ];
    for (name, blocks, with) in cases {
        let refused = liar.publish(name, blocks, with);
        assert!(
            matches!(refused, Err(NameError::Invalid { .. })),
            "{name}: {refused:?}"
        );
    }
    let refused = liar.publish("beyond the lease", &[(18 * MIB, 1)], &one());
    assert!(
        matches!(refused, Err(NameError::NotLeased { .. })),
        "{refused:?}"
    );
    let refused = liar.publish("huge", &[(u64::MAX, 1)], &one());
    assert!(
        matches!(refused, Err(NameError::NotLeased { .. })),
        "{refused:?}"
    );
    let (reads, writes) = pipe().unwrap();
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let folder_itself = File::open(&folder.0).unwrap();
    for with in [reads, writes, socket.into(), folder_itself.into()] {
        let refused = liar.publish("no memory", &[whole], &[with]);
        assert!(matches!(refused, Err(NameError::NotMemory)), "{refused:?}");
    }
    assert!(folder.figures().names.is_empty());
    drop(liar);
    // Its process lives, and it had a lease.
    assert_eq!(folder.figures().free, 48 * MIB);
}

#[test]
fn memory_that_is_none_harms_only_its_reader() {
    let folder = Folder::new("none");
    let _broker = folder.broker(64 * MIB);
    let mut liar = Liar::new(&folder, 32 * MIB);
    let side = folder.side();
    let honest = side.exportable(2 * MIB, "honest");
    side.publish("honest", &honest).unwrap();
    let file = File::open("/dev/null").unwrap();
    liar.publish("null", &[(2 * MIB, 1)], &[file.into()])
        .unwrap();
    let unsealed = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
    liar.publish("unsealed", &[(2 * MIB, 1)], &[unsealed])
        .unwrap();
    liar.publish("smaller", &[(4 * MIB, 1)], &[chunk(2 * MIB)])
        .unwrap();
    let both = [chunk(2 * MIB), chunk(2 * MIB)];
    liar.publish("one of two", &[(2 * MIB, 1), (4 * MIB, 1)], &both)
        .unwrap();
    for name in ["null", "unsealed", "smaller", "one of two"] {
        let refused = side.read(name, 1);
        assert!(
            matches!(refused, Err(PublishError::Ipc(IpcError::Device(_)))),
            "{name}: {refused:?}"
        );
    }
    liar.publish("odd", &[(MIB, 1)], &[chunk(MIB)]).unwrap();
    let refused = side.read("odd", 1);
    assert!(
        matches!(refused, Err(PublishError::Size { .. })),
        "{refused:?}"
    );
    // Nothing stays mapped or held, and the device works.
    folder.until(|figures| figures.names.iter().all(|name| name.clients == 1));
    assert_eq!(side.pool.inspect().statistics().foreign, 2 * MIB);
    assert_eq!(side.read("honest", 6).unwrap().1, "honest");
}

#[test]
fn messages_out_of_turn_end_one_connection() {
    let folder = Folder::new("turn");
    let _broker = folder.broker(64 * MIB);
    let side = folder.side();
    let honest = side.exportable(2 * MIB, "honest");
    let version = side.publish("honest", &honest).unwrap();
    let restored = |version, count, name: &str| {
        Request::Restore(Restored {
            version,
            count,
            name: name.into(),
            memory: memory(&[(2 * MIB, 1)]),
        })
    };
    let file = chunk(2 * MIB);
    let with = [file.as_fd()];
    // Without a lease.
    let detach = Request::Detach { version };
    let attach = Request::Attach {
        request: 0,
        name: "honest".into(),
        version: None,
        writes: false,
    };
    let holds = Request::Holds {
        versions: vec![(version, 1)],
        unanswered: vec![],
    };
    for request in [
        detach.clone(),
        attach,
        holds,
        restored(version, 1, "honest"),
    ] {
        let stranger = Connection::connect(folder.socket(), &Allowed::own()).unwrap();
        stranger.send(&request, &[]).unwrap();
        let (reply, _) = stranger.receive::<Reply>().unwrap();
        assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
    }
    // Descriptors with a message that has none.
    let liar = Liar::new(&folder, MIB);
    liar.send(&detach, &with);
    assert!(liar.is_ended());
    // What a client does not hold, it cannot let go, and it cannot bring back other memory for it.
    let liar = Liar::new(&folder, MIB);
    for _ in 0..3 {
        liar.send(&detach, &[]);
    }
    for (version, count) in [(version, 1), (u64::MAX, 1), (1 << 60, 1), (90, 0)] {
        liar.send(&restored(version, count, "honest"), &with);
    }
    let none = Request::Holds {
        versions: vec![(version, u32::MAX), (77, 3)],
        unanswered: vec![0, u64::MAX],
    };
    liar.send(&none, &[]);
    let figures = folder.until(|figures| figures.names[0].clients == 2);
    assert_eq!(figures.names.len(), 1);
    assert_eq!(side.read("honest", 6).unwrap(), (version, "honest".into()));
    drop((liar, honest, side));
    let patience = Duration::from_secs(5);
    withdraw(&folder.socket(), "honest", patience)
        .unwrap()
        .unwrap();
}

/// Whatever the bytes of a frame, the broker answers or ends the connection, and others go on.
#[test]
fn random_changes_of_messages_harm_no_other_client() {
    let folder = Folder::new("random");
    let _broker = folder.broker(64 * MIB);
    let side = folder.side();
    let honest = side.exportable(2 * MIB, "honest");
    let version = side.publish("honest", &honest).unwrap();
    let mut random = fastrand::Rng::with_seed(50);
    let file = chunk(2 * MIB);
    for _ in 0..150 {
        let liar = Liar::new(&folder, MIB);
        for request in 0..4 {
            let publication = Publication {
                name: format!("{}", random.u8(..4)),
                replaces: random.bool(),
                memory: memory(&[(MIB, 1)]),
            };
            let publish = Request::Publish {
                request,
                publication,
            };
            let mut frame = serde_json::to_vec(&publish).unwrap();
            for _ in 0..random.usize(..3) {
                let at = random.usize(..frame.len());
                frame[at] = random.u8(..);
            }
            let with = [file.as_fd(), file.as_fd()];
            if liar
                .connection
                .send_raw(&frame, &with[..random.usize(..3)])
                .is_err()
            {
                break;
            }
        }
        liar.leave(&folder, MIB);
        for number in 0..4 {
            let _ = withdraw(
                &folder.socket(),
                &number.to_string(),
                Duration::from_secs(5),
            );
        }
    }
    assert_eq!(side.read("honest", 6).unwrap(), (version, "honest".into()));
}

/// Failure: the broker grants the bytes of a name that ended, and closes the last descriptors of its memory afterwards.
#[test]
fn bytes_are_granted_after_the_last_descriptor_is_closed() {
    for _ in 0..20 {
        let folder = Folder::new("closed-first");
        let _broker = folder.broker(64 * MIB);
        let mut publisher = Liar::new(&folder, 64 * MIB);
        let mut with: Vec<_> = (0..64).map(|_| chunk(MIB)).collect();
        let last = File::create(folder.0.join("chunk")).unwrap();
        flock(&last, FlockOperation::LockExclusive).unwrap();
        with[63] = last.into();
        let version = publisher.publish("llama", &[(MIB, MIB); 64], &with);
        let version = version.unwrap();
        drop(with);
        publisher.send(&Request::Detach { version }, &[]);
        let given = Statement {
            returned: 64 * MIB,
            ..Statement::default()
        };
        publisher.send(&Request::State(given), &[]);
        let look = File::open(folder.0.join("chunk")).unwrap();
        let lock = || flock(&look, FlockOperation::NonBlockingLockExclusive);
        assert!(lock().is_err(), "the broker keeps the descriptor");
        std::thread::scope(|scope| {
            let granted = scope.spawn(|| {
                let other = Liar::new(&folder, 64 * MIB);
                lock().expect("the descriptor is closed");
                other
            });
            folder.until(|figures| {
                let waits = |client: &ClientFigures| client.needs > 0;
                figures.clients.iter().any(waits)
            });
            withdraw(&folder.socket(), "llama", Duration::from_secs(5))
                .unwrap()
                .unwrap();
            granted.join().unwrap();
        });
    }
}
