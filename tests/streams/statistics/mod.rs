//! What a pool tells of itself, on a clock that is told when to move: where the figures are known to the
//! nanosecond and to the byte. What holds on any device is in `conformance`.
//!
//! | file | about |
//! |---|---|
//! | `scopes` | figures between two moments |
//! | `tags` | whose memory it is |
//! | `streams` | a stream's own figures |
//! | `levels` | bytes by state, and their highs |
//! | `histograms` | times, in percentiles |
//! | `racing` | figures that are read while other threads allocate and free |

mod histograms;
mod levels;
mod racing;
mod scopes;
mod streams;
mod tags;

use crate::common::*;
use weirpool::device::sim::SimDevice;
use weirpool::*;
use weirpool_compat::{Attribute, AttributeError};

/// A pool of 64 MiB with one stream.
fn site() -> (SimDevice, TestPool, Stream) {
    let (device, pool, [(_, stream)]) = set_up(64 * MIB);
    (device, pool, stream)
}

/// Has the pool full for some microseconds, while a request of half of it waits.
fn wait_for(device: &SimDevice, pool: &Pool, stream: &Stream, tag: Option<Tag>, micros: u64) {
    let all = pool.try_allocate(stream, pool.capacity()).unwrap();
    let mut waiting = pool.allocate(stream, pool.capacity() / 2);
    if let Some(tag) = tag {
        waiting = waiting.tag(tag);
    }
    assert!(poll(&mut waiting).is_pending());
    device.advance(us(micros));
    drop(all);
    drop(now(waiting).unwrap());
}
