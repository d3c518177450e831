//! Messages on standard error; standard output is the program's.

use std::io::{self, Write};

/// Writes a line to standard error, if it is open.
pub(super) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "weirpool: {text}");
}

/// Returns the name of the program.
pub(super) fn program() -> Option<String> {
    let executable = std::env::current_exe().ok()?;
    let name = executable.file_name()?;
    Some(name.to_string_lossy().into_owned())
}
