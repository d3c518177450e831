//! What a device answers when it cannot.

use crate::plain::Arc;

/// What kind of failure it was; this is what the pool acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceErrorKind {
    /// There is not so much memory now. Nothing changed; a later try may succeed.
    OutOfMemory,
    /// The call does not exist on this device.
    Unsupported,
    /// The call's arguments are not what the device knows.
    InvalidArgument,
    /// The device or its context is broken, and stays so: every later call fails too.
    Sticky,
    /// Anything else; this call failed, others may succeed.
    Other,
}

/// A device call that failed: which, how, and in the backend's own words why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed on the device: {reason} ({kind:?})")]
pub struct DeviceError {
    call: &'static str,
    kind: DeviceErrorKind,
    reason: Arc<str>,
}

impl DeviceError {
    /// The failure of `call`, with the backend's reason.
    pub fn new(call: &'static str, kind: DeviceErrorKind, reason: impl Into<Arc<str>>) -> Self {
        Self {
            call,
            kind,
            reason: reason.into(),
        }
    }

    /// What kind of failure it was.
    pub fn kind(&self) -> DeviceErrorKind {
        self.kind
    }

    /// The call that failed, by its name in [`Device`](super::Device).
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// The backend's reason.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether the device stays broken.
    pub fn is_sticky(&self) -> bool {
        self.kind == DeviceErrorKind::Sticky
    }
}
