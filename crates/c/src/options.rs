//! The structs of `weirpool.h`. Each begins with its size, by which versions of the header are told apart.

use crate::status::Failure;
use std::ffi::{CStr, c_char};
use std::mem::{MaybeUninit, offset_of};
use std::slice;
use weirpool::{Pool, PoolBuilder, ReleaseThreshold, Statistics, Upstream};

const PERMANENT_STREAMS: u32 = 1;
const SIMULATED: i32 = -1;

/// `weirpool_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Options {
    size: usize,
    device: i32,
    memory: u32,
    capacity: u64,
    release_threshold: u64,
    name: *const c_char,
    flags: u32,
    reserved: u32,
}

/// `weirpool_statistics`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Figures {
    size: usize,
    capacity: u64,
    reserved: u64,
    reserved_high: u64,
    used: u64,
    used_high: u64,
    pending: u64,
    live: u64,
    allocations: u64,
    waiting: u64,
    served: u64,
    timed_out: u64,
    device_waits: u64,
}

/// No version of a struct is larger. A size above this was never set.
const MOST: usize = 4096;

/// The size of the first version of each struct, which is this one. A version that adds fields keeps these sizes.
const LEAST_OPTIONS: usize = size_of::<Options>();
const LEAST_FIGURES: usize = size_of::<Figures>();

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(LEAST_OPTIONS == 48 && LEAST_FIGURES == 104);
    assert!(offset_of!(Options, capacity) == 16 && offset_of!(Options, name) == 32);
    assert!(offset_of!(Figures, used) == 32 && offset_of!(Figures, waiting) == 72);
};

impl Default for Options {
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            device: 0,
            memory: 0,
            capacity: 0,
            release_threshold: 0,
            name: std::ptr::null(),
            flags: 0,
            reserved: 0,
        }
    }
}

impl Options {
    /// Reads the options of a caller, whose header may be older or newer.
    ///
    /// # Errors
    /// Returns an error if the size is none of a version, or a field that this version does not know is set.
    ///
    /// # Safety
    /// If the pointer is not null, it points to a size and, in all, that many readable bytes; the name is null or a
    /// string with a zero at its end.
    pub(crate) unsafe fn read(given: *const Self) -> Result<Self, Failure> {
        if given.is_null() {
            return Ok(Self::default());
        }
        // SAFETY: guaranteed by the caller.
        let size = unsafe { given.cast::<usize>().read() };
        if !(LEAST_OPTIONS..=MOST).contains(&size) {
            return Err(Failure::invalid(format_args!(
                "the size of the options is {size}, not that of `weirpool_options`; initialize them by `WEIRPOOL_OPTIONS`"
            )));
        }
        // SAFETY: as above.
        let bytes = unsafe { slice::from_raw_parts(given.cast::<u8>(), size) };
        let known = size.min(size_of::<Self>());
        if bytes[known..].iter().any(|byte| *byte != 0) {
            return Err(Failure::invalid(
                "an option is set that this version of weirpool does not know; use a newer one",
            ));
        }
        let mut options = Self::default();
        // SAFETY: both have this many bytes, and every value of them is valid: numbers, and a pointer.
        unsafe {
            (&raw mut options)
                .cast::<u8>()
                .copy_from(bytes.as_ptr(), known)
        };
        Ok(options)
    }

    /// Returns the number of the GPU; `None` for the simulated device.
    pub(crate) fn gpu(&self) -> Result<Option<usize>, Failure> {
        match self.device {
            SIMULATED => Ok(None),
            number => match usize::try_from(number) {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(Failure::invalid(format_args!(
                    "there is no device {number}"
                ))),
            },
        }
    }

    pub(crate) fn has_permanent_streams(&self) -> bool {
        self.flags & PERMANENT_STREAMS != 0
    }

    /// Sets what the options say about the pool.
    ///
    /// # Errors
    /// Returns an error if a number has no meaning.
    ///
    /// # Safety
    /// As for [`read`](Self::read).
    pub(crate) unsafe fn apply(&self, mut builder: PoolBuilder) -> Result<PoolBuilder, Failure> {
        if self.flags & !PERMANENT_STREAMS != 0 || self.reserved != 0 {
            return Err(Failure::invalid(
                "a flag is set that this version does not know",
            ));
        }
        let upstream = match self.memory {
            0 => Upstream::Virtual,
            1 => Upstream::Device,
            2 => Upstream::Pinned,
            3 => Upstream::Managed,
            kind => {
                return Err(Failure::invalid(format_args!(
                    "there is no kind of memory {kind}"
                )));
            }
        };
        builder = builder.upstream(upstream);
        if self.capacity != 0 {
            builder = builder.capacity(self.capacity);
        }
        if self.release_threshold != 0 {
            builder = builder.release_threshold(ReleaseThreshold::Bytes(self.release_threshold));
        }
        if !self.name.is_null() {
            // SAFETY: guaranteed by the caller.
            let name = unsafe { CStr::from_ptr(self.name) };
            builder = builder.name(name.to_string_lossy());
        }
        Ok(builder)
    }
}

impl Figures {
    fn of(statistics: &Statistics) -> Self {
        Self {
            size: size_of::<Self>(),
            capacity: statistics.capacity,
            reserved: statistics.reserved.current,
            reserved_high: statistics.reserved.high,
            used: statistics.used.current,
            used_high: statistics.used.high,
            pending: statistics.pending.current,
            live: statistics.live_blocks,
            allocations: statistics.allocations,
            waiting: statistics.waits.waiting as u64,
            served: statistics.waits.served,
            timed_out: statistics.waits.timed_out,
            device_waits: statistics.device_waits,
        }
    }

    /// Writes the figures of a pool where the caller says, as many as it has room for, and zeros behind them.
    ///
    /// # Errors
    /// Returns an error if the pointer is null, or the size is none of a version.
    ///
    /// # Safety
    /// If the pointer is not null, it points to a size and, in all, that many writable bytes.
    pub(crate) unsafe fn write(pool: &Pool, to: *mut Self) -> Result<(), Failure> {
        if to.is_null() {
            return Err(Failure::invalid("the pointer to the statistics is null"));
        }
        // SAFETY: guaranteed by the caller.
        let size = unsafe { to.cast::<usize>().read() };
        if !(LEAST_FIGURES..=MOST).contains(&size) {
            return Err(Failure::invalid(format_args!(
                "the size of the statistics is {size}, not that of `weirpool_statistics`; set it before the call"
            )));
        }
        let mut figures = Self::of(&pool.inspect().statistics());
        figures.size = size;
        let known = size.min(size_of::<Self>());
        // SAFETY: there is room for `size` bytes.
        unsafe {
            let to = to.cast::<MaybeUninit<u8>>();
            to.write_bytes(0, size);
            to.copy_from((&raw const figures).cast(), known);
        }
        Ok(())
    }
}
