//! The replay in real time, as on a GPU: on the simulated device with the wall clock, whose memory calls the pool makes
//! on a thread of its own.

use super::*;
use crate::device::machine::{Line, MemoryCalls, Use};
use crate::device::meter::Metered;
use crate::device::simulated::operation;
use crate::device::timetable::{Limits, Timetable};
use crate::device::verify::Verifier;
use crate::options::Pace;
use std::sync::Arc;
use weirpool::device::Device;
use weirpool::device::sim::{Clock, SimDevice, SimStream};

#[derive(Clone, Copy)]
struct RealTime {
    pace: Pace,
    /// The longest time without a sign of memory. On a busy host, the simulated device is much slower than a GPU.
    deadlock: Duration,
}

const AGES: Duration = Duration::from_secs(60);

const FULL: RealTime = RealTime {
    pace: Pace::Full,
    deadlock: AGES,
};

const PACED: RealTime = RealTime {
    pace: Pace::Trace,
    ..FULL
};

struct WallMachine {
    metered: Arc<Metered<SimDevice>>,
    device: SimDevice,
    timetable: Timetable,
    verifier: Option<Verifier>,
}

impl Site for RealTime {
    type Machine = WallMachine;

    fn machine(&self, _trace: &Trace, policy: &Policy) -> anyhow::Result<WallMachine> {
        let builder = SimDevice::builder().clock(Clock::Wall);
        let device = builder.blocking_memory_calls(true).build();
        let limits = Limits {
            quiet: policy
                .conditions
                .capacity
                .map_or(AGES, |_| Duration::from_millis(2)),
            deadlock: self.deadlock,
            lost: AGES,
        };
        Ok(WallMachine {
            metered: Arc::new(Metered::new(device.clone())),
            device,
            timetable: Timetable::with_limits(self.pace, limits),
            verifier: policy.conditions.verify.map(Verifier::new),
        })
    }

    fn unlimited(&self, _policy: &Policy) -> Option<Policy> {
        None
    }

    fn description(&self) -> Option<String> {
        None
    }
}

impl Machine for WallMachine {
    type Work = SimStream;
    type Time = Timetable;

    fn time(&self) -> &Timetable {
        &self.timetable
    }

    fn device(&self) -> Arc<dyn Device> {
        self.metered.clone()
    }

    fn create_stream(&self) -> anyhow::Result<SimStream> {
        Ok(self.device.create_stream())
    }

    fn submit(&self, line: &Line<SimStream>, what: &Use<'_>) -> anyhow::Result<()> {
        line.work.submit(operation(what, self.verifier.as_ref()));
        Ok(())
    }

    fn memory_calls(&self) -> MemoryCalls {
        self.metered.memory_calls()
    }

    fn quiesce(&self) -> anyhow::Result<()> {
        Ok(())
    }

    fn figures(&self) -> anyhow::Result<Figures> {
        self.device.assert_ordered();
        Ok(Figures {
            device_calls: self.metered.calls(),
            device_time: self.metered.time(),
            memory_time: self.metered.memory_time(),
            waits: self.metered.waits(),
            stall: None,
            corruptions: self.verifier.as_ref().map(Verifier::corruptions),
        })
    }
}

#[test]
fn growth_is_awaited_in_place_at_full_speed() {
    let trace = cross_stream(2000, 1).unwrap();
    let report = replayed_on(&FULL, &trace, &["--device=cuda"]);
    assert_eq!(report.failures, 0, "{report:?}");
    // Each growth takes few chunks, which the first poll maps.
    assert!(report.growths > 0 && report.waits == 0, "{report:?}");
    assert!(report.reserved_peak >= report.requested_peak, "{report:?}");
    assert!(report.memory_ns > 0 && report.memory_ns <= report.device_ns);
    assert!(report.ns_mean > 0);
    assert_eq!(report.makespan_over_unlimited, None);
}

/// Time stands still while memory is on its way, so operations keep their order, and the pool packs as in virtual time.
#[test]
fn memory_is_packed_at_full_speed_as_in_virtual_time() {
    let trace = recorded("resnet_serve");
    let virtual_time = replayed(&trace, &[]);
    let report = replayed_on(&FULL, &trace, &["--device=cuda"]);
    let difference = report.reserved_over_requested - virtual_time.reserved_over_requested;
    assert!(difference.abs() < 0.1, "{report:?} {virtual_time:?}");
    assert_eq!(report.failures, 0);
}

#[test]
fn run_takes_the_traces_time_at_the_traces_pace() {
    let trace = cross_stream(1000, 1).unwrap();
    let options = ["--device=cuda", "--kernels", "--lag=1ms", "--verify"];
    let report = replayed_on(&PACED, &trace, &options);
    assert_eq!((report.failures, report.corruptions), (0, Some(0)));
    assert!(report.makespan_ns >= report.trace_ns, "{report:?}");
    assert!(report.handover_waits > 0, "{report:?}");
    assert!(report.lateness_p99_ns <= report.lateness_max_ns);
    assert!(report.lateness_max_ns > Some(0));
}

/// Real time decides the course: all streams may wait for each other, and then one gives up.
#[test]
fn nearly_all_requests_are_served_with_little_memory() {
    let trace = cross_stream(1000, 1).unwrap();
    let capacity = trace.requested_peak * 102 / 100;
    for site in [FULL, PACED] {
        let deadlock = Duration::from_secs(1);
        let site = RealTime { deadlock, ..site };
        let bound = format!("--capacity={capacity}");
        let options = ["--device=cuda", "--kernels", "--lag=1ms", &bound];
        let report = replayed_on(&site, &trace, &options);
        assert!(report.failures < 20, "{report:?}");
        assert!(report.waits > 0 && report.wait_max_ns > 0, "{report:?}");
        assert!(report.reserved_peak <= capacity, "{report:?}");
    }
}

#[test]
fn request_that_cannot_be_served_fails_and_others_go_on() {
    for site in [FULL, PACED] {
        let deadlock = Duration::from_millis(500);
        let site = RealTime { deadlock, ..site };
        let too_large = replayed_on(&site, &with_one_too_large(), &["--capacity=100MiB"]);
        assert_eq!(too_large.failures, 1, "{too_large:?}");
        let deadlocked = replayed_on(&site, &deadlocked(), &["--capacity=128MiB"]);
        assert_eq!(deadlocked.failures, 1, "{deadlocked:?}");
    }
}
