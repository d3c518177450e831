//! The task of one stream: its operations in order, each at its time, allocations awaited.
//!
//! Between two operations of a stream lies real work of its host thread. So what a stream waits, it
//! is late by from then on: an operation comes at its time in the trace plus all waits before it.

use crate::backlog::Backlog;
use crate::session::{Held, Line, Session};
use crate::timing::{Stopwatch, Timed};
use crate::trace::{Event, Kind};
use crate::verify::{Contents, Verifier};
use std::rc::Rc;
use std::time::Duration;
use weirpool::device::sim::Operation;
use weirpool::{AllocError, Block};

/// One stream's side of a run.
pub(crate) struct StreamTask {
    session: Rc<Session>,
    stream: usize,
    backlog: Backlog,
    late: Duration,
}

impl StreamTask {
    pub(crate) fn new(session: &Rc<Session>, stream: usize, backlog: Backlog) -> Self {
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
            session.device.sleep_until(event.time + self.late).await;
            let began = session.now();
            match event.kind {
                Kind::Allocate { id, bytes } => self.allocate(id, bytes).await?,
                Kind::Free { id } => self.free(id).await?,
            }
            self.late += session.now() - began;
            session.tally.borrow_mut().operations += 1;
        }
        Ok(())
    }

    async fn allocate(&mut self, id: usize, bytes: u64) -> anyhow::Result<()> {
        let session = self.session.clone();
        let began = session.now();
        let stream = &self.line().stream;
        let allocation = Timed::new(|| session.pool.allocate(stream, bytes));
        let answer = session.patience.wait(allocation).await;
        let waited = session.now() - began;
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

    /// Uses the block for the first time and puts it where its free finds it.
    fn keep(&mut self, id: usize, bytes: u64, block: Block) -> anyhow::Result<()> {
        self.use_it(Contents::of(id, bytes, &block), Verifier::write);
        let leaves = self.session.handed_over[id];
        let made = leaves.then(|| self.line().stream.event()).transpose()?;
        self.session.tally.borrow_mut().requested += bytes;
        self.session.shelf.put(id, Held { block, bytes, made });
        Ok(())
    }

    async fn free(&mut self, id: usize) -> anyhow::Result<()> {
        let session = self.session.clone();
        // A free whose allocation failed is skipped with it.
        let Some(held) = session.shelf.take(id).await else {
            return Ok(());
        };
        let bytes = held.bytes;
        let spent = match held.made {
            None => self.free_own(id, held),
            Some(ref made) => self.free_of_another(id, bytes, held.block, made)?,
        };
        let mut tally = session.tally.borrow_mut();
        tally.took(spent);
        tally.requested -= bytes;
        Ok(())
    }

    fn free_own(&mut self, id: usize, held: Held) -> Duration {
        let Held { block, bytes, .. } = held;
        self.use_it(Contents::of(id, bytes, &block), Verifier::check);
        let mut watch = Stopwatch::default();
        watch.time(|| drop(block));
        watch.spent()
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
        self.use_it(Contents::of(id, bytes, &block), Verifier::check);
        watch.time(|| block.deallocate_on(stream).map(drop))?;
        Ok(watch.spent())
    }

    /// Work of the device that uses a block of this stream: it ends when the backlog is done. The
    /// device's ordering checker panics if the pool gave the block too early.
    fn use_it(
        &mut self,
        contents: Contents,
        verified: impl Fn(&Verifier, Operation, Contents) -> Operation,
    ) {
        let lag = self.backlog.next().unwrap_or_default();
        let operation = Operation::new(Duration::ZERO).behind(lag).named("use");
        let operation = operation.writes(contents.address, contents.bytes.max(1));
        let operation = match &self.session.verifier {
            Some(verifier) => verified(verifier, operation, contents),
            None => operation,
        };
        self.line().work.submit(operation);
    }

    fn line(&self) -> &Line {
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
