//! Releasing and coalescing: on demand, and by themselves.
//!
//! | file | about |
//! |---|---|
//! | `coalescing` | free memory becomes one piece |
//! | `releasing` | memory above the threshold goes back |
//! | `resting` | an idle pool comes to rest |

mod coalescing;
mod releasing;
mod resting;

use crate::common::*;
use weirpool::device::sim::{Call, Clock, Operation, SimDevice, SimStream};
use weirpool::*;

const INTERVAL: u64 = 10_000;

/// Lets this many intervals pass, one after the other: the work of one may be followed up in the next.
fn let_pass(device: &SimDevice, intervals: u64) {
    for _ in 0..intervals {
        device.advance(us(INTERVAL));
    }
}

fn memory_calls(device: &SimDevice) -> u64 {
    let counters = device.counters();
    let calls = Call::ALL.iter().filter(|call| call.is_memory_call());
    calls.map(|call| counters.calls(*call)).sum()
}

/// Blocks of a handle each; every other one is freed, and all that was submitted is complete.
fn every_other_one(pool: &Pool, stream: &Stream, count: usize) -> Vec<Block> {
    let take = |_| pool.try_allocate(stream, CHUNK).unwrap();
    let blocks: Vec<_> = (0..count).map(take).collect();
    let kept = blocks.into_iter().step_by(2).collect();
    stream.seal().unwrap();
    pool.maintain().reap().unwrap();
    kept
}
