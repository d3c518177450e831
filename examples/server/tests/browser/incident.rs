//! A pool after ten minutes with 24 tenants and an overload, which pass in virtual time, and its page in real time.

use axum::Router;
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use weirpool::device::sim::{Backing, Checker, Clock, SimDevice};
use weirpool::{Block, Pool, QueueLimit, Stream, Tag};
use weirpool_dashboard::{Counter, Dashboard};
use weirpool_observe::Record as _;

pub(crate) const TENANTS: [&str; 24] = [
    "chat",
    "search",
    "summaries",
    "translation",
    "code",
    "vision",
    "speech",
    "ranking",
    "mail",
    "support",
    "reports",
    "billing",
    "maps",
    "music",
    "news",
    "photos",
    "shopping",
    "fraud",
    "agents",
    "evaluation",
    "batch",
    "labels",
    "embeddings",
    "tuning",
];
/// The tenant that waits at its limit.
pub(crate) const STARVED: &str = "batch";
const MINUTE: Duration = Duration::from_secs(60);
/// When the overload begins and ends.
const OVERLOAD: [Duration; 2] = [Duration::from_secs(390), Duration::from_secs(480)];

/// A page that is served until it is dropped.
pub(crate) struct Incident {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Incident {
    pub(crate) fn start() -> Self {
        let (address, listens) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().start_paused(true);
            let runtime = runtime.build().expect("a runtime");
            runtime.block_on(async {
                let dashboard = busy().await;
                tokio::time::resume();
                let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
                let app = Router::new()
                    .route_service("/metrics", dashboard.metrics())
                    .route_service("/", dashboard);
                let own = listener.local_addr().expect("an address");
                address.send(own).expect("the test waits");
                let serving = axum::serve(listener, app);
                tokio::select! {
                    served = serving.into_future() => served.expect("a service"),
                    _ = stopped => {}
                }
            });
        });
        Self {
            address: listens.recv().expect("it starts"),
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub(crate) fn page(&self) -> String {
        format!("http://{}/", self.address)
    }
}

impl Drop for Incident {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the service ends");
        }
    }
}

/// Returns the dashboard of a pool that was under load for ten minutes, and goes on.
async fn busy() -> Dashboard {
    let device = SimDevice::builder()
        .clock(Clock::Tokio)
        .memory(1 << 40)
        .backing(Backing::AddressesOnly)
        .checker(Checker::Off)
        .build();
    let limit = QueueLimit::requests(120);
    let builder = Pool::builder(device).capacity(12 << 30).queue_limit(limit);
    let pool = builder.history(1000).build().expect("a pool");
    let dashboard = Dashboard::new(&pool).title("inference, 24 tenants");
    let tokens = dashboard.counter("tokens");
    let batch = pool.tag(Tag::new(STARVED));
    batch.set_limit(Some(512 << 20));
    pool.tag(Tag::new("chat")).set_weight(4);
    pool.tag(Tag::new("search")).set_limit(Some(2 << 30));
    for (number, name) in TENANTS.into_iter().enumerate() {
        tokio::spawn(tenant(pool.clone(), number as u64, name, tokens.clone()));
    }
    sleep(10 * MINUTE).await;
    dashboard
}

/// Sends requests of one tenant without an end.
async fn tenant(pool: Pool, number: u64, name: &'static str, tokens: Counter) {
    let begin = Instant::now();
    let tag = Tag::new(name);
    let stream = pool.create_stream().expect("a stream").named(name);
    let mut random = fastrand::Rng::with_seed(number);
    let mut kept = std::collections::VecDeque::new();
    // Tenants come in turn, and some are much larger.
    sleep(Duration::from_secs(number * 4)).await;
    let size = (16 << 20) * (1 + 24 / (number + 2));
    loop {
        let at = begin.elapsed();
        let is_overload = (OVERLOAD[0]..OVERLOAD[1]).contains(&at) && number % 4 == 1;
        let wave = 1.0 + 0.5 * (at.as_secs_f64() / 47.0 + number as f64).sin();
        let rate = wave * if is_overload { 26.0 } else { 1.6 };
        sleep(Duration::from_secs_f64(-(1.0 - random.f64()).ln() / rate)).await;
        if name == STARVED && at > 9 * MINUTE {
            // It holds all that it may use, and asks for more.
            let held = pool.allocate(&stream, 512 << 20).tag(tag).await;
            let more = pool.allocate(&stream, 64 << 20).tag(tag).await;
            drop((held, more));
        }
        let bytes = random.u64(size / 4..size);
        let time = Duration::from_millis(random.u64(300..3800));
        let answer = answer(
            pool.clone(),
            stream.clone(),
            tag,
            bytes,
            time,
            tokens.clone(),
        );
        if random.u8(..) < 40 && !is_overload {
            // The prefix of an answer stays until its memory is needed.
            kept.extend(answer.await.map(Block::into_evictable));
            kept.drain(..kept.len().saturating_sub(24));
        } else {
            tokio::spawn(answer);
        }
    }
}

/// Answers a request, and returns its memory.
async fn answer(
    pool: Pool,
    stream: Stream,
    tag: Tag,
    bytes: u64,
    time: Duration,
    tokens: Counter,
) -> Option<Block> {
    let request = pool.allocate(&stream, bytes).tag(tag);
    let block = request.timeout(Duration::from_secs(12)).await.ok()?;
    sleep(time).await;
    tokens.add(time.as_millis() as u64 / 12);
    Some(block)
}
