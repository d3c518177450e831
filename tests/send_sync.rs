//! A table of the types that may cross threads.

use static_assertions::{assert_impl_all, assert_not_impl_any};
use weirpool::device::sim::{SimDevice, SimStream};
use weirpool::device::{Argument, Device, DeviceAddress, DeviceError};
use weirpool::*;
use weirpool_observe::{History, LeakReport};

assert_impl_all!(Pool: Send, Sync, Clone);
assert_impl_all!(WeakPool: Send, Sync, Clone);
assert_impl_all!(Stream: Send, Sync, Clone);
assert_impl_all!(Event: Send, Sync, Clone);
assert_impl_all!(Block: Send, Sync);
assert_impl_all!(Buffer<f32>: Send, Sync);
assert_impl_all!(SliceMut<'static, f32>: Send, Sync);
// It can be moved into a task or the body of a response.
assert_impl_all!(Reservation: Send, Sync);
// The elements live on the device, so no thread has a reference to one.
assert_impl_all!(Buffer<*const u8>: Send, Sync);
assert_impl_all!(Evictable<Buffer<*const u8>>: Send, Sync, Unpin);
assert_impl_all!(Pinned: Send, Sync, Unpin);
assert_impl_all!(HostGuard<'static, f32>: Send, Sync, std::ops::DerefMut<Target = [f32]>);
assert_impl_all!(Argument<'static>: Send, Sync, Copy);
assert_impl_all!(DeviceAddress: Send, Sync, Copy, Ord, std::hash::Hash, From<u64>);
assert_impl_all!(Allocate<'static>: Send, Sync, Unpin);
assert_impl_all!(Deallocation: Send, Sync, Unpin);
assert_impl_all!(Completion: Send, Sync, Unpin);
assert_impl_all!(Task<std::marker::PhantomPinned>: Send, Sync, Unpin);
assert_impl_all!(HostTask<std::future::Ready<()>>: Send, Sync, Unpin);
assert_impl_all!(Submission<'static>: Send, Sync);
assert_impl_all!(TaskError: Send, Sync, std::error::Error);
assert_impl_all!(Reclaimer: Send, Sync, Unpin);
assert_impl_all!(BlockInfo: Send, Sync, Clone);
assert_impl_all!(AllocError: Send, Sync, std::error::Error);
assert_impl_all!(BuildError: Send, Sync, std::error::Error);
assert_impl_all!(StreamError: Send, Sync, std::error::Error);
assert_impl_all!(DeallocateError: Send, Sync, std::error::Error);
assert_impl_all!(DeviceError: Send, Sync, std::error::Error);
assert_impl_all!(Statistics: Send, Sync, Clone);
assert_impl_all!(Trimmed: Send, Sync, Clone);
assert_impl_all!(StreamStatistics: Send, Sync, Clone);
assert_impl_all!(TagStatistics: Send, Sync, Clone);
assert_impl_all!(StatisticsScope: Send, Sync);
assert_impl_all!(Histogram: Send, Sync, Clone);
assert_impl_all!(Snapshot: Send, Sync, Clone);
assert_impl_all!(History: Send, Sync, Clone);
assert_impl_all!(LeakReport: Send, Sync, Clone);
assert_impl_all!(Tag: Send, Sync, Copy, Ord, std::hash::Hash);
assert_impl_all!(SimDevice: Send, Sync, Clone, Device);
assert_impl_all!(SimStream: Send, Sync, Clone);
// A block has one owner. Sharing is explicit.
assert_not_impl_any!(Block: Clone, Copy);

// An address becomes a number by a call alone, and only an argument can be passed to a kernel.
assert_impl_all!(u64: From<DeviceAddress>);
assert_not_impl_any!(DeviceAddress: std::ops::Deref);
#[cfg(feature = "cuda")]
mod kernels {
    use super::*;
    use cudarc::driver::{DevicePtr, DevicePtrMut, DeviceRepr, LaunchArgs, PushKernelArg};

    assert_not_impl_any!(DeviceAddress: DeviceRepr);
    assert_not_impl_any!(Block: DeviceRepr);
    assert_not_impl_any!(Buffer<f32>: DeviceRepr);
    assert_not_impl_any!(Argument<'static>: DeviceRepr);
    assert_not_impl_any!(
        LaunchArgs<'static>: PushKernelArg<&'static Block>, PushKernelArg<&'static mut Block>,
        PushKernelArg<&'static Buffer<f32>>, PushKernelArg<&'static mut Buffer<f32>>,
        PushKernelArg<&'static DeviceAddress>
    );
    assert_impl_all!(LaunchArgs<'static>: PushKernelArg<&'static Argument<'static>>);
    // The copies and libraries of cudarc name their stream.
    assert_impl_all!(Block: DevicePtr<u8>, DevicePtrMut<u8>);
    assert_impl_all!(Buffer<f32>: DevicePtr<f32>, DevicePtrMut<f32>);
    assert_impl_all!(SliceMut<'static, f32>: DevicePtr<f32>, DevicePtrMut<f32>);
}

// A scope that was entered on one thread is not left on another.
assert_not_impl_any!(EnterGuard: Send, Sync);

#[test]
fn table_holds_at_compile_time() {}
