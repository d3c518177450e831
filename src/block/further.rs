//! The further streams that a block was used on, and what of their work a later use comes after.
//!
//! What is done on the block's own stream need not be told: whoever has to come after it comes after all that
//! the stream was given so far. Knows nothing of the device.

use crate::lane::Marker;
use crate::queue::Registration;
use crate::sync::Arc;
use smallvec::SmallVec;

/// What a use does with the bytes, as far as it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads, and nothing else.
    Read,
    /// Whatever it likes, and nobody else uses the block until it is submitted.
    Write,
    /// Whatever it likes.
    Any,
    /// Whatever it likes, whenever it likes.
    Always,
}

/// What may have been written on a stream.
#[derive(Debug)]
enum Writes {
    Nothing,
    /// By work that was submitted: all of it before the point, if one was recorded yet.
    Submitted(Option<Arc<Marker>>),
    /// By work that may not be submitted yet, as long as the block is borrowed for it.
    Allocation,
    /// By work that is told of no more.
    Always,
}

/// A stream, and what was done on it since a later use came after all of it.
#[derive(Debug)]
struct Further {
    registration: Arc<Registration>,
    reads: bool,
    writes: Writes,
}

/// A stream to come after; behind the point, if there is one already.
#[derive(Debug)]
pub(super) struct Earlier {
    pub(super) registration: Arc<Registration>,
    pub(super) point: Option<Arc<Marker>>,
}

/// See the [module](self). In the order of their first use.
#[derive(Debug, Default)]
pub(super) struct FurtherStreams(SmallVec<[Further; 3]>);

impl Further {
    fn is_of(&self, registration: &Arc<Registration>) -> bool {
        Arc::ptr_eq(&self.registration, registration)
    }

    /// What a use comes after, if it must come after anything of this stream.
    fn before(&self, access: Access) -> Option<Earlier> {
        let point = match (&self.writes, access) {
            // The reads may have come after the point.
            _ if self.reads && access != Access::Read => None,
            (Writes::Nothing, _) => return None,
            (Writes::Submitted(point), _) => point.clone(),
            (Writes::Allocation | Writes::Always, _) => None,
        };
        Some(Earlier {
            registration: self.registration.clone(),
            point,
        })
    }

    fn note(&mut self, access: Access) {
        match (access, &self.writes) {
            (Access::Read, _) => self.reads = true,
            (Access::Always, _) => self.writes = Writes::Always,
            (_, Writes::Always) => {}
            (Access::Any, _) => self.writes = Writes::Allocation,
            (Access::Write, _) => self.writes = Writes::Submitted(None),
        }
    }

    /// A later use came after all of it, and who comes after that one does, too.
    fn settle(&mut self) {
        self.reads = false;
        if !matches!(self.writes, Writes::Always) {
            self.writes = Writes::Nothing;
        }
    }
}

impl FurtherStreams {
    pub(super) fn registrations(&self) -> impl Iterator<Item = &Arc<Registration>> {
        self.0.iter().map(|further| &further.registration)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes note of a use. Says whether the stream was known: it comes after the grant then.
    pub(super) fn note_if_known(
        &mut self,
        registration: &Arc<Registration>,
        access: Access,
    ) -> bool {
        let known = self
            .0
            .iter_mut()
            .find(|further| further.is_of(registration));
        known.map(|further| further.note(access)).is_some()
    }

    /// Takes note of a use on a stream that comes after the grant.
    pub(super) fn note(&mut self, registration: &Arc<Registration>, access: Access) {
        if !self.note_if_known(registration, access) {
            let mut further = Further {
                registration: registration.clone(),
                reads: false,
                writes: Writes::Nothing,
            };
            further.note(access);
            self.0.push(further);
        }
    }

    /// What a use comes after, of other streams than the one it is on.
    pub(super) fn before(
        &self,
        access: Access,
        on: Option<&Arc<Registration>>,
    ) -> impl Iterator<Item = Earlier> {
        let others = self.0.iter();
        let others = others.filter(move |further| on.is_none_or(|on| !further.is_of(on)));
        others.filter_map(move |further| further.before(access))
    }

    /// A point was recorded behind what was written on the stream, for who comes later.
    pub(super) fn keep(&mut self, registration: &Arc<Registration>, marker: &Arc<Marker>) {
        let mut all = self.0.iter_mut();
        if let Some(further) = all.find(|further| further.is_of(registration)) {
            if let Writes::Submitted(point @ None) = &mut further.writes {
                *point = Some(marker.clone());
            }
        }
    }

    /// A use that nobody else's overlaps came after all others.
    pub(super) fn settle(&mut self) {
        self.0.iter_mut().for_each(Further::settle);
    }
}
