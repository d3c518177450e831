//! The default pool of a device, and the current one.

use super::*;
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use weirpool::BuildError;
use weirpool::device::sim::Call;
use weirpool::device::{Device, DeviceErrorKind, DeviceStream};
use weirpool_compat::{Current, Scope, current, default_pool, find_pool};

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
        let ask = || default_pool(&device).unwrap();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(all.iter().all(|pool| *pool == all[0] && *pool != own));
    // Those that came second are gone.
    eventually(|| reserved() == 2);
    // It stays, though no handle of it is left.
    drop(all);
    let shared: Arc<dyn Device> = device.clone().into();
    let again = default_pool(&shared).unwrap();
    assert_eq!(reserved(), 2);
    assert_eq!(
        Pool::all()
            .collect::<Vec<_>>()
            .iter()
            .filter(|pool| **pool == again)
            .count(),
        1
    );
}

#[test]
fn a_default_pool_that_could_not_be_made_is_made_at_the_next_try() {
    let device = manual();
    device
        .faults()
        .fail_next(Call::Reserve, DeviceErrorKind::Other);
    assert!(matches!(current(&device), Err(BuildError::Device(_))));
    assert!(current(&device).is_ok());
}

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
        &default_pool(&device).unwrap()
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
    // One without handles is released when another comes, and its handle may be another's then.
    let (raw, destroyed) = (work.raw(), device.counters().calls(Call::DestroyStream));
    drop(work);
    assert_eq!(device.counters().calls(Call::DestroyStream), destroyed);
    here.stream(&device.create_stream()).unwrap();
    pool_reaped(here.pool());
    let next = device.create_stream();
    assert_eq!(next.raw(), raw, "the driver gives the handle again");
    assert_ne!(here.stream(&next).unwrap().id(), id);
}

fn pool_reaped(pool: &Pool) {
    pool.maintain().reap().unwrap();
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
    pool.inspect().check_conserved().unwrap();
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
