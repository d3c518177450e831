//! What comes before what: a clock for every stream, and one for the host.
//!
//! An edge goes from an item to the next of its stream; from an event's record to a wait for it; from
//! a signal to the wait for the flag that it ended; from what the host has seen complete to
//! everything submitted later. All threads of the host count as one. What the host does with memory
//! that it shares is an item of a line of its own, and seen complete at once. Knows nothing of memory.

use super::clock::{Clock, Hook, Line, Moment, Stamp};
use crate::schedule::{FlagId, News};
use std::collections::{HashMap, VecDeque};
use weirpool_device::plain::Arc;
use weirpool_device::{RawEvent, RawStream, WatchId};

/// A stream's side of the order.
#[derive(Debug, Default)]
struct Course {
    /// How many items were submitted.
    count: u64,
    /// How many were before the stream had its present name: of streams that bore it earlier.
    base: u64,
    clock: Arc<Clock>,
    /// Which version of the host's clock is in it.
    heard: u64,
    /// Submitted and not carried out yet, in order.
    signals: VecDeque<Stamp>,
    /// The same for waits for a flag.
    waits: VecDeque<Arc<Hook>>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Order {
    courses: Vec<Course>,
    by_name: HashMap<RawStream, Line>,
    /// What the host has seen complete. Has nothing open: what is complete has waited.
    host: Arc<Clock>,
    version: u64,
    /// What a wait for the event's last record comes after.
    events: HashMap<RawEvent, Stamp>,
    watches: HashMap<WatchId, Stamp>,
    /// What was before the flag was set last.
    flags: HashMap<FlagId, Arc<Clock>>,
}

impl Order {
    // ---- streams ---------------------------------------------------------------------------

    /// A stream begins. It takes over the line of one that bore its name, if the host has seen all
    /// of that one complete: a count that goes on proves as much as a new one.
    pub(crate) fn open(&mut self, stream: RawStream) {
        let former = self.by_name.get(&stream).copied();
        let done = former.filter(|&line| self.host.covers(line, self.courses[line].count));
        let line = done.unwrap_or(self.courses.len());
        if done.is_none() {
            self.courses.push(Course::default());
        }
        let course = &mut self.courses[line];
        course.base = course.count;
        course.clock = self.host.clone();
        course.heard = self.version;
        self.by_name.insert(stream, line);
    }

    fn line(&self, stream: RawStream) -> Line {
        self.by_name[&stream]
    }

    /// The present point of a stream: behind all that was submitted, and all that the host knows.
    pub(super) fn now(&mut self, stream: RawStream) -> Stamp {
        let line = self.line(stream);
        let course = &mut self.courses[line];
        if course.heard != self.version {
            course.heard = self.version;
            Arc::make_mut(&mut course.clock).join(&self.host);
        }
        if course.clock.has_open() {
            Arc::make_mut(&mut course.clock).settle();
        }
        Stamp {
            line,
            count: course.count,
            clock: course.clock.clone(),
        }
    }

    /// Counts an item that is submitted.
    pub(super) fn pass(&mut self, stream: RawStream) {
        let line = self.line(stream);
        self.courses[line].count += 1;
    }

    fn order_after(&mut self, stream: RawStream, stamp: &Stamp) {
        self.now(stream);
        let line = self.line(stream);
        stamp.join_into(Arc::make_mut(&mut self.courses[line].clock));
    }

    // ---- events ----------------------------------------------------------------------------

    pub(crate) fn record(&mut self, event: RawEvent, stream: RawStream) {
        let stamp = self.now(stream);
        self.events.insert(event, stamp);
    }

    pub(crate) fn forget(&mut self, event: RawEvent) {
        self.events.remove(&event);
    }

    pub(crate) fn wait(&mut self, stream: RawStream, event: RawEvent) {
        if let Some(stamp) = self.events.get(&event).cloned() {
            self.order_after(stream, &stamp);
        }
    }

    // ---- flags -----------------------------------------------------------------------------

    pub(super) fn signal(&mut self, stream: RawStream) {
        let stamp = self.now(stream);
        self.courses[stamp.line].signals.push_back(stamp);
    }

    pub(super) fn wait_for_flag(&mut self, stream: RawStream) {
        let hook = Arc::new(Hook::new());
        let line = self.now(stream).line;
        let course = &mut self.courses[line];
        course.waits.push_back(hook.clone());
        Arc::make_mut(&mut course.clock).attach(hook);
    }

    /// The host sets a flag.
    pub(crate) fn set_flag(&mut self, flag: FlagId) {
        self.flags.insert(flag, self.host.clone());
    }

    /// The host reads a flag, and knows what was before it was set.
    pub(crate) fn read_flag(&mut self, flag: FlagId) {
        if let Some(clock) = self.flags.get(&flag).cloned() {
            self.host_knows(|host| host.join(&clock));
        }
    }

    fn signalled(&mut self, stream: RawStream, flag: FlagId) {
        let line = self.line(stream);
        if let Some(stamp) = self.courses[line].signals.pop_front() {
            self.flags.insert(flag, flatten(&stamp));
        }
    }

    fn waited(&mut self, stream: RawStream, flag: FlagId) {
        let line = self.line(stream);
        if let Some(hook) = self.courses[line].waits.pop_front() {
            let clock = self.flags.get(&flag).cloned().unwrap_or_default();
            // The only one to fill it: each wait is over once.
            let _ = hook.set(clock);
        }
    }

    // ---- the host --------------------------------------------------------------------------

    /// Whether the host has seen a moment complete.
    pub(super) fn is_known(&self, moment: Moment) -> bool {
        self.host.covers(moment.line, moment.index + 1)
    }

    /// The host has seen the event's last record complete.
    pub(crate) fn observe(&mut self, event: RawEvent) {
        if let Some(stamp) = self.events.get(&event).cloned() {
            self.host_has_seen(&stamp);
        }
    }

    /// The host has seen so many items of the stream complete, and knows of others only if that is
    /// all there are.
    pub(crate) fn observe_progress(&mut self, stream: RawStream, done: u64) {
        let Some(&line) = self.by_name.get(&stream) else {
            return;
        };
        let course = &self.courses[line];
        let count = course.base + done;
        if count == course.count {
            let stamp = self.now(stream);
            self.host_has_seen(&stamp);
        } else if !self.host.covers(line, count) {
            self.host_knows(|host| host.raise(line, count));
        }
    }

    pub(crate) fn watch(&mut self, watch: WatchId, event: RawEvent) {
        if let Some(stamp) = self.events.get(&event).cloned() {
            self.watches.insert(watch, stamp);
        }
    }

    pub(crate) fn unwatch(&mut self, watch: WatchId) {
        self.watches.remove(&watch);
    }

    /// What the host did itself is complete.
    pub(super) fn host_is_through(&mut self) {
        let line = self.line(RawStream::HOST);
        let count = self.courses[line].count;
        self.host_knows(|host| host.raise(line, count));
    }

    fn host_has_seen(&mut self, stamp: &Stamp) {
        let clock = flatten(stamp);
        if !self.host.includes(&clock) {
            self.host_knows(|host| host.join(&clock));
        }
    }

    fn host_knows(&mut self, learn: impl FnOnce(&mut Clock)) {
        self.version += 1;
        learn(Arc::make_mut(&mut self.host));
    }

    // ---- what the device did ---------------------------------------------------------------

    /// Says whether a wait for a flag is over.
    pub(super) fn hear(&mut self, news: News) -> bool {
        match news {
            News::Signalled(stream, flag) => self.signalled(stream, flag),
            News::Waited(stream, flag) => {
                self.waited(stream, flag);
                return true;
            }
            News::Rang(watch) => {
                if let Some(stamp) = self.watches.remove(&watch) {
                    self.host_has_seen(&stamp);
                }
            }
        }
        false
    }
}

/// A point that was reached, as one clock with nothing open.
fn flatten(stamp: &Stamp) -> Arc<Clock> {
    let mut clock = Clock::clone(&stamp.clock);
    clock.raise(stamp.line, stamp.count);
    clock.settle();
    Arc::new(clock)
}
