//! Answers in the place of errors, for requests without memory.

use crate::ReserveError;
use pin_project::pin_project;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tower_layer::Layer;
use tower_service::Service;
use weirpool::AllocError;

/// A [`tower`](https://docs.rs/tower) layer that answers requests for which there is no memory, so that the service's
/// errors are those of the handler alone. Put it outside of a [`ReserveLayer`](crate::ReserveLayer) or an
/// `HttpReserveLayer`.
///
/// With the feature `http`, `Answer::response` makes an answer with a status and `Retry-After`:
///
#[cfg_attr(feature = "http", doc = "```")]
#[cfg_attr(not(feature = "http"), doc = "```ignore")]
/// # use weirpool::{Pool, device::sim::SimDevice};
/// use http::{Request, Response, StatusCode};
/// use std::convert::Infallible;
/// use tower::{Service, ServiceBuilder, service_fn};
/// use weirpool::AllocError;
/// use weirpool_tower::{Answer, HttpReserveLayer, Need, RefusalLayer};
///
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).capacity(64 << 20).build()?;
/// let need = |request: Request<u64>| async { Ok((Need::new(*request.body()), request)) };
/// let handler = service_fn(|_| async { Ok::<_, Infallible>(Response::new(String::from("Hello"))) });
/// let mut service = ServiceBuilder::new()
///     .layer(RefusalLayer::new(|error: AllocError| error.response()))
///     .layer(HttpReserveLayer::new(&pool, need))
///     .service(handler);
/// let response = device.block_on(service.call(Request::new(1 << 40)))?;
/// assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RefusalLayer<A> {
    answer: A,
}

impl<A> RefusalLayer<A> {
    /// Creates a layer. `answer` is an `FnOnce(AllocError) -> R`, where `R` is the response of the service.
    pub fn new(answer: A) -> Self
    where
        A: Clone,
    {
        Self { answer }
    }
}

impl<A> fmt::Debug for RefusalLayer<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusalLayer").finish_non_exhaustive()
    }
}

impl<S, A: Clone> Layer<S> for RefusalLayer<A> {
    type Service = RefusalService<S, A>;

    fn layer(&self, inner: S) -> RefusalService<S, A> {
        RefusalService {
            inner,
            answer: self.answer.clone(),
            refused: None,
        }
    }
}

/// A service that answers requests for which there is no memory. Created by [`RefusalLayer`].
#[derive(Clone)]
pub struct RefusalService<S, A> {
    inner: S,
    answer: A,
    /// The error of the inner service's readiness: the next request is answered with it.
    refused: Option<AllocError>,
}

impl<S: fmt::Debug, A> fmt::Debug for RefusalService<S, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusalService")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, A, Request, E> Service<Request> for RefusalService<S, A>
where
    S: Service<Request, Error = ReserveError<E>>,
    A: FnOnce(AllocError) -> S::Response + Clone,
{
    type Response = S::Response;
    type Error = E;
    type Future = RefusalFuture<S::Future, A>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), E>> {
        if self.refused.is_some() {
            return Poll::Ready(Ok(()));
        }
        match ready!(self.inner.poll_ready(context)) {
            Ok(()) => {}
            Err(ReserveError::Memory(error)) => self.refused = Some(error),
            Err(ReserveError::Service(error)) => return Poll::Ready(Err(error)),
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let state = match self.refused.take() {
            Some(error) => State::Refused { error: Some(error) },
            None => State::Called {
                future: self.inner.call(request),
            },
        };
        RefusalFuture {
            state,
            answer: Some(self.answer.clone()),
        }
    }
}

/// The future of a [`RefusalService`]'s response.
///
/// # Panics
/// Panics when polled after it was ready.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct RefusalFuture<F, A> {
    #[pin]
    state: State<F>,
    answer: Option<A>,
}

#[pin_project(project = Stated)]
enum State<F> {
    Called {
        #[pin]
        future: F,
    },
    Refused {
        error: Option<AllocError>,
    },
}

impl<F, A, R, E> Future for RefusalFuture<F, A>
where
    F: Future<Output = Result<R, ReserveError<E>>>,
    A: FnOnce(AllocError) -> R,
{
    type Output = Result<R, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let error = match this.state.project() {
            Stated::Called { future } => match ready!(future.poll(context)) {
                Ok(response) => return Poll::Ready(Ok(response)),
                Err(ReserveError::Service(error)) => return Poll::Ready(Err(error)),
                Err(ReserveError::Memory(error)) => error,
            },
            Stated::Refused { error } => error.take().expect("it is polled until it is ready"),
        };
        let answer = this.answer.take().expect("it is polled until it is ready");
        Poll::Ready(Ok(answer(error)))
    }
}

impl<F, A> fmt::Debug for RefusalFuture<F, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusalFuture").finish_non_exhaustive()
    }
}
