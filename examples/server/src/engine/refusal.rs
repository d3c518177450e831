//! Why a request is not admitted.

use weirpool::AllocError;
use weirpool_tiers::RegionError;

/// The reason why a request is not admitted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(transparent)]
    Memory(#[from] AllocError),
    #[error("the device has failed: {0}")]
    Broken(String),
}

impl From<RegionError> for Refusal {
    fn from(error: RegionError) -> Self {
        match error {
            RegionError::Alloc(error) => Self::Memory(error),
            error => Self::Broken(error.to_string()),
        }
    }
}
