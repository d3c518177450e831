//! The errors of giving a device access to another one's memory.

use weirpool_device::DeviceError;

/// The reason why the access of a device to a pool's memory was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The device cannot reach the memory: the two are not linked, or not of one host.
    #[error(
        "{device} cannot access memory of {owner}; use `copy_to`, which stages the copy through the host"
    )]
    Unsupported {
        /// The description of the device.
        device: String,
        /// The description of the pool's device.
        owner: String,
    },
    /// Streams of the device are registered with the pool, or have work left that was noted with blocks of the pool.
    #[error(
        "the device is in use: streams that are registered with the pool, or have work left: {streams}; drop their handles \
         and blocks, and await their work"
    )]
    InUse {
        /// The number of those streams.
        streams: usize,
    },
    /// Another thread gives or takes back the access of the same device.
    #[error("another thread changes the access of this device; call again when it has ended")]
    Changing,
    /// A device keeps the access to its own memory.
    #[error("a device keeps the access to its own memory; name another device")]
    OwnDevice,
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
