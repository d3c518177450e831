//! Messages on stderr; stdout belongs to the program.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Prints a message on stderr, if stderr is open.
pub(crate) fn print(text: &str) {
    let _ = writeln!(std::io::stderr(), "weirpool: {text}");
}

/// A message that is printed only the first time.
pub(crate) struct Once(AtomicBool);

impl Once {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    pub(crate) fn print(&self, text: &str) {
        if !self.0.swap(true, Ordering::Relaxed) {
            print(&format!("{text} (reported once)"));
        }
    }
}
