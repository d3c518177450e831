//! How a mistake is raised: which call panics, and when.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

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
fn submission_panics_and_is_submitted_all_the_same() {
    let world = World::panicking();
    let block = world.written(0, MIB);
    until_freed(&world.stream[1], &block);
    let message = panic_of(|| world.read(1, &block)).unwrap();
    assert!(message.contains("nothing orders them"), "{message}");
    assert_eq!(world.work[1].backlog(), 1);
    drop(block);
    assert_eq!(world.only().kind, ViolationKind::Race);
    world.assert_silent();
}

#[test]
fn explicit_free_panics_and_frees_all_the_same() {
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
    assert_eq!(world.only().kind, ViolationKind::FreedWhileUsed);
    world.assert_silent();
    world.pool.inspect().check_conserved().unwrap();
}

#[test]
fn drop_does_not_panic_and_the_next_call_does() {
    type Next = fn(&World);
    let next: [Next; 5] = [
        |world| run(&world.work[0], us(1)),
        |world| world.device.advance(us(1)),
        |world| drop(world.allocate(0, 512)),
        |world| world.device.advance_to_end(),
        |world| world.device.block_on(async {}),
    ];
    for next in next {
        let world = World::panicking();
        let block = world.allocate(0, MIB);
        world.write(1, &block);
        drop(block);
        assert!(panic_of(|| next(&world)).is_some());
        assert!(panic_of(|| world.device.assert_ordered()).is_some());
        world.assert_silent();
        world.pool.inspect().check_conserved().unwrap();
    }
}

/// The panic is in the poll of a future, whose frames are the pool's.
#[test]
fn violation_in_a_poll_names_the_call_that_made_the_future() {
    let world = World::panicking();
    let block = world.allocate(0, MIB);
    world.write(1, &block);
    drop(block);
    let line = line!() + 1;
    let request = world.pool.allocate(&world.stream[0], 512).into_future();
    let mut request = std::pin::pin!(request);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let message = panic_of(|| assert!(request.as_mut().poll(&mut context).is_ready())).unwrap();
    let call = format!("raised by:    the call at {}:{line}:", file!());
    assert!(message.contains(&call), "{message}");
    assert_eq!(world.only().kind, ViolationKind::FreedWhileUsed);
}

#[test]
fn blocks_that_were_not_given_back_are_named_with_their_locations() {
    let world = World::panicking();
    let (large, line) = (world.pool.try_allocate(&world.stream[0], MIB), line!());
    let large = large.unwrap();
    let reservation = world.pool.reserve(4 * MIB).try_now().unwrap();
    let error = world.pool.inspect().check_conserved().unwrap_err();
    let named = error
        .lines()
        .find(|text| text.contains(&format!("{:#x}", large.address())));
    let named = named.unwrap_or_else(|| panic!("{error}"));
    for part in ["1.0 MiB", "used", &format!("at {}:{line}:", file!())] {
        assert!(named.contains(part), "{part} in {error}");
    }
    assert!(error.contains("4.0 MiB reserved"), "{error}");
    drop((large, reservation));
    world.pool.inspect().check_conserved().unwrap();
}

/// A runtime catches the panic of a detached task.
#[test]
fn violation_in_a_detached_task_fails_the_test() {
    let world = World::panicking();
    let block = world.allocate(0, MIB);
    let (address, other) = (block.address(), world.work[1].clone());
    world.write(0, &block);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let race = Operation::new(us(1)).writes(address, 8);
        let task = tokio::spawn(async move { other.submit(race) });
        assert!(task.await.unwrap_err().is_panic());
    });
    let message = panic_of(|| world.device.assert_ordered()).unwrap();
    assert!(message.contains("nothing orders them"), "{message}");
    world.device.assert_ordered();
}

#[test]
fn violation_whose_panic_was_caught_fails_block_on() {
    let world = World::panicking();
    let block = world.written(0, MIB);
    let caught = async {
        let race = || world.read(1, &block);
        assert!(panic_of(race).is_some());
    };
    assert!(panic_of(|| world.device.block_on(caught)).is_some());
}

#[test]
fn checker_does_not_panic_while_panicking() {
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
fn checker_that_is_off_finds_nothing() {
    let device = device().checker(Checker::Off).build();
    assert!(device.block_observer().is_none());
    let world = World::over(device);
    let block = world.written(0, MIB);
    world.write(1, &block);
    drop(block);
    world.assert_silent();
}

/// A broken device runs nothing any more: there is nothing to order.
#[test]
fn broken_device_is_not_checked() {
    let world = World::panicking();
    let block = world.allocate(0, MIB);
    world.write(1, &block);
    world.device.faults().break_device("on purpose");
    drop(block.deallocate());
    world.device.assert_ordered();
}
