//! The prefix cache: pages of earlier requests, by the tokens that they begin with, until the pool evicts them.
//!
//! Each tenant has a tree of its own, so that no tenant learns the prompts of another. A node is a page that follows
//! the page above it. A page is evicted by the pool; its node stays while nodes below it have pages.

use std::collections::HashMap;
use weirpool::{Block, Evictable, Pinned, Tag};

/// See the [module](self).
pub(super) struct Prefixes {
    /// The tokens of a page.
    page: usize,
    tenants: HashMap<Tag, Node>,
    nodes: usize,
    /// The number of nodes after the last sweep.
    swept: usize,
    figures: PrefixFigures,
}

/// Figures of the prefix cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefixFigures {
    /// Tokens of prompts.
    pub(crate) asked: u64,
    /// Tokens of prompts whose keys and values were found.
    pub(crate) found: u64,
}

#[derive(Default)]
struct Node {
    page: Option<Evictable>,
    following: HashMap<Box<[u32]>, Node>,
}

impl Prefixes {
    pub(super) fn new(page: usize) -> Self {
        Self {
            page,
            tenants: HashMap::new(),
            nodes: 0,
            swept: 0,
            figures: PrefixFigures::default(),
        }
    }

    pub(super) fn figures(&self) -> PrefixFigures {
        self.figures
    }

    /// Pins the pages that a prompt begins with. At least one token of the prompt is left, since its logits are needed.
    pub(super) fn pin(&mut self, tenant: Tag, prompt: &[u32]) -> Vec<Pinned> {
        let mut pages = Vec::new();
        let mut node = self.tenants.get(&tenant);
        for tokens in prompt[..prompt.len() - 1].chunks_exact(self.page) {
            node = node.and_then(|node| node.following.get(tokens));
            let Some(page) = node.and_then(|node| node.page.as_ref()?.pin()) else {
                break;
            };
            pages.push(page);
        }
        pages
    }

    /// Returns how many pages [`pin`](Self::pin) would find.
    pub(super) fn found(&self, tenant: Tag, prompt: &[u32]) -> usize {
        let mut node = self.tenants.get(&tenant);
        let pages = prompt[..prompt.len() - 1].chunks_exact(self.page);
        let is_found = |tokens: &[u32]| {
            node = node.and_then(|node| node.following.get(tokens));
            let page = node.and_then(|node| node.page.as_ref());
            page.is_some_and(Evictable::is_present)
        };
        pages.map(is_found).take_while(|is_found| *is_found).count()
    }

    /// Counts a prompt that was admitted with this many of its pages.
    pub(super) fn count(&mut self, prompt: usize, pages: usize) {
        self.figures.asked += prompt as u64;
        self.figures.found += (pages * self.page) as u64;
    }

    /// Adds the pages of `tokens` from page `first` on. Returns the pages that were there already.
    pub(super) fn insert(
        &mut self,
        tenant: Tag,
        tokens: &[u32],
        first: usize,
        pages: Vec<Block>,
    ) -> Vec<Block> {
        let mut following = &mut self.tenants.entry(tenant).or_default().following;
        let mut surplus = Vec::new();
        let mut added: Vec<(&mut Option<Evictable>, Block)> = Vec::new();
        let mut pages = pages.into_iter();
        for (index, tokens) in tokens.chunks_exact(self.page).enumerate() {
            let node = following.entry(tokens.into()).or_insert_with(|| {
                self.nodes += 1;
                Node::default()
            });
            if index >= first {
                let Some(block) = pages.next() else { break };
                match &node.page {
                    Some(page) if page.is_present() => surplus.push(block),
                    _ => added.push((&mut node.page, block)),
                }
            }
            following = &mut node.following;
        }
        // The last page first: the page listed first is evicted first, and a page is of no use without those before it.
        for (page, block) in added.into_iter().rev() {
            *page = Some(block.into_evictable());
        }
        surplus.extend(pages);
        self.sweep();
        surplus
    }

    /// Drops all pages.
    pub(super) fn clear(&mut self) {
        self.tenants.clear();
        (self.nodes, self.swept) = (0, 0);
    }

    /// Removes unused nodes, once they may be half of all nodes.
    fn sweep(&mut self) {
        if self.nodes < 2 * self.swept + 1024 {
            return;
        }
        self.tenants.values_mut().for_each(Node::prune);
        self.nodes = self.tenants.values().map(Node::count).sum();
        self.swept = self.nodes;
    }
}

impl Node {
    fn prune(&mut self) {
        self.following.values_mut().for_each(Self::prune);
        self.following.retain(|_, node| {
            let is_present = node.page.as_ref().is_some_and(Evictable::is_present);
            is_present || !node.following.is_empty()
        });
    }

    fn count(&self) -> usize {
        let below = self.following.values().map(|node| 1 + node.count());
        below.sum()
    }
}
