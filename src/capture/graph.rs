//! A graph, with its memory.

use super::GraphMemory;
use super::routed::expect_usable;
use crate::device::{DeviceError, DeviceErrorKind, DeviceId, Graph};
use crate::engine::ordering;
use crate::error::StreamError;
use crate::handles::{GraphUses, Registration};
use crate::id::Ticket;
use crate::stream::Stream;
use crate::sync::{assert_unlocked, plain};

const LAUNCH: &str = "launch";

/// A graph of captured work, which keeps the memory that was allocated in the capture and the blocks that calls of this
/// crate named in it. Made by [`Capture::end`](crate::Capture::end).
///
/// Dropping it does not stop its launches. The memory returns to the pool once the last one is complete, and no other
/// owner of the [memory](GraphMemory) is left. Blocks that it keeps are freed then, if they were dropped meanwhile; a
/// block that is [evictable](crate::Evictable) is evicted no earlier.
#[derive(Debug)]
#[must_use = "a graph does nothing until it is launched"]
pub struct CapturedGraph {
    graph: Box<dyn Graph>,
    memory: GraphMemory,
    uses: plain::Arc<GraphUses>,
    /// The device of the stream that was captured.
    device: DeviceId,
}

impl CapturedGraph {
    pub(super) fn new(
        graph: Box<dyn Graph>,
        memory: GraphMemory,
        uses: plain::Arc<GraphUses>,
        device: DeviceId,
    ) -> Self {
        Self {
            graph,
            memory,
            uses,
            device,
        }
    }

    /// Submits the captured work to a stream, behind all work submitted to it so far and behind the earlier launches of
    /// the graph.
    ///
    /// A launch is a use of the blocks of the graph's memory and of the blocks that the graph keeps, which reads and
    /// writes them: it comes after their grants, later copies and noted uses on other streams come after it, and so does
    /// the end of such a block. It does not come after earlier writes on other streams: [order](Stream::wait) them. Work
    /// that is given an address without a call of this crate is the caller's to order, as outside of graphs.
    ///
    /// # Errors
    /// Returns an error while the host has access to such a block, or waits for it ([`Block::host`](crate::Block::host)),
    /// and [`StreamError::Absent`] while the memory of one is suspended.
    /// Returns [`StreamError::ForeignPool`] if the stream is of another pool, [`StreamError::Closed`] if the pool is
    /// closed, and the device's error: also if the stream is the host, of another device than the captured one, or
    /// being captured (CUDA has no launches in a graph; that capture goes on). Nothing is submitted then.
    pub fn launch(&self, stream: &Stream) -> Result<(), StreamError> {
        expect_usable(self.memory.share(), stream, LAUNCH)?;
        let registration = &stream.registration;
        if self.device != registration.stream_device().id() {
            let reason =
                "the graph was captured on another device; launch it on a stream of that device";
            let kind = DeviceErrorKind::InvalidArgument;
            return Err(DeviceError::new(LAUNCH, kind, reason).into());
        }
        assert_unlocked(LAUNCH);
        let engine = &registration.service.engine;
        let launching = self.uses.begin_launch().map_err(|absent| match absent {
            Some(memory) => StreamError::Absent { memory },
            None => {
                let reason = "the host has access to a block that the graph uses, or waits for it; drop its guard first";
                DeviceError::new(LAUNCH, DeviceErrorKind::InvalidArgument, reason).into()
            }
        })?;
        for (home, after) in self.uses.grants() {
            come_after_grant(registration, &home, after)?;
        }
        // SAFETY: the stream is one of the graph's device, and its lane keeps its owner. The graph keeps the memory
        // that was allocated in the capture, and the blocks that calls of this crate named in it. The host has no
        // access to them. Addresses that reached the work in another way are the promise of the code that gave them.
        #[allow(unsafe_code, reason = "device call on the caller's stream")]
        let launched = unsafe { self.graph.launch(stream.raw()) };
        engine.shared.noted(launched)?;
        launching.submitted(
            registration,
            ordering::present_point(engine, &registration.lane),
        );
        Ok(())
    }

    /// Returns the memory that the graph was captured with.
    pub fn memory(&self) -> &GraphMemory {
        &self.memory
    }
}

/// Makes the stream of a launch come after the grant of a block that the graph uses.
///
/// # Errors
/// Returns an error if the device cannot order the stream.
fn come_after_grant(
    on: &Registration,
    home: &Registration,
    after: Ticket,
) -> Result<(), DeviceError> {
    let (engine, of_home) = (&on.service.engine, &home.service.engine);
    if plain::Arc::ptr_eq(&on.presence, &home.presence) {
        return ordering::order_after_grant(engine, &home.lane, after, &on.lane);
    }
    match ordering::marker_for(of_home, &home.lane, after)? {
        Some(marker) => ordering::order_behind_other_pool(&engine.shared, &on.lane, &marker),
        None => Ok(()),
    }
}
