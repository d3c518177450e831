//! Copies between host and device, on their way.

use super::{DeviceError, RawEvent};

/// A copy between host and device, on its way. Dropped, it goes on; what it needs on the host stays until
/// it is complete.
pub trait Transfer: Send + Sync {
    /// An event behind the copy, and behind nothing that was submitted later. It is the transfer's own.
    fn event(&self) -> RawEvent;

    /// The bytes that came from the device (none, of an upload), once the copy is complete.
    ///
    /// # Errors
    /// Never for "not yet": that is `None`. A device error that the copy or the device met.
    fn bytes(&mut self) -> Result<Option<Vec<u8>>, DeviceError>;
}
