//! A box for data that few values have.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// A box for data that is rarely present. A value without it pays for one word, and for one check when it is dropped.
#[derive(Debug)]
pub struct Rare<T>(ManuallyDrop<Option<Box<T>>>);

impl<T> Rare<T> {
    /// No data.
    pub const NONE: Self = Self(ManuallyDrop::new(None));

    /// Boxes the data.
    pub fn new(rare: T) -> Self {
        Self::of(Box::new(rare))
    }

    /// Wraps data in its box.
    #[inline]
    pub fn of(rare: Box<T>) -> Self {
        Self(ManuallyDrop::new(Some(rare)))
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
        // Taken out, so that no drop code is compiled into the caller.
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
