//! Two GPUs: access to each other's memory, copies, and events across them. Ignored where there is one.

use crate::common::MIB;
use crate::gpu::Gpu;
use cudarc::driver::CudaStream;
use futures::executor::block_on;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::Device;
use weirpool::device::cuda::CudaDevice;
use weirpool::{AccessError, Block, CopyError, Pool, Stream, StreamError, Unordered, Upstream};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

const BYTES: u64 = 24 * MIB;

/// A GPU, a pool over it, and a stream.
struct Setup {
    device: CudaDevice,
    gpu: Gpu,
    pool: Pool,
    work: Arc<CudaStream>,
    stream: Stream,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Virtual,
    Plain,
    DriverPool,
    Pinned,
}

const ALL: [Memory; 4] = [
    Memory::Virtual,
    Memory::Plain,
    Memory::DriverPool,
    Memory::Pinned,
];

impl Setup {
    fn new(ordinal: usize, memory: Memory) -> Self {
        let device = CudaDevice::new(ordinal).unwrap();
        let gpu = Gpu::load(device.context()).unwrap();
        let builder = Pool::builder(device.clone()).capacity(256 * MIB);
        let builder = match memory {
            Memory::Virtual => builder.chunk_bytes(2 * MIB),
            Memory::Plain => builder.upstream(Upstream::Device),
            Memory::Pinned => builder.upstream(Upstream::Pinned),
            Memory::DriverPool => {
                let pool = DriverPool::builder(&device).build().unwrap();
                builder.segment_source(pool.segments(DriverPoolUse::SubAllocated))
            }
        };
        let pool = builder.build().unwrap();
        let work = device.create_stream().unwrap();
        let stream = pool.register(&work).unwrap();
        Self {
            device,
            gpu,
            pool,
            work,
            stream,
        }
    }

    fn two(memory: Memory) -> [Self; 2] {
        [0, 1].map(|ordinal| Self::new(ordinal, memory))
    }

    fn take(&self, bytes: u64) -> Block {
        self.pool.try_allocate(&self.stream, bytes).unwrap()
    }

    fn can_reach(&self, other: &Self) -> bool {
        other.pool.peers().is_supported(&self.device)
    }

    fn settle(&self) {
        block_on(self.stream.synchronize()).unwrap();
        self.pool.maintain().reap().unwrap();
    }
}

/// Returns whether all words of a block are this one, by a copy to the host.
fn has(block: &Block, stream: &Stream, word: u32) -> bool {
    let bytes = block_on(block.download(stream, 0..block.size()).unwrap()).unwrap();
    bytes.chunks_exact(4).all(|four| four == word.to_ne_bytes())
}

/// A kernel of the second device writes memory of the first, which was mapped before, later, or anew.
pub(crate) fn kernel_writes_memory_of_the_other_device() {
    for memory in ALL {
        let [here, there] = Setup::two(memory);
        if !there.can_reach(&here) {
            eprintln!("not linked: {memory:?} has no access");
            continue;
        }
        let early = here.take(BYTES);
        let refused = here.pool.register(&there.work).unwrap_err();
        assert_eq!(refused, StreamError::ForeignDevice);
        assert!(here.pool.peers().enable(&there.device).unwrap());
        assert!(!there.pool.peers().is_enabled(&here.device), "directional");
        let guest = here.pool.register(&there.work).unwrap();
        let scattered: Vec<_> = (0..24).map(|_| here.take(2 * MIB)).collect();
        let (kept, dropped): (Vec<_>, Vec<_>) = scattered
            .into_iter()
            .enumerate()
            .partition(|(at, _)| at % 2 == 0);
        drop(dropped);
        here.settle();
        let later = here.take(BYTES); // from chunks of the dropped ones, among others
        for (word, mut block) in [(7, early), (8, later)] {
            let submit = |work: &Arc<CudaStream>, memory: weirpool::device::Argument<'_>| {
                there.gpu.fill(work, memory.address(), memory.size(), word);
            };
            drop(guest.submit(&mut block, submit).unwrap());
            assert!(has(&block, &here.stream, word), "{memory:?} {word}");
            drop(block);
        }
        drop((kept, guest));
        block_on(async { there.work.synchronize() }).unwrap();
        here.settle();
        there.settle();
        let disabled = here.pool.peers().disable(&there.device);
        assert_eq!(disabled, Ok(true), "{memory:?}");
        assert!(!here.pool.peers().disable(&there.device).unwrap());
        here.pool.inspect().check_conserved().unwrap();
    }
}

pub(crate) fn access_stays_while_work_of_the_other_device_runs() {
    let [here, there] = Setup::two(Memory::Virtual);
    if !there.can_reach(&here) {
        return eprintln!("not linked");
    }
    here.pool.peers().enable(&there.device).unwrap();
    let guest = here.pool.register(&there.work).unwrap();
    let block = here.take(MIB);
    let gate = there.gpu.hold(&there.work);
    guest.record_use(Unordered::UntilFreed(&block)).unwrap();
    there.gpu.fill(&there.work, block.address(), MIB, 1);
    drop((block, guest));
    let in_use = Err(AccessError::InUse { streams: 1 });
    assert_eq!(here.pool.peers().disable(&there.device), in_use);
    gate.open();
    there.work.synchronize().unwrap();
    assert_eq!(here.pool.peers().disable(&there.device), Ok(true));
}

/// Behind a slow kernel of the source's stream, and before the next use of either block, on streams of both devices.
pub(crate) fn copies_keep_bytes_and_order() {
    for memory in ALL {
        for has_access in [false, true] {
            for by in [0, 1] {
                let setups = Setup::two(memory);
                let [here, there] = &setups;
                if has_access {
                    if !(here.can_reach(there) && there.can_reach(here)) {
                        continue;
                    }
                    here.pool.peers().enable(&there.device).unwrap();
                    there.pool.peers().enable(&here.device).unwrap();
                }
                let (mut from, mut to) = (here.take(BYTES), there.take(BYTES));
                here.gpu.fill(&here.work, from.address(), BYTES, 1);
                there.gpu.fill(&there.work, to.address(), BYTES, 2);
                here.gpu.spend(&here.work, Duration::from_millis(20));
                here.gpu.add(&here.work, from.address(), BYTES, 10);
                let on = &setups[by].stream;
                let copied = from.copy_to(0..BYTES, &mut to, 0, on).unwrap();
                // The source is written, and the destination read, right behind it.
                let _ordered = here.stream.record_use(&mut from).unwrap();
                here.gpu.fill(&here.work, from.address(), BYTES, 3);
                drop(from);
                assert!(has(&to, &there.stream, 11), "{memory:?} {has_access} {by}");
                block_on(copied).unwrap();
                drop(to);
                for setup in &setups {
                    setup.settle();
                    setup.pool.inspect().check_conserved().unwrap();
                }
            }
        }
    }
}

pub(crate) fn event_orders_streams_of_two_devices() {
    let [here, there] = Setup::two(Memory::Pinned); // both see it
    let block = here.take(MIB);
    let gate = here.gpu.hold(&here.work);
    here.gpu.fill(&here.work, block.address(), MIB, 5);
    there.stream.wait(&here.stream.event().unwrap()).unwrap();
    there.gpu.add(&there.work, block.address(), MIB, 6);
    let end = there.stream.event().unwrap();
    assert!(!end.is_complete().unwrap());
    here.stream.wait(&end).unwrap();
    here.gpu.add(&here.work, block.address(), MIB, 7);
    gate.open();
    assert!(has(&block, &here.stream, 18));
}

pub(crate) fn captured_copy_needs_access() {
    let [here, there] = Setup::two(Memory::Virtual);
    let (from, mut to) = (here.take(MIB), there.take(MIB));
    let capture = here.pool.capture(&here.stream).unwrap();
    let refused = from.copy_to(0..MIB, &mut to, 0, &here.stream).unwrap_err();
    assert_eq!(refused, CopyError::NoAccessInCapture);
    drop(capture);
    if !here.can_reach(&there) {
        return eprintln!("not linked");
    }
    here.settle();
    there.settle();
    there.pool.peers().enable(&here.device).unwrap();
    let capture = here.pool.capture(&here.stream).unwrap();
    block_on(from.copy_to(0..MIB, &mut to, 0, &here.stream).unwrap()).unwrap();
    let graph = capture.end().unwrap();
    for word in [3, 4] {
        here.gpu.fill(&here.work, from.address(), MIB, word);
        graph.launch(&here.stream).unwrap();
        there.stream.wait(&here.stream.event().unwrap()).unwrap();
        assert!(has(&to, &there.stream, word));
    }
}

pub(crate) fn capabilities_list_the_peers() {
    let all = CudaDevice::all().unwrap();
    for (ordinal, listed) in all.iter().enumerate() {
        let device = CudaDevice::new(ordinal).unwrap();
        assert_eq!(device.capabilities().peers, listed.peers);
        eprintln!("{listed}");
    }
}
