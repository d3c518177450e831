//! A stream with the type of its backend.

use super::submission::other_backend;
use super::{Accesses, Submission, Task};
use crate::device::NativeStream;
use crate::error::{EnqueueError, SubmitError, TaskError};
use crate::stream::Stream;
use std::marker::PhantomData;

/// A stream whose backend is known, from [`Stream::native`]: closures that submit work need no type.
#[derive(Debug)]
pub struct Native<'s, W> {
    stream: &'s Stream,
    backend: PhantomData<fn(&W)>,
}

impl Stream {
    /// Returns the stream with the type of its backend: `SimStream` of the simulated device, or cudarc's `CudaStream`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use weirpool::device::sim::{Operation, SimDevice, SimStream};
    /// # use weirpool::Pool;
    ///
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// # let kernel = Operation::new(Duration::from_micros(50));
    /// let gpu = stream.native::<SimStream>()?;
    /// # device.block_on(async {
    /// let mut y = pool.buffer::<f32>(&stream, 1000).await?;
    /// gpu.submit(&mut y, |gpu, y| gpu.submit(kernel.writes(y.address(), y.size())))?.await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`TaskError::OtherBackend`] if the stream is of another backend.
    pub fn native<W: NativeStream>(&self) -> Result<Native<'_, W>, TaskError> {
        let registration = &self.registration;
        let native = registration.native.get();
        let is_own = native
            .and_then(|native| W::with(native, None, |_| ()))
            .is_some();
        let view = Native {
            stream: self,
            backend: PhantomData,
        };
        is_own
            .then_some(view)
            .ok_or_else(|| other_backend::<W>(registration))
    }
}

impl<W: NativeStream> Native<'_, W> {
    /// Submits work; see [`Stream::submit`].
    ///
    /// # Errors
    /// Returns the errors of [`Stream::submit`].
    #[track_caller]
    pub fn submit<A: Accesses, T>(
        &self,
        accesses: A,
        enqueue: impl FnOnce(&W, A::Arguments) -> T,
    ) -> Result<Task<T>, TaskError> {
        self.stream.submit(accesses, enqueue)
    }

    /// Submits work by a closure that can fail, as a launch can; see [`Submission::try_submit`].
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::{SimDevice, SimStream}};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// let gpu = stream.native::<SimStream>()?;
    /// let launched = gpu.try_submit((), |_, ()| "7".parse::<u32>())?; // stands for a launch
    /// assert_eq!(device.block_on(launched)?, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the closure's error as [`SubmitError::Enqueue`], and the errors of [`Stream::submit`] as
    /// [`SubmitError::Task`].
    #[track_caller]
    pub fn try_submit<A: Accesses, T, E: Into<EnqueueError>>(
        &self,
        accesses: A,
        enqueue: impl FnOnce(&W, A::Arguments) -> Result<T, E>,
    ) -> Result<Task<T>, SubmitError> {
        Submission::new(self.stream, None).try_submit(accesses, enqueue)
    }
}
