//! Memory for each HTTP request, until the response's body has ended.

use crate::reserve::{Need, ReserveError, reserve, take_ready};
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tower_layer::Layer;
use tower_service::Service;
use weirpool::{Pool, Reservation};

/// A [`tower`] layer that reserves memory for each HTTP request, and holds it until the body of the response has ended
/// or is dropped: for answers that are streamed while they are computed.
///
/// - `need` computes the [`Need`] of a request: asynchronously, from all of it. It passes the request on, and may read
///   the body and replace it.
/// - The handler runs in the [scope](Reservation::scope) of the reservation, and so does each poll of the body.
/// - The handler reaches the reservation as an `Arc<Reservation>` among the request's extensions. It may move the `Arc`
///   into the body, or into a task; the memory is reserved as long as any `Arc` exists.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// use http::{Request, Response};
/// use http_body::Body;
/// use std::sync::Arc;
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use weirpool::{AllocError, Reservation};
/// use weirpool_tower::{HttpReserveLayer, Need, ReserveError};
///
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).capacity(64 << 20).build()?;
/// # let stream = pool.create_stream()?;
/// // 16 KiB for each byte of the prompt
/// let need = |request: Request<String>| async move {
///     let bytes = request.body().size_hint().upper().unwrap_or(4096);
///     Ok((Need::new(bytes << 14), request))
/// };
/// # let handler = stream.clone();
/// let mut service = ServiceBuilder::new()
///     .layer(HttpReserveLayer::new(&pool, need))
///     .service(service_fn(move |request: Request<String>| {
///         # let stream = handler.clone();
///         async move {
///             let reservation = request.extensions().get::<Arc<Reservation>>().unwrap();
///             let cache = reservation.allocate(&stream, 64 << 10)?; // does not wait
///             // ...
///             Ok::<_, AllocError>(Response::new(String::from("Hello")))
///         }
///     }));
///
/// device.block_on(async {
///     let request = Request::new(String::from("Say hello to everyone!"));
///     let response = service.ready().await?.call(request).await?;
///     assert_eq!(pool.inspect().statistics().used.current, 22 << 14); // held while the body is sent
///     drop(response);
///     assert_eq!(pool.inspect().statistics().used.current, 0);
///     Ok::<_, ReserveError<AllocError>>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns [`ReserveError::Memory`] if there is no memory for the request: the inner service does not see it. Returns
/// [`ReserveError::Service`] if the inner service fails, or `need` does. A
/// [`RefusalLayer`](crate::RefusalLayer) answers in the place of the former.
///
/// # Backpressure
/// As for [`ReserveLayer`](crate::ReserveLayer#backpressure).
///
/// # Cancel safety
/// A dropped response future leaves the queue, or drops the inner future in the scope of its reservation, and then the
/// reservation. A dropped body ends the reservation, unless the handler holds it.
///
/// [`tower`]: https://docs.rs/tower
#[derive(Clone)]
pub struct HttpReserveLayer<N> {
    pool: Pool,
    need: N,
    location: &'static Location<'static>,
}

impl<N> HttpReserveLayer<N> {
    /// Creates a layer. `need` is an `FnMut(Request<B>) -> impl Future<Output = Result<(M, Request<C>), E>>`, where `M`
    /// is a number of bytes or a [`Need`], the inner service takes a `Request<C>`, and `E` is its error. Reports about
    /// its reservations name the location of this call.
    #[track_caller]
    pub fn new(pool: &Pool, need: N) -> Self {
        Self {
            pool: pool.clone(),
            need,
            location: Location::caller(),
        }
    }
}

impl<N> fmt::Debug for HttpReserveLayer<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpReserveLayer")
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

impl<S, N: Clone> Layer<S> for HttpReserveLayer<N> {
    type Service = HttpReserveService<S, N>;

    fn layer(&self, inner: S) -> HttpReserveService<S, N> {
        HttpReserveService {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service whose HTTP requests have their memory before they reach the inner service. Created by
/// [`HttpReserveLayer`].
#[derive(Clone, Debug)]
pub struct HttpReserveService<S, N> {
    inner: S,
    layer: HttpReserveLayer<N>,
}

/// The future of an [`HttpReserveService`]'s response.
pub type HttpReserveFuture<R, E> =
    Pin<Box<dyn Future<Output = Result<Response<ReservedBody<R>>, ReserveError<E>>> + Send>>;

impl<S, N, F, M, B, C, R> Service<Request<B>> for HttpReserveService<S, N>
where
    S: Service<Request<C>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    N: FnMut(Request<B>) -> F,
    F: Future<Output = Result<(M, Request<C>), S::Error>> + Send + 'static,
    M: Into<Need> + Send,
    C: Send + 'static,
{
    type Response = Response<ReservedBody<R>>;
    type Error = ReserveError<S::Error>;
    type Future = HttpReserveFuture<R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner
            .poll_ready(context)
            .map_err(ReserveError::Service)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let needed = (self.layer.need)(request);
        let mut ready = take_ready(&mut self.inner);
        let (pool, location) = (self.layer.pool.clone(), self.layer.location);
        Box::pin(async move {
            let (need, mut request) = needed.await.map_err(ReserveError::Service)?;
            let reserved = reserve(pool, need.into(), location).await;
            let reservation = Arc::new(reserved.map_err(ReserveError::Memory)?);
            request.extensions_mut().insert(reservation.clone());
            // The call itself is made in the scope, too.
            let called = reservation.scope(async move { ready.call(request).await });
            let response = called.await.map_err(ReserveError::Service)?;
            Ok(response.map(|body| ReservedBody {
                body,
                reservation: Some(reservation),
            }))
        })
    }
}

/// The body of a response that holds the request's reservation until it has ended or is dropped. Created by
/// [`HttpReserveLayer`].
#[pin_project]
#[derive(Debug)]
pub struct ReservedBody<B> {
    // Fields are dropped in this order: the body first, then its reservation.
    #[pin]
    body: B,
    reservation: Option<Arc<Reservation>>,
}

/// Creates a body without a reservation, as that of an error.
impl<B: From<String>> From<String> for ReservedBody<B> {
    fn from(text: String) -> Self {
        Self {
            body: text.into(),
            reservation: None,
        }
    }
}

impl<B: Body> Body for ReservedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = {
            let _entered = this.reservation.as_deref().map(Reservation::enter);
            ready!(this.body.poll_frame(context))
        };
        if !matches!(frame, Some(Ok(_))) {
            *this.reservation = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
