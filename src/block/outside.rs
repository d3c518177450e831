//! Blocks whose memory is not in the heap: it has chunks and addresses of its own, and an owner outside of the pool's
//! layers. Their uses are ordered like those of any block. When the block ends, its owner gets the memory, with the
//! points of the streams that it waits for.

use super::Block;
use crate::engine::{Use, release};
use crate::heap::Fences;
use crate::queue::Passages;
use std::fmt;

/// The owner of a block's memory.
pub(crate) trait Outside: fmt::Debug + Send + Sync {
    /// Takes the memory of a block that has ended. Work of the device may touch it until the passages are over. Never
    /// blocks, because drops call it.
    fn ended(self: Box<Self>, passages: Passages);

    /// Returns whether the pool made the memory known: then it tells checkers of the block. Others tell of memory of
    /// theirs.
    fn is_of_pool(&self) -> bool {
        true
    }
}

impl Block {
    pub(crate) fn is_outside(&self) -> bool {
        self.extra(|extra| extra.outside.as_ref().map(drop))
            .is_some()
    }

    /// Returns whether the memory is not in the heap, and not the pool's either.
    pub(super) fn is_foreign(&self) -> bool {
        let is_of_pool = |extra: &super::Extra| Some(extra.outside.as_ref()?.is_of_pool());
        self.extra(is_of_pool) == Some(false)
    }

    /// Returns whether the stream's device has no access: it has access to the memory of the pool, which this is not.
    #[inline]
    pub(super) fn is_out_of_reach(&self, stream: &crate::stream::Stream) -> bool {
        stream.registration().lane.is_foreign() && self.is_outside()
    }

    pub(super) fn take_outside(&mut self) -> Option<Box<dyn Outside>> {
        self.extra.get_mut().as_mut()?.outside.take()
    }

    pub(super) fn free_outside(&self, outside: Box<dyn Outside>, block: Use) -> Fences {
        let service = &self.registration().service;
        let (lanes, earlier) = (self.uses().lanes(), self.uses().fence_left_behind());
        let fences = release::end_uses(&service.engine, &lanes, earlier, block.bytes);
        outside.ended(Passages::new(service, &lanes, &fences));
        fences
    }
}

#[cfg(any(feature = "dlpack", all(feature = "ipc", target_os = "linux")))]
mod begin {
    use super::{Block, Outside};
    use crate::block::Extra;
    use crate::block::life::{BlockCharge, tell_granted};
    use crate::engine::{Allocation, Source};
    use crate::handles::Registration;
    use crate::heap::BlockId;
    use crate::id::Ticket;
    use crate::rare::Rare;
    use crate::sync::{Arc, Guards, Mutex};
    use std::panic::Location;

    impl Block {
        /// Makes a block of memory outside of the heap. Uses on further streams come after the point `after` of the
        /// block's own stream.
        pub(crate) fn of_outside(
            registration: &Arc<Registration>,
            (address, bytes): (u64, u64),
            (requested, after): (u64, Ticket),
            outside: Box<dyn Outside>,
            location: &'static Location<'static>,
        ) -> Self {
            let allocation = Allocation {
                // The heap is never asked for it.
                id: BlockId::FIRST,
                address,
                bytes,
                after,
                source: Source::Grown,
            };
            if outside.is_of_pool()
                && let Some(observers) = registration.observers.as_deref()
            {
                observers.outside_granted(&allocation, &registration.lane, location);
            }
            tell_granted(registration, &allocation, None);
            let extra = Extra {
                outside: Some(outside),
                ..Extra::default()
            };
            let rounding = u32::try_from(bytes - requested).unwrap_or(u32::MAX);
            Self {
                registration: Some(registration.clone()),
                allocation: Some(allocation),
                charge: BlockCharge::new(rounding, None),
                extra: Mutex::new(Guards::Block, Rare::new(extra)),
            }
        }
    }
}
