//! The ordering checker: each mistake is found and named, and nothing that is right is reported.

mod common;

use common::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use weirpool::device::sim::{
    Checker, Clock, Operation, SimBuilder, SimDevice, SimStream, Violation, ViolationKind,
};
use weirpool::device::{Device, DeviceAddress, DeviceStream, MemoryKind};
use weirpool::*;

fn device() -> SimBuilder {
    SimDevice::builder().memory(1 << 30).clock(Clock::Manual)
}

/// A device that collects, a pool of 16 MiB over it, and two streams.
struct World {
    device: SimDevice,
    pool: Pool,
    work: [SimStream; 2],
    stream: [Stream; 2],
}

impl World {
    fn new() -> Self {
        Self::over(device().checker(Checker::Collect).build())
    }

    fn panicking() -> Self {
        Self::over(device().build())
    }

    fn over(device: SimDevice) -> Self {
        let pool = pool(&device, 16 * MIB);
        let [(work_a, a), (work_b, b)] = [stream(&device, &pool), stream(&device, &pool)];
        Self {
            device,
            pool,
            work: [work_a, work_b],
            stream: [a, b],
        }
    }

    #[track_caller]
    fn allocate(&self, stream: usize, bytes: u64) -> Block {
        self.pool.try_allocate(&self.stream[stream], bytes).unwrap()
    }

    #[track_caller]
    fn write(&self, stream: usize, block: &Block) {
        let write = Operation::new(us(100)).named("write");
        self.work[stream].submit(write.writes(block.address(), block.size()));
    }

    #[track_caller]
    fn read(&self, stream: usize, block: &Block) {
        let read = Operation::new(us(100)).named("read");
        self.work[stream].submit(read.reads(block.address(), block.size()));
    }

    fn order(&self, before: usize, after: usize) {
        let event = self.stream[before].event().unwrap();
        self.stream[after].wait(&event).unwrap();
    }

    #[track_caller]
    fn only(&self) -> Violation {
        let mut found = self.device.violations();
        assert_eq!(found.len(), 1, "{found:#?}");
        found.remove(0)
    }

    #[track_caller]
    fn assert_silent(&self) {
        self.device.assert_ordered();
        self.device.advance(us(10_000));
        self.device.assert_ordered();
    }
}

fn lines(violation: &Violation) -> [Option<u32>; 4] {
    let memory = violation.memory.as_ref();
    let usage =
        |usage: &Option<weirpool::device::sim::Usage>| usage.as_ref().map(|u| u.place.line());
    [
        memory.map(|memory| memory.allocated.line()),
        usage(&violation.earlier),
        memory
            .and_then(|memory| memory.freed)
            .map(|place| place.line()),
        usage(&violation.later),
    ]
}

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

// ---- each kind --------------------------------------------------------------------------------

#[test]
fn a_use_after_the_free_names_all_places() {
    let world = World::new();
    let (block, allocated) = (world.allocate(0, MIB), line!());
    let (address, size) = (block.address(), block.size());
    let (used, last) = (world.write(0, &block), line!());
    let (freed, ended) = (block.deallocate(), line!());
    drop((used, freed));
    let (late, now) = (Operation::new(us(1)).named("late"), line!());
    world.work[0].submit(late.reads(address, size));
    let violation = world.only();
    assert_eq!(violation.kind, ViolationKind::UseAfterFree);
    assert_eq!(lines(&violation), [allocated, last, ended, now].map(Some));
    assert_eq!((violation.address, violation.bytes), (address, size));
    let text = violation.to_string();
    let file = file!();
    for words in [
        "used after its block was freed".to_owned(),
        format!("write ({file}:{last}"),
        format!("late ({file}:{now}"),
        format!("allocated at {file}:{allocated}"),
        format!("freed at {file}:{ended}"),
        "keep the block until then".to_owned(),
    ] {
        assert!(text.contains(&words), "{words:?} in {text}");
    }
}

#[test]
fn a_use_beside_a_block_was_never_allocated() {
    let world = World::new();
    let block = world.allocate(0, MIB);
    let beyond = Operation::new(us(1)).writes(block.address() + (block.size() - 8), 16);
    world.work[0].submit(beyond);
    let violation = world.only();
    assert_eq!(violation.kind, ViolationKind::NotAllocated);
    assert_eq!(violation.address, block.address() + block.size());
    assert_eq!(violation.bytes, 8);
    let beside = violation.memory.unwrap();
    assert_eq!(
        (beside.address, beside.freed_on.len()),
        (block.address(), 0)
    );
}

#[test]
fn a_missing_used_on_is_found_at_the_free() {
    let world = World::new();
    let (block, allocated) = (world.allocate(0, MIB), line!());
    world.write(0, &block);
    world.order(0, 1);
    let (used, last) = (world.read(1, &block), line!());
    drop((used, block));
    let violation = world.only();
    assert_eq!(violation.kind, ViolationKind::FreedWhileUsed);
    assert_eq!(lines(&violation), [Some(allocated), Some(last), None, None]);
    let memory = violation.memory.as_ref().unwrap();
    assert_eq!(memory.stream, world.work[0].raw());
    assert_eq!(memory.freed_on, [world.work[0].raw()]);
    assert_eq!(
        violation.earlier.as_ref().unwrap().stream,
        world.work[1].raw()
    );
    let text = violation.to_string();
    assert!(
        text.contains("say `block.used_on(&stream)` before"),
        "{text}"
    );
    assert!(text.contains(", dropped in the order of"), "{text}");
}

#[test]
fn a_use_before_the_grant_is_found_at_submission() {
    let world = World::new();
    let (earlier, allocated) = (world.allocate(0, MIB), line!());
    let (used, last) = (world.write(0, &earlier), line!());
    drop((used, earlier));
    // Of the same stream's lane: only that stream comes after the earlier use.
    let (block, next) = (world.allocate(0, MIB), line!());
    let (used, now) = (world.write(1, &block), line!());
    let violation = world.only();
    drop((used, block));
    assert_eq!(violation.kind, ViolationKind::UsedBeforeGrant);
    assert_eq!(
        lines(&violation),
        [Some(allocated), Some(last), None, Some(now)]
    );
    assert_eq!(violation.next.unwrap().allocated.line(), next);
    assert_eq!(
        world.only().kind,
        ViolationKind::FreedWhileUsed,
        "the second mistake"
    );
}

#[test]
fn a_missing_wait_is_a_race() {
    let world = World::new();
    let block = world.allocate(0, MIB);
    let (used, first) = (world.write(0, &block), line!());
    block.used_on(&world.stream[1]).unwrap();
    let (read, second) = (world.read(1, &block), line!());
    drop((used, read, block));
    let violation = world.only();
    assert_eq!(violation.kind, ViolationKind::Race);
    let [_, earlier, _, later] = lines(&violation);
    assert_eq!((earlier, later), (Some(first), Some(second)));
    assert!(violation.to_string().contains("stream.wait(&event)"));
}

/// What a pool would have to do wrong is done here by hand.
#[test]
fn a_pool_that_grants_too_early_is_found() {
    let device = device().checker(Checker::Collect).build();
    let (a, b) = (device.create_stream(), device.create_stream());
    let address = device.allocate(MemoryKind::Device, HANDLE).unwrap();
    let referee = device.referee().unwrap();
    let here = std::panic::Location::caller();
    referee.granted(address, 4096, a.raw(), here);
    a.submit(Operation::new(us(10)).writes(address, 4096));
    referee.freed(address, &[a.raw()], None);
    referee.granted(address + 512, 512, b.raw(), here);
    let found = device.violations();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].kind, ViolationKind::GrantedWhileUsed);
    assert_eq!(
        (found[0].address.to_bits(), found[0].bytes),
        (address + 512, 512)
    );
    referee.granted(address, 1024, a.raw(), here);
    let found = device.violations();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].kind, ViolationKind::GrantedTwice);
}

#[test]
fn memory_that_goes_away_under_work_is_found() {
    let device = device().checker(Checker::Collect).build();
    let work = device.create_stream();
    let address = device.allocate(MemoryKind::Device, HANDLE).unwrap();
    work.submit(Operation::new(us(10)).writes(address, 4096));
    device.free(MemoryKind::Device, address, HANDLE).unwrap();
    let found = device.violations();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].kind, ViolationKind::UnmappedWhileUsed);
}

// ---- what is right is silent --------------------------------------------------------------------

#[test]
fn used_on_and_a_wait_are_right() {
    let world = World::new();
    for _ in 0..10 {
        let block = world.allocate(0, MIB);
        world.write(0, &block);
        world.order(0, 1);
        block.used_on(&world.stream[1]).unwrap();
        world.read(1, &block);
        world.read(0, &block);
        drop(block);
    }
    world.assert_silent();
}

/// The further stream uses it first: nothing but `used_on` orders that after the earlier block.
#[test]
fn used_on_orders_after_the_grant() {
    let world = World::new();
    for bytes in [MIB, 8 * MIB, MIB] {
        let earlier = world.allocate(0, bytes);
        world.write(0, &earlier);
        drop(earlier);
        let block = world.allocate(0, bytes);
        block.used_on(&world.stream[1]).unwrap();
        world.write(1, &block);
        drop(block);
    }
    world.assert_silent();
}

#[test]
fn deallocate_on_is_right() {
    let world = World::new();
    for _ in 0..10 {
        let block = world.allocate(0, MIB);
        world.write(0, &block);
        world.order(0, 1);
        world.write(1, &block);
        drop(block.deallocate_on(&world.stream[1]).unwrap());
    }
    world.assert_silent();
}

#[test]
fn an_event_waited_for_before_the_free_is_right_without_used_on() {
    let world = World::new();
    for _ in 0..10 {
        let block = world.allocate(0, MIB);
        world.write(0, &block);
        world.order(0, 1);
        world.write(1, &block);
        world.order(1, 0);
        drop(block);
    }
    world.assert_silent();
}

#[test]
fn what_the_host_has_seen_complete_is_ordered() {
    let world = World::new();
    let block = world.allocate(0, MIB);
    world.write(0, &block);
    let done = world.stream[0].event().unwrap();
    world.device.advance(us(100));
    assert!(done.is_complete().unwrap());
    world.write(1, &block);
    world.device.advance(us(100));
    assert_eq!(world.work[1].backlog(), 0);
    drop(block);
    world.assert_silent();
}

/// On a clock that moves by itself: awaiting is seeing.
#[test]
fn synchronize_orders_what_follows() {
    let world = World::over(SimDevice::builder().build());
    let block = world.allocate(0, MIB);
    world.device.block_on(async {
        world.write(0, &block);
        world.stream[0].synchronize().await.unwrap();
        world.write(1, &block);
        world.stream[1].synchronize().await.unwrap();
    });
    drop(block);
    world.device.assert_ordered();
}

#[test]
fn a_watch_that_rang_is_seen() {
    let world = World::new();
    let block = world.allocate(0, MIB);
    world.write(1, &block);
    let event = world.device.create_event().unwrap();
    world.device.record(event, world.work[1].raw()).unwrap();
    world.device.watch(event, Waker::noop());
    world.device.advance(us(100));
    drop(block);
    world.assert_silent();
}

/// That time went by tells nobody anything.
#[test]
fn time_is_no_order() {
    let world = World::new();
    let block = world.allocate(0, MIB);
    world.write(0, &block);
    world.device.advance(us(1000));
    world.write(1, &block);
    assert_eq!(world.only().kind, ViolationKind::Race);
}

#[test]
fn a_flag_hand_shake_is_right() {
    let world = World::new();
    let [a, b] = &world.work;
    let (there, back) = (world.device.flag(), world.device.flag());
    let block = world.allocate(0, MIB);
    for round in 1..10 {
        // The waits come before the signals: what ends them is known later.
        b.wait_until(&there, round);
        world.write(1, &block);
        b.signal(&back, round);
        world.write(0, &block);
        a.signal(&there, round);
        a.wait_until(&back, round);
    }
    block.used_on(&world.stream[1]).unwrap();
    drop(block);
    world.assert_silent();
}

#[test]
fn a_flag_that_comes_too_early_is_no_order() {
    let world = World::new();
    let [a, b] = &world.work;
    let flag = world.device.flag();
    let block = world.allocate(0, MIB);
    block.used_on(&world.stream[1]).unwrap();
    b.wait_until(&flag, 1);
    world.read(1, &block);
    a.signal(&flag, 1);
    assert_eq!(world.device.violations(), []);
    world.write(0, &block);
    world.device.advance(us(1000));
    assert_eq!(world.only().kind, ViolationKind::Race);
}

#[test]
fn a_flag_between_host_and_device_orders() {
    let world = World::new();
    let [a, b] = &world.work;
    let (seen, go) = (world.device.flag(), world.device.flag());
    let block = world.allocate(0, MIB);
    block.used_on(&world.stream[1]).unwrap();
    b.wait_until(&go, 1);
    world.write(0, &block);
    a.signal(&seen, 1);
    world.device.advance(us(100));
    assert_eq!(seen.value(), 1);
    go.set(1);
    world.write(1, &block);
    drop(block);
    world.assert_silent();
}

/// An event carries what its stream waited for, flags included, to who waits for it.
#[test]
fn order_goes_on_through_a_third_stream() {
    let world = World::new();
    let (work_c, c) = stream(&world.device, &world.pool);
    let flag = world.device.flag();
    let block = world.allocate(0, MIB);
    block.used_on(&world.stream[1]).unwrap();
    work_c.wait_until(&flag, 1);
    world.stream[1].wait(&c.event().unwrap()).unwrap();
    world.write(0, &block);
    world.work[0].signal(&flag, 1);
    world.write(1, &block);
    drop(block);
    world.assert_silent();
}

/// Lane, ledger, steal by event, wait on the device, remapping: the pool orders all of them.
#[test]
fn every_way_of_reuse_is_right() {
    let world = World::panicking();
    let mut rungs = std::collections::HashSet::new();
    let mut random = fastrand::Rng::with_seed(3);
    for round in 0..4000 {
        let on = random.usize(..2);
        let bytes = if random.bool() {
            MIB
        } else {
            random.u64(1..9) * HANDLE
        };
        let Ok(block) = world.pool.try_allocate(&world.stream[on], bytes) else {
            world.device.advance(us(150));
            continue;
        };
        rungs.insert(block.rung());
        world.write(on, &block);
        match round % 16 {
            0 => world.order(on, 1 - on),
            5 => world.device.advance(us(1000)),
            _ => {}
        }
        drop(block);
    }
    world.assert_silent();
    assert_eq!(rungs.len(), Rung::ALL.len(), "{rungs:?}");
}

#[test]
fn remapped_memory_is_right() {
    let world = World::panicking();
    let mut blocks: Vec<_> = (0..8).map(|_| Some(world.allocate(0, HANDLE))).collect();
    for block in blocks.iter().flatten() {
        world.write(0, block);
    }
    blocks.iter_mut().step_by(2).for_each(|block| *block = None);
    world.device.advance(us(1000));
    let large = world.allocate(1, 8 * MIB);
    assert!(world.pool.statistics().remaps > 0);
    world.write(1, &large);
    drop((large, blocks));
    world.assert_silent();
}

/// Work without a pool is nobody's block; it may still race.
#[test]
fn memory_without_a_pool_is_not_missed() {
    let device = device().checker(Checker::Collect).build();
    let (a, b) = (device.create_stream(), device.create_stream());
    a.submit(Operation::new(us(1)).writes(1 << 60, 64));
    a.submit(Operation::new(us(1)).reads(1 << 60, 64));
    b.submit(Operation::new(us(1)).reads(1 << 50, 64));
    assert_eq!(device.violations(), []);
    b.submit(Operation::new(us(1)).reads(1 << 60, 64));
    let found = device.violations();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].kind, ViolationKind::Race);
}

/// A stream that bears the name of one that is gone does not come after that one's work.
#[test]
fn a_name_used_again_inherits_no_order() {
    let world = World::new();
    let block = world.allocate(0, MIB);
    for is_seen in [true, false] {
        let gone = world.device.create_stream();
        let name = gone.raw();
        let later = pool(&world.device, 2 * MIB);
        block.used_on(&world.stream[1]).unwrap();
        gone.submit(Operation::new(us(10)).writes(block.address(), 8));
        if is_seen {
            world.device.advance(us(10));
            assert_eq!(gone.backlog(), 0);
        }
        drop(gone);
        world.device.advance(us(10));
        let next = world.device.create_stream();
        assert_eq!(next.raw(), name);
        next.submit(Operation::new(us(10)).writes(block.address(), 8));
        assert_eq!(world.device.violations().is_empty(), is_seen);
        world.device.advance(us(10));
        assert_eq!(next.backlog(), 0);
        drop(later);
    }
}

// ---- how it is raised -----------------------------------------------------------------------------

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
    assert!(device.referee().is_none());
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

// ---- a service ------------------------------------------------------------------------------------

/// What a request forgets.
#[derive(Clone, Copy, PartialEq)]
enum Forgets {
    Nothing,
    UsedOn,
    Wait,
}

/// A service that decodes on its stream and copies out on another.
async fn request(pool: &Pool, work: &[SimStream; 2], stream: &[Stream; 2], forgets: Forgets) {
    let block = pool.allocate(&stream[0], 4 * MIB).await.unwrap();
    let (address, size) = (block.address(), block.size());
    let decode = Operation::new(us(80)).named("decode");
    work[0].submit(decode.writes(address, size));
    if forgets != Forgets::Wait {
        stream[1].wait(&stream[0].event().unwrap()).unwrap();
    }
    if forgets != Forgets::UsedOn {
        block.used_on(&stream[1]).unwrap();
    }
    let copy_out = Operation::new(us(30)).named("copy out");
    work[1].submit(copy_out.reads(address, size));
}

fn serve(forgets: Forgets) {
    let world = World::over(SimDevice::builder().build());
    let requests = (0..20).map(|n| {
        let forgets = if n == 13 { forgets } else { Forgets::Nothing };
        request(&world.pool, &world.work, &world.stream, forgets)
    });
    world.device.block_on(futures::future::join_all(requests));
    world.device.assert_ordered();
}

#[test]
fn a_careful_service_passes() {
    serve(Forgets::Nothing);
}

#[test]
#[should_panic(expected = "nothing orders a use of it before the free")]
fn a_service_with_a_missing_used_on_is_caught() {
    serve(Forgets::UsedOn);
}

#[test]
#[should_panic(expected = "two operations use the same bytes, and nothing orders them")]
fn a_service_with_a_missing_wait_is_caught() {
    serve(Forgets::Wait);
}

/// The places are the user's, whichever call allocates or frees.
#[test]
fn every_public_call_names_the_users_place() {
    let world = World::new();
    let (pool, stream) = (&world.pool, &world.stream[0]);
    let (other, further) = (&world.work[1], &world.stream[1]);
    let spoil = |address: DeviceAddress| other.submit(Operation::new(us(1)).writes(address, 8));
    let places = |world: &World| {
        let violation = world.only();
        let memory = violation.memory.unwrap();
        assert_eq!(memory.allocated.file(), file!());
        (
            memory.allocated.line(),
            memory.freed.map(|place| place.line()),
        )
    };

    let (block, line) = (now(pool.allocate(stream, 512)).unwrap(), line!());
    spoil(block.address());
    let (freed, end) = (block.deallocate(), line!());
    drop(freed);
    assert_eq!(places(&world), (line, Some(end)));

    let line = line!() + 1;
    let block = pool.try_allocate_aligned(stream, MIB, 4096).unwrap();
    spoil(block.address());
    drop(block);
    assert_eq!(places(&world), (line, None));

    let line = line!() + 1;
    let buffer = Buffer::<u8>::try_allocate(pool, stream, 5000).unwrap();
    spoil(buffer.address());
    let (freed, end) = (buffer.deallocate(), line!());
    drop(freed);
    assert_eq!(places(&world), (line, Some(end)));

    let (third, _) = common::stream(&world.device, pool);
    let line = line!() + 1;
    let buffer = now(Buffer::<u8>::allocate(pool, stream, 90_000)).unwrap();
    third.submit(Operation::new(us(1)).writes(buffer.address(), 8));
    let (freed, end) = (buffer.deallocate_on(further).unwrap(), line!());
    drop(freed);
    assert_eq!(places(&world), (line, Some(end)));
}
