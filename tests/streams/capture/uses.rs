//! What a graph uses besides its own memory: blocks that captured calls name, and launches as uses.

use super::*;
use crate::common::*;
use std::sync::Barrier;
use std::task::Poll;
use std::thread;
use weirpool::device::DeviceErrorKind;
use weirpool::device::sim::Checker;
use weirpool::{CapturedGraph, Fill, StreamError, Unordered, Upstream};
use weirpool_share::Share;

const CAPACITY: u64 = 8 * MIB;
const KIB4: u64 = 4096;

/// A site on virtual memory, and one on plain memory.
fn sites() -> [Site; 2] {
    devices().map(Site::on)
}

impl Site {
    fn on(device: SimDevice) -> Self {
        let pool = builder(&device, CAPACITY);
        Self::over(device, pool)
    }

    /// Returns whether another stream gets the byte at an address, if it asks for all memory that the pool has.
    fn is_available(&self, address: u64) -> bool {
        let (_, stream) = self.other();
        let take = |_| self.pool.try_allocate(&stream, KIB4).ok();
        let blocks: Vec<_> = (0..2 * CAPACITY / KIB4).map_while(take).collect();
        let mut blocks = blocks.iter();
        blocks.any(|block| {
            let start = block.address().to_bits();
            (start..start + block.size()).contains(&address)
        })
    }

    /// A graph that fills a block with sevens.
    fn graph_of(&self, block: &mut Block) -> CapturedGraph {
        let capture = self.pool.capture(&self.stream).unwrap();
        block.fill(&self.stream, Fill::Byte(7)).unwrap();
        capture.end().unwrap()
    }

    /// Asserts that the graph, and nothing else, keeps the memory at an address.
    #[track_caller]
    fn assert_kept_by<G>(&self, graph: G, address: u64) {
        self.settle();
        assert!(!self.is_available(address), "the graph is there");
        drop(graph);
        self.settle();
        assert!(self.is_available(address), "the graph is gone");
    }

    /// Launches a graph behind other work of 100 us.
    fn launch(&self, graph: &CapturedGraph) {
        self.work.submit(Operation::new(us(100)));
        graph.launch(&self.stream).unwrap();
    }

    /// Returns the output of a future that waits for several points, each of which it seals when the last is passed.
    fn finish<F: Future + Unpin>(&self, mut future: F) -> F::Output {
        for _ in 0..4 {
            self.device.advance_to_end();
            if let Poll::Ready(output) = poll(&mut future) {
                return output;
            }
        }
        panic!("the future is not ready");
    }

    fn settle(&self) {
        self.device.advance_to_end();
        self.stream.seal().unwrap();
        self.device.advance_to_end();
        self.pool.maintain().reap().unwrap();
    }
}

/// A call that names a block on a captured stream.
type Name = fn(&mut Block, &Stream);

const NAMES: [(&str, Name); 9] = [
    ("upload", |block, stream| {
        drop(block.upload(stream, 0, &[7; 16]).unwrap());
    }),
    ("fill", |block, stream| {
        block.fill(stream, Fill::Byte(7)).unwrap()
    }),
    ("submit", |block, stream| {
        let submitted = stream.submit(&mut *block, |_: &SimStream, _| ());
        drop(submitted.unwrap());
    }),
    ("until freed", |block, stream| {
        _ = stream.record_use(Unordered::UntilFreed(block)).unwrap()
    }),
    ("once", |block, stream| {
        _ = stream.record_use(Unordered::Once(block)).unwrap()
    }),
    ("read", |block, stream| {
        _ = stream.record_use(&*block).unwrap()
    }),
    ("written", |block, stream| {
        _ = stream.record_use(&mut *block).unwrap()
    }),
    ("slice", |block, stream| {
        let mut slice = block.slice_mut(16..32).unwrap();
        slice.fill(stream, Fill::Byte(7)).unwrap();
    }),
    ("failed download", |block, stream| {
        assert!(block.download(stream, 0..4).is_err());
    }),
];

/// By any registration of the stream, also by one that is made in the capture.
#[test]
fn block_that_a_captured_call_names_stays_with_the_graph() {
    for site in sites() {
        let register = || site.pool.register(&site.work).unwrap();
        let external = site.pool.register(&External::of(&site.work)).unwrap();
        let streams = [site.stream.clone(), register(), external];
        // In the last way, one more is made in the capture. No work is submitted to an external one.
        let ways = (0..4).flat_map(|way| NAMES.map(|name| (way, name)));
        for (way, (name, call)) in ways.filter(|(way, (name, _))| *way != 2 || *name != "submit") {
            let stream = &streams[way % 3];
            for drops_within in [false, true] {
                let mut block = site.pool.try_allocate(stream, KIB4).unwrap();
                let address = block.address().to_bits();
                site.settle();
                let capture = site.pool.capture(&site.stream).unwrap();
                let late = (way == 3).then(register);
                call(&mut block, late.as_ref().unwrap_or(stream));
                let mut block = Some(block);
                if drops_within {
                    drop(block.take());
                }
                let graph = capture.end().unwrap();
                drop((block, late));
                site.settle();
                let _ = site.pool.trim_to(0).unwrap();
                assert!(!site.is_available(address), "{name}: it can be launched");
                site.launch(&graph);
                drop(graph);
                assert!(!site.is_available(address), "{name}: a launch runs");
                site.settle();
                assert!(site.is_available(address), "{name}: the graph is gone");
                site.settle();
            }
        }
    }
}

/// They are one stream: what one of them freed in the capture serves the other.
#[test]
fn registrations_of_a_captured_stream_share_the_memory_of_the_capture() {
    let site = Site::new(4 * MIB);
    let twin = site.pool.register(&site.work).unwrap();
    drop(site.pool.try_allocate(&twin, 4 * MIB).unwrap());
    let capture = site.pool.capture(&site.stream).unwrap();
    // It was freed before, and is sealed by now.
    let rest = site.pool.try_allocate(&site.other().1, 2 * MIB).unwrap();
    let block = site.pool.try_allocate(&twin, 2 * MIB).unwrap();
    let address = block.address();
    site.work.submit(write(&block, 1));
    drop((block, twin));
    assert_eq!(site.take(2 * MIB).address(), address);
    let graph = capture.end().unwrap();
    assert_eq!(site.pool.inspect().statistics().in_graphs, 2 * MIB);
    drop((rest, graph));
    site.device.advance_to_end();
    assert!(site.pool.try_allocate(&site.stream, 4 * MIB).is_ok());
}

/// Two threads capture one stream, each by a registration of its own: one is refused, and the other one's capture has both.
#[test]
fn capture_that_is_refused_ends_no_capture_of_the_stream() {
    for _ in 0..200 {
        let site = Site::new(4 * MIB);
        let twin = site.pool.register(&site.work).unwrap();
        let (both, barrier) = ([&site.stream, &twin], Barrier::new(2));
        let begun = thread::scope(|scope| {
            let threads = both.map(|stream| {
                let begin = || (barrier.wait(), site.pool.capture(stream)).1;
                scope.spawn(begin)
            });
            threads.map(|thread| thread.join().unwrap())
        });
        let [capture] = Vec::from_iter(begun.into_iter().flatten())
            .try_into()
            .unwrap();
        let blocks = both.map(|stream| site.pool.try_allocate(stream, MIB).unwrap());
        assert_eq!(site.pool.inspect().statistics().in_graphs, 2 * MIB);
        drop((blocks, capture));
        site.device.advance_to_end();
    }
}

#[test]
fn launch_writes_only_blocks_that_the_graph_keeps() {
    for site in sites() {
        let mut before = site.take(KIB4);
        let capture = site.pool.capture(&site.stream).unwrap();
        drop(before.upload(&site.stream, 0, &[7; 16]).unwrap());
        let graph = capture.end().unwrap();
        drop(before);
        site.settle();
        let (_, other) = site.other();
        let mut others = Vec::new();
        while let Ok(mut block) = site.pool.try_allocate(&other, KIB4) {
            block.fill(&other, Fill::Byte(1)).unwrap();
            others.push(block);
        }
        site.settle();
        graph.launch(&site.stream).unwrap();
        site.settle();
        for block in &others {
            assert_eq!(site.read(block, 16), [1; 16]);
        }
    }
}

#[test]
fn memory_that_a_graph_keeps_is_not_unmapped() {
    for site in sites() {
        let mut before = site.take(KIB4);
        let capture = site.pool.capture(&site.stream).unwrap();
        before.fill(&site.stream, Fill::Zero).unwrap();
        let graph = capture.end().unwrap();
        drop(before);
        site.settle();
        let _ = site.pool.trim_to(0).unwrap();
        graph.launch(&site.stream).unwrap();
        site.device.advance_to_end();
        assert!(site.pool.inspect().health().fault.is_none());
    }
}

/// The graph keeps the memory, in whichever stream's order its owner frees it.
#[test]
fn block_that_moves_to_another_stream_stays_with_its_graph() {
    for site in sites() {
        let mut block = site.take(KIB4);
        let address = block.address().to_bits();
        let graph = site.graph_of(&mut block);
        let (_, other) = site.other();
        block.move_to(&other).unwrap();
        drop((block, other));
        site.assert_kept_by(graph, address);
    }
}

#[test]
fn aborted_capture_keeps_no_block() {
    for site in sites() {
        let mut block = site.take(KIB4);
        let address = block.address().to_bits();
        let capture = site.pool.capture(&site.stream).unwrap();
        block.fill(&site.stream, Fill::Zero).unwrap();
        drop(block);
        drop(capture);
        site.settle();
        assert!(site.is_available(address));
    }
}

#[test]
fn block_of_two_graphs_stays_with_both() {
    for site in sites() {
        let mut block = site.take(KIB4);
        let address = block.address().to_bits();
        let graphs = [0, 1].map(|_| {
            let capture = site.pool.capture(&site.stream).unwrap();
            block.fill(&site.stream, Fill::Zero).unwrap();
            capture.end().unwrap()
        });
        drop(block);
        for graph in graphs {
            site.settle();
            assert!(!site.is_available(address));
            drop(graph);
        }
        site.settle();
        assert!(site.is_available(address));
    }
}

/// Another memory for graphs owns the block: its own graphs keep that memory, this one keeps the block.
#[test]
fn block_of_other_memory_for_graphs_stays_with_the_graph() {
    for site in sites() {
        let memory = site.pool.graph_memory();
        let mut block = memory.allocate(&site.stream, KIB4).unwrap();
        let address = block.address().to_bits();
        let graph = site.graph_of(&mut block);
        drop((block, memory));
        site.assert_kept_by(graph, address);
    }
}

/// A block of a reservation is one of its live blocks for as long as the graph keeps it.
#[test]
fn reservation_ends_while_a_graph_keeps_a_block_of_it() {
    for site in sites() {
        let reservation = site.pool.reserve(2 * MIB).try_now().unwrap();
        let mut block = reservation.allocate(&site.stream, KIB4).unwrap();
        let address = block.address().to_bits();
        site.settle();
        let graph = site.graph_of(&mut block);
        drop(block);
        assert_eq!(reservation.left(), 2 * MIB - KIB4);
        drop(reservation);
        site.assert_kept_by(graph, address);
    }
}

/// Its user may submit work that the pool does not see, as on any block of its own stream.
#[test]
fn block_that_a_waiting_request_gets_during_a_capture_stays_with_the_graph() {
    for site in sites() {
        let (_, other) = site.other();
        let all = site.pool.try_allocate(&other, CAPACITY).unwrap();
        let mut waiting = not_ready(Box::pin(site.pool.allocate(&site.stream, KIB4)));
        let capture = site.pool.capture(&site.stream).unwrap();
        drop(all);
        site.device.advance_to_end();
        let block = now(&mut waiting).unwrap();
        let address = block.address().to_bits();
        site.work.submit(write(&block, 2));
        drop((block, waiting));
        let graph = capture.end().unwrap();
        site.settle();
        assert!(!site.is_available(address));
        graph.launch(&other).unwrap();
        drop(graph);
        site.settle();
        assert!(site.is_available(address));
    }
}

/// The block's memory was used on its own stream before it was granted there: a launch elsewhere comes after that, also if it
/// is memory for the graph itself.
#[test]
fn launch_comes_after_the_grant_of_each_block() {
    let sites = [false, true].map(|is_own| sites().map(|site| (site, is_own)));
    for (site, is_own) in sites.into_iter().flatten() {
        let memory = site.pool.graph_memory();
        let take = || match is_own {
            true => memory.allocate(&site.stream, KIB4).unwrap(),
            false => site.take(KIB4),
        };
        let block = take();
        use_block(&site.work, &block, us(500));
        let address = block.address();
        drop(block);
        let mut block = take();
        assert_eq!(block.address(), address, "reused in stream order");
        let capture = memory.capture(&site.stream).unwrap();
        block.fill(&site.stream, Fill::Byte(7)).unwrap();
        let graph = capture.end().unwrap();
        graph.launch(&site.other().1).unwrap();
        site.device.advance_to_end();
        assert_eq!(site.read(&block, 4), [7; 4]);
    }
}

/// Memory that was freed in an open capture is granted to nobody outside it: each launch uses it.
#[test]
fn memory_freed_in_an_open_capture_is_not_granted_outside() {
    for site in sites() {
        let memory = site.pool.graph_memory();
        let (_, other) = site.other();
        let capture = memory.capture(&site.stream).unwrap();
        let address = site.take(2 * MIB).address();
        let beside = memory.allocate(&other, 2 * MIB).unwrap();
        assert_ne!(beside.address(), address);
        drop((beside, capture.end().unwrap()));
    }
}

/// Where other code ended the capture, memory that was allocated and used since is freed behind that work.
#[test]
fn work_after_a_capture_that_other_code_ended_is_waited_for() {
    for site in sites() {
        let memory = site.pool.graph_memory();
        let (other_work, other) = site.other();
        let capture = memory.capture(&site.stream).unwrap();
        drop(site.work.end_capture().unwrap());
        let eager = site.take(2 * MIB);
        use_block(&site.work, &eager, us(500));
        let address = eager.address();
        drop((eager, capture));
        let next = memory.allocate(&other, 2 * MIB).unwrap();
        assert_eq!(next.address(), address, "behind a wait");
        use_block(&other_work, &next, us(1));
    }
}

/// A pool of memory that the host sees, and a graph that writes a block of it: one of the graph's memory, or another.
fn seen_by_host(inside: bool) -> (Site, Block, CapturedGraph) {
    let device = manual_builder().build();
    let pool = builder(&device, CAPACITY).upstream(Upstream::Pinned);
    let site = Site::over(device, pool);
    let outside = (!inside).then(|| site.take(KIB4));
    let capture = site.pool.capture(&site.stream).unwrap();
    let mut block = outside.unwrap_or_else(|| site.take(KIB4));
    drop(block.upload(&site.stream, 0, &[7; 16]).unwrap());
    let graph = capture.end().unwrap();
    (site, block, graph)
}

#[test]
fn host_gets_a_block_after_the_launches_that_use_it() {
    for inside in [false, true] {
        let (site, mut block, graph) = seen_by_host(inside);
        let (work, other) = site.other();
        work.submit(Operation::new(us(1000)));
        graph.launch(&other).unwrap();
        let mut host = not_ready(Box::pin(block.host()));
        site.device.advance(us(900));
        assert!(poll(&mut host).is_pending(), "the launch is to come");
        site.device.advance_to_end();
        assert_eq!(now(&mut host).unwrap()[..16], [7; 16]);
    }
}

#[test]
fn no_launch_begins_while_the_host_has_access() {
    for inside in [false, true] {
        let (site, mut block, graph) = seen_by_host(inside);
        site.launch(&graph);
        let refused = |what| match graph.launch(&site.stream) {
            Err(StreamError::Device(error)) => {
                assert_eq!(error.kind(), DeviceErrorKind::InvalidArgument);
                assert!(error.to_string().contains("drop its guard"), "{error}");
            }
            answer => panic!("{what}: {answer:?}"),
        };
        let mut host = not_ready(Box::pin(block.host()));
        refused("the host waits");
        site.device.advance_to_end();
        let mut guard = now(&mut host).unwrap();
        guard[..4].copy_from_slice(b"weir");
        refused("the host has access");
        drop((guard, host));
        graph.launch(&site.stream).unwrap();
        site.device.advance_to_end();
        assert_eq!(site.read(&block, 4), [7; 4]);
    }
}

#[test]
fn copies_on_other_streams_come_after_launches() {
    for site in sites() {
        for inside in [false, true] {
            let outside = (!inside).then(|| site.take(KIB4));
            let capture = site.pool.capture(&site.stream).unwrap();
            let mut block = outside.unwrap_or_else(|| site.take(KIB4));
            drop(block.upload(&site.stream, 0, &[7; 16]).unwrap());
            let graph = capture.end().unwrap();
            let [(work, launching), (_, reading)] = [site.other(), site.other()];
            work.submit(Operation::new(us(1000)));
            graph.launch(&launching).unwrap();
            let download = block.download(&reading, 0..16).unwrap();
            site.device.advance_to_end();
            assert_eq!(now(download).unwrap(), [7; 16]);
            drop((block, graph));
            site.settle();
        }
    }
}

/// The graph owns a block from outside from then on: the future does not wait for the graph's end. A block of the graph's
/// memory is reused after the launches of that time.
#[test]
fn awaited_free_of_a_graphs_block_waits_for_its_launches_so_far() {
    for site in sites() {
        for inside in [false, true] {
            let outside = (!inside).then(|| site.take(KIB4));
            let memory = site.pool.graph_memory();
            let capture = memory.capture(&site.stream).unwrap();
            let mut block = outside.unwrap_or_else(|| site.take(KIB4));
            let address = block.address().to_bits();
            block.fill(&site.stream, Fill::Byte(7)).unwrap();
            let graph = capture.end().unwrap();
            let (work, other) = site.other();
            work.submit(Operation::new(us(1000)));
            graph.launch(&other).unwrap();
            let mut freed = not_ready(block.deallocate());
            site.device.advance(us(900));
            assert!(poll(&mut freed).is_pending());
            site.finish(freed).unwrap();
            assert!(!site.is_available(address));
            drop((graph, memory));
            site.settle();
            assert!(site.is_available(address));
        }
    }
}

#[test]
fn evictable_block_that_a_graph_keeps_is_not_evicted() {
    for site in sites() {
        let cached = site.take(6 * MIB).into_evictable();
        site.settle();
        let capture = site.pool.capture(&site.stream).unwrap();
        for _ in 0..3 {
            let pinned = cached.pin().unwrap();
            let _ = site.stream.record_use(&*pinned).unwrap();
        }
        let graph = capture.end().unwrap();
        let want = || site.pool.try_allocate(&site.stream, 4 * MIB);
        assert!(want().is_err() && cached.is_present());
        assert_eq!(site.pool.inspect().statistics().evictable, 0);
        drop(cached.pin());
        assert!(want().is_err() && cached.is_present());
        site.launch(&graph);
        drop(graph);
        assert!(want().is_err(), "a launch runs");
        site.device.advance_to_end();
        assert_eq!(site.pool.inspect().statistics().evictable, 6 * MIB);
        assert!(want().is_ok() && !cached.is_present());
    }
}

/// A block becomes evictable, and its owner goes, while a graph keeps it.
#[test]
fn block_that_becomes_evictable_stays_with_its_graph() {
    for site in sites() {
        let mut block = site.take(6 * MIB);
        let address = block.address().to_bits();
        let graph = site.graph_of(&mut block);
        let mut cached = block.into_evictable();
        assert_eq!(site.pool.maintain().evict(CAPACITY), 0);
        assert!(cached.take().is_none(), "the graph pins it");
        drop(cached);
        site.assert_kept_by(graph, address);
    }
}

#[test]
fn shared_blocks_and_buffers_stay_with_the_graph() {
    for site in sites() {
        let shared = site.take(KIB4).share();
        let buffer = weirpool::Buffer::<u8>::from_block(site.take(KIB4), KIB4 as usize).unwrap();
        let view = shared.view(16..32).unwrap();
        let addresses = [shared.address(), buffer.address()].map(|address| address.to_bits());
        site.settle();
        let capture = site.pool.capture(&site.stream).unwrap();
        let _ = site.stream.record_use(&view).unwrap();
        let _ = site
            .stream
            .record_use(Unordered::Once(buffer.as_block()))
            .unwrap();
        let graph = capture.end().unwrap();
        drop((shared, view, buffer));
        site.settle();
        assert!(addresses.iter().all(|address| !site.is_available(*address)));
        drop(graph);
        site.settle();
        assert!(addresses.iter().all(|address| site.is_available(*address)));
    }
}

/// Every handle is dropped, and the launch runs: the memory is there until it is complete.
#[test]
fn graph_keeps_its_blocks_beyond_the_pool() {
    for device in devices() {
        let site = Site::on(device.clone());
        let mut block = site.take(KIB4);
        let address = block.address();
        let graph = site.graph_of(&mut block);
        let Site { pool, stream, .. } = site;
        pool.close();
        assert_matches!(graph.launch(&stream), Err(StreamError::Closed));
        drop((block, stream));
        pool.end_before_its_blocks();
        assert!(device.is_mapped(address, KIB4));
        drop(graph);
        device.advance_to_end();
        assert!(!device.is_mapped(address, KIB4));
    }
}

/// A capture that other code begins and ends keeps the blocks as well.
#[test]
fn graph_of_other_code_keeps_what_it_uses() {
    for site in sites() {
        let block = site.take(KIB4);
        let address = block.address().to_bits();
        let memory = site.pool.graph_memory();
        site.settle();
        site.work.begin_capture().unwrap();
        // SAFETY: the host has access to no block of the graph while it is launched.
        let joined = unsafe { memory.join(&site.stream) }.unwrap();
        let _ = site.stream.record_use(Unordered::Once(&block)).unwrap();
        let graph = site.work.end_capture().unwrap();
        drop((joined, block, memory));
        site.settle();
        assert!(!site.is_available(address));
        site.work.submit(Operation::new(us(100)));
        graph.launch(&site.work).unwrap();
        drop(graph);
        assert!(!site.is_available(address));
        site.settle();
        assert!(site.is_available(address));
    }
}

/// The body of a loop runs again after a block from outside was dropped in it.
#[test]
fn block_that_is_dropped_in_the_body_of_a_loop_is_not_reused_in_it() {
    for site in sites() {
        let memory = site.pool.graph_memory();
        site.work.begin_capture().unwrap();
        // SAFETY: the host has access to no block of the graph while it is launched.
        let joined = unsafe { memory.join(&site.stream) }.unwrap();
        let [weights, sums] = [1, 0].map(|value| {
            let block = site.take(KIB4);
            site.work.submit(write(&block, value));
            block
        });
        let (from, to) = (weights.address(), sums.address());
        site.work.begin_loop(3).unwrap();
        let add = Operation::new(us(5)).reads(from, KIB4).writes(to, KIB4);
        site.work.submit(add.run_each(move |memory| {
            let mut bytes = [[0]; 2];
            memory.read(from, &mut bytes[0]);
            memory.read(to, &mut bytes[1]);
            memory.write(to, &[bytes[0][0] + bytes[1][0]]);
        }));
        drop(weights);
        let temporary = site.take(KIB4);
        assert_ne!(temporary.address(), from);
        site.work.submit(write(&temporary, 100));
        let own = temporary.address();
        drop(temporary);
        // Allocated in the body: the next iteration writes it anew.
        let again = site.take(KIB4);
        assert_eq!(again.address(), own);
        drop(again);
        site.work.end_loop().unwrap();
        let behind = site.take(KIB4);
        assert_ne!(behind.address(), from);
        drop(behind);
        let graph = site.work.end_capture().unwrap();
        joined.end().unwrap();
        graph.launch(&site.work).unwrap();
        site.device.advance_to_end();
        assert_eq!(site.read(&sums, 1), [3]);
    }
}

/// The host may write a block before the first launch; what it reads there, it cannot rely on.
#[test]
fn host_reads_no_captured_block_before_the_first_launch() {
    for writes in [false, true] {
        let device = manual_builder().checker(Checker::Collect).build();
        let pool = builder(&device, CAPACITY).upstream(Upstream::Pinned);
        let pool = pool.made();
        let stream = pool.create_stream().unwrap();
        let capture = pool.capture(&stream).unwrap();
        let mut block = pool.try_allocate(&stream, KIB4).unwrap();
        stream.record_use(Unordered::UntilFreed(&block)).unwrap();
        let graph = capture.end().unwrap();
        let mut host = Box::pin(block.host());
        device.advance_to_end();
        let mut guard = now(&mut host).unwrap();
        match writes {
            true => guard.fill(1),
            false => assert_eq!(guard.len(), 4096),
        }
        drop((guard, host));
        graph.launch(&stream).unwrap();
        let expected: &[_] = if writes {
            &[]
        } else {
            &[ViolationKind::ReadBeforeLaunch]
        };
        assert_eq!(kinds(&device), expected);
        drop((block, graph));
        device.advance_to_end();
    }
}

/// Captured work does not run: before the first launch the bytes are those of an earlier owner.
#[test]
fn read_of_a_captured_block_before_the_first_launch_is_a_violation() {
    for device in [true, false].map(|is_virtual| manual_builder().virtual_memory(is_virtual)) {
        let site = Site::on(device.checker(Checker::Collect).build());
        let download = |block: &Block| {
            drop(block.download(&site.stream, 0..16).unwrap());
            site.device.advance_to_end();
            kinds(&site.device)
        };
        let capture = site.pool.capture(&site.stream).unwrap();
        let [mut captured, mut written, left] = [site.take(KIB4), site.take(KIB4), site.take(KIB4)];
        for block in [&mut captured, &mut written] {
            block.fill(&site.stream, Fill::Byte(7)).unwrap();
        }
        let graph = capture.end().unwrap();
        assert_eq!(download(&captured), [ViolationKind::ReadBeforeLaunch]);
        written.fill(&site.stream, Fill::Byte(8)).unwrap();
        assert_eq!(download(&written), []);
        graph.launch(&site.stream).unwrap();
        for block in [&captured, &written, &left] {
            assert_eq!(download(block), []);
        }
    }
}
