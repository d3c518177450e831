//! The layer that reserves memory for each request.

use pin_project::pin_project;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tower_layer::Layer;
use tower_service::Service;
use weirpool::{AllocError, Drawing, Pool, Reservation, Terms};

/// The memory that a request needs, and the terms on which it waits for the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a need has no effect until a `ReserveLayer` uses it"]
pub struct Need {
    /// The size of the reservation.
    pub bytes: u64,
    /// The terms of the request for it.
    pub terms: Terms,
}

impl Need {
    /// Creates a need of this many bytes, on the default terms.
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes,
            terms: Terms::default(),
        }
    }
}

/// Creates a need of this many bytes.
impl From<u64> for Need {
    fn from(bytes: u64) -> Self {
        Self::new(bytes)
    }
}

/// The reason why a request to a [`ReserveService`] failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError<E> {
    /// The memory was not granted; the inner service did not see the request.
    #[error(transparent)]
    Memory(AllocError),
    /// The inner service failed.
    #[error(transparent)]
    Service(E),
}

/// A [`tower`] layer that reserves memory for each request.
///
/// It reserves the memory that a request needs before it calls the inner service, whose future then draws from that
/// reservation. Allocations at any depth of that future neither wait nor fail while the reservation suffices. No
/// request holds some memory while it waits for more, so such deadlocks cannot occur.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use weirpool::Terms;
/// use weirpool_tower::{Need, ReserveError, ReserveLayer};
///
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let stream = pool.create_stream()?;
/// struct Prompt { tokens: u64, is_paid: bool }
///
/// let of_prompt = |prompt: &Prompt| Need {
///     bytes: prompt.tokens * 4096,
///     terms: Terms { priority: prompt.is_paid.into(), ..Terms::default() },
/// };
/// # let inner = pool.clone();
/// let mut service = ServiceBuilder::new()
///     .layer(ReserveLayer::new(&pool, of_prompt))
///     .service(service_fn(move |prompt: Prompt| {
///         # let (pool, stream) = (inner.clone(), stream.clone());
///         async move {
///             let cache = pool.allocate(&stream, prompt.tokens * 4096).await?; // from the reservation
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
/// The need of a request is known only once the request arrives. So the service is ready when the inner service is, and
/// the response's future waits for memory. It holds the inner service's readiness meanwhile. If requests that wait for
/// memory are to count against a limit of concurrent requests (`tower`'s `ConcurrencyLimit`), put the limit outside
/// this layer; otherwise put it inside. [`PoolBuilder::queue_limit`] bounds how many requests wait,
/// [`Terms::deadline`] and [`Terms::timeout`] bound how long. All three fail a request before the inner service sees it.
///
/// # Cancel safety
///
/// Dropping a response's future leaves the queue, or drops the inner future in the scope of its reservation and then
/// the reservation. Blocks that the inner service still holds, or has passed on, live on as ordinary blocks.
///
/// [`tower`]: https://docs.rs/tower
/// [`PoolBuilder::queue_limit`]: weirpool::PoolBuilder::queue_limit
#[derive(Clone)]
pub struct ReserveLayer<N> {
    pool: Pool,
    need: N,
    place: &'static Location<'static>,
}

impl<N> ReserveLayer<N> {
    /// Creates the layer. `need` returns the need of a request: a number of bytes, or a [`Need`]. Reports about its
    /// reservations name the location of this call.
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
            layer: self.clone(),
        }
    }
}

/// A service whose requests have their memory before they reach the inner service. Created by [`ReserveLayer`].
#[derive(Clone)]
pub struct ReserveService<S, N> {
    inner: S,
    layer: ReserveLayer<N>,
}

impl<S: fmt::Debug, N> fmt::Debug for ReserveService<S, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReserveService")
            .field("inner", &self.inner)
            .field("pool", &self.layer.pool)
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
        let need = (self.layer.need)(&request).into();
        let reserve = reserve(self.layer.pool.clone(), need, self.layer.place);
        ReserveFuture {
            stage: Stage::Reserving {
                reserve: Box::pin(reserve),
                call: Some((take_ready(&mut self.inner), request)),
            },
        }
    }
}

/// Takes the ready service, which goes with a request. Its clone takes its place and is not ready yet.
pub(crate) fn take_ready<S: Clone>(inner: &mut S) -> S {
    let next = inner.clone();
    std::mem::replace(inner, next)
}

pub(crate) async fn reserve(
    pool: Pool,
    need: Need,
    place: &'static Location<'static>,
) -> Result<Reservation, AllocError> {
    let reserve = pool.reserve(need.bytes);
    reserve.terms(need.terms).location(place).await
}

type Reserving = Pin<Box<dyn Future<Output = Result<Reservation, AllocError>> + Send>>;

/// The future of a [`ReserveService`]'s response.
///
/// # Panics
/// Panics when polled after it was ready.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ReserveFuture<S: Service<Request>, Request> {
    #[pin]
    stage: Stage<S, Request>,
}

#[pin_project(project = Staged)]
enum Stage<S: Service<Request>, Request> {
    Reserving {
        reserve: Reserving,
        call: Option<(S, Request)>,
    },
    // Fields are dropped in this order: the future first, then its reservation.
    Drawing {
        #[pin]
        drawing: Drawing<Called<S, Request>>,
        reservation: Reservation,
    },
    Done,
}

// The call itself runs in the scope, too, so the first poll makes it.
#[pin_project(project = Calling)]
enum Called<S: Service<Request>, Request> {
    No {
        call: Option<(S, Request)>,
    },
    Yes {
        #[pin]
        future: S::Future,
    },
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
                Staged::Done => panic!("a `ReserveFuture` was polled after it was ready"),
            };
            match next {
                Ok((reservation, call)) => stage.set(Stage::Drawing {
                    drawing: reservation.scope(Called::No { call }),
                    reservation,
                }),
                Err(response) => {
                    // The reservation is freed before the caller sees the response.
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
