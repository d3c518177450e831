//! To whom a block is charged, and what of it was not asked for.

use crate::measure::Tag;

/// What was not asked for of a block's bytes, and the tag whose account it is on.
///
/// In one word. A block that is passed on is copied word by word, and to read in one what was just written in two stalls.
#[derive(Clone, Copy)]
pub(super) struct Charge(u64);

impl Charge {
    #[inline(always)]
    pub(super) fn new(rounding: u32, tag: Option<Tag>) -> Self {
        let number = tag.map_or(0, Tag::number);
        Self(u64::from(number) << u32::BITS | u64::from(rounding))
    }

    #[inline]
    pub(super) fn rounding(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    pub(super) fn tag(self) -> Option<Tag> {
        Tag::of_number((self.0 >> u32::BITS) as u32)
    }

    /// Whether it is on nobody's account.
    #[inline]
    pub(super) fn is_nobodys(self) -> bool {
        self.0 >> u32::BITS == 0
    }

    pub(super) fn add_rounding(&mut self, rounding: u32) {
        *self = Self::new(self.rounding().saturating_add(rounding), self.tag());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_are_as_they_were_put_in() {
        let tag = Tag::new("charge");
        for (rounding, tag) in [
            (0, None),
            (u32::MAX, None),
            (0, Some(tag)),
            (u32::MAX, Some(tag)),
        ] {
            let charge = Charge::new(rounding, tag);
            assert_eq!((charge.rounding(), charge.tag()), (rounding, tag));
            assert_eq!(charge.is_nobodys(), tag.is_none());
        }
        let mut charge = Charge::new(u32::MAX - 1, Some(tag));
        charge.add_rounding(7);
        assert_eq!((charge.rounding(), charge.tag()), (u32::MAX, Some(tag)));
    }
}
