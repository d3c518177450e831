//! The memory of a request: all that it will need, taken up front.
//!
//! A request that took its blocks one by one could hold some and wait for more, with all others doing the
//! same: none would ever go on. So each takes its peak at once, in one of two ways, and blocks come out of
//! that without waiting.

use crate::arrivals::Request;
use crate::backoff::Backoff;
use crate::timer::Timer;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weirpool::{AllocError, Block, Pool, Stream};

/// How a request comes by its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Admission {
    /// It waits in the pool's queue.
    Wait,
    /// It fails if there is none, pauses, and tries again.
    Retry {
        /// So often.
        tries: u32,
        seed: u64,
    },
}

/// The memory of one request.
#[derive(Debug)]
pub(crate) struct Lease {
    _permit: OwnedSemaphorePermit,
    pool: Pool,
}

impl Lease {
    pub(crate) fn block(&self, stream: &Stream, bytes: u64) -> Result<Block, AllocError> {
        self.pool.try_allocate(stream, bytes)
    }
}

impl Admission {
    /// # Errors
    /// When the pool has none to give, ever; that it has none now is no error, but `None`.
    pub(crate) async fn lease(
        &self,
        pool: &Pool,
        sem: &Arc<Semaphore>,
        request: &Request,
        timer: &Timer,
    ) -> Result<Option<Lease>, AllocError> {
        let n = (request.bytes() >> 20) as u32;
        match self {
            Self::Wait => Ok(Some(Lease {
                _permit: sem.clone().acquire_many_owned(n).await.unwrap(),
                pool: pool.clone(),
            })),
            Self::Retry { tries, seed } => {
                let mut pauses = Backoff::new(*tries, seed.wrapping_add(request.id as u64));
                loop {
                    if let Ok(p) = sem.clone().try_acquire_many_owned(n) {
                        return Ok(Some(Lease {
                            _permit: p,
                            pool: pool.clone(),
                        }));
                    }
                    let Some(pause) = pauses.next() else {
                        return Ok(None);
                    };
                    timer.sleep(pause).await;
                }
            }
        }
    }
}
