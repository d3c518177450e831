//! The state that the device's one lock guards.
//!
//! Every method runs under the lock and returns at once. Wakers and dropped work are handed out, to be called and
//! dropped outside the lock. This module does not know threads.

use super::alarms::Alarms;
use super::builder::{Checker, Clock, Settings};
use super::call::Call;
use super::checker::{Judge, Strangers};
use super::counters::Counters;
use super::driver_pools::SimPools;
use super::events::Events;
use super::fault::{Fault, Script};
use super::memory::Space;
use super::recording::Recordings;
use super::schedule::{Item, Point, Schedule};
use super::ticker::{Action, Phase};
use std::any::Any;
use std::collections::HashMap;
use std::task::Waker;
use std::time::Duration;
use weirpool_device::plain::{Arc, Weak, thread::ThreadId};
use weirpool_device::{DeviceError, DeviceErrorKind, DeviceId, RawStream};

/// The payload of a body's panic.
pub(super) type Panic = Box<dyn Any + Send>;

/// The handles of a stream, as long as any live.
pub(super) type WeakOwner = Weak<dyn Any + Send + Sync>;

pub(super) struct State {
    pub(super) schedule: Schedule,
    pub(super) space: Space,
    pub(super) events: Events,
    /// The memory pools of the driver.
    pub(super) pools: SimPools,
    pub(super) alarms: Alarms,
    /// The handles of streams, by name.
    pub(super) owners: HashMap<RawStream, WeakOwner>,
    pub(super) counters: Counters,
    pub(super) recordings: Recordings,
    /// The ordering checker, unless it is off.
    pub(super) judge: Option<Judge>,
    /// The reason why the device is broken, once it is.
    broken: Option<Arc<str>>,
    /// The faults to come.
    script: Script,
    /// Items that were dropped when the device broke, to be dropped outside the lock.
    pub(super) debris: Vec<Item>,
    /// The thread that runs a body outside the lock. It continues with the schedule afterwards.
    pub(super) running: Option<ThreadId>,
    /// How many threads wait for that body to end.
    pub(super) waiting: usize,
    /// A body's panic, until a thread that moves time resumes it.
    pub(super) panic: Option<Panic>,
    /// The number of device calls so far, to tell activity from quiet.
    pub(super) activity: u64,
    /// The number of executors that move the time themselves.
    pub(super) drivers: usize,
    pub(super) ticker: Phase,
}

impl State {
    pub(super) fn new(device: DeviceId, devices: u32, settings: &Settings) -> Self {
        let places = settings.concurrent_operations;
        Self {
            schedule: Schedule::new((device, devices), places, settings.seed),
            space: Space::new(device.0, devices, settings),
            events: Events::new(device),
            pools: SimPools::new(device),
            alarms: Alarms::default(),
            owners: HashMap::new(),
            counters: Counters::default(),
            recordings: Recordings::default(),
            judge: (settings.checker != Checker::Off).then(Judge::new),
            broken: None,
            script: Script::default(),
            debris: Vec::new(),
            running: None,
            waiting: 0,
            panic: None,
            activity: 0,
            drivers: 0,
            ticker: Phase::Absent,
        }
    }

    // ---- calls -----------------------------------------------------------------------------

    /// Begins a device call: counts it and adds its cost. Fails if the device is broken or the script says so. Every
    /// call begins with this.
    pub(super) fn enter(&mut self, call: Call, bytes: u64) -> Result<(), DeviceError> {
        self.enter_with_fault(call, bytes).map(|_fault| ())
    }

    /// Begins a call that can have other faults than failing, and returns such a fault.
    pub(super) fn enter_with_fault(
        &mut self,
        call: Call,
        bytes: u64,
    ) -> Result<Option<Fault>, DeviceError> {
        self.counters.charge(call, bytes);
        let fault = match self.broken {
            Some(_) => None,
            None => self.script.next(call),
        };
        if let Some(Fault::Fails(kind)) = fault {
            return Err(self.scripted_failure(call, kind));
        }
        self.check(call.name())?;
        Ok(fault)
    }

    fn scripted_failure(&mut self, call: Call, kind: DeviceErrorKind) -> DeviceError {
        let reason = "a scripted fault";
        if kind == DeviceErrorKind::Sticky {
            self.break_device(reason.into());
        }
        DeviceError::new(call.name(), kind, reason)
    }

    /// Fails, in the name of `call`, if the device is broken.
    pub(super) fn check(&self, call: &'static str) -> Result<(), DeviceError> {
        match &self.broken {
            Some(why) => Err(DeviceError::new(call, DeviceErrorKind::Sticky, why.clone())),
            None => Ok(()),
        }
    }

    pub(super) fn script(&mut self, call: Call, nth: u64, fault: Fault) {
        self.script.add(call, nth, fault);
    }

    // ---- the ordering checker --------------------------------------------------------------

    /// Returns the ordering checker; `None` once the device is broken, because nothing runs from then on.
    pub(super) fn judge(&mut self) -> Option<&mut Judge> {
        self.judge.as_mut().filter(|_| self.broken.is_none())
    }

    pub(super) fn submit(&mut self, stream: RawStream, item: Item) -> Point {
        self.judge_access(stream, &item);
        if let Some(judge) = self.judge() {
            judge.submitted(stream, &item);
        }
        self.schedule.submit(stream, item)
    }

    /// Reports uses of another device's memory without access.
    fn judge_access(&mut self, stream: RawStream, item: &Item) {
        let Item::Operation(operation) = item else {
            return;
        };
        let device = self.schedule.device_of(stream);
        let Some(device) = device.filter(|_| !operation.is_copier && self.broken.is_none()) else {
            return;
        };
        let Some(judge) = &mut self.judge else {
            return;
        };
        for access in operation.accesses() {
            let start = access.address.to_bits();
            let end = start.saturating_add(access.bytes);
            if let Some(owner) = self.space.owner_without_access(device, start, end) {
                judge.used_without_access(stream, operation, access, Strangers { owner, device });
            }
        }
    }

    /// Passes on what the schedule did by itself.
    pub(super) fn tell_news(&mut self) {
        {
            let news = self.schedule.take_news();
            if let Some(judge) = &mut self.judge {
                judge.hear(news);
            }
        }
        self.expect_mapped();
    }

    /// Breaks the device if an operation that ran accesses memory that is not mapped, as a GPU does.
    fn expect_mapped(&mut self) {
        for access in self.schedule.take_touched() {
            let (address, bytes) = (access.address.to_bits(), access.bytes);
            let writes = access.kind != crate::operation::AccessKind::Read;
            if let Err(illegal) = self.space.expect_mapped(address, bytes, writes) {
                let reason = format!("illegal address: an operation at {illegal}");
                self.break_device(reason.into());
            }
        }
    }

    // ---- breaking --------------------------------------------------------------------------

    /// Breaks the device. The first reason stays.
    pub(super) fn break_device(&mut self, why: Arc<str>) {
        if self.broken.is_none() {
            self.broken = Some(why);
            self.debris.extend(self.schedule.halt());
        }
    }

    pub(super) fn broken(&self) -> Option<&Arc<str>> {
        self.broken.as_ref()
    }

    // ---- time ------------------------------------------------------------------------------

    pub(super) fn next_due(&self) -> Option<Duration> {
        let work = self.schedule.next_due();
        let alarm = self.alarms.next();
        work.into_iter().chain(alarm).min()
    }

    /// Returns the next alarm if it is due before any work.
    pub(super) fn next_alarm(&self) -> Option<Duration> {
        let work = self.schedule.next_due().unwrap_or(Duration::MAX);
        self.alarms.next().filter(|alarm| *alarm < work)
    }

    /// Returns whether a watch or an alarm depends on time passing.
    pub(super) fn is_watched(&self) -> bool {
        self.schedule.watched() > 0 || !self.alarms.is_empty()
    }

    /// Returns the next time to which the helper thread has to move, if any.
    pub(super) fn next_awaited(&self, clock: Clock) -> Option<Duration> {
        let by_itself = match clock {
            Clock::Virtual => self.drivers == 0,
            Clock::Manual => false,
            // A clock that moves by itself.
            _ => true,
        };
        (by_itself && self.is_watched()).then(|| self.next_due())?
    }

    /// Returns the action by which the helper thread learns of the next time that something is due.
    pub(super) fn ticker_action(&mut self, clock: Clock) -> Option<Action> {
        if self.ticker == Phase::Awake {
            return None;
        }
        let due = self.next_awaited(clock)?;
        let action = match self.ticker {
            Phase::Absent => Action::Start,
            Phase::Until(time) if time <= due => return None,
            _ => Action::Notify,
        };
        self.ticker = Phase::Awake;
        Some(action)
    }

    /// Wakes the alarms that are due, after the work of the same instant.
    pub(super) fn wake_alarms(&mut self) {
        let now = self.schedule.now();
        while let Some(waker) = self.alarms.pop_due(now) {
            self.schedule.woken.push(waker);
        }
    }

    pub(super) fn take_woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.schedule.woken)
    }

    // ---- for people ------------------------------------------------------------------------

    pub(super) fn counters(&self) -> Counters {
        let mut counters = self.counters;
        counters.operations = self.schedule.operations;
        counters.stall = self.schedule.stall;
        (counters.physical_in_use, counters.physical_peak) = self.space.usage_of_all();
        counters
    }

    /// Describes why no future can proceed when nothing is due.
    pub(super) fn describe_deadlock(&self) -> String {
        let mut out = match &self.broken {
            Some(why) => format!("the device is broken: {why}"),
            None => "nothing is due".to_owned(),
        };
        self.schedule.describe_backlog(&mut out);
        if let Some(judge) = &self.judge {
            judge.describe_held(&mut out);
        }
        let (watches, alarms) = (self.schedule.watched(), self.alarms.len());
        out + &format!("\n  {watches} watch(es) and {alarms} alarm(s) are set")
    }
}
