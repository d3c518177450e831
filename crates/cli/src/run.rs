//! An unmodified program on the pool: this process becomes the program, with the libraries in its environment.

use crate::options::Run;
use crate::units;
use anyhow::Context;
use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use weirpool_preload::settings::{AUDIT_FILE, LIBRARY, LIBRARY_FILE, PROCESS, libraries};

/// The beginning of the names of the settings.
const PREFIX: &[u8] = b"WEIRPOOL_RUN_";

/// Becomes the program.
///
/// # Errors
/// Returns an error if a library is missing, or the program cannot be started.
pub(crate) fn run(options: &Run) -> anyhow::Result<()> {
    let own = env::current_exe().context("the path of this command is not known")?;
    let (audit, library) = libraries(&own).with_context(|| {
        format!(
            "{AUDIT_FILE} and {LIBRARY_FILE} are not beside {}: put them there; `cargo build --release -p weirpool-preload` \
             makes them",
            units::path(&own)
        )
    })?;
    let (program, arguments) = options
        .program
        .split_first()
        .context("no program is named")?;
    let mut command = Command::new(program);
    // Settings are those of this run, not of one that it runs in.
    let names = env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| name.as_encoded_bytes().starts_with(PREFIX)) {
        command.env_remove(name);
    }
    command
        .args(arguments)
        .envs(options.settings().variables())
        .env("LD_AUDIT", with_audit(audit)?)
        .env(LIBRARY, library)
        // The process stays the same one.
        .env(PROCESS, std::process::id().to_string());
    let failure = command.exec();
    let name = units::path(Path::new(program));
    Err(failure).with_context(|| format!("{name} cannot be started"))
}

/// Returns the audit libraries of the program: one that is set already comes first, unless it is that of a run in which
/// this one is. Two of it would each have the pool admit the driver's memory.
fn with_audit(audit: PathBuf) -> anyhow::Result<OsString> {
    let set = env::var_os("LD_AUDIT").unwrap_or_default();
    let others = env::split_paths(&set).filter(|path| !path.ends_with(AUDIT_FILE));
    let all = others.filter(|path| path != Path::new("")).chain([audit]);
    env::join_paths(all).context("the path of the audit library has a colon")
}
