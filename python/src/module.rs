//! The Python module `weirpool._native`.

use crate::{device_pool, figures_of, settings};
use pyo3::exceptions::{PyImportError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// The lock that orders [`configure`] calls.
static CONFIGURING: Mutex<()> = Mutex::new(());

/// Sets a setting in place of its environment variable, for pools that are created later. `None` removes it.
#[pyfunction]
fn configure(name: &str, value: Option<String>) -> PyResult<()> {
    let _configuring = CONFIGURING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = device_pool::first_opened() {
        return Err(PyRuntimeError::new_err(format!(
            "the pool of device {device} exists already; change settings before the first allocation"
        )));
    }
    settings::set(name, value).map_err(PyValueError::new_err)
}

/// Returns the figures of a device's pool by their names. Without a pool, all figures are 0.
#[pyfunction]
fn statistics(py: Python<'_>, device: c_int) -> PyResult<Bound<'_, PyDict>> {
    let figures = py.detach(|| figures_of(device));
    let all = PyDict::new(py);
    for (name, figure) in figures.by_name() {
        all.set_item(name, figure)?;
    }
    Ok(all)
}

/// Ends the sharing of memory with other processes. Called at the end of the process.
#[pyfunction]
fn stop_sharing(py: Python<'_>) {
    #[cfg(target_os = "linux")]
    py.detach(crate::handles::stop);
}

/// The native part of weirpool.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // SAFETY: Python's lock is held, and the interpreter lives.
    let interpreter =
        unsafe { pyo3::ffi::PyInterpreterState_GetID(pyo3::ffi::PyInterpreterState_Get()) };
    if interpreter != 0 {
        return Err(PyImportError::new_err(
            "weirpool works in the main interpreter only, whose threads and pools it would share",
        ));
    }
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(configure, module)?)?;
    module.add_function(wrap_pyfunction!(stop_sharing, module)?)?;
    crate::service::add(module)?;
    module.add_function(wrap_pyfunction!(statistics, module)?)
}
