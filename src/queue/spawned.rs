//! The pool's side of a reclaimer that was spawned.

use super::funnel::{Funnel, Member};
use crate::sync::Link;
use std::task::Waker;

/// The service's part of a reclaimer that was spawned for as long as requests wait.
#[derive(Debug)]
pub(super) struct Spawned<T> {
    pub(super) link: Link<T>,
    pub(super) member: Member,
}

impl<T> Spawned<T> {
    /// Ends the reclaimer. Returns the waker that tells its task so.
    pub(super) fn dismiss(self, funnel: &Funnel) -> Option<Waker> {
        drop(self.link.cut());
        funnel.resign(self.member).flatten()
    }
}
