//! The order of a capture's streams: which memory one of them reuses of another, and how streams fork and join.

use super::*;
use crate::common::{assert_matches, devices, pool, set_up, streams};
use std::future::IntoFuture;
use weirpool::device::Device;
use weirpool::{StreamError, TaskError, Unordered};

/// Makes one stream come after another by an event that the pool does not see.
fn order(device: &SimDevice, first: &SimStream, then: &SimStream) {
    let event = device.create_event().unwrap();
    device.record(event, first.raw()).unwrap();
    device.wait(then.raw(), event).unwrap();
}

fn write_of(block: &Block) -> Operation {
    Operation::new(us(5)).writes(block.address(), block.size())
}

/// Makes a stream take part in the capture of another one.
fn fork(from: &Stream, to: &Stream) {
    to.wait(&from.event().unwrap()).unwrap();
}

/// Submits a write to a stream, which the pool orders.
fn submit(stream: &Stream, block: &mut Block) -> Result<(), TaskError> {
    let work = write_of(block);
    stream
        .submit(block, |stream: &SimStream, _| stream.submit(work))
        .map(drop)
}

/// Launches a graph twice, and checks the order of all work.
fn launch(device: &SimDevice, graph: &CapturedGraph, on: &Stream) {
    graph.launch(on).unwrap();
    graph.launch(on).unwrap();
    device.advance_to_end();
    device.block_on(on.synchronize()).unwrap();
    device.assert_ordered();
}

/// (pytorch#175560, #158352)
#[test]
fn joined_side_stream_keeps_no_memory() {
    for (device, is_known) in devices()
        .into_iter()
        .zip([false, true])
        .chain(devices().into_iter().zip([true, false]))
    {
        let pool = pool(&device, 8 << 30);
        let [(on_main, main), (on_side, side)] = streams(&device, &pool);
        let mut capture = pool.capture(&main).unwrap();
        order(&device, &on_main, &on_side);
        if is_known {
            capture.add(&side).unwrap();
        }
        for _ in 0..50 {
            let block = pool.try_allocate(&main, 64 * MIB).unwrap();
            order(&device, &on_main, &on_side);
            side.record_use(Unordered::UntilFreed(&block)).unwrap();
            on_side.submit(write_of(&block));
            order(&device, &on_side, &on_main);
            drop(block);
        }
        assert!(capture.memory().size() <= 128 * MIB);
        launch(&device, &capture.end().unwrap(), &main);
    }
}

#[test]
fn memory_of_a_side_stream_is_not_reused_before_it_is_joined() {
    for device in devices() {
        let pool = pool(&device, 64 * MIB);
        let [(on_main, main), (on_side, side)] = streams(&device, &pool);
        let capture = pool.capture(&main).unwrap();
        fork(&main, &side);
        let grown_after = |joins: bool| {
            let before = capture.memory().size();
            let mut block = pool.try_allocate(&main, 2 * MIB).unwrap();
            submit(&side, &mut block).unwrap();
            if joins {
                order(&device, &on_side, &on_main);
            }
            drop(block);
            let next = pool.try_allocate(&main, 2 * MIB).unwrap();
            on_main.submit(write_of(&next));
            capture.memory().size() - before
        };
        assert_eq!(grown_after(false), 4 * MIB);
        order(&device, &on_side, &on_main);
        assert_eq!(grown_after(true), 0);
        launch(&device, &capture.end().unwrap(), &main);
    }
}

/// The side stream goes on after the join: memory that was freed before the join is free nevertheless.
#[test]
fn join_counts_for_earlier_frees_alone() {
    let (device, pool, [(on_main, main), (on_side, side)]) = set_up(64 * MIB);
    let capture = pool.capture(&main).unwrap();
    fork(&main, &side);
    let [mut early, mut late] = [(); 2].map(|()| pool.try_allocate(&main, MIB).unwrap());
    let [at_early, at_late] = [&early, &late].map(Block::address);
    submit(&side, &mut early).unwrap();
    drop(early);
    order(&device, &on_side, &on_main);
    submit(&side, &mut late).unwrap();
    drop(late);
    let taken = [(); 2].map(|()| pool.try_allocate(&main, MIB).unwrap());
    let addresses = taken.each_ref().map(Block::address);
    assert!(addresses.contains(&at_early) && !addresses.contains(&at_late));
    taken
        .iter()
        .for_each(|block| on_main.submit(write_of(block)));
    order(&device, &on_side, &on_main);
    drop(taken);
    launch(&device, &capture.end().unwrap(), &main);
}

/// Memory that the first stream freed before a further one joined, or while it was part of the capture, serves that one.
#[test]
fn forked_stream_reuses_memory_that_was_freed_before_the_fork() {
    let (device, pool, [(on_main, main), (on_side, side)]) = set_up(64 * MIB);
    let capture = pool.capture(&main).unwrap();
    for turn in 0..3 {
        let block = pool.try_allocate(&main, 2 * MIB).unwrap();
        let address = block.address();
        on_main.submit(write_of(&block));
        drop(block);
        side.wait(&main.event().unwrap()).unwrap();
        let other = pool.try_allocate(&side, 2 * MIB).unwrap();
        assert_eq!(other.address(), address, "turn {turn}");
        on_side.submit(write_of(&other));
        drop(other);
        main.wait(&side.event().unwrap()).unwrap();
    }
    launch(&device, &capture.end().unwrap(), &main);
}

#[test]
fn submitted_work_forks_and_joins() {
    for device in devices() {
        let pool = pool(&device, 64 * MIB);
        let [(_, main), (_, first), (_, second)] = streams(&device, &pool);
        let capture = pool.capture(&main).unwrap();
        let [mut a, mut b] = [(); 2].map(|()| pool.try_allocate(&main, MIB).unwrap());
        submit(&main, &mut a).unwrap();
        fork(&main, &first);
        fork(&first, &second);
        submit(&first, &mut a).unwrap();
        submit(&second, &mut b).unwrap();
        let work = Operation::new(us(1))
            .reads(a.address(), MIB)
            .writes(b.address(), MIB);
        main.submit((&a, &mut b), |stream: &SimStream, _| stream.submit(work))
            .unwrap();
        drop((a, b));
        let graph = capture.end().unwrap();
        launch(&device, &graph, &first);
        // The streams are their own again.
        for stream in [&main, &first, &second] {
            let mut block = pool.try_allocate(stream, MIB).unwrap();
            submit(stream, &mut block).unwrap();
            device.advance_to_end();
            device.block_on(stream.synchronize()).unwrap();
        }
        drop(graph);
        device.advance_to_end();
        pool.inspect().check_conserved().unwrap();
        device.assert_ordered();
    }
}

/// A fork takes no more than the work before its event.
#[test]
fn event_of_a_capture_is_the_point_where_it_was_made() {
    let (device, pool, [(on_main, main), (on_side, side)]) = set_up(64 * MIB);
    let capture = pool.capture(&main).unwrap();
    let fork = main.event().unwrap();
    on_main.submit(Operation::new(us(100)));
    side.wait(&fork).unwrap();
    on_side.submit(Operation::new(us(100)));
    main.wait(&side.event().unwrap()).unwrap();
    let graph = capture.end().unwrap();
    let begin = device.now();
    graph.launch(&main).unwrap();
    device.advance_to_end();
    assert_eq!(device.now() - begin, us(100), "both at once");
}

#[test]
fn events_of_a_capture_cannot_be_awaited_and_end_with_it() {
    let (device, pool, [(on_main, main), (_, side)]) = set_up(64 * MIB);
    let other = crate::common::pool(&device, 64 * MIB);
    let [(_, foreign)] = streams(&device, &other);
    let capture = pool.capture(&main).unwrap();
    on_main.submit(Operation::new(us(1)));
    let event = main.event().unwrap();
    assert!(event.is_complete().is_err());
    assert!(device.block_on(event.clone().into_future()).is_err());
    assert!(device.block_on(main.synchronize()).is_err());
    assert!(foreign.wait(&event).is_err());
    let graph = capture.end().unwrap();
    assert_matches!(side.wait(&event), Err(StreamError::Device(_)));
    // Neither does it name work of the next capture.
    let capture = pool.capture(&main).unwrap();
    assert!(side.wait(&event).is_err());
    drop(capture);
    submit(&side, &mut pool.try_allocate(&side, MIB).unwrap()).unwrap();
    launch(&device, &graph, &main);
}

#[test]
fn streams_of_two_captures_are_not_ordered() {
    let (device, pool, [(_, one), (_, other)]) = set_up(64 * MIB);
    let captures = [&one, &other].map(|stream| pool.capture(stream).unwrap());
    assert!(other.wait(&one.event().unwrap()).is_err());
    let mut block = pool.try_allocate(&one, MIB).unwrap();
    assert!(submit(&other, &mut block).is_err());
    drop(block);
    // Both captures go on.
    for (capture, stream) in captures.into_iter().zip([&one, &other]) {
        launch(&device, &capture.end().unwrap(), stream);
    }
}

/// A stream that joined and was not joined again is the user's to join, as CUDA says. The capture has no graph then, and
/// the stream is its own again.
#[test]
fn capture_without_the_last_join_has_no_graph() {
    let (device, pool, [(_, main), (_, side)]) = set_up(64 * MIB);
    let capture = pool.capture(&main).unwrap();
    let mut block = pool.try_allocate(&main, MIB).unwrap();
    fork(&main, &side);
    submit(&side, &mut block).unwrap();
    drop(block);
    assert!(capture.end().is_err());
    submit(&side, &mut pool.try_allocate(&side, MIB).unwrap()).unwrap();
    device.advance_to_end();
}

/// Memory that a stream freed before it joined is available to others during the capture, and its tasks can be awaited.
#[test]
fn stream_that_joins_leaves_its_earlier_memory_to_others() {
    let (device, pool, [(_, main), (_, side), (_, other)]) = set_up(8 * MIB);
    let mut block = pool.try_allocate(&side, 6 * MIB).unwrap();
    let work = write_of(&block);
    let task = side
        .submit(&mut block, |stream: &SimStream, _| stream.submit(work))
        .unwrap();
    drop(block);
    let capture = pool.capture(&main).unwrap();
    fork(&main, &side);
    device.advance_to_end();
    device.block_on(task).unwrap();
    drop(pool.try_allocate(&other, 6 * MIB).unwrap());
    main.wait(&side.event().unwrap()).unwrap();
    launch(&device, &capture.end().unwrap(), &main);
}

/// Events and tasks of a capture keep neither its memory nor its streams.
#[test]
fn event_that_outlives_its_capture_keeps_nothing() {
    let (device, pool, [(_, main), (_, side)]) = set_up(64 * MIB);
    let memory = pool.graph_memory();
    let mut kept = Vec::new();
    for _ in 0..3 {
        let capture = memory.capture(&main).unwrap();
        let mut block = pool.try_allocate(&main, 8 * MIB).unwrap();
        fork(&main, &side);
        submit(&side, &mut block).unwrap();
        kept.push(side.event().unwrap());
        main.wait(&kept[kept.len() - 1]).unwrap();
        drop(block);
        drop(capture.end().unwrap());
        assert_eq!(memory.size(), 8 * MIB, "a later capture reuses the memory");
        submit(&side, &mut pool.try_allocate(&side, MIB).unwrap()).unwrap();
    }
    drop(memory);
    device.advance_to_end();
    pool.inspect().check_conserved().unwrap();
    assert!(kept.iter().all(|event| event.is_complete().is_err()));
}

/// Streams that join the capture of other code end with the session that they waited for, in whichever order sessions end.
#[test]
fn streams_that_join_end_with_the_session_that_they_waited_for() {
    let (device, pool, [(on_a, a), (on_b, b), (_, c)]) = set_up(64 * MIB);
    let memory = pool.graph_memory();
    on_a.begin_capture().unwrap();
    order(&device, &on_a, &on_b);
    // SAFETY: the graph is not launched.
    let [first, second] = [&a, &b].map(|stream| unsafe { memory.join(stream) }.unwrap());
    drop(first);
    c.wait(&b.event().unwrap()).unwrap();
    assert!(pool.try_allocate(&c, MIB).is_ok());
    assert!(device.block_on(c.synchronize()).is_err());
    order(&device, &on_b, &on_a);
    drop(on_a.end_capture());
    drop(second);
    device.advance_to_end();
    assert!(
        device.block_on(c.synchronize()).is_ok(),
        "it is no longer captured"
    );
}

/// A stream that an event of other code made a part of the capture can wait as any other one.
#[test]
fn stream_that_other_code_joined_can_wait() {
    let (device, pool, [(on_main, main), (on_side, side)]) = set_up(64 * MIB);
    let capture = pool.capture(&main).unwrap();
    order(&device, &on_main, &on_side);
    fork(&main, &side);
    let mut block = pool.try_allocate(&side, MIB).unwrap();
    submit(&side, &mut block).unwrap();
    submit(&main, &mut block).unwrap();
    drop(block);
    launch(&device, &capture.end().unwrap(), &main);
}

/// A stream that was refused is not part of the capture: what it used waits for its own work.
#[test]
fn stream_that_was_refused_is_not_part_of_the_capture() {
    let (device, pool, [(_, main), (on_side, side), (on_third, third)]) = set_up(64 * MIB);
    let memory = pool.graph_memory();
    let mut capture = memory.capture(&main).unwrap();
    assert!(capture.add(&side).is_err());
    let block = pool.try_allocate(&main, 2 * MIB).unwrap();
    side.record_use(Unordered::UntilFreed(&block)).unwrap();
    on_side.submit(Operation::new(us(1000)).writes(block.address(), block.size()));
    drop(block);
    drop(capture.end().unwrap());
    let block = memory.allocate(&third, 2 * MIB).unwrap();
    on_third.submit(write_of(&block));
    device.advance_to_end();
    device.assert_ordered();
    drop(block);
}

/// A stream takes part in a capture only by waiting for it: else work that was meant to run now would silently become a part
/// of the graph.
#[test]
fn submitted_work_alone_does_not_join_a_capture() {
    let (device, pool, [(_, main), (_, side)]) = set_up(64 * MIB);
    let mut earlier = pool.try_allocate(&main, MIB).unwrap();
    let capture = pool.capture(&main).unwrap();
    let mut inside = pool.try_allocate(&main, MIB).unwrap();
    submit(&main, &mut inside).unwrap();
    submit(&main, &mut earlier).unwrap();
    for block in [&mut inside, &mut earlier] {
        assert!(submit(&side, block).is_err());
    }
    drop(inside);
    let graph = capture.end().unwrap();
    submit(&side, &mut earlier).unwrap();
    launch(&device, &graph, &side);
}

/// Random work of up to four streams in captures, ordered by the pool and by events that it does not see. The simulated
/// device finds accesses that no order separates.
#[test]
fn random_captures_are_ordered() {
    for seed in 0..150 {
        let mut random = fastrand::Rng::with_seed(seed);
        let device = devices()[seed as usize % 2].clone();
        let pool = pool(&device, 1 << 30);
        let all: [(SimStream, Stream); 4] = streams(&device, &pool);
        let memory = pool.graph_memory();
        let mut graphs = Vec::new();
        for _ in 0..3 {
            let capture = memory.capture(&all[0].1).unwrap();
            let mut inside = vec![0];
            let mut blocks: Vec<(usize, Block)> = Vec::new();
            for _ in 0..random.usize(..80) {
                let at = inside[random.usize(..inside.len())];
                match random.u8(..7) {
                    0 | 1 => {
                        let bytes = [4096, 65536, MIB, 3 * MIB][random.usize(..4)];
                        let mut block = pool.try_allocate(&all[at].1, bytes).unwrap();
                        submit(&all[at].1, &mut block).unwrap();
                        blocks.push((at, block));
                    }
                    2 | 3 if !blocks.is_empty() => {
                        drop(blocks.swap_remove(random.usize(..blocks.len())));
                    }
                    4 => {
                        let to = random.usize(..4);
                        if to != at {
                            all[to].1.wait(&all[at].1.event().unwrap()).unwrap();
                            if !inside.contains(&to) {
                                inside.push(to);
                            }
                        }
                    }
                    5 if !blocks.is_empty() => {
                        let to = inside[random.usize(..inside.len())];
                        let at = random.usize(..blocks.len());
                        let (_, block) = &mut blocks[at];
                        submit(&all[to].1, block).unwrap();
                    }
                    _ if inside.len() > 1 && !blocks.is_empty() => {
                        // The user orders the streams, and says that the block is used.
                        let last = blocks.len() - 1;
                        let (home, block) = &mut blocks[last];
                        order(&device, &all[*home].0, &all[at].0);
                        all[at].1.record_use(Unordered::UntilFreed(block)).unwrap();
                        order(&device, &all[at].0, &all[*home].0);
                    }
                    _ => {}
                }
            }
            drop(blocks);
            for at in &inside[1..] {
                all[0].1.wait(&all[*at].1.event().unwrap()).unwrap();
            }
            let graph = capture.end().unwrap();
            launch(&device, &graph, &all[random.usize(..4)].1);
            graphs.push(graph);
        }
        // Launches of graphs that share memory follow each other.
        graphs
            .iter()
            .for_each(|graph| launch(&device, graph, &all[0].1));
        drop((graphs, memory));
        device.advance_to_end();
    }
}
