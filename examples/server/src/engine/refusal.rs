//! Why a request is not admitted.

use weirpool::AllocError;
use weirpool_tiers::RegionError;

/// The reason why a request is not admitted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(transparent)]
    Memory(#[from] AllocError),
    /// The weights could not be woken in time: others hold the memory, or the turn.
    #[error("the weights are not back in time: {0}")]
    Asleep(RegionError),
    /// Other requests had the turn to wait for memory.
    #[error("the request was not admitted in time: others wait for memory before it")]
    Late,
    #[error("the device has failed: {0}")]
    Broken(String),
}

impl From<RegionError> for Refusal {
    fn from(error: RegionError) -> Self {
        match error {
            RegionError::Alloc(error) => Self::Memory(error),
            RegionError::Busy { .. } | RegionError::DeviceFull { .. } => Self::Asleep(error),
            error => Self::Broken(error.to_string()),
        }
    }
}
