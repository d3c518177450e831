//! Names of streams and events, as a driver gives them: small numbers that are reused once free.
//!
//! A name carries the number of its device, so that other devices do not know it. This module does not know the kind of
//! the named objects.

use weirpool_device::DeviceId;

/// Values by name, for one device.
#[derive(Debug)]
pub(super) struct Names<T> {
    base: u64,
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Names<T> {
    pub(super) fn new(device: DeviceId) -> Self {
        Self {
            base: device.0 << 32,
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Stores `value` under the name that was freed last, or under a new one.
    pub(super) fn insert(&mut self, value: T) -> u64 {
        self.insert_with(|_| value)
    }

    /// Stores a value that holds its own name, under the name that was freed last or under a new one.
    pub(super) fn insert_with(&mut self, value: impl FnOnce(u64) -> T) -> u64 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len()).expect("fewer than 2^32 streams or events") - 1
        });
        let name = self.base + u64::from(slot) + 1;
        self.slots[slot as usize] = Some(value(name));
        name
    }

    pub(super) fn get(&self, name: u64) -> Option<&T> {
        self.slots.get(self.slot(name)?)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, name: u64) -> Option<&mut T> {
        let slot = self.slot(name)?;
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Removes the value. Its name is free from now on.
    pub(super) fn remove(&mut self, name: u64) -> Option<T> {
        let slot = self.slot(name)?;
        let value = self.slots.get_mut(slot)?.take()?;
        self.free.push(slot as u32);
        Some(value)
    }

    /// Returns all values, by rising name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        (self.base + 1..)
            .zip(&self.slots)
            .filter_map(|(name, slot)| Some((name, slot.as_ref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }

    fn slot(&self, name: u64) -> Option<usize> {
        let slot = name.checked_sub(self.base + 1)?;
        usize::try_from(slot).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_reused_and_foreign_ones_unknown() {
        let mut names = Names::new(DeviceId(3));
        let first = names.insert('a');
        let second = names.insert('b');
        assert_eq!(names.remove(first), Some('a'));
        assert_eq!(names.remove(first), None);
        assert_eq!(names.insert('c'), first);
        assert_eq!(names.get(second), Some(&'b'));
        assert_eq!(Names::<char>::new(DeviceId(4)).get(second), None);
        assert_eq!(names.get(0), None);
    }
}
