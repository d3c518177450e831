//! The current pool of threads and tasks, and how scopes end.

use super::*;
use futures::future::{Either, join_all, select};
use futures::task::LocalSpawnExt;
use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::thread;
use weirpool::device::Pooling;
use weirpool_compat::{Current, Scope, current, default_pool, pool_of};

#[test]
fn innermost_scope_of_each_device_applies() {
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
    assert_eq!(Current::pooling(&device), Pooling::Disabled);
    assert!(!here().inspect().describe().is_pooled);
    let pooled = Scope::pooling(&device, Pooling::Enabled).enter();
    assert_eq!(Current::pooling(&device), Pooling::Enabled);
    assert_eq!(here(), default_pool(&device).unwrap());
    // Scopes may be left in any order.
    drop(unpooled);
    assert_eq!(here(), default_pool(&device).unwrap());
    drop(pooled);
    assert_eq!(here(), two);
    drop(two_entered);
    assert_eq!(here(), one);
    // The setting of the process is the outermost scope.
    Current::set_pooling(&device, Pooling::Disabled);
    assert_eq!(here(), one);
    Current::set_pooling(&device, Pooling::Enabled);
}

#[test]
fn scope_applies_to_its_thread_only() {
    let device = manual();
    let pool = small(&device).build().unwrap();
    let scope = Scope::pool(&pool);
    let _entered = scope.enter();
    let elsewhere = thread::scope(|threads| {
        let ask = || current(&device).unwrap().pool().clone();
        threads.spawn(ask).join().unwrap()
    });
    assert_eq!(elsewhere, default_pool(&device).unwrap());
    assert_eq!(current(&device).unwrap().pool(), &pool);
}

#[test]
fn forgotten_scope_applies_to_its_thread_only() {
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
    assert_eq!(name(), default_pool(&device).unwrap());
}

/// A value that records whether it is inside the scope, and whether it was dropped there.
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

/// Is pending at the first poll.
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
    *current(device).unwrap().pool() == default_pool(device).unwrap()
}

#[test]
fn task_is_in_its_scope_only_while_it_is_polled() {
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
fn cancelled_task_is_dropped_in_its_scope() {
    let (device, scope, seen, dropped_inside) = seen();
    let loses = pin!(scope.run(async move {
        assert!(seen.is_inside());
        pending::<()>().await;
        drop(seen);
    }));
    let wins = pin!(async { assert!(is_default(&device)) });
    // Both are polled; the one that loses is dropped with the selection.
    match now(select(loses, wins)) {
        Either::Left(_) => panic!("it never ends"),
        Either::Right(((), _)) => {}
    }
    assert!(is_default(&device));
    assert!(
        !dropped_inside.load(Ordering::SeqCst),
        "it is still pinned here"
    );
}

#[test]
fn dropped_task_enters_its_scope_once_more() {
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
fn panicking_task_leaves_its_scope() {
    let (device, scope, seen, dropped_inside) = seen();
    let mut task = Box::pin(scope.run(async move {
        assert!(seen.is_inside());
        panic!("a deliberate panic");
    }));
    let polled = catch_unwind(AssertUnwindSafe(|| poll::<_>(&mut task)));
    assert!(polled.is_err());
    assert!(is_default(&device));
    assert!(dropped_inside.load(Ordering::SeqCst));
}

#[test]
fn error_leaves_the_scope() {
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
fn tasks_of_one_thread_have_separate_scopes() {
    let device = SimDevice::new();
    let all: Vec<_> = (0..3).map(|_| small(&device).build().unwrap()).collect();
    let mine = |pool: &Pool| {
        let (device, pool, work) = (device.clone(), pool.clone(), device.create_stream());
        Scope::pool(&pool.clone()).run(async move {
            for _ in 0..10 {
                let here = current(&device).unwrap();
                // Each task needs all memory, behind work, so the second one waits and is polled in between.
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
fn scoped_future_is_ready_once() {
    let device = manual();
    let mut task = Box::pin(Scope::pooling(&device, Pooling::Disabled).run(async {}));
    assert!(poll(&mut task).is_ready());
    let _ = poll(&mut task);
}
