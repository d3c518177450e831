//! Standard output and standard error, which may be closed or full: neither makes the program panic.

use crate::units;
use std::fmt;
use std::io::{self, ErrorKind, Write, stderr, stdout};
use std::path::{Path, PathBuf};

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

/// Checks that no output is written over an input, or over another output, by whatever names and links.
///
/// # Errors
/// Returns an error that names both.
pub(crate) fn check_files(inputs: &[PathBuf], outputs: &[PathBuf]) -> anyhow::Result<()> {
    for (index, output) in outputs.iter().enumerate() {
        for (known, what) in inputs
            .iter()
            .map(|input| (input, "the trace"))
            .chain(outputs[..index].iter().map(|other| (other, "the output")))
        {
            anyhow::ensure!(
                output != known && !is_same(output, known),
                "{}: is {what} {}, which it would overwrite; choose another file",
                units::path(output),
                units::path(known)
            );
        }
    }
    Ok(())
}

/// Returns whether two paths lead to one regular file.
#[cfg(unix)]
fn is_same(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let of = |path: &Path| {
        let metadata = path.metadata().ok().filter(std::fs::Metadata::is_file);
        metadata.map(|file| (file.dev(), file.ino()))
    };
    of(one).is_some_and(|one| of(other) == Some(one))
}

#[cfg(not(unix))]
fn is_same(one: &Path, other: &Path) -> bool {
    let of = |path: &Path| path.canonicalize().ok().filter(|path| path.is_file());
    of(one).is_some_and(|one| of(other) == Some(one))
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
