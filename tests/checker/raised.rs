//! How a mistake is raised: who panics, and when.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use weirpool::testing::Invariants;

/// What a call panics with.
fn panic_of(call: impl FnOnce()) -> Option<String> {
    let payload = catch_unwind(AssertUnwindSafe(call)).err()?;
    Some(
        payload
            .downcast_ref::<String>()
            .cloned()
            .expect("a message"),
    )
}

#[test]
fn a_submission_panics_and_is_submitted_all_the_same() {
    let world = World::panicking();
    let block = world.allocate(0, MIB);
    world.write(0, &block);
    block.used_on(&world.stream[1]).unwrap();
    let message = panic_of(|| world.read(1, &block)).unwrap();
    assert!(message.contains("nothing orders them"), "{message}");
    assert_eq!(world.work[1].backlog(), 1);
    drop(block);
    world.assert_silent();
}

#[test]
fn an_explicit_free_panics_and_frees_all_the_same() {
    let world = World::panicking();
    let block = world.allocate(0, MIB);
    world.write(1, &block);
    let line = std::cell::Cell::new(0);
    let message = panic_of(|| {
        line.set(line!() + 1);
        drop(block.deallocate());
    });
    let message = message.unwrap();
    assert!(message.contains("freed at"), "{message}");
    assert!(
        message.contains(&format!("{}:{}", file!(), line.get())),
        "{message}"
    );
    world.assert_silent();
    world.pool.check_conserved().unwrap();
}

#[test]
fn a_drop_does_not_panic_and_the_next_call_does() {
    type Next = fn(&World);
    let next: [Next; 5] = [
        |world| run(&world.work[0], us(1)),
        |world| world.device.advance(us(1)),
        |world| drop(world.allocate(0, 512)),
        |world| world.device.assert_ordered(),
        |world| world.device.block_on(async {}),
    ];
    for next in next {
        let world = World::panicking();
        let block = world.allocate(0, MIB);
        world.write(1, &block);
        drop(block);
        assert!(panic_of(|| next(&world)).is_some());
        world.assert_silent();
        world.pool.check_conserved().unwrap();
    }
}

#[test]
fn nothing_panics_while_panicking() {
    let world = World::panicking();
    let message = catch_unwind(AssertUnwindSafe(|| {
        let block = world.allocate(0, MIB);
        world.write(1, &block);
        struct Careless<'a>(&'a World, Option<Block>);
        impl Drop for Careless<'_> {
            fn drop(&mut self) {
                drop(self.1.take().unwrap().deallocate());
                self.0.device.assert_ordered();
            }
        }
        let _careless = Careless(&world, Some(block));
        panic!("the first")
    }))
    .unwrap_err();
    assert_eq!(message.downcast_ref::<&str>(), Some(&"the first"));
    assert_eq!(world.only().kind, ViolationKind::FreedWhileUsed);
}

#[test]
fn switched_off_it_finds_nothing_and_no_pool_reports() {
    let device = device().checker(Checker::Off).build();
    assert!(device.block_observer().is_none());
    let world = World::over(device);
    let block = world.allocate(0, MIB);
    world.write(0, &block);
    world.write(1, &block);
    drop(block);
    world.assert_silent();
}

/// A broken device runs nothing any more: there is nothing to order.
#[test]
fn a_broken_device_is_not_judged() {
    let world = World::panicking();
    let block = world.allocate(0, MIB);
    world.write(1, &block);
    world.device.break_device("on purpose");
    drop(block.deallocate());
    world.device.assert_ordered();
}
