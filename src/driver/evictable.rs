//! Evictable memory: blocks that the pool may take back from their user, in the order of their last use.
//!
//! The list knows no blocks. A listed entry evicts itself: it ends a block, which is an ordinary free. Memory in use is
//! not listed. Evicting takes an entry off the list first, under its lock, so exactly one of eviction and use has it.

use crate::device::DeviceAddress;
use crate::id::ReservationId;
use crate::measure::Tag;
use crate::sync::{Guards, Mutex, plain};
use crate::trace;
use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{BTreeSet, HashSet};
use std::fmt;

/// Memory that can be evicted.
pub(crate) trait Evict: fmt::Debug + Send + Sync {
    /// Frees the memory, unless it is gone. Returns whether it did.
    fn evict(&self) -> bool;
}

/// Memory on the list.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) memory: plain::Weak<dyn Evict>,
    pub(crate) address: DeviceAddress,
    pub(crate) bytes: u64,
    /// The account that the memory is charged to, if any.
    pub(crate) tag: Option<Tag>,
    pub(crate) home: Home,
}

/// Which requests memory serves once it is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// Any request. The tag is uncharged.
    Pool,
    /// Requests in the scope of this reservation, which stays charged.
    Reservation(ReservationId),
    /// No request: the memory is not the pool's.
    Outside,
}

impl Candidate {
    fn groups(&self) -> impl Iterator<Item = Group> + use<> {
        let groups = match self.home {
            Home::Pool => [Some(Group::Pool), self.tag.map(Group::Tag)],
            Home::Reservation(id) => [Some(Group::Reservation(id)), None],
            Home::Outside => [None, None],
        };
        groups.into_iter().flatten()
    }
}

/// Entries of the list that are evicted for one kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Group {
    /// Memory that serves any request.
    Pool,
    /// The part of it that is charged to the tag.
    Tag(Tag),
    /// Memory that returns to the reservation.
    Reservation(ReservationId),
}

/// A position on the list: memory at a later one was used later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ListPosition(u64);

#[derive(Debug, Default)]
struct List {
    candidates: BTreeMap<ListPosition, Candidate>,
    bytes: u64,
    /// The entries of each group, and their bytes. Only groups with entries are here.
    groups: BTreeMap<Group, (BTreeSet<ListPosition>, u64)>,
    last: ListPosition,
    /// Entries taken off the list whose memory is not free yet.
    under_way: usize,
    evictions: u64,
    evicted: u64,
}

impl List {
    fn insert(&mut self, candidate: Candidate) -> ListPosition {
        self.last.0 += 1;
        self.insert_at(self.last, candidate);
        self.last
    }

    fn insert_at(&mut self, position: ListPosition, candidate: Candidate) {
        if candidate.home != Home::Outside {
            self.bytes += candidate.bytes;
        }
        for group in candidate.groups() {
            let (positions, bytes) = self.groups.entry(group).or_default();
            positions.insert(position);
            *bytes += candidate.bytes;
        }
        self.candidates.insert(position, candidate);
    }

    fn remove(&mut self, position: ListPosition) -> Option<Candidate> {
        let candidate = self.candidates.remove(&position)?;
        if candidate.home != Home::Outside {
            self.bytes -= candidate.bytes;
        }
        for group in candidate.groups() {
            if let Entry::Occupied(mut group) = self.groups.entry(group) {
                let (positions, bytes) = group.get_mut();
                positions.remove(&position);
                *bytes -= candidate.bytes;
                if positions.is_empty() {
                    group.remove();
                }
            }
        }
        Some(candidate)
    }

    /// Returns the least recently used entry, of one group or of all.
    fn first(&self, of: Option<Group>) -> Option<ListPosition> {
        match of {
            Some(group) => self.groups.get(&group)?.0.first().copied(),
            None => Some(*self.candidates.first_key_value()?.0),
        }
    }
}

/// The evictable memory of a pool, the least recently used first; see the [module](self).
#[derive(Debug)]
pub(crate) struct Evictables {
    list: Mutex<List>,
}

impl Evictables {
    pub(super) fn new() -> Self {
        Self {
            list: Mutex::new(Guards::Registry, List::default()),
        }
    }

    /// Lists memory as the most recently used.
    pub(crate) fn list(&self, candidate: Candidate) -> ListPosition {
        self.list.lock().insert(candidate)
    }

    /// Takes memory off the list. Returns false if it is being evicted.
    #[must_use = "memory that is being evicted must not be used"]
    pub(crate) fn remove(&self, position: ListPosition) -> bool {
        self.list.lock().remove(position).is_some()
    }

    /// Moves memory that is listed with the home `listed` to the home that it has now, which is read again after each
    /// move: a reservation may end while memory is listed as its own. Returns the last home.
    pub(crate) fn follow(&self, mut listed: Home, home: impl Fn() -> Home) -> Home {
        loop {
            let now = home();
            if now == listed {
                return now;
            }
            if let Home::Reservation(reservation) = listed {
                self.change_home(reservation, now);
            }
            listed = now;
        }
    }

    fn change_home(&self, reservation: ReservationId, home: Home) {
        let mut list = self.list.lock();
        let group = list.groups.get(&Group::Reservation(reservation));
        let positions = group
            .map(|(positions, _)| positions.clone())
            .unwrap_or_default();
        for position in positions {
            if let Some(candidate) = list.remove(position) {
                list.insert_at(position, Candidate { home, ..candidate });
            }
        }
    }

    /// Returns the bytes on the list, without those that are not the pool's.
    pub(crate) fn bytes(&self) -> u64 {
        self.list.lock().bytes
    }

    /// Returns the addresses of the blocks on the list.
    pub(super) fn addresses(&self) -> HashSet<DeviceAddress> {
        let list = self.list.lock();
        let candidates = list.candidates.values();
        candidates.map(|candidate| candidate.address).collect()
    }

    /// Returns the bytes on the list that are of a group.
    pub(crate) fn bytes_of(&self, group: Group) -> u64 {
        let list = self.list.lock();
        list.groups.get(&group).map_or(0, |(_, bytes)| *bytes)
    }

    /// Returns the blocks that were evicted so far: their number and their bytes, which wrap around.
    pub(super) fn evicted(&self) -> (u64, u64) {
        let list = self.list.lock();
        (list.evictions, list.evicted)
    }

    /// Returns whether memory is being evicted, by any thread.
    pub(super) fn is_evicting(&self) -> bool {
        self.list.lock().under_way > 0
    }

    /// Ends an eviction, and counts it if memory was freed.
    fn end_eviction(&self, bytes: Option<u64>) {
        {
            let mut list = self.list.lock();
            list.under_way -= 1;
            if let Some(bytes) = bytes {
                list.evictions += 1;
                list.evicted = list.evicted.wrapping_add(bytes);
            }
        }
        if let Some(bytes) = bytes {
            trace::evicted(bytes);
        }
    }

    /// Evicts the least recently used memory, of one group or of all, until that many bytes are free or the list is
    /// empty. Returns the bytes evicted. No lock is held while memory is freed.
    pub(crate) fn evict(&self, bytes: u64, of: Option<Group>) -> u64 {
        let mut evicted = 0;
        while evicted < bytes {
            let Some(candidate) = self.pop(of) else {
                break;
            };
            // Ends the reference, too, before the eviction ends: it may be the last one.
            let memory = candidate.memory.upgrade();
            let is_freed = memory.is_some_and(|memory| memory.evict());
            let bytes = is_freed.then_some(candidate.bytes);
            self.end_eviction(bytes);
            evicted += bytes.unwrap_or(0);
        }
        evicted
    }

    fn pop(&self, of: Option<Group>) -> Option<Candidate> {
        let mut list = self.list.lock();
        let position = list.first(of)?;
        list.under_way += 1;
        list.remove(position)
    }
}
