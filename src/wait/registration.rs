//! A stream's registration: what its handle and its blocks hold in common.

use super::natives::{Native, Roll};
use super::{Onlookers, Service};
use crate::device::DeviceStream;
use crate::error::StreamError;
use crate::lane::Lane;
use crate::measure::Tag;
use crate::sync::{Arc, plain};

/// Held by the pool's handles and its registrations; the last one out tells the reclaimers that were
/// made to last.
#[derive(Debug)]
pub(crate) struct Presence {
    pub(crate) service: Arc<Service>,
    /// The pool's name, if it has one.
    pub(crate) name: Option<plain::Arc<str>>,
    pub(crate) roll: Roll,
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.service.orphan();
    }
}

/// One count for a stream: a block holds it, so that a free writes no line that other streams write.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) service: Arc<Service>,
    pub(crate) lane: Arc<Lane>,
    pub(crate) presence: plain::Arc<Presence>,
    /// Who is told of blocks' lives, if anybody is.
    pub(crate) onlookers: Option<plain::Arc<Onlookers>>,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "no backend has any"))]
    pub(crate) native: Native,
}

impl Registration {
    /// Makes a stream known to a pool.
    ///
    /// # Errors
    /// As [`Engine::register`](crate::engine::Engine::register).
    pub(crate) fn enter(
        presence: &plain::Arc<Presence>,
        stream: &dyn DeviceStream,
    ) -> Result<Arc<Self>, StreamError> {
        let service = presence.service.clone();
        let lane = service.engine.register(stream)?;
        let registration = Arc::new(Self {
            onlookers: service.onlookers.clone(),
            native: Native::of(stream, &*service.engine.device),
            service,
            lane,
            presence: presence.clone(),
        });
        presence.roll.enter(&registration);
        Ok(registration)
    }

    /// A block was granted to a tag, with so much more than was claimed. Out of the way of those that have
    /// none.
    #[inline(never)]
    pub(crate) fn note_granted(&self, tag: Tag, surplus: u64) {
        let account = self.service.queue.accounts.of(tag);
        if surplus > 0 {
            account.claim_more(surplus);
        }
        account.note_granted(self.lane.id);
    }

    /// What was granted has become more, by what was claimed.
    pub(crate) fn note_more(&self, tag: Tag) {
        self.service.queue.accounts.of(tag).note_more(self.lane.id);
    }

    /// It was freed.
    #[inline(never)]
    pub(crate) fn note_freed(&self, tag: Tag, bytes: u64) {
        self.service.queue.accounts.of(tag).note_freed(self.lane.id);
        self.service.disclaim(tag, bytes);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.service.engine.retire(&self.lane);
    }
}
