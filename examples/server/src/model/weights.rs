//! Weights on the host: generated from a seed, or read from a file.

use super::Shape;
use super::shape::{Part, Parts};
use safetensors::{Dtype, SafeTensors};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The weights of a model, in host memory.
#[derive(Clone)]
pub struct Weights {
    shape: Shape,
    parts: Parts,
    elements: Vec<f32>,
}

/// The reason why weights cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The file cannot be read.
    #[error("cannot read the weights {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// The file is not in the format of safetensors.
    #[error("{} is not a safetensors file: {error}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The parser's reason.
        error: safetensors::SafeTensorError,
    },
    /// A tensor is missing, or has another type or size.
    #[error("{}: {problem}; the tensors are named and shaped as in GPT-2, in F32", path.display())]
    Unsuitable {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
}

/// The most bytes of a header, as the format allows.
const MOST_HEADER: u64 = 100_000_000;

/// Reads a regular file that has the length that its header states: a device may have no end, and reading a FIFO may wait
/// for ever.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let check = |metadata: Metadata| match metadata.is_file() {
        true => Ok(metadata.len()),
        false => Err(io::Error::other("it is not a regular file")),
    };
    // Before the file is opened, which may wait, too.
    check(fs::metadata(path)?)?;
    let mut file = File::open(path)?;
    let length = check(file.metadata()?)?;
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(8).read_to_end(&mut bytes)?;
    let Ok(header) = <[u8; 8]>::try_from(&bytes[..]) else {
        // The parser says what is missing.
        return Ok(bytes);
    };
    let header = u64::from_le_bytes(header).min(MOST_HEADER);
    Read::by_ref(&mut file)
        .take(header)
        .read_to_end(&mut bytes)?;
    let Ok(stated) = serde_json::from_slice::<safetensors::tensor::Metadata>(&bytes[8..]) else {
        return Ok(bytes);
    };
    let tensors = stated.tensors();
    let ends = tensors.values().map(|tensor| tensor.data_offsets.1 as u64);
    let expected = (8 + header).saturating_add(ends.max().unwrap_or(0));
    if length != expected {
        let problem = format!("it has {length} bytes, and {expected} by its header");
        return Err(io::Error::other(problem));
    }
    tracing::info!("reading {length} bytes of weights from {}", path.display());
    bytes.reserve_exact(usize::try_from(length - 8 - header).map_err(io::Error::other)?);
    file.take(length - 8 - header).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Weights {
    /// Generates weights from a seed. Their scale is such that attention and the layers between weigh as much as the
    /// token itself: the next token depends on all earlier ones, and a wrong byte in the cache shows.
    ///
    /// # Panics
    /// Panics for a shape that no model has.
    pub fn generate(shape: Shape, seed: u64) -> Self {
        assert_eq!(shape.invalid(), None);
        let parts = shape.parts();
        let mut elements = vec![0.0; parts.end];
        let mut random = fastrand::Rng::with_seed(seed);
        let mut fill = |part: &Part, deviation: f32| {
            for element in &mut elements[part.0.clone()] {
                // The sum of four uniform numbers: close enough to a normal distribution.
                let sum: f32 = (0..4).map(|_| random.f32() - 0.5).sum();
                *element = sum * deviation * 3_f32.sqrt();
            }
        };
        let inward = |inputs: usize| 2.0 / (inputs as f32).sqrt();
        fill(&parts.wte, 0.5);
        fill(&parts.wpe, 0.5);
        for layer in &parts.layers {
            let width = shape.width;
            for (linear, inputs) in [
                (&layer.c_attn, width),
                (&layer.attn_c_proj, width),
                (&layer.c_fc, width),
                (&layer.mlp_c_proj, 4 * width),
            ] {
                fill(&linear[0], inward(inputs));
                fill(&linear[1], 0.1);
            }
        }
        let norms = parts
            .layers
            .iter()
            .flat_map(|layer| [&layer.ln_1, &layer.ln_2]);
        let gains: Vec<_> = norms
            .chain([&parts.ln_f])
            .map(|[gain, _]| gain.0.clone())
            .collect();
        for gain in gains {
            elements[gain].fill(1.0);
        }
        Self {
            shape,
            parts,
            elements,
        }
    }

    /// Reads a safetensors file with GPT-2's tensors, such as `model.safetensors` of the model `gpt2`. Sizes are taken
    /// from the tensors; `heads` is not among them.
    ///
    /// # Errors
    /// Returns an error if the file is not regular, cannot be read, or lacks a tensor in F32 of the right size.
    pub fn read(path: &Path, heads: usize) -> Result<Self, WeightsError> {
        let bytes = read_file(path).map_err(|error| WeightsError::Unreadable {
            path: path.to_owned(),
            error,
        })?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| WeightsError::Malformed {
            path: path.to_owned(),
            error,
        })?;
        Self::of_file(&file, bytes.len(), heads).map_err(|problem| WeightsError::Unsuitable {
            path: path.to_owned(),
            problem,
        })
    }

    fn of_file(file: &SafeTensors<'_>, bytes: usize, heads: usize) -> Result<Self, String> {
        let tensor = |name: &str| {
            let found = file.tensor(name);
            let found = found.or_else(|_| file.tensor(&format!("transformer.{name}")));
            let found = found.map_err(|_| format!("the tensor {name} is missing"))?;
            if found.dtype() != Dtype::F32 {
                return Err(format!("the tensor {name} is of type {:?}", found.dtype()));
            }
            Ok(found)
        };
        let [vocabulary, width] = *tensor("wte.weight")?.shape() else {
            return Err("the tensor wte.weight does not have two dimensions".to_owned());
        };
        let [context, _] = *tensor("wpe.weight")?.shape() else {
            return Err("the tensor wpe.weight does not have two dimensions".to_owned());
        };
        let has_layer = |layer: &usize| tensor(&format!("h.{layer}.ln_1.weight")).is_ok();
        let shape = Shape {
            layers: (0..).take_while(has_layer).count(),
            width,
            heads,
            vocabulary,
            context,
        };
        if let Some(reason) = shape.invalid() {
            return Err(reason);
        }
        let parts = shape.parts();
        // Sizes of a file may be wrong, so no more is allocated than the file has.
        let parted = parts.wte.0.len() + parts.wpe.0.len();
        let layers = shape.layers * 12 * shape.width * shape.width;
        if (parted + layers) * size_of::<f32>() > bytes {
            return Err(format!(
                "its tensors are smaller than those of a model of {shape:?}"
            ));
        }
        let mut elements = vec![0.0; parts.end];
        let mut copy = |part: &Part, name: &str| {
            let found = tensor(name)?;
            let into: &mut [u8] = bytemuck::cast_slice_mut(&mut elements[part.0.clone()]);
            if found.data().len() != into.len() {
                let shape = found.shape();
                return Err(format!("the tensor {name} has the shape {shape:?}"));
            }
            into.copy_from_slice(found.data());
            Ok(())
        };
        copy(&parts.wte, "wte.weight")?;
        copy(&parts.wpe, "wpe.weight")?;
        for (index, layer) in parts.layers.iter().enumerate() {
            for (pair, name) in [
                (&layer.ln_1, "ln_1"),
                (&layer.c_attn, "attn.c_attn"),
                (&layer.attn_c_proj, "attn.c_proj"),
                (&layer.ln_2, "ln_2"),
                (&layer.c_fc, "mlp.c_fc"),
                (&layer.mlp_c_proj, "mlp.c_proj"),
            ] {
                copy(&pair[0], &format!("h.{index}.{name}.weight"))?;
                copy(&pair[1], &format!("h.{index}.{name}.bias"))?;
            }
        }
        copy(&parts.ln_f[0], "ln_f.weight")?;
        copy(&parts.ln_f[1], "ln_f.bias")?;
        Ok(Self {
            shape,
            parts,
            elements,
        })
    }

    /// Returns the sizes of the model.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.elements)
    }

    pub(crate) fn part(&self, part: &Part) -> &[f32] {
        &self.elements[part.0.clone()]
    }

    /// Writes the weights as a safetensors file, under GPT-2's names.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        use safetensors::tensor::TensorView;
        let view = |part: &Part, shape: Vec<usize>| {
            TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(self.part(part)))
        };
        let Shape {
            width,
            vocabulary,
            context,
            ..
        } = self.shape;
        let mut tensors = vec![
            (
                "wte.weight".to_owned(),
                view(&self.parts.wte, vec![vocabulary, width])?,
            ),
            (
                "wpe.weight".to_owned(),
                view(&self.parts.wpe, vec![context, width])?,
            ),
        ];
        let mut pair = |name: String, [weight, bias]: &[Part; 2], inputs: Option<usize>| {
            let outputs = bias.0.len();
            let shape = inputs.into_iter().chain([outputs]).collect();
            tensors.push((format!("{name}.weight"), view(weight, shape)?));
            tensors.push((format!("{name}.bias"), view(bias, vec![outputs])?));
            anyhow::Ok(())
        };
        for (index, layer) in self.parts.layers.iter().enumerate() {
            let name = |name: &str| format!("h.{index}.{name}");
            pair(name("ln_1"), &layer.ln_1, None)?;
            pair(name("attn.c_attn"), &layer.c_attn, Some(width))?;
            pair(name("attn.c_proj"), &layer.attn_c_proj, Some(width))?;
            pair(name("ln_2"), &layer.ln_2, None)?;
            pair(name("mlp.c_fc"), &layer.c_fc, Some(width))?;
            pair(name("mlp.c_proj"), &layer.mlp_c_proj, Some(4 * width))?;
        }
        pair("ln_f".to_owned(), &self.parts.ln_f, None)?;
        safetensors::serialize_to_file(tensors, None, path)?;
        Ok(())
    }
}

impl std::fmt::Debug for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Weights");
        shown.field("shape", &self.shape).finish_non_exhaustive()
    }
}
