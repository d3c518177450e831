//! The entry points of the fuzz targets in `fuzz/`, one for each format of a trace.
//!
//! Each function reads its input as the contents of a file, within small limits, and panics if the trace that comes of
//! it breaks a promise, or if the reader took more steps than are in proportion to the length of the input. `cargo test` runs them over the corpora of `fuzz/corpus` and over mutations of their entries;
//! `cargo +nightly fuzz run csv` (or `rmm`, `instance`, `pickle`, `gzip`) at the root of the repository searches for more.

use crate::read::{self, Request};
use crate::trace::limits::Limits;
use crate::trace::{Kind, Trace, steps};
use std::time::Duration;

/// Small enough that no input takes long, and large enough that real ones are read.
const REQUEST: Request = Request {
    device: None,
    limits: Limits {
        file_bytes: 1 << 20,
        events: 20_000,
        streams: 64,
        pickle_bytes: 8 << 20,
    },
};

/// Reads `data` as a file of any format, and returns the number of its events.
///
/// # Errors
/// Returns an error if the input is not a valid trace.
pub fn file(data: &[u8]) -> Result<usize, String> {
    let before = steps::counts();
    let recording = read::parse_any(data, REQUEST);
    let counts = steps::counts().since(before);
    assert!(counts.are_linear(), "{counts:?}");
    let recording = recording?;
    check(&recording.trace);
    Ok(recording.trace.events.len())
}

/// Reads `data` as the rows of a CSV trace.
///
/// # Errors
/// Returns an error if the input is not a valid trace.
pub fn csv(data: &[u8]) -> Result<usize, String> {
    file(&[b"time_us,op,id,bytes,stream\n", data].concat())
}

/// Reads `data` as the rows of a log of RMM.
///
/// # Errors
/// Returns an error if the input is not a valid trace.
pub fn rmm(data: &[u8]) -> Result<usize, String> {
    file(&[b"Thread,Time,Action,Pointer,Size,Stream\n", data].concat())
}

/// Reads `data` as the rows of an instance of static memory planning.
///
/// # Errors
/// Returns an error if the input is not a valid trace.
pub fn instance(data: &[u8]) -> Result<usize, String> {
    file(&[b"id,lower,upper,size\n", data].concat())
}

/// Reads `data` as a pickle behind its first byte.
///
/// # Errors
/// Returns an error if the input is not a valid trace.
pub fn pickle(data: &[u8]) -> Result<usize, String> {
    file(&[b"\x80", data].concat())
}

/// Reads `data` as a gzip file behind its first two bytes.
///
/// # Errors
/// Returns an error if the input is not a valid trace.
pub fn gzip(data: &[u8]) -> Result<usize, String> {
    file(&[b"\x1f\x8b", data].concat())
}

/// Panics unless `trace` can be replayed: its events are in order, and each free follows its allocation, once.
fn check(trace: &Trace) {
    let mut live = vec![None; trace.allocations];
    let (mut now, mut requested, mut peak) = (Duration::ZERO, 0, 0);
    for event in &trace.events {
        assert!(event.stream < trace.streams, "{event:?}");
        assert!(event.time >= now, "{event:?}");
        now = event.time;
        match event.kind {
            Kind::Allocate { id, bytes } => {
                assert_eq!(live[id].replace(bytes), None, "{event:?}");
                requested += bytes;
                peak = peak.max(requested);
            }
            Kind::Free { id } => requested -= live[id].take().expect("a live allocation"),
        }
    }
    assert_eq!(peak, trace.requested_peak);
    assert!(!trace.events.is_empty());
}
