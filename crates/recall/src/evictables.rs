//! Evictable memory: blocks that the pool may take back from their user.
//!
//! For a request, the pool takes those that are free in one piece then: of all pieces, the one whose youngest block is the
//! oldest. Chunks are looked at in this order, and smaller pieces around the oldest blocks. Age is counted in uses. A block is
//! passed over for younger ones only as long as each of these is at least a sixteenth as old as the oldest block. Where no such
//! piece is found, blocks go by age alone.
//!
//! The list knows no blocks. A listed entry evicts itself: it ends a block, which is an ordinary free. Memory in use is
//! not listed. Evicting takes an entry off the list first, under its lock, so exactly one of eviction and use has it.

use crate::chunks::{Chunks, ListPosition, chunks_of};
use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::{fmt, iter};
use weirpool_device::DeviceAddress;
use weirpool_heap::id::ReservationId;
use weirpool_heap::{BlockId, Heap, Piece, Run};
use weirpool_measure::Fact;
use weirpool_measure::announcer::Announcer;
use weirpool_queue::Tag;
use weirpool_sync::{Busy, Guards, Mutex, plain};

/// After this many blocks, a choice looks at no further piece.
const STEPS: usize = 2048;

/// Memory of at least this part of the oldest block's age can be evicted before older memory.
const YOUNGEST: u64 = 16;

/// Memory that can be evicted.
pub trait Evict: fmt::Debug + Send + Sync {
    /// Frees the memory, unless it is gone or its user keeps it. Returns whether it did.
    fn evict(&self) -> bool;
}

/// Memory on the list.
#[derive(Debug)]
pub struct Candidate {
    /// The memory.
    pub memory: plain::Weak<dyn Evict>,
    /// The block in the heap. Without meaning if the memory is not the pool's.
    pub block: BlockId,
    /// The address of its first byte.
    pub address: DeviceAddress,
    /// Its size.
    pub bytes: u64,
    /// The account that the memory is charged to, if any.
    pub tag: Option<Tag>,
    /// Which requests it serves once it is evicted.
    pub home: Home,
}

/// Which requests memory serves once it is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Any request. The tag is uncharged.
    Pool,
    /// Requests in the scope of this reservation, which stays charged.
    Reservation(ReservationId),
    /// No request: the memory is not the pool's.
    Outside,
}

impl Candidate {
    fn chunks(&self, chunk_bytes: Option<u64>) -> impl Iterator<Item = u64> + use<> {
        let (address, bytes) = (self.address, self.bytes);
        chunk_bytes
            .into_iter()
            .flat_map(move |chunk_bytes| chunks_of(address, bytes, chunk_bytes))
    }

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
pub enum Group {
    /// Memory that serves any request.
    Pool,
    /// The part of it that is charged to the tag.
    Tag(Tag),
    /// Memory that returns to the reservation.
    Reservation(ReservationId),
}

/// The entries of a group.
#[derive(Debug, Default)]
struct Members {
    positions: BTreeSet<ListPosition>,
    chunks: Chunks,
    bytes: u64,
}

#[derive(Debug, Default)]
struct List {
    candidates: BTreeMap<ListPosition, Candidate>,
    /// The entries by their addresses, without those that are not the pool's.
    positions: HashMap<DeviceAddress, ListPosition>,
    bytes: u64,
    /// Only groups with entries are here.
    groups: BTreeMap<Group, Members>,
    /// None where memory is plain.
    chunk_bytes: Option<u64>,
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
            self.positions.insert(candidate.address, position);
        }
        for group in candidate.groups() {
            let members = self.groups.entry(group).or_default();
            members.positions.insert(position);
            for chunk in candidate.chunks(self.chunk_bytes) {
                members.chunks.insert(chunk, position);
            }
            members.bytes += candidate.bytes;
        }
        self.candidates.insert(position, candidate);
    }

    fn remove(&mut self, position: ListPosition) -> Option<Candidate> {
        let candidate = self.candidates.remove(&position)?;
        if candidate.home != Home::Outside {
            self.bytes -= candidate.bytes;
            self.positions.remove(&candidate.address);
        }
        for group in candidate.groups() {
            if let Entry::Occupied(mut group) = self.groups.entry(group) {
                let members = group.get_mut();
                members.positions.remove(&position);
                for chunk in candidate.chunks(self.chunk_bytes) {
                    members.chunks.remove(chunk, position);
                }
                members.bytes -= candidate.bytes;
                if members.positions.is_empty() {
                    group.remove();
                }
            }
        }
        Some(candidate)
    }

    /// Returns the least recently used entry, of one group or of all.
    fn first(&self, of: Option<Group>) -> Option<ListPosition> {
        match of {
            Some(group) => self.groups.get(&group)?.positions.first().copied(),
            None => Some(*self.candidates.first_key_value()?.0),
        }
    }

    /// Returns the memory of a group that is evicted first for a piece: the run whose youngest block is the oldest.
    fn best_run(&self, heap: &Heap, piece: Piece, of: Group) -> Option<Run<ListPosition>> {
        let members = self.groups.get(&of)?;
        let oldest = *members.positions.first()?;
        let age = |position: ListPosition| self.last.0 - position.0;
        let is_old = |position| age(position) >= age(oldest) / YOUNGEST;
        let find = |address| {
            let position = *self.positions.get(&DeviceAddress::from_bits(address))?;
            members.positions.contains(&position).then_some(position)
        };
        // No later seed has a run whose youngest block is older than the seed.
        let mut by_age = members.positions.iter().copied();
        let mut by_chunk = members.chunks.by_youngest();
        let takes_chunks = heap.takes_chunks(piece);
        let seeds = iter::from_fn(|| match takes_chunks {
            true => by_chunk.next(),
            false => by_age.next(),
        });
        let mut seen: HashSet<ListPosition> = HashSet::new();
        let mut steps = 0;
        let mut best: Option<Run<ListPosition>> = None;
        for seed in seeds {
            let is_best = best
                .as_ref()
                .is_some_and(|best| best.youngest() <= Some(seed));
            if is_best || !is_old(seed) || steps >= STEPS {
                break;
            }
            if seen.contains(&seed) {
                continue;
            }
            let run = heap.run_around((self.candidates[&seed].block, seed), piece, find);
            steps += run.members.len();
            // One that lies in two chunks can be free with the other one.
            if !takes_chunks {
                seen.extend(run.members.iter().copied());
            }
            let are_old = run.members.iter().all(|it| is_old(*it));
            let order = |run: &Run<ListPosition>| (run.youngest(), run.members.len());
            let is_better = best.as_ref().is_none_or(|best| order(&run) < order(best));
            if run.bytes.is_some() && are_old && is_better {
                best = Some(run);
            }
        }
        best
    }
}

/// The evictable memory of a pool, the least recently used first; see the [module](self).
#[derive(Debug)]
pub struct Evictables {
    list: Mutex<List>,
    announcer: plain::Arc<Announcer>,
}

impl Evictables {
    /// Creates an empty list, whose evictions are announced, for memory of chunks of this size or for plain memory.
    pub fn new(announcer: plain::Arc<Announcer>, chunk_bytes: Option<u64>) -> Self {
        let list = List {
            chunk_bytes,
            ..List::default()
        };
        Self {
            announcer,
            list: Mutex::new(Guards::Registry, list),
        }
    }

    /// Lists memory as the most recently used.
    pub fn list(&self, candidate: Candidate) -> ListPosition {
        self.list.lock().insert(candidate)
    }

    /// Takes memory off the list. Returns false if it is being evicted.
    #[must_use = "memory that is being evicted must not be used"]
    pub fn remove(&self, position: ListPosition) -> bool {
        self.list.lock().remove(position).is_some()
    }

    /// Moves memory that is listed with the home `listed` to the home that it has now, which is read again after each
    /// move: a reservation may end while memory is listed as its own. Returns the last home.
    pub fn follow(&self, mut listed: Home, home: impl Fn() -> Home) -> Home {
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
            .map(|members| members.positions.clone())
            .unwrap_or_default();
        for position in positions {
            if let Some(candidate) = list.remove(position) {
                list.insert_at(position, Candidate { home, ..candidate });
            }
        }
    }

    /// Returns the bytes on the list, without those that are not the pool's.
    pub fn bytes(&self) -> u64 {
        self.list.lock().bytes
    }

    /// Returns the addresses of the blocks on the list.
    pub fn addresses(&self) -> HashSet<DeviceAddress> {
        let list = self.list.lock();
        let candidates = list.candidates.values();
        candidates.map(|candidate| candidate.address).collect()
    }

    /// Returns the bytes on the list that are of a group.
    #[inline]
    pub fn bytes_of(&self, group: Group) -> u64 {
        let list = self.list.lock();
        list.groups.get(&group).map_or(0, |members| members.bytes)
    }

    /// Returns the blocks that were evicted so far: their number and their bytes, which wrap around.
    pub fn evicted(&self) -> (u64, u64) {
        let list = self.list.lock();
        (list.evictions, list.evicted)
    }

    /// Returns whether memory is being evicted, by any thread.
    pub fn is_evicting(&self) -> bool {
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
            self.announcer.tell(|| Fact::Evicted { bytes });
        }
    }

    /// Evicts the least recently used memory, of one group or of all, until that many bytes are free or the list is
    /// empty. Returns the bytes evicted. No lock is held while memory is freed.
    pub fn evict(&self, bytes: u64, of: Option<Group>) -> u64 {
        let mut evicted = 0;
        while evicted < bytes {
            let Some(candidate) = self.pop(of) else {
                break;
            };
            evicted += self.end(candidate);
        }
        evicted
    }

    /// Evicts memory of a group for pieces that are free then, until they have that many bytes; see the
    /// [module](self). Returns the bytes evicted. No lock is held while memory is freed.
    pub fn evict_for(&self, heap: &Busy<Box<Heap>>, bytes: u64, piece: Piece, of: Group) -> u64 {
        let (mut evicted, mut freed) = (0, 0);
        while freed < bytes {
            let Some((run, candidates)) = self.pop_run(heap, piece, of) else {
                return evicted + self.evict(bytes - freed, Some(of));
            };
            let ended: Vec<_> = candidates.into_iter().map(|it| self.end(it)).collect();
            let (is_free, ended) = (!ended.contains(&0), ended.iter().sum());
            evicted += ended;
            freed += run.bytes.filter(|_| is_free).unwrap_or(0).max(ended);
        }
        evicted
    }

    /// Frees memory that was taken off the list. Returns its bytes, or 0 if its user had freed or keeps it.
    fn end(&self, candidate: Candidate) -> u64 {
        // Ends the reference, too, before the eviction ends: it may be the last one.
        let memory = candidate.memory.upgrade();
        let is_freed = memory.is_some_and(|memory| memory.evict());
        let bytes = is_freed.then_some(candidate.bytes);
        self.end_eviction(bytes);
        bytes.unwrap_or(0)
    }

    fn pop(&self, of: Option<Group>) -> Option<Candidate> {
        let mut list = self.list.lock();
        let position = list.first(of)?;
        list.under_way += 1;
        list.remove(position)
    }

    fn pop_run(
        &self,
        heap: &Busy<Box<Heap>>,
        piece: Piece,
        of: Group,
    ) -> Option<(Run<ListPosition>, Vec<Candidate>)> {
        let heap = heap.lock();
        let mut list = self.list.lock();
        let run = list.best_run(&heap, piece, of)?;
        list.under_way += run.members.len();
        let candidates = run.members.iter().filter_map(|it| list.remove(*it));
        let candidates = candidates.collect();
        Some((run, candidates))
    }
}
