//! Events and spans for subscribers of the `tracing` crate. Every event of the crate is defined here.
//!
//! Without the feature `tracing` these functions are empty and cost nothing. With it, an event that no subscriber is
//! interested in costs the read of one number. A subscriber is foreign code: it is called while no lock of this crate
//! is held (*no-lock-across-calls*), and may call the pool.
//! The target is `weirpool`. The levels:
//!
//! | level | events |
//! |---|---|
//! | `ERROR` | `device broken`: a sticky error ended the pool; once for each pool |
//! | `WARN` | `device error`: another error of the device, which was returned to the caller |
//! | `WARN` | `leaked`: blocks and reservations that have owners when their pool is closed, once; or blocks that are lost when it ends |
//! | `WARN` | `deadlocked`: no waiter can be served, once for each deadlock; with the shortfall of the queue's head, and `holders` by tag and, with a history, by location |
//! | `WARN` | `deadlocked at limit`: no request throttled by a tag's limit can be served; with the same fields |
//! | `WARN` | `pressure hook failed`: with its error, or that it panicked; `capacity source panicked`, `a waker panicked` |
//! | `WARN` | `soft cap exceeded`: the pool reserves more than its soft cap; once until it is within the cap again |
//! | `WARN` | `host task abandoned`: it was dropped before its end, or panicked, and its stream went on |
//! | `INFO` | `exhausted`: a request failed or timed out, with the shortfall; `closed` |
//! | `DEBUG` | `waiting`: a span from joining the queue to leaving it, with the event `waited` inside |
//! | `DEBUG` | `grown`, `remapped`, `trimmed`, `evicted`; `device wait`; `stream registered`, `stream named`, `stream gone` |
//! | `TRACE` | `granted`, `freed`: every block, also those of the lanes; `submitted`: work, with its name; `reaped` |
#![cfg_attr(
    not(feature = "tracing"),
    allow(
        unused_variables,
        reason = "without the feature, each event is an empty function"
    )
)]

use crate::device::DeviceError;
use crate::error::Shortfall;
use crate::id::{StreamId, StreamLabel};
use crate::measure::{Tag, WaitOutcome};
#[cfg(feature = "tracing")]
use crate::sync::assert_unlocked;
use std::fmt::Debug;
use std::time::Duration;
#[cfg(feature = "tracing")]
use tracing::{Span, debug_span, field};

/// A request, as events describe it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) stream: StreamId,
    pub(crate) bytes: u64,
    pub(crate) tag: Option<Tag>,
}

#[cfg(feature = "tracing")]
const TARGET: &str = "weirpool";

/// Whether a subscriber may exist.
pub(crate) const IS_TOLD: bool = cfg!(feature = "tracing");

/// Emits an event if a subscriber is interested in its level. The caller must hold no lock.
#[cfg(feature = "tracing")]
macro_rules! tell {
    ($level:ident, $($content:tt)+) => {
        if tracing::enabled!(target: TARGET, tracing::Level::$level) {
            assert_unlocked("a subscriber is told");
            tracing::event!(target: TARGET, tracing::Level::$level, $($content)+);
        }
    };
}

#[cfg(not(feature = "tracing"))]
macro_rules! tell {
    ($level:ident, $($content:tt)+) => {
        ()
    };
}

#[cfg(feature = "tracing")]
fn name_of(tag: Option<Tag>) -> Option<&'static str> {
    tag.map(Tag::name)
}

/// A wait for memory: a span from joining the queue to leaving it, inside the span that is current when it joins.
#[derive(Debug)]
pub(crate) struct Waiting(#[cfg(feature = "tracing")] Span);

#[cfg(feature = "tracing")]
impl Waiting {
    pub(crate) fn new(asked: Asked, stream_name: Option<&str>) -> Self {
        assert_unlocked("a subscriber is told");
        let Asked { stream, bytes, tag } = asked;
        Self(debug_span!(
            target: TARGET,
            "waiting",
            stream = %stream,
            name = stream_name,
            bytes,
            tag = name_of(tag),
            outcome = field::Empty,
        ))
    }

    pub(crate) fn end(&self, outcome: WaitOutcome, waited: Duration) {
        let outcome = outcome.name();
        self.0.record("outcome", outcome);
        let waited_ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.0
            .in_scope(|| tell!(DEBUG, outcome, waited_ns, "waited"));
    }
}

#[cfg(not(feature = "tracing"))]
impl Waiting {
    pub(crate) fn new(asked: Asked, stream_name: Option<&str>) -> Self {
        Self()
    }

    pub(crate) fn end(&self, outcome: WaitOutcome, waited: Duration) {}
}

#[inline]
pub(crate) fn granted(asked: Asked, source: &impl Debug, address: u64) {
    let Asked { stream, bytes, tag } = asked;
    tell!(TRACE, stream = %stream, bytes, source = debug(source), address, tag = name_of(tag), "granted");
}

pub(crate) fn soft_cap_exceeded(reserved: u64, soft_cap: u64) {
    tell!(WARN, reserved, soft_cap, "soft cap exceeded");
}

#[inline]
pub(crate) fn freed(stream: StreamId, bytes: u64, address: u64) {
    tell!(TRACE, stream = %stream, bytes, address, "freed");
}

/// Emits an event with all figures of a shortfall.
macro_rules! tell_shortfall {
    ($level:ident, $shortfall:expr, $($content:tt)+) => {
        tell!(
            $level,
            requested = $shortfall.requested,
            free = $shortfall.free,
            largest_free = $shortfall.largest_free,
            pending = $shortfall.pending,
            used = $shortfall.used,
            reserved = $shortfall.reserved,
            capacity = $shortfall.capacity,
            waiting = $shortfall.waiting,
            tag = $shortfall.tag.map(|tag| tag.tag.name()),
            tag_used = $shortfall.tag.map(|tag| tag.used),
            tag_limit = $shortfall.tag.map(|tag| tag.limit),
            device_free = $shortfall.device.map(|device| device.free),
            fragmentation = $shortfall.fragmentation(),
            $($content)+
        )
    };
}

pub(crate) fn exhausted(shortfall: &Shortfall) {
    tell_shortfall!(INFO, shortfall, "exhausted");
}

/// Reports that no waiter can be served and that no memory is on its way back.
pub(crate) fn deadlocked(shortfall: &Shortfall, holders: impl FnOnce() -> String) {
    tell_shortfall!(WARN, shortfall, holders = holders(), "deadlocked");
}

/// Reports that no request throttled by the limit of a tag can be served.
pub(crate) fn deadlocked_at_limit(shortfall: &Shortfall, holders: impl FnOnce() -> String) {
    tell_shortfall!(WARN, shortfall, holders = holders(), "deadlocked at limit");
}

/// Reports that the pressure hook failed or panicked.
pub(crate) fn hook_failed(error: &dyn std::fmt::Display) {
    tell!(WARN, error = %error, "pressure hook failed");
}

/// Reports that the source of the capacity panicked when it was called.
pub(crate) fn source_panicked() {
    tell!(WARN, "capacity source panicked");
}

/// Reports that a task's waker panicked when it was called.
pub(crate) fn waker_panicked() {
    tell!(WARN, "a waker panicked");
}

/// Reports the bytes that were taken from the device, and the number of chunks.
pub(crate) fn grown(bytes: u64, chunks: u64) {
    tell!(DEBUG, bytes, chunks, "grown");
}

/// Reports the bytes that were mapped elsewhere, and the number of chunks.
pub(crate) fn remapped(bytes: u64, chunks: u64) {
    tell!(DEBUG, bytes, chunks, "remapped");
}

pub(crate) fn evicted(bytes: u64) {
    tell!(DEBUG, bytes, "evicted");
}

pub(crate) fn trimmed(bytes: u64) {
    tell!(DEBUG, bytes, "trimmed");
}

/// Reports the number of streams whose completed tickets advanced.
pub(crate) fn reaped(streams: usize) {
    tell!(TRACE, streams, "reaped");
}

pub(crate) fn device_wait(stream: StreamLabel<'_>, donor: StreamLabel<'_>) {
    tell!(DEBUG, stream = %stream.id, donor = %donor.id, name = stream.name, donor_name = donor.name, "device wait");
}

#[inline]
pub(crate) fn submitted(stream: StreamLabel<'_>, task: Option<&str>) {
    tell!(TRACE, stream = %stream.id, name = stream.name, task, "submitted");
}

pub(crate) fn host_task_abandoned(stream: StreamLabel<'_>, task: Option<&str>) {
    tell!(WARN, stream = %stream.id, name = stream.name, task, "host task abandoned");
}

pub(crate) fn stream_registered(stream: StreamLabel<'_>) {
    tell!(DEBUG, stream = %stream.id, name = stream.name, "stream registered");
}

pub(crate) fn stream_named(stream: StreamLabel<'_>) {
    tell!(DEBUG, stream = %stream.id, name = stream.name, "stream named");
}

pub(crate) fn stream_gone(stream: StreamLabel<'_>) {
    tell!(DEBUG, stream = %stream.id, name = stream.name, "stream gone");
}

/// Reports blocks and reservations that still have owners although the pool is closed, or that were lost.
pub(crate) fn leaked(
    (blocks, reservations): (usize, usize),
    bytes: u64,
    report: &dyn std::fmt::Display,
) {
    tell!(WARN, blocks, bytes, %report, reservations, "leaked");
}

pub(crate) fn closed() {
    tell!(INFO, "closed");
}

pub(crate) fn device_error(error: &DeviceError) {
    tell!(WARN, %error, "device error");
}

pub(crate) fn device_broken(error: &DeviceError) {
    tell!(ERROR, %error, "device broken");
}
