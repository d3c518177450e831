//! Tenancy: applies the bounds of a source of capacity, on the source's thread, so that no task of the pool has to be
//! polled for it.
//!
//! A grant raises the bound on what the pool holds, and serves the queue. A recall lowers it: free memory above it goes
//! back to the device, first free memory of the heap, then cached blocks, and then the memory that a source of segments
//! keeps. A recall that is *binding* also evicts [evictable](crate::Evictable) memory, and holds requests back that would
//! use more. The source is told whenever memory comes back, like a [drain](super::drain).

use super::{Service, serving};
use crate::engine::{Lender, figures, maintenance};
use crate::seam::{ApplyBounds, Bounds, Holding};
use crate::sync::Link;
use crate::sync::{Arc, plain};
use std::task::{Wake, Waker};

/// The pool as its source sees it. Does not keep the pool alive after the last handle.
#[derive(Debug)]
pub(crate) struct Tenant {
    link: Link<Service>,
    /// Tells the source of memory that comes back.
    waker: Waker,
}

impl Tenant {
    pub(crate) fn new(service: &Arc<Service>, lender: &plain::Arc<Lender>) -> Self {
        let link = Link::new(service);
        service.tenant.set(Some(link.clone()));
        let waker = Waker::from(plain::Arc::new(TellOfMemory(plain::Arc::downgrade(lender))));
        Self { link, waker }
    }
}

impl ApplyBounds for Tenant {
    fn apply(&mut self, bounds: Bounds) -> Option<Holding> {
        let service = self.link.service()?;
        let Bounds {
            granted,
            first,
            bound,
            ..
        } = bounds;
        if first > bound {
            service
                .engine
                .store
                .set_lease(&service.engine.shared, granted, first, false);
            enlist_lender(&service, false, &self.waker);
            service.funnel.mark_change();
            // Another thread that serves may have looked before.
            while !service.queue.is_empty() && !serving::try_serve_fully(&service) {
                plain::thread::yield_now();
            }
        }
        Some(apply_lease(&service, bounds, &self.waker))
    }
}

/// Weak, since the source may own the [`Tenant`].
#[derive(Debug)]
struct TellOfMemory(plain::Weak<Lender>);

impl Wake for TellOfMemory {
    fn wake(self: plain::Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &plain::Arc<Self>) {
        if let Some(lender) = self.0.upgrade() {
            lender.tell_of_memory();
        }
    }
}

fn apply_lease(service: &Arc<Service>, bounds: Bounds, waker: &Waker) -> Holding {
    let Bounds {
        granted,
        bound,
        is_binding,
        ..
    } = bounds;
    let engine = &service.engine;
    let before = engine.store.leased();
    engine
        .store
        .set_lease(&engine.shared, granted, bound, is_binding);
    enlist_lender(service, is_binding, waker);
    // A failure is noted. What stays is told to the source.
    if engine.supply.held(&engine.store) > bound {
        let _ = maintenance::release_above(engine, bound);
    }
    if engine.supply.held(&engine.store) > bound {
        let _ = maintenance::reclaim_above(engine, bound);
    }
    if is_binding && engine.supply.held(&engine.store) > bound {
        // Free memory was not enough.
        let _ = maintenance::evict_above(engine, bound);
    }
    if bound <= before {
        let keep = maintenance::beside_charges(&engine.store, bound);
        engine.supply.trim_source(&engine.shared, keep);
    }
    if is_binding && engine.supply.held(&engine.store) <= bound {
        // No more than is held can be in use. Requests may wait for memory that is pending, within the bound.
        engine
            .store
            .set_lease(&engine.shared, granted, bound, false);
        enlist_lender(service, false, waker);
    }
    // Also after a recall: the bytes asked for may have been granted with it, and have to be asked for again.
    if !service.queue.is_empty() || is_binding {
        service.funnel.mark_change();
        // A thread that serves already looks again, and leaves device calls that it may not make to a thread of its
        // own.
        serving::try_serve_fully(service);
    }
    let statistics = figures::statistics(engine);
    Holding {
        held: engine.supply.held(&engine.store),
        used: statistics.used.current,
        waiting: service.queue.waiting(),
        blocks: statistics.allocations,
    }
}

/// Has the source told when memory comes back, while a recall is binding.
fn enlist_lender(service: &Service, is_binding: bool, waker: &Waker) {
    let member = *service.lender_member.lock();
    match (is_binding, member) {
        (true, member) => {
            let member = member.unwrap_or_else(|| service.funnel.name_drain());
            *service.lender_member.lock() = Some(member);
            // Before the memory is looked at, so that the source hears of memory freed in between.
            service.funnel.enlist(member, waker);
        }
        (false, Some(member)) => {
            *service.lender_member.lock() = None;
            drop(service.funnel.resign(member));
            service.funnel.notify();
        }
        (false, None) => {}
    }
}
