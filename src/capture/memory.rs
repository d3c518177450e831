//! Memory that captures allocate from.

use crate::block::Block;
use crate::error::{AllocError, StreamError};
use crate::handles::GraphShare;
use crate::measure::Bytes;
use crate::pool::captured;
use crate::pool::{Layout, Pool, Reservation};
use crate::stream::Stream;
use crate::sync::plain;
use std::fmt;
use std::panic::Location;

/// Memory that is set aside for graphs. Streams allocate from it while they are being captured.
///
/// # Guarantees
///
/// - No other request gets the memory until the last owner is gone: the handles of this type, and every graph that was
///   captured with it, whose last launch has completed. So the addresses of a graph stay valid for every launch, also
///   those of blocks that were dropped in the capture.
/// - Inside a capture, a block that was dropped is reused in the order of its streams, at once: by any stream of the capture
///   whose next work comes after its last use.
/// - The memory that a graph or a [checkpoint](GraphMemory::checkpoint) may use stays where it is. Where memory is virtual,
///   it is extended for a larger request, and what none of them uses is mapped elsewhere: graphs of growing sizes need as
///   much as the largest.
/// - Blocks that are alive after the last owner is gone stay valid; they become ordinary blocks.
///
/// Several graphs can share the memory, as in PyTorch's graph pools. What one capture dropped, a later one reuses. So
/// launches of such graphs must not run at the same time, and a launch may overwrite what another graph left in its
/// blocks, unless the blocks are alive.
///
/// Captures take more memory from the pool when they need it. A request inside a capture never waits: to be sure that
/// it succeeds, [`give`](Self::give) a reservation beforehand.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// let memory = pool.graph_memory();
/// memory.give(device.block_on(pool.reserve(64 << 20))?)?; // waits for memory now, not in the captures
/// let mut graphs = Vec::new();
/// for batch in [1, 2, 4] {
///     let capture = memory.capture(&stream)?;
///     let _activations = pool.try_allocate(&stream, batch << 20)?; // work of the step is submitted here
///     graphs.push(capture.end()?);
/// }
/// // The blocks were dropped: the next capture reuses their memory, and no other request gets it.
/// assert_eq!((memory.size(), memory.left()), (64 << 20, 64 << 20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct GraphMemory {
    share: plain::Arc<GraphShare>,
}

impl Pool {
    /// Returns memory for graphs, to be shared by several captures. It is empty at first.
    pub fn graph_memory(&self) -> GraphMemory {
        let share = GraphShare::new(self.presence().clone());
        GraphMemory {
            share: plain::Arc::new(share),
        }
    }
}

impl GraphMemory {
    pub(super) fn share(&self) -> &plain::Arc<GraphShare> {
        &self.share
    }

    /// Adds the memory of a reservation that is not allocated. It returns to the pool with the rest. The reservation
    /// ends: its live blocks become ordinary blocks, and futures in its [scope](Reservation::scope) draw nothing more.
    ///
    /// # Errors
    /// Returns [`StreamError::ForeignReservation`] if the reservation is of another pool. It is dropped then.
    #[track_caller]
    pub fn give(&self, reservation: Reservation) -> Result<(), StreamError> {
        if reservation.pool() != self.pool() {
            return Err(StreamError::ForeignReservation);
        }
        if let Some(part) = reservation.into_rest(Location::caller()) {
            self.share.add(part);
        }
        Ok(())
    }

    /// Allocates `bytes`, or a [`Layout`], from this memory outside captures, for use in the order of `stream`: for
    /// inputs of graphs, and for a first run without a graph. The memory takes more from the pool if it has to. Blocks
    /// that are dropped return to the memory.
    ///
    /// Nothing waits on the host. A launch of a graph may overwrite the block, as it may overwrite those of other
    /// graphs with this memory, unless the block was alive while the graph was captured.
    ///
    /// # Errors
    /// Returns [`AllocError::NotReserved`] if the memory has too little, and the pool no more now:
    /// [reserve](Pool::reserve), which waits, and [`give`](Self::give). Returns [`AllocError::StreamCaptured`] while
    /// the stream is being captured: allocate from the pool then. Otherwise returns the errors of
    /// [`Pool::try_allocate`].
    #[track_caller]
    pub fn allocate(
        &self,
        stream: &Stream,
        layout: impl Into<Layout>,
    ) -> Result<Block, AllocError> {
        let caller = captured::at(Location::caller());
        captured::allocate_outside(&stream.registration, &self.share, layout.into(), caller)
    }

    /// Returns the size of the memory in bytes, allocated or not.
    pub fn size(&self) -> u64 {
        self.share.size()
    }

    /// Returns how many bytes of the memory are not allocated.
    pub fn left(&self) -> u64 {
        self.share.left().0
    }

    pub(super) fn pool(&self) -> Pool {
        Pool::of_presence(self.share.presence.clone())
    }
}

impl fmt::Debug for GraphMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphMemory")
            .field("size", &Bytes(self.size()))
            .field("left", &Bytes(self.left()))
            .finish_non_exhaustive()
    }
}
