//! Memory that others own, as blocks.
#![allow(unsafe_code, reason = "memory is usable on the word of its owner")]

use super::Residency;
use crate::device::DeviceAddress;
use crate::queue::Passages;
use std::fmt;
use std::panic::Location;

/// Memory that others own, which [`Stream::adopt`](crate::Stream::adopt) makes a block of. The page on [foreign
/// memory](crate::guide::foreign_memory) has an example.
///
/// # Safety
/// The range is memory of a device that is mapped from its adoption until it is [released](Self::release) and the
/// passages are over, but for [absences](Self::residency). During that time nothing uses it but through the block. [`range`](Self::range) always returns the
/// same.
pub unsafe trait ForeignMemory: fmt::Debug + Send + Sync + 'static {
    /// Returns the address of the first byte, and the number of bytes, which is not 0.
    fn range(&self) -> (DeviceAddress, u64);

    /// Returns the number of bytes that the block's user asked for, which [`Block::requested`](crate::Block::requested)
    /// returns. The default is all of them.
    fn requested(&self) -> u64 {
        self.range().1
    }

    /// Returns whether any stream can use the memory at once. By default, further streams come after the work that was
    /// submitted to the adopting stream before.
    fn is_ready(&self) -> bool {
        false
    }

    /// Returns whether a device that checks the order of its work is told of the block, from its adoption to its end.
    /// Return `false` if the memory is a block of another pool, which tells the device of it, or if its owner uses it
    /// before or after without a block: the device would report those uses. The default is `true`.
    fn is_checked(&self) -> bool {
        true
    }

    /// Returns whether the memory is there, if its owner takes it away at times. The adoption asks once. The default is
    /// `None`: it always is.
    fn residency(&self) -> Option<Residency> {
        None
    }

    /// Returns the caller's location in the source, for reports of such a device. The default is the caller of
    /// [`Stream::adopt`](crate::Stream::adopt).
    fn location(&self) -> Option<&'static Location<'static>> {
        None
    }

    /// Takes the memory back, after its block has ended. Work of the device may still use it until the passages are
    /// over: [`Passages::then`] waits for that elsewhere.
    ///
    /// It is called once, on the thread that drops the block and with no lock of the pool held. So it never blocks. It
    /// may call the pool. If it panics, the block has ended all the same.
    fn release(self: Box<Self>, after: Passages);
}
