//! The physical bytes of one place, the device or its host: how many there are, and how many are taken.

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Budget {
    total: u64,
    /// Bytes that are reported as free and never given.
    withheld: u64,
    /// Bytes that are given and not reported as free.
    unreported: u64,
    in_use: u64,
    /// Bytes that another program has taken.
    occupied: u64,
    peak: u64,
}

impl Budget {
    pub(super) fn new(total: u64, withheld: u64, unreported: u64) -> Self {
        Self {
            total,
            withheld: withheld.min(total),
            unreported,
            in_use: 0,
            occupied: 0,
            peak: 0,
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the bytes that are taken: now, and at the peak.
    pub(crate) fn usage(&self) -> (u64, u64) {
        (self.in_use, self.peak)
    }

    /// Returns the bytes that can be taken.
    pub(crate) fn available(&self) -> u64 {
        self.untaken() - self.withheld
    }

    /// Returns the bytes that are reported as free.
    pub(crate) fn reported(&self) -> u64 {
        self.untaken().saturating_sub(self.unreported)
    }

    fn untaken(&self) -> u64 {
        self.total - self.in_use - self.occupied
    }

    /// Takes memory for another program: up to `bytes`, as much as there is. Returns how much.
    pub(crate) fn occupy(&mut self, bytes: u64) -> u64 {
        let taken = bytes.min(self.available());
        self.occupied += taken;
        taken
    }

    pub(crate) fn vacate(&mut self, bytes: u64) {
        self.occupied -= bytes;
    }

    /// Takes bytes, which must be available.
    pub(super) fn take(&mut self, bytes: u64) {
        self.in_use += bytes;
        self.peak = self.peak.max(self.in_use);
    }

    pub(super) fn give_back(&mut self, bytes: u64) {
        self.in_use -= bytes;
    }
}
