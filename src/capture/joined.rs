//! A capture that other code begins and ends.

use super::GraphMemory;
use super::routed::{Routed, capture_of, expect_usable};
use crate::device::DeviceError;
use crate::error::StreamError;
use crate::handles::{CaptureClock, GraphUses, Route};
use crate::stream::Stream;
use crate::sync::plain;

/// A stream that other code captures, and that allocates from a [`GraphMemory`] while this exists. Made by
/// [`GraphMemory::join`].
///
/// [End](Self::end) or drop it when the capture is over. The memory stays with the graph.
#[derive(Debug)]
#[must_use = "the stream allocates from the graph's memory until this is dropped"]
pub struct JoinedCapture {
    /// Present until it is dropped.
    routed: Option<Routed>,
    memory: GraphMemory,
    uses: plain::Arc<GraphUses>,
}

impl Drop for JoinedCapture {
    fn drop(&mut self) {
        Route::end_joined(&self.uses);
        drop(self.routed.take());
        self.memory.share().end_capture(&self.uses);
    }
}

impl GraphMemory {
    /// Joins a capture of the stream that other code has begun, such as cudarc's `CudaStream::begin_capture`, and will
    /// end: until the returned value is dropped, the stream allocates from this memory. The graph keeps the memory, and
    /// the blocks that calls of this crate name on the stream, in whichever library its owner and its launches are.
    ///
    /// The body of a conditional node that is captured on the same stream (CUDA's `WHILE` and `IF`) is a capture with an
    /// id of its own. The body runs again after a block was dropped in it. So memory that was freed under one id is
    /// reused under another one only by later captures.
    ///
    /// # Safety
    /// The pool does not see the launches of the graph. The caller guarantees that none of them begins or runs while the
    /// host has access ([`Block::host`](crate::Block::host), [`Buffer::host`](crate::Buffer::host)) to a block that a call of this crate
    /// names in the capture, or to a block of this memory. Other uses of those blocks are not ordered after a launch
    /// either: [order](Stream::wait) their streams after it.
    ///
    /// # Errors
    /// Returns [`StreamError::ForeignPool`] if the stream is of another pool, [`StreamError::Closed`] if the pool is
    /// closed, and the device's error if the stream is not being captured, or if it is in a session of the pool
    /// already.
    #[allow(unsafe_code, reason = "what only the caller can promise")]
    pub unsafe fn join(&self, stream: &Stream) -> Result<JoinedCapture, StreamError> {
        JoinedCapture::new(self, stream)
    }
}

impl JoinedCapture {
    fn new(memory: &GraphMemory, stream: &Stream) -> Result<Self, StreamError> {
        let share = memory.share();
        expect_usable(share, stream, "begin_capture")?;
        // Streams that join one by one share the order of their capture.
        let clock = match capture_of(stream)? {
            Some(id) => share.clock_of(id),
            None => CaptureClock::new(share.presence.clone()),
        };
        let uses = share.begin_graph();
        let routed = Routed::begin(share, &uses, &clock, stream)?;
        routed.keep(&uses)?;
        Ok(Self {
            routed: Some(routed),
            memory: memory.clone(),
            uses,
        })
    }

    /// Notes that the capture is over, and records an event behind the blocks from before the capture that were freed
    /// during it, so that their memory becomes available. Dropping this value does so too, except on an external
    /// stream, which may be gone by then: there such memory stays pending until the next free on the stream.
    ///
    /// # Errors
    /// Returns the device's error if the event cannot be recorded, as when the stream is still being captured. The
    /// memory stays pending then.
    pub fn end(self) -> Result<(), DeviceError> {
        let stream = self.routed.as_ref().map(|routed| routed.stream().clone());
        drop(self);
        stream.map_or(Ok(()), |stream| stream.seal())
    }

    /// Returns the memory that the capture allocates from.
    pub fn memory(&self) -> &GraphMemory {
        &self.memory
    }
}
