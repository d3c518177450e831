//! Access of other devices to the memory of a pool.

use super::Pool;
use crate::device::{AsDevice, Device};
use crate::engine::{AccessScope, access};
use crate::error::AccessError;
use crate::sync::plain;

/// Access of other devices of the host to the memory of a pool, from [`Pool::peers`].
///
/// Access belongs to the memory of a pool, and is directional: it lets another device use the memory of this pool, and
/// not this pool's device the memory of the other. It covers what the pool maps later. It is not enabled by itself,
/// since each chunk then costs a further device call when it is mapped.
///
/// With access, streams of the other device can be [registered](Pool::register) with the pool, so that its kernels read
/// and write blocks in place, and [`Block::copy_to`](crate::Block::copy_to) copies directly. Without it, copies are
/// staged through the host, and a stream of the other device is refused.
///
/// ```
/// use weirpool::{Pool, StreamError, device::sim::SimDevice};
///
/// let [first, second] = SimDevice::builder().build_host();
/// let pool = Pool::builder(first.clone()).build()?;
/// let guest = second.create_stream();
/// assert_eq!(pool.register(&guest).unwrap_err(), StreamError::ForeignDevice);
///
/// assert!(pool.peers().is_supported(&second) && !pool.peers().is_enabled(&second));
/// pool.peers().enable(&second)?;
/// let stream = pool.register(&guest)?;
/// let block = pool.try_allocate(&pool.create_stream()?, 1 << 20)?;
/// let argument = stream.record_use(&block)?; // a kernel of the second device reads it
/// # let _ = argument;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// (Warp: `is_mempool_access_supported` and its siblings, and `is_peer_access_supported` and its siblings for plain
/// memory; CUDA: `cuMemSetAccess`, `cuCtxEnablePeerAccess`, `cuMemPoolSetAccess`, whichever suits the pool's memory;
/// HIP: the query of the access path.)
#[derive(Clone, Copy, Debug)]
pub struct Peers<'a> {
    pool: &'a Pool,
}

impl Pool {
    /// Returns the access of other devices to the memory of the pool.
    pub fn peers(&self) -> Peers<'_> {
        Peers { pool: self }
    }
}

impl Peers<'_> {
    /// Returns whether the device could be given access to the pool's memory. It is true of the pool's own device.
    #[doc(alias = "is_mempool_access_supported")]
    #[doc(alias = "is_peer_access_supported")]
    pub fn is_supported(self, device: &impl AsDevice) -> bool {
        let device = device.to_shared();
        access::is_access_supported(
            &self.pool.service().engine.shared,
            &self.pool.service().engine.streams,
            &*device,
        )
    }

    /// Returns whether the device may use the pool's memory. It is true of the pool's own device.
    #[doc(alias = "is_mempool_access_enabled")]
    #[doc(alias = "is_peer_access_enabled")]
    pub fn is_enabled(self, device: &impl AsDevice) -> bool {
        let engine = &self.pool.service().engine;
        access::settle_access(engine);
        engine
            .streams
            .neighbours
            .is_accessible_from(device.device_id())
    }

    /// Lets the device use the pool's memory, live blocks and memory that is mapped later included. Returns whether it
    /// could not before.
    ///
    /// This is a device call for each chunk of virtual memory that is mapped (some 20 µs), and one call for other
    /// memory. It may block the thread for that time.
    ///
    /// # Errors
    /// Returns [`AccessError::Unsupported`] if the device cannot reach the memory, [`AccessError::Changing`] while
    /// another thread changes the access of the same device, or the device's error. Nothing has changed then: access
    /// given before the error is taken back.
    #[doc(alias = "set_mempool_access_enabled")]
    #[doc(alias = "set_peer_access_enabled")]
    pub fn enable(self, device: &impl AsDevice) -> Result<bool, AccessError> {
        access::enable_access(&self.pool.service().engine, &device.to_shared())
    }

    /// Takes the access of the device back. Returns whether it had any.
    ///
    /// It is refused while the memory may be in use there: while streams of the device are registered with the pool,
    /// and until the work of those that were is complete. It does not wait; await that work, and drop the handles.
    ///
    /// # Errors
    /// Returns [`AccessError::InUse`] in that case, [`AccessError::OwnDevice`] for the pool's own device,
    /// [`AccessError::Changing`] while another thread changes the access of the same device, or the device's error. The
    /// access stays enabled then.
    pub fn disable(self, device: &impl AsDevice) -> Result<bool, AccessError> {
        access::disable_access(&self.pool.service().engine, &device.to_shared())
    }

    /// Gives the device access to the pool's memory until the guard is dropped. Scopes may overlap: the access stays
    /// until the last guard is dropped. If it was enabled before, it stays enabled.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let [first, second] = SimDevice::builder().build_host();
    /// # let pool = Pool::builder(first.clone()).build()?;
    /// {
    ///     let _access = pool.peers().grant(&second)?;
    ///     assert!(pool.peers().is_enabled(&second));
    /// }
    /// assert!(!pool.peers().is_enabled(&second));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`enable`](Self::enable).
    #[doc(alias = "ScopedMempoolAccess")]
    #[doc(alias = "ScopedPeerAccess")]
    pub fn grant(self, device: &impl AsDevice) -> Result<AccessGuard, AccessError> {
        AccessGuard::begin(self.pool, device, true)
    }

    /// Takes the device's access to the pool's memory away until the guard is dropped. Where scopes overlap, the one
    /// that began last decides.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let [first, second] = SimDevice::builder().build_host();
    /// # let pool = Pool::builder(first.clone()).build()?;
    /// pool.peers().enable(&second)?;
    /// {
    ///     let _no_access = pool.peers().deny(&second)?;
    ///     assert!(!pool.peers().is_enabled(&second));
    /// }
    /// assert!(pool.peers().is_enabled(&second));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`disable`](Self::disable).
    pub fn deny(self, device: &impl AsDevice) -> Result<AccessGuard, AccessError> {
        AccessGuard::begin(self.pool, device, false)
    }
}

/// A scope of the access of a device to the memory of a pool. Made by [`Peers::grant`] and
/// [`Peers::deny`].
///
/// When it ends, the access is again what it was set to, or what another scope that has not ended asks for. If that takes
/// access away while the memory is in use on the device, it takes effect with the last use: once the handles of the
/// device's streams are dropped, and the pool has noticed that their work and the copies are complete. From then on no
/// further stream of the device can be registered, and copies are staged through the host. Setting the access
/// explicitly within a scope holds from then on, after the scope too.
#[derive(Debug)]
#[must_use = "the scope ends when the guard is dropped"]
pub struct AccessGuard {
    pool: Pool,
    /// `None` if there is nothing to end.
    scope: Option<(plain::Arc<dyn Device>, AccessScope)>,
}

impl AccessGuard {
    /// Ends the scope, as dropping it does. [`Peers::is_enabled`] tells whether the access is taken back already.
    ///
    /// # Errors
    /// Returns the device's error. The change is tried again with the next use that ends.
    pub fn end(mut self) -> Result<(), AccessError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), AccessError> {
        match self.scope.take() {
            Some((device, scope)) => {
                access::end_access(&self.pool.service().engine, &device, scope)
            }
            None => Ok(()),
        }
    }
}

impl AccessGuard {
    fn begin(pool: &Pool, device: &impl AsDevice, is_open: bool) -> Result<Self, AccessError> {
        let device = device.to_shared();
        let scope = access::begin_access(&pool.service().engine, &device, is_open)?;
        Ok(Self {
            pool: pool.clone(),
            scope: scope.map(|scope| (device, scope)),
        })
    }
}

impl Drop for AccessGuard {
    fn drop(&mut self) {
        // Documented: a failed change is tried again.
        let _failed = self.finish();
    }
}
