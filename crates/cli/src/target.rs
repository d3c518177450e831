//! On which device, and at which pace, a trace is replayed.

use clap::{Args, ValueEnum};
use std::fmt;

/// On what a trace is replayed.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Target {
    /// The device
    #[arg(long, value_name = "DEVICE", value_enum, default_value_t = DeviceName::Sim)]
    pub(crate) device: DeviceName,

    /// Has the GPU work: a kernel uses each block when it is allocated and before it is freed, and ends
    /// as far behind the host as --lag says. NVRTC is needed, to compile the kernels
    #[arg(long)]
    pub(crate) kernels: bool,

    /// When operations come, on a GPU [default: full without --kernels, trace with them]
    #[arg(long, value_name = "PACE", value_enum)]
    pace: Option<Pace>,
}

/// A device that traces are replayed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceName {
    /// The simulated one, in virtual time
    Sim,
    /// The first GPU (of CUDA_VISIBLE_DEVICES), in real time and without the comparison with
    /// unlimited memory; for programs built with `--features cuda`
    Cuda,
}

/// When operations come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pace {
    /// Each at its time in the trace
    Trace,
    /// One after the other, as fast as the host goes: time stamps give the order and nothing else
    Full,
}

impl Target {
    pub(crate) fn is_cuda(&self) -> bool {
        self.device == DeviceName::Cuda
    }

    /// Virtual time has no pace but the trace's.
    pub(crate) fn pace(&self) -> Pace {
        match (self.pace, self.device) {
            (Some(pace), _) => pace,
            (None, DeviceName::Cuda) if !self.kernels => Pace::Full,
            (None, _) => Pace::Trace,
        }
    }

    /// # Errors
    /// Which of these options, with a lag and with contents that are verified or not, make no sense
    /// together.
    pub(crate) fn check(&self, has_lag: bool, verifies: bool) -> Result<(), &'static str> {
        let has_no_work = self.is_cuda() && !self.kernels;
        match () {
            () if !self.is_cuda() && self.kernels => Err(
                "--kernels goes with --device cuda: on the simulated device there always is work",
            ),
            () if !self.is_cuda() && self.pace() == Pace::Full => Err(
                "--pace full goes with --device cuda: virtual time is as fast as the host anyway",
            ),
            () if has_no_work && has_lag => {
                Err("--lag needs --kernels with --device cuda: without work no stream is behind")
            }
            () if has_no_work && verifies => Err(
                "--verify needs --kernels with --device cuda: they write and check the contents",
            ),
            () => Ok(()),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Sim => "sim",
            Self::Cuda => "cuda",
        })
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Trace => "trace",
            Self::Full => "full",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use clap::Parser;

    fn target(arguments: &[&str]) -> Target {
        Options::parse_from([&["replay"], arguments].concat()).target
    }

    fn is_sound(arguments: &[&str]) -> bool {
        let options = Options::try_parse_from([&["replay"], arguments].concat());
        options.and_then(Options::checked).is_ok()
    }

    #[test]
    fn the_pace_is_the_traces_where_there_is_work() {
        assert_eq!(target(&[]).pace(), Pace::Trace);
        assert_eq!(target(&["--device=cuda"]).pace(), Pace::Full);
        assert_eq!(target(&["--device=cuda", "--kernels"]).pace(), Pace::Trace);
        let chosen = ["--device=cuda", "--pace=trace"];
        assert_eq!(target(&chosen).pace(), Pace::Trace);
        let chosen = ["--device=cuda", "--kernels", "--pace=full"];
        assert_eq!(target(&chosen).pace(), Pace::Full);
    }

    #[test]
    fn what_makes_no_sense_together_is_refused() {
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
