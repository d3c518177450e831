//! Values of options, within bounds: a size, a duration, a share.

use bytesize::ByteSize;
use std::time::Duration;

/// The largest size that an option takes: the address space of a device.
const LARGEST: u64 = crate::trace::limits::ALLOCATION_BYTES;
/// The longest duration that an option takes.
pub(crate) const LONGEST: Duration = Duration::from_secs(3600);

/// Parses a size, which may be 0.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let size = text.parse::<ByteSize>();
    let size = size.map_err(|_| "expected bytes, as 6GiB, 1500MB or 4096".to_owned())?;
    Some(size.as_u64())
        .filter(|bytes| *bytes <= LARGEST)
        .ok_or_else(|| "expected at most 256TiB".to_owned())
}

/// Parses a size above 0.
pub(super) fn some_bytes(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        0 => Err("expected more than 0 bytes".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Parses a duration of an hour at most.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    Some(duration)
        .filter(|duration| *duration <= LONGEST)
        .ok_or_else(|| "expected one hour at most".to_owned())
}

/// Parses a duration of an hour at most, and more than none.
#[cfg(target_os = "linux")]
pub(super) fn some_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("expected more than 0 s".to_owned()),
        duration => Ok(duration),
    }
}

/// Parses a duration of 30 days at most, as a broker takes.
#[cfg(target_os = "linux")]
pub(super) fn days(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    Some(duration)
        .filter(|duration| *duration <= weirpool_broker::LONGEST)
        .ok_or_else(|| "expected 30 days at most".to_owned())
}

/// Parses a share of a whole, more than 0 and up to 1.
pub(super) fn share(text: &str) -> Option<f64> {
    let share = text.parse::<f64>().ok()?;
    (share > 0.0 && share <= 1.0).then_some(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extreme_values_are_refused() {
        assert_eq!(bytes("256TiB"), Ok(1 << 48));
        for text in [
            "1PiB",
            "18446744073709551615",
            "1e30",
            "-1",
            "99999999EiB",
            "",
        ] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert_eq!((bytes("0"), some_bytes("0").is_err()), (Ok(0), true));
        assert_eq!(duration("1h"), Ok(LONGEST));
        for text in ["61min", "18446744073709551615s", "500000years", "-1s", ""] {
            assert!(duration(text).is_err(), "{text}");
        }
        #[cfg(target_os = "linux")]
        {
            assert_eq!(days("30days"), Ok(weirpool_broker::LONGEST));
            for text in [
                "31days",
                "9223372036854775808s",
                "18446744073709551615s",
                "-1s",
            ] {
                assert!(days(text).is_err(), "{text}");
            }
            assert!(some_duration("0s").is_err());
        }
        assert_eq!((share("1"), share("0.125")), (Some(1.0), Some(0.125)));
        for text in ["0", "1.5", "-0.5", "nan", "inf", "1e-400", ""] {
            assert_eq!(share(text), None, "{text}");
        }
    }
}
