//! The observer through which a pool informs a device that checks the order of its work.
//!
//! Only the pool knows which bytes belong to which block at which time.

use super::RawStream;
use std::fmt;
use std::panic::Location;

/// Observes the life of every block, so that a device can detect uses of memory outside of them.
///
/// Only a device that checks its work has an observer, as the simulated one does: see
/// [`Device::block_observer`](super::Device::block_observer). The pool holds no lock during these calls.
pub trait BlockObserver: fmt::Debug + Send + Sync {
    /// Notes that a block begins: `bytes` bytes from `address` on, for use in the order of `stream`, allocated at
    /// `location` in the source. The pool calls this before its user has the address. Never panics.
    fn block_allocated(
        &self,
        address: u64,
        bytes: u64,
        stream: RawStream,
        location: &'static Location<'static>,
    );

    /// Notes that a block begins as [`block_allocated`](Self::block_allocated) does, in memory that is set aside for
    /// graphs: their launches may use the same bytes. The default is `block_allocated`. Never panics.
    fn block_of_graphs(
        &self,
        address: u64,
        bytes: u64,
        stream: RawStream,
        location: &'static Location<'static>,
    ) {
        self.block_allocated(address, bytes, stream, location);
    }

    /// Notes that the block at `address` grows by the `bytes` bytes that follow it, for use in the order of `stream`,
    /// as requested at `location` in the source. The bytes are free, or another block, which ends by this. The pool
    /// calls this before its user has them. Never panics.
    fn block_grown(
        &self,
        address: u64,
        bytes: u64,
        stream: RawStream,
        location: &'static Location<'static>,
    );

    /// Notes that the block at `address` ends, in the order of `streams`: all streams on which a use was declared.
    /// `location` is the location of the free; a drop has none.
    ///
    /// The pool calls this before another request can be granted the bytes, so that the observer never sees the next
    /// grant first. Never panics.
    fn block_freed(
        &self,
        address: u64,
        streams: &[RawStream],
        location: Option<&'static Location<'static>>,
    );

    /// Notes the name that the user of a pool gave a stream: reports use it, unless the device's user gave it one. The default
    /// does nothing. Never panics.
    fn stream_named(&self, _stream: RawStream, _name: &str) {}

    /// Returns where the live block at an address was allocated, if the device remembers. The default returns `None`.
    fn allocated_at(&self, _address: u64) -> Option<&'static Location<'static>> {
        None
    }

    /// Raises violations that were found. The pool calls this when a user's call that allocated or freed is about to
    /// return, or in the poll of a future that `call` made. Drops never call it.
    ///
    /// # Panics
    /// Panics with a violation that was found, if the device raises violations.
    fn raise_violations(&self, call: &'static Location<'static>);
}
