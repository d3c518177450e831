//! Another process holds the device's memory. Unused memory of other pools is used first, a waiter gets memory once the
//! process releases it, and a request that times out reports the device's figures.

use crate::bench::Bench;
use crate::children::Neighbour;
use crate::common::poll;
use crate::cuda::{Cuda, Setting};
use crate::gpu::settle;
use cudarc::driver::{CudaContext, CudaStream, result};
use futures::executor::block_on;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::MemoryKind;
use weirpool::{AllocError, Block, Pool, Stream};

pub(crate) const RESERVATION: &str = "reserve memory";

const GIB: u64 = 1 << 30;
const STEP: u64 = GIB / 2;
/// The bytes that the other process leaves.
const LEFT: u64 = 3 * GIB;
/// Available while the process holds its memory, if both pools give up their caches: 6 GiB are cached or left.
const WITH_IT: u64 = 4 * GIB + STEP;
/// Available only after the process releases its memory.
const WITHOUT_IT: u64 = 8 * GIB;
const PATIENCE: Duration = Duration::from_secs(20);

/// A pool over the whole device, with few large chunks.
struct Setup<S: Setting> {
    bench: Cuda<S>,
    pool: Pool,
    work: Arc<CudaStream>,
    stream: Stream,
}

impl<S: Setting> Setup<S> {
    fn new(bench: &Cuda<S>) -> Self {
        let pool = Pool::builder(bench.device()).chunk_bytes(STEP);
        let pool = pool.build().expect("a pool over the whole device");
        let work = bench.stream();
        let stream = pool.register(&work).expect("a stream of it");
        let bench = bench.clone();
        Self {
            bench,
            pool,
            work,
            stream,
        }
    }

    /// Makes the pool cache this much unused memory.
    fn keep(&self, bytes: u64) {
        drop(self.pool.try_allocate(&self.stream, bytes).unwrap());
        block_on(self.stream.synchronize()).unwrap();
        assert_eq!(self.reserved(), bytes);
    }

    fn reserved(&self) -> u64 {
        self.pool.inspect().statistics().reserved.current
    }

    /// Asserts that the memory works: a kernel writes all of it, and another one reads it.
    fn use_up(&self, block: &Block, word: u32) {
        let (gpu, address) = (&self.bench.gpu, block.address());
        gpu.fill(&self.work, address, block.size(), word);
        let (sender, results) = std::sync::mpsc::channel();
        gpu.compare(&self.work, address, block.size(), word, move |is_right| {
            let _ = sender.send(is_right);
        });
        settle(&self.work);
        assert_eq!(results.recv(), Ok(true), "what a kernel wrote");
    }
}

/// The other process frees its memory, or ends.
pub(crate) fn memory_of_another_process_is_waited_for<S: Setting>() {
    for lets_go in ["free", "end"] {
        let bench = Cuda::<S>::new();
        let [one, other] = [(); 2].map(|()| Setup::new(&bench));
        one.keep(GIB);
        other.keep(2 * GIB);
        let mut neighbour = Neighbour::start(RESERVATION);
        let said = neighbour.hear();
        assert!(said.starts_with("took"), "{said}");
        cached_memory_is_spilled_first(&one, &other);
        timed_out_request_reports_the_device(&one);
        let waiting = one.pool.allocate(&one.stream, WITHOUT_IT);
        let mut waiting = waiting.timeout(PATIENCE);
        assert!(poll(&mut waiting).is_pending(), "{said}");
        neighbour.say(lets_go);
        let block = block_on(waiting).unwrap();
        one.use_up(&block, 2);
        drop(block);
        neighbour.end();
        assert_eq!(one.pool.inspect().statistics().waits.waiting, 0);
        one.pool.inspect().check_conserved().unwrap();
        other.pool.inspect().check_conserved().unwrap();
    }
}

fn cached_memory_is_spilled_first<S: Setting>(one: &Setup<S>, other: &Setup<S>) {
    let block = one.pool.try_allocate(&one.stream, WITH_IT).unwrap();
    assert_eq!(
        one.reserved(),
        WITH_IT,
        "its cached memory is part of it, or spilled"
    );
    assert!(other.reserved() < 2 * GIB, "the other pool spilled nothing");
    one.use_up(&block, 1);
    drop(block);
    block_on(one.stream.synchronize()).unwrap();
}

fn timed_out_request_reports_the_device<S: Setting>(one: &Setup<S>) {
    let waiting = one.pool.allocate(&one.stream, WITHOUT_IT);
    let answer = block_on(waiting.timeout(Duration::from_millis(200)));
    let Err(AllocError::TimedOut { shortfall, .. }) = answer else {
        panic!("{answer:?}");
    };
    let info = shortfall.device.expect("it was the device that refused");
    let total = one.bench.device().memory_info(MemoryKind::Device).unwrap();
    assert_eq!(info.total, total.total);
    assert!(info.free < WITHOUT_IT, "{info:?}");
    assert_eq!(shortfall.requested, WITHOUT_IT);
}

/// Runs in the child: takes almost all memory, and holds it until a line or the end of the input comes.
pub(crate) fn reservation() {
    let context = CudaContext::new(0).unwrap();
    let left = || context.mem_get_info().unwrap().0 as u64;
    let mut taken = Vec::new();
    for bytes in [GIB, GIB / 8] {
        while left() >= LEFT + bytes {
            // SAFETY: no work uses the memory.
            taken.push(unsafe { result::malloc_sync(bytes as usize) }.unwrap());
        }
    }
    println!("took {} pieces, and left {} bytes", taken.len(), left());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    if line.trim() != "free" {
        return;
    }
    for address in taken {
        // SAFETY: it was taken above.
        unsafe { result::free_sync(address) }.unwrap();
    }
    // The process lives on without the memory until the input ends.
    std::io::stdin().read_line(&mut line).unwrap();
}
