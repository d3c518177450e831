//! Values on the device, and the streams that wait for them to grow.
//!
//! This module does not know the items of the streams.

use super::stream::FlagId;
use std::borrow::Cow;
use std::collections::BTreeMap;
use weirpool_device::RawStream;

#[derive(Debug, Default)]
struct FlagState {
    value: u64,
    /// The task of the host that sets it, if only that one does.
    holder: Option<Cow<'static, str>>,
    /// By the least value that they wait for, then in order of arrival.
    waiters: BTreeMap<(u64, u64), RawStream>,
}

#[derive(Debug, Default)]
pub(crate) struct Flags {
    flags: Vec<FlagState>,
    arrivals: u64,
}

impl Flags {
    pub(crate) fn create(&mut self, holder: Option<Cow<'static, str>>) -> FlagId {
        self.flags.push(FlagState {
            holder,
            ..FlagState::default()
        });
        FlagId(self.flags.len() - 1)
    }

    pub(super) fn holder(&self, flag: FlagId) -> Option<&str> {
        self.flags[flag.0].holder.as_deref()
    }

    pub(crate) fn value(&self, flag: FlagId) -> u64 {
        self.flags[flag.0].value
    }

    pub(super) fn set(&mut self, flag: FlagId, value: u64) {
        self.flags[flag.0].value = value;
    }

    pub(super) fn wait(&mut self, flag: FlagId, at_least: u64, stream: RawStream) {
        self.arrivals += 1;
        let key = (at_least, self.arrivals);
        self.flags[flag.0].waiters.insert(key, stream);
    }

    /// Removes and returns the next stream whose awaited value is reached.
    pub(super) fn next_to_tell(&mut self, flag: FlagId) -> Option<RawStream> {
        let state = &mut self.flags[flag.0];
        let entry = state.waiters.first_entry()?;
        (entry.key().0 <= state.value).then(|| entry.remove())
    }

    pub(super) fn forget_waiters(&mut self) {
        self.flags.iter_mut().for_each(|flag| flag.waiters.clear());
    }
}
