//! Many threads at once.

use crate::allocation::random_size;
use crate::bench::{Bench, Span};
use crate::common::{MIB, until_freed};
use crate::site::{Site, Worker};
use futures::executor::block_on;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Barrier, Mutex};
use std::thread;
use weirpool::Block;
use weirpool::device::DeviceAddress;

/// RMM multi-threaded `RandomAllocations`: a stream for each thread, and a pool that is too small.
pub(crate) fn contents_of_many_threads_stay_intact<B: Bench>() {
    let site = Site::<B>::new(16 * MIB);
    thread::scope(|scope| {
        for (worker, seed) in site.workers::<4>().into_iter().zip(0..) {
            scope.spawn(move || use_at_random(&worker, seed));
        }
    });
    site.assert_sound();
}

/// Several threads submit to one stream: it is one order for all of them, and what one frees the
/// next may have at once.
pub(crate) fn submitters_of_one_stream_keep_its_order<B: Bench>() {
    let site = Site::<B>::new(16 * MIB);
    let worker = site.worker();
    thread::scope(|scope| {
        for seed in 0..4 {
            let worker = worker.clone();
            scope.spawn(move || use_at_random(&worker, seed));
        }
    });
    assert!(
        site.pool
            .inspect()
            .statistics()
            .hits
            .of(weirpool::Source::Lane)
            > 0
    );
    site.assert_sound();
}

fn use_at_random<B: Bench>(worker: &Worker<B>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut live = Vec::new();
    for step in 0..150u64 {
        let value = (step * 4 + seed) as u8;
        if let Ok(block) = worker.try_take(random_size(&mut random)) {
            worker.use_up(&block, value);
            live.push((block, value));
        }
        if random.bool() && !live.is_empty() {
            let (block, value) = live.swap_remove(random.usize(..live.len()));
            worker.expect(&block, value);
            drop(block);
        }
        if live.len() > 6 {
            live.clear();
        }
    }
    drop(live);
    worker.settle();
}

/// RMM `mr_ref_test_mt`: allocated on one thread, freed on another, in the order of the same stream
/// and of a different one.
pub(crate) fn blocks_are_freed_on_other_threads<B: Bench>() {
    let site = Site::<B>::new(32 * MIB);
    let (send, receive) = sync_channel::<Block>(16);
    let receive = Mutex::new(receive);
    thread::scope(|scope| {
        for (worker, seed) in site.workers::<3>().into_iter().zip(0..) {
            let send = send.clone();
            scope.spawn(move || {
                for block in blocks(&worker, seed) {
                    send.send(block).unwrap();
                }
                worker.settle();
            });
        }
        drop(send);
        for other in site.workers::<2>() {
            let receive = &receive;
            scope.spawn(move || free_all(receive, &other));
        }
    });
    site.assert_sound();
}

fn blocks<B: Bench>(worker: &Worker<B>, seed: u64) -> impl Iterator<Item = Block> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..150).filter_map(move |step: u32| {
        let block = worker.try_take(random_size(&mut random)).ok()?;
        worker.use_up(&block, step as u8);
        Some(block)
    })
}

fn free_all<B: Bench>(blocks: &Mutex<Receiver<Block>>, other: &Worker<B>) {
    let next = || blocks.lock().unwrap().recv();
    let mut is_foreign = false;
    while let Ok(block) = next() {
        is_foreign = !is_foreign;
        if is_foreign {
            drop(block.deallocate_on(&other.stream).unwrap());
        } else {
            drop(block);
        }
    }
    other.settle();
}

/// cuda-oxide#619: a drop on one thread raced the last use on another stream.
pub(crate) fn drop_on_another_thread_covers_the_last_use<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let [home, further, third] = site.workers();
    for round in 0..50u8 {
        let block = block_on(home.allocate(8 * MIB));
        home.fill(&block, round);
        further.come_after(&home);
        until_freed(&further.stream, &block);
        further.bench.spend(&further.work);
        further.expect(&block, round);
        thread::scope(|scope| {
            scope.spawn(move || drop(block));
            scope.spawn(|| third.use_up(&block_on(third.allocate(8 * MIB)), 255));
        });
    }
    crate::site::settle_all(&[&home, &further, &third]);
    site.assert_sound();
}

/// rmm#869: a limiter that read first and added afterwards let two threads pass.
pub(crate) fn threads_at_the_limit_never_exceed_it<B: Bench>() {
    const CAPACITY: u64 = 8 * MIB;
    let (site, probe) = Site::<B>::probed(CAPACITY, |builder| builder);
    let (live, most) = (AtomicU64::new(0), AtomicU64::new(0));
    let take_all = |worker: &Worker<B>| {
        for _ in 0..200 {
            if let Ok(block) = worker.try_take(3 * MIB) {
                let now = live.fetch_add(block.size(), Ordering::SeqCst) + block.size();
                most.fetch_max(now, Ordering::SeqCst);
                live.fetch_sub(block.size(), Ordering::SeqCst);
            }
        }
    };
    thread::scope(|scope| {
        for worker in site.workers::<4>() {
            scope.spawn(move || take_all(&worker));
        }
    });
    assert!((3 * MIB..=CAPACITY).contains(&most.into_inner()));
    assert!(probe.peak() <= CAPACITY);
    assert!(site.pool.inspect().statistics().reserved.high <= CAPACITY);
    site.assert_conserved();
}

/// rmm#2304: an address was given to another thread before its old owner was forgotten. Here an address
/// has one owner at every moment, also while memory goes back to the device and comes again.
pub(crate) fn address_has_one_owner_at_a_time<B: Bench>() {
    let site = Site::<B>::new(16 * MIB);
    let owned = Owned::default();
    thread::scope(|scope| {
        for (worker, seed) in site.workers::<3>().into_iter().zip(0..) {
            let owned = &owned;
            scope.spawn(move || own_and_give_back(&worker, seed, owned));
        }
    });
    assert!(site.pool.inspect().statistics().released > 0);
    site.assert_sound();
}

fn own_and_give_back<B: Bench>(worker: &Worker<B>, seed: u64, owned: &Owned) {
    for (turn, block) in blocks(worker, seed).enumerate() {
        owned.insert((&block).into());
        thread::yield_now();
        owned.remove((&block).into());
        drop(block);
        worker.settle();
        if turn % 8 == 0 {
            let _ = worker.pool.trim_to(0).unwrap();
        }
    }
}

/// Address ranges, with their ends, that have an owner.
#[derive(Default)]
struct Owned(Mutex<BTreeMap<DeviceAddress, DeviceAddress>>);

impl Owned {
    fn insert(&self, Span { address, bytes }: Span) {
        let mut owned = self.0.lock().unwrap();
        let below = owned.range(..address + bytes).next_back();
        assert!(below.is_none_or(|(_, end)| *end <= address), "two owners");
        owned.insert(address, address + bytes);
    }

    fn remove(&self, Span { address, .. }: Span) {
        self.0.lock().unwrap().remove(&address);
    }
}

/// rmm#2470: a lock was held while the events of other streams were waited for, and what would have
/// completed them needed the lock. Here one stream is held for as long as others work and wait.
pub(crate) fn held_stream_does_not_hold_up_others<B: Bench>() {
    let site = Site::<B>::new(24 * MIB);
    let [held, waiter, busy] = site.workers();
    let block = held.take(8 * MIB);
    let gate = held.use_until_opened(&block, 1);
    let passing = block.deallocate();
    let start = Barrier::new(3);
    thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            block_on(passing).unwrap();
        });
        scope.spawn(|| {
            start.wait();
            block_on(waiter.stream.synchronize()).unwrap();
        });
        start.wait();
        for round in 0..30 {
            let block = block_on(busy.allocate(8 * MIB));
            busy.use_up(&block, round);
            block_on(block.deallocate()).unwrap();
        }
        // Only now: all of the above took place while the first stream was held.
        gate.open();
    });
    site.assert_sound();
}
