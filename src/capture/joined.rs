//! A capture that other code begins and ends.

use super::routed::{Routed, capture_of, expect_open};
use super::{CaptureClock, GraphMemory, GraphUses};
use crate::device::DeviceError;
use crate::error::StreamError;
use crate::stream::Stream;
use crate::sync::plain;
use std::fmt;

/// A stream that other code captures, and that allocates from a [`GraphMemory`] while this exists. Made by
/// [`GraphMemory::join`].
///
/// [End](Self::end) or drop it when the capture is over. The memory stays with the graph.
#[must_use = "the stream allocates from the graph's memory until this is dropped"]
pub struct JoinedCapture {
    /// Present until it is dropped.
    routed: Option<Routed>,
    memory: GraphMemory,
    uses: plain::Arc<GraphUses>,
}

impl Drop for JoinedCapture {
    fn drop(&mut self) {
        self.uses.end_joined();
        drop(self.routed.take());
        self.uses.end_capture();
    }
}

impl JoinedCapture {
    pub(super) fn new(memory: &GraphMemory, stream: &Stream) -> Result<Self, StreamError> {
        let share = memory.share();
        if !stream.is_of(&share.presence) {
            return Err(StreamError::ForeignPool);
        }
        expect_open(stream.registration(), "begin_capture")?;
        // Streams that join one by one share the order of their capture.
        let clock = match capture_of(stream)? {
            Some(id) => share.clock_of(id),
            None => CaptureClock::new(share.presence.clone()),
        };
        let uses = GraphUses::new(share);
        let routed = Routed::begin(&uses, &clock, stream)?;
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

impl fmt::Debug for JoinedCapture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinedCapture")
            .field("stream", &self.routed.as_ref().map(Routed::stream))
            .field("memory", &self.memory)
            .finish()
    }
}
