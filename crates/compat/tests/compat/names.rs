//! Found by name.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use weirpool::BuildError;
use weirpool::device::sim::Call;
use weirpool::device::{Device, DeviceErrorKind};
use weirpool_compat::{find_pool, pool_of};

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
        Err(BuildError::EmptyName)
    ));
    assert_eq!(device.counters().device_calls, before);
    // One that fails for another reason leaves its name free.
    device
        .faults()
        .fail_next(Call::Reserve, DeviceErrorKind::Other);
    assert!(small(&device).name("unlucky").build().is_err());
    assert!(small(&device).name("unlucky").build().is_ok());
}

#[test]
fn one_of_the_threads_that_want_a_name_has_it() {
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
        // A thread that looks for the pool holds it for a moment, and may be the one that ends it.
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
    let mine = |pool: &Pool| pool.device().id() == device.id();
    let (one, two) = (
        small(&device).build().unwrap(),
        small(&device).build().unwrap(),
    );
    let listed: Vec<_> = Pool::all()
        .collect::<Vec<_>>()
        .into_iter()
        .filter(mine)
        .collect();
    assert_eq!(listed, [one.clone(), two.clone()]);
    drop((listed, one));
    eventually(|| {
        Pool::all()
            .collect::<Vec<_>>()
            .into_iter()
            .filter(mine)
            .eq([two.clone()])
    });
}

/// An empty name is an error of its own: no pool has taken it.
#[test]
fn empty_name_is_refused_as_empty() {
    let refused = Pool::builder(SimDevice::new()).name("").build();
    assert_eq!(refused.unwrap_err(), BuildError::EmptyName);
}
