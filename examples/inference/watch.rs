//! Samples a service while it runs, for the plot and for the progress bar.

use crate::arrivals::Request;
use crate::gauge::Sample;
use crate::progress::Progress;
use crate::service::Service;
use std::cell::RefCell;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// The time between samples: some hundred in a run of seconds.
const STEP: Duration = Duration::from_millis(10);

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

    /// Takes samples until the future is dropped.
    pub(crate) async fn run(&self) -> Infallible {
        let timer = &self.service.timer;
        loop {
            let sample = self.sample();
            self.progress.show(&sample);
            self.samples.borrow_mut().push(sample);
            // Relative to now, not to the time when the sample was due: a late host does not sample more often.
            timer.sleep(STEP).await;
        }
    }

    fn sample(&self) -> Sample {
        let at = self.service.timer.now();
        let statistics = self.service.pool.inspect().statistics();
        let counts = self.service.gauge.read();
        let arrived = self
            .requests
            .partition_point(|request| request.arrives <= at);
        let let_in = counts.in_flight + counts.served + counts.failed;
        Sample {
            at,
            reserved: statistics.reserved.current,
            used: statistics.used.current,
            pending: statistics.pending.current,
            not_admitted: (arrived as u64).saturating_sub(let_in),
            counts,
        }
    }

    pub(crate) fn into_samples(self) -> Vec<Sample> {
        self.samples.into_inner()
    }
}
