//! The transformer of candle-transformers for the models of llama2.c, with weights that are the same in each run.

use anyhow::Result;
use candle_core::{DType, Device, IndexOp, Shape, Tensor, bail};
use candle_nn::VarBuilder;
use candle_nn::var_builder::SimpleBackend;
use candle_transformers::models::llama2_c::{Cache, Config, Llama};

const LAYERS: usize = 4;
const HEADS: usize = 8;
const WIDTH: usize = 256;
const VOCABULARY: usize = 512;
const LENGTH: usize = 8192;
const PROMPT: usize = 8;
const TOKENS: usize = 12;
/// The keys and values of a request: 64 MiB.
pub(crate) const KEPT: [usize; 4] = [2 * LAYERS, LENGTH, HEADS, WIDTH / HEADS];

/// Makes weights as the model asks for them, and has each of them kept by a function.
struct Seeded<F>(F);

impl<F: Fn(Tensor) -> candle_core::Result<Tensor> + Send + Sync> SimpleBackend for Seeded<F> {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: candle_nn::Init,
        _: DType,
        _: &Device,
    ) -> candle_core::Result<Tensor> {
        if name.starts_with("freq_cis") {
            bail!("computed by the model")
        }
        let seed = name
            .bytes()
            .fold(7u64, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
        let value = |n: usize| {
            let mixed = (seed ^ n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            (mixed as f32 / (1u64 << 24) as f32 - 0.5) * 0.4
        };
        let values: Vec<_> = match shape.dims() {
            // The weights of a norm.
            [width] => vec![1.0; *width],
            _ => (0..shape.elem_count()).map(value).collect(),
        };
        (self.0)(Tensor::from_vec(values, shape, &Device::Cpu)?)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        bail!("{name} of any shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        !name.starts_with("freq_cis")
    }
}

/// A model, and what a request begins with.
pub(crate) struct Model {
    llama: Llama,
    cache: Cache,
    device: Device,
}

impl Model {
    /// Makes the model of the weights that `keep` returns for those of the CPU.
    pub(crate) fn new(
        device: &Device,
        keep: impl Fn(Tensor) -> candle_core::Result<Tensor> + Send + Sync,
    ) -> Result<Self> {
        let config = Config {
            dim: WIDTH,
            hidden_dim: 2 * WIDTH,
            n_layers: LAYERS,
            n_heads: HEADS,
            n_kv_heads: HEADS,
            vocab_size: VOCABULARY,
            seq_len: LENGTH,
            norm_eps: 1e-5,
        };
        let weights = VarBuilder::from_backend(Box::new(Seeded(keep)), DType::F32, device.clone());
        let cache = Cache::new(true, &config, weights.clone())?;
        let llama = Llama::load(weights, config)?;
        Ok(Self {
            llama,
            cache,
            device: device.clone(),
        })
    }

    /// Generates tokens from the prompt of a request, without a wait for the device. The keys and values stay in `kept`, of the
    /// shape [`KEPT`], from one token to the next.
    pub(crate) fn generate(&self, request: usize, kept: &Tensor) -> Result<Tensor> {
        let mut cache = self.cache.clone();
        let mut input = Tensor::new(&prompt(request)[..], &self.device)?.unsqueeze(0)?;
        let (mut begin, mut tokens) = (0, Vec::new());
        for _ in 0..TOKENS {
            let end = begin + input.dim(1)?;
            let scores = self.llama.forward(&input, begin, &mut cache)?;
            keep(&mut cache, kept, begin, end)?;
            let token = scores.i((0, end - begin - 1))?.argmax(0)?.reshape((1, 1))?;
            tokens.push(token.clone());
            (input, begin) = (token, end);
        }
        Ok(Tensor::cat(&tokens, 1)?.flatten_all()?)
    }

    /// Returns whether each token has the highest score after the prompt and the tokens before it, up to rounding. Computes all
    /// of them at once, without kept keys and values.
    pub(crate) fn confirms(&self, request: usize, tokens: &[u32]) -> Result<bool> {
        let mut before = prompt(request);
        before.extend(tokens.iter().take(TOKENS - 1));
        let input = Tensor::new(&before[..], &self.device)?.unsqueeze(0)?;
        let scores = self.llama.forward(&input, 0, &mut self.cache.clone())?;
        let scores = scores.i((0, PROMPT - 1..))?.to_vec2::<f32>()?;
        let mut pairs = scores.iter().zip(tokens);
        let is_highest = pairs.all(|(scores, token)| {
            let highest = scores.iter().copied().fold(f32::MIN, f32::max);
            scores[*token as usize] > highest - 1e-3
        });
        Ok(is_highest && scores.len() == tokens.len())
    }
}

fn prompt(request: usize) -> Vec<u32> {
    let tokens = (0..PROMPT).map(|n| ((request * 37 + n * 11) % VOCABULARY) as u32);
    tokens.collect()
}

/// Moves the keys and values from `begin` to `end`, which the model has computed, to those before.
fn keep(cache: &mut Cache, kept: &Tensor, begin: usize, end: usize) -> Result<()> {
    for (layer, kvs) in cache.kvs.iter_mut().enumerate() {
        let (keys, values) = kvs.take().expect("the layer was computed");
        let stay = |n: usize, computed: Tensor| -> Result<Tensor> {
            let place = kept.narrow(0, n, 1)?;
            let new = computed.narrow(1, begin, end - begin)?.contiguous()?;
            place.slice_set(&new, 1, begin)?;
            Ok(place.narrow(1, 0, end)?)
        };
        *kvs = Some((stay(2 * layer, keys)?, stay(2 * layer + 1, values)?));
    }
    Ok(())
}
