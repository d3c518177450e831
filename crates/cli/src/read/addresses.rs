//! Allocations that a recorder names by their addresses, which are used again after a free.

use crate::trace::fault::{Fault, Location};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The live allocations by address, each with an id of its own.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    live: HashMap<u64, Live>,
    allocations: u64,
}

/// An allocation that is not freed yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    pub(super) id: u64,
    pub(super) bytes: u64,
    pub(super) location: Location,
}

impl Addresses {
    /// Returns the id of a new allocation at `address`.
    pub(super) fn allocate(
        &mut self,
        address: u64,
        bytes: u64,
        location: Location,
    ) -> Result<u64, Fault> {
        match self.live.entry(address) {
            Entry::Occupied(live) => Err(Fault::LiveAddress {
                address,
                first: live.get().location,
            }),
            Entry::Vacant(free) => {
                let id = self.allocations;
                self.allocations += 1;
                free.insert(Live {
                    id,
                    bytes,
                    location,
                });
                Ok(id)
            }
        }
    }

    /// Frees the allocation at `address` and returns it; `None` if the recording did not see it allocated.
    pub(super) fn free(&mut self, address: u64) -> Option<Live> {
        self.live.remove(&address)
    }

    pub(super) fn is_live(&self, address: u64) -> bool {
        self.live.contains_key(&address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_another_allocation_after_its_free() {
        let mut addresses = Addresses::default();
        assert_eq!(addresses.allocate(0x700, 8, Location::Line(2)), Ok(0));
        assert!(addresses.is_live(0x700));
        let again = addresses.allocate(0x700, 8, Location::Line(3));
        let (address, first) = (0x700, Location::Line(2));
        assert_eq!(again, Err(Fault::LiveAddress { address, first }));
        assert_eq!(addresses.free(0x700).map(|live| live.id), Some(0));
        assert!(addresses.free(0x700).is_none());
        assert_eq!(addresses.allocate(0x700, 8, Location::Line(5)), Ok(1));
    }
}
