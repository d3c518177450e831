//! What a device call costs the calling thread, in nanoseconds.
//!
//! Source: one NVIDIA H200 (driver 580.159, CUDA 13.0) on one thread of a Xeon host. Sizes between
//! two measured ones are interpolated on a log2 scale; below the smallest the cost is flat; above
//! the largest it grows with the size. Knows nothing of who pays.

use super::call::Call;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Measured (bytes, nanoseconds), by rising size.
type Curve = [(u64, u64); 3];

const CREATE: Curve = [(2 * MIB, 8_244), (64 * MIB, 11_313), (GIB, 2_019_869)];
const DESTROY: Curve = [(2 * MIB, 8_525), (64 * MIB, 33_636), (GIB, 272_467)];
const UNMAP: Curve = [(2 * MIB, 13_738), (64 * MIB, 21_155), (GIB, 34_242)];
/// The mapping itself, and giving the device access to it, which the contract makes one call.
const MAP: Curve = [
    (2 * MIB, 1_239 + 20_252),
    (64 * MIB, 577 + 34_160),
    (GIB, 2_466 + 68_365),
];
/// Measured as pairs (1,994, 126,800 and 418,600): half to each side.
const PLAIN: Curve = [(MIB, 997), (64 * MIB, 63_400), (GIB, 209_300)];

/// Not measured; taken to be like mapping a small handle, since both only write tables.
const RESERVE: u64 = 1_239;
const RECORD: u64 = 150;
const QUERY: u64 = 150;
const WAIT: u64 = 200;
/// Measured as a pair: 175.
const CREATE_EVENT: u64 = 88;
const DESTROY_EVENT: u64 = 87;

/// A copy's submission, and bytes per microsecond: of the host's own copy to page-locked memory, and of
/// the bus.
const COPY: u64 = 2_000;
const HOST_COPY: u64 = 8_000;
const BUS: u64 = 50_000;

/// What `call` costs for `bytes` (0 where a size means nothing).
pub(super) fn of(call: Call, bytes: u64) -> Duration {
    Duration::from_nanos(match call {
        Call::Create => on_curve(&CREATE, bytes),
        Call::Destroy => on_curve(&DESTROY, bytes),
        Call::Map => on_curve(&MAP, bytes),
        Call::Unmap => on_curve(&UNMAP, bytes),
        Call::Allocate | Call::Free => on_curve(&PLAIN, bytes),
        Call::Reserve | Call::Unreserve => RESERVE,
        Call::Record => RECORD,
        Call::Query | Call::MemoryInfo => QUERY,
        Call::Wait => WAIT,
        Call::Upload | Call::Download => COPY + per_byte(bytes, HOST_COPY),
        // Streams were not measured; the pool makes few.
        Call::CreateEvent | Call::CreateStream => CREATE_EVENT,
        Call::DestroyEvent | Call::DestroyStream => DESTROY_EVENT,
    })
}

/// How long the device is busy copying between itself and the host.
pub(super) fn of_copy(bytes: u64) -> Duration {
    Duration::from_nanos(per_byte(bytes, BUS))
}

fn per_byte(bytes: u64, bytes_per_us: u64) -> u64 {
    bytes.saturating_mul(1000) / bytes_per_us
}

fn on_curve(curve: &Curve, bytes: u64) -> u64 {
    let (smallest, flat) = curve[0];
    let (largest, most) = curve[curve.len() - 1];
    if bytes <= smallest {
        return flat;
    }
    if bytes >= largest {
        return (most as f64 * (bytes as f64 / largest as f64)) as u64;
    }
    let after = curve.partition_point(|&(size, _)| size <= bytes);
    between(curve[after - 1], curve[after], bytes)
}

fn between(low: (u64, u64), high: (u64, u64), bytes: u64) -> u64 {
    let octaves = |from: u64, to: u64| (to as f64 / from as f64).log2();
    let share = octaves(low.0, bytes) / octaves(low.0, high.0);
    (low.1 as f64 + share * (high.1 as f64 - low.1 as f64)).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_sizes_cost_what_was_measured() {
        for (bytes, nanos) in CREATE {
            assert_eq!(of(Call::Create, bytes).as_nanos(), u128::from(nanos));
        }
        assert_eq!(of(Call::Map, 2 * MIB).as_nanos(), 21_491);
        assert_eq!(of(Call::Unmap, 1).as_nanos(), 13_738);
    }

    #[test]
    fn sizes_between_lie_between_and_larger_ones_grow() {
        let middle = of(Call::Destroy, 16 * MIB).as_nanos();
        assert!((8_525..33_636).contains(&middle), "{middle}");
        assert_eq!(of(Call::Create, 2 * GIB).as_nanos(), 2 * 2_019_869);
    }
}
