//! Memory for each request of a `tower` service: feature `tower`.

use crate::error::AllocError;
use crate::measure::Tag;
use crate::pool::{Drawing, Pool, Reservation};
use crate::queue::Terms;
use pin_project_lite::pin_project;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tower_layer::Layer;
use tower_service::Service;

/// What a request needs: how many bytes in all, and on what terms it waits for them.
#[derive(Clone, Copy, Debug)]
#[must_use = "a need is only what is asked for"]
pub struct Need {
    bytes: u64,
    terms: Terms,
}

impl Need {
    /// So many bytes.
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes,
            terms: Terms::default(),
        }
    }

    /// Charges the reservation to a tag: as [`Request::tag`](crate::Request::tag).
    pub fn tag(mut self, tag: Tag) -> Self {
        self.terms.tag = Some(tag);
        self
    }

    /// Waits at most `timeout`: as [`Request::timeout`](crate::Request::timeout).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.terms.timeout = Some(timeout);
        self
    }

    /// Waits at most `within`, and is due then: as [`Request::deadline`](crate::Request::deadline).
    pub fn deadline(mut self, within: Duration) -> Self {
        self.terms.deadline = Some(within);
        self
    }

    /// Is due `steps` priority steps earlier: as [`Request::priority`](crate::Request::priority).
    pub fn priority(mut self, steps: i32) -> Self {
        self.terms.priority = steps;
        self
    }
}

/// So many bytes.
impl From<u64> for Need {
    fn from(bytes: u64) -> Self {
        Self::new(bytes)
    }
}

/// Why a service with reservations failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError<E> {
    /// There was no memory for the request; the inner service has not seen it.
    #[error(transparent)]
    Memory(AllocError),
    /// The inner service failed.
    #[error(transparent)]
    Service(E),
}

/// A [`tower`] layer that reserves memory for each request.
///
/// It reserves what a request will need before the inner service is called, and has the inner
/// service's future draw from that reservation: however deep in it memory is allocated, it neither waits nor
/// fails while what was reserved does. Requests that hold some memory and wait for more are thereby impossible,
/// and with them the deadlocks that they tie.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use weirpool::{Need, ReserveError, ReserveLayer};
///
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let stream = pool.create_stream()?;
/// struct Prompt { tokens: u64, is_paid: bool }
///
/// let of_prompt = |prompt: &Prompt| {
///     let need = Need::new(prompt.tokens * 4096);
///     if prompt.is_paid { need.priority(1) } else { need }
/// };
/// # let inner = pool.clone();
/// let mut service = ServiceBuilder::new()
///     .layer(ReserveLayer::new(&pool, of_prompt))
///     .service(service_fn(move |prompt: Prompt| {
///         # let (pool, stream) = (inner.clone(), stream.clone());
///         async move {
///             let cache = pool.allocate(&stream, prompt.tokens * 4096).await?; // of the reservation
///             // ...
///             Ok::<_, weirpool::AllocError>(cache.size())
///         }
///     }));
///
/// device.block_on(async {
///     let prompt = Prompt { tokens: 1000, is_paid: true };
///     let size = service.ready().await?.call(prompt).await?;
///     assert_eq!(size, 1000 * 4096);
///     Ok::<_, ReserveError<weirpool::AllocError>>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Backpressure
///
/// What a request needs is known once it is there: so the service is ready when the inner one is, and the wait
/// for memory is the response's. The inner service's readiness is held meanwhile: put what bounds the number
/// of requests at work (`tower`'s `ConcurrencyLimit`) outside of this layer if those that wait for memory are
/// to count, inside otherwise. How many wait is bounded by [`PoolBuilder::queue_limit`], how long by
/// [`Need::deadline`] and [`Need::timeout`], and both fail a request before the inner service has seen it.
///
/// # Cancel safety
///
/// A response's future that is dropped leaves the queue, or drops the inner future, in the scope of its
/// reservation, and then the reservation. Blocks that the inner service still has, or has given away, live on
/// as blocks like any other.
///
/// [`tower`]: https://docs.rs/tower
/// [`PoolBuilder::queue_limit`]: crate::PoolBuilder::queue_limit
#[derive(Clone)]
pub struct ReserveLayer<N> {
    pool: Pool,
    need: N,
    place: &'static Location<'static>,
}

impl<N> ReserveLayer<N> {
    /// `need` says what a request needs: a number of bytes, or a [`Need`]. What is told of its reservations names
    /// the place of this call.
    #[track_caller]
    pub fn new(pool: &Pool, need: N) -> Self {
        Self {
            pool: pool.clone(),
            need,
            place: Location::caller(),
        }
    }
}

impl<N> fmt::Debug for ReserveLayer<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReserveLayer")
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

impl<S, N: Clone> Layer<S> for ReserveLayer<N> {
    type Service = ReserveService<S, N>;

    fn layer(&self, inner: S) -> ReserveService<S, N> {
        ReserveService {
            inner,
            pool: self.pool.clone(),
            need: self.need.clone(),
            place: self.place,
        }
    }
}

/// A service whose requests have their memory before they reach the inner one; of [`ReserveLayer`].
#[derive(Clone)]
pub struct ReserveService<S, N> {
    inner: S,
    pool: Pool,
    need: N,
    place: &'static Location<'static>,
}

impl<S: fmt::Debug, N> fmt::Debug for ReserveService<S, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReserveService")
            .field("inner", &self.inner)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

impl<S, N, Request, B> Service<Request> for ReserveService<S, N>
where
    S: Service<Request> + Clone,
    N: FnMut(&Request) -> B,
    B: Into<Need>,
{
    type Response = S::Response;
    type Error = ReserveError<S::Error>;
    type Future = ReserveFuture<S, Request>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner
            .poll_ready(context)
            .map_err(ReserveError::Service)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let need = (self.need)(&request).into();
        // The one that is ready goes with the request; its clone has yet to become so.
        let next = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, next);
        ReserveFuture {
            stage: Stage::Reserving {
                reserve: Box::pin(reserve(self.pool.clone(), need, self.place)),
                call: Some((ready, request)),
            },
        }
    }
}

async fn reserve(
    pool: Pool,
    need: Need,
    place: &'static Location<'static>,
) -> Result<Reservation, AllocError> {
    let reserve = pool.reserve(need.bytes);
    reserve.terms(need.terms).location(place).await
}

type Reserving = Pin<Box<dyn Future<Output = Result<Reservation, AllocError>> + Send>>;

pin_project! {
    /// The future of a [`ReserveService`]'s response.
    ///
    /// # Panics
    /// When polled after it was ready.
    #[must_use = "futures do nothing unless polled"]
    pub struct ReserveFuture<S: Service<Request>, Request> {
        #[pin]
        stage: Stage<S, Request>,
    }
}

pin_project! {
    #[project = Staged]
    enum Stage<S: Service<Request>, Request> {
        Reserving {
            reserve: Reserving,
            call: Option<(S, Request)>,
        },
        // In this order they are dropped.
        Drawing {
            #[pin]
            drawing: Drawing<Called<S, Request>>,
            reservation: Reservation,
        },
        Done,
    }
}

pin_project! {
    // The call itself is in the scope, too: so it is made by the first poll.
    #[project = Calling]
    enum Called<S: Service<Request>, Request> {
        No { call: Option<(S, Request)> },
        Yes {
            #[pin]
            future: S::Future,
        },
    }
}

impl<S: Service<Request>, Request> Future for Called<S, Request> {
    type Output = Result<S::Response, S::Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let future = match self.as_mut().project() {
                Calling::Yes { future } => return future.poll(context),
                Calling::No { call } => {
                    let (mut service, request) = call.take().expect("it is called once");
                    service.call(request)
                }
            };
            self.set(Self::Yes { future });
        }
    }
}

impl<S: Service<Request>, Request> Future for ReserveFuture<S, Request> {
    type Output = Result<S::Response, ReserveError<S::Error>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            let next = match stage.as_mut().project() {
                Staged::Reserving { reserve, call } => {
                    match ready!(reserve.as_mut().poll(context)) {
                        Err(error) => Err(Err(ReserveError::Memory(error))),
                        Ok(reservation) => Ok((reservation, call.take())),
                    }
                }
                Staged::Drawing { drawing, .. } => {
                    Err(ready!(drawing.poll(context)).map_err(ReserveError::Service))
                }
                Staged::Done => panic!("a response was polled after it was ready"),
            };
            match next {
                Ok((reservation, call)) => stage.set(Stage::Drawing {
                    drawing: reservation.scope(Called::No { call }),
                    reservation,
                }),
                Err(response) => {
                    // What it reserved is free before the response is seen.
                    stage.set(Stage::Done);
                    return Poll::Ready(response);
                }
            }
        }
    }
}

impl<S: Service<Request>, Request> fmt::Debug for ReserveFuture<S, Request> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReserveFuture").finish_non_exhaustive()
    }
}
