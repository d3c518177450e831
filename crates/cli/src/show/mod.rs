//! Reports as tables, pictures and pages.

pub(crate) mod chart;
pub(crate) mod page;
pub(crate) mod plot;
pub(crate) mod table;
