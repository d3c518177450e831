//! Streams of another device in a pool, and events and tasks across pools and devices.

use super::*;
use weirpool::device::Argument;

fn write(micros: u64) -> impl FnOnce(&SimStream, Argument<'_>) {
    move |work, memory| {
        let write = Operation::new(us(micros));
        work.submit(write.writes(memory.address(), memory.size()));
    }
}

/// Blocks are allocated, used, handed over and freed on streams of both devices.
#[test]
fn stream_of_another_device_is_one_of_the_pool() {
    for memory in Memory::ALL {
        let [first, second] = two();
        let pool = memory.pool(&first);
        pool.peers().enable(&second).unwrap();
        let home = pool.create_stream().unwrap();
        let guest = pool.register(&second.create_stream()).unwrap();
        let mut block = pool.try_allocate(&home, MIB).unwrap();
        drop(home.submit(&mut block, write(50)).unwrap());
        let task = guest.submit(&mut block, write(20)).unwrap();
        assert!(!task.is_complete().unwrap());
        drop(block);
        // On the guest's stream, and without a wait of the host.
        let mut own = pool.try_allocate(&guest, MIB).unwrap();
        drop(guest.submit(&mut own, write(5)).unwrap());
        own.zero(&guest).unwrap();
        let upload = own.upload(&guest, 0, b"weir").unwrap();
        let download = own.download(&home, 0..4).unwrap();
        drop(own);
        let called = guest.run(|| 7).unwrap();
        first.advance_to_end();
        now(task).unwrap();
        now(upload).unwrap();
        assert_eq!(now(download).unwrap(), b"weir", "{memory:?}");
        assert_eq!(now(called).unwrap(), 7);
        pool.maintain().reap().unwrap();
        pool.inspect().check_conserved().unwrap();
        second.assert_ordered();
    }
}

#[test]
fn block_is_refused_on_a_stream_of_another_device_by_the_reason() {
    let [first, second] = two();
    let pools = [pool(&first, 8 * MIB), pool(&second, 8 * MIB)];
    let streams = pools.each_ref().map(|pool| pool.create_stream().unwrap());
    let mut block = pools[0].try_allocate(&streams[0], MIB).unwrap();
    let refused = streams[1].record_use(&block).unwrap_err();
    assert_eq!(refused, StreamError::ForeignDevice);
    assert!(refused.to_string().contains("peers().enable"), "{refused}");
    let refused = streams[1].submit(&mut block, write(1)).unwrap_err();
    assert_eq!(refused, TaskError::Stream(StreamError::ForeignDevice));
    let work = second.create_stream();
    assert_eq!(
        pools[0].register(&work).unwrap_err(),
        StreamError::ForeignDevice
    );
    pools[0].peers().enable(&second).unwrap();
    // It can be used there now, by a stream that this pool knows.
    let refused = streams[1].record_use(&block).unwrap_err();
    assert_matches!(refused, StreamError::ForeignPool(_));
    let guest = pools[0].register(&work).unwrap();
    let _use = guest.record_use(&block).unwrap();
}

#[test]
fn event_orders_streams_of_several_pools_and_devices() {
    let [first, second] = two();
    let pools = [
        pool(&first, 8 * MIB),
        pool(&first, 8 * MIB),
        pool(&second, 8 * MIB),
    ];
    let streams = pools.each_ref().map(|pool| pool.create_stream().unwrap());
    let shared = Pool::builder(first.clone())
        .upstream(Upstream::Pinned)
        .made();
    let block = shared
        .try_allocate(&shared.create_stream().unwrap(), 64)
        .unwrap();
    let operation = |device: &SimDevice, at: usize| {
        let work = device.stream(streams[at].raw()).unwrap();
        let write = Operation::new(us(10)).named(format!("write {at}"));
        work.submit(write.writes(block.address(), 64));
    };
    operation(&first, 0);
    streams[1].wait(&streams[0].event().unwrap()).unwrap();
    operation(&first, 1);
    streams[2].wait(&streams[1].event().unwrap()).unwrap();
    operation(&second, 2);
    // Back again, by a task.
    let task = streams[2].submit((), |_: &SimStream, ()| ()).unwrap();
    streams[0].after(&task).unwrap();
    operation(&first, 0);
    first.advance_to_end();
    assert_eq!(first.now(), us(40));
    let found: Vec<_> = first
        .take_violations()
        .into_iter()
        .filter(|found| found.kind == ViolationKind::Race)
        .collect();
    assert_eq!(found, []);
    let elsewhere = manual();
    let other = pool(&elsewhere, 8 * MIB).create_stream().unwrap();
    let seen = other.wait(&streams[0].event().unwrap());
    assert_eq!(seen, Err(StreamError::ForeignDevice));
    let seen = other.after(&task);
    assert_eq!(seen, Err(TaskError::Stream(StreamError::ForeignDevice)));
}

/// An event of another pool's stream says nothing of this pool's memory.
#[test]
fn event_of_another_pool_frees_no_memory() {
    let [first, second] = two();
    let pools = [pool(&first, 2 * MIB), pool(&second, 2 * MIB)];
    let home = pools[0].create_stream().unwrap();
    let other = pools[0].create_stream().unwrap();
    let far = pools[1].create_stream().unwrap();
    let mut block = pools[0].try_allocate(&home, 2 * MIB).unwrap();
    drop(home.submit(&mut block, write(50)).unwrap());
    drop(block);
    other.wait(&far.event().unwrap()).unwrap();
    let mut next = pools[0].try_allocate(&other, 2 * MIB).unwrap();
    drop(other.submit(&mut next, write(5)).unwrap());
    drop(next);
    first.advance_to_end();
    assert_eq!(first.now(), us(55), "behind a wait for the first stream");
    first.assert_ordered();
}

/// A waiting request is woken by work of the other device.
#[test]
fn request_waits_for_work_of_another_device() {
    let [first, second] = SimDevice::builder().memory(64 * MIB).build_host();
    let reuse = only_host_waits();
    let pool = tuned(&first, 2 * MIB, |tuning| tuning.reuse = reuse);
    pool.peers().enable(&second).unwrap();
    let home = pool.create_stream().unwrap();
    let guest = pool.register(&second.create_stream()).unwrap();
    // Outside of `block_on`, virtual time passes while this thread is not scheduled.
    let (_next, at) = first.block_on(async {
        let mut block = pool.try_allocate(&guest, 2 * MIB).unwrap();
        drop(guest.submit(&mut block, write(50)).unwrap());
        drop(block);
        (pool.allocate(&home, 2 * MIB).await.unwrap(), first.now())
    });
    assert_eq!(at, us(50));
    first.assert_ordered();
}
