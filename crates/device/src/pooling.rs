//! Whether memory of a device is pooled: a setting for each device of the process.
//!
//! The setting is in this crate, below the pool that follows it, so that a device's description can include it.

use super::DeviceId;
use crate::plain::Mutex;
use std::collections::BTreeMap;
use std::fmt;

/// Whether the [current pool](https://docs.rs/weirpool-compat/latest/weirpool_compat/fn.current.html) of a device keeps freed memory.
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

/// The settings of the process.
struct Settings {
    /// For devices without a setting of their own.
    default: Pooling,
    own: BTreeMap<DeviceId, Pooling>,
}

static SETTINGS: Mutex<Settings> = Mutex::new(Settings {
    default: Pooling::Enabled,
    own: BTreeMap::new(),
});

impl Pooling {
    /// Returns the setting of a device: its own, or the default of the process.
    pub fn of(device: DeviceId) -> Self {
        let settings = SETTINGS.lock();
        let own = settings.own.get(&device).copied();
        own.unwrap_or(settings.default)
    }

    /// Changes the setting of a device, and returns the earlier one. Only the pool calls this: users call
    /// `Current::set_pooling`, which applies it.
    #[doc(hidden)]
    pub fn set(self, device: DeviceId) -> Self {
        let mut settings = SETTINGS.lock();
        let own = settings.own.insert(device, self);
        own.unwrap_or(settings.default)
    }

    /// Changes the setting of devices without one of their own, and returns the earlier one. Users call
    /// `Current::set_default_pooling`.
    #[doc(hidden)]
    pub fn set_default(self) -> Self {
        std::mem::replace(&mut SETTINGS.lock().default, self)
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
        // The default of the process is for devices without a setting of their own.
        assert_eq!(Pooling::Disabled.set_default(), Pooling::Enabled);
        let settings = [Pooling::of(one), Pooling::of(other)];
        assert_eq!(Pooling::Enabled.set_default(), Pooling::Disabled);
        assert_eq!(settings, [Pooling::Enabled, Pooling::Disabled]);
    }
}
