//! The layer that reserves memory for each request.

#[cfg(feature = "http")]
mod answers;
#[path = "../../../../tests/common/mod.rs"]
mod common;

use common::*;
use futures::FutureExt;
use static_assertions::assert_impl_all;
use std::future::{Future, Ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
#[cfg(feature = "http")]
use weirpool::device::sim::SimDevice;
use weirpool::*;
use weirpool_observe::{Record as _, Recorded as _};
use weirpool_tower::*;

const ALL: u64 = 8 * MIB;

fn bytes_of(request: &u64) -> u64 {
    *request
}

/// A pool, and a service that allocates the requested bytes in two steps, and waits at a gate between them.
struct Site {
    pool: Pool,
    stream: Stream,
    calls: Arc<AtomicUsize>,
}

impl Site {
    fn new(set: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Self {
        let device = manual();
        let pool = set(builder(&device, ALL)).build().unwrap();
        let (_, stream) = stream(&device, &pool);
        Self {
            pool,
            stream,
            calls: Arc::default(),
        }
    }

    fn service(
        &self,
        gate: Arc<tokio::sync::Semaphore>,
    ) -> impl Service<
        u64,
        Response = u64,
        Error = ReserveError<AllocError>,
        Future = impl Future<Output = Result<u64, ReserveError<AllocError>>> + Send,
    > + Clone {
        let (pool, stream, calls) = (self.pool.clone(), self.stream.clone(), self.calls.clone());
        let inner = service_fn(move |bytes: u64| {
            calls.fetch_add(1, Ordering::SeqCst);
            let (pool, stream, gate) = (pool.clone(), stream.clone(), gate.clone());
            async move {
                let first = pool.allocate(&stream, bytes / 2).await?;
                gate.acquire().await.unwrap().forget();
                let second = pool.allocate(&stream, bytes / 2).await?;
                Ok::<_, AllocError>(first.size() + second.size())
            }
        });
        ServiceBuilder::new()
            .layer(ReserveLayer::new(&self.pool, bytes_of))
            .service(inner)
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

/// Two requests each need all memory, and allocate it in two steps. Without reservations each would wait for memory
/// that the other holds.
#[test]
fn started_request_is_not_short_of_memory() {
    let site = Site::new(|builder| builder);
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let mut service = site.service(gate.clone());
    let mut first = Box::pin(now(service.ready()).unwrap().call(ALL));
    let mut second = Box::pin(now(service.ready()).unwrap().call(ALL));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    assert_eq!(site.calls(), 1, "the second has no memory yet");
    gate.add_permits(2);
    assert_eq!(poll(&mut first), Poll::Ready(Ok(ALL)));
    // The first request's memory is free before its response is dropped.
    assert_eq!(poll(&mut second), Poll::Ready(Ok(ALL)));
    assert_eq!(site.calls(), 2);
    site.pool.inspect().check_conserved().unwrap();
}

/// Reports about its reservations name the location at which the layer was created.
#[test]
fn reservations_report_the_location_of_their_layer() {
    let site = Site::new(|builder| builder.history(1));
    let mut service = site.service(Arc::new(tokio::sync::Semaphore::new(0)));
    let _working = not_ready(Box::pin(service.call(ALL)));
    let leaks = site.pool.leaks();
    assert_eq!((leaks.blocks.len(), leaks.reservations.len()), (1, 1));
    let origin = leaks.reservations[0].origin.as_ref().unwrap();
    assert!(origin.site.file.ends_with("tests/tower/main.rs"));
}

/// The inner service never sees a request without memory.
#[test]
fn request_without_memory_does_not_reach_the_service() {
    let site = Site::new(|builder| builder.queue_limit(1));
    let mut service = site.service(Arc::new(tokio::sync::Semaphore::new(9)));
    let held = site.pool.try_allocate(&site.stream, ALL).unwrap();
    let mut waiting = not_ready(Box::pin(service.call(MIB)));
    let refused = now(service.call(MIB));
    let full =
        |error: &AllocError| matches!(error, AllocError::QueueFull(full) if full.waiting == 1);
    assert!(
        matches!(&refused, Err(ReserveError::Memory(error)) if full(error)),
        "{refused:?}"
    );
    let large = now(service.call(ALL + 1));
    assert!(
        matches!(
            large,
            Err(ReserveError::Memory(AllocError::TooLarge { .. }))
        ),
        "{large:?}"
    );
    site.pool.close();
    assert_eq!(
        poll(&mut waiting),
        Poll::Ready(Err(ReserveError::Memory(AllocError::Closed)))
    );
    assert_eq!(site.calls(), 0);
    drop(held);
    site.pool.inspect().check_conserved().unwrap();
}

/// The future is dropped at each point at which it waits. No memory is missing, and the inner future is dropped.
#[test]
fn dropped_response_frees_all_its_memory() {
    let site = Site::new(|builder| builder);
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let mut service = site.service(gate);
    drop(service.call(ALL));
    let held = site.pool.try_allocate(&site.stream, ALL).unwrap();
    let waiting = not_ready(Box::pin(service.call(ALL)));
    drop(waiting);
    assert_eq!(site.pool.inspect().statistics().waits.waiting, 0);
    drop(held);
    let working = not_ready(Box::pin(service.call(ALL)));
    assert_eq!(site.calls(), 1);
    drop(working);
    drop(site.pool.try_allocate(&site.stream, ALL).unwrap());
    site.pool.inspect().check_conserved().unwrap();
}

/// A request with a priority, a tag and a timeout.
#[test]
fn need_sets_the_terms_of_the_request() {
    let site = Site::new(|builder| builder);
    let tag = Tag::new("tower: paid");
    let need = move |bytes: &u64| Need {
        bytes: *bytes,
        terms: Terms {
            tag: Some(tag),
            priority: 1,
            timeout: Some(us(100)),
            deadline: None,
        },
    };
    let mut service = ReserveLayer::new(&site.pool, need).layer_over(site.pool.clone(), tag);
    let held = site.pool.try_allocate(&site.stream, ALL).unwrap();
    let mut plain = not_ready(Box::pin(site.pool.reserve(ALL)));
    let mut paid = not_ready(Box::pin(service.call(ALL)));
    drop(held);
    assert_eq!(poll(&mut paid), Poll::Ready(Ok(ALL)), "it came second");
    assert_eq!(site.pool.tag(tag).statistics().used.current, 0);
    assert!(poll(&mut plain).is_ready());
}

trait LayerOver<N> {
    /// Layers over a service that returns how many bytes its tag holds.
    fn layer_over(self, pool: Pool, tag: Tag) -> ReserveService<Used, N>;
}

impl<N: Clone> LayerOver<N> for ReserveLayer<N> {
    fn layer_over(self, pool: Pool, tag: Tag) -> ReserveService<Used, N> {
        tower::Layer::layer(&self, Used { pool, tag })
    }
}

#[derive(Clone)]
struct Used {
    pool: Pool,
    tag: Tag,
}

impl Service<u64> for Used {
    type Response = u64;
    type Error = AllocError;
    type Future = Ready<Result<u64, AllocError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), AllocError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: u64) -> Self::Future {
        // Computed in the call itself, not in its future.
        std::future::ready(Ok(self.pool.tag(self.tag).statistics().used.current))
    }
}

/// The service is ready when the inner one is. A request holds that readiness while it waits for memory.
#[test]
fn readiness_is_that_of_the_inner_service() {
    let site = Site::new(|builder| builder);
    let inner = service_fn(|bytes: u64| std::future::ready(Ok::<_, AllocError>(bytes)));
    let limited = ServiceBuilder::new()
        .layer(ReserveLayer::new(&site.pool, bytes_of))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(inner);
    let (mut one, mut other) = (limited.clone(), limited);
    let held = site.pool.try_allocate(&site.stream, ALL).unwrap();
    let mut waiting = not_ready(Box::pin(now(one.ready()).unwrap().call(ALL)));
    assert!(other.ready().now_or_never().is_none());
    drop(held);
    assert_eq!(poll(&mut waiting), Poll::Ready(Ok(ALL)));
    drop(waiting);
    assert_eq!(
        now(other.ready()).unwrap().call(MIB).now_or_never(),
        Some(Ok(MIB))
    );
}

#[cfg(feature = "http")]
mod over_http {
    use super::*;
    use http::{Request, Response};
    use http_body::{Body, Frame};
    use std::pin::Pin;
    use weirpool::device::sim::SimStream;

    /// A body that computes each frame on the device, in a block of its own: it is sent once the work is complete.
    struct Tokens {
        pool: Pool,
        stream: Stream,
        work: SimStream,
        left: usize,
        step: Option<(Block, Completion)>,
    }

    impl Body for Tokens {
        type Data = &'static [u8];
        type Error = AllocError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<&'static [u8]>, AllocError>>> {
            let this = &mut *self;
            if this.left == 0 {
                return Poll::Ready(None);
            }
            if this.step.is_none() {
                let block = match this.pool.try_allocate(&this.stream, MIB) {
                    Ok(block) => block,
                    Err(error) => return Poll::Ready(Some(Err(error))),
                };
                use_block(&this.work, &block, us(100));
                this.step = Some((block, this.stream.synchronize()));
            }
            let (_, step) = this.step.as_mut().unwrap();
            std::task::ready!(Pin::new(step).poll(context)).unwrap();
            (this.step, this.left) = (None, this.left - 1);
            Poll::Ready(Some(Ok(Frame::data(b"token"))))
        }
    }

    #[derive(Clone)]
    struct Handler {
        site: Arc<Site>,
        work: SimStream,
        /// The reservation of each request, where the handler keeps it.
        kept: Option<Arc<std::sync::Mutex<Vec<Arc<Reservation>>>>>,
    }

    impl Service<Request<usize>> for Handler {
        type Response = Response<Tokens>;
        type Error = AllocError;
        type Future = Ready<Result<Response<Tokens>, AllocError>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), AllocError>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<usize>) -> Self::Future {
            let site = &self.site;
            let reservation = request.extensions().get::<Arc<Reservation>>().unwrap();
            assert_eq!(reservation.size(), 2 * MIB);
            drop(site.pool.try_allocate(&site.stream, 2 * MIB).unwrap());
            if let Some(kept) = &self.kept {
                kept.lock().unwrap().push(reservation.clone());
            }
            std::future::ready(Ok(Response::new(Tokens {
                pool: site.pool.clone(),
                stream: site.stream.clone(),
                work: self.work.clone(),
                left: *request.body(),
                step: None,
            })))
        }
    }

    /// The size of the request is known once its body was read, which takes a while.
    async fn need(request: Request<&'static str>) -> Result<(Need, Request<usize>), AllocError> {
        tokio::task::yield_now().await;
        let tokens = request.map(|body| body.trim().len());
        Ok((Need::new(2 * MIB), tokens))
    }

    fn frame(body: &mut (impl Body<Data = &'static [u8]> + Unpin)) -> Poll<Option<bool>> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let polled = Pin::new(body).poll_frame(&mut context);
        polled.map(|frame| frame.map(|frame| frame.is_ok()))
    }

    fn site() -> (SimDevice, Handler, Arc<Site>) {
        let device = manual();
        let pool = builder(&device, ALL).build().unwrap();
        let (work, stream) = stream(&device, &pool);
        let calls = Arc::default();
        let site = Arc::new(Site {
            pool,
            stream,
            calls,
        });
        let handler = Handler {
            site: site.clone(),
            work,
            kept: None,
        };
        (device, handler, site)
    }

    #[tokio::test]
    async fn reservation_is_held_until_the_streamed_body_has_ended() {
        let (device, handler, site) = site();
        let mut service = tower::Layer::layer(&HttpReserveLayer::new(&site.pool, need), handler);
        let response = service.call(Request::new(" four")).await.unwrap();
        let mut body = response.into_body();
        let used = || site.pool.inspect().statistics().used.current;
        assert_eq!(used(), 2 * MIB);
        // All other memory is taken: each frame draws from the reservation.
        let rest = site.pool.reserve(ALL - 2 * MIB).try_now().unwrap();
        for _ in 0..4 {
            assert!(frame(&mut body).is_pending());
            device.advance(us(100));
            assert_eq!(frame(&mut body), Poll::Ready(Some(true)));
        }
        assert_eq!(used(), ALL);
        assert_eq!(frame(&mut body), Poll::Ready(None));
        assert_eq!(used(), ALL - 2 * MIB, "the body has ended, and exists");
        drop((body, rest));
        site.pool.inspect().check_conserved().unwrap();
        device.assert_ordered();
    }

    #[tokio::test]
    async fn reservation_ends_with_a_dropped_body_unless_the_handler_keeps_it() {
        let (device, mut handler, site) = site();
        let kept = Arc::new(std::sync::Mutex::new(Vec::new()));
        for keeps in [false, true] {
            handler.kept = keeps.then(|| kept.clone());
            let layer = HttpReserveLayer::new(&site.pool, need);
            let mut service = tower::Layer::layer(&layer, handler.clone());
            let mut body = service.call(Request::new("two")).await.unwrap().into_body();
            assert!(frame(&mut body).is_pending());
            drop(body);
            let used = site.pool.inspect().statistics().used.current;
            assert_eq!(used, if keeps { 2 * MIB } else { 0 });
        }
        kept.lock().unwrap().clear();
        assert_eq!(site.pool.inspect().statistics().used.current, 0);
        device.advance(us(1000));
        site.pool.inspect().check_conserved().unwrap();
    }

    #[tokio::test]
    async fn request_without_memory_is_refused_before_the_handler_and_cancelled_in_the_queue() {
        let (_, handler, site) = site();
        let mut service = tower::Layer::layer(&HttpReserveLayer::new(&site.pool, need), handler);
        let held = site.pool.try_allocate(&site.stream, ALL).unwrap();
        let mut waiting = not_ready(service.call(Request::new("x")));
        tokio::task::yield_now().await;
        assert!(poll(&mut waiting).is_pending());
        assert_eq!(site.pool.inspect().statistics().waits.waiting, 1);
        drop(waiting);
        assert_eq!(site.pool.inspect().statistics().waits.waiting, 0);
        site.pool.close();
        let refused = service.call(Request::new("x")).await.err();
        assert_eq!(refused, Some(ReserveError::Memory(AllocError::Closed)));
        drop(held);
    }
}

type Plain = tower::util::BoxCloneService<u64, u64, AllocError>;
assert_impl_all!(ReserveLayer<fn(&u64) -> u64>: Clone, Send, Sync);
assert_impl_all!(ReserveFuture<Plain, u64>: Send);
