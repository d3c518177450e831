use super::*;
use serde_json::{Value, json};
use std::os::fd::{AsFd, OwnedFd};
use weirpool_share::ipc::{Exchange, MOST_OUTSTANDING};

/// A message, and the descriptors beside it.
type Said<'a> = (Value, &'a [&'a OwnedFd]);

fn hello() -> Value {
    serde_json::to_value(Exchange::greeting()).unwrap()
}

fn offer(id: u64, bytes: u64, length: u64) -> Value {
    let device: String = b"simulated GPU 0\0"
        .map(|byte| format!("{byte:02x}"))
        .concat();
    json!({"offer": {"id": id, "bytes": bytes, "length": length, "device": device, "label": "x"}})
}

/// A file of that size, as the simulated device shares one.
fn chunk(bytes: u64) -> OwnedFd {
    use rustix::fs::{MemfdFlags, SealFlags};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("chunk", flags).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}

/// A side with a connection to a peer that this test plays, and one to an honest one.
struct Site {
    pair: Pair,
    hostile: wire::Connection,
    against: Connection,
}

impl Site {
    fn new() -> Self {
        let pair = Pair::new();
        let (hostile, socket) = wire::Connection::pair().unwrap();
        let against = pair.importer.open(socket);
        Self {
            pair,
            hostile,
            against,
        }
    }

    fn say(&self, message: &Value, descriptors: &[&OwnedFd]) {
        let descriptors: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
        // It may have ended already.
        let _ = self.hostile.send(message, &descriptors);
    }

    /// The connection ends with this reason, and nothing else is affected.
    fn ends(&self, reason: &str) {
        let ended = self.pair.importer.receive(&self.against);
        let Err(IpcError::Ended { reason: told }) = &ended else {
            panic!("{ended:?}");
        };
        assert!(told.contains(reason), "{told}, and not {reason}");
        self.honest();
    }

    fn honest(&self) {
        let Pair {
            exporter,
            importer,
            out,
            into,
        } = &self.pair;
        let block = exporter.exportable(CHUNK);
        exporter.device.advance_to_end();
        let sent = block_on(out.send(&block, "honest")).unwrap();
        drop(importer.receive(into).unwrap());
        block_on(sent).unwrap();
        drop(block);
        exporter.settle();
        importer.settle();
    }
}

#[test]
fn each_breach_ends_its_connection_alone() {
    let long = "x".repeat(3000);
    let two = [chunk(CHUNK), chunk(CHUNK)];
    let (one, both): (&[&OwnedFd], &[&OwnedFd]) = (&[&two[0]], &[&two[0], &two[1]]);
    let cases: Vec<(Vec<Said<'_>>, &str)> = vec![
        (vec![(json!({"release": {"id": 0}}), &[])], "did not greet"),
        (
            vec![(
                json!({"hello": {"protocol": "weirpool ipc", "version": 0}}),
                &[],
            )],
            "same version",
        ),
        (
            vec![(json!({"hello": {"protocol": long, "version": 1}}), &[])],
            "same version",
        ),
        (vec![(hello(), &[]), (hello(), &[])], "greeted twice"),
        (vec![(hello(), one)], "descriptors"),
        (
            vec![(hello(), &[]), (json!({"release": {"id": 0}}), &[])],
            "does not hold",
        ),
        (
            vec![
                (hello(), &[]),
                (json!({"refuse": {"id": 8, "reason": ""}}), &[]),
            ],
            "does not hold",
        ),
        (
            vec![(hello(), &[]), (offer(0, CHUNK, 1), &[])],
            "descriptors",
        ),
        (
            vec![(hello(), &[]), (offer(0, CHUNK, 1), both)],
            "descriptors",
        ),
        (
            vec![(hello(), &[]), (offer(0, CHUNK, CHUNK + 1), one)],
            "cannot have",
        ),
        (vec![(hello(), &[]), (offer(0, 0, 0), one)], "cannot have"),
        (
            vec![(hello(), &[]), (offer(0, CHUNK + 1, 1), one)],
            "cannot have",
        ),
        (
            vec![(hello(), &[]), (offer(0, 1 << 50, 1), one)],
            "cannot have",
        ),
        (
            vec![(hello(), &[]), (json!({"offer": {"id": 0}}), one)],
            "malformed",
        ),
        (vec![(json!([1, 2, 3]), &[])], "malformed"),
        (vec![(json!("x".repeat(60_000)), &[])], "malformed"),
    ];
    for (messages, reason) in cases {
        let site = Site::new();
        for (message, descriptors) in &messages {
            site.say(message, descriptors);
        }
        site.ends(reason);
        assert_eq!(site.pair.importer.shared(), (0, 0));
    }
}

#[test]
fn random_frames_end_their_connection_alone() {
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..40 {
        let site = Site::new();
        if random.bool() {
            site.say(&hello(), &[]);
        }
        let length = random.usize(1..4000);
        let noise: Vec<_> = (0..length).map(|_| random.u8(..)).collect();
        site.hostile.send_raw(&noise, &[]).unwrap();
        site.ends("malformed");
    }
}

#[test]
fn descriptor_that_is_no_chunk_is_refused_and_the_connection_goes_on() {
    let site = Site::new();
    site.say(&hello(), &[]);
    let (pipe, _end) = std::io::pipe().unwrap();
    let open = rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&open, CHUNK).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let wrong = [OwnedFd::from(pipe), open, null.into(), chunk(CHUNK * 2)];
    assert!(matches!(site.hostile.receive::<Value>(), Ok((greeting, _)) if greeting == hello()));
    for (id, descriptor) in wrong.iter().enumerate() {
        site.say(&offer(id as u64, CHUNK, 1), &[descriptor]);
        let refused = site.pair.importer.receive(&site.against);
        assert!(matches!(refused, Err(IpcError::Device(_))), "{refused:?}");
        let (answer, _) = site.hostile.receive::<Value>().unwrap();
        assert_eq!(answer["refuse"]["id"], json!(id));
    }
    site.say(&offer(9, CHUNK, 1), &[&chunk(CHUNK)]);
    drop(site.pair.importer.receive(&site.against).unwrap());
    let (answer, _) = site.hostile.receive::<Value>().unwrap();
    assert_eq!(answer, json!({"release": {"id": 9}}));
    site.pair.importer.settle();
    site.honest();
}

#[test]
fn peer_that_offers_without_end_is_cut_off() {
    let site = Site::new();
    site.say(&hello(), &[]);
    let descriptor = chunk(CHUNK);
    for id in 0..=MOST_OUTSTANDING as u64 {
        site.say(&offer(id, CHUNK, 1), &[&descriptor]);
    }
    let mut held = Vec::new();
    let ended = loop {
        match site.pair.importer.receive(&site.against) {
            Ok(block) => held.push(block),
            Err(ended) => break ended,
        }
    };
    assert!(ended.to_string().contains("at a time"), "{ended}");
    assert_eq!(held.len(), MOST_OUTSTANDING);
    drop(held);
    site.pair.importer.settle();
    site.honest();
}

#[test]
fn releasing_twice_ends_the_connection() {
    let side = Side::new(manual());
    let (hostile, socket) = wire::Connection::pair().unwrap();
    let connection = side.open(socket);
    hostile.send(&hello(), &[]).unwrap();
    let block = side.exportable(CHUNK);
    side.device.advance_to_end();
    let sent = block_on(connection.send(&block, "")).unwrap();
    let kept = block_on(connection.send(&block, "")).unwrap();
    for _ in 0..2 {
        hostile.send(&json!({"release": {"id": 0}}), &[]).unwrap();
    }
    block_on(sent).unwrap();
    let ended = block_on(kept).unwrap_err();
    assert!(ended.to_string().contains("does not hold"), "{ended}");
    drop(block);
    side.settle();
}

#[test]
fn peer_that_reads_nothing_costs_no_one_else_anything() {
    let side = Side::new(manual());
    let (silent, socket) = wire::Connection::pair().unwrap();
    let connection = side.open(socket);
    let block = side.exportable(CHUNK);
    side.device.advance_to_end();
    let sent: Vec<_> = (0..MOST_OUTSTANDING)
        .map(|_| block_on(connection.send(&block, &"l".repeat(1000))).unwrap())
        .collect();
    let refused = block_on(connection.send(&block, ""));
    assert!(matches!(refused, Err(IpcError::Outstanding)), "{refused:?}");
    drop(block);
    // Its memory stays charged, and everything else goes on.
    drop(side.pool.try_allocate(&side.stream, 8 * MIB).unwrap());
    assert_eq!(side.shared().0, CHUNK);
    drop(silent);
    for sent in sent {
        assert!(matches!(block_on(sent), Err(IpcError::Ended { .. })));
    }
    side.device.advance_to_end();
    side.settle();
}

fn misplaced(id: u64) -> Value {
    json!({"offer": {"id": id, "bytes": CHUNK, "length": 1, "device": "elsewhere", "label": ""}})
}

/// Every offer is refused, and costs the peer nothing.
#[test]
fn peer_that_offers_unimportable_memory_is_cut_off() {
    let site = Site::new();
    let descriptor = chunk(CHUNK);
    let (hostile, against) = (&site.hostile, &site.against);
    hostile.send(&hello(), &[]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| while hostile.receive::<Value>().is_ok() {});
        let mut ids = 0..20 * MOST_OUTSTANDING as u64;
        let is_over = |id| hostile.send(&misplaced(id), &[descriptor.as_fd()]).is_err();
        let is_cut_off = ids.any(is_over);
        against.close();
        assert!(is_cut_off, "the errors grow without bound");
    });
    let failed = std::iter::from_fn(|| match site.pair.importer.receive(against) {
        Err(IpcError::Ended { reason }) => {
            assert!(reason.contains("could not be imported"), "{reason}");
            None
        }
        other => Some(other),
    });
    assert_eq!(failed.count(), MOST_OUTSTANDING + 1);
    site.honest();
}

/// The importer receives each error, and the peer reads no answer.
#[test]
fn peer_that_reads_no_answer_is_cut_off() {
    let site = Site::new();
    let descriptor = chunk(CHUNK);
    let (hostile, against, importer) = (&site.hostile, &site.against, &site.pair.importer);
    hostile.send(&hello(), &[]).unwrap();
    let mut ids = 0..20 * MOST_OUTSTANDING as u64;
    let is_over = |id| {
        let _ = hostile.send(&misplaced(id), &[descriptor.as_fd()]);
        matches!(importer.receive(against), Err(IpcError::Ended { .. }))
    };
    assert!(ids.any(is_over), "the answers grow without bound");
    site.ends("has not read");
}
