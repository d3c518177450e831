//! Memory that is filled when it is allocated or freed: with what, in which order, and what becomes of it
//! where the device cannot.

mod common;

use common::*;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use weirpool::device::DeviceAddress;
use weirpool::device::DeviceErrorKind::{Other, Sticky, Unsupported};
use weirpool::device::sim::{Call, Checker, Clock, Fault, Operation, SimDevice, SimStream};
use weirpool::*;

const POISON: u8 = 0xff;

/// A device with a pool that fills, and a stream of it.
struct Place {
    device: SimDevice,
    pool: Pool,
    work: SimStream,
    stream: Stream,
}

impl Place {
    fn new(set: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Self {
        Self::on(manual(), set)
    }

    fn on(device: SimDevice, set: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Self {
        let pool = set(builder(&device, 64 * MIB)).build().unwrap();
        let (work, stream) = stream(&device, &pool);
        Self {
            device,
            pool,
            work,
            stream,
        }
    }

    fn take(&self, bytes: u64) -> Block {
        self.pool.try_allocate(&self.stream, bytes).unwrap()
    }

    fn fills(&self) -> u64 {
        self.device.counters().calls(Call::Fill)
    }

    /// The output of a future that waits for work, once all work is done.
    fn finish<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        if let Poll::Ready(output) = poll(&mut future) {
            return output;
        }
        self.device.advance_to_end();
        now(future)
    }

    /// What is there once all work is done, as a debugger sees it.
    fn bytes_at(&self, address: DeviceAddress, bytes: u64) -> Vec<u8> {
        self.device.advance_to_end();
        let mut seen = vec![0x77; bytes as usize];
        self.device.read(address, &mut seen).unwrap();
        seen
    }

    /// The memory is full of one value, which is returned.
    fn byte_at(&self, address: DeviceAddress, bytes: u64) -> u8 {
        let seen = self.bytes_at(address, bytes);
        assert!(seen.iter().all(|byte| *byte == seen[0]), "not of one value");
        seen[0]
    }

    fn assert_sound(&self) {
        self.device.assert_ordered();
        self.pool.check().unwrap();
        self.pool.check_conserved().unwrap();
        assert_eq!(self.pool.statistics().used.current, 0);
    }
}

fn zero_on_allocate(builder: PoolBuilder) -> PoolBuilder {
    builder.fill_on_allocate(Fill::Zero)
}

fn poison_on_free(builder: PoolBuilder) -> PoolBuilder {
    builder.fill_on_free(Fill::Poison)
}

/// Work that takes so long, and writes at its end.
#[track_caller]
fn write_after(work: &SimStream, block: &Block, time: u64, value: u8) {
    let (address, bytes) = (block.address(), block.size());
    let write = Operation::new(us(time)).writes(address, bytes);
    work.submit(write.run(move |memory| memory.fill(address, bytes, value)));
}

/// What the block holds, in the order of the stream.
fn contents(place: &Place, stream: &Stream, block: &Block) -> Vec<u8> {
    let download = block.download(stream, 0..block.size()).unwrap();
    place.finish(download).unwrap()
}

/// Whatever rung it came from: of the lane, of the ledger, by growing.
#[test]
fn memory_is_zero_when_it_is_allocated() {
    let place = Place::new(zero_on_allocate);
    for bytes in [512, 100_000, MIB, 5 * MIB] {
        for round in 0..3 {
            let block = place.take(bytes);
            let zeros = vec![0; block.size() as usize];
            assert!(contents(&place, &place.stream, &block) == zeros, "{round}");
            write_after(&place.work, &block, 5, 7);
        }
    }
    // What is awaited is filled as well, at once or after a wait.
    let all = place.take(64 * MIB);
    write_after(&place.work, &all, 5, 7);
    let mut waiting = place.pool.allocate(&place.stream, 64 * MIB);
    assert!(poll(&mut waiting).is_pending());
    drop(all);
    let block = place.finish(waiting).unwrap();
    assert_eq!(place.byte_at(block.address(), block.size()), 0);
    drop(block);
    let block = place
        .finish(place.pool.allocate(&place.stream, 512))
        .unwrap();
    assert!(contents(&place, &place.stream, &block) == [0; 512]);
    drop(block);
    assert_eq!(place.fills(), 4 * 3 + 3);
    place.assert_sound();
}

#[test]
fn memory_is_poison_when_it_is_freed() {
    let place = Place::new(poison_on_free);
    for bytes in [512, 100_000, 5 * MIB] {
        let block = place.take(bytes);
        let (address, bytes) = (block.address(), block.size());
        write_after(&place.work, &block, 50, 7);
        drop(block);
        assert_eq!(place.byte_at(address, bytes), POISON);
        let block = place.take(bytes);
        assert_eq!(block.address(), address);
        assert!(contents(&place, &place.stream, &block) == vec![POISON; bytes as usize]);
        place.finish(block.deallocate()).unwrap();
    }
    place.assert_sound();
}

#[test]
fn each_end_has_a_filling_of_its_own() {
    let place = Place::new(|builder| {
        builder
            .fill_on_allocate(Fill::Byte(0xa5))
            .fill_on_free(Fill::Byte(0x5a))
    });
    let block = place.take(4096);
    let (address, bytes) = (block.address(), block.size());
    assert_eq!(place.byte_at(address, bytes), 0xa5);
    drop(block);
    assert_eq!(place.byte_at(address, bytes), 0x5a);
    assert_eq!(place.fills(), 2);
    place.assert_sound();
}

#[test]
fn a_pool_that_does_not_fill_makes_no_call_for_it() {
    let place = Place::new(|builder| builder);
    let (other, further) = stream(&place.device, &place.pool);
    for bytes in [512, MIB, 9 * MIB] {
        let block = place.take(bytes);
        write_after(&place.work, &block, 5, 7);
        further.wait(&place.stream.event().unwrap()).unwrap();
        block.used_on(&further).unwrap();
        use_block(&other, &block, us(5));
        drop(block);
        let block = place.take(bytes);
        place.finish(block.deallocate()).unwrap();
    }
    assert_eq!(place.fills(), 0);
    place.assert_sound();
}

/// The write of the further stream comes late: the poison lies over it, and the checker is content.
#[test]
fn poison_comes_after_all_streams_that_the_block_was_used_on() {
    for slow in 0..3 {
        let place = Place::new(poison_on_free);
        let others: [_; 2] = std::array::from_fn(|_| stream(&place.device, &place.pool));
        let works = [&place.work, &others[0].0, &others[1].0];
        let block = place.take(MIB);
        let (address, bytes) = (block.address(), block.size());
        for (n, work) in works.into_iter().enumerate() {
            if let Some((_, stream)) = n.checked_sub(1).map(|at| &others[at]) {
                block.used_on(stream).unwrap();
            }
            // A part for each: they are at it at the same time.
            let part = address + n as u64 * 1024;
            let time = if n == slow { 900 } else { 10 };
            let write = Operation::new(us(time)).writes(part, 1024);
            work.submit(write.run(move |memory| memory.fill(part, 1024, 7)));
        }
        drop(block);
        assert_eq!(place.byte_at(address, bytes), POISON);
        assert!(place.device.now() >= us(900));
        place.assert_sound();
    }
}

/// The block's own stream comes after the others by then: it has the memory again at once, however far the
/// others are, and its next life begins after theirs.
#[test]
fn a_block_that_was_filled_behind_all_its_streams_is_its_own_streams_again() {
    let place = Place::new(poison_on_free);
    let (other, further) = stream(&place.device, &place.pool);
    let block = place.take(MIB);
    let address = block.address();
    block.used_on(&further).unwrap();
    write_after(&other, &block, 900, 7);
    drop(block);
    let block = place.take(MIB);
    assert_eq!((block.address(), block.rung()), (address, Rung::Lane));
    write_after(&place.work, &block, 5, 8);
    assert_eq!(place.byte_at(address, MIB), 8);
    drop(block);
    place.assert_sound();
}

/// `used_on` orders a further stream after the grant: with fills, after the fill.
#[test]
fn a_further_stream_comes_after_the_fill_of_an_allocation() {
    let place = Place::new(zero_on_allocate);
    let (other, further) = stream(&place.device, &place.pool);
    for _ in 0..2 {
        let block = place.take(32 * MIB);
        block.used_on(&further).unwrap();
        write_after(&other, &block, 0, 7); // the fill takes some 13 us
        assert_eq!(place.byte_at(block.address(), block.size()), 7);
    }
    place.assert_sound();
}

/// No checker looks on, as on a GPU: it is the content that tells.
#[test]
fn a_use_after_free_reads_nonsense() {
    let device = SimDevice::builder()
        .clock(Clock::Manual)
        .checker(Checker::Off)
        .build();
    let read = |set: fn(PoolBuilder) -> PoolBuilder| {
        let place = Place::on(device.clone(), set);
        let weights = place.take(4096);
        let address = weights.address();
        let upload = weights.upload(&place.stream, 0, &2.5_f32.to_ne_bytes());
        drop(upload.unwrap());
        drop(weights);
        let seen = Arc::new(Mutex::new([0; 4]));
        let target = seen.clone();
        let stale = Operation::new(us(5)).reads(address, 4);
        let stale = stale.run(move |memory| memory.read(address, &mut *target.lock().unwrap()));
        place.work.submit(stale);
        place.device.advance_to_end();
        let bytes = *seen.lock().unwrap();
        place.assert_sound();
        f32::from_ne_bytes(bytes)
    };
    assert_eq!(read(|builder| builder), 2.5, "which nobody notices");
    assert!(read(poison_on_free).is_nan());
}

/// Over a wait on the device, over time, over the pool's end: nothing of a tenant's is left.
#[test]
fn another_stream_finds_nothing_of_the_last_tenant() {
    let place = Place::on(manual(), |builder| {
        builder.capacity(8 * MIB).fill_on_free(Fill::Zero)
    });
    let (_, next) = stream(&place.device, &place.pool);
    for settled in [false, true] {
        let secret = place.take(8 * MIB);
        write_after(&place.work, &secret, 300, 7);
        drop(secret);
        if settled {
            place.finish(place.stream.synchronize()).unwrap();
        }
        let block = place.pool.try_allocate(&next, 8 * MIB).unwrap();
        let expected = if settled {
            Rung::Free
        } else {
            Rung::DeviceWait
        };
        assert_eq!(block.rung(), expected);
        let bytes = contents(&place, &next, &block);
        assert!(bytes.iter().all(|byte| *byte == 0));
        place.finish(block.deallocate()).unwrap();
    }
    place.assert_sound();
}

/// What is given back to the device was filled before it goes: nothing is written to what is not mapped.
#[test]
fn memory_that_goes_back_to_the_device_was_filled_before() {
    for is_pooled in [true, false] {
        let device = manual();
        let place = Place::on(device.clone(), |builder| match is_pooled {
            true => builder.fill_on_free(Fill::Zero),
            false => Pool::builder(device).unpooled().fill_on_free(Fill::Zero),
        });
        let block = place.take(4 * MIB);
        write_after(&place.work, &block, 100, 7);
        let before = place.fills();
        let freed = block.deallocate();
        assert_eq!(place.fills(), before + 1);
        place.finish(freed).unwrap();
        place.pool.trim_to(0).unwrap();
        assert_eq!(place.pool.statistics().reserved.current, 0);
        place.device.advance_to_end();
        drop(place.take(MIB)); // the device works still
        place.assert_sound();
    }
}

#[test]
fn a_shared_block_is_filled_once_with_its_last_handle() {
    let place = Place::new(poison_on_free);
    let (other, further) = stream(&place.device, &place.pool);
    let shared = Buffer::<f32>::try_allocate(&place.pool, &place.stream, 1000)
        .unwrap()
        .share();
    let (address, view) = (shared.address(), shared.view(10..20).unwrap());
    view.used_on(&further).unwrap();
    other.submit(Operation::new(us(400)).writes(view.address(), 40));
    drop(shared);
    assert_eq!(place.fills(), 0);
    drop(view);
    assert_eq!(place.fills(), 1);
    assert_eq!(place.byte_at(address, 4000), POISON);
    place.assert_sound();
}

/// Freed on another stream than its own: in the order of both.
#[test]
fn a_free_on_another_stream_fills_behind_both() {
    let place = Place::new(poison_on_free);
    let (other, further) = stream(&place.device, &place.pool);
    let block = place.take(MIB);
    let address = block.address();
    further.wait(&place.stream.event().unwrap()).unwrap();
    block.used_on(&further).unwrap();
    write_after(&other, &block, 500, 7);
    let freed = block.deallocate_on(&further).unwrap();
    place.finish(freed).unwrap();
    assert!(place.device.now() >= us(500));
    assert_eq!(place.byte_at(address, MIB), POISON);
    place.assert_sound();
}

/// Its user never had it: what was in it is none of theirs.
#[test]
fn a_grant_that_nobody_took_is_not_filled() {
    let place = Place::new(|builder| {
        builder
            .fill_on_allocate(Fill::Zero)
            .fill_on_free(Fill::Poison)
    });
    let all = place.take(64 * MIB);
    let mut waiting = place.pool.allocate(&place.stream, MIB);
    assert!(poll(&mut waiting).is_pending());
    let before = place.fills();
    drop(all);
    // Served by another's poll, and given up.
    let mut driver = place.pool.allocate(&place.stream, MIB);
    let served = poll(&mut driver);
    assert!(served.is_ready(), "and so was the one before it");
    drop(waiting);
    // The end of all, and the beginning of the one that was taken.
    assert_eq!(place.fills(), before + 2);
    drop(served);
    drop(driver);
    place.assert_sound();
}

/// The memory is there again, whoever asked for it, and the figures say so.
#[test]
fn an_allocation_that_cannot_be_filled_fails_and_loses_nothing() {
    for bytes in [512, MIB, 9 * MIB] {
        let place = Place::new(zero_on_allocate);
        drop(place.take(bytes)); // what follows is from the lane too
        for awaited in [false, true] {
            place.device.fail_next(Call::Fill, Other);
            let refused = match awaited {
                false => place.pool.try_allocate(&place.stream, bytes).map(drop),
                true => now(place.pool.allocate(&place.stream, bytes)).map(drop),
            };
            let Err(AllocError::Device(error)) = refused else {
                panic!("{refused:?}");
            };
            assert_eq!((error.kind(), error.call()), (Other, "fill"));
            place.pool.check().unwrap();
            let statistics = place.pool.statistics();
            assert_eq!(statistics.used.current, 0);
            assert_eq!(statistics.allocations, statistics.frees);
        }
        drop(place.take(bytes));
        let all = place.take(64 * MIB);
        assert_eq!(place.byte_at(all.address(), all.size()), 0);
        drop(all);
        place.assert_sound();
    }
}

/// Nor does its tag: what it claimed is there for the next.
#[test]
fn a_tags_bytes_are_not_lost_with_a_fill() {
    let tag = Tag::new("fills");
    let place = Place::new(|builder| zero_on_allocate(builder).tag_limit(tag, MIB));
    let allocate = || place.pool.allocate(&place.stream, MIB).tag(tag);
    place.device.fail_next(Call::Fill, Other);
    let refused = allocate().try_now().unwrap_err();
    assert!(matches!(refused, AllocError::Device(_)), "{refused}");
    let block = allocate().try_now().unwrap();
    let mut held = allocate();
    assert!(poll(&mut held).is_pending());
    drop(block);
    place.device.fail_next(Call::Fill, Other);
    let refused = now(held).unwrap_err();
    assert!(matches!(refused, AllocError::Device(_)), "{refused}");
    drop(now(allocate()).unwrap());
    let statistics = place.pool.statistics_of_tag(tag);
    assert_eq!(statistics.used.current, 0);
    place.assert_sound();
}

/// Who waits is told, and the next one in the queue has the memory.
#[test]
fn a_waiting_allocation_that_cannot_be_filled_lets_the_next_one_in() {
    let place = Place::new(zero_on_allocate);
    let all = place.take(64 * MIB);
    let mut first = place.pool.allocate(&place.stream, 64 * MIB);
    let mut second = place.pool.allocate(&place.stream, 64 * MIB);
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    drop(all);
    place.device.fail_next(Call::Fill, Other);
    let refused = place.finish(first).unwrap_err();
    assert!(matches!(refused, AllocError::Device(_)), "{refused}");
    let block = place.finish(second).unwrap();
    assert_eq!(place.byte_at(block.address(), block.size()), 0);
    drop(block);
    place.assert_sound();
}

/// As of a stream that is captured: the memory is granted as it is.
#[test]
fn where_the_stream_does_not_run_now_the_fill_is_left_out() {
    let place = Place::new(|builder| {
        builder
            .fill_on_allocate(Fill::Zero)
            .fill_on_free(Fill::Poison)
    });
    let block = place.take(MIB);
    let address = block.address();
    write_after(&place.work, &block, 5, 7);
    place.device.fail_next(Call::Fill, Unsupported);
    drop(block);
    place.device.fail_next(Call::Fill, Unsupported);
    let block = place.take(MIB);
    assert_eq!(block.address(), address);
    assert_eq!(place.byte_at(address, MIB), 7);
    drop(block);
    assert_eq!(place.byte_at(address, MIB), POISON);
    place.assert_sound();
}

/// A free has nobody to tell: the memory goes back as it is, in the order of all its streams.
#[test]
fn a_free_that_cannot_be_filled_is_a_free() {
    for call in [Call::Fill, Call::Record, Call::Wait] {
        for kind in [Other, Unsupported] {
            let place = Place::new(|builder| poison_on_free(builder).capacity(8 * MIB));
            let (other, further) = stream(&place.device, &place.pool);
            let block = place.take(8 * MIB);
            let address = block.address();
            block.used_on(&further).unwrap();
            write_after(&other, &block, 300, 7);
            place.device.fail_next(call, kind);
            drop(block);
            let (_, third) = stream(&place.device, &place.pool);
            let block = place.pool.try_allocate(&third, 8 * MIB).unwrap();
            assert_eq!(block.address(), address);
            assert!(contents(&place, &third, &block) == vec![7; 8 << 20]);
            drop(block);
            assert_eq!(place.byte_at(address, 8 * MIB), POISON);
            place.assert_sound();
        }
    }
}

#[test]
fn a_device_that_breaks_in_a_fill_ends_the_pool_and_nobody_panics() {
    for on_free in [false, true] {
        let place = Place::new(|builder| {
            builder
                .fill_on_allocate(Fill::Zero)
                .fill_on_free(Fill::Zero)
        });
        let block = place.take(MIB);
        let mut waiting = place.pool.allocate(&place.stream, 64 * MIB);
        assert!(poll(&mut waiting).is_pending());
        place.device.script(Call::Fill, 1, Fault::Fails(Sticky));
        if on_free {
            drop(block);
        } else {
            drop(waiting);
            let refused = place.pool.try_allocate(&place.stream, MIB).unwrap_err();
            assert!(matches!(&refused, AllocError::Device(error) if error.is_sticky()));
            waiting = place.pool.allocate(&place.stream, 64 * MIB);
            drop(block);
        }
        let told = now(waiting).unwrap_err();
        assert!(matches!(&told, AllocError::Device(error) if error.is_sticky()));
        place.pool.check().unwrap();
    }
}

/// Nothing orders the streams, so nothing is written over what may be in use.
#[test]
fn streams_that_cannot_be_made_to_wait_are_not_filled_behind() {
    let device = SimDevice::builder()
        .clock(Clock::Manual)
        .device_side_waits(false)
        .build();
    let place = Place::on(device, poison_on_free);
    let (other, further) = stream(&place.device, &place.pool);
    let block = place.take(MIB);
    let address = block.address();
    block.used_on(&further).unwrap();
    write_after(&other, &block, 300, 7);
    drop(block);
    assert_eq!(place.byte_at(address, MIB), 7);
    assert_eq!(place.fills(), 0);
    // Used on its own stream alone it is.
    let block = place.take(2 * MIB);
    let address = block.address();
    drop(block);
    assert_eq!(place.byte_at(address, 2 * MIB), POISON);
    place.assert_sound();
}

/// The host writes at once, and is made to wait for nothing: another stream fills what it shared.
#[test]
fn the_host_fills_what_is_its_own_and_leaves_the_rest_to_the_device() {
    let place = Place::new(|builder| {
        builder
            .upstream(Upstream::Managed)
            .fill_on_allocate(Fill::Zero)
            .fill_on_free(Fill::Poison)
    });
    let host = place.pool.host_stream().unwrap();
    let block = place.pool.try_allocate(&host, 4096).unwrap();
    let (address, mut seen) = (block.address(), [1; 4096]);
    place.device.host_read(address, &mut seen).unwrap();
    assert_eq!(seen, [0; 4096]);
    drop(block);
    place.device.read(address, &mut seen).unwrap();
    assert_eq!(seen, [POISON; 4096], "with no work of the device's");

    let block = place.pool.try_allocate(&host, 4096).unwrap();
    block.used_on(&place.stream).unwrap();
    write_after(&place.work, &block, 200, 7);
    drop(block);
    place.device.read(address, &mut seen).unwrap();
    assert_eq!(seen, [0; 4096], "the work is not over");
    assert_eq!(place.byte_at(address, 4096), POISON);

    // A fill of the device's is awaited like its other work.
    let block = place.take(4096);
    block.used_on(&host).unwrap_err();
    place.finish(place.stream.synchronize()).unwrap();
    block.used_on(&host).unwrap();
    place.device.host_read(block.address(), &mut seen).unwrap();
    assert_eq!(seen, [0; 4096]);
    drop(block);
    place.assert_sound();
}

/// Fills are counted, and take their time: what they cost is charged.
#[test]
fn a_fill_takes_the_devices_time() {
    let place = Place::new(poison_on_free);
    let block = place.take(30 * MIB);
    drop(block);
    place.device.advance_to_end();
    let took = place.device.now();
    assert!(took > us(2) + us(10) && took < us(2) + us(11), "{took:?}");
}
