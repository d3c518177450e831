//! The handles by which PyTorch shares tensors between processes (`shareIpcHandle` and `getIpcDevPtr`).
//!
//! A handle names a private socket of the exporting process, a token, and the range of memory. The importing process
//! connects, sends the token, and receives a descriptor for each chunk of the range. The exporter makes the descriptors
//! then, at most [`BATCH`] at once, and closes them when they are sent. The importer maps the chunks side by side.
//!
//! The token is valid until the memory is freed. PyTorch counts the processes that use a tensor, and frees it after
//! them. Both processes must run weirpool, as the same user, on the same device.

use crate::device_pool::{self, DevicePool};
use crate::torch::{Kind, Reason, Refusal, copy_out, status, told};
use cudarc::driver::DriverError;
use cudarc::driver::sys::{self, CUmemAllocationHandleType, CUmemGenericAllocationHandle};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::fs::DirBuilder;
use std::hash::{BuildHasher, RandomState};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weirpool::device::Device;
use weirpool_share::ipc::wire::{Allowed, Connection, Listener};

/// What handles begin with. The number changes with the protocol.
const PREFIX: &str = "weirpool-1:";

/// The most descriptors that are open at once for a connection.
const BATCH: u64 = 32;

/// The most chunks of a handle: more than any device has.
const MOST_CHUNKS: u64 = 1 << 20;

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);

const DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// The text of a handle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Handle {
    socket: PathBuf,
    token: u64,
    process: u32,
    device: String,
    chunk_bytes: u64,
    chunks: u64,
}

/// What the exporter answers before the descriptors of each batch.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Chunks,
    Refused(String),
}

/// A range of whole chunks that other processes may open.
#[derive(Debug)]
struct Exported {
    device: c_int,
    token: u64,
    base: u64,
    chunk_bytes: u64,
    chunks: u64,
}

#[derive(Default)]
struct Exports {
    socket: Option<(PathBuf, Arc<Listener>)>,
    by_address: HashMap<u64, Arc<Exported>>,
}

fn exports() -> MutexGuard<'static, Exports> {
    static EXPORTS: LazyLock<Mutex<Exports>> = LazyLock::new(Mutex::default);
    EXPORTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory of another process that is mapped here.
struct Imported {
    device: c_int,
    base: u64,
    chunk_bytes: u64,
    chunks: Vec<CUmemGenericAllocationHandle>,
}

fn imports() -> MutexGuard<'static, HashMap<u64, Imported>> {
    static IMPORTS: LazyLock<Mutex<HashMap<u64, Imported>>> = LazyLock::new(Mutex::default);
    IMPORTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

impl Exports {
    /// Returns the path of the socket, which is created with its thread on the first call.
    fn socket(&mut self) -> Result<PathBuf, String> {
        if let Some((path, _)) = &self.socket {
            return Ok(path.clone());
        }
        let name = format!("weirpool-{}-{:016x}", std::process::id(), random());
        let folder = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| format!("{} was not created: {error}", folder.display()))?;
        let path = folder.join("socket");
        let listener = Listener::bind(&path, Allowed::own()).map_err(|error| error.to_string())?;
        let listener = Arc::new(listener);
        let served = listener.clone();
        std::thread::Builder::new()
            .name("weirpool handles".to_owned())
            .spawn(move || serve(&served))
            .map_err(|error| format!("no thread for handles: {error}"))?;
        self.socket = Some((path.clone(), listener));
        Ok(path)
    }
}

/// Serves importers, one after the other, until the socket is closed.
fn serve(listener: &Listener) {
    loop {
        match listener.accept() {
            Ok(connection) => {
                // The importer reports what went wrong.
                let _ = answer(&connection);
            }
            Err(weirpool_share::ipc::wire::Error::Closed) => return,
            // Another user, or no descriptor left.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
        if exports().socket.is_none() {
            return;
        }
    }
}

fn answer(connection: &Connection) -> Result<(), weirpool_share::ipc::wire::Error> {
    connection.set_timeouts(Some(PATIENCE), Some(PATIENCE))?;
    let (token, _): (u64, _) = connection.receive()?;
    let find = || {
        let exports = exports();
        let mut all = exports.by_address.values();
        all.find(|exported| exported.token == token).cloned()
    };
    let gone = || Answer::Refused("the memory was freed before it was opened".to_owned());
    let Some(exported) = find() else {
        return connection.send(&gone(), &[]);
    };
    for first in (0..exported.chunks).step_by(BATCH as usize) {
        let batch = first..(first + BATCH).min(exported.chunks);
        let descriptors: Result<Vec<_>, String> = batch.map(|at| exported.export(at)).collect();
        let descriptors = match descriptors {
            Ok(descriptors) if find().is_some() => descriptors,
            // Freed meanwhile, so other memory may be mapped there.
            Ok(_) => return connection.send(&gone(), &[]),
            Err(reason) => return connection.send(&Answer::Refused(reason), &[]),
        };
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        connection.send(&Answer::Chunks, &borrowed)?;
    }
    Ok(())
}

impl Exported {
    /// Exports a chunk of the range. The memory may be freed meanwhile: then this is another chunk, or an error.
    fn export(&self, at: u64) -> Result<OwnedFd, String> {
        let address = (self.base + at * self.chunk_bytes) as *mut c_void;
        let pool = device_pool::open(self.device)?;
        let descriptor = pool.in_context(|| {
            let (mut chunk, mut descriptor): (_, c_int) = (0, -1);
            // SAFETY: the calls write to the two values. The first refuses an address without a chunk.
            unsafe {
                sys::cuMemRetainAllocationHandle(&raw mut chunk, address).result()?;
                let to = (&raw mut descriptor).cast();
                let exported = sys::cuMemExportToShareableHandle(to, chunk, DESCRIPTOR, 0).result();
                sys::cuMemRelease(chunk).result()?;
                exported?;
            }
            Ok(descriptor)
        })?;
        if descriptor < 0 {
            return Err("the driver returned no descriptor".to_owned());
        }
        // SAFETY: the driver has just returned the descriptor for its caller to close.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

fn device_name(pool: &DevicePool) -> Result<String, String> {
    let uuid = pool.device().uuid().ok_or("the device has no UUID")?;
    Ok(uuid.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Registers memory that other processes may open, and returns its handle and the offset of the address in it.
fn share(device: c_int, address: u64, bytes: u64) -> Result<(String, u64), Reason> {
    let unsupported = |text: &str| Reason(Kind::Unsupported, text.to_owned());
    let pool = device_pool::open(device)?;
    if pool.device_sharing().is_none() {
        let text = "memory of this device cannot be shared: it has no virtual memory that can be exported as a file descriptor";
        return Err(unsupported(text));
    }
    let snapshot = pool.pool().inspect().snapshot();
    let mut segments = snapshot.segments.iter();
    let segment = segments.find(|segment| {
        (0..segment.size).contains(&address.wrapping_sub(segment.address.to_bits()))
    });
    let Some(segment) = segment else {
        return Err(unsupported(
            "the memory is in a chunk of its own; share memory that PyTorch allocated",
        ));
    };
    let (chunk_bytes, start) = (snapshot.chunk_bytes, segment.address.to_bits());
    let base = start + (address - start) / chunk_bytes * chunk_bytes;
    let chunks = (address + bytes - base).div_ceil(chunk_bytes);
    let name = device_name(pool)?;
    let mut exports = exports();
    let socket = exports.socket()?;
    let make = || {
        Arc::new(Exported {
            device,
            token: random(),
            base,
            chunk_bytes,
            chunks,
        })
    };
    let exported = exports
        .by_address
        .entry(address)
        .or_insert_with(make)
        .clone();
    drop(exports);
    let handle = Handle {
        socket,
        token: exported.token,
        process: std::process::id(),
        device: name,
        chunk_bytes,
        chunks,
    };
    let text = serde_json::to_string(&handle).map_err(|error| error.to_string())?;
    Ok((format!("{PREFIX}{text}"), address - base))
}

fn parsed(handle: &[u8]) -> Result<Handle, Reason> {
    let text = std::str::from_utf8(handle)
        .ok()
        .and_then(|text| text.strip_prefix(PREFIX));
    let Some(text) = text else {
        let text = "the tensor comes from a process that does not run this version of weirpool; call weirpool.torch.use() in both";
        return Err(Reason(Kind::Unsupported, text.to_owned()));
    };
    let handle: Handle = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let is_sound = (1..=MOST_CHUNKS).contains(&handle.chunks)
        && handle.chunk_bytes.is_power_of_two()
        && handle.chunk_bytes.checked_mul(handle.chunks).is_some();
    match is_sound {
        true => Ok(handle),
        false => Err("the handle describes no memory".to_owned().into()),
    }
}

fn receive(
    handle: &Handle,
    mut take: impl FnMut(OwnedFd) -> Result<(), String>,
) -> Result<(), String> {
    let who = format!("process {} that shares the memory", handle.process);
    let failed =
        |error: weirpool_share::ipc::wire::Error| format!("{who}: {error}; is it still running?");
    let connection = Connection::connect_within(&handle.socket, &Allowed::own(), PATIENCE);
    let connection = connection.map_err(failed)?;
    connection
        .set_timeouts(Some(PATIENCE), Some(PATIENCE))
        .map_err(failed)?;
    connection.send(&handle.token, &[]).map_err(failed)?;
    let mut left = handle.chunks;
    while left > 0 {
        let (answer, descriptors): (Answer, _) = connection.receive().map_err(failed)?;
        match answer {
            Answer::Refused(reason) => return Err(format!("{who}: {reason}")),
            Answer::Chunks if descriptors.is_empty() || descriptors.len() as u64 > left => {
                return Err(format!(
                    "{who}: it sent {} chunks of {left}",
                    descriptors.len()
                ));
            }
            Answer::Chunks => {
                left -= descriptors.len() as u64;
                descriptors.into_iter().try_for_each(&mut take)?;
            }
        }
    }
    Ok(())
}

/// Opens memory of another process. Returns the number of the import, and the first address.
fn open(device: c_int, handle: &[u8]) -> Result<(u64, u64), Reason> {
    let handle = parsed(handle)?;
    if handle.process == std::process::id() {
        return Err("a process cannot open its own handle".to_owned().into());
    }
    let pool = device_pool::open(device)?;
    if device_name(pool)? != handle.device {
        let text = format!(
            "the memory is on another GPU than device {device} of this process; make the same GPUs visible to both"
        );
        return Err(Reason(Kind::Unsupported, text));
    }
    let mut imported = Imported {
        device,
        base: 0,
        chunk_bytes: handle.chunk_bytes,
        chunks: Vec::new(),
    };
    let received = receive(&handle, |descriptor| {
        let chunk = pool.in_context(|| import(&descriptor))?;
        imported.chunks.push(chunk);
        Ok(())
    });
    let mapped = received.and_then(|()| pool.in_context(|| imported.map(pool)));
    if let Err(reason) = mapped {
        imported.close();
        return Err(reason.into());
    }
    let (number, base) = (random(), imported.base);
    imports().insert(number, imported);
    Ok((number, base))
}

fn import(descriptor: &OwnedFd) -> Result<CUmemGenericAllocationHandle, DriverError> {
    let mut chunk = 0;
    let number = std::ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
    // SAFETY: the call writes to `chunk`. The descriptor is open, and the driver refuses one that is not its own.
    unsafe { sys::cuMemImportFromShareableHandle(&raw mut chunk, number, DESCRIPTOR) }.result()?;
    Ok(chunk)
}

impl Imported {
    fn bytes(&self) -> usize {
        self.chunk_bytes as usize * self.chunks.len()
    }

    /// Maps the chunks side by side, for the device. On failure, [`close`](Self::close) releases the parts that were mapped.
    fn map(&mut self, pool: &DevicePool) -> Result<(), DriverError> {
        let mut access = MaybeUninit::<sys::CUmemAccessDesc>::zeroed();
        // SAFETY: all fields may be zero, the pointers are fields of the value, and the numbers are the driver's:
        // memory of a device, and the right to read and write.
        unsafe {
            let fields = access.as_mut_ptr();
            let location = &raw mut (*fields).location;
            (&raw mut (*location).type_).cast::<u32>().write(1);
            location
                .cast::<c_int>()
                .add(1)
                .write(pool.device().context().ordinal() as c_int);
            (&raw mut (*fields).flags).cast::<u32>().write(3);
        }
        // SAFETY: the range is reserved first, and the chunks are mapped once.
        unsafe {
            sys::cuMemAddressReserve(&raw mut self.base, self.bytes(), 0, 0, 0).result()?;
            for (at, chunk) in (0..).zip(&self.chunks) {
                let to = self.base + at * self.chunk_bytes;
                sys::cuMemMap(to, self.chunk_bytes as usize, 0, *chunk, 0).result()?;
            }
            sys::cuMemSetAccess(self.base, self.bytes(), access.as_ptr(), 1).result()
        }
    }

    /// Waits for the work of this process, and lets go of the memory.
    fn close(self) {
        let Ok(pool) = device_pool::open(self.device) else {
            return;
        };
        let closed = pool.in_context(|| {
            // SAFETY: after the synchronization no work uses the range, which was mapped and reserved by `map`. Parts that
            // were not mapped are refused, which is no matter.
            unsafe {
                sys::cuCtxSynchronize().result()?;
                if self.base != 0 {
                    for at in 0..self.chunks.len() as u64 {
                        let to = self.base + at * self.chunk_bytes;
                        let _ = sys::cuMemUnmap(to, self.chunk_bytes as usize);
                    }
                    let _ = sys::cuMemAddressFree(self.base, self.bytes());
                }
                for chunk in &self.chunks {
                    let _ = sys::cuMemRelease(*chunk);
                }
            }
            Ok(())
        });
        // The device has failed, or the process ends.
        let _ = closed;
    }
}

/// Registers allocated memory that other processes may open, until it is freed. Writes a handle to a buffer, and the
/// offset of the address within the memory of the handle. Returns the length of the handle, or 0 on failure.
///
/// # Safety
/// The memory must be allocated. The pointers must be valid for writes, `buffer` for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_torch_share(
    device: c_int,
    address: *mut c_void,
    bytes: usize,
    buffer: *mut c_char,
    room: usize,
    offset: *mut u64,
    refusal: *mut Refusal,
) -> c_int {
    let share = || {
        let (handle, at) = share(device, address as u64, bytes as u64)?;
        // SAFETY: guaranteed by the caller.
        match unsafe { copy_out(&handle, buffer, room) } {
            0 => Err(
                format!("the handle is longer than {room} bytes; choose a shorter TMPDIR").into(),
            ),
            length => {
                // SAFETY: guaranteed by the caller.
                unsafe { offset.write(at) };
                Ok(length)
            }
        }
    };
    // SAFETY: guaranteed by the caller.
    unsafe { told(refusal, share) }.unwrap_or(0)
}

/// Notes that shared memory is about to be freed: no further process can open it.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_torch_unshare(address: *mut c_void) {
    let forgotten = exports().by_address.remove(&(address as u64));
    drop(forgotten);
}

/// An opened handle.
#[derive(Debug)]
#[repr(C)]
pub struct Opened {
    address: *mut c_void,
    number: u64,
}

/// Opens the memory of a handle on a device. The caller passes the number to [`weirpool_torch_close_shared`]. Returns 1
/// on failure.
///
/// # Safety
/// `handle` must be valid for reads of `length` bytes, the other pointers for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_torch_open_shared(
    device: c_int,
    handle: *const u8,
    length: usize,
    opened: *mut Opened,
    refusal: *mut Refusal,
) -> c_int {
    let open = || {
        // SAFETY: guaranteed by the caller.
        let handle = unsafe { std::slice::from_raw_parts(handle, length) };
        let (number, base) = open(device, handle)?;
        let address = base as *mut c_void;
        // SAFETY: guaranteed by the caller.
        unsafe { opened.write(Opened { address, number }) };
        Ok(())
    };
    // SAFETY: guaranteed by the caller.
    status(unsafe { told(refusal, open) })
}

/// Waits for the work of this process on the device, and lets go of memory that was opened.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_torch_close_shared(number: u64) {
    if crate::fork::is_child() {
        return;
    }
    let imported = imports().remove(&number);
    if let Some(imported) = imported {
        imported.close();
    }
}

/// Closes the socket for importers, and removes it. Called at the end of the process.
pub(crate) fn stop() {
    if crate::fork::is_child() {
        return;
    }
    let socket = exports().socket.take();
    if let Some((path, listener)) = socket {
        listener.shutdown();
        // The listener's thread may drop it later.
        let _ = std::fs::remove_file(&path);
        if let Some(folder) = path.parent() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle() -> Handle {
        Handle {
            socket: "/nowhere/socket".into(),
            token: 7,
            process: 1,
            device: "00".to_owned(),
            chunk_bytes: 8 << 20,
            chunks: 3,
        }
    }

    fn text(handle: &Handle) -> Vec<u8> {
        let text = serde_json::to_string(handle).unwrap();
        format!("{PREFIX}{text}").into_bytes()
    }

    #[test]
    fn handle_survives_its_text() {
        assert_eq!(parsed(&text(&handle())).unwrap(), handle());
    }

    #[test]
    fn handle_of_another_allocator_is_refused_by_its_kind() {
        let refused = parsed(&[7; 64]).unwrap_err();
        assert!(refused.0 == Kind::Unsupported && refused.1.contains("weirpool.torch.use()"));
    }

    #[test]
    fn handle_of_no_memory_is_refused() {
        for (chunk_bytes, chunks) in [(0, 1), (3, 1), (8 << 20, 0), (1 << 63, 2), (8, u64::MAX)] {
            let wrong = Handle {
                chunk_bytes,
                chunks,
                ..handle()
            };
            assert!(parsed(&text(&wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn importer_is_refused_a_token_that_is_not_shared() {
        let (ours, theirs) = Connection::pair().unwrap();
        let served = std::thread::spawn(move || answer(&theirs));
        ours.send(&12345_u64, &[]).unwrap();
        let (answer, descriptors): (Answer, _) = ours.receive().unwrap();
        served.join().unwrap().unwrap();
        assert!(matches!(answer, Answer::Refused(_)) && descriptors.is_empty());
    }

    #[test]
    fn exporter_that_is_gone_is_an_error() {
        let refused = receive(&handle(), |_| Ok(())).unwrap_err();
        assert!(
            refused.contains("process 1") && refused.contains("still running"),
            "{refused}"
        );
    }

    #[test]
    fn socket_is_private_and_removed() {
        use std::os::unix::fs::PermissionsExt;
        let path = exports().socket().unwrap();
        let folder = path.parent().unwrap();
        let mode = std::fs::metadata(folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let connected = Connection::connect(&path, &Allowed::own());
        drop(connected.unwrap());
        stop();
        assert!(!folder.exists());
    }
}
