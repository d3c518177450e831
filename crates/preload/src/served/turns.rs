//! Memory that a program takes as a whole. Programs that allocate step by step can wait for each other for ever, each with a
//! part of what it needs. With a reserve, a program waits for all of it before it takes any, and gives it back once it has
//! freed its blocks: nothing else is held while it waits, but a small part that needs no turn.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use weirpool::{AllocError, Block, Pool, Reservation, Stream, Terms};

/// The part of the reserve that is taken without a turn, for the small buffers that libraries keep for good.
const PART_WITHOUT: u64 = 16;

/// The turns of a pool.
pub(super) struct Turns {
    reserve: u64,
    state: Mutex<State>,
    /// Held by the thread that waits for the reserve, so that no other one waits for a second.
    entering: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// Bytes of the program's blocks, and of those that it has asked for: requests of any size, in many threads.
    held: u128,
    reservation: Option<Reservation>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Turns {
    pub(super) fn new(reserve: u64) -> Self {
        Self {
            reserve,
            state: Mutex::default(),
            entering: Mutex::default(),
        }
    }

    /// Allocates from the reserve, and first waits for it if this is the program's first block of some size. Returns `None` if the
    /// pool should serve the request as any other: it is small, or more than the reserve has left. The bytes count as held
    /// from now on, also if it fails: the caller tells [`Self::freed`].
    ///
    /// # Errors
    /// Returns the error of the wait.
    pub(super) fn allocate(
        &self,
        (pool, terms): (&Pool, Terms),
        stream: &Stream,
        bytes: u64,
    ) -> Result<Option<Block>, AllocError> {
        let mut state = lock(&self.state);
        // Counted before the reservation is used, so that no free ends it meanwhile.
        state.held += u128::from(bytes);
        if state.reservation.is_none() {
            if self.needs_no_turn(&state) {
                return Ok(None);
            }
            drop(state);
            let begun = Instant::now();
            let entering = lock(&self.entering);
            if lock(&self.state).reservation.is_none() {
                // The thread before may have waited in vain.
                let timeout = terms.timeout;
                let timeout = timeout.map(|most| most.saturating_sub(begun.elapsed()));
                let terms = Terms { timeout, ..terms };
                let reservation = pool.reserve(self.reserve).terms(terms).blocking()?;
                lock(&self.state).reservation = Some(reservation);
            }
            drop(entering);
            state = lock(&self.state);
        }
        let reservation = state.reservation.as_ref();
        Ok(reservation.and_then(|reservation| reservation.allocate(stream, bytes).ok()))
    }

    fn needs_no_turn(&self, state: &State) -> bool {
        state.held <= u128::from(self.reserve / PART_WITHOUT)
    }

    /// Notes a block that the program has freed, or a request that has failed. The turn ends if no more is left than needs no turn.
    pub(super) fn freed(&self, bytes: u64) {
        let mut state = lock(&self.state);
        state.held = state.held.saturating_sub(bytes.into());
        let ended = match self.needs_no_turn(&state) {
            true => state.reservation.take(),
            false => None,
        };
        drop(state);
        // Outside of the lock: waiting requests may be granted.
        drop(ended);
    }
}
