//! Kinds of handles of the operating system, as which memory is shared with other processes.

use std::fmt;

/// A kind of handle as which memory is shared with other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum HandleType {
    /// A file descriptor of a POSIX system.
    PosixFd,
    /// An NT handle of Windows.
    Win32,
    /// A global handle of Windows.
    Win32Kmt,
}

impl HandleType {
    /// All kinds, in the order of declaration.
    pub const ALL: [Self; 3] = [Self::PosixFd, Self::Win32, Self::Win32Kmt];

    /// Returns the name of the kind, for errors and descriptions.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PosixFd => "file descriptor",
            Self::Win32 => "Win32 handle",
            Self::Win32Kmt => "Win32 KMT handle",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of kinds of handles.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(from = "Vec<HandleType>", into = "Vec<HandleType>")
)]
pub struct HandleTypes(u8);

impl HandleTypes {
    /// None: memory is not shared.
    pub const NONE: Self = Self(0);
    /// File descriptors.
    pub const POSIX_FD: Self = Self::NONE.with(HandleType::PosixFd);
    /// NT handles.
    pub const WIN32: Self = Self::NONE.with(HandleType::Win32);

    /// Adds a kind.
    #[must_use]
    pub const fn with(self, kind: HandleType) -> Self {
        Self(self.0 | kind.bit())
    }

    /// Returns whether the set contains the kind.
    pub const fn contains(self, kind: HandleType) -> bool {
        self.0 & kind.bit() != 0
    }

    /// Returns whether the set contains every kind of the other.
    pub const fn contains_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Iterates over the kinds of the set, in the order of declaration.
    pub fn iter(self) -> impl Iterator<Item = HandleType> {
        let kinds = HandleType::ALL.into_iter();
        kinds.filter(move |kind| self.contains(*kind))
    }
}

impl FromIterator<HandleType> for HandleTypes {
    fn from_iter<I: IntoIterator<Item = HandleType>>(kinds: I) -> Self {
        kinds.into_iter().fold(Self::NONE, Self::with)
    }
}

/// Lists the kinds of the set.
#[cfg(feature = "serde")]
impl From<HandleTypes> for Vec<HandleType> {
    fn from(kinds: HandleTypes) -> Self {
        kinds.iter().collect()
    }
}

#[cfg(feature = "serde")]
impl From<Vec<HandleType>> for HandleTypes {
    fn from(kinds: Vec<HandleType>) -> Self {
        kinds.into_iter().collect()
    }
}

/// `file descriptor, Win32 handle`
impl fmt::Display for HandleTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, kind) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{}", kind.name())?;
        }
        Ok(())
    }
}

impl fmt::Debug for HandleTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_contains_the_kinds_that_were_added() {
        let both = HandleTypes::POSIX_FD.with(HandleType::Win32);
        assert!(both.contains_all(HandleTypes::WIN32) && !HandleTypes::WIN32.contains_all(both));
        assert!(both.contains_all(HandleTypes::NONE) && HandleTypes::NONE.is_empty());
        assert_eq!(both.to_string(), "file descriptor, Win32 handle");
        assert_eq!(both.iter().collect::<HandleTypes>(), both);
    }
}
