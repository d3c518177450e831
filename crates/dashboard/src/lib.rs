//! A page that shows a [pool](weirpool::Pool) while it works, and its last ten minutes.
//!
//! [`Dashboard`] is a service for a web server. Its page shows memory, requests and tags over time, alerts,
//! the blocks by address, the requests that wait with their expected times, latencies, and the latest events. It consists
//! of one document that loads nothing else; it works on small screens, in dark mode and by keyboard. [`Recording`] is the
//! same page for a run that has ended, as a file.
//!
//! # Cost
//! The dashboard reads some counters once a second, whether or not anybody looks, and keeps them for ten minutes: of the
//! pool, of 40 tags, and the sum of all other tags, in at most 1.3 MiB. Viewers share one collection, four times a second.
//! Both come less often where reading takes longer than a four-hundredth of the time. They run on tokio's threads for
//! blocking work, and answers are bounded: names and events are cut after 160 bytes.
//!
//! # Security
//! The page shows names of tags and streams, addresses, and source locations. It changes nothing. Put it behind the same
//! authentication as your metrics. Answers forbid framing, use by pages of other sites, and any script but the page's own.
//! Requests of other sites' pages are refused, those by DNS rebinding included: a service that is reached by a name other
//! than `localhost` has to [say so](Dashboard::hosts).

#![forbid(unsafe_code)]

mod alerts;
mod frame;
mod hosts;
mod page;
mod ring;
mod service;
mod viewers;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use viewers::Viewers;
use weirpool::{Histogram, Pool, Recorder};

pub use frame::Frame;
pub use hosts::{Foreign, Hosts};
pub use page::Recording;
pub use service::Body;

/// A [`tower`] service that answers with the page of a pool, and with the frames that it asks for. It serves one path, any
/// that you choose:
///
/// | `Accept` | answer |
/// |---|---|
/// | `text/event-stream` | the last ten minutes and a frame, then new rows and frames, as server-sent events, until the pool [admits no more requests](Pool::stop_admitting) |
/// | `application/json` | one frame |
/// | anything else | the page |
///
/// With axum:
///
/// ```ignore
/// let dashboard = Dashboard::new(&pool).title("my service");
/// let (first_token, tokens) = (dashboard.latency("time to first token"), dashboard.counter("tokens"));
/// let app = axum::Router::new()
///     .route_service("/metrics", dashboard.metrics())
///     .route_service("/memory", dashboard);
/// // ... for each answer
/// first_token.record(begin.elapsed());
/// tokens.add(64);
/// ```
///
/// A task of the tokio runtime in which the dashboard is made keeps the last ten minutes, for as long as any clone of the
/// dashboard lives; elsewhere the first viewer starts it. Events need a runtime with time enabled. A dashboard is a handle
/// of the pool and keeps it alive.
///
/// # Shutdown
/// Answers with events end when the pool [admits no more requests](Pool::stop_admitting), or when all clones of the
/// dashboard are dropped. So call that before waiting for connections to end. A viewer that takes nothing for 30 seconds
/// loses its place, and its answer ends; its connection is the server's to close.
///
/// # Errors
/// Answers 421 for a header `Host` that is not among its [hosts](Self::hosts), 403 for the `Origin` of another site, 405
/// for methods other than `GET` and `HEAD`, and 503 with `Retry-After` for events beyond 64 viewers, for events outside of
/// a tokio runtime, and while the runtime ends.
///
/// [`tower`]: https://docs.rs/tower
#[derive(Clone)]
pub struct Dashboard {
    title: String,
    hosts: Hosts,
    viewers: Arc<Viewers>,
    /// It answers with figures instead of the page.
    is_metrics: bool,
}

impl Dashboard {
    /// Returns the dashboard of a pool.
    pub fn new(pool: &Pool) -> Self {
        let title = match pool.name() {
            Some(name) => format!("pool {name}"),
            None => String::from("pool"),
        };
        Self {
            title,
            hosts: Hosts::local(),
            viewers: Viewers::new(pool.clone()),
            is_metrics: false,
        }
    }

    /// Sets the title of the page. The default is the pool's name.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// Sets the names under which the page is reached. The default is `localhost` and any IP address.
    #[must_use]
    pub fn hosts(mut self, hosts: Hosts) -> Self {
        self.hosts = hosts;
        self
    }

    /// Adds a histogram to the page, and returns what records its times.
    pub fn latency(&self, name: impl Into<String>) -> Latency {
        let latency = Latency(Arc::new((name.into(), Recorder::default())));
        self.viewers.add_latency(latency.clone());
        latency
    }

    /// Adds a rate over time to the page, such as tokens per second, and returns what counts. The page shows the first four.
    pub fn counter(&self, name: impl Into<String>) -> Counter {
        let counter = Counter(Arc::new((name.into(), AtomicU64::new(0))));
        self.viewers.add_counter(counter.clone());
        counter
    }

    /// Returns a service that answers with the pool's figures in Prometheus' text format, with the same hosts. The label
    /// `pool` is the title. See [`prometheus_text`](weirpool_observe::prometheus_text) for the families and bounds.
    #[must_use]
    pub fn metrics(&self) -> Self {
        let is_metrics = true;
        Self {
            is_metrics,
            ..self.clone()
        }
    }

    fn page(&self) -> String {
        let mut description = self.viewers.pool.inspect().describe();
        // Its name, without its figures: they change.
        if let Some((name, _)) = description.device.split_once(" (") {
            description.device = name.to_owned();
        }
        page::live(&self.title, &description.to_string())
    }
}

impl fmt::Debug for Dashboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dashboard")
            .field("title", &self.title)
            .field("viewers", &self.viewers.count())
            .finish_non_exhaustive()
    }
}

/// Records times that the page shows as a histogram, from [`Dashboard::latency`]. Clones record into the same one.
#[derive(Clone, Debug)]
pub struct Latency(Arc<(String, Recorder)>);

impl Latency {
    /// Records a time: one atomic addition, without a lock.
    pub fn record(&self, time: Duration) {
        self.0.1.record(time);
    }

    /// Returns the times recorded so far.
    pub fn histogram(&self) -> Histogram {
        self.0.1.histogram()
    }

    fn name(&self) -> &str {
        &self.0.0
    }
}

/// Counts something that the page shows as a rate, from [`Dashboard::counter`]. Clones count together.
#[derive(Clone, Debug)]
pub struct Counter(Arc<(String, AtomicU64)>);

impl Counter {
    /// Adds a number: one atomic addition.
    pub fn add(&self, number: u64) {
        self.0.1.fetch_add(number, Ordering::Relaxed);
    }

    /// Returns the sum so far.
    pub fn count(&self) -> u64 {
        self.0.1.load(Ordering::Relaxed)
    }

    fn name(&self) -> &str {
        &self.0.0
    }
}

/// The most bytes of a name or a text on the page.
const TEXT: usize = 160;

/// Returns a text, or its beginning and its end if it is too long.
fn clip(text: &str) -> Cow<'_, str> {
    if text.len() <= TEXT {
        return Cow::Borrowed(text);
    }
    let is_boundary = |at: &usize| text.is_char_boundary(*at);
    let begin = (0..TEXT * 2 / 3).rev().find(is_boundary).unwrap_or(0);
    let end = (text.len() - TEXT / 4..)
        .find(is_boundary)
        .unwrap_or(text.len());
    Cow::Owned(format!("{}…{}", &text[..begin], &text[end..]))
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
