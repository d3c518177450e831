//! The streams that a block is used on beside its own, and what it is freed after because of them.

use super::Block;
use crate::engine::Use;
use crate::error::StreamError;
use crate::id::Ticket;
use crate::lane::Lane;
use crate::ledger::Fence;
use crate::stream::Stream;
use crate::sync::Arc;
use crate::wait::{Registration, Reserved};
use smallvec::SmallVec;

/// Most blocks have none, and are small for it.
pub(super) type Further = Option<Box<Extra>>;

/// What few blocks have.
#[derive(Default)]
pub(super) struct Extra {
    pub(super) streams: SmallVec<[Arc<Registration>; 3]>,
    /// It is freed in the order of those streams alone, and not of its own, which may be gone: with the point of
    /// its own behind which the memory's earlier life lies.
    left_at: Option<Ticket>,
    /// Whose it is again when it is freed.
    pub(super) reserved: Option<Arc<Reserved>>,
}

impl Extra {
    fn add(&mut self, further: &Arc<Registration>) {
        if !self.streams.iter().any(|known| Arc::ptr_eq(known, further)) {
            self.streams.push(further.clone());
        }
    }

    #[cold]
    pub(super) fn note_freed(&self, bytes: u64) {
        if let Some(reserved) = &self.reserved {
            reserved.note_freed(bytes);
        }
    }
}

impl Block {
    /// Says that work of a further stream will use the block: call it before that work is submitted.
    ///
    /// The stream is ordered after the grant (by a wait on the device, if need be), and the memory is
    /// not reused before its work has passed the free. It does not order the stream after what the
    /// block's own stream writes: for that, [wait](Stream::wait) for an event of it.
    ///
    /// # Errors
    /// [`StreamError::ForeignPool`] when the stream is of another pool, or the device's error; the
    /// stream must not use the block then.
    pub fn used_on(&self, stream: &Stream) -> Result<(), StreamError> {
        if !stream.is_of_pool(&self.registration) {
            return Err(StreamError::ForeignPool);
        }
        let further = stream.registration();
        if Arc::ptr_eq(&self.registration, further) || self.is_known_on(further) {
            return Ok(());
        }
        let engine = &self.registration.service.engine;
        engine.order_after_grant(&self.registration.lane, self.lent().after, &further.lane)?;
        // Only now: who finds it there relies on the order.
        self.further.lock().get_or_insert_default().add(further);
        Ok(())
    }

    /// The same for a stream that comes after the grant by its user's doing: it is given nothing.
    ///
    /// # Errors
    /// [`StreamError::ForeignPool`].
    pub(crate) fn used_after(&self, stream: &Stream) -> Result<(), StreamError> {
        if !stream.is_of_pool(&self.registration) {
            return Err(StreamError::ForeignPool);
        }
        let further = stream.registration();
        if !Arc::ptr_eq(&self.registration, further) {
            self.further.lock().get_or_insert_default().add(further);
        }
        Ok(())
    }

    fn is_known_on(&self, further: &Arc<Registration>) -> bool {
        let all = self.further.lock();
        let mut all = all.iter().flat_map(|all| all.streams.iter());
        all.any(|known| Arc::ptr_eq(known, further))
    }

    /// The streams that it was used on, its own first if it was not left, and the further ones.
    pub(super) fn lanes(&self) -> SmallVec<[Arc<Lane>; 2]> {
        let further = self.further.lock();
        let is_left = further.as_ref().is_some_and(|all| all.left_at.is_some());
        let own = (!is_left).then_some(&self.registration);
        let further = further.iter().flat_map(|all| all.streams.iter());
        let all = own.into_iter().chain(further);
        all.map(|used_on| used_on.lane.clone()).collect()
    }

    pub(super) fn left_at(&self) -> Option<Ticket> {
        self.further.lock().as_ref()?.left_at
    }

    /// Has the block freed in the order of `stream` too, which does nothing with it. If its own stream is an
    /// external one, that may be gone: then instead of it. What was done with the block there must come before
    /// what `stream` was given so far, as with CUDA's own `cudaFreeAsync`.
    ///
    /// # Errors
    /// [`StreamError::ForeignPool`].
    pub(crate) fn free_with(&self, stream: &Stream) -> Result<(), StreamError> {
        if !stream.is_of_pool(&self.registration) {
            return Err(StreamError::ForeignPool);
        }
        let further = stream.registration();
        if self.registration.lane.id == further.lane.id {
            return Ok(());
        }
        let after = self.lent().after;
        let mut all = self.further.lock();
        let all = all.get_or_insert_default();
        all.add(further);
        if self.registration.lane.is_external {
            all.left_at = Some(after);
        }
        Ok(())
    }

    /// What its memory waits for beside the streams that it was used on, once the block was left by its own.
    pub(super) fn earlier(&mut self) -> Option<Fence> {
        let after = self.further.get_mut().as_ref()?.left_at?;
        let home = &self.registration.lane;
        (home.timeline.completed() < after).then(|| home.fence(after))
    }

    /// Frees a block that is not its own stream's alone.
    pub(super) fn free_further(&mut self, block: &Use) {
        let (lanes, earlier) = (self.lanes(), self.earlier());
        let Registration { service, lane, .. } = &*self.registration;
        service.engine.free_many(lane, &lanes, earlier, block);
    }
}
