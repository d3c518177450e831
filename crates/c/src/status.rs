//! Results of calls, and the description of the last error of a thread.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use weirpool::device::DeviceError;
use weirpool::{AllocError, BuildError, ErrorClass, StreamError};
use weirpool_compat::RawError;

/// The numbers of `weirpool.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Status {
    Success = 0,
    InvalidArgument = 1,
    OutOfMemory = 2,
    TimedOut = 3,
    TooLarge = 4,
    NotAllocated = 5,
    Stream = 6,
    Device = 7,
    Unordered = 8,
    Panic = 9,
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    status: Status,
    reason: String,
}

impl Failure {
    pub(crate) fn new(status: Status, reason: impl ToString) -> Self {
        let reason = reason.to_string();
        Self { status, reason }
    }

    pub(crate) fn invalid(reason: impl ToString) -> Self {
        Self::new(Status::InvalidArgument, reason)
    }
}

impl From<AllocError> for Failure {
    fn from(error: AllocError) -> Self {
        let status = match &error {
            AllocError::TimedOut { .. } => Status::TimedOut,
            AllocError::TooLarge { .. } => Status::TooLarge,
            AllocError::InvalidAlignment { .. } => Status::InvalidArgument,
            AllocError::Stream(_) | AllocError::ForeignStream | AllocError::StreamCaptured => {
                Status::Stream
            }
            AllocError::Device(_) => Status::Device,
            error if matches!(error.class(), ErrorClass::Busy { .. }) => Status::OutOfMemory,
            _ => Status::Device,
        };
        Self::new(status, error)
    }
}

impl From<RawError> for Failure {
    fn from(error: RawError) -> Self {
        match error {
            RawError::Stream(error) => error.into(),
            error => Self::new(Status::NotAllocated, error),
        }
    }
}

impl From<StreamError> for Failure {
    fn from(error: StreamError) -> Self {
        Self::new(Status::Stream, error)
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        Self::new(Status::Device, error)
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Device(error) => error.into(),
            error => Self::invalid(error),
        }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs the body of a function for C, and keeps the description of its error. No panic leaves it.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> Status {
    // A panic inside of the pool is reported, and the header says that the pool must not be used any more.
    let ended = catch_unwind(AssertUnwindSafe(body));
    let failure = match ended {
        Ok(Ok(())) => return Status::Success,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::new(Status::Panic, text_of(&*panic)),
    };
    let reason = failure.reason.replace('\0', " ");
    let reason = CString::new(reason).expect("it has no zero byte");
    // A thread that is ending has no last error.
    let _ = LAST.try_with(|last| last.replace(reason));
    failure.status
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a text")
}

/// Returns the text, which is valid until the next error of this thread.
pub(crate) fn last_error() -> *const c_char {
    let text = LAST.try_with(|last| last.borrow().as_ptr());
    text.unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn told() -> String {
        // SAFETY: it is a string with a zero at its end, until the next error.
        let text = unsafe { CStr::from_ptr(last_error()) };
        text.to_string_lossy().into_owned()
    }

    #[test]
    fn panic_is_an_error_of_its_thread_alone() {
        assert_eq!(told(), "");
        assert_eq!(call(|| panic!("at {}", 7)), Status::Panic);
        assert_eq!(told(), "at 7");
        assert_eq!(std::thread::spawn(told).join().unwrap(), "");
        assert_eq!(call(|| Ok(())), Status::Success);
        assert_eq!(told(), "at 7", "it is kept until the next error");
        let failure = || Err(Failure::invalid("a\0b"));
        assert_eq!(call(failure), Status::InvalidArgument);
        assert_eq!(told(), "a b");
    }
}
