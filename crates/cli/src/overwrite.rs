//! Outputs that would overwrite the trace that they come from, or each other.

use crate::units;
use std::path::{Path, PathBuf};

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
