//! Admission: a request waits here until memory is reserved for all that it will need.

use super::open::Open;
use super::sequence::Page;
use super::{Engine, Event, Job, Refusal, Sequence, WorkerHandle};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;
use weirpool::{AllocError, Reservation, Tag};

/// How requests obtain memory. The server is designed for the first; the others are for comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Admission {
    /// A request waits until there is memory for its prompt and its longest answer.
    #[default]
    Wait,
    /// A request fails if there is not enough memory now; its client tries again.
    Fail,
    /// A request waits until there is memory for a sequence of the whole context, whatever it needs.
    Split,
}

/// A request that was admitted.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// Ends with an event other than a token, or with the channel. Dropping it cancels the request.
    pub(crate) events: mpsc::UnboundedReceiver<Event>,
    /// The tokens of the prompt that were found in the prefix cache.
    pub(crate) cached: usize,
}

impl Engine {
    /// Waits until there is memory for a request, and begins it.
    ///
    /// # Errors
    /// Returns an error if memory is not available in time, or the engine admits no more requests.
    ///
    /// # Cancel safety
    /// Dropping the future takes the request out of the queue.
    pub(crate) async fn admit(&self, job: Job) -> Result<Admitted, Refusal> {
        // Taken before memory is reserved, so that `drain` waits for the request.
        let admission = self.requests.token();
        // The last token of an answer is not fed back.
        let tokens = job.prompt.len() + job.max_tokens - 1;
        let needed = tokens.div_ceil(self.settings.page);
        let (open, mut shared, reservation) = self.memory_for(&job, needed).await?;
        shared.truncate(needed - 1);
        let cached = shared.len() * self.settings.page;
        if let Some(mut prefixes) = self.prefixes() {
            prefixes.count(job.prompt.len(), shared.len());
        }
        let lane = self.least_loaded(job.tenant);
        let count = shared.len();
        let mut pages: Vec<Page> = shared.into_iter().map(Page::Shared).collect();
        for _ in count..needed {
            pages.push(Page::Own(
                reservation.allocate(&lane.stream, self.page_bytes)?,
            ));
        }
        // The rest of the reservation, for pages that were found after all, is released at the end. A split keeps it
        // for its sequence.
        let split = (self.settings.admission == Admission::Split).then_some(reservation);
        let (sender, events) = mpsc::unbounded_channel();
        let sequence = Sequence {
            prompt: job.prompt.len(),
            tokens: job.prompt,
            done: cached,
            max_tokens: job.max_tokens,
            sampling: job.sampling,
            tenant: job.tenant,
            weight: self.pool.tag(job.tenant).statistics().weight,
            deadline: job.deadline,
            pages,
            shared: count,
            events: sender,
            open,
            _split: split,
            _admission: admission,
        };
        lane.load.add(job.tenant);
        if lane.sequences.send(sequence).is_err() {
            lane.load.remove(job.tenant);
            let fault = self.pool.inspect().health().fault;
            let reason = fault.map_or("its worker has ended".to_owned(), |fault| fault.to_string());
            return Err(Refusal::Broken(reason));
        }
        Ok(Admitted { events, cached })
    }

    /// Opens the workers, and takes the pages of a request.
    async fn memory_for(
        &self,
        job: &Job,
        needed: usize,
    ) -> Result<(Arc<Open>, Vec<weirpool::Pinned>, Reservation), Refusal> {
        let open = self.opening.open(job.deadline).await?;
        if let Some((shared, reservation)) = self.with_prefix(job, needed) {
            return Ok((open, shared, reservation));
        }
        let pinned = || self.pin(job.tenant, &job.prompt);
        if !self.opening.sleeps() {
            let reservation = self.reserve(job, needed).await?;
            return Ok((open, pinned(), reservation));
        }
        if let Ok(reservation) = self.pages(job, needed).try_now() {
            return Ok((open, pinned(), reservation));
        }
        // It waits without the weights, which another server may wait for.
        drop(open);
        let turn = tokio::time::timeout_at(job.deadline, self.opening.turn());
        let _turn = turn.await.map_err(|_| Refusal::Late)?;
        let reservation = self.reserve(job, needed).await?;
        let open = self.opening.open(job.deadline).await?;
        Ok((open, pinned(), reservation))
    }

    /// Pins the prompt's pages in the prefix cache, if memory for the rest is available now. Nothing is pinned while a
    /// request waits: two requests could wait for pages that the other has pinned.
    fn with_prefix(
        &self,
        job: &Job,
        needed: usize,
    ) -> Option<(Vec<weirpool::Pinned>, Reservation)> {
        if self.settings.admission == Admission::Split {
            return None;
        }
        let shared = self.pin(job.tenant, &job.prompt);
        if shared.is_empty() {
            return None;
        }
        let rest = vec![self.page_bytes; needed - shared.len()];
        let reserved = self.pool.reserve_many(rest).tag(job.tenant).try_now();
        Some((shared, reserved.ok()?))
    }

    fn pages(&self, job: &Job, needed: usize) -> weirpool::Reserve<'_> {
        let pages = match self.settings.admission {
            Admission::Split => self.shape.context.div_ceil(self.settings.page),
            Admission::Wait | Admission::Fail => needed,
        };
        let request = self.pool.reserve_many(vec![self.page_bytes; pages]);
        request.tag(job.tenant)
    }

    async fn reserve(&self, job: &Job, needed: usize) -> Result<Reservation, AllocError> {
        let request = self.pages(job, needed);
        let left = job.deadline.saturating_duration_since(Instant::now());
        match self.settings.admission {
            Admission::Fail => request.try_now(),
            _ if job.is_urgent => request.deadline(left).await,
            _ => request.timeout(left).await,
        }
    }

    fn pin(&self, tenant: Tag, prompt: &[u32]) -> Vec<weirpool::Pinned> {
        let prefixes = self.prefixes();
        prefixes
            .map(|mut prefixes| prefixes.pin(tenant, prompt))
            .unwrap_or_default()
    }

    /// Returns the worker with the fewest sequences of the tenant, and among equals, of all; one that has ended only if all
    /// have.
    fn least_loaded(&self, tenant: Tag) -> &WorkerHandle {
        let lanes = self.lanes.iter();
        let least = lanes.min_by_key(|lane| {
            let has_ended = lane.sequences.is_closed();
            (has_ended, lane.load.rank(tenant))
        });
        least.expect("an engine has a worker")
    }
}
