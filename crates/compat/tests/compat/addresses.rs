//! Pools and blocks that are found by an address.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use weirpool::device::sim::{Checker, Clock};
use weirpool::{BlockState, Unordered};
use weirpool_compat::pool_of;

#[test]
fn an_address_is_looked_up_in_every_state() {
    for virtual_memory in [true, false] {
        let device = SimDevice::builder()
            .clock(Clock::Manual)
            .virtual_memory(virtual_memory)
            .build();
        let pool = exact(&device)
            .tuning(|tuning| tuning.lane_bytes = 0)
            .build()
            .unwrap();
        let [(work, home), (other_work, other)] = streams(&device, &pool);
        let block = pool.try_allocate(&home, MIB).unwrap();
        let (first, last) = (block.address(), block.address() + (MIB - 1));
        for address in [first, first + 17, last] {
            let (owner, info) = pool_of(address).unwrap();
            assert_eq!((&owner, info.address, info.size), (&pool, first, MIB));
            assert_eq!(
                (info.state, info.stream),
                (BlockState::Used, Some(home.id()))
            );
        }
        assert_ne!(pool_of(last + 1).map(|(_, info)| info.address), Some(first));
        other.record_use(Unordered::UntilFreed(&block)).unwrap();
        run(&work, us(10));
        run(&other_work, us(20));
        drop(block);
        let waits_for = || pool.inspect().block_at(first).unwrap().waits_for;
        assert_eq!(waits_for(), [home.id(), other.id()]);
        assert_eq!(
            pool.inspect().block_at(first).unwrap().state,
            BlockState::Pending
        );
        device.advance(us(10));
        pool.maintain().reap().unwrap();
        assert_eq!(waits_for(), [other.id()]);
        device.advance(us(10));
        pool.maintain().reap().unwrap();
        let info = pool.inspect().block_at(first).unwrap();
        assert_eq!((info.state, info.stream), (BlockState::Free, None));
        assert!(info.waits_for.is_empty());
        let _ = pool.trim_to(0).unwrap();
        assert_eq!(pool_of(first), None, "no memory is there any more");
        assert_eq!(pool_of(1), None);
    }
}

#[test]
fn cached_block_belongs_to_its_stream() {
    let device = manual();
    let pool = exact(&device).build().unwrap();
    let (work, home) = stream(&device, &pool);
    let block = pool.try_allocate(&home, 4096).unwrap();
    let address = block.address();
    run(&work, us(10));
    drop(block);
    let info = pool.inspect().block_at(address).unwrap();
    assert_eq!(
        (info.state, info.stream),
        (BlockState::Pending, Some(home.id()))
    );
    assert_eq!(info.waits_for, [home.id()]);
    device.advance(us(10));
    pool.maintain().reap().unwrap();
    let info = pool.inspect().block_at(address).unwrap();
    assert_eq!(
        (info.state, info.stream),
        (BlockState::Free, Some(home.id()))
    );
    let again = pool.try_allocate(&home, 4096).unwrap();
    assert_eq!(again.address(), address);
    assert_eq!(
        pool.inspect().block_at(address).unwrap().state,
        BlockState::Used
    );
}

#[test]
fn blocks_are_found_while_others_come_and_go() {
    let device = SimDevice::builder().checker(Checker::Off).build();
    let pool = crate::common::builder(&device, 64 * MIB).build().unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let churning: Vec<_> = (0..2)
            .map(|_| {
                let (_work, stream) = stream(&device, &pool);
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..3000_u64 {
                        let bytes = 512 << (round * 7 % 13);
                        let block = pool.try_allocate(&stream, bytes).unwrap();
                        let info = pool
                            .inspect()
                            .block_at(block.address() + (bytes - 1))
                            .unwrap();
                        assert_eq!((info.address, info.size), (block.address(), block.size()));
                        assert_eq!(info.state, BlockState::Used);
                        assert_eq!(info.stream, Some(stream.id()));
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let (_work, stream) = stream(&device, &pool);
            let mine = pool.try_allocate(&stream, MIB).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let (owner, info) = pool_of(mine.address()).unwrap();
                assert_eq!((owner, info.size), (pool.clone(), MIB));
            }
        });
        for thread in churning {
            thread.join().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    pool.inspect().check_conserved().unwrap();
}
