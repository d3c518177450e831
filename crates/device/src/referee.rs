//! What a device that checks orderings is told by a pool.
//!
//! It names what only the pool knows: which bytes are whose, from when to when. It knows nothing of
//! how an ordering is found wrong.

use super::RawStream;
use std::fmt;
use std::panic::Location;

/// Is told of every block's life, so that it can say which use of memory lies outside of one.
///
/// A device has one only where it checks what it is given to do, as the simulated one
/// does: see [`Device::referee`](super::Device::referee). None of these calls may be made with a
/// lock of the pool held.
pub trait Referee: fmt::Debug + Send + Sync {
    /// A block begins: `bytes` bytes from `address` on are for use in the order of `stream`, by who
    /// allocated them at `place`. Called before the user has the address. Never panics.
    fn granted(
        &self,
        address: u64,
        bytes: u64,
        stream: RawStream,
        place: &'static Location<'static>,
    );

    /// The block that was granted at `address` has `bytes` bytes more, which follow those it has: for use in the
    /// order of `stream` like them, by who had it grow at `place`. Called before the user may use them. Never
    /// panics.
    fn grown(&self, address: u64, bytes: u64, stream: RawStream, place: &'static Location<'static>);

    /// The block that was granted at `address` ends, in the order of `streams`: all that it was said
    /// to be used on. `place` is where the user freed it, if that was by a call and not by a drop.
    ///
    /// Called before anybody else can be given the bytes, so that the next grant of them is never
    /// heard of first. Never panics.
    fn freed(&self, address: u64, streams: &[RawStream], place: Option<&'static Location<'static>>);

    /// A user's call, which granted or freed, is about to return, and nothing is half done: the
    /// moment to raise what was found. Never called by a drop.
    ///
    /// # Panics
    /// With what was found, where that is to be raised.
    #[track_caller]
    fn call_out(&self);
}
