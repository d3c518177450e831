//! The task of one stream: its operations in order, each at its time, allocations awaited.
//!
//! Between two operations of a stream lies real work of its host thread. So what a stream waits, it
//! is late by from then on: an operation comes at its time in the trace plus all waits before it.

use crate::backlog::Backlog;
use crate::machine::{Line, Machine, Purpose, Time, Use};
use crate::session::{Held, Session};
use crate::timing::{Stopwatch, Timed};
use crate::trace::{Event, Kind};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use weirpool::{AllocError, Block};

/// One stream's side of a run.
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
            session.machine.time().sleep_until(due).await;
            let late = session.now().saturating_sub(due);
            session.tally.borrow_mut().begins(late);
            match event.kind {
                Kind::Allocate { id, bytes } => self.allocate(id, bytes).await?,
                Kind::Free { id } => self.free(id).await?,
            }
            session.tally.borrow_mut().operations += 1;
        }
        Ok(())
    }

    async fn allocate(&mut self, id: usize, bytes: u64) -> anyhow::Result<()> {
        let session = self.session.clone();
        let stream = &session.lines[self.stream].stream;
        let allocation = Timed::new(|| session.pool.allocate(stream, bytes));
        let allocation = session.patience.wait(allocation);
        let (answer, waited) = self.wait_for(allocation).await;
        session.tally.borrow_mut().waited(waited);
        match answer {
            Some((Ok(block), spent)) => {
                session.tally.borrow_mut().took(spent);
                self.keep(id, bytes, block)
            }
            Some((Err(error), _)) if !is_shortage(&error) => Err(error.into()),
            _ => {
                session.tally.borrow_mut().failures += 1;
                session.shelf.miss(id);
                Ok(())
            }
        }
    }

    /// Awaits what another must do first, and says how long that took. The stream is late by it from
    /// then on. What is ready at once was not waited for, whatever it took the CPU.
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

    /// Uses the block for the first time and puts it where its free finds it.
    fn keep(&mut self, id: usize, bytes: u64, block: Block) -> anyhow::Result<()> {
        self.use_it(id, bytes, &block, Purpose::Write)?;
        let leaves = self.session.handed_over[id];
        let made = leaves.then(|| self.line().stream.event()).transpose()?;
        self.session.tally.borrow_mut().allocated(bytes);
        self.session.shelf.put(id, Held { block, bytes, made });
        Ok(())
    }

    async fn free(&mut self, id: usize) -> anyhow::Result<()> {
        let session = self.session.clone();
        // A free whose allocation failed is skipped with it.
        let (Some(held), _) = self.wait_for(session.shelf.take(id)).await else {
            return Ok(());
        };
        let bytes = held.bytes;
        let spent = match held.made {
            None => self.free_own(id, held)?,
            Some(ref made) => self.free_of_another(id, bytes, held.block, made)?,
        };
        let mut tally = session.tally.borrow_mut();
        tally.took(spent);
        tally.freed(bytes);
        Ok(())
    }

    fn free_own(&mut self, id: usize, held: Held) -> anyhow::Result<Duration> {
        let Held { block, bytes, .. } = held;
        self.use_it(id, bytes, &block, Purpose::Check)?;
        let mut watch = Stopwatch::default();
        watch.time(|| drop(block));
        Ok(watch.spent())
    }

    /// Takes the block over as a user would: after its maker, then used here, then freed here.
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
        watch.time(|| block.used_on(stream))?;
        self.use_it(id, bytes, &block, Purpose::Check)?;
        watch.time(|| block.deallocate_on(stream).map(drop))?;
        Ok(watch.spent())
    }

    /// Work of the device that uses a block of this stream: it ends when the backlog is done.
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

/// Whether the request failed for want of memory: it is skipped, and the replay goes on.
fn is_shortage(error: &AllocError) -> bool {
    matches!(
        error,
        AllocError::TooLarge { .. } | AllocError::Exhausted(_)
    )
}
