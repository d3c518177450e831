//! The service: the engine with its queue, shared by futures and reclaimers.

use super::drains::Drains;
use super::funnel::{Funnel, Member, wake_all};
use super::spawned::Spawned;
use super::waiter::Waiter;
use super::waiters::{Displaced, Leaving, Waiters};
use super::{Demand, Rules, Terms};
use crate::background::{Background, Errand};
use crate::device::Device;
use crate::engine::{
    Change, Engine, Group, OtherPools, Settings, Watches, access, figures, maintenance,
};
use crate::error::{AllocError, BuildError, Shortfall, TagShortfall};
use crate::lane::{Gate, Lane};
use crate::measure::{Tag, Waits};
use crate::seam::Fact;
use crate::sync::Link;
use crate::sync::{Arc, ForeignOption, Guards, Mutex, Ordering, SharedFlag, SharedState, plain};
use crate::timer::{Deadline, Timer};
use crossbeam_utils::CachePadded;
use std::fmt;
use std::time::Duration;
use weirpool_queue::{Moved, Standstill, due};

/// See the [module](self).
pub(crate) struct Service {
    pub(crate) engine: Engine,
    pub(super) timer: plain::Arc<Timer>,
    pub(crate) queue: plain::Arc<Waiters>,
    pub(super) funnel: plain::Arc<Funnel>,
    /// The rules by which requests wait.
    pub(super) rules: Rules,
    /// How long nothing moves.
    pub(super) standstill: Mutex<Standstill>,
    /// The device's watches on streams. Changed by the serving thread only: two threads that looked at different times
    /// would undo each other's watches.
    pub(super) watches: ForeignOption<Watches>,
    /// The time of the next pass, whatever happens until then. Changed by the serving thread only.
    pub(super) next_look: Deadline,
    /// Serves where memory calls block, on a thread of its own.
    pub(super) growth: Errand,
    /// The request that it was called for.
    pub(super) needy: ForeignOption<Arc<Waiter>>,
    /// Makes memory calls that block: those of the growth, and of the maintenance.
    pub(super) background: Background,
    /// The link of the wakers that timer and device call, until the last handle is gone.
    pub(super) link: ForeignOption<Link<Self>>,
    /// The reclaimer that was spawned for the requests that wait now.
    pub(super) spawned: ForeignOption<Spawned<Self>>,
    is_orphaned: SharedFlag,
    pub(super) drains: Drains,
    /// Tells the source of the capacity when memory comes back, while a recall is binding.
    pub(super) lender_member: Mutex<Option<Member>>,
    /// The link of that source.
    pub(super) tenant: ForeignOption<Link<Self>>,
}

impl Service {
    /// # Errors
    /// Returns the errors of [`Engine::new`].
    pub(crate) fn new(
        device: plain::Arc<dyn Device>,
        settings: Settings,
        others: OtherPools,
        rules: Rules,
    ) -> Result<Self, BuildError> {
        let waits = plain::Arc::<Waits>::default();
        let gate = Gate::new(CachePadded::new(SharedState::new(0)));
        let queue = plain::Arc::new(Waiters::new(&rules, waits.clone(), gate.clone()));
        let timer = Timer::new(device.clone());
        let announcer = settings.announcer.clone();
        let funnel = plain::Arc::new(Funnel::new(queue.clone(), &timer, announcer));
        let publisher = funnel.clone();
        let engine = Engine::new(device, settings, others, publisher, (waits, gate), &timer)?;
        Ok(Self {
            rules,
            standstill: Mutex::new(Guards::Queue, Standstill::default()),
            queue,
            funnel,
            engine,
            watches: ForeignOption::new(Guards::Queue, None),
            next_look: timer.deadline(false),
            timer,
            growth: Errand::default(),
            needy: ForeignOption::new(Guards::Queue, None),
            background: Background::default(),
            link: ForeignOption::new(Guards::Queue, None),
            spawned: ForeignOption::new(Guards::Queue, None),
            is_orphaned: SharedFlag::new(false),
            drains: Drains::new(),
            lender_member: Mutex::new(Guards::Queue, None),
            tenant: ForeignOption::new(Guards::Queue, None),
        })
    }

    pub(super) fn now(&self) -> Duration {
        self.engine.shared.device.now()
    }

    pub(super) fn dismiss_reclaimer(&self) {
        let spawned = self.spawned.take();
        wake_all(
            &self.engine.store.announcer,
            spawned.and_then(|spawned| spawned.dismiss(&self.funnel)),
        );
    }

    /// Takes a request out of the queue. Returns whether another one is a candidate.
    #[must_use = "memory must be searched for a candidate"]
    pub(super) fn leave(&self, waiter: &Waiter, how: Leaving) -> bool {
        let moved = self.queue.leave(waiter, how, self.now());
        maintenance::resume(&self.engine);
        self.relieve_new_first(waiter.demand.tag, moved);
        moved.has_candidate
    }

    /// Notes that a request joined. The poll that comes next searches for it, unless it waits for the limit of its tag.
    pub(super) fn notify_of_joined(&self, waiter: &Waiter, mut moved: Moved) {
        if moved.has_candidate && !waiter.is_throttled() {
            self.funnel.mark_candidate();
            moved.has_candidate = false;
        }
        self.notify_of_moved(moved);
        self.relieve_new_first(waiter.demand.tag, moved);
    }

    /// Ends the waits of requests that lost their places.
    pub(super) fn end_displaced(&self, displaced: Vec<Displaced>) {
        for Displaced { waiter, waker } in displaced {
            if let Some(waker) = waker {
                self.uncharge_unserved(&waiter);
                wake_all(&self.engine.store.announcer, waker);
            }
        }
    }

    /// Puts a request back to its position that was set aside. The poll that comes next searches for it.
    pub(super) fn bring_back(&self, waiter: &Waiter) {
        if self.queue.bring_back(waiter, self.now()) {
            self.funnel.mark_candidate();
        }
    }

    /// Notifies after requests moved into the fair queue.
    pub(super) fn notify_of_moved(&self, moved: Moved) {
        if moved.has_candidate {
            self.funnel.notify_candidate();
        }
    }

    /// Evicts for a throttled request that moved up to be the first of its tag: it may be content with less.
    fn relieve_new_first(&self, tag: Option<Tag>, moved: Moved) {
        if let (Some(tag), true) = (tag, moved.has_new_first) {
            self.relieve(tag);
        }
    }

    /// Notes that nothing can serve a request that is the first, and wakes its owner if that watches for it.
    pub(super) fn stall(&self, waiter: &Waiter) {
        if waiter.stall.begin() {
            wake_all(&self.engine.store.announcer, waiter.notify());
        }
    }

    /// Fails a request, wherever it waits. Its task may be dead: its bytes are given back to its tag at once.
    pub(super) fn fail(&self, waiter: &Waiter, error: AllocError) {
        let Some(waker) = waiter.fail(error) else {
            // It was granted or failed before, or is gone, and leaves the queue with that outcome.
            return;
        };
        if self.leave(waiter, Leaving::Unserved) {
            self.funnel.notify_candidate();
        }
        self.uncharge_unserved(waiter);
        wake_all(&self.engine.store.announcer, waker);
        if self.engine.shared.is_draining() {
            self.funnel.wake_drains();
        }
    }

    /// Gives the bytes of a request that was not served back to its tag, once.
    pub(super) fn uncharge_unserved(&self, waiter: &Waiter) {
        if let (Some(tag), false) = (waiter.demand.tag, waiter.is_throttled())
            && waiter.mark_uncharged()
        {
            self.uncharge(tag, waiter.demand.request.bytes);
        }
    }

    /// Notes that something moved, so that there is no deadlock.
    pub(super) fn end_deadlock(&self) {
        if self.standstill.lock().end() {
            self.queue.forget_scan();
        }
    }

    /// Publishes a change, if any request or drain can wait for it.
    pub(crate) fn publish(&self, change: Change) {
        self.engine.shared.publish(change);
    }

    /// Takes bytes off a tag's account, and lets requests in that are throttled for them.
    pub(crate) fn uncharge(&self, tag: Tag, bytes: u64) {
        if self.queue.accounts.of(tag).uncharge(bytes) {
            self.admit(tag);
        }
    }

    /// Counts the free of a tag's block, and gives its bytes back to the tag.
    pub(crate) fn count_freed(&self, tag: Tag, bytes: u64) {
        if self.uncharge_freed(tag, bytes) {
            self.admit(tag);
        }
    }

    /// Counts the free of a tag's block, and gives its bytes back to the tag. Returns whether requests are throttled, to
    /// be [admitted](Self::admit).
    #[inline]
    pub(crate) fn uncharge_freed(&self, tag: Tag, bytes: u64) -> bool {
        let account = self.queue.accounts.of(tag);
        account.count_freed();
        account.uncharge(bytes)
    }

    /// Admits throttled requests of a tag that its limit allows now, or would allow once memory of the tag is evicted.
    #[cold]
    #[inline(never)]
    pub(crate) fn admit(&self, tag: Tag) {
        let moved = self.queue.admit(tag, self.now());
        self.notify_of_moved(moved);
        self.relieve(tag);
    }

    /// Evicts memory of a tag until its throttled requests are let in, as far as that can be. The first that is not let
    /// in stalls.
    pub(crate) fn relieve(&self, tag: Tag) {
        let account = self.queue.accounts.of(tag);
        if !account.is_throttling() {
            return;
        }
        account.relieve(|| {
            while let Some(first) = self.queue.first_throttled(tag) {
                let is_hopeless = self.refusal_of(&first.demand).is_some();
                if is_hopeless || !self.evict_for(tag, first.demand.request.bytes) {
                    return self.stall(&first);
                }
            }
        });
    }

    /// Evicts memory of a tag for a request that its limit does not allow, unless all of it would not be enough.
    /// Returns whether any was.
    pub(super) fn evict_for(&self, tag: Tag, bytes: u64) -> bool {
        let account = self.queue.accounts.of(tag);
        let evictables = &self.engine.store.evictables;
        let lacking = match account.limit() {
            Some(limit) => account
                .charged()
                .saturating_add(bytes)
                .saturating_sub(limit),
            None => return false,
        };
        let group = Group::Tag(tag);
        (1..=evictables.bytes_of(group)).contains(&lacking)
            && evictables.evict(lacking, Some(group)) > 0
    }

    /// Releases memory above the threshold once a caller has waited for the device.
    pub(crate) fn release_synchronized(&self) {
        access::settle_access(&self.engine);
        maintenance::release_synchronized(&self.engine);
    }

    /// Estimates how long a request of a tag with default terms would wait that came now. With `over`, the request is over
    /// that tag's limit.
    pub(crate) fn expected_wait(
        &self,
        over: Option<Tag>,
        tag: Option<Tag>,
        bytes: u64,
    ) -> Option<Duration> {
        let now = self.now();
        let due_at = due(&Terms::default(), now);
        let queue = &self.queue.lock().queue;
        queue.expected_wait(over, tag, bytes, due_at, now)
    }

    /// Returns whether a thread searches memory for the requests that wait.
    pub(crate) fn is_serving(&self) -> bool {
        self.funnel.is_serving()
    }

    /// Returns the reason why nothing can be granted, not even of a reservation, if there is one.
    pub(crate) fn refusal(&self) -> Option<AllocError> {
        if self.engine.shared.is_closed() {
            return Some(AllocError::Closed);
        }
        self.engine.shared.fault().map(AllocError::Device)
    }

    /// Returns the reason why a demand can never be met, if there is one.
    pub(super) fn refusal_of(&self, demand: &Demand) -> Option<AllocError> {
        let requested = demand.request.bytes;
        let capacity = self.engine.store.capacity();
        // Read before: a pool that is closed between the two is closed, and not only stopping.
        let is_late = !demand.is_of_holder && self.engine.shared.is_stopping();
        let stopping = || is_late.then_some(AllocError::Stopping);
        let too_large = || {
            (requested > capacity).then_some(AllocError::TooLarge {
                requested,
                capacity,
            })
        };
        let over_limit = || {
            let tag = demand.tag?;
            let limit = self.queue.accounts.of(tag).limit()?;
            (requested > limit).then_some(AllocError::OverLimit {
                tag,
                requested,
                limit,
            })
        };
        let refusal = self.refusal().or_else(stopping);
        refusal.or_else(too_large).or_else(over_limit)
    }

    /// Returns the error of a request that does not wait for its tag's limit.
    pub(crate) fn limit_reached(&self, tag: Tag, requested: u64) -> AllocError {
        let account = self.queue.accounts.of(tag);
        AllocError::LimitReached {
            tag,
            requested,
            used: account.charged(),
            limit: account.limit().unwrap_or(u64::MAX),
        }
    }

    /// Reports a request that failed because memory is short. Returns how memory stood.
    pub(crate) fn exhausted(&self, lane: &Lane, demand: &Demand) -> Shortfall {
        let shortfall = self.shortfall(demand);
        self.engine.store.tell(|| Fact::OutOfMemory {
            stream: lane.id.of_a_stream(),
            shortfall: &shortfall,
        });
        shortfall
    }

    pub(crate) fn shortfall(&self, demand: &Demand) -> Shortfall {
        let waiting = self.queue.waiting();
        let mut shortfall = figures::shortfall(&self.engine, demand.request, waiting);
        shortfall.expected_wait = self.expected_wait(None, demand.tag, demand.request.bytes);
        shortfall.tag = demand.tag.and_then(|tag| self.shortfall_of(tag));
        shortfall
    }

    fn shortfall_of(&self, tag: Tag) -> Option<TagShortfall> {
        let account = self.queue.accounts.of(tag);
        Some(TagShortfall::of(tag, account.charged(), account.limit()?))
    }

    /// Returns whether others hold what the pool lacks, and may release it: the source of the capacity is asked, or the device refuses
    /// while the pool could have all of its memory back.
    pub(super) fn is_short_for_others(&self) -> bool {
        let engine = &self.engine;
        let holds_none =
            || engine.store.totals().used.current <= engine.store.evictables.bytes_of(Group::Pool);
        engine.store.lease.is_asking() || engine.supply.is_refused() && holds_none()
    }

    /// Ends lasting reclaimers and the maintenance, after the last handle is dropped.
    pub(crate) fn orphan(&self) {
        self.is_orphaned.store(true, Ordering::Release);
        self.funnel.wake_reclaimers();
        // Only forgotten requests can still wait.
        self.dismiss_reclaimer();
        self.engine.maintenance.end_maintenance();
        self.funnel.stand_in.set_waker(None);
        let tenant = self.tenant.take();
        for link in self.link.take().into_iter().chain(tenant) {
            drop(link.cut());
        }
    }

    pub(super) fn is_orphaned(&self) -> bool {
        self.is_orphaned.load(Ordering::Acquire)
    }
}

/// Futures and handles own a service. What they print does not include the pool's insides.
impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}
