//! What spillable memory promises.

use crate::failures::Source;
use crate::site::{MIB, Site, poll, work};
use futures::future::join;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::sim::{Clock, Operation, SimDevice};
use weirpool::{AllocError, Pool, Tag, Terms};
use weirpool_tiers::{HostTier, IntoSpillable, SpillError, keep_headroom};

#[test]
fn contents_come_back_after_others_used_the_memory() {
    let site = Site::new(8 * MIB, 16 * MIB);
    let memory: Vec<_> = (0..4).map(|value| site.spillable(2 * MIB, value)).collect();
    for round in 0..10 {
        let mut other = site.pool.try_allocate(&site.stream, 8 * MIB).unwrap();
        assert!(memory.iter().all(|memory| !memory.is_resident()));
        assert_eq!(site.tier.figures().spilled, 8 * MIB);
        other.fill(&site.stream, 0xee).unwrap();
        drop(other);
        for at in 0..4 {
            let at = (at + round) % 4;
            let fetched = site.fetch(&memory[at]).unwrap();
            site.assert_is(&fetched, at as u8);
        }
    }
    let figures = site.tier.figures();
    assert_eq!((figures.spills, figures.fetches), (40, 40));
    assert_eq!((figures.spilled, figures.resident), (0, 8 * MIB));
    drop(memory);
    site.end();
}

#[test]
fn resident_memory_is_fetched_without_a_copy() {
    let site = Site::new(8 * MIB, 8 * MIB);
    let memory = site.spillable(2 * MIB, 1);
    let address = site.fetch(&memory).unwrap().address();
    let now = site.device.now();
    let calls = site.pool.inspect().statistics().allocations;
    let mut fetch = Box::pin(memory.fetch(&site.stream));
    let std::task::Poll::Ready(fetched) = poll(fetch.as_mut()) else {
        panic!("resident memory is waited for");
    };
    assert_eq!(fetched.unwrap().address(), address);
    assert_eq!(site.device.now(), now);
    assert_eq!(site.pool.inspect().statistics().allocations, calls);
    let figures = site.tier.figures();
    assert_eq!((figures.spills, figures.fetches), (0, 0));
    drop(memory);
    site.end();
}

/// A fetch waits behind requests that came before, and before those that come later, on its terms.
#[test]
fn fetch_waits_its_turn_in_the_fair_queue() {
    let site = Site::new(8 * MIB, 8 * MIB);
    let memory = site.spillable(4 * MIB, 3);
    site.spill_all();
    let holder = site.take_all();
    let mut first = Box::pin(site.pool.allocate(&site.stream, 6 * MIB));
    let mut fetch = Box::pin(memory.fetch(&site.stream));
    let mut last = Box::pin(site.pool.allocate(&site.stream, 2 * MIB));
    assert!(poll(first.as_mut()).is_pending());
    assert!(poll(fetch.as_mut()).is_pending());
    assert!(poll(last.as_mut()).is_pending());
    assert!(site.pool.try_allocate(&site.stream, MIB).is_err());
    drop(holder);
    let first = site.device.block_on(first).unwrap();
    assert!(poll(fetch.as_mut()).is_pending());
    assert!(poll(last.as_mut()).is_pending(), "it came after the fetch");
    drop(first);
    let (fetched, last) = site.device.block_on(join(fetch, last));
    site.assert_is(&fetched.unwrap(), 3);
    drop((last, memory));
    site.end();
}

#[test]
fn fetch_takes_terms_and_charges_the_tag_of_the_block() {
    let tag = Tag::new("spills: of the block");
    let other = Tag::new("spills: of the terms");
    let site = Site::new(8 * MIB, 8 * MIB);
    let allocate = site.pool.allocate(&site.stream, 4 * MIB).tag(tag);
    let memory = allocate.try_now().unwrap().into_spillable(&site.tier);
    let charged = |tag| site.pool.tag(tag).statistics().used.current;
    assert_eq!(charged(tag), 4 * MIB);
    site.spill_all();
    assert_eq!(charged(tag), 0);
    let holder = site.take_all();
    let fetch = memory
        .fetch(&site.stream)
        .deadline(Duration::from_millis(5));
    let refused = site.device.block_on(fetch).unwrap_err();
    assert!(
        matches!(refused, SpillError::Alloc(AllocError::TimedOut { .. })),
        "{refused:?}"
    );
    assert!(!memory.is_resident());
    drop(holder);
    let fetched = site.fetch(&memory).unwrap();
    assert_eq!((fetched.tag(), charged(tag)), (Some(tag), 4 * MIB));
    drop(fetched);
    site.spill_all();
    let terms = Terms {
        tag: Some(other),
        ..Terms::default()
    };
    let fetched = site
        .device
        .block_on(memory.fetch(&site.stream).terms(terms));
    assert_eq!(fetched.unwrap().tag(), Some(other));
    drop(memory);
    site.end();
}

#[test]
fn memory_in_use_is_not_spilled() {
    let site = Site::new(8 * MIB, 8 * MIB);
    let memory = [1, 2].map(|value| site.spillable(4 * MIB, value));
    let fetched = site.fetch(&memory[0]).unwrap();
    let again = site.fetch(&memory[0]).unwrap();
    let other = site.pool.try_allocate(&site.stream, 4 * MIB).unwrap();
    assert_eq!(memory.each_ref().map(|it| it.is_resident()), [true, false]);
    drop((other, fetched));
    assert!(site.pool.try_allocate(&site.stream, 8 * MIB).is_err());
    drop(again);
    drop(site.pool.try_allocate(&site.stream, 8 * MIB).unwrap());
    assert_eq!(memory.each_ref().map(|it| it.is_resident()), [false; 2]);
    drop(memory);
    site.end();
}

/// What the host has no room for does not count as evictable, and a request that only it could serve evicts nothing.
#[test]
fn memory_is_evictable_as_far_as_the_host_has_room() {
    let site = Site::new(8 * MIB, 4 * MIB);
    let mut memory: Vec<_> = (0..4).map(|value| site.spillable(2 * MIB, value)).collect();
    let evictable = || {
        assert_eq!(
            site.pool.inspect().statistics().evictable,
            site.tier.figures().evictable
        );
        site.tier.figures().evictable
    };
    assert_eq!(evictable(), 4 * MIB);
    let refused = site.pool.try_allocate(&site.stream, 6 * MIB);
    assert!(matches!(refused, Err(AllocError::Exhausted(_))));
    assert_eq!(site.tier.figures().spills, 0);
    let other = site.pool.try_allocate(&site.stream, 4 * MIB).unwrap();
    let resident = |memory: &[weirpool_tiers::Spillable]| {
        let resident = memory.iter().map(|memory| memory.is_resident());
        resident.collect::<Vec<_>>()
    };
    assert_eq!(resident(&memory), [false, false, true, true]);
    assert_eq!(evictable(), 0);
    assert!(site.pool.try_allocate(&site.stream, 2 * MIB).is_err());
    let mut waiting = Box::pin(site.pool.allocate(&site.stream, 2 * MIB));
    assert!(poll(waiting.as_mut()).is_pending());
    // The oldest copy is dropped, and its room serves the request.
    drop(memory.remove(0));
    let further = site.device.block_on(waiting).unwrap();
    assert_eq!(resident(&memory), [false, false, true]);
    drop((other, further));
    for (memory, value) in memory.iter().zip(1..) {
        site.assert_is(&site.fetch(memory).unwrap(), value);
    }
    assert_eq!(site.tier.figures().refusals, 0);
    drop(memory);
    site.end();
}

/// Others may use the host's pool: memory that it refuses stays, and other evictable memory goes.
#[test]
fn memory_that_the_host_refuses_stays_and_others_go() {
    let site = Site::new(8 * MIB, 4 * MIB);
    let hosts = site.host.create_stream().unwrap();
    let memory = [5, 6].map(|value| site.spillable(2 * MIB, value));
    let cached = site.pool.try_allocate(&site.stream, 4 * MIB).unwrap();
    let cached = cached.into_evictable();
    let taken = site.host.try_allocate(&hosts, 4 * MIB).unwrap();
    let other = site.pool.try_allocate(&site.stream, 4 * MIB).unwrap();
    assert!(memory.iter().all(|memory| memory.is_resident()));
    assert!(!cached.is_present());
    assert_eq!(site.tier.figures().refusals, 2);
    assert_eq!(site.pool.inspect().statistics().evictable, 0);
    assert!(site.pool.try_allocate(&site.stream, 4 * MIB).is_err());
    assert_eq!(site.tier.figures().refusals, 2, "it is not tried again");
    drop(taken);
    // The next use of the tier finds the room.
    drop(site.fetch(&memory[1]).unwrap());
    let further = site.pool.try_allocate(&site.stream, 4 * MIB).unwrap();
    assert!(memory.iter().all(|memory| !memory.is_resident()));
    drop((other, further));
    for (memory, value) in memory.iter().zip(5..) {
        site.assert_is(&site.fetch(memory).unwrap(), value);
    }
    drop((memory, cached, hosts));
    site.end();
}

/// The copy runs beside the work of other streams. The memory is pending until it is complete.
#[test]
fn memory_is_pending_until_its_copy_is_complete_and_work_goes_on_beside_it() {
    let device = SimDevice::builder()
        .memory(64 * MIB)
        .host_memory(64 * MIB)
        .clock(Clock::Manual)
        .build();
    let site = Site::on(device.clone(), 64 * MIB, 64 * MIB);
    let memory = site.spillable(64 * MIB, 1);
    let compute = device.create_stream();
    let registered = site.pool.register(&compute).unwrap();
    device.advance_to_end();
    let begin = device.now();
    let mut request = pin!(site.pool.allocate(&registered, 64 * MIB));
    let asked = poll(request.as_mut());
    assert!(!memory.is_resident());
    compute.submit(Operation::new(Duration::from_micros(10)));
    let mut computed = Box::pin(registered.synchronize());
    assert!(poll(computed.as_mut()).is_pending());
    assert!(asked.is_pending(), "the copy runs");
    assert_eq!(site.pool.inspect().statistics().pending.current, 64 * MIB);
    device.advance(Duration::from_micros(10));
    assert!(poll(computed.as_mut()).is_ready(), "work goes on");
    assert!(poll(request.as_mut()).is_pending(), "the copy runs");
    device.advance_to_end();
    assert!(device.now() - begin > Duration::from_micros(500));
    let std::task::Poll::Ready(granted) = poll(request.as_mut()) else {
        panic!("the copy is complete");
    };
    drop((granted.unwrap(), memory));
    device.advance_to_end();
    device.assert_ordered();
}

/// Searches that find the memory behind its copy spill no more, however often the request is searched for.
#[test]
fn request_that_waits_for_a_copy_spills_no_more() {
    let device = SimDevice::builder()
        .memory(64 * MIB)
        .host_memory(64 * MIB)
        .clock(Clock::Manual)
        .build();
    let site = Site::on(device.clone(), 64 * MIB, 64 * MIB);
    let memory: Vec<_> = (0..8).map(|value| site.spillable(8 * MIB, value)).collect();
    device.advance_to_end();
    let other = site.pool.create_stream().unwrap();
    let mut request = Box::pin(site.pool.allocate(&other, 16 * MIB));
    let granted = loop {
        if let std::task::Poll::Ready(granted) = poll(request.as_mut()) {
            break granted.unwrap();
        }
        // A change that has it searched for.
        drop(site.stream.event().unwrap());
        site.stream.seal().unwrap();
        device.advance(Duration::from_micros(20));
    };
    assert_eq!(site.tier.figures().spills, 2);
    drop((granted, request, memory));
    device.advance_to_end();
    device.assert_ordered();
}

/// A request that does not wait takes no part in copies for others: it evicts memory that needs none.
#[test]
fn request_that_does_not_wait_evicts_beside_a_copy_for_others() {
    let device = SimDevice::builder()
        .memory(16 * MIB)
        .host_memory(64 * MIB)
        .clock(Clock::Manual)
        .build();
    let site = Site::on(device.clone(), 16 * MIB, 64 * MIB);
    let memory = site.spillable(8 * MIB, 1);
    device.advance_to_end();
    let cached = site.pool.try_allocate(&site.stream, 8 * MIB).unwrap();
    let cached = cached.into_evictable();
    site.pool.maintain().evict(8 * MIB);
    assert!(!memory.is_resident());
    assert_eq!(site.pool.inspect().statistics().pending.current, 8 * MIB);
    let other = site.pool.create_stream().unwrap();
    let granted = site.pool.try_allocate(&other, 8 * MIB).unwrap();
    assert!(cached.pin().is_none());
    drop((granted, memory, cached));
    device.advance_to_end();
    device.assert_ordered();
}

/// The checker finds each copy that is not ordered: after the uses on all streams, and before the work of the stream of
/// the fetch, also work that names an address alone.
#[test]
fn copies_are_ordered_with_uses_on_every_stream() {
    let site = Site::new(8 * MIB, 16 * MIB);
    let work_streams = [(); 3].map(|()| site.device.create_stream());
    let streams = work_streams.each_ref();
    let streams = streams.map(|work| site.pool.register(work).unwrap());
    let memory = [1, 2].map(|value| site.spillable(4 * MIB, value));
    for round in 0..12 {
        let (n, at) = (round % 3, round % 2);
        let fetch = memory[at].fetch(&streams[n]);
        let fetched = site.device.block_on(fetch).unwrap();
        let read = Operation::new(Duration::from_micros(300));
        work_streams[n].submit(read.reads(fetched.address(), fetched.size()));
        work(&streams[(n + 1) % 3], &fetched, Duration::from_micros(700));
        drop(fetched);
        let other = site.pool.allocate(&streams[(n + 2) % 3], 8 * MIB);
        let mut other = site.device.block_on(other).unwrap();
        other.fill(&streams[n], 0xee).unwrap();
    }
    for (memory, value) in memory.iter().zip(1..) {
        site.assert_is(&site.fetch(memory).unwrap(), value);
    }
    drop((memory, streams));
    site.end();
}

#[test]
fn fetches_of_the_same_memory_share_one_copy() {
    let site = Site::new(8 * MIB, 8 * MIB);
    let memory = site.spillable(4 * MIB, 9);
    site.spill_all();
    let holder = site.take_all();
    let mut fetches: Vec<_> = (0..3)
        .map(|_| Box::pin(memory.fetch(&site.stream)))
        .collect();
    for fetch in &mut fetches {
        assert!(poll(fetch.as_mut()).is_pending());
    }
    drop(fetches.remove(0));
    drop(holder);
    let fetched = site.device.block_on(futures::future::join_all(fetches));
    let fetched: Vec<_> = fetched.into_iter().map(Result::unwrap).collect();
    assert_eq!(fetched[0].address(), fetched[1].address());
    assert_eq!(site.tier.figures().fetches, 1);
    assert_eq!(site.pool.inspect().statistics().used.current, 4 * MIB);
    drop((fetched, memory));
    site.end();
}

#[test]
fn memory_is_taken_out_unless_it_is_in_use_or_spilled() {
    // With room on the host, and without.
    for host in [16, 2] {
        let site = Site::new(8 * MIB, host * MIB);
        let memory = site.spillable(4 * MIB, 1);
        let fetched = site.fetch(&memory).unwrap();
        let memory = memory.into_block().unwrap_err();
        drop(fetched);
        let mut block = memory.into_block().unwrap();
        block.fill(&site.stream, 2).unwrap();
        let memory = block.into_spillable(&site.tier);
        site.spill_all();
        if host == 16 {
            let memory = memory.into_block().unwrap_err();
            let fetched = site.fetch(&memory).unwrap();
            site.assert_is(&fetched, 2);
            drop((fetched, memory));
        } else {
            site.assert_is(&memory.into_block().unwrap(), 2);
        }
        assert_eq!(site.tier.figures().resident, 0);
        site.end();
    }
}

/// While a graph uses the memory, it is as if it were in use.
#[test]
fn memory_of_a_graph_stays_until_the_graph_is_dropped() {
    let site = Site::new(8 * MIB, 8 * MIB);
    let memory = site.spillable(4 * MIB, 4);
    let fetched = site.fetch(&memory).unwrap();
    let capture = site.pool.capture(&site.stream).unwrap();
    work(&site.stream, &fetched, Duration::from_micros(5));
    let graph = capture.end().unwrap();
    drop(fetched);
    site.spill_all();
    assert!(memory.is_resident());
    graph.launch(&site.stream).unwrap();
    drop(graph);
    site.device.advance_to_end();
    site.spill_all();
    assert!(!memory.is_resident());
    site.assert_is(&site.fetch(&memory).unwrap(), 4);
    drop(memory);
    site.end();
}

#[test]
fn headroom_is_made_ahead_of_need() {
    let site = Site::new(16 * MIB, 32 * MIB);
    let memory: Vec<_> = (0..8).map(|value| site.spillable(2 * MIB, value)).collect();
    let mut headroom = Box::pin(keep_headroom(&site.pool, 4 * MIB..8 * MIB));
    assert!(poll(headroom.as_mut()).is_pending());
    assert_eq!(site.tier.figures().spills, 4);
    site.device.advance(Duration::from_millis(10));
    assert!(poll(headroom.as_mut()).is_pending());
    assert_eq!(
        site.tier.figures().spills,
        4,
        "as much is left as is wanted"
    );
    let held = site.pool.try_allocate(&site.stream, 4 * MIB).unwrap();
    site.device.advance(Duration::from_millis(10));
    assert!(poll(headroom.as_mut()).is_pending());
    assert_eq!(site.tier.figures().spills, 4, "no less than the mark");
    let more = site.pool.try_allocate(&site.stream, 2 * MIB).unwrap();
    assert_eq!(site.tier.figures().spills, 4, "no request spills");
    site.device.advance(Duration::from_millis(10));
    assert!(poll(headroom.as_mut()).is_pending());
    assert_eq!(site.tier.figures().spills, 7);
    drop(headroom);
    drop((held, more));
    for (memory, value) in memory.iter().zip(0..) {
        site.assert_is(&site.fetch(memory).unwrap(), value);
    }
    drop(memory);
    site.end();
}

/// A source may lend less than the capacity: what it can still lend is left.
#[test]
fn headroom_evicts_nothing_while_more_can_be_leased() {
    let device = SimDevice::builder().memory(16 * MIB).build();
    let source = Arc::new(Source::default());
    let pool = Pool::builder(device.clone())
        .capacity(16 * MIB)
        .chunk_bytes(2 * MIB)
        .capacity_source(source.clone())
        .build()
        .unwrap();
    let stream = pool.create_stream().unwrap();
    source.set(8 * MIB);
    let allocate = || pool.try_allocate(&stream, 2 * MIB).unwrap();
    let cached = [(); 4].map(|()| allocate().into_evictable());
    let evictions = || pool.inspect().statistics().evictions;
    let mut headroom = Box::pin(keep_headroom(&pool, 4 * MIB..6 * MIB));
    assert!(poll(headroom.as_mut()).is_pending());
    assert_eq!(evictions(), 0, "half of the capacity is left");
    let mut headroom = Box::pin(keep_headroom(&pool, 9 * MIB..10 * MIB));
    assert!(poll(headroom.as_mut()).is_pending());
    assert_eq!(evictions(), 1);
    drop(cached);
}

#[test]
fn headroom_ends_with_its_pool_and_keeps_it_not() {
    let site = Site::new(16 * MIB, 32 * MIB);
    let mut headroom = Box::pin(keep_headroom(&site.pool, 4 * MIB..8 * MIB));
    assert!(poll(headroom.as_mut()).is_pending());
    let device = site.device.clone();
    site.end();
    device.advance(Duration::from_millis(1));
    assert!(poll(headroom.as_mut()).is_ready());
}

#[test]
fn tier_needs_pinned_memory_and_spills_none_of_its_own() {
    let site = Site::new(8 * MIB, 8 * MIB);
    let refused = HostTier::new(&site.pool).unwrap_err();
    assert!(
        matches!(refused, SpillError::NotPinned { .. }),
        "{refused:?}"
    );
    let hosts = site.host.create_stream().unwrap();
    let own = site.host.try_allocate(&hosts, 4 * MIB).unwrap();
    let own = own.into_spillable(&site.tier);
    assert!(site.host.try_allocate(&hosts, 8 * MIB).is_err());
    assert!(own.is_resident());
    drop((own, hosts));
    site.end();
}

/// Two pools of a device share a host tier.
#[test]
fn pools_share_a_tier() {
    let site = Site::new(8 * MIB, 16 * MIB);
    let second = Pool::builder(site.device.clone())
        .capacity(4 * MIB)
        .chunk_bytes(2 * MIB)
        .build()
        .unwrap();
    let there = second.create_stream().unwrap();
    let memory = site.spillable(4 * MIB, 1);
    let mut block = second.try_allocate(&there, 4 * MIB).unwrap();
    block.fill(&there, 2).unwrap();
    let other = block.into_spillable(&site.tier);
    second.maintain().evict(u64::MAX);
    site.spill_all();
    let fetched = site.device.block_on(other.fetch(&there)).unwrap();
    let bytes = fetched.download(&there, 0..4 * MIB).unwrap();
    let bytes = site.device.block_on(bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 2));
    // Resident memory of one pool is of no use to a stream of another.
    let refused = site.fetch(&other).unwrap_err();
    assert!(matches!(refused, SpillError::Stream(_)), "{refused:?}");
    drop(fetched);
    site.assert_is(&site.fetch(&memory).unwrap(), 1);
    drop((memory, other, there, second));
    site.end();
}
