//! Kinds of memory.

use std::fmt;

/// A kind of memory. It determines whether the device, the host or both can address it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum MemoryKind {
    /// The device's own memory. The host cannot address it, and has to copy.
    Device,
    /// The host's memory, page-locked: the device sees it at the same addresses.
    Pinned,
    /// Memory that host and device see at the same addresses. It migrates to the processor that uses it.
    Managed,
    /// The host's memory. The device cannot address it.
    Host,
}

impl MemoryKind {
    /// All kinds, in the order of declaration.
    pub const ALL: [Self; 4] = [Self::Device, Self::Pinned, Self::Managed, Self::Host];

    /// Returns whether work of the device can use memory of the kind.
    pub const fn is_seen_by_device(self) -> bool {
        !matches!(self, Self::Host)
    }

    /// Returns whether the host can use memory of the kind in place.
    pub const fn is_seen_by_host(self) -> bool {
        !matches!(self, Self::Device)
    }

    /// Returns whether memory of the kind is taken from the host's memory rather than from the device's.
    pub const fn is_of_host(self) -> bool {
        matches!(self, Self::Pinned | Self::Host)
    }

    /// Returns the name of the kind, for errors and descriptions.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device memory",
            Self::Pinned => "pinned host memory",
            Self::Managed => "managed memory",
            Self::Host => "host memory",
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of kinds of memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(from = "Vec<MemoryKind>", into = "Vec<MemoryKind>")
)]
pub struct MemoryKinds(u8);

impl MemoryKinds {
    /// The device's own memory only.
    pub const DEVICE: Self = Self(1 << MemoryKind::Device as u8);

    /// All kinds.
    pub const ALL: Self = Self((1 << MemoryKind::ALL.len()) - 1);

    /// Adds a kind.
    #[must_use]
    pub const fn with(self, kind: MemoryKind) -> Self {
        Self(self.0 | 1 << kind as u8)
    }

    /// Removes a kind.
    #[must_use]
    pub const fn without(self, kind: MemoryKind) -> Self {
        Self(self.0 & !(1 << kind as u8))
    }

    /// Returns whether the set contains the kind.
    pub const fn contains(self, kind: MemoryKind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }

    /// Iterates over the kinds of the set, in the order of declaration.
    pub fn iter(self) -> impl Iterator<Item = MemoryKind> {
        let kinds = MemoryKind::ALL.into_iter();
        kinds.filter(move |kind| self.contains(*kind))
    }
}

impl FromIterator<MemoryKind> for MemoryKinds {
    fn from_iter<I: IntoIterator<Item = MemoryKind>>(kinds: I) -> Self {
        kinds.into_iter().fold(Self(0), Self::with)
    }
}

/// Lists the kinds of the set.
#[cfg(feature = "serde")]
impl From<MemoryKinds> for Vec<MemoryKind> {
    fn from(kinds: MemoryKinds) -> Self {
        kinds.iter().collect()
    }
}

#[cfg(feature = "serde")]
impl From<Vec<MemoryKind>> for MemoryKinds {
    fn from(kinds: Vec<MemoryKind>) -> Self {
        kinds.into_iter().collect()
    }
}

/// `device memory, managed memory`
impl fmt::Display for MemoryKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, kind) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{kind}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for MemoryKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_contains_the_kinds_that_were_added() {
        let set = MemoryKinds::DEVICE.with(MemoryKind::Managed);
        assert!(set.contains(MemoryKind::Device) && !set.contains(MemoryKind::Pinned));
        assert_eq!(set.to_string(), "device memory, managed memory");
        assert_eq!(set.without(MemoryKind::Managed), MemoryKinds::DEVICE);
        assert!(MemoryKinds::ALL.iter().eq(MemoryKind::ALL));
        assert_eq!(MemoryKinds::ALL, MemoryKind::ALL.into_iter().collect());
    }

    #[test]
    fn every_kind_is_seen_by_device_or_host() {
        for kind in MemoryKind::ALL {
            assert!(kind.is_seen_by_device() || kind.is_seen_by_host());
        }
    }
}
