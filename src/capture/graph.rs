//! A graph, with its memory.

use super::GraphMemory;
use super::routed::expect_open;
use crate::device::{DeviceError, DeviceErrorKind, DeviceId, Graph};
use crate::error::StreamError;
use crate::stream::Stream;
use crate::sync::assert_unlocked;
use std::fmt;

const LAUNCH: &str = "launch";

/// A graph of captured work, which owns the memory that was allocated in the capture. Made by
/// [`Capture::end`](crate::Capture::end).
///
/// Dropping it does not stop its launches. The memory returns to the pool once the last one is complete, and no other
/// owner of the [memory](GraphMemory) is left.
#[must_use = "a graph does nothing until it is launched"]
pub struct CapturedGraph {
    graph: Box<dyn Graph>,
    memory: GraphMemory,
    /// The device of the stream that was captured.
    device: DeviceId,
}

impl CapturedGraph {
    pub(super) fn new(graph: Box<dyn Graph>, memory: GraphMemory, device: DeviceId) -> Self {
        Self {
            graph,
            memory,
            device,
        }
    }

    /// Submits the captured work to a stream, behind all work submitted to it so far and behind the earlier launches of
    /// the graph.
    ///
    /// A launch is a use of the graph's blocks, as any work that is given their addresses. To use such a block on
    /// another stream, [order](Stream::wait) that stream after the launch.
    ///
    /// # Errors
    /// Returns [`StreamError::ForeignPool`] if the stream is of another pool, [`StreamError::Closed`] if the pool is
    /// closed, and the device's error: also if the stream is the host, of another device than the captured one, or
    /// being captured (CUDA has no launches in a graph; that capture goes on). Nothing is submitted then.
    pub fn launch(&self, stream: &Stream) -> Result<(), StreamError> {
        if !stream.is_of(self.memory.pool().presence()) {
            return Err(StreamError::ForeignPool);
        }
        let registration = stream.registration();
        expect_open(registration, LAUNCH)?;
        if self.device != registration.stream_device().id() {
            let reason =
                "the graph was captured on another device; launch it on a stream of that device";
            let kind = DeviceErrorKind::InvalidArgument;
            return Err(DeviceError::new(LAUNCH, kind, reason).into());
        }
        assert_unlocked(LAUNCH);
        let driver = &registration.service.driver;
        // SAFETY: the stream is one of the graph's device, and its lane keeps its owner. The graph keeps the memory
        // that was allocated in the capture; other memory is kept by the user who captured work on it.
        #[allow(unsafe_code, reason = "device call on the caller's stream")]
        let launched = unsafe { self.graph.launch(stream.raw()) };
        driver.noted(launched)?;
        Ok(())
    }

    /// Returns the memory that the graph was captured with.
    pub fn memory(&self) -> &GraphMemory {
        &self.memory
    }
}

impl fmt::Debug for CapturedGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturedGraph")
            .field("graph", &self.graph)
            .field("memory", &self.memory)
            .finish()
    }
}
