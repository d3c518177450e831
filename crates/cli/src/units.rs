//! Numbers and names for people. The inference example shares this file.

#[path = "printable.rs"]
mod printable;

pub(crate) use printable::printable;
use std::path::Path;
use std::time::Duration;

/// Returns the name of a file for a message.
pub(crate) fn path(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

/// Formats bytes in decimal units: `1.42 GB`.
pub(crate) fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, &["B", "kB", "MB", "GB", "TB"])
}

/// Formats bytes in binary units, for sizes that are powers of two: `32.0 MiB`.
pub(crate) fn binary_bytes(bytes: u64) -> String {
    bytesize::ByteSize::b(bytes).display().iec().to_string()
}

/// Formats a duration in its fitting unit, with three digits: `14.3 s`.
pub(crate) fn duration(duration: Duration) -> String {
    scaled(duration.as_nanos() as f64, &["ns", "us", "ms", "s"])
}

/// Formats a count with commas between the thousands: `408,832`.
pub(crate) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn scaled(mut value: f64, units: &[&str]) -> String {
    let mut unit = 0;
    // 999.5 would round to four digits.
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = match value {
        _ if unit == 0 => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1_420_377_920), "1.42 GB");
        assert_eq!(bytes(999_999), "1.00 MB");
        assert_eq!(bytes(99_960_000), "100 MB");
        assert_eq!(duration(Duration::from_nanos(512)), "512 ns");
        assert_eq!(duration(Duration::from_micros(14_345_632)), "14.3 s");
        assert_eq!(duration(Duration::from_secs(5000)), "5000 s");
    }

    #[test]
    fn powers_of_two_stay_round() {
        assert_eq!(binary_bytes(32 << 20), "32.0 MiB");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\u{1b}[2Jb\n\u{9b}é"), "a\\u{1b}[2Jb\\n\\u{9b}é");
        assert_eq!(printable("\u{202e}vsc.x"), "\\u{202e}vsc.x");
        assert_eq!(path(Path::new("x\ty.csv")), "x\\ty.csv");
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(408_832), "408,832");
        assert_eq!(count(1_000_000), "1,000,000");
    }
}
