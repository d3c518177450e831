//! What goes wrong where no test can say so: on the device, and in calls of the driver's.

use super::lock;
use std::sync::Mutex;

/// Notes that help to understand a failure, and are none.
static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Failures, wherever they are met.
static COMPLAINTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

pub(super) fn note(text: String) {
    const MOST: usize = 20;
    let mut notes = lock(&NOTES);
    if notes.len() < MOST {
        notes.push(text);
    }
}

pub(super) fn complain(text: String) {
    lock(&COMPLAINTS).push(text);
}

/// Returns the notes since the last call.
pub(crate) fn take_notes() -> Vec<String> {
    std::mem::take(&mut lock(&NOTES))
}

/// Returns the failures since the last call.
pub(crate) fn take_complaints() -> Vec<String> {
    std::mem::take(&mut lock(&COMPLAINTS))
}
