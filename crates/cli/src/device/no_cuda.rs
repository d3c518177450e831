//! The answer of a program without the `cuda` feature to `--device cuda`.

use super::simulated::Simulator;
use crate::options::Target;
use anyhow::bail;

/// Opens no GPU.
///
/// # Errors
/// Always returns an error, which says how to build a program with GPUs.
pub(crate) fn open(_target: &Target) -> anyhow::Result<Simulator> {
    bail!(
        "this program was built without CUDA; build it with \
         `cargo run --release --features cuda -- replay --device cuda`, \
         or install it with `cargo install --features cuda`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Replay;
    use clap::Parser;

    #[test]
    fn refusal_says_how_to_build_with_cuda() {
        let options = Replay::parse_from(["replay", "--device=cuda"]);
        let refused = open(&options.target).map(drop).unwrap_err();
        assert!(refused.to_string().contains("--features cuda"), "{refused}");
    }
}
