//! What a program without the `export` feature says when it is asked to record a replay.

use anyhow::bail;
use std::path::Path;
use weirpool::{Pool, PoolBuilder};

const HOW_TO: &str = "--record needs a program built with --features export";

/// How to build a program that can.
pub(crate) fn check() -> Result<(), &'static str> {
    Err(HOW_TO)
}

/// As it is.
pub(crate) fn prepare(builder: PoolBuilder) -> PoolBuilder {
    builder
}

/// # Errors
/// Always.
pub(crate) fn write(_pool: &Pool, _file: &Path) -> anyhow::Result<()> {
    bail!(HOW_TO)
}

#[cfg(test)]
mod tests {
    use crate::options::Options;
    use clap::Parser;

    #[test]
    fn it_says_how_to_build_one_that_can() {
        let options = Options::parse_from(["replay", "--record=x.csv", "a.csv"]);
        let refused = options.checked().unwrap_err().to_string();
        assert!(refused.contains("--features export"), "{refused}");
    }
}
