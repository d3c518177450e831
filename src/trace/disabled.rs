//! Empty functions for builds without the feature `tracing`.

use super::Asked;
use crate::device::DeviceError;
use crate::error::Shortfall;
use crate::id::{StreamId, StreamLabel};
use crate::measure::WaitOutcome;
use std::fmt::Debug;
use std::time::Duration;

/// Whether a subscriber may exist.
pub(crate) const IS_TOLD: bool = false;

/// A wait for memory that is not reported.
#[derive(Debug)]
pub(crate) struct Waiting;

impl Waiting {
    #[inline(always)]
    pub(crate) fn new(_: Asked, _: Option<&str>) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn end(&self, _: WaitOutcome, _: Duration) {}
}

#[inline(always)]
pub(crate) fn granted(_: Asked, _: &impl Debug, _: u64) {}
#[inline(always)]
pub(crate) fn freed(_: StreamId, _: u64, _: u64) {}
#[inline(always)]
pub(crate) fn deadlocked(_: &Shortfall, _: impl FnOnce() -> String) {}
#[inline(always)]
pub(crate) fn deadlocked_at_limit(_: &Shortfall, _: impl FnOnce() -> String) {}
#[inline(always)]
pub(crate) fn exhausted(_: &Shortfall) {}
#[inline(always)]
pub(crate) fn hook_failed(_: &dyn std::fmt::Display) {}
#[inline(always)]
pub(crate) fn waker_panicked() {}
#[inline(always)]
pub(crate) fn grown(_: u64, _: u64) {}
#[inline(always)]
pub(crate) fn remapped(_: u64, _: u64) {}
#[inline(always)]
pub(crate) fn trimmed(_: u64) {}
#[inline(always)]
pub(crate) fn reaped(_: usize) {}
#[inline(always)]
pub(crate) fn device_wait(_: StreamLabel<'_>, _: StreamLabel<'_>) {}
#[inline(always)]
pub(crate) fn stream_registered(_: StreamLabel<'_>) {}
#[inline(always)]
pub(crate) fn stream_named(_: StreamLabel<'_>) {}
#[inline(always)]
pub(crate) fn stream_gone(_: StreamLabel<'_>) {}
#[inline(always)]
pub(crate) fn leaked(_: (usize, usize), _: u64, _: &dyn std::fmt::Display) {}
#[inline(always)]
pub(crate) fn closed() {}
#[inline(always)]
pub(crate) fn device_error(_: &DeviceError) {}
#[inline(always)]
pub(crate) fn device_broken(_: &DeviceError) {}
