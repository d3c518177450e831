//! Whether memory of a device is pooled: a switch for each device of the process.
//!
//! It stands here so that a device's description can say it. What it does is above.

use super::DeviceId;
use crate::plain::Mutex;
use std::collections::BTreeSet;
use std::fmt;

/// Whether memory of a device is pooled, where the device's [current pool](https://docs.rs/weirpool/latest/weirpool/fn.current.html) is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Pooling {
    /// What was freed is kept, and reused.
    #[default]
    Enabled,
    /// Every allocation is the device's own, and goes back once it is complete.
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

/// Where it is disabled.
static DISABLED: Mutex<BTreeSet<DeviceId>> = Mutex::new(BTreeSet::new());

impl Pooling {
    /// Whether memory of the device is pooled.
    pub fn of(device: DeviceId) -> Self {
        if DISABLED.lock().contains(&device) {
            Self::Disabled
        } else {
            Self::Enabled
        }
    }

    /// Switches it for a device, and returns what it was. It is for the pool, which does the rest: the public switch
    /// is `Current::set_pooling`.
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
    fn each_device_has_a_switch_of_its_own() {
        let [one, other] = [DeviceId(u64::MAX), DeviceId(u64::MAX - 1)];
        assert_eq!(Pooling::Disabled.set(one), Pooling::Enabled);
        assert_eq!(Pooling::Disabled.set(one), Pooling::Disabled);
        assert_eq!(Pooling::of(one), Pooling::Disabled);
        assert_eq!(Pooling::of(other), Pooling::Enabled);
        assert_eq!(Pooling::Enabled.set(one), Pooling::Disabled);
        assert_eq!(Pooling::of(one), Pooling::Enabled);
    }
}
