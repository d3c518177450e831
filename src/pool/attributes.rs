//! The attributes of CUDA's and HIP's memory pools.

use super::Pool;
use crate::device::{DeviceError, DeviceErrorKind, PoolAttribute};
use crate::engine::{figures, maintenance};
use crate::heap::High;

impl Pool {
    /// Returns the value of an attribute, as those of the driver's own pools are: a reuse flag is 1 or 0, and a figure is in
    /// bytes.
    pub fn attribute(&self, attribute: PoolAttribute) -> u64 {
        let engine = &self.service().engine;
        match attribute {
            PoolAttribute::ReuseFollowEventDependencies => {
                engine.shared.reuse().follow_event_dependencies.into()
            }
            PoolAttribute::ReuseAllowOpportunistic => engine.shared.reuse().opportunistic.into(),
            PoolAttribute::ReuseAllowInternalDependencies => {
                engine.shared.reuse().internal_dependencies.into()
            }
            PoolAttribute::ReleaseThreshold => self.release_threshold(),
            PoolAttribute::ReservedMemCurrent => self.statistics().reserved.current,
            PoolAttribute::ReservedMemHigh => {
                let cap = Some(engine.store.soft_cap.bytes()).filter(|cap| *cap != u64::MAX);
                self.statistics().reserved.high.max(cap.unwrap_or(0))
            }
            PoolAttribute::UsedMemCurrent => self.statistics().used.current,
            PoolAttribute::UsedMemHigh => self.statistics().used.high,
        }
    }

    /// Sets an attribute: a reuse flag to 0 or, with any other value, to 1; a figure in bytes; or `UsedMemHigh` to the
    /// current figure, for which `value` is 0. That also resets the marks of the streams, from which it is computed.
    ///
    /// `ReservedMemCurrent` makes memory calls, which may take a while. It releases memory as
    /// [`trim_to`](Self::trim_to) does, and takes memory if the pool then has less. `ReservedMemHigh` sets a soft cap,
    /// which the pool may exceed; 0 removes it.
    ///
    /// # Errors
    /// Returns an error for `UsedMemCurrent`, for `UsedMemHigh` with a value other than 0, and the device's error.
    pub fn set_attribute(&self, attribute: PoolAttribute, value: u64) -> Result<(), DeviceError> {
        let engine = &self.service().engine;
        let flag = value != 0;
        match attribute {
            PoolAttribute::ReuseFollowEventDependencies => {
                self.change_reuse(|reuse| reuse.follow_event_dependencies = flag);
            }
            PoolAttribute::ReuseAllowOpportunistic => {
                self.change_reuse(|reuse| reuse.opportunistic = flag);
            }
            PoolAttribute::ReuseAllowInternalDependencies => {
                self.change_reuse(|reuse| reuse.internal_dependencies = flag);
            }
            PoolAttribute::ReleaseThreshold => maintenance::set_release_threshold(engine, value),
            PoolAttribute::ReservedMemCurrent => maintenance::set_reserved(engine, value)?,
            PoolAttribute::ReservedMemHigh => {
                figures::reset_high(&engine.streams, &engine.store, High::Reserved);
                maintenance::set_soft_cap(engine, if value == 0 { u64::MAX } else { value });
            }
            PoolAttribute::UsedMemHigh if value == 0 => {
                figures::reset_high(&engine.streams, &engine.store, High::Used)
            }
            PoolAttribute::UsedMemHigh | PoolAttribute::UsedMemCurrent => {
                let reason = "it is a figure of live blocks: free blocks to lower it, and set a high-water mark to 0";
                let kind = DeviceErrorKind::InvalidArgument;
                return Err(DeviceError::new("set_attribute", kind, reason));
            }
        }
        Ok(())
    }
}
