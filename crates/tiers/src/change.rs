//! Suspending and resuming: of one region, or of several as one.

use crate::copies::{self, Copies, Host};
use crate::error::RegionError;
use crate::inner::{Changing, Shared};
use crate::segment::{ASKED_AT_MOST, Mapped};
use crate::sleep::Sleep;
use crate::terms::{end_of, rest_of, takes_terms};
use futures::channel::oneshot;
use futures::future::{Either, select};
use futures::lock::{Mutex as Turn, OwnedMutexGuard};
use std::future::{Future, IntoFuture, poll_fn};
use std::mem;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use weirpool::extend::{Absence, Charge};
use weirpool::{CopyError, Tag, Terms};
use weirpool_sync::worker;

/// The regions of an operation, each once, in one order for all operations, with their turns.
struct Turns {
    regions: Vec<Arc<Shared>>,
    turns: Vec<OwnedMutexGuard<()>>,
}

/// Which turn of a region.
type TurnOf = fn(&Shared) -> &Arc<Turn<()>>;

impl Turns {
    /// Returns the regions without turns.
    ///
    /// # Errors
    /// Returns an error if they are not all of one pool.
    fn none(mut regions: Vec<Arc<Shared>>) -> Result<Self, RegionError> {
        regions.sort_by_key(Arc::as_ptr);
        regions.dedup_by(|one, other| Arc::ptr_eq(one, other));
        if let Some(other) = regions.iter().find(|region| region.pool != regions[0].pool) {
            return Err(RegionError::OtherPool {
                name: other.name.clone(),
            });
        }
        let turns = Vec::new();
        Ok(Self { regions, turns })
    }

    /// Waits for a turn of each region.
    async fn take(&mut self, turn: TurnOf) {
        for region in &self.regions {
            self.turns.push(turn(region).clone().lock_owned().await);
        }
    }

    /// Waits for the turns to change the regions.
    async fn of(regions: Vec<Arc<Shared>>) -> Result<Self, RegionError> {
        let mut turns = Self::none(regions)?;
        turns.take(|region| &region.turn).await;
        Ok(turns)
    }

    /// Leaves the regions that are suspended, or that are not.
    fn retain(&mut self, is_suspended: bool) {
        self.regions
            .retain(|region| region.state().absence.is_some() == is_suspended);
    }
}

/// A region that is about to be suspended.
struct Leaving {
    changing: Changing,
    absence: Absence,
    /// By the address of the segment, with its bytes.
    copies: Vec<(u64, (u64, Arc<Copies>))>,
}

pub(crate) async fn suspend(regions: Vec<Arc<Shared>>) -> Result<u64, RegionError> {
    let mut turns = Turns::of(regions).await?;
    suspend_these(&mut turns).await
}

/// Suspends a region unless it was used since.
pub(crate) async fn suspend_if_idle(
    region: &Arc<Shared>,
    used_at: Duration,
) -> Result<(), RegionError> {
    let mut turns = Turns::of(vec![region.clone()]).await?;
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
        .map(|region| region.residency.leave())
        .collect();
    let mut leaving = Vec::new();
    for (region, leave) in turns.regions.iter().zip(leaves) {
        let absence = leave.await?;
        leaving.push(Leaving {
            changing: region.begin_change(),
            absence,
            copies: Vec::new(),
        });
    }
    let parts: Vec<Vec<_>> = leaving.iter().map(Leaving::parts).collect();
    let sizes: Vec<u64> = parts.iter().map(|parts| bytes_of(parts)).collect();
    let all = sizes.iter().sum();
    let sized = leaving.iter().zip(&sizes);
    let pageable = sized.filter(|(one, _)| matches!(one.changing.0.host, Host::Pageable));
    copies::expect_room(pageable.map(|(_, bytes)| bytes).sum(), all)?;
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
    to_its_end(first, async move {
        let ended = leave_all(leaving).await;
        drop(held);
        ended
    })
    .await
}

/// Returns the bytes of the parts of all segments.
fn bytes_of(segments: &[(u64, u64, Vec<Range<u64>>)]) -> u64 {
    let parts = segments.iter().flat_map(|(.., parts)| parts);
    parts.map(|part| part.end - part.start).sum()
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
/// Returns the error of a copy. Others may be running then.
async fn save_all(leaving: &mut [Leaving]) -> Result<(), RegionError> {
    let mut saving = Vec::new();
    for Leaving {
        changing, copies, ..
    } in leaving
    {
        for (address, (_, copies)) in copies {
            let copies = Arc::get_mut(copies).expect("not shared before they are made");
            saving.push(copies.save(&changing.0.contents(*address))?);
        }
    }
    for saving in saving {
        saving.ended().await?;
    }
    Ok(())
}

/// Waits until the streams of copies have done what they were given. Returns whether they have, as far as the device can
/// tell.
async fn are_settled(regions: impl Iterator<Item = &Shared>) -> bool {
    for region in regions {
        let mut asked = 0;
        while let Err(error) = region.copies.synchronize().await {
            asked += 1;
            if error.is_sticky() || asked == ASKED_AT_MOST {
                return false;
            }
        }
    }
    true
}

/// Copies all contents, and then gives all memory back.
async fn leave_all(mut leaving: Vec<Leaving>) -> Result<u64, RegionError> {
    if let Err(error) = save_all(&mut leaving).await {
        // A copy may run that could not be awaited. If the device cannot tell when it is over, no segment is removed any more.
        if !are_settled(leaving.iter().map(|one| &*one.changing.0)).await {
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
            absence,
            copies,
        } = one;
        // Before memory goes: the region is suspended whatever becomes of the next calls.
        changing.0.state().absence = Some(absence);
        for (address, (bytes, copies)) in copies {
            let memory = changing.with_segment(address, |segment| {
                segment.copies = copies;
                segment.memory.take()
            });
            match memory.flatten().map_or(Ok(()), Mapped::unmap) {
                Ok(()) => given_back += bytes,
                Err((error, memory)) => {
                    refused = Err(error.into());
                    let copies = changing.with_segment(address, |segment| {
                        segment.memory = Some(memory);
                        mem::take(&mut segment.copies)
                    });
                    drop(copies);
                }
            }
        }
        changing.0.state().count_suspended();
    }
    refused.map(|()| given_back)
}

/// Resumes regions when it is awaited, on terms. Made by [`Region::resume`](crate::Region::resume) and
/// [`resume_all`](crate::resume_all).
#[derive(Debug)]
#[must_use = "nothing is resumed until it is awaited"]
pub struct Resume {
    regions: Vec<Arc<Shared>>,
    terms: Terms,
}

impl Resume {
    pub(crate) fn of(regions: Vec<Arc<Shared>>) -> Self {
        Self {
            regions,
            terms: Terms::default(),
        }
    }
}

takes_terms!(Resume);

impl IntoFuture for Resume {
    type Output = Result<(), RegionError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(resume(self.regions, self.terms))
    }
}

/// How long a resumption may take.
struct Limit<'a> {
    region: &'a Shared,
    begin: Duration,
    until: Option<Duration>,
}

impl Limit<'_> {
    fn waited(&self) -> Duration {
        self.region.device.now().saturating_sub(self.begin)
    }

    /// Waits for turns of regions.
    ///
    /// # Errors
    /// Returns [`RegionError::Busy`] when the time is over.
    async fn take(&self, turns: &mut Turns, turn: TurnOf) -> Result<(), RegionError> {
        let taken = turns.take(turn);
        let Some(until) = self.until else {
            taken.await;
            return Ok(());
        };
        let now = self.region.device.now();
        let over = Sleep::after(&self.region.device, until.saturating_sub(now));
        match select(pin!(taken), over).await {
            Either::Left(_) => Ok(()),
            Either::Right(_) => Err(RegionError::Busy {
                name: self.region.name.clone(),
                waited: self.waited(),
            }),
        }
    }
}

/// One resumption of a region waits for memory, and the next one waits for it. A suspension does not: the memory may be that
/// of a region which it suspends together with this one.
async fn resume(regions: Vec<Arc<Shared>>, terms: Terms) -> Result<(), RegionError> {
    let Some(any) = regions.first().cloned() else {
        return Ok(());
    };
    let begin = any.device.now();
    let limit = Limit {
        region: &any,
        begin,
        until: end_of(terms, begin),
    };
    let mut resuming = Turns::none(regions)?;
    limit.take(&mut resuming, |region| &region.resuming).await?;
    // A suspension that is under way comes first.
    let mut turns = Turns::none(resuming.regions.clone())?;
    limit.take(&mut turns, |region| &region.turn).await?;
    turns.retain(true);
    let Some(first) = turns.regions.first().cloned() else {
        return Ok(());
    };
    let terms = rest_of(terms, limit.waited());
    let lacks = turns.regions.iter().flat_map(|region| lacking(region));
    let bytes = lacks.map(|(_, bytes)| bytes).sum();
    let charge = match bytes {
        0 => None,
        _ => {
            let tag = tag_of(&turns.regions)?.or(terms.tag);
            let tag = tag.or_else(|| tag_of_all(&turns.regions));
            let terms = Terms { tag, ..terms };
            turns.turns.clear();
            let charge = first.pool.charge_for(bytes).terms(terms).await?;
            limit.take(&mut turns, |region| &region.turn).await?;
            Some(charge)
        }
    };
    let until = limit.until;
    let changes: Vec<_> = turns.regions.iter().map(Shared::begin_change).collect();
    let mapped = map_all(&changes, charge, until).await?;
    if mapped.iter().all(|memory| memory.copies.is_empty()) {
        end_all(&changes, mapped);
        return Ok(());
    }
    to_its_end(&first, async move {
        let ended = come_back(&changes, mapped).await;
        drop((changes, turns, resuming));
        ended
    })
    .await
}

/// Returns the tag that regions are charged to.
///
/// # Errors
/// Returns an error if they have different ones: there is one charge for all.
fn tag_of(regions: &[Arc<Shared>]) -> Result<Option<Tag>, RegionError> {
    let first = &regions[0];
    match regions.iter().find(|region| region.tag != first.tag) {
        None => Ok(first.tag),
        Some(other) => Err(RegionError::OtherTag {
            names: [first, other].map(|region| region.name.clone()),
        }),
    }
}

/// Returns the tag of the terms on which all of the memory that regions lack was allocated, if it is one.
fn tag_of_all(regions: &[Arc<Shared>]) -> Option<Tag> {
    let tags = regions.iter().flat_map(|region| {
        let state = region.state();
        let lacking = state.segments.values();
        let lacking = lacking.filter(|segment| segment.memory.is_none());
        lacking.map(|segment| segment.tag).collect::<Vec<_>>()
    });
    let mut tags: Vec<_> = tags.collect();
    tags.dedup();
    match tags[..] {
        [tag] => tag,
        _ => None,
    }
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

/// Memory of a segment that is mapped, without its contents.
struct Returned {
    /// The number of the region.
    region: usize,
    address: u64,
    memory: Mapped,
    copies: Arc<Copies>,
}

/// Takes and maps the memory of all regions. Dropping the result gives it back.
async fn map_all(
    changes: &[Changing],
    mut charge: Option<Charge>,
    until: Option<Duration>,
) -> Result<Vec<Returned>, RegionError> {
    let mut mapped = Vec::new();
    for (region, change) in changes.iter().enumerate() {
        for (address, bytes) in lacking(&change.0) {
            let Some(part) = charge.as_mut().map(|charge| charge.split_off(bytes)) else {
                continue;
            };
            let memory = change.0.take(part, until).await?.map(address)?;
            let copies = change.with_segment(address, |segment| segment.copies.clone());
            mapped.push(Returned {
                region,
                address,
                memory,
                copies: copies.unwrap_or_default(),
            });
            // Other tasks of the thread have their turn between the calls of the device.
            yield_once().await;
        }
    }
    Ok(mapped)
}

async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Copies the contents back, and lets uses begin.
async fn come_back(changes: &[Changing], mapped: Vec<Returned>) -> Result<(), RegionError> {
    if let Err(error) = restore_all(changes, &mapped).await {
        // A copy may run that could not be awaited. If the device cannot tell when it is over, the memory is leaked.
        if !are_settled(changes.iter().map(|change| &*change.0)).await {
            mem::forget(mapped);
        }
        return Err(error);
    }
    end_all(changes, mapped);
    Ok(())
}

/// Copies all contents back.
///
/// # Errors
/// Returns the error of a copy. Others may be running then.
async fn restore_all(changes: &[Changing], mapped: &[Returned]) -> Result<(), RegionError> {
    let mut copies = Vec::new();
    for returned in mapped {
        let contents = changes[returned.region].0.contents(returned.address);
        copies.extend(returned.copies.restore(&contents)?);
    }
    for copy in copies {
        copy.await.map_err(CopyError::from)?;
    }
    Ok(())
}

/// Ends the absences of regions whose memory is back.
fn end_all(changes: &[Changing], mapped: Vec<Returned>) {
    for returned in mapped {
        let copies = changes[returned.region].with_segment(returned.address, |segment| {
            segment.memory = Some(returned.memory);
            mem::take(&mut segment.copies)
        });
        drop(copies);
    }
    for change in changes {
        let now = change.0.device.now();
        let absence = {
            let mut state = change.0.state();
            state.used_at = now;
            state.absence.take()
        };
        drop(absence);
    }
}

/// Runs an operation to its end, whether its result is awaited or not.
async fn to_its_end<T: Send + 'static>(
    region: &Shared,
    operation: impl Future<Output = Result<T, RegionError>> + Send + 'static,
) -> Result<T, RegionError> {
    let (sender, receiver) = oneshot::channel();
    worker::run(async move {
        let _ = sender.send(operation.await);
    });
    receiver.await.unwrap_or_else(|_| {
        Err(RegionError::Abandoned {
            name: region.name.clone(),
        })
    })
}
