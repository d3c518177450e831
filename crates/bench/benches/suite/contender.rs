//! The contenders: allocators that grant memory in the order of a stream.

/// An allocator under test.
pub(crate) trait Contender: Sync {
    type Stream: Send + Sync;
    type Block: Send;

    /// Returns a new stream.
    fn stream(&self) -> Self::Stream;

    /// Prepares the calling thread. Called on each thread before any other method.
    fn enter(&self) {}

    /// Allocates memory now, or returns `None`.
    fn allocate(&self, stream: &Self::Stream, bytes: u64) -> Option<Self::Block>;

    /// Frees the memory behind everything submitted to the stream.
    fn free(&self, block: Self::Block, stream: &Self::Stream);

    /// Returns the most bytes that were held from the device; `None` for a contender that holds none.
    fn reserved(&self) -> Option<u64> {
        None
    }
}

/// A contender whose allocations are awaited, and whose blocks pass from stream to stream.
pub(crate) trait Awaited: Contender {
    /// Awaits memory. Also returns how often it was refused before.
    fn granted(
        &self,
        stream: &Self::Stream,
        bytes: u64,
    ) -> impl Future<Output = (Self::Block, u64)>;

    /// Hands a block on from one stream to another, which comes after the work of the first.
    fn hand_on(&self, block: &mut Self::Block, from: &Self::Stream, to: &Self::Stream);
}
