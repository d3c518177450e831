//! Uses of one block on several streams, in detail: their cost, and the errors of uses that cannot be ordered. The
//! device is simulated; behaviours that hold on every device are in `conformance`.

use crate::common::*;
use weirpool::device::DeviceErrorKind::Other;
use weirpool::device::sim::{
    Call, Checker, Clock, Counters, Fault, Operation, SimDevice, SimStream,
};
use weirpool::device::{Argument, DeviceAddress};
use weirpool::*;

/// Returns the numbers of events recorded and waits inserted by a call.
fn cost_of(device: &SimDevice, call: impl FnOnce()) -> (u64, u64) {
    let before = device.counters();
    call();
    let after = device.counters();
    let made = |call| after.calls(call) - before.calls(call);
    assert_eq!(made(Call::Query), 0);
    (made(Call::Record), made(Call::Wait))
}

/// This holds as long as no other stream has used the block, and for kernels that order themselves.
#[test]
fn uses_on_the_home_stream_make_no_device_call() {
    let (device, pool, [(work, home)]) = set_up(8 * MIB);
    let mut block = pool.try_allocate(&home, MIB).unwrap();
    let before: Counters = device.counters();
    for _ in 0..3 {
        let _argument = home.record_use(&mut block).unwrap();
        let _argument = home.record_use(&block).unwrap();
        let _argument = home.record_use(Unordered::Once(&block)).unwrap();
        run(&work, us(1));
    }
    assert_eq!(device.counters().device_calls, before.device_calls);
    drop(block);
    assert_eq!(source(&pool, &home, MIB), Source::Lane);
}

/// One event behind a write serves all readers. Undeclared uses on the home stream need an event each time.
#[test]
fn readers_wait_for_one_event_of_a_write() {
    let (device, pool, [(_, home)]) = set_up(8 * MIB);
    let [(work, b), (_, c), (_, d)] = [0, 1, 2].map(|_| stream(&device, &pool));
    let mut block = pool.try_allocate(&home, MIB).unwrap();
    let cost = cost_of(&device, || b.record_use(&mut block).map(drop).unwrap());
    assert_eq!(cost, (1, 1), "the own stream's");
    run(&work, us(50));
    let read_on =
        |stream: &Stream| cost_of(&device, || stream.record_use(&block).map(drop).unwrap());
    assert_eq!(read_on(&c), (2, 2), "also the writer's");
    assert_eq!(read_on(&d), (1, 2), "the writer's exists already");
    assert_eq!(read_on(&d), (1, 1), "d is ordered after the writer now");
    assert_eq!(read_on(&b), (1, 1), "a stream does not wait for itself");
    assert_eq!(
        read_on(&home),
        (0, 1),
        "the home stream needs no event of its own"
    );
    // After all of them: one event of the home stream, and one of each reader.
    let cost = cost_of(&device, || c.record_use(&mut block).map(drop).unwrap());
    assert_eq!(cost, (3, 3), "those of home, b and d");
    assert_eq!(
        cost_of(&device, || d.record_use(&block).map(drop).unwrap()),
        (2, 2),
        "uses before that write are covered by it"
    );
}

/// If the host sees the memory, a thread of the driver makes the copy. Two copies must not overlap.
#[test]
fn copies_on_two_streams_are_ordered() {
    for upstream in [Upstream::Pinned, Upstream::Managed, Upstream::Virtual] {
        let device = SimDevice::builder().checker(Checker::Panic).build();
        let pool = Pool::builder(device.clone()).upstream(upstream);
        let pool = pool.capacity(8 * MIB).made();
        let [(work, a), (_, b)] = [0, 1].map(|_| stream(&device, &pool));
        let mut block = pool.try_allocate(&a, MIB).unwrap();
        // The first copy is late; the second would overtake it on its own stream.
        run(&work, us(500));
        let first = block.upload(&a, 0, &[1; 4096]).unwrap();
        let second = block.upload(&b, 0, &[2; 4096]).unwrap();
        let read = block.download(&a, 0..4096).unwrap();
        let third = block.upload(&b, 0, &[3; 4096]).unwrap();
        device.block_on(async {
            assert_eq!(read.await.unwrap(), [2; 4096]);
            for upload in [first, second, third] {
                upload.await.unwrap();
            }
        });
        device.assert_ordered();
    }
}

/// An argument may be written through while it is borrowed. An exclusive borrow of the block ends it. A use that is
/// declared with `used_on` has no end.
#[test]
fn argument_ends_once_the_block_is_borrowed_exclusively() {
    for (by_name, expected) in [(false, (1, 1)), (true, (2, 2))] {
        let (device, pool, [(_, home)]) = set_up(8 * MIB);
        let [(_, b), (_, c)] = [0, 1].map(|_| stream(&device, &pool));
        let mut block = pool.try_allocate(&home, MIB).unwrap();
        if by_name {
            b.record_use(Unordered::UntilFreed(&block)).unwrap();
        } else {
            let _argument = b.record_use(Unordered::Once(&block)).unwrap();
        }
        for _ in 0..2 {
            let cost = cost_of(&device, || c.record_use(&block).map(drop).unwrap());
            assert_eq!(cost, (2, 2), "the argument's stream, each time");
        }
        home.record_use(&mut block).map(drop).unwrap();
        let cost = cost_of(&device, || c.record_use(&block).map(drop).unwrap());
        assert_eq!(cost, expected);
    }
}

/// A use that cannot be ordered is refused, whichever call fails. It has no effect, and a later attempt may succeed.
#[test]
fn unordered_use_is_refused() {
    for (call, nth) in [
        (Call::Record, 1),
        (Call::Record, 2),
        (Call::Wait, 1),
        (Call::Wait, 2),
    ] {
        let (device, pool, [(_, home)]) = set_up(8 * MIB);
        let [(work, b), (late, c)] = [0, 1].map(|_| stream(&device, &pool));
        let mut block = pool.try_allocate(&home, MIB).unwrap();
        let argument = b.record_use(&mut block).unwrap();
        let write = Operation::new(us(10)).writes(argument.address(), argument.size());
        work.submit(write);
        device.faults().script(call, nth, Fault::Fails(Other));
        let refused = c.record_use(&block).map(drop);
        assert_matches!(refused, Err(StreamError::Device(_)), "{call:?} {nth}");
        device.faults().script(call, nth, Fault::Fails(Other));
        let refused = c.record_use(&mut block).map(drop);
        assert_matches!(refused, Err(StreamError::Device(_)), "{call:?} {nth}");
        // The write on the other stream is still waited for.
        let read = Operation::new(us(5)).reads(c.record_use(&block).unwrap().address(), MIB);
        late.submit(read);
        device.advance(us(12));
        assert_eq!(late.backlog(), 1);
        drop(block);
        device.advance(us(20));
        pool.inspect().check_conserved().unwrap();
        device.assert_ordered();
    }
}

/// Violations report the caller's line, and not one of this crate.
#[test]
fn copies_of_elements_report_their_callers_location() {
    let device = SimDevice::builder()
        .clock(Clock::Manual)
        .checker(Checker::Collect)
        .build();
    let pool = pool(&device, 8 * MIB);
    let (work, home) = stream(&device, &pool);
    let stray = device.create_stream();
    let mut buffer = pool.buffer::<u32>(&home, 100).try_now().unwrap();
    run(&work, us(1));
    // This use is not declared to the pool.
    stray.submit(
        Operation::new(us(5))
            .named("stray")
            .writes(buffer.address(), 400),
    );
    let mut into = [0; 100];
    let (write, line) = (buffer.write(&home, &[1; 100]), line!());
    drop(write);
    let (read, next) = (buffer.read(&home), line!());
    drop(read);
    let (read_into, last) = (buffer.read_into(&home, &mut into), line!());
    drop(read_into);
    let found = device.take_violations();
    let places: Vec<_> = found
        .iter()
        .filter_map(|violation| violation.later.as_ref())
        .map(|usage| (usage.place.file(), usage.place.line()))
        .collect();
    assert_eq!(places.first(), Some(&(file!(), line)), "{found:?}");
    let here = [line, next, last].map(|line| (file!(), line));
    assert!(places.iter().all(|place| here.contains(place)), "{found:?}");
}

/// The guard holds one copy of the elements. If the host changed it, it is written back when the guard is dropped;
/// otherwise nothing is written.
#[test]
fn host_writes_back_its_changes() {
    for kind in [Upstream::Pinned, Upstream::Managed, Upstream::Host] {
        let device = manual();
        let pool = builder(&device, 8 * MIB).upstream(kind).made();
        let host = pool.host_stream().unwrap();
        let mut buffer = pool.buffer::<u16>(&host, 100).try_now().unwrap();
        {
            // The home stream's owner has nothing to wait for.
            let mut elements = now(buffer.host()).unwrap();
            elements.fill(7);
        }
        let mut seen = [0; 200];
        device.read(buffer.address(), &mut seen).unwrap();
        assert!(seen.chunks(2).all(|element| element == 7u16.to_ne_bytes()));
        device.write(buffer.address(), &[9; 2]).unwrap();
        {
            let elements = now(buffer.host()).unwrap();
            assert_eq!((elements.len(), elements[0], elements[1]), (100, 0x0909, 7));
            device.write(buffer.address(), &[1; 2]).unwrap();
        }
        device.read(buffer.address(), &mut seen).unwrap();
        assert_eq!(seen[0], 1, "the guard was only read");
        assert_eq!(pool.inspect().statistics().events_created, 0);
    }
}

/// A stream fails while the host waits for it. The host gets the error, and no memory.
#[test]
fn host_gets_the_error_of_a_broken_device() {
    let device = manual();
    let pool = builder(&device, 8 * MIB).upstream(Upstream::Pinned).build();
    let pool = pool.unwrap();
    let (work, home) = stream(&device, &pool);
    let mut block = pool.try_allocate(&home, MIB).unwrap();
    run(&work, us(10));
    {
        let waiting = not_ready(Box::pin(block.host()));
        device.faults().break_device("an illegal address");
        let told = now(waiting).map(drop);
        assert_matches!(told, Err(StreamError::Device(error)) if error.is_sticky());
    }
    assert!(now(block.host()).is_err());
}

#[test]
fn addresses_support_comparison_and_arithmetic() {
    let (_, pool, [(_, stream)]) = set_up(8 * MIB);
    let block = pool
        .allocate(&stream, 4096)
        .alignment(1 << 16)
        .try_now()
        .unwrap();
    let address = block.address();
    assert!(address.is_aligned_to(1 << 16) && !(address + 4096).is_aligned_to(1 << 16));
    assert_eq!((address + 4096).offset_from(address), Some(4096));
    assert_eq!(address.offset_from(address + 1), None);
    assert_eq!(address.checked_add(u64::MAX), None);
    assert_eq!(DeviceAddress::from_bits(address.to_bits()), address);
    assert_eq!(format!("{address:?}"), format!("{:#x}", address.to_bits()));
    let end = address + block.size();
    assert!((address..end).contains(&(address + 4095)) && address < end);
    let now_is = pool.inspect().block_at(address + 100).unwrap().address;
    assert_eq!(now_is, address);
    // A number is accepted only where the interface says so.
    let now_is = pool.inspect().block_at(address.to_bits()).unwrap().address;
    assert_eq!(now_is, address);
}

/// Creates a pool over virtual memory, and one over plain memory.
fn pools() -> [(SimDevice, TestPool); 2] {
    [true, false].map(|is_virtual| {
        let device = manual_builder().virtual_memory(is_virtual).build();
        let pool = pool(&device, 8 * MIB);
        (device, pool)
    })
}

fn write_part(work: &SimStream, part: &Argument<'_>, time: u64) {
    work.submit(Operation::new(us(time)).writes(part.address(), part.size()));
}

#[test]
fn parts_of_a_buffer_are_written_on_several_streams_at_the_same_time() {
    for (device, pool) in pools() {
        let (work, home) = stream(&device, &pool);
        let [(other, b), (third, c)] = [0, 1].map(|_| stream(&device, &pool));
        let mut buffer = pool.buffer::<u32>(&home, 1000).try_now().unwrap();
        write_part(&work, &home.record_use(&mut buffer).unwrap(), 100);
        let (mut top, mut rest) = buffer.split_at_mut(400).unwrap();
        let (mut middle, mut bottom) = rest.split_at_mut(300).unwrap();
        let parts = [
            home.record_use(&mut top).unwrap(),
            b.record_use(&mut middle).unwrap(),
            c.record_use(&mut bottom).unwrap(),
        ];
        assert_eq!(parts.map(|part| part.size()), [1600, 1200, 1200]);
        let works = [&work, &other, &third];
        works
            .iter()
            .zip(&parts)
            .for_each(|(work, part)| write_part(work, part, 50));
        // After all parts, although none had been submitted when the next one was ordered.
        let read = home.record_use(&buffer).unwrap();
        work.submit(Operation::new(us(10)).reads(read.address(), read.size()));
        write_part(&third, &c.record_use(&mut buffer).unwrap(), 10);
        drop(buffer);
        device.advance_to_end();
        assert_eq!(device.now(), us(100 + 50 + 10 + 10));
        pool.inspect().check_conserved().unwrap();
        device.assert_ordered();
    }
}

#[test]
fn parts_are_copied_and_filled_alone() {
    for (device, pool) in pools() {
        let [(_, home), (_, other)] = streams(&device, &pool);
        let mut buffer = pool.buffer::<u16>(&home, 10).try_now().unwrap();
        buffer.as_slice_mut().fill(&home, 1).unwrap();
        let mut part = buffer.slice_mut(2..8).unwrap();
        part.fill(&other, Fill::Poison).unwrap();
        part.slice_mut(1..3).unwrap().zero(&home).unwrap();
        drop(part.upload(&other, &[7, 8]).unwrap());
        device.advance_to_end();
        let now_is = now(part.slice_mut(0..4).unwrap().download(&home).unwrap());
        assert_eq!(now_is, Ok(vec![7, 8, 0, 0xffff]));
        let all = buffer.read(&other);
        device.advance_to_end();
        let expected = [0x101, 0x101, 7, 8, 0, 0xffff, 0xffff, 0xffff, 0x101, 0x101];
        assert_eq!(now(all).unwrap(), expected);
        let mut block = buffer.into_block();
        block.slice_mut(0..4).unwrap().zero(&home).unwrap();
        device.advance_to_end();
        let now_is = now(block.download(&home, 0..6).unwrap()).unwrap();
        assert_eq!(now_is, [0, 0, 0, 0, 7, 0]);
        device.assert_ordered();
    }
}

#[test]
fn part_outside_of_its_buffer_is_refused() {
    let (_, pool, [(_, home)]) = set_up(8 * MIB);
    let mut buffer = pool.buffer::<u64>(&home, 100).try_now().unwrap();
    let bounds = |start, end, size| CopyError::OutOfBounds { start, end, size };
    let refused = buffer.slice_mut(90..101).map(drop).unwrap_err();
    assert_eq!(refused, bounds(720, 808, 800));
    #[expect(clippy::reversed_empty_ranges, reason = "it is refused")]
    let refused = buffer.slice_mut(9..8).map(drop).unwrap_err();
    assert_eq!(refused, bounds(72, 64, 800));
    let refused = buffer.split_at_mut(101).map(drop).unwrap_err();
    assert_eq!(refused, bounds(0, 808, 800));
    let refused = buffer.slice_mut(0..usize::MAX).map(drop).unwrap_err();
    assert_eq!(refused, bounds(0, u64::MAX, 800));
    let mut part = buffer.slice_mut(10..20).unwrap();
    let refused = part.slice_mut(5..11).map(drop).unwrap_err();
    assert_eq!(refused, bounds(40, 88, 80));
    let refused = part.upload(&home, &[0; 11]).map(drop).unwrap_err();
    assert_eq!(refused, bounds(0, 88, 80));
    let (empty, whole) = part.split_at_mut(0).unwrap();
    assert_eq!((empty.is_empty(), whole.len()), (true, 10));
    assert_eq!(empty.address(), whole.address());
    let mut block = buffer.into_block();
    let size = block.size();
    let refused = block.slice_mut(0..size + 1).map(drop).unwrap_err();
    assert_eq!(refused, bounds(0, size + 1, size));
}
