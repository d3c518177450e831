//! Blocks that are in use still.

use super::snapshot::age;
use super::units::{Bytes, Milliseconds};
use crate::engine::{BlockInfo, BlockState, Engine, Site};
use crate::trace;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The blocks of a pool that are in use at one moment, when nobody should have one any more: see
/// [`Pool::leaks`](crate::Pool::leaks).
///
/// As text it names where they were allocated, what is largest first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LeakReport {
    /// When, on the device's clock.
    pub time: Duration,
    /// Whether the pool keeps a [history](crate::PoolBuilder::history). Without one, no
    /// [`origin`](BlockInfo::origin) is known.
    pub keeps_history: bool,
    /// In the order of their addresses.
    pub blocks: Vec<BlockInfo>,
}

/// A site and a tag, as far as they are known.
type Place<'a> = (Option<&'a Site>, Option<&'static str>);

/// What was allocated at one place and is in use still.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    count: usize,
    bytes: u64,
    oldest: Duration,
}

impl LeakReport {
    pub(crate) fn of(engine: &Engine) -> Self {
        let segments = engine.segments().into_iter();
        let blocks = segments.flat_map(|segment| segment.blocks);
        let used = blocks.filter(|block| block.state == BlockState::Used);
        Self {
            blocks: used.collect(),
            keeps_history: engine.has_journal(),
            // Not earlier than what is told.
            time: engine.device.now(),
        }
    }

    /// Whether no block is in use.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.size).sum()
    }

    /// How long a block has lived, if the pool keeps a history.
    pub fn age_of(&self, block: &BlockInfo) -> Option<Duration> {
        age(block, self.time)
    }

    /// Warns a subscriber, if there is something to say.
    pub(crate) fn tell(&self) {
        if !self.is_empty() {
            trace::leaked(self.blocks.len(), self.bytes(), self);
        }
    }

    /// By place and tag, the largest first.
    fn groups(&self) -> Vec<(Place<'_>, Group)> {
        let mut groups = BTreeMap::<_, Group>::new();
        for block in &self.blocks {
            let origin = block.origin.as_ref();
            let tag = origin.and_then(|origin| origin.tag);
            let place = (origin.map(|origin| &origin.site), tag.map(|tag| tag.name()));
            let group = groups.entry(place).or_default();
            group.count += 1;
            group.bytes += block.size;
            let age = self.age_of(block).unwrap_or_default();
            group.oldest = group.oldest.max(age);
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.bytes));
        groups
    }
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("no block is in use");
        }
        write!(f, "{} in use", Amount(self.blocks.len(), self.bytes()))?;
        if !self.keeps_history {
            return f.write_str("; PoolBuilder::history has their places known");
        }
        for ((site, tag), group) in self.groups() {
            let amount = Amount(group.count, group.bytes);
            write!(
                f,
                "\n  {amount}, the oldest for {}",
                Milliseconds(group.oldest)
            )?;
            if let Some(tag) = tag {
                write!(f, ", for {tag}")?;
            }
            match site {
                Some(site) => write!(f, ", from {site}")?,
                // Granted at that very moment.
                None => f.write_str(", from a place that is not known yet")?,
            }
        }
        Ok(())
    }
}

/// `3 blocks of 1.5 MiB`
struct Amount(usize, u64);

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, bytes) = *self;
        let blocks = if count == 1 { "block" } else { "blocks" };
        write!(f, "{count} {blocks} of {}", Bytes(bytes))
    }
}
