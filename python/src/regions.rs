//! Regions, as Python uses them: entered by tasks and by threads that allocate, and suspended after all work of the device.
//!
//! PyTorch submits work that the pool is not told of. So a region has a gate of its own. Those that are inside hold it for
//! reading, and a suspension for writing: then no work on the region is submitted any more, and the whole device is waited for.

use crate::active::locked;
use crate::device_pool::DevicePool;
use crate::{fork, waiting};
use futures::FutureExt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use weirpool::device::{DeviceError, DeviceErrorKind};
use weirpool::{AllocError, Block, BuildError, Pool, Stream, StreamError, Tag, Terms, Upstream};
use weirpool_tiers::{Entered, Keep, Region, RegionError, Regions, resume_all, suspend_all};

/// A region with its gate.
pub(crate) struct Gated {
    region: ManuallyDrop<Region>,
    gate: Arc<RwLock<()>>,
    inside: Mutex<Vec<Weak<Inside>>>,
    /// The device whose work is waited for; `None` for a simulated one, whose work the pool knows.
    device: Option<&'static DevicePool>,
}

/// How a region is made.
#[derive(Debug, Default)]
pub(crate) struct Shape {
    pub(crate) keep: Keep,
    pub(crate) tag: Option<Tag>,
    pub(crate) chunk_bytes: Option<u64>,
    /// Bytes of the host that are pinned at once.
    pub(crate) pin_ahead: u64,
}

/// Holds a region resident until the last reference is gone.
pub(crate) struct Inside {
    gated: Arc<Gated>,
    held: ManuallyDrop<(Entered, OwnedRwLockReadGuard<()>)>,
}

impl Drop for Inside {
    fn drop(&mut self) {
        if !fork::is_child() {
            // SAFETY: it is not used again.
            unsafe { ManuallyDrop::drop(&mut self.held) };
        }
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        if !fork::is_child() {
            // SAFETY: it is not used again.
            unsafe { ManuallyDrop::drop(&mut self.region) };
        }
    }
}

impl Gated {
    /// Makes a region.
    ///
    /// # Errors
    /// Returns the errors of [`RegionBuilder::build`](weirpool_tiers::RegionBuilder::build), and [`RegionError::HostFull`] if the
    /// host has too little to be pinned ahead.
    pub(crate) fn new(
        pool: &Pool,
        name: &str,
        shape: &Shape,
        device: Option<&'static DevicePool>,
    ) -> Result<Arc<Self>, RegionError> {
        let mut builder = pool.region(name).keep(shape.keep);
        if let Some(bytes) = shape.chunk_bytes {
            builder = builder.chunk_bytes(bytes);
        }
        if let Some(tag) = shape.tag {
            builder = builder.tag(tag);
        }
        if shape.pin_ahead > 0 {
            let host = Pool::builder(pool.device().clone()).upstream(Upstream::Pinned);
            let host = host.tuning(|tuning| tuning.initial_size = shape.pin_ahead);
            let host = host.build().map_err(|error| match error {
                BuildError::Device(error) if error.kind() != DeviceErrorKind::OutOfMemory => {
                    error.into()
                }
                _ => RegionError::HostFull {
                    bytes: shape.pin_ahead,
                    shortfall: None,
                },
            })?;
            builder = builder.host(&host);
        }
        Ok(Arc::new(Self {
            region: ManuallyDrop::new(builder.build()?),
            gate: Arc::default(),
            inside: Mutex::default(),
            device,
        }))
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    fn admit(self: &Arc<Self>, entered: Entered, gate: OwnedRwLockReadGuard<()>) -> Arc<Inside> {
        let inside = Arc::new(Inside {
            gated: self.clone(),
            held: ManuallyDrop::new((entered, gate)),
        });
        let mut all = locked(&self.inside);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&inside));
        inside
    }

    /// Holds the region resident, if it is. This also succeeds while a suspension waits for others to leave: the caller may
    /// be one of them.
    ///
    /// # Errors
    /// Returns [`RegionError::Suspended`] if it is suspended, or about to be while no task is inside.
    pub(crate) fn try_enter(self: &Arc<Self>) -> Result<Arc<Inside>, RegionError> {
        let shared = locked(&self.inside).iter().find_map(Weak::upgrade);
        if let Some(inside) = shared {
            return Ok(inside);
        }
        let admitted = || {
            let gate = self.gate.clone().try_read_owned().ok()?;
            let is_here = !self.region.is_suspended();
            let entered = is_here.then(|| self.region.enter().now_or_never());
            Some(self.admit(entered??.ok()?, gate))
        };
        admitted().ok_or_else(|| RegionError::Suspended {
            name: self.region.name().into(),
        })
    }
}

impl Inside {
    pub(crate) fn is_of(&self, region: &Arc<Gated>) -> bool {
        Arc::ptr_eq(&self.gated, region)
    }

    /// Allocates from the region, and waits for memory of the pool for up to `limit` if the region needs more.
    ///
    /// # Errors
    /// Returns an error if there is no memory in time, if the stream is one whose work cannot be waited for, or if the device
    /// fails.
    pub(crate) fn allocate(
        &self,
        stream: &Stream,
        bytes: u64,
        limit: Duration,
    ) -> Result<Block, AllocError> {
        let terms = Terms {
            timeout: Some(limit),
            ..Terms::default()
        };
        let failed = |reason: String| {
            AllocError::Device(DeviceError::new("region", DeviceErrorKind::Other, reason))
        };
        let runtime = waiting::runtime().map_err(failed)?;
        let block = runtime.block_on(self.gated.region.allocate_on(stream, bytes, terms));
        block.map_err(|error| match error {
            RegionError::Alloc(error) => error,
            RegionError::Stream(error) => error.into(),
            RegionError::Device(error) => error.into(),
            RegionError::Suspended { name: memory } => StreamError::Absent { memory }.into(),
            full @ RegionError::DeviceFull { .. } => {
                let kind = DeviceErrorKind::OutOfMemory;
                AllocError::Device(DeviceError::new("allocate", kind, full.to_string()))
            }
            other => failed(other.to_string()),
        })
    }
}

/// Puts regions into the one order in which all operations take their gates, each once.
fn in_order(mut regions: Vec<Arc<Gated>>) -> Vec<Arc<Gated>> {
    regions.sort_by_key(Arc::as_ptr);
    regions.dedup_by(|one, other| Arc::ptr_eq(one, other));
    regions
}

fn all_of(regions: &[Arc<Gated>]) -> Vec<&Region> {
    regions.iter().map(|region| region.region()).collect()
}

/// Holds regions resident, and resumes them first, as one, if they are suspended.
///
/// # Errors
/// Returns the errors of [`resume_all`], and [`RegionError::Busy`] if a suspension does not end in time.
pub(crate) async fn enter(
    regions: Vec<Arc<Gated>>,
    terms: Terms,
) -> Result<Vec<Arc<Inside>>, RegionError> {
    let regions = in_order(regions);
    let gates = resumed(&regions, terms).await?;
    let mut inside = Vec::new();
    for (region, gate) in regions.iter().zip(gates) {
        // It is resident, and the gate keeps it so.
        inside.push(region.admit(region.region.enter().await?, gate));
    }
    Ok(inside)
}

/// Resumes regions as one, and returns their gates, which keep suspensions out: also one that would begin while the regions
/// wait for memory, and end once work of theirs runs.
async fn resumed(
    regions: &[Arc<Gated>],
    terms: Terms,
) -> Result<Vec<OwnedRwLockReadGuard<()>>, RegionError> {
    let begin = Instant::now();
    let left = |limit: Option<Duration>| Some(limit?.saturating_sub(begin.elapsed()));
    let mut gates = Vec::new();
    for region in regions {
        let gate = region.gate.clone().read_owned();
        gates.push(
            match left(terms.timeout.into_iter().chain(terms.deadline).min()) {
                None => gate.await,
                Some(limit) => tokio::time::timeout(limit, gate).await.map_err(|_| {
                    let (name, waited) = (region.region.name().into(), begin.elapsed());
                    RegionError::Busy { name, waited }
                })?,
            },
        );
    }
    let rest = Terms {
        timeout: left(terms.timeout),
        deadline: left(terms.deadline),
        ..terms
    };
    resume_all(&all_of(regions)).terms(rest).await?;
    Ok(gates)
}

/// Waits until no task is inside of any of the regions. It closes no gate while it waits for another: tasks that wait inside of
/// one region for memory of another are not kept from it.
async fn alone(regions: &[Arc<Gated>]) -> Vec<OwnedRwLockWriteGuard<()>> {
    let mut first = 0;
    while first < regions.len() {
        let mut gates = vec![regions[first].gate.clone().write_owned().await];
        let mut others = (0..regions.len()).filter(|at| *at != first);
        let taken = |at: usize| regions[at].gate.clone().try_write_owned();
        let busy = others.find(|at| taken(*at).map(|gate| gates.push(gate)).is_err());
        match busy {
            None => return gates,
            Some(busy) => first = busy,
        }
    }
    Vec::new()
}

/// Suspends regions as one, once no task is inside of one and all work of the device is complete. Returns the bytes given back.
///
/// # Errors
/// Returns the errors of [`suspend_all`], and an error of the device.
pub(crate) async fn suspend(regions: Vec<Arc<Gated>>) -> Result<u64, RegionError> {
    let regions = in_order(regions);
    let _gates = alone(&regions).await;
    let mut resident = regions.iter().filter(|one| !one.region.is_suspended());
    if let Some(device) = resident.find_map(|region| region.device) {
        let settled = tokio::task::spawn_blocking(|| device.synchronize()).await;
        let settled = settled.unwrap_or_else(|failed| Err(failed.to_string()));
        settled
            .map_err(|reason| DeviceError::new("synchronize", DeviceErrorKind::Other, reason))?;
    }
    suspend_all(&all_of(&regions)).await
}

/// Resumes regions as one.
///
/// # Errors
/// Returns the errors of [`resume_all`], and [`RegionError::Busy`] if a suspension does not end in time.
pub(crate) async fn resume(regions: Vec<Arc<Gated>>, terms: Terms) -> Result<(), RegionError> {
    // A caller that is inside of them must not wait for a suspension that waits for it.
    if regions.iter().all(|one| !one.region.is_suspended()) {
        return Ok(());
    }
    resumed(&in_order(regions), terms).await.map(drop)
}

#[cfg(test)]
mod tests;
