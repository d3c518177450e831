//! The engines of a server, one for each device, and which of them a request goes to.

use super::{Admitted, Engine, Job, PrefixFigures, Refusal};
use crate::model::Shape;
use std::sync::Arc;
use std::time::Duration;
use weirpool::{AllocError, Pool, Statistics, Tag};

/// See the [module](self). There is one at least.
pub(crate) struct Engines(Vec<Arc<Engine>>);

/// How much of the server is in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    /// Requests that wait for memory, or for the quotas of their tenants.
    pub(crate) waiting: usize,
    /// Requests that were admitted and have not ended.
    pub(crate) running: usize,
    /// The sequences that a step of every worker has places for.
    pub(crate) places: usize,
    /// Pages of keys and values that requests hold, and all that there is memory for.
    pub(crate) pages: (u64, u64),
    /// The least expected wait of a sequence of the whole context, of all devices.
    pub(crate) expected_wait: Duration,
}

impl Use {
    /// Returns the part of the pages that requests hold: from 0 to 1.
    pub(crate) fn of_pages(&self) -> f64 {
        let (held, all) = self.pages;
        held as f64 / all.max(1) as f64
    }

    /// Returns the requests that run, for each place.
    pub(crate) fn of_places(&self) -> f64 {
        self.running as f64 / self.places as f64
    }
}

impl Engines {
    /// # Panics
    /// If there are none.
    pub(crate) fn new(all: Vec<Arc<Engine>>) -> Self {
        assert!(!all.is_empty(), "a server has a device");
        Self(all)
    }

    pub(crate) fn first(&self) -> &Arc<Engine> {
        &self.0[0]
    }

    pub(crate) fn all(&self) -> &[Arc<Engine>] {
        &self.0
    }

    pub(crate) fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.0.iter().map(|engine| engine.pool())
    }

    /// Admits a request on the device that is expected to have its first token first; among equals, the one with the fewest
    /// requests; one that cannot serve only if no other can. A device that refuses it, because its queue is full or the wait
    /// too long, is followed by the next one. Returns the model's sizes as well.
    ///
    /// # Errors
    /// Returns the error of the last device that was asked.
    ///
    /// # Cancel safety
    /// As of [`Engine::admit`].
    pub(crate) async fn admit(&self, job: Job) -> Result<(Admitted, Shape), Refusal> {
        let mut left: Vec<_> = self.0.iter().collect();
        loop {
            let rank = |engine: &&Arc<Engine>| {
                let is_lost = engine.lost_worker().is_some();
                let cannot = is_lost || !engine.pool().inspect().health().is_serving();
                (cannot, engine.expected(&job), engine.requests.len())
            };
            let ranked = (0..left.len()).min_by_key(|at| match left.len() {
                1 => None,
                _ => Some(rank(&left[*at])),
            });
            let engine = left.swap_remove(ranked.expect("a server has a device"));
            let admitted = match left.is_empty() {
                true => return Ok((engine.admit(job).await?, engine.shape)),
                false => engine.admit(job.clone()).await,
            };
            match admitted {
                Err(Refusal::Memory(
                    AllocError::QueueFull(_) | AllocError::Shed { .. } | AllocError::Exhausted(_),
                )) => {}
                admitted => return Ok((admitted?, engine.shape)),
            }
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.0.iter().map(|engine| engine.running()).sum()
    }

    /// Returns whether a request would be admitted, or wait, on any device.
    pub(crate) fn are_serving(&self) -> bool {
        let mut pools = self.pools();
        pools.any(|pool| pool.inspect().health().is_serving())
    }

    pub(crate) fn prefix_figures(&self) -> PrefixFigures {
        let all = self.0.iter().map(|engine| engine.prefix_figures());
        all.fold(PrefixFigures::default(), |sum, one| PrefixFigures {
            asked: sum.asked + one.asked,
            found: sum.found + one.found,
        })
    }

    pub(crate) fn in_use(&self) -> Use {
        let all = self.0.iter().map(|engine| engine.in_use());
        let sum = all.reduce(|sum, one| Use {
            waiting: sum.waiting + one.waiting,
            running: sum.running + one.running,
            places: sum.places + one.places,
            pages: (sum.pages.0 + one.pages.0, sum.pages.1 + one.pages.1),
            expected_wait: sum.expected_wait.min(one.expected_wait),
        });
        sum.expect("there is one")
    }

    /// Refuses new and waiting requests from now on. Admitted sequences continue.
    pub(crate) fn stop_admitting(&self) {
        self.0.iter().for_each(|engine| engine.stop_admitting());
    }

    /// Waits until all requests that were admitted have ended, and closes the pools.
    ///
    /// # Errors
    /// Returns the first error of an engine's [`drain`](Engine::drain), after all have ended.
    pub(crate) async fn drain(&self, patience: Duration) -> anyhow::Result<()> {
        let drains = self.0.iter().map(|engine| engine.drain(patience));
        let drained = futures::future::join_all(drains).await;
        drained.into_iter().collect()
    }
}

impl Engine {
    /// Returns how long the first token of an answer takes, as far as can be told: the wait for memory, and the steps of the
    /// part of the prompt that is not in the prefix cache. Each request beside it takes a part of a step, and those beyond the
    /// places of a step take turns with it for its whole answer.
    fn expected(&self, job: &Job) -> Duration {
        let page = self.settings.page;
        let found = self
            .prefixes()
            .map_or(0, |prefixes| prefixes.found(job.tenant, &job.prompt));
        let tokens = job.prompt.len() + job.max_tokens - 1;
        let rows = job.prompt.len() - found * page;
        let (requests, places) = (self.requests.len() as f64, self.places() as f64);
        let beyond = (requests + 1.0 - places).max(0.0);
        let steps = rows as f64 / self.settings.rows as f64
            + requests / places
            + job.max_tokens as f64 * beyond / places;
        let pages = tokens.div_ceil(page);
        let statistics = self.pool.inspect().statistics();
        let wait = self.expected_wait(&statistics, Some(job.tenant), pages);
        wait.saturating_add(self.step().mul_f64(steps))
    }

    /// Returns the expected wait of a request for that many pages: a tenant's, or any.
    fn expected_wait(
        &self,
        statistics: &Statistics,
        tenant: Option<Tag>,
        pages: usize,
    ) -> Duration {
        let bytes = self.page_bytes * pages as u64;
        let tenant = tenant.map(|tenant| self.pool.tag(tenant));
        let at_limit = tenant.and_then(|tenant| {
            let statistics = tenant.statistics();
            let is_over = statistics.used.current.saturating_add(bytes) > statistics.limit?;
            tenant.expected_wait(bytes).filter(|_| is_over)
        });
        let used = statistics.used.current;
        let taken = used - statistics.evictable.min(used) + statistics.charged;
        let fits = taken.saturating_add(bytes) <= statistics.leased;
        // Requests over the limit of their tenant are listed last, and delay no other.
        let first = self.pool.inspect().waiting_requests(1);
        let waits_any = first.first().is_some_and(|first| !first.is_over_limit);
        let for_memory = match fits && !waits_any {
            true => Duration::ZERO,
            false => {
                let expected = self.pool.inspect().expected_wait(bytes);
                // Too few requests have waited for an estimate: each one before this takes at least a step.
                let before = statistics.waits.waiting as u32 + 1;
                expected.unwrap_or_else(|| self.step().saturating_mul(before))
            }
        };
        at_limit.map_or(for_memory, |at_limit| at_limit.max(for_memory))
    }

    /// Returns the time of a step: of the slowest worker that has requests, or else of the fastest.
    fn step(&self) -> Duration {
        let known = |is_busy: bool| {
            let lanes = self.lanes.iter().map(|lane| &lane.load);
            let lanes = lanes.filter(move |load| !is_busy || load.all() > 0);
            lanes.map(|load| load.step()).filter(|step| !step.is_zero())
        };
        known(true)
            .max()
            .or_else(|| known(false).min())
            .unwrap_or_default()
    }

    fn places(&self) -> usize {
        self.lanes.len() * self.settings.batch
    }

    fn in_use(&self) -> Use {
        let [.., held, _] = self.memory();
        let longest = self.shape.context.div_ceil(self.settings.page);
        let statistics = self.pool.inspect().statistics();
        Use {
            waiting: statistics.waits.waiting,
            running: self.running(),
            places: self.places(),
            pages: (held / self.page_bytes, self.pages),
            expected_wait: self.expected_wait(&statistics, None, longest),
        }
    }
}
