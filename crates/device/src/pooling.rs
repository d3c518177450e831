//! Whether memory of a device is pooled: a setting for each device of the process.
//!
//! The setting is in this crate, below the pool that follows it, so that a device's description can include it.

use super::DeviceId;
use crate::plain::Mutex;
use std::collections::BTreeSet;
use std::fmt;

/// Whether the [current pool](https://docs.rs/weirpool/latest/weirpool/fn.current.html) of a device keeps freed memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Pooling {
    /// The pool keeps freed memory, and reuses it.
    #[default]
    Enabled,
    /// Each allocation is made by the device, and returns to it once it is complete.
    Disabled,
}

/// `pooling enabled`
impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Enabled => "pooling enabled",
            Self::Disabled => "pooling disabled",
        })
    }
}

/// The devices for which pooling is disabled.
static DISABLED: Mutex<BTreeSet<DeviceId>> = Mutex::new(BTreeSet::new());

impl Pooling {
    /// Returns the setting of a device.
    pub fn of(device: DeviceId) -> Self {
        if DISABLED.lock().contains(&device) {
            Self::Disabled
        } else {
            Self::Enabled
        }
    }

    /// Changes the setting of a device, and returns the earlier one. Only the pool calls this: users call
    /// `Current::set_pooling`, which applies it.
    #[doc(hidden)]
    pub fn set(self, device: DeviceId) -> Self {
        let mut disabled = DISABLED.lock();
        let was_disabled = match self {
            Self::Enabled => disabled.remove(&device),
            Self::Disabled => !disabled.insert(device),
        };
        if was_disabled {
            Self::Disabled
        } else {
            Self::Enabled
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_separate_settings() {
        let [one, other] = [DeviceId(u64::MAX), DeviceId(u64::MAX - 1)];
        assert_eq!(Pooling::Disabled.set(one), Pooling::Enabled);
        assert_eq!(Pooling::Disabled.set(one), Pooling::Disabled);
        assert_eq!(Pooling::of(one), Pooling::Disabled);
        assert_eq!(Pooling::of(other), Pooling::Enabled);
        assert_eq!(Pooling::Enabled.set(one), Pooling::Disabled);
        assert_eq!(Pooling::of(one), Pooling::Enabled);
    }
}
