//! Several pools: found by name and by address, the default one, the current one, and none at all; what a
//! pool is built with. On the simulated device, in detail; the behaviours that every device must show are
//! in `conformance`.

mod common;

use common::{Count, MIB, manual, now, poll, poll_with, run, stream, us, use_block};
use futures::future::{Either, join_all, select};
use futures::task::LocalSpawnExt;
use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use weirpool::device::sim::{Call, Checker, Clock, Fault, Operation, SimDevice, ViolationKind};
use weirpool::device::{
    Device, DeviceErrorKind, DeviceStream, MemoryKind, MemoryKinds, Pooling, RawStream,
};
use weirpool::{
    AllocError, BlockState, BuildError, CoalesceHeuristic, Current, GrowBy, Pool, PoolBuilder,
    Scope, Sealing, Upstream, current, find_pool, pool_of, pools,
};

fn small(device: &SimDevice) -> PoolBuilder {
    common::builder(device, 8 * MIB)
}

/// Blocks are complete as soon as their stream has passed the free.
fn exact(device: &SimDevice) -> PoolBuilder {
    small(device).sealing(Sealing::EveryFree)
}

/// What other threads bring about. One may be looking for a pool, and end it then.
fn eventually(mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < std::time::Duration::from_secs(60),
            "it never came"
        );
        thread::sleep(us(50));
    }
}

// ---- names -----------------------------------------------------------------------------------------

#[test]
fn a_name_is_taken_for_as_long_as_a_handle_lives() {
    let (device, other) = (manual(), manual());
    let pool = small(&device).name("kv").build().unwrap();
    for device in [&device, &other] {
        let refused = small(device).name("kv").build().unwrap_err();
        assert_eq!(refused, BuildError::NameTaken { name: "kv".into() });
    }
    let (_, stream) = stream(&device, &pool);
    let block = pool.try_allocate(&stream, 4096).unwrap();
    drop((pool, stream));
    // A block is a handle.
    let found = find_pool("kv").expect("it lives by its block");
    assert_eq!(found, pool_of(block.address()).unwrap().0);
    drop(found);
    drop(block);
    eventually(|| find_pool("kv").is_none());
    eventually(|| device.counters().physical_in_use == 0);
    drop(small(&other).name("kv").build().unwrap());
}

#[test]
fn a_name_that_is_refused_costs_the_device_nothing() {
    let device = manual();
    let before = device.counters().device_calls;
    assert!(matches!(
        small(&device).name("").build(),
        Err(BuildError::NameTaken { .. })
    ));
    assert_eq!(device.counters().device_calls, before);
    // One that fails for another reason leaves its name free.
    device.fail_next(Call::Reserve, DeviceErrorKind::Other);
    assert!(small(&device).name("unlucky").build().is_err());
    assert!(small(&device).name("unlucky").build().is_ok());
}

#[test]
fn of_threads_that_want_one_name_one_has_it() {
    let living = AtomicUsize::new(0);
    let built = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let device = manual();
                for _ in 0..200 {
                    let Ok(pool) = small(&device).name("contended").build() else {
                        continue;
                    };
                    assert_eq!(living.fetch_add(1, Ordering::SeqCst), 0);
                    built.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(find_pool("contended").as_ref(), Some(&pool));
                    living.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
        // Who looks for it holds it for a moment, and may be the one who ends it.
        scope.spawn(|| {
            for _ in 0..2000 {
                if let Some(pool) = find_pool("contended") {
                    assert_eq!(pool.name(), Some("contended"));
                }
            }
        });
    });
    assert!(built.into_inner() > 0);
    eventually(|| find_pool("contended").is_none());
}

#[test]
fn all_pools_are_listed_while_they_live() {
    let device = manual();
    let mine = |pool: &Pool| pool.device_id() == device.id();
    let (one, two) = (
        small(&device).build().unwrap(),
        small(&device).build().unwrap(),
    );
    let listed: Vec<_> = pools().into_iter().filter(mine).collect();
    assert_eq!(listed, [one.clone(), two.clone()]);
    drop((listed, one));
    eventually(|| pools().into_iter().filter(mine).eq([two.clone()]));
}

// ---- addresses -------------------------------------------------------------------------------------

#[test]
fn an_address_is_looked_up_in_every_state() {
    for virtual_memory in [true, false] {
        let device = SimDevice::builder()
            .clock(Clock::Manual)
            .virtual_memory(virtual_memory)
            .build();
        let pool = exact(&device).lane_bytes(0).build().unwrap();
        let (work, home) = stream(&device, &pool);
        let (other_work, other) = stream(&device, &pool);
        let block = pool.try_allocate(&home, MIB).unwrap();
        let (first, last) = (block.address(), block.address() + (MIB - 1));
        for address in [first, first + 17, last] {
            let (owner, info) = pool_of(address).unwrap();
            assert_eq!((&owner, info.address, info.size), (&pool, first, MIB));
            assert_eq!(
                (info.state, info.stream),
                (BlockState::Used, Some(home.id()))
            );
        }
        assert_ne!(pool_of(last + 1).map(|(_, info)| info.address), Some(first));
        block.used_on(&other).unwrap();
        run(&work, us(10));
        run(&other_work, us(20));
        drop(block);
        let waits_for = || pool.block_at(first).unwrap().waits_for;
        assert_eq!(waits_for(), [home.id(), other.id()]);
        assert_eq!(pool.block_at(first).unwrap().state, BlockState::Pending);
        device.advance(us(10));
        pool.harvest().unwrap();
        assert_eq!(waits_for(), [other.id()]);
        device.advance(us(10));
        pool.harvest().unwrap();
        let info = pool.block_at(first).unwrap();
        assert_eq!((info.state, info.stream), (BlockState::Free, None));
        assert!(info.waits_for.is_empty());
        pool.trim_to(0).unwrap();
        assert_eq!(pool_of(first), None, "no memory is there any more");
        assert_eq!(pool_of(1), None);
    }
}

#[test]
fn what_a_lane_keeps_is_its_streams() {
    let device = manual();
    let pool = exact(&device).build().unwrap();
    let (work, home) = stream(&device, &pool);
    let block = pool.try_allocate(&home, 4096).unwrap();
    let address = block.address();
    run(&work, us(10));
    drop(block);
    let info = pool.block_at(address).unwrap();
    assert_eq!(
        (info.state, info.stream),
        (BlockState::Pending, Some(home.id()))
    );
    assert_eq!(info.waits_for, [home.id()]);
    device.advance(us(10));
    pool.harvest().unwrap();
    let info = pool.block_at(address).unwrap();
    assert_eq!(
        (info.state, info.stream),
        (BlockState::Free, Some(home.id()))
    );
    let again = pool.try_allocate(&home, 4096).unwrap();
    assert_eq!(again.address(), address);
    assert_eq!(pool.block_at(address).unwrap().state, BlockState::Used);
}

#[test]
fn blocks_are_found_while_others_come_and_go() {
    let device = SimDevice::builder().checker(Checker::Off).build();
    let pool = common::builder(&device, 64 * MIB).build().unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let churning: Vec<_> = (0..2)
            .map(|_| {
                let (_work, stream) = stream(&device, &pool);
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..3000_u64 {
                        let bytes = 512 << (round * 7 % 13);
                        let block = pool.try_allocate(&stream, bytes).unwrap();
                        let info = pool.block_at(block.address() + (bytes - 1)).unwrap();
                        assert_eq!((info.address, info.size), (block.address(), block.size()));
                        assert_eq!(info.state, BlockState::Used);
                        assert_eq!(info.stream, Some(stream.id()));
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let (_work, stream) = stream(&device, &pool);
            let mine = pool.try_allocate(&stream, MIB).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let (owner, info) = pool_of(mine.address()).unwrap();
                assert_eq!((owner, info.size), (pool.clone(), MIB));
            }
        });
        for thread in churning {
            thread.join().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    pool.check_conserved().unwrap();
}

// ---- the default pool ------------------------------------------------------------------------------

#[test]
fn a_default_pool_is_made_once_and_only_when_it_is_asked_for() {
    let device = manual();
    let reserved =
        || device.counters().calls(Call::Reserve) - device.counters().calls(Call::Unreserve);
    let own = small(&device).build().unwrap();
    {
        let _scope = Scope::pool(&own).enter();
        assert_eq!(current(&device).unwrap().pool(), &own);
    }
    assert_eq!(reserved(), 1, "of the pool that was built, and no other");
    let all: Vec<_> = thread::scope(|scope| {
        let ask = || Pool::default_of(&device).unwrap();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(all.iter().all(|pool| *pool == all[0] && *pool != own));
    // Those that came second are gone.
    eventually(|| reserved() == 2);
    // It stays, though nobody has it.
    drop(all);
    let shared: Arc<dyn Device> = device.clone().into();
    let again = Pool::default_of(&shared).unwrap();
    assert_eq!(reserved(), 2);
    assert_eq!(pools().iter().filter(|pool| **pool == again).count(), 1);
}

#[test]
fn a_default_pool_that_could_not_be_made_is_made_at_the_next_try() {
    let device = manual();
    device.fail_next(Call::Reserve, DeviceErrorKind::OutOfMemory);
    assert!(matches!(current(&device), Err(BuildError::Device(_))));
    assert!(current(&device).is_ok());
}

// ---- the current pool ------------------------------------------------------------------------------

#[test]
fn the_current_pool_is_kept_alive_while_it_is_set() {
    let device = manual();
    Current::set(&small(&device).name("set and forgotten").build().unwrap());
    let found = find_pool("set and forgotten").expect("it is current");
    assert_eq!(current(&device).unwrap().pool(), &found);
    drop(found);
    let other = small(&device).build().unwrap();
    Current::set(&other);
    eventually(|| find_pool("set and forgotten").is_none());
    Current::reset(&device);
    assert_eq!(
        current(&device).unwrap().pool(),
        &Pool::default_of(&device).unwrap()
    );
    Current::reset(&device);
}

#[test]
fn a_stream_is_registered_once_with_the_current_pool() {
    let device = manual();
    let work = device.create_stream();
    let here = current(&device).unwrap();
    let id = here.stream(&work).unwrap().id();
    assert_eq!(
        current(&device)
            .unwrap()
            .stream(&work.clone())
            .unwrap()
            .id(),
        id
    );
    let other = device.create_stream();
    assert_ne!(here.stream(&other).unwrap().id(), id);
    // One that nobody has any more is let go when another comes, and its handle may be another's then.
    let (raw, destroyed) = (work.raw(), device.counters().calls(Call::DestroyStream));
    drop(work);
    assert_eq!(device.counters().calls(Call::DestroyStream), destroyed);
    here.stream(&device.create_stream()).unwrap();
    pool_harvested(here.pool());
    let next = device.create_stream();
    assert_eq!(next.raw(), raw, "the driver gives the handle again");
    assert_ne!(here.stream(&next).unwrap().id(), id);
}

fn pool_harvested(pool: &Pool) {
    pool.harvest().unwrap();
    // Streams that went away are seen off by those that come.
    drop(pool.create_stream().unwrap());
}

#[test]
fn a_thread_registers_what_another_registers_at_the_same_time() {
    let device = SimDevice::new();
    let pool = small(&device).build().unwrap();
    let scope = Scope::pool(&pool);
    let work = device.create_stream();
    let ids: Vec<_> = thread::scope(|threads| {
        let ask = || {
            let _entered = scope.enter();
            let block = current(&device).unwrap().try_allocate(&work, 512).unwrap();
            block.stream().id()
        };
        let all: Vec<_> = (0..8).map(|_| threads.spawn(ask)).collect();
        all.into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let kept = scope_stream(&scope, &device, &work);
    assert!(ids.contains(&kept), "{ids:?}");
    pool.check_conserved().unwrap();
}

fn scope_stream(scope: &Scope, device: &SimDevice, work: &impl DeviceStream) -> weirpool::StreamId {
    let _entered = scope.enter();
    current(device).unwrap().stream(work).unwrap().id()
}

#[test]
fn an_awaited_allocation_of_the_current_pool_waits_as_any() {
    let device = manual();
    let pool = small(&device).build().unwrap();
    let _entered = Scope::pool(&pool).enter();
    let here = current(&device).unwrap();
    let (one, other) = (device.create_stream(), device.create_stream());
    let all = here.try_allocate(&one, 8 * MIB).unwrap();
    // Held by no one else: the future has all that it needs.
    let mut waiting = Box::pin(here.allocate(&other, MIB));
    drop(here);
    assert!(poll(&mut waiting).is_pending());
    run(&one, us(5));
    drop(all);
    device.advance(us(5));
    assert!(matches!(poll(&mut waiting), Poll::Ready(Ok(_))));
}

// ---- scopes ----------------------------------------------------------------------------------------

#[test]
fn the_innermost_scope_of_each_device_counts() {
    let (device, other) = (manual(), manual());
    let pool = |device| small(device).build().unwrap();
    let [one, two, there] = [pool(&device), pool(&device), pool(&other)];
    let here = || current(&device).unwrap().pool().clone();
    let _one = Scope::pool(&one).enter();
    let _there = Scope::pool(&there).enter();
    assert_eq!(here(), one);
    assert_eq!(current(&other).unwrap().pool(), &there);
    let two_entered = Scope::pool(&two).enter();
    let unpooled = Scope::pooling(&device, Pooling::Disabled).enter();
    assert!(!here().is_pooled());
    let pooled = Scope::pooling(&device, Pooling::Enabled).enter();
    assert_eq!(here(), Pool::default_of(&device).unwrap());
    // Left in no order at all.
    drop(unpooled);
    assert_eq!(here(), Pool::default_of(&device).unwrap());
    drop(pooled);
    assert_eq!(here(), two);
    drop(two_entered);
    assert_eq!(here(), one);
    // What is switched for the process is the outermost.
    Current::set_pooling(&device, Pooling::Disabled);
    assert_eq!(here(), one);
    Current::set_pooling(&device, Pooling::Enabled);
}

#[test]
fn a_scope_is_its_threads_alone() {
    let device = manual();
    let pool = small(&device).build().unwrap();
    let scope = Scope::pool(&pool);
    let _entered = scope.enter();
    let elsewhere = thread::scope(|threads| {
        let ask = || current(&device).unwrap().pool().clone();
        threads.spawn(ask).join().unwrap()
    });
    assert_eq!(elsewhere, Pool::default_of(&device).unwrap());
    assert_eq!(current(&device).unwrap().pool(), &pool);
}

#[test]
fn a_scope_that_is_forgotten_keeps_its_pool_and_nothing_else() {
    let device = manual();
    let pool = small(&device).build().unwrap();
    let name = || current(&device).unwrap().pool().clone();
    thread::scope(|threads| {
        let forgets = || {
            std::mem::forget(Scope::pool(&pool).enter());
            assert_eq!(name(), pool);
        };
        threads.spawn(forgets).join().unwrap();
    });
    assert_eq!(name(), Pool::default_of(&device).unwrap());
}

/// What the inner future of a test saw: in the scope, or not, at each step.
struct Seen {
    device: SimDevice,
    pool: Pool,
    dropped_inside: Arc<AtomicBool>,
}

impl Seen {
    fn is_inside(&self) -> bool {
        current(&self.device).unwrap().pool() == &self.pool
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.dropped_inside
            .store(self.is_inside(), Ordering::SeqCst);
    }
}

fn seen() -> (SimDevice, Scope, Seen, Arc<AtomicBool>) {
    let device = manual();
    let pool = small(&device).build().unwrap();
    let dropped_inside = Arc::<AtomicBool>::default();
    let seen = Seen {
        device: device.clone(),
        pool: pool.clone(),
        dropped_inside: dropped_inside.clone(),
    };
    (device, Scope::pool(&pool), seen, dropped_inside)
}

/// Pending at the first poll.
async fn pending_once() {
    let mut was_pending = false;
    poll_fn(|_| {
        if std::mem::replace(&mut was_pending, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

fn is_default(device: &SimDevice) -> bool {
    *current(device).unwrap().pool() == Pool::default_of(device).unwrap()
}

#[test]
fn a_task_is_in_its_scope_at_every_poll_and_out_of_it_between() {
    let (device, scope, seen, dropped_inside) = seen();
    let mut task = Box::pin(scope.run(async move {
        for _ in 0..3 {
            assert!(seen.is_inside());
            pending_once().await;
        }
        drop(seen);
    }));
    for _ in 0..3 {
        assert!(poll(&mut task).is_pending());
        assert!(is_default(&device));
    }
    assert!(poll(&mut task).is_ready());
    assert!(is_default(&device));
    assert!(dropped_inside.load(Ordering::SeqCst));
}

#[test]
fn a_task_that_is_cancelled_is_dropped_in_its_scope() {
    let (device, scope, seen, dropped_inside) = seen();
    let loses = pin!(scope.run(async move {
        assert!(seen.is_inside());
        pending::<()>().await;
        drop(seen);
    }));
    let wins = pin!(async { assert!(is_default(&device)) });
    // Both are polled; one is dropped with the selection.
    match now(select(loses, wins)) {
        Either::Left(_) => panic!("it never ends"),
        Either::Right(((), _)) => {}
    }
    assert!(is_default(&device));
    assert!(
        !dropped_inside.load(Ordering::SeqCst),
        "it is pinned here still"
    );
}

#[test]
fn dropping_a_task_enters_its_scope_once_more() {
    let (device, scope, seen, dropped_inside) = seen();
    let mut task = Box::pin(scope.run(async move {
        pending::<()>().await;
        drop(seen);
    }));
    assert!(poll(&mut task).is_pending());
    drop(task);
    assert!(dropped_inside.load(Ordering::SeqCst));
    assert!(is_default(&device));
}

#[test]
fn a_task_that_panics_leaves_its_scope() {
    let (device, scope, seen, dropped_inside) = seen();
    let mut task = Box::pin(scope.run(async move {
        assert!(seen.is_inside());
        panic!("a panic that was asked for");
    }));
    let polled = catch_unwind(AssertUnwindSafe(|| poll::<_>(&mut task)));
    assert!(polled.is_err());
    assert!(is_default(&device));
    assert!(dropped_inside.load(Ordering::SeqCst));
}

#[test]
fn an_error_on_its_way_out_leaves_the_scope() {
    let device = manual();
    let pool = small(&device).build().unwrap();
    let work = device.create_stream();
    let task = Scope::pool(&pool).run(async {
        let block = current(&device)?.allocate(&work, 9 * MIB).await?;
        drop(block);
        Ok::<(), Box<dyn std::error::Error>>(())
    });
    let error = now(task).unwrap_err();
    assert!(error.to_string().contains("can never fit"), "{error}");
    assert!(is_default(&device));
}

#[test]
fn tasks_of_one_thread_do_not_meet_in_their_scopes() {
    let device = SimDevice::new();
    let all: Vec<_> = (0..3).map(|_| small(&device).build().unwrap()).collect();
    let mine = |pool: &Pool| {
        let (device, pool, work) = (device.clone(), pool.clone(), device.create_stream());
        Scope::pool(&pool.clone()).run(async move {
            for _ in 0..10 {
                let here = current(&device).unwrap();
                // All of it, behind work: whoever comes second waits, and is polled in between.
                let block = here.allocate(&work, 8 * MIB).await.unwrap();
                assert_eq!(pool_of(block.address()).unwrap().0, pool);
                use_block(&work, &block, us(3));
                drop(block);
                device.sleep(us(1)).await;
            }
        })
    };
    device.run(|spawner| {
        let tasks = all.iter().flat_map(|pool| [mine(pool), mine(pool)]);
        let tasks: Vec<_> = tasks
            .map(|task| spawner.spawn_local_with_handle(task).unwrap())
            .collect();
        async move { drop(join_all(tasks).await) }
    });
    assert!(is_default(&device));
}

#[test]
#[should_panic(expected = "polled after it was ready")]
fn a_scoped_future_is_ready_once() {
    let device = manual();
    let mut task = Box::pin(Scope::pooling(&device, Pooling::Disabled).run(async {}));
    assert!(poll(&mut task).is_ready());
    let _ = poll(&mut task);
}

// ---- without pooling -------------------------------------------------------------------------------

fn unpooled(device: &SimDevice) -> Pool {
    let builder = Pool::builder(device.clone()).capacity(8 * MIB);
    builder.unpooled().build().unwrap()
}

#[test]
fn every_allocation_is_the_devices_own() {
    let device = manual();
    let pool = unpooled(&device);
    assert!(
        pool.describe().contains("not pooled"),
        "{}",
        pool.describe()
    );
    let (work, home) = stream(&device, &pool);
    for round in 1..=5 {
        let block = pool.try_allocate(&home, 4096).unwrap();
        assert_eq!(block.size(), 2 * MIB, "what the device gives at the least");
        assert_eq!(device.counters().calls(Call::Allocate), round);
        use_block(&work, &block, us(10));
        drop(block);
        assert_eq!(device.counters().physical_in_use, 2 * MIB, "its work runs");
        device.advance(us(10));
        // The device was told to say when, and nobody had to ask.
        assert_eq!(device.counters().physical_in_use, 0);
        assert_eq!(device.counters().calls(Call::Free), round);
    }
    assert_eq!(pool.statistics().reserved.current, 0);
    pool.check_conserved().unwrap();
}

#[test]
fn what_is_used_on_several_streams_goes_back_after_all_of_them() {
    let device = manual();
    let pool = unpooled(&device);
    let ((one, home), (other, further)) = (stream(&device, &pool), stream(&device, &pool));
    let block = pool.try_allocate(&home, MIB).unwrap();
    use_block(&one, &block, us(10));
    further.wait(&home.event().unwrap()).unwrap();
    block.used_on(&further).unwrap();
    use_block(&other, &block, us(20));
    drop(block);
    device.advance(us(29));
    assert_eq!(device.counters().physical_in_use, 2 * MIB);
    device.advance(us(1));
    assert_eq!(device.counters().physical_in_use, 0);
    device.assert_ordered();
}

#[test]
fn who_waits_for_unpooled_memory_is_served_when_it_came_back() {
    for blocking in [false, true] {
        let device = SimDevice::builder().blocking_memory_calls(blocking).build();
        let pool = unpooled(&device);
        device.run(|spawner| {
            let tasks = (0..6).map(|_| {
                let (pool, device) = (pool.clone(), device.clone());
                let (work, home) = stream(&device, &pool);
                let task = async move {
                    for _ in 0..4 {
                        let block = pool.allocate(&home, 5 * MIB).await.unwrap();
                        use_block(&work, &block, us(7));
                        drop(block);
                    }
                    home.synchronize().await.unwrap();
                };
                spawner.spawn_local_with_handle(task).unwrap()
            });
            join_all(tasks.collect::<Vec<_>>())
        });
        assert_eq!(device.counters().calls(Call::Allocate), 24);
        eventually(|| device.counters().physical_in_use == 0);
        assert_eq!(pool.statistics().waits.waiting, 0);
        pool.check_conserved().unwrap();
    }
}

#[test]
fn unpooled_blocks_outlive_their_pool() {
    let device = manual();
    let pool = unpooled(&device);
    let (work, home) = stream(&device, &pool);
    let blocks = [MIB, 4 * MIB].map(|bytes| pool.try_allocate(&home, bytes).unwrap());
    run(&work, us(10));
    let [one, other] = blocks;
    drop(one);
    drop((pool, home));
    drop(other);
    assert_eq!(device.counters().physical_in_use, 6 * MIB);
    device.advance(us(10));
    assert_eq!(device.counters().physical_in_use, 0);
    drop(work);
    let left = |make, destroy| device.counters().calls(make) - device.counters().calls(destroy);
    eventually(|| left(Call::CreateEvent, Call::DestroyEvent) == 0);
}

#[test]
fn memory_that_the_device_did_not_take_back_is_offered_again() {
    let device = manual();
    let pool = unpooled(&device);
    let (_work, home) = stream(&device, &pool);
    let block = pool.try_allocate(&home, MIB).unwrap();
    device.fail_next(Call::Free, DeviceErrorKind::Other);
    drop(block);
    assert_eq!(device.counters().physical_in_use, 2 * MIB);
    pool.check_conserved().unwrap();
    // And it is not granted again.
    let block = pool.try_allocate(&home, MIB).unwrap();
    assert_eq!(device.counters().calls(Call::Allocate), 2);
    drop(block);
    assert_eq!(device.counters().physical_in_use, 0);
}

#[test]
fn a_device_that_breaks_ends_the_returning() {
    let device = manual();
    let pool = unpooled(&device);
    let (work, home) = stream(&device, &pool);
    let block = pool.try_allocate(&home, MIB).unwrap();
    run(&work, us(10));
    drop(block);
    device.break_device("gone");
    assert!(matches!(
        pool.try_allocate(&home, MIB),
        Err(AllocError::Device(error)) if error.is_sticky()
    ));
    assert_eq!(
        device.counters().physical_in_use,
        2 * MIB,
        "leaked: nobody can tell"
    );
}

#[test]
fn an_event_that_says_nothing_keeps_memory_until_a_later_one_does() {
    let device = manual();
    let pool = unpooled(&device);
    let (_work, home) = stream(&device, &pool);
    let block = pool.try_allocate(&home, MIB).unwrap();
    device.script(Call::Record, 1, Fault::Reports(DeviceErrorKind::Other));
    drop(block);
    assert_eq!(device.counters().physical_in_use, 2 * MIB);
    drop(pool.try_allocate(&home, MIB).unwrap());
    assert_eq!(device.counters().physical_in_use, 0);
}

#[test]
fn switched_off_for_a_device_and_on_again() {
    let device = manual();
    let work = device.create_stream();
    assert_eq!(Current::pooling(&device), Pooling::Enabled);
    assert!(
        device.describe().ends_with("pooling enabled"),
        "{}",
        device.describe()
    );
    let kept = current(&device).unwrap().try_allocate(&work, MIB).unwrap();
    assert_eq!(
        Current::set_pooling(&device, Pooling::Disabled),
        Pooling::Enabled
    );
    assert!(
        device.describe().ends_with("pooling disabled"),
        "{}",
        device.describe()
    );
    let direct = current(&device).unwrap().try_allocate(&work, MIB).unwrap();
    let owners = [&kept, &direct].map(|block| pool_of(block.address()).unwrap().0.is_pooled());
    assert_eq!(owners, [true, false]);
    assert_eq!(
        Current::set_pooling(&device, Pooling::Enabled),
        Pooling::Disabled
    );
    drop((kept, direct));
    let again = current(&device).unwrap();
    assert!(again.pool().is_pooled());
    assert!(
        again.pool().statistics().reserved.current > 0,
        "what was freed is kept"
    );
}

// ---- upstreams -------------------------------------------------------------------------------------

#[test]
fn each_upstream_takes_its_kind_of_memory() {
    let device = SimDevice::builder()
        .memory(64 * MIB)
        .host_memory(32 * MIB)
        .clock(Clock::Manual)
        .build();
    for (upstream, call) in [
        (Upstream::Virtual, Call::Create),
        (Upstream::Device, Call::Allocate),
        (Upstream::Pinned, Call::Allocate),
        (Upstream::Managed, Call::Allocate),
        (Upstream::Host, Call::Allocate),
    ] {
        let kind = upstream.kind();
        let pool = Pool::builder(device.clone())
            .upstream(upstream)
            .build()
            .unwrap();
        assert_eq!(pool.memory_kind(), kind);
        let of_host = matches!(kind, MemoryKind::Pinned | MemoryKind::Host);
        assert_eq!(pool.capacity(), if of_host { 32 * MIB } else { 64 * MIB });
        let calls = device.counters().calls(call);
        let free = device.memory_info(kind).unwrap().free;
        let home = if kind == MemoryKind::Host {
            pool.host_stream().unwrap()
        } else {
            stream(&device, &pool).1
        };
        let block = pool.try_allocate(&home, 4 * MIB).unwrap();
        assert!(device.counters().calls(call) > calls, "{upstream}");
        let taken = free - device.memory_info(kind).unwrap().free;
        assert_eq!(taken, pool.statistics().reserved.current);
        let host_sees = device.host_write(block.address(), b"weir").is_ok();
        assert_eq!(host_sees, kind != MemoryKind::Device);
        drop((block, home));
        drop(pool);
        eventually(|| device.memory_info(kind).unwrap().free == free);
    }
}

#[test]
fn a_kind_that_is_lacking_is_refused_by_the_call_and_by_the_builder() {
    for kind in [MemoryKind::Pinned, MemoryKind::Managed, MemoryKind::Host] {
        let device = SimDevice::builder().without(kind).build();
        let refused = device.allocate(kind, 2 * MIB).unwrap_err();
        assert_eq!(refused.kind(), DeviceErrorKind::Unsupported);
        assert!(refused.reason().contains(kind.name()), "{refused}");
        assert!(device.memory_info(kind).is_err());
        let others = MemoryKinds::ALL.without(kind).to_string();
        let line = device.describe();
        assert!(line.contains(&format!("waits, {others}; ")), "{line}");
    }
}

#[test]
fn memory_of_one_kind_is_not_given_back_as_another() {
    let device = SimDevice::new();
    let address = device.allocate(MemoryKind::Managed, 2 * MIB).unwrap();
    let refused = device
        .free(MemoryKind::Pinned, address, 2 * MIB)
        .unwrap_err();
    assert_eq!(refused.kind(), DeviceErrorKind::InvalidArgument);
    device.free(MemoryKind::Managed, address, 2 * MIB).unwrap();
}

#[test]
fn work_of_the_device_that_touches_host_memory_breaks_it() {
    let device = manual();
    let address = device.allocate(MemoryKind::Host, 2 * MIB).unwrap();
    let work = device.create_stream();
    work.submit(Operation::new(us(1)).run(move |memory| memory.write(address, b"weir")));
    device.advance(us(1));
    let error = device.create_event().unwrap_err();
    assert!(error.is_sticky());
    assert!(error.reason().contains("host memory"), "{error}");
}

// ---- the host as a stream --------------------------------------------------------------------------

/// Collects what the ordering checker finds in memory that is shared.
fn shared_and_collected() -> (SimDevice, Pool) {
    let device = SimDevice::builder()
        .clock(Clock::Manual)
        .checker(Checker::Collect)
        .build();
    let pool = small(&device).upstream(Upstream::Managed).build().unwrap();
    (device, pool)
}

#[test]
fn the_checker_holds_the_host_to_its_order() {
    let (device, pool) = shared_and_collected();
    let (work, home) = stream(&device, &pool);
    let block = pool.try_allocate(&home, 4096).unwrap();
    let address = block.address();
    use_block(&work, &block, us(10));
    device.host_read(address, &mut [0; 8]).unwrap();
    let [race] = &device.violations()[..] else {
        panic!("a read of the host beside a write of the device");
    };
    assert_eq!(race.kind, ViolationKind::Race);
    let later = race.later.as_ref().unwrap();
    assert_eq!(later.stream, RawStream::HOST);
    assert!(race.to_string().contains("reads on the host"), "{race}");
    use_block(&work, &block, us(10));
    device.advance(us(20));
    // That time went by is no order; that the event is complete is.
    device.host_write(address, &[1; 8]).unwrap();
    assert_eq!(device.violations().len(), 1);
    use_block(&work, &block, us(10));
    device.advance(us(10));
    assert!(home.event().unwrap().is_complete().unwrap());
    device.host_write(address, &[2; 8]).unwrap();
    // What the device is given now comes after what the host did.
    use_block(&work, &block, us(10));
    assert!(device.violations().is_empty());
}

#[test]
fn the_checker_sees_a_use_by_the_host_after_the_free() {
    let (device, pool) = shared_and_collected();
    let host = pool.host_stream().unwrap();
    let block = pool.try_allocate(&host, 4096).unwrap();
    let address = block.address();
    device.host_fill(address, 4096, 7).unwrap();
    drop(block);
    device.host_read(address, &mut [0; 8]).unwrap();
    let [found] = &device.violations()[..] else {
        panic!("a use of what was freed");
    };
    assert_eq!(found.kind, ViolationKind::UseAfterFree);
}

#[test]
fn the_checker_sees_a_free_by_the_host_of_what_the_device_uses() {
    let (device, pool) = shared_and_collected();
    let host = pool.host_stream().unwrap();
    let (work, _home) = stream(&device, &pool);
    let block = pool.try_allocate(&host, 4096).unwrap();
    use_block(&work, &block, us(10));
    drop(block);
    let [found] = &device.violations()[..] else {
        panic!("nobody said that the device uses it");
    };
    assert_eq!(found.kind, ViolationKind::FreedWhileUsed);
    assert!(
        found.to_string().contains("in the order of the host"),
        "{found}"
    );
}

#[test]
fn the_hosts_streams_come_and_go() {
    let (device, pool) = shared_and_collected();
    for _ in 0..50 {
        let host = pool.host_stream().unwrap();
        let block = pool.try_allocate(&host, 4096).unwrap();
        drop(host);
        device.host_fill(block.address(), 4096, 1).unwrap();
    }
    // Each was seen off by the next, with what it kept.
    let statistics = pool.statistics();
    assert_eq!((statistics.kept_by_lanes, statistics.used.current), (0, 0));
    let all = pool.host_stream().unwrap();
    drop(pool.try_allocate(&all, 8 * MIB).unwrap());
    assert!(device.violations().is_empty());
    pool.check_conserved().unwrap();
}

#[test]
fn the_host_waits_in_the_queue_as_any_stream() {
    let (device, pool) = shared_and_collected();
    let host = pool.host_stream().unwrap();
    let (work, home) = stream(&device, &pool);
    let all = pool.try_allocate(&home, 8 * MIB).unwrap();
    run(&work, us(10));
    let (_, waker) = Count::new();
    let mut waiting = pool.allocate(&host, MIB);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    drop(all);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    device.advance(us(10));
    assert!(poll_with(&mut waiting, &waker).is_ready());
}

// ---- growth, alignment, nonsense -------------------------------------------------------------------

fn growing(virtual_memory: bool, growth: GrowBy) -> (SimDevice, PoolBuilder) {
    let device = SimDevice::builder()
        .clock(Clock::Manual)
        .virtual_memory(virtual_memory)
        .build();
    let builder = common::builder(&device, 64 * MIB).growth(growth);
    (device, builder)
}

#[test]
fn a_pool_grows_by_what_it_is_told() {
    for virtual_memory in [true, false] {
        let reserved = |growth, initial, asked: &[u64]| {
            let (device, builder) = growing(virtual_memory, growth);
            let pool = builder.initial_size(initial).build().unwrap();
            assert_eq!(pool.statistics().reserved.current, initial);
            let (_work, home) = stream(&device, &pool);
            let take = |bytes: &u64| pool.try_allocate(&home, *bytes).unwrap();
            let blocks: Vec<_> = asked.iter().map(take).collect();
            let reserved = pool.statistics().reserved.current;
            assert_eq!(reserved, device.counters().physical_in_use);
            drop(blocks);
            pool.check_conserved().unwrap();
            reserved / MIB
        };
        let by = GrowBy::AtLeast(10 * MIB);
        assert_eq!(reserved(GrowBy::Handles, 0, &[MIB]), 2);
        assert_eq!(reserved(GrowBy::Handles, 4 * MIB, &[4 * MIB, MIB]), 6);
        assert_eq!(reserved(by, 0, &[MIB]), 10);
        assert_eq!(reserved(by, 4 * MIB, &[4 * MIB, MIB]), 14);
        assert_eq!(reserved(by, 0, &[12 * MIB]), 12);
        assert_eq!(reserved(by, 0, &[10 * MIB, MIB]), 20);
        assert_eq!(reserved(GrowBy::Factor(2.0), 8 * MIB, &[8 * MIB, MIB]), 16);
        assert_eq!(
            reserved(GrowBy::Factor(1.5), 8 * MIB, &[8 * MIB, 6 * MIB]),
            14
        );
        // Never over the capacity.
        assert_eq!(reserved(by, 60 * MIB, &[60 * MIB, MIB]), 64);
        assert_eq!(
            reserved(GrowBy::Factor(100.0), 2 * MIB, &[2 * MIB, MIB]),
            64
        );
    }
}

#[test]
fn what_is_taken_ahead_serves_the_next_with_no_call() {
    let (device, builder) = growing(true, GrowBy::AtLeast(16 * MIB));
    let pool = builder.build().unwrap();
    let (_work, home) = stream(&device, &pool);
    let first = pool.try_allocate(&home, 3 * MIB).unwrap();
    let calls = device.counters().calls(Call::Create);
    let rest: Vec<_> = (0..13)
        .map(|_| pool.try_allocate(&home, MIB).unwrap())
        .collect();
    assert_eq!(device.counters().calls(Call::Create), calls);
    drop((first, rest));
    pool.check_conserved().unwrap();
}

#[test]
fn growing_ahead_is_a_wish() {
    let (device, builder) = growing(true, GrowBy::AtLeast(16 * MIB));
    let pool = builder.build().unwrap();
    let (_work, home) = stream(&device, &pool);
    // The first handle is the request's, the third one of those that come on top.
    device.script(Call::Create, 3, Fault::Fails(DeviceErrorKind::OutOfMemory));
    let block = pool.try_allocate(&home, MIB).unwrap();
    assert_eq!(pool.statistics().reserved.current, 4 * MIB);
    assert_eq!(device.counters().physical_in_use, 4 * MIB);
    drop(block);
    pool.check_conserved().unwrap();
}

#[test]
fn every_block_has_the_alignment_of_its_pool() {
    let device = manual();
    for alignment in [1, 512, 4096, 65536, 2 * MIB] {
        let pool = common::builder(&device, 64 * MIB)
            .alignment(alignment)
            .build()
            .unwrap();
        let (_work, home) = stream(&device, &pool);
        let step = alignment.max(512);
        for bytes in [1, 700, 5000, 100_000] {
            let blocks: Vec<_> = (0..4)
                .map(|_| pool.try_allocate(&home, bytes).unwrap())
                .collect();
            for block in &blocks {
                assert!(block.address().is_aligned_to(step) && block.size() % step == 0);
                assert!(
                    block.size() - bytes < step,
                    "rounded to the step, and no further"
                );
            }
            drop(blocks);
            // From the lane, which keeps them by their size alone.
            let again = pool.try_allocate(&home, bytes).unwrap();
            assert_eq!(
                again.rung() == weirpool::Rung::Lane,
                again.size() <= 2 * MIB
            );
            assert!(again.address().is_aligned_to(step));
        }
        pool.check_conserved().unwrap();
    }
}

#[test]
fn one_allocation_may_ask_for_more_than_its_pool() {
    let device = manual();
    let pool = common::builder(&device, 64 * MIB)
        .alignment(4096)
        .build()
        .unwrap();
    let (_work, home) = stream(&device, &pool);
    let _shifts = pool.try_allocate(&home, 1).unwrap();
    let block = now(pool.allocate(&home, 1).alignment(1 << 16)).unwrap();
    assert!(block.address().is_aligned_to(1 << 16));
    assert_eq!(block.size(), 4096);
    let least = pool.try_allocate_aligned(&home, 1, 16).unwrap();
    assert!(least.address().is_aligned_to(4096));
}

#[test]
fn nonsense_is_refused_by_name() {
    let device = manual();
    let build = |set: &dyn Fn(PoolBuilder) -> PoolBuilder| {
        let builder = Pool::builder(device.clone()).capacity(8 * MIB);
        set(builder).build().map(drop).unwrap_err()
    };
    for alignment in [0, 3, 768, 4 * MIB] {
        let refused = build(&|builder| builder.alignment(alignment));
        let largest = 2 * MIB;
        assert_eq!(refused, BuildError::InvalidAlignment { alignment, largest });
    }
    for growth in [
        GrowBy::AtLeast(0),
        GrowBy::AtLeast(9 * MIB),
        GrowBy::Factor(1.0),
        GrowBy::Factor(-2.0),
        GrowBy::Factor(f64::NAN),
    ] {
        let refused = build(&|builder| builder.growth(growth));
        assert!(
            matches!(refused, BuildError::InvalidGrowth { .. }),
            "{growth:?}"
        );
    }
    let conflicts: [(&str, &dyn Fn(PoolBuilder) -> PoolBuilder); 4] = [
        ("initial_size", &|builder| builder.initial_size(MIB)),
        ("growth", &|builder| builder.growth(GrowBy::Factor(2.0))),
        ("handle_bytes", &|builder| builder.handle_bytes(2 * MIB)),
        ("coalesce", &|builder| {
            builder.coalesce(CoalesceHeuristic::blocks_releasable(1))
        }),
    ];
    for (one, set) in conflicts {
        let refused = build(&|builder| set(builder.unpooled()));
        let other = "unpooled";
        assert_eq!(refused, BuildError::Conflict { one, other });
    }
    let before = device.counters().calls(Call::Reserve);
    assert_eq!(before, 0, "none of it cost the device anything");
}

// ---- a waiter sleeps -------------------------------------------------------------------------------

/// Where memory is plain, who waits looks for segments to give back at every poll, and must not be woken by
/// having looked.
#[test]
fn who_waits_for_plain_memory_does_not_wake_itself() {
    let device = SimDevice::builder()
        .clock(Clock::Manual)
        .virtual_memory(false)
        .build();
    let pool = small(&device).build().unwrap();
    let (_work, home) = stream(&device, &pool);
    let all = pool.try_allocate(&home, 8 * MIB).unwrap();
    let (woken, waker) = Count::new();
    let mut waiting = pin!(pool.allocate(&home, MIB));
    for _ in 0..3 {
        let polled = waiting.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
    assert_eq!(woken.get(), 0);
    drop(all);
    assert!(woken.get() > 0);
    let polled = waiting.poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_ready());
}
