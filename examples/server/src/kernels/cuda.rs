//! The kernels on an NVIDIA GPU: those of `kernels.cu`, compiled at run time, and cuBLAS's products in plain `f32`.

#[path = "../../../../crates/cli/src/device/cuda/driver.rs"]
mod driver;

use super::{Kernels, Linear, Machine, Op, Span};
use cudarc::cublas::sys::cublasOperation_t;
use cudarc::cublas::{result, sys};
use cudarc::driver::sys::{CUdevice_attribute, CUfunction_attribute_enum};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
pub(crate) use driver::prepare;
use std::sync::{Arc, Mutex, PoisonError};
use weirpool::device::Argument;
use weirpool::device::cuda::CudaDevice;

const SOURCE: &str = include_str!("kernels.cu");

/// The workspace that cuBLAS recommends for GPUs of the Hopper generation.
const WORKSPACE: u64 = 32 << 20;

/// The threads of a block.
const THREADS: u32 = 256;

/// Opens a GPU.
///
/// # Errors
/// Returns an error if there is no driver or no such device, if NVRTC or cuBLAS is missing, or if kernels cannot be
/// compiled.
pub(crate) fn machine(ordinal: usize) -> anyhow::Result<Machine<CudaStream>> {
    let device = CudaDevice::new(ordinal)?;
    // SAFETY: the library's initializers have no preconditions; cudarc loads it in the same way.
    let has_cublas = unsafe { sys::is_culib_present() };
    anyhow::ensure!(
        has_cublas,
        "the server needs cuBLAS, which was not found: install the CUDA toolkit (or the package nvidia-cublas of PyPI), \
         and have LD_LIBRARY_PATH name the folder of libcublas.so"
    );
    let context = device.context().clone();
    let functions = Arc::new(Functions::compile(&context)?);
    Ok(Machine {
        device: Arc::new(device),
        kernels: Box::new(move || {
            context.bind_to_thread()?;
            Ok(Arc::new(CudaKernels {
                functions: functions.clone(),
                blas: Mutex::new(Blas(result::create_handle()?)),
            }))
        }),
        workspace: WORKSPACE,
    })
}

struct Functions {
    embed: CudaFunction,
    norm: CudaFunction,
    bias: CudaFunction,
    store: CudaFunction,
    attend: CudaFunction,
    gelu: CudaFunction,
    gather: CudaFunction,
    sample: CudaFunction,
    /// The shared memory that a block of `attend` may use, in bytes.
    shared: u32,
}

impl Functions {
    fn compile(context: &Arc<CudaContext>) -> anyhow::Result<Self> {
        let module = driver::compile(context, SOURCE)?;
        let function = |name| module.load_function(name);
        let attend = function("attend")?;
        let shared = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let shared = context.attribute(shared)?;
        let limit = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        attend.set_attribute(limit, shared)?;
        Ok(Self {
            embed: function("embed")?,
            norm: function("layer_norm")?,
            bias: function("bias")?,
            store: function("store")?,
            attend,
            gelu: function("gelu")?,
            gather: function("gather")?,
            sample: function("sample")?,
            shared: shared.try_into()?,
        })
    }
}

/// A handle of cuBLAS.
struct Blas(sys::cublasHandle_t);

// SAFETY: a handle may be used by any thread, one at a time.
unsafe impl Send for Blas {}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: the handle is destroyed once. An error cannot be handled here.
        let _ = unsafe { result::destroy_handle(self.0) };
    }
}

struct CudaKernels {
    functions: Arc<Functions>,
    blas: Mutex<Blas>,
}

impl Kernels<CudaStream> for CudaKernels {
    fn bind(&self, work: &CudaStream, workspace: Argument<'_>) -> anyhow::Result<()> {
        let blas = self.blas.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = workspace.address().to_bits() as *mut std::ffi::c_void;
        // SAFETY: the handle is valid. The stream and the workspace live as long as the worker that these kernels
        // belong to, and the workspace is used on that stream only.
        unsafe {
            result::set_stream(blas.0, work.cu_stream().cast())?;
            sys::cublasSetWorkspace_v2(blas.0, memory, workspace.size() as usize).result()?;
        }
        Ok(())
    }

    fn launch(&self, work: &CudaStream, op: &Op<'_>) -> anyhow::Result<()> {
        let functions = &*self.functions;
        // The number of elements, and of threads, as the kernels count them.
        let count = |span: Span| (span.bytes / 4) as u32;
        match *op {
            Op::Embed {
                width,
                tokens,
                positions,
                token_embeddings,
                position_embeddings,
                output,
            } => {
                let (elements, width) = (count(output), width as u32);
                let mut launch = work.launch_builder(&functions.embed);
                launch.arg(&elements).arg(&width);
                launch.arg(&tokens.address).arg(&positions.address);
                launch.arg(&token_embeddings.address);
                launch
                    .arg(&position_embeddings.address)
                    .arg(&output.address);
                // SAFETY: the spans are of memory that this work was submitted with, and have the sizes that the kernel
                // expects; tokens and positions are within their tables. This also holds below.
                unsafe { launch.launch(each(elements)) }?;
            }
            Op::Norm {
                width,
                input,
                gain,
                bias,
                output,
            } => {
                let rows = count(input) / width as u32;
                let width = width as u32;
                let mut launch = work.launch_builder(&functions.norm);
                launch.arg(&width).arg(&input.address).arg(&gain.address);
                launch.arg(&bias.address).arg(&output.address);
                // SAFETY: as above.
                unsafe { launch.launch(blocks(rows, 1, 0)) }?;
            }
            Op::Linear(linear) => self.multiply(work, linear)?,
            Op::Store { step, cache } => {
                let (width, page) = (cache.width as u32, cache.page as u32);
                let (layer, elements) = (cache.layer as u32, step.rows as u32 * 2 * width);
                let mut launch = work.launch_builder(&functions.store);
                launch.arg(&elements).arg(&width).arg(&page).arg(&layer);
                launch.arg(&step.qkv.address).arg(&step.tables.address);
                launch.arg(&step.positions.address);
                launch.arg(&step.table_starts.address);
                // SAFETY: as above; the tables hold the addresses of pages that this work was submitted with.
                unsafe { launch.launch(each(elements)) }?;
            }
            Op::Attend { step, cache } => {
                let (width, page) = (cache.width as u32, cache.page as u32);
                let (layer, heads) = (cache.layer as u32, cache.heads as u32);
                let head = width / heads;
                let positions = cache.page * step.longest;
                let shared = functions.shared.min(4 * (32 + positions as u32));
                let mut launch = work.launch_builder(&functions.attend);
                launch.arg(&width).arg(&head).arg(&page).arg(&layer);
                launch.arg(&step.qkv.address).arg(&step.tables.address);
                launch.arg(&step.positions.address);
                launch
                    .arg(&step.table_starts.address)
                    .arg(&step.inner.address);
                // SAFETY: as above; the shared memory holds a score for each position of a sequence, since the engine
                // admits no longer one.
                unsafe { launch.launch(blocks(heads, step.rows as u32, shared)) }?;
            }
            Op::Gelu { data } => {
                let elements = count(data);
                let mut launch = work.launch_builder(&functions.gelu);
                launch.arg(&elements).arg(&data.address);
                // SAFETY: as above.
                unsafe { launch.launch(each(elements)) }?;
            }
            Op::Gather {
                width,
                rows,
                input,
                output,
            } => {
                let (elements, width) = (count(output), width as u32);
                let mut launch = work.launch_builder(&functions.gather);
                launch.arg(&elements).arg(&width).arg(&rows.address);
                launch.arg(&input.address).arg(&output.address);
                // SAFETY: as above.
                unsafe { launch.launch(each(elements)) }?;
            }
            Op::Sample { vocabulary, step } => {
                let vocabulary = vocabulary as u32;
                let mut launch = work.launch_builder(&functions.sample);
                launch.arg(&vocabulary).arg(&step.logits.address);
                launch
                    .arg(&step.temperatures.address)
                    .arg(&step.seeds.address);
                launch
                    .arg(&step.chosen.address)
                    .arg(&step.positions.address);
                launch.arg(&step.answers.address);
                // SAFETY: as above.
                unsafe { launch.launch(blocks(step.chosen_rows as u32, 1, 0)) }?;
            }
        }
        Ok(())
    }
}

impl CudaKernels {
    /// Multiplies by cuBLAS, whose matrices are column-major: it computes the transposed product of the transposed
    /// factors.
    fn multiply(&self, work: &CudaStream, linear: Linear) -> anyhow::Result<()> {
        let Linear {
            rows,
            inputs,
            outputs,
            input,
            weight,
            bias,
            output,
            adds,
            is_transposed,
        } = linear;
        let mut adds = adds;
        if let Some(bias) = bias {
            let (elements, width) = ((rows * outputs) as u32, outputs as u32);
            let added = u32::from(adds);
            let mut launch = work.launch_builder(&self.functions.bias);
            launch.arg(&elements).arg(&width).arg(&bias.address);
            launch.arg(&output.address).arg(&added);
            // SAFETY: as in `launch`.
            unsafe { launch.launch(each(elements)) }?;
            adds = true;
        }
        let (one, scale) = (1.0_f32, if adds { 1.0_f32 } else { 0.0 });
        let (transposition, stride) = match is_transposed {
            true => (cublasOperation_t::CUBLAS_OP_T, inputs),
            false => (cublasOperation_t::CUBLAS_OP_N, outputs),
        };
        let blas = self.blas.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the matrices are of memory that this work was submitted with, and as large as the sizes say.
        unsafe {
            result::sgemm(
                blas.0,
                transposition,
                cublasOperation_t::CUBLAS_OP_N,
                outputs.try_into()?,
                rows.try_into()?,
                inputs.try_into()?,
                &one,
                weight.address as *const f32,
                stride.try_into()?,
                input.address as *const f32,
                inputs.try_into()?,
                &scale,
                output.address as *mut f32,
                outputs.try_into()?,
            )?;
        }
        Ok(())
    }
}

/// Returns a launch with a thread for each element.
fn each(elements: u32) -> LaunchConfig {
    blocks(elements.div_ceil(THREADS), 1, 0)
}

fn blocks(x: u32, y: u32, shared: u32) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (x, y, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: shared,
    }
}
