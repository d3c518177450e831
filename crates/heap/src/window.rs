//! Where a contiguous range for a request costs least to build, and where a request may lie at all.
//!
//! A *run* is a stretch of neighbouring blocks that the requester may take: free blocks, blocks pending behind fences
//! that do not exclude it, and holes that memory can be mapped into. A *window* is a range for the request inside a
//! run. Its cost is, in this order: the chunks that the device must provide, the chunks that must be mapped, whether
//! the window includes pending memory, and when that memory is expected to be complete.
//!
//! A request may be served in several ways: by joining neighbours, by moving free chunks, or by taking new ones. One
//! [scan](Offers::find) finds the cheapest window for each way. It looks at the unused blocks alone, through their
//! indexes. In a large heap it compares [some](MOST) of the stretches that are long enough, the shortest first. The
//! [`Offers`] that it returns answer every question of a policy, as long as the caller holds the heap's lock: what a
//! plan would cost, whether the device could help, and which window to claim.
//!
//! *Room* is a range of addresses without memory that belongs to the used block below it. Only that block may have
//! memory mapped there. The room becomes a hole when the block is freed.

use super::block::{Block, BlockId, State};
use super::block_map::BlockMap;
use super::fit::Search;
use super::forecast::Forecast;
use super::growth::Capacity;
use super::index::{BySize, Lists, Stretch, is_unused};
use super::request::{Placement, Request, View};
use smallvec::SmallVec;
use std::cmp::Ordering;

/// The number of stretches of each kind that are compared where they are [listed](super::index::Lists).
const MOST: usize = 64;

/// The actions that a plan may take besides joining neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Nothing.
    None,
    /// Map free memory from elsewhere into holes.
    Remap,
    /// Map free memory from elsewhere, and take new memory for the rest, within the capacity.
    Allowed,
    /// Move up to this many chunks, and take new memory for the rest. The limit holds as long as there is new memory
    /// within the capacity, and until the pool holds twice the most memory that was in use.
    Sparing(u64),
    /// Move nothing and take new memory, as long as the capacity has it.
    New,
}

impl Growth {
    /// Returns whether new memory may be taken in place of memory that could be moved.
    pub fn is_sparing(self) -> bool {
        matches!(self, Self::Sparing(_) | Self::New)
    }

    /// Returns whether the fewest new chunks are wanted, however many are moved.
    fn wants_fewest(self) -> bool {
        matches!(self, Self::Remap | Self::Allowed)
    }

    /// Returns how many chunks may be moved.
    fn moves(self) -> u64 {
        match self {
            Self::None | Self::New => 0,
            Self::Sparing(moves) => moves,
            Self::Remap | Self::Allowed => u64::MAX,
        }
    }
}

/// A range for a request, and its cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Chunks to take from the device.
    pub(super) new: u64,
    /// Chunks to map, new or from elsewhere.
    pub(super) maps: u64,
    pub(super) is_pending: bool,
    /// When the last of its pieces is expected to be complete.
    forecast: Forecast,
    pub(super) start: u64,
    /// The block in which it starts.
    pub(super) first: BlockId,
}

impl Window {
    /// Returns the window from the start of a hole on, for this many new chunks.
    pub(super) fn of_hole(hole: BlockId, start: u64, chunks: u64) -> Self {
        Self {
            new: chunks,
            maps: chunks,
            is_pending: false,
            forecast: Forecast::default(),
            start,
            first: hole,
        }
    }

    /// Replaces this window by the other if the other costs less. With equal costs the lower window stays.
    fn yield_to(&mut self, other: Self) {
        let cost = |window: &Self| (window.new, window.maps, window.is_pending);
        let yields = match cost(&other).cmp(&cost(self)) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal if self.forecast.is_same_as(other.forecast) => other.start < self.start,
            Ordering::Equal => self.forecast.yield_to(other.forecast),
        };
        if yields {
            *self = other;
        }
    }

    fn consider(best: &mut Option<Self>, window: Self) {
        best.get_or_insert(window).yield_to(window);
    }
}

/// The cheapest windows for one request, from one scan. They are valid until the heap changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offers {
    /// Nothing is mapped.
    joined: Option<Window>,
    /// Free chunks are moved wherever that saves a new one.
    moved: Option<Window>,
    /// No more chunks are moved than the growth that was asked for allows.
    spared: Option<Window>,
    /// Chunks that may be taken from the device.
    left: u64,
    /// Chunks that may be taken from the device where others could be moved.
    to_spare: u64,
    /// Whether a segment of plain memory would be within the capacity, once free segments are released.
    has_room_for_segment: bool,
}

impl Offers {
    /// Returns the cheapest window that the growth allows.
    pub(super) fn window(&self, growth: Growth) -> Option<Window> {
        let within = |window: Option<Window>, most| window.filter(|window| window.new <= most);
        let moved = within(self.moved, self.left);
        match growth {
            Growth::None => self.joined,
            Growth::Remap => within(self.moved, 0),
            Growth::Allowed => moved,
            Growth::Sparing(_) => within(self.spared, self.left.min(self.to_spare)).or(moved),
            Growth::New => within(self.spared, self.left).or(moved),
        }
    }

    /// Returns how many new chunks a plan with this growth takes; `None` if no plan is possible.
    pub fn new_chunks(&self, growth: Growth) -> Option<u64> {
        self.window(growth).map(|window| window.new)
    }

    /// Returns how many chunks a plan with this growth maps; `None` if no plan is possible.
    pub fn chunks(&self, growth: Growth) -> Option<u64> {
        self.window(growth).map(|window| window.maps)
    }

    /// Returns whether the device could help, if it may be called.
    pub fn could_grow(&self) -> bool {
        self.has_room_for_segment || self.window(Growth::Allowed).is_some()
    }
}

/// A block as part of a run, with the sums of all pieces before it.
#[derive(Clone, Copy, Debug)]
struct Piece {
    id: BlockId,
    start: u64,
    end: u64,
    kind: Kind,
    sums: Sums,
}

/// The contents of a stretch of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// Chunks to be mapped into holes.
    maps: u64,
    /// Whole free chunks, which cannot be moved into a window that contains them.
    whole_free: u64,
    /// Pending pieces.
    pending: u64,
}

impl Sums {
    fn plus(self, other: Self) -> Self {
        Self {
            maps: self.maps + other.maps,
            whole_free: self.whole_free + other.whole_free,
            pending: self.pending + other.pending,
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            maps: self.maps - other.maps,
            whole_free: self.whole_free - other.whole_free,
            pending: self.pending - other.pending,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Free,
    Pending(Forecast),
    Hole,
}

impl Kind {
    fn forecast(self) -> Forecast {
        match self {
            Self::Pending(forecast) => forecast,
            Self::Free | Self::Hole => Forecast::default(),
        }
    }
}

/// The latest forecast of a range of pieces whose bounds only rise: amortized constant time a step, as a queue made of
/// two stacks.
#[derive(Default)]
struct Latest {
    /// For each piece of the lower part, the latest of it and all above it in that part; the lowest piece is last.
    lower: Vec<Forecast>,
    upper: Vec<Forecast>,
    /// The latest of the upper part.
    of_upper: Forecast,
    first: usize,
    end: usize,
}

impl Latest {
    fn of(&mut self, run: &[Piece], first: usize, end: usize) -> Forecast {
        if self.end <= first {
            *self = Self {
                first,
                end: first,
                ..Self::default()
            };
        }
        for piece in &run[self.end..end] {
            let forecast = piece.kind.forecast();
            self.of_upper = self.of_upper.and(forecast);
            self.upper.push(forecast);
        }
        self.end = end;
        for _ in self.first..first {
            self.drop_lowest();
        }
        self.first = first;
        let lower = self.lower.last().copied().unwrap_or_default();
        lower.and(self.of_upper)
    }

    fn drop_lowest(&mut self) {
        if self.lower.is_empty() {
            let mut latest = Forecast::default();
            self.lower
                .extend(self.upper.drain(..).rev().map(|forecast| {
                    latest = latest.and(forecast);
                    latest
                }));
            self.of_upper = Forecast::default();
        }
        self.lower.pop();
    }
}

/// One scan for a request.
struct Scan<'a> {
    map: &'a BlockMap,
    request: Request,
    view: &'a View<'a>,
    /// Chunks that may be moved for [`Offers::spared`].
    moves: u64,
    /// No window with fewer new chunks is looked for among [listed](Self::listed) stretches.
    enough: u64,
    run: Vec<Piece>,
    offers: Offers,
}

impl Scan<'_> {
    /// Adds a block to the run. Returns whether the requester may take it.
    fn push(&mut self, id: BlockId, block: &Block) -> bool {
        let kind = match &block.state {
            State::Free => Kind::Free,
            State::Pending(fences) => match self.view.forecast(fences) {
                Some(forecast) => Kind::Pending(forecast),
                None => return false,
            },
            State::Hole => Kind::Hole,
            _ => return false,
        };
        self.push_as(id, block, kind);
        true
    }

    fn push_as(&mut self, id: BlockId, block: &Block, kind: Kind) {
        let sums = match self.run.last() {
            Some(below) => below.sums.plus(self.sums_of(below, below.start, below.end)),
            None => Sums::default(),
        };
        self.run.push(Piece {
            id,
            start: block.address,
            end: block.end(),
            kind,
            sums,
        });
    }

    fn sums_of(&self, piece: &Piece, start: u64, end: u64) -> Sums {
        let units = self.map.units();
        let touched = units.chunks_touched(piece.start.max(start), piece.end.min(end));
        let mut sums = Sums::default();
        match piece.kind {
            Kind::Free => {
                let whole = units.whole_chunks(&self.map.blocks()[piece.id]);
                sums.whole_free = whole.both(touched).count();
            }
            Kind::Pending(_) => sums.pending = 1,
            Kind::Hole => sums.maps = touched.count(),
        }
        sums
    }

    fn anywhere(&mut self) {
        match self.map.index().stretches.lists() {
            Some(lists) => self.listed(lists),
            None => {
                for first in self.stretches() {
                    self.stretch(first, u64::MAX);
                }
            }
        }
    }

    /// Considers the stretches that are listed, the shortest first, and the best of the blocks that suffice alone.
    /// Considers more than [`MOST`] of them only as long as none would do, or if the fewest new chunks are wanted.
    fn listed(&mut self, lists: &Lists) {
        let (map, request, view) = (self.map, self.request, self.view);
        let bytes = request.bytes;
        let search = Search { map, request, view };
        let fits = |id| map.offset_of(id, request);
        let best = |blocks: &BySize| blocks.best(bytes, usize::MAX, fits).map(|(_, id, _)| id);
        let free = best(&map.index().free);
        for id in free.into_iter().chain(search.block()) {
            self.alone(id);
        }
        for (number, Stretch { first, end }) in lists.backed.at_least(bytes).enumerate() {
            if number >= MOST && self.offers.joined.is_some() {
                break;
            }
            self.stretch(first, end);
        }
        if self.offers.joined.is_none() {
            // The best fit looks only at some.
            search
                .any_pending()
                .into_iter()
                .for_each(|id| self.alone(id));
        }
        // The others have holes.
        if self.offers.left + map.totals().whole_free_chunks == 0 {
            return;
        }
        if let Some(id) = best(&map.index().holes) {
            self.alone(id);
        }
        for (number, Stretch { first, end }) in lists.unused.at_least(bytes).enumerate() {
            let is_enough = |window: Window| window.new <= self.enough;
            if number >= MOST && self.offers.moved.is_some_and(is_enough) {
                break;
            }
            self.stretch(first, end);
        }
    }

    /// Considers the windows in one block.
    fn alone(&mut self, id: BlockId) {
        self.stretch(id, self.map.blocks()[id].end());
    }

    /// Considers the windows in a stretch of unused blocks, up to this address.
    fn stretch(&mut self, first: BlockId, end: u64) {
        let map = self.map;
        for (id, block) in map.blocks().from(first) {
            if block.address >= end {
                break;
            }
            if !self.push(id, block) {
                self.end_run();
                if !is_unused(block) {
                    break;
                }
            }
        }
        self.end_run();
    }

    /// Returns the first block of each stretch of unused blocks that is large enough for the request, lowest first.
    fn stretches(&self) -> SmallVec<[BlockId; 8]> {
        let blocks = self.map.blocks();
        let begins = |id| {
            let below = blocks[id].previous;
            below.is_none_or(|below| !is_unused(&blocks[below]))
        };
        let is_enough = |id| {
            let start = blocks[id].address;
            let unused = blocks.from(id).map(|(_, block)| block);
            let mut unused = unused.take_while(|block| is_unused(block));
            unused.any(|block| block.end() - start >= self.request.bytes)
        };
        let mut firsts = SmallVec::new();
        // Nested iterators are fast from inside.
        self.map.index().unused().for_each(|id| {
            if begins(id) && is_enough(id) {
                firsts.push(id);
            }
        });
        firsts.sort_unstable_by_key(|id| blocks[*id].address);
        firsts
    }

    /// Considers the windows that start at a piece's start or end at a piece's end, since the cost changes only
    /// there. Leaves the run empty.
    fn end_run(&mut self) {
        if let (Some(first), Some(last)) = (self.run.first(), self.run.last()) {
            let Request { bytes, alignment } = self.request;
            let (low, high) = (first.start, last.end);
            if high - low >= bytes {
                let at_start = |piece: &Piece| piece.start.next_multiple_of(alignment);
                self.consider_each(low, high, at_start);
                let at_end =
                    |piece: &Piece| piece.end.saturating_sub(bytes) / alignment * alignment;
                self.consider_each(low, high, at_end);
            }
        }
        self.run.clear();
    }

    /// Considers one window for each piece; the starts rise with the pieces.
    fn consider_each(&mut self, low: u64, high: u64, start_of: impl Fn(&Piece) -> u64) {
        let (mut first, mut end) = (0, 0);
        let mut latest = Latest::default();
        for at in 0..self.run.len() {
            let start = start_of(&self.run[at]);
            if start < low || start + self.request.bytes > high {
                continue;
            }
            while self.run[first].end <= start {
                first += 1;
            }
            let is_below_end = |piece: &Piece| piece.start < start + self.request.bytes;
            while self.run.get(end).is_some_and(is_below_end) {
                end += 1;
            }
            let forecast = match self.view.waits {
                // Without waits the stream comes after all that it may take.
                None => Forecast::default(),
                Some(_) => latest.of(&self.run, first, end),
            };
            self.consider(first, end - 1, start, forecast);
        }
    }

    /// Considers the window from `start` on, which lies in the pieces from `first` to `last`.
    fn consider(&mut self, first: usize, last: usize, start: u64, forecast: Forecast) {
        let end = start + self.request.bytes;
        let (lowest, highest) = (&self.run[first], &self.run[last]);
        let mut sums = self.sums_of(lowest, start, end);
        if last > first {
            let between = highest.sums.minus(self.run[first + 1].sums);
            sums = sums.plus(between).plus(self.sums_of(highest, start, end));
        }
        let elsewhere = self.map.totals().whole_free_chunks - sums.whole_free;
        let with_moves = |moves: u64| Window {
            new: sums.maps.saturating_sub(elsewhere.min(moves)),
            maps: sums.maps,
            is_pending: sums.pending > 0,
            forecast,
            start,
            first: lowest.id,
        };
        let (moved, spared) = (with_moves(u64::MAX), with_moves(self.moves));
        if sums.maps == 0 {
            Window::consider(&mut self.offers.joined, moved);
        }
        Window::consider(&mut self.offers.moved, moved);
        Window::consider(&mut self.offers.spared, spared);
    }

    /// Considers the run as it is for a window from `start` on.
    fn consider_run(&mut self, start: u64) {
        let forecasts = self.run.iter().map(|piece| piece.kind.forecast());
        let forecast = forecasts.fold(Forecast::default(), Forecast::and);
        self.consider(0, self.run.len() - 1, start, forecast);
    }

    /// Considers the one window above a used block, if the requester may take all of it.
    fn above(&mut self, used: BlockId, start: u64) {
        let map = self.map;
        if !ends_at(map, used, start) {
            return;
        }
        let end = start + self.request.bytes;
        for (id, block) in map.blocks().from(used).skip(1) {
            if self.run.is_empty() && block.state == State::Room {
                self.push_as(id, block, Kind::Hole);
            } else if !self.push(id, block) {
                return;
            }
            if block.end() >= end {
                return self.consider_run(start);
            }
        }
    }

    /// Considers the window at the start of the smallest hole that holds the request and its room, so that large holes
    /// stay for requests that need them.
    fn with_room(&mut self, room: u64) {
        let bytes = self.request.bytes.checked_add(room);
        let holes = bytes.map(|bytes| self.map.index().holes.at_least(bytes));
        if let Some((_, hole)) = holes.and_then(|mut holes| holes.next()) {
            let block = &self.map.blocks()[hole];
            self.push(hole, block);
            self.consider_run(block.address);
        }
    }
}

impl Offers {
    /// Scans the blocks that are not used for the cheapest windows. `growth` is the one to plan with, or any that
    /// [spares](Growth::is_sparing) nothing.
    pub(super) fn find(
        map: &BlockMap,
        capacity: &Capacity,
        request: Request,
        view: &View<'_>,
        growth: Growth,
    ) -> Self {
        let (totals, units) = (map.totals(), map.units());
        let left = capacity.left(totals) / units.chunk_bytes;
        let is_plain = !units.virtual_memory && view.placement == Placement::Anywhere;
        let could_release = totals.free.current;
        let mut scan = Scan {
            map,
            request,
            view,
            moves: growth.moves(),
            enough: if growth.wants_fewest() { 0 } else { left },
            run: Vec::new(),
            offers: Self {
                left,
                to_spare: capacity.to_spare(totals, request.bytes) / units.chunk_bytes,
                has_room_for_segment: is_plain
                    && request.bytes <= capacity.left_after(totals, could_release),
                ..Self::default()
            },
        };
        match view.placement {
            Placement::Anywhere => scan.anywhere(),
            Placement::Above(id, end) => scan.above(id, end),
            Placement::WithRoom(room) => scan.with_room(room),
        }
        scan.offers
    }
}

impl Placement {
    /// Returns how many bytes of addresses there are with this placement, given what the addresses hold now.
    pub(super) fn addresses(self, map: &BlockMap) -> u64 {
        match self {
            Self::Anywhere => u64::MAX,
            Self::Above(id, end) => addresses_above(map, id, end),
            Self::WithRoom(_) => map.index().holes.largest(),
        }
    }
}

/// Returns by how many bytes a block that is used or set aside can be extended at most, once pending blocks above it are
/// complete.
pub(super) fn addresses_above(map: &BlockMap, id: BlockId, end: u64) -> u64 {
    if !ends_at(map, id, end) {
        return 0;
    }
    let may_be_taken = |(at, state): (usize, &State)| match state {
        State::Free | State::Pending(_) | State::Claimed(_) => true,
        State::Hole => map.units().virtual_memory,
        State::Room => at == 0,
        State::Used(_) | State::Reserved(..) => false,
    };
    let above = map.blocks().from(id).skip(1).enumerate();
    let ours = above.take_while(|(at, (_, block))| may_be_taken((*at, &block.state)));
    ours.map(|(_, (_, block))| block.bytes).sum()
}

fn ends_at(map: &BlockMap, id: BlockId, end: u64) -> bool {
    let block = map.blocks().get(id);
    let is_held = |state: &State| state.is_used() || matches!(state, State::Reserved(..));
    block.is_some_and(|block| is_held(&block.state) && block.end() == end)
}
