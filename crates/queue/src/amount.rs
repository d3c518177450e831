//! Requests and bytes that wait, counted.

use crate::QueueLimit;
use std::collections::BTreeMap;

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

/// How many requests there are of each size.
#[derive(Debug, Default)]
pub(crate) struct Sizes(BTreeMap<u64, usize>);

impl Sizes {
    #[inline]
    pub(crate) fn add(&mut self, bytes: u64) {
        *self.0.entry(bytes).or_default() += 1;
    }

    #[inline]
    pub(crate) fn remove(&mut self, bytes: u64) {
        if let Some(count) = self.0.get_mut(&bytes) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&bytes);
            }
        }
    }

    pub(crate) fn largest(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(bytes, _)| *bytes)
    }
}
