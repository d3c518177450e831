//! The cost of a device call to the calling thread, in nanoseconds.
//!
//! Source: one NVIDIA H200, or one H100 where that is said (driver 580.159, CUDA 13.0), on one thread of a Xeon host.
//! `cargo bench --features cuda --bench device_calls` repeats the measurement. A size between two measured ones is
//! interpolated on a log2 scale; below the smallest the cost is constant; above the largest it grows with the size.
//! This module does not know which calls are charged.

use super::call::Call;
use std::time::Duration;
use weirpool_device::MemoryKind;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Measured points (bytes, nanoseconds), by rising size.
type Curve<const POINTS: usize> = [(u64, u64); POINTS];

/// Up to half a gibibyte the driver has memory available. The last point is the cost of memory that it has to clear
/// first.
const CREATE: Curve<5> = [
    (2 * MIB, 8_244),
    (16 * MIB, 9_117),
    (64 * MIB, 11_313),
    (512 * MIB, 21_902),
    (GIB, 2_019_869),
];
const DESTROY: Curve<5> = [
    (2 * MIB, 8_525),
    (16 * MIB, 14_114),
    (64 * MIB, 33_636),
    (256 * MIB, 72_240),
    (GIB, 272_467),
];
const UNMAP: Curve<4> = [
    (2 * MIB, 13_738),
    (16 * MIB, 14_318),
    (64 * MIB, 21_155),
    (GIB, 34_242),
];
/// The mapping itself and the access rights of the device, which are one call in the contract.
const MAP: Curve<4> = [
    (2 * MIB, 1_239 + 20_252),
    (16 * MIB, 21_868),
    (64 * MIB, 577 + 34_160),
    (GIB, 2_466 + 68_365),
];
/// Below 2 MiB the driver suballocates.
const ALLOCATE: Curve<4> = [
    (MIB, 997),
    (4 * MIB, 35_835),
    (64 * MIB, 42_366),
    (GIB, 75_150),
];
/// Measured on an idle device.
const FREE: Curve<4> = [
    (MIB, 997),
    (4 * MIB, 30_810),
    (64 * MIB, 46_518),
    (GIB, 338_776),
];

const RESERVE: u64 = 5_239;
const UNRESERVE: u64 = 5_850;
const RECORD: u64 = 150;
const QUERY: u64 = 150;
const WAIT: u64 = 200;
const MEMORY_INFO: u64 = 20_263;
const CREATE_STREAM: u64 = 3_962;
const DESTROY_STREAM: u64 = 5_012;
/// Measured as a pair: 175.
const CREATE_EVENT: u64 = 88;
const DESTROY_EVENT: u64 = 87;

/// Sharing a chunk, of any size from 2 to 512 MiB: the shortest of 20 calls on an H100 with driver 580.159, as
/// `examples/processes --device cuda --costs` makes them.
const EXPORT: u64 = 535_000;
const IMPORT: u64 = 18_800;

/// The calls on the driver's memory pools: of 1 MiB that the pool holds already, on an idle stream. (One H100.)
const ALLOCATE_FROM: u64 = 503;
const FREE_TO: u64 = 497;
const POOL_ATTRIBUTE: u64 = 711;
/// A trim that releases the memory of 16 blocks of 1 MiB; one that releases 1 GiB takes 1.1 ms. (One H100.)
const TRIM_POOL: u64 = 32_510;
const CREATE_POOL: u64 = 38_973;
const DESTROY_POOL: u64 = 9_637;

/// The submission of a copy, and two rates in bytes per microsecond: of the host's own copy to page-locked memory, and
/// of the bus (not measured: a PCI Express 5.0 slot's).
const COPY: u64 = 5_416;
const HOST_COPY: u64 = 7_600;
const BUS: u64 = 50_000;

/// A copy between devices, in bytes per microsecond: of the link where there is access (NVLink's 450 GB/s in one
/// direction according to the data sheet, not measured). Where there is none, the bytes cross the bus twice.
const LINK: u64 = 450_000;
/// The access of a peer to one chunk (not measured: the share of access in the cost of a mapping).
const SET_ACCESS: u64 = 20_252;

/// The submission of a fill: the cost of an empty kernel's launch (a fill's own was not measured).
const FILL: u64 = 3_026;
/// The calls around a capture of one fill, and the launch of its graph. (One H100.) The call that keeps memory with a
/// graph was not measured by itself: it costs as much as the beginning.
const BEGIN_CAPTURE: u64 = 1_790;
const END_CAPTURE: u64 = 29_089;
const LAUNCH: u64 = 1_564;
/// The time before the device begins with a fill, and the bytes that it writes in a microsecond: a realistic share of
/// the memory bandwidth (4.8 TB/s according to the data sheet; not measured).
const FILL_BEGINS: u64 = 2_000;
const FILL_RATE: u64 = 3_000_000;

/// A function of the host, and a hold: `cuLaunchHostFunc`, and the wait for a flag with the flag's reset. (One H100.)
const RUN: u64 = 2_619;
const HOLD: u64 = 1_683;

/// Returns the cost of `call` for `bytes` (0 if the call has no size).
pub(super) fn of(call: Call, bytes: u64) -> Duration {
    Duration::from_nanos(match call {
        Call::Create => on_curve(&CREATE, bytes),
        Call::Destroy => on_curve(&DESTROY, bytes),
        Call::Map => on_curve(&MAP, bytes),
        Call::Unmap => on_curve(&UNMAP, bytes),
        Call::Allocate => on_curve(&ALLOCATE, bytes),
        Call::Free => on_curve(&FREE, bytes),
        Call::Reserve => RESERVE,
        Call::Unreserve => UNRESERVE,
        Call::Record => RECORD,
        Call::Query => QUERY,
        Call::MemoryInfo => MEMORY_INFO,
        Call::Wait => WAIT,
        Call::Upload => COPY + per_byte(bytes, HOST_COPY),
        Call::Download => COPY,
        Call::Fill => FILL,
        Call::Copy => COPY,
        Call::SetAccess => SET_ACCESS,
        Call::Export => EXPORT,
        Call::Import => IMPORT,
        Call::CreatePool => CREATE_POOL,
        Call::DestroyPool => DESTROY_POOL,
        Call::AllocateFrom => ALLOCATE_FROM,
        Call::FreeTo => FREE_TO,
        Call::TrimPool => TRIM_POOL,
        Call::PoolAttribute => POOL_ATTRIBUTE,
        Call::Run => RUN,
        Call::Hold => HOLD,
        Call::BeginCapture | Call::Keep => BEGIN_CAPTURE,
        Call::EndCapture => END_CAPTURE,
        Call::Launch => LAUNCH,
        Call::CreateStream => CREATE_STREAM,
        Call::DestroyStream => DESTROY_STREAM,
        Call::CreateEvent => CREATE_EVENT,
        Call::DestroyEvent => DESTROY_EVENT,
    })
}

/// The time to lock or unlock the host's pages: about a quarter of a millisecond per MiB, as observed with
/// `device::cuda`; not measured separately.
const LOCK_MIB: u64 = 250_000;

/// Returns the additional cost of page-locked memory when it is taken or released.
pub(super) fn of_locking(kind: MemoryKind, bytes: u64) -> Duration {
    match kind {
        MemoryKind::Pinned => Duration::from_nanos(bytes.saturating_mul(LOCK_MIB) / MIB),
        _ => Duration::ZERO,
    }
}

/// Returns how long the device is busy with a copy between itself and the host.
pub(super) fn of_copy(bytes: u64) -> Duration {
    Duration::from_nanos(per_byte(bytes, BUS))
}

/// Returns how long a copy between devices, or within one, takes.
pub(super) fn of_copy_between(bytes: u64, is_direct: bool) -> Duration {
    Duration::from_nanos(match is_direct {
        true => per_byte(bytes, LINK),
        false => 2 * per_byte(bytes, BUS),
    })
}

/// Returns how long the device is busy with a fill of its memory.
pub(super) fn of_fill(bytes: u64) -> Duration {
    Duration::from_nanos(FILL_BEGINS + per_byte(bytes, FILL_RATE))
}

fn per_byte(bytes: u64, bytes_per_us: u64) -> u64 {
    bytes.saturating_mul(1000) / bytes_per_us
}

fn on_curve(curve: &[(u64, u64)], bytes: u64) -> u64 {
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
    fn measured_sizes_have_their_measured_cost() {
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
