//! Upper bounds of throughput, from the needs of the requests.

use crate::arrivals::Request;
use crate::bound::Shared;
use std::time::Duration;

/// Upper bounds of throughput, in requests per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Theory {
    /// The device's places, divided by the device time of a request.
    pub(crate) device: f64,
    /// The memory that requests share, divided by the byte-seconds of a request that never waits.
    pub(crate) memory: f64,
}

impl Theory {
    pub(crate) fn of(requests: &[Request], places: usize, shared: Shared) -> Self {
        let count = requests.len() as f64;
        let work: f64 = requests.iter().map(seconds).sum();
        let byte_seconds: f64 = requests
            .iter()
            .map(|request| request.bytes() as f64 * seconds(request))
            .sum();
        Self {
            device: places as f64 * count / work,
            memory: shared.bytes as f64 * count / byte_seconds,
        }
    }

    /// Returns the bound with shared memory, given the throughput with unlimited memory.
    pub(crate) fn limited(&self, unlimited: f64) -> f64 {
        unlimited.min(self.memory)
    }
}

fn seconds(request: &Request) -> f64 {
    Duration::as_secs_f64(&request.work())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    #[test]
    fn scarcer_resource_limits() {
        let request = Request {
            id: 0,
            arrives: Duration::ZERO,
            steps: vec![Duration::from_millis(10); 8],
        };
        let requests = vec![request; 3];
        let shared = Shared {
            bytes: 2 * model::peak(8),
            step: model::CHUNK,
        };
        let theory = Theory::of(&requests, 4, shared);
        assert!((theory.device - 50.0).abs() < 1e-9, "{theory:?}");
        assert!((theory.memory - 25.0).abs() < 1e-9, "{theory:?}");
        assert!((theory.limited(49.0) - 25.0).abs() < 1e-9);
        assert!((theory.limited(20.0) - 20.0).abs() < 1e-9);
    }
}
