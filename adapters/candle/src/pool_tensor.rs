//! A tensor over a block.

use crate::storage::TakeOut;
use candle_core::Tensor;
use cudarc::driver::CudaSlice;
use std::ops::Deref;
use weirpool::Block;

/// A tensor whose memory is a block of a pool: weights, or the keys and values of a request. It derefs to candle's
/// [`Tensor`], for all of candle's functions.
///
/// The memory goes back when this is dropped, behind the work that candle submitted so far. Operations on tensors that
/// share its storage (clones, `narrow`, `reshape`, `t`) return errors after that. Results of operations have memory of
/// their own, and stay.
///
/// The drop waits for the lock of the storage: dropping this deadlocks while the same thread holds the guard of
/// `storage_and_layout` of this tensor, of a clone or of a view. Drop the guard first.
///
/// Besides the block it holds a placeholder of 1 byte, which the driver allocates.
///
/// If it is forgotten, the memory stays allocated, and the driver refuses to free it when the last clone is dropped.
#[derive(Debug)]
pub struct PoolTensor {
    tensor: Tensor,
    /// The block, and the placeholder that the drop puts into the storage instead. Taken when this is dropped.
    held: Option<(Block, CudaSlice<u8>)>,
}

impl PoolTensor {
    pub(crate) fn new(tensor: Tensor, block: Block, placeholder: CudaSlice<u8>) -> Self {
        let held = Some((block, placeholder));
        Self { tensor, held }
    }

    /// Returns the block.
    pub fn block(&self) -> &Block {
        let (block, _) = self.held.as_ref().expect("taken only in the drop");
        block
    }
}

impl Deref for PoolTensor {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

impl Drop for PoolTensor {
    fn drop(&mut self) {
        let Some((block, placeholder)) = self.held.take() else {
            return;
        };
        let take_out = TakeOut::for_placeholder(placeholder);
        if self.tensor.inplace_op1(&take_out).is_err() {
            // The storage may still have the address: the pool does not reuse the memory, and the driver is never asked to
            // free it.
            std::mem::forget((block, self.tensor.clone()));
        }
    }
}
