//! Requests for blocks: one, one with room to grow into, or several together.

use super::layout::{Layout, expect_capacity_for};
use super::request::{Attempt, Begun, IsUsable, Kind, Miss, Request, Wish};
use super::{Pool, captured, entered_scope, plain_case};
use crate::block::Block;
use crate::engine::{Allocations, Engine, NoMemory, Part, Parts};
use crate::error::AllocError;
use crate::handles::{Caller, Registration, Route};
use crate::heap::{self, Placement};
use crate::id::ReservationId;
use crate::measure::Tag;
use crate::queue::{Ask, Asker, Demand};
use crate::stream::Stream;
use crate::sync::{Arc, plain};
use smallvec::SmallVec;

/// The future of [`Pool::allocate`]: a [`Block`]. See [`Request`] for terms, errors and cancel safety.
///
/// It borrows its pool and its stream, so that a grant from the stream's lane writes no shared count. Use
/// [`Pool::allocate_owned`] where the future must outlive them.
pub type Allocate<'a> = Request<ForBlock<Borrowed<'a>>>;

/// The future of [`Pool::allocate_owned`]: a [`Block`]. See [`Request`] for terms, errors and cancel safety.
pub type AllocateOwned = Request<ForBlock<Owned>>;

/// The future of [`Pool::allocate_many`]: a [`Block`] for each layout, in their order, or none of them. See
/// [`Request`] for terms, errors and cancel safety.
pub type AllocateMany<'a> = Request<ForBlocks<'a>>;

/// A pool and one of its streams, as a request holds them.
pub trait Handles: Unpin {
    /// Returns the pool.
    fn pool(&self) -> &Pool;
    /// Returns the stream's registration.
    fn registration(&self) -> &Arc<Registration>;
}

/// A borrowed pool and stream.
#[derive(Clone, Copy, Debug)]
pub struct Borrowed<'a> {
    pool: &'a Pool,
    registration: &'a Arc<Registration>,
}

/// A pool and a stream of the request's own.
#[derive(Clone, Debug)]
pub struct Owned {
    pub(super) pool: Pool,
    pub(super) stream: Stream,
}

impl<'a> Borrowed<'a> {
    #[inline]
    pub(crate) fn new(pool: &'a Pool, stream: &'a Stream) -> Self {
        Self {
            pool,
            registration: &stream.registration,
        }
    }
}

impl Handles for Borrowed<'_> {
    #[inline(always)]
    fn pool(&self) -> &Pool {
        self.pool
    }

    #[inline(always)]
    fn registration(&self) -> &Arc<Registration> {
        self.registration
    }
}

impl Handles for Owned {
    #[inline(always)]
    fn pool(&self) -> &Pool {
        &self.pool
    }

    #[inline(always)]
    fn registration(&self) -> &Arc<Registration> {
        &self.stream.registration
    }
}

/// One block.
#[derive(Clone, Copy, Debug)]
pub struct ForBlock<H> {
    handles: H,
    layout: Layout,
    room: Option<u64>,
}

impl<H> ForBlock<H> {
    #[inline]
    pub(super) fn new(handles: H, bytes: u64) -> Self {
        Self::of_layout(handles, Layout::new(bytes))
    }

    #[inline]
    pub(crate) fn of_layout(handles: H, layout: Layout) -> Self {
        Self {
            handles,
            layout,
            room: None,
        }
    }
}

impl<H: Handles> Request<ForBlock<H>> {
    /// Aligns the block's address to `alignment` bytes: a power of two, up to the device's step. Every
    /// block is aligned to 512 bytes anyway.
    pub fn alignment(mut self, alignment: u64) -> Self {
        self.kind.layout.alignment = alignment;
        self
    }

    /// Keeps addresses for `bytes` more bytes above the block, into which it can [grow](Block::grow). Room takes
    /// addresses and no memory; the memory comes as the block grows.
    ///
    /// This needs virtual memory. The block is made of whole [chunks](crate::PoolBuilder::chunk_bytes): choose
    /// small chunks for blocks that begin small. A pool has several times as many addresses as its capacity; room
    /// that one block keeps is unavailable to others until the block is freed.
    ///
    /// The block comes from the pool, also in the [scope](super::Reservation::scope) of a reservation.
    ///
    /// # Errors
    /// When awaited, returns [`AllocError::NoRoom`] if there are not that many addresses in one piece, or memory cannot
    /// be mapped at a chosen address.
    pub fn room(mut self, bytes: u64) -> Self {
        self.kind.room = Some(bytes);
        self
    }
}

impl<H: Handles> ForBlock<H> {
    fn ask_with_room(&self, room: u64, tag: Option<Tag>) -> Result<Ask, AllocError> {
        let registration = self.handles.registration();
        let chunk = super::grow::chunk_of(registration)?;
        let room = room.checked_next_multiple_of(chunk);
        let room = room.ok_or(AllocError::NoRoom { room: 0 })?;
        self.layout
            .expect_valid_alignment(&registration.service.engine)?;
        let demand = super::grow::rounded(registration, self.layout.bytes, chunk, tag)?;
        Ok(Ask::one(demand, Placement::WithRoom(room)))
    }
}

impl<H: Handles> ForBlock<H> {
    /// Takes the block inside a capture. Room above it is refused: a block of a graph does not grow.
    #[cold]
    fn take_captured(&self, route: &Route, caller: Caller) -> Result<Block, AllocError> {
        if self.room.is_some() {
            return Err(AllocError::NoRoom { room: 0 });
        }
        captured::allocate(self.handles.registration(), route, self.layout, caller)
    }
}

impl<H: Handles> IsUsable for ForBlock<H> {}

impl IsUsable for ForBlocks<'_> {}

impl<H: Handles> Kind for ForBlock<H> {
    type Output = Block;

    fn asker(&self) -> Asker<'_> {
        (&**self.handles.registration()).into()
    }

    #[inline]
    fn granted(
        &mut self,
        (demand, _): (&Demand, &Parts),
        allocations: Allocations,
        caller: Caller,
    ) -> Result<Block, AllocError> {
        let [allocation] = allocations.into_inner().expect("one was asked for");
        let mut block = Block::new(self.handles.registration(), allocation, demand, caller)?;
        if self.room.is_some() {
            block.give_room();
        }
        block.name_if_captured();
        Ok(block)
    }

    #[inline(always)]
    fn take_at_once(&self, wish: &Wish, miss: &mut Miss) -> Option<Block> {
        let Self {
            handles,
            layout,
            room,
        } = self;
        if wish.terms.tag.is_some() || room.is_some() || wish.fill.is_some() {
            return None;
        }
        let Layout { bytes, alignment } = *layout;
        let (pool, registration) = (handles.pool(), handles.registration());
        plain_case::take_at_once(pool, registration, bytes, alignment, miss)
    }

    #[inline(always)]
    fn take_cached(&self, wish: &Wish, miss: &mut Miss) -> Option<Block> {
        if self.room.is_some() || wish.fill.is_some() {
            return None;
        }
        let (pool, registration) = (self.handles.pool(), self.handles.registration());
        let Layout { bytes, alignment } = self.layout;
        match wish.terms.tag {
            None => plain_case::take_cached(pool, registration, bytes, alignment, miss),
            Some(tag) => plain_case::take_charged(pool, registration, bytes, alignment, tag),
        }
    }

    #[inline(always)]
    fn begin(&self, attempt: Attempt) -> Result<Begun<Block>, AllocError> {
        let (pool, registration) = (self.handles.pool(), self.handles.registration());
        let Attempt {
            tag,
            caller,
            is_searched,
        } = attempt;
        let is_own = plain::Arc::ptr_eq(&registration.presence, &pool.presence);
        if !is_own || registration.observers.is_some() {
            pool.presence.expect_own(registration, caller.location)?;
        }
        if registration.lane.cache.is_captured()
            && let Some(route) = Route::of(registration)
        {
            return self.take_captured(&route, caller).map(Begun::Taken);
        }
        if let Some(room) = self.room {
            return self.ask_with_room(room, tag).map(Begun::Asks);
        }
        let demand = self.layout.demand(&registration.service.engine, tag)?;
        let is_in_scope = plain_case::is_any_in_scope();
        if is_in_scope && let Some(drawn) = entered_scope::draw(pool, registration, &demand, caller)
        {
            return drawn.map(Begun::Taken);
        }
        let mut ask = Ask::one(demand, Placement::Anywhere);
        ask.demand.is_of_holder = is_in_scope && self.scope(&ask.demand).is_some();
        ask.is_searched = is_searched;
        Ok(Begun::Asks(ask))
    }

    fn scope(&self, demand: &Demand) -> Option<ReservationId> {
        if self.room.is_some() {
            return None;
        }
        entered_scope::reservation(self.handles.pool(), demand)
    }

    #[cold]
    fn take_late(&self, demand: &Demand, caller: Caller) -> Result<Block, NoMemory> {
        let (pool, registration) = (self.handles.pool(), self.handles.registration());
        entered_scope::draw_late(pool, registration, demand, caller)
    }
}

// A result that is as large as a block lies in the block's place: unwrapping it copies nothing.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Result<Block, AllocError>>() == size_of::<Block>());

/// Several blocks.
#[derive(Debug)]
pub struct ForBlocks<'a> {
    pub(super) handles: Borrowed<'a>,
    pub(super) layouts: Layouts,
}

impl Kind for ForBlocks<'_> {
    type Output = Vec<Block>;

    fn asker(&self) -> Asker<'_> {
        (&**self.handles.registration).into()
    }

    fn begin(&self, attempt: Attempt) -> Result<Begun<Vec<Block>>, AllocError> {
        let presence = &self.handles.pool.presence;
        presence.expect_own(self.handles.registration, attempt.caller.location)?;
        if let Some(route) = Route::of(self.handles.registration) {
            let layouts = self.layouts.iter();
            let blocks = layouts.map(|layout| {
                captured::allocate(self.handles.registration, &route, *layout, attempt.caller)
            });
            // If one is refused, the others are dropped.
            return blocks.collect::<Result<_, _>>().map(Begun::Taken);
        }
        let ask = ask_for_all(&presence.service.engine, &self.layouts, attempt.tag);
        ask.map(Begun::Asks)
    }

    fn granted(
        &mut self,
        (demand, parts): (&Demand, &Parts),
        allocations: Allocations,
        caller: Caller,
    ) -> Result<Vec<Block>, AllocError> {
        let tag = demand.tag;
        let blocks = allocations
            .into_iter()
            .zip(&parts.all)
            .map(|(allocation, part)| {
                let demand = Demand::of_part(*part, tag);
                Block::new(self.handles.registration, allocation, &demand, caller)
            });
        // All of them first: from here on each allocation has an owner, whatever becomes of the others.
        let blocks: Vec<_> = blocks.collect();
        blocks.iter().flatten().for_each(Block::name_if_captured);
        blocks.into_iter().collect()
    }
}

/// The layouts of a request: one for most reservations.
pub(super) type Layouts = SmallVec<[Layout; 1]>;

/// Checks layouts: what each part asks for, and what all of them are together.
pub(super) fn ask_for_all(
    engine: &Engine,
    layouts: &[Layout],
    tag: Option<Tag>,
) -> Result<Ask, AllocError> {
    let parts = layouts
        .iter()
        .map(|layout| Ok(layout.demand(engine, tag)?.as_part()));
    let all = parts.collect::<Result<SmallVec<[Part; 1]>, AllocError>>()?;
    let bytes = all.iter().map(|part| part.request.bytes);
    let bytes = bytes.fold(0u64, u64::saturating_add);
    expect_capacity_for(bytes, engine)?;
    let parts = Parts {
        all,
        is_for_all: false,
        placement: Placement::Anywhere,
        charge: None,
    };
    let alignment = 1;
    let demand = Demand {
        request: heap::Request { bytes, alignment },
        rounding: 0,
        tag,
        is_of_holder: false,
    };
    Ok(Ask {
        demand,
        parts,
        is_searched: false,
    })
}
