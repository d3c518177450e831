//! What a program without the `cuda` feature says when it is asked for a GPU.

use crate::simulated::Simulator;
use crate::target::Target;
use anyhow::bail;

/// # Errors
/// Always, with how to build a program that can.
pub(crate) fn open(_target: &Target) -> anyhow::Result<Simulator> {
    bail!(
        "this program was built without CUDA; build it with: \
         cargo run --release --features cuda -- replay --device cuda"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use clap::Parser;

    #[test]
    fn it_says_how_to_build_one_that_can() {
        let options = Options::parse_from(["replay", "--device=cuda"]);
        let refused = open(&options.target).map(drop).unwrap_err();
        assert!(refused.to_string().contains("--features cuda"), "{refused}");
    }
}
