//! What a block holds its stream by.

use crate::queue::Registration;
use crate::sync::Arc;
use std::ops::Deref;

/// A count of the stream's owners. It is there for as long as the block is, and left with the stream when that is freed.
#[derive(Debug)]
pub(super) struct Hold(pub(super) Option<Arc<Registration>>);

impl Hold {
    #[inline(always)]
    pub(super) fn new(registration: Arc<Registration>) -> Self {
        Self(Some(registration))
    }
}

impl Deref for Hold {
    type Target = Arc<Registration>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        self.0.as_ref().expect("left only when the block ends")
    }
}
