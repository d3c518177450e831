//! Errors of a device.

use crate::plain::Arc;

/// The kind of a failure: the part that the pool acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceErrorKind {
    /// The device does not have enough free memory now. Nothing changed, and a later attempt may succeed.
    OutOfMemory,
    /// The device does not support the call, or not at the moment.
    Unsupported,
    /// The device does not know an argument of the call.
    InvalidArgument,
    /// The device or its context is broken, and stays so: every later call fails.
    Sticky,
    /// Any other failure. Other calls may succeed.
    Other,
}

impl DeviceErrorKind {
    /// Returns the remedy that suits every failure of this kind. That of another kind is in the reason.
    fn remedy(self) -> &'static str {
        match self {
            Self::OutOfMemory => "; free memory of the device, or lower the pool's capacity",
            Self::Sticky => "; restart the process",
            Self::Unsupported | Self::InvalidArgument | Self::Other => "",
        }
    }
}

/// A failed device call: its name, the kind of failure, and the backend's reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed on the device: {reason} ({kind:?}){}", .kind.remedy())]
pub struct DeviceError {
    call: &'static str,
    kind: DeviceErrorKind,
    reason: Arc<str>,
}

impl DeviceError {
    /// Creates the error of `call`, with the backend's reason.
    pub fn new(call: &'static str, kind: DeviceErrorKind, reason: impl Into<Arc<str>>) -> Self {
        Self {
            call,
            kind,
            reason: reason.into(),
        }
    }

    /// Returns the kind of the failure.
    pub fn kind(&self) -> DeviceErrorKind {
        self.kind
    }

    /// Returns the name of the call that failed, as in [`Device`](super::Device).
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// Returns the backend's reason.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns whether the device stays broken.
    pub fn is_sticky(&self) -> bool {
        self.kind == DeviceErrorKind::Sticky
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_the_call_the_reason_and_a_remedy() {
        let message = |kind| DeviceError::new("create", kind, "no memory").to_string();
        let expected = "create failed on the device: no memory (OutOfMemory); \
                        free memory of the device, or lower the pool's capacity";
        assert_eq!(message(DeviceErrorKind::OutOfMemory), expected);
        let expected = "create failed on the device: no memory (Other)";
        assert_eq!(message(DeviceErrorKind::Other), expected);
    }
}
