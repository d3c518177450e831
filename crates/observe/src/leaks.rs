//! Blocks that are still in use, and reservations that still live.

use crate::Recorder;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use weirpool::extend::Site;
use weirpool::{BlockInfo, BlockState, Pool, ReservationInfo, Tag};
use weirpool_heap::units::{Bytes, Milliseconds};

/// The blocks in use and the live reservations of a pool, at a moment when none should remain: see
/// [`Recorded::leaks`](crate::Recorded::leaks).
///
/// Its text lists the locations where they were allocated and reserved, the largest first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LeakReport {
    /// The time of the report, on the device's clock.
    pub time: Duration,
    /// Whether the pool has a [recorder](crate::Recorder). Without one, no
    /// [`origin`](BlockInfo::origin) is known.
    pub keeps_history: bool,
    /// By address. Blocks from reservations are among them.
    pub blocks: Vec<BlockInfo>,
    /// In the order of their creation, with the bytes that are not allocated.
    pub reservations: Vec<ReservationInfo>,
}

/// The allocations or reservations of one location and tag, if these are known, that are not freed.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    count: usize,
    bytes: u64,
    oldest: Duration,
}

/// The origin of a block: its location, its tag, and its time.
type Origin<'a> = (&'a Site, Option<Tag>, Duration);

/// The key of a group: a location and a tag, if these are known.
type GroupKey<'a> = (Option<&'a Site>, Option<&'static str>);

impl LeakReport {
    pub(crate) fn of(pool: &Pool) -> Self {
        let snapshot = pool.inspect().snapshot();
        let used = snapshot.blocks_in(BlockState::Used).cloned().collect();
        Self {
            blocks: used,
            reservations: snapshot.reservations,
            keeps_history: Recorder::of(pool).is_some(),
            time: snapshot.time,
        }
    }

    /// Returns whether no block is in use and no reservation lives.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.reservations.is_empty()
    }

    /// Returns the bytes of the blocks, and of the unallocated parts of the reservations.
    pub fn bytes(&self) -> u64 {
        self.in_blocks() + self.in_reservations()
    }

    fn in_blocks(&self) -> u64 {
        self.blocks.iter().map(|block| block.size).sum()
    }

    fn in_reservations(&self) -> u64 {
        let left = self.reservations.iter();
        left.map(|reservation| reservation.left).sum()
    }

    /// Returns how long a block has lived, if the pool keeps a history.
    pub fn age_of(&self, block: &BlockInfo) -> Option<Duration> {
        let origin = block.origin.as_ref()?;
        Some(self.time.saturating_sub(origin.time))
    }

    fn groups_of_blocks(&self) -> Vec<(GroupKey<'_>, Group)> {
        self.groups(self.blocks.iter().map(|block| {
            let origin = block.origin.as_ref();
            let origin = origin.map(|origin| (&origin.site, origin.tag, origin.time));
            (origin, block.size)
        }))
    }

    fn groups_of_reservations(&self) -> Vec<(GroupKey<'_>, Group)> {
        self.groups(self.reservations.iter().map(|reservation| {
            let origin = reservation.origin.as_ref();
            let origin = origin.map(|origin| (&origin.site, origin.tag, origin.time));
            (origin, reservation.left)
        }))
    }

    /// Groups blocks by location and tag, the largest group first.
    fn groups<'a>(
        &self,
        all: impl Iterator<Item = (Option<Origin<'a>>, u64)>,
    ) -> Vec<(GroupKey<'a>, Group)> {
        let mut groups = BTreeMap::<_, Group>::new();
        for (origin, bytes) in all {
            let tag = origin.and_then(|(_, tag, _)| tag);
            let key = (origin.map(|(site, ..)| site), tag.map(Tag::name));
            let group = groups.entry(key).or_default();
            group.count += 1;
            group.bytes += bytes;
            let age = origin.map(|(.., time)| self.time.saturating_sub(time));
            group.oldest = group.oldest.max(age.unwrap_or_default());
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
        let (blocks, reservations) = (self.blocks.len(), self.reservations.len());
        if blocks > 0 {
            write!(f, "{} in use", Blocks(blocks, self.in_blocks()))?;
        }
        if reservations > 0 {
            f.write_str(if blocks > 0 { ", " } else { "" })?;
            write!(f, "{}", Reservations(reservations, self.in_reservations()))?;
        }
        if !self.keeps_history {
            return f.write_str(
                "; build the pool with weirpool_observe::Recorder to record their locations",
            );
        }
        for (key, group) in self.groups_of_blocks() {
            write_line(f, Blocks(group.count, group.bytes), key, group.oldest)?;
        }
        for (key, group) in self.groups_of_reservations() {
            write_line(f, Reservations(group.count, group.bytes), key, group.oldest)?;
        }
        Ok(())
    }
}

fn write_line(
    f: &mut fmt::Formatter<'_>,
    amount: impl fmt::Display,
    (site, tag): GroupKey<'_>,
    oldest: Duration,
) -> fmt::Result {
    write!(f, "\n  {amount}, the oldest for {}", Milliseconds(oldest))?;
    if let Some(tag) = tag {
        write!(f, ", for {tag}")?;
    }
    match site {
        Some(site) => write!(f, ", from {site}"),
        // The block was granted at this moment.
        None => f.write_str(", from an unknown location"),
    }
}

/// `3 blocks of 1.5 MiB`
struct Blocks(usize, u64);

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, bytes) = *self;
        let blocks = if count == 1 { "block" } else { "blocks" };
        write!(f, "{count} {blocks} of {}", Bytes(bytes))
    }
}

/// `2 reservations with 1.5 MiB left`
struct Reservations(usize, u64);

impl fmt::Display for Reservations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, bytes) = *self;
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "{count} reservation{plural} with {} left", Bytes(bytes))
    }
}
