//! Streams that hand-shake on the device: a kernel on one waits, in memory, for a kernel on the other. An
//! allocation that made the other stream wait for the first would tie a deadlock that nothing unties. Kernels
//! that wait give up after a while, and fail the test then.

use crate::bench::Bench;
use crate::common::{MIB, poll};
use crate::cuda::{Cuda, Setting};
use crate::site::{Site, Worker, builder, settle_all};
use futures::executor::block_on;
use weirpool::{Block, Order, PoolBuilder, Sealing, Source};

/// A number in device memory, by which streams shake hands.
struct Flag {
    block: Block,
    count: u64,
}

impl Flag {
    /// In a pool of its own.
    fn new<S: Setting>(bench: &Cuda<S>) -> Self {
        let pool = builder::<Cuda<S>>(bench.device(), 2 * MIB).build().unwrap();
        let stream = pool.register(&bench.stream()).unwrap();
        let block = pool.try_allocate(&stream, 512).unwrap();
        bench.gpu.write_now(block.address(), block.size(), 0);
        Self { block, count: 0 }
    }

    /// Keeps the stream until the next [`Self::shake`].
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

/// How an allocation is asked for.
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

/// The first stream frees something, and then waits for the second. Of the two blocks that there are the
/// other is complete, and its event says so: the second stream has that one, whenever the first is sealed.
pub(crate) fn a_hand_shake_is_not_waited_for_while_other_memory_can_do<S: Setting>() {
    let sealings = [Sealing::default(), Sealing::OnDemand];
    let orders = [Order::GrowFirst, Order::WaitFirst];
    for (sealing, order) in sealings.into_iter().flat_map(|s| orders.map(|o| (s, o))) {
        for bytes in [8 * MIB, MIB] {
            let set = |builder: PoolBuilder| builder.sealing(sealing).order(order);
            let site = Site::<Cuda<S>>::with(2 * bytes, set);
            shake_hands(&site, bytes);
            let waits = site.pool.statistics().device_waits;
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

/// There is only what the first stream freed before it began to wait. An event recorded at the free is not
/// behind the wait: the second stream has the memory, and goes on.
pub(crate) fn what_was_freed_before_a_hand_shake_serves_the_other_side<S: Setting>() {
    const BYTES: u64 = 8 * MIB;
    for manner in [Manner::Try, Manner::Await] {
        let site = Site::<Cuda<S>>::new(BYTES);
        let [first, second] = site.workers();
        let mut flag = Flag::new(&site.bench);
        let block = first.take(BYTES);
        first.use_up(&block, 1);
        // So much seals at once.
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

/// The same for a small block, which would be sealed later, when somebody waits for it already.
pub(crate) fn what_is_freed_while_somebody_waits_is_sealed_at_once<S: Setting>() {
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
