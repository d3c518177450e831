//! All devices of the process, for a start-up message.

/// Returns one line of text for each device: all of the driver's list with the feature `cuda`, whether or not they were
/// opened, and the living simulated ones. Warp prints such a list when it starts.
///
/// Without a driver there are no lines for its devices;
#[cfg_attr(
    feature = "cuda",
    doc = "[`CudaDevice::all`](crate::device::cuda::CudaDevice::all) returns the reason."
)]
#[cfg_attr(not(feature = "cuda"), doc = "`CudaDevice::all` returns the reason.")]
///
/// ```
/// use weirpool::device::{list, sim::SimDevice};
///
/// let device = SimDevice::new();
/// let lines = list();
/// assert!(lines.iter().any(|line| line.contains("simulated device") && line.contains("memory pools")));
/// for line in lines {
///     println!("{line}");
/// }
/// # drop(device);
/// ```
pub fn list() -> Vec<String> {
    #[allow(unused_mut, reason = "no backend may be built in")]
    let mut lines = Vec::new();
    #[cfg(feature = "cuda")]
    if let Ok(devices) = super::cuda::CudaDevice::all() {
        lines.extend(devices.iter().map(ToString::to_string));
    }
    #[cfg(feature = "sim")]
    {
        use weirpool_device::Device;
        let devices = super::sim::SimDevice::all();
        lines.extend(devices.iter().map(Device::describe));
    }
    lines
}
