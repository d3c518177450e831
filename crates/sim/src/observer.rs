//! How the checker learns of a pool's blocks, and how it reports violations.

use super::SimDevice;
use super::checker::{Judge, Violation};
use std::fmt::Write;
use std::panic::Location;
use weirpool_device::plain::thread;
use weirpool_device::{BlockObserver, RawStream};

/// The findings of the ordering checker; see the [guide](https://docs.rs/weirpool/latest/weirpool/guide/testing/).
impl SimDevice {
    /// Takes all violations that the ordering checker found since the last such call, whether or not a panic raised
    /// them. With [`Checker::Off`](super::Checker::Off) there are none.
    pub fn take_violations(&self) -> Vec<Violation> {
        let mut state = self.engine.locked();
        state.judge.as_mut().map_or_else(Vec::new, Judge::take_all)
    }

    /// Checks, at the end of a test, that the ordering checker found nothing. A violation counts wherever it was found:
    /// in a drop, which must not panic, and in a task or thread whose panic its runtime caught. Does nothing while the
    /// thread is panicking.
    ///
    /// # Panics
    /// Panics with all violations since the last call of this or of [`take_violations`](Self::take_violations).
    #[track_caller]
    pub fn assert_ordered(&self) {
        if thread::panicking() {
            return;
        }
        let found = self.take_violations();
        let mut all = String::new();
        for violation in &found {
            let _ = write!(all, "\n{violation}");
        }
        assert!(found.is_empty(), "{} violation(s):{all}", found.len());
    }
}

impl BlockObserver for SimDevice {
    fn block_allocated(
        &self,
        address: u64,
        bytes: u64,
        stream: RawStream,
        location: &'static Location<'static>,
    ) {
        let mut state = self.engine.locked();
        let graph = state.recordings.of(stream);
        match (state.judge(), graph) {
            (Some(judge), None) => judge.granted(address, bytes, stream, location),
            (Some(judge), Some(graph)) => {
                judge.granted_of_graphs(Some(graph), (address, bytes), stream, location);
            }
            (None, _) => {}
        }
    }

    fn block_of_graphs(
        &self,
        address: u64,
        bytes: u64,
        stream: RawStream,
        location: &'static Location<'static>,
    ) {
        if let Some(judge) = self.engine.locked().judge() {
            judge.granted_of_graphs(None, (address, bytes), stream, location);
        }
    }

    fn block_grown(
        &self,
        address: u64,
        bytes: u64,
        stream: RawStream,
        location: &'static Location<'static>,
    ) {
        if let Some(judge) = self.engine.locked().judge() {
            judge.grown(address, bytes, stream, location);
        }
    }

    fn block_freed(
        &self,
        address: u64,
        streams: &[RawStream],
        location: Option<&'static Location<'static>>,
    ) {
        if let Some(judge) = self.engine.locked().judge() {
            judge.freed(address, streams, location);
        }
    }

    fn stream_named(&self, stream: RawStream, name: &str) {
        if let Some(judge) = self.engine.locked().judge() {
            judge.name(stream, name);
        }
    }

    fn allocated_at(&self, address: u64) -> Option<&'static Location<'static>> {
        let mut state = self.engine.locked();
        state.judge()?.allocated_at(address)
    }

    fn raise_violations(&self, call: &'static Location<'static>) {
        self.engine.raise(call);
    }
}
