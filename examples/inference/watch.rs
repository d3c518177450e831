//! Looks at a service while it runs: for the picture, and for the bar on the terminal.

use crate::arrivals::Request;
use crate::gauge::Whereabouts;
use crate::progress::Progress;
use crate::service::Service;
use std::cell::RefCell;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// How often it looks: some hundred times in a run of seconds.
const STEP: Duration = Duration::from_millis(10);

/// One look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) at: Duration,
    pub(crate) reserved: u64,
    pub(crate) used: u64,
    pub(crate) pending: u64,
    /// Requests that have arrived, and are not let in.
    pub(crate) at_the_door: u64,
    pub(crate) whereabouts: Whereabouts,
}

/// See the [module](self).
pub(crate) struct Watch<'a> {
    service: Arc<Service>,
    requests: &'a [Request],
    progress: &'a Progress,
    samples: RefCell<Vec<Sample>>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(
        service: &Arc<Service>,
        requests: &'a [Request],
        progress: &'a Progress,
    ) -> Self {
        Self {
            service: service.clone(),
            requests,
            progress,
            samples: RefCell::default(),
        }
    }

    /// Looks on, until it is dropped.
    pub(crate) async fn run(&self) -> Infallible {
        let timer = &self.service.timer;
        loop {
            let sample = self.look();
            self.progress.show(&sample);
            self.samples.borrow_mut().push(sample);
            // From now on, and not from when it was due: a host that is late is not asked more often.
            timer.sleep(STEP).await;
        }
    }

    fn look(&self) -> Sample {
        let at = self.service.timer.now();
        let statistics = self.service.pool.statistics();
        let whereabouts = self.service.gauge.read();
        let arrived = self
            .requests
            .partition_point(|request| request.arrives <= at);
        let let_in = whereabouts.in_flight + whereabouts.served + whereabouts.failed;
        Sample {
            at,
            reserved: statistics.reserved.current,
            used: statistics.used.current,
            pending: statistics.pending.current,
            at_the_door: (arrived as u64).saturating_sub(let_in),
            whereabouts,
        }
    }

    pub(crate) fn into_samples(self) -> Vec<Sample> {
        self.samples.into_inner()
    }
}
