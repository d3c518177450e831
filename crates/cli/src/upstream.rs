//! Where the pool's memory comes from.

use clap::ValueEnum;
use std::fmt;
use weirpool::Upstream;

/// Memory of the device, one way or the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum UpstreamName {
    /// Memory that can be mapped elsewhere, so that free pieces make a whole
    Virtual,
    /// Plain memory, in segments that stay as they are
    Device,
}

impl UpstreamName {
    pub(crate) fn upstream(self) -> Upstream {
        match self {
            Self::Virtual => Upstream::Virtual,
            Self::Device => Upstream::Device,
        }
    }
}

impl fmt::Display for UpstreamName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Virtual => "virtual",
            Self::Device => "device",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printed_as_they_are_read() {
        for name in UpstreamName::value_variants() {
            let read = UpstreamName::from_str(&name.to_string(), false);
            assert_eq!(read, Ok(*name));
        }
    }
}
