//! The pools: one for each context in which the program allocates.
//!
//! A context's pool is made at the first allocation there. It lives until the program destroys the context: then
//! [`close`] frees what the program has not freed, as the driver does. A closed pool is never dropped, since another thread
//! may be about to use it.

use super::blocks::{self, Held, Memory};
use super::counts::{Passed, count_failure};
use super::driver::{self, OUT_OF_MEMORY, Status};
use super::end::say;
use super::streams::{self, Handle};
use super::{captures, fork, page};
use crate::settings::Settings;
use cudarc::driver::CudaContext;
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use weirpool::device::DeviceErrorKind;
use weirpool::device::cuda::CudaDevice;
use weirpool::extend::Charge;
use weirpool::{
    AllocError, Block, BuildError, ErrorClass, Pool, Sealing, Stream, StreamError, Tag, Terms,
};
use weirpool_broker::BrokerOptions;
use weirpool_observe::Record;

/// Bytes that each stream keeps for itself: a program of this kind has few streams, and allocates large blocks on them.
const LANE_BYTES: u64 = 256 << 20;

/// The answer to a call of the program.
pub(super) enum Answer<T> {
    Served(T),
    Failed(Status),
    /// The driver answers.
    Passed(Passed),
}

impl<T> Answer<T> {
    /// Returns the answer for what `make` makes of a served value.
    pub(super) fn map<U>(self, make: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Self::Served(value) => Answer::Served(make(value)),
            Self::Failed(status) => Answer::Failed(status),
            Self::Passed(reason) => Answer::Passed(reason),
        }
    }

    /// Returns the answer that `call` gives for a served value.
    pub(super) fn and_then<U>(self, call: impl FnOnce(T) -> Answer<U>) -> Answer<U> {
        match self {
            Self::Served(value) => call(value),
            Self::Failed(status) => Answer::Failed(status),
            Self::Passed(reason) => Answer::Passed(reason),
        }
    }
}

/// A context, and its pool.
pub(super) struct Context {
    pub(super) handle: usize,
    pub(super) device: c_int,
    pub(super) pool: Pool,
    /// The device, for access to the memory of others.
    pub(super) cuda: CudaDevice,
    /// The stream of calls that are in no stream's order. No work is submitted to it, and it never waits on the device:
    /// memory that is allocated on it is free of earlier work.
    synchronous: Stream,
    /// The legacy default stream, once it is used.
    pub(super) legacy: OnceLock<Arc<streams::Known>>,
    pub(super) is_alive: Arc<AtomicBool>,
    pub(super) settings: Settings,
    terms: Terms,
    /// Counts the allocations of the driver's that were admitted.
    pub(super) admitted: AtomicU64,
}

#[derive(Clone, Copy)]
enum Opened {
    Pool(&'static Context),
    /// There is no pool: the driver serves the context, or a broker's memory was asked for and there is no broker.
    None(bool),
}

/// The contexts that were used and not destroyed.
static OPENED: Mutex<Vec<(usize, Opened)>> = Mutex::new(Vec::new());
/// All that had a pool, those that were destroyed included.
static EVER: Mutex<Vec<&'static Context>> = Mutex::new(Vec::new());
/// Counts the changes after which what a thread remembers may be wrong.
static GENERATION: AtomicU64 = AtomicU64::new(0);
/// Frees that came during a capture, while the device must not be waited for.
static DEFERRED: Mutex<Vec<(&'static Context, Block)>> = Mutex::new(Vec::new());
static HAS_DEFERRED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static LAST: Cell<Option<(u64, usize, Opened)>> = const { Cell::new(None) };
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline]
pub(super) fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// Makes all threads forget what they remember of streams and contexts.
pub(super) fn change() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// Returns the context with a handle, and makes its pool at the first call.
pub(super) fn of(handle: usize) -> Answer<&'static Context> {
    let generation = generation();
    let remembered = LAST.get().filter(|last| (last.0, last.1) == (generation, handle));
    let opened = match remembered {
        Some((_, _, opened)) => opened,
        None => {
            let opened = open(handle);
            LAST.set(Some((generation, handle, opened)));
            opened
        }
    };
    match opened {
        Opened::Pool(context) => Answer::Served(context),
        Opened::None(true) => Answer::Failed(OUT_OF_MEMORY),
        Opened::None(false) => Answer::Passed(Passed::NoPool),
    }
}

/// Returns the current context of this thread; passes the call on if it has none.
pub(super) fn of_current() -> Answer<&'static Context> {
    driver::current().map_or(Answer::Passed(Passed::NoPool), of)
}

/// Returns a context of a device that has a pool: the current one, if it is of that device.
pub(super) fn of_device(device: c_int) -> Option<&'static Context> {
    let current = driver::current();
    let opened = locked(&OPENED);
    let pools = opened.iter().filter_map(|(handle, opened)| match opened {
        Opened::Pool(context) if context.device == device => Some((*handle, *context)),
        _ => None,
    });
    let found = pools.max_by_key(|(handle, _)| Some(*handle) == current);
    found.map(|(_, context)| context)
}

/// Returns the contexts that have or had a pool.
pub(super) fn ever() -> Vec<&'static Context> {
    locked(&EVER).clone()
}

/// Ends the pool of a context that is about to be destroyed.
pub(super) fn close(handle: usize) {
    let mut opened = locked(&OPENED);
    let at = opened.iter().position(|(known, _)| *known == handle);
    let closed = at.map(|at| opened.swap_remove(at).1);
    drop(opened);
    change();
    if let Some(Opened::Pool(context)) = closed {
        context.close();
    }
}

/// Ends the pools of all contexts of a device; `handle` is that of its primary one.
pub(super) fn close_primary(device: c_int) {
    let handle = locked(&EVER).iter().rev().find_map(|context| {
        let is_it = context.device == device && context.is_alive.load(Ordering::Acquire);
        is_it.then_some(context.handle)
    });
    if let Some(handle) = handle {
        close(handle);
    }
}

/// Frees the memory whose free came during a capture, once there is no capture.
pub(super) fn free_deferred() {
    if !HAS_DEFERRED.load(Ordering::Acquire) || captures::are_active() {
        return;
    }
    HAS_DEFERRED.store(false, Ordering::Release);
    let deferred = std::mem::take(&mut *locked(&DEFERRED));
    for (context, block) in deferred {
        let _ = context.free_now(block);
    }
}

fn open(handle: usize) -> Opened {
    let mut opened = locked(&OPENED);
    if let Some((_, known)) = opened.iter().find(|(known, _)| *known == handle) {
        return *known;
    }
    fork::watch();
    let made = Settings::of_environment().and_then(|settings| {
        let made = Context::new(handle, settings.clone());
        made.map_err(|error| error.to_string())
    });
    let made = match made {
        Ok(context) => {
            let context: &'static Context = Box::leak(Box::new(context));
            let mut ever = locked(&EVER);
            ever.push(context);
            if let (1, Some(port)) = (ever.len(), context.settings.page) {
                page::serve(&context.pool, port);
            }
            Opened::Pool(context)
        }
        Err(reason) => {
            let is_leased = std::env::var_os(crate::settings::BROKER).is_some();
            let outcome = match is_leased {
                true => "allocations fail",
                false => "the driver serves the program",
            };
            say(&format!("{reason}; {outcome}"));
            Opened::None(is_leased)
        }
    };
    opened.push((handle, made));
    made
}

impl Context {
    fn new(handle: usize, settings: Settings) -> Result<Self, Box<dyn std::error::Error>> {
        let device = driver::in_context(handle, driver::device_of_current);
        let device = device.map_err(|status| format!("the driver answers {status}"))?;
        // SAFETY: the context is that of the device. The handle is leaked, so that cudarc destroys nothing; `close` is called
        // before the program destroys the context, and the driver is not called after it.
        let context = unsafe {
            CudaContext::from_raw_context(device as usize, device, handle as *mut _)
        }?;
        std::mem::forget(context.clone());
        let cuda = CudaDevice::builder()
            .ordinal(device as usize)
            .context(context)
            .virtual_memory(!settings.is_plain)
            .exportable_memory(true)
            .build()?;
        let pool = build(&cuda, &settings)?;
        let work = cuda.create_stream()?;
        let raw = work.cu_stream() as usize;
        let own = Handle::kept(handle, raw, work).without_waits();
        let mut terms = Terms::default();
        terms.tag = settings.tag.as_deref().map(Tag::new);
        terms.timeout = Some(settings.wait);
        Ok(Self {
            handle,
            device,
            synchronous: pool.register(&own)?.named("synchronous calls"),
            pool,
            cuda,
            legacy: OnceLock::new(),
            is_alive: Arc::new(AtomicBool::new(true)),
            settings,
            terms,
            admitted: AtomicU64::new(0),
        })
    }

    /// Allocates in the order of a stream, and waits for memory as long as the settings say.
    #[inline]
    pub(super) fn allocate(&'static self, stream: &Stream, bytes: u64) -> Answer<u64> {
        // Most requests are served from the stream's own lane.
        let request = || self.pool.allocate(stream, bytes).terms(self.terms);
        let allocated = request().try_now().or_else(|error| match error.class() {
            ErrorClass::Busy { .. } => request().blocking(),
            _ => Err(error),
        });
        match allocated {
            Ok(block) => {
                let address = block.address().to_bits();
                let memory = Memory::Block(block);
                let context = self;
                blocks::put(address, Held { context, memory });
                Answer::Served(address)
            }
            Err(error) => refused(&error),
        }
    }

    /// Allocates memory that any stream may use at once.
    pub(super) fn allocate_synchronously(&'static self, bytes: u64) -> Answer<u64> {
        self.allocate(&self.synchronous, bytes)
    }

    /// Returns whether a block was allocated in no stream's order.
    pub(super) fn is_synchronous(&self, block: &Block) -> bool {
        block.stream().id() == self.synchronous.id()
    }

    /// Admits memory that the driver allocates by `allocate`, as soon as there is room for it. Returns what `allocate` returns,
    /// and the charge, to be dropped when the memory is gone.
    pub(super) fn admit(
        &self,
        bytes: u64,
        allocate: impl Fn() -> Result<u64, Status>,
    ) -> Answer<(u64, Charge)> {
        let charge = match self.pool.charge_for(bytes).terms(self.terms).blocking() {
            Ok(charge) => charge,
            Err(error) => return refused(&error),
        };
        let allocated = allocate().or_else(|status| match self.pool.trim_to(0) {
            // The pool's free memory may be what the driver lacks.
            Ok(trimmed) if status == OUT_OF_MEMORY && trimmed.released > 0 => allocate(),
            _ => Err(status),
        });
        match allocated {
            Ok(memory) => {
                self.admitted.fetch_add(1, Ordering::Relaxed);
                Answer::Served((memory, charge))
            }
            Err(status) => Answer::Failed(status),
        }
    }

    /// Allocates memory of the driver's by its `cuMemAlloc`, and charges it.
    pub(super) fn allocate_plain(
        &'static self,
        bytes: u64,
        allocate: impl Fn() -> Result<u64, Status>,
    ) -> Answer<u64> {
        self.admit(bytes, allocate).map(|(address, _charge)| {
            let memory = Memory::Charged { _charge, bytes };
            let context = self;
            blocks::put(address, Held { context, memory });
            address
        })
    }

    /// Frees a block that work of any stream may use: waits for all work of the context, as the driver's `cuMemFree`
    /// does. During a capture, when the device must not be waited for, the block is freed later.
    ///
    /// # Errors
    /// Returns the driver's error, and the block.
    pub(super) fn free_synchronously(&'static self, block: Block) -> Result<(), (Status, Block)> {
        free_deferred();
        if captures::are_active() {
            locked(&DEFERRED).push((self, block));
            HAS_DEFERRED.store(true, Ordering::Release);
            Passed::Capture.count();
            return Ok(());
        }
        self.free_now(block)
    }

    fn free_now(&self, block: Block) -> Result<(), (Status, Block)> {
        match driver::synchronize(self.handle) {
            Ok(()) => {
                self.free_complete(block);
                Ok(())
            }
            Err(status) => Err((status, block)),
        }
    }

    /// Frees a block that no work uses any more.
    fn free_complete(&self, block: Block) {
        // Its own stream may be the thread's own of another thread.
        let _ = block.freed_after(&self.synchronous);
    }

    fn close(&'static self) {
        let _ = driver::synchronize(self.handle);
        for held in blocks::take_all(self) {
            if let Memory::Block(block) = held.memory {
                self.free_complete(block);
            }
        }
        streams::forget(self);
        let _ = self.synchronous.seal();
        // Once more: the pool records events where it frees.
        let _ = driver::synchronize(self.handle);
        let _ = self.pool.maintain().reap();
        let _ = self.pool.trim_to(0);
        self.pool.close();
        self.is_alive.store(false, Ordering::Release);
    }
}

/// Returns the answer for a request that the pool refuses.
#[cold]
fn refused<T>(error: &AllocError) -> Answer<T> {
    match error {
        AllocError::Device(error) | AllocError::Stream(StreamError::Device(error))
            if error.kind() != DeviceErrorKind::OutOfMemory =>
        {
            Answer::Passed(Passed::NoPool)
        }
        AllocError::Closed => Answer::Passed(Passed::NoPool),
        _ => {
            count_failure();
            Answer::Failed(OUT_OF_MEMORY)
        }
    }
}

fn build(cuda: &CudaDevice, settings: &Settings) -> Result<Pool, BuildError> {
    let builder = Pool::builder(cuda.clone())
        .sealing(Sealing::OnDemand)
        .tuning(|tuning| tuning.lane_bytes = LANE_BYTES);
    let builder = match settings.limit {
        Some(bytes) => builder.capacity(bytes),
        None => builder,
    };
    let builder = match &settings.record {
        Some(_) => builder.history(usize::MAX),
        None => builder,
    };
    let builder = match &settings.broker {
        Some(socket) => {
            let options = BrokerOptions::new(socket);
            let name = settings.tag.clone().or_else(program);
            let options = match name {
                Some(name) => options.name(name.chars().take(60).collect::<String>()),
                None => options,
            };
            weirpool_broker::lease_capacity(builder, options)
        }
        None => builder,
    };
    builder.build()
}

/// Returns the name of the program.
pub(super) fn program() -> Option<String> {
    let executable = std::env::current_exe().ok()?;
    let name = executable.file_name()?;
    Some(name.to_string_lossy().into_owned())
}
