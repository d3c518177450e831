//! What goes wrong where no test can say so: on the device, and in calls of the driver's.

use super::lock;
use std::sync::Mutex;

/// What helps to understand a failure, and is none.
static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// What is a failure, wherever it is met.
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

/// What was noted since it was last asked.
pub(crate) fn take_notes() -> Vec<String> {
    std::mem::take(&mut lock(&NOTES))
}

/// What was complained of since it was last asked.
pub(crate) fn take_complaints() -> Vec<String> {
    std::mem::take(&mut lock(&COMPLAINTS))
}
