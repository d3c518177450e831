//! A hook that was asked, until it has answered.

use std::error::Error;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

type Answer = Result<(), Box<dyn Error + Send + Sync>>;

/// The future of a hook. Errors and panics of it are reported, those of its destructor included.
pub(crate) struct Asked {
    /// `None` while it is dropped.
    future: Option<Pin<Box<dyn Future<Output = Answer> + Send>>>,
}

impl Asked {
    pub(crate) fn new(future: impl Future<Output = Answer> + Send + 'static) -> Self {
        Self {
            future: Some(Box::pin(future)),
        }
    }

    /// Returns whether the hook has answered.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> bool {
        let Some(future) = &mut self.future else {
            return true;
        };
        match reported(|| future.as_mut().poll(context)) {
            Some(Poll::Pending) => return false,
            Some(Poll::Ready(Ok(()))) | None => {}
            Some(Poll::Ready(Err(error))) => report(&error.to_string()),
        }
        true
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let future = self.future.take();
        reported(|| drop(future));
    }
}

/// Calls the hook's code. Returns `None` if it panicked, which is reported.
fn reported<R>(call: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(returned) => Some(returned),
        Err(payload) => {
            report("it panicked");
            // It is the hook's, too, and its destructor may panic.
            std::mem::forget(payload);
            None
        }
    }
}

fn report(error: &str) {
    tracing::warn!(target: "weirpool", error, "pressure hook failed");
}
