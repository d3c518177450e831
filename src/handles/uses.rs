//! What a graph uses besides its own memory: the blocks that its captured work names, and the streams of its launches.
//!
//! The device keeps one owner of this with the graph, and drops it once no launch can run any more. A block that ends
//! before is handed over as a value ([`keep`](GraphUses::keep)), and ends with the graph. A launch is a use on its
//! stream: later uses come after it, and none begins while the host has access to a block of the graph.

use super::Registration;
use crate::device::Kept;
use crate::heap::Ranges;
use crate::id::Ticket;
use crate::sync::{Arc, Guards, Mutex, plain, yield_now};
use smallvec::SmallVec;
use std::fmt;

/// Points of streams: where a launch ends, or where a block was granted.
pub(crate) type Points = SmallVec<[(Arc<Registration>, Ticket); 2]>;

/// See the [module](self).
pub(crate) struct GraphUses(Mutex<GraphState>);

#[derive(Default)]
struct GraphState {
    /// The last launch on each stream, as far as it may not be complete.
    launches: Points,
    /// Launches whose call of the device has not returned.
    submitting: usize,
    /// How many guards give the host access to a block that launches use, or wait for it; absences of such a block are
    /// among them.
    host_guards: usize,
    /// The memory whose absence keeps the graph from being launched.
    absent: SmallVec<[plain::Arc<str>; 1]>,
    /// The points after which launches may use the blocks that captured work names.
    grants: Points,
    /// What ends with the graph.
    kept: Vec<Kept>,
    /// The addresses of its memory that were allocated while it was captured: launches may use them.
    held: Ranges,
    /// The streams that joined the capture by waiting, until it is over.
    joined: Vec<Arc<Registration>>,
    is_over: bool,
}

/// Notes the later one of two points of a stream, and takes the points out that are complete. They may be the last
/// owners of their streams: the caller drops them outside the lock.
#[must_use = "dropped outside the lock"]
fn add_point(points: &mut Points, registration: &Arc<Registration>, ticket: Ticket) -> Points {
    let is_complete = |(of, ticket): &(Arc<Registration>, Ticket)| {
        !Arc::ptr_eq(of, registration) && of.lane.timeline.completed() >= *ticket
    };
    let (complete, mut open): (Points, Points) =
        std::mem::take(points).into_iter().partition(is_complete);
    match open
        .iter_mut()
        .find(|(of, _)| Arc::ptr_eq(of, registration))
    {
        Some((_, known)) => *known = ticket.max(*known),
        None => open.push((registration.clone(), ticket)),
    }
    *points = open;
    complete
}

impl GraphUses {
    /// Creates the uses of a graph whose capture begins. The memory that it allocates from ends with it.
    pub(super) fn new(memory: Kept) -> plain::Arc<Self> {
        let state = GraphState {
            kept: vec![memory],
            ..GraphState::default()
        };
        plain::Arc::new(Self(Mutex::new(Guards::Registry, state)))
    }

    /// Notes a stream that joined the capture by waiting, whose route ends with it. Returns false if it is over.
    pub(super) fn keep_joined(&self, registration: &Arc<Registration>) -> bool {
        let mut state = self.0.lock();
        if !state.is_over {
            state.joined.push(registration.clone());
        }
        !state.is_over
    }

    /// Notes that a range is allocated, while the graph is being captured.
    pub(super) fn hold(&self, address: u64, bytes: u64) {
        self.0.lock().held.insert(address, address + bytes);
    }

    /// Takes the streams that joined by waiting, and lets no more join.
    pub(super) fn take_joined(&self) -> Vec<Arc<Registration>> {
        let mut state = self.0.lock();
        state.is_over = true;
        std::mem::take(&mut state.joined)
    }

    /// Adds the addresses that launches may use.
    pub(super) fn add_held(&self, ranges: &mut Ranges) {
        ranges.insert_all(&self.0.lock().held);
    }

    /// Keeps a value until no launch can run any more.
    pub(crate) fn keep(&self, kept: Kept) {
        self.0.lock().kept.push(kept);
    }

    /// Notes the point after which a block was granted that captured work names.
    pub(crate) fn record_grant(&self, home: &Arc<Registration>, after: Ticket) {
        let complete = add_point(&mut self.0.lock().grants, home, after);
        drop(complete);
    }

    /// Returns the points that a launch comes after.
    pub(crate) fn grants(&self) -> Points {
        self.0.lock().grants.clone()
    }

    /// Begins a launch.
    ///
    /// # Errors
    /// While a block that it uses is absent, returns the name of that memory; while the host has access to one, `None`.
    pub(crate) fn begin_launch(&self) -> Result<Launching<'_>, Option<plain::Arc<str>>> {
        let mut state = self.0.lock();
        if state.host_guards > 0 {
            return Err(state.absent.first().cloned());
        }
        state.submitting += 1;
        Ok(Launching(self))
    }

    /// Returns the launches that may not be complete.
    pub(crate) fn launches(&self) -> Points {
        self.0.lock().launches.clone()
    }

    /// Lets the host in: from now on no launch begins. Waits, as for a lock, until the calls of launches have returned.
    fn let_host_in(&self, absent: Option<&plain::Arc<str>>) {
        {
            let mut state = self.0.lock();
            state.host_guards += 1;
            state.absent.extend(absent.cloned());
        }
        while self.0.lock().submitting > 0 {
            yield_now();
        }
    }
}

/// A launch whose call of the device has not returned.
#[must_use = "the launch is noted when it was submitted"]
pub(crate) struct Launching<'a>(&'a GraphUses);

impl Launching<'_> {
    /// Notes that the launch was submitted, before a point of a stream.
    pub(crate) fn submitted(self, registration: &Arc<Registration>, point: Ticket) {
        let complete = add_point(&mut self.0.0.lock().launches, registration, point);
        drop(complete);
    }
}

impl Drop for Launching<'_> {
    fn drop(&mut self) {
        self.0.0.lock().submitting -= 1;
    }
}

/// Access of the host to memory that graphs use, or an absence of that memory. While this exists, none of them is launched.
#[derive(Debug)]
pub(crate) struct HostAccess {
    graphs: SmallVec<[plain::Arc<GraphUses>; 1]>,
    absent: Option<plain::Arc<str>>,
}

impl HostAccess {
    /// Begins an access of the host, or an absence of the memory with a name.
    pub(crate) fn begin(
        graphs: SmallVec<[plain::Arc<GraphUses>; 1]>,
        absent: Option<&plain::Arc<str>>,
    ) -> Self {
        graphs.iter().for_each(|graph| graph.let_host_in(absent));
        let absent = absent.cloned();
        Self { graphs, absent }
    }

    /// Returns the launches of these graphs that may not be complete.
    pub(crate) fn launches(&self) -> impl Iterator<Item = (Arc<Registration>, Ticket)> {
        self.graphs.iter().flat_map(|graph| graph.launches())
    }
}

impl Drop for HostAccess {
    fn drop(&mut self) {
        for graph in &self.graphs {
            let mut state = graph.0.lock();
            state.host_guards -= 1;
            if let Some(absent) = &self.absent {
                let at = state.absent.iter().position(|name| name == absent);
                at.map(|at| state.absent.remove(at));
            }
        }
    }
}

impl fmt::Debug for GraphUses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        f.debug_struct("GraphUses")
            .field("kept", &state.kept.len())
            .field("launched_on", &state.launches.len())
            .finish_non_exhaustive()
    }
}
