//! A second implementation of the model, written for clarity: no cache, no batches, no pages. Tests compare the
//! server's tokens with it.

use super::Weights;
use super::shape::{Layer, Part};

/// Returns the logits of the token that follows `tokens`.
///
/// # Panics
/// Panics for no tokens, for more than the context, and for a token outside the vocabulary.
pub fn logits(weights: &Weights, tokens: &[u32]) -> Vec<f32> {
    let (shape, parts) = (weights.shape(), weights.parts());
    assert!((1..=shape.context).contains(&tokens.len()));
    let width = shape.width;
    let row = |part: &Part, index: usize| &weights.part(part)[index * width..][..width];
    let mut hidden: Vec<Vec<f32>> = Vec::new();
    for (position, token) in tokens.iter().enumerate() {
        let (token, position) = (row(&parts.wte, *token as usize), row(&parts.wpe, position));
        hidden.push(token.iter().zip(position).map(|(a, b)| a + b).collect());
    }
    for layer in &parts.layers {
        attend(weights, layer, &mut hidden);
        for state in &mut hidden {
            let inner = norm(weights, &layer.ln_2, state);
            let inner = linear(weights, &layer.c_fc, &inner);
            let inner: Vec<f32> = inner.into_iter().map(gelu).collect();
            add(state, &linear(weights, &layer.mlp_c_proj, &inner));
        }
    }
    let last = norm(weights, &parts.ln_f, hidden.last().expect("some token"));
    let logit = |token| dot(&last, row(&parts.wte, token));
    (0..shape.vocabulary).map(logit).collect()
}

/// Returns the answer to a prompt: the most likely token, again and again.
pub fn greedy(weights: &Weights, prompt: &[u32], tokens: usize) -> Vec<u32> {
    let mut all = prompt.to_vec();
    for _ in 0..tokens {
        let logits = logits(weights, &all);
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
        all.push(best.expect("some token") as u32);
    }
    all.split_off(prompt.len())
}

/// Returns how far each token of an answer is from the most likely one at its place, as a difference of logits. Each
/// device rounds sums differently, so the answer of a correct server has small differences instead of none.
pub fn regrets(weights: &Weights, prompt: &[u32], answer: &[u32]) -> Vec<f32> {
    let all = [prompt, answer].concat();
    let regret = |at: usize| {
        let logits = logits(weights, &all[..at]);
        let best = logits.iter().copied().fold(f32::MIN, f32::max);
        best - logits[all[at] as usize]
    };
    (prompt.len()..all.len()).map(regret).collect()
}

fn attend(weights: &Weights, layer: &Layer, hidden: &mut [Vec<f32>]) {
    let (width, head) = (weights.shape().width, weights.shape().head());
    let qkv = |state: &Vec<f32>| linear(weights, &layer.c_attn, &norm(weights, &layer.ln_1, state));
    let all: Vec<Vec<f32>> = hidden.iter().map(qkv).collect();
    for (position, state) in hidden.iter_mut().enumerate() {
        let mut mixed = vec![0.0; width];
        for begin in (0..width).step_by(head) {
            let query = &all[position][begin..][..head];
            let score = |other: &Vec<f32>| {
                dot(query, &other[width + begin..][..head]) / (head as f32).sqrt()
            };
            let scores: Vec<f32> = all[..=position].iter().map(score).collect();
            let largest = scores.iter().copied().fold(f32::MIN, f32::max);
            let powers: Vec<f32> = scores.iter().map(|score| (score - largest).exp()).collect();
            let sum: f32 = powers.iter().sum();
            for (other, power) in all.iter().zip(&powers) {
                let values = &other[2 * width + begin..][..head];
                for (mixed, value) in mixed[begin..][..head].iter_mut().zip(values) {
                    *mixed += power / sum * value;
                }
            }
        }
        add(state, &linear(weights, &layer.attn_c_proj, &mixed));
    }
}

fn norm(weights: &Weights, [gain, bias]: &[Part; 2], state: &[f32]) -> Vec<f32> {
    let count = state.len() as f32;
    let mean = state.iter().sum::<f32>() / count;
    let variance = state.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / count;
    let scaled = state.iter().map(|x| (x - mean) / (variance + 1e-5).sqrt());
    let terms = weights.part(gain).iter().zip(weights.part(bias));
    scaled
        .zip(terms)
        .map(|(x, (gain, bias))| x * gain + bias)
        .collect()
}

fn linear(weights: &Weights, [weight, bias]: &[Part; 2], input: &[f32]) -> Vec<f32> {
    let mut output = weights.part(bias).to_vec();
    let outputs = output.len();
    for (x, row) in input.iter().zip(weights.part(weight).chunks(outputs)) {
        for (sum, weight) in output.iter_mut().zip(row) {
            *sum += x * weight;
        }
    }
    output
}

/// GPT-2's approximation of the Gaussian error linear unit.
fn gelu(x: f32) -> f32 {
    let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f32], other: &[f32]) {
    for (to, other) in to.iter_mut().zip(other) {
        *to += other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Shape;

    #[test]
    fn answer_depends_on_each_token_of_the_prompt() {
        let shape = Shape {
            layers: 2,
            width: 32,
            heads: 4,
            vocabulary: 256,
            context: 64,
        };
        let weights = Weights::generate(shape, 7);
        let prompt: Vec<u32> = (0..16).map(|at| at * 11 % 256).collect();
        let answer = greedy(&weights, &prompt, 12);
        let plain = logits(&weights, &prompt);
        let distinct: std::collections::BTreeSet<_> = answer.iter().collect();
        assert!(distinct.len() > 6, "the answer repeats itself: {answer:?}");
        for at in 0..prompt.len() {
            let mut other = prompt.clone();
            other[at] = (other[at] + 1) % 256;
            let changed = logits(&weights, &other);
            let differences = changed.iter().zip(&plain).map(|(a, b)| (a - b).abs());
            let largest = differences.fold(0.0, f32::max);
            assert!(largest > 0.01, "token {at} hardly matters: {largest}");
        }
        assert!(
            regrets(&weights, &prompt, &answer)
                .iter()
                .all(|regret| *regret == 0.0)
        );
    }
}
