//! The progress of a service: one live line on the terminal.

use crate::gauge::Sample;
use crate::units;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const TEMPLATE: &str = "{prefix:10} {bar:30.cyan/blue} {human_pos}/{human_len} requests, {msg}";

/// A bar on standard error: only on a terminal, and only if no program parses the output.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Creates a bar for this number of requests to a service.
    pub(crate) fn new(service: &str, requests: u64, hidden: bool) -> Self {
        // The bar hides itself if standard error is no terminal.
        let target = if hidden {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let bar = ProgressBar::with_draw_target(Some(requests), target);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        bar.set_prefix(service.to_owned());
        Self { bar }
    }

    pub(crate) fn show(&self, sample: &Sample) {
        if self.bar.is_hidden() {
            return;
        }
        let now = sample.counts;
        self.bar.set_position(now.served + now.failed);
        self.bar.set_message(format!(
            "{} in flight, {} waiting for memory, {} not admitted, {} reserved, {} failed",
            now.in_flight,
            now.waiting,
            sample.not_admitted,
            units::bytes(sample.reserved),
            now.failed
        ));
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
    fn template_is_valid() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
        assert!(Progress::new("t", 1, true).bar.is_hidden());
    }
}
