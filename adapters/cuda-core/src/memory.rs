//! Blocks of a pool as buffers of cuda-core.

use cuda_core::sys::CUdeviceptr;
use cuda_core::{Context, DeviceAllocation, RawDeviceBuffer};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use weirpool::device::cuda::CudaDevice;
use weirpool::device::{AlarmId, Device, DeviceError};
use weirpool::{AllocError, Block, Pool, Shortfall, Stream, StreamError, Terms};

/// A pool as memory of a cuda-core context.
///
/// cuda-core chooses the stream of an operation when it is scheduled, and keeps a buffer until the work that uses it is
/// complete. So a buffer is allocated in no stream's order: it may be used on any stream at once. Its memory returns to
/// the pool when the last view and the last operation of it have ended.
#[derive(Debug)]
pub struct Memory {
    pool: Pool,
    /// The order in which buffers are allocated and freed. No work is submitted to it.
    own: Stream,
    context: Arc<Context>,
    terms: Terms,
}

/// Why a pool cannot be memory of a context.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The pool is of another device, or works in another context of it.
    #[error(
        "the pool is of another context; build it on `CudaDevice::new({ordinal})`, which has the primary context"
    )]
    ForeignContext {
        /// The number of the context's device.
        ordinal: usize,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The pool cannot make a stream.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

impl Memory {
    /// Makes a pool the memory of a context, which must be the one that the pool works in: the primary context of its
    /// device, as [`Context::new`] and [`CudaDevice::new`] have it.
    ///
    /// # Errors
    /// Returns an error if the pool works in another context, or the device cannot make a stream.
    pub fn new(pool: &Pool, context: &Arc<Context>) -> Result<Self, MemoryError> {
        let ordinal = context.ordinal();
        let device = CudaDevice::new(ordinal)?;
        let is_primary = device.context().cu_ctx().cast::<()>() == context.cu_ctx().cast();
        if !is_primary || device.id() != pool.device().id() {
            return Err(MemoryError::ForeignContext { ordinal });
        }
        Ok(Self {
            pool: pool.clone(),
            own: pool.create_stream()?,
            context: context.clone(),
            terms: Terms::default(),
        })
    }

    /// Sets the terms on which allocations wait: a tag, a timeout, a priority.
    #[must_use]
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Allocates `bytes` bytes, and waits in the pool's queue if there is no memory, and for earlier work on it. The
    /// timeout and the deadline of the [terms](Self::terms) bound both waits together. Their values are not initialized:
    /// `DeviceBuffer::from_storage` of cuda-core, which makes typed memory of them, is unsafe.
    ///
    /// # Errors
    /// Returns the errors of [`Request`](weirpool::Request).
    ///
    /// # Cancel safety
    /// If the future is dropped early, its place in the queue, or its memory, goes to the next request.
    pub async fn allocate(&self, bytes: usize) -> Result<RawDeviceBuffer, AllocError> {
        let block = complete_block(&self.pool, &self.own, bytes as u64, self.terms).await?;
        Ok(self.foreign(block, bytes))
    }

    /// Makes a buffer of a block that was allocated in the order of a [`CoreStream`](crate::CoreStream). The memory is
    /// free to use in that order: another stream must be ordered after it first.
    ///
    /// # Errors
    /// Returns the block if it is of another pool.
    pub fn adopt(&self, block: Block) -> Result<RawDeviceBuffer, Block> {
        if block.stream().pool() != self.pool {
            return Err(block);
        }
        let bytes = block.requested() as usize;
        Ok(self.foreign(block, bytes))
    }

    fn foreign(&self, block: Block, bytes: usize) -> RawDeviceBuffer {
        let context = self.context.clone();
        RawDeviceBuffer::foreign(Arc::new(Owner { block, context }), bytes)
    }
}

/// What a buffer keeps.
struct Owner {
    block: Block,
    context: Arc<Context>,
}

// SAFETY: the block keeps its memory at its address, which is mapped in every context of its device, until it is dropped;
// the context is kept beside it.
unsafe impl DeviceAllocation for Owner {
    fn device_ptr(&self) -> CUdeviceptr {
        self.block.address().to_bits()
    }

    fn len_bytes(&self) -> usize {
        self.block.size() as usize
    }

    fn context(&self) -> Arc<Context> {
        self.context.clone()
    }
}

/// Allocates a block on `own`, and waits until all work before it is complete, for as long as the terms allow.
async fn complete_block(
    pool: &Pool,
    own: &Stream,
    bytes: u64,
    terms: Terms,
) -> Result<Block, AllocError> {
    let device = &**pool.device();
    let began = device.now();
    let block = pool.allocate(own, bytes).terms(terms).await?;
    let limit = [terms.timeout, terms.deadline].into_iter().flatten().min();
    let end = limit.and_then(|limit| began.checked_add(limit));
    // The pool may have made the stream wait for work of others.
    match until(device, end, own.synchronize()).await {
        Some(completed) => completed.map(|()| block).map_err(Into::into),
        None => {
            let mut shortfall = Shortfall::default();
            shortfall.requested = block.size();
            drop(block);
            let statistics = pool.inspect().statistics();
            shortfall.free = statistics.free;
            shortfall.largest_free = statistics.largest_free;
            shortfall.pending = statistics.pending.current;
            shortfall.used = statistics.used.current;
            shortfall.reserved = statistics.reserved.current;
            shortfall.capacity = statistics.capacity;
            shortfall.leased = statistics.leased;
            Err(AllocError::TimedOut {
                waited: device.now().saturating_sub(began),
                is_virtual: device.is_time_virtual(),
                shortfall: Box::new(shortfall),
            })
        }
    }
}

/// Awaits a future until a time of the device's clock, if there is one. Returns `None` if it is not ready then.
async fn until<F: Future>(
    device: &dyn Device,
    end: Option<Duration>,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut alarm = Alarm { device, id: None };
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        match end {
            Some(end) if device.now() >= end => Poll::Ready(None),
            Some(end) => {
                alarm.replace(Some(device.set_alarm(end, context.waker())));
                Poll::Pending
            }
            None => Poll::Pending,
        }
    })
    .await
}

/// An alarm of the device, cancelled when this is dropped.
struct Alarm<'a> {
    device: &'a dyn Device,
    id: Option<AlarmId>,
}

impl Alarm<'_> {
    fn replace(&mut self, id: Option<AlarmId>) {
        if let Some(old) = std::mem::replace(&mut self.id, id) {
            self.device.cancel_alarm(old);
        }
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.replace(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weirpool::device::sim::{Operation, SimDevice};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn timeout_bounds_the_wait_for_earlier_work() {
        let device = SimDevice::new();
        let pool = Pool::builder(device.clone()).capacity(2 << 20).build();
        let pool = pool.expect("a pool");
        let work = device.create_stream();
        let own = pool.register(&work).expect("of the device");
        let allocate = |timeout, deadline| {
            let terms = Terms {
                timeout,
                deadline,
                ..Terms::default()
            };
            let began = device.now();
            let result = device.block_on(complete_block(&pool, &own, 1 << 20, terms));
            (result, device.now() - began)
        };
        for (timeout, deadline) in [(Some(SECOND), None), (None, Some(SECOND))] {
            work.submit(Operation::new(3 * SECOND));
            let (result, waited) = allocate(timeout, deadline);
            let error = result.expect_err("the work takes longer");
            assert!(
                matches!(error, AllocError::TimedOut { waited, .. } if waited == SECOND),
                "{error}"
            );
            assert_eq!(waited, SECOND);
            assert_eq!(pool.inspect().statistics().live_blocks, 0);
            device.advance_to_end();
        }
        for timeout in [None, Some(5 * SECOND), Some(Duration::MAX)] {
            work.submit(Operation::new(3 * SECOND));
            let (result, waited) = allocate(timeout, None);
            assert!(result.is_ok());
            assert_eq!(waited, 3 * SECOND);
            assert!(!device.advance_to_next(), "an alarm is left");
        }
    }
}
