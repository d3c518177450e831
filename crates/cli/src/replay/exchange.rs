//! The table through which tasks hand each other their blocks.
//!
//! Each item is put once, or declared missing once, and taken once. A task that takes an item before it is put awaits
//! it.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A table of items by their ids.
#[derive(Debug)]
pub(crate) struct Exchange<T> {
    slots: RefCell<Vec<Slot<T>>>,
}

#[derive(Debug)]
enum Slot<T> {
    /// The item is not put yet; with the waker of the task that awaits it.
    Empty(Option<Waker>),
    Put(T),
    /// The item is never put.
    Missing,
    Taken,
}

impl<T> Exchange<T> {
    /// Returns a table for the ids `0..length`.
    pub(crate) fn new(length: usize) -> Self {
        let slots = (0..length).map(|_| Slot::Empty(None)).collect();
        Self {
            slots: RefCell::new(slots),
        }
    }

    /// Puts an item, and wakes the task that awaits it.
    pub(crate) fn put(&self, id: usize, item: T) {
        self.settle(id, Slot::Put(item));
    }

    /// Declares an item missing, and wakes the task that awaits it.
    pub(crate) fn miss(&self, id: usize) {
        self.settle(id, Slot::Missing);
    }

    fn settle(&self, id: usize, slot: Slot<T>) {
        let before = std::mem::replace(&mut self.slots.borrow_mut()[id], slot);
        if let Slot::Empty(Some(taker)) = before {
            taker.wake();
        }
    }

    /// Drops the items that were put and not taken. Tasks that await other items wait on.
    pub(crate) fn clear(&self) {
        let mut slots = self.slots.borrow_mut();
        let is_put = |slot: &&mut Slot<T>| matches!(slot, Slot::Put(_));
        let take = |slot: &mut Slot<T>| std::mem::replace(slot, Slot::Taken);
        let left: Vec<_> = slots.iter_mut().filter(is_put).map(take).collect();
        drop(slots);
        drop(left);
    }

    /// Takes an item once it is put; returns `None` if it is missing.
    pub(crate) async fn take(&self, id: usize) -> Option<T> {
        poll_fn(|context| self.poll_take(id, context.waker())).await
    }

    fn poll_take(&self, id: usize, waker: &Waker) -> Poll<Option<T>> {
        let slot = &mut self.slots.borrow_mut()[id];
        match std::mem::replace(slot, Slot::Taken) {
            Slot::Empty(_) => {
                *slot = Slot::Empty(Some(waker.clone()));
                Poll::Pending
            }
            Slot::Put(item) => Poll::Ready(Some(item)),
            Slot::Missing | Slot::Taken => Poll::Ready(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::executor::block_on;
    use futures::future::join;

    #[test]
    fn item_is_taken_once() {
        let exchange = Exchange::new(2);
        exchange.put(1, "block");
        assert_eq!(exchange.take(1).now_or_never(), Some(Some("block")));
        assert_eq!(exchange.take(1).now_or_never(), Some(None));
        assert_eq!(exchange.take(0).now_or_never(), None);
    }

    #[test]
    fn items_left_are_dropped() {
        let exchange = Exchange::new(3);
        let item = std::rc::Rc::new(());
        exchange.put(0, item.clone());
        exchange.put(2, item.clone());
        assert!(exchange.take(0).now_or_never().flatten().is_some());
        exchange.clear();
        assert_eq!(std::rc::Rc::strong_count(&item), 1);
        assert_eq!(exchange.take(2).now_or_never(), Some(None));
    }

    #[test]
    fn early_taker_awaits_the_item() {
        let exchange = Exchange::new(1);
        let (taken, ()) = block_on(join(exchange.take(0), async { exchange.put(0, 7) }));
        assert_eq!(taken, Some(7));
    }

    #[test]
    fn taker_of_a_missing_item_is_told() {
        let exchange = Exchange::<u8>::new(1);
        let (taken, ()) = block_on(join(exchange.take(0), async { exchange.miss(0) }));
        assert_eq!(taken, None);
    }
}
