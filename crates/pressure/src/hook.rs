//! The hook: a trait of users.

use async_trait::async_trait;
use std::error::Error;
use std::sync::Arc;
use weirpool::Shortfall;

/// Frees memory of a pool when a request must wait: by moving data to the host, or by rejecting work. Blocks that can
/// be dropped at any time are better made [evictable](weirpool::Evictable). A [`Pressure`](crate::Pressure) asks it.
///
/// # When it is asked
///
/// A request asks when it has reached the head of the queue and there is not enough memory for it, after polling events,
/// flushing caches, growing and evicting. The first request that waits for the limit of its [tag](weirpool::Tag) asks as
/// well. So a request asks once, or twice if it waits for both. [Pending](Shortfall::pending) memory may be enough
/// without help.
///
/// The request keeps its queue position meanwhile. It takes memory that the hook frees, and memory that any other
/// caller frees. The hook's answer decides nothing.
///
/// # What it may do
///
/// It may take its time: its future is polled by the request's future, in the same task, and delays no other request.
/// When the request is granted, times out or is cancelled, the hook's future is dropped; spawn work that must go on. An
/// error or a panic is reported, and the request waits on.
///
/// It must not await memory of the same pool: that request would wait behind the one that asks.
/// [`try_allocate`](weirpool::Pool::try_allocate) never waits. It fails while a request is in the queue, as the one
/// that asks may be. For a staging buffer, keep a [`Reservation`](weirpool::Reservation), whose allocations neither wait nor fail. The hook
/// is in the [scopes](weirpool::Reservation::scope) that the task of its request is in.
///
/// Memory that the hook frees into a reservation serves requests in its scope, this one among them.
#[async_trait]
pub trait PressureHook: Send + Sync {
    /// Frees memory of the pool. `shortfall` describes the request and the state of the pool when the request stalled.
    ///
    /// # Errors
    /// Returns any error; it is only reported.
    ///
    /// # Cancel safety
    /// The future is dropped when the request ends, at any await point.
    async fn relieve(&self, shortfall: Shortfall) -> Result<(), Box<dyn Error + Send + Sync>>;
}

#[async_trait]
impl<H: PressureHook + ?Sized> PressureHook for Arc<H> {
    async fn relieve(&self, shortfall: Shortfall) -> Result<(), Box<dyn Error + Send + Sync>> {
        (**self).relieve(shortfall).await
    }
}
