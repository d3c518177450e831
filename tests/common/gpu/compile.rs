//! The machine code of the kernels, by NVRTC.

use cudarc::driver::CudaContext;
use cudarc::nvrtc::{result as nvrtc, sys};
use std::ffi::{CStr, CString};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

const SOURCE: &str = include_str!("kernels.cu");

/// Compiles the kernels to machine code, which unlike PTX does not depend on the driver's version.
pub(super) fn compiled(context: &CudaContext) -> Result<Vec<u8>, String> {
    static COMPILED: OnceLock<Result<Vec<u8>, String>> = OnceLock::new();
    COMPILED
        .get_or_init(|| quietly(|| compile(context)).unwrap_or_else(Err))
        .clone()
}

fn compile(context: &CudaContext) -> Result<Vec<u8>, String> {
    let capability = context.compute_capability();
    let (major, minor) = capability.map_err(|error| error.to_string())?;
    let architecture = format!("--gpu-architecture=sm_{major}{minor}");
    let source = CString::new(SOURCE).expect("a text");
    let program = nvrtc::create_program(&source, Some(c"kernels.cu"));
    let program = program.map_err(|error| format!("NVRTC failed: {error}"))?;
    // SAFETY: the program was created above, and is destroyed below.
    let binary = unsafe { nvrtc::compile_program(program, &[architecture]) }
        .and_then(|()| binary(program))
        .map_err(|error| format!("NVRTC failed: {error}: {}", log(program)));
    // SAFETY: as above; the program is not used afterwards.
    let _ = unsafe { nvrtc::destroy_program(program) };
    binary
}

fn binary(program: sys::nvrtcProgram) -> Result<Vec<u8>, nvrtc::NvrtcError> {
    let mut bytes = 0;
    // SAFETY: `bytes` is valid for the write.
    unsafe { sys::nvrtcGetCUBINSize(program, &mut bytes) }.result()?;
    let mut binary = vec![0u8; bytes];
    // SAFETY: `binary` has the size that NVRTC reported.
    unsafe { sys::nvrtcGetCUBIN(program, binary.as_mut_ptr().cast()) }.result()?;
    Ok(binary)
}

fn log(program: sys::nvrtcProgram) -> String {
    // SAFETY: the program is alive.
    let Ok(log) = (unsafe { nvrtc::get_program_log(program) }) else {
        return "no log".to_owned();
    };
    let log: Vec<u8> = log.into_iter().map(|byte| byte as u8).collect();
    let text = CStr::from_bytes_until_nul(&log).unwrap_or_default();
    text.to_string_lossy().into_owned()
}

/// Calls a function of cudarc, which panics if a library is missing. Returns that as an error, and prints nothing.
fn quietly<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let answer = catch_unwind(AssertUnwindSafe(call));
    std::panic::set_hook(hook);
    answer.map_err(|payload| text_of(&*payload))
}

/// Returns the message of a panic.
pub(crate) fn text_of(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}
