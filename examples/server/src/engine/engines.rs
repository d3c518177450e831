//! The engines of a server, one for each device, and which of them a request goes to.

use super::{Engine, Job, PrefixFigures};
use std::sync::Arc;
use std::time::Duration;
use weirpool::{Pool, Tag};

/// See the [module](self). There is one at least.
pub(crate) struct Engines(Vec<Arc<Engine>>);

/// How much of the server is in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    /// Requests that wait for memory.
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

    /// Returns the requests for each place.
    pub(crate) fn of_places(&self) -> f64 {
        (self.running + self.waiting) as f64 / self.places as f64
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

    /// Returns the engine that is expected to have the first token of an answer first. Among equals, the one with the fewest
    /// requests; one that cannot serve only if no other can.
    pub(crate) fn place(&self, job: &Job) -> &Arc<Engine> {
        let rank = |engine: &&Arc<Engine>| {
            let is_lost = engine.lost_worker().is_some();
            let cannot = is_lost || !engine.pool().inspect().health().is_serving();
            (cannot, engine.expected(job), engine.running())
        };
        match &*self.0 {
            [only] => only,
            all => all.iter().min_by_key(rank).expect("there is one"),
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
    /// Returns how long the first token of an answer takes, as far as can be told: the wait for memory, the steps of the
    /// part of the prompt that is not in the prefix cache, and the part of a step for each request that runs.
    fn expected(&self, job: &Job) -> Duration {
        let page = self.settings.page;
        let found = self
            .prefixes()
            .map_or(0, |prefixes| prefixes.found(job.tenant, &job.prompt));
        let tokens = job.prompt.len() + job.max_tokens - 1;
        let pages = tokens.div_ceil(page).saturating_sub(found);
        let rows = job.prompt.len() - found * page;
        let steps = rows as f64 / self.settings.rows as f64;
        let steps = steps + self.running() as f64 / self.places() as f64;
        self.expected_wait(Some(job.tenant), pages) + self.step().mul_f64(steps)
    }

    /// Returns the expected wait of a request for that many pages: a tenant's, or any.
    fn expected_wait(&self, tenant: Option<Tag>, pages: usize) -> Duration {
        let bytes = self.page_bytes * pages as u64;
        let statistics = self.pool.inspect().statistics();
        let waiting = statistics.waits.waiting;
        let taken = statistics.used.current - statistics.evictable.min(statistics.used.current);
        let taken = taken.saturating_add(statistics.charged);
        if waiting == 0 && taken.saturating_add(bytes) <= statistics.leased {
            return Duration::ZERO;
        }
        let at_limit = tenant.and_then(|tenant| self.pool.tag(tenant).expected_wait(bytes));
        let expected = at_limit.or_else(|| self.pool.inspect().expected_wait(bytes));
        // Too few have waited to tell: each of those before it takes a step at least.
        expected.unwrap_or_else(|| self.step() * (waiting + 1) as u32)
    }

    /// Returns the time of a step.
    fn step(&self) -> Duration {
        let steps = self.lanes.iter().map(|lane| lane.load.step());
        steps.max().unwrap_or_default()
    }

    fn places(&self) -> usize {
        self.lanes.len() * self.settings.batch
    }

    fn in_use(&self) -> Use {
        let [.., held, _] = self.memory();
        let longest = self.shape.context.div_ceil(self.settings.page);
        Use {
            waiting: self.pool.inspect().statistics().waits.waiting,
            running: self.running(),
            places: self.places(),
            pages: (held / self.page_bytes, self.pages),
            expected_wait: self.expected_wait(None, longest),
        }
    }
}
