//! The terms on which a client takes part.

use serde::{Deserialize, Serialize};

/// The share of the capacity that a client may hold, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Bytes that are never taken back from the client, and that it obtains before other needs are met.
    pub guaranteed: u64,
    /// The most bytes that the client may hold.
    pub limit: u64,
    /// Where several clients can give memory back, a client of weight 2 keeps twice as much above its guarantee as a
    /// client of weight 1. At least 1.
    pub weight: u32,
}

impl Default for Share {
    /// No guarantee, no limit but the capacity, and a weight of 1.
    fn default() -> Self {
        Self {
            guaranteed: 0,
            limit: u64::MAX,
            weight: 1,
        }
    }
}

/// What a client tells the broker. The byte counts are sums over the client's life, so that a message that is repeated
/// or overtaken by another one changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// Bytes given back so far. The lease consists of the granted bytes, less these.
    pub returned: u64,
    /// Bytes that must have been granted for the requests that wait; no more than was granted if none waits.
    pub needs: u64,
    /// Bytes that are welcome beyond the need, if no client waits for them.
    pub wishes: u64,
    /// The [number](Terms::number) of the latest terms that the client has acted on.
    pub answered: u64,
    /// A number that rises when a caller waits for an answer: the broker answers with terms that have
    /// [heard](Terms::heard) it, whether or not they changed.
    pub asks: u64,
    /// Nanoseconds that giving memory back took so far.
    pub returning: u64,
    /// Blocks that the client granted so far: one that granted none for a time does not need its lease.
    pub blocks: u64,
    /// Bytes in use, for display.
    pub used: u64,
    /// Bytes held from the device, for display.
    pub reserved: u64,
    /// Requests that wait, for display.
    pub waiting: u64,
}

/// What the broker tells a client. The byte counts are sums over the client's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// The number of the terms, which rises by one with each change.
    pub number: u64,
    /// The latest [question](Statement::asks) that these terms answer.
    pub heard: u64,
    /// Bytes granted so far.
    pub granted: u64,
    /// Bytes that the client is asked to have returned.
    pub recalled: u64,
    /// The client may not begin to use more than it keeps after the recall. Otherwise it gives back its free memory
    /// now.
    pub is_binding: bool,
}

impl Terms {
    /// Returns the bytes that the client keeps once it has returned the recalled ones.
    pub fn kept(&self) -> u64 {
        self.granted.saturating_sub(self.recalled)
    }
}
