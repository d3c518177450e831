//! Blocks by size, for exact best fit in constant time.
//!
//! A few blocks are kept in one sorted list. More are kept in *bins*, sixteen for each power of two, with a bitmap of
//! the bins that are not empty, as in TLSF (Masmano et al., 2004). Unlike there, each bin is sorted, so the best fit
//! is exact. Most bins hold one block or none, in one cache line. A bin of very many blocks, as a workload of one size
//! makes it, is a tree.

use super::super::block::BlockId;
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// A block's size, its address and its id, which is the sort order.
type Entry = (u64, u64, BlockId);

/// The number of blocks that are kept in one list. In a longer list the position of an entry is mispredicted.
const FEW: usize = 8;
/// The number of blocks that a bin keeps in a list.
const MANY: usize = 64;

/// Blocks by size, and by address among those of one size.
#[derive(Debug)]
pub(crate) enum BySize {
    Few(Vec<Entry>),
    Many(Box<Bins>),
}

impl Default for BySize {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl BySize {
    #[inline]
    pub(crate) fn insert(&mut self, bytes: u64, address: u64, id: BlockId) {
        let entry = (bytes, address, id);
        match self {
            Self::Many(bins) => bins.insert(entry),
            Self::Few(list) if list.len() < FEW => insert_sorted(list, entry),
            Self::Few(list) => {
                let mut bins = Bins::of(std::mem::take(list));
                bins.insert(entry);
                *self = Self::Many(bins);
            }
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, bytes: u64, address: u64, id: BlockId) {
        let entry = (bytes, address, id);
        let was_there = match self {
            Self::Few(list) => remove_sorted(list, entry),
            // The bins stay when they are empty: where there were many blocks, there will be many again.
            Self::Many(bins) => bins.remove(entry),
        };
        debug_assert!(was_there, "an indexed block is found");
    }

    /// Returns the smallest block of at least `bytes` that `accept` accepts, among the first `most`, and its result.
    #[inline]
    pub(crate) fn best<T>(
        &self,
        bytes: u64,
        most: usize,
        accept: impl Fn(BlockId) -> Option<T>,
    ) -> Option<(u64, BlockId, T)> {
        // The first is accepted nearly always.
        let (size, id) = self.first(bytes)?;
        if let Some(accepted) = accept(id) {
            return Some((size, id, accepted));
        }
        self.best_but_first(bytes, most, accept)
    }

    #[cold]
    fn best_but_first<T>(
        &self,
        bytes: u64,
        most: usize,
        accept: impl Fn(BlockId) -> Option<T>,
    ) -> Option<(u64, BlockId, T)> {
        let mut others = self.at_least(bytes).take(most).skip(1);
        others.find_map(|(size, id)| Some((size, id, accept(id)?)))
    }

    /// Visits the blocks of exactly this size, the first `most` of them.
    pub(crate) fn visit_size(&self, bytes: u64, most: usize, visit: impl FnMut(BlockId)) {
        let is_of_size = |entry: &Entry| entry.0 == bytes;
        match self {
            Self::Few(list) => {
                let rest = &list[list.partition_point(|entry| entry.0 < bytes)..];
                let of_size = rest.iter().copied().take_while(is_of_size);
                of_size.take(most).map(|(.., id)| id).for_each(visit);
            }
            Self::Many(bins) => {
                if let Some(bin) = bins.bins.get(Bins::number(bytes)) {
                    let of_size = bin.at_least(bytes).take_while(is_of_size);
                    of_size.take(most).map(|(.., id)| id).for_each(visit);
                }
            }
        }
    }

    fn first(&self, bytes: u64) -> Option<(u64, BlockId)> {
        let (size, _, id) = match self {
            Self::Few(list) => *list.get(list.partition_point(|entry| entry.0 < bytes))?,
            Self::Many(bins) => bins.first(bytes)?,
        };
        Some((size, id))
    }

    /// Returns the blocks of at least `bytes`, smallest first.
    pub(crate) fn at_least(&self, bytes: u64) -> impl Iterator<Item = (u64, BlockId)> + '_ {
        let (list, bins) = match self {
            Self::Few(list) => (&list[list.partition_point(|entry| entry.0 < bytes)..], None),
            Self::Many(bins) => (&[][..], Some(bins.at_least(bytes))),
        };
        let entries = list.iter().copied().chain(bins.into_iter().flatten());
        entries.map(|(bytes, _, id)| (bytes, id))
    }

    /// Returns all blocks, smallest first.
    pub(crate) fn all(&self) -> SmallVec<[BlockId; 4]> {
        match self {
            Self::Few(list) => list.iter().map(|(.., id)| *id).collect(),
            Self::Many(bins) => bins.at_least(0).map(|(.., id)| id).collect(),
        }
    }

    /// Returns the largest block and its size.
    pub(crate) fn last(&self) -> Option<(u64, BlockId)> {
        let last = match self {
            Self::Few(list) => list.last().copied(),
            Self::Many(bins) => bins.last(),
        };
        last.map(|(bytes, _, id)| (bytes, id))
    }

    pub(crate) fn largest(&self) -> u64 {
        self.last().map_or(0, |(bytes, _)| bytes)
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Few(list) => list.len(),
            Self::Many(bins) => bins.len,
        }
    }
}

fn insert_sorted(list: &mut Vec<Entry>, entry: Entry) {
    let at = list.partition_point(|other| *other < entry);
    list.insert(at, entry);
}

fn remove_sorted(list: &mut Vec<Entry>, entry: Entry) -> bool {
    let at = list.partition_point(|other| *other < entry);
    let is_there = list.get(at) == Some(&entry);
    if is_there {
        list.remove(at);
    }
    is_there
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Bins {
    bins: Vec<Bin>,
    /// A bit for each bin, set if the bin is not empty.
    occupied: [u64; Self::WORDS],
    len: usize,
}

impl Default for Bins {
    fn default() -> Self {
        Self {
            bins: Vec::new(),
            occupied: [0; Self::WORDS],
            len: 0,
        }
    }
}

impl Bins {
    /// The number of bins for all sizes.
    const COUNT: usize = 16 * 61;
    const WORDS: usize = Self::COUNT.div_ceil(64);

    #[cold]
    fn of(entries: Vec<Entry>) -> Box<Self> {
        let mut bins = Box::<Self>::default();
        entries.into_iter().for_each(|entry| bins.insert(entry));
        bins
    }

    /// Returns the bin of a size, from its leading bit and the four bits after that.
    fn number(bytes: u64) -> usize {
        if bytes < 16 {
            return bytes as usize;
        }
        let power = bytes.ilog2() as usize;
        let next = (bytes >> (power - 4)) as usize & 15;
        (power - 3) * 16 + next
    }

    #[inline(always)]
    fn insert(&mut self, entry: Entry) {
        let number = Self::number(entry.0);
        if self.bins.len() <= number {
            self.bins.resize_with(number + 1, Bin::default);
        }
        self.bins[number].insert(entry);
        self.occupied[number / 64] |= 1 << (number % 64);
        self.len += 1;
    }

    #[inline]
    fn remove(&mut self, entry: Entry) -> bool {
        let number = Self::number(entry.0);
        let Some(bin) = self.bins.get_mut(number) else {
            return false;
        };
        let was_there = bin.remove(entry);
        if bin.is_empty() {
            self.occupied[number / 64] &= !(1 << (number % 64));
        }
        self.len -= usize::from(was_there);
        was_there
    }

    /// Returns the first bin from this one on that is not empty.
    fn next(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = self.occupied.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.occupied.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    fn first(&self, bytes: u64) -> Option<Entry> {
        let mut next = self.next(Self::number(bytes));
        // All blocks of the first bin may be too small; those of later bins are not.
        loop {
            let number = next?;
            let first = self.bins[number].first(bytes);
            if first.is_some() {
                return first;
            }
            next = self.next(number + 1);
        }
    }

    fn at_least(&self, bytes: u64) -> impl Iterator<Item = Entry> + '_ {
        let first = Self::number(bytes);
        let mut next = self.next(first);
        let bins = std::iter::from_fn(move || {
            let number = next?;
            next = self.next(number + 1);
            Some(number)
        });
        bins.flat_map(move |number| {
            let least = if number == first { bytes } else { 0 };
            self.bins[number].at_least(least)
        })
    }

    fn last(&self) -> Option<Entry> {
        let words = self.occupied.iter().enumerate().rev();
        let (word, bits) = words.into_iter().find(|(_, bits)| **bits != 0)?;
        let number = word * 64 + bits.ilog2() as usize;
        self.bins[number].last()
    }
}

/// Blocks of nearly one size.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Bin {
    first: Option<Entry>,
    others: Others,
}

impl Bin {
    fn insert(&mut self, entry: Entry) {
        match &mut self.first {
            None => self.first = Some(entry),
            Some(first) if entry < *first => {
                let second = std::mem::replace(first, entry);
                self.others.insert(second);
            }
            Some(_) => self.others.insert(entry),
        }
    }

    fn remove(&mut self, entry: Entry) -> bool {
        if self.first == Some(entry) {
            self.first = if self.others.is_empty() {
                None
            } else {
                self.others.pop_first()
            };
            return true;
        }
        self.others.remove(entry)
    }

    fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Returns the smallest entry of at least `bytes`.
    fn first(&self, bytes: u64) -> Option<Entry> {
        let first = self.first?;
        if first.0 >= bytes {
            return Some(first);
        }
        self.others.first(bytes)
    }

    fn at_least(&self, bytes: u64) -> impl Iterator<Item = Entry> + '_ {
        let first = self.first.filter(|first| first.0 >= bytes);
        first.into_iter().chain(self.others.at_least(bytes))
    }

    fn last(&self) -> Option<Entry> {
        self.others.last().or(self.first)
    }
}

/// All entries of a bin but the first.
#[derive(Debug)]
enum Others {
    List(Vec<Entry>),
    Tree(BTreeSet<Entry>),
}

impl Default for Others {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

// Out of line: an operation nearly always needs only the first entry of a bin.
impl Others {
    #[inline(never)]
    fn insert(&mut self, entry: Entry) {
        match self {
            Self::List(list) if list.len() < MANY => insert_sorted(list, entry),
            Self::List(list) => {
                let mut tree: BTreeSet<_> = list.drain(..).collect();
                tree.insert(entry);
                *self = Self::Tree(tree);
            }
            Self::Tree(tree) => {
                tree.insert(entry);
            }
        }
    }

    #[inline(never)]
    fn remove(&mut self, entry: Entry) -> bool {
        match self {
            Self::List(list) => remove_sorted(list, entry),
            Self::Tree(tree) => tree.remove(&entry),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::List(list) => list.is_empty(),
            Self::Tree(tree) => tree.is_empty(),
        }
    }

    #[inline(never)]
    fn pop_first(&mut self) -> Option<Entry> {
        match self {
            Self::List(list) => (!list.is_empty()).then(|| list.remove(0)),
            Self::Tree(tree) => tree.pop_first(),
        }
    }

    #[inline(never)]
    fn first(&self, bytes: u64) -> Option<Entry> {
        self.at_least(bytes).next()
    }

    fn at_least(&self, bytes: u64) -> impl Iterator<Item = Entry> + '_ {
        let (list, tree) = match self {
            Self::List(list) => (&list[list.partition_point(|entry| entry.0 < bytes)..], None),
            Self::Tree(tree) => (&[][..], Some(tree.range((bytes, 0, BlockId::FIRST)..))),
        };
        list.iter().chain(tree.into_iter().flatten()).copied()
    }

    fn last(&self) -> Option<Entry> {
        match self {
            Self::List(list) => list.last().copied(),
            Self::Tree(tree) => tree.last().copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_in_order_and_cover_all_sizes() {
        let mut sizes: Vec<u64> = (0..64)
            .flat_map(|bit| [1 << bit, (1 << bit) + (1 << bit) / 3])
            .collect();
        sizes.extend([0, 3, u64::MAX]);
        sizes.sort_unstable();
        let numbers: Vec<_> = sizes.iter().map(|bytes| Bins::number(*bytes)).collect();
        assert!(numbers.is_sorted());
        assert!(numbers.iter().all(|number| *number < Bins::COUNT));
        assert_eq!(Bins::number(u64::MAX), Bins::COUNT - 1);
    }

    #[test]
    fn index_by_size_agrees_with_a_sorted_set() {
        let mut random = fastrand::Rng::with_seed(1);
        let steps = if cfg!(miri) { 240 } else { 4000 };
        for spread in [1, 4, 40] {
            let (mut index, mut set) = (BySize::default(), BTreeSet::new());
            for step in 0..steps {
                let is_growing = step < steps / 8 * 5;
                if set.is_empty() || random.u8(..10) < if is_growing { 6 } else { 2 } {
                    let entry = (
                        1 << random.u64(..spread) | random.u64(..3),
                        random.u64(..),
                        BlockId::of_slot(step),
                    );
                    index.insert(entry.0, entry.1, entry.2);
                    set.insert(entry);
                } else {
                    let at = random.usize(..set.len());
                    let entry = *set.iter().nth(at).expect("one of them");
                    index.remove(entry.0, entry.1, entry.2);
                    set.remove(&entry);
                }
                let least = 1 << random.u64(..spread);
                let does = |id: BlockId| !id.slot().is_multiple_of(3);
                let mut range = set.range((least, 0, BlockId::FIRST)..).take(9);
                let best = range.find(|entry| does(entry.2)).map(|entry| entry.2);
                let found = index.best(least, 9, |id| does(id).then_some(()));
                assert_eq!(found.map(|(_, id, ())| id), best);
                if let Some((size, _)) = index.first(least) {
                    let mut of_size = Vec::new();
                    index.visit_size(size, 9, |id| of_size.push(id));
                    let ends = [size, size + 1].map(|size| (size, 0, BlockId::FIRST));
                    let range = set.range(ends[0]..ends[1]);
                    assert!(of_size.iter().eq(range.map(|entry| &entry.2).take(9)));
                }
                let found: Vec<_> = index.at_least(least).map(|(_, id)| id).take(5).collect();
                let range = set.range((least, 0, BlockId::FIRST)..);
                assert_eq!(
                    found,
                    range.map(|(_, _, id)| *id).take(5).collect::<Vec<_>>()
                );
                assert_eq!(
                    index.last().map(|(_, id)| id),
                    set.last().map(|entry| entry.2)
                );
                assert_eq!(index.len(), set.len());
            }
        }
    }
}
