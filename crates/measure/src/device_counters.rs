//! Counts of device calls and of memory that is set aside or foreign. Blocks are counted in the lanes of their streams.

use weirpool_sync::{Count, Ordering, SharedNumber};

/// Counts of device calls and set-aside memory. Blocks are counted in the lanes of their streams.
#[derive(Debug)]
pub struct DeviceCounters {
    /// How often memory was mapped or allocated from the device. A thread that comes to grow compares it.
    pub growths: SharedNumber,
    /// Chunks that the device created.
    pub chunks_created: Count,
    /// Chunks that were mapped elsewhere.
    pub remaps: Count,
    /// Waits that were inserted on the device.
    pub device_waits: Count,
    /// Bytes that were given back to the device.
    pub released: Count,
    /// Bytes that are set aside for graphs.
    graphs: SharedNumber,
    /// Bytes of foreign memory that blocks have, or had while work may use it.
    foreign: SharedNumber,
    /// Bytes of foreign memory that is absent.
    suspended: SharedNumber,
}

impl Default for DeviceCounters {
    fn default() -> Self {
        Self {
            growths: SharedNumber::new(0),
            chunks_created: Count::default(),
            remaps: Count::default(),
            device_waits: Count::default(),
            released: Count::default(),
            graphs: SharedNumber::new(0),
            foreign: SharedNumber::new(0),
            suspended: SharedNumber::new(0),
        }
    }
}

impl DeviceCounters {
    /// Notes that this many bytes more are set aside for graphs.
    #[inline]
    pub fn graphs_grew(&self, bytes: u64) {
        self.graphs.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that this many bytes less are set aside for graphs.
    #[inline]
    pub fn graphs_shrank(&self, bytes: u64) {
        self.graphs.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes that are set aside for graphs.
    #[inline]
    pub fn in_graphs(&self) -> u64 {
        self.graphs.load(Ordering::Relaxed)
    }

    /// Notes that this many bytes more of foreign memory are in blocks.
    #[inline]
    pub fn foreign_grew(&self, bytes: u64) {
        self.foreign.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that this many bytes less of foreign memory are in use.
    #[inline]
    pub fn foreign_shrank(&self, bytes: u64) {
        self.foreign.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes of foreign memory that blocks have, or had while work may use it.
    #[inline]
    pub fn foreign(&self) -> u64 {
        self.foreign.load(Ordering::Relaxed)
    }

    /// Notes that an absence of `before` bytes is one of `now` bytes.
    #[inline]
    pub fn suspended(&self, before: u64, now: u64) {
        self.suspended.fetch_add(now, Ordering::Relaxed);
        self.suspended.fetch_sub(before, Ordering::Relaxed);
    }

    /// Returns the bytes of foreign memory that is absent.
    #[inline]
    pub fn in_absence(&self) -> u64 {
        self.suspended.load(Ordering::Relaxed)
    }
}
