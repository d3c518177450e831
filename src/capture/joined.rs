//! A capture that other code begins and ends.

use super::GraphMemory;
use super::routed::Routed;
use crate::error::StreamError;
use crate::stream::Stream;
use std::fmt;

/// A stream that other code captures, and that allocates from a [`GraphMemory`] while this exists. Made by
/// [`GraphMemory::join`].
///
/// Drop it when the capture is over. The memory stays with the graph.
#[must_use = "the stream allocates from the graph's memory until this is dropped"]
pub struct JoinedCapture {
    routed: Routed,
    memory: GraphMemory,
}

impl JoinedCapture {
    pub(super) fn new(memory: &GraphMemory, stream: &Stream) -> Result<Self, StreamError> {
        let routed = Routed::begin(memory, stream)?;
        routed.keep(memory)?;
        Ok(Self {
            routed,
            memory: memory.clone(),
        })
    }

    /// Returns the memory that the capture allocates from.
    pub fn memory(&self) -> &GraphMemory {
        &self.memory
    }
}

impl fmt::Debug for JoinedCapture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinedCapture")
            .field("stream", self.routed.stream())
            .field("memory", &self.memory)
            .finish()
    }
}
