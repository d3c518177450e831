//! Streams that hand-shake on the device: a kernel on one waits in memory for a kernel on another. An allocation that
//! made the other stream wait for the first would cause a deadlock. Kernels give up waiting after a while, and then
//! fail the test.

use crate::bench::Bench;
use crate::common::{MIB, poll};
use crate::cuda::{Cuda, Setting};
use crate::site::{Site, Worker, builder, settle_all};
use futures::executor::block_on;
use weirpool::{Block, PoolBuilder, Sealing, Source, WhenShort};

/// A number in device memory, on which streams hand-shake.
struct Flag {
    block: Block,
    count: u64,
}

impl Flag {
    /// Creates a flag in a pool of its own.
    fn new<S: Setting>(bench: &Cuda<S>) -> Self {
        let pool = builder::<Cuda<S>>(bench.device(), 2 * MIB).build().unwrap();
        let stream = pool.register(&bench.stream()).unwrap();
        let block = pool.try_allocate(&stream, 512).unwrap();
        bench.gpu.write_now(block.address(), block.size(), 0);
        Self { block, count: 0 }
    }

    /// Holds the stream until the next [`Self::shake`].
    fn await_on<S: Setting>(&mut self, worker: &Worker<Cuda<S>>) {
        self.count += 1;
        let gpu = &worker.bench.gpu;
        gpu.hold_until(&worker.work, self.block.address(), self.count, ());
    }

    fn shake<S: Setting>(&self, worker: &Worker<Cuda<S>>) {
        let gpu = &worker.bench.gpu;
        gpu.raise(&worker.work, self.block.address(), self.count);
    }
}

/// How memory is requested.
#[derive(Clone, Copy, Debug)]
enum Manner {
    Try,
    Await,
}

impl Manner {
    fn take<S: Setting>(self, worker: &Worker<Cuda<S>>, bytes: u64) -> Block {
        match self {
            Self::Try => worker.take(bytes),
            Self::Await => block_on(worker.allocate(bytes)),
        }
    }
}

/// The first stream frees a block, and then waits for the second. The other of the two blocks is complete, and has an
/// event. The second stream gets that one, whenever the first block is sealed.
pub(crate) fn handshake_is_not_waited_for_while_other_memory_suffices<S: Setting>() {
    let sealings = [Sealing::default(), Sealing::OnDemand];
    let orders = [WhenShort::GrowFirst, WhenShort::WaitBriefly];
    for (sealing, order) in sealings.into_iter().flat_map(|s| orders.map(|o| (s, o))) {
        for bytes in [8 * MIB, MIB] {
            let set = |builder: PoolBuilder| {
                builder
                    .sealing(sealing)
                    .tuning(|tuning| tuning.when_short = order)
            };
            let site = Site::<Cuda<S>>::with(2 * bytes, set);
            shake_hands(&site, bytes);
            let waits = site.pool.inspect().statistics().device_waits;
            assert_eq!(waits, 0, "{sealing:?}, {order:?}, {bytes} bytes");
            site.assert_sound();
        }
    }
}

fn shake_hands<S: Setting>(site: &Site<Cuda<S>>, bytes: u64) {
    let [first, second] = site.workers();
    let mut flag = Flag::new(&site.bench);
    let both = [(); 2].map(|()| first.take(bytes));
    both.iter().for_each(|block| first.use_up(block, 1));
    drop(both);
    for round in 0..5u8 {
        for manner in [Manner::Try, Manner::Await] {
            for worker in [&first, &second] {
                worker.stream.seal().unwrap();
                worker.settle();
            }
            let early = first.take(bytes);
            first.use_up(&early, round);
            drop(early);
            flag.await_on(&first);
            let block = manner.take(&second, bytes);
            assert_ne!(block.source(), Source::DeviceWait);
            second.use_up(&block, round + 100);
            flag.shake(&second);
            settle_all(&[&second, &first]);
            drop(block);
        }
    }
}

/// Only memory that the first stream freed before it began to wait is available. Its event was recorded at the free,
/// before the wait, so the second stream gets the memory and goes on.
pub(crate) fn memory_freed_before_a_handshake_serves_the_other_stream<S: Setting>() {
    const BYTES: u64 = 8 * MIB;
    for manner in [Manner::Try, Manner::Await] {
        let site = Site::<Cuda<S>>::new(BYTES);
        let [first, second] = site.workers();
        let mut flag = Flag::new(&site.bench);
        let block = first.take(BYTES);
        first.use_up(&block, 1);
        // A block of this size seals at once.
        drop(block);
        flag.await_on(&first);
        let block = manner.take(&second, BYTES);
        second.use_up(&block, 2);
        flag.shake(&second);
        settle_all(&[&second, &first]);
        drop(block);
        site.assert_sound();
    }
}

/// A small block, which would usually be sealed later, is freed while a request waits.
pub(crate) fn memory_freed_while_a_request_waits_is_sealed_at_once<S: Setting>() {
    const BYTES: u64 = 2 * MIB;
    for sealing in [Sealing::default(), Sealing::OnDemand] {
        let site = Site::<Cuda<S>>::with(BYTES, |builder| builder.sealing(sealing));
        let [first, second] = site.workers();
        let mut flag = Flag::new(&site.bench);
        let block = first.take(BYTES);
        first.use_up(&block, 1);
        let mut waiting = site.pool.allocate(&second.stream, BYTES);
        assert!(poll(&mut waiting).is_pending());
        drop(block);
        flag.await_on(&first);
        let block = block_on(waiting).unwrap();
        second.use_up(&block, 2);
        flag.shake(&second);
        settle_all(&[&second, &first]);
        drop(block);
        site.assert_sound();
    }
}
