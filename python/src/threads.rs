//! The threads that use a stream, for reports of who holds memory.

use crate::active::locked;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many threads a stream knows at most.
const KNOWN: usize = 4;

thread_local! {
    static OWN: u64 = own();
}

/// Threads that named a stream, the last of them first, by the numbers that the system gives them.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    last: AtomicU64,
    known: Mutex<Vec<u64>>,
}

impl Threads {
    /// Notes that this thread named the stream. Takes no lock if it was the last one to do so.
    #[inline]
    pub(crate) fn record(&self) {
        // A thread that is ending has no number any more.
        let own = OWN.try_with(|own| *own).unwrap_or(0);
        if self.last.load(Ordering::Relaxed) != own {
            self.record_another(own);
        }
    }

    #[cold]
    fn record_another(&self, own: u64) {
        self.last.store(own, Ordering::Relaxed);
        let mut known = locked(&self.known);
        known.retain(|thread| *thread != own);
        known.insert(0, own);
        known.truncate(KNOWN);
    }
}

/// Names the threads, the last one first: by the number that `threading.Thread.native_id` has, and by the system's name.
impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = locked(&self.known).clone();
        for (at, thread) in known.iter().enumerate() {
            let separator = if at > 0 { ", " } else { "" };
            let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
            let name = name.as_deref().map_or("ended", str::trim_end);
            write!(f, "{separator}{thread} ({name})")?;
        }
        Ok(())
    }
}

/// Returns the number of this thread: 0 where the system has no `/proc`.
fn own() -> u64 {
    let link = std::fs::read_link("/proc/thread-self").ok();
    let number = link.and_then(|path| path.file_name()?.to_str()?.parse().ok());
    number.unwrap_or(0)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn threads_are_named_in_the_order_of_their_last_use() {
        let threads = Threads::default();
        threads.record();
        let named = |name: &str| {
            let thread = std::thread::Builder::new().name(name.to_owned());
            let note = || {
                threads.record();
                threads.record();
                (own(), threads.to_string())
            };
            std::thread::scope(|scope| thread.spawn_scoped(scope, note).unwrap().join().unwrap())
        };
        let (loader, text) = named("loader");
        assert!(
            text.starts_with(&format!("{loader} (loader), {} (", own())),
            "{text}"
        );
        threads.record();
        let text = threads.to_string();
        assert!(text.starts_with(&format!("{} (", own())), "{text}");
        assert!(text.ends_with(&format!(", {loader} (ended)")), "{text}");
        for _ in 0..2 * KNOWN {
            named("one of many");
        }
        assert_eq!(threads.to_string().matches(" (").count(), KNOWN);
    }
}
