//! What the driver says of an address: of a block as of memory that it allocated itself, and not as of the chunks that
//! are mapped there.

use super::answer::Answer;
use super::blocks::{self, Range};
use super::counts::Passed;
use super::driver;
use std::ffi::{c_int, c_void};

/// The attributes of pointers whose values differ for mapped memory.
const CONTEXT: c_int = 1;
const RANGE_START: c_int = 11;
const RANGE_SIZE: c_int = 12;
const MEMPOOL: c_int = 17;

pub(super) fn differs(attribute: c_int) -> bool {
    [CONTEXT, RANGE_START, RANGE_SIZE, MEMPOOL].contains(&attribute)
}

/// Returns the block that an address lies in.
pub(super) fn block(address: u64) -> Answer<Range> {
    match blocks::find(address).filter(|range| range.is_block) {
        Some(range) => Answer::Served(range),
        None => Answer::Passed(Passed::NoPool),
    }
}

/// Writes the value of an attribute that [differs].
///
/// # Safety
/// The place holds a value of the attribute's type.
pub(super) unsafe fn write(place: *mut c_void, attribute: c_int, range: &Range) {
    let value = match attribute {
        RANGE_START => range.start,
        RANGE_SIZE => range.bytes,
        // Memory in the order of a stream is of a pool, and other memory of a context.
        CONTEXT if range.is_ordered => 0,
        CONTEXT => range.context.handle as u64,
        _ if range.is_ordered => driver::default_pool(range.context.device).unwrap_or(0) as u64,
        _ => 0,
    };
    // SAFETY: each of these is a pointer or a size.
    unsafe { place.cast::<u64>().write(value) };
}
