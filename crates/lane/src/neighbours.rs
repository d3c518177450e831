//! The other devices of the host whose streams use memory of the pool, and which of them have access to it.
//!
//! A stream of another device is registered for its own uses only where that device has access. Copies are made by the
//! device itself, and are noted on streams of any device beside the pool's. The access is changed by one thread at a
//! time, and taken back only while no such stream is registered, nor has work left: each lane counts as an owner of its
//! [`Neighbour`], and lives until its work is complete. A lane on which only copies are noted may live longer, with a
//! block that names it, and counts until its copies are complete.
//!
//! The access that is due follows from the last setting, and from the scopes that were begun since. A scope that ends
//! while the memory is in use leaves the access as it is for now: see [`due`](Neighbours::due).

use crate::device::{Device, DeviceId};
use crate::sync::plain::AtomicBool;
use crate::sync::{Arc, Guards, Mutex, Ordering, plain};
use crate::{Lane, Neighbour};

/// Whether a device has access to the pool's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessStage {
    /// It has none.
    Closed,
    /// A thread gives or takes back the access.
    Changing,
    /// It has access.
    Open,
}

/// Why an access is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessBusy {
    /// Another thread changes it.
    Changing,
    /// Streams of the device may use the memory.
    InUse {
        /// How many.
        streams: usize,
    },
}

/// Why nothing is done on a stream of another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAccess {
    /// The device has no access, or is not beside the pool's.
    Foreign,
    /// The access is being changed.
    Changing,
}

#[derive(Debug)]
struct KnownNeighbour {
    neighbour: Arc<Neighbour>,
    stage: AccessStage,
    wish: WantedAccess,
    /// The number of copies by streams of the device that were ever begun.
    copies: u64,
    /// Copies that are being submitted.
    copying: usize,
}

/// What the access is to be.
#[derive(Clone, Debug, Default)]
pub struct WantedAccess {
    /// What it is while there are no scopes.
    is_open: bool,
    /// The scopes that have not ended, in the order in which they began, with what each one asks for.
    scopes: Vec<(AccessScope, bool)>,
    last: AccessScope,
}

/// Names a scope of an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessScope(u64);

impl WantedAccess {
    /// Sets the access, in all scopes.
    pub fn set(&mut self, is_open: bool) {
        self.is_open = is_open;
        self.scopes.iter_mut().for_each(|(_, wish)| *wish = is_open);
    }

    /// Takes a [`set`](Self::set) back that was made when the wish was as `before`. Scopes may have begun and ended since.
    pub fn unset(&mut self, before: &Self) {
        self.is_open = before.is_open;
        for (scope, wish) in &mut self.scopes {
            if let Some((_, was)) = before.scopes.iter().find(|(known, _)| known == scope) {
                *wish = *was;
            }
        }
    }

    /// Begins a scope that asks for this.
    pub fn begin(&mut self, is_open: bool) -> AccessScope {
        self.last.0 += 1;
        self.scopes.push((self.last, is_open));
        self.last
    }

    /// Ends a scope.
    pub fn end(&mut self, scope: AccessScope) {
        self.scopes.retain(|(known, _)| *known != scope);
    }

    /// The scope that began last decides.
    fn stage(&self) -> AccessStage {
        match self.scopes.last().map_or(self.is_open, |(_, wish)| *wish) {
            true => AccessStage::Open,
            false => AccessStage::Closed,
        }
    }
}

/// Lanes of a device on which only copies are noted, which are complete.
#[derive(Debug, Default)]
pub struct CompleteCopies {
    /// Those lanes.
    pub lanes: Vec<Arc<Lane>>,
    /// The number of copies that had begun before.
    pub begun: u64,
}

/// A copy that is being submitted: it runs with the access that there is now.
#[must_use = "the access stays as it is until this is dropped"]
pub struct Copying<'a> {
    neighbours: &'a Neighbours,
    device: DeviceId,
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        self.neighbours.with(self.device, |entry| {
            // There is none for the pool's own device.
            if let Some(entry) = entry {
                entry.copying -= 1;
                // Who looked at the stream meanwhile did not see the copy.
                entry.copies += 1;
            }
        });
    }
}

impl KnownNeighbour {
    /// Returns whether there is access, which is not about to be taken back.
    fn is_open(&self) -> bool {
        self.stage == AccessStage::Open && self.wish.stage() == AccessStage::Open
    }
}

/// See the [module](self). There are as many entries as the host has devices, at most.
#[derive(Debug)]
pub struct Neighbours {
    /// The pool's own device.
    device: plain::Arc<dyn Device>,
    entries: Mutex<Vec<KnownNeighbour>>,
    /// A scope has ended and left the access as it was.
    has_due: AtomicBool,
}

impl Neighbours {
    /// Knows no other device yet.
    pub fn new(device: plain::Arc<dyn Device>) -> Self {
        Self {
            device,
            entries: Mutex::new(Guards::Registry, Vec::new()),
            has_due: AtomicBool::new(false),
        }
    }

    fn with<R>(&self, device: DeviceId, look: impl FnOnce(Option<&mut KnownNeighbour>) -> R) -> R {
        let mut entries = self.entries.lock();
        let mut entries = entries.iter_mut();
        look(entries.find(|entry| entry.neighbour.device.id() == device))
    }

    /// Enters a device, if it is not known.
    pub fn enter(&self, device: &plain::Arc<dyn Device>) {
        let neighbour = Arc::new(Neighbour::new(device.clone()));
        let mut entries = self.entries.lock();
        let id = device.id();
        let is_known = entries
            .iter()
            .any(|entry| entry.neighbour.device.id() == id);
        if !is_known {
            entries.push(KnownNeighbour {
                neighbour,
                stage: AccessStage::Closed,
                wish: WantedAccess::default(),
                copies: 0,
                copying: 0,
            });
        }
    }

    /// Changes what the access of a device is to be. Returns what it was to be before.
    pub fn wish<R>(
        &self,
        device: DeviceId,
        change: impl FnOnce(&mut WantedAccess) -> R,
    ) -> (WantedAccess, R) {
        self.with(device, |entry| {
            let wish = &mut entry.expect("entered before").wish;
            (wish.clone(), change(wish))
        })
    }

    /// Notes that an access is not what it is to be.
    pub fn mark_due(&self) {
        self.has_due.store(true, Ordering::Release);
    }

    /// Returns the devices whose access is not what it is to be, and not being changed.
    pub fn due(&self) -> Vec<plain::Arc<dyn Device>> {
        // The usual case costs no lock and no write.
        if !self.has_due.load(Ordering::Acquire) || !self.has_due.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let entries = self.entries.lock();
        let due = entries.iter().filter(|entry| {
            entry.stage != AccessStage::Changing && entry.stage != entry.wish.stage()
        });
        due.map(|entry| entry.neighbour.device.clone()).collect()
    }

    /// Returns whether the access of a device is to be taken back.
    pub fn is_closing(&self, device: DeviceId) -> bool {
        self.with(device, |entry| {
            entry.is_some_and(|entry| entry.stage == AccessStage::Open && !entry.is_open())
        })
    }

    /// Returns a number that is another one after each beginning and end of a submission of a copy by a stream of the device.
    pub fn copies_begun(&self, device: DeviceId) -> u64 {
        self.with(device, |entry| entry.map_or(0, |entry| entry.copies))
    }

    /// Notes a copy by a stream of the device, which is submitted until this is dropped. Returns `None` if the device has
    /// no access.
    pub fn begin_copy(&self, device: DeviceId) -> Option<Copying<'_>> {
        if device != self.device.id() {
            self.with(device, |entry| {
                let entry = entry.filter(|entry| entry.is_open())?;
                entry.copies += 1;
                entry.copying += 1;
                Some(())
            })?;
        }
        Some(Copying {
            neighbours: self,
            device,
        })
    }

    /// Lets the work of a stream use the memory from now on, also if only copies are noted on its lane so far.
    ///
    /// # Errors
    /// Returns an error if that is so, and the stream's device has no access.
    pub fn allow_uses(&self, lane: &Lane) -> Result<(), NoAccess> {
        if lane.is_for_copies() {
            // A thread that has found the copies complete does not take the access back after this.
            let device = lane.device(&self.device).id();
            let _copying = self.begin_copy(device).ok_or(NoAccess::Foreign)?;
            lane.set_for_copies(false);
        }
        Ok(())
    }

    /// Begins to change an access to what it is to be. Returns whether there is anything to change, and to what.
    pub fn begin(
        &self,
        device: DeviceId,
        copies: &CompleteCopies,
    ) -> Result<Option<AccessStage>, AccessBusy> {
        self.with(device, |entry| {
            let Some(entry) = entry else {
                return Ok(None);
            };
            if entry.stage == AccessStage::Changing {
                return Err(AccessBusy::Changing);
            }
            let target = entry.wish.stage();
            if entry.stage == target {
                return Ok(None);
            }
            let complete = match entry.copies == copies.begun {
                true => copies.lanes.len(),
                false => 0,
            };
            let lanes = Arc::strong_count(&entry.neighbour) - 1 - complete;
            let streams = lanes.max(entry.copying);
            if target == AccessStage::Closed && streams > 0 {
                return Err(AccessBusy::InUse { streams });
            }
            entry.stage = AccessStage::Changing;
            Ok(Some(target))
        })
    }

    /// Ends a change that [began](Self::begin). If another access is asked for by now, it is [due](Self::due): the thread
    /// that asked found the change under way.
    pub fn end(&self, device: DeviceId, stage: AccessStage) {
        let is_due = self.with(device, |entry| {
            let entry = entry.expect("entries stay");
            entry.stage = stage;
            stage != entry.wish.stage()
        });
        if is_due {
            self.mark_due();
        }
    }

    /// Returns whether the device has access to the pool's memory: it is the pool's own, or was given it.
    pub fn is_accessible_from(&self, device: DeviceId) -> bool {
        device == self.device.id()
            || self.with(device, |entry| {
                entry.is_some_and(|entry| entry.stage == AccessStage::Open)
            })
    }

    /// Returns whether streams of the two devices can wait for each other's events.
    pub fn is_beside(&self, other: DeviceId) -> bool {
        let peers = self.device.peer_access();
        other == self.device.id() || peers.is_some_and(|peers| peers.is_beside(other))
    }

    /// Returns the neighbour whose stream is to be registered for its own uses; `None` if it is the pool's own device.
    ///
    /// # Errors
    /// Returns an error if the device has no access.
    pub fn with_access(&self, device: DeviceId) -> Result<Option<Arc<Neighbour>>, NoAccess> {
        if device == self.device.id() {
            return Ok(None);
        }
        self.with(device, |entry| match entry {
            Some(entry) if entry.is_open() => Ok(Some(entry.neighbour.clone())),
            _ => Err(NoAccess::Foreign),
        })
    }

    /// Returns the neighbour on whose stream a copy is to be noted; `None` if it is the pool's own device.
    ///
    /// # Errors
    /// Returns an error if the device is not beside the pool's, or while its access is being changed.
    pub fn of_copies(
        &self,
        device: &plain::Arc<dyn Device>,
    ) -> Result<Option<Arc<Neighbour>>, NoAccess> {
        let id = device.id();
        if id == self.device.id() {
            return Ok(None);
        }
        if !self.is_beside(id) {
            return Err(NoAccess::Foreign);
        }
        self.enter(device);
        self.with(id, |entry| match entry {
            Some(entry) if entry.stage != AccessStage::Changing => {
                Ok(Some(entry.neighbour.clone()))
            }
            _ => Err(NoAccess::Changing),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread takes the access back and has found the copies complete, as another one uses the memory for more.
    #[cfg(not(weirpool_loom))]
    #[test]
    fn access_is_not_taken_back_once_a_stream_of_copies_uses_memory() {
        use crate::device::{RawStream, StreamProperties};
        use crate::id::StreamId;
        use crate::sync::SharedState;
        use crate::{ActiveStreams, CacheBounds, Gate};
        let [own, other] = weirpool_sim::SimDevice::builder().build_host();
        let (own, other): (plain::Arc<dyn Device>, plain::Arc<dyn Device>) =
            (plain::Arc::new(own), plain::Arc::new(other));
        let (neighbours, id) = (Neighbours::new(own), other.id());
        neighbours.enter(&other);
        let lane = Lane::new(
            StreamId(1),
            StreamProperties::new(id, RawStream(1)),
            plain::Arc::new(()),
            CacheBounds::NONE,
            Gate::new(crossbeam_utils::CachePadded::new(SharedState::new(0))),
            &Arc::new(ActiveStreams::default()),
        );
        let lane = Arc::new(lane.on(neighbours.of_copies(&other).unwrap()));
        lane.set_for_copies(true);
        let complete = || CompleteCopies {
            lanes: vec![lane.clone()],
            begun: neighbours.copies_begun(id),
        };
        assert_eq!(neighbours.allow_uses(&lane), Err(NoAccess::Foreign));
        for (is_open, stage) in [(true, AccessStage::Open), (false, AccessStage::Closed)] {
            neighbours.wish(id, |wish| wish.set(is_open));
            assert_eq!(neighbours.begin(id, &complete()), Ok(Some(stage)));
            neighbours.end(id, stage);
        }
        assert_eq!(neighbours.allow_uses(&lane), Err(NoAccess::Foreign));
        neighbours.wish(id, |wish| wish.set(true));
        neighbours.end(id, AccessStage::Open);
        let copying = neighbours.begin_copy(id).unwrap();
        let found = complete();
        drop(copying);
        neighbours.wish(id, |wish| wish.set(false));
        let in_use = Err(AccessBusy::InUse { streams: 1 });
        assert_eq!(neighbours.begin(id, &found), in_use, "looked during a copy");
        neighbours.wish(id, |wish| wish.set(true));
        let found = complete();
        neighbours.allow_uses(&lane).unwrap();
        neighbours.wish(id, |wish| wish.set(false));
        assert_eq!(neighbours.begin(id, &found), in_use);
    }

    /// A set that is refused is taken back, and nothing else: other threads begin and end scopes meanwhile.
    #[test]
    fn refused_set_leaves_the_scopes_of_other_threads_as_they_are() {
        let mut wish = WantedAccess::default();
        let ends = wish.begin(true);
        let stays = wish.begin(true);
        let before = wish.clone();
        wish.set(false);
        let begun = wish.begin(true);
        wish.end(ends);
        wish.unset(&before);
        assert_eq!(wish.scopes, [(stays, true), (begun, true)]);
        assert!(![ends, stays, begun].contains(&wish.begin(false)));
        assert!(!wish.is_open);
    }
}
