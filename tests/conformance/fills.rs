//! Pools that fill memory when it is allocated or freed.

use crate::bench::{Bench, Span};
use crate::common::{MIB, assert_matches, until_freed};
use crate::site::{Site, settle_all};
use futures::executor::block_on;
use weirpool::device::DeviceErrorKind;
use weirpool::{AllocError, Fill, FillAt, PoolBuilder};

const POISON: u8 = Fill::Poison.byte();

fn zero_on_allocate(builder: PoolBuilder) -> PoolBuilder {
    builder.fill(FillAt::Allocation, Fill::Zero)
}

fn poison_on_free(builder: PoolBuilder) -> PoolBuilder {
    builder.fill(FillAt::Free, Fill::Poison)
}

/// [jemalloc `zero`, CUDA's `cudaMemsetAsync`] All of a block is filled, whatever its source.
pub(crate) fn memory_is_zero_when_it_is_allocated<B: Bench>() {
    let site = Site::<B>::with(32 * MIB, zero_on_allocate);
    let worker = site.worker();
    for bytes in [1000, MIB, 9 * MIB] {
        for _ in 0..3 {
            let block = worker.take(bytes);
            let download = block.download(&worker.stream, 0..block.size()).unwrap();
            let bytes = block_on(download).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0));
            worker.use_up(&block, 7);
        }
    }
    let block = block_on(worker.allocate(32 * MIB));
    worker.expect(&block, 0);
    worker.settle();
    drop(block);
    site.assert_sound();
}

/// [jemalloc `junk`, glibc `M_PERTURB`] The fill comes after the work that used the block, and before its next owner.
pub(crate) fn memory_is_poison_when_it_is_freed<B: Bench>() {
    let site = Site::<B>::with(8 * MIB, poison_on_free);
    let [worker, other] = site.workers();
    for bytes in [1000, MIB, 8 * MIB] {
        let block = worker.take(bytes);
        let address = block.address();
        let gate = worker.use_until_opened(&block, 7);
        drop(block);
        let block = worker.take(bytes);
        assert_eq!(block.address(), address);
        worker.expect(&block, POISON);
        site.bench.let_run();
        gate.open();
        worker.free_and_settle(block);
    }
    let all = other.take(8 * MIB);
    other.expect(&all, POISON);
    other.free_and_settle(all);
    site.assert_sound();
}

/// The fill comes after every stream that used the block, whichever is late. The home stream can reuse it at once.
pub(crate) fn poison_comes_after_further_streams<B: Bench>() {
    for late in [0, 1, 2] {
        let site = Site::<B>::with(8 * MIB, poison_on_free);
        let workers = site.workers::<3>();
        let [home, reader, writer] = &workers;
        let block = home.take(8 * MIB);
        home.fill(&block, 1);
        let Span { address, bytes } = (&block).into();
        let half = bytes / 2;
        let (read, written) = (
            Span {
                address,
                bytes: half,
            },
            Span {
                address: address + half,
                bytes: half,
            },
        );
        for further in [reader, writer] {
            further.come_after(home);
            until_freed(&further.stream, &block);
        }
        let gate = site.bench.hold(&workers[late].work);
        reader.expect(read, 1);
        writer.fill(written, 2);
        writer.expect(written, 2);
        drop(block);
        let block = home.take(8 * MIB);
        home.expect(&block, POISON);
        home.fill(&block, 3);
        home.expect(&block, 3);
        site.bench.let_run();
        gate.open();
        settle_all(&[home, reader, writer]);
        home.free_and_settle(block);
        site.assert_sound();
    }
}

/// A further stream comes after the fill, as it comes after the memory's earlier life.
pub(crate) fn further_stream_comes_after_the_fill<B: Bench>() {
    for bytes in [MIB, 8 * MIB] {
        let site = Site::<B>::with(8 * MIB, zero_on_allocate);
        let [home, further] = site.workers();
        // No memory is taken from the device, or released, while a stream is held.
        let earlier = home.take(bytes);
        home.use_up(&earlier, 1);
        home.free_and_settle(earlier);
        let gate = site.bench.hold(&home.work);
        let block = home.take(bytes);
        until_freed(&further.stream, &block);
        further.expect(&block, 0);
        further.fill(&block, 2);
        further.expect(&block, 2);
        site.bench.let_run();
        gate.open();
        settle_all(&[&home, &further]);
        further.expect(&block, 2);
        further.settle();
        block_on(block.deallocate()).unwrap();
        site.assert_sound();
    }
}

/// The allocation fails, and the free does not. No memory is lost in either case.
pub(crate) fn failed_fill_loses_no_memory<B: Bench>() {
    let (site, probe) =
        Site::<B>::probed(8 * MIB, |builder| poison_on_free(zero_on_allocate(builder)));
    let worker = site.worker();
    for bytes in [MIB, 8 * MIB] {
        probe.fail("fill", 1, DeviceErrorKind::Other);
        let refused = worker.try_take(bytes).unwrap_err();
        assert_matches!(refused, AllocError::Device(_));
        let block = worker.take(bytes);
        worker.expect(&block, 0);
        worker.fill(&block, 7);
        probe.fail("fill", 1, DeviceErrorKind::Other);
        drop(block);
        // The missing poison is not seen either, because the memory is zeroed again.
        let block = worker.take(bytes);
        worker.expect(&block, 0);
        worker.free_and_settle(block);
        assert!(probe.has_failed("fill"));
    }
    site.assert_sound();
}

/// A pool without fills makes no calls for them.
pub(crate) fn pool_without_fills_makes_no_fill_call<B: Bench>() {
    let (site, probe) = Site::<B>::probed(8 * MIB, |builder| builder);
    let worker = site.worker();
    for bytes in [1000, 8 * MIB] {
        let block = worker.take(bytes);
        worker.use_up(&block, 7);
        drop(block);
        let block = worker.take(bytes);
        worker.expect(&block, 7);
        worker.free_and_settle(block);
    }
    assert_eq!(probe.calls("fill"), 0);
    site.assert_sound();
}
