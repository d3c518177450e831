//! Settings from the environment, read when a device's pool is created.
//!
//! | variable | setting |
//! |---|---|
//! | `WEIRPOOL_CAPACITY` | the most memory of its device that a pool may reserve, such as `6GiB`, `1500MB` or `4096`; all if not set |
//! | `WEIRPOOL_REMAPPING` | the share of time that may go into mapping free memory elsewhere, such as `0.02`, `always` or `never`; the pool's default if not set |
//! | `WEIRPOOL_SEALING` | when the event of a free is recorded: `every-free`, `on-demand`, or after this many freed bytes, such as `4MiB`, and up to eight times as many where frees come close; `on-demand` if not set |
//! | `WEIRPOOL_BROKER` | the socket of a broker that leases memory to the pools of several processes; none if not set |
//! | `WEIRPOOL_TIMEOUT_MS` | how long an allocation waits for memory before it fails, in milliseconds; 5000 if not set |

use bytesize::ByteSize;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use weirpool::{Remapping, Sealing};

const CAPACITY: &str = "WEIRPOOL_CAPACITY";
const REMAPPING: &str = "WEIRPOOL_REMAPPING";
const SEALING: &str = "WEIRPOOL_SEALING";
const TIMEOUT: &str = "WEIRPOOL_TIMEOUT_MS";
const BROKER: &str = "WEIRPOOL_BROKER";

/// Values that replace those of the environment.
static SET: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// Sets a variable's value in place of the environment's, or removes the replacement.
///
/// # Errors
/// Returns an error if there is no such variable, or if the value is invalid. Nothing changes then.
pub(crate) fn set(name: &str, value: Option<String>) -> Result<(), String> {
    if ![CAPACITY, REMAPPING, SEALING, TIMEOUT, BROKER].contains(&name) {
        return Err(format!("there is no setting {name}"));
    }
    Settings::of(|known| value.as_ref().filter(|_| known == name).map(OsString::from))?;
    let mut set = SET.lock().unwrap_or_else(PoisonError::into_inner);
    match value {
        Some(value) => set.insert(name.to_owned(), value),
        None => set.remove(name),
    };
    Ok(())
}

/// Recording an event takes as long as several allocations, and slows down a program in Python that works on the host for
/// most of its time. Other streams get freed memory later than with the pool's default: the recorded programs of
/// `weirpool replay` reserve up to a seventh more.
const DEFAULT_SEALING: Sealing = Sealing::OnDemand;

/// Longer than the work that is usually queued on a GPU, and short enough for a user to wait.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// The capacity, in bytes.
    pub(crate) capacity: Option<u64>,
    pub(crate) remapping: Remapping,
    pub(crate) sealing: Sealing,
    pub(crate) timeout: Duration,
    pub(crate) broker: Option<PathBuf>,
}

impl Settings {
    /// Reads the settings.
    ///
    /// # Errors
    /// Returns an error that names a variable with an invalid value.
    pub(crate) fn of_environment() -> Result<Self, String> {
        let set = SET.lock().unwrap_or_else(PoisonError::into_inner);
        Self::of(|name| {
            let set = set.get(name).map(OsString::from);
            set.or_else(|| std::env::var_os(name))
        })
    }

    fn of(value: impl Fn(&str) -> Option<OsString>) -> Result<Self, String> {
        let read = |name| value(name).filter(|text| !text.is_empty());
        let capacity = read(CAPACITY).map(capacity).transpose()?;
        let remapping = read(REMAPPING).map(remapping).transpose()?;
        let sealing = read(SEALING).map(sealing).transpose()?;
        let timeout = read(TIMEOUT).map(timeout).transpose()?;
        let broker = read(BROKER).map(PathBuf::from);
        Ok(Self {
            capacity,
            remapping: remapping.unwrap_or_default(),
            sealing: sealing.unwrap_or(DEFAULT_SEALING),
            timeout: timeout.unwrap_or(DEFAULT_TIMEOUT),
            broker,
        })
    }
}

/// Returns the number of bytes that a text means, if it means one above 0.
pub(crate) fn bytes(text: &OsStr) -> Option<u64> {
    let size = text.to_str()?.trim().parse::<ByteSize>().ok()?;
    Some(size.as_u64()).filter(|bytes| *bytes > 0)
}

fn capacity(text: OsString) -> Result<u64, String> {
    bytes(&text).ok_or_else(|| {
        format!("{CAPACITY} is {text:?}: expected bytes, such as 6GiB, 1500MB or 4096")
    })
}

fn remapping(text: OsString) -> Result<Remapping, String> {
    match text.to_str().map(str::trim) {
        Some("always") => return Ok(Remapping::Always),
        Some("never") => return Ok(Remapping::Never),
        _ => {}
    }
    let share = text.to_str().and_then(|text| text.trim().parse().ok());
    let share = share.filter(|share| *share > 0.0 && *share <= 1.0);
    let expected =
        "expected always, never, or a share of the time above 0 and up to 1, such as 0.02";
    share
        .map(Remapping::Share)
        .ok_or_else(|| format!("{REMAPPING} is {text:?}: {expected}"))
}

fn sealing(text: OsString) -> Result<Sealing, String> {
    match text.to_str().map(str::trim) {
        Some("every-free") => return Ok(Sealing::EveryFree),
        Some("on-demand") => return Ok(Sealing::OnDemand),
        _ => {}
    }
    let expected = "expected every-free, on-demand, or freed bytes, such as 4MiB";
    bytes(&text)
        .map(Sealing::Spaced)
        .ok_or_else(|| format!("{SEALING} is {text:?}: {expected}"))
}

fn timeout(text: OsString) -> Result<Duration, String> {
    let milliseconds = text.to_str().and_then(|text| text.trim().parse().ok());
    let timeout = milliseconds.map(Duration::from_millis);
    timeout.ok_or_else(|| format!("{TIMEOUT} is {text:?}: expected milliseconds, such as 5000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::of(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, text)| text.into())
        })
    }

    #[test]
    fn default_is_all_memory_and_a_timeout_of_five_seconds() {
        let usual = Settings {
            capacity: None,
            remapping: Remapping::default(),
            sealing: DEFAULT_SEALING,
            timeout: Duration::from_secs(5),
            broker: None,
        };
        assert_eq!(read(&[]), Ok(usual.clone()));
        assert_eq!(read(&[(CAPACITY, ""), (TIMEOUT, "")]), Ok(usual));
    }

    #[test]
    fn capacity_has_a_unit_or_none() {
        for (text, bytes) in [
            ("2GiB", 2 << 30),
            ("1500MB", 1_500_000_000),
            (" 512 MiB ", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("4194304", 4 << 20),
        ] {
            let settings = read(&[(CAPACITY, text)]).unwrap();
            assert_eq!(settings.capacity, Some(bytes), "{text}");
        }
    }

    #[test]
    fn remapping_is_a_share_of_the_time_or_a_word() {
        for (text, remapping) in [
            ("always", Remapping::Always),
            (" never", Remapping::Never),
            ("0.02", Remapping::Share(0.02)),
            ("1", Remapping::Share(1.0)),
        ] {
            let settings = read(&[(REMAPPING, text)]).unwrap();
            assert_eq!(settings.remapping, remapping, "{text}");
        }
    }

    #[test]
    fn sealing_is_a_size_or_a_word() {
        for (text, sealing) in [
            ("every-free", Sealing::EveryFree),
            (" on-demand", Sealing::OnDemand),
            ("4MiB", Sealing::Spaced(4 << 20)),
        ] {
            let settings = read(&[(SEALING, text)]).unwrap();
            assert_eq!(settings.sealing, sealing, "{text}");
        }
    }

    #[test]
    fn broker_is_a_path() {
        let settings = read(&[(BROKER, "/run/user/1/gpu0.sock")]).unwrap();
        assert_eq!(settings.broker, Some("/run/user/1/gpu0.sock".into()));
        assert_eq!(read(&[(BROKER, "")]).unwrap().broker, None);
    }

    #[test]
    fn timeout_is_in_milliseconds() {
        let of = |text| read(&[(TIMEOUT, text)]).unwrap().timeout;
        assert_eq!(of("250"), Duration::from_millis(250));
        assert_eq!(of("0"), Duration::ZERO);
    }

    #[test]
    fn invalid_setting_is_refused_by_its_name() {
        for (name, texts) in [
            (CAPACITY, ["much", "-1", "0", "2 quarts"]),
            (REMAPPING, ["rarely", "0", "1.5", "nan"]),
            (SEALING, ["never", "0", "-4MiB", "on"]),
            (TIMEOUT, ["soon", "-1", "1.5", "5s"]),
        ] {
            for text in texts {
                let refused = read(&[(name, text)]).unwrap_err();
                assert!(
                    refused.starts_with(name) && refused.contains(text),
                    "{refused}"
                );
            }
        }
    }
}
