//! A block's use as an argument of work, and what that comes after.

use super::Block;
use super::further::{Access, Earlier};
use crate::device::{Argument, DeviceError, DeviceErrorKind};
use crate::error::StreamError;
use crate::lane::Marker;
use crate::queue::{Passage, Registration};
use crate::stream::Stream;
use crate::sync::Arc;
use smallvec::SmallVec;
use std::ops::Range;

/// A point of a stream to come after.
#[derive(Debug)]
pub(crate) struct Point {
    pub(crate) registration: Arc<Registration>,
    pub(crate) marker: Arc<Marker>,
}

pub(crate) type Points = SmallVec<[Point; 2]>;

impl Point {
    pub(crate) fn passage(&self) -> Passage {
        let Registration { service, lane, .. } = &*self.registration;
        Passage::new(service.clone(), lane.clone(), self.marker.ticket)
    }
}

impl Block {
    /// Says that work of a further stream will use the block: call it before that work is submitted.
    ///
    /// The stream is ordered after the grant (by a wait on the device, if need be), and the memory is
    /// not reused before its work has passed the free. It does not order the stream after what the
    /// block's own stream writes: for that, [wait](Stream::wait) for an event of it, or say
    /// [`read_on`](Self::read_on) or [`write_on`](Self::write_on).
    ///
    /// # Errors
    /// [`StreamError::ForeignPool`] when the stream is of another pool, or the device's error; the
    /// stream must not use the block then.
    pub fn used_on(&self, stream: &Stream) -> Result<(), StreamError> {
        self.expect_of_pool(stream)?;
        Ok(self.note_use(stream.registration(), Access::Always)?)
    }

    /// The block as an argument of work on `stream`, which is noted as [`used_on`](Self::used_on) does:
    /// on CUDA, of a kernel. The argument borrows the block until the work is submitted.
    ///
    #[cfg_attr(feature = "cuda", doc = "```no_run")]
    #[cfg_attr(not(feature = "cuda"), doc = "```ignore")]
    /// # use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
    /// # fn scale(block: weirpool::Block, stream: weirpool::Stream, work: &CudaStream, kernel: &CudaFunction)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let (argument, count) = (block.on(&stream)?, block.size() / 4);
    /// let mut launch = work.launch_builder(kernel);
    /// launch.arg(&argument).arg(&count);
    /// // SAFETY: the kernel touches `count` floats from the address on, and nothing else.
    /// unsafe { launch.launch(LaunchConfig::for_num_elems(count as u32)) }?;
    /// # Ok(()) }
    /// ```
    ///
    /// There is no other way to pass one:
    #[cfg_attr(feature = "cuda", doc = "```compile_fail,E0277")]
    #[cfg_attr(not(feature = "cuda"), doc = "```ignore")]
    /// # use cudarc::driver::{CudaFunction, CudaStream, PushKernelArg};
    /// # fn scale(block: weirpool::Block, work: &CudaStream, kernel: &CudaFunction) {
    /// work.launch_builder(kernel).arg(&block); // on which stream?
    /// # }
    /// ```
    ///
    /// Like `used_on` it comes after the grant and after nothing else, so that kernels on several streams may
    /// have the block at once, and talk to each other in it; their order is yours.
    ///
    /// # Errors
    /// As [`used_on`](Self::used_on).
    pub fn on(&self, stream: &Stream) -> Result<Argument<'_>, StreamError> {
        self.part_on(stream, 0..self.size())
    }

    /// The block as an argument of work on `stream` that reads it: as [`on`](Self::on), but that the stream
    /// comes after all that may have written the block.
    ///
    /// That is: after what the block's own stream was given so far, and after the earlier uses by
    /// [`write_on`](Self::write_on), [`on`](Self::on), [`upload`](Self::upload) and
    /// [`used_on`](Self::used_on) on other streams. Other readers are not waited for, nor kept waiting.
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
    /// works[0].submit(work.writes(block.write_on(&a)?.address(), 1 << 20));
    /// for (work, stream) in [(&works[1], &b), (&works[2], &c)] {
    ///     let read = Operation::new(Duration::from_micros(20));
    ///     work.submit(read.reads(block.read_on(stream)?.address(), 1 << 20)); // after the write, at once
    /// }
    /// let again = Operation::new(Duration::from_micros(50));
    /// works[0].submit(again.writes(block.write_on(&a)?.address(), 1 << 20)); // after both readers
    /// device.advance_to_end();
    /// assert_eq!(device.now(), Duration::from_micros(120));
    /// device.assert_ordered();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`used_on`](Self::used_on), and when the device can record no event behind the earlier uses: on a stream
    /// that is being captured, say, or on an external one, which may be gone.
    pub fn read_on(&self, stream: &Stream) -> Result<Argument<'_>, StreamError> {
        self.part_read_on(stream, 0..self.size())
    }

    /// The block as an argument of work on `stream` that writes it: as [`on`](Self::on), but that the stream
    /// comes after all earlier uses, on every stream. Nobody else can use the block before the work is
    /// submitted; who [reads](Self::read_on) or writes it later comes after it.
    ///
    /// What the block's own stream was given so far counts as an earlier use, since it need not be told. Where
    /// kernels on several streams hand-shake, that may be a deadlock: use [`on`](Self::on) there.
    ///
    /// # Errors
    /// As [`read_on`](Self::read_on).
    pub fn write_on(&mut self, stream: &Stream) -> Result<Argument<'_>, StreamError> {
        self.expect_of_pool(stream)?;
        self.use_in_order(stream.registration(), Access::Write)?;
        Ok(self.argument(0..self.size()))
    }

    /// A part of the block as an argument; the part lies within it.
    pub(crate) fn part_on(
        &self,
        stream: &Stream,
        part: Range<u64>,
    ) -> Result<Argument<'_>, StreamError> {
        self.expect_of_pool(stream)?;
        self.note_use(stream.registration(), Access::Any)?;
        Ok(self.argument(part))
    }

    pub(crate) fn part_read_on(
        &self,
        stream: &Stream,
        part: Range<u64>,
    ) -> Result<Argument<'_>, StreamError> {
        self.expect_of_pool(stream)?;
        self.use_in_order(stream.registration(), Access::Read)?;
        Ok(self.argument(part))
    }

    fn argument(&self, part: Range<u64>) -> Argument<'_> {
        Argument::new(
            self.allocation().address + part.start,
            part.end - part.start,
        )
    }

    pub(super) fn expect_of_pool(&self, stream: &Stream) -> Result<(), StreamError> {
        let is_of_pool = stream.is_of_pool(&self.registration);
        is_of_pool.then_some(()).ok_or(StreamError::ForeignPool)
    }

    /// Takes note of a use: the memory is not reused before the stream has passed the free. The stream comes
    /// after the grant.
    pub(super) fn note_use(
        &self,
        further: &Arc<Registration>,
        access: Access,
    ) -> Result<(), DeviceError> {
        if Arc::ptr_eq(&self.registration, further) || self.note_if_known(further, access) {
            return Ok(());
        }
        let driver = &self.registration.service.driver;
        driver.order_after_grant(
            &self.registration.lane,
            self.allocation().after,
            &further.lane,
        )?;
        // Only now: who finds it there relies on the order.
        let mut extra = self.further.lock();
        let extra = extra.get_or_insert_default();
        extra.streams.note(further, access);
        Ok(())
    }

    fn note_if_known(&self, further: &Arc<Registration>, access: Access) -> bool {
        let mut extra = self.further.lock();
        let extra = extra.as_mut();
        extra.is_some_and(|extra| extra.streams.note_if_known(further, access))
    }

    /// Makes a stream come after what a use of that kind comes after, and takes note of it.
    pub(crate) fn use_in_order(
        &self,
        further: &Arc<Registration>,
        access: Access,
    ) -> Result<(), DeviceError> {
        let driver = &self.registration.service.driver;
        for Point {
            registration,
            marker,
        } in self.points_before(access, Some(further))?
        {
            driver.bring_behind(&further.lane, &registration.lane, &marker)?;
        }
        self.conclude(further, access)
    }

    /// Takes note of a use on a stream that comes after the points before it.
    pub(crate) fn conclude(
        &self,
        further: &Arc<Registration>,
        access: Access,
    ) -> Result<(), DeviceError> {
        if access == Access::Write {
            let mut extra = self.further.lock();
            extra.iter_mut().for_each(|extra| extra.streams.settle());
        }
        self.note_use(further, access)
    }

    /// The points that a use comes after: of every stream but the one that it is on, up to now.
    pub(crate) fn points_before(
        &self,
        access: Access,
        on: Option<&Arc<Registration>>,
    ) -> Result<Points, DeviceError> {
        let own = &*self.registration;
        let is_on_own = on.is_some_and(|on| Arc::ptr_eq(on, own));
        let own = (!is_on_own).then(|| Earlier {
            registration: own.clone(),
            point: None,
        });
        let mut earlier: SmallVec<[Earlier; 2]> = own.into_iter().collect();
        if let Some(extra) = &**self.further.lock() {
            earlier.extend(extra.streams.before(access, on));
        }
        let points = earlier.into_iter().map(|earlier| self.point_of(earlier));
        points.collect()
    }

    fn point_of(&self, earlier: Earlier) -> Result<Point, DeviceError> {
        let Earlier {
            registration,
            point,
        } = earlier;
        if let Some(marker) = point {
            return Ok(Point {
                registration,
                marker,
            });
        }
        if registration.lane.is_external {
            let reason = "no event is recorded for others on a stream of somebody else's, which may be gone: order the \
                          streams by an event of your own, and use `on` or `used_on`";
            let kind = DeviceErrorKind::Unsupported;
            return Err(DeviceError::new("record", kind, reason));
        }
        let marker = registration.service.driver.mark(&registration.lane)?;
        if let Some(extra) = &mut **self.further.lock() {
            extra.streams.keep(&registration, &marker);
        }
        Ok(Point {
            registration,
            marker,
        })
    }
}
