//! The three services: their memory, and their behaviour when memory is short.

use crate::bound::Shared;
use crate::lease::Admission;
use crate::model;
use crate::options::Options;

/// A variant of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Requests wait in the pool's queue.
    Waiting,
    /// Requests fail, pause and try again.
    Retrying,
    /// There is memory for all requests in flight.
    Unlimited,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Waiting, Self::Retrying, Self::Unlimited];

    /// Returns the name in tables, plots and JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Retrying => "retrying",
            Self::Unlimited => "unlimited",
        }
    }

    /// Returns the memory that requests share.
    pub(crate) fn shared(self, options: &Options) -> Shared {
        let limits = &options.limits;
        let bytes = match self {
            Self::Waiting | Self::Retrying => limits.room as u64 * model::average(),
            Self::Unlimited => limits.in_flight as u64 * model::largest(),
        };
        Shared {
            bytes,
            step: model::CHUNK,
        }
    }

    /// Returns the capacity of the pool, in bytes.
    pub(crate) fn capacity(self, options: &Options) -> u64 {
        model::WEIGHTS + self.shared(options).bytes
    }

    pub(crate) fn admission(self, options: &Options) -> Admission {
        match self {
            Self::Waiting | Self::Unlimited => Admission::Wait,
            Self::Retrying => Admission::Retry {
                tries: options.limits.tries,
                seed: options.load.seed,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn only_the_unlimited_service_has_memory_for_all() {
        let options = Options::parse_from(["inference"]);
        let shared = |kind: Kind| kind.shared(&options).bytes;
        assert_eq!(shared(Kind::Waiting), shared(Kind::Retrying));
        assert_eq!(shared(Kind::Waiting), 6 * model::average());
        assert_eq!(shared(Kind::Unlimited), 64 * model::largest());
    }
}
