//! The device on which a trace is replayed, and the pace.

use super::names::displayed_by_name;
use clap::{Args, ValueEnum};
use std::fmt;

/// The device and the pace of a replay.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Target {
    /// The device
    #[arg(long, value_name = "DEVICE", value_enum, default_value_t = DeviceName::Sim)]
    pub(crate) device: DeviceName,

    /// Runs kernels on the GPU: one uses each block when it is allocated and one before it is freed, and each ends --lag
    /// behind the host. This needs NVRTC, which compiles the kernels
    #[arg(long)]
    pub(crate) kernels: bool,

    /// The pace of the operations on a GPU [default: full without --kernels, trace with them]
    #[arg(long, value_name = "PACE", value_enum)]
    pace: Option<Pace>,
}

/// A device that traces are replayed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceName {
    /// The simulated device, in virtual time
    Sim,
    /// The first GPU (of CUDA_VISIBLE_DEVICES), in real time and without the comparison with unlimited memory, in
    /// programs built with `--features cuda`
    Cuda,
}

/// The pace of the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pace {
    /// Each at its time in the trace
    Trace,
    /// One after the other, as fast as the host can; the times only give the order
    Full,
}

impl Target {
    /// The simulated device.
    pub(crate) const SIM: Self = Self {
        device: DeviceName::Sim,
        kernels: false,
        pace: None,
    };

    pub(crate) fn is_cuda(&self) -> bool {
        self.device == DeviceName::Cuda
    }

    /// Returns the pace: the trace's in virtual time.
    pub(crate) fn pace(&self) -> Pace {
        match (self.pace, self.device) {
            (Some(pace), _) => pace,
            (None, DeviceName::Cuda) if !self.kernels => Pace::Full,
            (None, _) => Pace::Trace,
        }
    }

    /// Checks that these options are consistent, also with a lag and the verification of contents.
    ///
    /// # Errors
    /// Returns an error for options that exclude each other.
    pub(crate) fn check(&self, has_lag: bool, verifies: bool) -> Result<(), &'static str> {
        let has_no_work = self.is_cuda() && !self.kernels;
        match () {
            () if !self.is_cuda() && self.kernels => {
                Err("--kernels needs --device cuda: the simulated device always runs work")
            }
            () if !self.is_cuda() && self.pace() == Pace::Full => {
                Err("--pace full needs --device cuda: virtual time is always as fast as the host")
            }
            () if has_no_work && has_lag => {
                Err("--lag needs --kernels with --device cuda: without work no stream runs behind")
            }
            () if has_no_work && verifies => Err(
                "--verify needs --kernels with --device cuda: kernels write and check the contents",
            ),
            () => Ok(()),
        }
    }
}

displayed_by_name!(DeviceName, Pace);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Replay;
    use clap::Parser;

    fn target(arguments: &[&str]) -> Target {
        Replay::parse_from([&["replay"], arguments].concat()).target
    }

    fn is_sound(arguments: &[&str]) -> bool {
        let options = Replay::try_parse_from([&["replay"], arguments].concat());
        options.and_then(Replay::checked).is_ok()
    }

    #[test]
    fn pace_is_the_traces_where_there_is_work() {
        assert_eq!(target(&[]).pace(), Pace::Trace);
        assert_eq!(target(&["--device=cuda"]).pace(), Pace::Full);
        assert_eq!(target(&["--device=cuda", "--kernels"]).pace(), Pace::Trace);
        let chosen = ["--device=cuda", "--pace=trace"];
        assert_eq!(target(&chosen).pace(), Pace::Trace);
        let chosen = ["--device=cuda", "--kernels", "--pace=full"];
        assert_eq!(target(&chosen).pace(), Pace::Full);
    }

    #[test]
    fn options_that_exclude_each_other_are_refused() {
        for sound in [
            &["--device=sim", "--pace=trace", "--lag=1ms", "--verify"][..],
            &["--device=cuda"],
            &["--device=cuda", "--pace=trace"],
            &["--device=cuda", "--kernels", "--lag=1ms", "--verify=full"],
        ] {
            assert!(is_sound(sound), "{sound:?}");
        }
        for unsound in [
            &["--kernels"][..],
            &["--pace=full"],
            &["--device=cuda", "--lag=1ms"],
            &["--device=cuda", "--verify"],
            &["--device=rocm"],
            &["--device=cuda", "--pace=slow"],
        ] {
            assert!(!is_sound(unsound), "{unsound:?}");
        }
    }

    #[test]
    fn names_are_printed_as_they_are_read() {
        for device in DeviceName::value_variants() {
            assert_eq!(
                DeviceName::from_str(&device.to_string(), false),
                Ok(*device)
            );
        }
        for pace in Pace::value_variants() {
            assert_eq!(Pace::from_str(&pace.to_string(), false), Ok(*pace));
        }
    }
}
