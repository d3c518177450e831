//! The kernels of one step, in their order.

use super::Shape;
use super::shape::{Part, Parts};
use crate::kernels::{Activation, Cache, Linear, Op, Span};

/// Launches the kernels of a step: from the tokens of its rows to the tokens that follow.
pub(crate) fn forward(
    shape: &Shape,
    parts: &Parts,
    weights: Span,
    step: &Activation,
    cache: &Cache<'_>,
    mut launch: impl FnMut(Op<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let part = |part: &Part| Span {
        address: weights.address + (part.0.start * size_of::<f32>()) as u64,
        bytes: (part.0.len() * size_of::<f32>()) as u64,
    };
    let width = shape.width;
    let norm = |[gain, bias]: &[Part; 2], input, output| Op::Norm {
        width,
        input,
        gain: part(gain),
        bias: part(bias),
        output,
    };
    let linear = |[weight, bias]: &[Part; 2], input, output, inputs, adds| {
        Op::Linear(Linear {
            rows: step.rows,
            inputs,
            outputs: bias.0.len(),
            input,
            weight: part(weight),
            bias: Some(part(bias)),
            output,
            adds,
            is_transposed: false,
        })
    };
    launch(Op::Embed {
        width,
        tokens: step.tokens,
        positions: step.positions,
        token_embeddings: part(&parts.wte),
        position_embeddings: part(&parts.wpe),
        output: step.hidden,
    })?;
    for (index, layer) in parts.layers.iter().enumerate() {
        launch(norm(&layer.ln_1, step.hidden, step.inner))?;
        launch(linear(&layer.c_attn, step.inner, step.qkv, width, false))?;
        let cache = Cache {
            layer: index,
            ..*cache
        };
        launch(Op::Store { step, cache })?;
        launch(Op::Attend { step, cache })?;
        launch(linear(
            &layer.attn_c_proj,
            step.inner,
            step.hidden,
            width,
            true,
        ))?;
        launch(norm(&layer.ln_2, step.hidden, step.inner))?;
        launch(linear(&layer.c_fc, step.inner, step.wide, width, false))?;
        launch(Op::Gelu { data: step.wide })?;
        launch(linear(
            &layer.mlp_c_proj,
            step.wide,
            step.hidden,
            4 * width,
            true,
        ))?;
    }
    if step.chosen_rows == 0 {
        return Ok(());
    }
    launch(Op::Gather {
        width,
        rows: step.chosen,
        input: step.hidden,
        output: step.last,
    })?;
    launch(norm(&parts.ln_f, step.last, step.normed))?;
    launch(Op::Linear(Linear {
        rows: step.chosen_rows,
        inputs: width,
        outputs: shape.vocabulary,
        input: step.normed,
        weight: part(&parts.wte),
        bias: None,
        output: step.logits,
        adds: false,
        is_transposed: true,
    }))?;
    launch(Op::Sample {
        vocabulary: shape.vocabulary,
        step,
    })
}
