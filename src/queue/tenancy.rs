//! Tenancy: applies the bounds of a source of capacity, on the source's thread, so that no task of the pool has to be
//! polled for it.
//!
//! A grant raises the bound on what the pool holds, and serves the queue. A recall lowers it: free memory above it goes
//! back to the device, first free memory of the heap, then cached blocks, and what a source of segments keeps. A recall that is *binding* also evicts
//! [evictable](crate::Evictable) memory, and holds requests back that would use more. The source is told whenever memory
//! comes back, like a [drain](super::drain).

use super::Service;
use super::funnel::Member;
use super::link::Link;
use crate::engine::{Lender, figures, maintenance};
use crate::seam::{ApplyBounds, Bounds, Holding};
use crate::sync::{Arc, ForeignOption, Guards, Mutex, plain};
use std::task::{Wake, Waker};

/// What the service knows of its source.
#[derive(Debug)]
pub(super) struct Tenancy {
    /// Tells the source when memory comes back, while a recall is binding.
    member: Mutex<Option<Member>>,
    pub(super) link: ForeignOption<Link>,
}

impl Tenancy {
    pub(super) fn new() -> Self {
        Self {
            member: Mutex::new(Guards::Queue, None),
            link: ForeignOption::new(Guards::Queue, None),
        }
    }
}

/// The pool as its source sees it. Does not keep the pool alive after the last handle.
#[derive(Debug)]
pub(crate) struct Tenant {
    link: Link,
    /// Tells the source of memory that comes back.
    waker: Waker,
}

impl Tenant {
    pub(crate) fn new(service: &Arc<Service>, lender: &plain::Arc<Lender>) -> Self {
        let link = Link::new(service);
        service.tenancy.link.set(Some(link.clone()));
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
            service.enlist_lender(false, &self.waker);
            service.funnel.mark_change();
            // Another thread that serves may have looked before.
            while !service.queue.is_empty() && !Service::try_serve_fully(&service) {
                plain::thread::yield_now();
            }
        }
        Some(Service::apply_lease(&service, bounds, &self.waker))
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

impl Service {
    fn apply_lease(this: &Arc<Self>, bounds: Bounds, waker: &Waker) -> Holding {
        let Bounds {
            granted,
            bound,
            is_binding,
            ..
        } = bounds;
        let engine = &this.engine;
        engine
            .store
            .set_lease(&engine.shared, granted, bound, is_binding);
        this.enlist_lender(is_binding, waker);
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
        engine.supply.trim_source(&engine.shared, bound);
        if is_binding && engine.supply.held(&engine.store) <= bound {
            // No more than is held can be in use. Requests may wait for memory that is pending, within the bound.
            engine
                .store
                .set_lease(&engine.shared, granted, bound, false);
            this.enlist_lender(false, waker);
        }
        // Also after a recall: the bytes asked for may have been granted with it, and have to be asked for again.
        if !this.queue.is_empty() || is_binding {
            this.funnel.mark_change();
            // A thread that serves already looks again, and leaves device calls that it may not make to a thread of its
            // own.
            Self::try_serve_fully(this);
        }
        let statistics = figures::statistics(engine);
        Holding {
            held: engine.supply.held(&engine.store),
            used: statistics.used.current,
            waiting: this.queue.waiting(),
            blocks: statistics.allocations,
        }
    }

    /// Has the source told when memory comes back, while a recall is binding.
    fn enlist_lender(&self, is_binding: bool, waker: &Waker) {
        let member = *self.tenancy.member.lock();
        match (is_binding, member) {
            (true, member) => {
                let member = member.unwrap_or_else(|| self.funnel.name_drain());
                *self.tenancy.member.lock() = Some(member);
                // Before the memory is looked at, so that the source hears of memory freed in between.
                self.funnel.enlist(member, waker);
            }
            (false, Some(member)) => {
                *self.tenancy.member.lock() = None;
                drop(self.funnel.resign(member));
                self.funnel.notify();
            }
            (false, None) => {}
        }
    }
}
