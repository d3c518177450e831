//! The figures of a device's pool, for Python.

use crate::device_pool::DevicePool;

/// The figures of a pool; 0 without a pool. Bytes unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures([u64; NAMES.len()]);

/// | name | figure |
/// |---|---|
/// | `capacity` | the most that the pool may reserve |
/// | `reserved`, `peak_reserved` | reserved from the device |
/// | `used`, `peak_used` | in live blocks, or set aside |
/// | `pending` | freed, but behind device work that is not known to be complete |
/// | `free`, `largest_free` | free; the largest block of it |
/// | `in_graphs` | set aside for graphs |
/// | `charged` | held outside of the pool, and charged against its capacity: memory that is shared with other processes |
/// | `live_blocks` | number of live blocks |
/// | `allocations`, `frees` | number of blocks granted, and freed |
/// | `waits`, `waited_us` | number of allocations that waited on the host and were granted, and their total wait in microseconds |
/// | `device_waits` | number of device-side waits before reusing another stream's memory |
/// | `remaps` | number of chunks that were mapped elsewhere to make larger blocks |
/// | `failures` | number of allocations that failed |
const NAMES: [&str; 18] = [
    "capacity",
    "reserved",
    "peak_reserved",
    "used",
    "peak_used",
    "pending",
    "free",
    "largest_free",
    "in_graphs",
    "charged",
    "live_blocks",
    "allocations",
    "frees",
    "waits",
    "waited_us",
    "device_waits",
    "remaps",
    "failures",
];

impl Figures {
    /// Reads the figures of a pool. First records the events of all frees, and notes completed work.
    pub(crate) fn of(pool: &DevicePool) -> Self {
        // Releases nothing, but records the events. A failure leaves memory pending.
        let _ = pool.pool().trim_to(u64::MAX);
        let _ = pool.pool().maintain().reap();
        let read = pool.statistics();
        let waited = read.waits.times.total().as_micros();
        Self([
            read.capacity,
            read.reserved.current,
            read.reserved.high,
            read.used.current,
            read.used.high,
            read.pending.current,
            read.free,
            read.largest_free,
            read.in_graphs,
            read.charged,
            read.live_blocks,
            read.allocations,
            read.frees,
            read.waits.served,
            waited.try_into().unwrap_or(u64::MAX),
            read.device_waits,
            read.remaps,
            pool.failures(),
        ])
    }

    /// Returns each figure with its name.
    pub(crate) fn by_name(self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0)
    }

    /// Returns one figure.
    #[cfg(test)]
    pub(crate) fn get(self, name: &str) -> u64 {
        let found = self.by_name().find(|(known, _)| *known == name);
        found.expect("a known name").1
    }
}
