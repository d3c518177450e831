//! The registered streams: a list that is cheap to read and cheap to change.

use crate::Lane;
use crate::heap::Fence;
use crate::id::{StreamId, Ticket};
use crate::retired::Retired;
#[cfg(debug_assertions)]
use crate::sync::assert_unlocked;
use crate::sync::{Arc, plain};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Lanes in a run at most. A change copies one run, and one reference for each other run.
const RUN: usize = 64;

/// A run of lanes, in the order of their ids.
type LaneRun = plain::Arc<Vec<Arc<Lane>>>;

/// The lanes of all registered streams, by id. A copy is a snapshot, and costs one count. It may be the last owner of a
/// stream, so no lock is held while it is dropped.
#[derive(Clone, Debug, Default)]
pub struct Lanes(plain::Arc<Vec<LaneRun>>);

#[cfg(debug_assertions)]
impl Drop for Lanes {
    fn drop(&mut self) {
        assert_unlocked("a list of streams is dropped");
    }
}

impl Lanes {
    /// Returns the lanes, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.0.iter().flat_map(|run| run.iter())
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.iter().count()
    }

    /// Returns whether looking at each lane costs no more than choosing among them. Models choose always.
    pub fn are_few(&self) -> bool {
        self.0.len() <= 1 && !cfg!(weirpool_loom)
    }

    /// Returns those of the lanes that have one of these ids, which are in order.
    pub fn among(&self, ids: &[StreamId]) -> Self {
        let find = |stream: &StreamId| {
            self.find(Fence {
                stream: *stream,
                ticket: Ticket::ZERO,
            })
        };
        let run: Vec<_> = ids.iter().filter_map(find).cloned().collect();
        Self(plain::Arc::new(vec![plain::Arc::new(run)]))
    }

    /// Returns the lane of a fence. A stream that is gone has no lane, and all its work is complete.
    pub fn find(&self, fence: Fence) -> Option<&Arc<Lane>> {
        let run = self.0.get(self.run_of(fence.stream))?;
        let at = run.binary_search_by_key(&fence.stream, |lane| lane.id);
        Some(&run[at.ok()?])
    }

    /// Returns the first run that ends with this stream or a later one.
    fn run_of(&self, stream: StreamId) -> usize {
        let is_before = |run: &LaneRun| run.last().is_some_and(|last| last.id < stream);
        self.0.partition_point(is_before)
    }

    /// Adds a lane. Ids grow, so it nearly always comes last.
    pub fn insert(&mut self, lane: Arc<Lane>) {
        let at = self.run_of(lane.id);
        let runs = plain::Arc::make_mut(&mut self.0);
        let is_full = |run: &LaneRun| run.len() >= RUN;
        if at == runs.len() && runs.last().is_none_or(is_full) {
            return runs.push(plain::Arc::new(vec![lane]));
        }
        let at = at.min(runs.len() - 1);
        let run = plain::Arc::make_mut(&mut runs[at]);
        let position = run.partition_point(|other| other.id < lane.id);
        run.insert(position, lane);
    }

    /// Removes a lane. Runs that became short are joined.
    fn remove(&mut self, stream: StreamId) {
        let at = self.run_of(stream);
        let runs = plain::Arc::make_mut(&mut self.0);
        let Some(run) = runs.get_mut(at) else {
            return;
        };
        plain::Arc::make_mut(run).retain(|lane| lane.id != stream);
        let next = runs.get(at + 1).cloned();
        match next {
            Some(next) if runs[at].len() + next.len() <= RUN / 2 => {
                plain::Arc::make_mut(&mut runs[at]).extend(next.iter().cloned());
                runs.remove(at + 1);
            }
            _ if runs[at].is_empty() => drop(runs.remove(at)),
            _ => {}
        }
    }
}

/// All streams of a pool: those that are registered, and the counts of those that retired.
#[derive(Debug)]
pub struct Registry {
    /// Those that are registered.
    pub lanes: Lanes,
    /// Lanes whose last handle was dropped, and whose work may still run.
    leaving: BTreeMap<StreamId, Arc<Lane>>,
    /// The last of them that was asked how far it has come.
    asked: StreamId,
    /// The counts of those that retired.
    pub retired: Retired,
    next: u64,
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            lanes: Lanes::default(),
            leaving: BTreeMap::new(),
            asked: StreamId(0),
            retired: Retired::default(),
            next: 1,
        }
    }
}

impl Registry {
    /// Returns an id that no other stream of the pool ever has (invariant `stable-ids`).
    pub fn next_id(&mut self) -> StreamId {
        let id = StreamId(self.next);
        self.next += 1;
        id
    }

    /// Continues the ids of streams from here, as after this many registrations.
    #[doc(hidden)]
    pub fn skip_ids(&mut self, next: u64) {
        self.next = next;
    }

    /// Adds a lane, which keeps the marks of figures from now on.
    pub fn insert(&mut self, lane: Arc<Lane>) {
        self.retired.introduce(&lane);
        self.lanes.insert(lane);
    }

    /// Notes that the last handle of a stream was dropped. Returns its lane.
    pub fn retire(&mut self, stream: StreamId) -> Option<Arc<Lane>> {
        let fence = Fence {
            stream,
            ticket: Ticket::ZERO,
        };
        let lane = self.lanes.find(fence)?.clone();
        self.leaving.insert(stream, lane.clone());
        Some(lane)
    }

    /// Returns all lanes whose last handle was dropped.
    pub fn leaving(&self) -> Vec<Arc<Lane>> {
        self.leaving.values().cloned().collect()
    }

    /// Returns up to `most` of them, by turns.
    pub fn next_leaving(&mut self, most: usize) -> Vec<Arc<Lane>> {
        let after = (Bound::Excluded(self.asked), Bound::Unbounded);
        let rest = self.leaving.range(after);
        let next = rest.chain(self.leaving.range(..=self.asked)).take(most);
        let next: Vec<_> = next.map(|(_, lane)| lane.clone()).collect();
        if let Some(last) = next.last() {
            self.asked = last.id;
        }
        next
    }

    /// Removes those of the retired lanes whose work is complete, and keeps their counts. Returns them.
    pub fn remove_done(&mut self, told: &[Arc<Lane>]) -> Vec<Arc<Lane>> {
        let mut done = Vec::new();
        for lane in told.iter().filter(|lane| lane.is_done()) {
            // Another thread may have removed it.
            done.extend(self.leaving.remove(&lane.id));
        }
        done.iter().for_each(|lane| self.lanes.remove(lane.id));
        done
    }
}

#[cfg(all(test, not(weirpool_loom)))]
mod tests {
    use super::*;
    use crate::device::{DeviceId, StreamProperties};
    use crate::sync::SharedState;
    use crate::{ActiveStreams, CacheBounds, Gate};
    use crossbeam_utils::CachePadded;

    fn lanes_of(count: usize) -> Vec<Arc<Lane>> {
        let gate = Gate::new(CachePadded::new(SharedState::new(0)));
        let active = Arc::new(ActiveStreams::default());
        let host = StreamProperties::of_host(DeviceId(1));
        let lane = |id| {
            let owner = plain::Arc::new(());
            Lane::new(
                StreamId(id),
                host,
                owner,
                CacheBounds::NONE,
                gate.clone(),
                &active,
            )
        };
        (1..=count as u64).map(|id| Arc::new(lane(id))).collect()
    }

    fn ids(lanes: &Lanes) -> Vec<StreamId> {
        lanes.iter().map(|lane| lane.id).collect()
    }

    #[test]
    fn lanes_stay_in_order_however_they_come_and_go() {
        let all = lanes_of(5 * RUN);
        let mut lanes = Lanes::default();
        // Neighbours may come in either order.
        for pair in all.chunks(2) {
            pair.iter()
                .rev()
                .for_each(|lane| lanes.insert(lane.clone()));
        }
        assert_eq!(
            ids(&lanes),
            all.iter().map(|lane| lane.id).collect::<Vec<_>>()
        );
        let (gone, left): (Vec<_>, Vec<_>) = all.iter().partition(|lane| lane.id.0 % 9 != 0);
        gone.iter().for_each(|lane| lanes.remove(lane.id));
        assert_eq!(
            ids(&lanes),
            left.iter().map(|lane| lane.id).collect::<Vec<_>>()
        );
        let find = |lane: &Arc<Lane>| lanes.find(lane.fence(Ticket::ZERO)).map(|lane| lane.id);
        assert!(left.iter().all(|lane| find(lane) == Some(lane.id)));
        assert!(gone.iter().all(|lane| find(lane).is_none()));
        left.iter().for_each(|lane| lanes.remove(lane.id));
        assert!(lanes.0.is_empty());
    }

    #[test]
    fn registration_copies_one_run_and_not_all_lanes() {
        let all = lanes_of(10 * RUN);
        let (last, others) = all.split_last().unwrap();
        let mut lanes = Lanes::default();
        others.iter().for_each(|lane| lanes.insert(lane.clone()));
        // A reader holds a snapshot, so that nothing is changed in place.
        let snapshot = lanes.clone();
        lanes.insert(last.clone());
        let is_shared = |run: &&LaneRun| {
            snapshot
                .0
                .iter()
                .any(|other| plain::Arc::ptr_eq(other, run))
        };
        assert_eq!(lanes.0.iter().filter(is_shared).count(), lanes.0.len() - 1);
        assert_eq!((snapshot.len(), lanes.len()), (others.len(), all.len()));
    }
}
