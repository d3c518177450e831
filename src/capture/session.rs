//! A capture that the pool begins and ends.

use super::routed::{Routed, capture_of, expect_usable};
use super::{CapturedGraph, GraphMemory};
use crate::device::{DeviceError, DeviceErrorKind, DeviceId, Graph};
use crate::engine::{Change, ordering};
use crate::error::StreamError;
use crate::handles::Registration;
use crate::handles::{CaptureClock, GraphUses, Route};
use crate::pool::Pool;
use crate::stream::Stream;
use crate::sync::plain;

const END: &str = "end_capture";

/// A stream that is being captured into a graph. Made by [`Pool::capture`] and [`GraphMemory::capture`].
///
/// While it exists, requests for the stream allocate from the memory of the capture, at once: one that would have to
/// wait fails with [`NotReservedForCapture`](crate::AllocError::NotReservedForCapture). Fills and uploads on the stream
/// become part of the graph, those that the pool makes for its blocks included. A download fails: make it after a
/// launch. All of this holds for each registration of the stream with the pool, also for one that is made meanwhile. The device
/// refuses the calls of other pools that have registered the stream.
///
/// Blocks of the capture that are dropped in it are reused in it. Other blocks that a call of this crate names in the
/// capture stay with the graph: [`upload`](crate::Block::upload), [`submit`](Stream::submit), [`record_use`](Stream::record_use)
/// and every other call that takes the block and the stream. Such a block can be dropped in the capture and after it;
/// its memory is freed once the graph is gone and its last launch is complete. The pool cannot see an address that
/// reaches the work in another way: keep that block for as long as the graph is launched, or name it with
/// `record_use`. Blocks from before the capture that no call names are freed when it is over, if they are dropped in it.
///
/// Further streams take part in the capture once they [wait](Stream::wait) for an event of one of its streams. Work that is
/// [submitted](Stream::submit) to these streams is ordered in the graph by the blocks that it uses. The stream that the capture
/// began on has to come after the others again before the end: by a wait, or by such work. Memory that one stream
/// freed is reused on another one that comes after the free.
///
/// As CUDA's captures, it is for one thread at a time: while one submits work to a stream of the capture, or names it in a
/// call of this crate, no other thread does so with any stream of the capture.
///
/// The pool records no event on the streams until the capture is over. [`Stream::event`] returns a point of the graph, which
/// other streams can wait for in the capture. Awaiting it, and awaiting a free on the stream, fail.
///
/// Dropping it aborts the capture. It can be ended or dropped on any thread, in any state: also if the capture was
/// invalidated, or ended by other code. A capture of the stream that other code began since then goes on.
#[derive(Debug)]
#[must_use = "dropping a capture aborts it"]
pub struct Capture {
    /// The stream that the capture began on, and those that were added. Empty once the capture is over.
    routed: Vec<Routed>,
    memory: GraphMemory,
    uses: plain::Arc<GraphUses>,
    clock: plain::Arc<CaptureClock>,
}

impl Pool {
    /// Begins to capture `stream` into a graph, with memory of its own. Work that is submitted to the stream from now
    /// on becomes part of the graph; see [`Capture`]. The work of the stream so far is sealed first: memory freed on it
    /// becomes available to others, and its [tasks](crate::Task) can be awaited, while the stream is captured.
    ///
    /// (The semantics are those of PyTorch's and Warp's private pools. CUDA's own allocation nodes differ: they give
    /// memory back within the graph.)
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weirpool::{Pool, device::sim::{Operation, SimDevice}};
    /// let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).build()?;
    /// let work = device.create_stream();
    /// let stream = pool.register(&work)?;
    ///
    /// let capture = pool.capture(&stream)?;
    /// let block = pool.allocate(&stream, 1 << 20).zeroed().try_now()?; // at each launch
    /// work.submit(Operation::new(Duration::from_micros(50)).writes(block.address(), 1 << 20));
    /// drop(block);
    /// let graph = capture.end()?;
    ///
    /// for _ in 0..100 {
    ///     graph.launch(&stream)?; // the same addresses
    /// }
    /// drop(graph); // the memory returns to the pool after the last launch
    /// # device.advance_to_end();
    /// # device.assert_ordered();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`StreamError::ForeignPool`] if the stream is of another pool, and [`StreamError::Closed`] if the pool
    /// is closed. Returns the device's error if the device has no graphs, or if the stream cannot be captured or is
    /// being captured already.
    pub fn capture(&self, stream: &Stream) -> Result<Capture, StreamError> {
        self.graph_memory().capture(stream)
    }
}

impl GraphMemory {
    /// Begins a capture that allocates from this memory; see [`Pool::capture`].
    ///
    /// # Errors
    /// Returns the errors of [`Pool::capture`].
    pub fn capture(&self, stream: &Stream) -> Result<Capture, StreamError> {
        Capture::begin(self, stream)
    }
}

impl Capture {
    fn begin(memory: &GraphMemory, stream: &Stream) -> Result<Self, StreamError> {
        let share = memory.share();
        expect_usable(share, stream, "begin_capture")?;
        seal_all(stream)?;
        let uses = share.begin_graph();
        let clock = CaptureClock::new(share.presence.clone());
        let routed = Routed::begin(share, &uses, &clock, stream)?;
        routed.call("begin_capture", |captures, stream| {
            // SAFETY: the lane keeps the stream's owner; an external stream is usable in the caller's call.
            #[allow(unsafe_code, reason = "device call on the lane's stream")]
            unsafe {
                captures.begin_capture(stream)
            }
        })?;
        // From here on, dropping the capture ends it on the device.
        let capture = Self {
            routed: vec![routed],
            memory: memory.clone(),
            uses,
            clock,
        };
        if let Some(id) = capture.routed[0].capture()? {
            capture.clock.set_id(id);
        }
        share.add_clock(&capture.clock);
        capture.routed[0].keep(&capture.uses)?;
        Ok(capture)
    }

    /// Adds a further stream, which has joined the capture: other code made it wait for an event that was recorded in the
    /// capture. From now on it allocates from the memory of the capture, in an order of its own. A stream that joins by
    /// [`Stream::wait`] need not be added.
    ///
    /// # Errors
    /// Returns [`StreamError::ForeignPool`] if the stream is of another pool, and an error if the stream is not part of
    /// this capture, or was added before.
    pub fn add(&mut self, stream: &Stream) -> Result<(), StreamError> {
        let share = self.memory.share();
        expect_usable(share, stream, "capture_of")?;
        let joined = capture_of(stream)?;
        if joined.is_none() || joined != self.clock.id() {
            let reason = "the stream is not part of the capture; make it wait for an event that is recorded in the capture";
            let kind = DeviceErrorKind::Unsupported;
            return Err(DeviceError::new("capture_of", kind, reason).into());
        }
        let routed = Routed::begin(self.memory.share(), &self.uses, &self.clock, stream)?;
        self.routed.push(routed);
        Ok(())
    }

    /// Returns the memory that the capture allocates from.
    pub fn memory(&self) -> &GraphMemory {
        &self.memory
    }

    /// Ends the capture, and returns its graph.
    ///
    /// # Errors
    /// Returns the device's error if the capture was invalidated, if a stream that joined it was not joined again, or
    /// if other code ended it. The capture is over then, and there is no graph.
    pub fn end(mut self) -> Result<CapturedGraph, DeviceError> {
        let (graph, device) = self.finish()?;
        let (memory, uses) = (self.memory.clone(), self.uses.clone());
        Ok(CapturedGraph::new(graph, memory, uses, device))
    }

    /// Ends the capture on the device, and then in the pool.
    fn finish(&mut self) -> Result<(Box<dyn Graph>, DeviceId), DeviceError> {
        let routed = std::mem::take(&mut self.routed);
        let ended = self.end_on_device(&routed);
        Route::end_joined(&self.uses);
        drop(routed);
        // From now on no stream allocates for the graph.
        self.memory.share().end_capture(&self.uses);
        ended
    }

    fn end_on_device(&self, routed: &[Routed]) -> Result<(Box<dyn Graph>, DeviceId), DeviceError> {
        let Some(first) = routed.first() else {
            let reason = "the capture is over";
            return Err(DeviceError::new(END, DeviceErrorKind::Unsupported, reason));
        };
        let present = first.capture().unwrap_or_default();
        let id = self.clock.id();
        let belongs_to_others = id.is_some() && present.is_some() && present != id;
        if belongs_to_others {
            let reason =
                "other code ended the capture, and captures the stream anew; that capture goes on";
            return Err(DeviceError::new(END, DeviceErrorKind::Unsupported, reason));
        }
        self.clock.end();
        let graph = first.call(END, |captures, stream| {
            // SAFETY: as in `begin`.
            #[allow(unsafe_code, reason = "device call on the lane's stream")]
            unsafe {
                captures.end_capture(stream)
            }
        })?;
        Ok((graph, first.device_id()))
    }
}

/// Records an event behind all work that the stream was given so far: not only behind its frees, so that tasks from
/// before the capture can be awaited during it.
fn seal_all(stream: &Stream) -> Result<(), DeviceError> {
    let Registration { service, lane, .. } = &*stream.registration;
    // A capture that is under way is refused later.
    if !lane.cache.is_captured() {
        ordering::mark(&service.engine, lane)?;
        service.publish(Change::Memory);
    }
    Ok(())
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.routed.is_empty() {
            // A capture that was invalidated has no graph anyway.
            let _aborted = self.finish();
        }
    }
}
