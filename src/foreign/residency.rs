//! Memory of others that is not always there: its owner takes it away while blocks of it live, and brings it back.

use crate::device::{DeviceError, DeviceErrorKind};
use crate::engine::ordering;
use crate::error::StreamError;
use crate::handles::{GraphUses, HostAccess, Presence, Registration, Route};
use crate::lane::Lane;
use crate::queue::Passages;
use crate::sync::{Arc, Guards, Mutex, plain};
use smallvec::SmallVec;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// The number of streams at which those are looked for that nobody has any more.
const STREAMS_KEPT: usize = 16;

/// Whether memory that others own is there. The blocks of memory that is suspended and resumed together share one: each
/// [`ForeignMemory`](super::ForeignMemory) of them [returns](super::ForeignMemory::residency) a clone. Made by
/// [`Pool::residency`](crate::Pool::residency); resident at first. The page on [foreign
/// memory](crate::guide::foreign_memory) has an example.
///
/// While an [`Absence`] exists, the calls of this crate that would use such a block fail with [`StreamError::Absent`]:
/// submissions, records of uses, copies and access by the host. So do launches of graphs whose captured work names one.
/// The block can be dropped, and moved to other streams.
///
/// A use of an address by another library is not known here: its caller [holds](Self::hold) the memory resident meanwhile. So
/// does the caller of cudarc's traits.
#[derive(Clone)]
pub struct Residency(plain::Arc<Shared>);

struct Shared {
    name: plain::Arc<str>,
    pool: plain::Weak<Presence>,
    /// The stream on which the owner copies the contents.
    copies: plain::OnceLock<Arc<Lane>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of absences that have begun and not ended.
    absences: usize,
    /// Number of [`Resident`]s that users have.
    holds: usize,
    /// Number of uses that may not be submitted yet.
    uses: usize,
    /// The streams whose work may use the memory, each once: those of its blocks, and those that it was used on.
    streams: Vec<Arc<Registration>>,
    /// The graphs whose captured work names it.
    graphs: Vec<plain::Weak<GraphUses>>,
    /// Those that wait for the last hold and use to end.
    waiting: SmallVec<[Waker; 1]>,
}

impl Residency {
    pub(crate) fn new(pool: &plain::Arc<Presence>, name: &str) -> Self {
        Self(plain::Arc::new(Shared {
            name: name.into(),
            pool: plain::Arc::downgrade(pool),
            copies: plain::OnceLock::new(),
            state: Mutex::new(Guards::Registry, State::default()),
        }))
    }

    /// Returns the name of the memory, for errors.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Sets the stream of the owner's copies, once.
    pub(crate) fn set_copies(&self, stream: &Registration) {
        let _ = self.0.copies.set(stream.lane.clone());
    }

    /// Returns the stream of the owner's copies.
    pub(crate) fn copies(&self) -> Option<&Arc<Lane>> {
        self.0.copies.get()
    }

    /// Returns whether no absence exists or is about to begin.
    pub fn is_resident(&self) -> bool {
        self.0.state.lock().absences == 0
    }

    /// Holds the memory resident until the result is dropped: an absence does not begin before, and uses succeed until then.
    ///
    /// # Errors
    /// Returns [`StreamError::Absent`] if an absence exists or is about to begin.
    pub fn hold(&self) -> Result<Resident, StreamError> {
        let mut state = self.0.state.lock();
        if state.absences > 0 {
            drop(state);
            return Err(self.absent());
        }
        state.holds += 1;
        Ok(Resident {
            residency: self.clone(),
            is_use: false,
        })
    }

    /// Holds the memory for a call that uses it. This also succeeds while an absence is about to begin that waits for a
    /// [hold](Self::hold): the caller may have that hold.
    ///
    /// # Errors
    /// Returns [`StreamError::Absent`] if an absence exists, or is about to begin and no hold exists.
    pub fn hold_for_call(&self) -> Result<Resident, StreamError> {
        let mut state = self.0.state.lock();
        if state.absences > 0 && state.holds == 0 {
            drop(state);
            return Err(self.absent());
        }
        Ok(self.use_held(&mut state))
    }

    fn use_held(&self, state: &mut State) -> Resident {
        state.uses += 1;
        Resident {
            residency: self.clone(),
            is_use: true,
        }
    }

    /// Begins an absence: from now on holds fail, and uses as soon as no hold exists. The future is ready once every hold has
    /// ended, and the work that used the memory before is complete on all streams, launches of graphs included.
    ///
    /// A task that has a hold must not wait for another hold of the same memory: both would wait for the absence, which waits
    /// for the first.
    ///
    /// # Errors
    /// When awaited, returns an error if a stream that used the memory is being captured, or the device fails. The memory is
    /// resident then.
    ///
    /// # Cancel safety
    /// Dropping the future ends the absence.
    pub fn leave(&self) -> Leave {
        self.0.state.lock().absences += 1;
        let absence = Absence {
            residency: self.clone(),
            launches: None,
            bytes: 0,
        };
        Leave {
            absence: Some(absence),
            uses: None,
        }
    }

    /// Holds the memory for a use on a stream, which the next absence comes after.
    ///
    /// # Errors
    /// Returns [`StreamError::Absent`], or an error for an external stream, which may be gone when its work is to be waited
    /// for.
    pub(crate) fn hold_for(&self, on: &Arc<Registration>) -> Result<Resident, StreamError> {
        expect_awaitable(on)?;
        let held = self.hold_for_call()?;
        self.remember(on);
        Ok(held)
    }

    /// Notes that work of a stream may use the memory: the next absence comes after it.
    pub(crate) fn remember(&self, on: &Arc<Registration>) {
        if on.lane.is_external {
            return;
        }
        let route = Route::of(on);
        let (abandoned, held) = {
            let mut state = self.0.state.lock();
            if let Some(route) = &route {
                state.name_in(&route.uses);
            }
            if state.streams.iter().any(|known| Arc::ptr_eq(known, on)) {
                return;
            }
            let abandoned = state.add_stream(on);
            // An absence does not begin while they are not among the streams.
            let held = (!abandoned.is_empty()).then(|| self.use_held(&mut state));
            (abandoned, held)
        };
        self.keep_those_at_work(abandoned);
        drop(held);
    }

    /// Notes that launches of a graph may use the memory.
    pub(crate) fn name_in(&self, graph: &plain::Arc<GraphUses>) {
        self.0.state.lock().name_in(graph);
    }

    /// Forgets the streams that nobody has any more, whose work is complete.
    fn forget_abandoned(&self) {
        let abandoned = self.0.state.lock().take_abandoned();
        drop(abandoned);
    }

    /// Drops the streams whose work is complete, and remembers the others.
    fn keep_those_at_work(&self, streams: Vec<Arc<Registration>>) {
        for stream in streams {
            let point = ordering::present_point(&stream.service.engine, &stream.lane);
            let mut passage = stream.passage(point);
            // The first look may record an event, and the second one finds it complete.
            let mut look = || passage.poll(&mut Context::from_waker(Waker::noop()));
            let is_over = [look(), look()].contains(&Poll::Ready(Ok(())));
            if !is_over {
                self.0.state.lock().streams.push(stream);
            }
        }
    }

    fn absent(&self) -> StreamError {
        StreamError::Absent {
            memory: self.0.name.clone(),
        }
    }

    /// Returns whether no use is held, or else remembers the waker.
    fn poll_unheld(&self, waker: &Waker) -> bool {
        // Cloned, and dropped if it is known, outside the lock.
        let waker = waker.clone();
        let mut state = self.0.state.lock();
        if state.holds + state.uses == 0 {
            drop(state);
            return true;
        }
        if !state.waiting.iter().any(|known| known.will_wake(&waker)) {
            state.waiting.push(waker);
        }
        false
    }

    /// Returns the points behind all uses, and keeps graphs from being launched.
    fn uses_so_far(&self) -> (HostAccess, Passages) {
        let (streams, graphs) = {
            let state = self.0.state.lock();
            let graphs: SmallVec<[_; 1]> = state
                .graphs
                .iter()
                .filter_map(plain::Weak::upgrade)
                .collect();
            (state.streams.clone(), graphs)
        };
        let launches = HostAccess::begin(graphs, Some(&self.0.name));
        let uses = streams.iter().map(|stream| {
            let point = ordering::present_point(&stream.service.engine, &stream.lane);
            stream.passage(point)
        });
        let of_launches = launches.launches();
        let of_launches = of_launches.map(|(stream, point)| stream.passage(point));
        let passages = uses.chain(of_launches).collect();
        (launches, passages)
    }
}

impl State {
    fn name_in(&mut self, graph: &plain::Arc<GraphUses>) {
        let is_same =
            |known: &plain::Weak<_>| std::ptr::eq(known.as_ptr(), plain::Arc::as_ptr(graph));
        if !self.graphs.iter().any(is_same) {
            self.graphs.retain(|known| known.strong_count() > 0);
            self.graphs.push(plain::Arc::downgrade(graph));
        }
    }

    /// Adds a stream. Returns those that nobody else has, if there are many.
    fn add_stream(&mut self, on: &Arc<Registration>) -> Vec<Arc<Registration>> {
        self.streams.push(on.clone());
        match self.streams.len() < STREAMS_KEPT {
            true => Vec::new(),
            false => self.take_abandoned(),
        }
    }

    fn take_abandoned(&mut self) -> Vec<Arc<Registration>> {
        let is_abandoned = |stream: &mut Arc<Registration>| Arc::strong_count(stream) == 1;
        self.streams.extract_if(.., is_abandoned).collect()
    }
}

impl fmt::Debug for Residency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Residency({:?})", self.name())
    }
}

/// Returns an error for an external stream, which may be gone when its work is to be waited for.
pub(crate) fn expect_awaitable(on: &Registration) -> Result<(), DeviceError> {
    if !on.lane.is_external {
        return Ok(());
    }
    let reason = "memory that can be suspended is not used on external streams: register the stream with its owner";
    let kind = DeviceErrorKind::Unsupported;
    Err(DeviceError::new("record", kind, reason))
}

/// Holds memory resident, from [`Residency::hold`].
#[must_use = "the memory may be absent as soon as it is dropped"]
#[derive(Debug)]
pub struct Resident {
    residency: Residency,
    /// Whether it lasts for a call.
    is_use: bool,
}

impl Drop for Resident {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.residency.0.state.lock();
            match self.is_use {
                true => state.uses -= 1,
                false => state.holds -= 1,
            }
            match state.holds + state.uses {
                0 => std::mem::take(&mut state.waiting),
                _ => SmallVec::new(),
            }
        };
        for waker in waiting {
            plain::catch(|| waker.wake());
        }
    }
}

/// The future of [`Residency::leave`].
#[must_use = "the absence ends when the future is dropped"]
#[derive(Debug)]
pub struct Leave {
    /// Until it is handed out.
    absence: Option<Absence>,
    uses: Option<Passages>,
}

impl Future for Leave {
    type Output = Result<Absence, DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let absence = this.absence.as_mut().expect("polled until it is ready");
        if this.uses.is_none() {
            if !absence.residency.poll_unheld(context.waker()) {
                return Poll::Pending;
            }
            let (launches, uses) = absence.residency.uses_so_far();
            absence.launches = Some(launches);
            this.uses = Some(uses);
        }
        let uses = Pin::new(this.uses.get_or_insert_default());
        match uses.poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(ended) => {
                this.uses = None;
                let absence = this.absence.take().expect("polled until it is ready");
                Poll::Ready(ended.map(|()| {
                    absence.residency.forget_abandoned();
                    absence
                }))
            }
        }
    }
}

/// Memory is not there, or about to go: no call of this crate uses it while this exists. Its uses are complete. Made by
/// [`Residency::leave`]. Dropping it makes the memory resident again, which it has to be by then.
#[must_use = "the memory is resident as soon as it is dropped"]
#[derive(Debug)]
pub struct Absence {
    residency: Residency,
    /// No graph is launched that names the memory.
    launches: Option<HostAccess>,
    bytes: u64,
}

impl Absence {
    /// Counts this many bytes as [suspended](crate::Statistics::suspended), in place of those that it counted before.
    pub fn count(&mut self, bytes: u64) {
        if let Some(pool) = self.residency.0.pool.upgrade() {
            let counters = &pool.service.engine.shared.counters;
            counters.suspended(self.bytes, bytes);
        }
        self.bytes = bytes;
    }
}

impl Drop for Absence {
    fn drop(&mut self) {
        self.count(0);
        // Before uses can name further graphs.
        self.launches = None;
        self.residency.0.state.lock().absences -= 1;
    }
}
