//! The host's own access to memory that it sees.

use super::{Access, Block};
use crate::device::HostView;
use crate::error::StreamError;
use crate::foreign::Resident;
use crate::handles::HostAccess;
use crate::queue::Passage;
use crate::stream::Event;
use bytemuck::{AnyBitPattern, NoUninit};
use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::Location;

/// A block's elements as a slice of the host's, in memory that the host sees. Made by [`Block::host`] and
/// [`Buffer::host`](crate::Buffer::host).
///
/// The guard borrows the block, so that no other use can be made of it, and all earlier work on it is complete. On the
/// simulated device the slice is a copy. A changed copy is written back when the guard is dropped.
///
/// # Panics
/// On the simulated device, when the guard is dropped, with a violation that the [ordering
/// checker](crate::guide::testing) found.
#[must_use = "the host has access only while the guard exists"]
pub struct HostGuard<'a, T: NoUninit> {
    view: HostView<T>,
    /// Ends after the view.
    _access: HostAccess,
    _resident: Option<Resident>,
    block: PhantomData<&'a mut Block>,
}

impl<'a, T: AnyBitPattern + NoUninit> HostGuard<'a, T> {
    /// Gives access to the first `count` elements of a block that is large enough for them, and aligned, once all uses
    /// so far are complete.
    pub(crate) fn of(
        block: &'a mut Block,
        count: usize,
        location: &'static Location<'static>,
    ) -> impl Future<Output = Result<Self, StreamError>> + Send {
        let uses = uses_so_far(block);
        async move {
            let (access, resident, passages) = uses?;
            for mut passage in passages {
                poll_fn(|context| passage.poll_synchronizing(context)).await?;
            }
            let engine = &block.registration().service.engine;
            let address = block.allocation().address;
            // SAFETY: all uses of the block are complete, and the guard borrows it mutably.
            #[allow(unsafe_code, reason = "a view of memory that the host sees")]
            let view = unsafe { HostView::new(&engine.shared.device, address, count, location) };
            Ok(Self {
                view: engine.shared.noted(view)?,
                _access: access,
                _resident: resident,
                block: PhantomData,
            })
        }
    }
}

/// Keeps graphs that use the block from being launched, and returns the points behind all uses so far.
fn uses_so_far(block: &Block) -> Result<(HostAccess, Option<Resident>, Vec<Passage>), StreamError> {
    let settings = &block.registration().service.engine.shared.settings;
    if !settings.kind.is_seen_by_host() {
        return Err(StreamError::UnseenByHost);
    }
    let resident = block.uses().hold_for(block.registration())?;
    let access = block.uses().begin_host_access();
    let points = block.uses().points_before(Access::Write, None)?;
    let passages: Result<_, _> = points.iter().map(Event::passage).collect();
    Ok((access, resident, passages?))
}

impl<T: NoUninit> Deref for HostGuard<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.view.elements()
    }
}

impl<T: NoUninit> DerefMut for HostGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.view.elements_mut()
    }
}

impl<T: NoUninit> fmt::Debug for HostGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostGuard")
            .field("type", &std::any::type_name::<T>())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
