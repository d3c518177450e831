//! What a pool tells of its blocks.
//!
//! | file | about |
//! |---|---|
//! | `snapshots` | all blocks at one moment |
//! | `histories` | what happened lately |
//! | `leaks` | live blocks and reservations, with the locations that allocated them |

#[path = "../../../../tests/common/mod.rs"]
mod common;
mod histories;
mod leaks;
mod snapshots;

use crate::common::*;
use std::panic::Location;
use weirpool::device::DeviceAddress;
use weirpool::device::sim::SimDevice;
use weirpool::extend::Site;
use weirpool::*;
use weirpool_observe::*;

fn recorded(device: &SimDevice, capacity: u64) -> Pool {
    builder(device, capacity).history(1000).build().unwrap()
}

/// The place of the call.
#[track_caller]
fn here() -> Site {
    Location::caller().into()
}

/// Blocks tile the mapped part of each segment, in order.
fn assert_tiled(snapshot: &Snapshot) {
    let mut end = DeviceAddress::from_bits(0);
    for segment in &snapshot.segments {
        assert!(segment.address >= end, "segments overlap: {snapshot}");
        let blocks = segment.blocks.iter();
        let spans = blocks.map(|block| block.address..block.address + block.size);
        let mut spans: Vec<_> = spans.chain(segment.unmapped()).collect();
        spans.sort_by_key(|span| span.start);
        end = segment.address;
        for span in spans {
            assert!(
                span.start == end && span.end > end,
                "{span:x?} in {snapshot}"
            );
            end = span.end;
        }
        assert_eq!(end, segment.address + segment.size);
        let bytes = segment.blocks.iter().map(|block| block.size);
        assert_eq!(segment.mapped, bytes.sum::<u64>());
    }
}

/// At rest: the sums are those of the statistics.
fn assert_adds_up(pool: &Pool) -> Snapshot {
    let (snapshot, figures) = (pool.inspect().snapshot(), pool.inspect().statistics());
    assert_tiled(&snapshot);
    let sums = [BlockState::Used, BlockState::Pending, BlockState::Free];
    assert_eq!(
        sums.map(|state| snapshot.bytes_in(state)),
        [figures.used.current, figures.pending.current, figures.free]
    );
    assert_eq!(snapshot.reserved(), figures.reserved.current);
    let live = snapshot.blocks_in(BlockState::Used).count() as u64;
    assert_eq!(live, figures.live_blocks);
    snapshot
}
