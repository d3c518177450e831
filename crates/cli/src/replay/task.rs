//! The task of one stream: its operations in order, each at its time, allocations awaited.
//!
//! Between two operations of a stream, its host thread does real work. So a wait makes all later operations of the
//! stream late: an operation comes at its time in the trace plus all waits before it.

use super::backlog::Backlog;
use super::session::{Held, Session};
use super::timing::{Stopwatch, Timed};
use crate::device::machine::{Line, Machine, Purpose, Use};
use crate::trace::{Event, Kind};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use weirpool::{AllocError, Block, Unordered};

/// The task of a stream.
pub(crate) struct StreamTask<M: Machine> {
    session: Rc<Session<M>>,
    stream: usize,
    backlog: Backlog,
    late: Duration,
}

impl<M: Machine> StreamTask<M> {
    pub(crate) fn new(session: &Rc<Session<M>>, stream: usize, backlog: Backlog) -> Self {
        Self {
            session: session.clone(),
            stream,
            backlog,
            late: Duration::ZERO,
        }
    }

    /// Carries out the stream's events.
    pub(crate) async fn run(mut self, events: Vec<Event>) -> anyhow::Result<()> {
        for event in events {
            let session = self.session.clone();
            let due = event.time + self.late;
            session.sleep_until(due).await;
            let late = session.now().saturating_sub(due);
            session.counts.borrow_mut().begins(late);
            match event.kind {
                Kind::Allocate { id, bytes } => self.allocate(id, bytes).await?,
                Kind::Free { id } => self.free(id).await?,
            }
            session.counts.borrow_mut().operations += 1;
        }
        Ok(())
    }

    async fn allocate(&mut self, id: usize, bytes: u64) -> anyhow::Result<()> {
        let session = self.session.clone();
        let stream = &session.lines[self.stream].stream;
        let allocation = Timed::new(|| session.pool.allocate(stream, bytes));
        let allocation = session.patience.wait(allocation);
        let (answer, waited) = self.wait_for(allocation).await;
        session.counts.borrow_mut().waited(waited);
        match answer {
            Some((Ok(block), spent)) => {
                session.counts.borrow_mut().took(spent);
                self.keep(id, bytes, block)
            }
            Some((Err(error), _)) if !is_shortage(&error) => Err(error.into()),
            _ => {
                session.counts.borrow_mut().failures += 1;
                session.blocks.miss(id);
                Ok(())
            }
        }
    }

    /// Awaits `future` and returns its output and the wait, by which the stream is late from then on. A future that is
    /// ready at its first poll is no wait, whatever CPU time it took.
    async fn wait_for<F: Future>(&mut self, future: F) -> (F::Output, Duration) {
        let mut future = pin!(future);
        let (now, elapsed) = (self.session.now(), self.session.elapsed());
        let mut polls = 0;
        let counted = poll_fn(|context| {
            polls += 1;
            future.as_mut().poll(context)
        });
        let output = counted.await;
        if polls == 1 {
            return (output, Duration::ZERO);
        }
        self.late += self.session.now() - now;
        (output, self.session.elapsed() - elapsed)
    }

    /// Uses the block for the first time, and puts it where its free finds it.
    fn keep(&mut self, id: usize, bytes: u64, block: Block) -> anyhow::Result<()> {
        self.use_it(id, bytes, &block, Purpose::Write)?;
        let leaves = self.session.handed_over[id];
        let made = leaves.then(|| self.line().stream.event()).transpose()?;
        self.session.counts.borrow_mut().allocated(bytes);
        self.session.blocks.put(id, Held { block, bytes, made });
        Ok(())
    }

    async fn free(&mut self, id: usize) -> anyhow::Result<()> {
        let session = self.session.clone();
        // A free is skipped with its failed allocation.
        let (Some(held), _) = self.wait_for(session.blocks.take(id)).await else {
            return Ok(());
        };
        let bytes = held.bytes;
        let spent = match held.made {
            None => self.free_own(id, held)?,
            Some(ref made) => self.free_of_another(id, bytes, held.block, made)?,
        };
        let mut counts = session.counts.borrow_mut();
        counts.took(spent);
        counts.freed(bytes);
        Ok(())
    }

    fn free_own(&mut self, id: usize, held: Held) -> anyhow::Result<Duration> {
        let Held { block, bytes, .. } = held;
        self.use_it(id, bytes, &block, Purpose::Check)?;
        let mut watch = Stopwatch::default();
        watch.time(|| drop(block));
        Ok(watch.spent())
    }

    /// Takes the block over as a user would: waits for its maker, uses it on this stream, frees it on this stream.
    fn free_of_another(
        &mut self,
        id: usize,
        bytes: u64,
        block: Block,
        made: &weirpool::Event,
    ) -> anyhow::Result<Duration> {
        let session = self.session.clone();
        let stream = &session.lines[self.stream].stream;
        stream.wait(made)?;
        let mut watch = Stopwatch::default();
        watch.time(|| stream.record_use(Unordered::UntilFreed(&block)))?;
        self.use_it(id, bytes, &block, Purpose::Check)?;
        watch.time(|| block.deallocate_on(stream).map(drop))?;
        Ok(watch.spent())
    }

    /// Submits work that uses a block on this stream, and ends when the stream's backlog is done.
    fn use_it(
        &mut self,
        id: usize,
        bytes: u64,
        block: &Block,
        purpose: Purpose,
    ) -> anyhow::Result<()> {
        let what = Use {
            id,
            block,
            bytes,
            lag: self.backlog.next().unwrap_or_default(),
            purpose,
        };
        self.session.machine.submit(self.line(), &what)
    }

    fn line(&self) -> &Line<M::Work> {
        &self.session.lines[self.stream]
    }
}

/// Returns whether the request failed for want of memory: then it is skipped, and the replay goes on.
fn is_shortage(error: &AllocError) -> bool {
    matches!(
        error,
        AllocError::TooLarge { .. } | AllocError::Exhausted(_)
    )
}
