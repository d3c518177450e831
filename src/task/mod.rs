//! Streams as executors: work is submitted to a stream, with the memory that it uses, and is a future of its end.
//!
//! | file | about |
//! |---|---|
//! | `mod` | the calls of a [`Stream`] |
//! | `submission` | work before it is submitted: its name, its memory, and the three ways to submit it |
//! | `accesses` | the memory that work reads and writes |
//! | `handle` | submitted work as a future |
//! | `host_task` | a future of the host that holds a stream |
//! | `native` | a stream with the type of its backend |
//! | `outcome` | the value of a function that the device calls |
//! | `point` | the point behind work, whose event is recorded only if it is needed |

mod accesses;
mod handle;
mod host_task;
mod native;
mod outcome;
mod point;
mod submission;

pub use accesses::{AccessOrder, Accesses, Unordered};
pub use handle::Task;
pub use host_task::HostTask;
pub use native::Native;
pub use submission::Submission;

use crate::device::NativeStream;
use crate::engine::ordering;
use crate::error::{StreamError, TaskError};
use crate::stream::Stream;
use point::Point;
use std::borrow::Cow;
use std::future::Future;

/// Submitted work that a stream can be ordered [after](Stream::after): a [`Task`] or a [`HostTask`].
pub trait Submitted {
    /// Returns the point behind the work.
    #[doc(hidden)]
    fn point(&self) -> &Point;
}

/// Work for the stream.
impl Stream {
    /// Submits work: gives the backend's own stream to a closure that enqueues it, with the memory that the work uses.
    ///
    /// `&` memory is read and `&mut` memory is written; see [`Accesses`]. Before the closure is called, the stream is
    /// ordered after the grant of that memory and after its earlier uses on other streams, and the uses are noted. The
    /// memory may be freed as soon as this returns: it is not reused before the stream has passed the work.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// use weirpool::device::sim::{Operation, SimStream};
    ///
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let [first, second] = [pool.create_stream()?, pool.create_stream()?];
    /// # device.block_on(async {
    /// let mut block = pool.allocate(&first, 1 << 20).await?;
    /// let write = Operation::new(Duration::from_micros(50));
    /// first.submit(&mut block, |work: &SimStream, block| {
    ///     work.submit(write.writes(block.address(), block.size()));
    /// })?; // dropped: the work runs on its own
    /// let read = Operation::new(Duration::from_micros(20));
    /// let task = second.submit(&block, |work: &SimStream, block| {
    ///     work.submit(read.reads(block.address(), block.size())); // after the write
    ///     "read"
    /// })?;
    /// drop(block); // freed behind the read
    /// assert_eq!(task.await?, "read");
    /// # assert_eq!(device.now(), Duration::from_micros(70));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The closure runs before this returns, and only submits to the stream that it is given. On CUDA that is
    /// `Arc<CudaStream>`; an [`Argument`](crate::device::Argument) is a kernel argument. While no other stream uses the
    /// memory, this makes no heap allocation and no device call of its own.
    ///
    /// If the closure panics, the panic is passed on. Work that it had enqueued runs, and its uses stay noted. For a
    /// closure that can fail see [`Native::try_submit`], and for closures without a type [`native`](Self::native).
    ///
    /// # Errors
    /// Returns [`TaskError::OtherBackend`] if the closure takes another type of stream, [`TaskError::Closed`] after
    /// [`Pool::close`](crate::Pool::close), and the errors of [`record_use`](Self::record_use). The closure is
    /// not called then.
    #[track_caller]
    pub fn submit<W: NativeStream, A: Accesses, T>(
        &self,
        accesses: A,
        enqueue: impl FnOnce(&W, A::Arguments) -> T,
    ) -> Result<Task<T>, TaskError> {
        Submission::new(self, None).submit(accesses, enqueue)
    }

    /// Orders the stream and records uses as [`submit`](Self::submit) does, for work that the caller submits next: by a launch
    /// builder of cudarc's, another library, or on an external stream. Returns the memory as arguments of that work, which
    /// borrow it until they are used.
    ///
    /// `&` memory is read and `&mut` memory is written; see [`Accesses`], and [`Unordered`] for memory whose uses the caller
    /// orders.
    ///
    #[cfg_attr(feature = "cuda", doc = "```no_run")]
    #[cfg_attr(not(feature = "cuda"), doc = "```ignore")]
    /// # use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
    /// # fn scale(mut block: weirpool::Block, stream: weirpool::Stream, work: &CudaStream, kernel: &CudaFunction)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let count = block.size() / 4;
    /// let argument = stream.record_use(&mut block)?;
    /// let mut launch = work.launch_builder(kernel);
    /// launch.arg(&argument).arg(&count);
    /// // SAFETY: the kernel accesses `count` floats from this address, and nothing else.
    /// unsafe { launch.launch(LaunchConfig::for_num_elems(count as u32)) }?;
    /// # Ok(()) }
    /// ```
    ///
    /// A block itself is not an argument, because it would not name the stream:
    #[cfg_attr(feature = "cuda", doc = "```compile_fail,E0277")]
    #[cfg_attr(not(feature = "cuda"), doc = "```ignore")]
    /// # use cudarc::driver::{CudaFunction, CudaStream, PushKernelArg};
    /// # fn scale(block: weirpool::Block, work: &CudaStream, kernel: &CudaFunction) {
    /// work.launch_builder(kernel).arg(&block); // on which stream?
    /// # }
    /// ```
    ///
    /// Readers run at the same time, after the writer:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weirpool::{Pool, device::{Device, sim::{Operation, SimDevice}}};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let works = [device.create_stream(), device.create_stream(), device.create_stream()];
    /// # let [a, b, c] = [0, 1, 2].map(|n| pool.register(&works[n]).unwrap());
    /// let mut block = pool.try_allocate(&a, 1 << 20)?;
    /// let work = Operation::new(Duration::from_micros(50));
    /// works[0].submit(work.writes(a.record_use(&mut block)?.address(), 1 << 20));
    /// for (work, stream) in [(&works[1], &b), (&works[2], &c)] {
    ///     let read = Operation::new(Duration::from_micros(20));
    ///     work.submit(read.reads(stream.record_use(&block)?.address(), 1 << 20)); // after the write, at the same time
    /// }
    /// let again = Operation::new(Duration::from_micros(50));
    /// works[0].submit(again.writes(a.record_use(&mut block)?.address(), 1 << 20)); // after both readers
    /// device.advance_to_end();
    /// assert_eq!(device.now(), Duration::from_micros(120));
    /// device.assert_ordered();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`StreamError::ForeignPool`] if the memory belongs to another pool, [`StreamError::ForeignDevice`] if that is
    /// also of another device that has no [access](crate::Peers::enable), or the device's error: also if it cannot record an
    /// event behind the earlier uses, on a stream that is being captured, or on an external stream, which may be gone. The
    /// stream must not use the memory then.
    #[doc(alias = "record_stream")]
    #[doc(alias = "used_on")]
    pub fn record_use<A: Accesses>(&self, accesses: A) -> Result<A::Arguments, StreamError> {
        accesses.order(&mut AccessOrder::on(self))
    }

    /// Calls `function` on the host in the order of the stream: after all work submitted before, and before all work
    /// submitted later. The task returns its value. Dropping the task detaches it: the function is called all the same.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// let stamped = stream.run(|| "the stream is here")?;
    /// assert_eq!(device.block_on(stamped)?, "the stream is here");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A thread of the device calls the function; on CUDA that is `cuLaunchHostFunc`. The stream stands still
    /// meanwhile, and so may other streams' functions. The function must not call CUDA, this crate's pools and devices,
    /// or drop their blocks; it must not wait for work of the device. It may send to a channel and wake a task. To
    /// await something in stream order, use [`spawn`](Self::spawn). Memory that the function uses is declared with
    /// [`Submission::uses`].
    ///
    /// It costs a device call and a few heap allocations, and on CUDA about ten microseconds in which the stream waits
    /// for the host; `cargo bench --bench submit` measures it.
    ///
    /// If the function panics, the task returns [`TaskError::Panicked`], and the stream goes on.
    ///
    /// # Errors
    /// Returns [`TaskError::Closed`] after [`Pool::close`](crate::Pool::close), and the device's error: also if it
    /// cannot call the host, or the stream is being captured. The function is dropped then.
    #[track_caller]
    pub fn run<T: Send + 'static>(
        &self,
        function: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Task<T>, TaskError> {
        Submission::new(self, None).run(function)
    }

    /// Returns a host task: `future` is polled once the stream has reached this point, and work that is submitted to
    /// the stream later starts after the future has ended.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weirpool::{Pool, device::sim::{Operation, SimDevice, SimStream}};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// # let work = || Operation::new(Duration::from_micros(10));
    /// stream.submit((), |stream: &SimStream, ()| stream.submit(work()))?;
    /// let clock = device.clone();
    /// let fetched = stream.spawn(async move { clock.sleep(Duration::from_micros(5)).await })?;
    /// let next = stream.submit((), |stream: &SimStream, ()| stream.submit(work()))?;
    /// device.block_on(async {
    ///     fetched.await?; // after the first work
    ///     next.await // after the future
    /// })?;
    /// assert_eq!(device.now(), Duration::from_micros(25));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The caller polls the task: it awaits it, or gives it to its runtime, as `tokio::spawn(stream.spawn(future)?)`.
    /// The stream is held from the start by a flag: on CUDA a word of host memory that the stream waits for
    /// (`cuStreamWaitValue32`), or, where the driver has no such wait, a host function that blocks until the future has
    /// ended. The future may call anything, except that it must not wait for later work of this stream.
    ///
    /// A task that is dropped before its end, or whose future panics, lets the stream go on: it is counted in
    /// [`StreamStatistics::abandoned_host_tasks`](crate::StreamStatistics), a subscriber of `tracing` is warned, and a
    /// panic reaches the poller. A future that never ends, or a task that is forgotten, holds the stream for ever,
    /// which [`StreamStatistics::host_tasks`](crate::StreamStatistics) shows.
    ///
    /// # Errors
    /// Returns [`TaskError::Closed`] after [`Pool::close`](crate::Pool::close), and the device's error: also if it
    /// cannot hold the stream, or the stream is being captured. The stream is not held then.
    #[track_caller]
    pub fn spawn<F: Future>(&self, future: F) -> Result<HostTask<F>, TaskError> {
        Submission::new(self, None).spawn(future)
    }

    /// Names the work that is submitted next. The name is shown by the simulated device's ordering checker, by
    /// `tracing`, by histories, and by the export for Perfetto.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weirpool::{Pool, device::sim::{Operation, SimDevice, SimStream}};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// # let work = Operation::new(Duration::from_micros(10));
    /// let step = stream.task("decode").submit((), |stream: &SimStream, ()| stream.submit(work))?;
    /// assert!(format!("{step:?}").contains("decode"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn task(&self, name: impl Into<Cow<'static, str>>) -> Submission<'_> {
        Submission::new(self, Some(name.into()))
    }

    /// Makes later work of this stream start after the work of a task, by a wait on the device that does not block the
    /// host. No event is needed. Memory that the task wrote needs not even this: a submission that uses it orders
    /// itself.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weirpool::{Pool, device::sim::{Operation, SimDevice, SimStream}};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let [first, second] = [pool.create_stream()?, pool.create_stream()?];
    /// # let work = || Operation::new(Duration::from_micros(10));
    /// let task = first.submit((), |stream: &SimStream, ()| stream.submit(work()))?;
    /// second.after(&task)?;
    /// device.block_on(second.submit((), |stream: &SimStream, ()| stream.submit(work()))?)?;
    /// assert_eq!(device.now(), Duration::from_micros(20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`StreamError::ForeignDevice`] if the task is of a device that shares no events with this stream's, or
    /// the device's error; the streams are not ordered then. The task may be of another pool's stream. A closed pool
    /// still orders its streams, for the blocks that are freed later.
    pub fn after(&self, task: &impl Submitted) -> Result<(), TaskError> {
        let (own, point) = (&self.registration, task.point());
        let earlier = &point.registration;
        let engine = &own.service.engine;
        if !self.is_of_pool(earlier) {
            self.expect_beside(earlier)?;
            if let Some(marker) = point.marker()? {
                ordering::order_behind_other_pool(&engine.shared, &own.lane, &marker)?;
            }
            return Ok(());
        }
        if own.lane.id == earlier.lane.id || point.order_captured(own)? {
            return Ok(());
        }
        if let Some(marker) = point.marker()? {
            ordering::bring_behind(engine, &own.lane, &earlier.lane, &marker)?;
        }
        Ok(())
    }
}
