//! Requests and bytes that wait, counted.

use crate::QueueLimit;

/// Requests, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) requests: usize,
    pub(crate) bytes: u64,
}

impl Amount {
    #[inline]
    pub(crate) fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    #[inline]
    pub(crate) fn subtract(&mut self, bytes: u64) {
        self.requests -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Returns whether one more request for that many bytes exceeds the limit.
    #[inline]
    pub(crate) fn is_full(self, limit: QueueLimit, bytes: u64) -> bool {
        self.requests >= limit.requests || self.bytes.saturating_add(bytes) > limit.bytes
    }

    pub(crate) fn of(self, kind: LimitKind) -> u128 {
        match kind {
            LimitKind::Requests => self.requests as u128,
            LimitKind::Bytes => self.bytes.into(),
        }
    }
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitKind {
    Requests,
    Bytes,
}
