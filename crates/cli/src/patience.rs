//! Who waits for memory, and who is told to give up.
//!
//! A replay cannot ask its model to free something: when every task waits and the device has
//! nothing left to do, the allocation that has waited longest will never be served. [`Patience`]
//! keeps the order in which allocations began to wait, and ends the longest wait on demand.

use pin_project::{pin_project, pinned_drop};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Keeps the order in which futures began to wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patience {
    shared: Rc<RefCell<Waits>>,
}

#[derive(Debug, Default)]
struct Waits {
    begun: u64,
    looks: u64,
    /// By the order of their beginning; `None` has been told to give up.
    waiting: BTreeMap<u64, Option<Waker>>,
}

impl Patience {
    /// Awaits `future`; `None` when told to give it up before it was ready.
    pub(crate) fn wait<F: Future>(&self, future: F) -> Patient<F> {
        Patient {
            future,
            place: None,
            patience: self.clone(),
        }
    }

    /// Tells the future that has waited longest to give up; `false` when none waits.
    pub(crate) fn end_longest(&self) -> bool {
        let mut waits = self.shared.borrow_mut();
        let longest = waits.waiting.values_mut().find_map(Option::take);
        // The waker may poll, and the poll borrows again.
        drop(waits);
        longest.inspect(Waker::wake_by_ref).is_some()
    }

    /// A number that grows when somebody begins to wait, and when one who waits looks again; none while
    /// nobody waits.
    pub(crate) fn signs(&self) -> Option<u64> {
        let waits = self.shared.borrow();
        (!waits.waiting.is_empty()).then_some(waits.begun + waits.looks)
    }

    fn begin(&self, waker: &Waker) -> u64 {
        let mut waits = self.shared.borrow_mut();
        let place = waits.begun;
        waits.begun += 1;
        waits.waiting.insert(place, Some(waker.clone()));
        place
    }

    /// Whether the one at `place` may wait on.
    fn may_go_on(&self, place: u64, waker: &Waker) -> bool {
        let mut waits = self.shared.borrow_mut();
        waits.looks += 1;
        match waits.waiting.get_mut(&place) {
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
    place: Option<u64>,
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
        let place = *this.place.get_or_insert_with(|| this.patience.begin(waker));
        if this.patience.may_go_on(place, waker) {
            Poll::Pending
        } else {
            Poll::Ready(None)
        }
    }
}

#[pinned_drop]
impl<F> PinnedDrop for Patient<F> {
    fn drop(self: Pin<&mut Self>) {
        if let Some(place) = self.place {
            self.patience.shared.borrow_mut().waiting.remove(&place);
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
    fn the_longest_wait_ends_first() {
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
    fn there_are_signs_of_who_begins_and_of_who_looks_again() {
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
    fn one_that_is_served_in_time_does_not_give_up() {
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
    fn a_dropped_wait_leaves_no_trace() {
        let patience = Patience::default();
        let mut waiting = Box::pin(patience.wait(std::future::pending::<()>()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        drop(waiting);
        assert!(!patience.end_longest());
    }
}
