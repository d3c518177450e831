//! Lines on stderr; stdout is the program's.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where stderr is closed, nothing is reported.
pub(crate) fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "weirpool: {text}");
}

/// A message that is told the first time only.
pub(crate) struct Once(AtomicBool);

impl Once {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    pub(crate) fn tell(&self, text: &str) {
        if !self.0.swap(true, Ordering::Relaxed) {
            tell(&format!("{text} (told once)"));
        }
    }
}
