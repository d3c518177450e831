//! Plain memory: taken and given back with its addresses, in one piece, of any kind.

use super::space::{Mapping, Refusable, Reservation, Space, invalid, span};
use crate::builder::GRANULARITY;
use weirpool_device::MemoryKind;

impl Space {
    pub(crate) fn allocate(&mut self, kind: MemoryKind, bytes: u64) -> Refusable<u64> {
        let Some(rounded) = bytes
            .checked_next_multiple_of(GRANULARITY)
            .filter(|&all| all > 0)
        else {
            return invalid(format!("a size of {bytes} bytes"));
        };
        let handle = self.create(kind, rounded)?;
        let address = match self.find_addresses(rounded) {
            Ok(address) => address,
            Err(refusal) => {
                self.destroy(handle)?;
                return Err(refusal);
            }
        };
        let plain = Some(handle);
        self.reservations
            .insert(address, Reservation { bytes, plain });
        let mapping = Mapping {
            bytes: rounded,
            handle,
        };
        self.mappings.insert(address, mapping);
        self.known(handle)?.mapped_at = Some(address);
        Ok(address)
    }

    pub(crate) fn free(&mut self, kind: MemoryKind, address: u64, bytes: u64) -> Refusable<()> {
        let range = self.reservations.get(&address).copied();
        let handle = match range {
            Some(Reservation {
                bytes: size,
                plain: Some(handle),
            }) if size == bytes => handle,
            _ => return invalid(format!("{} is no plain memory", span(address, bytes))),
        };
        let taken = self.known(handle)?.kind;
        if taken != kind {
            return invalid(format!("{} is {taken}, not {kind}", span(address, bytes)));
        }
        self.forget_mapping(address, handle);
        self.reservations.remove(&address);
        self.destroy(handle)
    }
}
