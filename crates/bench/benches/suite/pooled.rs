//! The pool as a contender.

use super::backend::{Backend, Line};
use super::contender::{Awaited, Contender};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use weirpool::{AllocError, Block, Pool, PoolBuilder, Reservation, Tag};

/// A pool on a device. It allocates immediately or fails.
pub(crate) struct Pooled<'a, G> {
    backend: &'a G,
    pub(crate) pool: Pool,
}

impl<'a, G: Backend> Pooled<'a, G> {
    pub(crate) fn new(backend: &'a G) -> Self {
        Self::with(backend, |builder| builder)
    }

    pub(crate) fn with(backend: &'a G, set: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Self {
        let builder = set(PoolBuilder::new(backend.device()));
        let pool = builder.build().expect("settings that are in range");
        Self { backend, pool }
    }
}

/// # Panics
/// Panics on any error other than running out of memory.
#[inline]
fn unless_exhausted(allocated: Result<Block, AllocError>) -> Option<Block> {
    match allocated {
        Ok(block) => Some(block),
        Err(error) => {
            expect_exhausted(error);
            None
        }
    }
}

#[cold]
#[inline(never)]
fn expect_exhausted(error: AllocError) {
    assert!(matches!(error, AllocError::Exhausted(_)), "{error}");
}

impl<G: Backend> Contender for Pooled<'_, G> {
    type Stream = Line<G::Work>;
    type Block = Block;

    fn stream(&self) -> Line<G::Work> {
        self.backend.line(&self.pool)
    }

    fn enter(&self) {
        self.backend.enter();
    }

    #[inline]
    fn allocate(&self, line: &Line<G::Work>, bytes: u64) -> Option<Block> {
        unless_exhausted(self.pool.try_allocate(&line.stream, bytes))
    }

    #[inline]
    fn free(&self, block: Block, _line: &Line<G::Work>) {
        drop(block);
    }

    fn reserved(&self) -> Option<u64> {
        Some(self.pool.statistics().reserved.high)
    }
}

impl<G: Backend> Awaited for Pooled<'_, G> {
    async fn granted(&self, line: &Line<G::Work>, bytes: u64) -> (Block, u64) {
        let block = self.pool.allocate(&line.stream, bytes).await;
        (block.expect("memory for one"), 0)
    }

    fn used_on(&self, block: &Block, line: &Line<G::Work>) {
        block.used_on(&line.stream).expect("a stream of the pool");
    }
}

/// A pool on a device that allocates through the first poll of an awaited allocation.
pub(crate) struct Polled<'a, G>(pub(crate) &'a Pooled<'a, G>);

impl<G: Backend> Contender for Polled<'_, G> {
    type Stream = Line<G::Work>;
    type Block = Block;

    fn stream(&self) -> Line<G::Work> {
        self.0.stream()
    }

    fn enter(&self) {
        self.0.enter();
    }

    #[inline]
    fn allocate(&self, line: &Line<G::Work>, bytes: u64) -> Option<Block> {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(self.0.pool.allocate(&line.stream, bytes)).poll(&mut context) {
            Poll::Ready(allocated) => unless_exhausted(allocated),
            Poll::Pending => None,
        }
    }

    #[inline]
    fn free(&self, block: Block, _line: &Line<G::Work>) {
        drop(block);
    }
}

/// A pool on a device that allocates for a tag.
pub(crate) struct Tagged<'a, G> {
    pooled: &'a Pooled<'a, G>,
    tag: Tag,
}

impl<'a, G: Backend> Tagged<'a, G> {
    pub(crate) fn new(pooled: &'a Pooled<'a, G>) -> Self {
        let tag = Tag::new("hot");
        Self { pooled, tag }
    }
}

impl<G: Backend> Contender for Tagged<'_, G> {
    type Stream = Line<G::Work>;
    type Block = Block;

    fn stream(&self) -> Line<G::Work> {
        self.pooled.stream()
    }

    fn enter(&self) {
        self.pooled.enter();
    }

    #[inline]
    fn allocate(&self, line: &Line<G::Work>, bytes: u64) -> Option<Block> {
        let request = self.pooled.pool.allocate(&line.stream, bytes);
        unless_exhausted(request.tag(self.tag).try_now())
    }

    #[inline]
    fn free(&self, block: Block, _line: &Line<G::Work>) {
        drop(block);
    }
}

/// A reservation of a pool.
pub(crate) struct Drawn<'a, G> {
    pooled: &'a Pooled<'a, G>,
    reservation: Reservation,
}

impl<'a, G: Backend> Drawn<'a, G> {
    pub(crate) fn new(pooled: &'a Pooled<'a, G>) -> Self {
        pooled.enter();
        let reservation = pooled.pool.reserve(16 << 20).try_now();
        Self {
            pooled,
            reservation: reservation.expect("memory"),
        }
    }
}

impl<G: Backend> Contender for Drawn<'_, G> {
    type Stream = Line<G::Work>;
    type Block = Block;

    fn stream(&self) -> Line<G::Work> {
        self.pooled.stream()
    }

    fn enter(&self) {
        self.pooled.enter();
    }

    #[inline]
    fn allocate(&self, line: &Line<G::Work>, bytes: u64) -> Option<Block> {
        unless_exhausted(self.reservation.allocate(&line.stream, bytes))
    }

    #[inline]
    fn free(&self, block: Block, _line: &Line<G::Work>) {
        drop(block);
    }
}

/// A pool on a device that reserves the memory of each block, and ends the reservation with the block.
pub(crate) struct Reserving<'a, G>(pub(crate) &'a Pooled<'a, G>);

impl<G: Backend> Contender for Reserving<'_, G> {
    type Stream = Line<G::Work>;
    type Block = Block;

    fn stream(&self) -> Line<G::Work> {
        self.0.stream()
    }

    fn enter(&self) {
        self.0.enter();
    }

    #[inline]
    fn allocate(&self, line: &Line<G::Work>, bytes: u64) -> Option<Block> {
        let reservation = self.0.pool.reserve(bytes).try_now().expect("memory");
        unless_exhausted(reservation.allocate(&line.stream, bytes))
    }

    #[inline]
    fn free(&self, block: Block, _line: &Line<G::Work>) {
        drop(block);
    }
}
