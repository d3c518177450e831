//! Where a contiguous span costs least to put together.
//!
//! A *run* is a stretch of neighbours that the asker may have: free, pending behind fences that do
//! not keep it, or holes that memory can be mapped into. A *window* is a place for the request
//! inside a run. Its price is first the memory that must be taken from the device, then the handles
//! that must be mapped, then whether it binds the request to pending work, and until when.

use super::block::{BlockId, State};
use super::{Forecast, Heap, Placement, Request, View};
use std::cmp::Ordering;

/// A place for a request, and its price; the order of the fields is the order of preference.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Handles to take from the device.
    pub(super) new: u64,
    /// Handles to map, new or from elsewhere.
    pub(super) maps: u64,
    pub(super) is_pending: bool,
    /// When the last of its pieces is expected to be complete.
    forecast: Forecast,
    pub(super) start: u64,
    /// The piece in which it starts.
    pub(super) first: BlockId,
}

impl Window {
    /// Becomes the other, if that costs less; of two that cost the same the lower stays.
    fn yield_to(&mut self, other: Self) {
        let price = |window: &Self| (window.new, window.maps, window.is_pending);
        let yields = match price(&other).cmp(&price(self)) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal if self.forecast.is_same_as(other.forecast) => other.start < self.start,
            Ordering::Equal => self.forecast.yield_to(other.forecast),
        };
        if yields {
            *self = other;
        }
    }
}

/// A block as part of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    id: BlockId,
    start: u64,
    end: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Free,
    Pending(Forecast),
    Hole,
}

/// What a search may do beyond merging what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// Nothing.
    None,
    /// Map free memory from elsewhere into holes.
    Remap,
    /// The same, and new memory for what is missing, within the capacity.
    Allowed,
    /// The same, and so many handles are moved at most while there is new memory instead: within the capacity, and
    /// until the pool is [twice](MOST_TIMES) what was in use at the most.
    Sparing(u64),
    /// New memory and nothing moved, while the capacity has it.
    New,
}

impl Growth {
    /// Whether there may be new memory for what could be moved.
    pub(crate) fn is_sparing(self) -> bool {
        matches!(self, Self::Sparing(_) | Self::New)
    }

    /// Handles that may be moved.
    fn moves(self) -> u64 {
        match self {
            Self::None | Self::New => 0,
            Self::Sparing(moves) => moves,
            Self::Remap | Self::Allowed => u64::MAX,
        }
    }
}

/// Times the most that was in use, that a pool may become to spare moves.
const MOST_TIMES: u64 = 2;

impl Heap {
    /// The cheapest window for the request, if there is one within the capacity. Moves are spared if there can be new
    /// memory for them.
    pub(super) fn cheapest_window(
        &self,
        request: Request,
        view: &View<'_>,
        growth: Growth,
    ) -> Option<Window> {
        let window = self.window(request, view, growth);
        if window.is_none() && growth.is_sparing() {
            return self.window(request, view, Growth::Allowed);
        }
        window
    }

    fn window(&self, request: Request, view: &View<'_>, growth: Growth) -> Option<Window> {
        let best = match view.placement {
            Placement::Anywhere => self.cheapest_anywhere(request, view, growth),
            Placement::Above(id, end) => self.window_above((id, end), request, view, growth),
            Placement::WithRoom(room) => self.window_with_room(request, room, growth),
        };
        let most = match growth {
            Growth::None | Growth::Remap => 0,
            Growth::Allowed | Growth::New => self.chunks_left(),
            Growth::Sparing(_) => self.chunks_left().min(self.chunks_to_spare(request)),
        };
        best.filter(|window| window.new <= most)
    }

    fn cheapest_anywhere(
        &self,
        request: Request,
        view: &View<'_>,
        growth: Growth,
    ) -> Option<Window> {
        let mut best = None;
        let mut run = Vec::new();
        for segment in self.segments.iter().flatten() {
            for (id, _) in self.blocks.from(segment.first) {
                match self.kind(id, view, growth) {
                    Some(kind) => run.push(self.as_piece(id, kind)),
                    None => self.search_run(&mut run, request, growth, &mut best),
                }
            }
            self.search_run(&mut run, request, growth, &mut best);
        }
        best
    }

    /// Handles that the device may still be asked for.
    pub(super) fn chunks_left(&self) -> u64 {
        self.bytes_left() / self.geometry.chunk_bytes
    }

    /// New handles that the pool may have to spare moves.
    fn chunks_to_spare(&self, request: Request) -> u64 {
        let most = self
            .most_in_use
            .max(self.totals.in_use.current + request.bytes);
        let held = self.totals.reserved.current + self.totals.planned;
        most.saturating_mul(MOST_TIMES).saturating_sub(held) / self.geometry.chunk_bytes
    }

    pub(super) fn as_piece(&self, id: BlockId, kind: Kind) -> Piece {
        let block = &self.blocks[id];
        Piece {
            id,
            start: block.address,
            end: block.end(),
            kind,
        }
    }

    pub(super) fn kind(&self, id: BlockId, view: &View<'_>, growth: Growth) -> Option<Kind> {
        match &self.blocks[id].state {
            State::Free => Some(Kind::Free),
            State::Pending(fences) => view.forecast(fences).map(Kind::Pending),
            State::Hole if growth != Growth::None => Some(Kind::Hole),
            _ => None,
        }
    }

    /// Tries the windows that begin at a piece's start or finish at a piece's end: the price only
    /// changes there. Leaves the run empty.
    fn search_run(
        &self,
        run: &mut Vec<Piece>,
        request: Request,
        growth: Growth,
        best: &mut Option<Window>,
    ) {
        let (Some(head), Some(tail)) = (run.first(), run.last()) else {
            return;
        };
        let (head, tail) = (head.start, tail.end);
        if tail - head >= request.bytes {
            for piece in run.iter() {
                let at_start = piece.start.next_multiple_of(request.alignment);
                let at_end =
                    piece.end.saturating_sub(request.bytes) / request.alignment * request.alignment;
                for start in [at_start, at_end] {
                    if start >= head && start + request.bytes <= tail {
                        let window = self.price(run, start, request.bytes, growth);
                        best.get_or_insert(window).yield_to(window);
                    }
                }
            }
        }
        run.clear();
    }

    pub(super) fn price(&self, run: &[Piece], start: u64, bytes: u64, growth: Growth) -> Window {
        let end = start + bytes;
        let first = run.partition_point(|piece| piece.end <= start);
        let (mut maps, mut inside, mut is_pending) = (0, 0, false);
        let mut forecast = Forecast::default();
        for piece in run[first..].iter().take_while(|piece| piece.start < end) {
            match piece.kind {
                Kind::Free => inside += self.whole_chunks_between(piece, start, end),
                Kind::Pending(piece) => {
                    is_pending = true;
                    forecast = forecast.and(piece);
                }
                Kind::Hole => {
                    maps += self
                        .chunks_touched(piece.start.max(start), piece.end.min(end))
                        .count();
                }
            }
        }
        let elsewhere = self.totals.whole_free_chunks.saturating_sub(inside);
        Window {
            new: maps.saturating_sub(elsewhere.min(growth.moves())),
            maps,
            is_pending,
            forecast,
            start,
            first: run[first].id,
        }
    }

    /// Whole free handles of the piece that the window uses, which cannot be mapped elsewhere then.
    fn whole_chunks_between(&self, piece: &Piece, start: u64, end: u64) -> u64 {
        let block = &self.blocks[piece.id];
        self.whole_chunks(block)
            .both(self.chunks_touched(start.max(piece.start), end.min(piece.end)))
            .count()
    }
}
