//! The reference: a list in the order of the last use.

use crate::caches::Cache;
use std::collections::{BTreeMap, HashMap};

/// As many blocks as were used last.
pub(crate) struct Lru {
    capacity: usize,
    /// The last use of each block.
    used_at: HashMap<u64, u64>,
    /// The blocks by their last use.
    order: BTreeMap<u64, u64>,
    uses: u64,
}

impl Lru {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            used_at: HashMap::new(),
            order: BTreeMap::new(),
            uses: 0,
        }
    }

    /// Uses a block. Returns whether it was there.
    pub(crate) fn touch(&mut self, block: u64) -> bool {
        self.uses += 1;
        let earlier = self.used_at.insert(block, self.uses);
        if let Some(earlier) = earlier {
            self.order.remove(&earlier);
        }
        self.order.insert(self.uses, block);
        earlier.is_some()
    }

    /// Removes the block that was used least recently.
    pub(crate) fn pop(&mut self) -> Option<u64> {
        let (_, block) = self.order.pop_first()?;
        self.used_at.remove(&block);
        Some(block)
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }
}

impl Cache for Lru {
    fn request(&mut self, blocks: &[u64]) -> anyhow::Result<Vec<bool>> {
        let use_one = |block: &u64| {
            let is_hit = self.touch(*block);
            if self.len() > self.capacity {
                self.pop();
            }
            is_hit
        };
        Ok(blocks.iter().map(use_one).collect())
    }
}
