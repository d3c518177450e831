//! The classes that the regions of `weirpool/_regions.py` are built on.

use crate::active::{Source, explained, is_inside, locked};
use crate::regions::{self, Gated, Inside, Shape};
use crate::service::{
    NativeActivation, NativePool, NativeWait, Outcome, Told, begin, exception, in_parent, seconds,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Arc, Mutex};
use weirpool::{CopyError, Pool, StreamError, Tag, Terms};
use weirpool_tiers::{Keep, RegionError};

/// Returns the exception for an error of a region; see `weirpool/_errors.py`.
pub(crate) fn refused(py: Python<'_>, pool: &Pool, error: RegionError) -> PyErr {
    let name = match &error {
        RegionError::Alloc(error) => {
            let text = py.detach(|| explained(pool, error));
            return crate::service::refused(py, error, text);
        }
        RegionError::Copy(error) => return refused_copy(py, error),
        RegionError::Suspended { .. } | RegionError::Stream(StreamError::Absent { .. }) => {
            "Suspended"
        }
        RegionError::HostFull { .. } => "HostFull",
        RegionError::DeviceFull { .. } | RegionError::Busy { .. } => "DeadlineExceeded",
        RegionError::Unsupported { .. }
        | RegionError::OtherPool { .. }
        | RegionError::OtherTag { .. } => "InvalidRequest",
        _ => "DeviceFailed",
    };
    exception(py, name, error.to_string(), None)
}

/// Returns the exception for a copy that failed.
pub(crate) fn refused_copy(py: Python<'_>, error: &CopyError) -> PyErr {
    let name = match error {
        CopyError::Stream(StreamError::Absent { .. }) => "Suspended",
        _ => "DeviceFailed",
    };
    exception(py, name, error.to_string(), None)
}

/// A region.
#[pyclass(frozen, module = "weirpool._native")]
pub(crate) struct NativeRegion(Arc<Gated>);

impl NativeRegion {
    fn pool(&self) -> &Pool {
        self.0.region().pool()
    }
}

fn all_of(regions: &[PyRef<'_, NativeRegion>]) -> PyResult<(Pool, Vec<Arc<Gated>>)> {
    in_parent()?;
    let Some(first) = regions.first() else {
        return Err(PyValueError::new_err("there is no region in the list"));
    };
    let all = regions.iter().map(|region| region.0.clone());
    Ok((first.pool().clone(), all.collect()))
}

fn terms(deadline: Option<f64>, timeout: Option<f64>, priority: i32) -> PyResult<Terms> {
    Ok(Terms {
        deadline: seconds("deadline", deadline)?,
        timeout: seconds("timeout", timeout)?,
        priority,
        ..Terms::default()
    })
}

#[pymethods]
impl NativeRegion {
    /// Makes a region of a pool. `keep` is `host`, `pageable` or `nothing`.
    #[new]
    #[pyo3(signature = (pool, name, keep, *, tag=None, chunk_bytes=None, pin_ahead=0))]
    fn new(
        py: Python<'_>,
        pool: &NativePool,
        name: &str,
        keep: &str,
        tag: Option<&str>,
        chunk_bytes: Option<u64>,
        pin_ahead: u64,
    ) -> PyResult<Self> {
        in_parent()?;
        let keep = match keep {
            "host" => Keep::OnHost,
            "pageable" => Keep::OnHostPageable,
            "nothing" => Keep::Nothing,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "keep is {keep:?}: expected \"host\", \"pageable\" or \"nothing\""
                )));
            }
        };
        if pin_ahead > 0 && keep != Keep::OnHost {
            return Err(PyValueError::new_err(
                "memory of the host is pinned for keep=\"host\" alone",
            ));
        }
        let shape = Shape {
            keep,
            tag: tag.map(Tag::new),
            chunk_bytes,
            pin_ahead,
        };
        let (of, device) = (pool.pool(), pool.of_gpu());
        let made = py.detach(|| Gated::new(of, name, &shape, device));
        made.map(Self).map_err(|error| refused(py, of, error))
    }

    fn name(&self) -> &str {
        self.0.region().name()
    }

    fn is_suspended(&self) -> PyResult<bool> {
        in_parent()?;
        Ok(self.0.region().is_suspended())
    }

    /// Returns the figures by their names.
    fn figures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        in_parent()?;
        let figures = py.detach(|| self.0.region().figures());
        let all = PyDict::new(py);
        all.set_item("is_suspended", figures.is_suspended)?;
        all.set_item("used", figures.used)?;
        all.set_item("addresses", figures.addresses)?;
        all.set_item("resident", figures.resident)?;
        all.set_item("on_host", figures.on_host)?;
        Ok(all)
    }

    /// Makes allocations of this thread, and of all threads on a stream if one is given, come from the region, which stays
    /// resident meanwhile.
    #[pyo3(signature = (thread, stream=None))]
    fn activate(
        &self,
        py: Python<'_>,
        thread: String,
        stream: Option<u64>,
    ) -> PyResult<NativeActivation> {
        in_parent()?;
        let inside = py.detach(|| self.0.try_enter());
        let inside = inside.map_err(|error| refused(py, self.pool(), error))?;
        let source = Source::Region(inside);
        Ok(NativeActivation::begin(self.pool(), source, thread, stream))
    }

    /// Holds regions resident, if they are.
    #[staticmethod]
    fn try_enter(py: Python<'_>, regions: Vec<PyRef<'_, Self>>) -> PyResult<NativeInside> {
        let (pool, all) = all_of(&regions)?;
        let inside = py.detach(|| all.iter().map(Gated::try_enter).collect());
        let inside: Result<Vec<_>, _> = inside;
        inside
            .map(NativeInside::new)
            .map_err(|error| refused(py, &pool, error))
    }

    /// Begins to wait until regions are resident, and holds them so.
    #[staticmethod]
    #[pyo3(signature = (regions, *, deadline=None, timeout=None, priority=0, told=None))]
    fn enter(
        py: Python<'_>,
        regions: Vec<PyRef<'_, Self>>,
        deadline: Option<f64>,
        timeout: Option<f64>,
        priority: i32,
        told: Option<Told>,
    ) -> PyResult<NativeWait> {
        let (pool, all) = all_of(&regions)?;
        let entered = regions::enter(all, terms(deadline, timeout, priority)?);
        begin(
            py,
            &pool,
            async move { Outcome::Entered(entered.await) },
            told,
        )
    }

    /// Begins to suspend regions as one.
    #[staticmethod]
    #[pyo3(signature = (regions, *, told=None))]
    fn suspend(
        py: Python<'_>,
        regions: Vec<PyRef<'_, Self>>,
        told: Option<Told>,
    ) -> PyResult<NativeWait> {
        let (pool, all) = all_of(&regions)?;
        if all.iter().any(is_inside) {
            return Err(PyRuntimeError::new_err(
                "the region is active on this thread, and the suspension would wait for that; end `active()` first",
            ));
        }
        let ended = regions::suspend(all);
        begin(
            py,
            &pool,
            async move { Outcome::Suspended(ended.await) },
            told,
        )
    }

    /// Begins to resume regions as one.
    #[staticmethod]
    #[pyo3(signature = (regions, *, deadline=None, timeout=None, priority=0, told=None))]
    fn resume(
        py: Python<'_>,
        regions: Vec<PyRef<'_, Self>>,
        deadline: Option<f64>,
        timeout: Option<f64>,
        priority: i32,
        told: Option<Told>,
    ) -> PyResult<NativeWait> {
        let (pool, all) = all_of(&regions)?;
        let ended = regions::resume(all, terms(deadline, timeout, priority)?);
        begin(
            py,
            &pool,
            async move { Outcome::Resumed(ended.await) },
            told,
        )
    }
}

/// Holds regions resident.
#[pyclass(frozen, module = "weirpool._native")]
pub(crate) struct NativeInside(Mutex<Vec<Arc<Inside>>>);

impl NativeInside {
    pub(crate) fn new(inside: Vec<Arc<Inside>>) -> Self {
        Self(Mutex::new(inside))
    }
}

#[pymethods]
impl NativeInside {
    /// Ends the hold. Returns false if it has ended.
    fn leave(&self, py: Python<'_>) -> bool {
        let inside = std::mem::take(&mut *locked(&self.0));
        let is_held = !inside.is_empty();
        py.detach(|| drop(inside));
        is_held
    }
}
