//! Bytes by state, current and high.
//!
//! Invariant *conservation*: free + pending + used + claimed = reserved, at every step of the heap.

use super::block::State;
use crate::measure::Level;

/// The figures of a heap.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Held from the device.
    pub(crate) reserved: Level,
    /// Promised to growth that is under way, so that two threads never both take the last of the capacity.
    pub(crate) planned: u64,
    pub(crate) free: Level,
    pub(crate) pending: Level,
    /// In use, cached by lanes, or set aside in reservations.
    pub(crate) used: Level,
    /// The part of `used` that is set aside in reservations and not granted.
    pub(crate) set_aside: Level,
    /// Used or pending.
    pub(crate) in_use: Level,
    /// Claimed by plans and releases that are under way.
    pub(crate) claimed: u64,
    /// The number of blocks that users freed past their lanes so far.
    pub(crate) returns: u64,
    /// The number of blocks that were flushed from lanes so far.
    pub(crate) taken_back: u64,
    /// The least that was free since the last [`mark_free`](Self::mark_free).
    pub(crate) free_low: u64,
    /// The number of chunks wholly inside free blocks, which can be moved or released. Where memory is plain, the
    /// number of segments that are wholly free.
    pub(crate) whole_free_chunks: u64,
    /// The bytes of those chunks or segments.
    pub(crate) releasable: u64,
}

/// A high-water mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum High {
    Reserved,
    Pending,
    Used,
    InUse,
}

impl High {
    pub(crate) const ALL: [Self; 4] = [Self::Reserved, Self::Pending, Self::Used, Self::InUse];
}

impl Totals {
    #[inline]
    pub(super) fn add(&mut self, state: &State, bytes: u64) {
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
    pub(super) fn subtract(&mut self, state: &State, bytes: u64) {
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

    /// Adds what of a free block can be released: this many bytes, as this many chunks or segments.
    #[inline]
    pub(super) fn add_releasable(&mut self, bytes: u64, chunks: u64) {
        self.releasable += bytes;
        self.whole_free_chunks += chunks;
    }

    #[inline]
    pub(super) fn subtract_releasable(&mut self, bytes: u64, chunks: u64) {
        self.releasable -= bytes;
        self.whole_free_chunks -= chunks;
    }

    /// Returns the bytes that are held from the device or promised to growth under way.
    pub(crate) fn held(&self) -> u64 {
        self.reserved.current + self.planned
    }

    /// Starts a new watch for the least that is free.
    pub(super) fn mark_free(&mut self) {
        self.free_low = self.free.current;
    }

    pub(super) fn note_low(&mut self) {
        self.free_low = self.free_low.min(self.free.current);
    }

    /// Sets a high-water mark to the present figure.
    pub(super) fn reset_high(&mut self, high: High) {
        match high {
            High::Reserved => self.reserved.reset_high(),
            High::Pending => self.pending.reset_high(),
            High::Used => self.used.reset_high(),
            High::InUse => self.in_use.reset_high(),
        }
    }
}
