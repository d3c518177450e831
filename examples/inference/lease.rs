//! The memory of a request: all that it will need, taken up front.
//!
//! Requests that took their blocks one by one could each hold some and wait for more: a deadlock. So each request
//! reserves memory for all its blocks at once, with one position in the queue, and its allocations then neither wait
//! nor fail. If memory is short, the request waits or retries ([`Admission`]).

use crate::arrivals::Request;
use crate::backoff::Backoff;
use crate::model;
use crate::timer::Timer;
use weirpool::{AllocError, Block, Pool, Reservation, Stream, Tag};

/// How a request obtains its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Admission {
    /// The request waits in the pool's queue.
    Wait,
    /// The request fails if there is not enough memory now, pauses, and tries again.
    Retry {
        /// The most tries.
        tries: u32,
        seed: u64,
    },
}

/// The memory of one request.
#[derive(Debug)]
pub(crate) struct Lease(Reservation);

impl Lease {
    /// Allocates a block of this memory, for use in the order of a stream.
    ///
    /// # Errors
    /// Returns an error if the device has failed, or if more is requested than was reserved.
    pub(crate) fn block(&self, stream: &Stream, bytes: u64) -> Result<Block, AllocError> {
        self.0.allocate(stream, bytes)
    }
}

impl Admission {
    /// Obtains the memory of a request. Returns `None` if it was not available within the allowed tries.
    ///
    /// # Errors
    /// Returns an error if the pool or the device fails.
    pub(crate) async fn lease(
        &self,
        pool: &Pool,
        request: &Request,
        timer: &Timer,
    ) -> Result<Option<Lease>, AllocError> {
        let blocks = || model::blocks(request.steps.len());
        let reserve = || pool.reserve_many(blocks()).tag(Tag::new("requests"));
        match *self {
            Self::Wait => Ok(Some(Lease(reserve().await?))),
            Self::Retry { tries, seed } => {
                let seed = seed.wrapping_add(request.id as u64);
                let mut pauses = Backoff::new(tries, seed);
                loop {
                    match reserve().try_now() {
                        Ok(reservation) => return Ok(Some(Lease(reservation))),
                        Err(AllocError::Exhausted(_)) => {}
                        Err(error) => return Err(error),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;
    use weirpool::device::sim::SimDevice;

    fn request(steps: usize) -> Request {
        Request {
            id: 0,
            arrives: Duration::ZERO,
            steps: vec![Duration::ZERO; steps],
        }
    }

    #[test]
    fn lease_has_all_blocks_in_the_order_of_the_steps() {
        let sim = SimDevice::new();
        let capacity = model::largest();
        let pool = Pool::builder(sim.clone()).capacity(capacity);
        let pool = pool.chunk_bytes(model::CHUNK).build().unwrap();
        let (stream, request) = (pool.create_stream().unwrap(), request(24));
        let timer = Timer::new(Arc::new(sim.clone()));
        let lease = sim.block_on(Admission::Wait.lease(&pool, &request, &timer));
        let lease = lease.unwrap().unwrap();
        let mut pages = Vec::new();
        for step in 0..24 {
            if model::begins_page(step) {
                pages.push(lease.block(&stream, model::PAGE).unwrap());
            }
            drop(lease.block(&stream, model::ACTIVATION).unwrap());
        }
        assert_eq!(pages.len(), 3);
    }

    #[test]
    fn retrying_request_gives_up_after_its_tries() {
        let sim = SimDevice::new();
        let pool = Pool::builder(sim.clone()).capacity(model::largest());
        let pool = pool.chunk_bytes(model::CHUNK).build().unwrap();
        let timer = Timer::new(Arc::new(sim.clone()));
        let retry = Admission::Retry { tries: 3, seed: 1 };
        let lease = || {
            sim.block_on(retry.lease(&pool, &request(24), &timer))
                .unwrap()
        };
        let held = lease();
        let before = timer.now();
        assert!(held.is_some() && lease().is_none());
        // Two pauses, of up to 1 and 2 ms.
        let paused = timer.now() - before;
        assert!(paused > Duration::from_millis(1) && paused <= Duration::from_millis(3));
        drop(held);
        assert!(lease().is_some());
    }
}
