//! The pool as a contender.

use super::backend::{Backend, Line};
use super::contender::{Awaited, Contender};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use weirpool::{AllocError, Block, Pool, PoolBuilder, Stream};

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
        let builder = set(Pool::builder(backend.device()));
        let pool = builder.build().expect("settings that are in range");
        Self { backend, pool }
    }
}

/// # Panics
/// Panics on any error other than running out of memory.
#[inline(always)]
pub(crate) fn unless_exhausted(allocated: Result<Block, AllocError>) -> Option<Block> {
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

/// Its calls are compiled into the loops that measure them, so that the rows do not depend on whether the compiler does so.
impl<G: Backend> Contender for Pooled<'_, G> {
    type Stream = Line<G::Work>;
    type Block = Block;

    fn stream(&self) -> Line<G::Work> {
        self.backend.line(&self.pool)
    }

    fn enter(&self) {
        self.backend.enter();
    }

    #[inline(always)]
    fn allocate(&self, line: &Line<G::Work>, bytes: u64) -> Option<Block> {
        unless_exhausted(self.pool.try_allocate(&line.stream, bytes))
    }

    #[inline(always)]
    fn free(&self, block: Block, _line: &Line<G::Work>) {
        drop(block);
    }

    fn reserved(&self) -> Option<u64> {
        Some(self.pool.inspect().statistics().reserved.high)
    }
}

impl<G: Backend> Awaited for Pooled<'_, G> {
    async fn granted(&self, line: &Line<G::Work>, bytes: u64) -> (Block, u64) {
        let block = self.pool.allocate(&line.stream, bytes).await;
        (block.expect("memory for one"), 0)
    }

    fn hand_on(&self, block: &mut Block, _from: &Line<G::Work>, to: &Line<G::Work>) {
        block.move_to(&to.stream).expect("a stream of the pool");
    }
}

/// A pool on a device that allocates in a way of its own.
pub(crate) struct By<'a, G, A> {
    pooled: &'a Pooled<'a, G>,
    allocate: A,
}

impl<'a, G, A: Fn(&Stream, u64) -> Option<Block>> By<'a, G, A> {
    pub(crate) fn new(pooled: &'a Pooled<'a, G>, allocate: A) -> Self {
        Self { pooled, allocate }
    }
}

impl<G: Backend, A: Fn(&Stream, u64) -> Option<Block> + Sync> Contender for By<'_, G, A> {
    type Stream = Line<G::Work>;
    type Block = Block;

    fn stream(&self) -> Line<G::Work> {
        self.pooled.stream()
    }

    fn enter(&self) {
        self.pooled.enter();
    }

    #[inline(always)]
    fn allocate(&self, line: &Line<G::Work>, bytes: u64) -> Option<Block> {
        (self.allocate)(&line.stream, bytes)
    }

    #[inline(always)]
    fn free(&self, block: Block, _line: &Line<G::Work>) {
        drop(block);
    }
}

/// Allocates through the first poll of an awaited allocation.
#[inline(always)]
pub(crate) fn polled(pool: &Pool, stream: &Stream, bytes: u64) -> Option<Block> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(pool.allocate(stream, bytes)).poll(&mut context) {
        Poll::Ready(allocated) => unless_exhausted(allocated),
        Poll::Pending => None,
    }
}
