//! Freeing a block in the order of another stream than its own, which may be gone.

use super::Block;
use super::further::Access;
use crate::driver::Use;
use crate::error::StreamError;
use crate::heap::Fence;
use crate::id::Ticket;
use crate::lane::Lane;
use crate::queue::Registration;
use crate::stream::Stream;
use crate::sync::Arc;
use smallvec::SmallVec;

impl Block {
    /// The streams that it was used on, its own first if it was not left, and the further ones.
    pub(super) fn lanes(&self) -> SmallVec<[Arc<Lane>; 2]> {
        let further = self.further.lock();
        let is_left = further.as_ref().is_some_and(|all| all.left_at.is_some());
        let own = (!is_left).then_some(&*self.registration);
        let further = further.iter().flat_map(|all| all.streams.registrations());
        let all = own.into_iter().chain(further);
        all.map(|used_on| used_on.lane.clone()).collect()
    }

    pub(super) fn left_at(&self) -> Option<Ticket> {
        self.further.lock().as_ref()?.left_at
    }

    /// A further stream uses it, which comes after the grant by its user's doing: it is given nothing.
    ///
    /// # Errors
    /// [`StreamError::ForeignPool`].
    pub(crate) fn used_after(&self, stream: &Stream) -> Result<(), StreamError> {
        if !stream.is_of_pool(&self.registration) {
            return Err(StreamError::ForeignPool);
        }
        let further = stream.registration();
        if !Arc::ptr_eq(&self.registration, further) {
            let mut all = self.further.lock();
            let streams = &mut all.get_or_insert_default().streams;
            streams.note(further, Access::Always);
        }
        Ok(())
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
        let after = self.allocation().after;
        let mut all = self.further.lock();
        let all = all.get_or_insert_default();
        all.streams.note(further, Access::Always);
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
        let Registration { service, lane, .. } = &**self.registration;
        service.driver.free_many(lane, &lanes, earlier, block);
    }
}
