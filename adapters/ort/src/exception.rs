//! The exception of C++ for a failed allocation.

use crate::callbacks::Throw;
use libloading::os::unix::{Library, RTLD_NOW};

/// Does not load a library that the process does not have.
const RTLD_NOLOAD: i32 = 4;

/// Returns the function that throws `std::bad_alloc`, of the library of C++ that onnxruntime uses.
///
/// # Errors
/// Returns an error if the process has not loaded that library.
pub(crate) fn thrower() -> Result<Throw, libloading::Error> {
    // SAFETY: the library is loaded already.
    let library = unsafe { Library::open(Some("libstdc++.so.6"), RTLD_NOW | RTLD_NOLOAD) }?;
    // SAFETY: `std::__throw_bad_alloc()`, which takes nothing and never returns.
    let throw = unsafe { library.get::<Throw>("_ZSt17__throw_bad_allocv") };
    let throw = throw.map(|symbol| *symbol);
    // It stays loaded as long as onnxruntime does, which is never unloaded.
    std::mem::forget(library);
    throw
}
