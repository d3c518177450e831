//! Tenancy: applies the grants and recalls of a broker, on the lender's thread, so that no task of the pool has to be
//! polled for it.
//!
//! A grant raises the bound on what the pool holds, and serves the queue. A recall lowers it: free memory above it goes
//! back to the device, first free memory of the heap, and then cached blocks. A recall that is *binding* also evicts
//! [evictable](crate::Evictable) memory, and holds requests back that would use more. The lender looks again whenever
//! memory comes back, like a [drain](super::drain).

#![cfg_attr(
    not(any(all(feature = "broker", target_os = "linux"), weirpool_loom)),
    allow(dead_code, reason = "no lender exists without the feature")
)]

use super::Service;
use super::funnel::Member;
use super::link::Link;
use crate::engine::{LeaseBounds, Lender, figures, maintenance};
use crate::sync::{Arc, ForeignOption, Guards, Mutex, plain};
use std::task::{Wake, Waker};

/// What a pool holds after a lease was applied, in bytes.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(weirpool_loom, allow(dead_code, reason = "models read one of them"))]
pub(crate) struct Holding {
    /// From the device, or about to be.
    pub(crate) held: u64,
    /// Requests that wait.
    pub(crate) waiting: usize,
}

/// What the service knows of its broker.
#[derive(Debug)]
pub(super) struct Tenancy {
    /// Looks again when memory comes back, while a recall is binding.
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

/// The pool as its lender sees it. Does not keep the pool alive after the last handle.
#[derive(Debug)]
pub(crate) struct Tenant {
    link: Link,
    /// Makes the lender look again.
    waker: Waker,
}

impl Tenant {
    pub(crate) fn new(service: &Arc<Service>, lender: plain::Arc<dyn Lender>) -> Self {
        let link = Link::new(service);
        service.tenancy.link.set(Some(link.clone()));
        let waker = Waker::from(plain::Arc::new(LookAgain(lender)));
        Self { link, waker }
    }

    /// First serves the queue with up to `first` bytes, if that is more than `bound`: granted memory is for the
    /// requests that it was asked for, before it is recalled for others.
    ///
    /// Then bounds the bytes that the pool holds, releases free memory above the bound, and serves the queue. With
    /// `is_binding`, bounds the memory in use as well. Returns the figures afterwards; `None` after the last handle of
    /// the pool is gone.
    ///
    /// One thread calls at a time.
    pub(crate) fn apply(&self, bounds: LeaseBounds) -> Option<Holding> {
        let service = self.link.service()?;
        let LeaseBounds {
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

    /// Returns the bytes in use, and how many blocks were granted so far; zeros once the pool is gone.
    #[cfg_attr(weirpool_loom, allow(dead_code, reason = "models have no broker"))]
    pub(crate) fn use_so_far(&self) -> (u64, u64) {
        let statistics = self
            .link
            .service()
            .map(|service| figures::statistics(&service.engine));
        let statistics = statistics.unwrap_or_default();
        (statistics.used.current, statistics.allocations)
    }
}

#[derive(Debug)]
struct LookAgain(plain::Arc<dyn Lender>);

impl Wake for LookAgain {
    fn wake(self: plain::Arc<Self>) {
        self.0.look_again();
    }

    fn wake_by_ref(self: &plain::Arc<Self>) {
        self.0.look_again();
    }
}

impl Service {
    fn apply_lease(this: &Arc<Self>, bounds: LeaseBounds, waker: &Waker) -> Holding {
        let LeaseBounds {
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
        // A failure is noted. What stays is told to the lender.
        if engine.supply.held(&engine.store) > bound {
            let _ = maintenance::release_above(engine, bound);
        }
        if engine.supply.held(&engine.store) > bound {
            let _ = maintenance::reclaim_above(engine, bound);
        }
        if is_binding && engine.supply.held(&engine.store) > bound {
            // Free memory of other clients was not enough either.
            let _ = maintenance::evict_above(engine, bound);
        }
        // Also after a recall: the bytes asked for may have been granted with it, and have to be asked for again.
        if !this.queue.is_empty() || engine.shared.is_recalled() {
            this.funnel.mark_change();
            // A thread that serves already looks again, and leaves device calls that it may not make to a thread of its
            // own.
            Self::try_serve_fully(this);
        }
        Holding {
            held: engine.supply.held(&engine.store),
            waiting: this.queue.waiting(),
        }
    }

    /// Has the lender woken when memory comes back, while a recall is binding.
    fn enlist_lender(&self, is_binding: bool, waker: &Waker) {
        let member = *self.tenancy.member.lock();
        match (is_binding, member) {
            (true, member) => {
                let member = member.unwrap_or_else(|| self.funnel.name_drain());
                *self.tenancy.member.lock() = Some(member);
                // The lender enlists before it looks at the memory, so that memory freed in between wakes it.
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
