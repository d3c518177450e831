//! The order of points: a clock for every stream, and the knowledge of the host.
//!
//! An edge goes from an item to the next one of its stream; from the record of an event to a wait for it; from a signal
//! to the wait for the flag that it ended; and from everything that the host has seen complete to everything submitted
//! later. All threads of the host count as one. A use of shared memory by the host is an item of a line of its own, and
//! is seen complete at once. This module does not know memory.

use super::clock::{Clock, Hook, Stamp};
use super::known::{Known, Line, Moment};
use crate::label::StreamLabel;
use crate::schedule::{FlagId, News};
use std::collections::{HashMap, VecDeque};
use weirpool_device::plain::Arc;
use weirpool_device::{RawEvent, RawStream, WatchId};

/// The state of a stream in the order.
#[derive(Debug)]
struct Course {
    label: StreamLabel,
    /// The number of items that were submitted.
    count: u64,
    /// How many of them were submitted to earlier streams of the same name.
    base: u64,
    clock: Arc<Clock>,
    /// The version of the host's knowledge that the clock includes.
    heard: u64,
    /// Signals that were submitted and have not happened, in order.
    signals: VecDeque<Stamp>,
    /// Waits for a flag that were submitted and are not over, in order.
    waits: VecDeque<Arc<Hook>>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Order {
    courses: Vec<Course>,
    by_name: HashMap<RawStream, Line>,
    known: Known,
    /// For each event, the point that a wait for its last record comes after.
    events: HashMap<RawEvent, Stamp>,
    watches: HashMap<WatchId, Stamp>,
    /// For each flag, the clock at which it was last set.
    flags: HashMap<FlagId, Arc<Clock>>,
}

impl Order {
    /// Returns what the host has seen complete.
    pub(super) fn known(&self) -> &Known {
        &self.known
    }

    // ---- streams ---------------------------------------------------------------------------

    /// Begins a stream. If the host has seen everything of an earlier stream of the same name complete, the new stream
    /// takes over its line: a count that continues proves as much as a new one.
    pub(crate) fn open(&mut self, stream: RawStream, label: StreamLabel) {
        let former = self.by_name.get(&stream).copied();
        let done = former.filter(|&line| self.known.covers(line, self.courses[line].count));
        let count = done.map_or(0, |line| self.courses[line].count);
        let course = Course {
            label,
            count,
            base: count,
            clock: Arc::new(Clock::of_host(&self.known)),
            heard: self.known.version(),
            signals: VecDeque::new(),
            waits: VecDeque::new(),
        };
        let line = done.unwrap_or(self.courses.len());
        match self.courses.get_mut(line) {
            Some(former) => *former = course,
            None => self.courses.push(course),
        }
        self.by_name.insert(stream, line);
    }

    fn line(&self, stream: RawStream) -> Line {
        self.by_name[&stream]
    }

    /// Returns the label by which reports name a stream.
    pub(super) fn label(&self, stream: RawStream) -> StreamLabel {
        self.courses[self.line(stream)].label.clone()
    }

    /// Gives a stream a name for reports, if it has none.
    pub(super) fn name(&mut self, stream: RawStream, name: &str) {
        if let Some(line) = self.by_name.get(&stream) {
            self.courses[*line].label.set_name(name);
        }
    }

    /// Returns the present point of a stream: behind everything submitted so far, and everything that the host knows.
    pub(crate) fn now(&mut self, stream: RawStream) -> Stamp {
        let line = self.line(stream);
        let course = &mut self.courses[line];
        if course.heard != self.known.version() {
            course.heard = self.known.version();
            Arc::make_mut(&mut course.clock).join_host(&self.known);
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

    /// Counts a submitted item.
    pub(super) fn pass(&mut self, stream: RawStream) {
        let line = self.line(stream);
        self.courses[line].count += 1;
    }

    /// Orders the later items of a stream after a point.
    pub(crate) fn come_after(&mut self, stream: RawStream, stamp: &Stamp) {
        self.order_after(stream, stamp);
    }

    /// Notes that the host has seen everything before a point complete.
    pub(crate) fn reached(&mut self, stamp: &Stamp) {
        self.host_learns(&flatten(stamp));
    }

    fn order_after(&mut self, stream: RawStream, stamp: &Stamp) {
        self.now(stream);
        let line = self.line(stream);
        stamp.join_into(Arc::make_mut(&mut self.courses[line].clock), &self.known);
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

    /// Returns whether the present point of a stream comes after the event's last record.
    pub(crate) fn comes_after(&self, stream: RawStream, event: RawEvent) -> bool {
        let Some(stamp) = self.events.get(&event) else {
            return true;
        };
        let Some(index) = stamp.count.checked_sub(1) else {
            return true;
        };
        let line = stamp.line;
        let clock = &self.courses[self.line(stream)].clock;
        self.is_known(Moment { line, index }) || clock.covers(Moment { line, index }, &self.known)
    }

    // ---- flags -----------------------------------------------------------------------------

    pub(super) fn signal(&mut self, stream: RawStream) {
        let stamp = self.now(stream);
        self.courses[stamp.line].signals.push_back(stamp);
    }

    pub(super) fn wait_for_flag(&mut self, stream: RawStream) {
        let hook = Arc::new(Hook::new());
        let line = self.now(stream).line;
        self.known.open_wait();
        let course = &mut self.courses[line];
        course.waits.push_back(hook.clone());
        Arc::make_mut(&mut course.clock).attach(hook);
    }

    /// Notes that the host sets a flag.
    pub(crate) fn set_flag(&mut self, flag: FlagId) {
        self.flags
            .insert(flag, Arc::new(Clock::of_host(&self.known)));
    }

    /// Notes that the host reads a flag. The host then knows what came before the flag was set.
    pub(crate) fn read_flag(&mut self, flag: FlagId) {
        if let Some(clock) = self.flags.get(&flag).cloned() {
            self.host_learns(&clock);
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
            // No other call sets it, because each wait ends once.
            let _ = hook.set(clock);
            self.known.close_wait();
        }
    }

    // ---- the host --------------------------------------------------------------------------

    /// Returns whether the host has seen a moment complete.
    pub(super) fn is_known(&self, moment: Moment) -> bool {
        self.known.covers(moment.line, moment.index + 1)
    }

    /// Notes that the host has seen the event's last record complete.
    pub(crate) fn observe(&mut self, event: RawEvent) {
        if let Some(stamp) = self.events.get(&event).cloned() {
            self.host_learns(&flatten(&stamp));
        }
    }

    /// Notes that the host has seen `done` items of the stream complete. It knows what comes before these items only if
    /// they are all items that were submitted.
    pub(crate) fn observe_progress(&mut self, stream: RawStream, done: u64) {
        let Some(&line) = self.by_name.get(&stream) else {
            return;
        };
        let course = &self.courses[line];
        let count = course.base + done;
        if count == course.count {
            let stamp = self.now(stream);
            self.host_learns(&flatten(&stamp));
        } else {
            self.host_learns_counts([(line, count)]);
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

    /// Notes that the host's own uses are complete.
    pub(super) fn host_is_through(&mut self) {
        let line = self.line(RawStream::HOST);
        self.host_learns_counts([(line, self.courses[line].count)]);
    }

    /// Notes that the host knows everything in a clock, which has nothing open.
    fn host_learns(&mut self, clock: &Clock) {
        self.host_learns_counts(clock.counts());
    }

    fn host_learns_counts(&mut self, counts: impl IntoIterator<Item = (Line, u64)>) {
        let mut counts = counts.into_iter();
        let known = &self.known;
        let Some(first) = counts.find(|&(line, count)| !known.covers(line, count)) else {
            return;
        };
        self.known.advance();
        for (line, count) in std::iter::once(first).chain(counts) {
            self.known.learn(line, count);
        }
    }

    // ---- what the device did ---------------------------------------------------------------

    /// Returns whether a wait for a flag is over.
    pub(super) fn hear(&mut self, news: News) -> bool {
        match news {
            News::Signalled(stream, flag) => self.signalled(stream, flag),
            News::Waited(stream, flag) => {
                self.waited(stream, flag);
                return true;
            }
            News::WatchCompleted(watch) => {
                if let Some(stamp) = self.watches.remove(&watch) {
                    self.host_learns(&flatten(&stamp));
                }
            }
        }
        false
    }
}

/// Returns a point that was reached as one clock with nothing open.
fn flatten(stamp: &Stamp) -> Arc<Clock> {
    let mut clock = Clock::clone(&stamp.clock);
    clock.raise(stamp.line, stamp.count);
    clock.settle();
    Arc::new(clock)
}
