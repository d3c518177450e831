//! The functions of `weirpool.h`, which has their documentation.
//!
//! # Safety
//! Pointers are null or valid as the header says: those to structs and results for the size of their type, that of a pool
//! from its creation until `weirpool_destroy` is called. A stream exists during the call.
#![allow(
    clippy::missing_safety_doc,
    reason = "one section for all of them, above"
)]

use crate::options::{Figures, Options};
use crate::pool::CPool;
use crate::status::{Failure, Status, call, last_error};
use std::ffi::{c_char, c_void};

type Handle = *mut c_void;

/// Returns the pool of a call.
///
/// # Safety
/// The pointer is null, or of a pool that is not destroyed during the call.
unsafe fn pool<'a>(pool: *mut CPool) -> Result<&'a CPool, Failure> {
    // SAFETY: guaranteed by the caller.
    let pool = unsafe { pool.as_ref() };
    pool.ok_or_else(|| Failure::invalid("the pool is null"))
}

/// Writes a result where the caller says.
///
/// # Safety
/// The pointer is null, or valid for the write.
unsafe fn give<T>(to: *mut T, make: impl FnOnce() -> Result<T, Failure>) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::invalid("the pointer for the result is null"));
    }
    let made = make()?;
    // SAFETY: guaranteed by the caller.
    unsafe { to.write(made) };
    Ok(())
}

/// Addresses and handles are numbers to the pool.
fn number(pointer: *mut c_void) -> u64 {
    pointer.expose_provenance() as u64
}

fn pointer(number: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(number as usize)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weirpool_create(
    options: *const Options,
    to: *mut *mut CPool,
) -> Status {
    // SAFETY: the module's section says so.
    call(|| unsafe {
        give(to, || {
            let pool = CPool::new(&Options::read(options)?)?;
            Ok(Box::into_raw(Box::new(pool)))
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weirpool_destroy(pool: *mut CPool) {
    call(|| {
        if !pool.is_null() {
            // SAFETY: it was made by `weirpool_create`, and no other call uses it.
            let pool = unsafe { Box::from_raw(pool) };
            // Memory that was not freed keeps the pool, and should keep no more than itself.
            let _ = pool.pool().trim_to(0);
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weirpool_allocate(
    of: *mut CPool,
    to: *mut Handle,
    bytes: usize,
    alignment: usize,
    stream: Handle,
    wait: u64,
) -> Status {
    let (bytes, alignment) = (bytes as u64, alignment as u64);
    // SAFETY: the module's section says so.
    call(|| unsafe {
        let pool = pool(of)?;
        give(to, || {
            Ok(pointer(pool.allocate(
                number(stream),
                bytes,
                alignment,
                wait,
            )?))
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weirpool_free(
    of: *mut CPool,
    memory: Handle,
    stream: Handle,
) -> Status {
    // SAFETY: the module's section says so.
    call(|| unsafe {
        let pool = pool(of)?;
        match memory.is_null() {
            true => Ok(()),
            false => pool.free(number(memory), number(stream)),
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weirpool_record_use(
    of: *mut CPool,
    memory: Handle,
    stream: Handle,
) -> Status {
    // SAFETY: the module's section says so.
    call(|| unsafe { pool(of)?.record_use(number(memory), number(stream)) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weirpool_allocate_sync(
    of: *mut CPool,
    to: *mut Handle,
    bytes: usize,
    alignment: usize,
    wait: u64,
) -> Status {
    // SAFETY: the module's section says so.
    call(|| unsafe {
        let pool = pool(of)?;
        give(to, || {
            Ok(pointer(pool.allocate_sync(
                bytes as u64,
                alignment as u64,
                wait,
            )?))
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weirpool_free_sync(of: *mut CPool, memory: Handle) -> Status {
    // SAFETY: the module's section says so.
    call(|| unsafe {
        let pool = pool(of)?;
        match memory.is_null() {
            true => Ok(()),
            false => pool.free_sync(number(memory)),
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weirpool_trim(of: *mut CPool, keep: u64) -> Status {
    // SAFETY: the module's section says so.
    call(|| unsafe {
        let _ = pool(of)?.pool().trim_to(keep)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weirpool_get_statistics(
    of: *mut CPool,
    to: *mut Figures,
) -> Status {
    // SAFETY: the module's section says so.
    call(|| unsafe { Figures::write(pool(of)?.pool(), to) })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn weirpool_last_error() -> *const c_char {
    last_error()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weirpool_sim_stream(of: *mut CPool, to: *mut Handle) -> Status {
    // SAFETY: the module's section says so.
    call(|| unsafe {
        let simulated = pool(of)?.simulated()?;
        give(to, || Ok(pointer(simulated.create_stream())))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weirpool_sim_launch(
    of: *mut CPool,
    stream: Handle,
    nanoseconds: u64,
    memory: Handle,
    bytes: usize,
) -> Status {
    // SAFETY: the module's section says so.
    call(|| unsafe {
        let simulated = pool(of)?.simulated()?;
        simulated.launch(number(stream), nanoseconds, number(memory), bytes as u64)
    })
}
