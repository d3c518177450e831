//! Another process has the device's memory: what is kept here is given for it, who waits gets it once that lets go,
//! and who does not wait so long is told what the device has.

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
use weirpool::testing::Invariants;
use weirpool::{AllocError, Block, Pool, Stream};

pub(crate) const RESERVATION: &str = "hoard";

const GIB: u64 = 1 << 30;
const STEP: u64 = GIB / 2;
/// What the other process leaves.
const LEFT: u64 = 3 * GIB;
/// What can be had with it there, if both pools give what they keep: 6 GiB are kept or left.
const WITH_IT: u64 = 4 * GIB + STEP;
/// What can be had only without it.
const WITHOUT_IT: u64 = 8 * GIB;
const PATIENCE: Duration = Duration::from_secs(20);

/// A pool that may have all of the device, in few large handles.
struct Place<S: Setting> {
    bench: Cuda<S>,
    pool: Pool,
    work: Arc<CudaStream>,
    stream: Stream,
}

impl<S: Setting> Place<S> {
    fn new(bench: &Cuda<S>) -> Self {
        let pool = Pool::builder_shared(bench.device()).chunk_bytes(STEP);
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

    /// Has so much memory that nobody uses.
    fn keep(&self, bytes: u64) {
        drop(self.pool.try_allocate(&self.stream, bytes).unwrap());
        block_on(self.stream.synchronize()).unwrap();
        assert_eq!(self.reserved(), bytes);
    }

    fn reserved(&self) -> u64 {
        self.pool.statistics().reserved.current
    }

    /// Whether the memory is there: a kernel writes all of it, and another reads it.
    fn use_up(&self, block: &Block, word: u32) {
        let (gpu, address) = (&self.bench.gpu, block.address());
        gpu.fill(&self.work, address, block.size(), word);
        let (tell, told) = std::sync::mpsc::channel();
        gpu.compare(&self.work, address, block.size(), word, move |is_right| {
            let _ = tell.send(is_right);
        });
        settle(&self.work);
        assert_eq!(told.recv(), Ok(true), "what a kernel wrote");
    }
}

/// The other process frees its memory, or ends with it.
pub(crate) fn another_process_is_waited_for<S: Setting>() {
    for lets_go in ["free", "end"] {
        let bench = Cuda::<S>::new();
        let [one, other] = [(); 2].map(|()| Place::new(&bench));
        one.keep(GIB);
        other.keep(2 * GIB);
        let mut neighbour = Neighbour::start(RESERVATION);
        let said = neighbour.hear();
        assert!(said.starts_with("took"), "{said}");
        what_is_kept_is_given_first(&one, &other);
        who_waits_so_long_only_is_told(&one);
        let waiting = one.pool.allocate(&one.stream, WITHOUT_IT);
        let mut waiting = waiting.timeout(PATIENCE);
        assert!(poll(&mut waiting).is_pending(), "{said}");
        neighbour.say(lets_go);
        let block = block_on(waiting).unwrap();
        one.use_up(&block, 2);
        drop(block);
        neighbour.end();
        assert_eq!(one.pool.statistics().waits.waiting, 0);
        one.pool.check_conserved().unwrap();
        other.pool.check_conserved().unwrap();
    }
}

fn what_is_kept_is_given_first<S: Setting>(one: &Place<S>, other: &Place<S>) {
    let block = one.pool.try_allocate(&one.stream, WITH_IT).unwrap();
    assert_eq!(
        one.reserved(),
        WITH_IT,
        "what it kept is part of it, or given"
    );
    assert!(other.reserved() < 2 * GIB, "the other pool gave nothing");
    one.use_up(&block, 1);
    drop(block);
    block_on(one.stream.synchronize()).unwrap();
}

fn who_waits_so_long_only_is_told<S: Setting>(one: &Place<S>) {
    let waiting = one.pool.allocate(&one.stream, WITHOUT_IT);
    let answer = block_on(waiting.timeout(Duration::from_millis(200)));
    let Err(AllocError::TimedOut { shortfall, .. }) = answer else {
        panic!("{answer:?}");
    };
    let told = shortfall.device.expect("it was the device that refused");
    let total = one.bench.device().memory_info(MemoryKind::Device).unwrap();
    assert_eq!(told.total, total.total);
    assert!(told.free < WITHOUT_IT, "{told:?}");
    assert_eq!(shortfall.requested, WITHOUT_IT);
}

/// What the child does: takes all but a little, and holds it until it is told, or nobody is there to tell it.
pub(crate) fn reservation() {
    let context = CudaContext::new(0).unwrap();
    let left = || context.mem_get_info().unwrap().0 as u64;
    let mut taken = Vec::new();
    for bytes in [GIB, GIB / 8] {
        while left() >= LEFT + bytes {
            // SAFETY: nobody uses the memory.
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
    // It lives on without the memory, until nobody is there.
    std::io::stdin().read_line(&mut line).unwrap();
}
