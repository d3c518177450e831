//! How the checker hears of a pool's blocks, and how what it found is heard.

use super::{Checker, Judge, Violation};
use crate::SimDevice;
use crate::engine::Engine;
use std::fmt::Write;
use std::panic::Location;
use weirpool_device::plain::thread;
use weirpool_device::{BlockObserver, RawStream};

/// What was found by the ordering checker; see the [guide](https://docs.rs/weirpool/latest/weirpool/guide/testing/).
impl SimDevice {
    /// Takes what the ordering checker has found and not raised. With [`Checker::Off`] there is never
    /// anything.
    pub fn violations(&self) -> Vec<Violation> {
        let mut state = self.engine.locked();
        state.judge.as_mut().map_or_else(Vec::new, Judge::take_all)
    }

    /// Makes sure that the ordering checker has found nothing that was not raised or taken: the end of
    /// a test, since what a last drop did wrong is raised by nothing else. Does nothing while the
    /// thread is panicking.
    ///
    /// # Panics
    /// With everything that was found.
    #[track_caller]
    pub fn assert_ordered(&self) {
        if thread::panicking() {
            return;
        }
        let found = self.violations();
        let mut all = String::new();
        for violation in &found {
            let _ = write!(all, "\n{violation}");
        }
        assert!(found.is_empty(), "{} violation(s):{all}", found.len());
    }
}

impl Engine {
    /// Raises what the checker found first, where that is to panic. Never while panicking.
    #[track_caller]
    pub(crate) fn raise(&self) {
        if self.settings.checker != Checker::Panic || thread::panicking() {
            return;
        }
        let found = self.locked().judge.as_mut().and_then(Judge::take_first);
        if let Some(violation) = found {
            panic!("{violation}");
        }
    }
}

impl BlockObserver for SimDevice {
    fn block_allocated(
        &self,
        address: u64,
        bytes: u64,
        stream: RawStream,
        place: &'static Location<'static>,
    ) {
        if let Some(judge) = self.engine.locked().judge() {
            judge.granted(address, bytes, stream, place);
        }
    }

    fn block_grown(
        &self,
        address: u64,
        bytes: u64,
        stream: RawStream,
        place: &'static Location<'static>,
    ) {
        if let Some(judge) = self.engine.locked().judge() {
            judge.grown(address, bytes, stream, place);
        }
    }

    fn block_freed(
        &self,
        address: u64,
        streams: &[RawStream],
        place: Option<&'static Location<'static>>,
    ) {
        if let Some(judge) = self.engine.locked().judge() {
            judge.freed(address, streams, place);
        }
    }

    #[track_caller]
    fn raise_violations(&self) {
        self.engine.raise();
    }
}
