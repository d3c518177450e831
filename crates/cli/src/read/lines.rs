//! The lines of a text file and their fields, in bounded memory.

use super::AtLocation;
use crate::trace::fault::{Fault, Location};
use crate::trace::{limits, steps};
use crate::units;
use std::io::{self, BufRead, Read};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The lines of a file, numbered as an editor numbers them.
pub(super) struct Lines<R> {
    source: R,
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            source,
            line: Vec::new(),
            number: 0,
        }
    }

    /// Reads the next line that is not blank, and returns its number; `None` at the end.
    pub(super) fn advance(&mut self) -> Result<Option<u64>, AtLocation> {
        loop {
            self.number += 1;
            self.line.clear();
            let read = self.read();
            match read.map_err(|fault| (Location::Line(self.number), fault))? {
                0 => return Ok(None),
                _ if self.text().is_empty() => {}
                _ => return Ok(Some(self.number)),
            }
        }
    }

    fn read(&mut self) -> Result<usize, Fault> {
        // With the two bytes that may end a line.
        let most = limits::LINE_BYTES as u64 + 2;
        let mut rest = self.source.by_ref().take(most);
        let read = rest.read_until(b'\n', &mut self.line);
        let read = read.map_err(|error| broken(&error))?;
        steps::take(read);
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > limits::LINE_BYTES {
            return Err(Fault::LineTooLong);
        }
        if self.number == 1 && self.line.starts_with(BYTE_ORDER_MARK) {
            self.line.drain(..BYTE_ORDER_MARK.len());
        }
        Ok(read)
    }

    pub(super) fn text(&self) -> &[u8] {
        self.line.trim_ascii()
    }

    fn all_fields(&self) -> impl Iterator<Item = &[u8]> {
        let fields = self.text().split(|byte| *byte == b',');
        fields.map(<[u8]>::trim_ascii)
    }

    /// Returns whether the line has the fields of `header`.
    pub(super) fn are(&self, header: &str) -> bool {
        self.all_fields().eq(header.split(',').map(str::as_bytes))
    }

    /// Returns the fields of the line, which has as many as `header`.
    pub(super) fn fields<const N: usize>(&self, header: &'static str) -> Result<[&[u8]; N], Fault> {
        let mut fields = [&b""[..]; N];
        let mut found = 0;
        for field in self.all_fields() {
            if let Some(free) = fields.get_mut(found) {
                *free = field;
            }
            found += 1;
        }
        let expected = header;
        (found == N)
            .then_some(fields)
            .ok_or(Fault::Fields { found, expected })
    }

    /// Returns the line as a message can show it.
    pub(super) fn shown(&self) -> String {
        shown(self.text())
    }
}

/// Parses the whole number of a field.
pub(super) fn number(
    field: &'static str,
    text: &[u8],
    least: u64,
    most: u64,
) -> Result<u64, Fault> {
    let value = std::str::from_utf8(text).ok();
    match value.and_then(|text| text.parse().ok()) {
        Some(value) if (least..=most).contains(&value) => Ok(value),
        _ => Err(Fault::Number {
            field,
            text: shown(text),
            least,
            most,
        }),
    }
}

/// Returns what an error of the source means for a trace.
pub(super) fn broken(error: &io::Error) -> Fault {
    if let Some(fault) = error
        .get_ref()
        .and_then(|error| error.downcast_ref::<Fault>())
    {
        return fault.clone();
    }
    let reason = error.to_string();
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Fault::Truncated,
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => Fault::Damaged { reason },
        _ => Fault::Unreadable { reason },
    }
}

/// Returns bytes as a message can show them: a line of a binary file may be long and hold anything.
pub(super) fn shown(bytes: &[u8]) -> String {
    const LONGEST: usize = 60;
    let printable = units::printable(&String::from_utf8_lossy(bytes));
    match printable.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &printable[..end]),
        None => printable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_the_greatest_length_is_read_and_longer_one_refused() {
        let line = |length| vec![b'x'; length];
        let read = |text: &[u8]| Lines::new(text).advance();
        let longest = limits::LINE_BYTES;
        assert_eq!(read(&line(longest)), Ok(Some(1)));
        assert_eq!(read(&[&line(longest), &b"\r\n"[..]].concat()), Ok(Some(1)));
        let too_long = Err((Location::Line(1), Fault::LineTooLong));
        assert_eq!(read(&line(longest + 1)), too_long);
        assert_eq!(read(&line(1 << 20)), too_long);
        let second = [b"x\n", &line(1 << 20)[..]].concat();
        let mut lines = Lines::new(&second[..]);
        assert_eq!(lines.advance(), Ok(Some(1)));
        assert_eq!(
            lines.advance(),
            Err((Location::Line(2), Fault::LineTooLong))
        );
    }

    #[test]
    fn fields_are_trimmed_and_counted() {
        let mut lines = Lines::new(&b"\xef\xbb\xbf a, b ,,\n"[..]);
        assert_eq!(lines.advance(), Ok(Some(1)));
        let four: [&[u8]; 4] = lines.fields("four").unwrap();
        assert_eq!(four, [&b"a"[..], b"b", b"", b""]);
        let (found, expected) = (4, "three");
        let three = lines.fields::<3>("three");
        assert_eq!(three, Err(Fault::Fields { found, expected }));
    }
}
