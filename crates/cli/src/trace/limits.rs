//! The limits on what a trace may hold, so that a damaged or hostile file ends with an error and not with the
//! memory of the host.
//!
//! [`HELP`] states them for `--help`; a test holds both together.

/// The longest line of a text, in bytes.
pub(crate) const LINE_BYTES: usize = 4096;
/// Bytes of one allocation: no device has a larger address space.
pub(crate) const ALLOCATION_BYTES: u64 = 1 << 48;
/// Bytes that are live at one time.
pub(crate) const LIVE_BYTES: u64 = 1 << 60;
/// The latest time, in microseconds since the first event: nine years.
pub(crate) const DURATION_US: u64 = 1 << 48;

/// Limits that bound the memory and the time of a reader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of a file after decompression.
    pub(crate) file_bytes: u64,
    /// Allocations and frees of a trace.
    pub(crate) events: usize,
    /// Streams of a trace.
    pub(crate) streams: usize,
    /// Bytes of the values that a pickle decodes to.
    pub(crate) pickle_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            file_bytes: 2 << 30,
            events: 10_000_000,
            streams: 4096,
            pickle_bytes: 1 << 30,
        }
    }
}

/// The limits as `--help` states them.
pub(crate) const HELP: &str = "\
Limits of a trace: lines of 4 KiB, 2 GiB after decompression, 10 million operations, 4,096 streams, 256 TiB for an \
allocation, 1 EiB live at one time, nine years, and 1 GiB of values decoded from a pickle. A file that is damaged or exceeds \
a limit ends the command with exit code 1 and names the file and the line. An option that is not understood ends it \
with exit code 2.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_states_each_limit() {
        let limits = Limits::default();
        for (stated, is_so) in [
            ("4 KiB", LINE_BYTES == 4 << 10),
            ("2 GiB", limits.file_bytes == 2 << 30),
            ("10 million operations", limits.events == 10_000_000),
            ("4,096 streams", limits.streams == 4096),
            ("256 TiB", ALLOCATION_BYTES == 256 << 40),
            ("1 EiB", LIVE_BYTES == 1 << 60),
            ("nine years", DURATION_US / 1_000_000 / 86_400 / 365 == 8),
            ("1 GiB of values", limits.pickle_bytes == 1 << 30),
        ] {
            assert!(HELP.contains(stated) && is_so, "{stated}");
        }
    }
}
