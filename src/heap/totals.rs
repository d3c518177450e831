//! Bytes by state, current and high.
//!
//! I3: `free + pending + used + claimed = reserved` at every step of the heap.

use super::block::State;
use crate::measure::Level;

/// The heap's figures.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Held from the device.
    pub(crate) reserved: Level,
    /// Promised to growth that is under way (I: two growers never both take the last of it).
    pub(crate) planned: u64,
    pub(crate) free: Level,
    pub(crate) pending: Level,
    /// Used, kept by lanes, or set aside.
    pub(crate) used: Level,
    /// Those of them that belong to a reservation and are not drawn yet.
    pub(crate) set_aside: Level,
    /// Lent or pending.
    pub(crate) in_use: Level,
    pub(crate) claimed: u64,
    /// Blocks freed so far, past the lanes, in number.
    pub(crate) returns: u64,
    /// Blocks that were taken back from lanes so far, in number.
    pub(crate) taken_back: u64,
    /// The least that was free since the last [`mark_free`](Self::mark_free).
    pub(crate) free_low: u64,
    /// Handles wholly inside free blocks: what can be remapped or released.
    pub(crate) whole_free_chunks: u64,
}

impl Totals {
    #[inline]
    pub(crate) fn add(&mut self, state: &State, bytes: u64) {
        match state {
            State::Free => self.free.add(bytes),
            State::Pending(_) => {
                self.pending.add(bytes);
                self.in_use.add(bytes);
            }
            State::Used(_) => {
                self.used.add(bytes);
                self.in_use.add(bytes);
            }
            State::Reserved(..) => {
                self.used.add(bytes);
                self.in_use.add(bytes);
                self.set_aside.add(bytes);
            }
            State::Claimed(_) if state.is_backed() => self.claimed += bytes,
            State::Claimed(_) | State::Hole | State::Room => {}
        }
    }

    #[inline]
    pub(crate) fn subtract(&mut self, state: &State, bytes: u64) {
        match state {
            State::Free => self.free.subtract(bytes),
            State::Pending(_) => {
                self.pending.subtract(bytes);
                self.in_use.subtract(bytes);
            }
            State::Used(_) => {
                self.used.subtract(bytes);
                self.in_use.subtract(bytes);
            }
            State::Reserved(..) => {
                self.used.subtract(bytes);
                self.in_use.subtract(bytes);
                self.set_aside.subtract(bytes);
            }
            State::Claimed(_) if state.is_backed() => self.claimed -= bytes,
            State::Claimed(_) | State::Hole | State::Room => {}
        }
    }

    /// Begins to watch how little is free.
    pub(crate) fn mark_free(&mut self) {
        self.free_low = self.free.current;
    }

    pub(crate) fn note_low(&mut self) {
        self.free_low = self.free_low.min(self.free.current);
    }
}
