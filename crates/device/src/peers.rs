//! The peers of a device.

use std::fmt;

/// The devices whose memory a device can be given access to, by the [numbers](crate::Device::ordinal) of the driver's
/// list. Numbers from 64 on are left out.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Peers(u64);

impl Peers {
    /// None.
    pub const NONE: Self = Self(0);

    /// Adds a device.
    #[must_use]
    pub const fn with(self, ordinal: u32) -> Self {
        match ordinal {
            0..64 => Self(self.0 | 1 << ordinal),
            _ => self,
        }
    }

    /// Returns whether the device is a peer.
    pub const fn contains(self, ordinal: u32) -> bool {
        ordinal < 64 && self.0 >> ordinal & 1 != 0
    }

    /// Returns whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Iterates over the numbers of the peers.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..64).filter(move |ordinal| self.contains(*ordinal))
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// `peers 1, 3`, `no peers`
impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("no peers");
        }
        for (index, ordinal) in self.iter().enumerate() {
            let before = if index == 0 { "peers " } else { ", " };
            write!(f, "{before}{ordinal}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_those_that_were_added() {
        let peers = Peers::NONE.with(1).with(3).with(64);
        assert!(peers.contains(1) && !peers.contains(0) && !peers.contains(64));
        assert_eq!(peers.to_string(), "peers 1, 3");
        assert_eq!(Peers::NONE.to_string(), "no peers");
    }
}
