//! The books of a host tier: which memory is where. Nothing here calls a device or the pool.
//!
//! Memory is evictable only as far as the host has room for it, the least recently used first: spilled
//! and evictable memory never exceed the host's capacity together. So the pool's figures of evictable memory are true, and a request
//! that eviction cannot serve evicts nothing.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;
use std::task::Waker;
use weirpool::{Block, Evictable, Pinned, Tag};
use weirpool_sync::plain;

/// What a [`HostTier`](crate::HostTier) holds, in bytes, and what it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostTierFigures {
    /// Spillable memory on the device.
    pub resident: u64,
    /// The part of it that is spilled when a request needs it: nothing uses it, and the host has room for it.
    pub evictable: u64,
    /// Contents on the host.
    pub spilled: u64,
    /// Number of copies to the host.
    pub spills: u64,
    /// Number of copies back to the device.
    pub fetches: u64,
    /// Number of times that memory was chosen and stayed, because the host had no room after all, or the copy failed.
    pub refusals: u64,
}

/// The memory of a tier, by its number.
#[derive(Default)]
pub(crate) struct Books {
    entries: HashMap<u64, Entry>,
    last: u64,
    /// What the host can hold, in bytes.
    pub(crate) capacity: u64,
    /// Resident memory that nothing uses and the host has no room for, the least recently used first.
    parked: BTreeMap<u64, u64>,
    pub(crate) figures: HostTierFigures,
}

/// Memory of the tier.
pub(crate) struct Entry {
    pub(crate) bytes: u64,
    pub(crate) tag: Option<Tag>,
    pub(crate) state: State,
    /// Tasks that wait for another state, by the numbers that they got here.
    waiting: BTreeMap<u64, Waker>,
}

pub(crate) enum State {
    Resident {
        memory: Arc<Evictable>,
        /// Number of its users.
        pins: usize,
        place: Place,
    },
    /// A thread submits a copy of it.
    Moving,
    Spilled(Block),
}

/// How resident memory is held.
pub(crate) enum Place {
    InUse,
    /// The pool may evict it.
    Evictable,
    /// Among the parked, and pinned.
    Parked(u64, Pinned),
}

/// Tasks to wake and values to drop once the lock is released.
#[derive(Default)]
pub(crate) struct Trash {
    states: Vec<State>,
    pins: Vec<Pinned>,
    woken: Vec<Waker>,
}

impl Drop for Trash {
    fn drop(&mut self) {
        // Memory of the host is free before memory is evictable that needs it.
        self.states.clear();
        self.pins.clear();
        for waker in self.woken.drain(..) {
            plain::catch(|| waker.wake());
        }
    }
}

impl Books {
    /// Returns a number that was not used before.
    pub(crate) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(crate) fn enter(&mut self, id: u64, bytes: u64, tag: Option<Tag>, memory: Arc<Evictable>) {
        self.figures.resident += bytes;
        let state = State::Resident {
            memory,
            pins: 1,
            place: Place::InUse,
        };
        let entry = Entry {
            bytes,
            tag,
            state,
            waiting: BTreeMap::new(),
        };
        self.entries.insert(id, entry);
    }

    /// Returns memory whose user has it still.
    pub(crate) fn entry(&mut self, id: u64) -> &mut Entry {
        self.entries.get_mut(&id).expect("its user has it")
    }

    /// Forgets memory, which its user drops.
    pub(crate) fn leave(&mut self, id: u64, trash: &mut Trash) {
        let Some(entry) = self.entries.remove(&id) else {
            return;
        };
        match &entry.state {
            State::Resident { place, .. } => {
                self.figures.resident -= entry.bytes;
                self.count_out_of(place, entry.bytes);
            }
            // The thread that moves it counts it.
            State::Moving => {}
            State::Spilled(_) => self.figures.spilled -= entry.bytes,
        }
        trash.states.push(entry.state);
        trash.woken.extend(entry.waiting.into_values());
        self.list_parked(trash);
    }

    fn count_out_of(&mut self, place: &Place, bytes: u64) {
        match place {
            Place::InUse => {}
            Place::Evictable => self.figures.evictable -= bytes,
            Place::Parked(at, _) => {
                self.parked.remove(at);
            }
        }
    }

    /// Notes one more user of resident memory, which the caller has pinned.
    pub(crate) fn pinned(&mut self, id: u64, trash: &mut Trash) {
        let entry = self.entry(id);
        let bytes = entry.bytes;
        let State::Resident { pins, place, .. } = &mut entry.state else {
            unreachable!("pinned memory is resident");
        };
        *pins += 1;
        let place = mem::replace(place, Place::InUse);
        self.count_out_of(&place, bytes);
        if let Place::Parked(_, pin) = place {
            trash.pins.push(pin);
        }
        self.list_parked(trash);
    }

    /// Notes one user less.
    pub(crate) fn unpinned(&mut self, id: u64, pin: Pinned, trash: &mut Trash) {
        // Others may have freed memory of the host.
        self.list_parked(trash);
        let at = self.next();
        let Some(entry) = self.entries.get(&id) else {
            trash.pins.push(pin);
            return;
        };
        let admits = self.admits(entry.bytes);
        let entry = self.entry(id);
        let bytes = entry.bytes;
        let State::Resident { pins, place, .. } = &mut entry.state else {
            unreachable!("pinned memory is resident");
        };
        *pins -= 1;
        if *pins > 0 {
            trash.pins.push(pin);
        } else if admits {
            *place = Place::Evictable;
            self.figures.evictable += bytes;
            trash.pins.push(pin);
        } else {
            *place = Place::Parked(at, pin);
            self.parked.insert(at, id);
        }
    }

    fn admits(&self, bytes: u64) -> bool {
        let taken = self.figures.spilled + self.figures.evictable;
        taken.saturating_add(bytes) <= self.capacity
    }

    /// Makes parked memory evictable that the host has room for.
    fn list_parked(&mut self, trash: &mut Trash) {
        while let Some((at, id)) = self.parked.first_key_value() {
            let (at, id) = (*at, *id);
            let bytes = self.entry(id).bytes;
            if !self.admits(bytes) {
                return;
            }
            self.parked.remove(&at);
            self.figures.evictable += bytes;
            if let State::Resident { place, .. } = &mut self.entry(id).state
                && let Place::Parked(_, pin) = mem::replace(place, Place::Evictable)
            {
                trash.pins.push(pin);
            }
        }
    }

    /// Notes that memory is being copied to the host. Returns its bytes, or `None` if its user has dropped it.
    pub(crate) fn begin_spill(&mut self, id: u64, trash: &mut Trash) -> Option<u64> {
        let entry = self.entries.get_mut(&id)?;
        let bytes = entry.bytes;
        trash
            .states
            .push(mem::replace(&mut entry.state, State::Moving));
        self.figures.resident -= bytes;
        self.figures.evictable -= bytes;
        self.figures.spilled += bytes;
        Some(bytes)
    }

    /// Notes that a copy to the host was submitted.
    pub(crate) fn end_spill(&mut self, id: u64, bytes: u64, host: Block, trash: &mut Trash) {
        self.figures.spills += 1;
        if !self.set(id, State::Spilled(host), trash) {
            self.free_host(bytes, trash);
        }
    }

    /// Notes that memory stays that was to be copied to the host.
    pub(crate) fn refuse_spill(
        &mut self,
        id: u64,
        bytes: u64,
        (memory, pin): (Arc<Evictable>, Pinned),
        trash: &mut Trash,
    ) {
        self.figures.refusals += 1;
        self.figures.spilled -= bytes;
        let at = self.next();
        let state = State::Resident {
            memory,
            pins: 0,
            place: Place::Parked(at, pin),
        };
        if self.set(id, state, trash) {
            self.figures.resident += bytes;
            // Others first: the host refused this one a moment ago.
            self.parked.insert(at, id);
        }
    }

    /// Takes the contents of spilled memory for a copy back, if it is spilled.
    pub(crate) fn begin_fetch(&mut self, id: u64) -> Option<Block> {
        let state = &mut self.entry(id).state;
        match mem::replace(state, State::Moving) {
            State::Spilled(host) => Some(host),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Notes that memory is back, and in use once.
    pub(crate) fn end_fetch(&mut self, id: u64, memory: Arc<Evictable>, trash: &mut Trash) {
        let bytes = self.entry(id).bytes;
        let state = State::Resident {
            memory,
            pins: 1,
            place: Place::InUse,
        };
        self.set(id, state, trash);
        self.figures.fetches += 1;
        self.figures.resident += bytes;
        self.free_host(bytes, trash);
    }

    /// Notes that memory stays on the host.
    pub(crate) fn refuse_fetch(&mut self, id: u64, host: Block, trash: &mut Trash) {
        self.set(id, State::Spilled(host), trash);
    }

    fn free_host(&mut self, bytes: u64, trash: &mut Trash) {
        self.figures.spilled -= bytes;
        self.list_parked(trash);
    }

    /// Sets the state of memory, and wakes the tasks that wait for one. Returns false if its user has dropped it.
    fn set(&mut self, id: u64, state: State, trash: &mut Trash) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else {
            trash.states.push(state);
            return false;
        };
        trash.states.push(mem::replace(&mut entry.state, state));
        let woken = mem::take(&mut entry.waiting);
        trash.woken.extend(woken.into_values());
        true
    }

    /// Remembers a task that waits for another state, under a number of its own: a new one if it has none. Returns the waker
    /// that it had before.
    pub(crate) fn wait(
        &mut self,
        id: u64,
        waiter: &mut Option<u64>,
        waker: Waker,
    ) -> Option<Waker> {
        let waiter = *waiter.get_or_insert_with(|| self.next());
        self.entry(id).waiting.insert(waiter, waker)
    }

    /// Forgets a task that does not wait any more. Returns its waker, if it was not called.
    pub(crate) fn forget(&mut self, id: u64, waiter: u64) -> Option<Waker> {
        self.entries.get_mut(&id)?.waiting.remove(&waiter)
    }

    /// Takes memory out that nothing uses. Memory that is parked is evictable from now on, and not taken yet.
    pub(crate) fn take(&mut self, id: u64, trash: &mut Trash) -> Option<Block> {
        let entry = self.entry(id);
        let bytes = entry.bytes;
        let State::Resident { memory, place, .. } = &mut entry.state else {
            return None;
        };
        match mem::replace(place, Place::Evictable) {
            Place::Evictable => {
                let block = Arc::get_mut(memory)?.take()?;
                self.leave(id, trash);
                Some(block)
            }
            Place::Parked(at, pin) => {
                self.parked.remove(&at);
                self.figures.evictable += bytes;
                trash.pins.push(pin);
                None
            }
            Place::InUse => {
                *place = Place::InUse;
                None
            }
        }
    }
}
