//! The progress of a replay, on the terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const TEMPLATE: &str =
    "{prefix:14} {bar:40.cyan/blue} {human_pos}/{human_len} operations, {eta} left {msg}";

/// A bar on standard error, if that is a terminal and the output is not JSON.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Returns a bar for the `operations` of a trace.
    pub(crate) fn new(trace: &str, operations: usize, hidden: bool) -> Self {
        // Where standard error is no terminal, the bar hides by itself.
        let target = if hidden {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let bar = ProgressBar::with_draw_target(Some(operations as u64), target);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        bar.set_prefix(trace.to_owned());
        Self { bar }
    }

    /// Starts again from zero, for another run of the same trace.
    pub(crate) fn again(&self, what: &'static str) {
        self.bar.reset();
        self.bar.set_message(what);
    }

    /// Shows the number of operations that are done.
    pub(crate) fn at(&self, done: u64) {
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_is_sound_and_positions_are_kept() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
        let progress = Progress::new("t", 10, true);
        assert!(progress.bar.is_hidden());
        progress.at(7);
        assert_eq!(progress.bar.position(), 7);
        progress.again("(unlimited)");
        assert_eq!(progress.bar.position(), 0);
    }
}
