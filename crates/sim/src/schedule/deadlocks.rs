//! Saying what holds streams up, for people.

use super::stream::{Phase, Stream};
use super::{Item, Schedule};
use std::fmt::Write;

impl Schedule {
    /// One line for each stream that has work left, saying what its head waits for.
    pub(crate) fn describe_backlog(&self, out: &mut String) {
        for (_, stream) in self.streams.iter() {
            if let Some(head) = stream.items.front() {
                let (items, why) = (stream.items.len(), self.why(stream, &head.item));
                let _ = write!(
                    out,
                    "\n  {}: {items} item(s) not complete, {why}",
                    stream.label
                );
            }
        }
    }

    fn why(&self, stream: &Stream, head: &Item) -> String {
        match (head, stream.phase) {
            (Item::Wait(point), _) => {
                let (behind, done) = self.progress(point.stream);
                let index = point.index + 1;
                let label = self.label(point.stream).map(ToString::to_string);
                let label = label.unwrap_or_default();
                let of = behind + done;
                format!("waits for item {index} of {of} of {label}, which has done {done}")
            }
            (Item::WaitUntil(flag, at_least), _) => {
                let (number, value) = (flag.0, self.flags.value(*flag));
                format!("waits until flag {number} is at least {at_least}; it is {value}")
            }
            (Item::Operation(operation), Phase::Running) => format!("runs {operation}"),
            (Item::Operation(operation), Phase::Ready) => format!("has no place for {operation}"),
            (Item::Operation(operation), Phase::Finishing) => format!("ends {operation}"),
            (item, _) => format!("is about to do {item:?}"),
        }
    }
}
