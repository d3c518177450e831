//! Pools that fill their memory.

use super::PoolBuilder;
use crate::driver::Fill;

impl PoolBuilder {
    /// Fills every block that is allocated, all of it, in the order of its stream, before its user has it.
    /// Default: memory holds what it held before.
    ///
    /// Each allocation then costs a call of the device, from the stream's lane too, and its stream the time to
    /// write the bytes. A further stream [comes after](crate::Block::used_on) the fill: on the host that is an
    /// error until the fill was awaited. If the device cannot fill, the allocation fails with its error, and
    /// the block is freed.
    ///
    /// While a stream is captured into a graph nothing of it is filled: the fill would be made again at each
    /// launch.
    ///
    /// ```
    /// use weirpool::{Fill, Pool, device::sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).fill_on_allocate(Fill::Zero).build()?;
    /// let stream = pool.register(&device.create_stream())?;
    /// device.block_on(async {
    ///     let block = pool.allocate(&stream, 4096).await?;
    ///     assert_eq!(block.download(&stream, 0..4096)?.await?, [0; 4096]);
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fill_on_allocate(mut self, fill: Fill) -> Self {
        self.fills.on_allocate = Some(fill);
        self
    }

    /// Fills every block that is freed, all of it, behind all work that it was used by: with
    /// [poison](Fill::Poison) to find who uses it afterwards, with [zeros](Fill::Zero) to leave nothing to the
    /// next tenant. Default: memory keeps what it holds. See the [page on debugging](crate::guide::observability).
    ///
    /// Each free then costs a call of the device. The fill is the work of the block's own stream, which is
    /// made to wait on the device for what the further streams of the block were given by then: where streams
    /// [hand-shake](crate::Sealing), that may be too much to ask of them. (If the block's own stream takes no
    /// waits, it is the work of a further one that does.)
    ///
    /// A free does not fail, so neither does this: if the device cannot fill, or the streams cannot be made to
    /// wait or are captured into a graph, the memory goes back as it is, and only a subscriber of `tracing`
    /// is told. Who must never be given another's bytes has them filled
    /// [when they are allocated](Self::fill_on_allocate) as well. A block that was granted and
    /// never taken, as when its future was dropped, is not filled: nobody had it.
    ///
    /// ```
    /// use weirpool::{Fill, Pool, device::sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).fill_on_free(Fill::Zero).build()?;
    /// let stream = pool.register(&device.create_stream())?;
    /// device.block_on(async {
    ///     let mut secret = pool.allocate(&stream, 4096).await?;
    ///     drop(secret.upload(&stream, 0, b"of one tenant")?);
    ///     drop(secret);
    ///     let next = pool.allocate(&stream, 4096).await?; // the same memory, at once
    ///     assert_eq!(next.download(&stream, 0..13)?.await?, [0; 13]);
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fill_on_free(mut self, fill: Fill) -> Self {
        self.fills.on_free = Some(fill);
        self
    }
}
