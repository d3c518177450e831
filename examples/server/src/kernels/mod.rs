//! The kernels of a step: the only part that differs between devices.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod simulated;

use std::sync::Arc;
use weirpool::device::{Argument, Device};

/// A device, and its kernels on streams of type `W`.
pub(crate) struct Machine<W> {
    pub(crate) device: Arc<dyn Device>,
    /// Creates the kernels of one stream.
    pub(crate) kernels: Box<dyn Fn() -> anyhow::Result<Arc<dyn Kernels<W>>> + Send>,
    /// The bytes that the libraries of one stream work in.
    pub(crate) workspace: u64,
}

/// The kernels of one stream.
pub(crate) trait Kernels<W>: Send + Sync {
    /// Gives the libraries behind the kernels their stream and their memory. Called once, before any launch.
    fn bind(&self, _work: &W, _workspace: Argument<'_>) -> anyhow::Result<()> {
        Ok(())
    }

    /// Launches one kernel.
    fn launch(&self, work: &W, op: &Op<'_>) -> anyhow::Result<()>;
}

/// The activation of a step, on the device.
#[derive(Clone, Debug)]
pub(crate) struct Activation {
    pub(crate) rows: usize,
    pub(crate) chosen_rows: usize,
    /// The most pages of a sequence.
    pub(crate) longest: usize,
    pub(crate) tables: Span,
    pub(crate) seeds: Span,
    pub(crate) tokens: Span,
    pub(crate) positions: Span,
    pub(crate) table_starts: Span,
    pub(crate) chosen: Span,
    pub(crate) temperatures: Span,
    pub(crate) answers: Span,
    pub(crate) hidden: Span,
    pub(crate) inner: Span,
    pub(crate) qkv: Span,
    pub(crate) wide: Span,
    pub(crate) last: Span,
    pub(crate) normed: Span,
    pub(crate) logits: Span,
}

/// A range of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

impl From<&Argument<'_>> for Span {
    fn from(argument: &Argument<'_>) -> Self {
        Self {
            address: argument.address().to_bits(),
            bytes: argument.size(),
        }
    }
}

/// The keys and values of all sequences of a step. A page has, for each layer, the keys of its tokens and then their
/// values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cache<'a> {
    pub(crate) layer: usize,
    pub(crate) heads: usize,
    pub(crate) width: usize,
    /// The tokens of a page.
    pub(crate) page: usize,
    /// The pages that rows of the step write.
    pub(crate) written: &'a [Span],
    /// All other pages of the step's sequences.
    pub(crate) read: &'a [Span],
}

/// A product of a matrix of rows with weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) input: Span,
    pub(crate) weight: Span,
    pub(crate) bias: Option<Span>,
    pub(crate) output: Span,
    /// Adds to the output instead of replacing it.
    pub(crate) adds: bool,
    /// The weights are stored by outputs instead of by inputs.
    pub(crate) is_transposed: bool,
}

/// A kernel and its arguments. Matrices are row-major; elements are `f32`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op<'a> {
    /// Adds the embeddings of each row's token and position.
    Embed {
        width: usize,
        tokens: Span,
        positions: Span,
        token_embeddings: Span,
        position_embeddings: Span,
        output: Span,
    },
    /// Normalizes each row.
    Norm {
        width: usize,
        input: Span,
        gain: Span,
        bias: Span,
        output: Span,
    },
    Linear(Linear),
    /// Copies the keys and values of each row to its page.
    Store {
        step: &'a Activation,
        cache: Cache<'a>,
    },
    /// Mixes, for each row, the values of its sequence up to the row's position.
    Attend {
        step: &'a Activation,
        cache: Cache<'a>,
    },
    Gelu {
        data: Span,
    },
    /// Copies some rows.
    Gather {
        width: usize,
        rows: Span,
        input: Span,
        output: Span,
    },
    /// Chooses a token by its logits.
    Sample {
        vocabulary: usize,
        step: &'a Activation,
    },
}

impl Op<'_> {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Embed { .. } => "embed",
            Self::Norm { .. } => "norm",
            Self::Linear(_) => "linear",
            Self::Store { .. } => "store",
            Self::Attend { .. } => "attend",
            Self::Gelu { .. } => "gelu",
            Self::Gather { .. } => "gather",
            Self::Sample { .. } => "sample",
        }
    }
}
