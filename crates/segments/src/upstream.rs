//! The source of a pool's memory, and its substitute on a device that lacks it.

use crate::device::{Capabilities, MemoryKind};
use std::fmt;

/// The memory that a pool takes from its device, and whether the pool keeps freed memory. RMM and Umpire call these upstream resources. Memory from elsewhere comes
/// from a [source of segments](crate::SegmentSource).
///
/// ```
/// use weirpool::device::{MemoryKind, sim::SimDevice};
/// use weirpool::{BuildError, Pool, Upstream};
///
/// let device = SimDevice::builder().virtual_memory(false).without(MemoryKind::Pinned).build();
/// // A substitute is used where there is one, and the description says so.
/// let pool = Pool::builder(device.clone()).build()?;
/// assert!(!pool.inspect().describe().is_virtual);
/// // Without a substitute the build fails, and the error names the feature.
/// let refused = Pool::builder(device.clone()).upstream(Upstream::Pinned).build();
/// assert!(matches!(refused, Err(BuildError::Unsupported { feature: "pinned host memory", .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Upstream {
    /// Memory of the device that can be mapped elsewhere, so that free pieces become one range. On a device without
    /// virtual memory it is [`Device`](Self::Device) memory.
    #[default]
    Virtual,
    /// Memory of the device, in segments that stay as they are.
    Device,
    /// Memory of the device, of which the pool keeps nothing: it has no caches and a release threshold of 0, and every
    /// block is a segment of whole steps of the device. For tools that watch the device's own allocations, and to
    /// measure the benefit of pooling.
    Unpooled,
    /// Page-locked memory of the host, which the device accesses too.
    Pinned,
    /// Memory that host and device access, and that moves to where it is used.
    Managed,
    /// Memory of the host alone: for its own [stream](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.host_stream), and no other.
    Host,
}

/// The memory that a device is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySource {
    /// Its kind.
    pub kind: MemoryKind,
    /// Address ranges and chunks, rather than plain memory.
    pub is_virtual: bool,
}

impl Upstream {
    /// Returns the kind of its memory.
    pub const fn kind(self) -> MemoryKind {
        match self {
            Self::Virtual | Self::Device | Self::Unpooled => MemoryKind::Device,
            Self::Pinned => MemoryKind::Pinned,
            Self::Managed => MemoryKind::Managed,
            Self::Host => MemoryKind::Host,
        }
    }

    /// Returns the memory that a device with these capabilities is asked for; `None` if it lacks the kind.
    pub fn source(self, capabilities: &Capabilities) -> Option<MemorySource> {
        let kind = self.kind();
        let source = MemorySource {
            kind,
            is_virtual: self == Self::Virtual && capabilities.virtual_memory,
        };
        capabilities.memory_kinds.contains(kind).then_some(source)
    }
}

/// `virtual memory`, `managed memory`
impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Virtual => f.write_str("virtual memory"),
            other => other.kind().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemoryKinds;

    #[test]
    fn virtual_memory_falls_back_to_plain_and_a_kind_to_nothing() {
        let plain = Capabilities::plain(1 << 21);
        let source = Upstream::Virtual.source(&plain);
        assert_eq!(source, Upstream::Device.source(&plain));
        assert!(source.is_some_and(|source| !source.is_virtual));
        assert_eq!(Upstream::Managed.source(&plain), None);
        let all = plain
            .with_virtual_memory(true)
            .with_memory_kinds(MemoryKinds::ALL);
        assert!(
            Upstream::Virtual
                .source(&all)
                .is_some_and(|source| source.is_virtual)
        );
        let managed = Upstream::Managed.source(&all);
        assert!(managed.is_some_and(|source| !source.is_virtual));
    }
}
