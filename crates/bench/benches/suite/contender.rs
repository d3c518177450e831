//! What is measured: something that gives memory in the order of a stream.

/// An allocator under test.
pub(crate) trait Contender: Sync {
    type Stream: Send + Sync;
    type Block: Send;

    /// Returns a new stream.
    fn stream(&self) -> Self::Stream;

    /// To be called on each thread before anything else.
    fn enter(&self) {}

    /// Memory now, or none.
    fn allocate(&self, stream: &Self::Stream, bytes: u64) -> Option<Self::Block>;

    /// Gives it back, behind all that was submitted to the stream.
    fn free(&self, block: Self::Block, stream: &Self::Stream);

    /// Returns the most bytes that were held from the device; `None` for a contender that holds none.
    fn reserved(&self) -> Option<u64> {
        None
    }
}

/// One that is awaited, and whose blocks go from stream to stream.
pub(crate) trait Awaited: Contender {
    /// Memory, once there is some; and how often that was refused before.
    fn granted(
        &self,
        stream: &Self::Stream,
        bytes: u64,
    ) -> impl Future<Output = (Self::Block, u64)>;

    /// Says that work of another stream will use the block.
    fn used_on(&self, block: &Self::Block, stream: &Self::Stream);
}
