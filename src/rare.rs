//! What few have, out of the way of those that have none.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// A box for what is rarely there: who has none pays for a word, and for one look at it in the end.
#[derive(Debug)]
pub(crate) struct Rare<T>(ManuallyDrop<Option<Box<T>>>);

impl<T> Rare<T> {
    pub(crate) const NONE: Self = Self(ManuallyDrop::new(None));

    pub(crate) fn new(rare: T) -> Self {
        Self(ManuallyDrop::new(Some(Box::new(rare))))
    }
}

impl<T> Deref for Rare<T> {
    type Target = Option<Box<T>>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<T> DerefMut for Rare<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<T> Drop for Rare<T> {
    #[inline]
    fn drop(&mut self) {
        // Taken out, so that nothing is left to be dropped in line.
        if self.is_some() {
            end(self.take());
        }
    }
}

#[cold]
#[inline(never)]
fn end<T>(rare: Option<Box<T>>) {
    drop(rare);
}
