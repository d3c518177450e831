//! What a pool has to know of a stream.

use crate::{DeviceId, RawStream};

/// What a pool has to know of a stream that is registered with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamProperties {
    /// The device that the stream belongs to.
    pub device: DeviceId,
    /// The backend's name of the stream.
    pub raw: RawStream,
    /// Whether a device-side wait may be inserted into the stream. Where it may not, the pool never makes the stream wait
    /// for memory. (A wait in CUDA's legacy default stream would hold up all others.)
    pub takes_waits: bool,
    /// An id of a stream that another library owns and may destroy at any time between two calls. The device never gives
    /// the id to another stream, unlike its [name](Self::raw).
    ///
    /// The pool uses the name of such a stream only inside calls that are made with it, and records the event of each free
    /// before the free returns. From then on it does not need the stream.
    pub external_id: Option<u64>,
}

impl StreamProperties {
    /// Describes a stream that takes waits, and is kept by its owner.
    pub fn new(device: DeviceId, raw: RawStream) -> Self {
        Self {
            device,
            raw,
            takes_waits: true,
            external_id: None,
        }
    }

    /// Describes the host of a device: a stream of execution that runs in order and accepts no waits.
    pub fn of_host(device: DeviceId) -> Self {
        Self {
            takes_waits: false,
            ..Self::new(device, RawStream::HOST)
        }
    }
}
