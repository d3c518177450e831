//! The tag that a block is charged to, and the part of its bytes that was not requested.

use crate::measure::Tag;

/// The bytes of a block that were not requested, and the tag that it is charged to, if any.
///
/// Both share one word: a block that is moved is copied word by word, and reading in one word what was just written in two
/// stalls the processor.
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

    #[inline]
    pub(super) fn is_untagged(self) -> bool {
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
    fn rounding_and_tag_are_kept_apart() {
        let tag = Tag::new("charge");
        for (rounding, tag) in [
            (0, None),
            (u32::MAX, None),
            (0, Some(tag)),
            (u32::MAX, Some(tag)),
        ] {
            let charge = Charge::new(rounding, tag);
            assert_eq!((charge.rounding(), charge.tag()), (rounding, tag));
            assert_eq!(charge.is_untagged(), tag.is_none());
        }
        let mut charge = Charge::new(u32::MAX - 1, Some(tag));
        charge.add_rounding(7);
        assert_eq!((charge.rounding(), charge.tag()), (u32::MAX, Some(tag)));
    }
}
