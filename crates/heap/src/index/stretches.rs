//! Stretches of neighbouring unused blocks, by length.
//!
//! Only a search that joins blocks or grows asks for them, and in a small heap it is faster to look at all unused
//! blocks. So a heap notes which blocks changed, and the lists are brought up to date when a search asks. They are made
//! if few blocks change between searches. If many changed, looking at all blocks costs little for each of them.

use super::super::block::{Block, BlockId, Blocks, State};
use std::collections::{BTreeMap, BTreeSet};

/// The number of live blocks from which on lists pay.
const MANY: usize = if cfg!(test) { 8 } else { 256 };

/// More than one changed block in so many live ones are too many between two searches.
const SHARE: usize = if cfg!(test) { 1 } else { 64 };

/// Making lists takes up to twice as long as a look at all unused blocks. So they are made at the second search in a row
/// that few blocks changed before.
const SEARCHES: u32 = if cfg!(test) { 1 } else { 2 };

/// The stretches of a heap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stretches {
    lists: Option<Lists>,
    /// The blocks that changed since the last search.
    changed: Vec<BlockId>,
    /// How many more of them are noted. If none, many blocks changed.
    left: usize,
    /// The number of searches in a row that few blocks changed before, while there are no lists.
    searches: u32,
}

/// All stretches of two blocks or more. A block alone is in the index of its state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lists {
    /// Stretches of free and pending blocks.
    pub backed: List,
    /// Stretches of free and pending blocks and holes.
    pub unused: List,
}

/// Returns whether a block may be part of a window: it is free or pending, or a hole.
#[inline]
pub(crate) fn is_unused(block: &Block) -> bool {
    matches!(block.state, State::Free | State::Pending(_) | State::Hole)
}

fn is_backed(block: &Block) -> bool {
    matches!(block.state, State::Free | State::Pending(_))
}

impl Stretches {
    /// Notes a new block, and one with another state, size or address.
    #[inline(always)]
    pub(crate) fn list(&mut self, id: BlockId) {
        if self.left > 0 {
            self.push(id);
        }
    }

    #[cold]
    #[inline(never)]
    fn push(&mut self, id: BlockId) {
        self.left -= 1;
        self.changed.push(id);
    }

    /// Gives the lists up, as for a removed segment.
    pub(crate) fn give_up(&mut self) {
        (self.lists, self.searches) = (None, 0);
    }

    /// Brings the lists up to date for a search. `unused` are all unused blocks.
    pub(super) fn update(&mut self, blocks: &Blocks, unused: impl Iterator<Item = BlockId>) {
        let is_many = blocks.len() >= MANY;
        if !is_many || self.left == 0 {
            self.give_up();
        } else if let Some(lists) = &mut self.lists {
            for list in lists.all() {
                list.update(blocks, &self.changed);
            }
        } else {
            self.searches += 1;
            if self.searches >= SEARCHES {
                self.lists = Some(Lists::of(blocks, unused));
            }
        }
        self.changed.clear();
        self.left = if is_many { blocks.len() / SHARE } else { 0 };
    }

    /// Returns the lists, if they pay.
    pub(crate) fn lists(&self) -> Option<&Lists> {
        self.lists.as_ref()
    }

    /// Returns how the lists differ from those of the blocks, once they are up to date.
    pub(crate) fn check(
        &self,
        blocks: &Blocks,
        unused: impl Iterator<Item = BlockId>,
    ) -> Result<(), String> {
        let mut copy = self.clone();
        copy.update(blocks, std::iter::empty());
        let fresh = self.lists.is_some().then(|| Lists::of(blocks, unused));
        match (copy.lists, fresh) {
            (Some(lists), Some(fresh)) if lists != fresh => {
                Err(format!("stretches: {lists:?} instead of {fresh:?}"))
            }
            _ => Ok(()),
        }
    }
}

impl Lists {
    fn of(blocks: &Blocks, unused: impl Iterator<Item = BlockId>) -> Self {
        let mut lists = Self {
            backed: List::new(is_backed),
            unused: List::new(is_unused),
        };
        // Nested iterators are fast from inside.
        unused.for_each(|id| {
            for list in lists.all() {
                list.add_from(blocks, id);
            }
        });
        lists
    }

    fn all(&mut self) -> [&mut List; 2] {
        [&mut self.backed, &mut self.unused]
    }
}

/// The stretches of one kind of block.
#[derive(Clone, Debug)]
pub(crate) struct List {
    is_member: fn(&Block) -> bool,
    by_start: BTreeMap<u64, Stretch>,
    /// By length, and by start among those of one length.
    by_bytes: BTreeSet<(u64, u64)>,
}

impl PartialEq for List {
    fn eq(&self, other: &Self) -> bool {
        self.by_start == other.by_start && self.by_bytes == other.by_bytes
    }
}

/// Neighbours of one kind, with none of that kind beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub first: BlockId,
    pub end: u64,
}

impl List {
    fn new(is_member: fn(&Block) -> bool) -> Self {
        Self {
            is_member,
            by_start: BTreeMap::new(),
            by_bytes: BTreeSet::new(),
        }
    }

    /// Returns the stretches of at least `bytes`, shortest first.
    pub(crate) fn at_least(&self, bytes: u64) -> impl Iterator<Item = Stretch> + '_ {
        let enough = self.by_bytes.range((bytes, 0)..);
        enough.map(|(_, start)| self.by_start[start])
    }

    fn insert(&mut self, start: u64, stretch: Stretch) {
        self.by_start.insert(start, stretch);
        self.by_bytes.insert((stretch.end - start, start));
    }

    fn remove(&mut self, start: u64) -> Option<Stretch> {
        let stretch = self.by_start.remove(&start)?;
        self.by_bytes.remove(&(stretch.end - start, start));
        Some(stretch)
    }

    /// Adds the stretch that begins with this block, if one does.
    fn add_from(&mut self, blocks: &Blocks, first: BlockId) {
        let is_member = |id: BlockId| (self.is_member)(&blocks[id]);
        let block = &blocks[first];
        let begins = is_member(first) && !block.previous.is_some_and(is_member);
        if !begins || !block.next.is_some_and(is_member) {
            return;
        }
        let members = blocks.from(first).map(|(_, block)| block);
        let members = members.take_while(|block| (self.is_member)(block));
        let end = members.last().expect("the first is one").end();
        self.insert(block.address, Stretch { first, end });
    }

    /// Brings the list up to date with these blocks. Every address that is of another kind than before lies in one of
    /// them, and so does every start of a block that has another id.
    fn update(&mut self, blocks: &Blocks, changed: &[BlockId]) {
        let changed = || {
            changed
                .iter()
                .filter_map(|id| Some((*id, blocks.get(*id)?)))
        };
        let mut rests = Vec::new();
        for (_, block) in changed() {
            rests.extend(self.cut(block.address, block.end(), block.next));
        }
        for (id, block) in changed() {
            if (self.is_member)(block) {
                self.join(blocks, id, block);
            }
        }
        // The rest of a stretch may be one block.
        for start in rests {
            let stretch = self.by_start.get(&start);
            if stretch.is_some_and(|rest| blocks[rest.first].end() == rest.end) {
                self.remove(start);
            }
        }
    }

    /// Takes a range out of all stretches. `above` is the block right above it. Returns where the rests of stretches
    /// may begin.
    fn cut(&mut self, start: u64, end: u64, above: Option<BlockId>) -> [u64; 2] {
        let mut rests = [start, end];
        while let Some((&from, &stretch)) = self.by_start.range(..end).next_back()
            && stretch.end > start
        {
            self.remove(from);
            if let Some(first) = above.filter(|_| stretch.end > end) {
                self.insert(end, Stretch { first, ..stretch });
            }
            if from < start {
                let end = start;
                self.insert(from, Stretch { end, ..stretch });
                rests[0] = from;
            }
        }
        rests
    }

    /// Joins the stretch of a block, or the block if it is in none, with the neighbours of its kind. A neighbour in no
    /// stretch is joined alone: it was alone, or its own turn comes.
    fn join(&mut self, blocks: &Blocks, id: BlockId, block: &Block) {
        let member = |id: Option<BlockId>| id.filter(|id| (self.is_member)(&blocks[*id]));
        let mut joined = self.around(block).unwrap_or((
            block.address,
            Stretch {
                first: id,
                end: block.end(),
            },
        ));
        let below = member(block.previous).filter(|_| joined.0 == block.address);
        let above = member(block.next).filter(|_| joined.1.end == block.end());
        if let Some(below) = below {
            let lower = &blocks[below];
            let (start, first) = match self.around(lower) {
                Some((start, stretch)) => (start, stretch.first),
                None => (lower.address, below),
            };
            joined = (start, Stretch { first, ..joined.1 });
        }
        if let Some(above) = above {
            let upper = &blocks[above];
            let stretch = self.around(upper).map(|(_, stretch)| stretch);
            joined.1.end = stretch.map_or(upper.end(), |stretch| stretch.end);
        }
        if below.is_some() || above.is_some() {
            self.remove(joined.0);
            self.remove(block.address);
            // Another segment may begin right above.
            if above.is_some() {
                self.remove(block.end());
            }
            self.insert(joined.0, joined.1);
        }
    }

    /// Returns the stretch that contains a block, with its start.
    fn around(&self, block: &Block) -> Option<(u64, Stretch)> {
        let (start, stretch) = self.by_start.range(..=block.address).next_back()?;
        (stretch.end > block.address).then_some((*start, *stretch))
    }
}
