//! The byte of a fill, and its order.

use super::*;
use std::sync::{Arc, Mutex};
use weirpool::Unordered;
use weirpool::device::sim::Checker;
use weirpool_share::Share;

/// From every source: the lane, the heap, growth, and a grant to a request that waited.
#[test]
fn each_grant_makes_one_fill() {
    let setup = Setup::new(zero_on_allocate);
    for bytes in [512, 100_000, MIB, 5 * MIB] {
        for round in 0..3 {
            let block = setup.take(bytes);
            let zeros = vec![0; block.size() as usize];
            assert!(contents(&setup, &setup.stream, &block) == zeros, "{round}");
            write_after(&setup.work, &block, 5, 7);
        }
    }
    // Awaited blocks are filled as well, granted at once or after a wait.
    let all = setup.take(64 * MIB);
    write_after(&setup.work, &all, 5, 7);
    let waiting = not_ready(setup.pool.allocate(&setup.stream, 64 * MIB));
    drop(all);
    let block = setup.finish(waiting).unwrap();
    assert_eq!(setup.byte_at(block.address(), block.size()), 0);
    drop(block);
    let block = setup
        .finish(setup.pool.allocate(&setup.stream, 512))
        .unwrap();
    assert!(contents(&setup, &setup.stream, &block) == [0; 512]);
    drop(block);
    assert_eq!(setup.fills(), 4 * 3 + 3);
}

#[test]
fn allocation_and_free_have_separate_fills() {
    let setup = Setup::new(|builder| {
        builder
            .fill(FillAt::Allocation, Fill::Byte(0xa5))
            .fill(FillAt::Free, Fill::Byte(0x5a))
    });
    let block = setup.take(4096);
    let (address, bytes) = (block.address(), block.size());
    assert_eq!(setup.byte_at(address, bytes), 0xa5);
    drop(block);
    assert_eq!(setup.byte_at(address, bytes), 0x5a);
    assert_eq!(setup.fills(), 2);
}

/// The write of the further stream is late. The poison overwrites it, and the checker reports nothing.
#[test]
fn poison_comes_after_all_streams_that_the_block_was_used_on() {
    for slow in 0..3 {
        let setup = Setup::new(poison_on_free);
        let others: [_; 2] = std::array::from_fn(|_| stream(&setup.device, &setup.pool));
        let works = [&setup.work, &others[0].0, &others[1].0];
        let block = setup.take(MIB);
        let (address, bytes) = (block.address(), block.size());
        for (n, work) in works.into_iter().enumerate() {
            if let Some((_, stream)) = n.checked_sub(1).map(|at| &others[at]) {
                stream.record_use(Unordered::UntilFreed(&block)).unwrap();
            }
            // Each writes a separate part, because they run at the same time.
            let part = address + n as u64 * 1024;
            let time = if n == slow { 900 } else { 10 };
            let write = Operation::new(us(time)).writes(part, 1024);
            work.submit(write.run(move |memory| memory.fill(part, 1024, 7)));
        }
        drop(block);
        assert_eq!(setup.byte_at(address, bytes), POISON);
        assert!(setup.device.now() >= us(900));
    }
}

/// The block's own stream comes after the others by then. So it can reuse the memory at once, whatever the progress of
/// the others, and the next use comes after theirs.
#[test]
fn block_filled_behind_all_its_streams_is_reusable_on_its_own_stream() {
    let setup = Setup::new(poison_on_free);
    let (other, further) = stream(&setup.device, &setup.pool);
    let block = setup.take(MIB);
    let address = block.address();
    further.record_use(Unordered::UntilFreed(&block)).unwrap();
    write_after(&other, &block, 900, 7);
    drop(block);
    let block = setup.take(MIB);
    assert_eq!((block.address(), block.source()), (address, Source::Lane));
    write_after(&setup.work, &block, 5, 8);
    assert_eq!(setup.byte_at(address, MIB), 8);
}

/// `used_on` orders a further stream after the grant: with fills, after the fill.
#[test]
fn further_stream_comes_after_the_fill_of_an_allocation() {
    let setup = Setup::new(zero_on_allocate);
    let (other, further) = stream(&setup.device, &setup.pool);
    for _ in 0..2 {
        let block = setup.take(32 * MIB);
        further.record_use(Unordered::UntilFreed(&block)).unwrap();
        write_after(&other, &block, 0, 7); // the fill takes some 13 us
        assert_eq!(setup.byte_at(block.address(), block.size()), 7);
    }
}

/// No checker is active, as on a GPU. The content shows the mistake.
#[test]
fn use_after_free_reads_poison() {
    let device = SimDevice::builder()
        .clock(Clock::Manual)
        .checker(Checker::Off)
        .build();
    let read = |set: fn(PoolBuilder) -> PoolBuilder| {
        let setup = Setup::on(device.clone(), set);
        let mut weights = setup.take(4096);
        let address = weights.address();
        let upload = weights.upload(&setup.stream, 0, &2.5_f32.to_ne_bytes());
        drop(upload.unwrap());
        drop(weights);
        let seen = Arc::new(Mutex::new([0; 4]));
        let target = seen.clone();
        let stale = Operation::new(us(5)).reads(address, 4);
        let stale = stale.run(move |memory| memory.read(address, &mut *target.lock().unwrap()));
        setup.work.submit(stale);
        setup.device.advance_to_end();
        let bytes = *seen.lock().unwrap();
        f32::from_ne_bytes(bytes)
    };
    assert_eq!(read(|builder| builder), 2.5, "no error is reported");
    assert!(read(poison_on_free).is_nan());
}

/// After a wait on the device, after some time, and at the pool's end, no bytes of a tenant remain.
#[test]
fn memory_of_a_tenant_is_overwritten_before_another_stream_gets_it() {
    let setup = Setup::on(manual(), |builder| {
        builder.capacity(8 * MIB).fill(FillAt::Free, Fill::Zero)
    });
    let (_, next) = stream(&setup.device, &setup.pool);
    for settled in [false, true] {
        let secret = setup.take(8 * MIB);
        write_after(&setup.work, &secret, 300, 7);
        drop(secret);
        if settled {
            setup.finish(setup.stream.synchronize()).unwrap();
        }
        let block = setup.pool.try_allocate(&next, 8 * MIB).unwrap();
        let expected = if settled {
            Source::Free
        } else {
            Source::DeviceWait
        };
        assert_eq!(block.source(), expected);
        let bytes = contents(&setup, &next, &block);
        assert!(bytes.iter().all(|byte| *byte == 0));
        setup.finish(block.deallocate()).unwrap();
    }
}

/// Memory is filled before it is released, and nothing is written to unmapped memory.
#[test]
fn memory_is_filled_before_it_is_released_to_the_device() {
    for is_pooled in [true, false] {
        let device = manual();
        let setup = Setup::on(device.clone(), |builder| match is_pooled {
            true => builder.fill(FillAt::Free, Fill::Zero),
            false => Pool::builder(device)
                .upstream(Upstream::Unpooled)
                .fill(FillAt::Free, Fill::Zero),
        });
        let block = setup.take(4 * MIB);
        write_after(&setup.work, &block, 100, 7);
        let before = setup.fills();
        let freed = block.deallocate();
        assert_eq!(setup.fills(), before + 1);
        setup.finish(freed).unwrap();
        let _ = setup.pool.trim_to(0).unwrap();
        assert_eq!(setup.pool.inspect().statistics().reserved.current, 0);
        setup.device.advance_to_end();
        drop(setup.take(MIB)); // the device works still
    }
}

#[test]
fn shared_block_is_filled_once_with_its_last_handle() {
    let setup = Setup::new(poison_on_free);
    let (other, further) = stream(&setup.device, &setup.pool);
    let shared = setup
        .pool
        .buffer::<f32>(&setup.stream, 1000)
        .try_now()
        .unwrap()
        .share();
    let (address, view) = (shared.address(), shared.view(10..20).unwrap());
    further.record_use(&view).unwrap();
    other.submit(Operation::new(us(400)).writes(view.address(), 40));
    drop(shared);
    assert_eq!(setup.fills(), 0);
    drop(view);
    assert_eq!(setup.fills(), 1);
    assert_eq!(setup.byte_at(address, 4000), POISON);
}

/// A block is freed on a stream other than its own: the fill comes after the work of both.
#[test]
fn free_on_another_stream_fills_behind_both() {
    let setup = Setup::new(poison_on_free);
    let (other, further) = stream(&setup.device, &setup.pool);
    let block = setup.take(MIB);
    let address = block.address();
    further.wait(&setup.stream.event().unwrap()).unwrap();
    further.record_use(Unordered::UntilFreed(&block)).unwrap();
    write_after(&other, &block, 500, 7);
    let freed = block.deallocate_on(&further).unwrap();
    setup.finish(freed).unwrap();
    assert!(setup.device.now() >= us(500));
    assert_eq!(setup.byte_at(address, MIB), POISON);
}

/// Its user never had the memory, so its content is not the user's.
#[test]
fn abandoned_grant_is_not_filled() {
    let setup = Setup::new(|builder| {
        builder
            .fill(FillAt::Allocation, Fill::Zero)
            .fill(FillAt::Free, Fill::Poison)
    });
    let all = setup.take(64 * MIB);
    let waiting = not_ready(setup.pool.allocate(&setup.stream, MIB));
    let before = setup.fills();
    drop(all);
    // Served by another request's poll, and then dropped.
    let mut driver = setup.pool.allocate(&setup.stream, MIB);
    let served = poll(&mut driver);
    assert!(served.is_ready(), "and so was the one before it");
    drop(waiting);
    // The fill of the free of the whole memory, and the fill of the allocation that was taken.
    assert_eq!(setup.fills(), before + 2);
}

/// The host writes at once and does not wait. Another stream fills a block that the host shared.
#[test]
fn host_fills_its_own_blocks_and_the_device_fills_shared_ones() {
    let setup = Setup::new(|builder| {
        builder
            .upstream(Upstream::Managed)
            .fill(FillAt::Allocation, Fill::Zero)
            .fill(FillAt::Free, Fill::Poison)
    });
    let host = setup.pool.host_stream().unwrap();
    let block = setup.pool.try_allocate(&host, 4096).unwrap();
    let (address, mut seen) = (block.address(), [1; 4096]);
    setup.device.host().read(address, &mut seen).unwrap();
    assert_eq!(seen, [0; 4096]);
    drop(block);
    setup.device.read(address, &mut seen).unwrap();
    assert_eq!(seen, [POISON; 4096], "with no work of the device's");

    let block = setup.pool.try_allocate(&host, 4096).unwrap();
    until_freed(&setup.stream, &block);
    write_after(&setup.work, &block, 200, 7);
    drop(block);
    setup.device.read(address, &mut seen).unwrap();
    assert_eq!(seen, [0; 4096], "the work is not over");
    assert_eq!(setup.byte_at(address, 4096), POISON);

    // A fill by the device is awaited like its other work.
    let block = setup.take(4096);
    host.record_use(Unordered::UntilFreed(&block)).unwrap_err();
    setup.finish(setup.stream.synchronize()).unwrap();
    host.record_use(Unordered::UntilFreed(&block)).unwrap();
    setup
        .device
        .host()
        .read(block.address(), &mut seen)
        .unwrap();
    assert_eq!(seen, [0; 4096]);
}

/// Fills are counted, and their cost is charged.
#[test]
fn fill_takes_device_time() {
    let setup = Setup::new(poison_on_free);
    let block = setup.take(30 * MIB);
    drop(block);
    setup.device.advance_to_end();
    let took = setup.device.now();
    assert!(took > us(2) + us(10) && took < us(2) + us(11), "{took:?}");
}

/// Blocks that a reservation keeps for a stream are filled like others: when they are freed, and when they are drawn.
#[test]
fn kept_blocks_of_a_reservation_are_filled() {
    let setup = Setup::new(|builder| poison_on_free(zero_on_allocate(builder)));
    let reservation = setup.pool.reserve(4 * MIB).try_now().unwrap();
    for round in 1..=6 {
        let block = reservation.allocate(&setup.stream, MIB).unwrap();
        assert_eq!(setup.byte_at(block.address(), MIB), 0);
        write_after(&setup.work, &block, 5, 7);
        let address = block.address();
        drop(block);
        assert_eq!(setup.byte_at(address, MIB), POISON);
        assert_eq!(setup.fills(), 2 * round);
    }
}

/// A request in the scope of a reservation fills a block that is kept for its stream, as any other.
#[test]
fn request_fills_a_kept_block() {
    let setup = Setup::new(|builder| builder);
    let reservation = setup.pool.reserve(4 * MIB).try_now().unwrap();
    let task = reservation.scope(async {
        for value in [3, 4, 5, 6] {
            let request = setup.pool.allocate(&setup.stream, MIB).filled(value);
            let block = request.await.unwrap();
            assert_eq!(setup.byte_at(block.address(), MIB), value);
        }
    });
    now(task);
    assert_eq!(setup.fills(), 4);
}
