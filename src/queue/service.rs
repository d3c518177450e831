//! The service: the engine with its queue, shared by futures and reclaimers.

use super::drain::Drains;
use super::funnel::{Funnel, wake_all};
use super::grower::Grower;
use super::link::{Keeper, Link, Progress, StandIn};
use super::pass::Pass;
use super::reclaimer::Spawned;
use super::spawn;
use super::tenancy::Tenancy;
use super::waiter::Waiter;
use super::waiters::{Displaced, Waiters};
use super::{Demand, Rules, Terms};
use crate::background::Background;
use crate::device::Device;
use crate::engine::{
    Change, Effort, Engine, Group, OtherPools, Settings, Watches, access, figures, gate,
    maintenance, reaping,
};
use crate::error::{AllocError, BuildError, Shortfall, TagShortfall};
use crate::fault::injected;
use crate::lane::Lane;
use crate::measure::{Tag, Waits};
use crate::seam::Fact;
use crate::sync::{Arc, ForeignOption, Guards, Mutex, Ordering, SharedFlag, plain};
use crate::timer::{Deadline, Timer};
use std::fmt;
use std::task::Waker;
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
    watches: ForeignOption<Watches>,
    /// The time of the next pass, whatever happens until then. Changed by the serving thread only.
    next_look: Deadline,
    pub(super) grower: Grower,
    /// Makes memory calls that block: those of the growth, and of the maintenance.
    pub(super) background: Background,
    /// The link of the wakers that timer and device call, until the last handle is gone.
    link: ForeignOption<Link>,
    /// The reclaimer that was spawned for the requests that wait now.
    spawned: ForeignOption<Spawned>,
    is_orphaned: SharedFlag,
    pub(super) drains: Drains,
    pub(super) tenancy: Tenancy,
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
        let queue = plain::Arc::new(Waiters::new(&rules, waits.clone()));
        let timer = Timer::new(device.clone());
        let announcer = settings.announcer.clone();
        let funnel = plain::Arc::new(Funnel::new(queue.clone(), &timer, announcer));
        let engine = Engine::new(device, settings, others, funnel.clone(), waits, &timer)?;
        Ok(Self {
            rules,
            standstill: Mutex::new(Guards::Queue, Standstill::default()),
            queue,
            funnel,
            engine,
            watches: ForeignOption::new(Guards::Queue, None),
            next_look: timer.deadline(false),
            timer,
            grower: Grower::new(),
            background: Background::default(),
            link: ForeignOption::new(Guards::Queue, None),
            spawned: ForeignOption::new(Guards::Queue, None),
            is_orphaned: SharedFlag::new(false),
            drains: Drains::new(),
            tenancy: Tenancy::new(),
        })
    }

    /// Starts the maintenance, and the stand-in that answers notifications when no server does.
    pub(crate) fn start(this: &Arc<Self>) {
        let link = Link::new(this);
        let keeper = Waker::from(plain::Arc::new(Keeper::new(link.clone())));
        let progress = Waker::from(plain::Arc::new(Progress(link.clone())));
        this.engine.maintenance.start_maintenance(keeper, progress);
        let stand_in = Waker::from(plain::Arc::new(StandIn(link.clone())));
        this.funnel.stand_in.set_waker(Some(stand_in));
        this.link.set(Some(link));
    }

    pub(super) fn now(&self) -> Duration {
        self.engine.shared.device.now()
    }

    /// Serves the queue if anything was published since the last search, without memory calls where they block. If
    /// another thread serves, that thread looks again.
    pub(crate) fn serve(this: &Arc<Self>) {
        if let Some(generation) = this.funnel.begin() {
            Self::serve_from(this, generation, Effort::Poll);
        }
    }

    /// Serves the queue because of a change that is the caller's own.
    pub(crate) fn serve_change(this: &Arc<Self>) {
        this.funnel.mark_change();
        Self::serve(this);
    }

    /// Serves the queue because a request joined, or another one moved up.
    pub(super) fn serve_candidate(this: &Arc<Self>) {
        this.funnel.mark_candidate();
        Self::serve(this);
    }

    /// Serves the queue with memory calls, for a thread of its own. Returns whether it did: no other thread may serve
    /// at the time, since that one may not make the calls.
    pub(super) fn try_serve_fully(this: &Arc<Self>) -> bool {
        let generation = this.funnel.begin_anyway();
        if let Some(generation) = generation {
            Self::serve_from(this, generation, Effort::Thread);
        }
        generation.is_some()
    }

    fn serve_from(this: &Arc<Self>, generation: u64, effort: Effort) {
        let give_up = GiveUpOnPanic(&this.funnel);
        let mut next = Some(generation);
        while let Some(generation) = next {
            let progress = || this.engine.store.totals().progress;
            let before = progress();
            let look_again_at = Pass::new(this, effort, generation).run();
            if progress() != before {
                this.funnel.tell_of_progress();
            }
            let has_unrecorded = this.watch();
            // The record is tried again in the next pass.
            let retry_at = has_unrecorded.then(|| this.now().saturating_add(maintenance::INTERVAL));
            let next_look = look_again_at.into_iter().chain(retry_at).min();
            this.next_look
                .set(next_look.map(|at| (at, Waker::from(this.funnel.clone()))));
            next = this.funnel.end();
        }
        // Another thread may serve by now: there is nothing to give up, even if this thread unwinds.
        std::mem::forget(give_up);
    }

    /// Watches streams while a request waits or a drain does. Otherwise nothing is watched. A reclaimer that was
    /// spawned for the requests ends with them. Returns whether a [record](crate::engine::reaping::watch_streams) is to
    /// be tried again.
    fn watch(&self) -> bool {
        let is_awaited = !self.queue.is_empty();
        if !is_awaited {
            self.dismiss_reclaimer();
        }
        // Out of the lock: a watch may call at once.
        let mut watches = self.watches.take().unwrap_or_default();
        if !is_awaited {
            self.engine.store.lease.withdraw();
        }
        let is_idle = !is_awaited && self.queue.scopes.is_empty();
        if is_idle && !self.engine.shared.is_draining() && !self.engine.shared.is_recalled() {
            drop(watches);
            return false;
        }
        let waker = Waker::from(self.funnel.clone());
        let has_unrecorded = reaping::watch_streams(&self.engine, &mut watches, &waker);
        self.watches.set(Some(watches));
        has_unrecorded
    }

    fn dismiss_reclaimer(&self) {
        let spawned = self.spawned.take();
        wake_all(
            &self.engine.store.announcer,
            spawned.and_then(|spawned| spawned.dismiss(self)),
        );
    }

    /// Spawns a reclaimer for the requests that wait, if a runtime runs here and none was spawned yet. Waiters serve as
    /// well, so nothing rests on the runtime.
    pub(super) fn ensure_reclaimer(this: &Arc<Self>) {
        if this.spawned.read(|spawned| spawned.is_some()) {
            return;
        }
        if let Some(spawned) = spawn::reclaimer(this) {
            let other = this.spawned.replace(Some(spawned));
            drop(other.and_then(|other| other.dismiss(this)));
        }
    }

    /// Serves if no server answered a notification in time.
    pub(super) fn stand_in(this: &Arc<Self>) {
        this.funnel.stand_in.mark_called();
        Self::serve(this);
    }

    /// Takes a request out of the queue that was served after `waited`, or not at all. Returns whether another one is a
    /// candidate.
    #[must_use = "memory must be searched for a candidate"]
    pub(super) fn leave(&self, waiter: &Waiter, waited: Option<Duration>) -> bool {
        let moved = self
            .queue
            .leave(waiter, waited, self.now(), &self.engine.shared.gate);
        maintenance::resume(&self.engine);
        self.relieve_new_first(waiter.demand.tag, moved);
        moved.has_candidate
    }

    /// Removes a request whose future ends. Serves requests that move up, because their own executors may be dead; also
    /// if the request was notified and did not serve. After the last request nothing is watched any more.
    pub(super) fn depart(this: &Arc<Self>, waiter: &Waiter, waited: Option<Duration>) {
        let has_candidate = this.leave(waiter, waited);
        if waited.is_none() {
            this.uncharge_unserved(waiter);
        }
        if has_candidate || this.queue.is_empty() {
            this.funnel.mark_candidate();
        }
        Self::serve(this);
        if this.engine.shared.is_draining() {
            this.funnel.wake_drains();
        }
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
        let gate = &self.engine.shared.gate;
        if self.queue.bring_back(waiter, self.now(), gate) {
            self.funnel.mark_candidate();
        }
    }

    /// Notifies after requests moved into the fair queue.
    fn notify_of_moved(&self, moved: Moved) {
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
        if waiter.stall.begin() && !injected("stalled-and-not-woken") {
            wake_all(&self.engine.store.announcer, waiter.notify());
        }
    }

    /// Fails a request, wherever it waits. Its task may be dead: its bytes are given back to its tag at once.
    pub(super) fn fail(&self, waiter: &Waiter, error: AllocError) {
        let Some(waker) = waiter.fail(error) else {
            // It was granted or failed before, or is gone, and leaves the queue with that outcome.
            return;
        };
        if self.leave(waiter, None) {
            self.funnel.notify_candidate();
        }
        self.uncharge_unserved(waiter);
        wake_all(&self.engine.store.announcer, waker);
        if self.engine.shared.is_draining() {
            self.funnel.wake_drains();
        }
    }

    /// Gives the bytes of a request that was not served back to its tag, once.
    fn uncharge_unserved(&self, waiter: &Waiter) {
        if let (Some(tag), false) = (waiter.demand.tag, waiter.is_throttled())
            && waiter.mark_uncharged()
        {
            self.uncharge(tag, waiter.demand.request.bytes);
        }
    }

    /// Fails the requests that can never be served under the present terms, wherever they wait.
    fn fail_hopeless(&self) {
        for waiter in self.queue.first(usize::MAX) {
            if let Some(refusal) = self.refusal_of(&waiter.demand) {
                self.fail(&waiter, refusal);
            }
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

    /// Serves the queue under changed terms of the pool, fails requests that they exclude, and has throttled requests
    /// look at theirs.
    pub(crate) fn apply_terms(this: &Arc<Self>) {
        this.fail_hopeless();
        Self::serve_change(this);
        let throttled = this.queue.wakers_of_throttled();
        wake_all(&this.engine.store.announcer, throttled);
    }

    /// Sets the limit of a tag, and lets requests in that it allows. Others may be over it now.
    pub(crate) fn set_tag_limit(this: &Arc<Self>, tag: Tag, limit: Option<u64>) {
        let gate = &this.engine.shared.gate;
        let moved = this.queue.set_limit(tag, limit, this.now(), gate);
        this.notify_of_moved(moved);
        for waiter in this.queue.over_limit(tag) {
            if let Some(refusal) = this.refusal_of(&waiter.demand) {
                this.fail(&waiter, refusal);
            }
        }
        this.relieve(tag);
        Self::serve_change(this);
        // The others look once they are first.
        let first = this.queue.first_throttled(tag);
        wake_all(
            &this.engine.store.announcer,
            first.and_then(|first| first.notify()),
        );
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
        let moved = self.queue.admit(tag, self.now(), &self.engine.shared.gate);
        self.notify_of_moved(moved);
        if !injected("freed-without-relief") {
            self.relieve(tag);
        }
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
        if injected("synchronized-without-a-release") {
            return;
        }
        access::settle_access(&self.engine);
        maintenance::release_synchronized(&self.engine);
    }

    /// Ends the pool: no more grants, and waiting requests fail. Returns whether this is the first time.
    pub(crate) fn close(this: &Arc<Self>) -> bool {
        let before = this
            .engine
            .shared
            .gate
            .fetch_or(gate::ENDED, Ordering::SeqCst);
        let is_first = before & gate::ENDED == 0;
        if is_first {
            this.engine.store.announcer.tell(|| Fact::Closed);
        }
        Self::apply_terms(this);
        is_first
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
        self.queue.expected_wait(over, tag, bytes, due_at, now)
    }

    /// Returns whether a thread searches memory for the requests that wait.
    pub(crate) fn is_serving(&self) -> bool {
        self.funnel.is_serving()
    }

    /// Returns the reason why nothing can be granted, if there is one.
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
        self.refusal().or_else(too_large).or_else(over_limit)
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
        let shortfall = figures::shortfall(&self.engine, demand.request, waiting);
        Shortfall {
            expected_wait: self.expected_wait(None, demand.tag, demand.request.bytes),
            tag: demand.tag.and_then(|tag| self.shortfall_of(tag)),
            ..shortfall
        }
    }

    fn shortfall_of(&self, tag: Tag) -> Option<TagShortfall> {
        let account = self.queue.accounts.of(tag);
        Some(TagShortfall {
            tag,
            used: account.charged(),
            limit: account.limit()?,
        })
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
        let tenant = self.tenancy.link.take();
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

/// If serving panics, other threads serve again.
struct GiveUpOnPanic<'a>(&'a Funnel);

impl Drop for GiveUpOnPanic<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}
