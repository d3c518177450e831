//! The server as a whole: started from its settings, and shut down in order.

use crate::config::{Config, DeviceName};
use crate::engine::{Engine, Settings};
use crate::figures::Figures;
use crate::http::{App, Tenants, router};
use crate::kernels::{Machine, simulated};
use crate::model::Weights;
use anyhow::Context;
use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use weirpool::device::NativeStream;
use weirpool::device::sim::{Clock, SimDevice};
use weirpool::{Pool, PoolBuilder};

/// A running server.
pub struct Server {
    app: Arc<App>,
    router: Router,
    simulated: Option<SimDevice>,
    stop: CancellationToken,
    connections: TaskTracker,
}

impl Server {
    /// Starts the engine on the running runtime. Nothing listens yet.
    ///
    /// # Errors
    /// Returns an error if the weights cannot be read, if the device is missing or fails, or if the capacity is too small.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        Self::start_with(config, Clock::Wall).await
    }

    /// Starts the engine; a simulated device follows `clock`.
    ///
    /// # Errors
    /// Returns the errors of [`start`](Self::start).
    pub async fn start_with(config: Config, clock: Clock) -> anyhow::Result<Self> {
        let shape = config.model.shape();
        let weights = match &config.model.weights {
            Some(path) => Weights::read(path, shape.heads)?,
            None => Weights::generate(shape, config.model.seed),
        };
        match config.device {
            DeviceName::Sim => {
                let memory = config.capacity.as_u64() + (64 << 20);
                let (device, machine) = simulated::machine(memory, config.slowdown, clock);
                Self::on(machine, Some(device), &weights, config).await
            }
            #[cfg(feature = "cuda")]
            DeviceName::Cuda => {
                let machine = crate::kernels::cuda::machine(config.ordinal)?;
                Self::on(machine, None, &weights, config).await
            }
            #[cfg(not(feature = "cuda"))]
            DeviceName::Cuda => {
                anyhow::bail!("the server was built without CUDA; build it with `--features cuda`")
            }
        }
    }

    async fn on<W: NativeStream>(
        machine: Machine<W>,
        simulated: Option<SimDevice>,
        weights: &Weights,
        config: Config,
    ) -> anyhow::Result<Self> {
        let settings = Settings {
            capacity: config.capacity.as_u64(),
            streams: config.streams,
            page: config.page,
            batch: config.batch,
            rows: config.rows,
            admission: config.admission,
            keeps_prefixes: config.prefix_cache,
            queue: config.queue,
        };
        let tune = |builder: PoolBuilder| builder.history(4096);
        let engine = Engine::start(machine, weights, settings, tune).await?;
        let app = Arc::new(App {
            figures: Figures::new(&engine)?,
            tenants: Tenants::new(&config, &engine),
            engine,
            config,
            next: AtomicU64::new(1),
        });
        Ok(Self {
            router: router(app.clone()),
            app,
            simulated,
            stop: CancellationToken::new(),
            connections: TaskTracker::new(),
        })
    }

    /// The pool, for its figures.
    pub fn pool(&self) -> &Pool {
        self.app.engine.pool()
    }

    /// The simulated device, if the server runs on one.
    pub fn simulated(&self) -> Option<&SimDevice> {
        self.simulated.as_ref()
    }

    /// The number of requests that were admitted and have not ended.
    pub fn running(&self) -> usize {
        self.app.engine.running()
    }

    /// The routes, for calls without a network.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Listens at the configured address, and serves connections in the background. Returns the address.
    ///
    /// # Errors
    /// Returns an error if the address is not available.
    pub async fn listen(&self) -> anyhow::Result<SocketAddr> {
        let address = self.app.config.listen;
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
        let address = listener.local_addr()?;
        let accepting = accept(
            listener,
            self.router.clone(),
            self.stop.clone(),
            self.connections.clone(),
            self.app.config.connections,
            self.app.config.client_timeout,
        );
        tokio::spawn(accepting);
        Ok(address)
    }

    /// Shuts down: stops listening, refuses requests that wait, completes answers that run, and returns all memory.
    ///
    /// # Errors
    /// Returns an error if answers are not complete within the configured time, or if memory is missing.
    pub async fn shut_down(self) -> anyhow::Result<()> {
        let patience = self.app.config.drain_timeout;
        self.app.engine.close();
        self.stop.cancel();
        self.connections.close();
        let drained = self.app.engine.drain(patience).await;
        // Answers are complete; clients may take a moment to read them.
        let _ = tokio::time::timeout(self.app.config.client_timeout, self.connections.wait()).await;
        drained
    }
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
            () = stop.cancelled() => return,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let served = serve(stream, router.clone(), stop.clone(), timeout);
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
}

/// Serves one connection. A client that sends its headers too slowly, or reads nothing for too long, is cut off.
async fn serve(stream: TcpStream, router: Router, stop: CancellationToken, timeout: Duration) {
    // Tokens are small, and are to arrive at once.
    let _ = stream.set_nodelay(true);
    let mut stream = tokio_io_timeout::TimeoutStream::new(stream);
    stream.set_write_timeout(Some(timeout));
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeout)
        .serve_connection(
            TokioIo::new(Box::pin(stream)),
            TowerToHyperService::new(router),
        );
    let mut connection = std::pin::pin!(connection);
    let mut is_stopping = false;
    loop {
        tokio::select! {
            () = stop.cancelled(), if !is_stopping => {
                is_stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            served = connection.as_mut() => {
                if let Err(error) = served {
                    tracing::debug!(%error, "a connection ended");
                }
                return;
            }
        }
    }
}
