//! A stream that is captured into a graph, as its lane sees it.
//!
//! Work of a captured stream does not run. So its lane grants nothing and keeps nothing, as while the gate is closed: the
//! cache is flushed when the capture begins, and a free reads the state under the lock that the flush takes. No ticket is
//! closed: a block that is freed meanwhile is pending under the open ticket, until an event after the capture proves it.
//!
//! The pool's [own calls](super::own_calls) on the stream are refused, and the capture begins on the device only when the
//! last one has returned.

use super::stream_cache::StreamCache;
use crate::id::StreamId;

impl StreamCache {
    /// Returns the order in which the capture's memory is reused, while the stream is being captured.
    pub fn capture_order(&self) -> Option<StreamId> {
        if !self.is_captured() {
            return None;
        }
        self.state.lock().capture
    }

    /// Begins a capture whose memory is reused in `order`. From now on the cache grants and keeps nothing, once it is
    /// flushed. Returns whether the stream was not being captured.
    pub fn begin_capture(&self, order: StreamId) -> bool {
        let mut state = self.state.lock();
        let is_first = state.capture.is_none();
        if is_first {
            state.capture = Some(order);
            self.calls.refuse();
        }
        is_first
    }

    /// Goes on with another order, if the stream is being captured.
    pub fn continue_capture(&self, order: StreamId) {
        if let Some(present) = &mut self.state.lock().capture {
            *present = order;
        }
    }

    /// Ends the capture.
    pub fn end_capture(&self) {
        let mut state = self.state.lock();
        if state.capture.take().is_some() {
            self.calls.allow();
        }
    }
}
