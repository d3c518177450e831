//! A page that shows a [pool](weirpool::Pool) while it works.
//!
//! [`Dashboard`] is a service for a web server. Its page shows memory over time, the blocks by address, the requests that
//! wait with their expected times, tags with their limits, latencies, and the latest events. It consists of one document
//! that loads nothing else; it works on small screens, in dark mode and by keyboard. [`Recording`] is the same page for a
//! run that has ended, as a file.
//!
//! # Cost
//! Without viewers nothing is collected. All viewers share one collection, four times a second, or less often where
//! reading the pool takes longer than a four-hundredth of the time.
//!
//! # Security
//! The page shows names of tags and streams, addresses, and source locations. It changes nothing. Put it behind the same
//! authentication as your metrics. Answers forbid framing, use by pages of other sites, and any script but the page's own.
//! Requests of other sites' pages are refused, those by DNS rebinding included: a service that is reached by a name other
//! than `localhost` has to [say so](Dashboard::hosts).

#![forbid(unsafe_code)]

mod frame;
mod hosts;
mod page;
mod service;
mod viewers;

use std::fmt;
use std::sync::Arc;
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
/// | `text/event-stream` | frames as server-sent events, until the pool [admits no more requests](Pool::stop_admitting) |
/// | `application/json` | one frame |
/// | anything else | the page |
///
/// With axum:
///
/// ```ignore
/// let dashboard = Dashboard::new(&pool).title("my service");
/// let first_token = dashboard.latency("time to first token");
/// let app = axum::Router::new().route_service("/memory", dashboard);
/// // ... for each answer
/// first_token.record(begin.elapsed());
/// ```
///
/// Events need a tokio runtime with time enabled. A dashboard is a handle of the pool and keeps it alive.
///
/// # Shutdown
/// Answers with events end when the pool [admits no more requests](Pool::stop_admitting), or when all clones of the
/// dashboard are dropped. So call that before waiting for connections to end.
///
/// # Errors
/// Answers 421 for a header `Host` that is not among its [hosts](Self::hosts), 403 for the `Origin` of another site, 405 for methods other than `GET` and `HEAD`, and 503 with `Retry-After` for events beyond 64 viewers, or
/// outside of a tokio runtime.
///
/// [`tower`]: https://docs.rs/tower
#[derive(Clone)]
pub struct Dashboard {
    title: String,
    hosts: Hosts,
    viewers: Arc<Viewers>,
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
            viewers: Arc::new(Viewers::new(pool.clone())),
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
        self.viewers.add(latency.clone());
        latency
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

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
