//! The names that options give to the settings of a pool.

use super::values::{share, some_bytes};
use clap::ValueEnum;
use std::fmt;
use std::str::FromStr;
use weirpool::{Remapping, Reuse, Sealing, Upstream, WhenShort};

/// What the pool does first when no free memory fits, and how far a wait on the device may delay a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhenShortName {
    /// The pool takes more memory from the device; where it cannot, the stream waits until the end of its own work
    GrowFirst,
    /// The pool takes more memory from the device; where it cannot, the stream waits for however long it takes
    GrowThenWait,
    /// The stream waits, on the device, for pending memory, until the end of its own work
    WaitBriefly,
    /// The stream waits, on the device, for pending memory, for however long it takes
    WaitFirst,
}

impl WhenShortName {
    pub(crate) fn when_short(self) -> WhenShort {
        match self {
            Self::GrowFirst => WhenShort::GrowFirst,
            Self::GrowThenWait => WhenShort::GrowThenWait,
            Self::WaitBriefly => WhenShort::WaitBriefly,
            Self::WaitFirst => WhenShort::WaitFirst,
        }
    }
}

/// The kind of memory that the pool takes from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum UpstreamName {
    /// Memory that can be remapped, so that free pieces make one range
    Virtual,
    /// Plain memory, in segments that stay where they are
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

/// The part of a block that is written and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Extent {
    /// A word of each page, and the first and the last byte
    Pages,
    /// Every byte
    Full,
}

/// Writes the name of a value as the command line reads it.
macro_rules! displayed_by_name {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                let value = self.to_possible_value();
                formatter.write_str(value.as_ref().map_or("", |value| value.get_name()))
            }
        }
    )*};
}

displayed_by_name!(WhenShortName, UpstreamName);
pub(super) use displayed_by_name;

/// The reuse policies that are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReuseNames {
    follow_event_dependencies: bool,
    opportunistic: bool,
    internal_dependencies: bool,
}

impl ReuseNames {
    pub(super) const ALL: Self = Self {
        follow_event_dependencies: true,
        opportunistic: true,
        internal_dependencies: true,
    };

    pub(crate) fn reuse(self) -> Reuse {
        Reuse {
            follow_event_dependencies: self.follow_event_dependencies,
            opportunistic: self.opportunistic,
            internal_dependencies: self.internal_dependencies,
        }
    }

    /// Returns these policies without waits on the device.
    pub(super) fn without_waits(self) -> Self {
        Self {
            internal_dependencies: false,
            ..self
        }
    }

    fn switch(&mut self, name: &str) -> Option<&mut bool> {
        match name {
            "follow-event-dependencies" => Some(&mut self.follow_event_dependencies),
            "opportunistic" => Some(&mut self.opportunistic),
            "internal-dependencies" => Some(&mut self.internal_dependencies),
            _ => None,
        }
    }
}

impl FromStr for ReuseNames {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut names = Self::default();
        match text {
            "all" => return Ok(Self::ALL),
            "none" => return Ok(names),
            _ => {}
        }
        for name in text.split(',') {
            let unknown = || {
                format!(
                    "unknown reuse policy `{name}`, expected follow-event-dependencies, \
                     opportunistic or internal-dependencies, or all or none alone"
                )
            };
            *names.switch(name.trim()).ok_or_else(unknown)? = true;
        }
        Ok(names)
    }
}

impl fmt::Display for ReuseNames {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (self.follow_event_dependencies, "follow-event-dependencies"),
            (self.opportunistic, "opportunistic"),
            (self.internal_dependencies, "internal-dependencies"),
        ];
        let on = names.iter().filter(|(is_on, _)| *is_on);
        let on: Vec<_> = on.map(|(_, name)| *name).collect();
        match on.len() {
            0 => formatter.write_str("none"),
            3 => formatter.write_str("all"),
            _ => formatter.write_str(&on.join(",")),
        }
    }
}

/// The share of the time in which free memory is remapped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RemappingName {
    Always,
    Never,
    Share(f64),
}

impl RemappingName {
    pub(crate) fn remapping(self) -> Remapping {
        match self {
            Self::Always => Remapping::Always,
            Self::Never => Remapping::Never,
            Self::Share(share) => Remapping::Share(share),
        }
    }
}

impl FromStr for RemappingName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown =
            || "expected always, never, or a share above 0 and up to 1, as 0.125".to_owned();
        match text {
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => share(text).map(Self::Share).ok_or_else(unknown),
        }
    }
}

impl fmt::Display for RemappingName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => formatter.write_str("always"),
            Self::Never => formatter.write_str("never"),
            Self::Share(share) => write!(formatter, "{share}"),
        }
    }
}

/// The moment at which the event of a free is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SealingName {
    EveryFree,
    OnDemand,
    Spaced(u64),
}

impl SealingName {
    pub(crate) fn sealing(self) -> Sealing {
        match self {
            Self::EveryFree => Sealing::EveryFree,
            Self::OnDemand => Sealing::OnDemand,
            Self::Spaced(bytes) => Sealing::Spaced(bytes),
        }
    }
}

impl FromStr for SealingName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown =
            |_| "expected every-free, on-demand, or bytes up to 256TiB as 4MiB".to_owned();
        match text {
            "every-free" => Ok(Self::EveryFree),
            "on-demand" => Ok(Self::OnDemand),
            _ => some_bytes(text).map(Self::Spaced).map_err(unknown),
        }
    }
}

impl fmt::Display for SealingName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EveryFree => formatter.write_str("every-free"),
            Self::OnDemand => formatter.write_str("on-demand"),
            Self::Spaced(bytes) => write!(formatter, "{bytes}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printed_as_they_are_read() {
        for text in [
            "all",
            "none",
            "follow-event-dependencies",
            "opportunistic,internal-dependencies",
        ] {
            assert_eq!(text.parse::<ReuseNames>().unwrap().to_string(), text);
        }
        for text in ["every-free", "on-demand", "4096"] {
            assert_eq!(text.parse::<SealingName>().unwrap().to_string(), text);
        }
        for text in ["always", "never", "0.125"] {
            assert_eq!(text.parse::<RemappingName>().unwrap().to_string(), text);
        }
        for name in WhenShortName::value_variants() {
            assert_eq!(WhenShortName::from_str(&name.to_string(), false), Ok(*name));
        }
        for name in UpstreamName::value_variants() {
            assert_eq!(UpstreamName::from_str(&name.to_string(), false), Ok(*name));
        }
    }
}
