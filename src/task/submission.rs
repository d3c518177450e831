//! Work before it is submitted.

use super::accesses::AccessOrder;
use super::handle::Value;
use super::host_task::HeldStream;
use super::outcome::Outcome;
use super::point::Point;
use super::{Accesses, HostTask, Task};
use crate::device::{DeviceError, DeviceErrorKind, HostFunction, HostUse, NativeStream};
use crate::error::{EnqueueError, SubmitError, TaskError};
use crate::foreign::Resident;
use crate::handles::Registration;
use crate::lane::Holder;
use crate::seam::Fact;
use crate::stream::Stream;
use crate::sync::Arc;
use std::any::type_name;
use std::borrow::Cow;
use std::future::Future;
use std::panic::Location;

/// Work for a stream, before it is submitted. Made by [`Stream::task`], with a name.
#[derive(Debug)]
#[must_use = "nothing is submitted until one of the methods does so"]
pub struct Submission<'s> {
    stream: &'s Stream,
    name: Option<Cow<'static, str>>,
    uses: Vec<HostUse>,
    held: Vec<Resident>,
}

impl<'s> Submission<'s> {
    pub(super) fn new(stream: &'s Stream, name: Option<Cow<'static, str>>) -> Self {
        Self {
            stream,
            name,
            uses: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Declares memory that work of the host uses, as in [`submit`](Self::submit): the stream is ordered after the
    /// earlier uses now, and the uses are noted. The host can use memory that it [sees](crate::Upstream) only.
    ///
    /// ```
    /// # use weirpool::{Pool, Upstream, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).upstream(Upstream::Pinned).build()?;
    /// # let [stream, other] = [pool.create_stream()?, pool.create_stream()?];
    /// let mut block = pool.try_allocate(&other, 4096)?;
    /// let summed = stream.task("sum").uses(&mut block)?.run(|| 1 + 1)?; // after the block's uses on `other`
    /// # assert_eq!(device.block_on(summed)?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The memory is borrowed until the work is submitted:
    /// ```compile_fail,E0505
    /// # use weirpool::{Block, Stream};
    /// # fn sum(stream: &Stream, block: Block) -> Result<(), weirpool::TaskError> {
    /// let sum = stream.task("sum").uses(&block)?;
    /// drop(block); // its free would not come after the work
    /// sum.run(|| 1 + 1)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Returns [`StreamError::UnseenByHost`](crate::StreamError) for memory of the device alone, and the errors of
    /// [`Stream::record_use`]. Nothing is ordered or noted then.
    pub fn uses(mut self, accesses: impl Accesses + 's) -> Result<Self, TaskError> {
        let mut order = AccessOrder::on(self.stream);
        order.uses = Some(&mut self.uses);
        accesses.order(&mut order)?;
        self.held.append(&mut order.held);
        Ok(self)
    }

    /// Submits work of the device; see [`Stream::submit`].
    ///
    /// # Errors
    /// Returns the errors of [`Stream::submit`].
    #[track_caller]
    pub fn submit<W: NativeStream, A: Accesses, T>(
        self,
        accesses: A,
        enqueue: impl FnOnce(&W, A::Arguments) -> T,
    ) -> Result<Task<T>, TaskError> {
        self.submit_or(accesses, |work, arguments| Ok(enqueue(work, arguments)))
    }

    /// Submits work of the device by a closure that can fail, as a launch can.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::{SimDevice, SimStream}};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// let launch = |_: &SimStream, ()| Err::<(), _>("no such kernel");
    /// let error = stream.task("decode").try_submit((), launch).unwrap_err();
    /// assert_eq!(error.to_string(), "no such kernel");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the closure's error as [`SubmitError::Enqueue`], and the errors of [`Stream::submit`] as
    /// [`SubmitError::Task`]. Work that the closure had enqueued before its error runs, and its uses stay recorded.
    #[track_caller]
    pub fn try_submit<W: NativeStream, A: Accesses, T, E: Into<EnqueueError>>(
        self,
        accesses: A,
        enqueue: impl FnOnce(&W, A::Arguments) -> Result<T, E>,
    ) -> Result<Task<T>, SubmitError> {
        let enqueue = |work: &W, arguments| {
            enqueue(work, arguments).map_err(|error| SubmitError::Enqueue(error.into()))
        };
        self.submit_or(accesses, enqueue)
    }

    #[track_caller]
    fn submit_or<W: NativeStream, A: Accesses, T, E: From<TaskError>>(
        self,
        accesses: A,
        enqueue: impl FnOnce(&W, A::Arguments) -> Result<T, E>,
    ) -> Result<Task<T>, E> {
        let registration = self.open()?;
        let mut order = AccessOrder::on(self.stream);
        let submit = |work: &W| {
            let arguments = accesses.order(&mut order).map_err(TaskError::from)?;
            enqueue(work, arguments)
        };
        // Not in a closure: the backend notes the caller.
        let value = match registration.native.get() {
            Some(native) => W::with(native, self.name.as_ref(), submit),
            None => None,
        };
        let value = value.ok_or_else(|| other_backend::<W>(registration))??;
        Ok(self.submitted(registration, Value::Known(value)))
    }

    /// Calls a function on the host in the order of the stream; see [`Stream::run`].
    ///
    /// # Errors
    /// Returns the errors of [`Stream::run`].
    #[track_caller]
    pub fn run<T: Send + 'static>(
        mut self,
        function: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Task<T>, TaskError> {
        let registration = self.open()?;
        let outcome = Outcome::unknown();
        let coming = outcome.clone();
        let function = HostFunction {
            name: self.name.clone(),
            uses: std::mem::take(&mut self.uses),
            location: Location::caller(),
            body: Box::new(move || coming.set_by(function)),
        };
        let Registration { service, lane, .. } = &**registration;
        // SAFETY: the lane keeps the stream's owner; an external stream is used only in calls made with it.
        #[allow(unsafe_code, reason = "device call on the lane's stream")]
        let run = unsafe {
            lane.device(&service.engine.shared.device)
                .run(lane.raw, function)
        };
        service.engine.shared.noted(run)?;
        Ok(self.submitted(registration, Value::Coming(outcome)))
    }

    /// Returns a host task that holds the stream; see [`Stream::spawn`].
    ///
    /// # Errors
    /// Returns the errors of [`Stream::spawn`].
    #[track_caller]
    pub fn spawn<F: Future>(self, future: F) -> Result<HostTask<F>, TaskError> {
        let registration = self.open()?;
        let Registration { service, lane, .. } = &**registration;
        // Recorded before the hold, so that the task begins when the stream reaches the hold.
        let reached = Point::present(registration);
        reached.marker()?;
        // SAFETY: the lane keeps the stream's owner; an external stream is used only in calls made with it.
        #[allow(unsafe_code, reason = "device call on the lane's stream")]
        let hold = unsafe {
            let device = lane.device(&service.engine.shared.device);
            device.hold(lane.raw, self.name.clone())
        };
        let holder = Holder {
            name: self.name.clone(),
            location: Location::caller(),
            since: service.engine.shared.device.now(),
        };
        let held = HeldStream::new(service.engine.shared.noted(hold)?, registration, holder);
        let end = self.submitted(registration, Value::Known(()));
        Ok(HostTask::new(end, reached, held, future))
    }

    /// Returns the registration of a stream that takes work.
    fn open(&self) -> Result<&'s Arc<Registration>, TaskError> {
        let registration = &self.stream.registration;
        let engine = &registration.service.engine;
        if engine.shared.is_closed() {
            return Err(TaskError::Closed);
        }
        if registration.lane.is_host() {
            let reason = "the host is no stream of the device: call the function directly";
            let kind = DeviceErrorKind::Unsupported;
            return Err(DeviceError::new("submit", kind, reason).into());
        }
        match engine.shared.fault() {
            Some(fault) => Err(fault.into()),
            None => Ok(registration),
        }
    }

    /// Notes that the work was submitted, and returns its task.
    #[track_caller]
    fn submitted<T>(self, registration: &Arc<Registration>, value: Value<T>) -> Task<T> {
        let Registration { service, lane, .. } = &**registration;
        let site = Location::caller();
        service.engine.store.tell(|| Fact::Submitted {
            stream: lane.id,
            name: lane.name(),
            task: self.name.as_ref(),
            site,
        });
        Task::new(Point::present(registration), self.name, value)
    }
}

#[cold]
pub(super) fn other_backend<W>(registration: &Registration) -> TaskError {
    TaskError::OtherBackend {
        expected: type_name::<W>(),
        device: {
            let Registration { service, lane, .. } = registration;
            lane.device(&service.engine.shared.device).describe()
        },
    }
}
