//! Blocks by their addresses, on the streams of sessions.

use crate::failure::Failure;
use crate::wait::wait_for;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};
use weirpool::device::DeviceStream;
use weirpool::{Pool, Stream, StreamError};
use weirpool_compat::{RawError, RawPool};

/// The memory of sessions, each of which works on one stream.
///
/// A session frees memory when it has submitted the last work that uses it, and names no stream: the block is freed in the
/// order of the stream that it was allocated on, which is the session's.
///
/// Some allocations name no stream: onnxruntime copies weights there on the legacy default stream, which the pool does not
/// order. Such a block is complete when it is given out, and its free is in the order of all sessions' streams.
#[derive(Debug)]
pub(crate) struct Blocks {
    given_out: RawPool,
    /// The sessions' streams, by their handles. They are kept, so that no other stream gets such a handle.
    streams: RwLock<BTreeMap<usize, Stream>>,
    /// The stream of blocks that name none. No work is submitted to it.
    unnamed: Stream,
    wait: Duration,
}

impl Blocks {
    pub(crate) fn new(pool: &Pool, wait: Duration) -> Result<Self, StreamError> {
        Ok(Self {
            given_out: RawPool::new(pool),
            streams: RwLock::default(),
            unnamed: pool.create_stream()?,
            wait,
        })
    }

    pub(crate) fn pool(&self) -> &Pool {
        self.given_out.pool()
    }

    /// Registers the stream of a session, unless it is known.
    pub(crate) fn add_stream(
        &self,
        handle: usize,
        work: &impl DeviceStream,
    ) -> Result<(), StreamError> {
        if self.stream(handle).is_none() {
            let registered = self.pool().register(work)?;
            let mut streams = self.streams.write().unwrap_or_else(PoisonError::into_inner);
            streams.entry(handle).or_insert(registered);
        }
        Ok(())
    }

    fn stream(&self, handle: usize) -> Option<Stream> {
        let streams = self.streams.read().unwrap_or_else(PoisonError::into_inner);
        streams.get(&handle).cloned()
    }

    /// Allocates in the order of a session's stream, and waits for memory up to the limit. Returns the address, or `None`
    /// for no bytes.
    pub(crate) fn allocate_on(&self, bytes: usize, handle: usize) -> Result<Option<u64>, Failure> {
        if bytes == 0 {
            return Ok(None);
        }
        let stream = self.stream(handle);
        let stream = stream.ok_or(Failure::UnknownStream { handle })?;
        self.allocate(bytes, &stream).map(Some)
    }

    /// Allocates memory that is complete for any stream, and waits for both up to the limit. Returns the address, or `None`
    /// for no bytes.
    pub(crate) fn allocate_complete(&self, bytes: usize) -> Result<Option<u64>, Failure> {
        if bytes == 0 {
            return Ok(None);
        }
        let began = Instant::now();
        let address = self.allocate(bytes, &self.unnamed)?;
        // The pool may have made the stream wait for work of others.
        let left = self.wait.saturating_sub(began.elapsed());
        let error = match wait_for(self.unnamed.synchronize(), left) {
            Some(Ok(())) => return Ok(Some(address)),
            Some(Err(error)) => error.into(),
            None => Failure::InUse {
                bytes: bytes as u64,
                waited: began.elapsed(),
            },
        };
        drop(self.given_out.take(address)?);
        Err(error)
    }

    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<u64, Failure> {
        let request = self.pool().allocate(stream, bytes as u64);
        let block = request.timeout(self.wait).blocking()?;
        Ok((self.given_out.keep(block)).expect("the block is of the pool"))
    }

    /// Frees the block at the address, without a wait.
    pub(crate) fn free(&self, address: u64) -> Result<(), Failure> {
        let block = self.given_out.take(address)?;
        if block.stream().id() != self.unnamed.id() {
            return Ok(());
        }
        // Kept if a call below fails or panics: work of that stream may use it.
        let block = ManuallyDrop::new(block);
        let streams = self.streams.read().unwrap_or_else(PoisonError::into_inner);
        for stream in streams.values() {
            block.freed_after(stream).map_err(RawError::from)?;
        }
        drop(ManuallyDrop::into_inner(block));
        Ok(())
    }
}
