//! Kinds of memory, by who sees them.

use std::fmt;

/// A kind of memory, by who sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum MemoryKind {
    /// The device's own. The host does not see it: it copies.
    Device,
    /// The host's, page-locked, so that the device sees it at the same addresses.
    Pinned,
    /// Seen by host and device at the same addresses, wherever it lies; it moves to who uses it.
    Managed,
    /// The host's. The device does not see it.
    Host,
}

impl MemoryKind {
    /// Every kind, in the order of their declaration.
    pub const ALL: [Self; 4] = [Self::Device, Self::Pinned, Self::Managed, Self::Host];

    /// Whether work of the device can use it.
    pub const fn is_seen_by_device(self) -> bool {
        !matches!(self, Self::Host)
    }

    /// Whether the host can use it where it lies.
    pub const fn is_seen_by_host(self) -> bool {
        !matches!(self, Self::Device)
    }

    /// Whether it is taken from the host's memory rather than from the device's.
    pub const fn is_of_host(self) -> bool {
        matches!(self, Self::Pinned | Self::Host)
    }

    /// The kind in words, as errors and descriptions name it.
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

/// A set of kinds.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(from = "Vec<MemoryKind>", into = "Vec<MemoryKind>")
)]
pub struct MemoryKinds(u8);

impl MemoryKinds {
    /// The device's own memory, and no other.
    pub const DEVICE: Self = Self(1 << MemoryKind::Device as u8);

    /// Every kind.
    pub const ALL: Self = Self((1 << MemoryKind::ALL.len()) - 1);

    /// The set and this kind.
    #[must_use]
    pub const fn with(self, kind: MemoryKind) -> Self {
        Self(self.0 | 1 << kind as u8)
    }

    /// The set without this kind.
    #[must_use]
    pub const fn without(self, kind: MemoryKind) -> Self {
        Self(self.0 & !(1 << kind as u8))
    }

    /// Whether the kind is one of the set.
    pub const fn contains(self, kind: MemoryKind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }

    /// The kinds of the set, in the order of their declaration.
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

/// As the list of its kinds.
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
        for (place, kind) in self.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
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
    fn a_set_has_what_was_put_into_it() {
        let set = MemoryKinds::DEVICE.with(MemoryKind::Managed);
        assert!(set.contains(MemoryKind::Device) && !set.contains(MemoryKind::Pinned));
        assert_eq!(set.to_string(), "device memory, managed memory");
        assert_eq!(set.without(MemoryKind::Managed), MemoryKinds::DEVICE);
        assert!(MemoryKinds::ALL.iter().eq(MemoryKind::ALL));
        assert_eq!(MemoryKinds::ALL, MemoryKind::ALL.into_iter().collect());
    }

    #[test]
    fn every_kind_is_seen_by_somebody() {
        for kind in MemoryKind::ALL {
            assert!(kind.is_seen_by_device() || kind.is_seen_by_host());
        }
    }
}
