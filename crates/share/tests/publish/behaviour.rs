//! Rules of names: versions, rights, limits, and where the bytes count.

use crate::{Folder, MIB, Side, eventually};
use futures::executor::block_on;
use std::task::Poll;
use std::time::Duration;
use weirpool::device::sim::Operation;
use weirpool_broker::names::{NameError, NameLimits, NameStanding};
use weirpool_broker::withdraw;
use weirpool_share::ipc::{AllocateExportable, Connection, Publish, PublishError, wire};

fn refusal<T: std::fmt::Debug>(result: Result<T, PublishError>) -> NameError {
    match result {
        Err(PublishError::Name(refused)) => refused,
        other => panic!("{other:?} in place of a refusal"),
    }
}

#[test]
fn memory_outlives_its_publisher_and_is_freed_with_its_name() {
    let folder = Folder::new("outlives");
    let _broker = folder.broker(64 * MIB);
    let publisher = folder.side();
    let blocks = [
        publisher.exportable(5 * MIB, "weir"),
        publisher.exportable(1, "p"),
    ];
    let version = block_on(publisher.pool.publish("llama", &blocks).into_future()).unwrap();
    let name = folder.figures().names.remove(0);
    assert_eq!((name.bytes, name.blocks, name.clients), (8 * MIB, 2, 1));
    drop((blocks, publisher));
    // All that is left is the name.
    let left = folder.until(|figures| figures.clients.is_empty());
    assert_eq!((left.free, left.names[0].clients), (56 * MIB, 0));
    let reader = folder.side();
    let attached = block_on(reader.pool.attach("llama", &reader.stream).into_future()).unwrap();
    assert_eq!((attached.name(), attached.version()), ("llama", version));
    let sizes = attached
        .blocks()
        .iter()
        .map(|block| (block.size(), block.requested()));
    assert_eq!(
        sizes.collect::<Vec<_>>(),
        [(6 * MIB, 5 * MIB), (2 * MIB, 1)]
    );
    for (block, text) in attached.blocks().iter().zip(["weir", "p"]) {
        let bytes = block
            .download(&reader.stream, 0..text.len() as u64)
            .unwrap();
        assert_eq!(block_on(bytes).unwrap(), text.as_bytes());
    }
    // Attached memory counts under its name alone.
    let statistics = reader.pool.inspect().statistics();
    assert_eq!((statistics.charged, statistics.foreign), (0, 8 * MIB));
    assert_eq!(folder.figures().free, 56 * MIB);
    // Withdrawn, it counts until it is unmapped.
    let gone = withdraw(&folder.socket(), "llama", Duration::from_secs(5)).unwrap();
    assert_eq!(gone.unwrap().version, version);
    let held = folder.figures();
    assert_eq!(held.names[0].standing, NameStanding::Withdrawn);
    assert_eq!(held.free, 56 * MIB);
    let again = withdraw(&folder.socket(), "llama", Duration::from_secs(5)).unwrap();
    assert!(matches!(again, Err(NameError::NotPublished { .. })));
    drop(attached);
    folder.until_free();
    reader.device.assert_ordered();
}

/// With no byte free: the publisher's lease is all that the broker has.
#[test]
fn published_bytes_leave_the_lease_and_are_not_promised_again() {
    let folder = Folder::new("lease");
    let _broker = folder.broker(64 * MIB);
    let publisher = folder.side();
    let weights = publisher.exportable(32 * MIB, "weights");
    let rest = block_on(publisher.pool.allocate(&publisher.stream, 32 * MIB)).unwrap();
    assert_eq!(folder.figures().free, 0);
    publisher.publish("llama", &weights).unwrap();
    let statistics = publisher.pool.inspect().statistics();
    assert_eq!((statistics.charged, statistics.foreign), (0, 32 * MIB));
    let figures = folder.figures();
    assert_eq!((figures.free, figures.clients[0].lease), (0, 32 * MIB));
    // The publisher cannot use the bytes again, and neither can another process.
    let refused = publisher.pool.try_allocate(&publisher.stream, 2 * MIB);
    assert!(refused.is_err(), "{refused:?}");
    let other = folder.side();
    let refused = other.pool.try_allocate(&other.stream, 2 * MIB);
    assert!(refused.is_err(), "{refused:?}");
    // Attached memory needs no room on a full device.
    assert_eq!(other.read("llama", 7).unwrap().1, "weights");
    let (pool, stream) = (other.pool.clone(), other.stream.clone());
    let waiting = std::thread::spawn(move || block_on(pool.allocate(&stream, 32 * MIB)).map(drop));
    folder.until(|figures| figures.clients.iter().any(|client| client.needs > 0));
    // The publisher holds the memory still, which alone is no reason to keep a name.
    withdraw(&folder.socket(), "llama", Duration::from_secs(5))
        .unwrap()
        .unwrap();
    assert_eq!(folder.figures().names.len(), 1);
    assert!(!waiting.is_finished());
    drop(weights);
    waiting.join().unwrap().unwrap();
    drop((rest, publisher, other));
    folder.until_free();
}

#[test]
fn publisher_takes_back_what_it_published_like_any_memory() {
    let folder = Folder::new("again");
    let _broker = folder.broker(32 * MIB);
    let side = folder.side();
    let mut first = None;
    for round in 0..20 {
        let block = side.exportable(30 * MIB, &format!("{round:04}"));
        let version = side.publish("llama", &block).unwrap();
        assert_eq!(version, *first.get_or_insert(version) + round);
        drop(block);
        assert_eq!(
            side.read("llama", 4).unwrap(),
            (version, format!("{round:04}"))
        );
        withdraw(&folder.socket(), "llama", Duration::from_secs(5))
            .unwrap()
            .unwrap();
    }
    drop(side);
    folder.until_free();
}

#[test]
fn name_leads_to_one_version_until_it_is_replaced() {
    let folder = Folder::new("versions");
    let _broker = folder.broker(64 * MIB);
    let (one, other) = (folder.side(), folder.side());
    let nothing = refusal(other.read("llama", 3));
    assert!(matches!(nothing, NameError::NotPublished { .. }));
    let (old, new) = (one.exportable(MIB, "old"), one.exportable(MIB, "new"));
    let first = one.publish("llama", &old).unwrap();
    let taken = refusal(one.publish("llama", &new));
    assert!(matches!(taken, NameError::Taken { version, .. } if version == first));
    // A block that was refused counts as before.
    assert_eq!(one.pool.inspect().statistics().charged, 2 * MIB);
    let again = one.publish("other", &old);
    assert!(matches!(again, Err(PublishError::Named)), "{again:?}");
    let twice = block_on(one.pool.publish("other", [&new, &new]).into_future());
    assert!(matches!(twice, Err(PublishError::Named)), "{twice:?}");
    let kept = block_on(other.pool.attach("llama", &other.stream).into_future()).unwrap();
    let second = block_on(one.pool.publish("llama", [&new]).replacing().into_future()).unwrap();
    assert!(second > first);
    assert_eq!(other.read("llama", 3).unwrap(), (second, "new".into()));
    let bytes = kept.blocks()[0].download(&other.stream, 0..3).unwrap();
    assert_eq!(block_on(bytes).unwrap(), b"old");
    let wanted = other.pool.attach("llama", &other.stream).version(first);
    let wrong = refusal(block_on(wanted.into_future()));
    assert!(matches!(wrong, NameError::WrongVersion { version, .. } if version == second));
    let wanted = other.pool.attach("llama", &other.stream).version(second);
    drop(block_on(wanted.into_future()).unwrap());
    let standings = folder.until(|figures| figures.names[0].clients == 2).names;
    let standings: Vec<_> = standings.iter().map(|name| name.standing).collect();
    assert_eq!(standings, [NameStanding::Withdrawn, NameStanding::Listed]);
    drop((old, kept));
    folder.until(|figures| figures.names.len() == 1);
    drop((new, one, other));
    withdraw(&folder.socket(), "llama", Duration::from_secs(5))
        .unwrap()
        .unwrap();
    folder.until_free();
}

#[test]
fn memory_is_written_only_with_the_right() {
    let folder = Folder::new("rights");
    let _broker = folder.broker(64 * MIB);
    let (one, other) = (folder.side(), folder.side());
    let (fixed, open) = (one.exportable(MIB, "fixed"), one.exportable(MIB, "open."));
    one.publish("fixed", &fixed).unwrap();
    block_on(one.pool.publish("open", [&open]).writable().into_future()).unwrap();
    let refused = other.pool.attach("fixed", &other.stream).writing();
    let refused = refusal(block_on(refused.into_future()));
    assert!(matches!(refused, NameError::ReadOnly { .. }));
    let writing = other.pool.attach("open", &other.stream).writing();
    let mut writing = block_on(writing.into_future()).unwrap();
    let block = &mut writing.blocks_mut().unwrap()[0];
    block_on(block.upload(&other.stream, 0, b"wrote").unwrap()).unwrap();
    let mut reading = block_on(other.pool.attach("open", &other.stream).into_future()).unwrap();
    assert!(reading.blocks_mut().is_none());
    let bytes = reading.blocks()[0].download(&other.stream, 0..5).unwrap();
    assert_eq!(block_on(bytes).unwrap(), b"wrote");
    // A kernel that writes a mapping for reading breaks its device, as it does on a GPU, and no other.
    let block = &reading.blocks()[0];
    let work = other.device.create_stream();
    work.submit(Operation::new(Duration::from_micros(1)).writes(block.address(), 1));
    eventually(|| {
        other.pool.inspect().health().is_serving() && block_on(other.stream.synchronize()).is_err()
    });
    let bytes = open.download(&one.stream, 0..5).unwrap();
    assert_eq!(block_on(bytes).unwrap(), b"wrote");
}

#[test]
fn limits_refuse_with_figures() {
    let folder = Folder::new("limits");
    let limits = NameLimits {
        versions: 3,
        descriptors: 4,
        bytes: 20 * MIB,
    };
    let _broker = folder.broker_with(64 * MIB, limits);
    let side = folder.side();
    let small: Vec<_> = (0..5).map(|_| side.exportable(1, "")).collect();
    let large = side.exportable(16 * MIB, "");
    let full = |result, what| {
        let refused = refusal(result);
        assert!(
            matches!(&refused, NameError::Full { what: of, .. } if of == what),
            "{refused}"
        );
    };
    let publish =
        |name: &str, blocks: &[_]| block_on(side.pool.publish(name, blocks).into_future());
    full(publish("a", &small), "descriptors");
    publish("a", &small[..3]).unwrap();
    full(publish("b", &small[3..]), "descriptors");
    full(side.publish("b", &large), "bytes");
    side.publish("b", &small[3]).unwrap();
    // A withdrawn version keeps no descriptor, and its bytes as long as a process has it mapped.
    withdraw(&folder.socket(), "a", Duration::from_secs(5))
        .unwrap()
        .unwrap();
    side.publish("c", &small[4]).unwrap();
    let more = side.exportable(1, "");
    full(side.publish("d", &more), "versions");
    drop(small);
    folder.until(|figures| figures.names.len() == 2);
    side.publish("d", &more).unwrap();
}

#[test]
fn names_leave_guarantees_alone() {
    let folder = Folder::new("guarantees");
    let _broker = folder.broker(64 * MIB);
    let one = Side::new(&folder.socket(), 16 * MIB);
    let other = Side::new(&folder.socket(), 24 * MIB);
    let block = one.exportable(26 * MIB, "");
    let refused = refusal(one.publish("llama", &block));
    assert!(
        matches!(refused, NameError::Guaranteed { promised, .. } if promised == 40 * MIB),
        "{refused}"
    );
    drop(block);
    let block = one.exportable(24 * MIB, "");
    one.publish("llama", &block).unwrap();
    // Guaranteed memory is there.
    let both = [(&one, 16), (&other, 24)];
    let blocks =
        both.map(|(side, bytes)| side.pool.try_allocate(&side.stream, bytes * MIB).unwrap());
    drop((blocks, block, one, other));
}

#[test]
fn pool_without_a_broker_has_no_names() {
    let device = weirpool::device::sim::SimDevice::new();
    let pool = weirpool::Pool::builder(device).build().unwrap();
    let stream = pool.create_stream().unwrap();
    let block = block_on(pool.allocate_exportable(&stream, 1)).unwrap();
    let published = block_on(pool.publish("llama", [&block]).into_future());
    assert!(matches!(published, Err(PublishError::NoBroker)));
    let attached = block_on(pool.attach("llama", &stream).into_future());
    assert!(matches!(attached, Err(PublishError::NoBroker)));
}

/// Polls a future once, and drops it.
fn poll_and_drop<T>(mut future: impl Future<Output = T> + Unpin) -> Option<T> {
    let polled = futures::future::poll_fn(|context| {
        let polled = Future::poll(std::pin::Pin::new(&mut future), context);
        Poll::Ready(match polled {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        })
    });
    block_on(polled)
}

/// A future that is dropped has published all or nothing, and memory that it attached is let go.
#[test]
fn dropped_futures_leave_no_bytes_behind() {
    let folder = Folder::new("dropped");
    let _broker = folder.broker(64 * MIB);
    let side = folder.side();
    for _ in 0..20 {
        let block = side.exportable(16 * MIB, "weir");
        block_on(block.download(&side.stream, 0..1).unwrap()).unwrap();
        let published = poll_and_drop(side.pool.publish("llama", [&block]).into_future());
        assert!(published.is_none_or(|published| published.is_ok()));
        drop(block);
        folder.until(|figures| figures.names.len() == 1);
        let attached = poll_and_drop(side.pool.attach("llama", &side.stream).into_future());
        assert!(attached.is_none_or(|attached| attached.is_ok()));
        folder.until(|figures| figures.names[0].clients == 0);
        withdraw(&folder.socket(), "llama", Duration::from_secs(5))
            .unwrap()
            .unwrap();
    }
    drop(side);
    folder.until_free();
}

/// Published memory that a peer holds over a connection counts until the peer has released it.
#[test]
fn memory_at_a_peer_counts_after_its_name_and_its_block_ended() {
    let folder = Folder::new("peer");
    let _broker = folder.broker(64 * MIB);
    let (side, peer) = (folder.side(), folder.side());
    let block = side.exportable(16 * MIB, "weir");
    side.publish("llama", &block).unwrap();
    let (out, into) = wire::Connection::pair().unwrap();
    let out = Connection::open(&side.pool, out).unwrap();
    let into = Connection::open(&peer.pool, into).unwrap();
    let sent = block_on(out.send(&block, "")).unwrap();
    let imported = block_on(into.receive(&peer.stream)).unwrap();
    drop(block);
    withdraw(&folder.socket(), "llama", Duration::from_secs(5))
        .unwrap()
        .unwrap();
    // Blocks are released in the background.
    std::thread::sleep(Duration::from_millis(50));
    let names = folder.figures().names;
    let counted: Vec<_> = names.iter().map(|name| name.bytes).collect();
    assert_eq!(counted, [16 * MIB]);
    drop(imported);
    block_on(sent).unwrap();
    folder.until(|figures| figures.names.is_empty());
}

#[test]
fn too_many_blocks_are_refused_and_the_lease_goes_on() {
    let folder = Folder::new("many");
    let _broker = folder.broker(256 * MIB);
    let side = folder.side();
    let blocks: Vec<_> = (0..65).map(|_| side.exportable(1, "")).collect();
    let refused = refusal(block_on(side.pool.publish("a", &blocks).into_future()));
    assert!(matches!(refused, NameError::Invalid { .. }), "{refused}");
    let long = "x".repeat(70_000);
    let refused = refusal(side.publish(&long, &blocks[0]));
    assert!(matches!(refused, NameError::Invalid { .. }), "{refused}");
    let refused = refusal(side.read(&long, 1));
    assert!(matches!(refused, NameError::Invalid { .. }), "{refused}");
    let lease = weirpool_broker::lease_of(&side.pool).unwrap();
    assert!(lease.is_connected);
    side.publish("a", &blocks[0]).unwrap();
}
