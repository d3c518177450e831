//! All memory of a device, once its pool has ended.

use crate::chunks::Chunks;
use crate::device::{Access, Device, RawStream};
use crate::segment_source::SegmentSource;
use crate::sync::{assert_unlocked, plain};

/// Chunks and ranges of a device, and the source of the segments.
#[derive(Debug)]
pub struct HeldMemory {
    pub(super) device: plain::Arc<dyn Device>,
    pub(super) segments: plain::Arc<dyn SegmentSource>,
    pub(super) chunk_bytes: u64,
    pub(super) chunks: Chunks,
}

/// Whose memory was not taken back, and is leaked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// The device kept chunks.
    pub chunks: bool,
    /// The source kept segments.
    pub segments: bool,
}

impl HeldMemory {
    /// Gives everything back: the chunks, and these plain segments (address and bytes). With `ends_access`, peers lose
    /// their access to the source's memory.
    ///
    /// # Safety
    /// The segments are all that were taken and not given back. Nothing uses the memory any more.
    pub unsafe fn release(&self, segments: &[(u64, u64)], ends_access: bool) -> Refused {
        assert_unlocked("release");
        let mut refused = Refused::default();
        let Chunks {
            mapped,
            ranges,
            unmapped,
            accessors,
        } = &self.chunks;
        // SAFETY: the device and the source gave these, and did not get them back. The caller guarantees the rest.
        unsafe {
            for (address, chunk) in mapped {
                let unmapped = self.device.unmap(*address, self.chunk_bytes);
                refused.chunks |= unmapped.is_err() || self.device.destroy(*chunk).is_err();
            }
            for chunk in unmapped {
                refused.chunks |= self.device.destroy(*chunk).is_err();
            }
            for (address, bytes) in ranges {
                let _ = self.device.unreserve(*address, *bytes);
            }
            for (address, bytes) in segments {
                let given = self.segments.give(*address, *bytes, RawStream::HOST);
                refused.segments |= given.is_err();
            }
            for peer in accessors.peers().iter().filter(|_| ends_access) {
                let _ = self.segments.set_access(*peer, Access::None);
            }
        }
        refused
    }
}
