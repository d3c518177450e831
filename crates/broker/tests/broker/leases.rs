//! Pools of this process with a broker: settings, errors, figures, and each way of asking for memory.

use crate::common::*;
use crate::{Folder, broker};
use futures::executor::block_on;
use std::thread;
use std::time::Duration;
use weirpool::device::sim::{Clock, SimDevice};
use weirpool::*;
use weirpool_broker::{BrokerFailure, BrokerOptions, lease_capacity, lease_of};

fn device() -> SimDevice {
    SimDevice::builder()
        .memory(1 << 30)
        .clock(Clock::Wall)
        .build()
}

fn leased(folder: &Folder, options: impl FnOnce(BrokerOptions) -> BrokerOptions) -> (Pool, Stream) {
    let device = device();
    let options = options(BrokerOptions::new(folder.socket()).headroom(0));
    let builder = Pool::builder(device).chunk_bytes(CHUNK);
    let pool = lease_capacity(builder, options).build().unwrap();
    let stream = pool.create_stream().unwrap();
    (pool, stream)
}

fn lease(pool: &Pool) -> u64 {
    lease_of(pool).unwrap().leased
}

fn failure(error: &BuildError) -> &BrokerFailure {
    let BuildError::CapacitySource(error) = error else {
        panic!("{error}");
    };
    error.get().downcast_ref().unwrap()
}

#[test]
fn options_are_printed_in_units() {
    let printed = format!("{:?}", BrokerOptions::new("socket").guaranteed(MIB));
    let part = "guaranteed: 1.0 MiB, limit: None, weight: 1, headroom: 64.0 MiB";
    assert!(printed.contains(part), "{printed}");
}

#[test]
fn pool_without_a_broker_refuses_or_runs_alone() {
    let folder = Folder::new("alone");
    let build = |options: BrokerOptions| lease_capacity(Pool::builder(device()), options).build();
    let refused = build(BrokerOptions::new(folder.socket())).unwrap_err();
    assert!(
        matches!(failure(&refused), BrokerFailure::Unreachable { .. }),
        "{refused}"
    );
    let pool = build(BrokerOptions::new(folder.socket()).or_alone()).unwrap();
    assert_eq!((lease_of(&pool), pool.capacity()), (None, 1 << 30));
    let _broker = broker(&folder.socket(), 64 * MIB);
    let greedy = BrokerOptions::new(folder.socket())
        .guaranteed(65 * MIB)
        .or_alone();
    let refused = build(greedy).unwrap_err();
    assert!(
        matches!(failure(&refused), BrokerFailure::Refused { .. }),
        "{refused}"
    );
}

#[test]
fn settings_that_no_lease_covers_are_refused() {
    let folder = Folder::new("settings");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let conflict = |builder: PoolBuilder| match lease_capacity(builder, folder.socket()).build() {
        Err(BuildError::Conflict {
            one: "capacity_source",
            other,
        }) => other,
        other => panic!("{other:?}"),
    };
    let builder = || Pool::builder(device());
    assert_eq!(
        conflict(builder().tuning(|tuning| tuning.initial_size = 2 * MIB)),
        "initial_size"
    );
    assert_eq!(conflict(builder().upstream(Upstream::Pinned)), "upstream");
}

/// Tries until the broker answers in time: a try waits 2 ms for it, and the broker may not be scheduled for longer.
fn try_until_answered(pool: &Pool, stream: &Stream, bytes: u64) -> Result<Block, AllocError> {
    loop {
        match pool.try_allocate(stream, bytes) {
            Err(AllocError::Exhausted(_)) => thread::yield_now(),
            answer => return answer,
        }
    }
}

/// The terms that granted the guarantee may be applied between the search that is short of memory and its question: the
/// guarantee must count for the need either way.
#[test]
fn need_that_meets_a_grant_is_not_asked_for_beyond_it() {
    let folder = Folder::new("counted-once");
    let _broker = broker(&folder.socket(), 64 * MIB);
    for round in 0..200 {
        let (pool, stream) = leased(&folder, |options| options.guaranteed(8 * MIB));
        let block = match round % 2 {
            0 => try_until_answered(&pool, &stream, 16 * MIB),
            _ => block_on(pool.allocate(&stream, 16 * MIB)),
        };
        assert_eq!(lease(&pool), 16 * MIB, "round {round}");
        drop(block.unwrap());
    }
}

#[test]
fn every_way_of_asking_grows_the_lease() {
    let folder = Folder::new("ways");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let (pool, stream) = leased(&folder, |options| options);
    assert_eq!((pool.capacity(), lease(&pool)), (64 * MIB, 0));
    let first = try_until_answered(&pool, &stream, 4 * MIB).unwrap();
    let second = block_on(pool.allocate(&stream, 4 * MIB)).unwrap();
    let third = block_on(pool.reserve(4 * MIB)).unwrap();
    let fourth = pool
        .allocate_many(&stream, [4 * MIB, 8 * MIB])
        .blocking()
        .unwrap();
    assert_eq!(
        (lease(&pool), pool.inspect().statistics().leased),
        (24 * MIB, 24 * MIB)
    );
    let printed = format!("{:?}", lease_of(&pool).unwrap());
    let start = "BrokerLease { leased: 24.0 MiB, guaranteed: 0 B, limit: 64.0 MiB, recalled: 0 B, ";
    assert!(printed.starts_with(start), "{printed}");
    drop((first, second, third, fourth));
    pool.inspect().check_conserved().unwrap();
}

#[test]
fn request_above_the_limit_fails_and_one_above_the_lease_waits() {
    let folder = Folder::new("limit");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let (pool, stream) = leased(&folder, |options| options.limit(32 * MIB));
    let (other, elsewhere) = leased(&folder, |options| options);
    let refused = block_on(pool.allocate(&stream, 34 * MIB)).unwrap_err();
    assert!(
        matches!(refused, AllocError::TooLarge { capacity, .. } if capacity == 32 * MIB),
        "{refused}"
    );
    assert!(
        pool.resize(48 * MIB).unwrap().target == 32 * MIB,
        "within the limit"
    );
    let held = try_until_answered(&other, &elsewhere, 48 * MIB).unwrap();
    let refused = pool.try_allocate(&stream, 32 * MIB).unwrap_err();
    let AllocError::Exhausted(shortfall) = refused else {
        panic!("{refused}");
    };
    assert_eq!((shortfall.capacity, shortfall.leased), (32 * MIB, 0));
    let timed_out = block_on(
        pool.allocate(&stream, 32 * MIB)
            .timeout(Duration::from_millis(1)),
    );
    assert!(matches!(timed_out, Err(AllocError::TimedOut { .. })));
    eventually(|| !lease_of(&pool).unwrap().is_waiting);
    let waiting = std::thread::spawn({
        let (pool, stream) = (pool.clone(), stream.clone());
        move || pool.allocate(&stream, 32 * MIB).blocking().map(drop)
    });
    eventually(|| lease_of(&other).unwrap().recalled > 0);
    drop(held);
    waiting.join().unwrap().unwrap();
    assert_eq!(lease(&other), 32 * MIB);
}

/// The request has asked the broker for more than is free. Nothing stays set aside for it.
#[test]
fn dropped_request_leaves_its_memory_to_others() {
    for polls in 0..3 {
        let folder = Folder::new(&format!("dropped-{polls}"));
        let _broker = broker(&folder.socket(), 64 * MIB);
        let (pool, stream) = leased(&folder, |options| options);
        let (other, elsewhere) = leased(&folder, |options| options);
        let held = try_until_answered(&other, &elsewhere, 48 * MIB).unwrap();
        let mut request = pool.allocate(&stream, 32 * MIB);
        for _ in 0..polls {
            assert!(poll(&mut request).is_pending());
        }
        drop(request);
        eventually(|| !lease_of(&pool).unwrap().is_waiting);
        let more = block_on(other.allocate(&elsewhere, 16 * MIB)).unwrap();
        drop((held, more));
        drop(block_on(pool.allocate(&stream, 64 * MIB)).unwrap());
        pool.inspect().check_conserved().unwrap();
        other.inspect().check_conserved().unwrap();
    }
}

#[test]
fn recalled_memory_in_use_comes_back_before_it_is_used_again() {
    let folder = Folder::new("binding");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let (pool, stream) = leased(&folder, |options| options);
    let (other, elsewhere) = leased(&folder, |options| options);
    let mut held: Vec<_> = (0..15)
        .map(|_| try_until_answered(&pool, &stream, 4 * MIB).unwrap())
        .collect();
    let waiting = std::thread::spawn({
        let (other, elsewhere) = (other.clone(), elsewhere.clone());
        move || other.allocate(&elsewhere, 32 * MIB).blocking().map(drop)
    });
    eventually(|| {
        lease_of(&pool).unwrap().recalled > 0 && pool.try_allocate(&stream, 4 * MIB).is_err()
    });
    // Each block that is freed goes to the other pool, however often this one asks.
    while held.len() > 8 {
        held.pop();
        if held.len() > 8 {
            assert!(pool.try_allocate(&stream, 4 * MIB).is_err());
        }
    }
    waiting.join().unwrap().unwrap();
    eventually(|| lease_of(&pool).unwrap().recalled == 0);
    assert_eq!(lease(&pool), 32 * MIB);
    drop(pool.allocate(&stream, 16 * MIB).blocking().unwrap());
    drop(held);
    pool.inspect().check_conserved().unwrap();
}

#[test]
fn lease_ends_with_the_pool() {
    let folder = Folder::new("ends");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let (pool, stream) = leased(&folder, |options| options.guaranteed(8 * MIB));
    drop(try_until_answered(&pool, &stream, 40 * MIB).unwrap());
    drop((pool, stream));
    crate::processes::until(&folder, |figures| figures.clients.is_empty());
}

#[test]
fn lease_of_a_pool_that_ends_while_there_is_no_broker_is_free() {
    let folder = Folder::new("ends-without");
    let running = broker(&folder.socket(), 64 * MIB);
    let (pool, stream) = leased(&folder, |options| options.guaranteed(8 * MIB));
    drop(try_until_answered(&pool, &stream, 40 * MIB).unwrap());
    drop(running);
    eventually(|| !lease_of(&pool).unwrap().is_connected);
    let health = pool.inspect().health().to_string();
    assert!(health.contains(", without its broker; "), "{health}");
    drop((pool, stream));
    let _broker = broker(&folder.socket(), 64 * MIB);
    crate::processes::until(&folder, |figures| figures.clients.is_empty());
}

#[test]
fn figures_show_processes_leases_and_use() {
    let folder = Folder::new("figures");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let (pool, stream) = leased(&folder, |options| {
        options.name("chat").guaranteed(8 * MIB).weight(3)
    });
    let block = try_until_answered(&pool, &stream, 16 * MIB).unwrap();
    crate::processes::until(&folder, |figures| {
        let client = &figures.clients[0];
        let is_known = client.name == "chat" && client.process == std::process::id();
        is_known && client.share.weight == 3 && client.lease == 16 * MIB && figures.free == 48 * MIB
    });
    assert_eq!(pool.inspect().health().source_trouble, None);
    drop(block);
}

#[test]
fn memory_is_evicted_for_another_pool_after_free_memory_and_above_the_guarantee() {
    let folder = Folder::new("evicts");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let (caching, stream) = leased(&folder, |options| options.guaranteed(16 * MIB));
    let entries: Vec<_> = (0..5)
        .map(|_| try_until_answered(&caching, &stream, 8 * MIB).unwrap())
        .map(Block::into_evictable)
        .collect();
    let (free, third_stream) = leased(&folder, |options| options);
    drop(free.allocate(&third_stream, 24 * MIB).blocking().unwrap());
    let (needy, needy_stream) = leased(&folder, |options| options);
    let first = needy.allocate(&needy_stream, 16 * MIB).blocking().unwrap();
    assert_eq!(
        caching.inspect().statistics().evictions,
        0,
        "free memory is enough"
    );
    let second = needy.allocate(&needy_stream, 24 * MIB).blocking().unwrap();
    let present = entries.iter().filter(|entry| entry.is_present()).count();
    assert_eq!(present, 3, "16 MiB of 40, the least recently used first");
    assert!(entries[2].is_present() && !entries[1].is_present());
    // 8 MiB are left above the guarantee.
    let request = needy.allocate(&needy_stream, 16 * MIB);
    let refused = request.timeout(Duration::from_millis(50)).blocking();
    assert!(
        matches!(refused, Err(AllocError::TimedOut { .. })),
        "{refused:?}"
    );
    assert!(entries.iter().filter(|entry| entry.is_present()).count() >= 2);
    drop((first, second, entries));
    caching.inspect().check_conserved().unwrap();
}

/// The pool gives back its free memory, and asks for its holders alone.
#[test]
fn pool_that_stops_admitting_gives_back_and_asks_for_its_holders() {
    let folder = Folder::new("stopping");
    let _broker = broker(&folder.socket(), 64 * MIB);
    let (pool, stream) = leased(&folder, |options| options);
    let mut reservation = pool.reserve(16 * MIB).try_now().unwrap();
    drop(block_on(pool.allocate(&stream, 32 * MIB)).unwrap());
    pool.stop_admitting();
    let refused = block_on(pool.allocate(&stream, 8 * MIB)).unwrap_err();
    assert_eq!(refused, AllocError::Stopping);
    let (other, elsewhere) = leased(&folder, |options| options);
    let theirs = block_on(other.allocate(&elsewhere, 40 * MIB)).unwrap();
    assert!(lease(&pool) <= 24 * MIB, "{}", lease(&pool));
    drop(theirs);
    block_on(reservation.grow(32 * MIB)).unwrap();
    assert!(lease(&pool) >= 48 * MIB, "{}", lease(&pool));
}
