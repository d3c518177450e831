//! A request together with the hook that it asks.

use crate::Pressure;
use crate::asked::Asked;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use weirpool::{
    Allocate, AllocateMany, AllocateOwned, Grow, GrowReservation, Request, Reserve, Shortfall,
};

/// Requests that can ask a hook while they wait. Implemented for every [`Request`].
pub trait RelieveWith: Stalls + Sized {
    /// Asks a hook to free memory when nothing can serve the request. Set the [terms](weirpool::Terms) of the request
    /// before.
    fn relieve_with(self, pressure: &Pressure) -> Relief<Self> {
        Relief {
            request: self,
            asked: None,
            pressure: pressure.clone(),
        }
    }
}

/// A request, of any kind.
pub trait Stalls: Future + Unpin {
    /// Calls [`Request::poll_stalled`].
    fn poll_stalled(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Shortfall>;
}

macro_rules! requests {
    ($($request:ty),+ $(,)?) => {
        $(
            impl RelieveWith for $request {}

            impl Stalls for $request {
                fn poll_stalled(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Shortfall> {
                    Request::poll_stalled(self, context)
                }
            }
        )+
    };
}

requests!(
    Allocate<'_>,
    AllocateMany<'_>,
    AllocateOwned,
    Grow<'_>,
    GrowReservation<'_>,
    Reserve<'_>,
);

/// The future of [`RelieveWith::relieve_with`]: the output of the request.
///
/// # Cancel safety
///
/// As that of a [`Request`]. The future of the hook is dropped after the request has left the queue.
///
/// # Panics
/// Panics if it is polled after it was ready.
#[must_use = "futures do nothing unless polled"]
pub struct Relief<R> {
    // In this order: fields are dropped as they are declared.
    request: R,
    /// The hook, while it works for the request or has yet to.
    asked: Option<Asked>,
    pressure: Pressure,
}

impl<R: Stalls> Future for Relief<R> {
    type Output = R::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<R::Output> {
        let this = &mut *self;
        loop {
            // Also for memory that the hook has freed.
            if let Poll::Ready(output) = Pin::new(&mut this.request).poll(context) {
                this.asked = None;
                return Poll::Ready(output);
            }
            if this.asked.is_none() {
                match Pin::new(&mut this.request).poll_stalled(context) {
                    Poll::Ready(shortfall) => this.asked = Some(this.pressure.ask(shortfall)),
                    Poll::Pending => return Poll::Pending,
                }
            }
            match this.asked.take_if(|asked| asked.poll(context)) {
                Some(answered) => drop(answered),
                None => return Poll::Pending,
            }
        }
    }
}

impl<R: fmt::Debug> fmt::Debug for Relief<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relief")
            .field("request", &self.request)
            .field("is_asking", &self.asked.is_some())
            .finish_non_exhaustive()
    }
}
