//! Reports as tables and pictures.

pub(crate) mod chart;
pub(crate) mod plot;
pub(crate) mod table;
