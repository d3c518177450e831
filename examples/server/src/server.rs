//! The server as a whole: started from its settings, and shut down in order.

use crate::agent;
use crate::config::{ANY_HOST, Config, DeviceName};
use crate::engine::{Engine, Engines, Settings, Source};
use crate::figures::Figures;
use crate::http::{App, Tenants, routers};
use crate::kernels::{Machine, simulated};
use crate::patient::Patient;
use anyhow::Context;
use axum::Router;
use bytesize::ByteSize;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use weirpool::device::NativeStream;
use weirpool::device::sim::{Clock, SimDevice};
use weirpool::{Pool, PoolBuilder};
use weirpool_dashboard::Hosts;
use weirpool_observe::Record as _;

/// The most bytes of the headers of a request, and of a part of an answer that waits to be sent.
const HEADERS: usize = 64 << 10;

/// A running server.
pub struct Server {
    app: Arc<App>,
    router: Router,
    operators: Option<Router>,
    simulated: Vec<SimDevice>,
    stop: CancellationToken,
    connections: TaskTracker,
    /// Cancelled with the server.
    ended: CancellationToken,
    _end: DropGuard,
}

impl Server {
    /// Starts the engine on the running runtime, and does not listen yet.
    ///
    /// # Errors
    /// Returns an error if the weights cannot be read, if the device is missing or fails, or if the capacity is too
    /// small.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        Self::start_with(config, Clock::Wall).await
    }

    /// Starts the engine; a simulated device follows `clock`.
    ///
    /// # Errors
    /// Returns the errors of [`start`](Self::start).
    pub async fn start_with(config: Config, clock: Clock) -> anyhow::Result<Self> {
        let shape = config.model.shape();
        let needed = shape.weight_bytes();
        anyhow::ensure!(
            config.model.weights.is_some() || needed <= config.capacity.as_u64(),
            "the capacity of {} is too small for weights of {}; raise the capacity, or choose a smaller model",
            config.capacity,
            ByteSize(needed),
        );
        let source = Source {
            shape,
            file: config.model.weights.clone(),
            seed: config.model.seed,
            publish: config.publish.clone(),
            begun: Instant::now(),
        };
        let (mut engines, mut simulated) = (Vec::new(), Vec::new());
        for device in &config.device {
            let engine = match device {
                DeviceName::Sim => {
                    let memory = config.capacity.as_u64().saturating_add(64 << 20);
                    let (device, machine) = simulated::machine(memory, config.slowdown, clock);
                    simulated.push(device);
                    engine_on(machine, &source, &config).await?
                }
                #[cfg(feature = "cuda")]
                DeviceName::Cuda(number) => {
                    let machine = crate::kernels::cuda::machine(*number)?;
                    engine_on(machine, &source, &config).await?
                }
                #[cfg(not(feature = "cuda"))]
                DeviceName::Cuda(_) => anyhow::bail!(
                    "the server was built without CUDA; build it with `--features cuda`"
                ),
            };
            engines.push(engine);
        }
        let engines = Engines::new(engines);
        let app = Arc::new(App {
            figures: Figures::new(&engines)?,
            tenants: Tenants::new(&config, &engines),
            hosts: hosts(&config.hosts),
            engines,
            config,
            next: AtomicU64::new(1),
        });
        let (router, operators) = routers(&app);
        let ended = CancellationToken::new();
        Ok(Self {
            router,
            operators,
            app,
            simulated,
            stop: CancellationToken::new(),
            connections: TaskTracker::new(),
            _end: ended.clone().drop_guard(),
            ended,
        })
    }

    /// Returns the pool of the first device, for its figures.
    pub fn pool(&self) -> &Pool {
        self.app.engines.first().pool()
    }

    /// Returns the pools, one for each device.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.app.engines.pools()
    }

    /// Returns the first simulated device, if the server runs on one.
    pub fn simulated(&self) -> Option<&SimDevice> {
        self.simulated.first()
    }

    /// Returns the number of requests that were admitted and have not ended.
    pub fn running(&self) -> usize {
        self.app.engines.running()
    }

    /// Returns the routes, for calls without a network.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Returns the routes of operators, if they have an address of their own, for calls without a network.
    pub fn operators(&self) -> Option<Router> {
        self.operators.clone()
    }

    /// Listens at the configured addresses, and serves connections in the background. Returns the address for clients.
    ///
    /// # Errors
    /// Returns an error if an address is not available.
    pub async fn listen(&self) -> anyhow::Result<SocketAddr> {
        let config = &self.app.config;
        if let (Some(address), Some(router)) = (config.operators, &self.operators) {
            self.listen_at(address, router.clone()).await?;
        }
        if let Some(address) = config.agent {
            let listener = bind(address).await?;
            let app = Arc::downgrade(&self.app);
            let agent = agent::run(listener, move || Some(app.upgrade()?.state()));
            tokio::spawn(self.ended.clone().run_until_cancelled_owned(agent));
        }
        self.listen_at(config.listen, self.router.clone()).await
    }

    async fn listen_at(&self, address: SocketAddr, router: Router) -> anyhow::Result<SocketAddr> {
        let listener = bind(address).await?;
        let address = listener.local_addr()?;
        let accepting = accept(
            listener,
            router,
            self.stop.clone(),
            self.connections.clone(),
            self.app.config.connections,
            self.app.config.client_timeout,
        );
        // Tracked with the connections, because it may begin some at the end.
        self.connections.spawn(accepting);
        Ok(address)
    }

    /// Shuts down: stops listening, refuses waiting requests, completes running answers, and returns all memory.
    ///
    /// # Errors
    /// Returns an error if answers are not complete within the configured time, or if memory is missing.
    pub async fn shut_down(self) -> anyhow::Result<()> {
        let patience = self.app.config.drain_timeout;
        self.app.engines.stop_admitting();
        self.stop.cancel();
        self.connections.close();
        let drained = self.app.engines.drain(patience).await;
        // Answers are complete; clients may take a moment to read them.
        let _ = tokio::time::timeout(self.app.config.client_timeout, self.connections.wait()).await;
        drained
    }
}

async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("cannot listen on {address}"))
}

fn hosts(names: &[String]) -> Hosts {
    let is_any = names.iter().any(|name| name == ANY_HOST);
    let hosts = if is_any { Hosts::any() } else { Hosts::local() };
    names.iter().fold(hosts, Hosts::and)
}

/// Accepts connections until the server stops.
async fn accept(
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
    connections: TaskTracker,
    most: usize,
    timeout: Duration,
) {
    let places = Arc::new(Semaphore::new(most));
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await.expect("never closed");
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let served = serve(stream, router.clone(), Some(stop.clone()), timeout);
                connections.spawn(async move {
                    served.await;
                    drop(place);
                });
            }
            Err(error) => {
                // For example, no file descriptor is left.
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    // Clients that the system has already connected get an answer, too. Their number is bounded by the system's queue.
    let Ok(listener) = listener.into_std() else {
        return;
    };
    while let Ok((stream, _)) = listener.accept() {
        // Connections without a request are closed.
        let stream = stream.set_nonblocking(true).map(|()| stream);
        let has_request = |stream: &std::net::TcpStream| matches!(stream.peek(&mut [0]), Ok(1));
        let stream = stream.ok().filter(has_request).map(TcpStream::from_std);
        if let Some(Ok(stream)) = stream {
            let last = serve(stream, router.clone(), None, timeout);
            connections.spawn(last);
        }
    }
}

/// Serves one connection until the server stops; without `stop`, one request. A client that sends its headers or reads
/// its answer too slowly is cut off.
async fn serve(
    stream: TcpStream,
    router: Router,
    stop: Option<CancellationToken>,
    timeout: Duration,
) {
    // Tokens are small, and should arrive at once.
    let _ = stream.set_nodelay(true);
    let stream = Patient::new(stream, timeout);
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeout)
        .max_buf_size(HEADERS)
        .keep_alive(stop.is_some())
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let mut is_stopping = stop.is_none();
    let stop = stop.unwrap_or_default();
    loop {
        tokio::select! {
            biased;
            served = connection.as_mut() => {
                if let Err(error) = served {
                    tracing::debug!(%error, "a connection ended");
                }
                return;
            }
            () = stop.cancelled(), if !is_stopping => {
                is_stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Starts the engine of one device.
async fn engine_on<W: NativeStream>(
    machine: Machine<W>,
    source: &Source,
    config: &Config,
) -> anyhow::Result<Arc<Engine>> {
    let settings = Settings {
        capacity: config.capacity.as_u64(),
        streams: config.streams,
        page: config.page,
        batch: config.batch,
        rows: config.rows,
        admission: config.admission,
        keeps_prefixes: config.prefix_cache,
        queue: config.queue,
        sleep_after: config.sleep_after,
    };
    let broker = config.broker.clone();
    let tune = |builder: PoolBuilder| leased(builder.history(4096), broker);
    Engine::start(machine, source, settings, tune).await
}

/// Has a broker lease the pool's capacity, if there is one.
#[cfg(target_os = "linux")]
fn leased(builder: PoolBuilder, broker: Option<PathBuf>) -> PoolBuilder {
    match broker {
        Some(socket) => weirpool_broker::lease_capacity(builder, socket),
        None => builder,
    }
}

#[cfg(not(target_os = "linux"))]
fn leased(builder: PoolBuilder, _: Option<PathBuf>) -> PoolBuilder {
    builder
}
