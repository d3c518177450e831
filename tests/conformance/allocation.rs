//! Single allocations: size, alignment, and memory that no other block shares.

use crate::bench::{Bench, Span};
use crate::common::{MIB, now};
use crate::site::{Site, Worker};
use weirpool::{AllocError, Block};

/// RMM `AllocateZeroBytes`: zero bytes are a valid request. Here its block has an address of its own.
pub(crate) fn zero_bytes_give_a_block_of_their_own<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let worker = site.worker();
    let blocks = [(); 3].map(|()| worker.take(0));
    assert_no_overlap(&blocks);
    assert!(blocks.iter().all(|block| block.requested() == 0));
    drop(blocks);
    site.assert_conserved();
}

/// An explicit free can be awaited, whichever stream owns the memory by then.
pub(crate) fn free_completes_once_its_stream_has_passed<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let worker = site.worker();
    let block = worker.take(MIB);
    let address = block.address();
    let gate = worker.use_until_opened(&block, 1);
    let mut freed = block.deallocate();
    assert!(crate::common::poll(&mut freed).is_pending());
    let again = worker.take(MIB);
    assert_eq!(again.address(), address, "the same stream reuses it");
    let later = worker.use_until_opened(&again, 2);
    gate.open();
    futures::executor::block_on(freed).unwrap();
    later.open();
    worker.free_and_settle(again);
    site.assert_sound();
}

/// RMM `AllocateTooMuch`: 1 PiB fails at once, with a reason, and the pool stays usable.
pub(crate) fn request_that_can_never_fit_fails_at_once<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let worker = site.worker();
    for requested in [1 << 50, u64::MAX, 8 * MIB + 1] {
        let expected = AllocError::TooLarge {
            requested,
            capacity: 8 * MIB,
        };
        assert_eq!(worker.try_take(requested).unwrap_err(), expected);
        let awaited = site.pool.allocate(&worker.stream, requested);
        assert_eq!(now(awaited).unwrap_err(), expected);
    }
    let block = worker.take(8 * MIB);
    worker.use_up(&block, 1);
    worker.free_and_settle(block);
    site.assert_sound();
}

/// RMM and Umpire: alignments from 1 to 4096. This test goes up to the device's granularity.
pub(crate) fn alignment_is_respected_and_invalid_alignment_is_refused<B: Bench>() {
    let site = Site::<B>::new(64 * MIB);
    let worker = site.worker();
    let largest = site.bench.device().capabilities().granularity;
    let aligned = |alignment| {
        (site.pool)
            .allocate(&worker.stream, 700 + alignment)
            .alignment(alignment)
            .try_now()
    };
    let powers = (0..).map(|power| 1u64 << power);
    let blocks: Vec<_> = powers
        .take_while(|alignment| *alignment <= largest)
        .map(|alignment| (alignment, aligned(alignment).unwrap()))
        .collect();
    for (alignment, block) in &blocks {
        assert!(block.address().is_aligned_to(*alignment));
    }
    // Invalid alignments are refused also if the lane caches a block.
    drop(worker.take(1));
    for alignment in [0, 3, 12, 4095, 2 * largest] {
        let expected = AllocError::InvalidAlignment { alignment, largest };
        let refused = site
            .pool
            .allocate(&worker.stream, 1)
            .alignment(alignment)
            .try_now();
        assert_eq!(refused.unwrap_err(), expected);
    }
    assert_no_overlap(blocks.iter().map(|(_, block)| block));
    drop(blocks);
    site.assert_conserved();
}

/// No two live blocks share a byte, whatever is freed in between.
pub(crate) fn live_blocks_never_overlap<B: Bench>() {
    let site = Site::<B>::new(64 * MIB);
    let worker = site.worker();
    let mut random = fastrand::Rng::with_seed(3);
    let mut live = Vec::new();
    for _ in 0..300 {
        live.extend(worker.try_take(random.u64(1..3 * MIB)));
        assert_no_overlap(&live);
        if live.len() > 20 {
            drop(live.swap_remove(random.usize(..live.len())));
        }
    }
    drop(live);
    site.assert_conserved();
}

fn assert_no_overlap<'a>(blocks: impl IntoIterator<Item = &'a Block>) {
    let mut spans: Vec<_> = blocks.into_iter().map(Span::from).collect();
    spans.sort_by_key(|span| span.address);
    for pair in spans.windows(2) {
        assert!(pair[0].address + pair[0].bytes <= pair[1].address);
    }
}

/// RMM `RandomAllocations`, PyTorch `allocator_fuzz`: mixed sizes on several streams, in a pool that is mostly
/// full. Written contents stay until their owner frees them.
pub(crate) fn contents_stay_until_their_owner_frees_them<B: Bench>() {
    let site = Site::<B>::new(16 * MIB);
    let workers = site.workers::<3>();
    let mut random = fastrand::Rng::with_seed(4);
    let mut live = Vec::new();
    for step in 0..400u32 {
        let at = random.usize(..workers.len());
        match workers[at].try_take(random_size(&mut random)) {
            Ok(block) => live.push(written(&workers[at], at, block, step)),
            Err(_) => live.clear(),
        }
        if random.u8(..) < 100 && !live.is_empty() {
            let (at, block, value): (usize, Block, u8) =
                live.swap_remove(random.usize(..live.len()));
            workers[at].expect(&block, value);
        }
    }
    drop(live);
    workers.iter().for_each(Worker::settle);
    site.assert_sound();
}

/// Draws a size: mostly small, sometimes several MiB.
pub(crate) fn random_size(random: &mut fastrand::Rng) -> u64 {
    let bits = random.u32(4..=22);
    random.u64(1..1 << bits)
}

fn written<B: Bench>(worker: &Worker<B>, at: usize, block: Block, step: u32) -> (usize, Block, u8) {
    let value = (step % 251) as u8 + 1;
    worker.use_up(&block, value);
    (at, block, value)
}

/// tokio#4446: a semaphore of bytes with 32-bit permits has no lease over 4 GiB.
pub(crate) fn block_may_exceed_four_gibibytes<B: Bench>() {
    const BYTES: u64 = (5 << 30) + 3 * MIB;
    let site = Site::<B>::with(6 << 30, |builder| builder.chunk_bytes(64 * MIB));
    let [holder, waiter] = site.workers();
    let first = holder.take(BYTES);
    assert_eq!((first.requested(), first.size()), (BYTES, BYTES));
    holder.use_up(last_page(&first), 1);
    let mut second = site.pool.allocate(&waiter.stream, BYTES);
    assert!(crate::common::poll(&mut second).is_pending());
    drop(first);
    let second = futures::executor::block_on(second).unwrap();
    waiter.use_up(last_page(&second), 2);
    assert_eq!(site.pool.inspect().statistics().used.current, BYTES);
    waiter.free_and_settle(second);
    site.assert_sound();
}

fn last_page(block: &Block) -> Span {
    Span {
        address: block.address() + (block.size() - 4096),
        bytes: 4096,
    }
}
