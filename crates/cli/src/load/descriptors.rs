//! File descriptors: each connection takes one.

use std::io;

/// Descriptors that are left for other purposes than connections.
const SPARE: usize = 32;

/// Raises the limit of this process as far as it may, and returns how many connections fit in it.
#[cfg(unix)]
pub(super) fn for_connections() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let soft = limit.current;
    limit.current = limit.maximum;
    let raised = setrlimit(Resource::Nofile, limit);
    let usable = raised.map_or(soft, |()| limit.maximum);
    // Without a limit, the least of Linux's own limits applies.
    let usable = usable.unwrap_or(1 << 20);
    usize::try_from(usable)
        .unwrap_or(1 << 20)
        .clamp(SPARE + 1, 1 << 20)
        - SPARE
}

#[cfg(not(unix))]
pub(super) fn for_connections() -> usize {
    8192 - SPARE
}

/// Returns whether the process, or the system, has no descriptor left.
#[cfg(unix)]
pub(super) fn are_exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::MFILE, Errno::NFILE]
        .iter()
        .any(|exhausted| error.raw_os_error() == Some(exhausted.raw_os_error()))
}

#[cfg(not(unix))]
pub(super) fn are_exhausted(_: &io::Error) -> bool {
    false
}
