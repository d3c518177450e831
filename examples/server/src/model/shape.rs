//! The sizes of a model, and where each tensor lies in its weights.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Tensors begin at multiples of this many elements: 256 bytes, as cuBLAS prefers.
const ALIGNMENT: usize = 64;

/// More than any model of this shape has.
const MOST_LAYERS: usize = 1024;
const MOST_ELEMENTS: u128 = 1 << 40;

/// The sizes of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// The number of transformer layers.
    pub layers: usize,
    /// The elements of a token's hidden state.
    pub width: usize,
    /// The attention heads, which share the width.
    pub heads: usize,
    /// The number of tokens. With 256, tokens are bytes, and prompts may be text.
    pub vocabulary: usize,
    /// The most tokens of a sequence.
    pub context: usize,
}

/// A tensor within the weights: a range of elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part(pub(crate) Range<usize>);

/// The tensors of one layer, under GPT-2's names.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) ln_1: [Part; 2],
    pub(crate) c_attn: [Part; 2],
    pub(crate) attn_c_proj: [Part; 2],
    pub(crate) ln_2: [Part; 2],
    pub(crate) c_fc: [Part; 2],
    pub(crate) mlp_c_proj: [Part; 2],
}

/// All tensors.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) wte: Part,
    pub(crate) wpe: Part,
    pub(crate) layers: Vec<Layer>,
    pub(crate) ln_f: [Part; 2],
    /// The number of elements.
    pub(crate) end: usize,
}

impl Shape {
    /// Returns the number of elements of one head.
    pub(crate) fn head(&self) -> usize {
        self.width / self.heads
    }

    /// Returns the reason why no model has this shape, if there is one.
    pub(crate) fn invalid(&self) -> Option<String> {
        let Self {
            layers,
            width,
            heads,
            vocabulary,
            context,
        } = *self;
        if [layers, width, heads, vocabulary, context].contains(&0) {
            return Some("each size of a model is at least 1".to_owned());
        }
        if width % heads != 0 {
            return Some(format!(
                "the width of {width} is no multiple of the {heads} heads"
            ));
        }
        if layers > MOST_LAYERS {
            return Some(format!(
                "{layers} layers are more than {MOST_LAYERS}; lower the number of layers"
            ));
        }
        let bound = 1 << 24;
        let sizes = [layers, width, vocabulary, context];
        let largest = sizes.into_iter().max().expect("four sizes");
        if largest > bound {
            return Some(format!("a size of {largest} exceeds {bound}"));
        }
        let elements = self.elements();
        (elements > MOST_ELEMENTS)
            .then(|| format!("{elements} weights are more than {MOST_ELEMENTS}; lower its sizes"))
    }

    /// Returns about the number of weights, for sizes that need not be valid.
    fn elements(&self) -> u128 {
        let [layers, width, vocabulary, context] =
            [self.layers, self.width, self.vocabulary, self.context].map(|size| size as u128);
        (vocabulary + context) * width + layers * 12 * width * width
    }

    /// Returns the bytes of the keys and values of one token.
    pub(crate) fn token_bytes(&self) -> u64 {
        (2 * self.layers * self.width * size_of::<f32>()) as u64
    }

    /// Returns the bytes of the weights.
    pub fn weight_bytes(&self) -> u64 {
        (self.parts().end * size_of::<f32>()) as u64
    }

    pub(crate) fn parts(&self) -> Parts {
        let mut end = 0;
        let mut part = |elements: usize| {
            let begin = end;
            end = (begin + elements).next_multiple_of(ALIGNMENT);
            Part(begin..begin + elements)
        };
        let width = self.width;
        let (wte, wpe) = (part(self.vocabulary * width), part(self.context * width));
        let mut pair = |weight: usize, bias: usize| [part(weight), part(bias)];
        let layer = |pair: &mut dyn FnMut(usize, usize) -> [Part; 2]| Layer {
            ln_1: pair(width, width),
            c_attn: pair(width * 3 * width, 3 * width),
            attn_c_proj: pair(width * width, width),
            ln_2: pair(width, width),
            c_fc: pair(width * 4 * width, 4 * width),
            mlp_c_proj: pair(4 * width * width, width),
        };
        let layers = (0..self.layers).map(|_| layer(&mut pair)).collect();
        let ln_f = pair(width, width);
        Parts {
            wte,
            wpe,
            layers,
            ln_f,
            end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpt_2_small_has_124_million_weights() {
        let shape = Shape {
            layers: 12,
            width: 768,
            heads: 12,
            vocabulary: 50257,
            context: 1024,
        };
        let elements = shape.weight_bytes() / 4;
        assert!((124_439_808..124_450_000).contains(&elements), "{elements}");
        assert_eq!(shape.invalid(), None);
    }

    #[test]
    fn invalid_shapes_are_explained() {
        let shape = Shape {
            layers: 1,
            width: 10,
            heads: 3,
            vocabulary: 2,
            context: 4,
        };
        let reason = shape.invalid().unwrap();
        assert_eq!(reason, "the width of 10 is no multiple of the 3 heads");
        assert!(Shape { heads: 0, ..shape }.invalid().is_some());
        // None of these is allocated: their sizes would fit neither memory nor an integer.
        let huge = 1 << 24;
        for shape in [
            Shape {
                layers: huge,
                heads: 5,
                ..shape
            },
            Shape {
                width: huge,
                heads: 1,
                ..shape
            },
            Shape {
                vocabulary: usize::MAX,
                heads: 5,
                ..shape
            },
            Shape {
                vocabulary: huge,
                context: huge,
                width: huge,
                heads: 1,
                layers: 1024,
            },
        ] {
            assert!(shape.invalid().is_some(), "{shape:?}");
        }
    }
}
