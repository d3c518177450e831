//! A report of bytes that were written outside of a block.

use std::fmt;
use std::panic::Location;
use weirpool::device::DeviceAddress;

/// The side of a block on which bytes were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// At lower addresses.
    Before,
    /// At higher addresses.
    Behind,
}

/// When the damage was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// After the block had ended. The location is that of [`deallocate`](weirpool::Block::deallocate); a drop does not know
    /// its caller.
    Freed(Option<&'static Location<'static>>),
    /// In a [check](crate::Canaries::check) at that location.
    Checked(&'static Location<'static>),
}

/// Bytes that were written before or behind a block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overrun {
    /// The first byte of the block.
    pub address: DeviceAddress,
    /// The bytes of the block.
    pub bytes: u64,
    /// The side on which bytes were written.
    pub side: Side,
    /// The bytes between the block and the nearest byte that was written.
    pub distance: u64,
    /// The number of guard bytes that have another value.
    pub written: u64,
    /// Where the block was guarded, which is where it was allocated.
    pub allocated: &'static Location<'static>,
    /// When it was found.
    pub found: Found,
}

impl fmt::Display for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            address,
            bytes,
            distance,
            written,
            allocated,
            ..
        } = self;
        let (plural, verb) = if *written == 1 {
            ("", "was")
        } else {
            ("s", "were")
        };
        let side = match self.side {
            Side::Before => "before",
            Side::Behind => "behind",
        };
        write!(
            f,
            "{written} byte{plural} {verb} written from {distance} bytes {side} the block of {bytes} bytes at {address}, \
             allocated at {allocated}; found "
        )?;
        match self.found {
            Found::Freed(Some(location)) => write!(f, "when it was deallocated at {location}"),
            Found::Freed(None) => write!(f, "after it was dropped"),
            Found::Checked(location) => write!(f, "by the check at {location}"),
        }
    }
}
