//! The invariants of the crate, and executable checks of those that concern the heap.
//!
//! Code and documents cite an invariant by its name.
//!
//! | name | statement |
//! |---|---|
//! | *tiling* | Live blocks are disjoint; the blocks of a segment tile it. |
//! | *order* | Memory is reused only after every use of its earlier life, on every stream, through any chain of frees, flushes, splits and merges. A use on a further stream happens after the grant. Splits and merges carry the union of the fences; neighbours with different fences merge only for the request that needs that range. |
//! | *conservation* | free + pending + used + claimed = reserved at every step of the heap, and free + used + pending = reserved when nothing is under way. No figure falls below zero. |
//! | *completes-once* | Every deallocation completes exactly once. Awaiting it reports its own ticket, even if the memory has another owner by then. |
//! | *no-lock-across-calls* | No lock is held across a device call that can wait, nor while a waker or user code runs. |
//! | *last-resort* | A search reports out-of-memory only after reaping completed events, flushing caches, searching again and, on plain memory, trimming. |
//! | *stable-ids* | Streams are keyed by ids that are never reused, never by driver handles, which are. |
//! | *bounded-events* | In steady state no events are created: they are pooled, and their number is bounded. |
//! | *cancel-safety* | A dropped or never-polled future never frees early, never leaks, and never loses a wake-up. A forgotten one leaks at most the memory that it was granted. |
//! | *errors-are-errors* | "Not ready" is not an error, and an error is never "not ready". A sticky device error fails every waiter, and the memory concerned is leaked rather than reused. |
//! | *safe-teardown* | Dropping the last handle never releases memory that running work can still touch. |
//! | *fair-progress* | A waiter is overtaken by no more than the fairness policy allows. Before the queue counts as deadlocked, every request that can be granted is. |
//!
//! The checks take time in proportion to the number of blocks. Tests, property tests and models run them after every
//! step: [`invariants`] covers *tiling*, *conservation* and the fences that *order* needs, and [`conserved`] covers
//! *conservation* at the end.

use super::Heap;
use super::block::{Block, BlockId, State, Was};
use super::totals::Totals;
use std::collections::BTreeSet;

/// Checks what must hold at every step.
///
/// # Errors
/// Returns the first violation.
pub fn invariants(heap: &Heap) -> Result<(), String> {
    tiling(heap)?;
    totals(heap)?;
    states(heap)?;
    indexes(heap)
}

/// Checks that no block is granted or claimed any more. Tests end with this.
///
/// # Errors
/// Returns the first invariant that is broken, or else the totals, if any memory is still granted or claimed.
pub fn conserved(heap: &Heap) -> Result<(), String> {
    invariants(heap)?;
    let totals = heap.totals();
    if totals.used.current + totals.claimed + totals.planned != 0 {
        return Err(format!("conservation: not given back: {totals:?}"));
    }
    Ok(())
}

/// *tiling*: the blocks of a segment tile it in address order, and neighbours that can merge are merged.
fn tiling(heap: &Heap) -> Result<(), String> {
    let blocks = heap.map.blocks();
    let (mut seen, mut count) = (0, 0);
    for (address, segment) in heap.map.segments() {
        count += 1;
        let mut at = address;
        let mut previous: Option<(BlockId, &Block)> = None;
        for (id, block) in blocks.from(segment.first) {
            seen += 1;
            let fail = |what: &str| Err(format!("tiling: {id:?} {block:?} {what}"));
            if block.address != at {
                return fail(&format!("does not begin at {at:#x}"));
            }
            if block.bytes == 0 {
                return fail("is empty");
            }
            if block.previous != previous.map(|(id, _)| id) {
                return fail("is linked to another neighbour");
            }
            if previous.is_some_and(|(_, below)| below.state.merges_with(&block.state)) {
                return fail("was not merged with the block below");
            }
            at = block.end();
            previous = Some((id, block));
        }
    }
    let noted = heap.map.segment_count;
    if count != noted {
        return Err(format!("tiling: {count} segments, and {noted} are noted"));
    }
    let live = blocks.iter().count();
    if seen != live {
        return Err(format!(
            "tiling: {live} blocks, {seen} of them in a segment"
        ));
    }
    Ok(())
}

/// *conservation*: free + pending + used + claimed = reserved, and the totals are those of the blocks.
fn totals(heap: &Heap) -> Result<(), String> {
    let totals = heap.totals();
    let mut counted = Totals::default();
    for (_, block) in heap.map.blocks().iter() {
        counted.add(&block.state, block.bytes);
        if block.state == State::Free {
            let (bytes, chunks) = heap.map.units().releasable(block);
            counted.add_releasable(bytes, chunks);
        }
    }
    let of_blocks = |totals: &Totals| {
        [
            ("free", totals.free.current),
            ("pending", totals.pending.current),
            ("used", totals.used.current),
            ("claimed", totals.claimed),
            ("in use", totals.in_use.current),
            ("set aside", totals.set_aside.current),
            ("whole free chunks", totals.whole_free_chunks),
            ("releasable", totals.releasable),
            ("releasable blocks", totals.releasable_blocks),
        ]
    };
    for ((name, expected), (_, noted)) in of_blocks(&counted).into_iter().zip(of_blocks(&totals)) {
        if expected != noted {
            return Err(format!(
                "conservation: {name} is {expected}, and {noted} is noted"
            ));
        }
    }
    let [free, pending, used, claimed, ..] = of_blocks(&counted).map(|(_, bytes)| bytes);
    let reserved = totals.reserved.current;
    if free + pending + used + claimed != reserved {
        return Err(format!("conservation: {counted:?} of {reserved} reserved"));
    }
    if !heap.capacity.allows(&totals) {
        return Err(format!("conservation: over the capacity: {totals:?}"));
    }
    Ok(())
}

/// Checks that every block is in the index of its state, under its size, and in no other index.
fn indexes(heap: &Heap) -> Result<(), String> {
    let (blocks, index) = (heap.map.blocks(), heap.map.index());
    let compare = |what: &str, indexed: Vec<(u64, BlockId)>, is_in: &dyn Fn(&State) -> bool| {
        let members = blocks.iter().filter(|(_, block)| is_in(&block.state));
        let members: BTreeSet<_> = members.map(|(id, block)| (block.bytes, id)).collect();
        let count = indexed.len();
        let indexed: BTreeSet<_> = indexed.into_iter().collect();
        if indexed.len() != count || members != indexed {
            let difference: Vec<_> = members.symmetric_difference(&indexed).collect();
            return Err(format!("index of {what} blocks: {difference:?}"));
        }
        Ok(())
    };
    let free = index.free.at_least(0).collect();
    compare("free", free, &|state| *state == State::Free)?;
    let holes = index.holes.at_least(0).collect();
    compare("unmapped", holes, &|state| *state == State::Hole)?;
    let alone = index.pending.donors();
    let alone = alone.flat_map(|(_, donated)| donated.by_size.at_least(0));
    let several = index.pending.several().map(|id| (blocks[id].bytes, id));
    let pending = alone.chain(several).collect();
    compare("pending", pending, &|state| {
        matches!(state, State::Pending(_))
    })?;
    for (reservation, reserved) in &index.reserved {
        let reserved = reserved.by_size.at_least(0).collect();
        let is_in = |state: &State| matches!(state, State::Reserved(id, _) if id == reservation);
        compare("reserved", reserved, &is_in)?;
    }
    index.stretches.check(blocks, index.unused())
}

/// Checks that no fence of a pending block is known to be complete (*order*), that reservations of reserved blocks
/// exist, that holes are whole chunks, and that room lies above a block that may grow into it.
fn states(heap: &Heap) -> Result<(), String> {
    let blocks = heap.map.blocks();
    for (id, block) in blocks.iter() {
        match &block.state {
            State::Pending(fences) if fences.is_empty() => {
                return Err(format!("order: {id:?} is pending behind no fence"));
            }
            State::Pending(fences) => {
                if let Some(fence) = fences.iter().find(|f| heap.completed.contains(*f)) {
                    return Err(format!(
                        "order: {id:?} is pending behind {fence:?}, complete"
                    ));
                }
            }
            State::Reserved(reservation, _)
                if !super::reservation::exists(&heap.map, *reservation) =>
            {
                let message = format!("{id:?} is set aside in {reservation:?}, which is gone");
                return Err(message);
            }
            _ => {}
        }
        let is_hole = matches!(
            block.state,
            State::Hole | State::Room | State::Claimed(Was::Hole | Was::Room)
        );
        let chunk = heap.map.units().chunk_bytes;
        if is_hole && (block.address % chunk != 0 || block.bytes % chunk != 0) {
            return Err(format!("{id:?} {block:?} splits a chunk"));
        }
        if block.state == State::Room {
            let below = block.previous.map(|below| &blocks[below].state);
            if !matches!(
                below,
                Some(State::Used(_) | State::Reserved(..) | State::Claimed(_))
            ) {
                return Err(format!("{id:?} {block:?} is room above {below:?}"));
            }
        }
    }
    Ok(())
}
