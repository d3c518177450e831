//! Each kind of mistake is found, and reported with the user's locations.

use super::*;
use weirpool::device::{Argument, DeviceAddress, MemoryKind};

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

#[test]
fn use_after_free_reports_all_locations() {
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
fn use_beside_a_block_is_not_allocated() {
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
fn missing_used_on_is_found_at_the_free() {
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
    assert_eq!(memory.stream, world.work[0].label());
    assert_eq!(memory.freed_on, [world.work[0].label()]);
    assert_eq!(
        violation.earlier.as_ref().unwrap().stream,
        world.work[1].label()
    );
    let text = violation.to_string();
    assert!(
        text.contains("call `stream.record_use(&block)` before it"),
        "{text}"
    );
    assert!(text.contains(", dropped in the order of"), "{text}");
}

#[test]
fn use_before_the_grant_is_found_at_submission() {
    let world = World::new();
    let (earlier, allocated) = (world.allocate(0, MIB), line!());
    let (used, last) = (world.write(0, &earlier), line!());
    drop((used, earlier));
    // From the lane of that stream: only the stream itself comes after the earlier use.
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
fn missing_wait_is_a_race() {
    let world = World::new();
    let block = world.allocate(0, MIB);
    let (used, first) = (world.write(0, &block), line!());
    until_freed(&world.stream[1], &block);
    let (read, second) = (world.read(1, &block), line!());
    drop((used, read, block));
    let violation = world.only();
    assert_eq!(violation.kind, ViolationKind::Race);
    let [_, earlier, _, later] = lines(&violation);
    assert_eq!((earlier, later), (Some(first), Some(second)));
    assert!(violation.to_string().contains("stream.wait(&event)"));
}

/// The README shows what is printed, but for locations and addresses.
#[test]
fn readme_shows_a_violation_as_it_is_printed() {
    let without_places = |text: &str| {
        let is_place = |word: &str| word.contains(".rs:") || word.starts_with("0x");
        let words = text.split([' ', '(', ')', '\n', ',']);
        let words = words.filter(|word| !word.is_empty() && !is_place(word));
        words.collect::<Vec<_>>().join(" ")
    };
    let world = World::new();
    let block = world.allocate(0, MIB);
    let (address, bytes) = (block.address(), block.size());
    until_freed(&world.stream[1], &block);
    let decode = Operation::new(us(1)).named("decode");
    world.work[0].submit(decode.writes(address, bytes));
    let copy_out = Operation::new(us(1)).named("copy out");
    world.work[1].submit(copy_out.reads(address, bytes));
    drop(block);
    let printed = without_places(&world.only().to_string());
    let readme = include_str!("../../../../../README.md");
    let examples: Vec<_> = readme.split("```").map(without_places).collect();
    let shows = |example: &String| example.strip_prefix("text ") == Some(&printed);
    assert!(examples.iter().any(shows), "{printed}");
}

/// The calls of a faulty pool are made by hand.
#[test]
fn early_grant_of_a_pool_is_found() {
    let device = device().checker(Checker::Collect).build();
    let (a, b) = (device.create_stream(), device.create_stream());
    let address = device.allocate(MemoryKind::Device, CHUNK).unwrap();
    let observer = device.block_observer().unwrap();
    let here = std::panic::Location::caller();
    observer.block_allocated(address, 4096, a.raw(), here);
    a.submit(Operation::new(us(10)).writes(address, 4096));
    observer.block_freed(address, &[a.raw()], None);
    observer.block_allocated(address + 512, 512, b.raw(), here);
    let found = device.take_violations();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].kind, ViolationKind::GrantedWhileUsed);
    assert_eq!(
        (found[0].address.to_bits(), found[0].bytes),
        (address + 512, 512)
    );
    observer.block_allocated(address, 1024, a.raw(), here);
    let found = device.take_violations();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].kind, ViolationKind::GrantedTwice);
}

#[test]
fn memory_unmapped_under_work_is_found() {
    let device = device().checker(Checker::Collect).build();
    let work = device.create_stream();
    let address = device.allocate(MemoryKind::Device, CHUNK).unwrap();
    work.submit(Operation::new(us(10)).writes(address, 4096));
    device.free(MemoryKind::Device, address, CHUNK).unwrap();
    let found = device.take_violations();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].kind, ViolationKind::UnmappedWhileUsed);
}

#[test]
fn report_names_streams() {
    let world = World::new();
    let block = world.allocate(0, MIB);
    let decode = world.device.create_stream_named("decode");
    world.write(0, &block);
    decode.submit(Operation::new(us(1)).writes(block.address(), 8));
    let report = world.only().to_string();
    assert!(report.contains("writes on stream 1"), "{report}");
    assert!(report.contains("writes on stream \"decode\""), "{report}");
    // By the name that the pool has, where the device's user gave none.
    let named = world.stream[0].clone().named("fetch");
    world.work[0].submit(Operation::new(us(1)).writes(block.address(), 8));
    let report = world.only().to_string();
    assert!(report.contains("writes on stream \"fetch\""), "{report}");
    drop(named);
}

/// The locations are the user's, for every call that allocates or frees.
#[test]
fn every_public_call_reports_the_users_location() {
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

    let (request, line) = (pool.allocate(stream, MIB), line!());
    let block = request.alignment(4096).try_now().unwrap();
    spoil(block.address());
    drop(block);
    assert_eq!(places(&world), (line, None));

    let line = line!() + 1;
    let buffer = pool.buffer::<u8>(stream, 5000).try_now().unwrap();
    spoil(buffer.address());
    let (freed, end) = (buffer.into_block().deallocate(), line!());
    drop(freed);
    assert_eq!(places(&world), (line, Some(end)));

    let (third, _) = crate::common::stream(&world.device, pool);
    let line = line!() + 1;
    let buffer = now(pool.buffer::<u8>(stream, 90_000)).unwrap();
    third.submit(Operation::new(us(1)).writes(buffer.address(), 8));
    let block = buffer.into_block();
    let (freed, end) = (block.deallocate_on(further).unwrap(), line!());
    drop(freed);
    assert_eq!(places(&world), (line, Some(end)));
}

/// What a helper creates is named with the `submit` that the helper was called in.
#[test]
fn operation_of_a_helper_is_named_with_its_submit() {
    fn launch(work: &SimStream, memory: Argument<'_>) -> u32 {
        work.submit(Operation::new(us(10)).writes(memory.address(), memory.size()));
        line!() - 1
    }
    let world = World::new();
    let block = world.allocate(0, MIB);
    world.order(0, 1);
    let mut created = 0;
    let helper = |work: &SimStream, memory: Argument<'_>| created = launch(work, memory);
    let (task, submitted) = (world.stream[0].submit(&block, helper), line!());
    drop(task.unwrap());
    world.write(1, &block);
    let violation = world.only();
    let earlier = violation.earlier.as_ref().unwrap();
    assert_eq!(earlier.place.line(), created);
    assert_eq!(earlier.submitted.unwrap().line(), submitted);
    assert_eq!(violation.later.as_ref().unwrap().submitted, None);
    let text = violation.to_string();
    let file = file!();
    for words in [
        format!("operation ({file}:{created}"),
        format!(", submitted at {file}:{submitted}"),
        "submit both with the memory that they use (`stream.submit`), `&mut` what".to_owned(),
    ] {
        assert!(text.contains(&words), "{words:?} in {text}");
    }
}

#[test]
fn missing_mut_is_named_where_both_uses_were_submitted() {
    let world = World::new();
    let mut block = world.allocate(0, MIB);
    let writes = |work: &SimStream, memory: Argument<'_>| {
        work.submit(Operation::new(us(10)).writes(memory.address(), memory.size()));
    };
    drop(world.stream[1].submit(&block, writes).unwrap());
    drop(world.stream[0].submit(&block, writes).unwrap());
    let violation = world.only();
    assert_eq!(violation.kind, ViolationKind::Race);
    let text = violation.to_string();
    assert!(text.contains("as `&mut` what they write"), "{text}");
    assert!(!text.contains("submit both"), "{text}");
    // The remedy.
    let world = World::new();
    drop(std::mem::replace(&mut block, world.allocate(0, MIB)));
    drop(world.stream[1].submit(&mut block, writes).unwrap());
    drop(world.stream[0].submit(&mut block, writes).unwrap());
    drop(block);
    world.device.assert_ordered();
}

#[test]
fn use_behind_a_move_is_told_to_come_before_it() {
    let world = World::new();
    let mut block = world.written(0, MIB);
    block.move_to(&world.stream[1]).unwrap();
    world.write(0, &block);
    drop(block);
    let violation = world.only();
    assert_eq!(violation.kind, ViolationKind::FreedWhileUsed);
    let text = violation.to_string();
    assert!(text.contains("before `move_to`"), "{text}");
    // The remedy.
    let world = World::new();
    let mut block = world.written(0, MIB);
    world.write(0, &block);
    block.move_to(&world.stream[1]).unwrap();
    drop(block);
    world.device.assert_ordered();
}
