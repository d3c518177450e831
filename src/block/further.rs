//! The further streams that a block was used on, and which of their work a later use comes after.
//!
//! | a later use | comes after |
//! |---|---|
//! | that reads | all writes on each further stream |
//! | that writes, alone | all uses on each further stream, which then need not be remembered |
//!
//! Uses on the stream of the allocation are not noted until the block leaves it: a use that comes after them comes after
//! all work submitted there so far. This file knows nothing of the device.

use crate::handles::Registration;
use crate::lane::Marker;
use crate::sync::Arc;
use smallvec::SmallVec;

/// How a use accesses the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// It only reads.
    Read,
    /// It reads and writes, and no other use is made of the block until it is submitted.
    Write,
    /// It reads and writes a part, after all earlier uses of the block. Uses of other parts may be made before it is
    /// submitted.
    Part,
    /// It reads and writes, while others may.
    Any,
    /// It reads and writes, now or later, until the block is freed.
    Always,
}

/// The writes on a stream that a later use must come after.
#[derive(Debug)]
enum Writes {
    Nothing,
    /// Submitted work wrote: all of it before the point, if one was recorded already.
    Submitted(Option<Arc<Marker>>),
    /// Work writes that may not be submitted yet, while the block is borrowed for it.
    Borrowed,
    /// Work may write at any time, without further notice.
    Always,
}

/// A stream, and its uses since the last one that came after all of them.
#[derive(Debug)]
struct Further {
    registration: Arc<Registration>,
    reads: bool,
    writes: Writes,
}

/// A stream to come after: behind the point, if one was recorded already.
#[derive(Debug)]
pub(super) struct Earlier {
    pub(super) registration: Arc<Registration>,
    pub(super) point: Option<Arc<Marker>>,
}

/// See the [module](self). The streams are in the order of their first use.
#[derive(Debug, Default)]
pub(super) struct FurtherStreams(SmallVec<[Further; 3]>);

impl Further {
    fn is_of(&self, registration: &Arc<Registration>) -> bool {
        Arc::ptr_eq(&self.registration, registration)
    }

    /// Returns what a use comes after on this stream, if anything.
    fn before(&self, access: Access) -> Option<Earlier> {
        let point = match (&self.writes, access) {
            // The reads may come after the point.
            _ if self.reads && access != Access::Read => None,
            (Writes::Nothing, _) => return None,
            (Writes::Submitted(point), _) => point.clone(),
            (Writes::Borrowed | Writes::Always, _) => None,
        };
        Some(Earlier {
            registration: self.registration.clone(),
            point,
        })
    }

    fn record(&mut self, access: Access) {
        match (access, &self.writes) {
            (Access::Read, _) => self.reads = true,
            (Access::Always, _) => self.writes = Writes::Always,
            (_, Writes::Always) => {}
            (Access::Part | Access::Any, _) => self.writes = Writes::Borrowed,
            (Access::Write, _) => self.writes = Writes::Submitted(None),
        }
    }

    /// Forgets all uses: a later use came after them, and whatever comes after that one comes after them, too.
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

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Notes a use, if the stream is known, and therefore ordered after the grant. Returns whether it is.
    pub(super) fn record_if_known(
        &mut self,
        registration: &Arc<Registration>,
        access: Access,
    ) -> bool {
        let known = self
            .0
            .iter_mut()
            .find(|further| further.is_of(registration));
        known.map(|further| further.record(access)).is_some()
    }

    /// Notes a use on a stream that is ordered after the grant.
    pub(super) fn record(&mut self, registration: &Arc<Registration>, access: Access) {
        if !self.record_if_known(registration, access) {
            let mut further = Further {
                registration: registration.clone(),
                reads: false,
                writes: Writes::Nothing,
            };
            further.record(access);
            self.0.push(further);
        }
    }

    /// Returns what a use comes after, on other streams than its own.
    pub(super) fn before(
        &self,
        access: Access,
        on: Option<&Arc<Registration>>,
    ) -> impl Iterator<Item = Earlier> {
        let others = self.0.iter();
        let others = others.filter(move |further| on.is_none_or(|on| !further.is_of(on)));
        others.filter_map(move |further| further.before(access))
    }

    /// Keeps a point that was recorded behind the writes on a stream, for later uses.
    pub(super) fn keep(&mut self, registration: &Arc<Registration>, marker: &Arc<Marker>) {
        let mut all = self.0.iter_mut();
        if let Some(further) = all.find(|further| further.is_of(registration))
            && let Writes::Submitted(point @ None) = &mut further.writes
        {
            *point = Some(marker.clone());
        }
    }

    /// Forgets all uses but those on a stream: one there that writes alone came after them.
    pub(super) fn settle_but(&mut self, on: &Arc<Registration>) {
        let others = self.0.iter_mut();
        let others = others.filter(|further| !Arc::ptr_eq(&further.registration, on));
        others.for_each(Further::settle);
    }
}
