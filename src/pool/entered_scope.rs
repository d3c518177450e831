//! Scopes of reservations: which ones a task is in, and allocations that draw from them.

use super::Pool;
use super::plain_case::{POLLED, is_any_in_scope};
use crate::block::Block;
use crate::engine::NoMemory;
use crate::error::AllocError;
use crate::handles::{Caller, Registration, Reserved};
use crate::id::ReservationId;
use crate::queue::Demand;
use crate::sync::plain::{self, Ordering};
use crate::sync::{Arc, thread_local};
use pin_project_lite::pin_project;
use std::cell::RefCell;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

thread_local! {
    /// The scopes that this thread is in, from the outermost to the innermost.
    static ENTERED: RefCell<Vec<EnteredScope>> = const { RefCell::new(Vec::new()) };
}

/// A scope that was entered.
struct EnteredScope {
    /// Higher than those of the entries before it.
    number: u64,
    reserved: Arc<Reserved>,
}

/// Returns the innermost applicable reservation of this thread.
fn innermost(is_meant: impl Fn(&Reserved) -> bool) -> Option<Arc<Reserved>> {
    // A thread that is ending is in no scope.
    let found = ENTERED.try_with(|entered| {
        let entered = entered.borrow();
        let mut outwards = entered.iter().rev();
        let meant = outwards.find(|entry| is_meant(&entry.reserved))?;
        Some(meant.reserved.clone())
    });
    found.ok().flatten()
}

/// Allocates from the reservation whose scope this thread is in, if it belongs to this pool and has enough. Without
/// [any](is_any_in_scope) there is nothing to look at.
#[cold]
pub(super) fn draw(
    pool: &Pool,
    registration: &Arc<Registration>,
    demand: &Demand,
    caller: Caller,
) -> Option<Result<Block, AllocError>> {
    let reserved = in_scope(pool, demand)?;
    match draw_from(&reserved, registration, demand, caller) {
        Ok(block) => Some(Ok(block)),
        Err(NoMemory::Never(error)) => Some(Err(error)),
        Err(_) => None,
    }
}

/// Draws for a waiting request, because memory may have come back to the reservation since it had too little.
#[cold]
pub(super) fn draw_late(
    pool: &Pool,
    registration: &Arc<Registration>,
    demand: &Demand,
    caller: Caller,
) -> Result<Block, NoMemory> {
    let reserved = in_scope(pool, demand).ok_or_else(NoMemory::short)?;
    if registration.lane.cache.is_captured() {
        // It is told of the capture's end as of pieces.
        let (left, largest) = reserved.left();
        return Err(NoMemory::NotReserved { left, largest });
    }
    let bytes = demand.request.bytes;
    while reserved.left().0 < bytes {
        if !reserved.evict_for(bytes) {
            return Err(NoMemory::short());
        }
    }
    draw_from(&reserved, registration, demand, caller)
}

/// Returns the reservation whose scope this thread is in, if the demand may draw from it.
pub(super) fn reservation(pool: &Pool, demand: &Demand) -> Option<ReservationId> {
    if !is_any_in_scope() {
        return None;
    }
    Some(in_scope(pool, demand)?.id())
}

/// Returns the reservation whose scope this thread is in, if the demand may draw from it.
#[cold]
fn in_scope(pool: &Pool, demand: &Demand) -> Option<Arc<Reserved>> {
    innermost(|reserved| {
        let is_its = demand.tag.is_none() || demand.tag == reserved.tag();
        is_its && plain::Arc::ptr_eq(reserved.presence(), &pool.presence)
    })
}

/// Reserves a part of the reservation whose scope this thread is in, if it belongs to this pool and has one piece of
/// that size.
pub(super) fn reserve(pool: &Pool, demand: &Demand, caller: Caller) -> Option<Reserved> {
    if !is_any_in_scope() {
        return None;
    }
    let reserved = in_scope(pool, demand)?;
    let bytes = demand.request.bytes;
    loop {
        let nested = Reserved::nest(&reserved, bytes, caller.location);
        if nested.is_some() || !reserved.evict_for(bytes) {
            return nested;
        }
    }
}

fn draw_from(
    reserved: &Arc<Reserved>,
    registration: &Arc<Registration>,
    demand: &Demand,
    caller: Caller,
) -> Result<Block, NoMemory> {
    let demand = Demand {
        tag: None,
        ..*demand
    };
    if let Some(block) = Block::kept(registration, &demand, caller, reserved) {
        return Ok(block?);
    }
    loop {
        match reserved.draw(&registration.lane, &demand) {
            Err(NoMemory::NotReserved { .. }) if reserved.evict_for(demand.request.bytes) => {}
            drawn => {
                let drawn = drawn?;
                let block = Block::reserved(registration, drawn, &demand, caller, reserved, false);
                return Ok(block?);
            }
        }
    }
}

/// This thread is in the scope of a reservation until this is dropped. See
/// [`Reservation::enter`](crate::Reservation::enter).
#[derive(Debug)]
#[must_use = "the scope is left when this is dropped"]
pub struct EnterGuard {
    /// The number of the entry.
    number: u64,
    /// The scope has to be left on the thread on which it was entered.
    of_this_thread: PhantomData<*const ()>,
}

impl EnterGuard {
    pub(super) fn new(reserved: &Arc<Reserved>) -> Self {
        let enter = |entered: &RefCell<Vec<EnteredScope>>| {
            let mut entered = entered.borrow_mut();
            let number = entered.last().map_or(0, |last| last.number + 1);
            entered.push(EnteredScope {
                number,
                reserved: reserved.clone(),
            });
            number
        };
        // A thread that is ending may drop futures that were in a scope. They are in no scope then.
        let number = ENTERED.try_with(enter).unwrap_or_default();
        POLLED.fetch_add(1, Ordering::Relaxed);
        Self {
            number,
            of_this_thread: PhantomData,
        }
    }
}

impl Drop for EnterGuard {
    fn drop(&mut self) {
        POLLED.fetch_sub(1, Ordering::Relaxed);
        // Searches the whole list, because guards may be dropped in any order.
        let left = ENTERED.try_with(|entered| {
            let mut entered = entered.borrow_mut();
            let is_own = |entry: &EnteredScope| entry.number == self.number;
            let at = entered.iter().rposition(is_own)?;
            Some(entered.remove(at))
        });
        // Dropped outside the borrow, because it may be the last handle of a pool.
        drop(left);
    }
}

pin_project! {
    /// A future in which allocations draw from a reservation; see
    /// [`Reservation::scope`](crate::Reservation::scope).
    ///
    /// # Panics
    /// Panics if polled after it was ready.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Drawing<F> {
        reserved: Arc<Reserved>,
        // `None` once it was ready, or while it is being dropped.
        #[pin]
        future: Option<F>,
    }

    impl<F> PinnedDrop for Drawing<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            let _entered = EnterGuard::new(this.reserved);
            this.future.set(None);
        }
    }
}

impl<F> Drawing<F> {
    pub(super) fn new(reserved: Arc<Reserved>, future: F) -> Self {
        Self {
            reserved,
            future: Some(future),
        }
    }
}

impl<F: Future> Future for Drawing<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let _entered = EnterGuard::new(this.reserved);
        let future = this.future.as_mut().as_pin_mut();
        let polled = future.expect("polled after it was ready").poll(context);
        if polled.is_ready() {
            // Dropped while still in the scope.
            this.future.set(None);
        }
        polled
    }
}
