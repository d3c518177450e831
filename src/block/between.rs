//! Copies from one block to another: of one pool, of two, or of two devices.

use super::{Access, Block, Part};
use crate::copy::Upload;
use crate::device::{CopyBetween, CopyEnd, DeviceError, DeviceErrorKind, PeerAccess};
use crate::engine::ordering;
use crate::error::CopyError;
use crate::handles::{Registration, Route};
use crate::stream::Stream;
use crate::sync::Arc;
use std::ops::Range;
use std::panic::Location;

const CALL: &str = "copy";

impl Block {
    /// Copies the bytes of `range`, counted from this block's beginning, to another block, starting `offset` bytes from
    /// its beginning. The blocks may be of different pools, and of different devices of one host.
    ///
    /// The copy runs on `stream`, which is registered with the pool of either block. It comes after every use that may
    /// have written this block, as a [use that reads](Stream::record_use), and after every earlier use of the other one, as a
    /// use that writes, on every stream of both pools; later uses of both are ordered after it. Its uses
    /// are counted: both blocks may be dropped as soon as this returns. The future is ready when the copy is complete;
    /// on a stream that is being [captured](crate::Pool::capture) at once, and each launch of the graph copies.
    ///
    /// The copy is direct within a device, and between devices where the stream's device has
    /// [access](crate::Peers::enable) to the other's memory. Otherwise it is staged through memory of the host,
    /// in stream order as well, and without a wait of the host for the device. (CUDA: `cuMemcpyAsync`,
    /// `cuMemcpyPeerAsync`.)
    ///
    /// ```
    /// use weirpool::{Pool, device::sim::SimDevice};
    ///
    /// let [first, second] = SimDevice::builder().build_host();
    /// let pools = [Pool::builder(first.clone()).build()?, Pool::builder(second).build()?];
    /// let streams = [pools[0].create_stream()?, pools[1].create_stream()?];
    /// first.block_on(async {
    ///     let mut here = pools[0].allocate(&streams[0], 4096).await?;
    ///     let mut there = pools[1].allocate(&streams[1], 4096).await?;
    ///     let _sent = here.upload(&streams[0], 0, b"weir")?;
    ///     let _copied = here.copy_to(0..4, &mut there, 0, &streams[0])?; // dropped: it takes place
    ///     assert_eq!(there.download(&streams[1], 0..4)?.await?, b"weir"); // after the copy
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`CopyError::OutOfBounds`] if the range is not within this block, or does not fit into the other;
    /// [`StreamError::ForeignPool`](crate::StreamError) if the stream is registered with neither pool;
    /// [`StreamError::ForeignDevice`](crate::StreamError) if the devices are not of one host;
    /// [`CopyError::NoAccessInCapture`]; and the errors of [`Stream::record_use`]. Nothing is copied then, unless the
    /// error is that the device could not record the event behind the copy.
    #[track_caller]
    pub fn copy_to(
        &self,
        range: Range<u64>,
        to: &mut Block,
        offset: u64,
        stream: &Stream,
    ) -> Result<Upload, CopyError> {
        let from = Part::new(self, Access::Read, range)?;
        let bytes = from.bytes();
        let range = offset..offset.saturating_add(bytes);
        let into = Part::new(to, Access::Write, range)?;
        let ends = [&from, &into].map(|end| end.block.registration());
        if !ends.iter().any(|end| stream.is_of_pool(end)) {
            return Err(crate::error::StreamError::ForeignPool(Box::default()).into());
        }
        let on = &stream.registration;
        let reader = Registration::for_copies(&ends[0].presence, on)?;
        let writer = Registration::for_copies(&ends[1].presence, on)?;
        let device = on.stream_device();
        let device_of = |end: &Registration| end.service.engine.shared.device.id();
        // The pools keep the access that there is now until the copy is submitted, and then until it is complete.
        let begun = ends.map(|end| {
            end.service
                .engine
                .streams
                .neighbours
                .begin_copy(device.id())
        });
        let copy = CopyBetween {
            from: CopyEnd {
                device: device_of(ends[0]),
                address: from.address(),
            },
            to: CopyEnd {
                device: device_of(ends[1]),
                address: into.address(),
            },
            bytes,
            is_direct: begun.iter().all(Option::is_some),
            location: Location::caller(),
        };
        let is_captured = on.lane.cache.is_captured();
        let is_plain =
            |end: &&Arc<Registration>| end.service.engine.shared.settings.is_plain_of_device();
        if is_captured && !copy.is_direct && !ends.iter().all(is_plain) {
            return Err(CopyError::NoAccessInCapture);
        }
        let peers = device.peer_access().ok_or_else(|| {
            let reason = "this device makes no copies between blocks: copy through the host";
            DeviceError::new(CALL, DeviceErrorKind::Unsupported, reason)
        })?;
        let (read, written) = (self.uses(), into.block.uses());
        let _resident = (read.hold_for(&reader)?, written.hold_for(&writer)?);
        read.order(&reader, Access::Read)?;
        written.order(&writer, Access::Write)?;
        if is_captured {
            if let Some(route) = Route::of(on) {
                // The other pool does not know that its stream is captured.
                read.name_in(&route);
                written.name_in(&route);
                // While the graph may be launched, the devices keep their access.
                route.uses.keep(Box::new((reader.clone(), writer.clone())));
            }
            // A launch makes the copy later.
            reader.lane.set_for_copies(false);
            writer.lane.set_for_copies(false);
            capture(peers, on, &copy)?;
            return Ok(Upload::captured());
        }
        // SAFETY: the lane keeps the stream's owner. Both blocks stay mapped until the stream has passed their frees,
        // since the uses are noted; the copy is ordered after all other uses. Access stays until it is complete.
        #[allow(unsafe_code, reason = "device call on the lane's stream")]
        let transfer = unsafe { peers.copy(on.lane.raw, &copy) };
        let transfer = on.service.engine.shared.noted(transfer)?;
        for end in [&reader, &writer] {
            if end.lane.is_for_copies() {
                // An external stream may be gone when the access is taken back.
                ordering::present_point(&end.service.engine, &end.lane);
            }
        }
        Ok(Upload::new(on.clone(), transfer))
    }
}

fn capture(
    peers: &dyn PeerAccess,
    on: &Arc<Registration>,
    copy: &CopyBetween,
) -> Result<(), DeviceError> {
    // SAFETY: as for `copy`, at each launch: the graph keeps both blocks.
    #[allow(unsafe_code, reason = "device call on the lane's stream")]
    let captured = unsafe { peers.capture_copy(on.lane.raw, copy) };
    on.service.engine.shared.noted(captured)
}
