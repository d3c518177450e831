//! The tasks that wait for memory, in the order in which they began to wait.
//!
//! A replay cannot ask its model to free memory: when every task waits and the device is idle, the allocation that has
//! waited longest will never be served. [`Patience`] ends the longest wait on demand.

use pin_project::{pin_project, pinned_drop};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The order in which futures began to wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patience {
    shared: Rc<RefCell<Waits>>,
}

#[derive(Debug, Default)]
struct Waits {
    begun: u64,
    polls: u64,
    /// The wakers in the order of the waits; `None` where the wait has ended.
    waiting: BTreeMap<u64, Option<Waker>>,
}

impl Patience {
    /// Awaits `future`; returns `None` if [`end_longest`](Self::end_longest) ends the wait first.
    pub(crate) fn wait<F: Future>(&self, future: F) -> Patient<F> {
        Patient {
            future,
            number: None,
            patience: self.clone(),
        }
    }

    /// Ends the longest wait. Returns `false` if there is none.
    pub(crate) fn end_longest(&self) -> bool {
        let mut waits = self.shared.borrow_mut();
        let longest = waits.waiting.values_mut().find_map(Option::take);
        // The waker may poll, and the poll borrows again.
        drop(waits);
        longest.inspect(Waker::wake_by_ref).is_some()
    }

    /// Returns a number that grows when a wait begins and when a waiting future is polled again; `None` without waits.
    pub(crate) fn signs(&self) -> Option<u64> {
        let waits = self.shared.borrow();
        (!waits.waiting.is_empty()).then_some(waits.begun + waits.polls)
    }

    fn begin(&self, waker: &Waker) -> u64 {
        let mut waits = self.shared.borrow_mut();
        let number = waits.begun;
        waits.begun += 1;
        waits.waiting.insert(number, Some(waker.clone()));
        number
    }

    /// Returns whether the wait of this number may go on.
    fn may_go_on(&self, number: u64, waker: &Waker) -> bool {
        let mut waits = self.shared.borrow_mut();
        waits.polls += 1;
        match waits.waiting.get_mut(&number) {
            Some(Some(known)) => {
                known.clone_from(waker);
                true
            }
            _ => false,
        }
    }
}

/// The future of [`Patience::wait`].
#[pin_project(PinnedDrop)]
#[derive(Debug)]
pub(crate) struct Patient<F> {
    #[pin]
    future: F,
    number: Option<u64>,
    patience: Patience,
}

impl<F: Future> Future for Patient<F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(context) {
            return Poll::Ready(Some(output));
        }
        let waker = context.waker();
        let number = *this
            .number
            .get_or_insert_with(|| this.patience.begin(waker));
        if this.patience.may_go_on(number, waker) {
            Poll::Pending
        } else {
            Poll::Ready(None)
        }
    }
}

#[pinned_drop]
impl<F> PinnedDrop for Patient<F> {
    fn drop(self: Pin<&mut Self>) {
        if let Some(number) = self.number {
            self.patience.shared.borrow_mut().waiting.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::channel::oneshot;
    use futures::executor::LocalPool;
    use futures::task::LocalSpawnExt;

    type Answers = Rc<RefCell<Vec<(u32, bool)>>>;

    fn spawn(
        executor: &LocalPool,
        patience: &Patience,
        answers: &Answers,
        name: u32,
    ) -> oneshot::Sender<()> {
        let (sender, receiver) = oneshot::channel();
        let waiting = patience.wait(receiver);
        let answers = answers.clone();
        let task = async move {
            let served = waiting.await.is_some();
            answers.borrow_mut().push((name, served));
        };
        executor.spawner().spawn_local(task).unwrap();
        sender
    }

    #[test]
    fn longest_wait_ends_first() {
        let (mut executor, patience) = (LocalPool::new(), Patience::default());
        let answers = Answers::default();
        let _first = spawn(&executor, &patience, &answers, 1);
        executor.run_until_stalled();
        let second = spawn(&executor, &patience, &answers, 2);
        executor.run_until_stalled();
        assert!(patience.end_longest());
        executor.run_until_stalled();
        assert_eq!(*answers.borrow(), [(1, false)]);
        second.send(()).unwrap();
        executor.run_until_stalled();
        assert_eq!(*answers.borrow(), [(1, false), (2, true)]);
        assert!(!patience.end_longest());
    }

    #[test]
    fn signs_grow_with_waits_and_polls() {
        let patience = Patience::default();
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(patience.signs(), None);
        let wait = || Box::pin(patience.wait(std::future::pending::<()>()));
        let mut waiting = [wait(), wait()];
        let mut signs = Vec::new();
        for index in [0, 1, 0] {
            assert!(waiting[index].as_mut().poll(&mut context).is_pending());
            signs.push(patience.signs().unwrap());
        }
        assert!(signs.windows(2).all(|two| two[0] < two[1]), "{signs:?}");
        drop(waiting);
        assert_eq!(patience.signs(), None);
    }

    #[test]
    fn wait_that_is_served_in_time_does_not_end() {
        let (mut executor, patience) = (LocalPool::new(), Patience::default());
        let answers = Answers::default();
        let only = spawn(&executor, &patience, &answers, 1);
        executor.run_until_stalled();
        assert!(patience.end_longest());
        only.send(()).unwrap();
        executor.run_until_stalled();
        assert_eq!(*answers.borrow(), [(1, true)]);
    }

    #[test]
    fn dropped_wait_is_forgotten() {
        let patience = Patience::default();
        let mut waiting = Box::pin(patience.wait(std::future::pending::<()>()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        drop(waiting);
        assert!(!patience.end_longest());
    }
}
