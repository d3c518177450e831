//! How the memory of graphs grows: what a graph holds is extended where it is, and the rest is exchanged.

use super::*;
use crate::common::{Made, assert_matches, devices, set_up, stream};
use weirpool::device::sim::Clock;
use weirpool::{AllocError, GraphMemory};

const GIB: u64 = 1 << 30;

/// Captures one block that is allocated, written and dropped.
fn capture_one(
    memory: &GraphMemory,
    (work, stream): (&SimStream, &Stream),
    bytes: u64,
) -> CapturedGraph {
    let capture = memory.capture(stream).unwrap();
    let block = stream.pool().try_allocate(stream, bytes).unwrap();
    work.submit(touch(&block));
    drop(block);
    capture.end().unwrap()
}

/// Work that writes a block, as far as the checker knows.
fn touch(block: &Block) -> Operation {
    Operation::new(us(1)).writes(block.address(), block.size())
}

/// (tokenspeed#1065, sglang#8538)
#[test]
fn graphs_of_growing_sizes_share_the_largest() {
    for has_others in [false, true] {
        let (device, pool, [(work, stream)]) = set_up(8 * GIB);
        let memory = pool.graph_memory();
        let (mut graphs, mut others) = (Vec::new(), Vec::new());
        for bytes in (1..=64).map(|step| step * 8 * MIB) {
            graphs.push(capture_one(&memory, (&work, &stream), bytes));
            if has_others {
                // Blocks of others do not take the addresses above.
                others.push(pool.try_allocate(&stream, 8 * MIB).unwrap());
            }
        }
        assert!(
            memory.size() <= 520 * MIB,
            "{has_others}: {} MiB",
            memory.size() / MIB
        );
        for graph in &graphs {
            graph.launch(&stream).unwrap();
        }
        device.advance_to_end();
        device.assert_ordered();
    }
}

/// One capture whose blocks grow needs the largest, too.
#[test]
fn blocks_of_growing_sizes_in_one_capture_share_the_largest() {
    let site = Site::new(GIB);
    let capture = site.pool.capture(&site.stream).unwrap();
    for step in 1..=32 {
        let block = site.take(step * 2 * MIB);
        site.work.submit(write(&block, 1));
    }
    assert_eq!(capture.memory().size(), 64 * MIB);
    let graph = capture.end().unwrap();
    graph.launch(&site.stream).unwrap();
}

/// (pytorch#159674)
#[test]
fn memory_of_graphs_is_joined_when_a_larger_block_is_wanted() {
    let device = SimDevice::builder().memory(80 * GIB).build();
    let pool = Pool::builder(device.clone()).made();
    let stream = pool.create_stream().unwrap();
    let memory = pool.graph_memory();
    for size in [60 * GIB, 70 * GIB] {
        let capture = memory.capture(&stream).unwrap();
        drop(pool.try_allocate(&stream, size).unwrap());
        drop(capture.end().unwrap());
    }
}

/// Another block lies in the way, and the memory was given beforehand.
#[test]
fn memory_that_no_graph_holds_is_moved() {
    let site = Site::new(80 * MIB);
    let memory = site.pool.graph_memory();
    memory
        .give(site.pool.reserve(40 * MIB).try_now().unwrap())
        .unwrap();
    let _between = site.pool.try_allocate(&site.stream, 2 * MIB).unwrap();
    memory
        .give(site.pool.reserve(20 * MIB).try_now().unwrap())
        .unwrap();
    let graph = capture_one(&memory, (&site.work, &site.stream), 56 * MIB);
    assert_eq!(memory.size(), 60 * MIB, "the memory suffices");
    drop(graph);
    let graph = capture_one(&memory, (&site.work, &site.stream), 70 * MIB);
    assert!(memory.size() <= 74 * MIB);
    graph.launch(&site.stream).unwrap();
}

/// What a graph holds stays, though it is free in the memory. The request fails if the rest does not suffice.
#[test]
fn memory_that_a_graph_holds_is_not_moved() {
    let site = Site::new(80 * MIB);
    let memory = site.pool.graph_memory();
    memory
        .give(site.pool.reserve(32 * MIB).try_now().unwrap())
        .unwrap();
    let capture = memory.capture(&site.stream).unwrap();
    let [lower, upper] = [(); 2].map(|()| site.take(16 * MIB));
    site.work.submit(touch(&lower));
    drop(lower);
    let held = capture.end().unwrap();
    {
        let _capture = memory.capture(&site.stream).unwrap();
        let error = site.pool.try_allocate(&site.stream, 56 * MIB).unwrap_err();
        assert_matches!(error, AllocError::NotReservedForCapture { .. });
    }
    held.launch(&site.stream).unwrap();
    site.device.advance_to_end();
    drop((held, upper));
    // Now nothing holds it.
    drop(capture_one(&memory, (&site.work, &site.stream), 70 * MIB));
}

/// A checkpoint holds its ranges as a graph does.
#[test]
fn ranges_of_a_checkpoint_are_not_moved() {
    let site = Site::new(20 * MIB);
    let memory = site.pool.graph_memory();
    memory
        .give(site.pool.reserve(8 * MIB).try_now().unwrap())
        .unwrap();
    let blocks = [(); 4].map(|()| memory.allocate(&site.stream, 2 * MIB).unwrap());
    let [first, second, third, fourth] = blocks;
    let state = memory.checkpoint();
    drop((first, third));
    let large = memory.allocate(&site.stream, 4 * MIB).unwrap();
    drop((second, fourth));
    site.device.advance_to_end();
    let restored = memory.restore(&state, &site.stream).unwrap();
    assert_eq!(restored.len(), 4);
    drop((restored, large, state));
    // Without it they are.
    let _all = memory.allocate(&site.stream, 12 * MIB).unwrap();
    assert_eq!(memory.size(), 12 * MIB);
}

/// Random captures that share a memory, between other requests. The device faults if a launch touches memory that is not
/// mapped, and its checker finds memory that was given to others.
#[test]
fn graphs_that_share_memory_stay_valid_however_it_grows() {
    for seed in 0..120 {
        let mut random = fastrand::Rng::with_seed(seed);
        let device = devices()[seed as usize % 2].clone();
        let pool = Pool::builder(device.clone())
            .capacity(96 * MIB)
            .chunk_bytes(2 * MIB)
            .made();
        let (work, stream) = stream(&device, &pool);
        let memory = pool.graph_memory();
        let (mut graphs, mut others, mut outside) = (Vec::new(), Vec::new(), Vec::new());
        let mut state = None;
        for _ in 0..60 {
            let bytes = [512, 300 << 10, MIB, 5 * MIB, 12 * MIB, 24 * MIB][random.usize(..6)];
            match random.u8(..8) {
                0..=2 => {
                    let capture = memory.capture(&stream).unwrap();
                    let mut live = Vec::new();
                    for _ in 0..random.usize(1..6) {
                        if let Ok(block) = pool.try_allocate(&stream, bytes / random.u64(1..4)) {
                            work.submit(touch(&block));
                            live.push(block);
                        }
                        if random.bool() && !live.is_empty() {
                            drop(live.swap_remove(random.usize(..live.len())));
                        }
                    }
                    drop(live);
                    graphs.push(capture.end().unwrap());
                }
                3 if !graphs.is_empty() => drop(graphs.swap_remove(random.usize(..graphs.len()))),
                4 => others.extend(pool.try_allocate(&stream, bytes).ok()),
                5 if !others.is_empty() => drop(others.swap_remove(random.usize(..others.len()))),
                6 => {
                    outside.extend(memory.allocate(&stream, bytes).ok());
                    if random.bool() {
                        outside.clear();
                    }
                }
                _ => {
                    if random.bool() {
                        state = Some(memory.checkpoint());
                    } else if let Some(state) = state.take() {
                        outside.clear();
                        device.advance_to_end();
                        outside = memory.restore(&state, &stream).unwrap();
                    }
                }
            }
            for block in others.iter().chain(&outside) {
                work.submit(touch(block));
            }
            graphs
                .iter()
                .for_each(|graph| graph.launch(&stream).unwrap());
            device.advance_to_end();
            device.assert_ordered();
            pool.inspect().check().unwrap();
        }
        drop((graphs, others, outside, memory));
        device.advance_to_end();
    }
}

/// One thread captures, and others make the same memory grow: what the graphs hold stays.
#[test]
fn memory_grows_beside_captures_of_other_threads() {
    let device = SimDevice::builder().memory(GIB).clock(Clock::Wall).build();
    let pool = Pool::builder(device.clone())
        .capacity(192 * MIB)
        .chunk_bytes(2 * MIB)
        .made();
    let memory = pool.graph_memory();
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (device, pool, memory) = (&device, &pool, &memory);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let (work, stream) = stream(device, pool);
                let mut graphs = Vec::new();
                for _ in 0..40 {
                    let bytes = 2 * MIB * random.u64(1..12);
                    if random.u8(..3) == 0 {
                        drop(memory.allocate(&stream, bytes));
                    } else {
                        let capture = memory.capture(&stream).unwrap();
                        if let Ok(block) = pool.try_allocate(&stream, bytes) {
                            work.submit(Operation::new(us(1)).reads(block.address(), block.size()));
                        }
                        graphs.push(capture.end().unwrap());
                    }
                    if graphs.len() > 4 {
                        drop(graphs.remove(random.usize(..4)));
                    }
                }
                device.block_on(stream.synchronize()).unwrap();
                graphs
            });
        }
    });
    drop(memory);
    pool.inspect().check_conserved().unwrap();
}
