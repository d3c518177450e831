//! Graphs: captured work that is launched as a whole, any number of times.

use super::SimDevice;
use super::call::Call;
use super::checker::{GraphId, Stamp};
use super::copy::{fill_operation, upload_operation};
use super::engine::Engine;
use super::event_calls::{OnStream, unsupported};
use super::recording::{Ended, Plan, Recordings};
use super::schedule::{Item, Point, Released};
use super::state::State;
use super::stream::SimStream;
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use weirpool_device::plain::{Arc, Mutex, Weak};
use weirpool_device::{
    CaptureId, CapturedWork, Captures, DeviceError, DeviceErrorKind, Graph, Kept, RawStream,
};

/// A graph of a simulated device: the work that was submitted to a stream between
/// [`begin_capture`](SimStream::begin_capture) and [`end_capture`](SimStream::end_capture).
///
/// Clones are the same graph. It may be dropped while a launch runs.
#[derive(Clone)]
pub struct SimGraph {
    device: SimDevice,
    inner: Arc<Inner>,
}

/// What the handles of a graph and its launches share.
struct Inner {
    id: GraphId,
    plan: Plan,
    /// The end of the last launch. Each launch comes after the earlier ones.
    last: Mutex<Option<Reached>>,
    kept: Mutex<Vec<Kept>>,
    /// Launches that are not complete hold this, and the engine holds those.
    engine: Weak<Engine>,
}

/// The end of a launch, in the schedule and in the checker's order.
#[derive(Clone)]
struct Reached {
    point: Point,
    stamp: Option<Stamp>,
}

impl SimStream {
    /// Begins to capture the stream. Operations that are submitted to it from now on do not run: they become part of a
    /// graph. Other streams join the capture by waiting for an event that is recorded in it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weirpool_sim::{Operation, SimDevice};
    /// let device = SimDevice::new();
    /// let stream = device.create_stream();
    /// stream.begin_capture()?;
    /// stream.submit(Operation::new(Duration::from_micros(5)));
    /// let graph = stream.end_capture()?;
    /// assert_eq!(device.counters().operations, 0);
    /// graph.launch(&stream)?;
    /// graph.launch(&stream)?;
    /// device.advance_to_end();
    /// assert_eq!(device.counters().operations, 2);
    /// # Ok::<(), weirpool_device::DeviceError>(())
    /// ```
    ///
    /// As on a real device, a wait for an event from outside invalidates the capture. So do signals, waits for flags,
    /// and operations whose body [runs only once](super::Operation::run).
    ///
    /// # Errors
    /// Returns an error if the stream is being captured already, or the device is broken.
    pub fn begin_capture(&self) -> Result<(), DeviceError> {
        self.device().on(self.raw()).begin_capture()
    }

    /// Ends the capture that began on this stream.
    ///
    /// # Errors
    /// Returns an error if no capture began on the stream, if the capture was invalidated, or if a stream that joined
    /// it was not joined again. There is no graph then, and the stream is not being captured.
    pub fn end_capture(&self) -> Result<SimGraph, DeviceError> {
        self.device().on(self.raw()).end_capture()
    }

    /// Begins the body of a loop in a capture: the operations from here to [`end_loop`](Self::end_loop) run `times`
    /// times, at least once, at each launch. A loop stands for a conditional node (CUDA's `WHILE`). As there, the body
    /// is a capture with an id of its own, and so is what follows it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weirpool_sim::{Operation, SimDevice};
    /// let device = SimDevice::new();
    /// let stream = device.create_stream();
    /// stream.begin_capture()?;
    /// stream.begin_loop(3)?;
    /// stream.submit(Operation::new(Duration::from_micros(5)));
    /// stream.end_loop()?;
    /// stream.end_capture()?.launch(&stream)?;
    /// device.advance_to_end();
    /// assert_eq!(device.counters().operations, 3);
    /// # Ok::<(), weirpool_device::DeviceError>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the stream is not being captured, or the device is broken.
    pub fn begin_loop(&self, times: usize) -> Result<(), DeviceError> {
        let raw = self.raw();
        self.change_loops(|recordings| recordings.begin_loop(raw, times))
    }

    /// Ends the body of the innermost loop, which began on this stream. If another stream was captured meanwhile, the
    /// capture is invalidated.
    ///
    /// # Errors
    /// Returns an error if there is no such loop, or the device is broken.
    pub fn end_loop(&self) -> Result<(), DeviceError> {
        let raw = self.raw();
        self.change_loops(|recordings| recordings.end_loop(raw))
    }

    fn change_loops(
        &self,
        change: impl FnOnce(&mut Recordings) -> bool,
    ) -> Result<(), DeviceError> {
        self.device().engine.call(|state| {
            state.check(Call::BeginCapture.name())?;
            let reason = "the stream is not being captured, or no loop began on it";
            let is_changed = change(&mut state.recordings);
            is_changed
                .then_some(())
                .ok_or_else(|| unsupported(Call::BeginCapture, reason))
        })
    }

    /// Returns whether the stream is being captured.
    pub fn is_capturing(&self) -> bool {
        let raw = self.raw();
        let engine = &self.device().engine;
        engine.peek(|state| state.recordings.of(raw).is_some())
    }
}

impl SimGraph {
    /// Submits the captured operations behind everything submitted to the stream so far, and behind the earlier
    /// launches of the graph. Items submitted to the stream later come after all of them.
    ///
    /// # Errors
    /// Returns an error if the device is broken, the stream belongs to another device, or it is being captured.
    ///
    /// # Panics
    /// Panics with a violation that the [ordering
    /// checker](https://docs.rs/weirpool/latest/weirpool/guide/testing/) found, after the submission.
    #[track_caller]
    pub fn launch(&self, stream: &SimStream) -> Result<(), DeviceError> {
        self.submit(stream.raw())?;
        self.device.engine.pass_panic_on();
        Ok(())
    }

    fn submit(&self, stream: RawStream) -> Result<(), DeviceError> {
        self.device.engine.call(|state| {
            state.enter(Call::Launch, 0)?;
            self.device.on(stream).check_live(state, Call::Launch)?;
            let launch = Launch::begin(state, &self.inner, stream);
            launch.run();
            Ok(())
        })
    }
}

impl Graph for SimGraph {
    unsafe fn launch(&self, stream: RawStream) -> Result<(), DeviceError> {
        self.submit(stream)
    }
}

impl fmt::Debug for SimGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimGraph")
            .field("operations", &self.inner.plan.nodes.len())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let last = self.last.lock().take();
        if let Some(engine) = self.engine.upgrade() {
            engine.call(|state| {
                if let Some(judge) = state.judge() {
                    let stamp = last.and_then(|last| last.stamp);
                    judge.graph_ended(self.id, stamp.as_ref());
                }
            });
        }
        // Only now: a pool that hears of it may grant the memory to another block.
        self.kept.lock().clear();
    }
}

/// A launch that is being submitted. The first branch runs on the stream itself, each other one on a stream of its own.
struct Launch<'a> {
    state: &'a mut State,
    graph: &'a Arc<Inner>,
    main: RawStream,
    start: Reached,
    asides: HashMap<usize, RawStream>,
}

impl<'a> Launch<'a> {
    fn begin(state: &'a mut State, graph: &'a Arc<Inner>, main: RawStream) -> Self {
        if let Some(last) = graph.last.lock().clone() {
            state.come_after(main, &last);
        }
        let start = state.reach(main);
        if let Some(judge) = state.judge() {
            judge.launched(graph.id);
        }
        Self {
            state,
            graph,
            main,
            start,
            asides: HashMap::new(),
        }
    }

    fn run(mut self) {
        let plan = &self.graph.plan;
        let mut ends = Vec::<(RawStream, Reached)>::with_capacity(plan.nodes.len());
        for node in &plan.nodes {
            let stream = self.stream_of(node.branch);
            for at in &node.after {
                let (other, end) = &ends[*at];
                if *other != stream {
                    self.state.come_after(stream, end);
                }
            }
            let operation = node.operation.operation();
            let point = self.state.submit(stream, Item::Operation(operation));
            let stamp = self.state.stamp(stream);
            ends.push((stream, Reached { point, stamp }));
        }
        for (_, aside) in std::mem::take(&mut self.asides) {
            let end = self.state.reach(aside);
            self.state.come_after(self.main, &end);
            self.state.schedule.release(aside);
        }
        let held = Released(Box::new(self.graph.clone()));
        let point = self.state.submit(self.main, Item::Release(held));
        let stamp = self.state.stamp(self.main);
        *self.graph.last.lock() = Some(Reached { point, stamp });
    }

    fn stream_of(&mut self, branch: usize) -> RawStream {
        if branch == 0 {
            return self.main;
        }
        if let Some(aside) = self.asides.get(&branch) {
            return *aside;
        }
        let aside = self.state.open_aside(self.main);
        self.state.come_after(aside, &self.start);
        self.asides.insert(branch, aside);
        aside
    }
}

impl State {
    /// Creates a stream that belongs to the device.
    fn open_aside(&mut self, main: RawStream) -> RawStream {
        let device = self.schedule.device_of(main).unwrap_or_default();
        let name = Some("branch of a graph".into());
        let aside = self.schedule.create_stream(device, name);
        let label = self.schedule.label(aside).cloned();
        if let (Some(judge), Some(label)) = (self.judge(), label) {
            judge.order.open(aside, label);
        }
        aside
    }

    /// Returns the present point of a stream.
    fn reach(&mut self, stream: RawStream) -> Reached {
        let point = self.submit(stream, Item::Record);
        let stamp = self.stamp(stream);
        Reached { point, stamp }
    }

    fn stamp(&mut self, stream: RawStream) -> Option<Stamp> {
        self.judge().map(|judge| judge.order.now(stream))
    }

    fn come_after(&mut self, stream: RawStream, reached: &Reached) {
        self.submit(stream, Item::Wait(reached.point));
        if let (Some(judge), Some(stamp)) = (self.judge(), &reached.stamp) {
            judge.order.come_after(stream, stamp);
        }
    }
}

impl OnStream<'_> {
    fn begin_capture(self) -> Result<(), DeviceError> {
        self.device.engine.call(|state| {
            state.enter(Call::BeginCapture, 0)?;
            self.check(state, Call::BeginCapture)?;
            if state.recordings.begin(self.stream) {
                return Ok(());
            }
            let reason = "the stream is being captured already; end that capture first";
            Err(unsupported(Call::BeginCapture, reason))
        })
    }

    fn end_capture(self) -> Result<SimGraph, DeviceError> {
        let (entered, ended) = self.device.engine.call(|state| {
            // A call that fails ends the capture all the same.
            let entered = state.enter(Call::EndCapture, 0);
            (entered, state.recordings.end(self.stream))
        });
        let Some(Ended { graph, plan, kept }) = ended else {
            entered?;
            let reason = "no capture began on the stream, or it ended already";
            return Err(unsupported(Call::EndCapture, reason));
        };
        let (plan, refused) = match (entered, plan) {
            (Ok(()), Ok(plan)) => (plan, None),
            (Err(error), _) => (Plan::default(), Some(error)),
            (Ok(()), Err(flaw)) => {
                let kind = DeviceErrorKind::Other;
                let error = DeviceError::new(Call::EndCapture.name(), kind, flaw);
                (Plan::default(), Some(error))
            }
        };
        // Dropped at once if the capture failed, and its kept owners with it.
        let inner = Arc::new(Inner {
            id: graph,
            plan,
            last: Mutex::new(None),
            kept: Mutex::new(kept),
            engine: Arc::downgrade(&self.device.engine),
        });
        match refused {
            Some(error) => Err(error),
            None => Ok(SimGraph {
                device: self.device.clone(),
                inner,
            }),
        }
    }

    pub(super) fn capture(
        self,
        call: Call,
        operation: super::Operation,
    ) -> Result<(), DeviceError> {
        self.device.engine.call(|state| {
            state.enter(call, 0)?;
            self.check(state, call)?;
            if state.recordings.of(self.stream).is_none() {
                return Err(unsupported(call, "the stream is not being captured"));
            }
            state.recordings.add(self.stream, operation);
            Ok(())
        })
    }
}

// SAFETY: a graph's values are dropped with its last owner, and each launch is one until it is complete.
unsafe impl Captures for SimDevice {
    unsafe fn begin_capture(&self, stream: RawStream) -> Result<(), DeviceError> {
        self.on(stream).begin_capture()
    }

    unsafe fn end_capture(&self, stream: RawStream) -> Result<Box<dyn Graph>, DeviceError> {
        Ok(Box::new(self.on(stream).end_capture()?))
    }

    unsafe fn capture_of(&self, stream: RawStream) -> Result<Option<CaptureId>, DeviceError> {
        self.engine.peek(|state| {
            state.check("capture_of")?;
            Ok(state.recordings.id(stream).map(CaptureId))
        })
    }

    unsafe fn frontier(
        &self,
        stream: RawStream,
    ) -> Result<Option<(CaptureId, Vec<CapturedWork>)>, DeviceError> {
        self.engine.peek(|state| {
            state.check("frontier")?;
            let frontier = state.recordings.frontier(stream);
            let named = |at| CapturedWork(at as u64);
            Ok(frontier.map(|(id, work)| (CaptureId(id), work.into_iter().map(named).collect())))
        })
    }

    unsafe fn before(
        &self,
        stream: RawStream,
        work: CapturedWork,
    ) -> Result<Vec<CapturedWork>, DeviceError> {
        self.engine.peek(|state| {
            state.check("before")?;
            let before = state.recordings.before(stream, work.0 as usize);
            let before = before.unwrap_or_default().into_iter();
            Ok(before.map(|at| CapturedWork(at as u64)).collect())
        })
    }

    unsafe fn come_after(
        &self,
        stream: RawStream,
        captured: RawStream,
        work: &[CapturedWork],
    ) -> Result<(), DeviceError> {
        self.engine.call(|state| {
            state.enter(Call::Wait, 0)?;
            self.on(stream).check(state, Call::Wait)?;
            let work: Vec<_> = work.iter().map(|work| work.0 as usize).collect();
            let joined = state.recordings.come_after(stream, captured, &work);
            joined.map_err(|reason| unsupported(Call::Wait, reason))
        })
    }

    unsafe fn keep(&self, stream: RawStream, kept: Kept) -> Result<(), DeviceError> {
        let refused = self.engine.call(|state| {
            if let Err(error) = state.enter(Call::Keep, 0) {
                return Some((kept, error));
            }
            let refused = state.recordings.keep(stream, kept).err()?;
            let reason = "the stream is not being captured, or its capture was invalidated";
            Some((refused, unsupported(Call::Keep, reason)))
        });
        // The value is dropped outside the lock.
        refused.map_or(Ok(()), |(_kept, error)| Err(error))
    }

    unsafe fn capture_fill(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        value: u8,
        location: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        let fill = fill_operation(address, bytes, value, location);
        self.on(stream).capture(Call::Fill, fill)
    }

    unsafe fn capture_upload(
        &self,
        stream: RawStream,
        address: u64,
        bytes: &[u8],
        location: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        let upload = upload_operation(address, bytes, location);
        self.on(stream).capture(Call::Upload, upload)
    }
}
