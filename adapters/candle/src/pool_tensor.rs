//! A tensor over a block.

use crate::storage::TakeOut;
use candle_core::Tensor;
use std::ops::Deref;
use weirpool::Block;

/// A tensor whose memory is a block of a pool: weights, or the keys and values of a request. It derefs to candle's
/// [`Tensor`], for all of candle's functions.
///
/// The memory goes back when this is dropped, behind the work that candle submitted so far. Operations on tensors that
/// share its storage (clones, `narrow`, `reshape`, `t`) return errors after that. Results of operations have memory of
/// their own, and stay.
///
/// If it is forgotten, the memory stays allocated, and the driver refuses to free it when the last clone is dropped.
#[derive(Debug)]
pub struct PoolTensor {
    tensor: Tensor,
    /// Taken when this is dropped.
    block: Option<Block>,
}

impl PoolTensor {
    pub(crate) fn new(tensor: Tensor, block: Block) -> Self {
        let block = Some(block);
        Self { tensor, block }
    }

    /// Returns the block.
    pub fn block(&self) -> &Block {
        self.block.as_ref().expect("taken only in the drop")
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
        let block = self.block.take();
        // Otherwise the storage still has the address: the memory is not reused.
        if self.tensor.inplace_op1(&TakeOut).is_err() {
            std::mem::forget(block);
        }
    }
}
