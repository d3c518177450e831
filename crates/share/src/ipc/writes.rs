//! Writing blocks that a value describes.
//!
//! Such a value gives out no `&mut Block`: safe code could swap the block for another one, which the value then
//! describes wrongly.

/// Implements the uses that need exclusive access for a type with a field `block`.
macro_rules! writes {
    ($type:ty) => {
        /// Writes. They are those of [`Block`](weirpool::Block). Submitted work takes `&mut` of this value as memory that it
        /// writes, and `&` of it as memory that it reads.
        impl $type {
            /// Copies bytes into the block; see [`Block::upload`](weirpool::Block::upload).
            ///
            /// # Errors
            /// Returns the errors of `Block::upload`.
            #[track_caller]
            pub fn upload(
                &mut self,
                stream: &weirpool::Stream,
                offset: u64,
                bytes: &[u8],
            ) -> Result<weirpool::Upload, weirpool::CopyError> {
                self.block.upload(stream, offset, bytes)
            }

            /// Copies bytes of another block into this one, starting `offset` bytes from its beginning; see
            /// [`Block::copy_to`](weirpool::Block::copy_to).
            ///
            /// # Errors
            /// Returns the errors of `Block::copy_to`.
            #[track_caller]
            pub fn copy_from(
                &mut self,
                from: &weirpool::Block,
                range: std::ops::Range<u64>,
                offset: u64,
                stream: &weirpool::Stream,
            ) -> Result<weirpool::Upload, weirpool::CopyError> {
                from.copy_to(range, &mut self.block, offset, stream)
            }

            /// Fills the block with zeros; see [`Block::zero`](weirpool::Block::zero).
            ///
            /// # Errors
            /// Returns the errors of `Block::zero`.
            #[track_caller]
            pub fn zero(&mut self, stream: &weirpool::Stream) -> Result<(), weirpool::CopyError> {
                self.block.zero(stream)
            }

            /// Fills the block with one byte; see [`Block::fill`](weirpool::Block::fill).
            ///
            /// # Errors
            /// Returns the errors of `Block::fill`.
            #[track_caller]
            pub fn fill(
                &mut self,
                stream: &weirpool::Stream,
                fill: impl Into<weirpool::Fill>,
            ) -> Result<(), weirpool::CopyError> {
                self.block.fill(stream, fill)
            }

            /// Returns a part of the block for writing; see [`Block::slice_mut`](weirpool::Block::slice_mut).
            ///
            /// # Errors
            /// Returns the errors of `Block::slice_mut`.
            pub fn slice_mut(
                &mut self,
                range: std::ops::Range<u64>,
            ) -> Result<weirpool::SliceMut<'_, u8>, weirpool::CopyError> {
                self.block.slice_mut(range)
            }

            /// Moves the block to a stream; see [`Block::move_to`](weirpool::Block::move_to).
            ///
            /// # Errors
            /// Returns the errors of `Block::move_to`.
            pub fn move_to(
                &mut self,
                stream: &weirpool::Stream,
            ) -> Result<(), weirpool::StreamError> {
                self.block.move_to(stream)
            }
        }

        impl<'a> weirpool::Accesses for &'a $type {
            type Arguments = weirpool::device::Argument<'a>;

            fn order(
                self,
                order: &mut weirpool::AccessOrder<'_>,
            ) -> Result<Self::Arguments, weirpool::StreamError> {
                weirpool::Accesses::order(&self.block, order)
            }
        }

        impl<'a> weirpool::Accesses for &'a mut $type {
            type Arguments = weirpool::device::Argument<'a>;

            fn order(
                self,
                order: &mut weirpool::AccessOrder<'_>,
            ) -> Result<Self::Arguments, weirpool::StreamError> {
                weirpool::Accesses::order(&mut self.block, order)
            }
        }
    };
}

pub(super) use writes;
