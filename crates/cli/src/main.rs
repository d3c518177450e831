//! The `weirpool` command; see [`weirpool_cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    weirpool_cli::main()
}
