//! The soft cap of a pool: a mark on the reserved bytes. The pool may exceed it, says so, and gives memory above it
//! back.

use weirpool_sync::{Ordering, SharedFlag, SharedNumber};

/// A mark on the reserved bytes of a pool.
#[derive(Debug)]
pub struct SoftCap {
    /// `u64::MAX` for none.
    bytes: SharedNumber,
    /// The cap is exceeded, and a subscriber was told.
    is_exceeded: SharedFlag,
}

/// No cap.
impl Default for SoftCap {
    fn default() -> Self {
        Self {
            bytes: SharedNumber::new(u64::MAX),
            is_exceeded: SharedFlag::new(false),
        }
    }
}

impl SoftCap {
    /// Returns the cap; `u64::MAX` for none.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Sets the cap; `u64::MAX` removes it.
    pub fn set(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.is_exceeded.store(false, Ordering::Relaxed);
    }

    /// Notes the reserved bytes after a growth or a release. Returns the cap if this exceeds it for the first time
    /// since the pool was within it.
    pub fn newly_exceeded(&self, reserved: u64) -> Option<u64> {
        let bytes = self.bytes();
        let is_exceeded = reserved > bytes;
        if self.is_exceeded.load(Ordering::Relaxed) == is_exceeded {
            return None;
        }
        let before = self.is_exceeded.swap(is_exceeded, Ordering::Relaxed);
        (is_exceeded && !before).then_some(bytes)
    }
}

#[cfg(all(test, not(weirpool_loom)))]
mod tests {
    use super::*;

    #[test]
    fn cap_is_exceeded_once_until_the_pool_is_within_it_again() {
        let cap = SoftCap::default();
        assert_eq!(cap.newly_exceeded(1 << 60), None, "there is no cap");
        cap.set(100);
        let told = [100, 101, 150, 90, 120].map(|reserved| cap.newly_exceeded(reserved));
        assert_eq!(told, [None, Some(100), None, None, Some(100)]);
        cap.set(200);
        assert_eq!(cap.newly_exceeded(201), Some(200));
    }
}
