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

    /// The same into memory of the caller's, for as many bytes as come: says whether they have.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    ///
    /// # Panics
    /// When it is not memory for so many.
    fn copy_to(&mut self, into: &mut [u8]) -> Result<bool, DeviceError> {
        let bytes = self.bytes()?;
        if let Some(bytes) = &bytes {
            into.copy_from_slice(bytes);
        }
        Ok(bytes.is_some())
    }
}
