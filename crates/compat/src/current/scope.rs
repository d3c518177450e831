//! The override of the current pool, for a thread or a task. It ends on every way out.

use super::Choice;
use super::table::Seat;
use pin_project_lite::pin_project;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use weirpool::Pool;
use weirpool::device::{AsDevice, DeviceId, Pooling};

/// An override of a device's [current](fn@crate::current) pool, for as long as a thread or a task is in it. Like Warp's
/// `ScopedMempool`, but it ends on every way out: a return, `?`, a panic, a cancelled task.
///
/// Scopes nest: the innermost one of a device applies. A scope can be entered repeatedly, and on several threads at
/// once. The streams of a pool stay registered for as long as its scope, or a clone of it, lives.
///
/// ```
/// use weirpool::device::{Pooling, sim::SimDevice};
/// use weirpool::Pool;
/// use weirpool_compat::{Scope, current, default_pool};
///
/// let device = SimDevice::new();
/// let weights = Pool::builder(device.clone()).name("the weights").build()?;
/// let in_weights = Scope::pool(&weights);
/// {
///     let _entered = in_weights.enter();
///     assert_eq!(current(&device)?.pool(), &weights);
///     let _inner = Scope::pooling(&device, Pooling::Disabled).enter();
///     assert!(!current(&device)?.pool().inspect().describe().is_pooled);
/// }
/// assert_eq!(current(&device)?.pool(), &default_pool(&device)?);
///
/// device.block_on(in_weights.run(async {
///     assert_eq!(current(&device)?.pool(), &weights); // also after an `.await`, wherever it goes on
///     Ok::<(), weirpool::BuildError>(())
/// }))?;
/// # Ok::<(), weirpool::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Scope {
    device: DeviceId,
    choice: Choice,
}

thread_local! {
    /// The scopes that this thread is in, from the outermost to the innermost, each with its own number.
    static ENTERED: RefCell<Vec<(u64, Scope)>> = const { RefCell::new(Vec::new()) };
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

/// Returns the choice of the innermost scope of a device.
pub(super) fn innermost(device: DeviceId) -> Option<Choice> {
    // A thread that is ending is in no scope.
    let found = ENTERED.try_with(|entered| {
        let entered = entered.borrow();
        let mut scopes = entered.iter().rev().map(|(_, scope)| scope);
        let scope = scopes.find(|scope| scope.device == device)?;
        Some(scope.choice.clone())
    });
    found.ok().flatten()
}

impl Scope {
    /// Creates a scope in which the pool is the current one of its device.
    pub fn pool(pool: &Pool) -> Self {
        Self {
            device: pool.device().id(),
            choice: Choice::Seat(Arc::new(Seat::new(pool.clone()))),
        }
    }

    /// Creates a scope in which pooling is enabled or disabled for a device, whatever is
    /// [set](super::Current::set_pooling) for the process. If it is enabled, the pool that is otherwise current is
    /// used.
    pub fn pooling(device: &impl AsDevice, pooling: Pooling) -> Self {
        Self {
            device: device.device_id(),
            choice: Choice::Pooling(pooling),
        }
    }

    /// Enters the scope on this thread, until the returned guard is dropped.
    ///
    /// Do not hold the guard across an `.await`: while the task waits, other futures that the thread polls would be in
    /// the scope as well. (If tasks can move between threads, this does not compile.) Use [`run`](Self::run) instead.
    pub fn enter(&self) -> Entered {
        let number = NEXT.with(|next| next.replace(next.get() + 1));
        // A thread that is ending may drop futures that were in a scope. They are in no scope then.
        let _ = ENTERED.try_with(|entered| entered.borrow_mut().push((number, self.clone())));
        Entered {
            number,
            of_this_thread: PhantomData,
        }
    }

    /// Runs a future in the scope, on any executor. The scope is entered for each poll, on whichever thread, and left
    /// after it. Tasks that the future spawns are not in the scope.
    ///
    /// # Cancel safety
    /// If the future is dropped early, it is dropped in the scope, which is left afterwards.
    pub fn run<F: Future>(&self, future: F) -> Scoped<F> {
        Scoped {
            scope: self.clone(),
            future: Some(future),
        }
    }
}

/// A scope that this thread is in. Dropping this leaves the scope. See [`Scope::enter`].
#[derive(Debug)]
#[must_use = "the scope is left when this is dropped"]
pub struct Entered {
    number: u64,
    /// The scope has to be left on the thread on which it was entered.
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // Searches the whole list, because guards may be dropped in any order.
        let left = ENTERED.try_with(|entered| {
            let mut entered = entered.borrow_mut();
            let at = entered
                .iter()
                .rposition(|(number, _)| *number == self.number)?;
            Some(entered.remove(at))
        });
        // Dropped outside the borrow: it may drop the last handle of a pool, and that may ask for the current pool.
        drop(left);
    }
}

pin_project! {
    /// A future in a scope; see [`Scope::run`].
    ///
    /// # Panics
    /// Panics if polled after it was ready.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Scoped<F> {
        scope: Scope,
        // `None` once it was ready, or while it is being dropped.
        #[pin]
        future: Option<F>,
    }

    impl<F> PinnedDrop for Scoped<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            let _entered = this.scope.enter();
            this.future.set(None);
        }
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let _entered = this.scope.enter();
        let future = this.future.as_mut().as_pin_mut();
        let polled = future.expect("polled after it was ready").poll(context);
        if polled.is_ready() {
            // Dropped while still in the scope.
            this.future.set(None);
        }
        polled
    }
}
