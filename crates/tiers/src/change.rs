//! Suspending and resuming: of one region, or of several as one.

use crate::copies::{Copies, Source};
use crate::error::RegionError;
use crate::region::{Changing, Region, Shared};
use crate::segment::Mapped;
use futures::channel::oneshot;
use futures::lock::OwnedMutexGuard;
use std::future::{Future, IntoFuture};
use std::mem;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;
use weirpool::extend::{Absence, Charge};
use weirpool::{Stream, Terms};
use weirpool_sync::worker;

/// Suspends several regions of one pool as one: all of them, or none. See [`Region::suspend`].
///
/// # Errors
/// Returns those of [`Region::suspend`].
pub async fn suspend_all(regions: &[&Region]) -> Result<u64, RegionError> {
    suspend(regions).await
}

/// Resumes several regions of one pool as one, with one position in the queue for the memory of all. See
/// [`Region::resume`].
pub fn resume_all<'a>(regions: &[&'a Region]) -> Resume<'a> {
    Resume::of(regions.to_vec())
}

/// The regions of an operation, each once, in one order for all operations, with their turns.
struct Turns {
    regions: Vec<Region>,
    turns: Vec<OwnedMutexGuard<()>>,
}

impl Turns {
    async fn of(regions: &[&Region]) -> Result<Self, RegionError> {
        let mut regions: Vec<Region> = regions.iter().map(|region| (*region).clone()).collect();
        regions.sort_by_key(|region| Arc::as_ptr(&region.0));
        regions.dedup_by(|one, other| Arc::ptr_eq(&one.0, &other.0));
        if let Some(other) = regions
            .iter()
            .find(|region| region.pool() != regions[0].pool())
        {
            return Err(RegionError::OtherPool {
                name: other.0.name.clone(),
            });
        }
        let mut turns = Vec::new();
        for region in &regions {
            turns.push(region.0.turn.clone().lock_owned().await);
        }
        Ok(Self { regions, turns })
    }

    /// Leaves the regions that are suspended, or that are not.
    fn retain(&mut self, is_suspended: bool) {
        self.regions
            .retain(|region| region.0.state().absence.is_some() == is_suspended);
    }
}

/// A region that is about to be suspended.
struct Leaving {
    changing: Changing,
    absence: Absence,
    /// By the address of the segment, with its bytes.
    copies: Vec<(u64, (u64, Arc<Copies>))>,
}

pub(crate) async fn suspend(regions: &[&Region]) -> Result<u64, RegionError> {
    let mut turns = Turns::of(regions).await?;
    suspend_these(&mut turns).await
}

/// Suspends a region unless it was used since.
pub(crate) async fn suspend_if_idle(region: &Region, used_at: Duration) -> Result<(), RegionError> {
    let mut turns = Turns::of(&[region]).await?;
    if region.idle_since() == Some(used_at) {
        suspend_these(&mut turns).await?;
    }
    Ok(())
}

async fn suspend_these(turns: &mut Turns) -> Result<u64, RegionError> {
    turns.retain(false);
    // All of them refuse uses before the first one waits.
    let leaves: Vec<_> = turns
        .regions
        .iter()
        .map(|region| region.0.residency.leave())
        .collect();
    let mut leaving = Vec::new();
    for (region, leave) in turns.regions.iter().zip(leaves) {
        let absence = leave.await?;
        leaving.push(Leaving {
            changing: region.0.begin_change(),
            absence,
            copies: Vec::new(),
        });
    }
    let parts: Vec<Vec<_>> = leaving.iter().map(Leaving::parts).collect();
    let wanted = parts.iter().flatten().flat_map(|(.., parts)| parts);
    let all = wanted.map(|part| part.end - part.start).sum();
    for (one, parts) in leaving.iter_mut().zip(&parts) {
        for (address, bytes, parts) in parts {
            let copies = Copies::prepare(&one.changing.0.host, parts, all).await?;
            one.copies.push((*address, (*bytes, Arc::new(copies))));
        }
    }
    let Some(first) = turns.regions.first() else {
        return Ok(0);
    };
    let held = mem::take(&mut turns.turns);
    to_its_end(first, |_| async move {
        let ended = leave_all(leaving).await;
        drop(held);
        ended
    })
    .await
}

impl Leaving {
    /// Returns the address and the bytes of each segment, and its parts to copy.
    fn parts(&self) -> Vec<(u64, u64, Vec<Range<u64>>)> {
        let state = self.changing.0.state();
        let segments = state.segments.values().map(|segment| {
            let (address, bytes) = (segment.address(), segment.bytes());
            (address, bytes, state.live_parts(address, &(0..bytes)))
        });
        segments.collect()
    }
}

/// Copies all contents to the host.
///
/// # Errors
/// Returns the error of a copy, and its stream.
async fn save_all(leaving: &mut [Leaving]) -> Result<(), (RegionError, Stream)> {
    for one in leaving {
        let stream = &one.changing.0.copies;
        for (address, (_, copies)) in &mut one.copies {
            let copies = Arc::get_mut(copies).expect("not shared before they are made");
            let source = Source {
                region: &one.changing.0,
                address: *address,
            };
            let saved = copies.save(&source).await;
            saved.map_err(|error| (error, stream.clone()))?;
        }
    }
    Ok(())
}

/// Copies all contents, and then gives all memory back.
async fn leave_all(mut leaving: Vec<Leaving>) -> Result<u64, RegionError> {
    if let Err((error, on)) = save_all(&mut leaving).await {
        // A copy may run that could not be awaited. If the device cannot tell when it is over, no segment is removed any more.
        if on.synchronize().await.is_err() {
            leaving
                .into_iter()
                .for_each(|one| mem::forget(one.changing));
        }
        return Err(error);
    }
    let mut given_back = 0;
    let mut refused = Ok(());
    for one in leaving {
        let Leaving {
            changing,
            mut absence,
            copies,
        } = one;
        let mut suspended = 0;
        for (address, copies) in copies {
            let memory = changing.with_segment(address, |segment| segment.memory.take());
            match memory.flatten().map_or(Ok(()), Mapped::unmap) {
                Ok(()) => {
                    suspended += copies.0;
                    changing.with_segment(address, |segment| segment.copies = copies.1);
                }
                Err((error, memory)) => {
                    refused = Err(error.into());
                    changing.with_segment(address, |segment| segment.memory = Some(memory));
                }
            }
        }
        absence.count(suspended);
        given_back += suspended;
        changing.0.state().absence = Some(absence);
    }
    refused.map(|()| given_back)
}

/// The future of [`Region::resume`] and [`resume_all`], on terms.
#[derive(Debug)]
#[must_use = "nothing is resumed until it is awaited"]
pub struct Resume<'a> {
    regions: Vec<&'a Region>,
    terms: Terms,
}

impl<'a> Resume<'a> {
    pub(crate) fn of(regions: Vec<&'a Region>) -> Self {
        Self {
            regions,
            terms: Terms::default(),
        }
    }

    /// Sets all terms of the wait.
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// Sets the longest wait, in the queue and for the device together.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.terms.timeout = Some(timeout);
        self
    }

    /// Sets the longest wait, at the end of which the request is due.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.terms.deadline = Some(deadline);
        self
    }

    /// Sets the number of priority steps by which the request is due earlier.
    pub fn priority(mut self, priority: i32) -> Self {
        self.terms.priority = priority;
        self
    }
}

impl<'a> IntoFuture for Resume<'a> {
    type Output = Result<(), RegionError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(resume(self.regions, self.terms))
    }
}

async fn resume(regions: Vec<&Region>, terms: Terms) -> Result<(), RegionError> {
    let mut turns = Turns::of(&regions).await?;
    turns.retain(true);
    let Some(first) = turns.regions.first() else {
        return Ok(());
    };
    let until = end_of(terms, first.0.device.now());
    let lacks = turns.regions.iter().flat_map(|region| lacking(&region.0));
    let bytes = lacks.map(|(_, bytes)| bytes).sum();
    let charge = match bytes {
        0 => None,
        _ => {
            let terms = first.0.terms(terms);
            Some(first.pool().charge_for(bytes).terms(terms).await?)
        }
    };
    let changes: Vec<_> = turns
        .regions
        .iter()
        .map(|region| region.0.begin_change())
        .collect();
    let held = mem::take(&mut turns.turns);
    to_its_end(first, |awaited| async move {
        let is_wanted = || awaited.strong_count() > 0;
        let ended = come_back(&changes, charge, until, is_wanted).await;
        drop((changes, held));
        ended
    })
    .await
}

/// Returns when the time is over that the terms allow, on the device's clock.
pub(crate) fn end_of(terms: Terms, now: Duration) -> Option<Duration> {
    let longest = [terms.timeout, terms.deadline].into_iter().flatten().min();
    longest.map(|longest| now.saturating_add(longest))
}

/// Returns the address and the bytes of each segment that has no memory.
fn lacking(region: &Shared) -> Vec<(u64, u64)> {
    let state = region.state();
    let lacking = state
        .segments
        .values()
        .filter(|segment| segment.memory.is_none());
    lacking
        .map(|segment| (segment.address(), segment.bytes()))
        .collect()
}

/// Takes the memory of all regions, copies the contents back, and lets uses begin.
async fn come_back(
    changes: &[Changing],
    mut charge: Option<Charge>,
    until: Option<Duration>,
    is_wanted: impl Fn() -> bool,
) -> Result<(), RegionError> {
    let mut mapped = Vec::new();
    for change in changes {
        for (address, bytes) in lacking(&change.0) {
            let Some(part) = charge.as_mut().map(|charge| charge.split_off(bytes)) else {
                continue;
            };
            let taken = change.0.take(part, until, &is_wanted).await?;
            mapped.push((change, address, taken.map(address)?));
        }
    }
    for (change, address, _) in &mapped {
        let copies = change.with_segment(*address, |segment| segment.copies.clone());
        let target = Source {
            region: &change.0,
            address: *address,
        };
        if let Err(error) = copies.unwrap_or_default().restore(&target).await {
            // A copy may run that could not be awaited. If the device cannot tell when it is over, the memory is leaked.
            if change.0.copies.synchronize().await.is_err() {
                mem::forget(mapped);
            }
            return Err(error);
        }
    }
    for (change, address, memory) in mapped {
        let copies = change.with_segment(address, |segment| {
            segment.memory = Some(memory);
            mem::take(&mut segment.copies)
        });
        drop(copies);
    }
    for change in changes {
        let absence = change.0.state().absence.take();
        drop(absence);
    }
    Ok(())
}

/// Runs an operation to its end, whether its result is awaited or not. It is told whether it is.
async fn to_its_end<T, F>(
    region: &Region,
    operation: impl FnOnce(Weak<()>) -> F,
) -> Result<T, RegionError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, RegionError>> + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    let awaited = Arc::new(());
    let operation = operation(Arc::downgrade(&awaited));
    worker::run(async move {
        let _ = sender.send(operation.await);
    });
    let ended = receiver.await;
    drop(awaited);
    ended.unwrap_or_else(|_| {
        Err(RegionError::Abandoned {
            name: region.0.name.clone(),
        })
    })
}
