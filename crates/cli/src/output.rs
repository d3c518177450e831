//! Standard output and standard error, which may be closed or full: neither makes the program panic.

use std::fmt;
use std::io::{self, ErrorKind, Write, stderr, stdout};

/// The reader of standard output has gone, as `head` does.
#[derive(Debug)]
pub(crate) struct ClosedPipe;

impl fmt::Display for ClosedPipe {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("standard output is closed")
    }
}

impl std::error::Error for ClosedPipe {}

/// Prints text on standard output.
///
/// # Errors
/// Returns [`ClosedPipe`] if nothing reads it any more, and otherwise the reason why it cannot be written.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    print_to(&mut stdout(), text)
}

fn print_to(output: &mut impl Write, text: &str) -> anyhow::Result<()> {
    let mut printed = || -> io::Result<()> {
        output.write_all(text.as_bytes())?;
        output.flush()
    };
    match printed() {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(ClosedPipe.into()),
        Err(error) => Err(anyhow::Error::new(error).context("standard output cannot be written")),
    }
}

/// Prints a line on standard error, if that is possible.
pub(crate) fn note(line: fmt::Arguments<'_>) {
    let _ = writeln!(stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken(ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn closed_pipe_is_told_from_other_errors() {
        let closed = print_to(&mut Broken(ErrorKind::BrokenPipe), "x").unwrap_err();
        assert!(closed.is::<ClosedPipe>());
        let full = print_to(&mut Broken(ErrorKind::StorageFull), "x").unwrap_err();
        assert!(!full.is::<ClosedPipe>());
        assert!(print_to(&mut Vec::new(), "x").is_ok());
    }
}
