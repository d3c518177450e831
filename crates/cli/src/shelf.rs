//! The table through which streams hand each other what they allocated.
//!
//! Each thing is put once, or said to be missing once, and taken once; the taker may come first and
//! awaits it.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A table of things by their ids.
#[derive(Debug)]
pub(crate) struct Shelf<T> {
    places: RefCell<Vec<Place<T>>>,
}

#[derive(Debug)]
enum Place<T> {
    /// Nothing came yet; the waker is the taker's, if it is here.
    Empty(Option<Waker>),
    Put(T),
    /// It never comes.
    Missing,
    Taken,
}

impl<T> Shelf<T> {
    /// A large-block cache with places for the ids `0..length`.
    pub(crate) fn new(length: usize) -> Self {
        let places = (0..length).map(|_| Place::Empty(None)).collect();
        Self {
            places: RefCell::new(places),
        }
    }

    /// Puts the thing where its taker finds it.
    pub(crate) fn put(&self, id: usize, thing: T) {
        self.settle(id, Place::Put(thing));
    }

    /// Says that it never comes.
    pub(crate) fn miss(&self, id: usize) {
        self.settle(id, Place::Missing);
    }

    fn settle(&self, id: usize, place: Place<T>) {
        let before = std::mem::replace(&mut self.places.borrow_mut()[id], place);
        if let Place::Empty(Some(taker)) = before {
            taker.wake();
        }
    }

    /// Drops what was put and not taken. Takers of the rest wait on.
    pub(crate) fn clear(&self) {
        let mut places = self.places.borrow_mut();
        let is_put = |place: &&mut Place<T>| matches!(place, Place::Put(_));
        let take = |place: &mut Place<T>| std::mem::replace(place, Place::Taken);
        let left: Vec<_> = places.iter_mut().filter(is_put).map(take).collect();
        drop(places);
        drop(left);
    }

    /// Takes the thing once it is there; `None` when it never comes.
    pub(crate) async fn take(&self, id: usize) -> Option<T> {
        poll_fn(|context| self.poll_take(id, context.waker())).await
    }

    fn poll_take(&self, id: usize, waker: &Waker) -> Poll<Option<T>> {
        let place = &mut self.places.borrow_mut()[id];
        match std::mem::replace(place, Place::Taken) {
            Place::Empty(_) => {
                *place = Place::Empty(Some(waker.clone()));
                Poll::Pending
            }
            Place::Put(thing) => Poll::Ready(Some(thing)),
            Place::Missing | Place::Taken => Poll::Ready(None),
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
    fn what_was_put_is_taken_once() {
        let shelf = Shelf::new(2);
        shelf.put(1, "block");
        assert_eq!(shelf.take(1).now_or_never(), Some(Some("block")));
        assert_eq!(shelf.take(1).now_or_never(), Some(None));
        assert_eq!(shelf.take(0).now_or_never(), None);
    }

    #[test]
    fn what_nobody_took_is_dropped() {
        let shelf = Shelf::new(3);
        let thing = std::rc::Rc::new(());
        shelf.put(0, thing.clone());
        shelf.put(2, thing.clone());
        assert!(shelf.take(0).now_or_never().flatten().is_some());
        shelf.clear();
        assert_eq!(std::rc::Rc::strong_count(&thing), 1);
        assert_eq!(shelf.take(2).now_or_never(), Some(None));
    }

    #[test]
    fn an_early_taker_awaits_it() {
        let shelf = Shelf::new(1);
        let (taken, ()) = block_on(join(shelf.take(0), async { shelf.put(0, 7) }));
        assert_eq!(taken, Some(7));
    }

    #[test]
    fn a_taker_of_what_never_comes_is_told() {
        let shelf = Shelf::<u8>::new(1);
        let (taken, ()) = block_on(join(shelf.take(0), async { shelf.miss(0) }));
        assert_eq!(taken, None);
    }
}
