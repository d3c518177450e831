//! The heap's invariants, executable. O(blocks): for tests, property tests and models.

use super::block::{Block, BlockId, State, Was};
use super::{Heap, Totals};

impl Heap {
    /// Checks what must hold at every step.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.check_tiling()?;
        self.check_totals()?;
        self.check_indexes()
    }

    /// I1: the blocks of a segment tile it, in order, and no free neighbours are apart.
    fn check_tiling(&self) -> Result<(), String> {
        let mut seen = 0;
        for segment in self.segments.iter().flatten() {
            let mut at = segment.address;
            let mut previous: Option<(BlockId, &Block)> = None;
            for (id, block) in self.blocks.from(segment.first) {
                seen += 1;
                if block.address != at || block.bytes == 0 {
                    return Err(format!("I1: {id:?} {block:?} does not begin at {at:#x}"));
                }
                if block.previous != previous.map(|(id, _)| id) {
                    return Err(format!("I1: {id:?} {block:?} has lost its neighbour"));
                }
                if previous.is_some_and(|(_, below)| below.state.merges_with(&block.state)) {
                    return Err(format!("I1: {id:?} {block:?} was not merged"));
                }
                let holds =
                    |below: &Block| matches!(below.state, State::Used(_) | State::Claimed(_));
                if block.state == State::Room && !previous.is_some_and(|(_, below)| holds(below)) {
                    return Err(format!("{id:?} {block:?} is room for nobody"));
                }
                at = block.end();
                previous = Some((id, block));
            }
            if at != segment.address + segment.bytes {
                return Err(format!("I1: {segment:?} is tiled up to {at:#x} only"));
            }
        }
        let live = self.blocks.iter().count();
        if seen != live {
            return Err(format!("I1: {live} blocks, {seen} of them in a segment"));
        }
        Ok(())
    }

    /// I3: free + pending + lent + claimed = reserved, and the figures are those of the blocks.
    fn check_totals(&self) -> Result<(), String> {
        let mut counted = Totals::default();
        for (_, block) in self.blocks.iter() {
            counted.add(&block.state, block.bytes);
            if block.state == State::Free {
                counted.add_free_chunks(self.whole_chunks(block).count());
            }
        }
        let held = self.by_state(&self.totals);
        let sum = held[..4].iter().sum::<u64>();
        if self.by_state(&counted) != held {
            return Err(format!("I3: blocks {counted:?}, book {:?}", self.totals));
        }
        if sum != self.totals.reserved.current {
            return Err(format!("I3: {sum} bytes in blocks, book {:?}", self.totals));
        }
        let most = self.geometry.capacity.max(self.held_at_resize);
        if self.totals.reserved.current + self.totals.planned > most {
            return Err(format!("over capacity: {:?}", self.totals));
        }
        Ok(())
    }

    fn by_state(&self, totals: &Totals) -> [u64; 7] {
        [
            totals.free.current,
            totals.pending.current,
            totals.used.current,
            totals.claimed,
            totals.whole_free_chunks,
            totals.set_aside.current,
            totals.releasable_blocks,
        ]
    }

    /// Every free block is found by size, every pending one by each of its fences; no fence of a
    /// pending block is known to be complete; holes begin and end at handles.
    fn check_indexes(&self) -> Result<(), String> {
        let free = self.blocks.iter().filter(|(_, b)| b.state == State::Free);
        if free.count() != self.free.len() {
            return Err("a free block is not indexed, or another is".into());
        }
        for (id, block) in self.blocks.iter() {
            match &block.state {
                State::Pending(fences) if fences.is_empty() => {
                    return Err(format!("{id:?} is pending for nothing"));
                }
                State::Pending(fences) => {
                    if let Some(fence) = fences.iter().find(|f| self.is_complete(*f)) {
                        return Err(format!("{id:?} is pending for {fence:?}, complete"));
                    }
                }
                State::Reserved(reservation, _) if !self.reservations.contains_key(reservation) => {
                    return Err(format!(
                        "{id:?} is set aside for {reservation:?}, which is over"
                    ));
                }
                State::Hole | State::Room | State::Claimed(Was::Hole | Was::Room) => {
                    self.check_hole(block)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_hole(&self, block: &Block) -> Result<(), String> {
        let chunk = self.geometry.chunk_bytes;
        if block.address % chunk != 0 || block.bytes % chunk != 0 {
            return Err(format!("the hole {block:?} splits a handle"));
        }
        Ok(())
    }

    /// Checks that nothing is lent or claimed any more: what every test ends with.
    ///
    /// # Errors
    /// What is left over.
    pub(crate) fn check_conserved(&self) -> Result<(), String> {
        self.check()?;
        let Totals {
            used,
            claimed,
            planned,
            ..
        } = self.totals;
        if used.current + claimed + planned != 0 {
            return Err(format!("not given back: {:?}", self.totals));
        }
        Ok(())
    }
}
