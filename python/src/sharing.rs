//! Tensors that processes share: memory with its own chunks, sent over a socket that Python created.
//!
//! PyTorch's own way, `cudaIpcGetMemHandle` of a tensor's base address, does not work with a pluggable allocator: the
//! driver refuses the addresses of virtual memory, and PyTorch's importer has no hook (`getIpcDevPtr`). So
//! `weirpool_sharing.py` creates a shared tensor in separate memory, and wraps the addresses that these functions
//! return.

use crate::device_pool::{self, DevicePool};
use crate::report::print;
use crate::{fork, guarded};
use cudarc::driver::sys::CUstream;
use futures::executor::block_on;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use weirpool_share::ipc::wire::{self, Allowed};
use weirpool_share::ipc::{AllocateExportable, Connection, Exportable, Imported, Sent};

/// Shared memory.
enum Memory {
    Own(Arc<Exportable>, Vec<Sent>),
    Received(#[expect(dead_code, reason = "kept for its drop")] Imported),
}

#[derive(Default)]
struct Shared {
    memory: HashMap<u64, (c_int, Memory)>,
    connections: HashMap<u64, (c_int, Arc<Connection>)>,
    last: u64,
}

fn shared() -> MutexGuard<'static, Shared> {
    static SHARED: LazyLock<Mutex<Shared>> = LazyLock::new(Mutex::default);
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn call<T>(call: impl FnOnce() -> Result<T, String>) -> Option<T> {
    if fork::is_child() {
        print(
            "this process was forked from the one that uses the device; start it with spawn instead of fork",
        );
        return None;
    }
    guarded(call).map_err(|reason| print(&reason)).ok()
}

fn connection(number: u64) -> Result<(c_int, Arc<Connection>), String> {
    let found = shared().connections.get(&number).cloned();
    found.ok_or_else(|| format!("there is no connection {number}"))
}

/// Waits for the caller's work. Shared tensors belong to a stream of the pool, since PyTorch's streams may be gone.
fn settle(pool: &DevicePool, stream: CUstream) -> Result<(), String> {
    pool.device()
        .context()
        .bind_to_thread()
        .map_err(|error| error.to_string())?;
    // SAFETY: the caller guarantees that the stream exists.
    let settled = unsafe { cudarc::driver::sys::cuStreamSynchronize(stream) };
    settled.result().map_err(|error| error.to_string())
}

/// Allocates memory that can be sent to other processes, filled with zeros. Returns its address, or 0, with the reason
/// on stderr.
///
/// ```c
/// uint64_t weirpool_ipc_allocate(int device, uint64_t bytes);
/// ```
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_ipc_allocate(device: c_int, bytes: u64) -> u64 {
    let allocated = call(|| {
        let pool = device_pool::open(device)?;
        let stream = pool.own_stream()?;
        let block = block_on(pool.pool().allocate_exportable(&stream, bytes));
        let block = block.map_err(|error| error.to_string())?;
        // The memory must be zeroed before PyTorch's streams use it.
        block_on(stream.synchronize()).map_err(|error| error.to_string())?;
        let address = block.address().to_bits();
        let memory = Memory::Own(Arc::new(block), Vec::new());
        shared().memory.insert(address, (device, memory));
        Ok(address)
    });
    allocated.unwrap_or(0)
}

/// Frees memory that [`weirpool_ipc_allocate`] or [`weirpool_ipc_receive`] returned, after all work that was submitted
/// to the stream. Other processes keep the memory that they received.
///
/// ```c
/// int weirpool_ipc_free(uint64_t address, cudaStream_t stream);
/// ```
///
/// # Safety
/// The stream must exist, and must come after all work on the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_ipc_free(address: u64, stream: CUstream) -> c_int {
    let freed = call(|| {
        let found = shared().memory.remove(&address);
        let (device, memory) = found.ok_or_else(|| format!("{address:#x} is not shared"))?;
        let pool = device_pool::open(device)?;
        settle(pool, stream)?;
        drop(memory);
        Ok(())
    });
    freed.map_or(-1, |()| 0)
}

/// Opens a connection over a socket of type `SOCK_SEQPACKET`, whose peer belongs to the same user. The connection owns
/// the descriptor. Returns its number, or 0.
///
/// ```c
/// uint64_t weirpool_ipc_open(int device, int descriptor);
/// ```
///
/// # Safety
/// The descriptor must be open, and the caller must not use it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_ipc_open(device: c_int, descriptor: c_int) -> u64 {
    let opened = call(|| {
        if descriptor < 0 {
            return Err("there is no such descriptor".to_owned());
        }
        // SAFETY: as the caller promises.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let socket = wire::Connection::checked(descriptor, &Allowed::own());
        let socket = socket.map_err(|error| error.to_string())?;
        let pool = device_pool::open(device)?;
        let connection =
            Connection::open(pool.pool(), socket).map_err(|error| error.to_string())?;
        let mut shared = shared();
        shared.last += 1;
        let number = shared.last;
        let connection = Arc::new(connection);
        shared.connections.insert(number, (device, connection));
        Ok(number)
    });
    opened.unwrap_or(0)
}

/// Closes a connection.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_ipc_close(number: u64) {
    let closed = shared().connections.remove(&number);
    drop(closed);
}

/// Sends memory to the peer, once all work that was submitted to the stream is complete. Returns 0, or -1.
///
/// ```c
/// int weirpool_ipc_send(uint64_t connection, uint64_t address, const char* label, cudaStream_t stream);
/// ```
///
/// # Safety
/// The stream must exist, and `label` must end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_ipc_send(
    number: u64,
    address: u64,
    label: *const c_char,
    stream: CUstream,
) -> c_int {
    let sent = call(|| {
        let (device, connection) = connection(number)?;
        // SAFETY: as the caller promises.
        let label = unsafe { CStr::from_ptr(label) }.to_string_lossy();
        settle(device_pool::open(device)?, stream)?;
        let block = match shared().memory.get(&address) {
            Some((_, Memory::Own(block, _))) => block.clone(),
            _ => return Err(format!("{address:#x} was not allocated to be shared")),
        };
        let sent = block_on(connection.send(&block, &label)).map_err(|error| error.to_string())?;
        if let Some((_, Memory::Own(_, all))) = shared().memory.get_mut(&address) {
            all.push(sent);
        }
        Ok(())
    });
    sent.map_or(-1, |()| 0)
}

/// Waits until every peer has released the memory at an address. Returns 0, or -1 if one of them refused it or is gone.
///
/// ```c
/// int weirpool_ipc_wait(uint64_t address);
/// ```
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_ipc_wait(address: u64) -> c_int {
    let released = call(|| {
        let all = match shared().memory.get_mut(&address) {
            Some((_, Memory::Own(_, all))) => std::mem::take(all),
            _ => return Err(format!("{address:#x} was not allocated to be shared")),
        };
        all.into_iter()
            .try_for_each(|sent| block_on(sent).map_err(|error| error.to_string()))
    });
    released.map_or(-1, |()| 0)
}

/// Waits for memory from the peer. Writes its size and its label, which is cut to `capacity` bytes with the final zero.
/// Returns its address, or 0 on failure or when the connection has ended.
///
/// ```c
/// uint64_t weirpool_ipc_receive(uint64_t connection, uint64_t* bytes, char* label, size_t capacity);
/// ```
///
/// # Safety
/// `bytes` and `label` must be valid for writes of these sizes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_ipc_receive(
    number: u64,
    bytes: *mut u64,
    label: *mut c_char,
    capacity: usize,
) -> u64 {
    let received = call(|| {
        let (device, connection) = connection(number)?;
        let stream = device_pool::open(device)?.own_stream()?;
        let block = block_on(connection.receive(&stream)).map_err(|error| error.to_string())?;
        let text = block.label().as_bytes();
        let text = &text[..text.len().min(capacity.saturating_sub(1))];
        // SAFETY: as the caller promises.
        unsafe {
            bytes.write(block.requested());
            if capacity > 0 {
                label.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
                label.add(text.len()).write(0);
            }
        }
        let address = block.address().to_bits();
        let memory = Memory::Received(block);
        shared().memory.insert(address, (device, memory));
        Ok(address)
    });
    received.unwrap_or(0)
}
