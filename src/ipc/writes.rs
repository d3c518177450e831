//! Writing blocks that a value describes.
//!
//! Such a value gives out no `&mut Block`: safe code could swap the block for another one, which the value then
//! describes wrongly.

/// Implements the uses that need exclusive access for a type with a field `block`.
macro_rules! writes {
    ($type:ty) => {
        /// Writes. They are those of [`Block`](crate::Block). Submitted work takes `&mut` of this value as memory that it
        /// writes, and `&` of it as memory that it reads.
        impl $type {
            /// Returns the block as an argument of work that writes it; see [`Block::write_on`](crate::Block::write_on).
            ///
            /// # Errors
            /// Returns the errors of `Block::write_on`.
            pub fn write_on(
                &mut self,
                stream: &crate::Stream,
            ) -> Result<crate::device::Argument<'_>, crate::StreamError> {
                self.block.write_on(stream)
            }

            /// Copies bytes into the block; see [`Block::upload`](crate::Block::upload).
            ///
            /// # Errors
            /// Returns the errors of `Block::upload`.
            #[track_caller]
            pub fn upload(
                &mut self,
                stream: &crate::Stream,
                offset: u64,
                bytes: &[u8],
            ) -> Result<crate::Upload, crate::CopyError> {
                self.block.upload(stream, offset, bytes)
            }

            /// Copies bytes of another block into this one, starting `offset` bytes from its beginning; see
            /// [`Block::copy_to`](crate::Block::copy_to).
            ///
            /// # Errors
            /// Returns the errors of `Block::copy_to`.
            #[track_caller]
            pub fn copy_from(
                &mut self,
                from: &crate::Block,
                range: std::ops::Range<u64>,
                offset: u64,
                stream: &crate::Stream,
            ) -> Result<crate::Upload, crate::CopyError> {
                from.copy_to(range, &mut self.block, offset, stream)
            }

            /// Fills the block with zeros; see [`Block::zero`](crate::Block::zero).
            ///
            /// # Errors
            /// Returns the errors of `Block::zero`.
            #[track_caller]
            pub fn zero(&mut self, stream: &crate::Stream) -> Result<(), crate::CopyError> {
                self.block.zero(stream)
            }

            /// Fills the block with one byte; see [`Block::fill`](crate::Block::fill).
            ///
            /// # Errors
            /// Returns the errors of `Block::fill`.
            #[track_caller]
            pub fn fill(
                &mut self,
                stream: &crate::Stream,
                fill: impl Into<crate::Fill>,
            ) -> Result<(), crate::CopyError> {
                self.block.fill(stream, fill)
            }

            /// Returns a part of the block for writing; see [`Block::slice_mut`](crate::Block::slice_mut).
            ///
            /// # Errors
            /// Returns the errors of `Block::slice_mut`.
            pub fn slice_mut(
                &mut self,
                range: std::ops::Range<u64>,
            ) -> Result<crate::SliceMut<'_, u8>, crate::CopyError> {
                self.block.slice_mut(range)
            }

            /// Moves the block to a stream; see [`Block::move_to`](crate::Block::move_to).
            ///
            /// # Errors
            /// Returns the errors of `Block::move_to`.
            pub fn move_to(&mut self, stream: &crate::Stream) -> Result<(), crate::StreamError> {
                self.block.move_to(stream)
            }
        }

        impl<'a> crate::Accesses for &'a $type {
            type Arguments = crate::device::Argument<'a>;

            fn order(
                self,
                order: &mut crate::AccessOrder<'_>,
            ) -> Result<Self::Arguments, crate::StreamError> {
                crate::Accesses::order(&self.block, order)
            }
        }

        impl<'a> crate::Accesses for &'a mut $type {
            type Arguments = crate::device::Argument<'a>;

            fn order(
                self,
                order: &mut crate::AccessOrder<'_>,
            ) -> Result<Self::Arguments, crate::StreamError> {
                crate::Accesses::order(&mut self.block, order)
            }
        }
    };
}

pub(super) use writes;
