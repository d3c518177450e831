//! The functions that the audit library calls in place of the driver's. Each takes the driver's own function first, and
//! then the arguments of the program's call.
//!
//! | calls | here |
//! |---|---|
//! | `cuMemAlloc`, `cuMemAllocPitch` | blocks that any stream may use at once; with plain memory, the driver's, admitted by the pool |
//! | `cuMemAllocAsync`, `cuMemAllocFromPoolAsync`, `cuMemFreeAsync` | blocks in the order of the stream |
//! | `cuMemFree` | waits for all work of the context, as the driver's does: programs free memory that running kernels use, and read results of the device behind it |
//! | `cuStreamDestroy` | takes effect when the pool does not need the stream any more |
//! | `cuCtxDestroy`, `cuDevicePrimaryCtxReset`, the last `cuDevicePrimaryCtxRelease` | first give all memory of the context back |
//! | captures | allocations of captured streams, and all that are in no stream's order while a capture goes on, are the driver's |

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each of these functions has the conditions of the driver's own, and the pointers and handles of the program's call"
)]

use super::answer::Answer;
use super::blocks::{self, Held, Memory};
use super::context::Context;
use super::counts::Passed;
use super::driver::{self, INVALID_VALUE, SUCCESS, Status};
use super::message::say;
use super::{
    captures, chunks, contexts, figures, fork, frees, nvml, peers, pointers, pools, streams,
};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use weirpool::Block;

type Place = *mut u64;

/// Makes a note of a call that the driver answers; a forked process makes none.
fn note(call: impl FnOnce()) {
    let _ = served(|| {
        call();
        Answer::Served(())
    });
}

/// Serves a call. A call of a forked process is the driver's, and so is one in which the pool panics.
fn served<T>(call: impl FnOnce() -> Answer<T>) -> Answer<T> {
    if fork::is_child() {
        return Answer::Passed(Passed::NoPool);
    }
    let answer = catch_unwind(AssertUnwindSafe(call));
    answer.unwrap_or_else(|_| {
        say("the pool panicked; this is a bug in weirpool");
        Answer::Passed(Passed::NoPool)
    })
}

/// Writes the address of an allocation, or has the driver allocate.
///
/// # Safety
/// The place is null or may be written to.
unsafe fn give(
    place: Place,
    bytes: usize,
    call: impl FnOnce() -> Answer<u64>,
    driver: impl FnOnce() -> Status,
) -> Status {
    if place.is_null() || bytes == 0 {
        return driver();
    }
    match served(call) {
        Answer::Served(address) => {
            // SAFETY: guaranteed by the caller.
            unsafe { place.write(address) };
            SUCCESS
        }
        Answer::Failed(status) => status,
        Answer::Passed(reason) => {
            reason.count();
            driver()
        }
    }
}

fn unless_captured<T>(call: impl FnOnce() -> Answer<T>) -> Answer<T> {
    match captures::are_active() {
        true => Answer::Passed(Passed::Capture),
        false => call(),
    }
}

/// Allocates memory in no stream's order.
fn synchronous(bytes: usize, driver: impl Fn(Place) -> Status) -> Answer<u64> {
    unless_captured(|| {
        contexts::of_current().and_then(|context| match context.settings.is_plain {
            false => context
                .allocate_synchronously(bytes as u64, frees::free_deferred)
                .map(|block| held(context, block)),
            true => context
                .admit(bytes as u64, frees::free_deferred, || written(&driver))
                .map(|(address, _charge)| {
                    let memory = Memory::Charged {
                        _charge,
                        bytes: bytes as u64,
                    };
                    blocks::put(address, Held { context, memory });
                    address
                }),
        })
    })
}

/// Returns what a function of the driver writes to a place.
fn written(driver: impl Fn(Place) -> Status) -> Result<u64, Status> {
    let mut value = 0;
    match driver(&mut value) {
        SUCCESS => Ok(value),
        status => Err(status),
    }
}

/// Allocates in the order of a stream, if the pool serves its device.
///
/// # Safety
/// The stream is not destroyed.
unsafe fn ordered(
    bytes: usize,
    stream: usize,
    is_served: impl FnOnce(c_int) -> bool,
) -> Answer<u64> {
    // SAFETY: guaranteed by the caller.
    if unsafe { captures::has(stream) } != Ok(false) {
        return Answer::Passed(Passed::Capture);
    }
    // SAFETY: as above.
    unsafe {
        streams::with(stream, |known| {
            if !is_served(known.context.device) {
                return Answer::Passed(Passed::ForeignPool);
            }
            let block = known
                .context
                .allocate(&known.stream, bytes as u64, frees::free_deferred);
            block.map(|block| held(known.context, block))
        })
    }
}

/// Keeps a block for the program, and returns its address.
#[inline]
fn held(context: &'static Context, block: Block) -> u64 {
    let address = block.address().to_bits();
    let memory = Memory::Block(block);
    blocks::put(address, Held { context, memory });
    address
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemAlloc(
    driver: unsafe extern "C" fn(Place, usize) -> Status,
    place: Place,
    bytes: usize,
) -> Status {
    let call = |place| unsafe { driver(place, bytes) };
    unsafe { give(place, bytes, || synchronous(bytes, call), || call(place)) }
}

/// The driver's rows begin at multiples of these bytes.
const PITCH: usize = 512;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemAllocPitch(
    driver: unsafe extern "C" fn(Place, *mut usize, usize, usize, c_uint) -> Status,
    place: Place,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Status {
    let call = |place| unsafe { driver(place, pitch, width, height, element) };
    let row = width.checked_next_multiple_of(PITCH);
    let bytes = row.and_then(|row| row.checked_mul(height));
    let (Some(row), Some(bytes), false, 4 | 8 | 16) = (row, bytes, pitch.is_null(), element) else {
        return call(place);
    };
    let serve = || {
        let answer = synchronous(bytes, call);
        if let Answer::Served(address) = answer
            && blocks::find(address).is_some_and(|range| range.is_block)
        {
            unsafe { pitch.write(row) };
        }
        answer
    };
    unsafe { give(place, bytes, serve, || call(place)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemAllocManaged(
    driver: unsafe extern "C" fn(Place, usize, c_uint) -> Status,
    place: Place,
    bytes: usize,
    flags: c_uint,
) -> Status {
    Passed::Managed.count();
    unsafe { driver(place, bytes, flags) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemCreate(
    driver: unsafe extern "C" fn(Place, usize, *const chunks::Properties, u64) -> Status,
    place: Place,
    bytes: usize,
    properties: *const chunks::Properties,
    flags: u64,
) -> Status {
    let call = |place| unsafe { driver(place, bytes, properties, flags) };
    if properties.is_null() {
        return call(place);
    }
    let create = || chunks::create(bytes as u64, unsafe { &*properties }, || written(call));
    unsafe { give(place, bytes, create, || call(place)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemRelease(
    driver: unsafe extern "C" fn(u64) -> Status,
    handle: u64,
) -> Status {
    removing(|| unsafe { driver(handle) }, || chunks::release(handle))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemRetainAllocationHandle(
    driver: unsafe extern "C" fn(Place, usize) -> Status,
    place: Place,
    address: usize,
) -> Status {
    if is_refused("cuMemRetainAllocationHandle", address as u64) {
        return INVALID_VALUE;
    }
    noted(
        || unsafe { driver(place, address) },
        || chunks::retained(unsafe { *place }),
    )
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemMap(
    driver: unsafe extern "C" fn(u64, usize, usize, u64, u64) -> Status,
    address: u64,
    bytes: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> Status {
    let call = || unsafe { driver(address, bytes, offset, handle, flags) };
    noted(call, || chunks::mapped(address, handle))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemUnmap(
    driver: unsafe extern "C" fn(u64, usize) -> Status,
    address: u64,
    bytes: usize,
) -> Status {
    let call = || unsafe { driver(address, bytes) };
    removing(call, || chunks::unmap(address, bytes as u64))
}

/// Removes owners of chunks before the driver's call, and restores them if that fails.
fn removing(
    driver: impl FnOnce() -> Status,
    remove: impl FnOnce() -> Vec<chunks::Removed>,
) -> Status {
    let removed = served(|| Answer::Served(remove()));
    let status = driver();
    if let Answer::Served(removed) = removed {
        note(|| match status {
            // Waiting requests may be granted.
            SUCCESS => drop(removed),
            _ => chunks::restore(removed),
        });
    }
    status
}

/// Has the driver answer, and notes its success.
fn noted(driver: impl FnOnce() -> Status, note: impl FnOnce()) -> Status {
    let status = driver();
    if status == SUCCESS {
        self::note(note);
    }
    status
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemAllocAsync(
    driver: unsafe extern "C" fn(Place, usize, usize) -> Status,
    place: Place,
    bytes: usize,
    stream: usize,
) -> Status {
    let serve = || unsafe { ordered(bytes, stream, |device| !pools::is_foreign(device)) };
    unsafe { give(place, bytes, serve, || driver(place, bytes, stream)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemAllocFromPoolAsync(
    driver: unsafe extern "C" fn(Place, usize, usize, usize) -> Status,
    place: Place,
    bytes: usize,
    pool: usize,
    stream: usize,
) -> Status {
    let serve = || match pools::device_of(pool) {
        Some(of) => unsafe { ordered(bytes, stream, |device| device == of) },
        None => Answer::Passed(Passed::ForeignPool),
    };
    unsafe { give(place, bytes, serve, || driver(place, bytes, pool, stream)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemFree(
    driver: unsafe extern "C" fn(u64) -> Status,
    address: u64,
) -> Status {
    let serve = || {
        let Some(held) = blocks::take(address) else {
            return Answer::Passed(Passed::NoPool);
        };
        let context = held.context;
        let freed = match held.memory {
            Memory::Block(block) => {
                let freed = frees::free(context, context, block);
                freed.map_err(|(status, block)| (status, Memory::Block(block)))
            }
            charged => match unsafe { driver(address) } {
                SUCCESS => {
                    drop(charged);
                    Ok(())
                }
                status => Err((status, charged)),
            },
        };
        match freed {
            Ok(()) => Answer::Served(()),
            Err((status, memory)) => {
                blocks::put(address, Held { context, memory });
                Answer::Failed(status)
            }
        }
    };
    match served(serve) {
        Answer::Served(()) => SUCCESS,
        Answer::Failed(status) => status,
        Answer::Passed(_) => unsafe { driver(address) },
    }
}

/// Frees a block in the order of a stream; takes it if that succeeds.
fn free_on(
    known: &streams::Known,
    context: &'static Context,
    block: &mut Option<Block>,
) -> Answer<()> {
    let Some(freed) = block.take() else {
        return Answer::Served(());
    };
    if freed.freed_after(&known.stream).is_ok() {
        context.free(freed);
        return Answer::Served(());
    }
    // The stream is of another context, whose order this pool does not know.
    match frees::free(context, known.context, freed) {
        Ok(()) => Answer::Served(()),
        Err((status, kept)) => {
            *block = Some(kept);
            Answer::Failed(status)
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemFreeAsync(
    driver: unsafe extern "C" fn(u64, usize) -> Status,
    address: u64,
    stream: usize,
) -> Status {
    let serve = || {
        let Some(held) = blocks::take(address) else {
            return Answer::Passed(Passed::NoPool);
        };
        let context = held.context;
        let block = match held.memory {
            Memory::Block(block) => block,
            // The driver frees memory of `cuMemAlloc` here, too.
            memory => match unsafe { driver(address, stream) } {
                SUCCESS => {
                    drop(memory);
                    return Answer::Served(());
                }
                status => {
                    blocks::put(address, Held { context, memory });
                    return Answer::Failed(status);
                }
            },
        };
        let refused = match unsafe { captures::has(stream) } {
            Ok(false) => None,
            // The driver has no memory there.
            Ok(true) => Some(INVALID_VALUE),
            Err(status) => Some(status),
        };
        if let Some(status) = refused {
            Passed::Capture.count();
            let memory = Memory::Block(block);
            blocks::put(address, Held { context, memory });
            return Answer::Failed(status);
        }
        let mut block = Some(block);
        let freed = unsafe { streams::with(stream, |known| free_on(known, context, &mut block)) };
        if let Some(block) = block {
            let memory = Memory::Block(block);
            blocks::put(address, Held { context, memory });
        }
        match freed {
            Answer::Passed(reason) => {
                reason.count();
                // The driver may have refused the stream.
                let asked = unsafe { driver::context_of(stream) };
                Answer::Failed(asked.err().unwrap_or(INVALID_VALUE))
            }
            answer => answer,
        }
    };
    match served(serve) {
        Answer::Served(()) => SUCCESS,
        Answer::Failed(status) => status,
        Answer::Passed(_) => unsafe { driver(address, stream) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemGetInfo(
    driver: unsafe extern "C" fn(*mut usize, *mut usize) -> Status,
    free: *mut usize,
    total: *mut usize,
) -> Status {
    let status = unsafe { driver(free, total) };
    if status == SUCCESS && !free.is_null() && !total.is_null() {
        let seen = |context| figures::seen(context, unsafe { (*free, *total) });
        let seen = served(|| contexts::of_current().map(seen));
        if let Answer::Served(seen) = seen {
            unsafe { (*free, *total) = seen };
        }
    }
    status
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemGetAddressRange(
    driver: unsafe extern "C" fn(Place, *mut usize, u64) -> Status,
    base: Place,
    bytes: *mut usize,
    address: u64,
) -> Status {
    match served(|| pointers::block(address)) {
        Answer::Served(range) => {
            if !base.is_null() {
                unsafe { base.write(range.start) };
            }
            if !bytes.is_null() {
                unsafe { bytes.write(range.bytes as usize) };
            }
            SUCCESS
        }
        _ => unsafe { driver(base, bytes, address) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuPointerGetAttribute(
    driver: unsafe extern "C" fn(*mut c_void, c_int, u64) -> Status,
    data: *mut c_void,
    attribute: c_int,
    address: u64,
) -> Status {
    let status = unsafe { driver(data, attribute, address) };
    if pointers::differs(attribute)
        && !data.is_null()
        && let Answer::Served(range) = served(|| pointers::block(address))
    {
        unsafe { pointers::write(data, attribute, &range) };
        return SUCCESS;
    }
    status
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuPointerGetAttributes(
    driver: unsafe extern "C" fn(c_uint, *mut c_int, *mut *mut c_void, u64) -> Status,
    count: c_uint,
    attributes: *mut c_int,
    data: *mut *mut c_void,
    address: u64,
) -> Status {
    let status = unsafe { driver(count, attributes, data, address) };
    let is_any = || {
        let mut all = (0..count as usize).map(|at| unsafe { *attributes.add(at) });
        all.any(pointers::differs)
    };
    if status == SUCCESS
        && is_any()
        && let Answer::Served(range) = served(|| pointers::block(address))
    {
        for at in 0..count as usize {
            let (attribute, data) = unsafe { (*attributes.add(at), *data.add(at)) };
            if pointers::differs(attribute) && !data.is_null() {
                unsafe { pointers::write(data, attribute, &range) };
            }
        }
    }
    status
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuIpcGetMemHandle(
    driver: unsafe extern "C" fn(*mut c_void, u64) -> Status,
    handle: *mut c_void,
    address: u64,
) -> Status {
    if is_refused("cuIpcGetMemHandle", address) {
        return INVALID_VALUE;
    }
    Passed::Export.count();
    unsafe { driver(handle, address) }
}

/// Returns whether an address is of the pool's memory, which a call cannot export: says so once, and counts it.
fn is_refused(call: &str, address: u64) -> bool {
    static SAID: AtomicBool = AtomicBool::new(false);
    let is_served = matches!(served(|| pointers::block(address)), Answer::Served(_));
    if is_served {
        Passed::Export.count();
        if !SAID.swap(true, Ordering::Relaxed) {
            say(&format!(
                "{call} cannot export the pool's memory: run the program with --memory plain"
            ));
        }
    }
    is_served
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemPoolExportPointer(
    driver: unsafe extern "C" fn(*mut c_void, u64) -> Status,
    data: *mut c_void,
    address: u64,
) -> Status {
    Passed::Export.count();
    unsafe { driver(data, address) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemPoolCreate(
    driver: unsafe extern "C" fn(*mut usize, *const pools::Properties) -> Status,
    pool: *mut usize,
    properties: *const pools::Properties,
) -> Status {
    noted(
        || unsafe { driver(pool, properties) },
        || unsafe { pools::created(*pool, &*properties) },
    )
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemPoolDestroy(
    driver: unsafe extern "C" fn(usize) -> Status,
    pool: usize,
) -> Status {
    note(|| pools::destroyed(pool));
    unsafe { driver(pool) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemPoolTrimTo(
    driver: unsafe extern "C" fn(usize, usize) -> Status,
    pool: usize,
    bytes: usize,
) -> Status {
    let _ = served(|| pools::trim(pool, bytes as u64));
    unsafe { driver(pool, bytes) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemPoolSetAttribute(
    driver: unsafe extern "C" fn(usize, c_int, *mut c_void) -> Status,
    pool: usize,
    attribute: c_int,
    value: *mut c_void,
) -> Status {
    let status = unsafe { driver(pool, attribute, value) };
    if status == SUCCESS {
        let _ = served(|| unsafe { pools::set(pool, attribute, value) });
    }
    status
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemPoolGetAttribute(
    driver: unsafe extern "C" fn(usize, c_int, *mut c_void) -> Status,
    pool: usize,
    attribute: c_int,
    value: *mut c_void,
) -> Status {
    let status = unsafe { driver(pool, attribute, value) };
    if status == SUCCESS {
        let _ = served(|| unsafe { pools::get(pool, attribute, value) });
    }
    status
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuMemPoolSetAccess(
    driver: unsafe extern "C" fn(usize, *const peers::Access, usize) -> Status,
    pool: usize,
    access: *const peers::Access,
    count: usize,
) -> Status {
    let status = unsafe { driver(pool, access, count) };
    if status == SUCCESS && !access.is_null() {
        let access = unsafe { std::slice::from_raw_parts(access, count) };
        note(|| peers::allow(pool, access));
    }
    status
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuCtxEnablePeerAccess(
    driver: unsafe extern "C" fn(usize, c_uint) -> Status,
    context: usize,
    flags: c_uint,
) -> Status {
    noted(
        || unsafe { driver(context, flags) },
        || peers::change(context, true),
    )
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuCtxDisablePeerAccess(
    driver: unsafe extern "C" fn(usize) -> Status,
    context: usize,
) -> Status {
    noted(
        || unsafe { driver(context) },
        || peers::change(context, false),
    )
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuDeviceSetMemPool(
    driver: unsafe extern "C" fn(c_int, usize) -> Status,
    device: c_int,
    pool: usize,
) -> Status {
    noted(
        || unsafe { driver(device, pool) },
        || pools::made_current(device, pool),
    )
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuStreamDestroy(
    driver: streams::Destroy,
    stream: usize,
) -> Status {
    match served(|| Answer::Served(unsafe { streams::destroy(stream, driver) })) {
        Answer::Served(status) | Answer::Failed(status) => status,
        Answer::Passed(_) => unsafe { driver(stream) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuStreamBeginCapture(
    driver: unsafe extern "C" fn(usize, c_int) -> Status,
    stream: usize,
    mode: c_int,
) -> Status {
    begun(stream, || unsafe { driver(stream, mode) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuStreamBeginCaptureToGraph(
    driver: unsafe extern "C" fn(usize, usize, usize, usize, usize, c_int) -> Status,
    stream: usize,
    graph: usize,
    dependencies: usize,
    edges: usize,
    count: usize,
    mode: c_int,
) -> Status {
    begun(stream, || unsafe {
        driver(stream, graph, dependencies, edges, count, mode)
    })
}

/// Begins a capture: counted before, so that no other thread's call waits for the device meanwhile.
fn begun(stream: usize, driver: impl FnOnce() -> Status) -> Status {
    let begin = || {
        let origin = unsafe { captures::origin(stream) };
        Answer::Served(captures::begin(origin).then_some(origin))
    };
    let begun = served(begin);
    let status = driver();
    if let (true, Answer::Served(Some(origin))) = (status != SUCCESS, begun) {
        note(|| _ = captures::end(origin));
    }
    status
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuStreamEndCapture(
    driver: unsafe extern "C" fn(usize, *mut usize) -> Status,
    stream: usize,
    graph: *mut usize,
) -> Status {
    let status = unsafe { driver(stream, graph) };
    note(|| {
        // An invalidated capture ends with an error.
        if unsafe { captures::has(stream) } == Ok(false)
            && captures::end(unsafe { captures::origin(stream) })
        {
            frees::free_deferred();
        }
    });
    status
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuCtxDestroy(
    driver: unsafe extern "C" fn(usize) -> Status,
    context: usize,
) -> Status {
    note(|| frees::close_unless_primary(context));
    unsafe { driver(context) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuGreenCtxDestroy(
    driver: unsafe extern "C" fn(usize) -> Status,
    green: usize,
) -> Status {
    note(|| {
        if let Ok(context) = unsafe { driver::context_of_green(green) } {
            frees::close(context);
        }
    });
    unsafe { driver(green) }
}

/// How often the program holds the primary context of each device.
static RETAINED: Mutex<BTreeMap<c_int, usize>> = Mutex::new(BTreeMap::new());

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuDevicePrimaryCtxRetain(
    driver: unsafe extern "C" fn(*mut usize, c_int) -> Status,
    context: *mut usize,
    device: c_int,
) -> Status {
    let status = unsafe { driver(context, device) };
    if status == SUCCESS && !fork::is_child() {
        let mut retained = RETAINED.lock().unwrap_or_else(PoisonError::into_inner);
        *retained.entry(device).or_default() += 1;
    }
    status
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuDevicePrimaryCtxRelease(
    driver: unsafe extern "C" fn(c_int) -> Status,
    device: c_int,
) -> Status {
    if !fork::is_child() {
        let mut retained = RETAINED.lock().unwrap_or_else(PoisonError::into_inner);
        let left = retained.get_mut(&device).map(|count| {
            *count = count.saturating_sub(1);
            *count
        });
        drop(retained);
        // The last release destroys the context.
        if left == Some(0) {
            note(|| frees::close_primary(device));
        }
    }
    unsafe { driver(device) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_cuDevicePrimaryCtxReset(
    driver: unsafe extern "C" fn(c_int) -> Status,
    device: c_int,
) -> Status {
    note(|| frees::close_primary(device));
    unsafe { driver(device) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_nvmlDeviceGetMemoryInfo(
    driver: unsafe extern "C" fn(usize, *mut nvml::Memory) -> Status,
    device: usize,
    memory: *mut nvml::Memory,
) -> Status {
    let status = unsafe { driver(device, memory) };
    if status == SUCCESS
        && let Answer::Served(seen) = served(|| nvml::seen(device, unsafe { *memory }))
    {
        unsafe { memory.write(seen) };
    }
    status
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn weirpool_nvmlDeviceGetMemoryInfo_v2(
    driver: unsafe extern "C" fn(usize, *mut nvml::MemoryWithReserved) -> Status,
    device: usize,
    memory: *mut nvml::MemoryWithReserved,
) -> Status {
    let status = unsafe { driver(device, memory) };
    if status == SUCCESS
        && let Answer::Served(seen) = served(|| nvml::seen(device, unsafe { (*memory).figures() }))
    {
        unsafe { (*memory).set(seen) };
    }
    status
}
