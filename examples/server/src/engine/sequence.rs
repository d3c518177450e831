//! A request in the batch of a worker.

use super::open::Open;
use super::turns::Ask;
use crate::kernels::Span;
use crate::model::Sampling;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;
use weirpool::{Block, Pinned, Reservation, Tag};

/// The parameters of a request.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// At least one token.
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: usize,
    pub(crate) sampling: Sampling,
    pub(crate) tenant: Tag,
    pub(crate) deadline: Instant,
    /// The client chose the deadline: the earlier it is, the earlier the request is served.
    pub(crate) is_urgent: bool,
}

/// An event that a request receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Token(u32),
    Finished(Finish),
    /// The answer ends early, for this reason.
    Failed(String),
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// It has as many tokens as were requested.
    Length,
    /// Its deadline passed.
    Deadline,
}

/// A page of a sequence's cache.
pub(super) enum Page {
    /// Found in the prefix cache: complete, and only read.
    Shared(Pinned),
    Own(Block),
}

impl Page {
    pub(super) fn span(&self) -> Span {
        let block: &Block = match self {
            Self::Shared(pinned) => pinned,
            Self::Own(block) => block,
        };
        Span {
            address: block.address().to_bits(),
            bytes: block.size(),
        }
    }
}

/// See the [module](self).
pub(super) struct Sequence {
    /// The prompt, and the answer so far.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt: usize,
    /// The tokens whose keys and values are in the pages.
    pub(super) done: usize,
    pub(super) max_tokens: usize,
    pub(super) sampling: Sampling,
    pub(super) tenant: Tag,
    /// The weight of the tenant.
    pub(super) weight: u32,
    pub(super) deadline: Instant,
    pub(super) pages: Vec<Page>,
    /// The number of pages that came from the prefix cache.
    pub(super) shared: usize,
    /// Unbounded, since an answer is short: a slow reader holds no memory of the device.
    pub(super) events: mpsc::UnboundedSender<Event>,
    pub(super) open: Arc<Open>,
    /// Memory for the rest of the context, if each request has a fixed part of the memory.
    pub(super) _split: Option<Reservation>,
    /// The engine does not end before this is dropped.
    pub(super) _admission: TaskTrackerToken,
}

impl Sequence {
    /// Returns what it could use of a step: the tokens whose keys and values are not in the pages yet.
    pub(super) fn ask(&self) -> Ask {
        Ask {
            tenant: self.tenant,
            weight: self.weight,
            rows: self.tokens.len() - self.done,
        }
    }

    /// Appends a token of the answer. Returns false if the sequence has ended.
    pub(super) fn push(&mut self, token: u32) -> bool {
        self.tokens.push(token);
        if self.events.send(Event::Token(token)).is_err() {
            return false;
        }
        let is_complete = self.tokens.len() - self.prompt >= self.max_tokens;
        if is_complete {
            self.end(Event::Finished(Finish::Length));
        }
        !is_complete
    }

    /// Reports the end of the answer to the client.
    pub(super) fn end(&self, event: Event) {
        // A client that has gone needs no answer.
        let _ = self.events.send(event);
    }
}
