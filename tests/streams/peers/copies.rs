//! Copies from block to block.

use super::*;

const BYTES: u64 = 3 * MIB;

type Setup = ([SimDevice; 2], [TestPool; 2], [Stream; 2], [Block; 2]);

/// Two pools, a stream of each, and a block of each.
fn setup(devices: [SimDevice; 2], has_access: bool) -> Setup {
    let pools = devices.each_ref().map(|device| pool(device, 4 * MIB));
    if has_access {
        pools[0].peers().enable(&devices[1]).unwrap();
        pools[1].peers().enable(&devices[0]).unwrap();
    }
    let streams = pools.each_ref().map(|pool| pool.create_stream().unwrap());
    let blocks = [0, 1].map(|at| pools[at].try_allocate(&streams[at], BYTES).unwrap());
    (devices, pools, streams, blocks)
}

/// With access and without, on a stream of either device.
const WAYS: [(bool, usize); 4] = [(true, 0), (true, 1), (false, 0), (false, 1)];

fn pattern(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; BYTES as usize];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// The time that bytes take, at so many in a microsecond.
fn time(rate: u64) -> std::time::Duration {
    std::time::Duration::from_nanos(BYTES * 1000 / rate)
}

#[test]
fn copy_moves_bytes_directly_with_access_and_staged_without() {
    for (has_access, by) in WAYS {
        let (devices, pools, streams, [mut here, mut there]) = setup(two(), has_access);
        let bytes = pattern(by as u64);
        drop(here.upload(&streams[0], 0, &bytes).unwrap());
        devices[0].advance_to_end();
        let before = devices[0].now();
        let copied = here
            .copy_to(100..BYTES, &mut there, 50, &streams[by])
            .unwrap();
        drop(here);
        devices[0].advance_to_end();
        now(copied).unwrap();
        let took = devices[0].now() - before;
        let direct = time(450_000);
        assert_eq!(took <= direct, has_access, "{took:?}");
        let seen = there.download(&streams[1], 50..BYTES - 50).unwrap();
        drop(there);
        devices[0].advance_to_end();
        assert!(now(seen).unwrap() == bytes[100..]);
        for pool in &pools {
            pool.maintain().reap().unwrap();
        }
        devices[0].assert_ordered();
    }
}

/// Work of other streams of both pools comes before and after the copy, without a word of the user's.
#[test]
fn copy_comes_after_earlier_uses_and_before_later_ones() {
    for (has_access, by) in WAYS {
        let (devices, pools, streams, [mut here, mut there]) = setup(two(), has_access);
        let others = pools.each_ref().map(|pool| pool.create_stream().unwrap());
        let write = |stream: &Stream, block: &mut Block, value: u8| {
            let submit = |work: &SimStream, block: device::Argument<'_>| {
                let (address, bytes) = (block.address(), block.size());
                let write = Operation::new(us(500)).writes(address, bytes);
                work.submit(write.run(move |memory| memory.fill(address, bytes, value)));
            };
            drop(stream.submit(block, submit).unwrap());
        };
        write(&others[0], &mut here, 7);
        write(&others[1], &mut there, 8);
        drop(here.copy_to(0..BYTES, &mut there, 0, &streams[by]).unwrap());
        write(&others[0], &mut here, 9);
        let seen = there.download(&others[1], 0..BYTES).unwrap();
        drop((here, there));
        // The memory of both goes to others, while the copy has not begun.
        let again = [0, 1].map(|at| pools[at].try_allocate(&others[at], BYTES).unwrap());
        for (at, block) in again.iter().enumerate() {
            let work = devices[at].stream(others[at].raw()).unwrap();
            use_block(&work, block, us(1));
        }
        drop(again);
        devices[0].advance_to_end();
        assert!(
            now(seen).unwrap().iter().all(|byte| *byte == 7),
            "{has_access} {by}"
        );
        devices[0].assert_ordered();
    }
}

#[test]
fn copy_within_a_device_joins_two_pools_or_blocks_of_one() {
    let [first, second] = two();
    let one = pool(&first, 16 * MIB);
    let pinned = builder(&first, 16 * MIB).upstream(Upstream::Pinned).made();
    for target in [&one, &pinned] {
        let streams = [&one, target].map(|pool| pool.create_stream().unwrap());
        let mut here = one.buffer::<u32>(&streams[0], 1000).try_now().unwrap();
        let mut there = target.buffer::<u32>(&streams[1], 1001).try_now().unwrap();
        let numbers: Vec<u32> = (0..1000).collect();
        let written = here.write(&streams[0], &numbers);
        let copied = here.copy_to(&mut there, &streams[0]).unwrap();
        let seen = there.download(&streams[1], 0..1000).unwrap();
        let refused = there.copy_to(&mut here, &streams[1]).unwrap_err();
        let bytes = CopyError::OutOfBounds {
            start: 0,
            end: 4004,
            size: 4000,
        };
        assert_eq!(refused, bytes);
        drop((here, there));
        first.advance_to_end();
        now(written).unwrap();
        now(copied).unwrap();
        assert_eq!(now(seen).unwrap(), numbers);
    }
    second.assert_ordered();
}

#[test]
fn copy_is_refused_by_the_reason_and_changes_nothing() {
    let (devices, pools, streams, [here, mut there]) = setup(two(), false);
    let third = pool(&devices[0], 8 * MIB);
    let stranger = third.create_stream().unwrap();
    let refused = here.copy_to(0..64, &mut there, 0, &stranger).unwrap_err();
    assert_matches!(refused, CopyError::Stream(StreamError::ForeignPool(_)));
    for (range, offset) in [(0..BYTES + 512, 0), (0..64, BYTES - 63), (0..64, u64::MAX)] {
        let refused = here
            .copy_to(range, &mut there, offset, &streams[0])
            .unwrap_err();
        assert_matches!(refused, CopyError::OutOfBounds { .. });
    }
    let elsewhere = settings().build();
    let away = pool(&elsewhere, 8 * MIB);
    let mut beyond = away
        .try_allocate(&away.create_stream().unwrap(), 64)
        .unwrap();
    let refused = here
        .copy_to(0..64, &mut beyond, 0, &streams[0])
        .unwrap_err();
    assert_eq!(refused, CopyError::Stream(StreamError::ForeignDevice));
    for kind in [DeviceErrorKind::Other, DeviceErrorKind::OutOfMemory] {
        devices[0].faults().fail_next(Call::Copy, kind);
        let refused = here.copy_to(0..64, &mut there, 0, &streams[0]).unwrap_err();
        assert_matches!(refused, CopyError::Device(_));
    }
    assert_eq!(devices[0].counters().operations, 0);
    drop((here, there));
    devices[0].advance_to_end();
    for pool in &pools {
        pool.maintain().reap().unwrap();
    }
}

/// The lanes of copies are lanes of the other pool: it grants their memory only once they are complete, and they hold
/// the access.
#[test]
fn copy_keeps_memory_and_access_until_it_is_complete() {
    let (devices, pools, streams, [here, mut there]) = setup(two(), true);
    drop(here.copy_to(0..BYTES, &mut there, 0, &streams[0]).unwrap());
    drop((here, there));
    let in_use = Err(AccessError::InUse { streams: 1 });
    assert_eq!(pools[1].peers().disable(&devices[0]), in_use);
    assert_eq!(pools[1].inspect().statistics().pending.current, BYTES);
    devices[0].advance_to_end();
    assert_eq!(pools[1].peers().disable(&devices[0]), Ok(true));
    assert_eq!(pools[1].inspect().statistics().pending.current, 0);
    devices[0].assert_ordered();
}

/// Neither is asked about its external streams once they are gone: of the copy, and of the launch.
#[test]
fn access_ends_and_uses_are_ordered_after_an_external_stream_is_gone() {
    let ([first, second], pools, homes, [here, mut there]) = setup(two(), true);
    let work = second.create_stream();
    let external = pools[1].register(&External::of(&work)).unwrap();
    drop(here.copy_to(0..BYTES, &mut there, 0, &external).unwrap());
    let in_use = Err(AccessError::InUse { streams: 1 });
    assert_eq!(pools[0].peers().disable(&second), in_use);
    drop((external, work));
    assert_eq!(pools[0].peers().disable(&second), in_use);
    second.advance_to_end();
    let _of_the_same_name = second.create_stream();
    let records = second.counters().calls(Call::Record);
    assert_eq!(pools[0].peers().disable(&second), Ok(true));
    assert_eq!(second.counters().calls(Call::Record), records);

    let beside = pool(&first, 4 * MIB);
    let streams = [&beside, &pools[0]].map(|pool| pool.create_stream().unwrap());
    let other = beside.try_allocate(&streams[0], 4096).unwrap();
    let mut here = pools[0].try_allocate(&homes[0], 4096).unwrap();
    let capture = beside.capture(&streams[0]).unwrap();
    drop(other.copy_to(0..4096, &mut here, 0, &streams[0]).unwrap());
    let graph = capture.end().unwrap();
    let work = first.create_stream();
    let external = beside.register(&External::of(&work)).unwrap();
    work.submit(Operation::new(us(50)));
    graph.launch(&external).unwrap();
    drop((external, work));
    let used = streams[1].record_use(&mut here).unwrap().address();
    let write = Operation::new(us(1)).writes(used, 4096);
    first.stream(streams[1].raw()).unwrap().submit(write);
    first.advance_to_end();
    first.assert_ordered();
}

#[test]
fn captured_copy_runs_at_each_launch_with_access_and_is_refused_without() {
    let (devices, pools, streams, [mut here, mut there]) = setup(two(), false);
    let capture = pools[0].capture(&streams[0]).unwrap();
    let refused = here.copy_to(0..64, &mut there, 0, &streams[0]).unwrap_err();
    assert_eq!(refused, CopyError::NoAccessInCapture);
    let refused = refused.to_string();
    let ways = ["peers().enable", "Upstream::Device", "outside of the"];
    assert!(ways.iter().all(|way| refused.contains(way)), "{refused}");
    drop(capture);
    devices[0].take_violations();
    devices[0].advance_to_end();
    for pool in &pools {
        pool.maintain().reap().unwrap();
    }
    pools[1].peers().enable(&devices[0]).unwrap();
    let capture = pools[0].capture(&streams[0]).unwrap();
    now(here.copy_to(0..64, &mut there, 0, &streams[0]).unwrap()).unwrap();
    let graph = capture.end().unwrap();
    for value in [3, 4] {
        here.fill(&streams[0], value).unwrap();
        graph.launch(&streams[0]).unwrap();
        devices[0].advance_to_end();
        let mut seen = [0; 64];
        devices[1].read(there.address(), &mut seen).unwrap();
        assert_eq!(seen, [value; 64]);
    }
    // The block comes after all of its uses there, and the graph is launched again.
    there.move_to(&streams[1]).unwrap();
    devices[0].advance_to_end();
    assert!(pools[1].peers().disable(&devices[0]).is_err(), "in use");
    graph.launch(&streams[0]).unwrap();
    devices[0].advance_to_end();
    drop(graph);
    assert_eq!(pools[1].peers().disable(&devices[0]), Ok(true));
}

/// Warp's second way: memory of before the capture, in no pool of the device's virtual memory.
#[test]
fn captured_copy_of_plain_memory_runs_at_each_launch_without_access() {
    let devices = two();
    let pools = devices.each_ref().map(|device| {
        let builder = crate::common::builder(device, 4 * MIB);
        builder.upstream(Upstream::Device).made()
    });
    let streams = pools.each_ref().map(|pool| pool.create_stream().unwrap());
    let [mut from, mut to] = [0, 1].map(|at| pools[at].try_allocate(&streams[at], BYTES).unwrap());
    let capture = pools[0].capture(&streams[0]).unwrap();
    now(from.copy_to(0..64, &mut to, 0, &streams[0]).unwrap()).unwrap();
    let graph = capture.end().unwrap();
    let address = to.address();
    drop(to);
    for value in [3, 4] {
        from.fill(&streams[0], value).unwrap();
        graph.launch(&streams[0]).unwrap();
        devices[0].advance_to_end();
        let mut seen = [0; 64];
        devices[1].read(address, &mut seen).unwrap();
        assert_eq!(seen, [value; 64]);
        assert!(
            pools[1].try_allocate(&streams[1], 4 * MIB).is_err(),
            "the graph keeps it"
        );
    }
    drop((from, graph));
    devices[0].advance_to_end();
    assert!(pools[1].try_allocate(&streams[1], 4 * MIB).is_ok());
}

#[test]
fn dropped_copy_takes_place_and_a_broken_device_fails_it() {
    let (devices, _pools, streams, [here, mut there]) = setup(two(), false);
    let copied = not_ready(here.copy_to(0..BYTES, &mut there, 0, &streams[0]).unwrap());
    devices[1].faults().break_device("a test");
    assert!(now(copied).unwrap_err().is_sticky());
    assert!(here.copy_to(0..64, &mut there, 0, &streams[0]).is_err());
}
