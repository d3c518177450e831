//! The outcome of a function that the device calls: set once, by the thread that the device calls it on.

use crate::device::{DeviceError, DeviceErrorKind};
use crate::error::TaskError;
use crate::sync::{Arc, ForeignOption, Guards};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

type Panic = Box<dyn Any + Send>;

/// See the [module](self). Clones are the same outcome.
pub(super) struct Outcome<T>(Arc<ForeignOption<Result<T, Panic>>>);

impl<T> Clone for Outcome<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Outcome<T> {
    pub(super) fn unknown() -> Self {
        Self(Arc::new(ForeignOption::new(Guards::Outcome, None)))
    }

    /// Calls the function, and keeps its value or its panic. Never panics.
    pub(super) fn set_by(self, function: impl FnOnce() -> T) {
        let outcome = catch_unwind(AssertUnwindSafe(function));
        self.0.set(Some(outcome));
        // If the task is detached, the value is dropped here. Its drop is the user's code as well.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(self)));
    }

    /// Takes the outcome, once the device has passed the function.
    ///
    /// # Errors
    /// Returns the panic, or an error if the device passed the function without calling it.
    pub(super) fn take(&self) -> Result<T, TaskError> {
        let outcome = self.0.take();
        match outcome {
            Some(Ok(value)) => Ok(value),
            Some(Err(panic)) => Err(TaskError::Panicked {
                message: message(&*panic),
            }),
            None => {
                let reason = "the stream passed a host function without calling it";
                Err(DeviceError::new("run", DeviceErrorKind::Other, reason).into())
            }
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

impl<T> fmt::Debug for Outcome<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome").finish_non_exhaustive()
    }
}
