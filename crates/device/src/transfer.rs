//! Submitted copies between host and device.

use super::{DeviceError, RawEvent};

/// A submitted copy between host and device. Dropping it does not stop the copy: the host memory that the copy needs
/// stays until it is complete.
pub trait Transfer: Send + Sync {
    /// Returns an event behind the copy, and behind nothing that was submitted later. It belongs to the transfer and
    /// lives as long.
    fn event(&self) -> RawEvent;

    /// Returns the bytes that were copied from the device (none for an upload) once the copy is complete, and `None`
    /// before.
    ///
    /// # Errors
    /// Returns the error of the copy or of the device.
    fn bytes(&mut self) -> Result<Option<Vec<u8>>, DeviceError>;

    /// Writes the bytes that were copied from the device to `into`, once the copy is complete. Returns whether it is.
    ///
    /// # Errors
    /// Returns the errors of [`bytes`](Self::bytes).
    ///
    /// # Panics
    /// Panics if `into` does not have the size of the copy.
    fn copy_to(&mut self, into: &mut [u8]) -> Result<bool, DeviceError> {
        let bytes = self.bytes()?;
        if let Some(bytes) = &bytes {
            into.copy_from_slice(bytes);
        }
        Ok(bytes.is_some())
    }
}
